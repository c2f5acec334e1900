//! Records of jobs on their way to the server: out of the tracker's book, which keeps each until the server has it, so that nothing of them is queued or
//! spooled here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use wholegrain_model::JobRecord;

use super::refusal::RefusalPauses;
use crate::jobs::tracker::{JobTable, PendingCallback};
use crate::state::{AgentState, lock};

/// The most records that the server has not answered.
pub const RECORDS_IN_FLIGHT_MAX: usize = 4;
/// The most refused records that are remembered so that they are not sent again; of further ones the oldest is given up.
pub const REFUSED_MAX: usize = 256;

/// Records that wait to be sent: the tracker's job table.
pub trait PendingRecords: Send + Sync {
    /// Whether one has changed since the server last had it.
    fn is_pending(&self) -> bool;
    /// At most so many of those, the oldest change first.
    fn pending(&self, max: usize) -> Vec<JobRecord>;
    /// The server has this revision.
    fn acknowledged(&self, record: &JobRecord);
    /// What to call when one changes.
    fn on_change(&self, ring: PendingCallback);
    /// What was sampled last of a job that has ended, and when: where that is later than the record's totals, it completes them.
    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64);
    /// What the counters of a job that has ended came to which are read at intervals only, or why that is not known.
    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>);
}

impl PendingRecords for JobTable {
    fn is_pending(&self) -> bool {
        JobTable::is_pending(self)
    }

    fn pending(&self, max: usize) -> Vec<JobRecord> {
        JobTable::pending(self, max)
    }

    fn acknowledged(&self, record: &JobRecord) {
        JobTable::acknowledged(self, record);
    }

    fn on_change(&self, ring: PendingCallback) {
        JobTable::on_change(self, ring);
    }

    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>) {
        JobTable::finish(self, ended, totals, missing);
    }

    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64) {
        JobTable::complete(self, ended, sampled, at);
    }
}

/// Holds the job table once the tracker has made it.
#[derive(Default)]
pub struct RecordsSlot(Mutex<Option<Arc<dyn PendingRecords>>>);

impl RecordsSlot {
    pub fn job_table(&self) -> Option<Arc<dyn PendingRecords>> {
        lock(&self.0).clone()
    }

    /// Another book, or none.
    pub fn set(&self, job_table: Option<Arc<dyn PendingRecords>>) {
        *lock(&self.0) = job_table;
    }
}

impl fmt::Debug for RecordsSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shelf").field(&lock(&self.0).is_some()).finish()
    }
}

/// What the link knows of records. Outlives connections.
pub(super) struct OutgoingRecords {
    state: Weak<AgentState>,
    job_table: Option<Arc<dyn PendingRecords>>,
    /// Whether the job table may have something to send: it changed since it last had nothing.
    news: Arc<AtomicBool>,
    /// Refused for good in this revision, the oldest first.
    refused: Vec<JobRecord>,
    pauses: RefusalPauses,
}

impl OutgoingRecords {
    pub fn new(state: &Arc<AgentState>) -> Self {
        Self {
            state: Arc::downgrade(state),
            job_table: None,
            news: Arc::default(),
            refused: Vec::new(),
            pauses: RefusalPauses::default(),
        }
    }

    /// Uses another job table.
    fn look(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let job_table = state.job_table();
        let same = match (&self.job_table, &job_table) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(job_table) = &job_table {
            let (state, news) = (self.state.clone(), self.news.clone());
            job_table.on_change(Arc::new(move || {
                news.store(true, Ordering::Release);
                if let Some(state) = state.upgrade() {
                    state.outbox.waker().wake();
                }
            }));
        }
        self.job_table = job_table;
        self.refused.clear();
        self.news.store(true, Ordering::Release);
    }

    /// Records to be sent now: those that are `under_way` wait for their answer, also with a newer revision.
    pub fn next(&mut self, under_way: &[&JobRecord], now: Instant) -> Vec<JobRecord> {
        self.look();
        let room = RECORDS_IN_FLIGHT_MAX.saturating_sub(under_way.len());
        let Some(job_table) = self.job_table.as_ref().filter(|_| room > 0) else { return Vec::new() };
        if !self.pauses.left(now).is_zero() || !self.news.swap(false, Ordering::AcqRel) || !job_table.is_pending() {
            return Vec::new();
        }
        let mut records = job_table.pending(room + under_way.len() + self.refused.len());
        // A change takes a refused record's place.
        self.refused.retain(|refused| {
            records.iter().all(|record| !record.is_same(refused) || record.revision == refused.revision)
        });
        records.retain(|record| {
            !under_way.iter().chain(&self.refused.iter().collect::<Vec<_>>()).any(|other| other.is_same(record))
        });
        records.truncate(room);
        if !records.is_empty() {
            self.ask_again();
        }
        records
    }

    /// The book is worth asking again: there may be more, or some that could not be sent.
    pub fn ask_again(&self) {
        self.news.store(true, Ordering::Release);
    }

    /// Whether something may be sent now.
    pub fn is_waiting(&self, now: Instant) -> bool {
        self.news.load(Ordering::Acquire)
            && self.pauses.left(now).is_zero()
            && self.job_table.as_ref().is_some_and(|job_table| job_table.is_pending())
    }

    /// How long a pause after a refusal lasts that something waits for.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        Some(self.pauses.left(now)).filter(|left| !left.is_zero() && self.news.load(Ordering::Acquire))
    }

    /// The server has it.
    pub fn accepted(&mut self, record: &JobRecord) {
        self.pauses.accepted();
        if let Some(job_table) = &self.job_table {
            job_table.acknowledged(record);
        }
        self.ask_again();
    }

    /// The server refused it for a reason that may pass.
    pub fn put_off(&mut self, now: Instant) {
        self.pauses.refused(now);
        self.ask_again();
    }

    /// The server refused it for good: it is not sent again before it changes.
    pub fn refused(&mut self, record: JobRecord) {
        if self.refused.len() == REFUSED_MAX {
            let oldest = self.refused.remove(0);
            if let Some(job_table) = &self.job_table {
                job_table.acknowledged(&oldest);
            }
        }
        self.refused.push(record);
        self.ask_again();
    }
}
