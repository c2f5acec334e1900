//! Functions for the store's databases: a file of the library over a [`Disk`], creation, and the copy that replaces a file after a failed fsync.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redb::backends::InMemoryBackend;
use redb::{Database, StorageBackend, WriteTransaction};

use crate::StoreError;
use crate::disk::{Disk, DiskFile};

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// A database's file. It notes a failed fsync: from then on it is unknown what is on stable storage.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    pub file: Arc<dyn DiskFile>,
    pub unsynced: Arc<AtomicBool>,
}

impl StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync().inspect_err(|_| self.unsynced.store(true, Relaxed))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }
}

fn copy_content(disk: &dyn Disk, from: &dyn DiskFile, new: &Path) -> io::Result<()> {
    let to = disk.create(new)?;
    let size = from.size()?;
    to.set_len(size)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(PIECE_BYTES as u64);
        let piece = &mut piece[..length as usize];
        from.read_at(at, piece)?;
        // The library makes its file much longer than its content: unwritten parts take no space in the copy either.
        if piece.iter().any(|byte| *byte != 0) {
            to.write_at(at, piece)?;
        }
        at += length;
    }
    to.sync()
}

/// Copies a database. After a failed fsync the system may show data that it will never write; a copy is written as a whole and synced.
pub(crate) fn copy_file(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let from = disk.open(path, false).map_err(|error| StoreError::io("reading", path, error))?;
    let copy = || {
        copy_content(disk, from.as_ref(), &new)?;
        disk.rename(&new, path)?;
        disk.sync_dir(path.parent().unwrap_or(path))
    };
    copy().map_err(|error| StoreError::io("writing", &new, error))
}

/// Copies a database to another name and syncs it.
pub(crate) fn copy_to(disk: &dyn Disk, path: &Path, to: &Path) -> Result<(), StoreError> {
    let from = disk.open(path, false).map_err(|error| StoreError::io("reading", path, error))?;
    copy_content(disk, from.as_ref(), to).map_err(|error| StoreError::io("writing", to, error))
}

/// Creates a database under a temporary name first, so that a crash cannot leave a part of one. `fill` creates its tables.
pub(crate) fn create(
    disk: &dyn Disk,
    path: &Path,
    cache_bytes: usize,
    fill: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let file = disk.create(&new).map_err(|error| StoreError::io("creating", &new, error))?;
    let backend = DatabaseFile { file: file.clone(), unsynced: Arc::default() };
    let make = || -> Result<(), redb::Error> {
        let db = Database::builder().set_cache_size(cache_bytes).create_with_backend(backend)?;
        let txn = db.begin_write()?;
        fill(&txn)?;
        Ok(txn.commit()?)
    };
    make().map_err(|error| fail("creating", &new, error))?;
    file.sync().map_err(|error| StoreError::io("syncing", &new, error))?;
    disk.rename(&new, path).map_err(|error| StoreError::io("renaming", &new, error))?;
    let dir = path.parent().unwrap_or(path);
    disk.sync_dir(dir).map_err(|error| StoreError::io("syncing", dir, error))
}

/// A database in memory with this content of a file.
pub(crate) fn in_memory(content: &[u8], cache_bytes: usize) -> Result<Database, redb::Error> {
    let memory = InMemoryBackend::new();
    memory.set_len(content.len() as u64)?;
    memory.write(0, content)?;
    Ok(Database::builder().set_cache_size(cache_bytes).create_with_backend(memory)?)
}

/// Converts an error of the library.
pub(crate) fn fail(doing: &'static str, path: &Path, error: redb::Error) -> StoreError {
    match error {
        redb::Error::Io(error) => StoreError::io(doing, path, error),
        error => StoreError::Catalogue { doing, path: path.to_owned(), reason: error.to_string() },
    }
}
