//! Opening: checks all segments, cuts off a torn end, reports damage.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;

use super::disk::{self, Disk, SystemDisk};
use super::segment::{self, HEADER, Scan, Segment, Tail};
use super::types::failed;
use super::{Dropped, RecordId, SEGMENTS_MIN, Spool, SpoolConfig, SpoolError, SpoolReport};

const POSITION_FILE: &str = "position";
const POSITION_BYTES: usize = 20;
const LOCK_FILE: &str = "lock";
const START: RecordId = RecordId { segment: 0, offset: 0 };

impl Spool {
    /// Opens or creates the spool and checks every record.
    pub fn open(config: SpoolConfig) -> Result<(Spool, SpoolReport), SpoolError> {
        Self::open_on(config, Box::new(SystemDisk))
    }

    /// Opens the spool on a given file system.
    pub fn open_on(mut config: SpoolConfig, disk: Box<dyn Disk>) -> Result<(Spool, SpoolReport), SpoolError> {
        let dir = config.dir.clone();
        config.segment_bytes = config.segment_bytes.min(config.bytes_max / SEGMENTS_MIN).max(1);
        disk.create_dir(&dir).map_err(|error| failed("make", dir.clone(), error))?;
        let lock_file = dir.join(LOCK_FILE);
        let lock = match disk.lock(&lock_file).map_err(|error| failed("lock", lock_file, error))? {
            Some(lock) => lock,
            None => return Err(SpoolError::InUse { dir }),
        };
        let names = disk.list(&dir).map_err(|error| failed("list", dir.clone(), error))?;
        let (mut numbers, mut damaged) = (BTreeSet::new(), BTreeSet::new());
        for (number, aside) in names.iter().filter_map(|name| segment::parse_name(name)) {
            if aside {
                damaged.insert(number)
            } else {
                numbers.insert(number)
            };
        }
        let position = read_position(disk.as_ref(), &dir).unwrap_or(START);
        let newest = [position.segment].into_iter().chain(numbers.last().copied()).chain(damaged.last().copied()).max();
        let mut spool = Spool {
            config,
            disk,
            segments: VecDeque::new(),
            next_number: newest.unwrap_or(0) + 1,
            active: None,
            unsynced: Vec::new(),
            dir_unsynced: true,
            reading: None,
            read: position,
            window: VecDeque::new(),
            skip: BTreeSet::new(),
            position_written: position,
            damaged_files: damaged.into_iter().collect(),
            dropped: Dropped::default(),
            buffer: Vec::new(),
            _lock: lock,
        };
        let mut report = SpoolReport::default();
        let last = numbers.last().copied();
        for number in numbers {
            spool.look_through(number, position, Some(number) == last, &mut report)?;
        }
        Ok((spool, report))
    }

    fn look_through(
        &mut self,
        number: u64,
        position: RecordId,
        last: bool,
        report: &mut SpoolReport,
    ) -> Result<(), SpoolError> {
        let path = segment::path(&self.config.dir, number);
        let file = self.disk.open(&path, false).map_err(|error| failed("open", path.clone(), error))?;
        let scan =
            segment::scan(file.as_ref(), number, position).map_err(|error| failed("read", path.clone(), error))?;
        let Scan { end, len, waiting, waiting_bytes, tail } = scan;
        let rest = len - end;
        report.records += waiting;
        report.bytes += waiting_bytes;
        let mut segment = Segment { number, end, bytes: len, waiting, damaged: false };
        match tail {
            Tail::Nothing => {}
            // Only the newest segment was being written to when the machine or the process stopped.
            Tail::Torn if last => {
                report.torn_bytes += rest;
                if rest > 0 {
                    report
                        .problems
                        .push(format!("{}: cut off an unfinished record of {rest} bytes at {end}", path.display()));
                }
                // A segment that cannot be truncated is not read, and nothing is appended to it.
                if waiting > 0 && file.set_len(end).is_ok() {
                    segment.bytes = end;
                }
            }
            // A disk too full for the header leaves an empty file.
            Tail::Torn if len <= HEADER.len() as u64 => {}
            tail => {
                let what = if let Tail::Bad(what) = tail { what } else { "a record that goes beyond the end".into() };
                segment.damaged = true;
                report.damaged_bytes += rest;
                self.dropped.bytes += rest;
                report.problems.push(format!(
                    "{}: {what} at {end}; the {rest} bytes from there are dropped and kept in a file that ends in .damaged",
                    path.display()
                ));
            }
        }
        // The previous process may have stopped without a flush. From now on nothing may tear this segment.
        if last && self.config.sync {
            file.sync().map_err(|error| failed("sync", path, error))?;
            let dir = &self.config.dir;
            self.disk.sync_dir(dir).map_err(|error| failed("sync", dir.clone(), error))?;
        }
        drop(file);
        self.segments.push_back(segment);
        if waiting == 0 { self.finish(number) } else { Ok(()) }
    }
}

fn read_position(disk: &dyn Disk, dir: &Path) -> Option<RecordId> {
    let file = disk.open(&dir.join(POSITION_FILE), false).ok()?;
    let mut bytes = [0; POSITION_BYTES];
    if disk::read_full(file.as_ref(), &mut bytes, 0).ok()? < POSITION_BYTES {
        return None;
    }
    let (numbers, crc) = bytes.split_first_chunk::<16>()?;
    if crc32c::crc32c(numbers).to_le_bytes() != *crc {
        return None;
    }
    let (segment, offset) = numbers.split_first_chunk::<8>()?;
    let offset = u64::from_le_bytes(offset.try_into().ok()?);
    Some(RecordId { segment: u64::from_le_bytes(*segment), offset })
}

/// Writes the position in place: a torn write has a wrong checksum, and then all remaining records are sent again.
pub(super) fn write_position(disk: &dyn Disk, dir: &Path, position: RecordId) -> Result<(), SpoolError> {
    let path = dir.join(POSITION_FILE);
    let mut bytes = Vec::with_capacity(POSITION_BYTES);
    bytes.extend_from_slice(&position.segment.to_le_bytes());
    bytes.extend_from_slice(&position.offset.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    let write = || -> io::Result<()> { disk::write_all(disk.open(&path, true)?.as_ref(), &bytes, 0) };
    write().map_err(|error| failed("write", path.clone(), error))
}
