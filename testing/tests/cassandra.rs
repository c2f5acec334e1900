//! The store in Cassandra on a real Cassandra.

use std::sync::atomic::AtomicBool;

use scylla::client::session_builder::SessionBuilder;
use wholegrain_cassandra::{CassandraConfig, CassandraStore, KeyspaceOptions, create};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_testing::cassandra::CassandraCluster;
use wholegrain_testing::conformance::cassandra::{UploadingStore, Uploads};
use wholegrain_testing::conformance::{Place, WritableStore, run};

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
