//! Mosquitto between agents and the server, and both of them restarted.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use wholegrain_testkit::free_port;
use wholegrain_transport::client::{ClientConfig, Event};
use wholegrain_transport::mqtt::Version;

use crate::harness::{DEADLINE, TestAgent, TestServer, schema, wait_for, wait_until};

struct Mosquitto {
    child: Child,
    port: u16,
}

impl Mosquitto {
    fn start(dir: &Path, port: u16) -> Self {
        let conf = dir.join("mosquitto.conf");
        let text = format!(
            "user root\nlistener {port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {}/\n\
             autosave_interval 1\nautosave_on_changes true\nmax_queued_messages 0\nmax_inflight_messages 0\n",
            dir.display()
        );
        std::fs::write(&conf, text).unwrap();
        let program = if Path::new("/usr/sbin/mosquitto").exists() { "/usr/sbin/mosquitto" } else { "mosquitto" };
        let child = Command::new(program).arg("-c").arg(&conf).stderr(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.expect("mosquitto, of the Debian package of this name");
        wait_for("mosquitto listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { child, port }
    }

    /// In order, so that it saves its sessions.
    fn stop(&mut self) {
        // SAFETY: a signal to a child of ours that was not waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn now_ns() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64
}

fn publisher(port: u16, version: Version, name: &str) -> TestAgent {
    let url = format!("mqtt://127.0.0.1:{port}");
    TestAgent::new(&ClientConfig { url, version, client_id: name.to_owned(), ..ClientConfig::default() })
}

fn rows(server: &TestServer, sensor: &str) -> usize {
    server.get(&format!("/api/v1/query?pattern={sensor}&from=-1h&format=csv")).text().lines().count() - 1
}

/// Without sharing: Mosquitto 2.0.11 does not keep shared subscriptions over its own restart, and loses what comes before the
/// subscriber is back.
#[test]
fn nothing_that_mosquitto_acknowledged_is_lost_by_restarts_of_either() {
    for (version, name) in [(Version::V5, "5"), (Version::V311, "3.1.1")] {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut broker = Mosquitto::start(dir.path(), port);
        let mut server = TestServer::start_remote(&format!(
            "[[remote]]\nurl = \"mqtt://127.0.0.1:{port}\"\nversion = \"{name}\"\nclient_id = \"wg\"\nsubscribe = [\"wholegrain/v1/#\", \"/#\"]\ntrust = [\"/site\"]\nkeep_alive = \"2s\"\n"
        ));
        let connected =
            |server: &TestServer| (server.metric("wholegrain_server_remotes_connected") == 1.0).then_some(());
        wait_for("the connection", || connected(&server));
        let schema = schema("n1", "g", "bytes");
        let start = now_ns() - 60_000_000_000;
        let (mut acked, mut sent) = (0, 0);
        for round in 0..5 {
            match round {
                1 => {
                    broker.stop();
                    broker = Mosquitto::start(dir.path(), port);
                }
                2 => server.stop(),
                3 => {
                    server = server.restart();
                    wait_for("the connection", || connected(&server));
                }
                _ => {}
            }
            let mut agent = publisher(broker.port, version, "n1");
            if round == 0 {
                // Retained, as agents do.
                let topic = format!("wholegrain/v1/schema/n1/{}", schema.group());
                agent.client.publish(&topic, &schema.encode(), true, true).unwrap();
                assert!(matches!(agent.event(), Event::Acked { .. }));
            }
            for _ in 0..20 {
                sent += 1;
                let batch = agent.batch(&schema, &[(start + sent, sent)]);
                let reading = agent.publish("/site/n1/schemaless", format!("{sent};{}", start + sent).as_bytes());
                for id in [batch, reading] {
                    let Event::Acked { packet_id, reason } = agent.event() else { panic!("no acknowledgement") };
                    assert!(packet_id == id && !reason.is_error());
                }
                acked += 1;
            }
        }
        wait_for("everything acknowledged", || {
            (rows(&server, "/site/n1/bytes") == acked && rows(&server, "/site/n1/schemaless") == acked).then_some(())
        });
        wait_until("nothing in flight", || server.metric("wholegrain_server_in_flight") == 0.0);
        server.stop();
        drop(broker);
    }
}

#[test]
fn a_remote_delivers_below_trusted_paths_only_and_asks_for_schemas() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let broker = Mosquitto::start(dir.path(), port);
    let server = TestServer::start_remote(&format!(
        "[[remote]]\nurl = \"mqtt://127.0.0.1:{port}\"\nclient_id = \"wg\"\ntrust = [\"/site/n1\"]\n"
    ));
    wait_until("the connection", || server.metric("wholegrain_server_remotes_connected") == 1.0);
    let mut agent = publisher(broker.port, Version::V5, "n1");
    agent.client.subscribe("wholegrain/v1/need/n1").unwrap();
    assert!(matches!(agent.event(), Event::Subscribed { .. }));
    let (good, start) = (schema("n1", "g", "bytes"), now_ns());
    agent.batch(&good, &[(start, 5)]);
    agent.publish("/site/n2/x", b"1");
    agent.publish("/site/n1/x", b"1");
    agent.publish("elsewhere", b"1");
    let other = schema("n2", "g", "bytes");
    agent.publish("wholegrain/v1/schema/n2/g", &other.encode());
    let asked = loop {
        let event = agent.client.poll(DEADLINE).unwrap().expect("no request for the schema");
        if let Event::Message { topic, payload, .. } = event {
            break (topic.to_string(), crate::harness::needed(&payload));
        }
    };
    assert_eq!(asked, ("wholegrain/v1/need/n1".to_owned(), vec![good.hash()]));
    agent.schema(&good);
    agent.client.flush().unwrap();
    let found = wait_for("the batch and the reading", || {
        let found: Vec<String> = server.newest("/site/**").into_iter().map(|(value, _)| value).collect();
        (found.len() == 2).then_some(found)
    });
    assert_eq!(found, ["/site/n1/bytes=5120", "/site/n1/x=1"]);
    for (node, prefix) in [("n1", "/site/n1"), ("n1", "/site/n2"), ("n2", "/site/n1/below")] {
        let record = wholegrain_model::JobRecord {
            job: format!("of-{node}-at-{}", prefix.len()),
            level: "1".to_owned(),
            manager: "slurm".to_owned(),
            node: "n1".to_owned(),
            prefix: prefix.to_owned(),
            ..Default::default()
        };
        agent.publish(&format!("wholegrain/v1/job/{node}"), &serde_json::to_vec(&record).unwrap());
    }
    agent.client.flush().unwrap();
    wait_until("a job", || server.get("/api/v1/jobs").json()["jobs"][0]["job"] == "of-n1-at-8");
    wait_for("the counts", || {
        let count = |name: &str| server.metric(&format!("wholegrain_server_remote_{name}_total"));
        // Of the records of jobs one below a path that is not trusted, and one of another node than its topic.
        (count("refused") == 4.0 && count("ignored") == 0.0 && count("messages") == 8.0).then_some(())
    });
}
