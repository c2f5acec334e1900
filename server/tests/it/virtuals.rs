//! Virtual sensors over HTTP: definitions, lists, queries, live streams, and visibility.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use wholegrain_model::{JobRecord, Schema, SensorDef, SensorPath};
use wholegrain_server::access::Role;
use wholegrain_transport::client::Event;
use wholegrain_transport::mqtt::{ReasonCode, Version};

use crate::harness::{NOON, SECOND, TestAgent, TestServer, now_ns, wait_for, wait_until};
use crate::security::token;

/// A gauge and a counter of a node, or of a path below it.
fn schema(place: &str, group: &str, name: &str, unit: &str, counter: bool) -> Schema {
    let prefix = SensorPath::new(format!("/site/{place}")).unwrap();
    let def = if counter { SensorDef::counter(name, unit, "") } else { SensorDef::gauge(name, unit, "") };
    Schema::new(prefix, group, vec![def]).unwrap()
}

/// A server with two nodes' power and energy for ten seconds from noon on.
fn with_power() -> (TestServer, [TestAgent; 2]) {
    let server = TestServer::start();
    let mut agents = ["n1", "n2"].map(|name| server.agent(&server.mutual(Version::V5, name)));
    for (agent, power) in agents.iter_mut().zip([100, 300]) {
        let schemas = [
            (schema(&agent.name, "power", "power", "W", false), 0),
            (schema(&agent.name, "energy", "energy", "J", true), power),
        ];
        for (schema, slope) in &schemas {
            let value = |at: i64| if *slope > 0 { at * slope } else { power };
            let samples: Vec<(i64, i64)> = (0..10).map(|at| (NOON + at * SECOND, value(at))).collect();
            let ids = [agent.schema(schema), agent.batch(schema, &samples)];
            agent.acked(&ids);
        }
    }
    (server, agents)
}

fn definition(path: &str, expression: &str, unit: &str) -> Value {
    json!({ "path": path, "expression": expression, "unit": unit })
}

/// Sends a body with the token of an administrator, or another.
#[track_caller]
fn send(server: &TestServer, method: &str, path: &str, body: &Value, token: &str) -> (u16, Value) {
    let answer = server.send_body(method, path, &body.to_string(), token);
    (answer.status, answer.json())
}

#[track_caller]
fn define(server: &TestServer, path: &str, expression: &str, unit: &str) -> Value {
    let (status, said) = send(server, "PUT", "/api/v1/virtual", &definition(path, expression, unit), &server.token);
    assert_eq!(status, 200, "{path}: {said}");
    said
}

fn paths(server: &TestServer, pattern: &str, token: &str) -> Vec<String> {
    let answer = server.get_as(&format!("/api/v1/sensors?pattern={pattern}"), Some(&format!("Bearer {token}")));
    let sensors = answer.json()["sensors"].as_array().unwrap_or_else(|| panic!("{}", answer.text())).clone();
    sensors.iter().map(|sensor| sensor["path"].as_str().unwrap().to_owned()).collect()
}

/// The rows of a query from noon on, as `time of the minute, value`.
fn rows(server: &TestServer, query: &str) -> Vec<(String, Value)> {
    let answer = server.get(&format!("/api/v1/query?from=2026-01-31T12:00:00Z&to=2026-01-31T12:01:00Z&{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let line = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        (row["time"].as_str().unwrap()[17..].to_owned(), row["value"].clone())
    };
    answer.text().lines().map(line).collect()
}

#[test]
fn defined_over_http_and_there_like_any_other() {
    let (mut server, agents) = with_power();
    let said = define(&server, "/site/*/kilowatts", "<power>", "kW");
    assert_eq!(said["added"], json!(["/site/*/kilowatts"]));
    assert_eq!(said["sensors"], json!({ "/site/*/kilowatts": 2 }));
    define(&server, "/site/total", "sum(<*/kilowatts>)", "W");
    define(&server, "/site/from_energy", "sum(rate(<*/energy>))", "W");
    assert_eq!(
        paths(&server, "/site/**", &server.token),
        [
            "/site/from_energy",
            "/site/n1/energy",
            "/site/n1/kilowatts",
            "/site/n1/power",
            "/site/n2/energy",
            "/site/n2/kilowatts",
            "/site/n2/power",
            "/site/total"
        ]
    );
    let listed = server.get("/api/v1/sensors?pattern=/site/n1/kilowatts").json()["sensors"][0].clone();
    assert_eq!(
        (&listed["unit"], &listed["type"], &listed["interval_ns"]),
        (&json!("kW"), &json!("float"), &json!(1_000_000_000))
    );
    assert_eq!(listed["last_time"], json!("2026-01-31T12:00:09Z"));

    let total = rows(&server, "pattern=/site/total");
    assert_eq!(total.len(), 10);
    assert!(total.iter().all(|(_, value)| *value == json!(400.0)), "{total:?}");
    let energy = rows(&server, "pattern=/site/from_energy");
    assert!(energy[1..].iter().all(|(_, value)| *value == json!(400.0)) && energy.len() >= 9, "{energy:?}");
    // Measured and computed in one answer, aggregated.
    let mean = rows(&server, "pattern=/site/total&pattern=/site/n1/power&every=5s&agg=mean");
    let values: Vec<f64> = mean.iter().map(|(_, value)| value.as_f64().unwrap()).collect();
    assert_eq!(values, [100.0, 100.0, 400.0, 400.0]);
    assert_eq!(
        server.newest("/site/*/kilowatts"),
        [
            ("/site/n1/kilowatts=0.1".to_owned(), "2026-01-31T12:00:09Z".to_owned()),
            ("/site/n2/kilowatts=0.3".to_owned(), "2026-01-31T12:00:09Z".to_owned()),
        ]
    );
    // At the interval of the definition; a new definition takes effect at once.
    define(&server, "/site/total", "2 * sum(<*/kilowatts>)", "W");
    let total = rows(&server, "pattern=/site/total");
    assert!(total.iter().all(|(_, value)| *value == json!(800.0)) && total.len() == 10, "{total:?}");
    drop(agents);
    server = server.restart();
    assert_eq!(rows(&server, "pattern=/site/total"), total);
    let (status, said) = send(&server, "DELETE", "/api/v1/virtual?path=/site/*/kilowatts", &json!(null), &server.token);
    assert_eq!(status, 400);
    assert!(said["error"].as_str().unwrap().contains("other definitions refer to it: /site/total"), "{said}");
    let (status, _) = send(&server, "DELETE", "/api/v1/virtual?path=/site/total", &json!(null), &server.token);
    assert_eq!((status, rows(&server, "pattern=/site/total").len()), (200, 0));
}

#[test]
fn refused_definitions_name_the_place_and_change_nothing() {
    let (server, _agents) = with_power();
    define(&server, "/site/total", "sum(<*/power>)", "W");
    let put = |body: Value| send(&server, "PUT", "/api/v1/virtual", &body, &server.token);
    let (status, said) = put(json!([
        definition("/site/good", "<n1/power>", "W"),
        definition("/site/bad", "<n1/power> + <n1/energy>", "W"),
    ]));
    assert_eq!(status, 400);
    assert_eq!(
        said["error"],
        json!("/site/bad: a sum of W (power) and J (energy)\n  <n1/power> + <n1/energy>\n               ^^^^^^^^^^^")
    );
    for (body, part) in [
        (json!({ "path": "/site/x", "expression": "1" }), "missing field `unit`"),
        (json!({ "path": "/site/x", "expression": "1", "unit": "1", "scale": 2 }), "unknown field `scale`"),
        (json!({ "define": [], "delete": [] }), "unknown field `delete`"),
        (json!("x"), "expected a definition"),
    ] {
        let (status, said) = put(body);
        assert!(status == 400 && said["error"].as_str().unwrap().contains(part), "{part}: {status} {said}");
    }
    assert_eq!(send(&server, "DELETE", "/api/v1/virtual", &json!(null), &server.token).0, 400);
    // A check reports the change and does not make it.
    let other = definition("/site/total", "mean(<*/power>)", "kW");
    let (status, said) = send(&server, "POST", "/api/v1/virtual", &other, &server.token);
    assert_eq!((status, &said["changed"]), (200, &json!(["/site/total"])));
    let list = server.get("/api/v1/virtual").json()["virtual"].clone();
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["expression"], &list[0]["sensors"]), (&json!("sum(<*/power>)"), &json!(1)));
    // Together with a removed definition, and in the audit log and the history.
    let (status, said) =
        put(json!({ "define": [definition("/site/mean", "mean(<*/power>)", "W")], "remove": ["/site/total"] }));
    assert_eq!((status, &said["removed"]), (200, &json!(["/site/total"])), "{said}");
    let history = server.get("/api/v1/virtual/history?path=/site/total").json()["history"].clone();
    assert_eq!(history.as_array().unwrap().len(), 2);
    assert_eq!((&history[1]["definition"], history[0]["who"].as_str().unwrap().is_empty()), (&Value::Null, false));
    wait_for("the audit log", || {
        let text = std::fs::read_to_string(server.path("server/audit.jsonl")).unwrap_or_default();
        text.contains("virtual sensors: defined /site/mean; removed /site/total").then_some(())
    });
}

#[test]
fn permissions_to_change_and_to_see() {
    let (server, [mut agent, _other]) = with_power();
    for (job, user) in [("12", "anna"), ("13", "bert")] {
        let record = JobRecord {
            job: job.to_owned(),
            level: job.to_owned(),
            manager: "slurm".to_owned(),
            node: "n1".to_owned(),
            prefix: "/site/n1".to_owned(),
            user: Some(user.to_owned()),
            uid: Some(1000),
            from: NOON,
            revision: 1,
            ..JobRecord::default()
        };
        let id = agent.publish("wholegrain/v1/job/n1", &serde_json::to_vec(&record).unwrap());
        assert_eq!(agent.event(), Event::Acked { packet_id: id, reason: ReasonCode::SUCCESS });
        let schema = schema("n1", &format!("job{job}"), &format!("job/{job}/cpu/usage"), "s", true);
        let samples: Vec<(i64, i64)> = (0..10).map(|at| (NOON + at * SECOND, at)).collect();
        let ids = [agent.schema(&schema), agent.batch(&schema, &samples)];
        agent.acked(&ids);
    }
    define(&server, "/site/*/job/*/busy", "rate(<cpu/usage>)", "1");
    define(&server, "/site/all_busy", "sum(<*/job/*/busy>)", "1");
    define(&server, "/site/of_all_busy", "<all_busy> * 2", "1");
    define(&server, "/site/hers", "sum(rate(<*/job/12/cpu/usage>))", "1");
    define(&server, "/site/total", "sum(<*/power>)", "W");
    let (_, anna) = token(&server, "anna", Role::User, None);
    let (_, support) = token(&server, "support", Role::Support, None);
    let everything = [
        "/site/all_busy",
        "/site/hers",
        "/site/n1/job/12/busy",
        "/site/n1/job/13/busy",
        "/site/of_all_busy",
        "/site/total",
    ];
    let hers = ["/site/hers", "/site/n1/job/12/busy", "/site/total"];
    let computed = |token: &str| -> Vec<String> {
        let known = paths(&server, "/**", token);
        known.into_iter().filter(|path| everything.contains(&path.as_str())).collect()
    };
    assert_eq!(computed(&support), everything);
    assert_eq!(computed(&anna), hers);
    let named = |path: &str, token: &str| {
        let text = server.get_as(path, Some(&format!("Bearer {token}"))).text().to_owned();
        everything.iter().copied().filter(|sensor| text.contains(&format!("\"{sensor}\""))).collect::<Vec<_>>()
    };
    for path in [
        "/api/v1/newest?pattern=/**",
        "/api/v1/query?pattern=/site/n1/job/13/busy&pattern=/**&from=2026-01-31&to=2026-02-01",
    ] {
        assert_eq!(named(path, &anna), hers, "{path}");
        assert_eq!(named(path, &support), everything, "{path}");
    }
    // Definitions: none that is only of others' jobs.
    assert_eq!(named("/api/v1/virtual", &anna), ["/site/hers", "/site/total"]);
    let body = definition("/site/x", "<total>", "W");
    for (method, token) in [("PUT", &anna), ("POST", &anna), ("DELETE", &anna), ("PUT", &support)] {
        let path = if method == "DELETE" { "/api/v1/virtual?path=/site/total" } else { "/api/v1/virtual" };
        assert_eq!(send(&server, method, path, &body, token).0, 403, "{method}");
    }
    assert_eq!(server.get_as("/api/v1/virtual/history", Some(&format!("Bearer {anna}"))).status, 403);
    assert_eq!(computed(&support), everything);
}

#[test]
fn watched_as_the_readings_come() {
    let (server, [mut agent, mut other]) = with_power();
    let mut total = definition("/site/total", "sum(<*/power>)", "W");
    total["interval"] = json!("1s");
    assert_eq!(send(&server, "PUT", "/api/v1/virtual", &total, &server.token).0, 200);
    define(&server, "/site/hidden", "<n1/power>", "W");
    let response = server.response("/api/v1/watch?pattern=/site/total", Some(&format!("Bearer {}", server.token)));
    let mut lines = BufReader::new(response.into_body().into_reader()).lines();
    wait_until("the watcher", || server.metric("wholegrain_server_watchers") == 1.0);
    // Two nodes' power for each second, until a line arrives.
    let (sender, received) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let found = lines.find_map(|line| {
            let row: Value = serde_json::from_str(&line.ok()?).ok()?;
            (row["value"] == json!(7.0)).then_some(row)
        });
        drop(sender);
        found
    });
    let mut next = now_ns() / SECOND * SECOND;
    wait_for("a line of the computed sensor", || {
        if now_ns() >= next {
            for (agent, value) in [(&mut agent, 3), (&mut other, 4)] {
                let schema = schema(&agent.name, "power", "power", "W", false);
                let id = agent.batch(&schema, &[(next, value)]);
                agent.acked(&[id]);
            }
            next += SECOND;
        }
        matches!(received.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected)).then_some(())
    });
    let row = reader.join().unwrap().expect("a line");
    assert_eq!(row["sensor"], json!("/site/total"));
}
