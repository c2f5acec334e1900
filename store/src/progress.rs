//! Tells in the log how far an opening is that takes long: until it is done the server answers nobody.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From line to line, and to the first.
const EVERY: Duration = Duration::from_secs(3);
/// How many small things go by from one look at the clock to the next.
const STEP: u64 = 4096;

/// How far it is with one kind of things.
pub(crate) struct ProgressLog {
    what: &'static str,
    total: u64,
    next: Mutex<Instant>,
}

impl ProgressLog {
    /// Nothing of `total` is done.
    pub fn new(what: &'static str, total: u64) -> Self {
        Self { what, total, next: Mutex::new(Instant::now() + EVERY) }
    }

    /// So many are done.
    pub fn at(&self, done: u64) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() >= *next {
            *next = Instant::now() + EVERY;
            tracing::info!("store: opening, {done} of {} {}", self.total, self.what);
        }
    }

    /// The same for things that are done in far less than a millisecond.
    pub fn at_small(&self, done: u64) {
        if done.is_multiple_of(STEP) {
            self.at(done);
        }
    }
}
