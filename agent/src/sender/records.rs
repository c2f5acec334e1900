//! Job records on their way to the server. The tracker's job table keeps each until the server has acknowledged it, so that nothing is queued or
//! spooled here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wholegrain_model::JobRecord;

use crate::jobs::pending_records::{PendingRecords, RecordsSlot};
use crate::refusal::RefusalPauses;
use crate::waker::Waker;

/// The most records in flight.
pub const RECORDS_IN_FLIGHT_MAX: usize = 4;
/// The most refused records that are remembered so that they are not sent again; beyond it the oldest is given up.
pub const REFUSED_MAX: usize = 256;

/// The link's state of records. Outlives connections.
pub(super) struct OutgoingRecords {
    slot: Arc<RecordsSlot>,
    sender_waker: Arc<Waker>,
    job_table: Option<Arc<dyn PendingRecords>>,
    /// Whether the job table may have a record to send: it changed since it last had none.
    news: Arc<AtomicBool>,
    /// Records refused for good in this revision, the oldest first.
    refused: Vec<JobRecord>,
    pauses: RefusalPauses,
}

impl OutgoingRecords {
    pub fn new(slot: Arc<RecordsSlot>, sender_waker: Arc<Waker>) -> Self {
        let (news, refused, pauses) = (Arc::default(), Vec::new(), RefusalPauses::default());
        Self { slot, sender_waker, job_table: None, news, refused, pauses }
    }

    /// Adopts another job table, if there is one now.
    fn follow_slot(&mut self) {
        let job_table = self.slot.get();
        let same = match (&self.job_table, &job_table) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(job_table) = &job_table {
            let (waker, news) = (self.sender_waker.clone(), self.news.clone());
            job_table.on_change(Arc::new(move || {
                news.store(true, Ordering::Release);
                waker.wake();
            }));
        }
        self.job_table = job_table;
        self.refused.clear();
        self.news.store(true, Ordering::Release);
    }

    /// Records to be sent now. A newer revision of one that is `under_way` waits for its acknowledgement.
    pub fn next(&mut self, under_way: &[&JobRecord], now: Instant) -> Vec<JobRecord> {
        self.follow_slot();
        let room = RECORDS_IN_FLIGHT_MAX.saturating_sub(under_way.len());
        let Some(job_table) = self.job_table.as_ref().filter(|_| room > 0) else { return Vec::new() };
        if !self.pauses.left(now).is_zero() || !self.news.swap(false, Ordering::AcqRel) || !job_table.is_pending() {
            return Vec::new();
        }
        let mut records = job_table.pending(room + under_way.len() + self.refused.len());
        // A refused record is sent again once it has changed.
        self.refused.retain(|refused| {
            records.iter().all(|record| !record.is_same(refused) || record.revision == refused.revision)
        });
        records.retain(|record| {
            !under_way.iter().chain(&self.refused.iter().collect::<Vec<_>>()).any(|other| other.is_same(record))
        });
        records.truncate(room);
        if !records.is_empty() {
            self.note_change();
        }
        records
    }

    /// Notes that the job table may have more records, or some that could not be sent.
    pub fn note_change(&self) {
        self.news.store(true, Ordering::Release);
    }

    /// Whether a record can be sent now.
    pub fn is_waiting(&self, now: Instant) -> bool {
        self.news.load(Ordering::Acquire)
            && self.pauses.left(now).is_zero()
            && self.job_table.as_ref().is_some_and(|job_table| job_table.is_pending())
    }

    /// The rest of a pause after a refusal, if a record waits for its end.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        Some(self.pauses.left(now)).filter(|left| !left.is_zero() && self.news.load(Ordering::Acquire))
    }

    /// The server has acknowledged a record.
    pub fn accepted(&mut self, record: &JobRecord) {
        self.pauses.accepted();
        if let Some(job_table) = &self.job_table {
            job_table.acknowledged(record);
        }
        self.note_change();
    }

    /// The server refused a record for now.
    pub fn retry_later(&mut self, now: Instant) {
        self.pauses.refused(now);
        self.note_change();
    }

    /// The server refused a record for good: it is not sent again before it changes.
    pub fn refused(&mut self, record: JobRecord) {
        if self.refused.len() == REFUSED_MAX {
            let oldest = self.refused.remove(0);
            if let Some(job_table) = &self.job_table {
                job_table.acknowledged(&oldest);
            }
        }
        self.refused.push(record);
        self.note_change();
    }
}
