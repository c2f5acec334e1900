//! Which blocks are merged next.

use std::collections::BTreeMap;
use std::sync::Arc;

use wholegrain_model::ValueType;

use crate::block::read::Block;
use crate::block::record::BlockRecord;
use crate::config::StoreConfig;
use crate::time::DAY_NS;

/// A day's large block is merged again only if the late blocks of the day are at least this part of it.
const LATE_PART: u64 = 4;

/// When blocks are merged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePolicy {
    pub fan_in: usize,
    pub merge_delay_ns: i64,
    pub bytes_max: u64,
    /// Whether every day is merged into as few blocks as possible, at once.
    pub all: bool,
}

impl MergePolicy {
    pub(crate) fn of(config: &StoreConfig) -> Self {
        Self {
            fan_in: config.merge_fan_in.max(2),
            merge_delay_ns: i64::try_from(config.merge_delay.ns()).unwrap_or(i64::MAX),
            bytes_max: config.merge_bytes_max.0,
            all: false,
        }
    }
}

/// Bytes of the blocks that compacting everything would merge now.
pub(crate) fn compactable_bytes(blocks: &[Arc<Block>], bytes_max: u64) -> u64 {
    let mut days: BTreeMap<(i64, bool), Vec<u64>> = BTreeMap::new();
    for block in blocks.iter().filter(|block| !block.record.trimmed && !block.is_damaged()) {
        if let Some(day) = block.record.day {
            days.entry((day, block.record.value_type == ValueType::Float)).or_default().push(block.record.bytes);
        }
    }
    let several = days.values().filter(|day| day.len() > 1);
    several.map(|day| day.iter().filter(|bytes| **bytes < bytes_max).sum::<u64>()).sum()
}

/// Whether the day of a block (its last one if there are several) has been over for the delay at the time `now`.
pub(crate) fn is_over(record: &BlockRecord, merge_delay_ns: i64, now: i64) -> bool {
    let day = record.day.unwrap_or(record.last_time.div_euclid(DAY_NS));
    let end = (day + 1).checked_mul(DAY_NS).and_then(|end| end.checked_add(merge_delay_ns));
    end.is_some_and(|at| at <= now)
}

/// The blocks to merge next, all of one day and type.
pub(crate) fn pick(blocks: &[Arc<Block>], policy: MergePolicy, now: i64) -> Option<Vec<Arc<Block>>> {
    let mergeable = |block: &&Arc<Block>| block.record.day.is_some() && !block.record.trimmed && !block.is_damaged();
    let mut sorted: Vec<&Arc<Block>> = blocks.iter().filter(mergeable).collect();
    let type_of = |block: &Block| block.record.value_type == ValueType::Float;
    sorted.sort_by_key(|block| (block.record.day, type_of(block), block.record.rank(), block.record.id));
    let of_a_day = sorted.chunk_by(|a, b| {
        a.record.day == b.record.day
            && a.record.value_type == b.record.value_type
            && !stands_between(blocks, &a.record, &b.record)
    });
    for day in of_a_day {
        let over = is_over(&day[0].record, policy.merge_delay_ns, now);
        let chosen = if policy.all {
            pick_all(day, policy)
        } else if over {
            pick_finished_day(day, policy)
        } else {
            pick_level(day, policy)
        };
        if chosen.is_some() {
            return chosen;
        }
    }
    None
}

/// Whether a block of several days, from an import, ranks between two blocks of a day and has readings of it. If these were merged, both would rank
/// above it.
pub(crate) fn stands_between(blocks: &[Arc<Block>], a: &BlockRecord, b: &BlockRecord) -> bool {
    let Some(start) = a.day.and_then(|day| day.checked_mul(DAY_NS)) else { return false };
    let (low, high) = (a.rank().min(b.rank()), a.rank().max(b.rank()));
    blocks.iter().map(|block| &block.record).any(|other| {
        other.day.is_none()
            && (low + 1..high).contains(&other.rank())
            && other.first_time < start.saturating_add(DAY_NS)
            && other.last_time >= start
    })
}

/// The first neighbours that fit into one block, as many as fit.
fn pick_all(day: &[&Arc<Block>], policy: MergePolicy) -> Option<Vec<Arc<Block>>> {
    for start in 0..day.len() {
        let mut end = start;
        let mut sum = 0;
        while end < day.len() && sum + day[end].record.bytes <= policy.bytes_max {
            sum += day[end].record.bytes;
            end += 1;
        }
        if end - start >= 2 {
            return Some(day[start..end].iter().map(|block| (*block).clone()).collect());
        }
    }
    None
}

/// Of the current day: the first `fan_in` neighbours of one level.
fn pick_level(day: &[&Arc<Block>], policy: MergePolicy) -> Option<Vec<Arc<Block>>> {
    let mut runs = day.chunk_by(|a, b| a.record.level == b.record.level);
    let run = runs.find(|run| run.len() >= policy.fan_in && bytes(&run[..policy.fan_in]) <= policy.bytes_max)?;
    Some(run[..policy.fan_in].iter().map(|block| (*block).clone()).collect())
}

/// Of a day that is over: all blocks, unless that would write a large block again for little.
fn pick_finished_day(day: &[&Arc<Block>], policy: MergePolicy) -> Option<Vec<Arc<Block>>> {
    let largest = day.iter().map(|block| block.record.bytes).max()?;
    let rest = bytes(day) - largest;
    if day.len() >= 2 && bytes(day) <= policy.bytes_max && rest.saturating_mul(LATE_PART) >= largest {
        return Some(day.iter().map(|block| (*block).clone()).collect());
    }
    pick_level(day, policy)
}

pub(crate) fn bytes(blocks: &[&Arc<Block>]) -> u64 {
    blocks.iter().map(|block| block.record.bytes).sum()
}
