//! What the store counts about itself, and what it found when it was opened.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of a store since it was opened, and its present sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Batches stored (acknowledged, duplicates not counted).
    pub batches: u64,
    /// Readings in them, gaps counted too, and readings without a schema.
    pub readings: u64,
    /// Readings without a schema stored, those sent twice counted twice.
    pub schemaless_readings: u64,
    /// Payload bytes in them.
    pub payload_bytes: u64,
    /// Batches that were there already.
    pub duplicates: u64,
    /// Batches refused: malformed or of an unknown schema.
    pub rejected: u64,
    /// Batches turned away because too much was waiting.
    pub busy: u64,
    /// Batches that could not be written (disk full, I/O error).
    pub write_errors: u64,
    /// Group commits of the journal.
    pub fsyncs: u64,
    /// Time spent in their fsync, ns.
    pub fsync_ns: u64,
    /// Payload bytes waiting for the journal now.
    pub queue_bytes: u64,
    /// Bytes of journal segments on disk now.
    pub journal_bytes: u64,
    /// Payload bytes in memory that are not in blocks yet, and the memory of readings without a schema.
    pub live_bytes: u64,
    /// Batches that subscribers were too slow for.
    pub subscriber_lost: u64,
    /// Readings quarantined because of their times, including gaps.
    pub quarantined_readings: u64,
    /// Bytes of the files in the quarantine.
    pub quarantine_bytes: u64,
    /// Bytes of such files dropped because there were too many.
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
    /// Readings in them, gaps counted too.
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
    /// Bytes of blocks that retention wrote again without what was out.
    pub retention_rewritten_bytes: u64,
    pub deletions: u64,
    /// Readings deleted by them.
    pub deleted_readings: u64,
    /// Bytes of files that were written again without what was deleted.
    pub deletion_rewritten_bytes: u64,
    /// Files with something deleted in them that are to be written again.
    pub deletion_files: u64,
    /// Blocks and tiers dropped by retention.
    pub retention_blocks: u64,
    pub retention_rows: u64,
    /// Bytes of kept results of computed sensors now.
    pub derived_bytes: u64,
    /// Pieces of them now.
    pub derived_pieces: u64,
    /// Pieces kept since the store was opened.
    pub derived_kept: u64,
    pub derived_hits: u64,
    /// Pieces asked for that were not there.
    pub derived_misses: u64,
    /// Pieces forgotten because something that they were made from changed.
    pub derived_outdated: u64,
    /// Blocks that could not be read and are left out of answers.
    pub damaged_blocks: u64,
    /// Journal bytes found damaged when the store was opened, and payload bytes that could not be decoded since.
    pub damaged_bytes: u64,
    /// Losses of the journal that nobody has acknowledged.
    pub lost: u64,
    /// Readings in them, as far as their number is known.
    pub lost_readings: u64,
    pub sensors_forgotten: u64,
    pub schemas_forgotten: u64,
    pub sensors: u64,
    pub schemas: u64,
    /// Allocations of jobs known.
    pub allocations: u64,
    /// Records of jobs written, those that brought nothing new not counted.
    pub job_records: u64,
    /// Transactions that wrote them.
    pub job_commits: u64,
    /// Allocations that retention dropped.
    pub jobs_dropped: u64,
    /// Records of jobs found damaged and left out.
    pub damaged_jobs: u64,
    /// Groups whose newest batch is in memory.
    pub newest_groups: u64,
    /// Journal segments that are not in blocks yet, the open one too.
    pub segments: u64,
    /// Bytes free on the disk, as far as the system says.
    pub free_bytes: Option<u64>,
}

/// What opening a store found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    pub segments: u64,
    pub batches: u64,
    /// Readings without a schema in them.
    pub readings: u64,
    /// Batches in them that were there twice.
    pub duplicates: u64,
    /// Bytes after the last whole record of a segment: an append that a crash or a failing disk cut short. Kept under `damaged/`.
    pub torn_bytes: u64,
    /// Other journal bytes that were not a whole record. Kept under `damaged/`.
    pub damaged_bytes: u64,
    /// Blocks that are missing or have another size than was written; left out of answers.
    pub damaged_blocks: Vec<PathBuf>,
    /// Files of seals and merges that a crash interrupted, removed.
    pub leftovers: u64,
    /// Records of jobs that are damaged and left out, by name.
    pub damaged_jobs: Vec<String>,
    /// Lines of the registry that are damaged and left out.
    pub damaged_registry: Vec<String>,
    /// Files under `blocks/` that this store did not write, left alone.
    pub foreign_files: Vec<PathBuf>,
    /// What the journal has lost, now or at an earlier opening, and nobody has acknowledged.
    pub lost: Vec<crate::LossRecord>,
}

impl OpenReport {
    /// Whether anything was found that a person should know of.
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

/// The running counters behind [`StoreStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub batches: AtomicU64,
    pub readings: AtomicU64,
    pub schemaless_readings: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub duplicates: AtomicU64,
    pub rejected: AtomicU64,
    pub busy: AtomicU64,
    pub write_errors: AtomicU64,
    pub fsyncs: AtomicU64,
    pub fsync_ns: AtomicU64,
    pub queue_bytes: AtomicU64,
    pub journal_bytes: AtomicU64,
    pub live_bytes: AtomicU64,
    pub subscriber_lost: AtomicU64,
    pub quarantined_readings: AtomicU64,
    pub quarantine_bytes: AtomicU64,
    pub quarantine_dropped_bytes: AtomicU64,
    pub seals: AtomicU64,
    pub seal_errors: AtomicU64,
    pub imported_parts: AtomicU64,
    pub imported_readings: AtomicU64,
    pub merges: AtomicU64,
    pub merge_errors: AtomicU64,
    pub merge_bytes: AtomicU64,
    pub tier_bytes_written: AtomicU64,
    pub retention_rewritten_bytes: AtomicU64,
    pub deletions: AtomicU64,
    pub sensors_forgotten: AtomicU64,
    pub schemas_forgotten: AtomicU64,
    pub deleted_readings: AtomicU64,
    pub deletion_rewritten_bytes: AtomicU64,
    pub retention_blocks: AtomicU64,
    pub retention_rows: AtomicU64,
    pub derived_kept: AtomicU64,
    pub derived_hits: AtomicU64,
    pub derived_misses: AtomicU64,
    pub derived_outdated: AtomicU64,
    pub damaged_bytes: AtomicU64,
    pub job_records: AtomicU64,
    pub job_commits: AtomicU64,
    pub jobs_dropped: AtomicU64,
    pub damaged_jobs: AtomicU64,
    /// Blocks that were missing or cut short when the store was opened.
    pub damaged_at_open: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// Takes from a counter that says what is there now.
pub(crate) fn sub(counter: &AtomicU64, amount: u64) {
    counter.fetch_sub(amount, Relaxed);
}

impl Counters {
    /// What the counters say; the rest is the caller's to fill in.
    pub fn read(&self) -> StoreStats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        StoreStats {
            batches: get(&self.batches),
            readings: get(&self.readings),
            schemaless_readings: get(&self.schemaless_readings),
            payload_bytes: get(&self.payload_bytes),
            duplicates: get(&self.duplicates),
            rejected: get(&self.rejected),
            busy: get(&self.busy),
            write_errors: get(&self.write_errors),
            fsyncs: get(&self.fsyncs),
            fsync_ns: get(&self.fsync_ns),
            queue_bytes: get(&self.queue_bytes),
            journal_bytes: get(&self.journal_bytes),
            live_bytes: get(&self.live_bytes),
            subscriber_lost: get(&self.subscriber_lost),
            quarantined_readings: get(&self.quarantined_readings),
            quarantine_bytes: get(&self.quarantine_bytes),
            quarantine_dropped_bytes: get(&self.quarantine_dropped_bytes),
            seals: get(&self.seals),
            seal_errors: get(&self.seal_errors),
            imported_parts: get(&self.imported_parts),
            imported_readings: get(&self.imported_readings),
            merges: get(&self.merges),
            merge_errors: get(&self.merge_errors),
            merge_bytes: get(&self.merge_bytes),
            tier_bytes_written: get(&self.tier_bytes_written),
            sensors_forgotten: get(&self.sensors_forgotten),
            schemas_forgotten: get(&self.schemas_forgotten),
            deletions: get(&self.deletions),
            deleted_readings: get(&self.deleted_readings),
            deletion_rewritten_bytes: get(&self.deletion_rewritten_bytes),
            retention_rewritten_bytes: get(&self.retention_rewritten_bytes),
            retention_blocks: get(&self.retention_blocks),
            retention_rows: get(&self.retention_rows),
            derived_kept: get(&self.derived_kept),
            derived_hits: get(&self.derived_hits),
            derived_misses: get(&self.derived_misses),
            derived_outdated: get(&self.derived_outdated),
            damaged_bytes: get(&self.damaged_bytes),
            job_records: get(&self.job_records),
            job_commits: get(&self.job_commits),
            jobs_dropped: get(&self.jobs_dropped),
            damaged_jobs: get(&self.damaged_jobs),
            ..StoreStats::default()
        }
    }
}
