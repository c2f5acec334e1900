//! The file operations that the store needs, as a trait, so that a test can use a disk that fills up, fails, cuts writes short and loses what was
//! never synced.

use std::any::Any;
use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One open file, read and written at offsets.
pub trait DiskFile: Send + Sync + Debug {
    /// Fills `out` from `offset`; an error if the file ends before.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`. After an error a part of them may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns when the content and the length are on stable storage.
    fn sync(&self) -> io::Result<()>;
    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Length of the file in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskEntry {
    pub path: PathBuf,
    pub is_dir: bool,
}

/// The operations of a file system that the store uses.
pub trait Disk: Send + Sync + Debug {
    /// Creates an empty file; an existing one is replaced.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading, and with `write` also for writing.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file in one step; a file with the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes the file at `path`.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory and its parents; durable when it returns.
    fn create_dirs(&self, path: &Path) -> io::Result<()>;
    /// Returns when the directory's entries are on stable storage.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The entries of a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>>;
    /// Whether the path exists.
    fn exists(&self, path: &Path) -> bool;
    /// Bytes free below `path`.
    fn free_bytes(&self, path: &Path) -> Option<u64>;
    /// Locks the file for this process until the returned value is dropped; [`io::ErrorKind::WouldBlock`] if another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
}

/// The mode of the store's files: readable for the group only, whatever the umask allows.
const FILE_MODE: u32 = 0o640;
/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 256 << 10;
/// The mode of directories.
const DIR_MODE: u32 = 0o750;
/// Permissions that are removed: writing for the group, everything for others.
const TOO_OPEN: u32 = 0o027;

/// Options for creating a file that others cannot read.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(FILE_MODE);
    options
}

/// Creates a directory and its parents, not accessible for others.
pub(crate) fn make_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Removes the permissions of others from a directory of this user, which an earlier release or a person may have created. Its content cannot be
/// reached then either.
pub(crate) fn close_to_others(dir: &Path) {
    let Ok(meta) = std::fs::symlink_metadata(dir) else { return };
    // SAFETY: the call has no arguments and cannot fail.
    let ours = meta.uid() == unsafe { libc::geteuid() };
    let mode = meta.permissions().mode() & 0o7777;
    if !meta.is_dir() || !ours || mode & TOO_OPEN == 0 {
        return;
    }
    match std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode & !TOO_OPEN)) {
        Ok(()) => tracing::info!(dir = %dir.display(), "closed to other users: it had the mode {mode:04o}"),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "it has the mode {mode:04o}, and cannot be closed to other users")
        }
    }
}

/// The real file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl DiskFile for File {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = private().truncate(true).open(path)?;
        Ok(Arc::new(file))
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(write).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let Some(parent) = path.parent() else { return Ok(()) };
        if !parent.as_os_str().is_empty() {
            self.create_dirs(parent)?;
        }
        match DirBuilder::new().mode(DIR_MODE).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.sync_dir(parent)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        File::open(path)?.sync_all()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            entries.push(DiskEntry { path: entry.path(), is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn free_bytes(&self, path: &Path) -> Option<u64> {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: `path` ends in NUL and `stat` is as large as the call writes.
        let result = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: the call succeeded, so that it filled `stat`.
        let stat = unsafe { stat.assume_init() };
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let file = private().truncate(false).open(path)?;
        // SAFETY: the descriptor belongs to `file`, which lives past the call.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(io::Error::last_os_error());
        }
        file.set_len(0)?;
        file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)?;
        Ok(Box::new(file))
    }
}

/// The whole content of a file.
pub(crate) fn read_all(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(file.size()?).map_err(io::Error::other)?];
    file.read_at(0, &mut content)?;
    Ok(content)
}

/// The whole content of the file at `path`.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    read_all(disk.open(path, false)?.as_ref())
}

/// The length and the CRC-32C of a file's content.
pub(crate) fn checksum(file: &dyn DiskFile) -> io::Result<(u64, u32)> {
    let (bytes, mut at, mut sum) = (file.size()?, 0, 0);
    let mut piece = vec![0; PIECE_BYTES];
    while at < bytes {
        let length = usize::try_from(bytes - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        file.read_at(at, &mut piece[..length])?;
        sum = crc32c::crc32c_append(sum, &piece[..length]);
        at += length as u64;
    }
    Ok((bytes, sum))
}

/// All files below a directory, sorted. A directory that cannot be listed has none.
pub(crate) fn files_below(disk: &dyn Disk, dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in disk.list(&dir).unwrap_or_default() {
            if entry.is_dir { dirs.push(entry.path) } else { found.push(entry.path) }
        }
    }
    found.sort();
    found
}
