//! The catalogue's record of a block or tier.

use serde::{Deserialize, Serialize};
use wholegrain_model::ValueType;

use crate::block::tombstones::Tombstone;
use crate::block::windows::TierSource;
use crate::time::{DAY_NS, civil};

/// Checksums of a finished file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileChecksums {
    /// CRC-32C of the whole file.
    pub file: u32,
    /// End of the last page: page indexes and the footer follow, which have no checksums of their own.
    pub tail_at: u64,
    /// CRC-32C of everything after it.
    pub tail: u32,
}

/// A summary of a finished file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockSummary {
    pub entries: usize,
    pub rows: u64,
    pub bytes: u64,
    pub first_time: i64,
    pub last_time: i64,
    pub sums: FileChecksums,
}

/// The catalogue's record of one block or tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockRecord {
    pub id: u64,
    /// Below `blocks/`; the path of a tier is below the store's directory and begins with `tiers/`.
    pub path: String,
    pub value_type: ValueType,
    /// The UTC day of all its readings, in days since 1970-01-01; `None` if there are several.
    pub day: Option<i64>,
    /// 0 for a sealed block, else one more than the highest level of the merged blocks.
    pub level: u32,
    /// The first and the last journal segment in it. If two blocks have a reading of the same time, the one with the later last segment counts.
    pub first_segment: u64,
    pub last_segment: u64,
    /// Of blocks with the same last segment the one with the larger number counts: imports are numbered from 1, sealed blocks have 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub import: u32,
    pub first_time: i64,
    pub last_time: i64,
    pub rows: u64,
    pub bytes: u64,
    /// The block that it is a tier of; `None` for readings. The times are those of the readings that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierSource>,
    /// Whether retention removed rows of some sensors: then it is not merged any more, so that its tiers keep their windows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trimmed: bool,
    /// `None` only while the catalogue is rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<FileChecksums>,
    /// Deletions that are not applied to the file yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tombstones: Vec<Tombstone>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Bits of a block's rank that distinguish imports with one last segment.
const IMPORT_BITS: u32 = 24;

/// The largest [`BlockRecord::import`]; further imports with the same last segment share it.
pub(crate) const IMPORT_NUMBER_MAX: u32 = (1 << IMPORT_BITS) - 1;

impl BlockRecord {
    /// If two blocks have a reading of the same sensor and time, the one of the higher rank counts.
    pub fn rank(&self) -> u64 {
        self.last_segment << IMPORT_BITS | u64::from(self.import.min(IMPORT_NUMBER_MAX))
    }
}

/// Properties of a block that is being written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockKind {
    pub value_type: ValueType,
    /// `None` for several days.
    pub day: Option<i64>,
    pub level: u32,
    pub first_segment: u64,
    pub last_segment: u64,
    pub import: u32,
}

impl BlockKind {
    /// The record of a finished file.
    pub fn record(self, id: u64, path: String, tier: Option<TierSource>, written: &BlockSummary) -> BlockRecord {
        let BlockKind { value_type, day, level, first_segment, last_segment, import } = self;
        BlockRecord {
            id,
            path,
            value_type,
            day,
            level,
            first_segment,
            last_segment,
            import,
            first_time: written.first_time,
            last_time: written.last_time,
            rows: written.rows,
            bytes: written.bytes,
            tier,
            trimmed: false,
            sums: Some(written.sums),
            tombstones: Vec::new(),
        }
    }
}

/// `yyyy/mm/dd/<first time>-<id>-int.parquet`, by the UTC day of the first time.
pub(crate) fn block_path(id: u64, value_type: ValueType, first_time: i64) -> String {
    let (year, month, day) = civil(first_time.div_euclid(DAY_NS));
    let kind = match value_type {
        ValueType::Int => "int",
        ValueType::Float => "float",
    };
    format!("{year:04}/{month:02}/{day:02}/{first_time}-{id}-{kind}.parquet")
}

pub(crate) fn kind_of(record: &BlockRecord) -> BlockKind {
    BlockKind {
        value_type: record.value_type,
        day: record.day,
        level: record.level,
        first_segment: record.first_segment,
        last_segment: record.last_segment,
        import: record.import,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_the_day() {
        assert_eq!(
            block_path(7, ValueType::Float, 1_767_225_600_000_000_000),
            "2026/01/01/1767225600000000000-7-float.parquet"
        );
    }
}
