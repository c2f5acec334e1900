//! The servers that share a keyspace: their names, numbers and signs of life.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use scylla::value::CqlValue;
use wholegrain_store::StoreError;

use crate::session::CassandraSession;

/// A server whose beat has not changed for this time, by the clock of the one who looks, is taken for dead.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// The most servers of a keyspace.
const SERVERS_MAX: i16 = 1_000;
/// The file in the local store's directory with its identity.
const ID_FILE: &str = "cassandra.id";
const DOING: &str = "joining the servers";

/// A row of the table of servers: name, number, state, beat.
type ServerRow = (String, Option<i16>, Option<String>, Option<i64>);

/// This server among the others.
pub(crate) struct Member {
    pub name: String,
    pub number: i16,
    /// Identifies this start of the server.
    run: String,
    beat: AtomicI64,
    /// The last beat of each other server, and when it was first seen.
    seen: Mutex<HashMap<i16, (i64, Instant)>>,
}

/// The identity of a local store, which it keeps in a file. Created at the first call.
pub(crate) fn store_id(dir: &Path) -> Result<String, StoreError> {
    let path = dir.join(ID_FILE);
    let failed =
        |doing: &'static str, error: std::io::Error| StoreError::Io { doing, path: path.clone(), error: error.into() };
    match std::fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("reading", error)),
    }
    let id = unique();
    let new = path.with_extension("new");
    std::fs::write(&new, format!("{id}\n")).map_err(|error| failed("writing", error))?;
    std::fs::File::open(&new).and_then(|file| file.sync_all()).map_err(|error| failed("syncing", error))?;
    std::fs::rename(&new, &path).map_err(|error| failed("naming", error))?;
    Ok(id)
}

/// A text that no other process makes: time, process and a counter of the system.
fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{now:x}-{:x}-{}", std::process::id(), random.trim())
}

fn refused(reason: String) -> StoreError {
    StoreError::Remote { doing: DOING, reason }
}

fn text(row: &HashMap<String, CqlValue>, name: &str) -> String {
    row.get(name).and_then(CqlValue::as_text).cloned().unwrap_or_default()
}

impl Member {
    /// Takes the name for this run. A name of another local store is refused: two servers with one name would hide each other's readings.
    pub async fn join(session: &CassandraSession, name: &str, store: &str) -> Result<Self, StoreError> {
        let run = unique();
        let found =
            session.rows::<(Option<i16>,)>(DOING, "SELECT number FROM $.servers WHERE name = ?", (name,)).await?;
        let number = match found.first().and_then(|(number,)| *number) {
            Some(number) => number,
            None => take_number(session, name).await?,
        };
        let insert = "INSERT INTO $.servers (name, number, store, run, state, beat) VALUES (?, ?, ?, ?, 'alive', 0) IF NOT EXISTS";
        let (applied, row) = session.conditional(DOING, insert, (name, number, store, run.as_str())).await?;
        if !applied {
            let owner = text(&row, "store");
            if owner != store {
                return Err(refused(format!(
                    "the name {name} belongs to another server, whose local store is {owner}; give this server another name ([cluster] name)"
                )));
            }
            // The local store is locked by this process: an earlier run of it has ended.
            let update = "UPDATE $.servers SET run = ?, state = 'alive', beat = 0 WHERE name = ? IF store = ?";
            let (applied, row) = session.conditional(DOING, update, (run.as_str(), name, store)).await?;
            if !applied && text(&row, "run") != run {
                return Err(refused(format!("the name {name} was taken by another server at the same time")));
            }
        }
        Ok(Self { name: name.to_owned(), number, run, beat: AtomicI64::new(0), seen: Mutex::default() })
    }

    /// Shows that this server is alive. An error if another run has its name.
    pub async fn beat(&self, session: &CassandraSession) -> Result<(), StoreError> {
        let beat = self.beat.fetch_add(1, Ordering::Relaxed) + 1;
        let update = "UPDATE $.servers SET beat = ? WHERE name = ? IF run = ?";
        let (applied, row) =
            session.conditional("showing a sign of life", update, (beat, &*self.name, &*self.run)).await?;
        match applied {
            true => Ok(()),
            false => Err(refused(format!("another process runs as {}: run {}", self.name, text(&row, "run")))),
        }
    }

    /// Records that this server has ended.
    pub async fn leave(&self, session: &CassandraSession) -> Result<(), StoreError> {
        let update = "UPDATE $.servers SET state = 'ended' WHERE name = ? IF run = ?";
        session.conditional("recording the end", update, (&*self.name, &*self.run)).await.map(drop)
    }

    /// The other servers whose beat changes, by number and name.
    pub async fn alive(&self, session: &CassandraSession) -> Result<Vec<(i16, String)>, StoreError> {
        let select = "SELECT name, number, state, beat FROM $.servers";
        let rows = session.rows::<ServerRow>("reading the servers", select, ()).await?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut alive = Vec::new();
        for (name, number, state, beat) in rows {
            let (Some(number), Some(beat)) = (number, beat) else { continue };
            if number == self.number || state.as_deref() != Some("alive") {
                continue;
            }
            let last = seen.entry(number).or_insert((beat, now));
            if last.0 != beat {
                *last = (beat, now);
            }
            if now - last.1 < DEAD_AFTER {
                alive.push((number, name));
            }
        }
        Ok(alive)
    }
}

/// Gives a name the first number that is free. A number is never given twice.
async fn take_number(session: &CassandraSession, name: &str) -> Result<i16, StoreError> {
    for number in 1..SERVERS_MAX {
        let insert = "INSERT INTO $.server_numbers (number, name) VALUES (?, ?) IF NOT EXISTS";
        let (applied, row) = session.conditional(DOING, insert, (number, name)).await?;
        // The number of an earlier attempt whose answer was lost is this server's too.
        if applied || text(&row, "name") == name {
            return Ok(number);
        }
    }
    Err(refused(format!("{SERVERS_MAX} servers share the keyspace already")))
}
