//! Events of created and removed directories and of changed files (inotify(7)).

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};

use super::live::{DirId, JobKey};

/// The bytes of one read.
const BUFFER_BYTES: usize = 64 * 1024;

/// The events of directories in the cgroup tree.
const DIR_MASK: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE)
    .union(WatchMask::ONLYDIR)
    .union(WatchMask::DONT_FOLLOW)
    .union(WatchMask::EXCL_UNLINK);
/// The events of directories whose files are written.
const FILES_MASK: WatchMask =
    WatchMask::CLOSE_WRITE.union(WatchMask::MOVE).union(WatchMask::DELETE).union(WatchMask::ONLYDIR);

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
    Created(DirId),
    Removed(DirId),
    /// The first process has entered a job, or the last one has left it.
    Events(JobKey),
    Hooks,
    /// Files about GPUs have changed.
    Gpus,
    /// The kernel's queue was full, and events are lost.
    Overflow,
}

/// All watches of one inotify instance.
pub struct InotifyWatches {
    inotify: Inotify,
    by_descriptor: HashMap<WatchDescriptor, WatchTarget>,
    by_target: BTreeMap<WatchTarget, WatchDescriptor>,
    buffer: Box<[u8]>,
    watches_max: usize,
}

impl InotifyWatches {
    /// An instance for at most `watches_max` watches.
    pub fn new(watches_max: usize) -> io::Result<Self> {
        Ok(Self {
            inotify: Inotify::init()?,
            by_descriptor: HashMap::new(),
            by_target: BTreeMap::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            watches_max,
        })
    }

    /// A file descriptor that is readable when an event waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub fn has(&self, target: &WatchTarget) -> bool {
        self.by_target.contains_key(target)
    }

    pub fn count(&self) -> usize {
        self.by_target.len()
    }

    /// Adds a watch unless there is one; with `again` the path may be another file than before. Beyond the bound the error is
    /// [`io::ErrorKind::QuotaExceeded`].
    pub fn add(&mut self, target: WatchTarget, path: &Path, again: bool) -> io::Result<()> {
        if !again && self.by_target.contains_key(&target) {
            return Ok(());
        }
        if self.by_target.len() >= self.watches_max && !self.by_target.contains_key(&target) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mask = match target {
            WatchTarget::Dir(_) => DIR_MASK,
            WatchTarget::Events(_) => WatchMask::MODIFY,
            WatchTarget::Hooks | WatchTarget::Gpus => FILES_MASK,
        };
        let descriptor = self.inotify.watches().add(path, mask)?;
        match self.by_target.insert(target.clone(), descriptor.clone()) {
            Some(old) if old != descriptor => self.end(old),
            _ => {}
        }
        if let Some(other) = self.by_descriptor.insert(descriptor, target.clone()).filter(|other| *other != target) {
            self.by_target.remove(&other);
        }
        Ok(())
    }

    pub fn remove(&mut self, target: &WatchTarget) {
        if let Some(descriptor) = self.by_target.remove(target) {
            self.end(descriptor);
        }
    }

    /// Removes the watches of a directory and of all below it.
    pub fn remove_within(&mut self, dir: &DirId) {
        let range = self.by_target.range(WatchTarget::Dir(dir.clone())..);
        let within: Vec<WatchTarget> = range
            .map(|(target, _)| target)
            .take_while(|target| {
                matches!(target, WatchTarget::Dir(other) if other.hierarchy == dir.hierarchy && other.path.starts_with(&*dir.path))
            })
            .filter(|target| matches!(target, WatchTarget::Dir(other) if other.is_within(dir)))
            .cloned()
            .collect();
        within.iter().for_each(|target| self.remove(target));
    }

    /// Removes the watches for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&WatchTarget) -> bool) {
        let removed: Vec<WatchTarget> = self.by_target.keys().filter(|target| !keep(target)).cloned().collect();
        removed.iter().for_each(|target| self.remove(target));
        self.by_descriptor.shrink_to(self.by_descriptor.len() * 2);
    }

    fn end(&mut self, descriptor: WatchDescriptor) {
        self.by_descriptor.remove(&descriptor);
        // Fails if the kernel has removed the watch already.
        let _ = self.inotify.watches().remove(descriptor);
    }

    /// Reads one buffer of events. Whether there may be more.
    pub fn read(&mut self, events: &mut Vec<WatchEvent>) -> io::Result<bool> {
        let mut any = false;
        match self.inotify.read_events(&mut self.buffer) {
            Ok(read) => {
                for event in read {
                    any = true;
                    let (by_descriptor, by_target) = (&mut self.by_descriptor, &mut self.by_target);
                    take_event(&event.wd, event.mask, event.name, by_descriptor, by_target, events);
                }
                Ok(any)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            },
        }
    }
}

fn take_event(
    descriptor: &WatchDescriptor,
    mask: EventMask,
    name: Option<&OsStr>,
    by_descriptor: &mut HashMap<WatchDescriptor, WatchTarget>,
    by_target: &mut BTreeMap<WatchTarget, WatchDescriptor>,
    events: &mut Vec<WatchEvent>,
) {
    if mask.contains(EventMask::Q_OVERFLOW) {
        events.push(WatchEvent::Overflow);
        return;
    }
    if mask.contains(EventMask::IGNORED) {
        if let Some(target) = by_descriptor.remove(descriptor)
            && by_target.get(&target) == Some(descriptor)
        {
            by_target.remove(&target);
        }
        return;
    }
    let Some(target) = by_descriptor.get(descriptor) else { return };
    let event = match target {
        WatchTarget::Dir(dir) => {
            let Some(name) = name.and_then(OsStr::to_str) else { return };
            if !mask.contains(EventMask::ISDIR) || name.is_empty() {
                return;
            }
            match mask.intersects(EventMask::CREATE | EventMask::MOVED_TO) {
                true => WatchEvent::Created(dir.child(name)),
                false => WatchEvent::Removed(dir.child(name)),
            }
        }
        WatchTarget::Events(key) => WatchEvent::Events(key.clone()),
        WatchTarget::Hooks => WatchEvent::Hooks,
        WatchTarget::Gpus => WatchEvent::Gpus,
    };
    if events.last() != Some(&event) {
        events.push(event);
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
        assert_eq!((watches.count(), watches.by_descriptor.len()), (1, 1));
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
        assert_eq!((watches.count(), watches.by_descriptor.len()), (1, 1));
        watches.remove_within(&DirId::new(0, "a"));
        assert_eq!((watches.count(), watches.by_descriptor.len()), (0, 0));
    }
}
