//! The tables of a keyspace, by version. A keyspace of a newer version is refused.

use std::time::{Duration, Instant};

use scylla::client::session::Session;

use crate::config::{KeyspaceOptions, check_keyspace};
use crate::layout::CLASSES;
use crate::session::failed;
use wholegrain_store::StoreError;

/// The version that this release creates and uses.
pub(crate) const VERSION: i64 = 1;
/// Cassandra must be at least this major version.
const CASSANDRA_MIN: u32 = 5;

/// The longest time in which the nodes agree on a new table, and the pause between attempts.
const AGREEMENT_MAX: Duration = Duration::from_secs(30);
const AGREEMENT_PAUSE: Duration = Duration::from_millis(500);

/// Settings of tables that are small and change.
const SMALL: &str =
    "gc_grace_seconds = 864000 AND compaction = {'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'L4'}";

/// The tables of version 1 but for those of chunks.
const TABLES: [&str; 10] = [
    "schemas (hash blob PRIMARY KEY, body blob) WITH ",
    "sensors (shard tinyint, path text, source text, definition text, PRIMARY KEY ((shard), path)) WITH ",
    "servers (name text PRIMARY KEY, number smallint, store text, run text, state text, owner text, address text, beat bigint) WITH ",
    "server_numbers (number smallint PRIMARY KEY, name text) WITH ",
    "commits (server smallint, stamp bigint, first_time bigint, last_time bigint, readings bigint, PRIMARY KEY ((server), stamp)) \
     WITH CLUSTERING ORDER BY (stamp DESC) AND ",
    "extents (place text, span tinyint, bucket int, class text, PRIMARY KEY ((place), span, bucket, class)) WITH ",
    "days (k tinyint, day int, PRIMARY KEY ((k), day)) WITH ",
    "cuts (k tinyint, id text, server smallint, patterns list<text>, from_time bigint, to_time bigint, stamp bigint, \
     PRIMARY KEY ((k), id, server)) WITH ",
    "settings (kind text, key text, number bigint, server smallint, who text, at bigint, value text, \
     PRIMARY KEY ((kind), key, number, server)) WITH ",
    "changes (minute bigint, at bigint, server smallint, kind tinyint, key blob, PRIMARY KEY ((minute), at, server)) WITH ",
];

/// The statements that lead to version 1. Each can be repeated.
fn first_version(keyspace: &str) -> Vec<String> {
    let table = |definition: &&str| format!("CREATE TABLE IF NOT EXISTS {keyspace}.{definition}{SMALL}");
    let mut statements: Vec<String> = TABLES.iter().map(table).collect();
    for (class, seconds) in CLASSES {
        // Rows that expire lie in one file for each time of writing, which is removed as a whole. Rows that are kept for ever are merged by size.
        let days = (seconds / 86_400 / 30).max(1);
        let compaction = match seconds {
            0 => "{'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'}".to_owned(),
            _ => format!(
                "{{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', 'compaction_window_size': {days}}}"
            ),
        };
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {keyspace}.chunks_{class} (place text, span tinyint, bucket int, grp blob, band smallint, t0 bigint, stamp bigint, \
             server smallint, part smallint, t1 bigint, n int, body blob, \
             PRIMARY KEY ((place, span, bucket), grp, band, t0, stamp, server, part)) \
             WITH default_time_to_live = {seconds} AND gc_grace_seconds = 86400 AND read_repair = 'NONE' AND compaction = {compaction} \
             AND compression = {{'class': 'LZ4Compressor', 'chunk_length_in_kb': 16, 'min_compress_ratio': 1.1}}"
        ));
    }
    statements
}

/// Creates the keyspace, or brings it up to date.
pub(crate) async fn create(session: &Session, keyspace: &str, options: &KeyspaceOptions) -> Result<(), StoreError> {
    check_keyspace(keyspace).map_err(StoreError::Sensor)?;
    check_release(session).await?;
    let replication = match options.replication.as_slice() {
        [] => "{'class': 'SimpleStrategy', 'replication_factor': 1}".to_owned(),
        centres => {
            let each = centres.iter().map(|(name, count)| format!(", '{}': {count}", name.replace('\'', "''")));
            format!("{{'class': 'NetworkTopologyStrategy'{}}}", each.collect::<String>())
        }
    };
    let make = format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}");
    repeated(async || run(session, &make, "creating the keyspace").await).await?;
    let meta = format!("CREATE TABLE IF NOT EXISTS {keyspace}.meta (name text PRIMARY KEY, value bigint) WITH {SMALL}");
    repeated(async || run(session, &meta, "creating a table").await).await?;
    match repeated(async || version(session, keyspace).await).await? {
        Some(found) if found > VERSION => return Err(newer(keyspace, found)),
        Some(VERSION) => return Ok(()),
        _ => {}
    }
    for statement in first_version(keyspace) {
        repeated(async || run(session, &statement, "creating a table").await).await?;
    }
    let set = format!("INSERT INTO {keyspace}.meta (name, value) VALUES (?, ?) IF NOT EXISTS");
    for (name, value) in [("shard_levels", i64::from(options.shard_levels)), ("version", VERSION)] {
        let write = async || {
            let written = session.query_unpaged(set.as_str(), (name, value)).await;
            written.map(drop).map_err(|error| failed("writing the version", error))
        };
        repeated(write).await?;
    }
    Ok(())
}

/// Repeats a statement that can be repeated: nodes that have just started do not agree on the tables for some seconds, and refuse it until then.
async fn repeated<T>(attempt: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let deadline = Instant::now() + AGREEMENT_MAX;
    loop {
        match attempt().await {
            Err(StoreError::RemoteUnavailable { reason, .. })
                if Instant::now() < deadline && !reason.to_lowercase().contains("unauthorized") =>
            {
                tokio::time::sleep(AGREEMENT_PAUSE).await;
            }
            result => return result,
        }
    }
}

async fn run(session: &Session, statement: &str, doing: &'static str) -> Result<(), StoreError> {
    session.query_unpaged(statement, ()).await.map(drop).map_err(|error| failed(doing, error))
}

/// Checks that the keyspace has the version of this release. Returns the levels of a shard.
pub(crate) async fn check(session: &Session, keyspace: &str) -> Result<u8, StoreError> {
    check_release(session).await?;
    let missing = || {
        let reason = format!("the keyspace {keyspace} has no tables; `wholegrain init --cassandra` creates them");
        StoreError::Remote { doing: "opening the store in Cassandra", reason }
    };
    match version(session, keyspace).await {
        Ok(Some(VERSION)) => {}
        Ok(Some(found)) if found > VERSION => return Err(newer(keyspace, found)),
        Ok(_) => return Err(missing()),
        Err(StoreError::RemoteUnavailable { reason, .. })
            if reason.contains("unconfigured table") || reason.contains("does not exist") =>
        {
            return Err(missing());
        }
        Err(error) => return Err(error),
    }
    let levels = meta(session, keyspace, "shard_levels").await?.unwrap_or(0);
    Ok(u8::try_from(levels).unwrap_or(0))
}

fn newer(keyspace: &str, found: i64) -> StoreError {
    let reason = format!(
        "the keyspace {keyspace} has version {found}, this release uses version {VERSION}; use the release that made it or a later one"
    );
    StoreError::Remote { doing: "opening the store in Cassandra", reason }
}

async fn version(session: &Session, keyspace: &str) -> Result<Option<i64>, StoreError> {
    meta(session, keyspace, "version").await
}

async fn meta(session: &Session, keyspace: &str, name: &str) -> Result<Option<i64>, StoreError> {
    let doing = "reading the version of the keyspace";
    let found = session.query_unpaged(format!("SELECT value FROM {keyspace}.meta WHERE name = ?"), (name,)).await;
    let rows = found.map_err(|error| failed(doing, error))?.into_rows_result().map_err(|error| failed(doing, error))?;
    let row = rows.maybe_first_row::<(i64,)>().map_err(|error| failed(doing, error))?;
    Ok(row.map(|row| row.0))
}

/// Refuses releases of Cassandra that were not tried.
async fn check_release(session: &Session) -> Result<(), StoreError> {
    let doing = "reading the release of Cassandra";
    let found = session.query_unpaged("SELECT release_version FROM system.local", ()).await;
    let rows = found.map_err(|error| failed(doing, error))?.into_rows_result().map_err(|error| failed(doing, error))?;
    let (release,) = rows.first_row::<(String,)>().map_err(|error| failed(doing, error))?;
    let major: u32 = release.split('.').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    if major < CASSANDRA_MIN {
        let reason = format!("it is release {release}; use Cassandra {CASSANDRA_MIN}.0 or later");
        return Err(StoreError::Remote { doing: "opening the store in Cassandra", reason });
    }
    Ok(())
}
