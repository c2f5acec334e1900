//! Tiers of blocks that were never merged, and of those that an earlier configuration or release wrote without.

use std::sync::{Arc, PoisonError};

use crate::StoreError;
use crate::block::index::IndexEntry;
use crate::block::read::Block;
use crate::block::record::BlockKind;
use crate::catalogue::CatalogueChange;
use crate::holes::bound_of;
use crate::merge::{MergeOutput, is_over, open_all, run};
use crate::publish::{publish, reconcile};
use crate::stats::add;
use crate::store::Shared;
use crate::tiers::resolutions;
use crate::tiers::write::TierDrafts;

/// Makes the missing tiers of one block that nothing more is merged into; `false` when there is none.
pub(crate) fn tier_once(shared: &Shared, now: i64) -> Result<bool, StoreError> {
    let wanted = resolutions(&shared.config.tiers);
    let merge_delay_ns = i64::try_from(shared.config.merge_delay.ns()).unwrap_or(i64::MAX);
    if wanted.is_empty() {
        return Ok(false);
    }
    let (view, policy) = (shared.view(), shared.policy());
    for block in &view.blocks {
        if block.is_damaged() || block.record.trimmed || !is_over(&block.record, merge_delay_ns, now) {
            continue;
        }
        let of_block = |tier: &&Arc<Block>| tier.record.tier.is_some_and(|tier| tier.block == block.record.id);
        let tiers: Vec<Arc<Block>> = view.tiers.iter().filter(of_block).cloned().collect();
        let has = |resolution: i64| {
            let same = |tier: &Arc<Block>| tier.record.tier.is_some_and(|tier| tier.resolution_ns == resolution);
            tiers.iter().any(|tier| same(tier) && !tier.is_damaged())
        };
        let missing: Vec<i64> = wanted.iter().copied().filter(|resolution| !has(*resolution)).collect();
        if missing.is_empty() {
            continue;
        }
        let Some(shares) = policy.shares(shared, block)? else { continue };
        // Retention would drop it at once.
        let alive = |resolution: &i64| !policy.is_tier_expired(&shares, *resolution, now);
        let missing: Vec<i64> = missing.into_iter().filter(alive).collect();
        if missing.is_empty() {
            continue;
        }
        let damaged: Vec<Arc<Block>> = tiers.into_iter().filter(|tier| tier.is_damaged()).collect();
        make(shared, block, &missing, &damaged)?;
        return Ok(true);
    }
    Ok(false)
}

/// Drops tiers whose lines are not those of the intervals that their sensors have now, where [`tier_once`] makes them again of readings; returns how many.
pub(crate) fn drop_outdated(shared: &Shared, now: i64) -> Result<usize, StoreError> {
    let _no_merge_beside = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    let merge_delay_ns = i64::try_from(shared.config.merge_delay.ns()).unwrap_or(i64::MAX);
    let wanted = resolutions(&shared.config.tiers);
    let view = shared.view();
    let mut outdated = Vec::new();
    for tier in view.tiers.iter().filter(|tier| !tier.is_damaged()) {
        let Some(of) = tier.record.tier.filter(|of| wanted.contains(&of.resolution_ns)) else { continue };
        let is_whole =
            |block: &&Arc<Block>| block.record.id == of.block && !block.record.trimmed && !block.is_damaged();
        let block = view.blocks.iter().find(is_whole);
        if block.is_none_or(|block| !is_over(&block.record, merge_delay_ns, now)) {
            continue;
        }
        let Some(open) = open_all(shared, std::slice::from_ref(tier))? else { continue };
        let sensors = shared.sensors();
        let fits = |(at, entry): (usize, &IndexEntry)| {
            let interval_ns =
                sensors.id(&entry.path).and_then(|id| sensors.info(id)).map_or(0, |info| info.interval_ns);
            open[0].drawn_at(at).is_some_and(|drawn| drawn.fits(bound_of(interval_ns)))
        };
        if !open[0].entries().iter().enumerate().all(fits) {
            outdated.push(tier.clone());
        }
    }
    if outdated.is_empty() || !publish(shared, &[], &outdated, CatalogueChange::default())? {
        return Ok(0);
    }
    Ok(outdated.len())
}

fn make(shared: &Shared, block: &Arc<Block>, missing: &[i64], damaged: &[Arc<Block>]) -> Result<(), StoreError> {
    let inputs = [block.clone()];
    let Some(open) = open_all(shared, &inputs)? else { return Ok(()) };
    let record = &block.record;
    let kind = BlockKind {
        value_type: record.value_type,
        day: record.day,
        level: record.level,
        first_segment: record.first_segment,
        last_segment: record.last_segment,
        import: record.import,
    };
    let tiers = TierDrafts::create(shared, kind, record.id, missing)?;
    let Some(finished) = run(shared, &open, &inputs, MergeOutput { draft: None, tiers, keep_from: None })? else {
        return Ok(());
    };
    let bytes: u64 = finished.iter().map(|tier| tier.record.bytes).sum();
    let change = CatalogueChange { requires: vec![record.id], ..CatalogueChange::default() };
    if publish(shared, &finished, damaged, change)? {
        add(&shared.counters.tier_bytes_written, bytes);
    }
    Ok(())
}
