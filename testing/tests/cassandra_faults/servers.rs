//! Two servers with one keyspace: what one has, the other answers; deletions hold at both; clocks that differ do no harm.

use std::time::Duration;

use wholegrain_cassandra::CassandraConfig;
use wholegrain_model::schema::SensorDef;
use wholegrain_model::{Pattern, Schema, SensorPath};
use wholegrain_store::{Clock, ReadStore};
use wholegrain_testing::publisher::Publisher;
use wholegrain_testing::{wait_for, wait_until};

use crate::{
    START, block_on, deletion, execute, keyspace, local, node, open, put, read, rows, session, site, wait_for_server,
    wait_for_uploads,
};

/// The settings of another server of the keyspace, whose clock differs by this many seconds.
fn other(config: &CassandraConfig, server: &str, seconds: i64) -> CassandraConfig {
    let clock = Clock::new(move || Clock::default().now() + seconds * 1_000_000_000);
    CassandraConfig { server: server.to_owned(), clock, ..config.clone() }
}

fn knows(store: &dyn ReadStore, pattern: &str) -> bool {
    !store.sensors(&[Pattern::new(pattern).unwrap()]).is_empty()
}

#[test]
fn two_servers_answer_alike() {
    let config = keyspace("pair");
    let (a_dir, b_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let a = open(&other(&config, "a", 5), a_dir.path()).unwrap();
    let b = open(&other(&config, "b", 0), b_dir.path()).unwrap();
    put(a.local(), "/pair/power", 1, 0, 0..100);
    wait_until("b answers what a has uploaded", || read(&b, "/pair/power", 0, 100).unwrap() == rows(0, 0..100));
    // Also schemas and sensors that have no readings yet, in both directions.
    let schema = |prefix: &str| {
        let sensors = vec![SensorDef::gauge("load", "1", "")];
        Schema::new(SensorPath::new(prefix).unwrap(), "cpu", sensors).unwrap()
    };
    a.local().register_schema(&schema("/pair/n1")).unwrap();
    b.local().register_schema(&schema("/pair/n2")).unwrap();
    wait_until("b knows a's schema", || knows(&b, "/pair/n1/**"));
    wait_until("a knows b's schema", || knows(&a, "/pair/n2/**"));

    // Different values of the same times: both answer one of the two, and the same later and after a start.
    put(a.local(), "/pair/flow", 2, 0, std::iter::repeat_n(1, 50));
    put(b.local(), "/pair/flow", 1, 0, std::iter::repeat_n(2, 50));
    wait_for_uploads(&a);
    wait_for_uploads(&b);
    let agreed = wait_for("both answer the same", || {
        let (a, b) = (read(&a, "/pair/flow", 0, 50).unwrap(), read(&b, "/pair/flow", 0, 50).unwrap());
        (a == b && a.len() == 50).then_some(a)
    });
    assert!(
        agreed == rows(0, std::iter::repeat_n(1, 50)) || agreed == rows(0, std::iter::repeat_n(2, 50)),
        "{agreed:?}"
    );
    put(a.local(), "/pair/power", 3, 100, 100..110);
    wait_for_uploads(&a);
    for store in [&a, &b] {
        assert_eq!(read(store, "/pair/flow", 0, 50).unwrap(), agreed);
    }

    // A deletion holds at both when it returns, for what was uploaded and for what waits in b.
    put(b.local(), "/pair/power", 2, 50, 1_000..1_100);
    a.delete(&deletion("/pair/power", 0, 80)).unwrap();
    for store in [&a, &b] {
        assert_eq!(read(store, "/pair/power", -10, 80).unwrap(), []);
    }
    assert_eq!(read(&b, "/pair/power", 80, 150).unwrap().len(), 70);
    put(b.local(), "/pair/power", 3, 10, 7..17);
    wait_for_uploads(&b);
    wait_until("a answers what came after the deletion", || {
        read(&a, "/pair/power", -10, 80).unwrap() == rows(10, 7..17)
    });

    // b is not running: what waits in its local store is deleted before it is answered or uploaded.
    drop(b);
    let store = local(b_dir.path()).unwrap();
    put(&store, "/pair/heat", 4, 0, 0..100);
    put(&store, "/pair/heat", 5, 100, 100..200);
    drop(store);
    a.delete(&deletion("/pair/heat", 50, 150)).unwrap();
    let b = open(&other(&config, "b", 0), b_dir.path()).unwrap();
    let left: Vec<(i64, i64)> = (0..50).chain(150..200).map(|second| (second, second)).collect();
    assert_eq!(read(&b, "/pair/heat", 0, 300).unwrap(), left);
    wait_for_uploads(&b);
    wait_until("a answers what was left", || read(&a, "/pair/heat", 0, 300).unwrap() == left);
    drop(a);
    let a = open(&other(&config, "a", -5), a_dir.path()).unwrap();
    assert_eq!(read(&a, "/pair/flow", 0, 50).unwrap(), agreed);
    assert_eq!(read(&a, "/pair/heat", 0, 300).unwrap(), left);

    // A server that is alive and does not confirm is named.
    execute("INSERT INTO pair.servers (name, number, state, beat) VALUES ('deaf', 77, 'alive', 1)");
    let impatient = CassandraConfig { deletion_timeout: Duration::from_secs(2), ..other(&config, "c", 0) };
    let c_dir = tempfile::tempdir().unwrap();
    let c = open(&impatient, c_dir.path()).unwrap();
    let error = c.delete(&deletion("/pair/heat", 0, 10)).unwrap_err().to_string();
    assert!(error.contains("not confirmed by deaf"), "{error}");
    for store in [&a, &b, &c] {
        assert_eq!(read(store, "/pair/heat", 0, 10).unwrap(), []);
    }
}

/// The clocks of two servers stand still, 40 s apart on both sides of a full minute: what one has written, the other finds all the same.
#[test]
fn changes_are_found_whatever_the_clocks_show() {
    let config = keyspace("clocks");
    let at = |seconds: i64| Clock::new(move || (1_780_000_020 + seconds) * 1_000_000_000);
    let with = |server: &str, seconds: i64| CassandraConfig {
        server: server.to_owned(),
        clock: at(seconds),
        ..config.clone()
    };
    let (early_dir, late_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let early = open(&with("early", -39), early_dir.path()).unwrap();
    let late = open(&with("late", 1), late_dir.path()).unwrap();
    for (from, to, path) in [(&early, &late, "/clocks/early"), (&late, &early, "/clocks/late")] {
        put(from.local(), path, 1, 0, 0..10);
        wait_until("the other knows it", || read(to, path, 0, 10).unwrap() == rows(0, 0..10));
    }
    // A later value of the server whose clock is behind counts after the earlier one of the other.
    put(late.local(), "/clocks/both", 2, 0, [1]);
    wait_for_uploads(&late);
    wait_until("it is known", || read(&early, "/clocks/both", 0, 1).unwrap() == [(0, 1)]);
    put(early.local(), "/clocks/both", 2, 0, [2]);
    wait_for_uploads(&early);
    for store in [&early, &late] {
        wait_until("the later value", || read(store, "/clocks/both", 0, 1).unwrap() == [(0, 2)]);
    }
}

/// A server is paused, and readings that it has answered before are deleted meanwhile: it does not answer them when it goes on.
#[test]
fn a_paused_server_knows_deletions_before_it_answers() {
    let config = keyspace("paused");
    let site = site(&node().cluster.contact_points(), "paused", "b");
    let server = site.start_server();
    let mut publisher = Publisher::new(&site, "n1");
    let times: Vec<i64> = (0..100).map(|second| (START + second) * 1_000_000_000).collect();
    let sensors = vec![(SensorDef::gauge("power", "W", ""), (0..100).map(|value| Some(f64::from(value))).collect())];
    publisher.send("power", 1_000_000_000, &times, sensors);
    wait_for_server(&site);
    let query = ["query", "/site/n1/power", "--from", "2026-05-28T00:00:00Z", "--to", "2026-05-29T00:00:00Z"];
    let query = [&query[..], &["--agg", "count", "--format", "csv"]].concat();
    assert!(site.answer(&query).contains(",100"));

    let dir = tempfile::tempdir().unwrap();
    let a = open(&config, dir.path()).unwrap();
    server.signal(libc::SIGSTOP);
    // It waits until b is known to be dead.
    a.delete(&deletion("/site/n1/*", 0, 60)).unwrap();
    // The question is there before the server goes on.
    let asked = site.command(&query).stdout(std::process::Stdio::piped()).spawn().unwrap();
    server.signal(libc::SIGCONT);
    let answer = String::from_utf8(asked.wait_with_output().unwrap().stdout).unwrap();
    assert!(answer.contains(",40"), "{answer}");
    let confirmed = || {
        block_on(async {
            let session = session(&node().cluster.contact_points()).await.unwrap();
            let rows = session.query_unpaged("SELECT server FROM paused.cuts WHERE k = 0", ()).await.unwrap();
            rows.into_rows_result().unwrap().rows_num()
        })
    };
    wait_until("both servers have confirmed", || confirmed() == 3);
    assert!(site.answer(&query).contains(",40"));
}
