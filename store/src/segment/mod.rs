//! The journal's files: what one looks like, how records are written, how they are read back after a crash. `FORMAT.md` gives every byte.

pub(crate) mod files;
pub(crate) mod synced;

use std::ops::Range;
use std::path::{Path, PathBuf};

use wholegrain_transport::payload::{MAGIC, PAYLOAD_BYTES_MAX};

/// The first bytes of every segment.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"WGJOURNL";
/// Version of the segment's layout.
pub(crate) const SEGMENT_VERSION: u32 = 3;
/// Bytes before the first record.
pub(crate) const HEADER_BYTES: usize = PROOF_AT + PROOF_BYTES + 4;
/// Where the header states the synced length of the previous segment.
const PROOF_AT: usize = 24;
/// Bytes of an encoded synced length.
pub(crate) const PROOF_BYTES: usize = 40;
/// Bytes before the payload of a record.
pub(crate) const RECORD_BYTES: usize = 8;

/// The file of segment `number`.
pub(crate) fn segment_path(journal: &Path, number: u64) -> PathBuf {
    journal.join(format!("{number:010}.wal"))
}

/// The number of a segment's file.
pub(crate) fn segment_number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(".wal")?.parse().ok()
}

/// The synced length of a segment: everything up to `bytes` was on stable storage. In the header of the next segment it also says that nothing
/// after it was acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SyncedLength {
    /// The segment's number; 0 if nothing is known.
    pub number: u64,
    pub bytes: u64,
    /// `None` if there are no readings, or their number is unknown.
    pub holds: Option<SegmentSummary>,
}

/// A summary of a segment's readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentSummary {
    /// Number of readings, including gaps.
    pub readings: u64,
    /// First and last time.
    pub first: i64,
    pub last: i64,
}

impl SyncedLength {
    pub(crate) fn encode(&self) -> [u8; PROOF_BYTES] {
        // If it is unknown, there are no readings, and the first time is after the last.
        let holds = self.holds.unwrap_or(SegmentSummary { readings: 0, first: i64::MAX, last: i64::MIN });
        let numbers =
            [self.number, self.bytes, holds.readings, holds.first.cast_unsigned(), holds.last.cast_unsigned()];
        let mut bytes = [0; PROOF_BYTES];
        bytes.chunks_exact_mut(8).zip(numbers).for_each(|(bytes, number)| bytes.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; PROOF_BYTES]) -> Option<Self> {
        let (first, last) = (long(bytes, 24).cast_signed(), long(bytes, 32).cast_signed());
        let holds = (first <= last).then(|| SegmentSummary { readings: long(bytes, 16), first, last });
        Some(Self { number: long(bytes, 0), bytes: long(bytes, 8), holds })
    }
}

/// The header of segment `number`.
pub(crate) fn header(number: u64, proof: SyncedLength) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
    bytes[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    bytes[PROOF_AT..PROOF_AT + PROOF_BYTES].copy_from_slice(&proof.encode());
    let crc = crc32c::crc32c(&bytes[PROOF_AT..PROOF_AT + PROOF_BYTES]);
    bytes[PROOF_AT + PROOF_BYTES..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Appends a record to `out`; returns where in it the payload is.
pub(crate) fn put_record(payload: &[u8], out: &mut Vec<u8>) -> Range<usize> {
    put_record_with(out, |out| out.extend_from_slice(payload))
}

/// The same with a payload that is encoded in place.
pub(crate) fn put_record_with(out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
    let head = out.len();
    out.extend_from_slice(&[0; RECORD_BYTES]);
    let start = out.len();
    payload(out);
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX).to_le_bytes();
    let crc = record_crc(length, &out[start..]).to_le_bytes();
    out[head..head + 4].copy_from_slice(&length);
    out[head + 4..start].copy_from_slice(&crc);
    start..out.len()
}

/// The checksum covers the length, so that zeros, which a file system may leave at the end of a file, are no record.
fn record_crc(length: [u8; 4], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length), payload)
}

/// The content of a segment's file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveredSegment {
    /// The payloads of the valid records.
    pub payloads: Vec<Range<usize>>,
    /// Bytes that are no record and are followed by records.
    pub damaged: Vec<Range<usize>>,
    /// The end of the last valid record.
    pub end: usize,
    /// The file's version, if it is a newer one.
    pub newer: Option<u32>,
}

/// The synced length that the header of segment `number` states for the segment before. A header with another number states nothing: somebody put
/// the file there.
pub(crate) fn proof_in(head: &[u8], number: u64) -> Option<SyncedLength> {
    match check_header(head) {
        Ok(proof) if proof.number > 0 && long(head, 12) == number => Some(proof),
        _ => None,
    }
}

/// Whether the damaged bytes are exactly the header.
pub(crate) fn is_header(damaged: &Range<usize>) -> bool {
    *damaged == (0..HEADER_BYTES)
}

/// The payloads of the records that damaged bytes may have held, as far as their lengths can be followed; `false` if they cannot be followed to the
/// end.
pub(crate) fn remains(bytes: &[u8], damaged: &Range<usize>) -> (Vec<Range<usize>>, bool) {
    let (mut found, mut at) = (Vec::new(), damaged.start);
    let end = damaged.end.min(bytes.len());
    while at < end {
        let Some(head) = bytes.get(at..at + RECORD_BYTES) else { return (found, false) };
        let next = at + RECORD_BYTES + word(head, 0) as usize;
        if next > end || next - at < RECORD_BYTES + MAGIC.len() {
            return (found, false);
        }
        found.push(at + RECORD_BYTES..next);
        at = next;
    }
    (found, damaged.end <= bytes.len())
}

/// Finds the valid records. After bytes that are no record it searches for the next record.
pub(crate) fn recover(bytes: &[u8]) -> RecoveredSegment {
    let mut found = RecoveredSegment::default();
    let mut at = match check_header(bytes) {
        Ok(_) => HEADER_BYTES,
        Err(newer) => {
            found.newer = newer;
            0
        }
    };
    found.end = at;
    if found.newer.is_some() {
        return found;
    }
    while let Some(payload) = record_at(bytes, at).or_else(|| next_record(bytes, at)) {
        let start = payload.start - RECORD_BYTES;
        if start > at {
            found.damaged.push(at..start);
        }
        at = payload.end;
        found.end = at;
        found.payloads.push(payload);
    }
    found
}

/// The synced length that the header states. `Err` with the version if a newer release wrote the segment.
fn check_header(bytes: &[u8]) -> Result<SyncedLength, Option<u32>> {
    let Some(head) = bytes.first_chunk::<PROOF_AT>() else { return Err(None) };
    if head[..8] != SEGMENT_MAGIC || word(head, 20) != crc32c::crc32c(&head[..20]) {
        return Err(None);
    }
    let version = word(head, 8);
    if version != SEGMENT_VERSION {
        return Err(Some(version).filter(|version| *version > SEGMENT_VERSION));
    }
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Err(None) };
    let proof = &head[PROOF_AT..PROOF_AT + PROOF_BYTES];
    if word(head, PROOF_AT + PROOF_BYTES) != crc32c::crc32c(proof) {
        return Err(None);
    }
    proof.first_chunk().and_then(SyncedLength::decode).ok_or(None)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// The payload of the record that begins at `at`, if there is a valid one.
fn record_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let head = bytes.get(at..at.checked_add(RECORD_BYTES)?)?;
    let (length, crc) = ([head[0], head[1], head[2], head[3]], [head[4], head[5], head[6], head[7]]);
    let size = u32::from_le_bytes(length) as usize;
    if size < MAGIC.len() || size > PAYLOAD_BYTES_MAX {
        return None;
    }
    let start = at + RECORD_BYTES;
    let payload = bytes.get(start..start.checked_add(size)?)?;
    // The magic first: the search tries every byte, and a checksum over a wrong length at each would take for ever.
    let known = payload.starts_with(&MAGIC) || payload.starts_with(&READINGS_MAGIC);
    let whole = known && record_crc(length, payload) == u32::from_le_bytes(crc);
    whole.then(|| start..start + size)
}

fn next_record(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    (at + 1..bytes.len()).find_map(|at| record_at(bytes, at))
}

/// The size of a segment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SegmentSize {
    pub payload_bytes: u64,
    pub file_bytes: u64,
    pub readings: u64,
}

/// The first bytes of the payload of a record of readings.
pub(crate) const READINGS_MAGIC: [u8; 2] = *b"WR";

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(i: u8) -> Vec<u8> {
        let mut payload = if i.is_multiple_of(2) { MAGIC } else { READINGS_MAGIC }.to_vec();
        payload.extend((0..i % 7 + 1).map(|j| j.wrapping_mul(31) ^ i));
        payload
    }

    fn example(records: u8) -> (Vec<u8>, Vec<Range<usize>>) {
        let mut bytes = header(7, SyncedLength { number: 6, bytes: 99, holds: None }).to_vec();
        let payloads = (0..records).map(|i| put_record(&payload(i), &mut bytes)).collect();
        (bytes, payloads)
    }

    #[test]
    fn cut_anywhere_gives_the_whole_records_before() {
        let (bytes, payloads) = example(12);
        for cut in 0..=bytes.len() {
            let found = recover(&bytes[..cut]);
            let expected: Vec<_> = payloads.iter().filter(|payload| payload.end <= cut).cloned().collect();
            assert_eq!(found.payloads, expected, "cut at {cut}");
            assert!(found.damaged.is_empty(), "cut at {cut}");
            assert!(found.end <= cut);
        }
    }

    #[test]
    fn flipped_anywhere_loses_at_most_the_record_it_hits() {
        let (bytes, payloads) = example(12);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = recover(&bad);
            let hit = |payload: &&Range<usize>| (payload.start - RECORD_BYTES..payload.end).contains(&(bit / 8));
            let expected: Vec<_> = payloads.iter().filter(|payload| !hit(payload)).cloned().collect();
            assert_eq!(found.payloads, expected, "bit {bit}");
            let lost: usize = found.damaged.iter().map(Range::len).sum::<usize>() + (bad.len() - found.end);
            assert!(lost > 0, "bit {bit} unnoticed");
        }
    }

    #[test]
    fn zeros_at_the_end_are_no_records() {
        let (mut bytes, payloads) = example(3);
        let end = bytes.len();
        bytes.resize(end + 4096, 0);
        assert_eq!(recover(&bytes), RecoveredSegment { payloads, end, ..RecoveredSegment::default() });
    }

    #[test]
    fn a_newer_version_is_reported() {
        let mut bytes = header(1, SyncedLength::default());
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(recover(&bytes).newer, Some(9));
    }
}
