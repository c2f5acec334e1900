//! Records of jobs that run or that the server does not have yet: in memory, and in one file if there is a directory.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_model::JobRecord;

use super::records::{self, BYTES_MAX, EarlierRecord, RecordDirectory, RecordUpdate, StoredRecords};
use super::shares::UserShares;
use crate::jobs::pending_records::{PendingCallback, PendingRecords};

/// The most records, and the most bytes of them as JSON. Beyond the bound, the user with the most loses the oldest records of ended jobs, so that a
/// flood of short jobs costs no other user's records.
pub const RECORDS_MAX: usize = 16_384;
/// Changes are collected for at least this time before they are written …
const PAUSE: Duration = Duration::from_millis(200);
/// … and for this many times the duration of the last write.
const PAUSE_FACTOR: u32 = 20;

/// Records of jobs that run, or whose last change the server does not have. Bounded; dropped records are counted.
#[derive(Default)]
pub struct JobTable {
    inner: Mutex<JobTableState>,
    wake: Condvar,
}

#[derive(Default)]
struct JobTableState {
    /// Ordered by their changes.
    entries: BTreeMap<u64, Arc<JobEntry>>,
    by_job: HashMap<JobIdentity, u64>,
    shares: UserShares,
    next: u64,
    bytes: usize,
    dropped: u64,
    on_pending: Option<PendingCallback>,
    /// The file has to be written.
    dirty: bool,
    /// The file's time has to be updated.
    touch: bool,
    closed: bool,
}

type JobIdentity = (String, String, String, i64);

#[derive(Debug, Clone)]
struct JobEntry {
    record: JobRecord,
    dirs: Vec<(PathBuf, u64)>,
    /// The last revision that the server has; 0 for none.
    acknowledged: u64,
    bytes: usize,
}

impl JobEntry {
    fn is_pending(&self) -> bool {
        self.record.revision > self.acknowledged
    }
}

fn identity(record: &JobRecord) -> JobIdentity {
    (record.manager.clone(), record.job.clone(), record.owner.clone(), record.from)
}

impl JobTable {
    /// A table, and the jobs of the file that ran when the agent last wrote it; `is_alive` tells which of their directories still exist.
    pub(super) fn new(
        on_disk: StoredRecords,
        is_alive: impl Fn(&(PathBuf, u64)) -> bool,
    ) -> (Self, Vec<EarlierRecord>) {
        let job_table = Self::default();
        let mut kept = Vec::new();
        let mut inner = job_table.lock();
        inner.dropped = on_disk.dropped;
        for entry in on_disk.records {
            if entry.record.to.is_none() {
                let dirs = entry.dirs.iter().filter(|dir| is_alive(dir)).cloned().collect();
                kept.push(EarlierRecord { record: entry.record.clone(), seen: on_disk.seen, dirs });
            }
            inner.put(entry.record, entry.dirs, Some(entry.acknowledged));
        }
        inner.dirty = false;
        drop(inner);
        (job_table, kept)
    }

    fn lock(&self) -> MutexGuard<'_, JobTableState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of records that were dropped before they were acknowledged.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    /// Changes the record of an ended job; `change` says whether it did.
    fn amend(&self, ended: &JobRecord, change: impl FnOnce(&mut JobRecord) -> bool) {
        let mut inner = self.lock();
        let there = inner.entry_of(ended);
        let (mut record, dirs) =
            there.map_or_else(|| (ended.clone(), Vec::new()), |entry| (entry.record.clone(), entry.dirs.clone()));
        if record.to.is_none() || !change(&mut record) {
            return;
        }
        record.revision += 1;
        inner.put(record, dirs, None);
        self.report_pending(inner);
    }

    pub(super) fn put(&self, written: Vec<RecordUpdate>) {
        if written.is_empty() {
            return;
        }
        let mut inner = self.lock();
        for RecordUpdate { mut record, dirs } in written {
            let there = inner.entry_of(&record);
            // The tracker does not know the values that were completed here.
            if let Some(entry) = there.filter(|entry| entry.record.revision >= record.revision) {
                record.revision = entry.record.revision + 1;
                if entry.record.totals_at > record.totals_at {
                    (record.totals, record.totals_at) = (entry.record.totals.clone(), entry.record.totals_at);
                }
                for (name, total) in entry.record.totals.iter().filter(|_| record.to.is_some()) {
                    record.totals.entry(name.clone()).or_insert(*total);
                }
                record.tasks_missing = record.tasks_missing.or_else(|| entry.record.tasks_missing.clone());
            }
            inner.put(record, dirs, None);
        }
        self.report_pending(inner);
    }

    /// Wakes the writer, and reports that records are pending.
    fn report_pending(&self, inner: MutexGuard<'_, JobTableState>) {
        let on_pending = inner.on_pending.clone();
        drop(inner);
        self.wake.notify_one();
        if let Some(on_pending) = on_pending {
            on_pending();
        }
    }

    /// Updates running jobs for the disk; the server gets them with their next change.
    pub(super) fn refresh(&self, running: Vec<RecordUpdate>) {
        let mut inner = self.lock();
        inner.touch = true;
        for RecordUpdate { record, dirs } in running {
            let Some(order) = inner.by_job.get(&identity(&record)).copied() else { continue };
            if let Some(entry) = inner.entries.get_mut(&order)
                && entry.record.totals_at != record.totals_at
                && entry.record.revision == record.revision
            {
                let entry = Arc::make_mut(entry);
                (entry.record, entry.dirs) = (record, dirs);
                inner.dirty = true;
            }
        }
        self.wake.notify_one();
    }

    /// They are still running: the time matters for the next start, but needs no write.
    pub(super) fn touch(&self) {
        self.lock().touch = true;
        self.wake.notify_one();
    }

    /// Writes changes until the table is closed; runs on its own thread.
    pub(super) fn write_until_closed(&self, directory: &RecordDirectory) {
        let mut is_reported = false;
        loop {
            let mut inner = self.lock();
            while !(inner.dirty || inner.touch || inner.closed) {
                inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            let closed = inner.closed;
            let (dirty, touch) = (std::mem::take(&mut inner.dirty), std::mem::take(&mut inner.touch));
            let entries: Vec<Arc<JobEntry>> = inner.entries.values().filter(|_| dirty || closed).cloned().collect();
            let dropped = inner.dropped;
            drop(inner);
            let start = Instant::now();
            let result = if dirty || closed {
                let records = entries.iter().map(|entry| (&entry.record, &entry.dirs[..], entry.acknowledged));
                directory.write(records, dropped, crate::engine::clock::real())
            } else if touch {
                directory.touch()
            } else {
                Ok(())
            };
            match result {
                Ok(()) => is_reported = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(
                            "cannot keep the jobs' records in {}: {error}; they are in memory only",
                            directory.path().display()
                        );
                    }
                    self.lock().dirty |= dirty;
                }
            }
            if closed {
                return;
            }
            let pause = if is_reported { records::RETRY } else { PAUSE.max(start.elapsed() * PAUSE_FACTOR) };
            self.sleep(pause);
        }
    }

    /// Waits for more changes; ends early when the table is closed.
    fn sleep(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut inner = self.lock();
        while !inner.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            inner = self.wake.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// No more changes follow.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }
}

impl PendingRecords for JobTable {
    fn is_pending(&self) -> bool {
        self.lock().entries.values().any(|entry| entry.is_pending())
    }

    fn pending(&self, max: usize) -> Vec<JobRecord> {
        let inner = self.lock();
        let pending: Vec<Arc<JobEntry>> =
            inner.entries.values().filter(|entry| entry.is_pending()).take(max).cloned().collect();
        drop(inner);
        pending.iter().map(|entry| entry.record.clone()).collect()
    }

    fn acknowledged(&self, record: &JobRecord) {
        let mut inner = self.lock();
        let Some(order) = inner.by_job.get(&identity(record)).copied() else { return };
        let Some(entry) = inner.entries.get_mut(&order) else { return };
        if entry.acknowledged >= record.revision {
            return;
        }
        let entry = Arc::make_mut(entry);
        entry.acknowledged = record.revision;
        if entry.record.to.is_some() && !entry.is_pending() {
            inner.remove(order);
        }
        inner.dirty = true;
        self.wake.notify_one();
    }

    fn on_change(&self, on_pending: PendingCallback) {
        let pending = self.is_pending();
        self.lock().on_pending = Some(on_pending.clone());
        if pending {
            on_pending();
        }
    }

    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64) {
        self.amend(ended, |record| {
            if record.totals_at.is_some_and(|read| read >= at) {
                return false;
            }
            for (name, value) in sampled {
                let total = record.totals.entry(name.clone()).or_insert(*value);
                *total = total.max(*value);
            }
            record.totals_at = Some(at);
            true
        });
    }

    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>) {
        self.amend(ended, |record| {
            record.totals.extend(totals.iter().map(|(name, value)| (name.clone(), *value)));
            record.tasks_missing = missing.map(str::to_owned);
            true
        });
    }
}

impl JobTableState {
    fn entry_of(&self, record: &JobRecord) -> Option<&Arc<JobEntry>> {
        self.entries.get(self.by_job.get(&identity(record))?)
    }

    fn put(&mut self, record: JobRecord, dirs: Vec<(PathBuf, u64)>, acknowledged: Option<u64>) {
        let id = identity(&record);
        let before = self.by_job.get(&id).copied().and_then(|order| self.remove(order));
        let acknowledged = acknowledged.or(before.map(|entry| entry.acknowledged)).unwrap_or(0);
        let bytes = records::bytes_of(&record);
        let order = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.by_job.insert(id, order);
        self.shares.add(record.uid, order, bytes);
        self.entries.insert(order, Arc::new(JobEntry { record, dirs, acknowledged, bytes }));
        self.dirty = true;
        while self.entries.len() > RECORDS_MAX || (self.bytes > BYTES_MAX && self.entries.len() > 1) {
            self.drop_one();
        }
    }

    fn drop_one(&mut self) {
        let orders = || -> Box<dyn Iterator<Item = u64>> {
            if self.entries.len() > RECORDS_MAX {
                Box::new(self.shares.of_most())
            } else {
                Box::new(self.shares.of_most_bytes())
            }
        };
        let is = |order: &u64, what: fn(&JobEntry) -> bool| self.entries.get(order).is_some_and(|entry| what(entry));
        let ended = orders().find(|order| is(order, |entry| entry.record.to.is_some()));
        let had = || orders().find(|order| is(order, |entry| !entry.is_pending()));
        let Some(order) = ended.or_else(had).or_else(|| orders().next()) else { return };
        if self.remove(order).is_some_and(|entry| entry.is_pending()) {
            self.dropped += 1;
        }
    }

    fn remove(&mut self, order: u64) -> Option<Arc<JobEntry>> {
        let entry = self.entries.remove(&order)?;
        self.by_job.remove(&identity(&entry.record));
        if self.by_job.len() * 8 < self.by_job.capacity() {
            self.by_job.shrink_to(self.by_job.len() * 2);
        }
        self.shares.remove(entry.record.uid, order, entry.bytes);
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn record(job: usize, to: Option<i64>, revision: u64) -> JobRecord {
        JobRecord {
            job: job.to_string(),
            level: job.to_string(),
            manager: "slurm".to_owned(),
            from: 5,
            to,
            revision,
            ..JobRecord::default()
        }
    }

    #[test]
    fn totals_of_a_job_that_has_ended_are_completed_by_what_was_sampled_later() {
        let totals =
            |cpu: f64, peak: f64| BTreeMap::from([("cpu/usage".to_owned(), cpu), ("memory/peak".to_owned(), peak)]);
        let job_table = JobTable::default();
        let ended = JobRecord { totals: totals(1.0, 500.0), totals_at: Some(100), ..record(1, Some(200), 3) };
        put(&job_table, record(2, None, 1));
        put(&job_table, ended.clone());
        job_table.complete(&ended, &totals(9.0, 9.0), 100);
        assert_eq!(job_table.pending(9)[1], ended, "not later");
        job_table.complete(&ended, &totals(2.0, 400.0), 150);
        let complete = JobRecord { totals: totals(2.0, 500.0), totals_at: Some(150), revision: 4, ..ended.clone() };
        assert_eq!(job_table.pending(9)[1], complete);
        job_table.acknowledged(&complete);
        assert_eq!(job_table.count(), 1);
        job_table.complete(&complete, &totals(3.0, 600.0), 160);
        assert_eq!(job_table.pending(9)[1].revision, 5, "the server gets it once more");
        job_table.complete(&record(2, None, 1), &totals(3.0, 600.0), 160);
        assert!(job_table.pending(9)[0].totals.is_empty(), "it runs still");
        put(&job_table, JobRecord { name: Some("late".into()), revision: 4, ..ended });
        let last = job_table.pending(9).pop().unwrap();
        assert_eq!(
            (last.revision, last.totals_at, last.name.as_deref()),
            (6, Some(160), Some("late")),
            "nothing is lost"
        );
    }

    #[test]
    fn what_is_known_at_the_end_outlives_what_the_epilog_tells_and_is_no_newer_reading_of_the_rest() {
        let job_table = JobTable::default();
        let totals = |name: &str, value: f64| BTreeMap::from([(name.to_owned(), value)]);
        let ended = JobRecord { totals: totals("cpu/usage", 1.0), totals_at: Some(100), ..record(1, Some(200), 3) };
        put(&job_table, ended.clone());
        job_table.finish(&ended, &totals("tasks/io/write_bytes", 7.0), Some("it is so"));
        put(&job_table, JobRecord { name: Some("late".into()), revision: 4, ..ended });
        let last = job_table.pending(9).pop().unwrap();
        assert_eq!((last.revision, last.totals_at, last.tasks_missing.as_deref()), (5, Some(100), Some("it is so")));
        assert_eq!((last.totals["cpu/usage"], last.totals["tasks/io/write_bytes"]), (1.0, 7.0));
        // A running job adopts nothing.
        job_table.finish(&record(2, None, 1), &totals("tasks/io/write_bytes", 7.0), None);
        assert_eq!(job_table.count(), 1);
    }

    fn put(job_table: &JobTable, record: JobRecord) {
        job_table.put(vec![RecordUpdate { record, dirs: Vec::new() }]);
    }

    #[test]
    fn what_is_acknowledged_and_over_is_forgotten() {
        let job_table = JobTable::default();
        let rings = Arc::new(AtomicUsize::new(0));
        let theirs = rings.clone();
        put(&job_table, record(1, None, 1));
        job_table.on_change(Arc::new(move || _ = theirs.fetch_add(1, Ordering::Relaxed)));
        assert_eq!(rings.load(Ordering::Relaxed), 1, "one waits already");
        put(&job_table, record(2, None, 1));
        assert_eq!(rings.load(Ordering::Relaxed), 2);
        assert_eq!(job_table.pending(1), [record(1, None, 1)]);
        put(&job_table, record(1, None, 2));
        assert_eq!(job_table.pending(9), [record(2, None, 1), record(1, None, 2)], "the oldest change first");
        job_table.acknowledged(&record(1, None, 1));
        assert_eq!(job_table.pending(9).len(), 2, "an older revision than the table's");
        job_table.acknowledged(&record(1, None, 2));
        job_table.acknowledged(&record(2, None, 1));
        job_table.acknowledged(&record(3, None, 1));
        assert!(!job_table.is_pending() && job_table.count() == 2, "they run still");
        put(&job_table, record(1, Some(9), 3));
        job_table.acknowledged(&record(1, Some(9), 3));
        assert!(!job_table.is_pending() && job_table.count() == 1);
    }

    #[test]
    fn of_too_many_the_oldest_ended_go_and_are_counted() {
        let job_table = JobTable::default();
        put(&job_table, record(0, None, 1));
        for job in 1..=RECORDS_MAX + 9 {
            put(&job_table, record(job, Some(9), 1));
        }
        assert_eq!((job_table.count(), job_table.dropped()), (RECORDS_MAX, 10));
        let pending = job_table.pending(2);
        assert_eq!((pending[0].job.as_str(), pending[1].job.as_str()), ("0", "11"), "the running one stays");
        let mut long = record(99_999_999, None, 1);
        long.name = Some("x".repeat(BYTES_MAX));
        put(&job_table, long);
        assert_eq!(job_table.count(), 1, "the newest is always kept");
        assert_eq!(job_table.lock().by_job.len(), 1);
    }

    #[test]
    fn who_has_too_many_records_loses_their_own() {
        let of = |uid: u32, record: JobRecord| JobRecord { uid: Some(uid), ..record };
        let job_table = JobTable::default();
        (0..9).for_each(|job| put(&job_table, of(1, record(job, Some(9), 1))));
        (100..100 + 2 * RECORDS_MAX).for_each(|job| put(&job_table, of(2, record(job, Some(9), 1))));
        let count = |uid: u32| job_table.pending(usize::MAX).iter().filter(|record| record.uid == Some(uid)).count();
        assert_eq!((count(1), count(2)), (9, RECORDS_MAX - 9));
        assert_eq!(job_table.dropped(), RECORDS_MAX as u64 + 9);
        // Running jobs count in the bound of bytes too: long records of one user do not displace those of others.
        let job_table = JobTable::default();
        (0..9).for_each(|job| put(&job_table, of(1, record(job, Some(9), 1))));
        let name = Some("x".repeat(BYTES_MAX / 8));
        for job in 100..120 {
            put(&job_table, JobRecord { name: name.clone(), ..of(2, record(job, (job > 103).then_some(9), 1)) });
        }
        let all: Vec<(u32, bool)> = job_table
            .pending(usize::MAX)
            .iter()
            .filter_map(|record| Some((record.uid?, record.to.is_none())))
            .collect();
        assert_eq!(all.iter().filter(|(uid, _)| *uid == 1).count(), 9);
        assert_eq!(all.iter().filter(|(_, runs)| *runs).count(), 4, "of the other those that run stay");
        // Acknowledged records do not count.
        job_table
            .pending(usize::MAX)
            .iter()
            .filter(|record| record.to.is_some())
            .for_each(|record| job_table.acknowledged(record));
        assert_eq!(job_table.lock().shares.of_most().count(), 4);
    }
}
