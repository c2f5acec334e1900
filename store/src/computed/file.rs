//! The files of the result cache. `FORMAT.md` describes every byte.

use std::path::{Path, PathBuf};

use wholegrain_model::schema::put_varint;

use crate::computed::key::{CacheKey, PIECE_BYTES_MAX};
use crate::disk::{Disk, read_file};
use crate::ranges::get_varint;
use crate::{SensorId, StoreError};

/// The first bytes of a file that describes a cache key.
const ABOUT_MAGIC: [u8; 8] = *b"WGDABT2\n";
/// The first bytes of a piece.
const PIECE_MAGIC: [u8; 8] = *b"WGDPCE2\n";
/// Magic, key, number, stamp.
const PIECE_HEADER: usize = 8 + 16 + 8 + 8;

/// The meaning of a file's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResultFileName {
    /// The description of this key.
    About([u8; 16]),
    /// A piece: its key, its number and its stamp.
    Piece([u8; 16], i64, u64),
}

impl ResultFileName {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let (stem, extension) = (path.file_stem()?.to_str()?, path.extension()?.to_str()?);
        if extension == "about" {
            return Some(Self::About(key_of(stem)?));
        }
        let mut parts = stem.splitn(3, '_');
        let (key, number, stamp) = (parts.next()?, parts.next()?, parts.next()?);
        (extension == "piece").then_some(())?;
        Some(Self::Piece(key_of(key)?, number.parse().ok()?, stamp.parse().ok()?))
    }
}

fn key_of(hex: &str) -> Option<[u8; 16]> {
    (hex.len() == 32).then_some(())?;
    u128::from_str_radix(hex, 16).ok().map(u128::to_be_bytes)
}

pub(super) fn about_path(dir: &Path, key: &[u8; 16]) -> PathBuf {
    dir.join(format!("{:032x}.about", u128::from_be_bytes(*key)))
}

pub(super) fn piece_path(dir: &Path, key: &[u8; 16], number: i64, stamp: u64) -> PathBuf {
    dir.join(format!("{:032x}_{number}_{stamp}.piece", u128::from_be_bytes(*key)))
}

fn write(disk: &dyn Disk, path: &Path, mut bytes: Vec<u8>) -> Result<u64, StoreError> {
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let written = disk.create(path).and_then(|file| file.write_at(0, &bytes));
    written.map_err(|error| {
        let _ = disk.remove(path);
        StoreError::io("writing", path, error)
    })?;
    Ok(bytes.len() as u64)
}

/// The content before a valid checksum.
fn read(disk: &dyn Disk, path: &Path) -> Option<Vec<u8>> {
    let mut bytes = read_file(disk, path).ok()?;
    let at = bytes.len().checked_sub(4)?;
    let sum = u32::from_le_bytes(bytes[at..].try_into().ok()?);
    bytes.truncate(at);
    (crc32c::crc32c(&bytes) == sum).then_some(bytes)
}

pub(super) fn write_piece(
    disk: &dyn Disk,
    dir: &Path,
    cache_key: &CacheKey,
    number: i64,
    stamp: u64,
    content: &[u8],
) -> Result<u64, StoreError> {
    let mut bytes = Vec::with_capacity(PIECE_HEADER + content.len() + 4);
    bytes.extend_from_slice(&PIECE_MAGIC);
    bytes.extend_from_slice(&cache_key.key);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&stamp.to_le_bytes());
    bytes.extend_from_slice(content);
    write(disk, &piece_path(dir, &cache_key.key, number, stamp), bytes)
}

/// The content of a piece; `None` if it is not what was written.
pub(super) fn read_piece(disk: &dyn Disk, dir: &Path, key: &[u8; 16], number: i64, stamp: u64) -> Option<Vec<u8>> {
    let mut bytes = read(disk, &piece_path(dir, key, number, stamp))?;
    let head = bytes.get(..PIECE_HEADER)?;
    let own = head[..8] == PIECE_MAGIC
        && head[8..24] == *key
        && head[24..32] == number.to_le_bytes()
        && head[32..40] == stamp.to_le_bytes();
    let size = bytes.len() - PIECE_HEADER;
    (own && size <= PIECE_BYTES_MAX).then(|| bytes.split_off(PIECE_HEADER))
}

pub(super) fn write_about(disk: &dyn Disk, dir: &Path, cache_key: &CacheKey) -> Result<u64, StoreError> {
    let mut bytes = Vec::with_capacity(64 + cache_key.operands.len() * 2);
    bytes.extend_from_slice(&ABOUT_MAGIC);
    bytes.extend_from_slice(&cache_key.key);
    for ns in [cache_key.piece_ns, cache_key.back_ns, cache_key.ahead_ns] {
        bytes.extend_from_slice(&ns.to_le_bytes());
    }
    put_varint(cache_key.operands.len() as u64, &mut bytes);
    let mut before = 0;
    for id in &cache_key.operands {
        put_varint(u64::from(id.0 - before), &mut bytes);
        before = id.0;
    }
    write(disk, &about_path(dir, &cache_key.key), bytes)
}

/// A cache key and the size of its file.
pub(super) fn read_about(disk: &dyn Disk, path: &Path, key: &[u8; 16]) -> Option<(CacheKey, u64)> {
    let bytes = read(disk, path)?;
    (bytes.get(..8)? == ABOUT_MAGIC && bytes.get(8..24)? == key).then_some(())?;
    let number = |at: usize| Some(i64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (piece_ns, back_ns, ahead_ns) = (number(24)?, number(32)?, number(40)?);
    let mut at = 48;
    let count = get_varint(&bytes, &mut at)?;
    let (mut operands, mut before) = (Vec::new(), 0u32);
    for _ in 0..count {
        before = before.checked_add(u32::try_from(get_varint(&bytes, &mut at)?).ok()?)?;
        operands.push(SensorId(before));
    }
    (at == bytes.len() && piece_ns > 0).then_some(())?;
    Some((CacheKey { key: *key, operands, piece_ns, back_ns, ahead_ns }, bytes.len() as u64 + 4))
}
