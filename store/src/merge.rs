//! Merging: many small blocks of a day become one larger block, and a day that is over becomes one block.
//!
//! Write amplification: a reading is written once into the journal, once when it is sealed, once for each level that its day fills (one level
//! for each factor of `merge_fan_in` in the number of seals a day: two for one seal a minute), and once when the day is over.

use std::sync::{Arc, PoisonError};

use wholegrain_model::ValueType;

use crate::StoreError;
use crate::block::read::{Block, OpenBlock, RowReader};
use crate::catalogue::Change;
use crate::publish::{DAY_NS, Draft, Kind, publish, reconcile};
use crate::scan::{Input, Merged};
use crate::stats::add;
use crate::store::Shared;

/// A day's large block is written again only when what came late for the day is at least this part of it.
const LATE_PART: u64 = 4;

/// When blocks are merged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub fan_in: usize,
    pub settle_ns: i64,
    pub bytes_max: u64,
}

/// Merges what the policy asks for next; `false` when there is nothing.
pub(crate) fn merge_once(shared: &Shared, now: i64) -> Result<bool, StoreError> {
    let _one_at_a_time = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    let policy = Policy {
        fan_in: shared.config.merge_fan_in.max(2),
        settle_ns: i64::try_from(shared.config.merge_settle.ns()).unwrap_or(i64::MAX),
        bytes_max: shared.config.merge_bytes_max.0,
    };
    let Some(inputs) = pick(&shared.view().blocks, policy, now) else { return Ok(false) };
    let mut open = Vec::with_capacity(inputs.len());
    for block in &inputs {
        match shared.cache.open_once(block) {
            Ok(opened) => open.push(opened),
            Err(error @ StoreError::Damaged { .. }) => {
                block.mark_damaged(&error);
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
    }
    let kind = Kind {
        value_type: inputs[0].record.value_type,
        day: inputs[0].record.day,
        level: inputs.iter().map(|block| block.record.level).max().unwrap_or(0) + 1,
        first_segment: inputs.iter().map(|block| block.record.first_segment).min().unwrap_or(0),
        last_segment: inputs.iter().map(|block| block.record.last_segment).max().unwrap_or(0),
    };
    let mut draft = Draft::create(shared, kind, shared.config.merge_zstd_level)?;
    match write(&open, &inputs, &mut draft) {
        Ok(()) => {}
        Err(Fault { block, error }) => {
            draft.discard(shared);
            return match (block, error) {
                (Some(at), error @ StoreError::Damaged { .. }) => {
                    inputs[at].mark_damaged(&error);
                    Ok(true)
                }
                (_, error) => Err(error),
            };
        }
    }
    let finished = [draft.finish(shared)?];
    let bytes = finished[0].record.bytes;
    if publish(shared, &finished, &inputs, Change::default())? {
        add(&shared.counters.merges, 1);
        add(&shared.counters.merge_bytes, bytes);
    }
    Ok(true)
}

/// What went wrong, and reading which input.
struct Fault {
    block: Option<usize>,
    error: StoreError,
}

/// Goes through the sensors of all inputs in the order of their paths.
fn write(open: &[Arc<OpenBlock>], inputs: &[Arc<Block>], draft: &mut Draft) -> Result<(), Fault> {
    let mut readers: Vec<RowReader> = open.iter().map(|block| RowReader::new(block.clone(), None)).collect();
    let mut next = vec![(0usize, 0u64); open.len()];
    loop {
        let path =
            (0..open.len()).filter_map(|i| open[i].entries().get(next[i].0)).map(|entry| entry.path.as_str()).min();
        let Some(path) = path else { return Ok(()) };
        let culprit = std::sync::Mutex::new(None);
        let mut sources = Vec::new();
        for (at, reader) in readers.iter_mut().enumerate() {
            let Some(entry) = open[at].entries().get(next[at].0).filter(|entry| entry.path == path) else { continue };
            let (mut row, end) = (next[at].1, next[at].1 + entry.rows);
            next[at] = (next[at].0 + 1, end);
            let culprit = &culprit;
            let chunks = std::iter::from_fn(move || {
                (row < end).then(|| {
                    let chunk = reader.read(row, end - row);
                    match &chunk {
                        Ok(chunk) => row += chunk.times.len() as u64,
                        Err(_) => {
                            row = end;
                            *culprit.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
                        }
                    }
                    chunk
                })
            });
            let rank = inputs[at].record.last_segment;
            sources.push(Input { rank, first_time: entry.first_time, source: Box::new(chunks) });
        }
        for chunk in Merged::new(sources) {
            let block = || *culprit.lock().unwrap_or_else(PoisonError::into_inner);
            let chunk = chunk.map_err(|error| Fault { block: block(), error })?;
            let pushed = draft.writer.push(path, &chunk.times, &chunk.column);
            pushed.map_err(|error| Fault { block: None, error })?;
        }
    }
}

/// The blocks to merge next, all of one day and type.
fn pick(blocks: &[Arc<Block>], policy: Policy, now: i64) -> Option<Vec<Arc<Block>>> {
    let mut sorted: Vec<&Arc<Block>> =
        blocks.iter().filter(|block| block.record.day.is_some() && !block.is_damaged()).collect();
    let type_of = |block: &Block| block.record.value_type == ValueType::Float;
    sorted.sort_by_key(|block| (block.record.day, type_of(block), block.record.last_segment, block.record.id));
    let of_a_day = sorted.chunk_by(|a, b| a.record.day == b.record.day && a.record.value_type == b.record.value_type);
    for day in of_a_day {
        let over = day[0].record.day.is_some_and(|day| {
            (day + 1).checked_mul(DAY_NS).and_then(|end| end.checked_add(policy.settle_ns)).is_some_and(|at| at <= now)
        });
        let chosen = if over { pick_finished_day(day, policy) } else { pick_level(day, policy) };
        if chosen.is_some() {
            return chosen;
        }
    }
    None
}

/// Of a day under way: the first `fan_in` neighbours of one level.
fn pick_level(day: &[&Arc<Block>], policy: Policy) -> Option<Vec<Arc<Block>>> {
    let mut runs = day.chunk_by(|a, b| a.record.level == b.record.level);
    let run = runs.find(|run| run.len() >= policy.fan_in && bytes(&run[..policy.fan_in]) <= policy.bytes_max)?;
    Some(run[..policy.fan_in].iter().map(|block| (*block).clone()).collect())
}

/// Of a day that is over: everything, unless that would write a large block again for little.
fn pick_finished_day(day: &[&Arc<Block>], policy: Policy) -> Option<Vec<Arc<Block>>> {
    let largest = day.iter().map(|block| block.record.bytes).max()?;
    let rest = bytes(day) - largest;
    if day.len() >= 2 && bytes(day) <= policy.bytes_max && rest.saturating_mul(LATE_PART) >= largest {
        return Some(day.iter().map(|block| (*block).clone()).collect());
    }
    pick_level(day, policy)
}

fn bytes(blocks: &[&Arc<Block>]) -> u64 {
    blocks.iter().map(|block| block.record.bytes).sum()
}
