//! Reads rows of a block, or windows of a tier, page by page.

use std::sync::Arc;

use wholegrain_model::{ColumnValues, ValueType};

use super::cache::BlockCache;
use super::find::SensorRows;
use super::read::{COUNT, DecodedPage, OpenBlock, PageRef, TIME, UNEVEN, VALUE};
use crate::block::windows::{TierWindows, WindowColumns, WindowEdges, WindowLines, even_area};
use crate::chunk::{CHUNK_ROWS, append, empty};
use crate::{Chunk, StoreError};

/// Reads rows of one block. It keeps the last pages, so that going through a block decodes each page once.
pub(crate) struct RowReader {
    block: Arc<OpenBlock>,
    cache: Option<Arc<BlockCache>>,
    last: Vec<Option<(usize, Arc<DecodedPage>)>>,
    /// The distance from a row to the row with its time.
    times_before: u64,
}

impl RowReader {
    pub(crate) fn new(block: Arc<OpenBlock>, cache: Option<Arc<BlockCache>>) -> Self {
        let last = vec![None; block.pages.len()];
        Self { block, cache, last, times_before: 0 }
    }

    /// A reader of one sensor. Its times are read from the first sensor with the same times, so that they are decoded once.
    pub fn of(block: Arc<OpenBlock>, cache: Option<Arc<BlockCache>>, found: SensorRows) -> Self {
        Self { times_before: found.start - found.times, ..Self::new(block, cache) }
    }

    /// Goes on with this sensor; the last pages are kept.
    pub fn begin(&mut self, found: SensorRows) {
        self.times_before = found.start - found.times;
    }

    /// [`RowReader::read_windows`], with the lines between the values.
    pub fn read_lines(&mut self, start: u64, count: u64) -> Result<TierWindows, StoreError> {
        let mut windows = self.read_windows(start, count)?;
        match &mut windows {
            TierWindows::Int(rows) => rows.lines = Some(self.lines_of(rows, start, |value| value as f64)?),
            TierWindows::Float(rows) => rows.lines = Some(self.lines_of(rows, start, |value| value)?),
        }
        Ok(windows)
    }

    fn lines_of<T: Copy>(
        &mut self,
        rows: &WindowColumns<T>,
        start: u64,
        float: impl Fn(T) -> f64,
    ) -> Result<WindowLines, StoreError> {
        let count = rows.times.len() as u64;
        let first_after = self.ints(7, start, count)?;
        let last_after = self.ints(8, start, count)?;
        let covered = self.ints(9, start, count)?;
        let mut area = self.floats(UNEVEN, start, count)?;
        for (at, area) in area.iter_mut().enumerate() {
            let ends = (float(rows.firsts[at]), float(rows.lasts[at]));
            let even = even_area(rows.counts[at], float(rows.sums[at]), ends, covered[at]);
            if even.is_finite() {
                *area += even;
            }
        }
        let codes = self.ints(11, start, count)?;
        let edges: Option<Vec<WindowEdges>> = codes.into_iter().map(WindowEdges::of).collect();
        let edges = edges.ok_or_else(|| StoreError::damaged(&self.block.path, "what is beside a window is unknown"))?;
        Ok(WindowLines { first_after, last_after, covered, area, edges })
    }

    /// Up to `count` windows of a tier from row `start` on, as [`RowReader::read`] does with readings.
    pub fn read_windows(&mut self, start: u64, count: u64) -> Result<TierWindows, StoreError> {
        let count = count.min(CHUNK_ROWS as u64);
        let times = self.ints(TIME, start, count)?;
        let rows = times.len() as u64;
        let counts = self.ints(COUNT, start, rows)?;
        if counts.iter().any(|count| *count < 1) {
            return Err(StoreError::damaged(&self.block.path, "a window without a value"));
        }
        Ok(match self.block.value_type {
            ValueType::Int => TierWindows::Int(WindowColumns {
                times,
                counts,
                mins: self.ints(1, start, rows)?,
                maxs: self.ints(2, start, rows)?,
                sums: self.ints(3, start, rows)?,
                firsts: self.ints(5, start, rows)?,
                lasts: self.ints(6, start, rows)?,
                lines: None,
            }),
            ValueType::Float => TierWindows::Float(WindowColumns {
                times,
                counts,
                mins: self.floats(1, start, rows)?,
                maxs: self.floats(2, start, rows)?,
                sums: self.floats(3, start, rows)?,
                firsts: self.floats(5, start, rows)?,
                lasts: self.floats(6, start, rows)?,
                lines: None,
            }),
        })
    }

    /// The times of `count` rows from `start` on.
    pub fn times(&mut self, start: u64, count: u64) -> Result<Vec<i64>, StoreError> {
        self.ints(TIME, start - self.times_before, count)
    }

    fn ints(&mut self, column: usize, start: u64, count: u64) -> Result<Vec<i64>, StoreError> {
        self.rows_of(column, start, count, |values| match values {
            ColumnValues::Int(values) => Ok(values.as_slice()),
            ColumnValues::Float(_) => Err("a column of integers holds floats"),
        })
    }

    fn floats(&mut self, column: usize, start: u64, count: u64) -> Result<Vec<f64>, StoreError> {
        self.rows_of(column, start, count, |values| match values {
            ColumnValues::Float(values) => Ok(values.as_slice()),
            ColumnValues::Int(_) => Err("a column of floats holds integers"),
        })
    }

    fn rows_of<T: Copy>(
        &mut self,
        column: usize,
        start: u64,
        count: u64,
        of: impl Fn(&ColumnValues) -> Result<&[T], &'static str>,
    ) -> Result<Vec<T>, StoreError> {
        let count = usize::try_from(count).unwrap_or(CHUNK_ROWS);
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            let (page, offset) = self.page(column, start + rows.len() as u64)?;
            let values = of(&page.values).map_err(|wrong| StoreError::damaged(&self.block.path, wrong))?;
            rows.extend_from_slice(&values[offset..values.len().min(offset + count - rows.len())]);
        }
        Ok(rows)
    }

    /// Up to `count` rows from row `start` on: at least one, at most to the end of the page of times.
    pub fn read(&mut self, start: u64, count: u64) -> Result<Chunk, StoreError> {
        self.read_until(start, count, None)
    }

    /// The same, without rows whose times are not before `to`; there may be none.
    pub fn read_until(&mut self, start: u64, count: u64, to: Option<i64>) -> Result<Chunk, StoreError> {
        let count = usize::try_from(count).unwrap_or(CHUNK_ROWS).min(CHUNK_ROWS);
        let (times, offset) = self.page(TIME, start - self.times_before)?;
        let ColumnValues::Int(times) = &times.values else {
            return Err(StoreError::damaged(&self.block.path, "times are no integers"));
        };
        let times = &times[offset..times.len().min(offset + count)];
        let times = to.map_or(times, |to| &times[..times.partition_point(|time| *time < to)]).to_vec();
        let mut chunk = Chunk { times, column: empty(self.block.value_type) };
        while chunk.column.len() < chunk.times.len() {
            let at = chunk.column.len();
            let (values, offset) = self.page(VALUE, start + at as u64)?;
            let rows = (chunk.times.len() - at).min(values.gaps_len() - offset);
            append(&mut chunk.column, &values.values, &values.gaps, offset, rows, chunk.times.len());
        }
        Ok(chunk)
    }

    /// One row with a known time.
    pub fn read_one(&mut self, row: u64, time: i64) -> Result<Chunk, StoreError> {
        let mut chunk = Chunk { times: vec![time], column: empty(self.block.value_type) };
        let (values, offset) = self.page(VALUE, row)?;
        append(&mut chunk.column, &values.values, &values.gaps, offset, 1, 1);
        Ok(chunk)
    }

    /// Appends rows from `start` on to a chunk, which keeps its memory: at least one, at most `count`, up to the end of a page.
    pub fn append_to(&mut self, chunk: &mut Chunk, start: u64, count: usize) -> Result<usize, StoreError> {
        let (times, at) = self.page(TIME, start - self.times_before)?;
        let (values, offset) = self.page(VALUE, start)?;
        let ColumnValues::Int(times) = &times.values else {
            return Err(StoreError::damaged(&self.block.path, "times are no integers"));
        };
        let rows = count.min(times.len() - at).min(values.gaps_len() - offset);
        let len = chunk.times.len() + rows;
        chunk.times.extend_from_slice(&times[at..at + rows]);
        append(&mut chunk.column, &values.values, &values.gaps, offset, rows, len);
        Ok(rows)
    }

    /// The first row after `row` at which a page of any column begins.
    pub fn whole_until(&self, row: u64) -> u64 {
        let next = |pages: &Vec<PageRef>| {
            let at = pages.partition_point(|page| page.first_row <= row);
            pages.get(at).map(|page| page.first_row)
        };
        self.block.pages.iter().filter_map(next).min().unwrap_or(u64::MAX)
    }

    /// The first row in `start..end` whose time is not before `from`.
    pub fn seek(&mut self, start: u64, end: u64, from: i64) -> Result<u64, StoreError> {
        let (mut low, mut high) = (start, end);
        if low < high {
            // Usually one page holds them all.
            let (times, offset) = self.page(TIME, low - self.times_before)?;
            let ColumnValues::Int(times) = &times.values else { return Ok(start) };
            let there = usize::try_from(high - low).ok().and_then(|rows| times.get(offset..offset.checked_add(rows)?));
            if let Some(times) = there {
                return Ok(low + times.partition_point(|time| *time < from) as u64);
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            let (times, offset) = self.page(TIME, middle - self.times_before)?;
            let ColumnValues::Int(times) = &times.values else { return Ok(start) };
            if times[offset] < from { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// The page of `column` with `row`, and the place in it.
    fn page(&mut self, column: usize, row: u64) -> Result<(Arc<DecodedPage>, usize), StoreError> {
        let pages = &self.block.pages[column];
        if let Some((last, decoded)) = &self.last[column]
            && let Some(page) = pages.get(*last)
            && (page.first_row..page.first_row + page.rows as u64).contains(&row)
        {
            return Ok((decoded.clone(), (row - page.first_row) as usize));
        }
        let at = pages.partition_point(|page| page.first_row <= row).wrapping_sub(1);
        let Some(page) = pages.get(at).filter(|page| row < page.first_row + page.rows as u64) else {
            return Err(StoreError::damaged(&self.block.path, format!("row {row} is in no page")));
        };
        let offset = (row - page.first_row) as usize;
        let decoded = match &self.cache {
            Some(cache) => cache.page(&self.block, column, at)?,
            None => Arc::new(self.block.decode(column, at)?),
        };
        self.last[column] = Some((at, decoded.clone()));
        Ok((decoded, offset))
    }
}
