//! Expiry of sensors: of jobs that ended, and of machines that are gone. A sensor expires when none of its readings is stored and it has been
//! silent for [`crate::StoreConfig::sensors_age`]; a schema expires with all the sensors that it defines.
//!
//! - In: the newest times, the blocks, the journal. Out: fewer sensors, in memory and in the catalogue.
//! - Never: the expiry of a sensor with a readable reading; a number that is given again; a batch in the journal with an unknown schema.
//!
//! A sender of a batch with an expired schema is asked to announce it, as for any unknown one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::SchemaHash;

use crate::block::read::{Block, OpenBlock, tolerate};
use crate::catalogue::Catalogue;
use crate::compaction::Compactor;
use crate::config::StoreConfig;
use crate::files::FileSet;
use crate::files::view::StoreView;
use crate::head::live::{LiveSegment, NewestBatches};
use crate::sensors::SensorIndex;
use crate::sensors::expirable::{SilentSince, UnsealedData};
use crate::sensors::gate::ExpiryGate;
use crate::stats::{Counters, add};
use crate::{SensorId, StoreError};

/// What is remembered between passes.
#[derive(Debug, Default)]
pub(crate) struct ExpiryState {
    last_seen: SilentSince,
    /// A file with data of the sensor: while it exists, no other file is read.
    witnesses: HashMap<SensorId, u64>,
    /// The time of the last pass.
    pub passed_at: Option<i64>,
}

/// Removes schemas and sensors without stored readings.
pub(crate) struct SensorExpiry {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub catalogue: Arc<Catalogue>,
    pub sensors: Arc<SensorIndex>,
    pub newest: Arc<NewestBatches>,
    pub compactor: Arc<Compactor>,
    pub gate: Arc<ExpiryGate>,
    pub counters: Arc<Counters>,
    pub state: Mutex<ExpiryState>,
}

impl SensorExpiry {
    /// Runs one pass; returns the number of removed sensors.
    pub(crate) fn pass(&self, now: i64) -> Result<u64, StoreError> {
        let Some(after) = self.config.sensors_age else { return Ok(0) };
        let mut memory = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        memory.passed_at = Some(now);
        let cutoff = now.saturating_sub(i64::try_from(after.ns()).unwrap_or(i64::MAX));
        // No file is replaced while files are read.
        let _no_merge = self.compactor.lock();
        let looked = self.files.view();
        let mut empty = self.look(&looked, &mut memory, cutoff, now)?;
        if empty.is_empty() {
            return Ok(0);
        }
        let mut commit_state = self.files.reconcile()?;
        // From here on the journal writes nothing: what it has written is in the segments.
        let _no_append = self.gate.expire();
        let view = self.files.view();
        // What arrived meanwhile and is sealed already, or was imported.
        let before: HashSet<u64> = looked.blocks.iter().map(|block| block.record.id).collect();
        for block in view.blocks.iter().filter(|block| !before.contains(&block.record.id)) {
            let Some(opened) = tolerate(block, OpenBlock::open_once(block))? else { return Ok(0) };
            let known = self.sensors.read();
            opened.entries().iter().filter_map(|entry| known.id(&entry.path)).for_each(|id| {
                empty.remove(&id);
            });
        }
        let (sensors, schemas) = {
            let known = self.sensors.read();
            // Sensors with new data stay.
            let live = Segments(&view);
            let again = known.quiet((cutoff, now), &live, &mut memory.last_seen);
            let quiet: HashSet<SensorId> = again.sensors.iter().map(|(id, ..)| *id).collect();
            let empty: HashSet<SensorId> = empty.intersection(&quiet).copied().collect();
            known.expirable(&again, &empty)
        };
        if sensors.is_empty() && schemas.is_empty() {
            return Ok(0);
        }
        let (next, left) = {
            let known = self.sensors.read();
            (known.next_number(), known.left_by(&sensors, &schemas))
        };
        if let Err(error) = self.catalogue.remove_sensors(&sensors, &schemas, &left, next) {
            // The transaction may still have committed. Readings of these sensors that were appended before this is known would belong to no
            // sensor.
            self.gate.fail();
            if let Err(again) = self.files.reload(&mut commit_state) {
                tracing::warn!(%again, "it is not known whether the expiry committed; readings are refused until it is");
            }
            return Err(error);
        }
        self.sensors.write().remove(&sensors, &schemas);
        schemas.iter().for_each(|hash| self.newest.remove(hash));
        let count = sensors.len() as u64;
        add(&self.counters.sensors_expired, count);
        add(&self.counters.schemas_expired, schemas.len() as u64);
        tracing::info!(sensors = count, schemas = schemas.len(), "sensors expired: none of their readings is stored");
        Ok(count)
    }

    /// Finds silent sensors without data in any file.
    fn look(
        &self,
        view: &StoreView,
        memory: &mut ExpiryState,
        cutoff: i64,
        now: i64,
    ) -> Result<HashSet<SensorId>, StoreError> {
        let quiet = self.sensors.read().quiet((cutoff, now), &Segments(view), &mut memory.last_seen);
        let files = || view.blocks.iter().chain(&view.tiers).chain(&view.absent);
        let there: HashSet<u64> = files().map(|file| file.record.id).collect();
        memory.witnesses.retain(|_, file| there.contains(file));
        let mut sought: HashMap<&str, (SensorId, i64)> = HashMap::new();
        for (id, path, last) in &quiet.sensors {
            if !memory.witnesses.contains_key(id) {
                sought.insert(path, (*id, *last));
            }
        }
        // Files with the latest readings are the likeliest to have data.
        let mut files: Vec<&Arc<Block>> = files().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.record.last_time));
        for file in files {
            let first = file.record.first_time;
            if !sought.values().any(|(_, last)| *last >= first) {
                continue;
            }
            let opened = if file.is_damaged() { None } else { tolerate(file, OpenBlock::open_once(file))? };
            match opened {
                Some(opened) => {
                    for entry in opened.entries() {
                        if let Some((id, _)) = sought.remove(entry.path.as_str()) {
                            memory.witnesses.insert(id, file.record.id);
                        }
                    }
                }
                // Its content is unknown.
                None => sought.retain(|_, (id, last)| {
                    if *last >= first {
                        memory.witnesses.insert(*id, file.record.id);
                    }
                    *last < first
                }),
            }
        }
        Ok(sought.into_values().map(|(id, _)| id).collect())
    }
}

/// The segments of a view.
struct Segments<'a>(&'a StoreView);

impl Segments<'_> {
    fn all(&self) -> impl Iterator<Item = &Arc<LiveSegment>> {
        self.0.closed.iter().chain([&self.0.open])
    }
}

impl UnsealedData for Segments<'_> {
    fn has_batches(&self, hash: &SchemaHash) -> bool {
        self.all().any(|segment| segment.has(hash))
    }

    fn has_readings(&self, id: SensorId) -> bool {
        self.all().any(|segment| segment.has_readings(id))
    }
}
