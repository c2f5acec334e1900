//! Faults of the store in Cassandra, on real processes: nodes that are killed, stopped or full, lost and late answers, servers that are killed, paused
//! or not the only ones of their name. Readings are neither lost nor twice, and an answer has all of them or is an error.

mod answers;
mod away;
mod crash;
mod nodes;
mod refused;
mod servers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use wholegrain_cassandra::{CassandraConfig, CassandraStore, KeyspaceOptions, create};
use wholegrain_model::{Column, ColumnValues, Gaps, Kind, Pattern, SensorPath, Value, ValueType};
use wholegrain_store::{
    Chunk, Deletion, ReadStore, ScanRequest, SchemalessSensor, SensorRange, Store, StoreConfig, StoreError,
};
use wholegrain_testing::cassandra::{CassandraCluster, CassandraOptions};
use wholegrain_testing::conformance::WritableStore;
use wholegrain_testing::{Site, wait_until};

/// The first second of all readings.
const START: i64 = 1_780_000_000;
/// A virtual machine that starts soon: most of the time of these nodes is their start.
const JAVA_OPTIONS: (&str, &str) = ("JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -Xshare:auto");
/// User and password of a new Cassandra.
const USER: &str = "cassandra";

/// One node, with users and with TLS for clients that ask for it. Most tests share it.
struct SharedNode {
    cluster: CassandraCluster,
    certificates: tempfile::TempDir,
}

fn node() -> &'static SharedNode {
    static NODE: OnceLock<SharedNode> = OnceLock::new();
    NODE.get_or_init(|| {
        let certificates = tempfile::tempdir().expect("a temporary directory");
        make_certificates(certificates.path());
        let yaml = format!(
            "client_encryption_options:\n  enabled: true\n  optional: true\n  keystore: {}\n  keystore_password: wholegrain\n  store_type: PKCS12\n",
            certificates.path().join("node.p12").display()
        );
        let java = (JAVA_OPTIONS.0, JAVA_OPTIONS.1.to_owned());
        let environment = vec![java, ("AUTHENTICATOR", "PasswordAuthenticator".to_owned()), ("EXTRA_YAML", yaml)];
        let cluster = CassandraCluster::start_with(1, CassandraOptions { environment, small_disk: None });
        // The user is made some time after the start.
        wait_until("the user exists", || block_on(session(&cluster.contact_points())).is_some());
        SharedNode { cluster, certificates }
    })
}

/// An authority, another one, and a node's certificate by the first for its address.
fn make_certificates(dir: &Path) {
    let script = r#"
        new="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
        openssl req -x509 $new -subj /CN=authority -keyout ca.key -out ca.pem
        openssl req -x509 $new -subj /CN=another -keyout other.key -out other.pem
        openssl req $new -subj /CN=node -keyout node.key -out node.csr
        echo subjectAltName=IP:127.0.0.1 >node.ext
        openssl x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile node.ext -out node.pem
        openssl pkcs12 -export -in node.pem -inkey node.key -passout pass:wholegrain -out node.p12"#;
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// A connection of the test itself; `None` while that is not possible.
async fn session(contact_points: &[String]) -> Option<Session> {
    SessionBuilder::new().known_nodes(contact_points).user(USER, USER).build().await.ok()
}

/// Executes a statement at the shared node.
fn execute(statement: &str) {
    let done = block_on(async {
        let session = session(&node().cluster.contact_points()).await.expect("a connection");
        session.query_unpaged(statement, ()).await
    });
    done.unwrap_or_else(|error| panic!("{statement}: {error}"));
}

/// The settings of a server.
fn config(contact_points: Vec<String>, keyspace: &str, server: &str) -> CassandraConfig {
    CassandraConfig {
        credentials: Some((USER.to_owned(), USER.to_owned())),
        timeout: Duration::from_secs(5),
        ..CassandraConfig::new(contact_points, keyspace, server)
    }
}

/// Creates a keyspace at the shared node; the settings of its server `a`.
fn keyspace(name: &str) -> CassandraConfig {
    let config = config(node().cluster.contact_points(), name, "a");
    create(&config, &KeyspaceOptions { replication: Vec::new(), shard_levels: 0 }).expect("the keyspace is created");
    config
}

fn local(dir: &Path) -> Result<Store, StoreError> {
    let config = StoreConfig { hands_over: true, background: false, ..StoreConfig::new(dir.join("store")) };
    Store::open(config).map(|(store, _)| store)
}

fn open(config: &CassandraConfig, dir: &Path) -> Result<CassandraStore, StoreError> {
    CassandraStore::open(config.clone(), local(dir)?)
}

fn sensor(path: &str) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).expect("a path"),
        unit: "W".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Int,
        scale: 1.0,
        description: String::new(),
    }
}

/// Stores readings, one a second from `START + first` on. `number` names them.
fn put(store: &Store, path: &str, number: u64, first: i64, values: impl IntoIterator<Item = i64>) {
    let ids = store.define("test", &[sensor(path)]).expect("a sensor");
    let values: Vec<i64> = values.into_iter().collect();
    let times = (first..).take(values.len()).map(|second| (START + second) * 1_000_000_000).collect();
    let column = Column { values: ColumnValues::Int(values), gaps: Gaps::default() };
    store.put("test", number, &[(ids[0], Chunk { times, column })]).expect("readings are stored");
}

/// The readings of a sensor from `START + from` until before `START + to`: the seconds after `START`, and the values.
fn read(store: &dyn ReadStore, path: &str, from: i64, to: i64) -> Result<Vec<(i64, i64)>, StoreError> {
    let found = store.sensors(&[Pattern::new(path).expect("a pattern")]);
    let Some(sensor) = found.first() else { return Ok(Vec::new()) };
    let (from, to) = ((START + from) * 1_000_000_000, (START + to) * 1_000_000_000);
    let snapshot = store.snapshot();
    let reader = snapshot.open(&mut std::iter::once(SensorRange { sensor, from, to }))?;
    let mut rows = Vec::new();
    for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
        let chunk = chunk?;
        for (at, time) in chunk.times.iter().enumerate() {
            let Some(Value::Int(value)) = chunk.column.get(at) else { panic!("{path} has no integer at {time}") };
            rows.push((time / 1_000_000_000 - START, value));
        }
    }
    Ok(rows)
}

/// What [`read`] returns of values that [`put`] stored.
fn rows(first: i64, values: impl IntoIterator<Item = i64>) -> Vec<(i64, i64)> {
    (first..).zip(values).collect()
}

fn deletion(pattern: &str, from: i64, to: i64) -> Deletion {
    let patterns = vec![Pattern::new(pattern).expect("a pattern")];
    Deletion { patterns, from: (START + from) * 1_000_000_000, to: (START + to) * 1_000_000_000 }
}

#[track_caller]
fn wait_for_uploads(store: &CassandraStore) {
    wait_until("everything is uploaded", || store.upload_stats().waiting_blocks == 0);
}

/// The text of an error, with what must be in it.
#[track_caller]
fn check_refusal<T>(result: Result<T, StoreError>, parts: &[&str]) -> String {
    let text = result.err().expect("it is refused").to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} are not in: {text}");
    text
}

/// An installation whose server keeps its readings in a keyspace of the shared node, reached by these addresses.
fn site(contact_points: &[String], keyspace: &str, name: &str) -> Site {
    let site = Site::new();
    let set = |table: &str, key: &str, value: &str| site.set("server/server.toml", table, key, value);
    set("store", "kind", "\"cassandra\"");
    set("store", "seal_after", "\"200ms\"");
    set("store", "past_max", "\"36500d\"");
    let password: PathBuf = site.path("password");
    std::fs::write(&password, format!("{USER}\n")).expect("a file");
    set("store.cassandra", "contact_points", &format!("{contact_points:?}"));
    set("store.cassandra", "keyspace", &format!("{keyspace:?}"));
    set("store.cassandra", "user", &format!("{USER:?}"));
    set("store.cassandra", "password_file", &format!("{password:?}"));
    set("store.cassandra", "name", &format!("{name:?}"));
    set("store.cassandra", "timeout", "\"5s\"");
    site
}

/// Waits until everything that a server has received is in Cassandra.
#[track_caller]
fn wait_for_server(site: &Site) {
    wait_until("everything is sealed", || site.metric("wholegrain_server_store_live_bytes ") == Some(0.0));
    wait_until("everything is uploaded", || site.metric("wholegrain_server_cassandra_waiting_blocks ") == Some(0.0));
}
