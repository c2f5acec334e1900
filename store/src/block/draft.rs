//! Blocks that are being written under a temporary name.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::record::{BlockKind, BlockRecord, block_path};
use super::write::BlockWriter;
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

    /// A number that no block has had.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// A number that no block has had, and the temporary file of a block with this number.
    pub fn next(&self) -> (u64, TemporaryFile) {
        let id = self.next_id();
        (id, self.file(&format!("{id}.parquet")))
    }

    /// A temporary file with this name.
    pub fn file(&self, name: &str) -> TemporaryFile {
        TemporaryFile { disk: self.disk.clone(), path: self.dir.join(name) }
    }
}

/// A file with a temporary name. It is removed when this is dropped, unless it has been renamed.
pub(crate) struct TemporaryFile {
    disk: Arc<dyn Disk>,
    pub path: PathBuf,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        match self.disk.remove(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(file = %self.path.display(), %error, "cannot remove; the next start does");
            }
            _ => {}
        }
    }
}

/// A block being written under a temporary name.
pub(crate) struct BlockDraft {
    id: u64,
    kind: BlockKind,
    pub writer: BlockWriter,
    temporary: TemporaryFile,
    /// Whether retention left rows of some sensors out of it.
    pub trimmed: bool,
}

/// A block that is on stable storage under its temporary name.
pub(crate) struct FinishedBlock {
    pub temporary: TemporaryFile,
    pub record: BlockRecord,
}

impl BlockDraft {
    pub(crate) fn create(drafts: &DraftDirectory, kind: BlockKind, zstd_level: i32) -> Result<Self, StoreError> {
        let (id, temporary) = drafts.next();
        let writer = BlockWriter::create(drafts.disk.as_ref(), &temporary.path, kind.value_type, zstd_level)?;
        Ok(Self { id, kind, writer, temporary, trimmed: false })
    }

    /// The number that the block will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Writes the rest and syncs the file.
    pub fn finish(mut self) -> Result<FinishedBlock, StoreError> {
        self.writer.say_segments(self.kind.first_segment, self.kind.last_segment);
        let written = self.writer.finish()?;
        let path = block_path(self.id, self.kind.value_type, written.first_time);
        let record = BlockRecord { trimmed: self.trimmed, ..self.kind.record(self.id, path, None, &written) };
        Ok(FinishedBlock { temporary: self.temporary, record })
    }
}
