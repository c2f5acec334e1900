//! Writes the rows of several blocks as one block, its tiers, or both.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::block::draft::{BlockDraft, FinishedBlock};
use crate::block::read::{Block, OpenBlock};
use crate::block::rows::RowReader;
use crate::block::runs::{MergeRun, runs_of};
use crate::chunk::{CHUNK_ROWS, empty};
use crate::downsample::write::TierDrafts;
use crate::scan::{MergeInput, MergedChunks};
use crate::{Chunk, StoreError};

/// Opens the blocks. If one is damaged it is marked so, and the result is `None`.
pub(crate) fn open_all(blocks: &[Arc<Block>]) -> Result<Option<Vec<Arc<OpenBlock>>>, StoreError> {
    let mut open = Vec::with_capacity(blocks.len());
    for block in blocks {
        match OpenBlock::open_once(block) {
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

/// The files that are written.
pub(crate) struct MergeOutput<'a> {
    pub draft: Option<BlockDraft>,
    pub tiers: Option<TierDrafts<'a>>,
    /// The time from which a sensor's rows are kept; `None` keeps all.
    pub keep_from: Option<&'a dyn Fn(&str) -> i64>,
}

/// Writes the output; the block is the first finished file. If an input is damaged it is marked so, and the result is `None`.
pub(crate) fn run(
    open: &[Arc<OpenBlock>],
    inputs: &[Arc<Block>],
    mut output: MergeOutput,
) -> Result<Option<Vec<FinishedBlock>>, StoreError> {
    match write(open, inputs, &mut output) {
        Ok(()) => {}
        Err(MergeFault { block: Some(at), error: error @ StoreError::Damaged { .. } }) => {
            inputs[at].mark_damaged(&error);
            return Ok(None);
        }
        Err(MergeFault { error, .. }) => return Err(error),
    }
    let mut finished = Vec::new();
    if let Some(draft) = output.draft {
        finished.push(draft.finish()?);
    }
    if let Some(tiers) = output.tiers {
        finished.extend(tiers.finish()?);
    }
    Ok(Some(finished))
}

/// An error, and the input that was being read.
struct MergeFault {
    block: Option<usize>,
    error: StoreError,
}

/// Writes the sensors of all inputs in the order of their paths.
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
        if let Some(tiers) = &mut output.tiers {
            tiers.end_sensor(path).map_err(|error| MergeFault { block: None, error })?;
        }
    }
}

/// Writes runs that follow each other in time, through one buffer.
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

/// Writes runs that overlap in time, row by row where they do.
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
        // They are sorted by time, as the runs of all inputs are.
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
    /// Writes the next readings of a sensor.
    fn take(&mut self, path: &str, chunk: &Chunk) -> Result<(), MergeFault> {
        if let Some(draft) = &mut self.draft {
            let pushed = draft.writer.push(path, &chunk.times, &chunk.column);
            pushed.map_err(|error| MergeFault { block: None, error })?;
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.push(path, &chunk.times, &chunk.column);
        }
        Ok(())
    }
}
