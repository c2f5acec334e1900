//! Files with something deleted in them are written again without it.

use std::sync::Arc;

use crate::StoreError;
use crate::block::read::Block;
use crate::block::record::{BlockRecord, kind_of};
use crate::block::windows::TierSource;
use crate::catalogue::CatalogueChange;
use crate::merge::{MergeOutput, open_all, run};
use crate::publish::{BlockDraft, publish};
use crate::stats::add;
use crate::store::Shared;
use crate::tiers::rewrite::without_tombstones;
use crate::tiers::write::TierDrafts;

/// Writes one file again; `false` when none is left to do.
pub(crate) fn rewrite_once(shared: &Shared) -> Result<bool, StoreError> {
    let view = shared.view();
    let due = |block: &&Arc<Block>| !block.record.tombstones.is_empty() && !block.is_damaged();
    if let Some(block) = view.blocks.iter().find(due) {
        return rewrite_block(shared, block).map(|()| true);
    }
    match view.tiers.iter().find(due) {
        Some(tier) => rewrite_tier(shared, tier).map(|()| true),
        None => Ok(false),
    }
}

/// The next of a block and its tiers that has something deleted in it is written again; `false` when none has.
pub(crate) fn rewrite_of(shared: &Shared, block: &Arc<Block>) -> Result<bool, StoreError> {
    if !block.record.tombstones.is_empty() {
        return rewrite_block(shared, block).map(|()| true);
    }
    let due = |tier: &&Arc<Block>| {
        tier.record.tier.is_some_and(|of| of.block == block.record.id)
            && !tier.record.tombstones.is_empty()
            && !tier.is_damaged()
    };
    match shared.view().tiers.iter().find(due) {
        Some(tier) => rewrite_tier(shared, tier).map(|()| true),
        None => Ok(false),
    }
}

/// Rewrites a block and its tiers. If retention removed rows from the block, its tiers contain more than the block: [`rewrite_tier`] rewrites those.
fn rewrite_block(shared: &Shared, block: &Arc<Block>) -> Result<(), StoreError> {
    let record = &block.record;
    let kind = kind_of(record);
    let inputs = [block.clone()];
    let Some(open) = open_all(shared, &inputs)? else { return Ok(()) };
    let view = shared.view();
    let of_block = |tier: &&Arc<Block>| tier.record.tier.is_some_and(|of| of.block == record.id);
    let tiers: Vec<Arc<Block>> = view.tiers.iter().filter(of_block).cloned().collect();
    let mut resolutions: Vec<i64> = tiers.iter().filter_map(|tier| Some(tier.record.tier?.resolution_ns)).collect();
    resolutions.sort_unstable();
    resolutions.dedup();
    if record.trimmed || resolutions.windows(2).any(|pair| pair[1] % pair[0] != 0) {
        resolutions.clear();
    }
    let mut draft = BlockDraft::create(shared, kind, shared.config.seal_zstd_level)?;
    draft.trimmed = record.trimmed;
    let id = draft.id();
    let drafts = match TierDrafts::create(shared, kind, id, &resolutions) {
        Ok(drafts) => drafts,
        Err(error) => {
            draft.discard(shared);
            return Err(error);
        }
    };
    let output = MergeOutput { draft: Some(draft), tiers: drafts, keep_from: None };
    let Some(mut finished) = run(shared, &open, &inputs, output)? else { return Ok(()) };
    let (rows, bytes) = (finished[0].record.rows, finished.iter().map(|file| file.record.bytes).sum());
    if rows == 0 {
        finished.drain(..).for_each(|file| file.discard(shared));
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
    if publish(shared, &finished, &replaced, CatalogueChange { relink, ..CatalogueChange::default() })? {
        add(&shared.counters.deletion_rewritten_bytes, bytes);
        tracing::info!(block = %block.path.display(), rows = record.rows - rows.min(record.rows), "deleted readings taken out of a block");
    }
    Ok(())
}

/// A tier whose block is gone, or does not hold all that it was made from any more.
fn rewrite_tier(shared: &Shared, tier: &Arc<Block>) -> Result<(), StoreError> {
    let Some(opened) = open_all(shared, std::slice::from_ref(tier))? else { return Ok(()) };
    let view = shared.view();
    let of = |block: &&Arc<Block>| tier.record.tier.is_some_and(|of| of.block == block.record.id);
    let block = view.blocks.iter().find(of).filter(|block| !block.is_damaged());
    let readings = match block {
        Some(block) => match open_all(shared, std::slice::from_ref(block))? {
            Some(mut open) => open.pop().map(|opened| (block, opened)),
            // Known as damaged now: the next try is without it.
            None => return Ok(()),
        },
        None => None,
    };
    let finished = match without_tombstones(shared, &tier.record, &opened[0], readings) {
        Ok(finished) => finished,
        Err(error @ StoreError::Damaged { .. }) => {
            let is_of = |block: &&Arc<Block>| matches!(&error, StoreError::Damaged { path, .. } if *path == block.path);
            block.filter(is_of).unwrap_or(tier).mark_damaged(&error);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let finished: Vec<_> = finished.into_iter().collect();
    let bytes = finished.iter().map(|file| file.record.bytes).sum();
    if publish(shared, &finished, std::slice::from_ref(tier), CatalogueChange::default())? {
        add(&shared.counters.deletion_rewritten_bytes, bytes);
    }
    Ok(())
}
