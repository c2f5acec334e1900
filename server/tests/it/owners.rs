//! Visibility of each field of each response: no route of the API shows a user anything of another user's job.

use serde_json::json;
use wholegrain_model::{JobRecord, Schema, SensorDef, SensorPath};
use wholegrain_server::access::Role;
use wholegrain_transport::client::Event;
use wholegrain_transport::mqtt::Version;

use crate::harness::{NOON, SECOND, TestAgent, TestServer};
use crate::security::token;

/// What only bob's job has: its id and other id, names, texts, and numbers of its records and readings.
const MARKS: [&str; 9] =
    ["99017", "s99018", "bobs-", "bob", "31337.5", "77077", "\"sensors\":3", "\"sensors\":2", "secret"];

fn record(agent: &mut TestAgent, job: &str, user: &str, uid: u32) {
    let bobs = user == "bob";
    let record = JobRecord {
        job: job.to_owned(),
        level: job.to_owned(),
        manager: "slurm".to_owned(),
        node: "n1".to_owned(),
        prefix: "/site/n1".to_owned(),
        user: Some(user.to_owned()),
        uid: Some(uid),
        from: NOON,
        revision: 1,
        name: bobs.then(|| "bobs-name".to_owned()),
        account: bobs.then(|| "bobs-account".to_owned()),
        partition: bobs.then(|| "bobs-partition".to_owned()),
        also: bobs.then(|| "s99018".to_owned()),
        totals: [("cpu/usage".to_owned(), if bobs { 31_337.5 } else { 1.0 })].into(),
        ..JobRecord::default()
    };
    let id = agent.publish("wholegrain/v1/job/n1", &serde_json::to_vec(&record).unwrap());
    assert!(matches!(agent.event(), Event::Acked { packet_id, .. } if packet_id == id));
}

fn readings(agent: &mut TestAgent, job: &str, sensor: &str, value: i64) {
    let prefix = SensorPath::new("/site/n1").unwrap();
    let sensors = vec![SensorDef::gauge(format!("job/{job}/{sensor}"), "By", "")];
    let schema = Schema::new(prefix, format!("job/{job}/1s"), sensors).unwrap();
    let ids = [agent.schema(&schema), agent.batch(&schema, &[(NOON, value), (NOON + SECOND, value)])];
    agent.acked(&ids);
}

/// A node with a job of each user, and an administrator's settings for them.
fn site() -> TestServer {
    let server = TestServer::start();
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    record(&mut agent, "11", "alice", 1001);
    record(&mut agent, "99017", "bob", 1002);
    let node = crate::harness::schema("n1", "mem", "MemFree");
    let ids = [agent.schema(&node), agent.batch(&node, &[(NOON, 1)])];
    agent.acked(&ids);
    readings(&mut agent, "11", "memory/usage", 5);
    readings(&mut agent, "99017", "memory/usage", 77_077);
    let admin = |method: &str, path: &str, body: serde_json::Value| {
        let answer = server.json(method, path, &body.to_string(), &server.token);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    };
    admin(
        "PUT",
        "/api/v1/properties",
        json!({ "settings": [
            { "pattern": "/site/n1/job/99017/**", "description": "secret one", "ttl": "77077d" },
            { "pattern": "99017/memory/*", "description": "secret two" },
            { "pattern": "/site/**/99017/memory/usage", "description": "secret three" },
            { "pattern": "/site/n1/job/99017/gone/*", "description": "secret four" },
            { "pattern": "/site/n1/job/11/**", "unit": "By" },
            { "pattern": "memory/usage", "kind": "gauge" },
        ] }),
    );
    let defined = |path: &str, expression: &str| json!({ "path": path, "expression": expression, "unit": "By" });
    admin(
        "PUT",
        "/api/v1/virtual",
        json!([
            defined("/site/n1/job/99017/virt", "</site/n1/MemFree> * 2"),
            defined("/site/n1/one", "</site/n1/job/99017/memory/usage> * 2"),
            defined("/site/n1/job/*/twice", "<memory/usage> * 2"),
            defined("/site/n1/job/11/mine", "<memory/usage> * 3"),
        ]),
    );
    server
}

/// A request of this route: the path and its body.
fn requests(path: &str, id: &str) -> Vec<(String, String)> {
    let path = path.replace("{id}", id);
    let range = "from=2026-01-31&to=2026-02-01";
    match path.as_str() {
        "/api/v1/query" => ["", "&agg=count", "&agg=sum&across=sum", "&format=csv", "&agg=max&every=1h"]
            .map(|more| (format!("{path}?pattern=/**&{range}{more}"), String::new()))
            .into(),
        "/api/v1/newest" => vec![(format!("{path}?pattern=/**"), String::new())],
        "/api/v1/properties" => vec![(format!("{path}?pattern=/**"), String::new())],
        path if path.ends_with("/energy") || path.ends_with("/statistics") => {
            vec![(path.to_owned(), String::new()), (format!("{path}?pattern=/**"), String::new())]
        }
        _ => vec![(path, "{}".to_owned())],
    }
}

#[test]
fn no_answer_of_any_route_tells_a_user_of_another_user_s_job() {
    let server = site();
    let alice = token(&server, "alice", Role::User, None).1;
    let document = server.get("/openapi.json").json();
    let mut asked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let methods = operations.as_object().unwrap().keys().filter(|method| *method != "parameters");
        for method in methods {
            // The stream has no end; its content is tested with the other streams.
            if path == "/api/v1/watch" || path == "/openapi.json" {
                continue;
            }
            for (request, body) in requests(path, "11") {
                let answer = server.json(&method.to_uppercase(), &request, &body, &alice);
                let text = String::from_utf8_lossy(&answer.body);
                let named: Vec<&&str> = MARKS.iter().filter(|mark| text.contains(**mark)).collect();
                assert!(named.is_empty(), "{method} {request} names {named:?}: {text}");
                asked += 1;
            }
            // A job of another user is answered as one that does not exist.
            let [other, none] = ["99017", "55055"].map(|id| {
                let (request, body) = requests(path, id).swap_remove(0);
                let answer = server.json(&method.to_uppercase(), &request, &body, &alice);
                (answer.status, String::from_utf8_lossy(&answer.body).replace(id, "ID"))
            });
            assert_eq!(other, none, "{method} {path}");
        }
    }
    assert!(asked > 40, "only {asked} requests");
    // She sees her own job, an administrator sees all.
    let as_her = |path: &str| server.get_as(path, Some(&format!("Bearer {alice}"))).text().to_owned();
    assert!(as_her("/api/v1/properties/settings").contains("/site/n1/job/11/**"));
    assert!(as_her("/api/v1/properties/settings").contains("\"memory/usage\""));
    assert!(as_her("/api/v1/properties/history").contains("/site/n1/job/11/**"));
    let virtuals = server.get_as("/api/v1/virtual", Some(&format!("Bearer {alice}"))).json();
    let listed = virtuals["virtual"].as_array().unwrap().clone();
    let listed: Vec<_> =
        listed.iter().map(|one| (one["path"].as_str().unwrap(), one["sensors"].as_u64().unwrap())).collect();
    assert_eq!(listed, [("/site/n1/job/*/twice", 1), ("/site/n1/job/11/mine", 1)]);
    let all = format!(
        "{}{}{}",
        server.get("/api/v1/properties/settings").text(),
        server.get("/api/v1/properties/history").text(),
        server.get("/api/v1/virtual").text()
    );
    assert!(
        ["secret one", "secret two", "secret three", "secret four", "99017/virt"].iter().all(|it| all.contains(it))
    );
}

#[test]
fn support_sees_everything_and_changes_nothing() {
    let server = site();
    let support = token(&server, "helpdesk", Role::Support, None).1;
    let ask = |method: &str, path: &str| server.json(method, path, "", &support).status;
    for path in [
        "data/retention",
        "data/stats",
        "data/verify",
        "data/compact",
        "data/repair",
        "data/lost",
        "server/log",
        "import?id=1",
        "virtual/history",
    ] {
        // 404: no verify, compaction or repair has begun yet.
        let status = ask("GET", &format!("/api/v1/{path}"));
        assert!([200, 404].contains(&status), "{path}: {status}");
    }
    // No agent answers here, which the response reports for its node; that is no refusal.
    let rules = ask("GET", "/api/v1/jobs/99017/rules");
    assert!(rules == 200 || rules == 207, "{rules}");
    for (method, path) in [
        ("PUT", "/api/v1/data/retention"),
        ("DELETE", "/api/v1/jobs/99017/rules"),
        ("POST", "/api/v1/jobs/99017/rules"),
        ("PUT", "/api/v1/properties"),
        ("PUT", "/api/v1/virtual"),
        ("POST", "/api/v1/data/delete"),
        ("POST", "/api/v1/data/verify"),
        ("DELETE", "/api/v1/data/compact"),
        ("POST", "/api/v1/data/backup"),
        ("POST", "/api/v1/data/lost"),
        ("POST", "/api/v1/import?id=1&part=0"),
        ("PUT", "/api/v1/server/log?level=debug"),
        ("POST", "/api/v1/server/reload"),
    ] {
        assert_eq!(ask(method, path), 403, "{method} {path}");
    }
}
