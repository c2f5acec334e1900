//! The file operations of the spool. Tests replace them by a disk that fails.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file operations that the spool needs.
pub trait Disk: Send {
    /// Creates a directory and its parents; succeeds if it exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks a file until the guard is dropped; `None` if another process has the lock.
    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Send>>>;
    /// Names of the directory's files.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens a file for reading and writing; creates it if `create`.
    fn open(&self, file: &Path, create: bool) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file; replaces an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, file: &Path) -> io::Result<()>;
    /// Syncs the names in a directory to stable storage.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file of a [`Disk`].
pub trait DiskFile: Send {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads some bytes; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes some of the bytes.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Truncates or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Syncs the content to stable storage.
    fn sync(&self) -> io::Result<()>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The operating system's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn Send>>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(file)?;
        // SAFETY: flock only takes the descriptor, which `file` keeps open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(Some(Box::new(file)));
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn open(&self, file: &Path, create: bool) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).create(create).truncate(false).open(file)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Writes all the bytes.
pub(super) fn write_all(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
pub(super) fn read_full(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
