//! Sealing, merging and maintenance on request, and statistics.

use std::sync::atomic::Ordering::Relaxed;

use wholegrain_model::Pattern;

use super::Store;
use crate::block::record::BlockRecord;
use crate::compaction::CompactionReport;
use crate::error::StoreError;
use crate::maintenance::backup::Backup;
use crate::maintenance::repair::RepairReport;
use crate::maintenance::usage::{SubtreeUsage, usage_by_subtree};
use crate::progress::CancellableProgress;
use crate::stats::StoreStats;

impl Store {
    /// Seals everything appended until now into blocks and waits for it.
    pub fn seal(&self) -> Result<(), StoreError> {
        self.engine().sealer.seal_all()
    }

    /// Runs retention, merging and expiry as of the time `now` (ns since the Unix epoch) until nothing is left to do.
    pub fn maintain(&self, now: i64) -> Result<(), StoreError> {
        let engine = self.engine();
        engine.retention.retain(now)?;
        while engine.compactor.merge_once(now)? {}
        engine.retention.retain(now)?;
        engine.expiry.pass(now)?;
        engine.jobs.expire(now)
    }

    /// Merges the blocks of every day into as few as [`crate::StoreConfig::merge_bytes_max`] allows and makes missing tiers. Also rewrites files
    /// with tombstones, and tiers whose sensors have another interval now. Stops when `watch` returns false.
    pub fn compact(&self, now: i64, watch: CancellableProgress) -> Result<CompactionReport, StoreError> {
        let engine = self.engine();
        engine.sealer.seal_all()?;
        engine.compactor.compact_all(now, &mut |done, total| watch(done, total) && !engine.work.is_closing())
    }

    /// How much is stored in each sub-tree of this many levels (0: everything together), counting sensors that match one of the patterns. Reads the
    /// indexes of all files. Counts only a part if `is_over` returns true; it is called now and then.
    pub fn holdings_by(
        &self,
        levels: usize,
        patterns: &[Pattern],
        now: i64,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Vec<SubtreeUsage>, StoreError> {
        usage_by_subtree(&self.engine().sensors, &self.engine().files, levels, patterns, now, is_over)
    }

    /// Reads every file and repairs damaged ones; with `dry_run` only reports what it would do.
    pub fn repair(&self, dry_run: bool, watch: CancellableProgress) -> Result<RepairReport, StoreError> {
        self.engine().repairer.repair(dry_run, watch)
    }

    /// Begins a backup of everything acknowledged until now. While the backup exists, files that are replaced stay on the disk.
    pub fn backup(&self, now: i64) -> Result<Backup, StoreError> {
        self.engine().backups.backup(now)
    }

    /// Counters and sizes of the store.
    pub fn stats(&self) -> StoreStats {
        let engine = self.engine();
        let view = engine.files.view();
        let sum = |of: fn(&BlockRecord) -> u64| view.blocks.iter().map(|block| of(&block.record)).sum();
        let (sensors, schemas) = {
            let sensors = engine.sensors.read();
            (sensors.len() as u64, sensors.schemas_len() as u64)
        };
        StoreStats {
            blocks: view.blocks.len() as u64,
            block_bytes: sum(|record| record.bytes),
            block_rows: sum(|record| record.rows),
            damaged_blocks: engine.counters.damaged_at_open.load(Relaxed)
                + view.blocks.iter().filter(|block| block.is_damaged()).count() as u64,
            sensors,
            schemas,
            deletion_files: view
                .blocks
                .iter()
                .chain(&view.tiers)
                .filter(|block| !block.record.tombstones.is_empty())
                .count() as u64,
            result_cache_bytes: engine.results.size().0,
            result_cache_pieces: engine.results.size().1,
            lost: engine.losses.open().len() as u64,
            lost_readings: engine.losses.open().iter().filter_map(|lost| lost.readings).sum(),
            tiers: view.tiers.len() as u64,
            tier_bytes: view.tiers.iter().map(|tier| tier.record.bytes).sum(),
            tier_rows: view.tiers.iter().map(|tier| tier.record.rows).sum(),
            allocations: engine.jobs.len() as u64,
            newest_groups: engine.newest.len() as u64,
            segments: view.closed.len() as u64 + 1,
            free_bytes: engine.disk.free_bytes(&engine.config.dir),
            ..engine.counters.read()
        }
    }
}
