//! Blocks that are being written under a temporary name.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::record::{BlockKind, BlockRecord, block_path};
use super::write::{BlockSummary, BlockWriter};
use crate::StoreError;
use crate::disk::Disk;

/// The directory of temporary files, and the numbers of new blocks.
pub(crate) struct DraftDirectory {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    next_id: AtomicU64,
}

impl DraftDirectory {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, next_id: u64) -> Self {
        Self { disk, dir, next_id: AtomicU64::new(next_id) }
    }

    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// A number that no block has had, and the temporary file of a block with this number.
    pub fn next(&self) -> (u64, PathBuf) {
        let id = self.next_id.fetch_add(1, Relaxed);
        (id, self.dir.join(format!("{id}.parquet")))
    }

    /// The temporary file of another kind.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// A block being written under a temporary name.
pub(crate) struct BlockDraft {
    disk: Arc<dyn Disk>,
    id: u64,
    temporary: PathBuf,
    kind: BlockKind,
    pub writer: BlockWriter,
    /// Whether retention left rows of some sensors out of it.
    pub trimmed: bool,
}

/// A block that is on stable storage under its temporary name.
pub(crate) struct FinishedBlock {
    disk: Arc<dyn Disk>,
    pub temporary: PathBuf,
    pub record: BlockRecord,
}

impl BlockDraft {
    pub(crate) fn create(drafts: &DraftDirectory, kind: BlockKind, zstd_level: i32) -> Result<Self, StoreError> {
        let (id, temporary) = drafts.next();
        let disk = drafts.disk.clone();
        let writer = BlockWriter::create(disk.as_ref(), &temporary, kind.value_type, zstd_level);
        let writer = writer.inspect_err(|_| drop(disk.remove(&temporary)))?;
        Ok(Self { disk, id, temporary, kind, writer, trimmed: false })
    }

    /// The number that the block will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Writes the rest and syncs the file. After an error the file is removed.
    pub fn finish(mut self) -> Result<FinishedBlock, StoreError> {
        self.writer.say_segments(self.kind.first_segment, self.kind.last_segment);
        let BlockSummary { rows, bytes, first_time, last_time, sums, .. } = match self.writer.finish() {
            Ok(written) => written,
            Err(error) => {
                let _ = self.disk.remove(&self.temporary);
                return Err(error);
            }
        };
        let BlockKind { value_type, day, level, first_segment, last_segment, import } = self.kind;
        let record = BlockRecord {
            id: self.id,
            path: block_path(self.id, value_type, first_time),
            value_type,
            day,
            level,
            first_segment,
            last_segment,
            import,
            first_time,
            last_time,
            rows,
            bytes,
            tier: None,
            trimmed: self.trimmed,
            sums: Some(sums),
            tombstones: Vec::new(),
        };
        Ok(FinishedBlock::new(self.disk, self.temporary, record))
    }

    /// Removes the temporary file.
    pub fn discard(self) {
        let _ = self.disk.remove(&self.temporary);
    }
}

impl FinishedBlock {
    pub(crate) fn new(disk: Arc<dyn Disk>, temporary: PathBuf, record: BlockRecord) -> Self {
        Self { disk, temporary, record }
    }

    /// Removes the temporary file.
    pub fn discard(&self) {
        let _ = self.disk.remove(&self.temporary);
    }
}
