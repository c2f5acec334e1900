//! Consecutive readings of one sensor, and operations on them.

use wholegrain_model::{Column, ColumnValues, Gaps, ValueType};

/// Consecutive readings of one sensor, raw (not scaled), gaps included; times strictly increasing, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Times, ns since the Unix epoch.
    pub times: Vec<i64>,
    /// A value or gap for each time.
    pub column: Column,
}

/// The rows of `from <= time < to`.
pub(crate) fn cut(chunk: Chunk, from: i64, to: i64) -> Chunk {
    let start = chunk.times.partition_point(|time| *time < from);
    let end = chunk.times.partition_point(|time| *time < to);
    if start == 0 && end == chunk.times.len() {
        return chunk;
    }
    part(&chunk, start, end.max(start))
}

pub(crate) fn part(chunk: &Chunk, start: usize, end: usize) -> Chunk {
    let is_float = matches!(chunk.column.values, ColumnValues::Float(_));
    let mut column = empty(if is_float { ValueType::Float } else { ValueType::Int });
    append(&mut column, &chunk.column.values, &chunk.column.gaps, start, end - start, end - start);
    Chunk { times: chunk.times[start..end].to_vec(), column }
}

/// The most rows of one chunk.
pub(crate) const CHUNK_ROWS: usize = 65_536;

/// A column without rows.
pub(crate) fn empty(value_type: ValueType) -> Column {
    let values = match value_type {
        ValueType::Int => ColumnValues::Int(Vec::new()),
        ValueType::Float => ColumnValues::Float(Vec::new()),
    };
    Column { values, gaps: Gaps::default() }
}

/// Appends rows `offset..offset + rows` of `values` to a column that will have at most `len` rows. Types must agree.
pub(crate) fn append(to: &mut Column, values: &ColumnValues, gaps: &Gaps, offset: usize, rows: usize, len: usize) {
    let at = to.len();
    match (&mut to.values, values) {
        (ColumnValues::Int(to), ColumnValues::Int(from)) => to.extend_from_slice(&from[offset..offset + rows]),
        (ColumnValues::Float(to), ColumnValues::Float(from)) => to.extend_from_slice(&from[offset..offset + rows]),
        _ => return,
    }
    if !gaps.0.is_empty() {
        (0..rows).filter(|i| gaps.is_gap(offset + i)).for_each(|i| set_gap(&mut to.gaps, at + i, len));
    }
}

/// Marks a gap in a column that grows: the words are there as far as they are needed.
pub(crate) fn set_gap(gaps: &mut Gaps, index: usize, len: usize) {
    let words = len.max(index + 1).div_ceil(64);
    if gaps.0.len() < words {
        gaps.0.resize(words, 0);
    }
    gaps.0[index / 64] |= 1 << (index % 64);
}

impl Chunk {
    /// Takes everything out and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.times.clear();
        self.column.gaps.0.clear();
        match &mut self.column.values {
            ColumnValues::Int(values) => values.clear(),
            ColumnValues::Float(values) => values.clear(),
        }
    }
}
