//! What users set at one server holds at all: properties of sensors, virtual sensors, rules of retention.
//!
//! Each change has a number, which is larger than all numbers that its server has seen. Of two changes of one key, that of the larger number counts,
//! then that of the larger server: all servers come to the same result, in whatever order they see the changes, and no clock decides.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use wholegrain_store::registry::{RegistryEntry, SHARED_KINDS};
use wholegrain_store::{Store, StoreError};

use crate::session::CassandraSession;

/// The number of a change and of its server.
type ChangeRank = (u64, i16);
/// A row: key, number, server, who, time, value (`None`: removed).
type SettingRow = (String, i64, i16, Option<String>, Option<i64>, Option<String>);
/// A row as it is written: kind, key, number, server, who, time, value.
type SettingValues<'a> = (&'a str, String, i64, i16, String, i64, Option<String>);

/// Exchanges settings with the other servers.
#[derive(Default)]
pub(crate) struct SharedSettings {
    /// The newest change of each key that is here and in Cassandra.
    known: HashMap<(&'static str, String), ChangeRank>,
    /// The state of the registry that was sent.
    generation: u64,
}

impl SharedSettings {
    /// Applies what the servers share to the local store, and sends what only the local store has.
    pub async fn open(session: &CassandraSession, local: &Store, server: i16) -> Result<Self, StoreError> {
        let mut settings = Self::default();
        for kind in SHARED_KINDS {
            let newest = newest_here(local, kind)?;
            settings
                .receive_unless(session, local, kind, &|row| {
                    newest.get(&row.key).is_some_and(|here| {
                        let is_same = here.number == row.rank.0 && here.value == row.value && here.at == row.at;
                        is_same || (here.number, server) > row.rank
                    })
                })
                .await?;
            // What the local store has of these keys is older than, or equal to, what is known now; the rest is sent.
            for (key, entry) in newest {
                let rank = settings.known.get(&(kind, key.clone())).copied();
                if rank.is_some_and(|rank| (entry.number, server) > rank) {
                    settings.known.remove(&(kind, key));
                }
            }
        }
        settings.send(session, local, server).await?;
        Ok(settings)
    }

    /// Writes changes that were made here since the last call. Returns the kinds that changed.
    pub async fn send(
        &mut self,
        session: &CassandraSession,
        local: &Store,
        server: i16,
    ) -> Result<Vec<&'static str>, StoreError> {
        let generation = local.registry().generation();
        let mut changed = Vec::new();
        if generation == self.generation {
            return Ok(changed);
        }
        for kind in SHARED_KINDS {
            let is_new = |(key, entry): &(String, RegistryEntry)| {
                self.known.get(&(kind, key.clone())).is_none_or(|rank| entry.number > rank.0)
            };
            let entries: Vec<(String, RegistryEntry)> = newest_here(local, kind)?.into_iter().filter(is_new).collect();
            if entries.is_empty() {
                continue;
            }
            let row = |(key, entry): &(String, RegistryEntry)| -> SettingValues<'_> {
                let value = entry.value.as_ref().map(Value::to_string);
                (kind, key.clone(), entry.number.cast_signed(), server, entry.who.clone(), entry.at, value)
            };
            let rows: Vec<SettingValues<'_>> = entries.iter().map(row).collect();
            let insert =
                "INSERT INTO $.settings (kind, key, number, server, who, at, value) VALUES (?, ?, ?, ?, ?, ?, ?)";
            // Rows of one partition: all or none.
            session.write_rows_once("writing settings", insert, &rows).await?;
            self.known.extend(entries.into_iter().map(|(key, entry)| ((kind, key), (entry.number, server))));
            changed.push(kind);
        }
        self.generation = generation;
        Ok(changed)
    }

    /// Applies changes of a kind that other servers have written.
    pub async fn receive(&mut self, session: &CassandraSession, local: &Store, kind: &str) -> Result<(), StoreError> {
        match SHARED_KINDS.iter().find(|known| **known == kind) {
            Some(kind) => self.receive_unless(session, local, kind, &|_| false).await,
            None => Ok(()),
        }
    }

    async fn receive_unless(
        &mut self,
        session: &CassandraSession,
        local: &Store,
        kind: &'static str,
        is_here: &(dyn Fn(&SharedChange) -> bool + Sync),
    ) -> Result<(), StoreError> {
        let text = "SELECT key, number, server, who, at, value FROM $.settings WHERE kind = ?";
        let rows = session.rows::<SettingRow>("reading settings", text, (kind,)).await?;
        let mut newest: BTreeMap<String, SharedChange> = BTreeMap::new();
        for row in rows {
            let change = SharedChange::of(row)?;
            match newest.get(&change.key) {
                Some(known) if known.rank >= change.rank => {}
                _ => drop(newest.insert(change.key.clone(), change)),
            }
        }
        let mut changes: Vec<SharedChange> = newest.into_values().collect();
        changes.retain(|change| self.known.get(&(kind, change.key.clone())).is_none_or(|known| change.rank > *known));
        let (here, mut new): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| is_here(change));
        self.known.extend(here.into_iter().map(|change| ((kind, change.key), change.rank)));
        new.sort_by_key(|change| change.rank);
        // What one call set at the other server is set by one call here.
        for together in new.chunk_by(|a, b| a.rank == b.rank && a.at == b.at && a.who == b.who) {
            let pairs = together.iter().map(|change| (change.key.clone(), change.value.clone())).collect();
            let first = &together[0];
            tokio::task::block_in_place(|| local.apply_change(kind, pairs, &first.who, (first.at, first.rank.0)))?;
            self.known.extend(together.iter().map(|change| ((kind, change.key.clone()), change.rank)));
        }
        Ok(())
    }
}

/// The newest change of each key in the local store's registry, removals included.
fn newest_here(local: &Store, kind: &str) -> Result<BTreeMap<String, RegistryEntry>, StoreError> {
    let mut newest: BTreeMap<String, RegistryEntry> = BTreeMap::new();
    for entry in tokio::task::block_in_place(|| local.registry().history(kind, None, usize::MAX))? {
        match newest.get(&entry.key) {
            Some(known) if known.number > entry.number => {}
            _ => drop(newest.insert(entry.key.clone(), entry)),
        }
    }
    Ok(newest)
}

/// A change that a server has written.
struct SharedChange {
    key: String,
    rank: ChangeRank,
    who: String,
    at: i64,
    value: Option<Value>,
}

impl SharedChange {
    fn of((key, number, server, who, at, value): SettingRow) -> Result<Self, StoreError> {
        let value = value.map(|text| serde_json::from_str(&text)).transpose();
        let wrong = |error| StoreError::Remote { doing: "reading settings", reason: format!("{key}: {error}") };
        let value = value.map_err(wrong)?;
        let rank = (number.cast_unsigned(), server);
        Ok(Self { key, rank, who: who.unwrap_or_default(), at: at.unwrap_or_default(), value })
    }
}
