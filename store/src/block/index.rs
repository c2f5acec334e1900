//! A block's own index, in the Parquet footer's key-value metadata: which rows are which sensor's, so that a scan touches only those.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use wholegrain_model::schema::put_varint;

use crate::ranges::get_varint;

/// The metadata key of the index.
pub(crate) const INDEX_KEY: &str = "wholegrain.index";
/// The metadata key of the format's version.
pub(crate) const VERSION_KEY: &str = "wholegrain.version";
/// The metadata key of the first and the last journal segment whose readings a block holds.
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

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Entries in row order to the text that the footer holds.
pub(crate) fn encode(entries: &[IndexEntry]) -> std::io::Result<String> {
    let mut out = Vec::new();
    put_varint(entries.len() as u64, &mut out);
    let (mut path, mut first_time) = ("", 0i64);
    for entry in entries {
        let shared = shared_bytes(path.as_bytes(), entry.path.as_bytes());
        put_varint(shared as u64, &mut out);
        put_varint((entry.path.len() - shared) as u64, &mut out);
        out.extend_from_slice(&entry.path.as_bytes()[shared..]);
        put_varint(entry.rows, &mut out);
        put_varint(zigzag(entry.first_time.wrapping_sub(first_time)), &mut out);
        put_varint(entry.last_time.wrapping_sub(entry.first_time).cast_unsigned(), &mut out);
        (path, first_time) = (&entry.path, entry.first_time);
    }
    to_text(out)
}

/// What a footer can hold of such bytes: with their checksum, compressed, as text.
pub(super) fn to_text(mut out: Vec<u8>) -> std::io::Result<String> {
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    let mut text = format!("{}:", out.len());
    STANDARD_NO_PAD.encode_string(zstd::bulk::compress(&out, ZSTD_LEVEL)?, &mut text);
    Ok(text)
}

/// How many bytes two paths begin with alike.
fn shared_bytes(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Reads what [`encode`] wrote.
pub(crate) fn decode(text: &str) -> Result<Vec<IndexEntry>, &'static str> {
    decode_body(&from_text(text)?).ok_or("index contradicts itself")
}

/// The bytes that [`to_text`] was given.
pub(super) fn from_text(text: &str) -> Result<Vec<u8>, &'static str> {
    let (length, base64) = text.split_once(':').ok_or("index without a length")?;
    let length: usize = length.parse().map_err(|_| "index without a length")?;
    if length > INDEX_BYTES_MAX {
        return Err("index over its bound");
    }
    let compressed = STANDARD_NO_PAD.decode(base64).map_err(|_| "index is not base64")?;
    let mut bytes = zstd::bulk::decompress(&compressed, length).map_err(|_| "index is not zstd")?;
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("index cut short")?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err("index does not have its checksum");
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

    #[test]
    fn round_trip() {
        assert_eq!(decode(&encode(&example()).unwrap()).unwrap(), example());
        assert_eq!(decode(&encode(&[]).unwrap()).unwrap(), vec![]);
    }

    #[test]
    fn no_flipped_bit_and_no_cut_goes_unnoticed() {
        let text = encode(&example()).unwrap();
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
