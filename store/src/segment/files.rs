//! The segments of the journal that wait to be sealed: their files and how much is in them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::disk::Disk;
use crate::segment::{SegmentSize, segment_path};
use crate::stats::{Counters, sub};

pub(crate) struct SegmentFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    counters: Arc<Counters>,
    /// Segments with smaller numbers were there when the store was opened.
    first_new: u64,
    /// Payload bytes of those that are not sealed yet.
    backlog_bytes: AtomicU64,
}

impl SegmentFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, counters: Arc<Counters>, first_new: u64) -> Self {
        let backlog_bytes = AtomicU64::new(counters.live_bytes.load(Relaxed));
        Self { disk, dir, counters, first_new, backlog_bytes }
    }

    /// Payload bytes of segments that were there when the store was opened and are not sealed yet.
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes.load(Relaxed)
    }

    /// Removes the file of a sealed segment.
    pub fn remove(&self, number: u64, size: &SegmentSize) {
        let path = segment_path(&self.dir, number);
        if let Err(error) = self.disk.remove(&path) {
            // The next opening knows that it is sealed and removes it.
            tracing::warn!(segment = %path.display(), %error, "cannot remove a sealed journal segment");
        }
        sub(&self.counters.journal_bytes, size.file_bytes);
        if number < self.first_new {
            sub(&self.backlog_bytes, size.payload_bytes);
        }
        sub(&self.counters.live_bytes, size.payload_bytes);
    }
}
