//! A disk in memory that fails on demand and, on a crash, forgets what was never synced.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use wholegrain_store::disk::{Disk, DiskEntry, DiskFile};
use wholegrain_store::{Resolution, Scan, ScanRequest, SensorInfo, Snapshot, SnapshotReader, StoreError};
pub use wholegrain_testkit::{Random, seed};

/// Windows of `every` ns of one sensor.
pub fn windows(
    snapshot: &Snapshot,
    sensor: &SensorInfo,
    (from, to): (i64, i64),
    every: i64,
) -> Result<Scan, StoreError> {
    let request = ScanRequest::readings(sensor, from, to).at(Resolution::Windows { every: Some(every) });
    SnapshotReader::scan(snapshot, &request)
}

/// The fault at a planned operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The machine stops: this and every later operation fails.
    Crash,
    /// This number of operations fails with this error number; a write may be partly done.
    Errors(i32, u32),
}

#[derive(Debug, Clone)]
enum DirectoryChange {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<DirectoryChange>,
    /// The pieces of [`PIECE`] bytes that take space: a file that was extended has holes.
    taken: Vec<bool>,
}

/// Space is allocated in pieces of this many bytes.
const PIECE: usize = 64;

impl Inode {
    fn used(&self) -> usize {
        self.taken.iter().filter(|taken| **taken).count() * PIECE
    }

    /// The pieces of a write that take no space yet.
    fn missing(&self, offset: usize, len: usize) -> usize {
        let pieces = offset / PIECE..(offset + len).div_ceil(PIECE);
        pieces.filter(|piece| !self.taken.get(*piece).copied().unwrap_or(false)).count() * PIECE
    }

    fn take(&mut self, offset: usize, len: usize) {
        let end = (offset + len).div_ceil(PIECE);
        if self.taken.len() < end {
            self.taken.resize(end, false);
        }
        self.taken[offset / PIECE..end].fill(true);
    }
}

impl DirectoryChange {
    fn apply(&self, data: &mut Vec<u8>) {
        match self {
            DirectoryChange::Write(offset, bytes) => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[start..end].copy_from_slice(bytes);
            }
            DirectoryChange::SetLen(len) => data.resize(*len as usize, 0),
        }
    }
}

#[derive(Debug, Default)]
struct FaultyDiskContent {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    locked: bool,
    crashed: bool,
    /// Operations until the fault.
    planned: Option<(u64, Fault)>,
    errors_left: u32,
    error: i32,
    operations: u64,
    open_files: u64,
    /// Inodes written to since [`FaultyDisk::watch_writes`].
    written: BTreeSet<usize>,
    bytes_max: Option<usize>,
}

/// The disk. A clone is the same one.
#[derive(Debug, Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<FaultyDiskContent>>);

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.disk.state().open_files -= 1;
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    inode: usize,
}

struct Lock(FaultyDisk);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

fn failed(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl FaultyDisk {
    fn state(&self) -> MutexGuard<'_, FaultyDiskContent> {
        self.0.lock().unwrap()
    }

    /// The fault happens at the `after`th changing operation from now.
    pub fn plan(&self, after: u64, fault: Fault) {
        self.state().planned = Some((after, fault));
    }

    /// Nothing fails from now on, unless it has crashed.
    pub fn calm(&self) {
        let mut state = self.state();
        state.planned = None;
        state.errors_left = 0;
        state.bytes_max = None;
    }

    /// The most bytes of all files together.
    pub fn limit(&self, bytes: Option<usize>) {
        self.state().bytes_max = bytes;
    }

    pub fn used(&self) -> usize {
        let state = self.state();
        state.names.values().map(|&inode| state.inodes[inode].used()).sum()
    }

    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The number of open files.
    pub fn open_files(&self) -> u64 {
        self.state().open_files
    }

    /// Notes from now on which files are written to.
    pub fn watch_writes(&self) {
        self.state().written.clear();
    }

    /// The files written to since then.
    pub fn written(&self) -> BTreeSet<PathBuf> {
        let state = self.state();
        let named = state.names.iter().filter(|(_, inode)| state.written.contains(inode));
        named.map(|(path, _)| path.clone()).collect()
    }

    /// Renames a file durably, as an administrator does while no process runs.
    pub fn rename_for_test(&self, from: &Path, to: &Path) {
        let mut state = self.state();
        let inode = state.names.remove(from).unwrap();
        state.durable_names.remove(from);
        state.names.insert(to.to_owned(), inode);
        state.durable_names.insert(to.to_owned(), inode);
    }

    /// Files whose path holds `part`.
    pub fn files(&self, part: &str) -> Vec<PathBuf> {
        self.state().names.keys().filter(|path| path.to_string_lossy().contains(part)).cloned().collect()
    }

    pub fn content(&self, path: &Path) -> Vec<u8> {
        let state = self.state();
        state.inodes[state.names[path]].now.clone()
    }

    /// Puts a file there, synced.
    pub fn put(&self, path: &Path, content: &[u8]) {
        let mut state = self.state();
        let mut inode = Inode { now: content.to_vec(), durable: content.to_vec(), ..Inode::default() };
        inode.take(0, content.len());
        state.inodes.push(inode);
        let at = state.inodes.len() - 1;
        state.names.insert(path.to_owned(), at);
        state.durable_names.insert(path.to_owned(), at);
    }

    /// Changes the content of a file durably without the store: a disk that loses or flips bits.
    pub fn tamper(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let at = state.names[path];
        let inode = &mut state.inodes[at];
        change(&mut inode.now);
        inode.durable.clone_from(&inode.now);
        inode.pending.clear();
    }

    /// The machine stops now.
    pub fn crash(&self) {
        self.state().crashed = true;
    }

    /// The disk when the machine starts again. Any part of the unsynced writes may have reached it.
    pub fn after_crash(&self, random: &mut Random) -> FaultyDisk {
        let mut state = self.state();
        state.crashed = true;
        let keep = [0, 50, 100][random.below(3) as usize];
        let mut next = FaultyDiskContent { dirs: state.dirs.clone(), ..FaultyDiskContent::default() };
        for inode in &state.inodes {
            let mut data = inode.durable.clone();
            for change in &inode.pending {
                if !random.chance(keep) {
                    continue;
                }
                match change {
                    DirectoryChange::Write(offset, bytes) if random.chance(30) => {
                        let cut = random.below(bytes.len() as u64 + 1) as usize;
                        DirectoryChange::Write(*offset, bytes[..cut].to_vec()).apply(&mut data);
                    }
                    other => other.apply(&mut data),
                }
            }
            next.inodes.push(Inode { now: data.clone(), durable: data, ..inode.clone() });
            next.inodes.last_mut().unwrap().pending.clear();
        }
        let all: BTreeSet<&PathBuf> = state.names.keys().chain(state.durable_names.keys()).collect();
        for path in all {
            let from = if random.chance(keep) { &state.names } else { &state.durable_names };
            if let Some(inode) = from.get(path) {
                next.names.insert(path.clone(), *inode);
                next.durable_names.insert(path.clone(), *inode);
            }
        }
        FaultyDisk(Arc::new(Mutex::new(next)))
    }

    /// The disk after only the process was killed: everything written, synced or not. A later crash of the machine still
    /// loses unsynced writes.
    pub fn after_kill(&self) -> FaultyDisk {
        let mut state = self.state();
        state.crashed = true;
        let next = FaultyDiskContent {
            inodes: state.inodes.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            dirs: state.dirs.clone(),
            ..FaultyDiskContent::default()
        };
        FaultyDisk(Arc::new(Mutex::new(next)))
    }

    /// Called before each changing operation; `Err` if it must fail. `Ok(true)`: it is done, and then the machine stops.
    fn change(&self) -> io::Result<MutexGuard<'_, FaultyDiskContent>> {
        let mut state = self.state();
        if state.crashed {
            return Err(failed(libc_eio()));
        }
        state.operations += 1;
        if let Some((after, fault)) = state.planned {
            if after > 0 {
                state.planned = Some((after - 1, fault));
            } else {
                state.planned = None;
                match fault {
                    Fault::Crash => {
                        state.crashed = true;
                        return Err(failed(libc_eio()));
                    }
                    Fault::Errors(number, count) => {
                        state.error = number;
                        state.errors_left = count;
                    }
                }
            }
        }
        if state.errors_left > 0 {
            state.errors_left -= 1;
            return Err(failed(state.error));
        }
        Ok(state)
    }
}

/// The number of EIO on Linux.
fn libc_eio() -> i32 {
    5
}

/// The number of ENOSPC on Linux.
pub const ENOSPC: i32 = 28;
/// The number of EIO on Linux.
pub const EIO: i32 = 5;

impl DiskFile for FaultyFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state();
        if state.crashed {
            return Err(failed(EIO));
        }
        let data = &state.inodes[self.inode].now;
        let start = offset as usize;
        let part = data.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let result = self.disk.change();
        let mut state = match result {
            Ok(state) => state,
            Err(error) => {
                // A failed write may have been done in part: not at all, some of it, or all.
                let mut state = self.disk.state();
                let done = bytes.len() * (state.operations % 5) as usize / 4;
                let inode = &mut state.inodes[self.inode];
                let part = DirectoryChange::Write(offset, bytes[..done].to_vec());
                part.apply(&mut inode.now);
                inode.pending.push(part);
                return Err(error);
            }
        };
        if let Some(max) = state.bytes_max {
            let used: usize = state.names.values().map(|&inode| state.inodes[inode].used()).sum();
            let grown = state.inodes[self.inode].missing(offset as usize, bytes.len());
            if grown > 0 && used + grown > max {
                return Err(failed(ENOSPC));
            }
        }
        state.written.insert(self.inode);
        let inode = &mut state.inodes[self.inode];
        inode.take(offset as usize, bytes.len());
        let change = DirectoryChange::Write(offset, bytes.to_vec());
        change.apply(&mut inode.now);
        inode.pending.push(change);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let result = self.disk.change();
        let mut state = match result {
            Ok(state) => state,
            Err(error) => {
                let mut state = self.disk.state();
                if !state.crashed && state.operations.is_multiple_of(2) {
                    // As Linux does: readers still see what was written, but no later sync will bring it to the disk.
                    state.inodes[self.inode].pending.clear();
                }
                return Err(error);
            }
        };
        let inode = &mut state.inodes[self.inode];
        for change in std::mem::take(&mut inode.pending) {
            change.apply(&mut inode.durable);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.change()?;
        let inode = &mut state.inodes[self.inode];
        let change = DirectoryChange::SetLen(len);
        inode.taken.truncate((len as usize).div_ceil(PIECE));
        change.apply(&mut inode.now);
        inode.pending.push(change);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].now.len() as u64)
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.change()?;
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.names.insert(path.to_owned(), inode);
        state.open_files += 1;
        Ok(Arc::new(FaultyFile { disk: self.clone(), inode }))
    }

    fn open(&self, path: &Path, _write: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        if state.crashed {
            return Err(failed(EIO));
        }
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        state.open_files += 1;
        Ok(Arc::new(FaultyFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.change()?;
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.change()?;
        state.names.remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        let mut state = self.change()?;
        state.dirs.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.change()?;
        let state = &mut *state;
        state.durable_names.retain(|name, _| name.parent() != Some(path));
        let here = state.names.iter().filter(|(name, _)| name.parent() == Some(path));
        state.durable_names.extend(here.map(|(name, inode)| (name.clone(), *inode)));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>> {
        let state = self.state();
        if state.crashed {
            return Err(failed(EIO));
        }
        let here = |name: &&PathBuf| name.parent() == Some(path);
        let files = state.names.keys().filter(here).map(|name| DiskEntry { path: name.clone(), is_dir: false });
        let dirs = state.dirs.iter().filter(here).map(|name| DiskEntry { path: name.clone(), is_dir: true });
        let mut entries: Vec<DiskEntry> = files.chain(dirs).collect();
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> bool {
        self.state().names.contains_key(path)
    }

    fn free_bytes(&self, _path: &Path) -> Option<u64> {
        None
    }

    fn lock(&self, _path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut state = self.state();
        if state.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.locked = true;
        Ok(Box::new(Lock(self.clone())))
    }
}
