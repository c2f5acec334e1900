//! Downsampled tiers: for each window of 10 s, 5 min and 1 h the least, the greatest, the sum, the number, the first and the last of a
//! sensor's values, so that an answer over a year need not read every second.
//!
//! - In: the readings of a block as it is merged, or of a block that no merge changes any more.
//! - Out: Parquet files under `tiers/`, each the companion of one block; at query time [`crate::ScanPart`]s: windows where a block is alone
//!   with its time, and readings where blocks overlap.
//! - Never: a window that counts a reading twice, or one that a reader takes for whole while half of it is gone.

pub(crate) mod build;
pub(crate) mod rewrite;
pub(crate) mod write;

use crate::time::floor;

/// The time from which all readings that a sensor's windows were made from are in their block, except deleted ones. `trimmed`: retention removed
/// readings from the block; `in_block` and `in_tier`: the times of the sensor's first reading in each. Retention removes a sensor's readings up to
/// an edge of the `coarsest` windows, which differs from sensor to sensor.
pub(crate) fn readings_from(trimmed: bool, in_block: Option<i64>, in_tier: i64, coarsest: i64) -> i64 {
    match in_block {
        _ if !trimmed => i64::MIN,
        None => i64::MAX,
        Some(first) if first > in_tier => floor(first, coarsest),
        Some(_) => i64::MIN,
    }
}
