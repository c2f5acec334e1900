//! Retention: what is too old goes, and the oldest when everything together is too large.
//!
//! Readings and windows that a rule says are out are not shown from the next pass on ([`Policy::hidden_before`]). Their files go when all in them is out; a block of which a
//! quarter is out is written again without that, at most so that each byte of it is written four times in all. A block whose tiers are to
//! outlive it waits for them, and for a last merge of its day, so that no window counts a reading twice for ever.

pub(crate) mod policy;
pub(crate) mod rules;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use crate::StoreError;
use crate::block::read::Block;
use crate::block::record::{BlockKind, BlockRecord};
use crate::block::windows::TierSource;
use crate::catalogue::CatalogueChange;
use crate::delete::rewrite::rewrite_of;
use crate::merge::{MergeOutput, is_over, merge, open_all, run, stands_between};
use crate::publish::{BlockDraft, publish, reconcile};
use crate::stats::add;
use crate::store::Shared;
use crate::tiers::write::TierDrafts;
use policy::RetentionPolicy;

/// A block is written again when at least this part of its rows is out.
const EXPIRED_PART: u64 = 4;

/// Readings of a sensor before this are not shown by a snapshot of the rules in force, as of the pass at `now`: see [`Policy::hidden_before`].
pub(crate) fn hidden_before(shared: &Shared, path: &str, now: i64) -> i64 {
    shared.policy().hidden_before(path, now)
}

/// Drops what is over the bounds at the time `now`; returns how many files.
pub(crate) fn retain(shared: &Shared, now: i64) -> Result<u64, StoreError> {
    let _no_merge_beside = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    shared.retained_at.store(now, Relaxed);
    let policy = shared.policy();
    let mut dropped = if policy.is_empty() { Vec::new() } else { by_age(shared, &policy, now)? };
    if let Some(max) = shared.config.retention_bytes {
        by_size(shared, max.0, &mut dropped);
    }
    if dropped.is_empty() {
        return Ok(0);
    }
    let raw = || dropped.iter().filter(|block| block.record.tier.is_none()).map(|block| &block.record);
    let span = raw().map(|block| block.first_time).min().zip(raw().map(|block| block.last_time).max());
    // What was computed from readings that go must go too, also when a crash comes in between.
    span.map_or(Ok(()), |(first, last)| shared.changed(first, last, None))?;
    if !publish(shared, &[], &dropped, CatalogueChange::default())? {
        return Ok(0);
    }
    span.map_or(Ok(()), |(first, last)| shared.changed(first, last, None))?;
    let rows = dropped.iter().filter(|block| block.record.tier.is_none()).map(|block| block.record.rows).sum();
    add(&shared.counters.retention_blocks, dropped.len() as u64);
    add(&shared.counters.retention_rows, rows);
    tracing::info!(files = dropped.len(), rows, "dropped by retention");
    Ok(dropped.len() as u64)
}

/// The tiers made from a block.
fn tiers_of(tiers: &[Arc<Block>], block: u64) -> impl Iterator<Item = (&Arc<Block>, TierSource)> {
    tiers.iter().filter_map(move |tier| {
        let of = tier.record.tier?;
        (of.block == block).then_some((tier, of))
    })
}

/// What is wholly out; blocks that are out in part are written again here.
fn by_age(shared: &Shared, policy: &RetentionPolicy, now: i64) -> Result<Vec<Arc<Block>>, StoreError> {
    let (mut dropped, mut due) = (Vec::new(), Vec::new());
    let view = shared.view();
    for block in &view.blocks {
        let shares = if block.is_damaged() { None } else { policy.shares(shared, block)? };
        let Some(shares) = shares else {
            if block.record.last_time < policy.least_raw_cut(now) {
                dropped.push(block.clone());
            }
            continue;
        };
        let (expired, rows) = (policy.expired_rows(&shares, now), block.record.rows);
        let whole = expired == rows;
        if expired == 0 || (!whole && expired.saturating_mul(EXPIRED_PART) < rows) {
            continue;
        }
        let mut outliving = policy.outliving(&shares);
        if outliving.is_empty() && whole {
            dropped.push(block.clone());
            continue;
        }
        outliving.retain(|resolution| !policy.is_tier_expired(&shares, *resolution, now));
        let merge_delay_ns = i64::try_from(shared.config.merge_delay.ns()).unwrap_or(i64::MAX);
        let has =
            |resolution: &i64| tiers_of(&view.tiers, block.record.id).any(|(_, of)| of.resolution_ns == *resolution);
        if block.record.trimmed || (outliving.iter().all(has) && is_over(&block.record, merge_delay_ns, now)) {
            due.push((block.clone(), whole));
        }
    }
    for tier in &view.tiers {
        let Some(of) = tier.record.tier else { continue };
        let Some(shares) = policy.shares(shared, tier)? else { continue };
        if policy.is_tier_expired(&shares, of.resolution_ns, now) {
            dropped.push(tier.clone());
        }
    }
    dropped.extend(merge_before_drop(shared, policy, &due, now)?);
    Ok(dropped)
}

/// The day of a block, and whether it holds floats.
type DayAndType = (Option<i64>, bool);

/// Blocks that are out, or a good part of which is: the last merge of their day first, if it has not been.
fn merge_before_drop(
    shared: &Shared,
    policy: &RetentionPolicy,
    due: &[(Arc<Block>, bool)],
    now: i64,
) -> Result<Vec<Arc<Block>>, StoreError> {
    let mut days: BTreeMap<DayAndType, Vec<&(Arc<Block>, bool)>> = BTreeMap::new();
    for entry in due {
        let record = &entry.0.record;
        days.entry((record.day, record.value_type == wholegrain_model::ValueType::Float)).or_default().push(entry);
    }
    let mut dropped = Vec::new();
    for ((day, _), entries) in days {
        let value_type = entries[0].0.record.value_type;
        let same = |block: &&Arc<Block>| {
            let record = &block.record;
            record.day == day && record.value_type == value_type && !record.trimmed && !block.is_damaged()
        };
        let mut siblings: Vec<Arc<Block>> = shared.view().blocks.iter().filter(same).cloned().collect();
        siblings.sort_by_key(|block| (block.record.rank(), block.record.id));
        let parted =
            siblings.windows(2).any(|pair| stands_between(&shared.view().blocks, &pair[0].record, &pair[1].record));
        let bytes: u64 = siblings.iter().map(|block| block.record.bytes).sum();
        if day.is_some() && !parted && siblings.len() > 1 && bytes <= shared.config.merge_bytes_max.0 {
            merge(shared, &siblings, now)?;
            continue;
        }
        for (block, whole) in entries {
            // Windows that a deletion touches are made again while their readings are there.
            match rewrite_of(shared, block) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(StoreError::DiskFull { .. }) if *whole => {}
                Err(error) => return Err(error),
            }
            if *whole {
                dropped.push(block.clone());
            } else {
                trim(shared, policy, block, now)?;
            }
        }
    }
    Ok(dropped)
}

/// Writes a block again without what is out. Its tiers stay and belong to the new block.
fn trim(shared: &Shared, policy: &RetentionPolicy, block: &Arc<Block>, now: i64) -> Result<(), StoreError> {
    let record = &block.record;
    let kind = BlockKind {
        value_type: record.value_type,
        day: record.day,
        level: record.level,
        first_segment: record.first_segment,
        last_segment: record.last_segment,
        import: record.import,
    };
    let inputs = [block.clone()];
    let Some(open) = open_all(shared, &inputs)? else { return Ok(()) };
    let mut draft = BlockDraft::create(shared, kind, shared.config.merge_zstd_level)?;
    draft.trimmed = true;
    let id = draft.id();
    let tiers = TierDrafts::create(shared, kind, id, &[])?;
    let keep_from = |path: &str| policy.on_edge(policy.raw_cut(policy.rule_of(path), now));
    let output = MergeOutput { draft: Some(draft), tiers, keep_from: Some(&keep_from) };
    let Some(finished) = run(shared, &open, &inputs, output)? else { return Ok(()) };
    let relink = tiers_of(&shared.view().tiers, record.id)
        .map(|(tier, of)| BlockRecord { tier: Some(TierSource { block: id, ..of }), ..tier.record.clone() })
        .collect();
    let (rows, bytes) = (record.rows.saturating_sub(finished[0].record.rows), finished[0].record.bytes);
    // What was computed from them is hidden only as long as this pass is remembered: an opening knows of none, and gives out what is kept.
    if let Err(error) = shared.changed(record.first_time, record.last_time, None) {
        finished.iter().for_each(|block| block.discard(shared));
        return Err(error);
    }
    if publish(shared, &finished, &inputs, CatalogueChange { relink, ..CatalogueChange::default() })? {
        if let Err(error) = shared.changed(record.first_time, record.last_time, None) {
            // On failure the invalidation stays pending and is applied before a cached result is used.
            tracing::warn!(%error, "kept results cannot be removed; tried again");
        }
        add(&shared.counters.retention_rows, rows);
        add(&shared.counters.retention_rewritten_bytes, bytes);
        tracing::info!(block = %block.path.display(), rows, "readings out of retention taken out of a block");
    }
    Ok(())
}

/// The oldest files until the others are small enough together: readings before the windows made from them.
fn by_size(shared: &Shared, bytes_max: u64, dropped: &mut Vec<Arc<Block>>) {
    let view = shared.view();
    let gone = |block: &&Arc<Block>| !dropped.iter().any(|other| Arc::ptr_eq(other, block));
    let mut oldest_first: Vec<Arc<Block>> = view.blocks.iter().chain(&view.tiers).filter(gone).cloned().collect();
    let resolution = |block: &Block| block.record.tier.map_or(0, |tier| tier.resolution_ns);
    oldest_first.sort_by_key(|block| (block.record.last_time, resolution(block), block.record.id));
    let mut total: u64 = oldest_first.iter().map(|block| block.record.bytes).sum();
    for block in oldest_first {
        if total <= bytes_max {
            break;
        }
        total -= block.record.bytes;
        dropped.push(block);
    }
}
