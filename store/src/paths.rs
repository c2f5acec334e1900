//! The paths of a store.

use std::io;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::disk::{Disk, read_file};

/// The paths below the directory of the store.
#[derive(Debug)]
pub(crate) struct StorePaths {
    pub dir: PathBuf,
    pub journal: PathBuf,
    pub blocks: PathBuf,
    pub temporary: PathBuf,
    pub damaged: PathBuf,
    pub quarantine: PathBuf,
    pub catalogue: PathBuf,
}

/// Locks the directory for this process.
pub(crate) fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn std::any::Any + Send + Sync>, StoreError> {
    let path = dir.join("lock");
    disk.lock(&path).map_err(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            return StoreError::io("locking", &path, error);
        }
        let pid = read_file(disk, &path).unwrap_or_default();
        let pid = String::from_utf8_lossy(&pid).trim().chars().take(20).collect();
        StoreError::Locked { path: dir.to_owned(), pid }
    })
}
