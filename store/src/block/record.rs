//! The catalogue's record of a block or tier.

use crate::block::tombstones::Tombstone;
use crate::block::windows::TierSource;
use crate::time::{DAY_NS, civil};
use serde::Deserialize;
use serde::Serialize;
use wholegrain_model::ValueType;

/// Checksums of a finished file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileChecksums {
    /// CRC-32C of the whole file.
    pub file: u32,
    /// Where the last page ends: page indexes and the footer, which have no checksums of their own, follow.
    pub tail_at: u64,
    /// CRC-32C of everything from there on.
    pub tail: u32,
}

/// What the catalogue knows of one block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockRecord {
    pub id: u64,
    /// Below `blocks/`; of a tier below the store's directory, where it begins with `tiers/`.
    pub path: String,
    pub value_type: ValueType,
    /// Days since 1970-01-01 (UTC) that all its readings lie in; `None` when they lie in several.
    pub day: Option<i64>,
    /// 0 as sealed, else one more than the inputs' of the merge.
    pub level: u32,
    /// The first and the last journal segment in it: where two blocks have a reading of the same time, the later one counts.
    pub first_segment: u64,
    pub last_segment: u64,
    /// Where blocks have the same last segment, the larger number counts: imports are numbered from 1, sealed blocks have 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub import: u32,
    pub first_time: i64,
    pub last_time: i64,
    pub rows: u64,
    pub bytes: u64,
    /// What it is a tier of; `None` for readings. The times are those of the readings that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierSource>,
    /// Whether retention took some sensors' rows out: it is not merged any more, so that its tiers keep what it lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trimmed: bool,
    /// `None` only while the catalogue is rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<FileChecksums>,
    /// What has been deleted and is in the file still.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tombstones: Vec<Tombstone>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Bits of a block's rank that tell imports of one last segment apart.
const IMPORT_BITS: u32 = 24;

/// The largest [`BlockRecord::import`]; further imports into the same segment count as much as this one.
pub(crate) const IMPORT_NUMBER_MAX: u32 = (1 << IMPORT_BITS) - 1;

impl BlockRecord {
    /// Where two blocks have a reading of the same sensor and time, that of the higher rank counts.
    pub fn rank(&self) -> u64 {
        self.last_segment << IMPORT_BITS | u64::from(self.import.min(IMPORT_NUMBER_MAX))
    }
}

/// What blocks on their way have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockKind {
    pub value_type: ValueType,
    /// Days since the epoch; `None` for several.
    pub day: Option<i64>,
    pub level: u32,
    pub first_segment: u64,
    pub last_segment: u64,
    pub import: u32,
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
