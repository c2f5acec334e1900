//! Logs the progress of a long opening: until it is done, the server answers no request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two messages, and to the first.
const EVERY: Duration = Duration::from_secs(3);
/// The number of small steps between two readings of the clock.
const STEP: u64 = 4096;

/// Logs the progress of one long step of an opening.
pub(crate) struct ProgressLog {
    what: &'static str,
    total: u64,
    next: Mutex<Instant>,
}

impl ProgressLog {
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        Self { what, total, next: Mutex::new(Instant::now() + EVERY) }
    }

    /// Logs the progress if the last message is long enough ago.
    pub fn at(&self, done: u64) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() >= *next {
            *next = Instant::now() + EVERY;
            tracing::info!("store: opening, {done} of {} {}", self.total, self.what);
        }
    }

    /// The same for steps that take far less than a millisecond.
    pub fn at_small(&self, done: u64) {
        if done.is_multiple_of(STEP) {
            self.at(done);
        }
    }
}

/// Called with the bytes done and the bytes in total; returns `false` to stop the operation.
pub type CancellableProgress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;
