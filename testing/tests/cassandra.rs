//! The store in Cassandra on a real Cassandra.

use std::sync::atomic::AtomicBool;

use scylla::client::session_builder::SessionBuilder;
use wholegrain_cassandra::{CassandraConfig, CassandraStore, KeyspaceOptions, create};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_testing::cassandra::CassandraCluster;
use wholegrain_testing::conformance::cassandra::{UploadingStore, Uploads};
use wholegrain_testing::conformance::{Place, WritableStore, run};
use wholegrain_testing::{Site, wait_until};

/// A keyspace without rows, and the directory of a local store.
struct Keyspace {
    dir: tempfile::TempDir,
    config: CassandraConfig,
    uploads: Uploads,
}

/// Removes the rows of all tables: hundreds of tables would need more memory than the node has.
fn empty(config: &CassandraConfig) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = SessionBuilder::new().known_nodes(&config.contact_points).build().await.unwrap();
        let tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
        let tables = session.query_unpaged(tables, (&config.keyspace,)).await.unwrap().into_rows_result().unwrap();
        for table in tables.rows::<(String,)>().unwrap() {
            let name = format!("{}.{}", config.keyspace, table.unwrap().0);
            if name.ends_with(".meta") {
                continue;
            }
            let any = session.query_unpaged(format!("SELECT * FROM {name} LIMIT 1"), ()).await.unwrap();
            if any.into_rows_result().unwrap().rows_num() > 0 {
                session.query_unpaged(format!("TRUNCATE {name}"), ()).await.unwrap();
            }
        }
    });
}

impl Keyspace {
    fn new(cluster: &CassandraCluster, uploads: Uploads) -> Self {
        let name = format!("conformance_{uploads:?}").to_lowercase();
        let config = CassandraConfig::new(cluster.contact_points(), &name, "a");
        create(&config, &KeyspaceOptions { replication: Vec::new(), shard_levels: 0 })
            .expect("the keyspace is created");
        empty(&config);
        Self { dir: tempfile::tempdir().unwrap(), config, uploads }
    }

    fn store(&self) -> CassandraStore {
        let local =
            StoreConfig { hands_over: true, background: false, ..StoreConfig::new(self.dir.path().join("store")) };
        let (local, report) = Store::open(local).expect("the local store opens");
        assert!(report.is_clean(), "{report:?}");
        CassandraStore::open(self.config.clone(), local).expect("the store opens")
    }
}

impl Place for Keyspace {
    fn open(&self) -> Box<dyn WritableStore> {
        Box::new(UploadingStore { store: self.store(), uploads: self.uploads, odd: AtomicBool::new(false) })
    }
}

fn conforms(uploads: Uploads) {
    let found = run(|| Keyspace::new(CassandraCluster::shared(), uploads));
    assert_eq!(found, Vec::<String>::new(), "{uploads:?}");
}

#[test]
fn readings_in_cassandra_conform() {
    conforms(Uploads::Each);
}

#[test]
fn readings_here_and_there_conform() {
    conforms(Uploads::EverySecond);
}

#[test]
fn readings_that_wait_conform() {
    conforms(Uploads::None);
}

/// A site whose server keeps its readings in Cassandra.
fn site(cluster: &CassandraCluster, keyspace: &str) -> Site {
    let site = Site::new();
    site.set("server/server.toml", "store", "kind", "\"cassandra\"");
    site.set("server/server.toml", "store", "seal_after", "\"200ms\"");
    let points: Vec<String> = cluster.contact_points().iter().map(|point| format!("{point:?}")).collect();
    site.set("server/server.toml", "store.cassandra", "contact_points", &format!("[{}]", points.join(", ")));
    site.set("server/server.toml", "store.cassandra", "keyspace", &format!("{keyspace:?}"));
    site
}

#[test]
fn a_server_keeps_its_readings_in_cassandra() {
    let site = site(CassandraCluster::shared(), "site");
    // Without the keyspace the server says what to do.
    let mut command = site.command(&["server", "--config"]);
    let output = command.arg(site.path("server/server.toml")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("wholegrain init --cassandra"), "{text}");
    let init = |site: &Site| site.command(&["init", "--cassandra"]).arg(site.dir()).output().unwrap();
    for _ in 0..2 {
        let made = init(&site);
        assert_eq!(String::from_utf8_lossy(&made.stdout), "the keyspace site is ready\n", "{made:?}");
    }
    let mut csv = "time,/hall/power,/hall/flow\n".to_owned();
    for second in 0..600 {
        csv += &format!("2026-03-01T10:{:02}:{:02}Z,{},{}.5\n", second / 60, second % 60, second * 3, second);
    }
    std::fs::write(site.path("hall.csv"), csv).unwrap();
    let server = site.start_server();
    let file = site.path("hall.csv");
    site.answer(&["import", "csv", file.to_str().unwrap(), "--yes"]);
    wait_until("the blocks are in Cassandra", || site.metric("wholegrain_server_cassandra_waiting_blocks ") == Some(0.0));
    assert!(site.metric("wholegrain_server_cassandra_uploaded_readings_total ") >= Some(1_200.0));
    let sum = [
        "query",
        "/hall/*",
        "--from",
        "2026-03-01T10:00:00Z",
        "--to",
        "2026-03-01T10:10:00Z",
        "--agg",
        "sum",
        "--format",
        "csv",
    ];
    let before = site.answer(&sum);
    assert!(before.contains("539100"), "{before}");
    drop(server);
    let server = site.start_server();
    assert_eq!(site.answer(&sum), before);
    let newest = site.answer(&["sensors", "/hall/power", "--format", "json"]);
    assert!(newest.contains("2026-03-01T10:09:59"), "{newest}");
    let delete =
        ["config", "delete", "/hall/power", "--from", "2026-03-01T10:05:00Z", "--to", "2026-03-01T10:10:00Z", "--yes"];
    site.answer(&delete);
    let after = site.answer(&sum);
    assert!(after.contains("134550") && !after.contains("539100"), "{after}");
    drop(server);
    let _server = site.start_server();
    assert_eq!(site.answer(&sum), after);
}
