//! Limits on connections, streams and requests over HTTPS: clients at their limits do not affect others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use wholegrain_server::access::Role;
use wholegrain_transport::mqtt::Version;
use wholegrain_transport::tls;

use crate::harness::{DEADLINE, NOON, TestServer, schema, wait_for, wait_until};
use crate::security::token;

/// A connection that speaks in bytes, over TLS.
pub fn raw(server: &TestServer) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let config: Arc<rustls::ClientConfig> = tls::client_config(&server.path("ca.pem"), None).unwrap();
    let stream = TcpStream::connect(server.addresses.http.unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let connection = rustls::ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    rustls::StreamOwned::new(connection, stream)
}

/// The status of the next response.
fn status(stream: &mut impl Read) -> String {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head[9..]).into_owned()
}

#[test]
fn connections_that_show_no_token_lock_nobody_out() {
    let server =
        TestServer::start_with_http("unauthenticated_max = 16\nunauthenticated_time = \"1h\"\nconnections_max = 16");
    let address = server.addresses.http.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        // Bare TCP, and the half of a request's head.
        crowd.push(TcpStream::connect(address).unwrap());
    }
    let mut half = Vec::new();
    for _ in 0..20 {
        let mut stream = raw(&server);
        // It may have been closed for another one already.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: ");
        half.push(stream);
    }
    assert_eq!(server.get_as("/healthz", None).status, 200);
    assert_eq!(server.get("/api/v1/sensors").status, 200);
    let metric = |name: &str| server.metric(&format!("wholegrain_server_{name}{{protocol=\"https\"}}"));
    assert!(metric("connections_unproven") <= 16.0 && metric("connections_displaced_total") >= 80.0);
    drop((crowd, half));
}

#[test]
fn connections_without_a_token_are_closed_in_time_and_a_wrong_token_is_answered_once() {
    let server = TestServer::start_with_http("unauthenticated_time = \"100ms\"");
    let mut silent = TcpStream::connect(server.addresses.http.unwrap()).unwrap();
    silent.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
    let mut half = raw(&server);
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: ").unwrap();
    assert_eq!(half.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
    let name = "wholegrain_server_connections_late_total{protocol=\"https\"}";
    wait_until("both are counted", || server.metric(name) >= 2.0);
    let server = TestServer::start();
    for (request, expected) in [
        ("GET /api/v1/sensors HTTP/1.1\r\nhost: h\r\nauthorization: Bearer wrong\r\n\r\n", "401"),
        ("GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n", "200"),
    ] {
        let mut stream = raw(&server);
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // To its end: the server closes.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {expected}")) && answer.contains("connection: close"),
            "{answer}"
        );
    }
}

#[test]
fn a_token_has_limits_and_administrators_have_a_reserve() {
    let limits = "connections_max = 4\nconnections_per_token_max = 3\nwatches_per_token_max = 2";
    let server = TestServer::start_with_http(limits);
    let [alice, bob] = ["alice", "bob"].map(|name| token(&server, name, Role::User, None).1);
    let watch = |token: &str| {
        let mut stream = raw(&server);
        let request =
            format!("GET /api/v1/watch?pattern=/** HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        (status(&mut stream), stream)
    };
    let hers: Vec<_> = (0..2).map(|_| watch(&alice)).collect();
    assert!(hers.iter().all(|(status, _)| status == "200"));
    let (refused, third) = watch(&alice);
    assert_eq!(refused, "503", "the third stream of a token");
    let (refused, _) = watch(&alice);
    assert_eq!(refused, "503", "the fourth connection");
    let his = watch(&bob);
    assert_eq!(his.0, "200");
    assert_eq!(watch(&bob).0, "503", "all places are taken");
    let admins: Vec<_> = (0..5).map(|_| watch(&server.token)).collect();
    assert!(admins.iter().all(|(status, _)| status == "200"));
    drop((hers, third));
    wait_until("her places are free again", || watch(&alice).0 == "200");
}

#[test]
fn slow_bodies_of_one_token_keep_no_other_write_out() {
    let server = TestServer::start();
    let [slow, other] = ["slow", "other"].map(|name| token(&server, name, Role::Agent, None).1);
    let mut bodies = Vec::new();
    for _ in 0..40 {
        let mut stream = raw(&server);
        let head = format!(
            "POST /api/v2/write HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {slow}\r\ncontent-length: 1000\r\n\r\nm,host=n1 v="
        );
        stream.write_all(head.as_bytes()).unwrap();
        bodies.push(stream);
    }
    let open = "wholegrain_server_http_connections";
    wait_until("all are there", || server.metric(open) >= 40.0);
    for token in [&other, &slow, &server.token] {
        let (status, said) = server.post_as("/api/v2/write", "", token);
        assert_eq!(status, 204, "{said}");
    }
    drop(bodies);
}

#[test]
fn influxdb_s_clients_find_a_server_and_learn_nothing() {
    let server = TestServer::start();
    assert_eq!(server.get_as("/ping", None).status, 204);
    assert!(server.get_as("/ping", None).body.is_empty());
    let health = server.get_as("/health", None);
    assert_eq!((health.status, &health.json()["status"]), (200, &"pass".into()));
    assert!(!health.text().contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn browsers_ask_from_listed_origins_only_and_accept_what_they_name() {
    let server = TestServer::start_with_http("cors_origins = [\"https://grafana.example\"]");
    let ask = |head: &str| {
        let mut stream = raw(&server);
        let request = format!("{head}\r\nhost: h\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).to_lowercase()
    };
    let question = "OPTIONS /api/v1/query HTTP/1.1\r\naccess-control-request-method: GET\r\norigin: https://";
    let good = ask(&format!("{question}grafana.example"));
    assert!(good.starts_with("http/1.1 204") && good.contains("allow-origin: https://grafana.example"), "{good}");
    let bad = ask(&format!("{question}evil.example"));
    assert!(bad.starts_with("http/1.1 401") && !bad.contains("allow-origin"), "{bad}");
    let query = format!("GET /api/v1/query?pattern=x HTTP/1.1\r\nauthorization: Bearer {}\r\naccept: ", server.token);
    let csv = ask(&format!("{query}text/csv, */*\r\norigin: https://grafana.example"));
    assert!(csv.contains("content-type: text/csv") && csv.contains("allow-origin: https://grafana.example"), "{csv}");
    assert!(csv.contains("access-control-expose-headers: x-wholegrain-sensors"), "{csv}");
    assert!(ask(&format!("{query}*/*")).contains("content-type: application/x-ndjson"));
    let mut stream = raw(&server);
    let watch = format!(
        "GET /api/v1/watch?pattern=/** HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\naccept: text/event-stream\r\n\r\n",
        server.token
    );
    stream.write_all(watch.as_bytes()).unwrap();
    assert_eq!(status(&mut stream), "200");
    let mut shown = String::new();
    for body in ["m,host=n1 v=1", "m,host=n1 v=2"] {
        assert_eq!(server.post("/api/v2/write", body).0, 204);
    }
    while !shown.contains("data: {\"sensor\":") {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{shown}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(shown.contains("content-type: text/event-stream"), "{shown}");
}

/// A query whose response is not read keeps running, while the process grows beyond the memory limit of queries.
#[test]
fn no_query_begins_while_those_that_run_have_too_much_memory() {
    let server = TestServer::start_with_http("queries_memory_max = \"16MiB\"");
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let id = agent.schema(&schema);
    agent.acked(&[id]);
    // Some 20 MB of JSON: more than the sockets hold.
    for part in 0..5 {
        let samples: Vec<(i64, i64)> = (0..60_000).map(|i| (NOON + part * 60_000_000_000 + i * 1_000_000, i)).collect();
        let id = agent.batch(&schema, &samples);
        agent.acked(&[id]);
    }
    let path = "/api/v1/query?pattern=s&from=2026-01-31&to=2026-02-01";
    let bearer = format!("Bearer {}", server.token);
    let unread = server.response(path, Some(&bearer));
    assert_eq!(unread.status().as_u16(), 200);
    assert_eq!(server.metric("wholegrain_server_queries_running"), 1.0);
    let few = format!("{path}&limit=1");
    // The server runs in this process: memory of the test counts as memory of the query.
    let mut taken = Vec::new();
    let (status, wait, said) = wait_for("too much memory", || {
        taken.push(vec![1_u8; 64 << 20]);
        let mut response = server.response(&few, Some(&bearer));
        let wait = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        (status != 200 || taken.len() >= 8).then(|| (status, wait, response.body_mut().read_to_string().unwrap()))
    });
    assert_eq!((status, wait.as_deref()), (503, Some("1")), "{said}");
    assert!(said.contains("http.queries_memory_max") && said.contains("try again shortly"), "{said}");
    assert_eq!(server.get("/api/v1/sensors").status, 200, "what is no query is answered");
    drop(unread);
    // The client has disconnected, so its query ends; without a running query, the memory counts for none.
    wait_until("queries begin again", || server.get(&few).status == 200);
    drop(taken);
}

#[test]
fn the_audit_log_has_the_outcome_of_a_request() {
    let server = TestServer::start();
    let token = &server.token;
    assert_eq!(server.json("PUT", "/api/v1/data/retention", "{}", token).status, 400);
    assert_eq!(server.json("PATCH", "/api/v1/data/delete", "", token).status, 405);
    assert_eq!(server.json("PUT", "/api/v1/properties", "{", token).status, 400);
    assert_eq!(server.json("POST", "/api/v1/virtual", "{", token).status, 400);
    assert_eq!(server.json("PUT", "/api/v1/server/log?level=info", "", token).status, 200);
    let lines = wait_for("the lines", || {
        let text = std::fs::read_to_string(server.path("server/audit.jsonl")).unwrap_or_default();
        text.contains("PUT /api/v1/server/log").then_some(text)
    });
    let outcome = |what: &str| {
        let line = lines.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in {lines}"));
        serde_json::from_str::<serde_json::Value>(line).unwrap()["outcome"].as_str().unwrap().to_owned()
    };
    for (what, expected) in [
        ("PUT /api/v1/data/retention: 400", "refused"),
        ("PATCH /api/v1/data/delete: 405", "refused"),
        ("PUT /api/v1/properties: 400", "refused"),
        ("POST /api/v1/virtual: 400", "refused"),
        ("PUT /api/v1/server/log", "ok"),
    ] {
        assert_eq!(outcome(what), expected, "{what}");
    }
}
