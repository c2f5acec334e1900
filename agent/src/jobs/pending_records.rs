//! Job records that the server does not have yet, as the sender sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use wholegrain_model::JobRecord;

use crate::sync::lock;
use crate::waker::Waker;

/// Called when a record becomes pending: wakes the sender and returns at once.
pub type PendingCallback = Arc<dyn Fn() + Send + Sync>;

/// Records that wait to be sent: the tracker's job table.
pub trait PendingRecords: Send + Sync {
    /// Whether a record has changed since the server acknowledged it.
    fn is_pending(&self) -> bool;
    /// At most `max` of the changed records, the oldest change first. A record stays pending until it is acknowledged: the caller remembers which
    /// (manager, job, from, revision) are in flight.
    fn pending(&self, max: usize) -> Vec<JobRecord>;
    /// The server has this revision of a record. The record of an ended job is removed after its last revision.
    fn acknowledged(&self, record: &JobRecord);
    /// Sets the callback for pending records, and calls it at once if there is one. The last callback counts.
    fn on_change(&self, on_pending: PendingCallback);
    /// Completes the totals of an ended job with its last samples. Totals only rise, so that the greater value is the later one. The server may have
    /// the record already; then it gets it again.
    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64);
    /// Adds the final values of counters that are read at intervals only, or the reason why they are missing.
    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>);
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
