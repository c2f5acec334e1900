//! A bounded queue of (topic, payload) records on disk, oldest first, that survives crashes and a full disk.
//!
//! - In: records, and confirmations in any order.
//! - Out: the records, oldest first, also after a restart. A record confirmed shortly before a crash may come twice; the receiver recognizes it.
//!   A flushed record is lost only because of the bound or of damage, and is then counted.
//! - Never: more bytes than configured (and a few damaged segments), a thread, a panic because of a file's content.
//!
//! The directory holds segments, which are appended to, read and then removed as a whole; `FORMAT.md` specifies every byte.

pub mod disk;
mod open;
mod segment;
mod types;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use disk::{Disk, DiskFile};
use segment::{HEADER, ReadResult, Segment};
use types::failed;
pub use types::{
    DAMAGED_FILES_MAX, Dropped, RECORD_BYTES_MAX, Record, RecordId, SEGMENTS_MIN, SpoolConfig, SpoolError, SpoolReport,
};

/// A record that was returned to the caller.
struct ReturnedRecord {
    id: RecordId,
    confirmed: bool,
}

/// The queue. One process and one thread at a time.
pub struct Spool {
    config: SpoolConfig,
    disk: Box<dyn Disk>,
    /// Oldest first. Each has waiting records, except the one that is written to.
    segments: VecDeque<Segment>,
    next_number: u64,
    /// The last segment, if it is open for writing.
    active: Option<Box<dyn DiskFile>>,
    /// Closed segments that could not be synced; [`Spool::flush`] tries again.
    unsynced: Vec<(PathBuf, Box<dyn DiskFile>)>,
    dir_unsynced: bool,
    /// The segment read last.
    reading: Option<(u64, Box<dyn DiskFile>)>,
    /// The next record to return.
    read: RecordId,
    /// Returned records, in order; the first is not confirmed.
    window: VecDeque<ReturnedRecord>,
    /// Confirmed records, which are skipped when reading reaches them after [`Spool::rewind`].
    skip: BTreeSet<RecordId>,
    position_written: RecordId,
    damaged_files: VecDeque<u64>,
    dropped: Dropped,
    buffer: Vec<u8>,
    _lock: Box<dyn Send>,
}

impl Spool {
    /// Appends a record. After an error the record is not stored, and the spool is usable.
    pub fn push(&mut self, topic: &str, payload: &[u8]) -> Result<RecordId, SpoolError> {
        let bytes = segment::record_bytes(topic, payload) as u64;
        let max = (RECORD_BYTES_MAX as u64).min(self.config.bytes_max.saturating_sub(HEADER.len() as u64));
        if bytes > max || topic.len() > usize::from(u16::MAX) {
            return Err(SpoolError::TooLarge { bytes, max });
        }
        if self.segments.back().is_some_and(|last| last.waiting > 0 && last.end + bytes > self.config.segment_bytes) {
            self.close_active();
        }
        self.make_room(bytes)?;
        if self.active.is_none() {
            self.begin_segment()?;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        segment::put_record(topic, payload, &mut buffer);
        let result = self.append(&buffer);
        // The memory of an unusually large record is released.
        if buffer.capacity() <= 1 << 20 {
            self.buffer = buffer;
        }
        result
    }

    fn append(&mut self, record: &[u8]) -> Result<RecordId, SpoolError> {
        let (Some(file), Some(last)) = (&self.active, self.segments.back_mut()) else {
            let path = self.config.dir.clone();
            return Err(SpoolError::Io { what: "append to", path, error: io::ErrorKind::NotFound.into() });
        };
        let id = RecordId { segment: last.number, offset: last.end };
        match disk::write_all(file.as_ref(), record, last.end) {
            Ok(()) => {
                last.end += record.len() as u64;
                last.bytes = last.end;
                last.waiting += 1;
                Ok(id)
            }
            Err(error) => {
                let path = segment::path(&self.config.dir, last.number);
                // The partial record is truncated. If that fails, nothing is written after it.
                if file.set_len(last.end).is_err() {
                    last.bytes = file.len().unwrap_or(last.end + record.len() as u64);
                    self.close_active();
                }
                Err(failed("append to", path, error))
            }
        }
    }

    /// Drops the oldest segments until a record of this size fits into the bound.
    fn make_room(&mut self, bytes: u64) -> Result<(), SpoolError> {
        loop {
            let header = if self.active.is_none() { HEADER.len() as u64 } else { 0 };
            if self.bytes() + header + bytes <= self.config.bytes_max || self.segments.is_empty() {
                return Ok(());
            }
            let oldest = &self.segments[0];
            let number = oldest.number;
            self.dropped.records += oldest.waiting;
            self.dropped.bytes += oldest.bytes;
            self.forget_returned(number);
            self.finish(number)?;
        }
    }

    fn begin_segment(&mut self) -> Result<(), SpoolError> {
        let number = self.next_number;
        let path = segment::path(&self.config.dir, number);
        let file = self.disk.open(&path, true).map_err(|error| failed("make", path.clone(), error))?;
        let bytes = HEADER.len() as u64;
        if let Err(error) = disk::write_all(file.as_ref(), &HEADER, 0) {
            drop(file);
            // The next open recognizes a segment that remains.
            let _ = self.disk.remove(&path);
            return Err(failed("append to", path, error));
        }
        self.next_number += 1;
        self.dir_unsynced = true;
        self.segments.push_back(Segment { number, end: bytes, bytes, waiting: 0, damaged: false });
        self.active = Some(file);
        Ok(())
    }

    /// Syncs the segment before the next begins, so that a crash can tear only the newest.
    fn close_active(&mut self) {
        if let (Some(file), Some(last)) = (self.active.take(), self.segments.back())
            && self.config.sync
            && file.sync().is_err()
        {
            self.unsynced.push((segment::path(&self.config.dir, last.number), file));
        }
    }

    /// Syncs the pushed records if configured, and writes the confirmed position.
    pub fn flush(&mut self) -> Result<(), SpoolError> {
        if self.config.sync {
            while let Some((path, file)) = self.unsynced.last() {
                file.sync().map_err(|error| failed("sync", path.clone(), error))?;
                self.unsynced.pop();
            }
            if let (Some(file), Some(last)) = (&self.active, self.segments.back()) {
                let path = segment::path(&self.config.dir, last.number);
                file.sync().map_err(|error| failed("sync", path, error))?;
            }
            if self.dir_unsynced {
                let dir = &self.config.dir;
                self.disk.sync_dir(dir).map_err(|error| failed("sync", dir.clone(), error))?;
                self.dir_unsynced = false;
            }
        }
        self.write_position()
    }

    /// The oldest record that was not returned yet; `None` if there is none. A record that cannot be read ends its segment: the
    /// rest is counted as dropped and the segment is kept as `.damaged`.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot be confirmed while it is borrowed")]
    pub fn next(&mut self) -> Result<Option<Record>, SpoolError> {
        loop {
            let Some(index) = self.segments.iter().position(|segment| segment.number >= self.read.segment) else {
                return Ok(None);
            };
            let Segment { number, end, .. } = self.segments[index];
            if number > self.read.segment {
                self.read = RecordId { segment: number, offset: HEADER.len() as u64 };
            }
            if self.read.offset >= end {
                if index + 1 == self.segments.len() {
                    return Ok(None);
                }
                self.read = RecordId { segment: number + 1, offset: HEADER.len() as u64 };
                continue;
            }
            match self.read_at(number, end)? {
                ReadResult::Record(record, next) => {
                    self.read.offset = next;
                    let confirmed = self.skip.remove(&record.id);
                    self.window.push_back(ReturnedRecord { id: record.id, confirmed });
                    if !confirmed {
                        return Ok(Some(record));
                    }
                    self.pop_confirmed();
                }
                ReadResult::Bad(what) => self.drop_damaged_rest(index, &what)?,
                ReadResult::End | ReadResult::Torn => {
                    self.drop_damaged_rest(index, "its last record cannot be read")?
                }
            }
        }
    }

    fn read_at(&mut self, number: u64, end: u64) -> Result<ReadResult, SpoolError> {
        if self.reading.as_ref().is_none_or(|(open, _)| *open != number) {
            let path = segment::path(&self.config.dir, number);
            let file = self.disk.open(&path, false).map_err(|error| failed("open", path, error))?;
            self.reading = Some((number, file));
        }
        match &self.reading {
            Some((_, file)) => Ok(segment::read_record(file.as_ref(), number, self.read.offset, end)),
            None => Ok(ReadResult::End),
        }
    }

    /// Ends a segment before the next record, which is damaged.
    fn drop_damaged_rest(&mut self, index: usize, what: &str) -> Result<(), SpoolError> {
        if index + 1 == self.segments.len() {
            self.close_active();
        }
        let offset = self.read.offset;
        let segment = &mut self.segments[index];
        let number = segment.number;
        let handed =
            self.window.iter().filter(|handed| handed.id.segment == number && !handed.confirmed).count() as u64;
        let lost = Dropped { records: segment.waiting - handed, bytes: segment.end - offset };
        segment.damaged = true;
        segment.end = offset;
        segment.waiting = handed;
        self.skip.retain(|id| id.segment != number || id.offset < offset);
        self.dropped.records += lost.records;
        self.dropped.bytes += lost.bytes;
        let path = segment::path(&self.config.dir, number);
        tracing::warn!(path = %path.display(), offset, records = lost.records, "spool segment is damaged ({what}); its rest is dropped and the file kept with the suffix .damaged");
        if handed == 0 { self.finish(number) } else { Ok(()) }
    }

    /// Returns unconfirmed records again, after a connection was lost.
    pub fn rewind(&mut self) {
        if let Some(first) = self.window.front() {
            self.read = first.id;
            self.skip.extend(self.window.drain(..).filter(|handed| handed.confirmed).map(|handed| handed.id));
        }
    }

    /// Removes a record that has arrived. Returned records can be confirmed in any order; others are ignored. After an error the segment's file
    /// remains; its records are removed nevertheless.
    pub fn confirm(&mut self, id: RecordId) -> Result<(), SpoolError> {
        let Ok(index) = self.window.binary_search_by_key(&id, |handed| handed.id) else { return Ok(()) };
        if std::mem::replace(&mut self.window[index].confirmed, true) {
            return Ok(());
        }
        self.pop_confirmed();
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == id.segment) else {
            return Ok(());
        };
        segment.waiting -= 1;
        if segment.waiting == 0 { self.finish(id.segment) } else { Ok(()) }
    }

    fn pop_confirmed(&mut self) {
        while self.window.front().is_some_and(|handed| handed.confirmed) {
            self.window.pop_front();
        }
    }

    fn forget_returned(&mut self, number: u64) {
        self.window.retain(|handed| handed.id.segment != number);
        self.skip.retain(|id| id.segment != number);
        self.pop_confirmed();
    }

    /// Removes a segment, or renames it if it is damaged.
    fn finish(&mut self, number: u64) -> Result<(), SpoolError> {
        let Some(index) = self.segments.iter().position(|segment| segment.number == number) else { return Ok(()) };
        if index + 1 == self.segments.len() {
            self.active = None;
        }
        let path = segment::path(&self.config.dir, number);
        self.unsynced.retain(|(unsynced, _)| *unsynced != path);
        if self.reading.as_ref().is_some_and(|(open, _)| *open == number) {
            self.reading = None;
        }
        match self.segments.remove(index) {
            Some(segment) if segment.damaged => self.keep_damaged(number),
            _ => self.disk.remove(&path).map_err(|error| failed("remove", path, error)),
        }
    }

    fn keep_damaged(&mut self, number: u64) -> Result<(), SpoolError> {
        let (path, damaged) =
            (segment::path(&self.config.dir, number), segment::damaged_path(&self.config.dir, number));
        self.disk.rename(&path, &damaged).map_err(|error| failed("rename to .damaged", path, error))?;
        self.damaged_files.push_back(number);
        while self.damaged_files.len() > DAMAGED_FILES_MAX {
            if let Some(oldest) = self.damaged_files.pop_front() {
                let path = segment::damaged_path(&self.config.dir, oldest);
                self.disk.remove(&path).map_err(|error| failed("remove", path, error))?;
            }
        }
        Ok(())
    }

    /// The oldest record that is not confirmed.
    fn position(&self) -> RecordId {
        self.window.front().map_or(self.read, |handed| handed.id)
    }

    fn write_position(&mut self) -> Result<(), SpoolError> {
        let position = self.position();
        if position != self.position_written {
            open::write_position(self.disk.as_ref(), &self.config.dir, position)?;
            self.position_written = position;
        }
        Ok(())
    }

    /// Waiting records, including returned ones that are not confirmed.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(|segment| segment.waiting).sum()
    }

    /// Whether no record waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all segments on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Losses since the spool was opened.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The directory of the spool.
    pub fn dir(&self) -> &Path {
        &self.config.dir
    }
}

impl Drop for Spool {
    /// Writes the confirmed position, so that an orderly restart sends nothing twice.
    fn drop(&mut self) {
        if let Err(error) = self.write_position() {
            tracing::debug!(%error, "cannot write the spool's confirmed position; confirmed records may be sent again after a restart");
        }
    }
}
