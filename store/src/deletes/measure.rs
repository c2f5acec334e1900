//! Counts what a deletion or a rule of retention would affect, without changing anything.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::Interval;

use crate::block::index::IndexEntry;
use crate::block::read::{Block, OpenBlock, tolerate};
use crate::block::rows::RowReader;
use crate::block::tombstones::{remaining, remaining_windows, touches};
use crate::config::coarsest;
use crate::downsample::readings_from;
use crate::sensors::SensorIndex;
use crate::snapshot::Snapshot;
use crate::{SensorId, StoreError};

/// The most unreadable files that are named.
const UNREADABLE_MAX: usize = 16;
/// The most sensors whose numbers are collected; above it any sensor may be affected.
const SENSORS_MAX: usize = 100_000;

/// What a deletion affects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeletionReport {
    /// Sensors with affected readings.
    pub sensors: u64,
    /// Readings as they are stored: one that was sent twice and is in two files counts twice.
    pub readings: u64,
    /// Their approximate bytes: of each file's bytes the share of its readings.
    pub bytes: u64,
    /// Windows of tiers that outlived their readings.
    pub windows: u64,
    /// Files with affected readings.
    pub files: u64,
    /// The first and the last time of the affected sensors in these files, within the range; ns since the Unix epoch.
    pub times: Option<(i64, i64)>,
    /// Damaged files that may contain more.
    pub unreadable: Vec<PathBuf>,
}

pub(crate) struct DeletionMeasurement<'a> {
    index: &'a SensorIndex,
    tiers: &'a [Interval],
    /// The range affected of a sensor, if there is one.
    takes: &'a dyn Fn(&str) -> Option<(i64, i64)>,
    seen: HashSet<u64>,
    /// Numbers of the files that are or may be affected.
    pub files: HashSet<u64>,
    /// The sensors; `None` when they are too many.
    pub sensors: Option<Vec<SensorId>>,
    pub affected: DeletionReport,
}

impl<'a> DeletionMeasurement<'a> {
    pub(crate) fn new(
        index: &'a SensorIndex,
        tiers: &'a [Interval],
        takes: &'a dyn Fn(&str) -> Option<(i64, i64)>,
    ) -> Self {
        let (seen, files) = (HashSet::new(), HashSet::new());
        Self { index, tiers, takes, seen, files, sensors: Some(Vec::new()), affected: DeletionReport::default() }
    }

    fn note(&mut self, path: &str, times: (i64, i64)) {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        if self.seen.insert(hasher.finish()) {
            self.affected.sensors += 1;
            if let (Some(sensors), Some(id)) = (&mut self.sensors, self.index.read().id(path)) {
                sensors.push(id);
                if sensors.len() > SENSORS_MAX {
                    self.sensors = None;
                }
            }
        }
        let before = self.affected.times.unwrap_or(times);
        self.affected.times = Some((before.0.min(times.0), before.1.max(times.1)));
    }

    /// Notes an unreadable file that may be affected.
    pub fn unreadable(&mut self, block: &Block) {
        self.files.insert(block.record.id);
        if self.affected.unreadable.len() < UNREADABLE_MAX {
            self.affected.unreadable.push(block.path.clone());
        }
    }

    /// Counts the affected readings of one block.
    pub fn block(&mut self, block: &Arc<Block>) -> Result<(), StoreError> {
        let opened = if block.is_damaged() { None } else { tolerate(block, OpenBlock::open_once(block))? };
        let Some(opened) = opened else {
            self.unreadable(block);
            return Ok(());
        };
        let mut reader = RowReader::new(opened.clone(), None);
        let (mut start, mut taken) = (0u64, 0u64);
        for entry in opened.entries() {
            let (first_row, end_row) = (start, start + entry.rows);
            start = end_row;
            let Some((from, to)) = (self.takes)(&entry.path) else { continue };
            let mut rows = 0;
            for (from, to) in remaining(&block.record.tombstones, &entry.path, from, to) {
                rows += match tolerate(block, rows_in(&mut reader, entry, (first_row, end_row), (from, to)))? {
                    Some(rows) => rows,
                    None => {
                        self.unreadable(block);
                        return Ok(());
                    }
                };
            }
            if rows > 0 {
                taken += rows;
                self.note(&entry.path, (entry.first_time.max(from), entry.last_time.min(to.saturating_sub(1))));
            }
        }
        if taken > 0 {
            self.files.insert(block.record.id);
            self.affected.files += 1;
            self.affected.readings += taken;
            let part = u128::from(block.record.bytes) * u128::from(taken) / u128::from(block.record.rows.max(1));
            self.affected.bytes += u64::try_from(part).unwrap_or(u64::MAX);
        }
        Ok(())
    }

    /// Counts the windows of a tier whose readings are not in its block any more.
    pub fn tier(&mut self, tier: &Arc<Block>, block: Option<&Arc<Block>>) -> Result<(), StoreError> {
        let resolution = tier.record.tier.map_or(1, |of| of.resolution_ns);
        let opened = if tier.is_damaged() { None } else { tolerate(tier, OpenBlock::open_once(tier))? };
        let Some(opened) = opened else {
            self.unreadable(tier);
            return Ok(());
        };
        let whole = block.is_some_and(|block| !block.record.trimmed);
        let left = match block.filter(|_| !whole) {
            Some(block) => tolerate(block, OpenBlock::open_once(block))?,
            None => None,
        };
        let coarsest = coarsest(self.tiers, resolution);
        let (mut found, mut alone) = (0, false);
        for entry in opened.entries() {
            let Some((from, to)) = (self.takes)(&entry.path) else { continue };
            let cut = crate::block::tombstones::Tombstone { patterns: Vec::new(), from, to };
            let (from, to) = cut.windows(resolution);
            if from > entry.last_time || to <= entry.first_time {
                continue;
            }
            if touches(&tier.record.tombstones, &entry.path, entry.first_time, entry.last_time, 1)
                && remaining_windows(&tier.record.tombstones, &entry.path, from, to, resolution).is_empty()
            {
                continue;
            }
            found += entry.rows.max(1);
            let in_block = left.as_ref().and_then(|left| left.find(&entry.path)).map(|found| found.first_time);
            let there_from = readings_from(!whole, in_block, entry.first_time, coarsest);
            let (from, last) = (from.max(entry.first_time), to.min(there_from).saturating_sub(1).min(entry.last_time));
            if from <= last {
                alone = true;
                self.note(&entry.path, (from, last));
                let span = entry.last_time.saturating_sub(entry.first_time).max(1);
                let part = last.saturating_sub(from).saturating_add(1);
                let rows = u128::from(entry.rows) * part.unsigned_abs() as u128 / span.unsigned_abs() as u128;
                self.affected.windows += u64::try_from(rows).unwrap_or(u64::MAX).min(entry.rows);
            }
        }
        if found > 0 {
            self.files.insert(tier.record.id);
            self.affected.files += u64::from(alone);
        }
        Ok(())
    }

    /// Counts readings that are not sealed.
    pub fn live(&mut self, snapshot: &Snapshot, ids: &[(SensorId, Arc<str>)]) {
        for (id, path) in ids {
            let Some((from, to)) = (self.takes)(path) else { continue };
            for (_, chunk) in snapshot.live_chunks(*id, from, to) {
                self.affected.readings += chunk.times.len() as u64;
                self.note(path, (chunk.times[0], chunk.times[chunk.times.len() - 1]));
            }
        }
    }
}

/// How many of a sensor's rows are within a range.
fn rows_in(
    reader: &mut RowReader,
    entry: &IndexEntry,
    (start, end): (u64, u64),
    (from, to): (i64, i64),
) -> Result<u64, StoreError> {
    if entry.last_time < from || entry.first_time >= to {
        return Ok(0);
    }
    let first = if entry.first_time < from { reader.seek(start, end, from)? } else { start };
    let last = if entry.last_time >= to { reader.seek(first, end, to)? } else { end };
    Ok(last - first)
}
