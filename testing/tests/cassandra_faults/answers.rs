//! Lost and late answers, late requests, closed connections: what was asked may or may not have been done.

use std::time::Duration;

use wholegrain_store::StoreError;
use wholegrain_testing::cassandra_proxy::{CassandraProxy, ProxyFaults};
use wholegrain_testing::{Random, wait_until};

use crate::{block_on, config, deletion, keyspace, node, open, put, read, rows, session};

const SERVERS: i64 = 3;
const SENSORS: i64 = 4;
const PARTS: i64 = 4;
const READINGS: i64 = 50;

fn path(server: i64, sensor: i64) -> String {
    format!("/s{server}/{sensor}/power")
}

/// The value at a second, which names the reading.
fn value(server: i64, sensor: i64, second: i64) -> i64 {
    (server * 100 + sensor) * 1_000_000 + second
}

/// Repeats something until it is done.
#[track_caller]
fn done<T>(what: &str, attempt: impl Fn() -> Result<T, StoreError>) {
    wait_until(what, || attempt().map_err(|error| println!("{what}: {error}")).is_ok());
}

#[test]
fn requests_that_may_have_been_done_are_repeated_without_harm() {
    let direct = keyspace("answers");
    let proxy = CassandraProxy::start(&node().cluster, Random::seeded());
    let timeout = Duration::from_millis(1_500);
    proxy.set(ProxyFaults {
        lost_requests: 2,
        lost_answers: 2,
        late_answers: 1,
        late_requests: 2,
        closed: 1,
        delay: Duration::from_millis(2_000),
        release: None,
    });
    let dirs: Vec<tempfile::TempDir> = (0..SERVERS).map(|_| tempfile::tempdir().unwrap()).collect();
    // All at once: their names and numbers are given by conditional statements that meet each other.
    let stores: Vec<_> = std::thread::scope(|scope| {
        let start = |server: i64| {
            let (dir, points) = (dirs[server as usize].path(), proxy.contact_points());
            let config = wholegrain_cassandra::CassandraConfig {
                timeout,
                deletion_timeout: Duration::from_secs(20),
                ..config(points, "answers", &format!("server{server}"))
            };
            scope.spawn(move || {
                let store = open(&config, dir).unwrap();
                for part in 0..PARTS {
                    for sensor in 0..SENSORS {
                        let first = part * READINGS;
                        let values = (first..first + READINGS).map(|second| value(server, sensor, second));
                        put(store.local(), &path(server, sensor), (part * SENSORS + sensor) as u64, first, values);
                    }
                    done("uploading", || store.upload_all());
                }
                // A deletion succeeds, or is an error and is repeated.
                done("deleting", || store.delete(&deletion(&path(server, 0), 0, 20)));
                store
            })
        };
        let started: Vec<_> = (0..SERVERS).map(start).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    println!("{} faults", proxy.injected());
    assert!(proxy.injected() > 10, "the test needs faults");
    proxy.set(ProxyFaults::default());

    let reader_dir = tempfile::tempdir().unwrap();
    let reader = open(&direct, reader_dir.path()).unwrap();
    for server in 0..SERVERS {
        for sensor in 0..SENSORS {
            let from = if sensor == 0 { 20 } else { 0 };
            let expected = rows(from, (from..PARTS * READINGS).map(|second| value(server, sensor, second)));
            assert_eq!(read(&reader, &path(server, sensor), -10, 1_000).unwrap(), expected, "{server} {sensor}");
        }
    }
    let (names, servers) = block_on(async {
        let session = session(&node().cluster.contact_points()).await.unwrap();
        let rows = session.query_unpaged("SELECT number, name FROM answers.server_numbers", ()).await.unwrap();
        let mut names: Vec<(i16, String)> =
            rows.into_rows_result().unwrap().rows().unwrap().map(Result::unwrap).collect();
        names.sort();
        let rows = session.query_unpaged("SELECT number, name FROM answers.servers", ()).await.unwrap();
        let mut servers: Vec<(i16, String)> =
            rows.into_rows_result().unwrap().rows().unwrap().map(Result::unwrap).collect();
        servers.sort();
        (names, servers)
    });
    assert_eq!(names, servers, "each name has the number that was given to it");
    let mut found: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, ["a", "server0", "server1", "server2"], "each name has one number");
    assert_eq!(names.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    drop(stores);
}
