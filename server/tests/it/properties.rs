//! Properties of sensors, set over HTTP, and queries in other units.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use wholegrain_server::access::Role;
use wholegrain_transport::mqtt::Version;

use crate::harness::{HttpResponse, NOON, SECOND, TestAgent, TestServer, schema, wait_for};
use crate::security::token;

const PATH: &str = "/api/v1/properties";
const DAY: &str = "from=2026-01-31&to=2026-02-01";

/// A server with ten readings of `/site/n1/MemFree` in 1024 By, and the agent that sent them.
fn with_readings() -> (TestServer, TestAgent) {
    let server = TestServer::start();
    let schema = schema("n1", "mem", "MemFree");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let samples: Vec<(i64, i64)> = (0..10).map(|i| (NOON + i * SECOND, i)).collect();
    let ids = [agent.schema(&schema), agent.batch(&schema, &samples)];
    agent.acked(&ids);
    (server, agent)
}

fn put(server: &TestServer, parameters: &str, settings: Value) -> HttpResponse {
    let body = json!({ "settings": settings }).to_string();
    server.json("PUT", &format!("{PATH}{parameters}"), &body, &server.token)
}

fn shown(server: &TestServer) -> Value {
    let answer = server.get(&format!("{PATH}?pattern=/site/**"));
    assert_eq!((answer.status, answer.sensors.as_deref()), (200, Some("1")), "{}", answer.text());
    answer.json()["sensors"][0].take()
}

#[test]
fn properties_are_set_shown_and_taken_back() {
    let (server, mut agent) = with_readings();
    let watcher = server.response("/api/v1/watch?pattern=MemFree", Some(&format!("Bearer {}", server.token)));
    let schema = schema("n1", "mem", "MemFree");
    let id = agent.batch(&schema, &[(NOON + 50 * SECOND, 2)]);
    agent.acked(&[id]);
    let mut watched = BufReader::new(watcher.into_body().into_reader()).lines().map(Result::unwrap);
    let line = watched.next().unwrap();
    assert!(line.contains("\"value\":2048"), "{line}");
    assert_eq!(shown(&server)["unit"], json!({ "value": "By" }));
    let settings =
        json!([{ "pattern": "/site/**", "unit": "kBy", "scale": 2, "description": "Ours.", "ttl": "5000d" }]);
    let tried = put(&server, "?try=1", settings.clone());
    assert_eq!((tried.status, tried.json()), (200, json!({ "set": 4, "same": 0, "sensors": [1] })), "{}", tried.text());
    assert_eq!(shown(&server)["unit"], json!({ "value": "By" }));
    assert_eq!(put(&server, "", settings).status, 200);
    // From here on lists, queries, live streams and old readings are in the new unit.
    let sensor = &server.get("/api/v1/sensors?pattern=MemFree").json()["sensors"][0];
    assert_eq!(
        (&sensor["unit"], &sensor["scale"], &sensor["description"]),
        (&json!("kBy"), &json!(2.0), &json!("Ours."))
    );
    let newest = &server.get("/api/v1/newest?pattern=MemFree").json()["readings"][0];
    assert_eq!((&newest["unit"], &newest["value"]), (&json!("kBy"), &json!(4)));
    let asked = server.get(&format!("/api/v1/query?pattern=MemFree&{DAY}&agg=max&unit=By"));
    assert!(asked.text().contains("\"value\":18000"), "{}", asked.text());
    let id = agent.batch(&schema, &[(NOON + 60 * SECOND, 21)]);
    agent.acked(&[id]);
    let line = watched.next().unwrap();
    assert!(line.contains("\"value\":42"), "{line}");
    wait_for("sensors.csv has it, though nothing was sealed", || {
        let csv = std::fs::read_to_string(server.path("server/store/sensors.csv")).unwrap_or_default();
        csv.contains("/site/n1/MemFree,\"kBy\",gauge,int,2,").then_some(())
    });
    let row = shown(&server);
    assert_eq!(
        (&row["unit"]["sent"], &row["unit"]["pattern"], &row["ttl"]["value"]),
        (&json!("By"), &json!("/site/**"), &json!("5000d"))
    );
    assert_eq!(row["kind"], json!({ "value": "gauge" }));
    let listed = server.get(&format!("{PATH}/settings")).json();
    let values = |rows: &Value| -> Vec<(String, Value)> {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| (row["property"].as_str().unwrap().to_owned(), row["value"].clone())).collect()
    };
    let four =
        [("unit", json!("kBy")), ("scale", json!(2.0)), ("description", json!("Ours.")), ("ttl", json!("5000d"))];
    let four = four.map(|(name, value)| (name.to_owned(), value));
    let mut settings = values(&listed["settings"]);
    settings.sort_by_key(|(name, _)| four.iter().position(|(other, _)| other == name));
    assert_eq!(settings, four);
    // One, then all the rest.
    let unset = |parameters: &str| server.json("DELETE", &format!("{PATH}?{parameters}"), "", &server.token);
    assert_eq!(unset("pattern=/site/**&property=scale").json(), json!({ "unset": 1 }));
    assert_eq!(unset("pattern=/site/**").json(), json!({ "unset": 3 }));
    assert_eq!(unset("pattern=/site/**").json(), json!({ "unset": 0 }));
    assert_eq!(
        (&shown(&server)["unit"], &shown(&server)["scale"]),
        (&json!({ "value": "By" }), &json!({ "value": 1024.0 }))
    );
    let server = server.restart();
    let history = server.get(&format!("{PATH}/history?pattern=/site/**")).json();
    let history = values(&history["history"]);
    assert_eq!((history.len(), &history[4]), (8, &("scale".to_owned(), Value::Null)), "{history:?}");
    let limited = server.get(&format!("{PATH}/history?limit=2")).json();
    assert_eq!(limited["history"].as_array().unwrap().len(), 2);
}

#[test]
fn errors_are_named_and_nothing_is_set() {
    let (server, _agent) = with_readings();
    for (settings, part) in [
        (
            json!([{ "pattern": "/site/**", "unit": "V" }, { "pattern": "/x", "unit": "celsius" }]),
            "setting 2: /x: unit \\\"celsius\\\", at 1",
        ),
        (json!([{ "pattern": "/x", "unit": "celsius" }]), "did you mean `Cel`?"),
        (json!([{ "pattern": "/x", "units": "W" }]), "did you mean `unit`?"),
        (json!([{ "pattern": "/x/+", "unit": "W" }]), "`**`"),
        (json!([{ "unit": "W" }]), "pattern"),
        (json!([{ "pattern": "/x", "scale": 0 }]), "finite and not 0"),
        (json!([{ "pattern": "/x", "kind": "guage" }]), "gauge"),
        (json!([{ "pattern": "/x", "ttl": "never" }]), "ttl: "),
        (json!([{ "pattern": "/x", "ttl": "0s" }]), "ttl: "),
        (json!(["/x"]), "setting 1"),
        (json!({}), "expected settings"),
    ] {
        let answer = put(&server, "", settings);
        assert!(answer.status == 400 && answer.text().contains(part), "{part}: {}", answer.text());
    }
    assert_eq!(shown(&server)["unit"], json!({ "value": "By" }));
    for (path, part) in [
        ("?pattern=/x&property=color", "property"),
        ("?property=unit", "`pattern` is missing"),
        ("?pattern=/x&pattern=/y", "one pattern at a time"),
    ] {
        let answer = server.json("DELETE", &format!("{PATH}{path}"), "", &server.token);
        assert!(answer.status == 400 && answer.text().contains(part), "{part}: {}", answer.text());
    }
    assert_eq!(server.get(&format!("{PATH}/history")).json()["history"], json!([]));
}

#[test]
fn only_administrators_set_and_the_audit_log_tells() {
    let (server, _agent) = with_readings();
    for role in [Role::Support, Role::User] {
        let (_, other) = token(&server, &format!("a {role}"), role, None);
        let refused = server.json("PUT", PATH, r#"{"settings":[{"pattern":"/**","unit":"W"}]}"#, &other);
        assert!(refused.status == 403 && refused.text().contains("a token of role admin may"), "{}", refused.text());
        assert_eq!(server.json("DELETE", &format!("{PATH}?pattern=/**"), "", &other).status, 403);
        assert_eq!(server.get_as(&format!("{PATH}?pattern=/**"), Some(&format!("Bearer {other}"))).status, 200);
    }
    assert_eq!(put(&server, "", json!([{ "pattern": "/site/**", "unit": "KiBy" }])).status, 200);
    wait_for("the audit log", || {
        let text = std::fs::read_to_string(server.path("server/audit.jsonl")).unwrap();
        let has = |parts: &[&str]| text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        (has(&["\"manage\"", "\"ok\"", "/site/**", "KiBy"])
            && has(&["\"refused\"", "a user", "may not change the server"]))
        .then_some(())
    });
}

#[test]
fn queries_in_other_units() {
    let (server, _agent) = with_readings();
    let ask = |parameters: &str| server.get(&format!("/api/v1/query?pattern=MemFree&{DAY}&{parameters}"));
    // Integers stay integers where that is exact.
    assert!(ask("agg=max&unit=bit").text().contains("\"value\":73728}"), "{}", ask("agg=max&unit=bit").text());
    assert!(ask("agg=max&unit=kBy").text().contains("\"value\":9.216}"));
    assert!(
        ask("agg=max&unit=KiBy").text().contains("\"value\":9.0}")
            || ask("agg=max&unit=KiBy").text().contains("\"value\":9}")
    );
    assert!(ask("op=derivative&agg=max&unit=kbit/s").text().contains("\"value\":8.192}"));
    assert!(ask("agg=count&unit=1").text().contains("\"value\":10"));
    for (parameters, parts) in [
        ("unit=W", ["/site/n1/MemFree", "By (information) cannot be converted to W (power)"]),
        ("unit=kBy/s", ["By (information)", "kBy/s (data rate)"]),
        ("agg=count&unit=By", ["1 (number)", "By (information)"]),
        ("unit=MB", ["parameter `unit`", "did you mean `MBy`?"]),
    ] {
        let answer = ask(parameters);
        assert!(answer.status == 400 && parts.iter().all(|part| answer.text().contains(part)), "{}", answer.text());
    }
}
