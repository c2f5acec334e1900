//! Notes which arrived readings may invalidate cached pieces.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::SchemaHash;

use crate::head::live::LiveBatch;
use crate::head::readings::LiveReadings;

/// The number of recent commits whose first time is known. A result that took longer to compute is not cached.
pub(crate) const RECENT: u64 = 4096;
/// The most groups and sensors that are noted separately; above it every sensor is invalidated.
const NOTED_MAX: usize = 100_000;

/// Times, first and last.
pub(crate) type TimeRange = (i64, i64);

/// Ranges of new or changed readings whose cached results are not removed yet.
#[derive(Debug, Default)]
pub(crate) struct PendingInvalidations {
    groups: HashMap<SchemaHash, TimeRange>,
    sensors: HashMap<u32, TimeRange>,
    pub all: Option<TimeRange>,
}

/// The arrived readings, and the times that the cache depends on.
pub(crate) struct Invalidations {
    /// No cached piece depends on readings after this time.
    until: AtomicI64,
    commits: AtomicU64,
    /// The first time of the commit `n` at `n % RECENT`.
    recent: Box<[AtomicI64]>,
    notes: Mutex<PendingInvalidations>,
}

impl Default for Invalidations {
    fn default() -> Self {
        let recent = (0..RECENT).map(|_| AtomicI64::new(i64::MIN)).collect();
        Self { until: AtomicI64::new(i64::MIN), commits: AtomicU64::new(0), recent, notes: Mutex::default() }
    }
}

fn widen(range: &mut TimeRange, (first, last): TimeRange) {
    *range = (range.0.min(first), range.1.max(last));
}

impl PendingInvalidations {
    fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.sensors.is_empty() && self.all.is_none()
    }

    fn widen_all(&mut self, range: TimeRange) {
        match &mut self.all {
            Some(all) => widen(all, range),
            None => self.all = Some(range),
        }
    }

    /// Keeps the number of entries within the bound.
    fn gather(&mut self) {
        if self.groups.len() + self.sensors.len() > NOTED_MAX {
            let ranges: Vec<TimeRange> = self.groups.values().chain(self.sensors.values()).copied().collect();
            ranges.into_iter().for_each(|range| self.widen_all(range));
            self.groups.clear();
            self.sensors.clear();
        }
    }

    /// The times of each sensor, including those of its groups.
    pub fn by_sensor(&self, ids: impl Fn(&SchemaHash) -> Vec<u32>) -> HashMap<u32, TimeRange> {
        let mut found = self.sensors.clone();
        for (hash, range) in &self.groups {
            for id in ids(hash) {
                widen(found.entry(id).or_insert(*range), *range);
            }
        }
        found
    }
}

impl Invalidations {
    fn notes(&self) -> std::sync::MutexGuard<'_, PendingInvalidations> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No cached piece depends on readings after this time.
    pub fn until(&self) -> i64 {
        self.until.load(SeqCst)
    }

    /// The cache now depends on readings up to this time.
    pub fn raise(&self, until: i64) {
        self.until.fetch_max(until, SeqCst);
    }

    /// The cache now depends only on readings up to this time. The caller holds the index.
    pub fn lower(&self, until: i64) {
        self.until.store(until, SeqCst);
    }

    /// The number of commits so far.
    pub fn commits(&self) -> u64 {
        self.commits.load(SeqCst)
    }

    /// Notes one commit of the journal; called from one thread only. Neither locks nor allocates if all readings are later than what the cache
    /// depends on.
    pub fn note_arrivals(&self, batches: &[Arc<LiveBatch>], records: &[(u64, Arc<LiveReadings>)]) {
        let times = records.iter().flat_map(|(_, record)| record.readings.iter().map(|reading| reading.time));
        let first = batches.iter().map(|batch| batch.first_time).chain(times).min();
        let Some(first) = first else { return };
        let number = self.commits.load(SeqCst);
        self.recent[(number % RECENT) as usize].store(first, SeqCst);
        self.commits.store(number + 1, SeqCst);
        let until = self.until();
        if first > until {
            return;
        }
        let mut notes = self.notes();
        for batch in batches.iter().filter(|batch| batch.first_time <= until) {
            let range = (batch.first_time, batch.last_time);
            widen(notes.groups.entry(batch.schema.hash()).or_insert(range), range);
        }
        for reading in records.iter().flat_map(|(_, record)| &record.readings).filter(|reading| reading.time <= until) {
            let range = (reading.time, reading.time);
            widen(notes.sensors.entry(reading.sensor.0).or_insert(range), range);
        }
        notes.gather();
    }

    /// Notes a replayed reading.
    pub fn replayed(&self, sensor: u32, time: i64) {
        if time <= self.until() {
            self.note(sensor, time, time);
        }
    }

    /// Notes a change of one sensor.
    pub fn note(&self, sensor: u32, first: i64, last: i64) {
        let mut notes = self.notes();
        widen(notes.sensors.entry(sensor).or_insert((first, last)), (first, last));
        notes.gather();
    }

    /// Notes a change of any sensor.
    pub fn note_all(&self, first: i64, last: i64) {
        self.notes().widen_all((first, last));
    }

    /// The first time of all commits after the first `commits`; `None` if that is not known any more.
    pub fn first_since(&self, commits: u64) -> Option<i64> {
        let now = self.commits();
        let known = |now: u64| now.checked_sub(commits).is_some_and(|since| since < RECENT);
        if !known(now) {
            return None;
        }
        let first = (commits..now).map(|number| self.recent[(number % RECENT) as usize].load(SeqCst)).min();
        // The value may have been overwritten meanwhile.
        known(self.commits()).then_some(first.unwrap_or(i64::MAX))
    }

    /// Takes what is noted, if there is anything.
    pub fn take(&self) -> Option<PendingInvalidations> {
        let mut notes = self.notes();
        (!notes.is_empty()).then(|| std::mem::take(&mut *notes))
    }

    /// Puts back invalidations that could not be applied.
    pub fn put_back(&self, taken: PendingInvalidations) {
        let mut notes = self.notes();
        for (hash, range) in taken.groups {
            widen(notes.groups.entry(hash).or_insert(range), range);
        }
        for (sensor, range) in taken.sensors {
            widen(notes.sensors.entry(sensor).or_insert(range), range);
        }
        if let Some(range) = taken.all {
            notes.widen_all(range);
        }
        notes.gather();
    }
}
