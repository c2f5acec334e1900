//! Blocks: Parquet files of sealed readings, sorted by sensor and then by time. `FORMAT.md` describes them.

pub(crate) mod index;
pub(crate) mod page;
pub(crate) mod read;
pub(crate) mod sensor_column;
pub(crate) mod write;

use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Version of what a block's and a tier's footer says of itself; a newer one is refused.
pub(crate) const BLOCK_VERSION: u64 = 1;

/// Rows of a data page of `value`, about: a page ends at the first sensor's end at or after so many, and is never longer than
/// twice that. A scan of one sensor decodes whole pages.
pub(crate) const PAGE_ROWS: usize = 8_192;
/// Rows of a page of times. Sensors of a group have the same times, so a page repeats itself with every sensor: the more of
/// them it holds, the less the times cost. 131,072 rows are 1 MiB before compression.
pub(crate) const TIME_PAGE_ROWS: usize = 131_072;
/// Rows of a row group: what other readers prune by their statistics, and what a writer holds in memory (compressed).
pub(crate) const GROUP_ROWS: u64 = 1 << 20;

/// Where a file of the catalogue lies: blocks below `blocks/`, tiers below `tiers/` beside it.
pub(crate) fn locate(blocks: &Path, path: &str) -> PathBuf {
    match blocks.parent() {
        Some(dir) if path.starts_with(crate::tiers::TIERS_DIR) => dir.join(path),
        _ => blocks.join(path),
    }
}

/// The library's error as the operation's. What the system refused stays an I/O error, so that a full disk is known as one; what the bytes
/// themselves caused (a decompressor's complaint, an end too soon) is damage.
pub(crate) fn fault(doing: &'static str, path: &std::path::Path, error: ParquetError) -> crate::StoreError {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) if error.raw_os_error().is_some() => crate::StoreError::io(doing, path, *error),
            Ok(error) => crate::StoreError::damaged(path, error.to_string()),
            Err(error) => crate::StoreError::damaged(path, error.to_string()),
        },
        error => crate::StoreError::damaged(path, error.to_string()),
    }
}
