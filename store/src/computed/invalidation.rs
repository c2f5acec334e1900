//! What arrived that may concern something that is kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::SchemaHash;

use crate::live::LiveBatch;
use crate::readings::LiveReadings;

/// Of so many commits the first time is known. Who made a result for longer than that many took cannot have it kept.
pub(crate) const RECENT: u64 = 4096;
/// The most groups and sensors noted one by one; beyond it every sensor counts as concerned.
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

/// What arrives, and how far what is kept reaches.
pub(crate) struct Invalidations {
    /// Nothing kept is made from readings behind this.
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

    /// Keeps the notes within their bound.
    fn gather(&mut self) {
        if self.groups.len() + self.sensors.len() > NOTED_MAX {
            let ranges: Vec<TimeRange> = self.groups.values().chain(self.sensors.values()).copied().collect();
            ranges.into_iter().for_each(|range| self.widen_all(range));
            self.groups.clear();
            self.sensors.clear();
        }
    }

    /// The times of each sensor, those of the groups too.
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

    /// Nothing kept is made from readings behind this.
    pub fn until(&self) -> i64 {
        self.until.load(SeqCst)
    }

    /// What is kept now reaches this far.
    pub fn raise(&self, until: i64) {
        self.until.fetch_max(until, SeqCst);
    }

    /// What is kept now reaches only this far. The caller holds what puts more there.
    pub fn lower(&self, until: i64) {
        self.until.store(until, SeqCst);
    }

    /// Commits numbered so far.
    pub fn commits(&self) -> u64 {
        self.commits.load(SeqCst)
    }

    /// One commit of the journal; from one thread only. Neither locks nor allocates when all of it is behind what is kept.
    pub fn heard(&self, batches: &[Arc<LiveBatch>], records: &[(u64, Arc<LiveReadings>)]) {
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

    /// A reading that the journal held when the store was opened.
    pub fn replayed(&self, sensor: u32, time: i64) {
        if time <= self.until() {
            self.note(sensor, time, time);
        }
    }

    /// Something changed of one sensor.
    pub fn note(&self, sensor: u32, first: i64, last: i64) {
        let mut notes = self.notes();
        widen(notes.sensors.entry(sensor).or_insert((first, last)), (first, last));
        notes.gather();
    }

    /// Something changed of any sensor.
    pub fn note_all(&self, first: i64, last: i64) {
        self.notes().widen_all((first, last));
    }

    /// The first time of everything that was committed since there were so many commits; `None` when that is not known any more.
    pub fn first_since(&self, commits: u64) -> Option<i64> {
        let now = self.commits();
        let known = |now: u64| now.checked_sub(commits).is_some_and(|since| since < RECENT);
        if !known(now) {
            return None;
        }
        let first = (commits..now).map(|number| self.recent[(number % RECENT) as usize].load(SeqCst)).min();
        // What was read may have been written over meanwhile.
        known(self.commits()).then_some(first.unwrap_or(i64::MAX))
    }

    /// What is noted, if anything is; it is not afterwards.
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
