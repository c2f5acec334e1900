//! Three nodes, of which some are killed, stopped or full. QUORUM goes on with two of three; with one, answers are errors and uploads wait.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use scylla::client::session_builder::SessionBuilder;
use wholegrain_cassandra::{CassandraConfig, CassandraStore, KeyspaceOptions, create};
use wholegrain_testing::cassandra::{CassandraCluster, CassandraOptions};
use wholegrain_testing::conformance::cassandra::{UploadingStore, Uploads};
use wholegrain_testing::conformance::{CHECKS, Place, WritableStore};
use wholegrain_testing::{wait_for, wait_until};

use crate::{JAVA_OPTIONS, block_on, open, put, read, rows, wait_for_uploads};

/// Some checks of all stores, in one mode; the others need no more than one node.
const CONFORMANCE: [&str; 4] = [
    "the same put again changes nothing",
    "a snapshot stays what it was",
    "a deletion takes what it names and nothing else",
    "many put and read at a time",
];
/// The tables with readings, and what leads to them.
const TABLES: [&str; 4] = ["chunks_ever", "extents", "days", "cuts"];
/// Readings of one put.
const PART: i64 = 50;
const PATH: &str = "/nodes/power";

/// A new directory for each check; the sensors of a check are not those of another.
struct ThreeNodePlace<'a> {
    config: &'a CassandraConfig,
    dir: tempfile::TempDir,
}

impl Place for ThreeNodePlace<'_> {
    fn open(&self) -> Box<dyn WritableStore> {
        let store = open(self.config, self.dir.path()).expect("the store opens");
        Box::new(UploadingStore { store, uploads: Uploads::EverySecond, odd: AtomicBool::new(false) })
    }
}

/// Whether each node sees all others.
fn all_know_each_other(cluster: &CassandraCluster) -> bool {
    cluster.contact_points().iter().all(|point| {
        let peers = block_on(async {
            let session = SessionBuilder::new().known_node(point).build().await.ok()?;
            let rows = session.query_unpaged("SELECT peer FROM system.peers", ()).await.ok()?;
            Some(rows.into_rows_result().ok()?.rows_num())
        });
        peers == Some(2)
    })
}

fn empty(cluster: &CassandraCluster) {
    block_on(async {
        let session = SessionBuilder::new().known_nodes(cluster.contact_points()).build().await.expect("a connection");
        for table in TABLES {
            session.query_unpaged(format!("TRUNCATE nodes.{table}"), ()).await.expect("no rows");
        }
    });
}

/// Puts part after part and reads all of them, each time, until `until` is done. Every answer has every reading once.
fn go_on(store: &CassandraStore, next: &AtomicI64, what: &str, until: impl Fn()) {
    let start = Instant::now();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut errors = 0;
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                put(store.local(), PATH, part as u64, part * PART, part * PART..(part + 1) * PART);
                let end = (part + 1) * PART;
                match read(store, PATH, 0, end) {
                    Ok(found) => assert_eq!(found, rows(0, 0..end)),
                    // While a connection breaks, an answer can be an error, never less.
                    Err(_) => errors += 1,
                }
                if is_over.load(Ordering::Relaxed) {
                    return errors;
                }
            }
        });
        until();
        let before = next.load(Ordering::Relaxed);
        wait_until("two more parts", || next.load(Ordering::Relaxed) >= before + 2);
        is_over.store(true, Ordering::Relaxed);
        let errors = writer.join().expect("the writer");
        println!("{what}: {errors} answers were errors, {} s", start.elapsed().as_secs());
    });
    wait_for_uploads(store);
    let end = next.load(Ordering::Relaxed) * PART;
    assert_eq!(wait_for("an answer", || read(store, PATH, 0, end).ok()), rows(0, 0..end));
}

#[test]
fn nodes_fail_one_after_the_other() {
    let environment = vec![("HEAP", "384m".to_owned()), (JAVA_OPTIONS.0, JAVA_OPTIONS.1.to_owned())];
    let options = CassandraOptions { environment, small_disk: Some("320m") };
    let cluster = CassandraCluster::start_with(3, options);
    let start = Instant::now();
    wait_until("the nodes know each other", || all_know_each_other(&cluster));
    println!("the nodes know each other: {} s", start.elapsed().as_secs());
    let of = |server: &str| CassandraConfig {
        timeout: Duration::from_secs(5),
        ..CassandraConfig::new(cluster.contact_points(), "nodes", server)
    };
    let options = KeyspaceOptions { replication: vec![("dc1".to_owned(), 3)], shard_levels: 0 };
    create(&of("a"), &options).expect("the keyspace is created");
    let checks: Vec<_> = CHECKS.iter().filter(|(name, _)| CONFORMANCE.contains(name)).collect();
    assert_eq!(checks.len(), CONFORMANCE.len());
    for (at, (name, check)) in checks.into_iter().enumerate() {
        let config = of(&format!("check{at}"));
        let start = Instant::now();
        let found = check(&ThreeNodePlace { config: &config, dir: tempfile::tempdir().unwrap() });
        assert_eq!(found, Ok(()), "{name}");
        println!("{name}: {} s", start.elapsed().as_secs());
        empty(&cluster);
    }

    let dir = tempfile::tempdir().unwrap();
    let store = open(&of("a"), dir.path()).unwrap();
    let next = AtomicI64::new(0);
    go_on(&store, &next, "three nodes", || {});
    // Cut off: the node neither answers nor closes its connections.
    go_on(&store, &next, "one is paused", || cluster.signal(1, libc::SIGSTOP));
    cluster.signal(1, libc::SIGCONT);
    // A node whose disk is full stops to answer clients.
    let ballast = cluster.small_disk().join("ballast");
    go_on(&store, &next, "one is full", || {
        let fill =
            std::fs::File::create(&ballast).and_then(|mut file| std::io::copy(&mut std::io::repeat(0), &mut file));
        assert!(fill.is_err(), "the disk is not full");
    });
    one_node_is_left(&cluster, &store, &next, &ballast);
    // The two that were away have everything.
    go_on(&store, &next, "one is killed", || cluster.kill(0));
}

/// With one of three, answers are errors and uploads wait; then all arrives.
fn one_node_is_left(cluster: &CassandraCluster, store: &CassandraStore, next: &AtomicI64, ballast: &std::path::Path) {
    [1, 2].iter().for_each(|node| cluster.kill(*node));
    std::fs::remove_file(ballast).unwrap();
    let part = next.fetch_add(1, Ordering::Relaxed);
    let (start, end) = (part * PART, (part + 1) * PART);
    put(store.local(), PATH, part as u64, start, start..end);
    let error = read(store, PATH, 0, end).expect_err("one node is no quorum").to_string();
    assert!(error.contains("Cassandra"), "{error}");
    println!("one of three nodes: {error}");
    // What is later than all uploads is only in the local store.
    assert_eq!(read(store, PATH, start, end).unwrap(), rows(start, start..end));
    assert_eq!(store.upload_stats().waiting_blocks, 1);
    cluster.restart(&[1, 2]);
    wait_for_uploads(store);
    assert_eq!(wait_for("an answer", || read(store, PATH, 0, end).ok()), rows(0, 0..end));
    wait_until("the nodes know each other", || all_know_each_other(cluster));
}
