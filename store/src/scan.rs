//! Merges chunks of one sensor from several sources: in time order, each time once.

use wholegrain_model::{Column, ColumnValues, Gaps};

use crate::chunk::{CHUNK_ROWS, append, empty, part, set_gap};
use crate::{Chunk, StoreError};

/// Smaller chunks are gathered until they have this many rows.
const GATHER_ROWS: usize = 4_096;

/// Chunks of one sensor whose times rise strictly, within and from one to the next.
pub type ChunkSource<'a> = Box<dyn Iterator<Item = Result<Chunk, StoreError>> + Send + 'a>;

/// One of several sources.
pub struct MergeInput<'a> {
    /// If two sources have the same time, the one of higher rank counts.
    pub rank: u64,
    /// No time of the source is before this.
    pub first_time: i64,
    pub source: ChunkSource<'a>,
}

/// An input and its current chunk.
struct MergeHead<'a> {
    rank: u64,
    /// Time of the next row; before the first chunk a lower bound of it.
    next_time: i64,
    source: ChunkSource<'a>,
    chunk: Option<Chunk>,
    at: usize,
}

/// The merged inputs. A source is read only when its time is reached.
pub struct MergedChunks<'a> {
    heads: Vec<MergeHead<'a>>,
    out: Option<Chunk>,
    failed: bool,
}

impl<'a> MergedChunks<'a> {
    /// Merges these inputs, in any order.
    pub fn new(inputs: Vec<MergeInput<'a>>) -> Self {
        let head = |input: MergeInput<'a>| MergeHead {
            rank: input.rank,
            next_time: input.first_time,
            source: input.source,
            chunk: None,
            at: 0,
        };
        Self { heads: inputs.into_iter().map(head).collect(), out: None, failed: false }
    }

    /// Moves input `at` to its next row; removes it if there is none.
    fn load(&mut self, at: usize) -> Result<(), StoreError> {
        let head = &mut self.heads[at];
        loop {
            match head.source.next() {
                Some(Ok(chunk)) => {
                    let Some(first) = chunk.times.first() else { continue };
                    head.next_time = *first;
                    head.chunk = Some(chunk);
                    head.at = 0;
                    return Ok(());
                }
                Some(Err(error)) => return Err(error),
                None => {
                    self.heads.swap_remove(at);
                    return Ok(());
                }
            }
        }
    }

    /// Advances input `at` by `rows`.
    fn advance(&mut self, at: usize, rows: usize) -> Result<(), StoreError> {
        let head = &mut self.heads[at];
        head.at += rows;
        match head.chunk.as_ref().and_then(|chunk| chunk.times.get(head.at)) {
            Some(time) => {
                head.next_time = *time;
                Ok(())
            }
            None => {
                head.chunk = None;
                self.load(at)
            }
        }
    }

    /// One step; a chunk when one is whole.
    fn step(&mut self) -> Result<Option<Chunk>, StoreError> {
        let Some(at) = (0..self.heads.len()).min_by_key(|&i| (self.heads[i].next_time, self.heads[i].chunk.is_some()))
        else {
            return Ok(self.out.take());
        };
        if self.heads[at].chunk.is_none() {
            self.load(at)?;
            return Ok(None);
        }
        if self.heads.len() == 1 && self.out.is_none() && self.heads[at].at == 0 {
            // Nothing else is left to come between.
            let chunk = self.heads[at].chunk.take();
            self.load(at)?;
            return Ok(chunk);
        }
        let others = (0..self.heads.len()).filter(|&i| i != at).map(|i| self.heads[i].next_time).min();
        let time = self.heads[at].next_time;
        if others == Some(time) {
            return self.step_tie(time);
        }
        let head = &mut self.heads[at];
        let Some(chunk) = &head.chunk else { return Ok(None) };
        let end = others.map_or(chunk.times.len(), |other| chunk.times.partition_point(|time| *time < other));
        let rows = end - head.at;
        if head.at == 0 && end == chunk.times.len() && rows >= GATHER_ROWS {
            // A large piece that nothing interferes with passes as it is.
            if let Some(out) = self.out.take() {
                return Ok(Some(out));
            }
            let chunk = head.chunk.take();
            self.load(at)?;
            return Ok(chunk);
        }
        let rows = rows.min(CHUNK_ROWS);
        let full = gather(&mut self.out, chunk, head.at, rows);
        self.advance(at, rows)?;
        Ok(full)
    }

    /// Several sources stand at the same time: all are loaded by now, and the one of the highest rank gives the row.
    fn step_tie(&mut self, time: i64) -> Result<Option<Chunk>, StoreError> {
        let tied = |head: &MergeHead| head.next_time == time;
        let best = (0..self.heads.len()).filter(|&i| tied(&self.heads[i])).max_by_key(|&i| self.heads[i].rank);
        let Some(best) = best else { return Ok(None) };
        let head = &self.heads[best];
        let full = head.chunk.as_ref().and_then(|chunk| gather(&mut self.out, chunk, head.at, 1));
        for at in (0..self.heads.len()).rev() {
            if tied(&self.heads[at]) {
                self.advance(at, 1)?;
            }
        }
        Ok(full)
    }
}

/// Appends rows to `out`; when they do not fit (other type, or full), what was there is returned and a new one begun.
fn gather(out: &mut Option<Chunk>, from: &Chunk, at: usize, rows: usize) -> Option<Chunk> {
    let same = |chunk: &Chunk| {
        std::mem::discriminant(&chunk.column.values) == std::mem::discriminant(&from.column.values)
            && chunk.times.len() < GATHER_ROWS
            && chunk.times.len() + rows <= CHUNK_ROWS
    };
    let full = if out.as_ref().is_some_and(same) { None } else { out.take() };
    let chunk = out.get_or_insert_with(|| Chunk { times: Vec::new(), column: empty(value_type(&from.column)) });
    let len = chunk.times.len() + rows;
    chunk.times.extend_from_slice(&from.times[at..at + rows]);
    append(&mut chunk.column, &from.column.values, &from.column.gaps, at, rows, len);
    full
}

fn value_type(column: &Column) -> wholegrain_model::ValueType {
    match column.values {
        ColumnValues::Int(_) => wholegrain_model::ValueType::Int,
        ColumnValues::Float(_) => wholegrain_model::ValueType::Float,
    }
}

impl Iterator for MergedChunks<'_> {
    type Item = Result<Chunk, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed {
            match self.step() {
                Ok(Some(chunk)) => return Some(Ok(chunk)),
                Ok(None) if self.heads.is_empty() && self.out.is_none() => return None,
                Ok(None) => {}
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// How to bring rows into time order, each time once: `None` when they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TimeOrder(Option<Vec<u32>>);

impl TimeOrder {
    /// Of rows in the order of arrival: where a time comes twice, the later row counts.
    pub fn of(times: &[i64]) -> Self {
        if times.is_sorted_by(|a, b| a < b) {
            return Self(None);
        }
        let mut rows: Vec<u32> = (0..u32::try_from(times.len()).unwrap_or(u32::MAX)).collect();
        rows.sort_by_key(|&row| times[row as usize]);
        let mut kept: Vec<u32> = Vec::with_capacity(rows.len());
        for row in rows {
            match kept.last_mut() {
                Some(last) if times[*last as usize] == times[row as usize] => *last = row,
                _ => kept.push(row),
            }
        }
        Self(Some(kept))
    }

    pub(crate) fn times(&self, times: Vec<i64>) -> Vec<i64> {
        match &self.0 {
            None => times,
            Some(rows) => rows.iter().map(|&row| times[row as usize]).collect(),
        }
    }

    pub(crate) fn column(&self, column: Column) -> Column {
        self.reordered(&column).unwrap_or(column)
    }

    /// The column in order; `None` when it is.
    pub fn reordered(&self, column: &Column) -> Option<Column> {
        let rows = self.0.as_ref()?;
        let mut gaps = Gaps::default();
        if !column.gaps.0.is_empty() {
            let gap_rows = rows.iter().enumerate().filter(|(_, row)| column.gaps.is_gap(**row as usize));
            gap_rows.for_each(|(i, _)| set_gap(&mut gaps, i, rows.len()));
        }
        let values = match &column.values {
            ColumnValues::Int(values) => ColumnValues::Int(rows.iter().map(|&row| values[row as usize]).collect()),
            ColumnValues::Float(values) => ColumnValues::Float(rows.iter().map(|&row| values[row as usize]).collect()),
        };
        Some(Column { values, gaps })
    }
}

/// In pieces that are no larger than a chunk may be.
pub(crate) fn split(chunk: Chunk) -> ChunkSource<'static> {
    use crate::chunk::CHUNK_ROWS;
    if chunk.times.len() <= CHUNK_ROWS {
        return Box::new(std::iter::once(Ok(chunk)));
    }
    let starts = (0..chunk.times.len()).step_by(CHUNK_ROWS);
    Box::new(starts.map(move |start| Ok(part(&chunk, start, chunk.times.len().min(start + CHUNK_ROWS)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(rows: &[(i64, i64)]) -> Chunk {
        let values = ColumnValues::Int(rows.iter().map(|row| row.1).collect());
        Chunk { times: rows.iter().map(|row| row.0).collect(), column: Column { values, gaps: Gaps::default() } }
    }

    fn source<'a>(rank: u64, chunks: Vec<Chunk>) -> MergeInput<'a> {
        let first_time = chunks.iter().find_map(|chunk| chunk.times.first()).copied().unwrap_or(0) - 1;
        MergeInput { rank, first_time, source: Box::new(chunks.into_iter().map(Ok)) }
    }

    #[track_caller]
    fn check(inputs: Vec<MergeInput>, expected: &[(i64, i64)]) {
        let mut rows = Vec::new();
        for chunk in MergedChunks::new(inputs) {
            let chunk = chunk.unwrap();
            assert!(!chunk.times.is_empty() && chunk.times.len() <= CHUNK_ROWS);
            let ColumnValues::Int(values) = &chunk.column.values else { panic!("type") };
            rows.extend(chunk.times.iter().copied().zip(values.iter().copied()));
        }
        assert_eq!(rows, expected);
    }

    #[test]
    fn merging() {
        check(vec![], &[]);
        check(vec![source(1, vec![chunk(&[]), chunk(&[(1, 10)]), chunk(&[(2, 20)])])], &[(1, 10), (2, 20)]);
        let later = || source(2, vec![chunk(&[(2, 21), (3, 31)]), chunk(&[(6, 61)])]);
        let earlier = || source(1, vec![chunk(&[(1, 10), (2, 20)]), chunk(&[(3, 30), (5, 50)])]);
        let expected = [(1, 10), (2, 21), (3, 31), (5, 50), (6, 61)];
        check(vec![earlier(), later()], &expected);
        check(vec![later(), earlier()], &expected);
        let third = source(3, vec![chunk(&[(2, 22)])]);
        check(vec![later(), third, earlier()], &[(1, 10), (2, 22), (3, 31), (5, 50), (6, 61)]);
    }

    #[test]
    fn large_chunks_and_small_ones_mixed() {
        let big: Vec<(i64, i64)> = (0..10_000).map(|i| (i, i)).collect();
        let after: Vec<(i64, i64)> = (10_000..80_000).map(|i| (i, i)).collect();
        let small = source(9, vec![chunk(&[(5, -5), (9_999, -1), (79_999, -2)])]);
        let mut expected: Vec<(i64, i64)> = (0..80_000).map(|i| (i, i)).collect();
        expected[5].1 = -5;
        expected[9_999].1 = -1;
        expected[79_999].1 = -2;
        check(vec![source(1, vec![chunk(&big)]), source(2, vec![chunk(&after)]), small], &expected);
    }

    #[test]
    fn order_sorts_and_the_later_of_equal_times_counts() {
        let times = vec![3, 1, 3, 2, 1];
        let order = TimeOrder::of(&times);
        let mut column = chunk(&[(0, 30), (0, 10), (0, 31), (0, 20), (0, 11)]).column;
        column.gaps.set(3, 5);
        let column = order.column(column);
        assert_eq!(order.times(times), [1, 2, 3]);
        assert_eq!(column.values, ColumnValues::Int(vec![11, 20, 31]));
        assert_eq!((0..3).map(|i| column.gaps.is_gap(i)).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(TimeOrder::of(&[1, 2, 3]), TimeOrder(None));
    }
}
