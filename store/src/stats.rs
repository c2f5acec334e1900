//! Counters of the store, and the report of an opening.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters since the store was opened, and its present sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Batches stored, without duplicates.
    pub batches: u64,
    /// Readings stored, including gaps, in batches and of schemaless sensors.
    pub readings: u64,
    /// Readings of schemaless sensors stored; a reading that was sent twice counts twice.
    pub schemaless_readings: u64,
    /// Payload bytes of the stored batches.
    pub payload_bytes: u64,
    pub duplicates: u64,
    /// Batches refused: malformed or of an unknown schema.
    pub rejected: u64,
    /// Batches refused because too much was queued.
    pub busy: u64,
    /// Batches that could not be written (disk full, I/O error).
    pub write_errors: u64,
    /// Group commits of the journal.
    pub fsyncs: u64,
    /// Time spent in fsyncs of the journal, ns.
    pub fsync_ns: u64,
    /// Payload bytes queued for the journal now.
    pub queue_bytes: u64,
    /// Bytes of journal segments on disk now.
    pub journal_bytes: u64,
    /// Payload bytes, and memory of readings of schemaless sensors, that are not in blocks yet.
    pub live_bytes: u64,
    /// Items dropped because a subscriber was too slow.
    pub subscriber_lost: u64,
    /// Readings quarantined because of their times, including gaps.
    pub quarantined_readings: u64,
    /// Bytes of the files in the quarantine.
    pub quarantine_bytes: u64,
    /// Bytes of the quarantine's files that were dropped because it was full.
    pub quarantine_dropped_bytes: u64,
    pub blocks: u64,
    pub block_bytes: u64,
    pub block_rows: u64,
    /// Journal segments sealed into blocks.
    pub seals: u64,
    /// Seals that failed and were tried again.
    pub seal_errors: u64,
    /// Parts of imports stored.
    pub imported_parts: u64,
    /// Readings in these parts, including gaps.
    pub imported_readings: u64,
    pub merges: u64,
    pub merge_errors: u64,
    /// Bytes that merges wrote.
    pub merge_bytes: u64,
    pub tiers: u64,
    pub tier_bytes: u64,
    pub tier_rows: u64,
    /// Bytes of tiers written.
    pub tier_bytes_written: u64,
    /// Bytes of blocks that retention rewrote without expired readings.
    pub retention_rewritten_bytes: u64,
    pub deletions: u64,
    /// Readings deleted by them.
    pub deleted_readings: u64,
    /// Bytes of files that were rewritten without deleted readings.
    pub deletion_rewritten_bytes: u64,
    /// Files with tombstones that are not rewritten yet.
    pub deletion_files: u64,
    /// Blocks and tiers dropped by retention.
    pub retention_blocks: u64,
    pub retention_rows: u64,
    /// Bytes of the result cache on disk now.
    pub result_cache_bytes: u64,
    /// Pieces in the result cache now.
    pub result_cache_pieces: u64,
    /// Pieces added to the result cache since the store was opened.
    pub result_cache_stored: u64,
    pub result_cache_hits: u64,
    /// Pieces that were requested and not in the cache.
    pub result_cache_misses: u64,
    /// Pieces removed because readings that they were computed from changed.
    pub result_cache_invalidated: u64,
    /// Blocks that could not be read; answers leave them out.
    pub damaged_blocks: u64,
    /// Journal bytes found damaged when the store was opened, and payload bytes that could not be decoded since.
    pub damaged_bytes: u64,
    /// Losses of the journal that nobody has acknowledged.
    pub lost: u64,
    /// Readings in these losses, as far as their number is known.
    pub lost_readings: u64,
    pub sensors_expired: u64,
    pub schemas_expired: u64,
    pub sensors: u64,
    pub schemas: u64,
    /// Allocations of jobs stored.
    pub allocations: u64,
    /// Records of jobs written, without those that changed nothing.
    pub job_records: u64,
    /// Transactions that wrote records of jobs.
    pub job_commits: u64,
    /// Allocations that retention dropped.
    pub jobs_dropped: u64,
    /// Damaged records of jobs, left out.
    pub damaged_jobs: u64,
    /// Groups whose newest batch is in memory.
    pub newest_groups: u64,
    /// Journal segments that are not in blocks yet, including the open one.
    pub segments: u64,
    /// Bytes free on the disk, if the system reports it.
    pub free_bytes: Option<u64>,
}

/// What an opening found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    pub segments: u64,
    pub batches: u64,
    /// Readings of schemaless sensors in the segments.
    pub readings: u64,
    /// Batches that occur twice in the journal.
    pub duplicates: u64,
    /// Bytes after the last valid record of a segment: an append that a crash or a failing disk interrupted. Copied to `damaged/`.
    pub torn_bytes: u64,
    /// Other journal bytes that are no valid record. Copied to `damaged/`.
    pub damaged_bytes: u64,
    /// Blocks that are missing or do not have the size that was written; answers leave them out.
    pub damaged_blocks: Vec<PathBuf>,
    /// Files of interrupted seals and merges that were removed.
    pub leftovers: u64,
    /// The names of damaged records of jobs, which are left out.
    pub damaged_jobs: Vec<String>,
    /// Damaged lines of the registry, which are left out.
    pub damaged_registry: Vec<String>,
    /// Files under `blocks/` that this store did not write, left alone.
    pub foreign_files: Vec<PathBuf>,
    /// The losses, found now or at an earlier opening, that nobody has acknowledged.
    pub lost: Vec<crate::LossRecord>,
}

impl OpenReport {
    /// Whether nothing was found that an administrator should know.
    pub fn is_clean(&self) -> bool {
        self.torn_bytes == 0
            && self.damaged_bytes == 0
            && self.damaged_blocks.is_empty()
            && self.damaged_jobs.is_empty()
            && self.damaged_registry.is_empty()
            && self.foreign_files.is_empty()
            && self.lost.is_empty()
    }
}

/// Declares the counters of [`StoreStats`] that rise and fall while the store runs.
macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// The running counters behind [`StoreStats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
            /// Blocks that were missing or cut short when the store was opened.
            pub damaged_at_open: AtomicU64,
        }

        impl Counters {
            /// The counters; the caller sets the other fields.
            pub fn read(&self) -> StoreStats {
                StoreStats { $($name: self.$name.load(Relaxed),)* ..StoreStats::default() }
            }
        }
    };
}

counters! {
    batches, readings, schemaless_readings, payload_bytes, duplicates, rejected, busy, write_errors, fsyncs, fsync_ns,
    queue_bytes, journal_bytes, live_bytes, subscriber_lost, quarantined_readings, quarantine_bytes,
    quarantine_dropped_bytes, seals, seal_errors, imported_parts, imported_readings, merges, merge_errors,
    merge_bytes, tier_bytes_written, retention_rewritten_bytes, deletions, sensors_expired, schemas_expired,
    deleted_readings, deletion_rewritten_bytes, retention_blocks, retention_rows, result_cache_stored,
    result_cache_hits, result_cache_misses, result_cache_invalidated, damaged_bytes, job_records, job_commits,
    jobs_dropped, damaged_jobs,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// Subtracts from a counter of what is there now.
pub(crate) fn sub(counter: &AtomicU64, amount: u64) {
    counter.fetch_sub(amount, Relaxed);
}
