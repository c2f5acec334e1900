//! The servers that share a keyspace: their names, numbers and signs of life.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// How often a name is taken from an earlier run that changes meanwhile.
const JOIN_TRIES: usize = 3;

/// A row of the table of servers: name, number, state, beat.
type ServerRow = (String, Option<i16>, Option<String>, Option<i64>);

/// This server among the others.
pub(crate) struct Member {
    pub name: String,
    pub number: i16,
    /// Identifies this start of the server.
    run: String,
    /// Whether another run has the name.
    is_displaced: AtomicBool,
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
pub(crate) fn unique() -> String {
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
    /// Takes the name for the run `run`. A name of another local store is refused: two servers with one name would hide each other's readings. Every
    /// attempt of the same run has the same result, so that it can be repeated after an error. The beat begins at `stamp`.
    pub async fn join(
        session: &CassandraSession,
        (name, run): (&str, &str),
        store: &str,
        stamp: i64,
    ) -> Result<Self, StoreError> {
        let found =
            session.rows::<(Option<i16>,)>(DOING, "SELECT number FROM $.servers WHERE name = ?", (name,)).await?;
        let number = match found.first().and_then(|(number,)| *number) {
            Some(number) => number,
            None => take_number(session, name).await?,
        };
        let member = Self {
            name: name.to_owned(),
            number,
            run: run.to_owned(),
            is_displaced: AtomicBool::new(false),
            seen: Mutex::default(),
        };
        let insert = "INSERT INTO $.servers (name, number, store, run, state, beat) VALUES (?, ?, ?, ?, 'alive', ?) IF NOT EXISTS";
        let (applied, mut row) = session.conditional(DOING, insert, (name, number, store, run, stamp)).await?;
        let mut is_mine = applied;
        for _ in 0..JOIN_TRIES {
            if is_mine || text(&row, "run") == run {
                return Ok(member);
            }
            let owner = text(&row, "store");
            if owner != store {
                return Err(refused(format!(
                    "the name {name} belongs to another server, whose local store is {owner}; give this server another name ([store.cassandra] name)"
                )));
            }
            // The local store is locked by this process: the earlier run of it has ended. A statement of that run that arrives late does not apply
            // any more, because the run has changed.
            let update =
                "UPDATE $.servers SET run = ?, state = 'alive', beat = ? WHERE name = ? IF store = ? AND run = ?";
            let before = text(&row, "run");
            let values = (run, stamp, name, store, before.as_str());
            (is_mine, row) = session.conditional(DOING, update, values).await?;
        }
        match is_mine || text(&row, "run") == run {
            true => Ok(member),
            false => Err(refused(format!("the name {name} is being taken by another server at the same time"))),
        }
    }

    /// Shows that this server is alive. An error if another run has its name.
    pub async fn beat(&self, session: &CassandraSession, stamp: i64) -> Result<(), StoreError> {
        let update = "UPDATE $.servers SET beat = ? WHERE name = ? IF run = ?";
        let (applied, row) =
            session.conditional("showing a sign of life", update, (stamp, &*self.name, &*self.run)).await?;
        self.is_displaced.store(!applied, Ordering::Relaxed);
        match applied {
            true => Ok(()),
            false => Err(self.displaced(&text(&row, "run"))),
        }
    }

    /// An error if another run has the name of this server: a copy of its local store is in use.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.is_displaced.load(Ordering::Relaxed) { Err(self.displaced("")) } else { Ok(()) }
    }

    fn displaced(&self, run: &str) -> StoreError {
        let name = &self.name;
        refused(format!(
            "another process runs as {name} with a copy of this local store {run}; nothing is uploaded from here; stop one of the two"
        ))
    }

    /// Records that this server has ended.
    pub async fn leave(&self, session: &CassandraSession) -> Result<(), StoreError> {
        let update = "UPDATE $.servers SET state = 'ended' WHERE name = ? IF run = ?";
        session.last_conditional("recording the end", update, (&*self.name, &*self.run)).await
    }

    /// The other servers whose beat changes, by number and name. `raise` gets every beat, which is a stamp.
    pub async fn alive(
        &self,
        session: &CassandraSession,
        raise: &(dyn Fn(i64) + Sync),
    ) -> Result<Vec<(i16, String)>, StoreError> {
        let select = "SELECT name, number, state, beat FROM $.servers";
        let rows = session.rows::<ServerRow>("reading the servers", select, ()).await?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut alive = Vec::new();
        for (name, number, state, beat) in rows {
            let (Some(number), Some(beat)) = (number, beat) else { continue };
            raise(beat);
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
