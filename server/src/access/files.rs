//! The files of users, tokens and revoked certificates: replaced as a whole, reloaded when they change.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The largest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// The mode of new files: only the owner may read and write.
pub const PRIVATE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system reported an error.
    #[error("cannot {doing} {path}: {error}", path = path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// The content is wrong, or the change is not possible.
    #[error("{path}: {reason}", path = path.display())]
    Content {
        path: PathBuf,
        /// The error, and how to correct it.
        reason: String,
    },
}

impl FileError {
    pub(super) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), reason: reason.into() }
    }
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FileError + 'a {
    move |error| FileError::Io { doing, path: path.to_owned(), error }
}

/// Identifies a version of a file: it changes when the content is overwritten and when another file takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file now; `None` if it cannot be examined.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self {
            inode: meta.ino(),
            bytes: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// Reads the whole file as text.
pub(super) fn read(path: &Path) -> Result<String, FileError> {
    let bytes = fs::metadata(path).map_err(io_error("read", path))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(FileError::content(path, format!("has {bytes} bytes; at most {FILE_BYTES_MAX} are read")));
    }
    fs::read_to_string(path).map_err(io_error("read", path))
}

/// Reads the whole file as text; a missing file is empty.
pub(super) fn read_or_empty(path: &Path) -> Result<String, FileError> {
    match read(path) {
        Err(FileError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

/// Replaces a file as a whole: `change` makes the new text from the old one. Readers, also after a crash, see one or the other. Owner and mode stay.
/// Only its owner may read a new file; if root makes it, the directory's owner owns it, so that the server can read it. One change at a time.
pub(super) fn edit<T>(
    path: &Path,
    change: impl FnOnce(&str) -> Result<(String, T), FileError>,
) -> Result<T, FileError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let lock = File::open(dir).map_err(io_error("open the directory", dir))?;
    // SAFETY: flock takes a descriptor that `lock` keeps open and changes nothing in memory; closing it releases the lock.
    if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(io_error("lock the directory", dir)(io::Error::last_os_error()));
    }
    let (text, result) = change(&read_or_empty(path)?)?;
    replace(path, dir, &text).map_err(io_error("write", path))?;
    lock.sync_all().map_err(io_error("sync the directory", dir))?;
    Ok(result)
}

/// Replaces a file that everybody may read.
pub(crate) fn replace_public(path: &Path, text: &str) -> Result<(), FileError> {
    edit(path, |_| Ok((text.to_owned(), ())))
}

fn replace(path: &Path, dir: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = dir.join(name);
    let write = || {
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&temporary)?;
        match fs::metadata(path) {
            Ok(old) => {
                give(&temporary, &old)?;
                file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))?;
            }
            Err(_) => give_to_owner_of(dir, &temporary)?,
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

fn give(path: &Path, like: &fs::Metadata) -> io::Result<()> {
    let own = fs::metadata(path)?;
    if (own.uid(), own.gid()) != (like.uid(), like.gid()) {
        chown(path, Some(like.uid()), Some(like.gid()))?;
    }
    Ok(())
}

/// Gives a file that root creates in a directory of the server to the directory's owner.
fn give_to_owner_of(dir: &Path, path: &Path) -> io::Result<()> {
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 { give(path, &fs::metadata(dir)?) } else { Ok(()) }
}

/// Opens a file to append lines; a new one is private to its owner.
pub(super) fn open_to_append(path: &Path) -> io::Result<File> {
    let new = !path.exists();
    let file = OpenOptions::new().append(true).create(true).mode(PRIVATE).open(path)?;
    if new {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        give_to_owner_of(dir, path)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_whole_private_and_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        assert_eq!(FileStamp::of(&path), None);
        edit(&path, |old| Ok((format!("{old}a\n"), ()))).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), PRIVATE);
        let first = FileStamp::of(&path);
        assert!(first.is_some());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        edit(&path, |old| Ok((format!("{old}b\n"), ()))).unwrap();
        assert_eq!((read(&path).unwrap().as_str(), mode(&path)), ("a\nb\n", 0o640));
        assert_ne!(FileStamp::of(&path), first);
        let refused = edit(&path, |_| Err::<(String, ()), _>(FileError::content(&path, "no")));
        assert!(refused.unwrap_err().to_string().ends_with("users: no"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        let error = edit(&dir.path().join("none/users"), |_| Ok((String::new(), ()))).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }
}
