//! Merging: many small blocks of a day become one larger block, and a day that is over becomes one block with its tiers.
//!
//! Write amplification: a reading is written once into the journal, once when it is sealed, once for each level that its day fills (one level
//! for each factor of `merge_fan_in` in the number of seals a day: two for one seal a minute), and once when the day is over.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{ColumnValues, ValueType};

use crate::block::index::IndexEntry;
use crate::block::read::{Block, OpenBlock};
use crate::block::record::{BlockKind, BlockRecord};
use crate::block::rows::RowReader;
use crate::block::tombstones::{Tombstone, kept};
use crate::catalogue::CatalogueChange;
use crate::chunk::{CHUNK_ROWS, empty};
use crate::delete::rewrite::rewrite_once;
use crate::publish::{BlockDraft, FinishedBlock, publish, reconcile};
use crate::scan::{MergeInput, MergedChunks};
use crate::stats::add;
use crate::store::Shared;
use crate::tiers::write::TierDrafts;
use crate::tiers::{missing, resolutions};
use crate::time::DAY_NS;
use crate::{Chunk, StoreError};

/// A day's large block is written again only when what came late for the day is at least this part of it.
const LATE_PART: u64 = 4;
/// Blocks of a day under way get tiers from this level on: smaller ones are soon merged again.
const TIER_LEVEL_MIN: u32 = 2;

/// When blocks are merged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePolicy {
    pub fan_in: usize,
    pub merge_delay_ns: i64,
    pub bytes_max: u64,
    /// Whether every day is made as few blocks as it can be, at once.
    pub all: bool,
}

impl MergePolicy {
    fn of(shared: &Shared) -> Self {
        Self {
            fan_in: shared.config.merge_fan_in.max(2),
            merge_delay_ns: i64::try_from(shared.config.merge_delay.ns()).unwrap_or(i64::MAX),
            bytes_max: shared.config.merge_bytes_max.0,
            all: false,
        }
    }
}

/// One step of making as few blocks as there can be; `None` when there is nothing more to do, else the bytes that it read.
pub(crate) fn compact_once(shared: &Shared, now: i64) -> Result<Option<u64>, StoreError> {
    let _one_at_a_time = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    let policy = MergePolicy { all: true, ..MergePolicy::of(shared) };
    if let Some(inputs) = pick(&shared.view().blocks, policy, now) {
        merge(shared, &inputs, now)?;
        return Ok(Some(inputs.iter().map(|block| block.record.bytes).sum()));
    }
    let done = rewrite_once(shared)? || missing::tier_once(shared, now)?;
    Ok(done.then_some(0))
}

/// Bytes of the blocks that [`compact_once`] would merge, as they are now.
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

/// Merges what the policy asks for next, or makes the tiers of a block that lacks them; `false` when there is nothing to do.
pub(crate) fn merge_once(shared: &Shared, now: i64) -> Result<bool, StoreError> {
    let _one_at_a_time = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    match pick(&shared.view().blocks, MergePolicy::of(shared), now) {
        Some(inputs) => merge(shared, &inputs, now).map(|()| true),
        None if rewrite_once(shared)? => Ok(true),
        None => missing::tier_once(shared, now),
    }
}

/// Makes one block of several, and tiers of it when it is large. An input that turns out damaged is marked so, and nothing else done.
pub(crate) fn merge(shared: &Shared, inputs: &[Arc<Block>], now: i64) -> Result<(), StoreError> {
    let latest = inputs.iter().map(|block| (block.record.last_segment, block.record.import)).max().unwrap_or((0, 0));
    let kind = BlockKind {
        value_type: inputs[0].record.value_type,
        day: inputs[0].record.day,
        level: inputs.iter().map(|block| block.record.level).max().unwrap_or(0) + 1,
        first_segment: inputs.iter().map(|block| block.record.first_segment).min().unwrap_or(0),
        last_segment: latest.0,
        import: latest.1,
    };
    let Some(open) = open_all(shared, inputs)? else { return Ok(()) };
    let over = is_over(&inputs[0].record, MergePolicy::of(shared).merge_delay_ns, now);
    // What is merged again before long is compressed as quickly as what was sealed.
    let level = if over { shared.config.merge_zstd_level } else { shared.config.seal_zstd_level };
    let draft = BlockDraft::create(shared, kind, level)?;
    let wanted = kind.level >= TIER_LEVEL_MIN || over;
    let tiers = if wanted { resolutions(&shared.config.tiers) } else { Vec::new() };
    let tiers = match TierDrafts::create(shared, kind, draft.id(), &tiers) {
        Ok(tiers) => tiers,
        Err(error) => {
            draft.discard(shared);
            return Err(error);
        }
    };
    let output = MergeOutput { draft: Some(draft), tiers, keep_from: None };
    let Some(mut finished) = run(shared, &open, inputs, output)? else { return Ok(()) };
    let bytes = finished[0].record.bytes;
    let tier_bytes: u64 = finished[1..].iter().map(|tier| tier.record.bytes).sum();
    if finished[0].record.rows == 0 {
        // All of it has been deleted.
        finished.drain(..).for_each(|file| file.discard(shared));
    }
    let mut replaced = inputs.to_vec();
    let of_inputs = |tier: &&Arc<Block>| {
        tier.record.tier.is_some_and(|tier| inputs.iter().any(|block| block.record.id == tier.block))
    };
    replaced.extend(shared.view().tiers.iter().filter(of_inputs).cloned());
    if publish(shared, &finished, &replaced, CatalogueChange::default())? {
        add(&shared.counters.merges, 1);
        add(&shared.counters.merge_bytes, bytes);
        add(&shared.counters.tier_bytes_written, tier_bytes);
    }
    Ok(())
}

/// The blocks with their footers read; `None` when one is damaged, which it is marked as.
pub(crate) fn open_all(shared: &Shared, blocks: &[Arc<Block>]) -> Result<Option<Vec<Arc<OpenBlock>>>, StoreError> {
    let mut open = Vec::with_capacity(blocks.len());
    for block in blocks {
        match shared.cache.open_once(block) {
            Ok(opened) => open.push(opened),
            Err(error @ StoreError::Damaged { .. }) => {
                block.mark_damaged(&error);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(open))
}

/// What is made of the rows of blocks.
pub(crate) struct MergeOutput<'a> {
    pub draft: Option<BlockDraft>,
    pub tiers: TierDrafts<'a>,
    /// From which time on a sensor's rows are kept; everything where there is no such rule.
    pub keep_from: Option<&'a dyn Fn(&str) -> i64>,
}

/// Writes the output; `None` when an input is damaged, which it is marked as. The block is the first of what is finished.
pub(crate) fn run(
    shared: &Shared,
    open: &[Arc<OpenBlock>],
    inputs: &[Arc<Block>],
    mut output: MergeOutput,
) -> Result<Option<Vec<FinishedBlock>>, StoreError> {
    if let Err(MergeFault { block, error }) = write(open, inputs, &mut output) {
        output.tiers.discard();
        output.draft.into_iter().for_each(|draft| draft.discard(shared));
        return match (block, error) {
            (Some(at), error @ StoreError::Damaged { .. }) => {
                inputs[at].mark_damaged(&error);
                Ok(None)
            }
            (_, error) => Err(error),
        };
    }
    let mut finished = Vec::new();
    if let Some(draft) = output.draft {
        match draft.finish(shared) {
            Ok(block) => finished.push(block),
            Err(error) => {
                output.tiers.discard();
                return Err(error);
            }
        }
    }
    match output.tiers.finish() {
        Ok(tiers) => finished.extend(tiers),
        Err(error) => {
            finished.iter().for_each(|block| block.discard(shared));
            return Err(error);
        }
    }
    Ok(Some(finished))
}

/// What went wrong, and reading which input.
struct MergeFault {
    block: Option<usize>,
    error: StoreError,
}

/// The rows of one sensor in one input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeRun {
    input: usize,
    pub row: u64,
    pub end: u64,
    first_time: i64,
    last_time: i64,
}

/// Goes through the sensors of all inputs in the order of their paths.
fn write(open: &[Arc<OpenBlock>], inputs: &[Arc<Block>], output: &mut MergeOutput) -> Result<(), MergeFault> {
    let mut readers: Vec<RowReader> = open.iter().map(|block| RowReader::new(block.clone(), None)).collect();
    let mut next = vec![(0usize, 0u64); open.len()];
    let mut scratch = Chunk { times: Vec::new(), column: empty(inputs[0].record.value_type) };
    let mut runs: Vec<MergeRun> = Vec::new();
    loop {
        let path =
            (0..open.len()).filter_map(|i| open[i].entries().get(next[i].0)).map(|entry| entry.path.as_str()).min();
        let Some(path) = path else { return Ok(()) };
        let keep_from = output.keep_from.map_or(i64::MIN, |keep_from| keep_from(path));
        runs.clear();
        for (input, reader) in readers.iter_mut().enumerate() {
            let entry = open[input].entries().get(next[input].0).filter(|entry| entry.path == path);
            let Some(entry) = entry else { continue };
            let (row, end) = (next[input].1, next[input].1 + entry.rows);
            next[input] = (next[input].0 + 1, end);
            let found = runs_of(reader, entry, (row, end), keep_from, &inputs[input].record.tombstones);
            let found = found.map_err(|error| MergeFault { block: Some(input), error })?;
            runs.extend(found.into_iter().map(|run| MergeRun { input, ..run }));
        }
        runs.sort_unstable_by_key(|run| run.first_time);
        if runs.is_sorted_by(|a, b| a.last_time < b.first_time) {
            copy(path, &runs, &mut readers, &mut scratch, output)?;
        } else {
            interleave(path, &runs, &mut readers, inputs, output)?;
        }
        output.tiers.end_sensor(path).map_err(|error| MergeFault { block: None, error })?;
    }
}

/// A sensor's rows in one input from a time on, without what is cut out.
pub(crate) fn runs_of(
    reader: &mut RowReader,
    entry: &IndexEntry,
    (row, end): (u64, u64),
    keep_from: i64,
    tombstones: &[Tombstone],
) -> Result<Vec<MergeRun>, StoreError> {
    if entry.last_time < keep_from {
        return Ok(Vec::new());
    }
    let (first, last) = (entry.first_time, entry.last_time);
    let all = (first.max(keep_from), last.saturating_add(1));
    let mut runs = Vec::new();
    for (from, to) in kept(tombstones, &entry.path, all.0, all.1) {
        let start = if from > first { reader.seek(row, end, from)? } else { row };
        let end = if to < all.1 { reader.seek(start, end, to)? } else { end };
        if start < end {
            let last_time = last.min(to.saturating_sub(1));
            let last_time = if to == all.1 { last } else { last_time };
            runs.push(MergeRun { input: 0, row: start, end, first_time: from, last_time });
        }
    }
    Ok(runs)
}

/// Runs that follow each other in time: one after the other, through one buffer.
fn copy(
    path: &str,
    runs: &[MergeRun],
    readers: &mut [RowReader],
    scratch: &mut Chunk,
    output: &mut MergeOutput,
) -> Result<(), MergeFault> {
    for run in runs {
        let mut row = run.row;
        while row < run.end {
            if scratch.times.len() >= CHUNK_ROWS {
                output.take(path, scratch)?;
                scratch.clear();
            }
            let room = CHUNK_ROWS - scratch.times.len();
            let count = usize::try_from(run.end - row).unwrap_or(room).min(room);
            let read = readers[run.input].append_to(scratch, row, count);
            row += read.map_err(|error| MergeFault { block: Some(run.input), error })? as u64;
        }
    }
    output.take(path, scratch)?;
    scratch.clear();
    Ok(())
}

/// Runs that overlap in time: row by row where they do.
fn interleave(
    path: &str,
    runs: &[MergeRun],
    readers: &mut [RowReader],
    inputs: &[Arc<Block>],
    output: &mut MergeOutput,
) -> Result<(), MergeFault> {
    let culprit = Mutex::new(None);
    let mut sources = Vec::new();
    for (input, reader) in readers.iter_mut().enumerate() {
        // In the order of their times, as the runs of all inputs are.
        let mut own = runs.iter().filter(|run| run.input == input).copied();
        let Some(mut run) = own.next() else { continue };
        let (first_time, culprit) = (run.first_time, &culprit);
        let mut own: VecDeque<MergeRun> = own.collect();
        let chunks = std::iter::from_fn(move || {
            while run.row >= run.end {
                run = own.pop_front()?;
            }
            let chunk = reader.read(run.row, run.end - run.row);
            match &chunk {
                Ok(chunk) => run.row += chunk.times.len() as u64,
                Err(_) => {
                    run.row = run.end;
                    own.clear();
                    *culprit.lock().unwrap_or_else(PoisonError::into_inner) = Some(input);
                }
            }
            Some(chunk)
        });
        let rank = inputs[input].record.rank();
        sources.push(MergeInput { rank, first_time, source: Box::new(chunks) });
    }
    for chunk in MergedChunks::new(sources) {
        let block = || *culprit.lock().unwrap_or_else(PoisonError::into_inner);
        output.take(path, &chunk.map_err(|error| MergeFault { block: block(), error })?)?;
    }
    Ok(())
}

impl MergeOutput<'_> {
    /// The next readings of a sensor.
    fn take(&mut self, path: &str, chunk: &Chunk) -> Result<(), MergeFault> {
        if let Some(draft) = &mut self.draft {
            let pushed = draft.writer.push(path, &chunk.times, &chunk.column);
            pushed.map_err(|error| MergeFault { block: None, error })?;
        }
        self.tiers.push(path, &chunk.times, &chunk.column);
        Ok(())
    }
}

impl Chunk {
    /// Takes everything out and keeps the memory.
    fn clear(&mut self) {
        self.times.clear();
        self.column.gaps.0.clear();
        match &mut self.column.values {
            ColumnValues::Int(values) => values.clear(),
            ColumnValues::Float(values) => values.clear(),
        }
    }
}

/// Whether the day of a block has been over for so long at the time `now`; of several days, the last of them.
pub(crate) fn is_over(record: &BlockRecord, merge_delay_ns: i64, now: i64) -> bool {
    let day = record.day.unwrap_or(record.last_time.div_euclid(DAY_NS));
    let end = (day + 1).checked_mul(DAY_NS).and_then(|end| end.checked_add(merge_delay_ns));
    end.is_some_and(|at| at <= now)
}

/// The blocks to merge next, all of one day and type.
fn pick(blocks: &[Arc<Block>], policy: MergePolicy, now: i64) -> Option<Vec<Arc<Block>>> {
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

/// Whether a block of several days (an import's) counts more than the one and less than the other of two blocks of a day that it has readings of: merged,
/// they would count more than it as a whole.
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

/// The first neighbours that may become one block, as many as there are.
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

/// Of a day under way: the first `fan_in` neighbours of one level.
fn pick_level(day: &[&Arc<Block>], policy: MergePolicy) -> Option<Vec<Arc<Block>>> {
    let mut runs = day.chunk_by(|a, b| a.record.level == b.record.level);
    let run = runs.find(|run| run.len() >= policy.fan_in && bytes(&run[..policy.fan_in]) <= policy.bytes_max)?;
    Some(run[..policy.fan_in].iter().map(|block| (*block).clone()).collect())
}

/// Of a day that is over: everything, unless that would write a large block again for little.
fn pick_finished_day(day: &[&Arc<Block>], policy: MergePolicy) -> Option<Vec<Arc<Block>>> {
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
