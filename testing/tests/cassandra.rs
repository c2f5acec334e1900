//! The store in Cassandra on a real Cassandra.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use scylla::client::session_builder::SessionBuilder;
use wholegrain_cassandra::{CassandraConfig, CassandraStore, KeyspaceOptions, create};
use wholegrain_model::{Column, ColumnValues, Gaps, Interval, Kind, Pattern, SensorPath, ValueType};
use wholegrain_store::{
    Chunk, Deletion, ImportSeries, ReadStore, ScanRequest, SchemalessSensor, SensorRange, SensorSetting, Store,
    StoreConfig,
};
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

/// Opens another server of a keyspace, with a local store of its own.
fn member(config: &CassandraConfig, name: &str, dir: &Path) -> CassandraStore {
    let local = StoreConfig { hands_over: true, background: false, ..StoreConfig::new(dir.join(name)) };
    let (local, _) = Store::open(local).expect("the local store opens");
    CassandraStore::open(CassandraConfig { server: name.to_owned(), ..config.clone() }, local).expect("the store opens")
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
    wait_until("the blocks are in Cassandra", || {
        site.metric("wholegrain_server_cassandra_waiting_blocks ") == Some(0.0)
    });
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

fn sensor(path: &str) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: "W".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Int,
        scale: 1.0,
        description: String::new(),
    }
}

/// The values of a sensor at all times.
fn values(store: &CassandraStore, path: &str) -> Vec<i64> {
    let sensors = store.sensors(&[Pattern::new(path).unwrap()]);
    let [sensor] = &sensors[..] else { return Vec::new() };
    let snapshot = store.snapshot();
    let (from, to) = (i64::MIN, i64::MAX);
    let reader = snapshot.open(&mut std::iter::once(SensorRange { sensor, from, to })).unwrap();
    let chunks = reader.scan(&ScanRequest::readings(sensor, from, to)).unwrap().chunks();
    let ints = |chunk: Chunk| match chunk.column.values {
        ColumnValues::Int(values) => values,
        ColumnValues::Float(_) => panic!("floats"),
    };
    chunks.flat_map(|chunk| ints(chunk.unwrap())).collect()
}

#[test]
fn servers_share_readings_deletions_and_settings() {
    let config = CassandraConfig::new(CassandraCluster::shared().contact_points(), "shared", "a");
    create(&config, &KeyspaceOptions { replication: Vec::new(), shard_levels: 0 }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (member(&config, "a", dir.path()), member(&config, "b", dir.path()));

    let column = Column { values: ColumnValues::Int(vec![1, 2, 3, 4]), gaps: Gaps::default() };
    let series = ImportSeries { sensor: sensor("/hall/power"), times: vec![10, 20, 30, 40], column };
    a.local().import("i", 0, "test", vec![series]).unwrap();
    wait_until("b knows the sensor", || b.local().sensor_id("/hall/power").is_some());
    assert_eq!(values(&b, "/hall/power"), [] as [i64; 0], "readings that are not uploaded");
    a.upload_all().unwrap();
    wait_until("b has what a uploaded", || values(&b, "/hall/power") == [1, 2, 3, 4]);
    let kept = b.snapshot();
    let patterns = vec![Pattern::new("/hall/*").unwrap()];
    assert_eq!(a.delete(&Deletion { patterns, from: 15, to: 35 }).unwrap().readings, 2);
    assert_eq!(values(&a, "/hall/power"), [1, 4]);
    assert_eq!(values(&b, "/hall/power"), [1, 4], "in force at b when the deletion has returned");
    drop(kept);

    // Properties, virtual sensors and rules of retention, set at either.
    let unit = |unit: &str| SensorSetting {
        pattern: Pattern::new("/hall/*").unwrap(),
        unit: Some(unit.to_owned()),
        scale: None,
        kind: None,
        description: None,
        interval: None,
    };
    let unit_at = |store: &CassandraStore| store.sensors(&[Pattern::new("/hall/power").unwrap()])[0].unit.clone();
    a.local().set_properties(&[unit("kW")], false, "ada", 1).unwrap();
    wait_until("b has the unit of a", || unit_at(&b) == "kW");
    b.local().set_properties(&[unit("MW")], false, "eve", 2).unwrap();
    wait_until("a has the unit of b", || unit_at(&a) == "MW");
    b.close();
    drop(b);
    a.local().unset_properties(&Pattern::new("/hall/*").unwrap(), &[], "ada", 3).unwrap();
    a.local().registry().change("virtual", vec![("/v".to_owned(), Some("x".into()))], "ada", 4).unwrap();
    let pattern = Pattern::new("/hall/**").unwrap();
    a.local().set_retention(&pattern, Some(Interval::from_s(3_600)), "ada", 5).unwrap();
    let b = member(&config, "b", dir.path());
    wait_until("b has what was set while it was away", || {
        unit_at(&b) == "W"
            && b.local().retention_rules().len() == 1
            && b.local().registry().get("virtual", "/v").is_some()
    });
    assert_eq!(b.local().registry().get("virtual", "/v").unwrap().who, "ada");
}
