//! Folders and files in which an ordinary user cannot put anything: owner and mode of every folder on the way are checked on open descriptors,
//! and no link of a user is followed.
//!
//! The agent may read files that only root can read (`CAP_DAC_READ_SEARCH`): without these checks a user could show them through a link.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

mod mounts;

/// The most symbolic links on the way to a folder.
const LINKS_MAX: usize = 16;
/// The most levels on the way to a folder.
const LEVELS_MAX: usize = 128;
/// The longest target of a link, in bytes.
const LINK_BYTES_MAX: usize = 4096;
/// Writable by the group or by others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Only owners can rename and remove what is in the folder.
const STICKY: u32 = 0o1000;

/// Why a folder or a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("{path}: {error}")]
    Os { path: String, error: io::Error },
    #[error("{path} belongs to user {uid}; expected root, the agent's user or the configured owner")]
    Owner { path: String, uid: u32 },
    #[error("{path} is writable by group or others (mode {mode:04o}); use chmod go-w")]
    Writable { path: String, mode: u32 },
    #[error("{path} is for files of all users (mode {mode:04o}); use a folder of its own, such as {path}/wholegrain")]
    Shared { path: String, mode: u32 },
    #[error("{path} is no regular file")]
    NoFile { path: String },
    #[error("{path} is a symbolic link of user {uid}; only links of root are followed, and only to folders")]
    Link { path: String, uid: u32 },
    #[error(
        "{path} belongs to user {uid}, but user {owner}, to whom its folder or one above it belongs, could have put it there"
    )]
    Foreign { path: String, uid: u32, owner: u32 },
    #[error("{path} has other names (hard links) and belongs to another user than its folder; copy it")]
    Linked { path: String },
    #[error("{path} is on a file system that user {uid} runs (FUSE), who could keep the agent waiting")]
    UserMount { path: String, uid: u32 },
    #[error("{path} has {bytes} bytes; at most {max} are read")]
    TooLong { path: String, bytes: u64, max: u64 },
}

impl TrustError {
    /// The number of the system's error; `EPERM` if owner or mode is the reason.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Os { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Self::TooLong { .. } => libc::EFBIG,
            _ => libc::EPERM,
        }
    }
}

/// Who may own folders and files: root, the agent's user, and perhaps one more user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrustedOwners {
    pub more: Option<u32>,
}

impl TrustedOwners {
    fn contains(self, uid: u32) -> bool {
        is_own(uid) || self.more == Some(uid)
    }
}

/// Root or the user of this process.
fn is_own(uid: u32) -> bool {
    // SAFETY: geteuid only returns a number.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

/// An open folder whose owner and mode were checked, with all folders above it.
#[derive(Debug)]
pub struct TrustedFolder {
    fd: OwnedFd,
    path: PathBuf,
    /// Who decides what the folder has: its owner, or that of a folder above it who is neither root nor the agent.
    uid: u32,
    owners: TrustedOwners,
}

impl TrustedFolder {
    /// Opens a folder. It must not be writable by others; folders above it may be, if they have the sticky bit.
    pub fn open(path: &Path, owners: TrustedOwners) -> Result<Self, TrustError> {
        let absolute = std::path::absolute(path).map_err(|error| os(path, error))?;
        let (fd, uid) = walk(&absolute, owners)?;
        Ok(Self { fd, path: absolute, uid, owners })
    }

    /// The names of the entries, in no order, at most `max`.
    pub fn names(&self, max: usize) -> Result<Vec<OsString>, TrustError> {
        // The entry in /proc is the open folder itself, not what its path names now.
        let list = std::fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let list = list.map_err(|error| os(&self.path, error))?;
        Ok(list.take(max).filter_map(|entry| Some(entry.ok()?.file_name())).collect())
    }

    /// Opens a regular file of the folder, without following a link and without waiting for a pipe's other end. It belongs to the folder's owner, or
    /// to one of the trusted owners if the folder belongs to root or the agent: a user who owns the folder, or one above it, cannot show files of
    /// others in it.
    pub fn file(&self, name: &OsStr, bytes_max: u64) -> Result<(File, libc::stat), TrustError> {
        let (file, stat) = self.any_file(name, bytes_max, beneath_at)?;
        let text = || shown(&self.path.join(name));
        if stat.st_uid != self.uid && !is_own(self.uid) {
            return Err(TrustError::Foreign { path: text(), uid: stat.st_uid, owner: self.uid });
        }
        // Another user than root can give a file of root a name here: a program of the agent's user would show what only root can read.
        if stat.st_nlink > 1 && stat.st_uid != self.uid && self.uid != 0 {
            return Err(TrustError::Linked { path: text() });
        }
        Ok((file, stat))
    }

    /// Opens a regular file of one of the trusted owners, whoever of them put it into the folder.
    fn any_file(&self, name: &OsStr, bytes_max: u64, open: OpenFunction) -> Result<(File, libc::stat), TrustError> {
        let path = self.path.join(name);
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let fd = open(Some(&self.fd), name, flags).map_err(|error| os(&path, error))?;
        let stat = stat(&fd).map_err(|error| os(&path, error))?;
        let text = || shown(&path);
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(TrustError::NoFile { path: text() });
        }
        if stat.st_uid != self.uid && !self.owners.contains(stat.st_uid) {
            return Err(TrustError::Owner { path: text(), uid: stat.st_uid });
        }
        if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
            return Err(TrustError::Writable { path: text(), mode: stat.st_mode & 0o7777 });
        }
        let bytes = stat.st_size.unsigned_abs();
        if bytes > bytes_max {
            return Err(TrustError::TooLong { path: text(), bytes, max: bytes_max });
        }
        Ok((File::from(fd), stat))
    }
}

/// The path of a program that only trusted owners can change, with its folders. Links of root to it are resolved.
pub fn program(path: &Path, owners: TrustedOwners) -> Result<PathBuf, TrustError> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        match TrustedFolder::open(parent, owners)?.any_file(name, u64::MAX, open_at) {
            Ok(_) => return Ok(path),
            Err(TrustError::Os { error, .. }) if error.raw_os_error() == Some(libc::ELOOP) => {
                let owner = std::fs::symlink_metadata(&path).map_err(|error| os(&path, error))?.uid();
                if !is_own(owner) {
                    return Err(TrustError::Link { path: shown(&path), uid: owner });
                }
                // An absolute target replaces the path.
                path = parent.join(std::fs::read_link(&path).map_err(|error| os(&path, error))?);
            }
            Err(error) => return Err(error),
        }
    }
    Err(os(&path, io::Error::from_raw_os_error(libc::ELOOP)))
}

/// Opens each folder from the root on. Gives the last one, and the first owner on the way who is neither root nor the agent, else its own.
fn walk(absolute: &Path, owners: TrustedOwners) -> Result<(OwnedFd, u32), TrustError> {
    let root = Path::new("/");
    let mut current = open_at(None, root.as_os_str(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
        .map_err(|error| os(root, error))?;
    let mut rest = levels(absolute, absolute)?;
    let (mut path, mut links, mut uid) = (root.to_owned(), 0, 0);
    while let Some(level) = rest.pop() {
        path.push(&level);
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let next = open_at(Some(&current), &level, flags).map_err(|error| os(&path, error))?;
        // Before anything that asks the file system, which a user may run and which then need not answer.
        if let Some(uid) = mounts::runner_of(&next) {
            return Err(TrustError::UserMount { path: shown(&path), uid });
        }
        let found = stat(&next).map_err(|error| os(&path, error))?;
        let (text, mode) = (|| shown(&path), found.st_mode);
        if mode & libc::S_IFMT == libc::S_IFLNK {
            links += 1;
            if !is_own(found.st_uid) || links > LINKS_MAX {
                return Err(TrustError::Link { path: text(), uid: found.st_uid });
            }
            let target = PathBuf::from(link_target(&next).map_err(|error| os(&path, error))?);
            path.pop();
            if target.is_absolute() {
                path = root.to_owned();
                current = open_at(None, root.as_os_str(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
                    .map_err(|error| os(root, error))?;
            }
            rest.extend(levels(&target, absolute)?);
            continue;
        }
        if !owners.contains(found.st_uid) {
            return Err(TrustError::Owner { path: text(), uid: found.st_uid });
        }
        if mode & WRITABLE_BY_OTHERS != 0 && (rest.is_empty() || mode & STICKY == 0) {
            let (path, mode) = (text(), mode & 0o7777);
            // The advice to change its mode would break /tmp for the others.
            let is_shared = mode & STICKY != 0;
            return Err(if is_shared {
                TrustError::Shared { path, mode }
            } else {
                TrustError::Writable { path, mode }
            });
        }
        current = next;
        if is_own(uid) {
            uid = found.st_uid;
        }
    }
    // The descriptors of the way cannot be read; the same folder again, for reading.
    let fd = open_at(Some(&current), OsStr::new("."), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
    Ok((fd.map_err(|error| os(absolute, error))?, uid))
}

/// The levels of a path in reverse order. `..` is refused: what is above a link is not what is written before it.
fn levels(path: &Path, whole: &Path) -> Result<Vec<OsString>, TrustError> {
    let invalid = || os(whole, io::Error::from_raw_os_error(libc::ELOOP));
    let mut levels = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(level) => levels.push(level.to_owned()),
            Component::ParentDir => return Err(invalid()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    levels.reverse();
    if levels.len() > LEVELS_MAX { Err(invalid()) } else { Ok(levels) }
}

fn os(path: &Path, error: io::Error) -> TrustError {
    TrustError::Os { path: shown(path), error }
}

/// A path for messages: the names of users' files can have any character.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

type OpenFunction = fn(Option<&OwnedFd>, &OsStr, i32) -> io::Result<OwnedFd>;

/// As [`open_at`], but nothing that is mounted on the name is opened: a user can mount a file system of their own on their file. Before Linux 5.6 as
/// [`open_at`].
fn beneath_at(folder: Option<&OwnedFd>, name: &OsStr, flags: i32) -> io::Result<OwnedFd> {
    let text = CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let at = folder.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    // openat2(2): flags, mode, how paths are resolved.
    let how: [u64; 3] = [flags as u64, 0, libc::RESOLVE_NO_XDEV];
    // SAFETY: the name ends in a NUL, and both live during the call.
    let fd = unsafe { libc::syscall(libc::SYS_openat2, at, text.as_ptr(), how.as_ptr(), size_of_val(&how)) };
    if fd >= 0 {
        // SAFETY: the descriptor was just opened and has no other owner.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => open_at(folder, name, flags),
        error => Err(error),
    }
}

fn open_at(folder: Option<&OwnedFd>, name: &OsStr, flags: i32) -> io::Result<OwnedFd> {
    let name = CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let folder = folder.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    // SAFETY: the name ends in a NUL and outlives the call; the folder is open or AT_FDCWD.
    let fd = unsafe { libc::openat(folder, name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn stat(fd: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: `stat` is plain numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is writable.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

/// The target of a link that is open with `O_PATH`.
fn link_target(link: &OwnedFd) -> io::Result<OsString> {
    let (mut target, empty) = (vec![0u8; LINK_BYTES_MAX], c"");
    // SAFETY: the name is an empty C string, which stands for the descriptor; the buffer is writable for its length.
    let length =
        unsafe { libc::readlinkat(link.as_raw_fd(), empty.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    target.truncate(length);
    Ok(OsString::from_vec(target))
}

/// A user of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

/// The longest entry of the user database, in bytes.
const ACCOUNT_BYTES_MAX: usize = 64 << 10;

/// The user of a name. `None` if there is none.
pub fn account(name: &str) -> Option<Account> {
    let name = CString::new(name).ok()?;
    // SAFETY: `passwd` is numbers and pointers, for which zero is a value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let (mut room, mut found) = (vec![0; ACCOUNT_BYTES_MAX], std::ptr::null_mut());
    // SAFETY: all pointers are valid for the call, and the room has the given length.
    let result = unsafe { libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found) };
    (result == 0 && !found.is_null()).then_some(Account { uid: entry.pw_uid, gid: entry.pw_gid })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const NO_LIMIT: u64 = 1 << 20;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn is_root() -> bool {
        // SAFETY: geteuid only returns a number.
        unsafe { libc::geteuid() == 0 }
    }

    #[track_caller]
    fn refused(result: Result<impl std::fmt::Debug, TrustError>, part: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }

    #[test]
    fn modes_kinds_and_sizes() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("file"), "x 1\n").unwrap();
        mode(&folder.join("file"), 0o644);
        let open = || TrustedFolder::open(&folder, TrustedOwners::default());
        let file = |name: &str, max| open().unwrap().file(OsStr::new(name), max).map(|(file, _)| file);
        assert!(file("file", NO_LIMIT).is_ok());
        assert_eq!(open().unwrap().names(10).unwrap(), ["file"]);
        refused(file("none", NO_LIMIT), "No such file");
        refused(file("file", 3), "has 4 bytes; at most 3 are read");
        mode(&folder.join("file"), 0o664);
        refused(file("file", NO_LIMIT), "is writable by group or others (mode 0664)");
        fs::create_dir(folder.join("folder")).unwrap();
        refused(file("folder", NO_LIMIT), "is no regular file");
        symlink("/etc/passwd", folder.join("link")).unwrap();
        refused(file("link", NO_LIMIT), "Too many levels of symbolic links");
        let pipe = CString::new(folder.join("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o644) }, 0);
        refused(file("pipe", NO_LIMIT), "is no regular file");
        mode(&folder, 0o775);
        refused(open(), "is writable by group or others (mode 0775)");
        mode(&folder, 0o1777);
        refused(open(), "is for files of all users (mode 1777); use a folder of its own, such as");
        mode(&folder, 0o755);
        mode(&root.path().join("a"), 0o777);
        refused(open(), "/a is writable by group or others (mode 0777)");
        mode(&root.path().join("a"), 0o1777);
        open().unwrap();
        symlink("a", root.path().join("other")).unwrap();
        TrustedFolder::open(&root.path().join("other/b"), TrustedOwners::default()).unwrap();
        symlink("../b", folder.join("up")).unwrap();
        refused(TrustedFolder::open(&folder.join("up"), TrustedOwners::default()), "symbolic links");
    }

    #[test]
    fn files_and_links_of_other_users() {
        if !is_root() {
            println!("skipped: only root can give files to other users");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        mode(root.path(), 0o755);
        let (eve, folder) = (4242, root.path().join("eve"));
        let owners = TrustedOwners { more: Some(eve) };
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("of_root"), "x 1\n").unwrap();
        fs::write(folder.join("of_eve"), "x 1\n").unwrap();
        chown(folder.join("of_eve"), Some(eve), None).unwrap();
        let file = |name: &str, owners| TrustedFolder::open(&folder, owners)?.file(OsStr::new(name), NO_LIMIT);
        assert!(file("of_root", TrustedOwners::default()).is_ok());
        refused(file("of_eve", TrustedOwners::default()), "belongs to user 4242");
        assert!(file("of_eve", owners).is_ok());
        chown(&folder, Some(eve), None).unwrap();
        refused(file("of_eve", TrustedOwners::default()), "belongs to user 4242");
        assert!(file("of_eve", owners).is_ok());
        // A hard link: the folder is eve's, and she would show it.
        refused(file("of_root", owners), "belongs to user 0, but user 4242");
        // A folder of root, too: eve could exchange it for another one of root.
        fs::create_dir(folder.join("moved")).unwrap();
        fs::write(folder.join("moved/of_root"), "password 1\n").unwrap();
        fs::write(folder.join("moved/of_eve"), "x 1\n").unwrap();
        chown(folder.join("moved/of_eve"), Some(eve), None).unwrap();
        let moved = |name: &str| TrustedFolder::open(&folder.join("moved"), owners)?.file(OsStr::new(name), NO_LIMIT);
        refused(moved("of_root"), "belongs to user 0, but user 4242");
        assert!(moved("of_eve").is_ok());
        // As a program it is of root, and runs as eve.
        assert!(program(&folder.join("moved/of_root"), owners).is_ok());
        fs::create_dir(root.path().join("secret")).unwrap();
        symlink(root.path().join("secret"), folder.join("link")).unwrap();
        std::os::unix::fs::lchown(folder.join("link"), Some(eve), None).unwrap();
        refused(TrustedFolder::open(&folder.join("link"), owners), "is a symbolic link of user 4242");
    }

    #[test]
    fn users_by_name() {
        assert_eq!(account("root"), Some(Account { uid: 0, gid: 0 }));
        assert_eq!(account("no-such-user-here"), None);
    }
}
