//! Loss records: acknowledged readings that the journal has lost. A record stays until somebody acknowledges it.
//!
//! - In: what an opening finds missing within the synced length.
//! - Out: entries of the registry (kind [`KIND`]) with number, times and senders of the lost readings, as exactly as possible; warnings in answers
//!   over these times.
//! - Never: a torn end that was never acknowledged; the same loss twice.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use wholegrain_model::Timestamp;

use crate::StoreError;
use crate::disk::{Disk, RealDisk};
use crate::registry::Registry;

/// The kind of the registry's entries.
pub(crate) const KIND: &str = "loss";
/// The maximum number of loss records: further losses extend the latest one.
const ENTRIES_MAX: usize = 1_000;
/// The most agents that one names.
pub(crate) const AGENTS_MAX: usize = 16;

/// Readings that one segment of the journal has lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossRecord {
    /// The segment's number and the offset of the first lost byte.
    pub id: String,
    pub segment: u64,
    pub bytes: u64,
    /// Number of readings, including gaps; `None` if it is unknown.
    pub readings: Option<u64>,
    /// All readings are between these times, ns since the Unix epoch.
    pub from: i64,
    pub to: i64,
    /// The senders, as far as the damaged bytes name them.
    pub agents: Vec<String>,
    /// Whether readings of other senders can be lost too.
    pub others: bool,
    /// ns since the Unix epoch.
    pub found: i64,
    #[serde(default)]
    pub acknowledged: bool,
}

impl LossRecord {
    /// A sentence for users.
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

/// All loss records of a registry, in the order in which they were found.
fn all(registry: &Registry) -> Vec<LossRecord> {
    let entries = registry.all(KIND).into_iter();
    entries.filter_map(|entry| serde_json::from_value(entry.value?).ok()).collect()
}

/// The loss records that nobody has acknowledged.
pub(crate) fn open(registry: &Registry) -> Vec<LossRecord> {
    all(registry).into_iter().filter(|lost| !lost.acknowledged).collect()
}

/// The loss records of the store in `dir` that nobody has acknowledged. Needs no lock; a server may be running.
pub fn loss_records(dir: &Path) -> Result<Vec<LossRecord>, StoreError> {
    on_record(&(Arc::new(RealDisk) as Arc<dyn Disk>), dir)
}

pub(crate) fn on_record(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Vec<LossRecord>, StoreError> {
    Ok(open(&Registry::open(disk, dir)?.0))
}

/// Records the losses that an opening found, durably. A loss that is recorded already is not recorded again while its segment exists; acknowledged
/// records of sealed segments are removed.
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
            // More is lost now.
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

/// The loss records of an open store.
pub(crate) struct Losses {
    registry: Arc<Registry>,
    open: RwLock<Arc<[LossRecord]>>,
}

impl Losses {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        let open = RwLock::new(open(&registry).into());
        Self { registry, open }
    }

    /// The losses that nobody has acknowledged, in the order in which they were found.
    pub fn open(&self) -> Arc<[LossRecord]> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn acknowledge(&self, ids: Option<&[String]>, who: &str, at: i64) -> Result<usize, StoreError> {
        let losses = open(&self.registry);
        if let Some(id) = ids.into_iter().flatten().find(|id| !losses.iter().any(|loss| loss.id == **id)) {
            return Err(StoreError::Sensor(format!("there is no unacknowledged loss {id:?}")));
        }
        let chosen = losses.into_iter().filter(|loss| ids.is_none_or(|ids| ids.contains(&loss.id)));
        let changes: Result<Vec<_>, _> = chosen
            .map(|mut loss| {
                loss.acknowledged = true;
                Ok((loss.id.clone(), Some(serde_json::to_value(&loss)?)))
            })
            .collect();
        let changes = changes.map_err(|error: serde_json::Error| StoreError::Sensor(error.to_string()))?;
        let count = changes.len();
        if count > 0 {
            self.registry.change(KIND, changes, who, at)?;
            *self.open.write().unwrap_or_else(PoisonError::into_inner) = open(&self.registry).into();
        }
        Ok(count)
    }
}
