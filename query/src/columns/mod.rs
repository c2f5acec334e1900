//! Operations on whole chunks of one series.
//!
//! - In: chunks of readings and windows of tiers from the store.
//! - Out: chunks in the unit of the result: scaled ([`raw`]), aggregated in windows ([`aggregate`]), of several series as one ([`sums`]).
//! - Never: another result than row by row. Integers are added exactly, floats with compensation and in the order of their times.

pub(crate) mod aggregate;
pub(crate) mod fold;
pub(crate) mod mean;
pub(crate) mod raw;
pub(crate) mod sums;
pub(crate) mod weighted;

use wholegrain_model::{Column, ColumnValues, Gaps, Value};
use wholegrain_store::{Chunk, StoreError};

use crate::error::QueryError;

/// One row of a series; `None` is a gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResultRow {
    pub(crate) time: i64,
    pub(crate) value: Option<Value>,
}

/// Chunks of an answer's rows: times and values of one series, in time order.
pub(crate) type RowChunkIter = Box<dyn Iterator<Item = Result<Chunk, QueryError>> + Send>;

/// Rows of a chunk, approximately.
pub(crate) const ROWS: usize = 8192;

/// Returns true once the query is cancelled.
pub type StopCheck = std::sync::Arc<dyn Fn() -> bool + Send + Sync>;

/// Ends items of the store with an error once the query is cancelled.
pub(crate) struct Cancellable<I> {
    items: I,
    stop: StopCheck,
}

impl<I> Cancellable<I> {
    pub(crate) fn new(items: I, stop: &StopCheck) -> Self {
        Self { items, stop: stop.clone() }
    }
}

impl<T, I: Iterator<Item = Result<T, StoreError>>> Iterator for Cancellable<I> {
    type Item = Result<T, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if (self.stop)() {
            return Some(Err(QueryError::Cancelled));
        }
        Some(self.items.next()?.map_err(QueryError::from))
    }
}

/// Builds a chunk row by row; its values are all integers or all floats.
pub(crate) struct ChunkBuilder {
    chunk: Chunk,
}

impl ChunkBuilder {
    /// Builds integers if `exact`, else floats.
    pub fn new(exact: bool) -> Self {
        let values = if exact { ColumnValues::Int(Vec::new()) } else { ColumnValues::Float(Vec::new()) };
        Self { chunk: Chunk { times: Vec::new(), column: Column { values, gaps: Gaps::default() } } }
    }

    pub(crate) fn len(&self) -> usize {
        self.chunk.times.len()
    }

    pub(crate) fn push(&mut self, time: i64, value: Option<Value>) {
        let at = self.chunk.times.len();
        self.chunk.times.push(time);
        let gap = match (&mut self.chunk.column.values, value) {
            (ColumnValues::Int(values), Some(Value::Int(value))) => {
                values.push(value);
                false
            }
            (ColumnValues::Int(values), _) => {
                values.push(0);
                true
            }
            (ColumnValues::Float(values), value) => {
                values.push(value.map_or(0.0, Value::as_f64));
                value.is_none()
            }
        };
        if gap {
            set_gap(&mut self.chunk.column.gaps, at);
        }
    }

    /// Takes the rows out; the builder is empty afterwards.
    pub fn take(&mut self) -> Option<Chunk> {
        let exact = matches!(self.chunk.column.values, ColumnValues::Int(_));
        (self.len() > 0).then(|| std::mem::replace(self, Self::new(exact)).chunk)
    }
}

/// Marks a gap in a column that grows.
pub(crate) fn set_gap(gaps: &mut Gaps, row: usize) {
    if gaps.0.len() <= row / 64 {
        gaps.0.resize(row / 64 + 1, 0);
    }
    gaps.0[row / 64] |= 1 << (row % 64);
}

/// Folds items into one row for each window.
pub(crate) trait WindowFold<T> {
    /// Takes the next item, in time order.
    fn take(&mut self, item: T) -> Result<(), QueryError>;
    /// Called after the last item.
    fn end(&mut self) -> Result<(), QueryError>;
    /// The rows of complete windows.
    fn out(&mut self) -> &mut ChunkBuilder;
}

/// Folds items into chunks of rows as they are pulled.
pub(crate) struct FoldedWindows<I, F> {
    items: I,
    fold: F,
    done: bool,
}

impl<I, F> FoldedWindows<I, F> {
    pub(crate) fn new(items: I, fold: F) -> Self {
        Self { items, fold, done: false }
    }
}

impl<T, I: Iterator<Item = Result<T, QueryError>>, F: WindowFold<T>> Iterator for FoldedWindows<I, F> {
    type Item = Result<Chunk, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done && self.fold.out().len() < ROWS {
            let taken = match self.items.next() {
                Some(item) => item.and_then(|item| self.fold.take(item)),
                None => {
                    self.done = true;
                    self.fold.end()
                }
            };
            if let Err(error) = taken {
                self.done = true;
                return Some(Err(error));
            }
        }
        self.fold.out().take().map(Ok)
    }
}

/// Collects single rows into chunks of floats.
pub(crate) struct RowChunks<I> {
    rows: I,
}

impl<I> RowChunks<I> {
    pub(crate) fn new(rows: I) -> Self {
        Self { rows }
    }
}

impl<I: Iterator<Item = Result<ResultRow, QueryError>>> Iterator for RowChunks<I> {
    type Item = Result<Chunk, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut chunk = ChunkBuilder::new(false);
        while chunk.len() < ROWS {
            match self.rows.next() {
                Some(Ok(row)) => chunk.push(row.time, row.value),
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        chunk.take().map(Ok)
    }
}

/// Calls `run` with each maximal run of rows in `from..to` without gaps.
pub(crate) fn without_gaps(gaps: &Gaps, from: usize, to: usize, mut run: impl FnMut(usize, usize)) {
    if gaps.0.iter().skip(from / 64).take(to.div_ceil(64) - from / 64).all(|word| *word == 0) {
        return run(from, to);
    }
    let mut at = from;
    while at < to {
        if gaps.is_gap(at) {
            at += 1;
            continue;
        }
        let mut end = at + 1;
        while end < to && !gaps.is_gap(end) {
            end += 1;
        }
        run(at, end);
        at = end;
    }
}
