//! Retention: the oldest blocks go, whole, when they are too old or all together too large.

use std::sync::Arc;

use crate::StoreError;
use crate::block::read::Block;
use crate::catalogue::Change;
use crate::publish::{publish, reconcile};
use crate::stats::add;
use crate::store::Shared;

/// Drops what is over the bounds at the time `now`; returns how many blocks.
pub(crate) fn retain(shared: &Shared, now: i64) -> Result<u64, StoreError> {
    drop(reconcile(shared)?);
    let view = shared.view();
    let age = shared.config.retention_age.map(|age| i64::try_from(age.ns()).unwrap_or(i64::MAX));
    let dropped = choose(&view.blocks, age, shared.config.retention_bytes.map(|size| size.0), now);
    if dropped.is_empty() || !publish(shared, &[], &dropped, Change::default())? {
        return Ok(0);
    }
    let rows = dropped.iter().map(|block| block.record.rows).sum();
    add(&shared.counters.retention_blocks, dropped.len() as u64);
    add(&shared.counters.retention_rows, rows);
    tracing::info!(blocks = dropped.len(), rows, "dropped by retention");
    Ok(dropped.len() as u64)
}

fn choose(blocks: &[Arc<Block>], age_ns: Option<i64>, bytes_max: Option<u64>, now: i64) -> Vec<Arc<Block>> {
    let mut oldest_first = blocks.to_vec();
    oldest_first.sort_by_key(|block| (block.record.last_time, block.record.id));
    let mut total: u64 = oldest_first.iter().map(|block| block.record.bytes).sum();
    let mut dropped = Vec::new();
    for block in oldest_first {
        let too_old = age_ns.is_some_and(|age| block.record.last_time < now.saturating_sub(age));
        let too_large = bytes_max.is_some_and(|max| total > max);
        if too_old || too_large {
            total -= block.record.bytes;
            dropped.push(block);
        }
    }
    dropped
}
