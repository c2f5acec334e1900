//! Other systems' formats: payloads of DCDB and numbers as text over MQTT, line protocols over HTTP; and live readings as text.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wholegrain_transport::client::Event;
use wholegrain_transport::mqtt::{ReasonCode, Version};

use crate::harness::{PASSWORD, TestAgent, TestServer, VERSIONS, schema, wait_for, wait_until};

/// A whole second of a minute ago, in seconds.
fn recent_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 - 60
}

fn records(pairs: &[(i64, i64)]) -> Vec<u8> {
    pairs.iter().flat_map(|(value, time)| [value.to_le_bytes(), time.to_le_bytes()].concat()).collect()
}

fn values(server: &TestServer, pattern: &str) -> Vec<String> {
    server.newest(pattern).into_iter().map(|(value, _)| value).collect()
}

fn rows(server: &TestServer, pattern: &str) -> usize {
    server.get(&format!("/api/v1/query?pattern={pattern}&from=-1h&format=csv")).text().lines().count() - 1
}

fn mosquitto(server: &TestServer, program: &str, version: &str) -> Command {
    let mut command = Command::new(program);
    let port = server.addresses.mqtt.unwrap().port().to_string();
    command.args(["-V", version, "-h", "127.0.0.1", "-p", &port, "-u", "n1", "-P", PASSWORD]);
    command
}

#[test]
fn numbers_as_text_from_mosquitto_pub_are_readings() {
    let server = TestServer::start();
    let second = recent_s();
    for (version, qos) in [("mqttv311", "0"), ("mqttv311", "1"), ("mqttv311", "2"), ("mqttv5", "1"), ("mqttv5", "2")] {
        let path = format!("/site/n1/{version}_{qos}");
        for (name, message) in
            [("int", format!("42;{second}")), ("float", format!("1.5;{second}000")), ("now", "7".to_owned())]
        {
            let output = mosquitto(&server, "mosquitto_pub", version)
                .args(["-q", qos, "-t", &format!("{path}/{name}"), "-m", &message])
                .output()
                .expect("mosquitto_pub, of the Debian package mosquitto-clients");
            assert!(output.status.success(), "{output:?}");
        }
        let expected = [format!("{path}/float=1.5"), format!("{path}/int=42"), format!("{path}/now=7")];
        wait_until("the readings", || values(&server, &format!("{path}/**")).len() == 3);
        assert_eq!(values(&server, &format!("{path}/**")), expected);
    }
    // Connections that publish with QoS 0 may be closed when the store answers.
    assert!(server.metric("wholegrain_server_schemaless_readings_total") >= 12.0);
    let output = mosquitto(&server, "mosquitto_pub", "mqttv5")
        .args(["-q", "1", "-t", "/site/other/x", "-m", "1"])
        .output()
        .unwrap();
    assert!(
        output.status.code() != Some(0) || String::from_utf8_lossy(&output.stderr).contains("ot authorized"),
        "{output:?}"
    );
    assert_eq!(values(&server, "/site/other/**"), [""; 0]);
}

#[test]
fn records_of_dcdb_are_stored_before_they_are_acknowledged() {
    let server = TestServer::start();
    let second = recent_s() * 1_000_000_000;
    for version in VERSIONS {
        let mut agent = server.agent(&server.plain(version));
        let path = |name: &str| format!("/n1/{version:?}/{name}");
        let mut ids = Vec::new();
        // Many messages in few packets, with a new sensor among known ones.
        for i in 0..50 {
            ids.push(agent.publish(&path("many"), &records(&[(i, second + i)])));
        }
        ids.push(
            agent.publish(&path("array"), &records(&[(-1, second), (i64::MIN, second + 1), (i64::MAX, second + 2)])),
        );
        ids.push(agent.publish(&path("alone"), &9_i64.to_le_bytes()));
        agent.acked(&ids);
        assert_eq!(values(&server, &path("**")), [path("alone=9"), path("array=9223372036854775807"), path("many=49")],);
        assert_eq!((rows(&server, &path("many")), rows(&server, &path("array"))), (50, 3));
        // A repeated reading is stored once.
        let again = agent.publish(&path("array"), &records(&[(-1, second)]));
        agent.acked(&[again]);
        assert_eq!(rows(&server, &path("array")), 3);
    }
}

#[test]
fn invalid_readings_have_no_effect() {
    let server = TestServer::start();
    let mut agent = server.agent(&server.plain(Version::V5));
    let second = recent_s() * 1_000_000_000;
    let huge = vec![0; (65_536 + 1) * 16];
    let good = agent.publish("/n1/good", &records(&[(1, second)]));
    let refused = agent.publish("/n1/huge", &huge);
    let elsewhere = agent.publish("/n2/x", &records(&[(1, second)]));
    let text = agent.publish("/n1/text", b"hello, world!!!!");
    let odd = agent.publish("/n1/odd", &[0xff; 7]);
    let no_path = agent.publish("/n1//x", b"5");
    let last = agent.publish("/n1/good", &records(&[(2, second + 1)]));
    let ack = |packet_id, reason| Event::Acked { packet_id, reason };
    assert_eq!(agent.event(), ack(good, ReasonCode::SUCCESS));
    assert_eq!(agent.event(), ack(refused, ReasonCode::PAYLOAD_FORMAT_INVALID));
    assert_eq!(agent.event(), ack(elsewhere, ReasonCode::NOT_AUTHORIZED));
    agent.acked(&[text, odd, no_path, last]);
    assert_eq!(values(&server, "/**"), ["/n1/good=2"]);
    assert_eq!(server.metric("wholegrain_server_odd_readings_total"), 3.0);
}

#[test]
fn new_sensors_are_bounded_by_the_hour() {
    let server = TestServer::start_with("[mqtt.readings]\nsensors_per_hour_max = 3\n");
    let mut agent = server.agent(&server.plain(Version::V5));
    let ids: Vec<u16> = (0..5).map(|i| agent.publish(&format!("/n1/s{i}"), b"1")).collect();
    let known = agent.publish("/n1/s0", b"2");
    for (at, id) in ids.into_iter().enumerate() {
        let reason = if at < 3 { ReasonCode::SUCCESS } else { ReasonCode::QUOTA_EXCEEDED };
        assert_eq!(agent.event(), Event::Acked { packet_id: id, reason }, "{at}");
    }
    agent.acked(&[known]);
    assert_eq!(values(&server, "/n1/*"), ["/n1/s0=2", "/n1/s1=1", "/n1/s2=1"]);
    assert_eq!(server.metric("wholegrain_server_sensors_over_allowance_total"), 2.0);
}

#[test]
fn names_announced_by_dcdb_count_at_once_and_after_a_restart() {
    let server = TestServer::start();
    let second = recent_s() * 1_000_000_000;
    let publish = |agent: &mut TestAgent, at: i64| {
        let first = agent.publish("/n1/00/01", &records(&[(at, second + at)]));
        let other = agent.publish("/n1/00/02", &records(&[(at, second + at)]));
        agent.acked(&[first, other]);
    };
    let mut agent = server.agent(&server.plain(Version::V311));
    // Without waiting: readings after an announcement belong to the sensor that it names.
    let name = agent.publish("/DCDB_MAP//n1/00/01", b"/n1/power");
    let json = br#"{"publicName":"/n1/energy","unit":"J","scale":0.5,"monotonic":true}"#;
    let metadata = agent.publish("/DCDB_MAP/METADATA//n1/00/02", json);
    let early = agent.publish("/n1/00/01", &records(&[(1, second + 1)]));
    agent.acked(&[name, metadata, early]);
    publish(&mut agent, 2);
    assert_eq!(values(&server, "/n1/**"), ["/n1/energy=1.0", "/n1/power=2"]);
    let sensors = server.get("/api/v1/sensors?pattern=/n1/energy").json();
    assert_eq!((&sensors["sensors"][0]["unit"], &sensors["sensors"][0]["kind"]), (&"J".into(), &"counter".into()));
    drop(agent);
    let server = server.restart();
    let mut agent = server.agent(&server.plain(Version::V311));
    publish(&mut agent, 4);
    assert_eq!(values(&server, "/n1/**"), ["/n1/energy=2.0", "/n1/power=4"]);
    assert_eq!(rows(&server, "/n1/power"), 3);
}

#[test]
fn line_protocol_of_influxdb() {
    let server = TestServer::start();
    let second = recent_s();
    let body = format!(
        "# a comment\ncpu,host=n7,cpu=cpu0 usage_user=1.5,procs=3i,ok=t,text=\"x\" {second}\n\
         mem,host=n7 used=7u {second}\nodd\\ name,host=n7,path=/home v=1 {second}\n"
    );
    assert_eq!(server.post("/api/v2/write?org=o&bucket=b&precision=s", &body), (204, String::new()));
    let expected = [
        "/n7/cpu/cpu=cpu0/ok=1",
        "/n7/cpu/cpu=cpu0/procs=3",
        "/n7/cpu/cpu=cpu0/usage_user=1.5",
        "/n7/mem/used=7",
        "/n7/odd%20name/path=%2Fhome/v=1.0",
    ];
    assert_eq!(values(&server, "/n7/**"), expected);
    let body =
        format!("mem,host=n8 used=1i {second}\nmem used=1i\nmem,host=n8 used=x\n\nmem,host=n8 free=2i {second}\n");
    let (status, answer) = server.post("/write?db=x&precision=s", &body);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (status, &answer["lines"][0]["line"], &answer["lines"][1]["line"]),
        (400, &2.into(), &3.into()),
        "{answer}"
    );
    assert!(answer["lines"][0]["error"].as_str().unwrap().contains("the tag \"host\" is missing"), "{answer}");
    assert!(answer["error"].as_str().unwrap().starts_with("partial write: "), "{answer}");
    assert_eq!(values(&server, "/n8/**"), ["/n8/mem/free=2", "/n8/mem/used=1"]);
    assert_eq!(server.metric("wholegrain_server_lines_refused_total"), 2.0);
    assert_eq!(server.post("/write?precision=x", "m v=1").0, 400);
    assert_eq!(server.get("/api/v2/write").status, 405);
    assert_eq!(server.get_as("/write", None).status, 401);
}

#[test]
fn curl_sends_packed_lines() {
    let server = TestServer::start();
    let body = format!("power,host=n9 watts=250i {}\n", recent_s() * 1_000_000_000);
    let send = |header: &str, body: &[u8]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@-", "-H", header]);
        curl.arg("--cacert").arg(server.path("ca.pem")).args(["-H", &format!("Authorization: Token {}", server.token)]);
        let mut child =
            curl.arg(server.url("/api/v1/write/influx")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(body).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let mut gzip = Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let packed = gzip.wait_with_output().unwrap().stdout;
    assert_eq!(send("Content-Encoding: gzip", &packed), "204");
    assert_eq!(values(&server, "/n9/**"), ["/n9/power/watts=250"]);
    assert_eq!(send("Content-Encoding: gzip", body.as_bytes()), "400");
    assert_eq!(send("Content-Encoding: br", &packed), "415");
    assert_eq!(send("Content-Type: text/plain", &vec![b'x'; (32 << 20) + 1]), "413");
}

#[test]
fn metric_messages_of_clustercockpit() {
    let server = TestServer::start();
    let second = recent_s();
    let body = format!(
        "mem_used,cluster=emmy,hostname=e0101,type=node,type-id=0,unit=MByte value=12.5 {second}\n\
         ipc,cluster=emmy,hostname=e0101,type=hwthread,type-id=3 value=2i {second}000\n\
         load,hostname=e0102,type=node value=1 {second}000000000\n"
    );
    assert_eq!(server.post("/api/write/?cluster=alex", &body).0, 200);
    let expected = ["/alex/e0102/load=1.0", "/emmy/e0101/hwthread/3/ipc=2", "/emmy/e0101/mem_used=12.5"];
    let mut found = values(&server, "/alex/**");
    found.extend(values(&server, "/emmy/**"));
    assert_eq!(found, expected);
    let times: std::collections::HashSet<String> =
        server.newest("/emmy/**").into_iter().map(|(_, time)| time).collect();
    assert_eq!(times.len(), 1, "seconds, milliseconds and nanoseconds are one time: {times:?}");
    let sensors = server.get("/api/v1/sensors?pattern=/emmy/*/mem_used").json();
    assert_eq!(sensors["sensors"][0]["unit"], "MByte");
    let (status, answer) = server.post("/api/v1/write/clustercockpit", "job,cluster=c,hostname=h event=\"x\",stop=1\n");
    assert!(status == 400 && answer.contains("is not supported"), "{answer}");
}

#[test]
fn live_readings_are_sent_as_text_to_subscribers() {
    let server = TestServer::start();
    let mut subscriber = mosquitto(&server, "mosquitto_sub", "mqttv5");
    subscriber.args(["-t", "text/site/n1/#", "-v"]).stdout(Stdio::piped());
    let mut subscriber = subscriber.spawn().unwrap();
    wait_until("the subscription", || server.metric("wholegrain_server_subscriptions") == 1.0);
    let second = recent_s() * 1_000_000_000;
    let mut agent = server.agent(&server.plain(Version::V5));
    let bytes = schema("n1", "g", "bytes");
    let announced = agent.schema(&bytes);
    agent.acked(&[announced]);
    let mut lines = BufReader::new(subscriber.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || lines.by_ref().for_each(|line| drop(sender.send(line))));
    // The first readings may arrive before the server has handled the subscription.
    let first = wait_for("the first line", || {
        let id = agent.publish("/site/n1/other", format!("2.5;{second}").as_bytes());
        agent.acked(&[id]);
        receiver.recv_timeout(Duration::from_millis(100)).ok()
    });
    assert_eq!(first, format!("text/site/n1/other 2.5;{second}"));
    let id = agent.batch(&bytes, &[(second, 3)]);
    agent.acked(&[id]);
    let expected = format!("text/site/n1/bytes 3072;{second}");
    wait_for("the batch as text", || receiver.try_iter().any(|line| line == expected).then_some(()));
    subscriber.kill().unwrap();
    subscriber.wait().unwrap();
    reader.join().unwrap();
    assert!(server.metric("wholegrain_server_text_messages_total") >= 2.0);
}
