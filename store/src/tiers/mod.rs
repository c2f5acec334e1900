//! Downsampled tiers: for each window of 10 s, 5 min and 1 h the least, the greatest, the sum, the number, the first and the last of a
//! sensor's values, so that an answer over a year need not read every second.
//!
//! - In: the readings of a block as it is merged, or of a block that no merge changes any more.
//! - Out: Parquet files under `tiers/`, each the companion of one block; at query time [`crate::ScanPart`]s: windows where a block is alone
//!   with its time, and readings where blocks overlap.
//! - Never: a window that counts a reading twice, or one that a reader takes for whole while half of it is gone.

pub(crate) mod build;
mod choose;
pub(crate) mod missing;
pub(crate) mod plan;
pub(crate) mod rewrite;
pub(crate) mod scan;
pub(crate) mod write;

use wholegrain_model::Interval;

use crate::time::floor;

/// The most tiers of a store.
pub const TIERS_MAX: usize = 8;

/// The resolutions of a configuration in ns, finest first.
pub(crate) fn resolutions(tiers: &[Interval]) -> Vec<i64> {
    tiers.iter().map(|tier| i64::try_from(tier.ns()).unwrap_or(i64::MAX)).collect()
}

/// The coarsest of them, or `resolution` where that is coarser: on edges of its windows retention cuts.
pub(crate) fn coarsest(tiers: &[Interval], resolution: i64) -> i64 {
    resolutions(tiers).last().copied().unwrap_or(resolution).max(resolution)
}

/// Checks that tiers nest: each a multiple of the one before. The text says what is wrong.
pub fn check_tiers(tiers: &[Interval]) -> Result<(), String> {
    if tiers.len() > TIERS_MAX {
        return Err(format!("has {} resolutions, at most {TIERS_MAX} are kept", tiers.len()));
    }
    if tiers.iter().any(|tier| tier.ns() == 0) {
        return Err("has a resolution of 0; write lengths of time such as \"10s\"".into());
    }
    for pair in tiers.windows(2) {
        if pair[1] <= pair[0] || !pair[1].ns().is_multiple_of(pair[0].ns()) {
            return Err(format!(
                "has {} after {}: each must be a multiple of the one before, such as \"10s\", \"5min\", \"1h\"",
                pair[1], pair[0]
            ));
        }
    }
    Ok(())
}

/// From which time on all readings of a sensor that its windows were made from are in their block, except deleted ones. `trimmed`: retention took
/// readings out of the block; `in_block` and `in_tier`: the times of the sensor's first reading in each. Retention takes a sensor's readings up to an edge
/// of the `coarsest` windows, of each sensor another one.
pub(crate) fn readings_from(trimmed: bool, in_block: Option<i64>, in_tier: i64, coarsest: i64) -> i64 {
    match in_block {
        _ if !trimmed => i64::MIN,
        None => i64::MAX,
        Some(first) if first > in_tier => floor(first, coarsest),
        Some(_) => i64::MIN,
    }
}
