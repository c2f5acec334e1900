//! Acknowledged readings that the journal has lost. They stay on record until somebody acknowledges that.
//!
//! - In: what an opening finds missing of what was on stable storage.
//! - Out: entries of the registry (kind [`KIND`]), each with how many readings are lost, of which times and whose, as exactly as can be known; warnings in
//!   answers over those times.
//! - Never: a torn end that was never acknowledged; the same loss twice.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wholegrain_model::Timestamp;

use crate::disk::{Disk, RealDisk};
use crate::registry::Registry;
use crate::{Store, StoreError};

/// The kind of the registry's entries.
pub(crate) const KIND: &str = "loss";
/// The maximum number of loss records: further losses extend the latest one.
const ENTRIES_MAX: usize = 1_000;
/// The most agents that one names.
pub(crate) const AGENTS_MAX: usize = 16;

/// What one segment of the journal has lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossRecord {
    /// Its name: the segment's number and where in it the first lost byte is.
    pub id: String,
    pub segment: u64,
    /// Bytes of it that are lost.
    pub bytes: u64,
    /// Readings in them, gaps counted too; `None` when that cannot be known.
    pub readings: Option<u64>,
    /// No reading is before this, ns since the Unix epoch.
    pub from: i64,
    /// None is after this.
    pub to: i64,
    /// Whose they are, as far as the damaged bytes say.
    pub agents: Vec<String>,
    /// Whether they can be of others too.
    pub others: bool,
    /// When it was found, ns since the Unix epoch.
    pub found: i64,
    /// Whether somebody has acknowledged it.
    #[serde(default)]
    pub acknowledged: bool,
}

impl LossRecord {
    /// How many and of which times, for people.
    pub fn sentence(&self) -> String {
        let count = self.readings.map_or("an unknown number of".to_owned(), |count| count.to_string());
        let (from, to) = (Timestamp(self.from), Timestamp(self.to));
        format!("{count} acknowledged readings of the time from {from} to {to} are lost: the journal was damaged")
    }

    fn widen(&mut self, other: &LossRecord) {
        self.bytes += other.bytes;
        self.readings = self.readings.zip(other.readings).map(|(a, b)| a + b);
        (self.from, self.to) = (self.from.min(other.from), self.to.max(other.to));
        self.others |= other.others;
        for agent in &other.agents {
            if !self.agents.contains(agent) {
                self.agents.push(agent.clone());
            }
        }
        self.others |= self.agents.len() > AGENTS_MAX;
        self.agents.truncate(AGENTS_MAX);
    }
}

/// What is on record of a registry, in the order in which it was found, what is acknowledged too.
fn all(registry: &Registry) -> Vec<LossRecord> {
    let entries = registry.all(KIND).into_iter();
    entries.filter_map(|entry| serde_json::from_value(entry.value?).ok()).collect()
}

/// What is on record and nobody has acknowledged.
pub(crate) fn open(registry: &Registry) -> Vec<LossRecord> {
    all(registry).into_iter().filter(|lost| !lost.acknowledged).collect()
}

/// The same of the store in `dir`. Needs no lock; a server may be running.
pub fn loss_records(dir: &Path) -> Result<Vec<LossRecord>, StoreError> {
    on_record(&(Arc::new(RealDisk) as Arc<dyn Disk>), dir)
}

pub(crate) fn on_record(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Vec<LossRecord>, StoreError> {
    Ok(open(&Registry::open(disk, dir)?.0))
}

/// Puts on record what an opening found, durably. What is there already, as long as its segment is, is not put there again; what was acknowledged and
/// cannot be found again goes.
pub(crate) fn record(
    registry: &Registry,
    found: Vec<LossRecord>,
    sealed_through: u64,
    now: i64,
) -> Result<(), StoreError> {
    let mut known = all(registry);
    let value = |lost: &LossRecord| serde_json::to_value(lost).map_err(|error| StoreError::Sensor(error.to_string()));
    let mut changes = Vec::new();
    for lost in known.iter().filter(|lost| lost.acknowledged && lost.segment <= sealed_through) {
        changes.push((lost.id.clone(), None));
    }
    for lost in found {
        let before = known.iter().position(|other| other.id == lost.id);
        match before.map(|at| &known[at]) {
            Some(before) if before.bytes >= lost.bytes => continue,
            // More of it is lost now.
            Some(_) => {}
            None if known.len() >= ENTRIES_MAX => {
                let Some(last) = known.last_mut() else { continue };
                last.widen(&lost);
                last.acknowledged = false;
                changes.push((last.id.clone(), Some(value(last)?)));
                continue;
            }
            None => {}
        }
        changes.push((lost.id.clone(), Some(value(&lost)?)));
        match before {
            Some(at) => known[at] = lost,
            None => known.push(lost),
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    registry.change(KIND, changes, "store", now).map(drop)
}

impl Store {
    /// Acknowledged readings that the journal has lost and nobody has acknowledged, in the order in which that was found.
    pub fn lost(&self) -> Vec<LossRecord> {
        self.shared().lost().to_vec()
    }

    /// Takes note that somebody knows of these losses, or of all; how many that were. Answers over their times warn of them no longer.
    pub fn acknowledge_lost(&self, ids: Option<&[String]>, who: &str, at: i64) -> Result<usize, StoreError> {
        let registry = self.registry();
        let open = open(registry);
        if let Some(id) = ids.into_iter().flatten().find(|id| !open.iter().any(|lost| lost.id == **id)) {
            return Err(StoreError::Sensor(format!("there is no loss {id:?} that waits to be acknowledged")));
        }
        let chosen = open.into_iter().filter(|lost| ids.is_none_or(|ids| ids.contains(&lost.id)));
        let changes: Result<Vec<_>, _> = chosen
            .map(|mut lost| {
                lost.acknowledged = true;
                Ok((lost.id.clone(), Some(serde_json::to_value(&lost)?)))
            })
            .collect();
        let changes = changes.map_err(|error: serde_json::Error| StoreError::Sensor(error.to_string()))?;
        let count = changes.len();
        if count > 0 {
            registry.change(KIND, changes, who, at)?;
            self.shared().read_lost();
        }
        Ok(count)
    }
}
