//! Keeps the heap small: one arena for all threads, and free memory returned to the system.

use std::time::{Duration, Instant};

/// The heap is trimmed 10 s after the start and after the end of many jobs, and at least every 10 min.
const TRIM_AFTER: Duration = Duration::from_secs(10);
const TRIM_EVERY: Duration = Duration::from_secs(600);
/// A second trim after the end of many jobs: records wait 60 s for epilogs, and keep pages of the heap in use.
const TRIM_AGAIN: Duration = Duration::from_secs(75);
/// This many sensors of ended jobs, about 1 MB, make a trim due.
const TRIM_SENSORS: usize = 1000;

/// Sets the allocator's parameters: one arena for all threads; blocks from 128 KiB are mapped, and unmapped when freed. Call it before
/// the first thread starts.
pub fn limit() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets parameters of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Returns free pages of the heap to the system (`malloc_trim(3)`).
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer only, and touches only pages that the allocator has free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// When the heap is trimmed next.
#[derive(Debug)]
pub(crate) struct TrimSchedule {
    next: Instant,
    /// An earlier time for the trim after the next one.
    again: Option<Instant>,
    /// Sensors of ended jobs since the last trim for this reason.
    freed_sensors: usize,
}

impl TrimSchedule {
    pub fn new(now: Instant) -> Self {
        Self { next: now + TRIM_AFTER, again: None, freed_sensors: 0 }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// Counts sensors of ended jobs.
    pub fn count_freed(&mut self, sensors: usize, now: Instant) {
        self.freed_sensors += sensors;
        if self.freed_sensors >= TRIM_SENSORS {
            self.freed_sensors = 0;
            self.next = self.next.min(now + TRIM_AFTER);
            self.again = Some(now + TRIM_AGAIN);
        }
    }

    pub fn trim_if_due(&mut self, now: Instant) {
        if now >= self.next {
            self.next = self.again.take().unwrap_or(now + TRIM_EVERY);
            trim();
        }
    }
}
