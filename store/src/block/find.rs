//! Finds a sensor's rows in an open block.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::index::IndexEntry;

/// Threads whose last sensor in a block is remembered.
const THREADS: usize = 4;

/// The index of this thread.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Relaxed) % THREADS);
    NUMBER.with(|number| *number)
}

/// The places where a few threads found their last sensors: a query usually requests the next one.
#[derive(Debug, Default)]
pub(super) struct RecentPlaces([AtomicUsize; THREADS]);

impl RecentPlaces {
    /// The place of a sensor in the sorted entries.
    pub fn find(&self, entries: &[IndexEntry], path: &str) -> Option<usize> {
        let last = &self.0[thread()];
        let near = last.load(Relaxed);
        let is_there = |at: &usize| entries.get(*at).is_some_and(|entry| entry.path == path);
        let at = match [near.wrapping_add(1), near].into_iter().find(is_there) {
            Some(at) => at,
            None => entries.binary_search_by(|entry| entry.path.as_str().cmp(path)).ok()?,
        };
        last.store(at, Relaxed);
        Some(at)
    }
}

/// A sensor's rows in an open block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SensorRows {
    pub start: u64,
    /// The first row of the first sensor with the same times.
    pub times: u64,
    pub rows: u64,
    pub first_time: i64,
    pub last_time: i64,
}
