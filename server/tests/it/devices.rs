//! Devices that do not know this server: JSON of Tasmota and Zigbee2MQTT from mosquitto_pub, Sparkplug B made from its specification.

use std::process::Command;

use wholegrain_transport::client::Event;
use wholegrain_transport::mqtt::{ReasonCode, Version};

use crate::harness::{NOON, PASSWORD, SECOND, TestServer, VERSIONS, wait_until};
use crate::protobuf::MessageBuilder;

const DEVICES: &str = r#"
[[mqtt.device]]
topic = "tele/{device}/SENSOR"
payload = "json"
path = "/plugs/{device}/{path}"
exclude = ["**/Today"]
units = { Power = "W", Temperature = "Cel", "ENERGY/Total" = "kW.h" }
counters = ["ENERGY/Total"]

[[mqtt.device]]
topic = "zigbee2mqtt/{device}"
payload = "json"
path = "/plugs/n1/{device}/{path}"
include = ["temperature", "battery", "contact"]
time = "last_seen"

[[mqtt.device]]
payload = "sparkplug"
path = "/site/{group}/{node}/{device}/{path}"

[mqtt.readings]
sensors_per_hour_max = 20
"#;

/// A server with these devices, where n1 may write below its own name and below /site.
fn start() -> TestServer {
    let grants = "[[mqtt.acl]]\nidentity = \"*\"\nsubscribe = [\"#\"]\npublish = [\"/site/#\"]\n";
    TestServer::start_strict(&format!("{DEVICES}\n{grants}"))
}

fn mosquitto(server: &TestServer, version: &str, qos: &str, topic: &str, message: &str) -> bool {
    let port = server.addresses.mqtt.unwrap().port().to_string();
    let mut command = Command::new("mosquitto_pub");
    command.args(["-V", version, "-h", "127.0.0.1", "-p", &port, "-u", "n1", "-P", PASSWORD]);
    let output = command.args(["-q", qos, "-t", topic, "-m", message]).output().expect("mosquitto-clients");
    output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("ot authorized")
}

fn values(server: &TestServer, pattern: &str) -> Vec<String> {
    server.newest(pattern).into_iter().map(|(value, _)| value).collect()
}

/// Times in ms after noon and values of one sensor, a gap as `-`.
fn readings(server: &TestServer, path: &str) -> Vec<String> {
    let answer = server.get(&format!("/api/v1/query?pattern={path}&from=@{}&format=json", NOON / SECOND));
    let one = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let time = wholegrain_model::Timestamp::parse(row["time"].as_str().unwrap(), wholegrain_model::Timestamp(0));
        let value = row["value"].as_f64().map_or("-".to_owned(), |value| value.to_string());
        format!("{}={value}", (time.unwrap().0 - NOON) / 1_000_000)
    };
    answer.text().lines().map(one).collect()
}

#[test]
fn json_of_tasmota_and_zigbee2mqtt_from_mosquitto_pub() {
    let server = start();
    let tasmota = r#"{"Time":"2026-01-31T13:00:00","ENERGY":{"Total":3.185,"Today":1,"Power":12},"DS18B20":{"Id":"01","Temperature":20.5},"POWER":"ON"}"#;
    for (version, qos) in [("mqttv311", "0"), ("mqttv311", "1"), ("mqttv5", "1"), ("mqttv5", "2")] {
        assert!(mosquitto(&server, version, qos, "tele/n1/SENSOR", tasmota), "{version} {qos}");
    }
    let expected = [
        "/plugs/n1/DS18B20/Temperature=20.5",
        "/plugs/n1/ENERGY/Power=12.0",
        "/plugs/n1/ENERGY/Total=3.185",
        "/plugs/n1/POWER=1.0",
    ];
    wait_until("the readings", || values(&server, "/plugs/**").len() == expected.len());
    assert_eq!(values(&server, "/plugs/**"), expected);
    let sensors = server.get("/api/v1/sensors?pattern=/plugs/n1/ENERGY/Total").json();
    assert_eq!([&sensors["sensors"][0]["unit"], &sensors["sensors"][0]["kind"]], ["kW.h", "counter"]);
    let zigbee = |contact: bool, at: i64| {
        format!("{{\"contact\":{contact},\"battery\":null,\"temperature\":21,\"voltage\":2995,\"last_seen\":{at}}}")
    };
    assert!(mosquitto(&server, "mqttv311", "1", "zigbee2mqtt/door 1", &zigbee(true, NOON / SECOND)));
    assert!(mosquitto(&server, "mqttv5", "1", "zigbee2mqtt/door 1", &zigbee(false, NOON / 1_000_000 + 1)));
    assert_eq!(readings(&server, "/plugs/n1/door%25201/contact"), ["0=1", "1=0"]);
    assert_eq!(readings(&server, "/plugs/n1/door%25201/temperature"), ["0=21", "1=21"]);
    assert_eq!(values(&server, "/plugs/n1/**/battery"), [""; 0], "a value that was never there makes no sensor");
    assert_eq!(values(&server, "/plugs/n1/**/voltage"), [""; 0]);
}

#[test]
fn a_device_writes_where_it_may_publish_and_nothing_closes_its_connection() {
    let server = start();
    for version in VERSIONS {
        let mut device = server.agent(&server.plain(version));
        let denied = device.publish("tele/n2/SENSOR", br#"{"ENERGY":{"Power":1}}"#);
        let garbage = device.publish("tele/n2/SENSOR", &[0xff; 65_536]);
        let deep = device.publish("tele/n1/SENSOR", format!("{{\"a\":{}", "[".repeat(100_000)).as_bytes());
        let good = device.publish("tele/n1/SENSOR", format!("{{\"{version:?}\":5}}").as_bytes());
        let ack = |packet_id, reason| Event::Acked { packet_id, reason };
        let refused = |reason| if version == Version::V5 { reason } else { ReasonCode::SUCCESS };
        assert_eq!(device.event(), ack(denied, refused(ReasonCode::NOT_AUTHORIZED)));
        assert_eq!(device.event(), ack(garbage, refused(ReasonCode::PAYLOAD_FORMAT_INVALID)));
        // On a topic where it may publish, a message that is none of its kind goes to subscribers.
        assert_eq!(device.event(), ack(deep, ReasonCode::SUCCESS));
        assert_eq!(device.event(), ack(good, ReasonCode::SUCCESS));
        assert_eq!(values(&server, &format!("/plugs/n1/{version:?}")), [format!("/plugs/n1/{version:?}=5.0")]);
    }
    assert_eq!(values(&server, "/plugs/n2/**"), [""; 0]);
    assert_eq!(server.metric("wholegrain_server_device_values_left_out_total"), 6.0);
    // Beyond the quota of new sensors, those that fit are stored.
    let mut device = server.agent(&server.plain(Version::V311));
    let many: Vec<String> = (0..30).map(|at| format!("\"m{at:02}\":{at}")).collect();
    let many = device.publish("tele/n1/SENSOR", format!("{{{}}}", many.join(",")).as_bytes());
    let after = device.publish("tele/n1/SENSOR", br#"{"V5":6}"#);
    device.acked(&[many, after]);
    assert_eq!(values(&server, "/plugs/n1/m*").len(), 18);
    assert_eq!(values(&server, "/plugs/n1/V5"), ["/plugs/n1/V5=6.0"]);
    assert_eq!(server.metric("wholegrain_server_sensors_over_allowance_total"), 12.0);
}

fn message() -> MessageBuilder {
    MessageBuilder::default()
}

/// A payload of Sparkplug at a time in ms after noon.
fn payload(ms: i64, sequence: i64, metrics: Vec<MessageBuilder>) -> Vec<u8> {
    let timed = message().int(1, NOON / 1_000_000 + ms);
    metrics.into_iter().fold(timed, |payload, metric| payload.message(2, metric)).int(3, sequence).0
}

fn named(name: &str, alias: i64, datatype: i64) -> MessageBuilder {
    message().bytes(1, name).int(2, alias).int(4, datatype)
}

#[test]
fn a_node_of_sparkplug_is_born_sends_and_dies() {
    let server = start();
    let birth = |number| {
        payload(0, 0, vec![message().bytes(1, "bdSeq").int(4, 8).int(11, number), named("Load", 1, 10).double(13, 0.5)])
    };
    let unit = message().bytes(1, "engUnit").message(2, message().int(1, 12).bytes(8, "kW"));
    let device = vec![
        named("Flow/In", 2, 3).int(10, i64::from(u32::MAX - 4)),
        named("Power", 3, 10).double(13, 7.5).message(9, unit),
        named("Serial", 4, 12).bytes(15, "x"),
    ];
    for version in VERSIONS {
        let group = format!("{version:?}");
        let path = |name: &str| format!("/site/{group}/edge/{name}");
        let mut edge = server.agent(&server.plain(version));
        let publish = |edge: &mut crate::harness::TestAgent, kind: &str, rest: &str, payload: &[u8]| {
            let id = edge.publish(&format!("spBv1.0/{group}/{kind}/edge{rest}"), payload);
            edge.acked(&[id]);
        };
        publish(&mut edge, "NBIRTH", "", &birth(1));
        publish(&mut edge, "DBIRTH", "/pump", &payload(0, 1, device.clone()));
        let data = vec![message().int(2, 2).int(10, 8), message().int(2, 3).double(13, 8.5)];
        publish(&mut edge, "DDATA", "/pump", &payload(1000, 2, data.clone()));
        // A message is missing before this one.
        publish(&mut edge, "DDATA", "/pump", &payload(2000, 4, data));
        publish(&mut edge, "DDEATH", "/pump", &payload(3000, 5, Vec::new()));
        assert_eq!(readings(&server, &path("pump/Flow/In")), ["0=-5", "1000=8", "2000=8", "3000=-"]);
        assert_eq!(readings(&server, &path("pump/Power")), ["0=7.5", "1000=8.5", "2000=8.5", "3000=-"]);
        assert_eq!(values(&server, &path("pump/*")).len(), 1, "the serial number is a text");
        let sensors = server.get(&format!("/api/v1/sensors?pattern={}", path("pump/Power"))).json();
        assert_eq!(sensors["sensors"][0]["unit"], "kW");
        // The connection breaks: the node's own metric has a gap too, and a new connection starts with births.
        assert_eq!(readings(&server, &path("Load")), ["0=0.5"]);
        drop(edge);
        wait_until("the gap", || readings(&server, &path("Load")).last().is_some_and(|last| last.ends_with("=-")));
        let mut edge = server.agent(&server.plain(version));
        let early = edge.publish(&format!("spBv1.0/{group}/NDATA/edge"), &payload(5000, 1, vec![message().int(2, 1)]));
        assert!(matches!(edge.event(), Event::Acked { packet_id, .. } if packet_id == early));
    }
    assert_eq!(server.metric("wholegrain_server_sparkplug_losses_total"), 2.0);
    // Another identity's place stays its own, also at a death.
    let mut edge = server.agent(&server.mutual(Version::V5, "n2"));
    let foreign = edge.publish("spBv1.0/x/NBIRTH/../n1", &birth(1));
    assert!(matches!(edge.event(), Event::Acked { packet_id, reason } if packet_id == foreign && reason.is_error()));
}
