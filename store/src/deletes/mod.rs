//! Deletes readings: a range of time of the sensors that match patterns.
//!
//! - In: patterns, a range. Out: a count of what was deleted; and before, of what would be.
//! - Never: a reading outside the range or of another sensor; a deleted reading shown again, whatever crashes in between or is sent again by an
//!   agent.
//!
//! A deletion has two steps. First everything acknowledged is sealed, so that its batches are known by their numbers, and one transaction of the
//! catalogue adds a [`Tombstone`] to the record of every file with affected readings: from then on no reader shows them. Later each of these files
//! is rewritten without them (`compaction/rewrite.rs`), unless it is merged before. Readings that arrive later are new, also in the range.

mod measure;

use std::sync::Arc;

use wholegrain_model::Pattern;

use crate::block::read::Block;
use crate::block::tombstones::Tombstone;
use crate::catalogue::{Catalogue, CatalogueChange};
use crate::compaction::Compactor;
use crate::compaction::seal::Sealer;
use crate::computed::ResultFiles;
use crate::config::StoreConfig;
use crate::deletes::measure::DeletionMeasurement;
use crate::files::FileSet;
use crate::head::live::NewestBatches;
use crate::retention_policy::RetentionPolicy;
use crate::sensors::SensorIndex;
use crate::snapshot::SnapshotSource;
use crate::stats::{Counters, add};
use crate::work::WorkSignal;
use crate::{RetentionRule, SensorId, Snapshot, StoreError};

pub use crate::deletes::measure::DeletionReport;

/// The most patterns of one deletion.
pub const DELETE_PATTERNS_MAX: usize = 64;
/// The most tombstones of one file.
const CUTS_MAX: usize = 1024;

/// A deletion: `from <= time < to` in ns since the Unix epoch, of the sensors that match one of the patterns.
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
            return refuse(format!("{count} patterns at once; at most {DELETE_PATTERNS_MAX} are allowed"));
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

pub(crate) struct Deleter {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub catalogue: Arc<Catalogue>,
    pub sensors: Arc<SensorIndex>,
    pub newest: Arc<NewestBatches>,
    pub sealer: Arc<Sealer>,
    pub compactor: Arc<Compactor>,
    pub results: Arc<ResultFiles>,
    pub snapshots: Arc<SnapshotSource>,
    pub counters: Arc<Counters>,
    pub work: Arc<WorkSignal>,
}

impl Deleter {
    pub(crate) fn would_delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        deletion.check()?;
        self.count_affected(&self.snapshots.snapshot(), &deletion.patterns, &|path| deletion.takes(path))
    }

    pub(crate) fn would_expire(&self, rule: &RetentionRule, now: i64) -> Result<DeletionReport, StoreError> {
        rule.check(&self.config.tiers)?;
        let snapshot = self.snapshots.snapshot();
        let policy = RetentionPolicy::new(&self.config, vec![rule.clone()], 0);
        let cut = policy.raw_cut(0, now);
        let takes = |path: &str| {
            let from = snapshot.policy.hidden_before(path, snapshot.retained_at);
            (rule.pattern.matches(path) && from < cut).then_some((from, cut))
        };
        self.count_affected(&snapshot, std::slice::from_ref(&rule.pattern), &takes)
    }

    pub(crate) fn delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        deletion.check()?;
        // Batches in blocks stay known by their numbers, and the content of files can be counted.
        self.sealer.seal_all()?;
        let _no_seal = self.sealer.lock();
        let _no_merge = self.compactor.lock();
        let commit_state = self.files.reconcile()?;
        let view = self.files.view();
        let takes = |path: &str| deletion.takes(path);
        let mut measure = DeletionMeasurement::new(&self.sensors, &self.config.tiers, &takes);
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
                    "{CUTS_MAX} deletions of {} are not applied yet; try again later",
                    block.path.display()
                )));
            }
            let mut record = block.record.clone();
            record.tombstones.push(cut.clone());
            relink.push(record);
        }
        // Before the commit, so that no crash leaves a result computed from deleted readings; and after it, for results computed meanwhile.
        self.results.changed(deletion.from, deletion.to, sensors.as_deref())?;
        self.catalogue.commit(&CatalogueChange { relink: relink.clone(), ..CatalogueChange::default() })?;
        self.files.relink(&relink);
        drop(commit_state);
        self.results.changed_after_commit(deletion.from, deletion.to, sensors.as_deref());
        self.remove_newest(sensors.as_deref(), deletion);
        add(&self.counters.deletions, 1);
        add(&self.counters.deleted_readings, affected.readings);
        tracing::info!(sensors = affected.sensors, readings = affected.readings, "readings deleted");
        self.work.wake();
        Ok(affected)
    }
}

fn overlaps(block: &Block, from: i64, to: i64) -> bool {
    let resolution = block.record.tier.map_or(1, |of| of.resolution_ns);
    let (from, to) = Tombstone { patterns: Vec::new(), from, to }.windows(resolution);
    block.record.first_time < to && block.record.last_time >= from
}

/// Counts everything of the range in files.
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

impl Deleter {
    fn count_affected(
        &self,
        snapshot: &Snapshot,
        patterns: &[Pattern],
        takes: &dyn Fn(&str) -> Option<(i64, i64)>,
    ) -> Result<DeletionReport, StoreError> {
        let mut measure = DeletionMeasurement::new(&self.sensors, &self.config.tiers, takes);
        let view = &snapshot.view;
        measure_files(&mut measure, &view.blocks, &view.tiers, i64::MIN, i64::MAX)?;
        let chosen: Vec<(SensorId, Arc<str>)> =
            self.sensors.read().select(patterns).into_iter().map(|sensor| (sensor.id, sensor.path)).collect();
        measure.live(snapshot, &chosen);
        Ok(measure.affected)
    }

    /// Removes newest readings from memory that may be deleted; they are read from the files again.
    fn remove_newest(&self, sensors: Option<&[SensorId]>, deletion: &Deletion) {
        let mut known = self.sensors.write();
        let all: Vec<SensorId>;
        let chosen = match sensors {
            Some(sensors) => sensors,
            None => {
                all = known.select(&deletion.patterns).into_iter().map(|sensor| sensor.id).collect();
                &all
            }
        };
        for id in chosen {
            known.remove_last_value(*id);
            for place in known.places(*id).iter() {
                self.newest.remove(&known.schema_at(place.schema).hash());
            }
        }
    }
}
