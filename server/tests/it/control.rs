//! Commands to the agents of a job: permissions, recipients, and responses when an agent refuses or does not answer.

use std::time::Duration;

use serde_json::{Value, json};
use wholegrain_model::{JobRecord, Timestamp};
use wholegrain_server::access::Role;
use wholegrain_server::access::tokens::{self, NewToken};
use wholegrain_server::issue_agent_certificate;
use wholegrain_transport::client::Event;
use wholegrain_transport::mqtt::Version;

use crate::harness::{TestAgent, TestServer, wait_for};

/// An agent that has a job and receives commands.
struct ControlledNode {
    agent: TestAgent,
    name: &'static str,
}

impl ControlledNode {
    fn new(server: &TestServer, name: &'static str, user: &str) -> Self {
        if !["n1", "n2"].contains(&name) {
            issue_agent_certificate(server.dir.path(), name).unwrap();
        }
        let mut agent = server.agent(&server.mutual(Version::V5, name));
        agent.client.subscribe(&format!("wholegrain/v1/control/{name}")).unwrap();
        assert!(matches!(agent.event(), Event::Subscribed { reason, .. } if !reason.is_error()));
        let mut node = Self { agent, name };
        node.has_job("4711", user, None);
        node
    }

    fn has_job(&mut self, job: &str, user: &str, to: Option<i64>) {
        let record = JobRecord {
            job: job.into(),
            level: job.into(),
            manager: "slurm".into(),
            node: self.name.into(),
            prefix: format!("/{}", self.name),
            user: Some(user.into()),
            from: 1_700_000_000_000_000_000,
            to,
            revision: 1 + u64::from(to.is_some()),
            ..JobRecord::default()
        };
        let payload = serde_json::to_vec(&record).unwrap();
        let id = self.agent.publish(&format!("wholegrain/v1/job/{}", self.name), &payload);
        self.agent.acked(&[id]);
    }

    /// The next command, if one arrives soon.
    fn command(&mut self) -> Option<Value> {
        match self.agent.client.poll(Duration::from_secs(10)).unwrap() {
            Some(Event::Message { payload, .. }) => Some(serde_json::from_slice(&payload).unwrap()),
            _ => None,
        }
    }

    fn answer(&mut self, answer: &Value) {
        let topic = format!("wholegrain/v1/response/{}", self.name);
        self.agent.client.publish(&topic, answer.to_string().as_bytes(), false, false).unwrap();
        self.agent.client.flush().unwrap();
    }
}

fn token(server: &TestServer, name: &str, role: Role) -> String {
    let new = NewToken { name: name.to_owned(), role, expires: None };
    let now = Timestamp(1_700_000_000_000_000_000);
    let (token, _) = tokens::create(&server.path("server/tokens"), &new, now).unwrap();
    wait_for("the token", || (server.get_as("/nothing", Some(&format!("Bearer {token}"))).status == 404).then_some(()));
    token
}

const RULE: &str = r#"{"metrics":["perf/*"],"every":"1ms","for":"10m"}"#;
const PATH: &str = "/api/v1/jobs/4711/rules";

#[test]
fn a_rule_reaches_every_node_and_each_answers() {
    let server = TestServer::start();
    let alice = token(&server, "alice", Role::User);
    let mut nodes = [ControlledNode::new(&server, "n1", "alice"), ControlledNode::new(&server, "n2", "alice")];
    // Another user's job on a third node, and a node of the job that is away.
    let _other = ControlledNode::new(&server, "n3", "bob");
    drop(ControlledNode::new(&server, "n4", "alice"));
    let (status, body) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.post_as(PATH, RULE, &alice));
        for node in &mut nodes {
            let command = node.command().expect("a command");
            assert_eq!(command["who"], json!({ "name": "alice", "role": "user" }));
            assert_eq!(command["action"]["add"]["jobs"], "4711");
            assert_eq!(command["action"]["add"]["every"], "1ms");
            let outcome =
                if node.name == "n1" { ("ok", json!({ "metrics": 12 })) } else { ("error", json!("too often")) };
            // An answer to another command, and an invalid one, are ignored.
            node.answer(&json!({ "id": 999_999, "ok": 0 }));
            node.answer(&json!("garbage"));
            node.answer(&json!({ "id": command["id"], outcome.0: outcome.1 }));
        }
        asked.join().unwrap()
    });
    assert_eq!(status, 207, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["failed"], 2, "{answer}");
    assert_eq!(answer["nodes"][0], json!({ "node": "n1", "ok": { "metrics": 12 } }));
    assert_eq!(answer["nodes"][1], json!({ "node": "n2", "error": "too often" }));
    let away = &answer["nodes"][2];
    assert_eq!((&away["node"], &away["silent"]), (&json!("n4"), &json!(true)), "{away}");
    // A thread of its own writes it.
    wait_for("a line of the audit log", || {
        let audit = std::fs::read_to_string(server.path("server/audit.jsonl")).unwrap();
        let is_it = |line: &str| ["job_rule", "alice", "4711"].iter().all(|part| line.contains(part));
        audit.lines().any(is_it).then_some(())
    });
}

#[test]
fn commands_require_permission_for_the_job() {
    let server = TestServer::start();
    let mut node = ControlledNode::new(&server, "n1", "alice");
    let mut spy = ControlledNode::new(&server, "n2", "alice");
    node.has_job("done", "alice", Some(1_700_000_100_000_000_000));
    let (alice, bob) = (token(&server, "alice", Role::User), token(&server, "bob", Role::User));
    let support = token(&server, "desk", Role::Support);
    for (path, body, token, expected) in [
        (PATH, RULE, &bob, 404),
        (PATH, RULE, &support, 403),
        ("/api/v1/jobs/4712/rules", RULE, &alice, 404),
        ("/api/v1/jobs/*/rules", RULE, &alice, 404),
        ("/api/v1/jobs/done/rules", RULE, &alice, 409),
        (PATH, "[1]", &alice, 400),
        (PATH, "{", &alice, 400),
        (PATH, r#"{"metrics":["*"],"every":"1s","jobs":"*"}"#, &alice, 400),
        (&format!("{PATH}?try=maybe"), RULE, &alice, 400),
    ] {
        let (status, said) = server.post_as(path, body, token);
        assert_eq!(status, expected, "{path} {body}: {said}");
    }
    let large = format!(r#"{{"metrics":["{}"]}}"#, "x".repeat(40_000));
    assert_eq!(server.post_as(PATH, &large, &alice).0, 400);
    // Only the server publishes commands, and an agent answers only for itself.
    spy.agent.client.publish("wholegrain/v1/control/n1", b"{}", true, false).unwrap();
    assert!(matches!(spy.agent.event(), Event::Acked { reason, .. } if reason.is_error()));
    spy.agent.client.publish("wholegrain/v1/response/n1", b"{}", true, false).unwrap();
    assert!(matches!(spy.agent.event(), Event::Acked { reason, .. } if reason.is_error()));
    assert!(node.agent.client.poll(Duration::ZERO).unwrap().is_none(), "no command has come");
}
