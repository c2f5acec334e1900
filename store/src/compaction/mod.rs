//! Merging: many small blocks of a day become one larger block, and a day that is over becomes one block with its tiers.
//!
//! Write amplification: a reading is written once to the journal, once when it is sealed, once for each level that its day reaches (one level for
//! each factor of `merge_fan_in` in the number of seals a day: two for one seal a minute), and once when the day is over.

pub(crate) mod pick;
pub(crate) mod rewrite;
pub(crate) mod seal;
pub(crate) mod tiers;
pub(crate) mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::StoreError;
use crate::block::draft::{BlockDraft, DraftDirectory};
use crate::block::read::Block;
use crate::block::record::BlockKind;
use crate::catalogue::CatalogueChange;
use crate::compaction::pick::{MergePolicy, compactable_bytes, is_over, pick};
use crate::compaction::rewrite::FileRewriter;
use crate::compaction::tiers::MissingTiers;
use crate::compaction::write::{MergeOutput, open_all, run};
use crate::config::{StoreConfig, resolutions};
use crate::downsample::write::Downsampler;
use crate::files::FileSet;
use crate::progress::CancellableProgress;
use crate::stats::{Counters, add};

/// Blocks of the current day get tiers from this level on; smaller ones are soon merged again.
const TIER_LEVEL_MIN: u32 = 2;

/// The result of merging everything at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CompactionReport {
    /// Number of blocks before and after.
    pub blocks: (u64, u64),
    /// Bytes of blocks and tiers before and after.
    pub bytes: (u64, u64),
    /// Whether it was stopped before its end.
    pub cut_short: bool,
}

/// Merges blocks, one merge at a time.
pub(crate) struct Compactor {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub drafts: Arc<DraftDirectory>,
    pub downsampler: Arc<Downsampler>,
    pub rewriter: Arc<FileRewriter>,
    pub tiers: MissingTiers,
    pub counters: Arc<Counters>,
    /// Held while files are replaced.
    pub lock: Mutex<()>,
}

impl Compactor {
    /// No file is replaced while the guard is held.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Merges every day's blocks into as few as possible, makes missing tiers, and writes files again that have tombstones or outdated tiers.
    pub fn compact_all(&self, now: i64, watch: CancellableProgress) -> Result<CompactionReport, StoreError> {
        let before = self.files.size();
        {
            let _no_merge = self.lock();
            self.tiers.drop_outdated(now)?;
        }
        let total = compactable_bytes(&self.files.view().blocks, self.config.merge_bytes_max.0);
        let (mut done, mut cut_short) = (0u64, false);
        while let Some(bytes) = self.compact_once(now)? {
            done = (done + bytes).min(total);
            cut_short = !watch(done, total);
            if cut_short {
                break;
            }
        }
        let after = self.files.size();
        Ok(CompactionReport { blocks: (before.0, after.0), bytes: (before.1, after.1), cut_short })
    }

    /// One step of [`Compactor::compact_all`]: the bytes that it read, or `None` if nothing is left to do.
    pub(crate) fn compact_once(&self, now: i64) -> Result<Option<u64>, StoreError> {
        let _one_at_a_time = self.lock();
        drop(self.files.reconcile()?);
        let policy = MergePolicy { all: true, ..MergePolicy::of(&self.config) };
        if let Some(inputs) = pick(&self.files.view().blocks, policy, now) {
            self.merge(&inputs, now)?;
            return Ok(Some(inputs.iter().map(|block| block.record.bytes).sum()));
        }
        let done = self.rewriter.rewrite_once()? || self.tiers.tier_once(now)?;
        Ok(done.then_some(0))
    }

    /// Merges what the policy asks for next, or rewrites a file with tombstones, or makes missing tiers; `false` if there is nothing to do.
    pub(crate) fn merge_once(&self, now: i64) -> Result<bool, StoreError> {
        let _one_at_a_time = self.lock();
        drop(self.files.reconcile()?);
        match pick(&self.files.view().blocks, MergePolicy::of(&self.config), now) {
            Some(inputs) => self.merge(&inputs, now).map(|()| true),
            None if self.rewriter.rewrite_once()? => Ok(true),
            None => self.tiers.tier_once(now),
        }
    }

    /// Merges several blocks into one, and makes its tiers if it is large. An input that turns out damaged is marked so, and nothing is changed.
    pub(crate) fn merge(&self, inputs: &[Arc<Block>], now: i64) -> Result<(), StoreError> {
        let latest =
            inputs.iter().map(|block| (block.record.last_segment, block.record.import)).max().unwrap_or((0, 0));
        let kind = BlockKind {
            value_type: inputs[0].record.value_type,
            day: inputs[0].record.day,
            level: inputs.iter().map(|block| block.record.level).max().unwrap_or(0) + 1,
            first_segment: inputs.iter().map(|block| block.record.first_segment).min().unwrap_or(0),
            last_segment: latest.0,
            import: latest.1,
        };
        let Some(open) = open_all(inputs)? else { return Ok(()) };
        let over = is_over(&inputs[0].record, MergePolicy::of(&self.config).merge_delay_ns, now);
        // A block that is soon merged again is compressed as fast as a sealed one.
        let level = if over { self.config.merge_zstd_level } else { self.config.seal_zstd_level };
        let draft = BlockDraft::create(&self.drafts, kind, level)?;
        let wanted = kind.level >= TIER_LEVEL_MIN || over;
        let tiers = if wanted { resolutions(&self.config.tiers) } else { Vec::new() };
        let tiers = self.downsampler.begin(kind, draft.id(), &tiers)?;
        let output = MergeOutput { draft: Some(draft), tiers: Some(tiers), keep_from: None };
        let Some(mut finished) = run(&open, inputs, output)? else { return Ok(()) };
        let bytes = finished[0].record.bytes;
        let tier_bytes: u64 = finished[1..].iter().map(|tier| tier.record.bytes).sum();
        if finished[0].record.rows == 0 {
            // All readings are deleted.
            finished.clear();
        }
        let mut replaced = inputs.to_vec();
        let of_inputs = |tier: &&Arc<Block>| {
            tier.record.tier.is_some_and(|tier| inputs.iter().any(|block| block.record.id == tier.block))
        };
        replaced.extend(self.files.view().tiers.iter().filter(of_inputs).cloned());
        if self.files.publish(&finished, &replaced, CatalogueChange::default())? {
            add(&self.counters.merges, 1);
            add(&self.counters.merge_bytes, bytes);
            add(&self.counters.tier_bytes_written, tier_bytes);
        }
        Ok(())
    }
}
