//! Records of jobs on their way to the server: out of the tracker's book, which keeps each until the server has it, so that nothing of them is queued or
//! spooled here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use wholegrain_model::JobRecord;

use super::refusal::Pauses;
use crate::jobs::tracker::{Book, Ring};
use crate::state::{State, lock};

/// The most records that the server has not answered.
pub const RECORDS_IN_FLIGHT_MAX: usize = 4;
/// The most refused records that are remembered so that they are not sent again; of further ones the oldest is given up.
pub const REFUSED_MAX: usize = 256;

/// Where records wait: the tracker's [`Book`].
pub trait Records: Send + Sync {
    /// Whether one has changed since the server last had it.
    fn is_pending(&self) -> bool;
    /// At most so many of those, the oldest change first.
    fn pending(&self, max: usize) -> Vec<JobRecord>;
    /// The server has this revision.
    fn acknowledged(&self, record: &JobRecord);
    /// What to call when one changes.
    fn on_change(&self, ring: Ring);
    /// What was sampled last of a job that has ended, and when: where that is later than the record's totals, it completes them.
    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64);
    /// What the counters of a job that has ended came to which are read at intervals only, or why that is not known.
    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>);
}

impl Records for Book {
    fn is_pending(&self) -> bool {
        Book::is_pending(self)
    }

    fn pending(&self, max: usize) -> Vec<JobRecord> {
        Book::pending(self, max)
    }

    fn acknowledged(&self, record: &JobRecord) {
        Book::acknowledged(self, record);
    }

    fn on_change(&self, ring: Ring) {
        Book::on_change(self, ring);
    }

    fn finish(&self, ended: &JobRecord, totals: &BTreeMap<String, f64>, missing: Option<&str>) {
        Book::finish(self, ended, totals, missing);
    }

    fn complete(&self, ended: &JobRecord, sampled: &BTreeMap<String, f64>, at: i64) {
        Book::complete(self, ended, sampled, at);
    }
}

/// The place among what the threads share where the book lies once there is one.
#[derive(Default)]
pub struct Shelf(Mutex<Option<Arc<dyn Records>>>);

impl Shelf {
    /// The book.
    pub fn book(&self) -> Option<Arc<dyn Records>> {
        lock(&self.0).clone()
    }

    /// Another book, or none.
    pub fn set(&self, book: Option<Arc<dyn Records>>) {
        *lock(&self.0) = book;
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shelf").field(&lock(&self.0).is_some()).finish()
    }
}

/// What the link knows of records. Outlives connections.
pub(super) struct Outgoing {
    state: Weak<State>,
    book: Option<Arc<dyn Records>>,
    /// Whether the book is worth asking: something changed since it had nothing to send.
    news: Arc<AtomicBool>,
    /// Refused for good in this revision, the oldest first.
    refused: Vec<JobRecord>,
    pauses: Pauses,
}

impl Outgoing {
    pub fn new(state: &Arc<State>) -> Self {
        Self {
            state: Arc::downgrade(state),
            book: None,
            news: Arc::default(),
            refused: Vec::new(),
            pauses: Pauses::default(),
        }
    }

    /// Takes over another book.
    fn look(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let book = state.book();
        let same = match (&self.book, &book) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if same {
            return;
        }
        if let Some(book) = &book {
            let (state, news) = (self.state.clone(), self.news.clone());
            book.on_change(Arc::new(move || {
                news.store(true, Ordering::Release);
                if let Some(state) = state.upgrade() {
                    state.outbox.bell().ring();
                }
            }));
        }
        self.book = book;
        self.refused.clear();
        self.news.store(true, Ordering::Release);
    }

    /// Records to be sent now: those that are `under_way` wait for their answer, also with a newer revision.
    pub fn next(&mut self, under_way: &[&JobRecord], now: Instant) -> Vec<JobRecord> {
        self.look();
        let room = RECORDS_IN_FLIGHT_MAX.saturating_sub(under_way.len());
        let Some(book) = self.book.as_ref().filter(|_| room > 0) else { return Vec::new() };
        if !self.pauses.left(now).is_zero() || !self.news.swap(false, Ordering::AcqRel) || !book.is_pending() {
            return Vec::new();
        }
        let mut records = book.pending(room + under_way.len() + self.refused.len());
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
            && self.book.as_ref().is_some_and(|book| book.is_pending())
    }

    /// How long a pause after a refusal lasts that something waits for.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        Some(self.pauses.left(now)).filter(|left| !left.is_zero() && self.news.load(Ordering::Acquire))
    }

    /// The server has it.
    pub fn accepted(&mut self, record: &JobRecord) {
        self.pauses.accepted();
        if let Some(book) = &self.book {
            book.acknowledged(record);
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
            if let Some(book) = &self.book {
                book.acknowledged(&oldest);
            }
        }
        self.refused.push(record);
        self.ask_again();
    }
}
