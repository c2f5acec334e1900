//! Wakes the background threads and ends them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the background threads wait for.
pub(crate) struct WorkSignal {
    wakes: Mutex<u64>,
    changed: Condvar,
    closing: AtomicBool,
}

impl Default for WorkSignal {
    /// Begins at 1, so that the first wait returns at once: there may be replayed segments to seal.
    fn default() -> Self {
        Self { wakes: Mutex::new(1), changed: Condvar::new(), closing: AtomicBool::new(false) }
    }
}

impl WorkSignal {
    fn wakes(&self) -> MutexGuard<'_, u64> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the background threads: there may be something to seal, merge or drop.
    pub fn wake(&self) {
        *self.wakes() += 1;
        self.changed.notify_all();
    }

    /// Ends all waits; the store is closing from now on.
    pub fn close(&self) {
        self.closing.store(true, Relaxed);
        self.wake();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Waits for a wake later than `seen`, at most `timeout`; `false` if the store is closing.
    pub fn wait(&self, seen: &mut u64, timeout: Duration) -> bool {
        let unchanged = |wakes: &mut u64| *wakes == *seen && !self.is_closing();
        let result = self.changed.wait_timeout_while(self.wakes(), timeout, unchanged);
        *seen = *result.unwrap_or_else(PoisonError::into_inner).0;
        !self.is_closing()
    }

    /// Waits for `time`, or until the store closes.
    pub fn pause(&self, time: Duration) {
        drop(self.changed.wait_timeout_while(self.wakes(), time, |_| !self.is_closing()));
    }
}
