//! Rewrites files without deleted readings.

use std::sync::Arc;

use crate::StoreError;
use crate::block::draft::{BlockDraft, DraftDirectory};
use crate::block::read::Block;
use crate::block::record::{BlockRecord, kind_of};
use crate::block::windows::TierSource;
use crate::catalogue::CatalogueChange;
use crate::compaction::write::{MergeOutput, open_all, run};
use crate::config::StoreConfig;
use crate::downsample::write::Downsampler;
use crate::files::FileSet;
use crate::stats::{Counters, add};

/// Rewrites files with tombstones.
pub(crate) struct FileRewriter {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub drafts: Arc<DraftDirectory>,
    pub downsampler: Arc<Downsampler>,
    pub counters: Arc<Counters>,
}

impl FileRewriter {
    /// Rewrites one file; `false` if none has tombstones.
    pub(crate) fn rewrite_once(&self) -> Result<bool, StoreError> {
        let view = self.files.view();
        let due = |block: &&Arc<Block>| !block.record.tombstones.is_empty() && !block.is_damaged();
        if let Some(block) = view.blocks.iter().find(due) {
            return self.rewrite_block(block).map(|()| true);
        }
        match view.tiers.iter().find(due) {
            Some(tier) => self.rewrite_tier(tier).map(|()| true),
            None => Ok(false),
        }
    }

    /// Rewrites the block, or else one of its tiers, if it has tombstones; `false` if none has.
    pub(crate) fn rewrite_of(&self, block: &Arc<Block>) -> Result<bool, StoreError> {
        if !block.record.tombstones.is_empty() {
            return self.rewrite_block(block).map(|()| true);
        }
        let due = |tier: &&Arc<Block>| {
            tier.record.tier.is_some_and(|of| of.block == block.record.id)
                && !tier.record.tombstones.is_empty()
                && !tier.is_damaged()
        };
        match self.files.view().tiers.iter().find(due) {
            Some(tier) => self.rewrite_tier(tier).map(|()| true),
            None => Ok(false),
        }
    }

    /// Rewrites a block and its tiers. If retention removed rows from the block, its tiers contain more than the block, and
    /// [`FileRewriter::rewrite_tier`] rewrites them.
    fn rewrite_block(&self, block: &Arc<Block>) -> Result<(), StoreError> {
        let record = &block.record;
        let kind = kind_of(record);
        let inputs = [block.clone()];
        let Some(open) = open_all(&inputs)? else { return Ok(()) };
        let view = self.files.view();
        let of_block = |tier: &&Arc<Block>| tier.record.tier.is_some_and(|of| of.block == record.id);
        let tiers: Vec<Arc<Block>> = view.tiers.iter().filter(of_block).cloned().collect();
        let mut resolutions: Vec<i64> = tiers.iter().filter_map(|tier| Some(tier.record.tier?.resolution_ns)).collect();
        resolutions.sort_unstable();
        resolutions.dedup();
        if record.trimmed || resolutions.windows(2).any(|pair| pair[1] % pair[0] != 0) {
            resolutions.clear();
        }
        let mut draft = BlockDraft::create(&self.drafts, kind, self.config.seal_zstd_level)?;
        draft.trimmed = record.trimmed;
        let id = draft.id();
        let drafts = self.downsampler.begin(kind, id, &resolutions)?;
        let output = MergeOutput { draft: Some(draft), tiers: Some(drafts), keep_from: None };
        let Some(mut finished) = run(&open, &inputs, output)? else { return Ok(()) };
        let (rows, bytes) = (finished[0].record.rows, finished.iter().map(|file| file.record.bytes).sum());
        if rows == 0 {
            finished.clear();
        }
        let (mut replaced, mut relink) = (vec![block.clone()], Vec::new());
        if record.trimmed {
            let relinked = |tier: &Arc<Block>| {
                let of = TierSource { block: id, ..tier.record.tier? };
                Some(BlockRecord { tier: Some(of), ..tier.record.clone() })
            };
            relink = if rows == 0 { Vec::new() } else { tiers.iter().filter_map(relinked).collect() };
        } else {
            replaced.extend(tiers);
        }
        if self.files.publish(&finished, &replaced, CatalogueChange { relink, ..CatalogueChange::default() })? {
            add(&self.counters.deletion_rewritten_bytes, bytes);
            tracing::info!(block = %block.path.display(), rows = record.rows - rows.min(record.rows), "deleted readings removed from a block");
        }
        Ok(())
    }

    /// Rewrites a tier whose block is gone, or does not hold all readings any more that the tier was made from.
    fn rewrite_tier(&self, tier: &Arc<Block>) -> Result<(), StoreError> {
        let Some(opened) = open_all(std::slice::from_ref(tier))? else { return Ok(()) };
        let view = self.files.view();
        let of = |block: &&Arc<Block>| tier.record.tier.is_some_and(|of| of.block == block.record.id);
        let block = view.blocks.iter().find(of).filter(|block| !block.is_damaged());
        let readings = match block {
            Some(block) => match open_all(std::slice::from_ref(block))? {
                Some(mut open) => open.pop().map(|opened| (block, opened)),
                // The block is marked as damaged now: the next attempt works without it.
                None => return Ok(()),
            },
            None => None,
        };
        let finished = match self.downsampler.without_tombstones(&tier.record, &opened[0], readings) {
            Ok(finished) => finished,
            Err(error @ StoreError::Damaged { .. }) => {
                let is_of =
                    |block: &&Arc<Block>| matches!(&error, StoreError::Damaged { path, .. } if *path == block.path);
                block.filter(is_of).unwrap_or(tier).mark_damaged(&error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let finished: Vec<_> = finished.into_iter().collect();
        let bytes = finished.iter().map(|file| file.record.bytes).sum();
        if self.files.publish(&finished, std::slice::from_ref(tier), CatalogueChange::default())? {
            add(&self.counters.deletion_rewritten_bytes, bytes);
        }
        Ok(())
    }
}
