//! Forgetting sensors: those of jobs that ended, of machines that are gone. A sensor goes when nothing of it is stored any more and nobody has spoken of it
//! for [`crate::StoreConfig::forget_after`]; a schema when all the sensors that it defines go.
//!
//! - In: what was heard last, the blocks, the journal. Out: fewer sensors, in memory and in the catalogue.
//! - Never: a sensor of which a reading can still be found; a number given again; a batch in the journal whose schema is not known.
//!
//! Whoever sends a batch of a forgotten schema is asked to announce it, as for any unknown one.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use wholegrain_model::SchemaHash;

use crate::block::read::{Block, tolerate};
use crate::live::LiveSegment;
use crate::publish::{reconcile, reload_catalogue};
use crate::sensors::SilentSince;
use crate::stats::add;
use crate::store::Shared;
use crate::view::StoreView;
use crate::{SensorId, StoreError};

/// What is remembered from one pass to the next.
#[derive(Debug, Default)]
pub(crate) struct ExpiryState {
    last_seen: SilentSince,
    /// A file that has something of a sensor, as it was found: while it is there, no other is looked into.
    witnesses: HashMap<SensorId, u64>,
    /// The time of the last pass.
    pub passed_at: Option<i64>,
}

/// One pass; how many sensors it forgot.
pub(crate) fn pass(shared: &Shared, now: i64) -> Result<u64, StoreError> {
    let Some(after) = shared.config.forget_after else { return Ok(0) };
    let mut memory = shared.expiry_state.lock().unwrap_or_else(PoisonError::into_inner);
    memory.passed_at = Some(now);
    let cutoff = now.saturating_sub(i64::try_from(after.ns()).unwrap_or(i64::MAX));
    // Files do not change hands while they are looked into.
    let _no_merge = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    let looked = shared.view();
    let mut empty = look(shared, &looked, &mut memory, cutoff, now)?;
    if empty.is_empty() {
        return Ok(0);
    }
    let mut commit_state = reconcile(shared)?;
    // From here on the journal takes nothing: what it has taken is in the segments.
    let _no_append = shared.expiring.write().unwrap_or_else(PoisonError::into_inner);
    let view = shared.view();
    // What came meanwhile and is sealed already, or was imported.
    let before: HashSet<u64> = looked.blocks.iter().map(|block| block.record.id).collect();
    for block in view.blocks.iter().filter(|block| !before.contains(&block.record.id)) {
        let Some(opened) = tolerate(block, shared.cache.open_once(block))? else { return Ok(0) };
        let known = shared.sensors();
        opened.entries().iter().filter_map(|entry| known.id(&entry.path)).for_each(|id| {
            empty.remove(&id);
        });
    }
    let (sensors, schemas) = {
        let known = shared.sensors();
        // What has been heard of meanwhile stays.
        let live = UnsealedData(&view);
        let again = known.quiet((cutoff, now), &live, &mut memory.last_seen);
        let quiet: HashSet<SensorId> = again.sensors.iter().map(|(id, ..)| *id).collect();
        let empty: HashSet<SensorId> = empty.intersection(&quiet).copied().collect();
        known.expirable(&again, &empty)
    };
    if sensors.is_empty() && schemas.is_empty() {
        return Ok(0);
    }
    let (next, left) = {
        let known = shared.sensors();
        (known.next_number(), known.left_by(&sensors, &schemas))
    };
    if let Err(error) = shared.catalogue.forget(&sensors, &schemas, &left, next) {
        // It may come true all the same. What is taken in of these sensors before that is known would be of nobody then.
        shared.expiry_failed.store(true, Relaxed);
        shared.expiry_unresolved.store(true, Relaxed);
        if let Err(again) = reload_catalogue(shared, &mut commit_state) {
            tracing::warn!(%again, "whether sensors are forgotten is not known; readings are refused until it is");
        }
        return Err(error);
    }
    shared.sensors.write().unwrap_or_else(PoisonError::into_inner).remove(&sensors, &schemas);
    schemas.iter().for_each(|hash| shared.newest.remove(hash));
    let count = sensors.len() as u64;
    add(&shared.counters.sensors_forgotten, count);
    add(&shared.counters.schemas_forgotten, schemas.len() as u64);
    tracing::info!(sensors = count, schemas = schemas.len(), "forgotten: nothing of them is stored any more");
    Ok(count)
}

/// The sensors that are quiet and of which no file has anything.
fn look(
    shared: &Shared,
    view: &StoreView,
    memory: &mut ExpiryState,
    cutoff: i64,
    now: i64,
) -> Result<HashSet<SensorId>, StoreError> {
    let quiet = shared.sensors().quiet((cutoff, now), &UnsealedData(view), &mut memory.last_seen);
    let files = || view.blocks.iter().chain(&view.tiers).chain(&view.absent);
    let there: HashSet<u64> = files().map(|file| file.record.id).collect();
    memory.witnesses.retain(|_, file| there.contains(file));
    let mut sought: HashMap<&str, (SensorId, i64)> = HashMap::new();
    for (id, path, last) in &quiet.sensors {
        if !memory.witnesses.contains_key(id) {
            sought.insert(path, (*id, *last));
        }
    }
    // Those that end last are the likeliest to have something.
    let mut files: Vec<&Arc<Block>> = files().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.record.last_time));
    for file in files {
        let first = file.record.first_time;
        if !sought.values().any(|(_, last)| *last >= first) {
            continue;
        }
        let opened = if file.is_damaged() { None } else { tolerate(file, shared.cache.open_once(file))? };
        match opened {
            Some(opened) => {
                for entry in opened.entries() {
                    if let Some((id, _)) = sought.remove(entry.path.as_str()) {
                        memory.witnesses.insert(id, file.record.id);
                    }
                }
            }
            // Nobody can say what is in it.
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

/// What waits to be sealed.
pub(crate) struct UnsealedData<'a>(&'a StoreView);

impl UnsealedData<'_> {
    fn segments(&self) -> impl Iterator<Item = &Arc<LiveSegment>> {
        self.0.closed.iter().chain([&self.0.open])
    }

    /// Whether there are batches of a schema.
    pub fn is_live(&self, hash: &SchemaHash) -> bool {
        self.segments().any(|segment| segment.has(hash))
    }

    /// Whether there are readings of a sensor without a schema.
    pub fn has(&self, id: SensorId) -> bool {
        self.segments().any(|segment| segment.has_readings(id))
    }
}
