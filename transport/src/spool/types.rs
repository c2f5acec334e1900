//! The spool's settings, records and errors.

use std::io;
use std::path::PathBuf;

/// The largest record on disk, in bytes: a payload of 16 MiB with the longest topic.
pub const RECORD_BYTES_MAX: usize = (16 << 20) + 65_535 + 10;
/// The most damaged segments that are kept; beyond it the oldest is removed.
pub const DAMAGED_FILES_MAX: usize = 4;
/// The fewest segments of a full spool, so that dropping the oldest does not drop nearly everything.
pub const SEGMENTS_MIN: u64 = 4;

/// Directory and bounds of a spool.
#[derive(Debug, Clone)]
pub struct SpoolConfig {
    /// Created if it does not exist.
    pub dir: PathBuf,
    /// The most bytes of all segments; beyond it the oldest segment is dropped and counted.
    pub bytes_max: u64,
    /// The size at which a segment is closed and the next begun; at most a quarter of `bytes_max`.
    pub segment_bytes: u64,
    /// Whether [`Spool::flush`] waits for the disk.
    pub sync: bool,
}

/// The result of opening the spool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpoolReport {
    pub records: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Bytes truncated from the newest segment: a record that a crash left incomplete.
    pub torn_bytes: u64,
    /// Bytes that cannot be read; their segments are kept as `.damaged`.
    pub damaged_bytes: u64,
    /// One line for each problem, for the log.
    pub problems: Vec<String>,
}

/// A record's position: later records have greater ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// A record that was read from the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Confirms the record in [`Spool::confirm`].
    pub id: RecordId,
    pub topic: String,
    pub payload: Vec<u8>,
}

/// Losses since the spool was opened, because it was full or damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Records. Those after damage that was found at opening cannot be counted.
    pub records: u64,
    pub bytes: u64,
}

/// Why an operation of the spool failed.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("cannot {what} {}: {error}", path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The disk or the quota is full; the record is not stored, and the spool is usable.
    #[error("no space left to spool to {}: make room on that file system, or lower the spool's bound", path.display())]
    DiskFull { path: PathBuf },
    /// The record can never fit.
    #[error("record of {bytes} bytes, the spool takes at most {max}; send smaller batches or raise the bound")]
    TooLarge {
        /// The record's bytes on disk.
        bytes: u64,
        max: u64,
    },
    /// Another process has the spool open.
    #[error("spool {} is in use by another process; stop it, or configure another directory", dir.display())]
    InUse { dir: PathBuf },
}

/// Converts the error of a file operation; a full disk has its own variant.
pub(super) fn failed(what: &'static str, path: PathBuf, error: io::Error) -> SpoolError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => SpoolError::DiskFull { path },
        _ => SpoolError::Io { what, path, error },
    }
}
