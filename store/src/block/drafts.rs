//! The blocks that a seal or an import writes: one for each day and type of value.

use std::collections::BTreeMap;

use wholegrain_model::{Column, ColumnValues, ValueType};

use crate::StoreError;
use crate::block::draft::{BlockDraft, DraftDirectory, FinishedBlock};
use crate::block::record::BlockKind;
use crate::chunk::{append, empty};
use crate::time::DAY_NS;

/// The open blocks, by type and day.
pub(crate) struct BlockDrafts<'a> {
    drafts: &'a DraftDirectory,
    zstd_level: i32,
    segment: u64,
    /// The most blocks of single days.
    days_max: usize,
    /// By type (integers first) and day.
    open: BTreeMap<(bool, Option<i64>), BlockDraft>,
}

impl<'a> BlockDrafts<'a> {
    pub(crate) fn new(drafts: &'a DraftDirectory, zstd_level: i32, segment: u64, days_max: usize) -> Self {
        Self { drafts, zstd_level, segment, days_max, open: BTreeMap::new() }
    }

    /// Adds readings of one sensor, in time order, to the blocks of their days.
    pub fn push(&mut self, path: &str, times: &[i64], column: &Column) -> Result<(), StoreError> {
        let mut at = 0;
        while at < times.len() {
            let day = times[at].div_euclid(DAY_NS);
            let rows = times[at..].partition_point(|time| time.div_euclid(DAY_NS) == day);
            let draft = self.draft(day, column)?;
            if rows == times.len() {
                draft.writer.push(path, times, column)?;
            } else {
                let len = column.len();
                let value_type =
                    if matches!(column.values, ColumnValues::Int(_)) { ValueType::Int } else { ValueType::Float };
                let mut part = empty(value_type);
                append(&mut part, &column.values, &column.gaps, at, rows, len);
                draft.writer.push(path, &times[at..at + rows], &part)?;
            }
            at += rows;
        }
        Ok(())
    }

    fn draft(&mut self, day: i64, column: &Column) -> Result<&mut BlockDraft, StoreError> {
        let is_float = matches!(column.values, ColumnValues::Float(_));
        let key = (is_float, Some(day));
        let key = if self.open.len() < self.days_max || self.open.contains_key(&key) { key } else { (is_float, None) };
        match self.open.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let kind = BlockKind {
                    value_type: if is_float { ValueType::Float } else { ValueType::Int },
                    day: key.1,
                    level: 0,
                    first_segment: self.segment,
                    last_segment: self.segment,
                    import: 0,
                };
                Ok(entry.insert(BlockDraft::create(self.drafts, kind, self.zstd_level)?))
            }
        }
    }

    pub(crate) fn finish(self) -> Result<Vec<FinishedBlock>, StoreError> {
        self.open.into_values().map(BlockDraft::finish).collect()
    }
}
