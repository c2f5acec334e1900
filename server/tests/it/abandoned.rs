//! Requests whose client disconnected before the response began: their work ends and their permits are free again.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};
use wholegrain_model::{JobRecord, Schema, SensorDef, SensorPath};
use wholegrain_server::access::Role;
use wholegrain_transport::mqtt::Version;

use crate::admission::raw;
use crate::harness::{NOON, TestServer, wait_for, wait_until};
use crate::security::token;

/// Sensors that are looked at for each of [`PATTERNS`].
const SENSORS: usize = 10_000;
/// The most patterns of a request.
const PATTERNS: usize = 256;

/// A server with many sensors, which are a job's.
fn crowded() -> TestServer {
    let server = TestServer::start_with_http("queries_max = 1");
    let sensors = (0..SENSORS).map(|at| SensorDef::gauge(format!("s{at}"), "W", "")).collect();
    let schema = Schema::new(SensorPath::new("/site/n1").unwrap(), "wide", sensors).unwrap();
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let job = JobRecord {
        job: "7".to_owned(),
        level: "7".to_owned(),
        manager: "slurm".to_owned(),
        node: "n1".to_owned(),
        prefix: "/site/n1".to_owned(),
        from: NOON,
        ..JobRecord::default()
    };
    let record = serde_json::to_vec(&job).unwrap();
    let ids = [agent.schema(&schema), agent.publish("wholegrain/v1/job/n1", &record)];
    agent.acked(&ids);
    server
}

/// A route with patterns that choose nothing, for which every sensor is looked at.
fn heavy(route: &str, pattern: &str) -> String {
    let patterns: Vec<String> = (0..PATTERNS).map(|at| format!("pattern={pattern}{at}")).collect();
    format!("/api/v1/{route}?{}", patterns.join("&"))
}

/// Asks and does not wait for the answer.
fn ask(server: &TestServer, path: &str, token: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let mut stream = raw(server);
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.flush().unwrap();
    stream
}

/// Whether no response arrives for a while.
fn is_at_work(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> bool {
    stream.sock.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    match stream.read_exact(&mut [0; 1]) {
        Ok(()) => false,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn work_without_a_waiting_client_ends() {
    let server = crowded();
    // Not an administrator's: it has one place for queries, and needs it again and again.
    let support = token(&server, "support", Role::Support, None).1;
    let abandoned = || server.metric("wholegrain_server_requests_abandoned_total");
    for path in [
        heavy("jobs/7/statistics", "/**/none"),
        heavy("jobs/7/energy", "none"),
        heavy("watch", "/**/none"),
        heavy("properties", "/**/none"),
        heavy("data/stats", "/**/none"),
        heavy("sensors", "/**/none"),
        heavy("newest", "/**/none"),
    ] {
        let before = abandoned();
        wait_for(&path[..24], || {
            // It may have gone before it was read, and the place of the request before may be taken still.
            if abandoned() == before {
                is_at_work(&mut ask(&server, &path, &support));
            }
            (abandoned() > before).then_some(())
        });
    }
}

#[test]
fn statistics_of_what_is_stored_for_others_keep_no_administrator_waiting() {
    let server = crowded();
    let support = token(&server, "support", Role::Support, None).1;
    let path = heavy("data/stats", "/**/none");
    let small = "/api/v1/data/stats?pattern=/none";
    let as_support = || server.get_as(small, Some(&format!("Bearer {support}"))).status;
    wait_for("an administrator's beside another's", || {
        let mut stream = ask(&server, &path, &support);
        let at_work = is_at_work(&mut stream) && as_support() == 503;
        assert_eq!(server.get(small).status, 200);
        let still = as_support() == 503;
        drop(stream);
        (at_work && still).then_some(())
    });
    // The place is free once the work has ended.
    wait_until("a place", || as_support() == 200);
}
