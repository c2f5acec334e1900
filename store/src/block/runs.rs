//! The rows of one sensor in a block, without deleted ones.

use crate::StoreError;
use crate::block::index::IndexEntry;
use crate::block::rows::RowReader;
use crate::block::tombstones::{Tombstone, remaining};

/// The rows of one sensor in one input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeRun {
    pub input: usize,
    pub row: u64,
    pub end: u64,
    pub first_time: i64,
    pub last_time: i64,
}

/// A sensor's rows from a time on, without deleted ones.
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
    for (from, to) in remaining(tombstones, &entry.path, all.0, all.1) {
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
