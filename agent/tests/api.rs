//! The agent's API, and the effects of reload, stop and changes on sampling.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use support::{Agent, parse_answer};
use wholegrain_model::Value;
use wholegrain_testkit::{free_port, wait_until};

const TESTER: &str = "[sources.tester]\nsensors = 3\nshape = \"counter\"\namplitude = 1\ninterval = \"5ms\"\n";
const HEAD: &str = "name = \"n1\"\n[api]\nsocket = \"agent.sock\"\n[cache]\nbytes_max = \"16MiB\"\n";

/// Every value of `/n1/tester/0` in memory.
fn counted(agent: &Agent) -> Vec<i64> {
    let mut values = Vec::new();
    let done: Result<(), std::convert::Infallible> = agent.handles.readings.history(
        |path| (path == "/n1/tester/0").then_some(i64::MIN),
        i64::MAX,
        |_, _, readings| {
            values.extend(readings.iter().map(|(_, value)| match value {
                Some(Value::Int(value)) => *value,
                other => panic!("{other:?} where a number should be"),
            }));
            Ok(())
        },
    );
    let Ok(()) = done;
    values
}

fn samples(agent: &Agent, group: &str) -> u64 {
    agent.handles.registry.find(group).map_or(0, |group| group.stats.samples.load(Ordering::Relaxed))
}

#[test]
fn a_sensor_has_one_group() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("texts")).unwrap();
    fs::set_permissions(dir.path().join("texts"), fs::Permissions::from_mode(0o755)).unwrap();
    // Its sensor `0` has the path of one of the tester's.
    fs::write(dir.path().join("texts/copy.txt"), "0 7\n").unwrap();
    let copy = "[sources.textfile]\ndir = \"texts\"\nprefix = \"tester\"\ninterval = \"100ms\"\n";
    let agent = Agent::start(dir.path(), &format!("rescan = \"1s\"\n{HEAD}{TESTER}{copy}"));
    let note = "group tester is left out: group textfile/copy has its sensor tester/0 already";
    wait_until("the note", || agent.ask("GET", "/v1/sources").1.to_string().contains(note));
    assert!(agent.handles.registry.find("tester").is_none());
    // Once the first owner is stopped the second is taken.
    assert_eq!(agent.ask("POST", "/v1/sources/textfile/stop").0, 200);
    wait_until("samples of the tester", || samples(&agent, "tester") > 0);
    agent.stop();
}

#[test]
fn questions() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &format!("{HEAD}{TESTER}"));
    wait_until("samples", || samples(&agent, "tester") > 50 && agent.handles.cache.size().0 > 1);
    let (status, answer) = agent.ask("GET", "/v1/status");
    assert_eq!((status, answer["name"].as_str(), answer["prefix"].as_str()), (200, Some("n1"), Some("/n1")));
    assert_eq!(answer["server"]["state"], "off");
    assert!(answer["samples"].as_u64() > Some(50) && answer["groups"][1]["lag"]["buckets"].is_array());
    let (_, answer) = agent.ask("GET", "/v1/sources");
    assert_eq!((&answer["sources"][0]["source"], &answer["sources"][1]["state"]), (&"agent".into(), &"running".into()));
    let (_, answer) = agent.ask("GET", "/v1/groups");
    assert_eq!(
        (&answer["groups"][1]["group"], &answer["groups"][1]["interval_ns"]),
        (&"tester".into(), &5_000_000.into())
    );
    let (_, answer) = agent.ask("GET", "/v1/sensors?pattern=tester/*");
    let paths: Vec<&str> =
        answer["sensors"].as_array().unwrap().iter().map(|sensor| sensor["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/n1/tester/0", "/n1/tester/1", "/n1/tester/2"]);
    let (_, answer) = agent.ask("GET", "/v1/newest?pattern=%2Fn1%2Ftester%2F1");
    assert!(answer["readings"][0]["value"].as_i64() > Some(50), "{answer}");
    let (_, answer) = agent.ask("GET", "/v1/average?pattern=tester/0&window=1h");
    let average = &answer["averages"][0];
    assert_eq!(
        average["count"].as_i64().unwrap(),
        average["max"].as_f64().unwrap() as i64 - average["min"].as_f64().unwrap() as i64 + 1
    );
    let (_, answer) = agent.ask("GET", "/v1/history?pattern=tester/0&from=-1h");
    let values: Vec<i64> =
        answer["readings"].as_array().unwrap().iter().map(|reading| reading["value"].as_i64().unwrap()).collect();
    assert!(
        values.len() > 50 && values.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "cache and ring without a seam: {values:?}"
    );
    assert_eq!(agent.ask("GET", "/v1/newest?pattern=nothing").1["readings"], serde_json::json!([]));
    agent.stop();
    assert!(!dir.path().join("agent.sock").exists(), "the socket's file is gone");
}

#[test]
fn wrong_questions() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &format!("{HEAD}{TESTER}"));
    let check = |method, target, status, part: &str| {
        let (is, answer) = agent.ask(method, target);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(is == status && error.contains(part), "{method} {target}: {is} {answer}");
    };
    check("GET", "/v2/status", 404, "there is no /v2/status; the routes are GET /v1/status");
    check("DELETE", "/v1/status", 405, "DELETE is not supported");
    check("GET", "/v1/newest?pattern=%2B", 400, "MQTT's wildcards");
    check("GET", "/v1/average?window=10", 400, "window: \"10\" is not a length of time");
    check("GET", "/v1/history?from=someday", 400, "from: \"someday\" is not a time");
    check("GET", "/v1/history?from=now&to=-1h", 400, "is after to");
    check("POST", "/v1/sources/testr/stop", 404, "there is no source \"testr\"; did you mean \"tester\"?");
    check(
        "POST",
        "/v1/groups/tester/interval?value=500us",
        422,
        "500us is too short: 1ms is the shortest that is sampled",
    );
    check("POST", "/v1/groups/tester/interval", 400, "add ?value=100ms");
    check("POST", "/v1/groups/nothing/interval?value=1s", 404, "there is no group \"nothing\"");
    let mode = fs::metadata(dir.path().join("agent.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660, "owner and group only");
    agent.stop();
}

#[test]
fn a_reload_keeps_what_did_not_change_ticking() {
    let dir = tempfile::tempdir().unwrap();
    let procfs =
        |interval: &str| format!("{HEAD}{TESTER}[sources.procfs]\ngroups = [\"meminfo\"]\ninterval = \"{interval}\"\n");
    let agent = Agent::start(dir.path(), &procfs("20ms"));
    for round in 0..10 {
        let before = samples(&agent, "tester");
        wait_until("some ticks", || samples(&agent, "tester") > before + 20);
        let interval = if round % 2 == 0 { "10ms" } else { "20ms" };
        fs::write(dir.path().join("agent.toml"), procfs(interval)).unwrap();
        let (status, answer) = agent.ask("POST", "/v1/reload");
        assert_eq!((status, answer.get("needs_restart")), (200, None), "{answer}");
        let meminfo = agent.handles.registry.find("meminfo").unwrap();
        assert_eq!(meminfo.ticking.interval.to_string(), interval);
    }
    let tester = agent.handles.registry.find("tester").unwrap();
    wait_until("the rest", || samples(&agent, "tester") > 300);
    let values = counted(&agent);
    // The counter counts reads: another reader would start at 0 again, and a lost sample would leave a hole.
    assert_eq!(values, (values[0]..values[0] + values.len() as i64).collect::<Vec<_>>());
    assert_eq!(values[0], 0, "from the very first sample on");
    assert_eq!(tester.stats.overruns.load(Ordering::Relaxed), 0);
    let meminfo = agent.handles.registry.find("meminfo").unwrap();
    assert!(meminfo.stats.samples.load(Ordering::Relaxed) > 0);
    agent.stop();
}

#[test]
fn a_reload_with_an_error_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &format!("{HEAD}{TESTER}"));
    let group = agent.handles.registry.find("tester").unwrap();
    fs::write(dir.path().join("agent.toml"), format!("{HEAD}{TESTER}intervall = \"1s\"\n")).unwrap();
    let (status, answer) = agent.ask("POST", "/v1/reload");
    let error = answer["error"].as_str().unwrap();
    assert_eq!(status, 422);
    assert!(
        error.contains(
            "agent.toml:11:1: unknown key `intervall`; did you mean `interval`?; the configuration in force stays"
        ),
        "{error}"
    );
    assert!(Arc::ptr_eq(&group, &agent.handles.registry.find("tester").unwrap()));
    let before = samples(&agent, "tester");
    wait_until("ticks", || samples(&agent, "tester") > before + 5);
    agent.stop();
}

#[test]
fn the_level_of_the_log_changes_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &format!("{HEAD}{TESTER}"));
    let (status, _) = agent.ask("POST", "/v1/log?level=debug&for=200ms");
    let (_, log) = agent.ask("GET", "/v1/log");
    assert_eq!((status, &log["configured"]), (200, &"info".into()));
    wait_until("the level before", || agent.ask("GET", "/v1/log").1["level"] == "info");
    let (status, answer) = agent.ask("POST", "/v1/log?level=loud");
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("\"loud\" is not a level"), "{answer}");
    assert_eq!(agent.ask("POST", "/v1/log?level=trace&for=8d").0, 422);
    assert_eq!(agent.ask("POST", "/v1/log?level=trace").0, 200);
    assert_eq!(agent.ask("GET", "/v1/log").1["level"], "trace");
    agent.stop();
}

#[test]
fn a_reload_says_what_it_cannot_do() {
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::start(dir.path(), &format!("{HEAD}{TESTER}"));
    fs::write(dir.path().join("agent.toml"), format!("prefix = \"/lab/n1\"\nlog_level = \"debug\"\n{HEAD}")).unwrap();
    let (status, answer) = agent.ask("POST", "/v1/reload");
    assert_eq!((status, &answer["needs_restart"]), (200, &serde_json::json!(["prefix"])));
    assert_eq!(agent.ask("GET", "/v1/log").1["level"], "debug", "a level needs no restart");
    let (_, answer) = agent.ask("POST", "/v1/reload");
    assert_eq!(answer["needs_restart"], serde_json::json!(["prefix"]), "as long as it is so");
    assert!(agent.handles.registry.find("tester").is_none(), "a source that is no more in the file is no more sampled");
    agent.stop();
}

#[test]
fn stop_start_and_another_interval() {
    let dir = tempfile::tempdir().unwrap();
    let agent =
        Agent::start(dir.path(), &format!("{HEAD}{TESTER}[sources.procfs]\ngroups = [\"meminfo\", \"net/dev\"]\n"));
    wait_until("samples", || samples(&agent, "tester") > 5);
    assert_eq!(agent.ask("POST", "/v1/groups/net%2Fdev/interval?value=7ms").0, 200);
    let group = agent.handles.registry.find("net/dev").unwrap();
    wait_until("samples at the new interval", || group.ring.head() > 20);
    let mut copy = Default::default();
    assert!(group.ring.newest(&mut copy) && copy.interval_ns == 7_000_000);
    assert_eq!(agent.ask("POST", "/v1/sources/procfs/stop").0, 200);
    assert!(agent.handles.registry.find("net/dev").is_none());
    let (_, answer) = agent.ask("GET", "/v1/sources");
    let state = |answer: &serde_json::Value| {
        let sources = answer["sources"].as_array().unwrap();
        sources.iter().find(|source| source["source"] == "procfs").unwrap()["state"].clone()
    };
    assert_eq!(state(&answer), "stopped");
    assert_eq!(agent.ask("POST", "/v1/sources/procfs/start").0, 200);
    wait_until("samples again", || samples(&agent, "meminfo") > 0);
    assert_eq!(state(&agent.ask("GET", "/v1/sources").1), "running");
    let values = counted(&agent);
    assert!(values.windows(2).all(|pair| pair[1] == pair[0] + 1), "the other source has lost nothing: {values:?}");
    agent.stop();
}

#[test]
fn a_file_that_vanishes_gives_gaps_and_is_read_again_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let proc = dir.path().join("proc");
    fs::create_dir(&proc).unwrap();
    let good = "MemTotal:       1000 kB\nMemFree:         500 kB\n";
    fs::write(proc.join("meminfo"), good).unwrap();
    let text = format!(
        "rescan = \"1h\"\nroots = {{ proc = \"proc\" }}\n{HEAD}[sources.procfs]\ngroups = [\"meminfo\"]\ninterval = \"5ms\"\n"
    );
    let agent = Agent::start(dir.path(), &text);
    let newest = || agent.ask("GET", "/v1/newest?pattern=MemFree").1["readings"][0]["value"].clone();
    wait_until("a value", || newest() == serde_json::json!(512_000));
    let group = agent.handles.registry.find("meminfo").unwrap();
    assert_eq!(group.stats.gaps.load(Ordering::Relaxed), 0);
    for bad in ["", "MemTotal: what?\n\u{0}\n"] {
        fs::write(proc.join("meminfo"), bad).unwrap();
        wait_until("a gap", || newest().is_null());
        assert!(group.stats.gaps.load(Ordering::Relaxed) > 0);
        fs::write(proc.join("meminfo"), good).unwrap();
        wait_until("the value again", || newest() == serde_json::json!(512_000));
    }
    agent.stop();
}

#[test]
fn https_wants_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(dir.path().join("agent.pem"), made.cert.pem()).unwrap();
    fs::write(dir.path().join("agent.key"), made.signing_key.serialize_pem()).unwrap();
    fs::write(dir.path().join("token"), "s3cret\n").unwrap();
    let port = free_port();
    let text = format!(
        "name = \"n1\"\n[api]\nlisten = \"127.0.0.1:{port}\"\ncert = \"agent.pem\"\nkey = \"agent.key\"\ntoken_file = \"token\"\n{TESTER}"
    );
    let agent = Agent::start(dir.path(), &text);
    let tls = wholegrain_transport::tls::client_config(&dir.path().join("agent.pem"), None).unwrap();
    let request = |authorization: &str| {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(tls.clone(), name).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port)).unwrap());
        write!(stream, "GET /v1/groups HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n{authorization}\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        parse_answer(&answer)
    };
    assert_eq!(request("Authorization: Bearer s3cret\r\n").1["groups"][1]["group"], "tester");
    for wrong in
        ["", "Authorization: Bearer s3cre\r\n", "Authorization: Bearer s3cretx\r\n", "Authorization: Basic s3cret\r\n"]
    {
        let (status, answer) = request(wrong);
        assert!(
            status == 401 && answer["error"].as_str().unwrap().contains("send a token"),
            "{wrong}: {status} {answer}"
        );
    }
    agent.stop();
}

#[test]
fn a_second_agent_does_not_take_the_socket_but_a_dead_ones_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("agent.sock")).unwrap());
    let agent = Agent::start(dir.path(), HEAD);
    let config = wholegrain_agent::Config::load(&dir.path().join("agent.toml")).unwrap();
    let shutdown = wholegrain_agent::Shutdown::new().unwrap();
    let error = wholegrain_agent::run(config, &shutdown, |_, _| panic!("it must not start")).unwrap_err();
    assert!(format!("{error:#}").contains("another agent listens on"), "{error:#}");
    assert_eq!(agent.ask("GET", "/v1/status").0, 200);
    agent.stop();
}
