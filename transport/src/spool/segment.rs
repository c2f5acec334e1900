//! The bytes of one segment file, and their scan. `FORMAT.md` specifies every byte.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{DiskFile, read_full};
use super::{RECORD_BYTES_MAX, Record, RecordId};

/// The first bytes of a segment; the last of them is the version.
pub(super) const HEADER: [u8; 8] = *b"WGSPOOL\x01";
/// Length and checksum before each record.
const FRAME_BYTES: usize = 8;
const SUFFIX: &str = ".spool";
const DAMAGED_SUFFIX: &str = ".spool.damaged";

/// A segment as the spool knows it.
#[derive(Debug)]
pub(super) struct Segment {
    pub number: u64,
    /// The end of the valid records.
    pub end: u64,
    /// Its bytes on disk.
    pub bytes: u64,
    /// Valid records without confirmation.
    pub waiting: u64,
    /// Whether damage follows the valid records: then the file is kept as `.damaged`, not removed.
    pub damaged: bool,
}

pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}{SUFFIX}"))
}

pub(super) fn damaged_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}{DAMAGED_SUFFIX}"))
}

/// The number of a segment's file name, and whether it is a damaged one; `None` for another file.
pub(super) fn parse_name(name: &str) -> Option<(u64, bool)> {
    let (digits, damaged) = match name.strip_suffix(DAMAGED_SUFFIX) {
        Some(digits) => (digits, true),
        None => (name.strip_suffix(SUFFIX)?, false),
    };
    if digits.len() != 20 { None } else { Some((digits.parse().ok()?, damaged)) }
}

/// The size of a record on disk.
pub(super) fn record_bytes(topic: &str, payload: &[u8]) -> usize {
    FRAME_BYTES + 2 + topic.len() + payload.len()
}

/// Clears `out` and encodes a record into it.
pub(super) fn put_record(topic: &str, payload: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let length = (2 + topic.len() + payload.len()) as u32;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(topic.len() as u16).to_le_bytes());
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(payload);
    let crc = checksum(length, &out[FRAME_BYTES..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(length: u32, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), body)
}

/// The content of a segment at an offset.
pub(super) enum ReadResult {
    /// A valid record, and the offset of the next.
    Record(Record, u64),
    /// The exact end of the file.
    End,
    /// The result of a crash: a record beyond the end of the file, or a wrong checksum followed by nothing or by zeros.
    Torn,
    Bad(String),
}

/// Reads the record at `offset` of a file of `len` bytes.
pub(super) fn read_record(file: &dyn DiskFile, number: u64, offset: u64, len: u64) -> ReadResult {
    match try_read(file, number, offset, len) {
        Ok(at) => at,
        Err(error) => ReadResult::Bad(error.to_string()),
    }
}

fn try_read(file: &dyn DiskFile, number: u64, offset: u64, len: u64) -> io::Result<ReadResult> {
    if offset == len {
        return Ok(ReadResult::End);
    }
    let mut frame = [0; FRAME_BYTES];
    if read_full(file, &mut frame, offset)? < FRAME_BYTES {
        return Ok(ReadResult::Torn);
    }
    let [a, b, c, d, e, f, g, h] = frame;
    let (length, crc) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    let next = offset + FRAME_BYTES as u64 + u64::from(length);
    if length < 2 || length as usize > RECORD_BYTES_MAX {
        let zeros = length == 0 && crc == 0 && only_zeros(file, offset, len)?;
        return Ok(if zeros { ReadResult::Torn } else { ReadResult::Bad(format!("a record of {length} bytes")) });
    }
    if next > len {
        return Ok(ReadResult::Torn);
    }
    let mut body = vec![0; length as usize];
    let whole = read_full(file, &mut body, offset + FRAME_BYTES as u64)? == body.len();
    if !whole || checksum(length, &body) != crc {
        let torn = only_zeros(file, next, len)?;
        return Ok(if torn { ReadResult::Torn } else { ReadResult::Bad("a wrong checksum".into()) });
    }
    let topic_length = usize::from(u16::from_le_bytes([body[0], body[1]]));
    let topic = match body.get(2..2 + topic_length).map(std::str::from_utf8) {
        Some(Ok(topic)) => topic.to_owned(),
        _ => return Ok(ReadResult::Bad("an invalid topic".into())),
    };
    body.drain(..2 + topic_length);
    Ok(ReadResult::Record(Record { id: RecordId { segment: number, offset }, topic, payload: body }, next))
}

fn only_zeros(file: &dyn DiskFile, mut offset: u64, len: u64) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    while offset < len {
        let count = read_full(file, &mut buffer, offset)?;
        if count == 0 || buffer[..count].iter().any(|&byte| byte != 0) {
            return Ok(count == 0);
        }
        offset += count as u64;
    }
    Ok(true)
}

/// The result of a segment's scan.
pub(super) struct Scan {
    /// The end of the valid records.
    pub end: u64,
    pub len: u64,
    /// Valid records from the confirmed position on.
    pub waiting: u64,
    /// Bytes of these records.
    pub waiting_bytes: u64,
    pub tail: Tail,
}

/// The content after the valid records.
pub(super) enum Tail {
    Nothing,
    Torn,
    Bad(String),
}

/// Scans a segment; records before `confirmed` are not counted.
pub(super) fn scan(file: &dyn DiskFile, number: u64, confirmed: RecordId) -> io::Result<Scan> {
    let len = file.len()?;
    let mut scan = Scan { end: 0, len, waiting: 0, waiting_bytes: 0, tail: Tail::Torn };
    let mut header = [0; HEADER.len()];
    match read_full(file, &mut header, 0) {
        Ok(count) if count < header.len() && HEADER.starts_with(&header[..count]) => return Ok(scan),
        Ok(_) if header == HEADER => {}
        Ok(_) if only_zeros(file, 0, len).unwrap_or(false) => return Ok(scan),
        Ok(_) => {
            scan.tail = Tail::Bad("it does not begin with the header of a segment".into());
            return Ok(scan);
        }
        Err(error) => {
            scan.tail = Tail::Bad(error.to_string());
            return Ok(scan);
        }
    }
    scan.end = HEADER.len() as u64;
    loop {
        scan.tail = match read_record(file, number, scan.end, len) {
            ReadResult::Record(record, next) => {
                if record.id >= confirmed {
                    scan.waiting += 1;
                    scan.waiting_bytes += next - scan.end;
                }
                scan.end = next;
                continue;
            }
            ReadResult::End => Tail::Nothing,
            ReadResult::Torn => Tail::Torn,
            ReadResult::Bad(what) => Tail::Bad(what),
        };
        return Ok(scan);
    }
}
