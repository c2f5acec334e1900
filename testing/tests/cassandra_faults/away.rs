//! All of Cassandra is away: readings are acknowledged, answers are whole or errors, and everything arrives when it is back.

use wholegrain_model::SensorDef;
use wholegrain_testing::cassandra_proxy::{CassandraProxy, ProxyFaults};
use wholegrain_testing::publisher::Publisher;
use wholegrain_testing::{Random, wait_until};

use crate::{START, config, deletion, keyspace, node, open, put, read, rows, site, wait_for_server, wait_for_uploads};

#[test]
fn a_store_goes_on_without_cassandra() {
    keyspace("away");
    let proxy = CassandraProxy::start(&node().cluster, Random::new(0));
    let config = config(proxy.contact_points(), "away", "a");
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config, dir.path()).unwrap();
    put(store.local(), "/away/power", 1, 0, 0..100);
    wait_for_uploads(&store);
    assert_eq!(read(&store, "/away/power", 0, 200).unwrap(), rows(0, 0..100));

    proxy.leave();
    put(store.local(), "/away/power", 2, 100, 100..200);
    // Later than everything in Cassandra: the local store has all of it.
    assert_eq!(read(&store, "/away/power", 100, 200).unwrap(), rows(100, 100..200));
    let error = read(&store, "/away/power", 0, 200).unwrap_err().to_string();
    assert!(error.contains("Cassandra"), "{error}");
    assert!(store.delete(&deletion("/away/power", 0, 50)).is_err());
    assert!(store.upload_stats().waiting_blocks > 0);
    store.close();
    drop(store);

    // Started without Cassandra, it does not know what was deleted meanwhile: it receives, and answers nothing.
    let store = open(&config, dir.path()).unwrap();
    put(store.local(), "/away/power", 3, 200, 200..300);
    let error = read(&store, "/away/power", 250, 300).unwrap_err().to_string();
    assert!(error.contains("Cassandra has not answered since this server started"), "{error}");
    proxy.come_back();
    wait_until("the store answers", || read(&store, "/away/power", 0, 300).is_ok());
    wait_for_uploads(&store);
    assert_eq!(read(&store, "/away/power", 0, 300).unwrap(), rows(0, 0..300));
    store.delete(&deletion("/away/power", 0, 50)).unwrap();
    assert_eq!(read(&store, "/away/power", 0, 300).unwrap(), rows(50, 50..300));
}

/// A server is started, receives, is stopped and started again while Cassandra is away or does not answer.
#[test]
fn a_server_starts_and_receives_without_cassandra() {
    keyspace("dark");
    let proxy = CassandraProxy::start(&node().cluster, Random::new(0));
    let site = site(&proxy.contact_points(), "dark", "a");
    proxy.leave();
    let mut server = site.start_server();
    let mut publisher = Publisher::new(&site, "n1");
    let send = |publisher: &mut Publisher, first: i64| {
        let times: Vec<i64> = (first..first + 10).map(|second| (START + second) * 1_000_000_000).collect();
        let values = (first..first + 10).map(|value| Some(value as f64)).collect();
        publisher.send("power", 1_000_000_000, &times, vec![(SensorDef::gauge("power", "W", ""), values)]);
    };
    send(&mut publisher, 0);
    let query = ["query", "/site/n1/power", "--from", "2026-05-28T00:00:00Z", "--to", "2026-05-29T00:00:00Z"];
    let query = [&query[..], &["--agg", "sum", "--format", "csv"]].concat();
    let output = site.run(&query);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("Cassandra has not answered"), "{text}");
    assert!(server.stop().success());
    assert!(server.log().contains("everything acknowledged is on disk"), "{}", server.log());

    proxy.come_back();
    let mut server = site.start_server();
    wait_for_server(&site);
    assert!(site.answer(&query).contains(",45"), "{}", site.answer(&query));
    // Connected, but without answers: the server stops all the same, and has kept what it acknowledged.
    proxy.set(ProxyFaults { lost_answers: 100, ..ProxyFaults::default() });
    let mut publisher = Publisher::new(&site, "n2");
    send(&mut publisher, 10);
    assert!(server.stop().success());
    assert!(server.log().contains("everything acknowledged is on disk"), "{}", server.log());
    proxy.set(ProxyFaults::default());
    let _server = site.start_server();
    wait_for_server(&site);
    let both = [&query[..1], &["/site/*/power"], &query[2..], &["--across", "sum"]].concat();
    assert!(site.answer(&both).contains(",190"), "{}", site.answer(&both));
}
