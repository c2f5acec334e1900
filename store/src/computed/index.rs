//! The index of the cached pieces, in the order of their last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::file::{self, ResultFileName};
use super::invalidation::TimeRange;
use crate::StoreError;
use crate::computed::key::CacheKey;
use crate::disk::Disk;

/// The most pieces, whatever their size, because the next opening lists and opens all of them.
pub(super) const PIECES_MAX: usize = 65_536;
/// A file occupies whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// A file also occupies this for its inode and its entry in the directory.
const FILE_BYTES: u64 = 512;

/// The disk space of a file of this size.
fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES) + FILE_BYTES
}

/// The cached pieces of one cache key.
struct CachedPieces {
    cache_key: CacheKey,
    /// Disk space of the description.
    bytes: u64,
    pieces: BTreeMap<i64, CachedPiece>,
}

struct CachedPiece {
    stamp: u64,
    /// Disk space of its file.
    bytes: u64,
    /// Its place in the order of last use.
    used: u64,
}

/// The pieces in the cache.
#[derive(Default)]
pub(super) struct ResultIndex {
    entries: HashMap<[u8; 16], CachedPieces>,
    /// The pieces in the order of last use.
    order: BTreeMap<u64, ([u8; 16], i64)>,
    tick: u64,
    stamp: u64,
    bytes: u64,
    /// Whether files were removed since the directory was synced.
    unsynced: bool,
    /// Files that could not be removed, which an opening would find again.
    left: BTreeSet<PathBuf>,
}

impl ResultIndex {
    /// Reads the directory. Damaged and useless files are removed, all files if `bytes_max` is 0. Returns [`StoreError::Closed`] if `stop` is set.
    pub fn open(disk: &dyn Disk, dir: &Path, bytes_max: u64, now: i64, stop: &AtomicBool) -> Result<Self, StoreError> {
        let go_on = || if stop.load(Relaxed) { Err(StoreError::Closed) } else { Ok(()) };
        let io = |doing: &'static str| move |error| StoreError::io(doing, dir, error);
        if bytes_max > 0 {
            disk.create_dirs(dir).map_err(io("creating"))?;
        }
        let listed = match disk.list(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(io("listing"))?,
        };
        let mut index = Self { stamp: now.max(1).cast_unsigned(), ..Self::default() };
        let (mut pieces, mut abouts, mut useless) = (Vec::new(), Vec::new(), Vec::new());
        for entry in listed.into_iter().filter(|entry| !entry.is_dir) {
            match ResultFileName::of(&entry.path) {
                Some(ResultFileName::About(key)) if bytes_max > 0 => abouts.push((key, entry.path)),
                Some(ResultFileName::Piece(key, number, stamp)) if bytes_max > 0 => {
                    pieces.push((stamp, key, number, entry.path))
                }
                Some(_) => useless.push(entry.path),
                // Not a file of the cache: left alone.
                None => {}
            }
        }
        for (key, path) in abouts {
            go_on()?;
            match file::read_about(disk, &path, &key) {
                Some((cache_key, bytes)) => {
                    let entry = CachedPieces { cache_key, bytes: on_disk(bytes), pieces: BTreeMap::new() };
                    index.entries.insert(key, entry);
                }
                None => useless.push(path),
            }
        }
        // The stamps give the order in which they were written.
        pieces.sort_unstable();
        for (stamp, key, number, path) in pieces {
            go_on()?;
            index.stamp = index.stamp.max(stamp + 1);
            let size = disk.open(&path, false).and_then(|file| file.size());
            match (index.entries.get_mut(&key), size) {
                (Some(entry), Ok(bytes)) => {
                    index.tick += 1;
                    let piece = CachedPiece { stamp, bytes: on_disk(bytes), used: index.tick };
                    if let Some(before) = entry.pieces.insert(number, piece) {
                        index.order.remove(&before.used);
                        useless.push(file::piece_path(dir, &key, number, before.stamp));
                    }
                    index.order.insert(index.tick, (key, number));
                }
                _ => useless.push(path),
            }
        }
        let empty: Vec<[u8; 16]> =
            index.entries.iter().filter(|(_, entry)| entry.pieces.is_empty()).map(|(key, _)| *key).collect();
        for key in empty {
            index.entries.remove(&key);
            useless.push(file::about_path(dir, &key));
        }
        for path in useless {
            go_on()?;
            index.remove_file(disk, &path)?;
        }
        let of = |entry: &CachedPieces| entry.bytes + entry.pieces.values().map(|piece| piece.bytes).sum::<u64>();
        index.bytes = index.entries.values().map(of).sum();
        index.make_room(disk, dir, bytes_max);
        // Also what a killed process removed and did not sync: these files must not come back after a seal by this process.
        index.unsynced |= bytes_max > 0;
        index.sync(disk, dir)?;
        Ok(index)
    }

    fn remove_file(&mut self, disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
        self.unsynced = true;
        match disk.remove(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                self.left.insert(path.to_owned());
                Err(StoreError::io("removing", path, error))
            }
            _ => {
                self.left.remove(path);
                Ok(())
            }
        }
    }

    /// Disk space of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn pieces(&self) -> u64 {
        self.order.len() as u64
    }

    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// No cached piece depends on readings after this time.
    pub fn until(&self) -> i64 {
        let last =
            |entry: &CachedPieces| entry.pieces.last_key_value().map(|(number, _)| entry.cache_key.span(*number).1);
        self.entries.values().filter_map(last).max().unwrap_or(i64::MIN)
    }

    /// The stamp of a piece, which counts as used now.
    pub fn find(&mut self, cache_key: &CacheKey, number: i64) -> Option<u64> {
        let entry = self.entries.get_mut(&cache_key.key).filter(|entry| entry.cache_key == *cache_key)?;
        let piece = entry.pieces.get_mut(&number)?;
        self.order.remove(&piece.used);
        self.tick += 1;
        piece.used = self.tick;
        self.order.insert(self.tick, (cache_key.key, number));
        Some(piece.stamp)
    }

    /// Adds a piece whose file has been written.
    pub fn add(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        cache_key: &CacheKey,
        number: i64,
        stamp: u64,
        bytes: u64,
    ) -> Result<(), StoreError> {
        if self.entries.get(&cache_key.key).is_none_or(|entry| entry.cache_key != *cache_key) {
            self.drop_entry(disk, dir, &cache_key.key);
            let bytes = on_disk(file::write_about(disk, dir, cache_key)?);
            // The piece was just used.
            self.left.remove(&file::about_path(dir, &cache_key.key));
            self.bytes += bytes;
            self.entries
                .insert(cache_key.key, CachedPieces { cache_key: cache_key.clone(), bytes, pieces: BTreeMap::new() });
        }
        if let Some(before) = self.stamp_of(&cache_key.key, number) {
            self.take_out(&cache_key.key, number);
            self.remove_file(disk, &file::piece_path(dir, &cache_key.key, number, before))?;
        }
        self.tick += 1;
        let Some(entry) = self.entries.get_mut(&cache_key.key) else { return Ok(()) };
        let bytes = on_disk(bytes);
        entry.pieces.insert(number, CachedPiece { stamp, bytes, used: self.tick });
        self.order.insert(self.tick, (cache_key.key, number));
        self.bytes += bytes;
        Ok(())
    }

    fn stamp_of(&self, key: &[u8; 16], number: i64) -> Option<u64> {
        Some(self.entries.get(key)?.pieces.get(&number)?.stamp)
    }

    /// Removes a piece from the index.
    fn take_out(&mut self, key: &[u8; 16], number: i64) {
        if let Some(piece) = self.entries.get_mut(key).and_then(|entry| entry.pieces.remove(&number)) {
            self.order.remove(&piece.used);
            self.bytes -= piece.bytes;
        }
    }

    /// Removes a piece from the index if it has this stamp, and its file in any case.
    pub fn drop_piece(&mut self, disk: &dyn Disk, dir: &Path, key: &[u8; 16], number: i64, stamp: u64) {
        if self.stamp_of(key, number) == Some(stamp) {
            self.take_out(key, number);
        }
        if let Err(error) = self.remove_file(disk, &file::piece_path(dir, key, number, stamp)) {
            // The piece is not used any more; before the next seal the removal is tried again.
            tracing::debug!(%error, "a cached result cannot be removed");
        }
        self.drop_empty(disk, dir, key);
    }

    fn drop_empty(&mut self, disk: &dyn Disk, dir: &Path, key: &[u8; 16]) {
        if self.entries.get(key).is_some_and(|entry| entry.pieces.is_empty()) {
            self.drop_entry(disk, dir, key);
        }
    }

    fn drop_entry(&mut self, disk: &dyn Disk, dir: &Path, key: &[u8; 16]) {
        let numbers: Vec<(i64, u64)> = (self.entries.get(key).into_iter())
            .flat_map(|entry| entry.pieces.iter().map(|(number, piece)| (*number, piece.stamp)))
            .collect();
        for (number, stamp) in numbers {
            self.take_out(key, number);
            let _ = self.remove_file(disk, &file::piece_path(dir, key, number, stamp));
        }
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
            let _ = self.remove_file(disk, &file::about_path(dir, key));
        }
    }

    /// Removes the least recently used pieces until the rest is within the bound.
    pub fn make_room(&mut self, disk: &dyn Disk, dir: &Path, bytes_max: u64) {
        while self.bytes > bytes_max || self.order.len() > PIECES_MAX {
            let Some((_, (key, number))) = self.order.first_key_value().map(|(tick, of)| (*tick, *of)) else { return };
            match self.stamp_of(&key, number) {
                Some(stamp) => self.drop_piece(disk, dir, &key, number, stamp),
                None => drop(self.order.pop_first()),
            }
        }
    }

    /// Removes the pieces that depend on these sensors at these times, or on any sensor in `all`; returns their number. After an error, pieces
    /// whose files still exist are still in the index.
    pub fn invalidate(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        by_sensor: &HashMap<u32, TimeRange>,
        all: Option<TimeRange>,
    ) -> Result<u64, StoreError> {
        let mut outdated: Vec<([u8; 16], i64, u64)> = Vec::new();
        for (key, entry) in &self.entries {
            let of_operands = entry.cache_key.operands.iter().filter_map(|id| by_sensor.get(&id.0)).copied();
            let ranges: Vec<TimeRange> = all.into_iter().chain(of_operands).collect();
            if ranges.is_empty() {
                continue;
            }
            for (number, piece) in &entry.pieces {
                let (first, last) = entry.cache_key.span(*number);
                if ranges.iter().any(|range| range.0 <= last && range.1 >= first) {
                    outdated.push((*key, *number, piece.stamp));
                }
            }
        }
        for (key, number, stamp) in &outdated {
            self.remove_file(disk, &file::piece_path(dir, key, *number, *stamp))?;
            self.take_out(key, *number);
            self.drop_empty(disk, dir, key);
        }
        Ok(outdated.len() as u64)
    }

    /// Syncs the removal of files.
    pub fn sync(&mut self, disk: &dyn Disk, dir: &Path) -> Result<(), StoreError> {
        for path in self.left.clone() {
            self.remove_file(disk, &path)?;
        }
        if self.unsynced {
            disk.sync_dir(dir).map_err(|error| StoreError::io("syncing", dir, error))?;
            self.unsynced = false;
        }
        Ok(())
    }
}
