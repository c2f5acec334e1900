//! What a server is refused for. Each message says what to do.

use wholegrain_cassandra::{CassandraConfig, KeyspaceOptions, create};
use wholegrain_testing::cassandra_proxy::{CassandraProxy, ProxyFaults};
use wholegrain_testing::{Random, wait_until};
use wholegrain_transport::tls::client_config;

use crate::{check_refusal, config, execute, keyspace, local, node, open, put, read, rows, wait_for_uploads};

const OPTIONS: KeyspaceOptions = KeyspaceOptions { replication: Vec::new(), shard_levels: 0 };

#[test]
fn keyspaces_and_releases_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let points = node().cluster.contact_points();
    let missing = config(points.clone(), "missing", "a");
    check_refusal(open(&missing, dir.path()), &["keyspace missing", "wholegrain init --cassandra"]);
    execute("CREATE KEYSPACE empty WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    check_refusal(open(&config(points.clone(), "empty", "a"), dir.path()), &["wholegrain init --cassandra"]);

    execute("CREATE KEYSPACE newer WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    execute("CREATE TABLE newer.meta (name text PRIMARY KEY, value bigint)");
    execute("INSERT INTO newer.meta (name, value) VALUES ('version', 99)");
    let newer = config(points.clone(), "newer", "a");
    let parts = ["version 99", "use the release that made it or a later one"];
    check_refusal(open(&newer, dir.path()), &parts);
    check_refusal(create(&newer, &OPTIONS), &parts);

    let proxy = CassandraProxy::start(&node().cluster, Random::new(0));
    proxy.set(ProxyFaults { release: Some(("5.0.", "4.1.")), ..ProxyFaults::default() });
    let older = config(proxy.contact_points(), "older", "a");
    let parts = ["release 4.1.", "use Cassandra 5.0 or later"];
    check_refusal(open(&older, dir.path()), &parts);
    check_refusal(create(&older, &OPTIONS), &parts);

    let nowhere = config(vec!["no.such.host.invalid:9042".to_owned()], "missing", "a");
    check_refusal(open(&nowhere, dir.path()), &["no.such.host.invalid", "correct contact_points"]);
}

#[test]
fn credentials_and_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let right = keyspace("secured");
    let wrong = CassandraConfig { credentials: Some(("cassandra".into(), "guessed-secret".into())), ..right.clone() };
    let text = check_refusal(open(&wrong, dir.path()), &["cassandra", "password"]);
    assert!(!text.contains("guessed-secret"), "{text}");
    let absent = CassandraConfig { credentials: None, ..right.clone() };
    check_refusal(open(&absent, dir.path()), &["set user and password_file"]);

    let certificates = node().certificates.path();
    let other = CassandraConfig { tls: client_config(&certificates.join("other.pem"), None).ok(), ..right.clone() };
    assert!(other.tls.is_some());
    check_refusal(open(&other, dir.path()), &["TLS", "ca must be the authority"]);
    check_refusal(create(&other, &OPTIONS), &["TLS", "ca must be the authority"]);

    let secured = CassandraConfig { tls: client_config(&certificates.join("ca.pem"), None).ok(), ..right };
    assert!(secured.tls.is_some());
    let store = open(&secured, dir.path()).unwrap();
    put(store.local(), "/tls/power", 1, 0, 0..100);
    wait_for_uploads(&store);
    assert_eq!(read(&store, "/tls/power", 0, 100).unwrap(), rows(0, 0..100));
}

#[test]
fn a_name_belongs_to_one_server() {
    let config = keyspace("names");
    let (first_dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = open(&config, first_dir.path()).unwrap();
    check_refusal(open(&config, other_dir.path()), &["the name a belongs to another server", "another name"]);
    check_refusal(open(&config, first_dir.path()), &["in use by the process"]);
    put(first.local(), "/names/power", 1, 0, 0..10);
    wait_for_uploads(&first);
    assert_eq!(read(&first, "/names/power", 0, 10).unwrap(), rows(0, 0..10));

    // The directory is copied while the server runs: two servers believe to be `a`. The later one is, and the first finds out.
    let copy = other_dir.path().join("store");
    drop(local(other_dir.path()).unwrap());
    std::fs::copy(first_dir.path().join("store/cassandra.id"), copy.join("cassandra.id")).unwrap();
    let second = open(&config, other_dir.path()).unwrap();
    wait_until("the first server knows that it is not the only one", || first.upload_all().is_err());
    check_refusal(first.upload_all(), &["another process runs as a", "nothing is uploaded from here"]);
    put(first.local(), "/names/power", 2, 10, 10..20);
    put(second.local(), "/names/flow", 1, 0, 0..10);
    wait_for_uploads(&second);
    assert_eq!(first.upload_stats().waiting_blocks, 1, "it waits until one of the two is stopped");
    drop(second);
    drop(first);
    // Started again, it is the only one.
    let first = open(&config, first_dir.path()).unwrap();
    wait_for_uploads(&first);
    assert_eq!(read(&first, "/names/power", 0, 20).unwrap(), rows(0, 0..20));
}
