//! Deleting readings: a range of time of chosen sensors.
//!
//! - In: patterns, a range. Out: what went, counted; and before, what would go.
//! - Never: a reading outside the range or of another sensor; a deleted one shown again, whatever crashes in between or is sent again by an agent.
//!
//! In two steps. First everything acknowledged is sealed, so that its batches are known for ever by their numbers, and one transaction of the
//! catalogue notes a [`tombstones::Tombstone`] in the record of every file that holds some of it: from then on no reader sees it. Then each such file is written again
//! without it (`rewrite.rs`), where it is not merged anyhow. Readings that arrive later are new, also in the range.

mod measure;
pub(crate) mod rewrite;

use std::sync::{Arc, PoisonError};

use wholegrain_model::Pattern;

use crate::block::read::Block;
use crate::block::record::BlockRecord;
use crate::block::tombstones::Tombstone;
use crate::catalogue::CatalogueChange;
use crate::publish::reconcile;
use crate::retention::policy::RetentionPolicy;
use crate::stats::add;
use crate::store::Shared;
use crate::{RetentionRule, SensorId, Snapshot, Store, StoreError};
use measure::DeletionMeasurement;
pub use measure::DeletionReport;

/// The most patterns of one deletion.
pub const DELETE_PATTERNS_MAX: usize = 64;
/// The most deletions that one file may wait to be written without.
const CUTS_MAX: usize = 1024;

/// What is to be deleted: of the sensors that one of the patterns chooses, `from <= time < to` in ns since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    pub patterns: Vec<Pattern>,
    pub from: i64,
    pub to: i64,
}

impl Deletion {
    fn check(&self) -> Result<(), StoreError> {
        let refuse = |text: String| Err(StoreError::Sensor(text));
        if self.patterns.is_empty() {
            return refuse("which sensors? give at least one pattern".to_owned());
        }
        if self.patterns.len() > DELETE_PATTERNS_MAX {
            let count = self.patterns.len();
            return refuse(format!("{count} patterns at once, at most {DELETE_PATTERNS_MAX} are taken"));
        }
        if self.from >= self.to {
            return refuse("the range is empty: it ends at or before its beginning".to_owned());
        }
        Ok(())
    }

    fn takes(&self, path: &str) -> Option<(i64, i64)> {
        self.patterns.iter().any(|pattern| pattern.matches(path)).then_some((self.from, self.to))
    }
}

impl Store {
    /// What [`Store::delete`] would take now; changes nothing.
    pub fn would_delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        deletion.check()?;
        would_go(&self.snapshot(), &deletion.patterns, &|path| deletion.takes(path))
    }

    /// What would be out of its retention at the time `now` and is not yet, were this rule set before all others; changes nothing.
    pub fn would_expire(&self, rule: &RetentionRule, now: i64) -> Result<DeletionReport, StoreError> {
        self.check_rule(rule)?;
        let snapshot = self.snapshot();
        let policy = RetentionPolicy::new(&self.shared().config, vec![rule.clone()], 0);
        let cut = policy.raw_cut(0, now);
        let takes = |path: &str| {
            let from = snapshot.policy.hidden_before(path, snapshot.retained_at);
            (rule.pattern.matches(path) && from < cut).then_some((from, cut))
        };
        would_go(&snapshot, std::slice::from_ref(&rule.pattern), &takes)
    }

    /// Deletes what is stored of the range; durable and in force when it returns. Readings that arrive afterwards are new. Batches that are
    /// delivered again do not come back; single readings without a batch, sent again, are new.
    pub fn delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        deletion.check()?;
        // What is in blocks is known by its numbers for ever, and of files it can be said what they hold.
        self.seal()?;
        let shared = self.shared();
        let _no_seal = shared.sealing.lock().unwrap_or_else(PoisonError::into_inner);
        let _no_merge = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
        let commit_state = reconcile(shared)?;
        let view = shared.view();
        let takes = |path: &str| deletion.takes(path);
        let mut measure = DeletionMeasurement::new(shared, &takes);
        measure_files(&mut measure, &view.blocks, &view.tiers, deletion.from, deletion.to)?;
        for absent in view.absent.iter().filter(|block| overlaps(block, deletion.from, deletion.to)) {
            measure.unreadable(absent);
        }
        let (files, sensors, affected) = (measure.files, measure.sensors, measure.affected);
        if files.is_empty() {
            return Ok(affected);
        }
        let cut = Tombstone { patterns: deletion.patterns.clone(), from: deletion.from, to: deletion.to };
        let mut relink = Vec::new();
        for block in view.blocks.iter().chain(&view.tiers).chain(&view.absent) {
            if !files.contains(&block.record.id) {
                continue;
            }
            if block.record.tombstones.len() >= CUTS_MAX {
                return Err(StoreError::Sensor(format!(
                    "{CUTS_MAX} deletions wait to be taken out of {}; try again when some are done",
                    block.path.display()
                )));
            }
            let mut record = block.record.clone();
            record.tombstones.push(cut.clone());
            relink.push(record);
        }
        // Before, so that no crash leaves a result that was made of what is gone; and after, for what was made meanwhile.
        shared.changed(deletion.from, deletion.to, sensors.as_deref())?;
        shared.catalogue.commit(&CatalogueChange { relink: relink.clone(), ..CatalogueChange::default() })?;
        relink_in_view(shared, &relink);
        drop(commit_state);
        if let Err(error) = shared.changed(deletion.from, deletion.to, sensors.as_deref()) {
            // On failure the invalidation stays pending and is applied before a cached result is used.
            tracing::warn!(%error, "kept results cannot be removed; tried again");
        }
        remove_newest(shared, sensors.as_deref(), deletion);
        add(&shared.counters.deletions, 1);
        add(&shared.counters.deleted_readings, affected.readings);
        tracing::info!(sensors = affected.sensors, readings = affected.readings, "readings deleted");
        shared.wake_sealer();
        Ok(affected)
    }
}

/// Puts records in place of the ones that the same files had.
pub(crate) fn relink_in_view(shared: &Shared, records: &[BlockRecord]) {
    shared.change_view(|view| {
        for block in view.blocks.iter_mut().chain(&mut view.tiers).chain(&mut view.absent) {
            if let Some(record) = records.iter().find(|record| record.id == block.record.id) {
                *block = Arc::new(block.with_record(record.clone()));
            }
        }
    });
}

fn overlaps(block: &Block, from: i64, to: i64) -> bool {
    let resolution = block.record.tier.map_or(1, |of| of.resolution_ns);
    let (from, to) = Tombstone { patterns: Vec::new(), from, to }.windows(resolution);
    block.record.first_time < to && block.record.last_time >= from
}

/// Everything of the range that is in files.
fn measure_files(
    measure: &mut DeletionMeasurement,
    blocks: &[Arc<Block>],
    tiers: &[Arc<Block>],
    from: i64,
    to: i64,
) -> Result<(), StoreError> {
    for block in blocks.iter().filter(|block| overlaps(block, from, to)) {
        measure.block(block)?;
    }
    for tier in tiers.iter().filter(|tier| overlaps(tier, from, to)) {
        let of = tier.record.tier.map_or(0, |of| of.block);
        measure.tier(tier, blocks.iter().find(|block| block.record.id == of && !block.is_damaged()))?;
    }
    Ok(())
}

fn would_go(
    snapshot: &Snapshot,
    patterns: &[Pattern],
    takes: &dyn Fn(&str) -> Option<(i64, i64)>,
) -> Result<DeletionReport, StoreError> {
    let shared = &snapshot.shared;
    let mut measure = DeletionMeasurement::new(shared, takes);
    let view = &snapshot.view;
    measure_files(&mut measure, &view.blocks, &view.tiers, i64::MIN, i64::MAX)?;
    let chosen: Vec<(SensorId, Arc<str>)> =
        shared.sensors().select(patterns).into_iter().map(|sensor| (sensor.id, sensor.path)).collect();
    measure.live(snapshot, &chosen);
    Ok(measure.affected)
}

/// The newest readings that are kept in memory are taken from the files again where they may be among the deleted.
fn remove_newest(shared: &Shared, sensors: Option<&[SensorId]>, deletion: &Deletion) {
    let mut known = shared.sensors.write().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<SensorId>;
    let chosen = match sensors {
        Some(sensors) => sensors,
        None => {
            all = known.select(&deletion.patterns).into_iter().map(|sensor| sensor.id).collect();
            &all
        }
    };
    for id in chosen {
        known.forget_last(*id);
        for place in known.places(*id).iter() {
            shared.newest.remove(&known.schema_at(place.schema).hash());
        }
    }
}
