//! Job records that the server does not have yet, as the sender sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use wholegrain_model::JobRecord;

use super::tracker::{JobTable, PendingCallback};
use crate::sync::lock;
use crate::waker::Waker;

/// Records that wait to be sent: the tracker's job table.
pub trait PendingRecords: Send + Sync {
    /// Whether a record has changed since the server acknowledged it.
    fn is_pending(&self) -> bool;
    /// At most `max` of the changed records, the oldest change first.
    fn pending(&self, max: usize) -> Vec<JobRecord>;
    /// The server has acknowledged this revision.
    fn acknowledged(&self, record: &JobRecord);
    /// Sets the callback for the next change.
    fn on_change(&self, callback: PendingCallback);
    /// Completes the totals of an ended job with the last samples, if those are later than the totals.
    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64);
    /// Adds the final totals of counters that are read at intervals only, or the reason why they are missing.
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

    fn on_change(&self, callback: PendingCallback) {
        JobTable::on_change(self, callback);
    }

    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64) {
        JobTable::complete(self, ended, sampled, at);
    }

    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>) {
        JobTable::finish(self, ended, totals, missing);
    }
}

/// The tracker's job table while jobs are monitored. The sender is woken when it changes.
pub struct RecordsSlot {
    records: Mutex<Option<Arc<dyn PendingRecords>>>,
    sender_waker: Arc<Waker>,
}

impl RecordsSlot {
    pub fn new(sender_waker: Arc<Waker>) -> Self {
        Self { records: Mutex::default(), sender_waker }
    }

    pub fn get(&self) -> Option<Arc<dyn PendingRecords>> {
        lock(&self.records).clone()
    }

    pub fn set(&self, records: Option<Arc<dyn PendingRecords>>) {
        *lock(&self.records) = records;
        self.sender_waker.wake();
    }
}

impl fmt::Debug for RecordsSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordsSlot").field(&lock(&self.records).is_some()).finish()
    }
}
