//! What the kernel tells of directories that come and go (inotify(7)).

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::live::{DirId, JobKey};

/// How much is read at once, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;
/// The bytes of an event before its name.
const EVENT_BYTES: usize = size_of::<libc::inotify_event>();

/// Directories: what comes, what goes.
const DIR_MASK: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ONLYDIR
    | libc::IN_DONT_FOLLOW
    | libc::IN_EXCL_UNLINK;
/// Directories of files that are written.
const FILES_MASK: u32 =
    libc::IN_CLOSE_WRITE | libc::IN_MOVED_TO | libc::IN_MOVED_FROM | libc::IN_DELETE | libc::IN_ONLYDIR;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchTarget {
    /// A directory of the cgroup tree.
    Dir(DirId),
    /// `cgroup.events` of a job.
    Events(JobKey),
    /// The directory of hooks.
    Hooks,
    /// The directory of GPUs.
    Gpus,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A directory is there.
    Created(DirId),
    /// It is not there any more.
    Removed(DirId),
    /// Processes have come into a job, or its last one is gone.
    Events(JobKey),
    Hooks,
    /// Files about GPUs have changed.
    Gpus,
    /// The kernel had more to tell than it keeps.
    Overflow,
}

/// All watches of one inotify instance.
pub struct InotifyWatches {
    fd: OwnedFd,
    by_wd: HashMap<i32, WatchTarget>,
    by_what: BTreeMap<WatchTarget, i32>,
    buffer: Box<[u8]>,
    most: usize,
}

impl InotifyWatches {
    /// An instance without watches, of which there will be at most `most`.
    pub fn new(most: usize) -> io::Result<Self> {
        // SAFETY: takes flags only; the descriptor is this one's own.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            by_wd: HashMap::new(),
            by_what: BTreeMap::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            most,
        })
    }

    /// Readable when something has happened.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether something is watched.
    pub fn has(&self, what: &WatchTarget) -> bool {
        self.by_what.contains_key(what)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_what.len()
    }

    /// Watches something, unless it is watched already; with `again` the path may be another file than it was. One too many is the error
    /// [`io::ErrorKind::QuotaExceeded`].
    pub fn add(&mut self, what: WatchTarget, path: &Path, again: bool) -> io::Result<()> {
        if !again && self.by_what.contains_key(&what) {
            return Ok(());
        }
        if self.by_what.len() >= self.most && !self.by_what.contains_key(&what) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mask = match what {
            WatchTarget::Dir(_) => DIR_MASK,
            WatchTarget::Events(_) => libc::IN_MODIFY,
            WatchTarget::Hooks | WatchTarget::Gpus => FILES_MASK,
        };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the descriptor is open and the name ends with a zero.
        let wd = unsafe { libc::inotify_add_watch(self.fd.as_raw_fd(), name.as_ptr(), mask) };
        if wd < 0 {
            return Err(io::Error::last_os_error());
        }
        match self.by_what.insert(what.clone(), wd) {
            Some(old) if old != wd => self.drop_wd(old),
            _ => {}
        }
        if let Some(other) = self.by_wd.insert(wd, what.clone()).filter(|other| *other != what) {
            self.by_what.remove(&other);
        }
        Ok(())
    }

    pub fn remove(&mut self, what: &WatchTarget) {
        if let Some(wd) = self.by_what.remove(what) {
            self.drop_wd(wd);
        }
    }

    /// Ends the watches of a directory and of all below it.
    pub fn remove_within(&mut self, dir: &DirId) {
        let range = self.by_what.range(WatchTarget::Dir(dir.clone())..);
        let within: Vec<WatchTarget> = range
            .map(|(what, _)| what)
            .take_while(|what| {
                matches!(what, WatchTarget::Dir(other) if other.hierarchy == dir.hierarchy && other.path.starts_with(&*dir.path))
            })
            .filter(|what| matches!(what, WatchTarget::Dir(other) if other.is_within(dir)))
            .cloned()
            .collect();
        within.iter().for_each(|what| self.remove(what));
    }

    /// Ends the watches that `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&WatchTarget) -> bool) {
        let lost: Vec<WatchTarget> = self.by_what.keys().filter(|what| !keep(what)).cloned().collect();
        lost.iter().for_each(|what| self.remove(what));
        self.by_wd.shrink_to(self.by_wd.len() * 2);
    }

    fn drop_wd(&mut self, wd: i32) {
        self.by_wd.remove(&wd);
        // SAFETY: a number; one that the kernel has dropped already is refused by it.
        unsafe { libc::inotify_rm_watch(self.fd.as_raw_fd(), wd) };
    }

    /// Takes what has happened, at most a buffer of it; says whether there can be more.
    pub fn read(&mut self, seen: &mut Vec<WatchEvent>) -> io::Result<bool> {
        // SAFETY: the buffer is writable for its length.
        let length = unsafe { libc::read(self.fd.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len()) };
        if length < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        let buffer = std::mem::take(&mut self.buffer);
        self.take_events(&buffer[..length as usize], seen);
        self.buffer = buffer;
        Ok(length > 0)
    }

    fn take_events(&mut self, mut bytes: &[u8], seen: &mut Vec<WatchEvent>) {
        while bytes.len() >= EVENT_BYTES {
            // SAFETY: enough bytes, and any of them make an event; they need not be aligned.
            let event: libc::inotify_event = unsafe { bytes.as_ptr().cast::<libc::inotify_event>().read_unaligned() };
            let end = (EVENT_BYTES + event.len as usize).min(bytes.len());
            let name = bytes[EVENT_BYTES..end].split(|byte| *byte == 0).next().unwrap_or_default();
            self.take_event(&event, name, seen);
            bytes = &bytes[end..];
        }
    }

    fn take_event(&mut self, event: &libc::inotify_event, name: &[u8], seen: &mut Vec<WatchEvent>) {
        if event.mask & libc::IN_Q_OVERFLOW != 0 {
            seen.push(WatchEvent::Overflow);
            return;
        }
        if event.mask & libc::IN_IGNORED != 0 {
            if let Some(what) = self.by_wd.remove(&event.wd)
                && self.by_what.get(&what) == Some(&event.wd)
            {
                self.by_what.remove(&what);
            }
            return;
        }
        let Some(what) = self.by_wd.get(&event.wd) else { return };
        let what = match what {
            WatchTarget::Dir(dir) => {
                let Ok(name) = std::str::from_utf8(name) else { return };
                if event.mask & libc::IN_ISDIR == 0 || name.is_empty() {
                    return;
                }
                match event.mask & (libc::IN_CREATE | libc::IN_MOVED_TO) {
                    0 => WatchEvent::Removed(dir.child(name)),
                    _ => WatchEvent::Created(dir.child(name)),
                }
            }
            WatchTarget::Events(key) => WatchEvent::Events(key.clone()),
            WatchTarget::Hooks => WatchEvent::Hooks,
            WatchTarget::Gpus => WatchEvent::Gpus,
        };
        if seen.last() != Some(&what) {
            seen.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(watches: &mut InotifyWatches) -> Vec<WatchEvent> {
        let mut seen = Vec::new();
        while watches.read(&mut seen).unwrap() {}
        seen
    }

    #[test]
    fn directories_come_and_go_and_no_watch_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut watches = InotifyWatches::new(100).unwrap();
        let root = DirId::new(3, "");
        watches.add(WatchTarget::Dir(root.clone()), dir.path(), false).unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(all(&mut watches), [WatchEvent::Created(root.child("a"))], "files are nothing");
        watches.add(WatchTarget::Dir(root.child("a")), &dir.path().join("a"), false).unwrap();
        std::fs::create_dir(dir.path().join("a/b")).unwrap();
        std::fs::rename(dir.path().join("a/b"), dir.path().join("c")).unwrap();
        assert_eq!(
            all(&mut watches),
            [
                WatchEvent::Created(DirId::new(3, "a/b")),
                WatchEvent::Removed(DirId::new(3, "a/b")),
                WatchEvent::Created(root.child("c"))
            ]
        );
        assert_eq!(watches.count(), 2);
        std::fs::remove_dir(dir.path().join("a")).unwrap();
        assert_eq!(all(&mut watches), [WatchEvent::Removed(root.child("a"))]);
        assert_eq!((watches.count(), watches.by_wd.len()), (1, 1));
    }

    #[test]
    fn a_directory_that_took_the_place_of_another_is_watched_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id) = (dir.path().join("a"), DirId::new(0, "a"));
        let mut watches = InotifyWatches::new(100).unwrap();
        for _ in 0..3 {
            std::fs::create_dir(&path).unwrap();
            watches.add(WatchTarget::Dir(id.clone()), &path, true).unwrap();
            std::fs::remove_dir(&path).unwrap();
        }
        std::fs::create_dir(&path).unwrap();
        watches.add(WatchTarget::Dir(id.clone()), &path, true).unwrap();
        all(&mut watches);
        std::fs::create_dir(path.join("x")).unwrap();
        assert_eq!(all(&mut watches), [WatchEvent::Created(DirId::new(0, "a/x"))]);
        assert_eq!((watches.count(), watches.by_wd.len()), (1, 1));
        watches.remove_within(&DirId::new(0, "a"));
        assert_eq!((watches.count(), watches.by_wd.len()), (0, 0));
    }
}
