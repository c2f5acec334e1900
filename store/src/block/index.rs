//! The index of a block, in the Parquet footer's key-value metadata: the rows of each sensor, so that a scan reads only those.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use wholegrain_model::schema::put_varint;

use crate::ranges::{get_varint, unzigzag, zigzag};

/// The metadata key of the index.
pub(crate) const INDEX_KEY: &str = "wholegrain.index";
/// The metadata key of the format's version.
pub(crate) const VERSION_KEY: &str = "wholegrain.version";
/// The metadata key of the first and the last journal segment in a block.
pub(crate) const SEGMENTS_KEY: &str = "wholegrain.segments";
/// Level of zstd for the index.
const ZSTD_LEVEL: i32 = 9;
/// The largest index, decompressed, in bytes.
const INDEX_BYTES_MAX: usize = 1 << 30;

/// The rows of one sensor in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub path: String,
    pub rows: u64,
    pub first_time: i64,
    pub last_time: i64,
}

/// The most bytes of a varint.
const VARINT_BYTES_MAX: usize = 10;

/// The index of a file that is being written. Only the last sensor is kept as an entry, the others in their encoded form: a file may have millions.
#[derive(Debug)]
pub(crate) struct IndexWriter {
    /// The encoded entries, without the last, after room for their number.
    body: Vec<u8>,
    /// Their number, and path and first time of the last of them.
    before: (u64, String, i64),
    last: Option<IndexEntry>,
    rows: u64,
    times: Option<(i64, i64)>,
}

pub(crate) struct BlockIndex {
    /// Its text in the footer.
    pub text: String,
    pub entries: usize,
    pub rows: u64,
    /// The first and the last time of all sensors; zeros if there is none.
    pub times: (i64, i64),
}

impl Default for IndexWriter {
    fn default() -> Self {
        let body = vec![0; VARINT_BYTES_MAX];
        Self { body, before: (0, String::new(), 0), last: None, rows: 0, times: None }
    }
}

impl IndexWriter {
    /// Adds rows of a sensor with the times of the first and the last of them. The rows of a sensor are consecutive. Returns whether these are its
    /// first.
    pub fn push(&mut self, path: &str, rows: u64, (first_time, last_time): (i64, i64)) -> bool {
        self.rows += rows;
        if let Some(last) = self.last.as_mut().filter(|last| last.path == path) {
            last.rows += rows;
            last.last_time = last_time;
            return false;
        }
        let mut unused = self.end_entry();
        unused.clear();
        unused.push_str(path);
        self.last = Some(IndexEntry { path: unused, rows, first_time, last_time });
        true
    }

    /// Encodes the last entry; returns the memory of an unused path.
    fn end_entry(&mut self) -> String {
        let Some(entry) = self.last.take() else { return String::new() };
        let (count, path, first_time) = &mut self.before;
        let (out, shared) = (&mut self.body, shared_bytes(path.as_bytes(), entry.path.as_bytes()));
        put_varint(shared as u64, out);
        put_varint((entry.path.len() - shared) as u64, out);
        out.extend_from_slice(&entry.path.as_bytes()[shared..]);
        put_varint(entry.rows, out);
        put_varint(zigzag(entry.first_time.wrapping_sub(*first_time)), out);
        put_varint(entry.last_time.wrapping_sub(entry.first_time).cast_unsigned(), out);
        let (first, last) = self.times.unwrap_or((i64::MAX, i64::MIN));
        self.times = Some((first.min(entry.first_time), last.max(entry.last_time)));
        *count += 1;
        *first_time = entry.first_time;
        std::mem::replace(path, entry.path)
    }

    /// Completes the index after its last entry.
    pub fn finish(mut self) -> std::io::Result<BlockIndex> {
        drop(self.end_entry());
        let mut count = Vec::new();
        put_varint(self.before.0, &mut count);
        self.body.splice(..VARINT_BYTES_MAX, count);
        let (entries, times) = (self.before.0 as usize, self.times.unwrap_or_default());
        Ok(BlockIndex { text: to_text(self.body)?, entries, rows: self.rows, times })
    }
}

/// Encodes bytes for the footer: with a checksum, compressed, as text.
pub(crate) fn to_text(mut out: Vec<u8>) -> std::io::Result<String> {
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    let mut text = format!("{}:", out.len());
    STANDARD_NO_PAD.encode_string(zstd::bulk::compress(&out, ZSTD_LEVEL)?, &mut text);
    Ok(text)
}

/// The length of the common prefix of two paths.
fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Decodes what [`IndexWriter`] wrote.
pub(crate) fn decode(text: &str) -> Result<Vec<IndexEntry>, &'static str> {
    decode_body(&from_text(text)?).ok_or("index contradicts itself")
}

/// Decodes what [`to_text`] encoded.
pub(crate) fn from_text(text: &str) -> Result<Vec<u8>, &'static str> {
    let (length, base64) = text.split_once(':').ok_or("a list in its footer has no length")?;
    let length: usize = length.parse().map_err(|_| "a list in its footer has no length")?;
    if length > INDEX_BYTES_MAX {
        return Err("a list in its footer is over its bound");
    }
    let compressed = STANDARD_NO_PAD.decode(base64).map_err(|_| "a list in its footer is not base64")?;
    let mut bytes = zstd::bulk::decompress(&compressed, length).map_err(|_| "a list in its footer is not zstd")?;
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("a list in its footer is cut short")?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err("a list in its footer does not have its checksum");
    }
    bytes.truncate(body.len());
    Ok(bytes)
}

fn decode_body(body: &[u8]) -> Option<Vec<IndexEntry>> {
    let mut at = 0;
    let count = get_varint(body, &mut at)?;
    let mut entries: Vec<IndexEntry> = Vec::new();
    for _ in 0..count {
        let shared = usize::try_from(get_varint(body, &mut at)?).ok()?;
        let suffix = usize::try_from(get_varint(body, &mut at)?).ok()?;
        let before = entries.last().map_or("", |entry| entry.path.as_str());
        let mut path = before.as_bytes().get(..shared)?.to_vec();
        path.extend_from_slice(body.get(at..at.checked_add(suffix)?)?);
        at += suffix;
        let rows = get_varint(body, &mut at)?;
        let base = entries.last().map_or(0, |entry| entry.first_time);
        let first_time = base.wrapping_add(unzigzag(get_varint(body, &mut at)?));
        let last_time = first_time.wrapping_add(get_varint(body, &mut at)?.cast_signed());
        entries.push(IndexEntry { path: String::from_utf8(path).ok()?, rows, first_time, last_time });
    }
    (at == body.len()).then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Vec<IndexEntry> {
        let entry =
            |path: &str, rows, first_time, last_time| IndexEntry { path: path.to_owned(), rows, first_time, last_time };
        vec![
            entry("/n1/cpu/0/user", 60, 1_700_000_000_000_000_000, 1_700_000_059_000_000_000),
            entry("/n1/cpu/é/user", 1, -5, -5),
            entry("/n1/cpu/è", u64::from(u32::MAX) + 7, i64::MIN, i64::MAX),
        ]
    }

    fn written(entries: &[IndexEntry]) -> BlockIndex {
        let mut writer = IndexWriter::default();
        for IndexEntry { path, rows, first_time, last_time } in entries {
            // In two pieces where there are two rows.
            let half = rows / 2;
            assert!(writer.push(path, rows - half, (*first_time, *first_time)));
            assert!(!writer.push(path, half, (*last_time, *last_time)));
        }
        writer.finish().unwrap()
    }

    #[test]
    fn round_trip() {
        let index = written(&example());
        assert_eq!(decode(&index.text).unwrap(), example());
        let rows = 61 + u64::from(u32::MAX) + 7;
        assert_eq!((index.entries, index.rows, index.times), (3, rows, (i64::MIN, i64::MAX)));
        let many: Vec<IndexEntry> = (0..20_000)
            .map(|i| IndexEntry { path: format!("/n/{i:05}"), rows: 1, first_time: 5, last_time: 5 })
            .collect();
        assert_eq!(decode(&written(&many).text).unwrap(), many);
        let empty = IndexWriter::default().finish().unwrap();
        assert_eq!((decode(&empty.text).unwrap(), empty.entries, empty.times), (vec![], 0, (0, 0)));
    }

    #[test]
    fn no_flipped_bit_and_no_cut_goes_unnoticed() {
        let text = written(&example()).text;
        for end in 0..text.len() {
            assert!(decode(&text[..end]).is_err(), "cut at {end}");
        }
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone().into_bytes();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(bad) = String::from_utf8(bad) {
                let entries = decode(&bad);
                assert!(entries.is_err() || entries == Ok(example()), "bit {bit}");
            }
        }
    }
}
