//! How much is stored of each part of the tree of sensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::Pattern;

use crate::StoreError;
use crate::block::read::{OpenBlock, tolerate};
use crate::block::record::BlockRecord;
use crate::files::FileSet;
use crate::sensors::SensorIndex;

/// Sensors that are in memory at a time in [`usage_by_subtree`].
const PART_SENSORS: usize = 4096;
/// The most rows of [`usage_by_subtree`]; one more row has the rest.
pub const SUBTREES_MAX: usize = 10_000;

/// What is stored of a sub-tree.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SubtreeUsage {
    pub path: String,
    pub sensors: u64,
    /// Sensors whose newest reading is at most ten of their intervals, or ten minutes, old.
    pub live: u64,
    /// Readings a second of these sensors, by their intervals.
    pub per_s: f64,
    pub readings: u64,
    /// Their approximate bytes in blocks and tiers.
    pub bytes: u64,
    /// The first and the last time in blocks, ns since the Unix epoch.
    pub times: Option<(i64, i64)>,
}

/// A sensor that has been silent for this many intervals is not live.
const SILENT_INTERVALS: u64 = 10;
/// The same for a sensor without interval, or with a short one; ns.
const SILENT_NS: u64 = 600_000_000_000;

/// Reads the indexes of all files, one after the other. Counts only a part if `is_over` returns true.
pub(crate) fn usage_by_subtree(
    sensors: &SensorIndex,
    files: &FileSet,
    levels: usize,
    patterns: &[Pattern],
    now: i64,
    is_over: &dyn Fn() -> bool,
) -> Result<Vec<SubtreeUsage>, StoreError> {
    let mut shares: BTreeMap<String, SubtreeUsage> = BTreeMap::new();
    let mut after: Option<Arc<str>> = None;
    loop {
        let part = sensors.select_after_until(patterns, after.as_deref(), PART_SENSORS, is_over);
        for sensor in &part {
            let share = share_of(&mut shares, &sensor.path, levels);
            share.sensors += 1;
            let silent = SILENT_NS.max(sensor.interval_ns.saturating_mul(SILENT_INTERVALS));
            if sensor.last_time.is_some_and(|last| now.saturating_sub(last).cast_unsigned() <= silent) {
                share.live += 1;
                share.per_s += if sensor.interval_ns > 0 { 1e9 / sensor.interval_ns as f64 } else { 0.0 };
            }
        }
        after = part.last().filter(|_| part.len() == PART_SENSORS).map(|last| last.path.clone());
        if after.is_none() || is_over() {
            break;
        }
    }
    let view = files.view();
    for file in view.blocks.iter().chain(&view.tiers).filter(|file| !file.is_damaged()) {
        if is_over() {
            break;
        }
        if let Some(opened) = tolerate(file, OpenBlock::open_once(file))? {
            take(&mut shares, (&file.record, &opened), levels, patterns, is_over);
        }
    }
    Ok(shares.into_values().collect())
}

fn take(
    shares: &mut BTreeMap<String, SubtreeUsage>,
    (record, opened): (&BlockRecord, &OpenBlock),
    levels: usize,
    patterns: &[Pattern],
    is_over: &dyn Fn() -> bool,
) {
    for entry in opened.entries().iter().take_while(|_| !is_over()) {
        if !patterns.iter().any(|pattern| pattern.matches(&entry.path)) {
            continue;
        }
        let share = share_of(shares, &entry.path, levels);
        let part = u128::from(record.bytes) * u128::from(entry.rows) / u128::from(record.rows.max(1));
        share.bytes += u64::try_from(part).unwrap_or(u64::MAX);
        if record.tier.is_none() {
            share.readings += entry.rows;
        }
        let (first, last) = share.times.unwrap_or((entry.first_time, entry.last_time));
        share.times = Some((first.min(entry.first_time), last.max(entry.last_time)));
    }
}

/// The sub-tree that a sensor is in.
fn share_of<'a>(shares: &'a mut BTreeMap<String, SubtreeUsage>, path: &str, levels: usize) -> &'a mut SubtreeUsage {
    let mut key = match path.match_indices('/').nth(levels) {
        Some((end, _)) => &path[..end],
        None => path,
    };
    if levels == 0 {
        key = "/";
    }
    if !shares.contains_key(key) && shares.len() >= SUBTREES_MAX {
        key = "(more)";
    }
    shares.entry(key.to_owned()).or_insert_with(|| SubtreeUsage { path: key.to_owned(), ..SubtreeUsage::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtrees() {
        let mut shares = BTreeMap::new();
        for (levels, path, expected) in
            [(0, "/a/b/c", "/"), (1, "/a/b/c", "/a"), (2, "/a/b/c", "/a/b"), (3, "/a/b/c", "/a/b/c"), (9, "/a", "/a")]
        {
            assert_eq!(share_of(&mut shares, path, levels).path, expected, "{levels}");
        }
        (0..SUBTREES_MAX + 5).for_each(|i| share_of(&mut shares, &format!("/x{i}/y"), 1).sensors += 1);
        assert_eq!(shares.len(), SUBTREES_MAX + 1);
        assert_eq!(shares.values().map(|share| share.sensors).sum::<u64>(), SUBTREES_MAX as u64 + 5);
    }
}
