//! How far the journal is on stable storage, in a file beside its segments: so that a lost end is distinguished from one that was never written.
//! `FORMAT.md` gives every byte.
//!
//! - In: after each group commit, what the open segment holds.
//! - Out: at the next opening, what the last segment held at least.
//! - Never: a length before it is on stable storage; a sync of its own for a commit. The file is synced by the sealer now and then and when the
//!   store closes. A power failure can leave an earlier state of it, which is still true, and a killed process leaves the last one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::StoreError;
use crate::disk::{Disk, DiskFile, read_file};
use crate::segment::{PROOF_BYTES, SyncedLength};

const MAGIC: [u8; 8] = *b"WGSYNCD1";
const SLOT_BYTES: usize = 8 + PROOF_BYTES + 4;
/// Two slots in separate sectors: if the writing of one is interrupted, the other is intact.
const SLOTS: [u64; 2] = [0, 512];

/// The file, while the store is open.
pub(crate) struct SyncedLengthFile {
    file: Option<Arc<dyn DiskFile>>,
    next: AtomicUsize,
    dirty: AtomicBool,
}

/// The path of the file.
pub(crate) fn path(journal: &Path) -> PathBuf {
    journal.join("synced")
}

/// The synced length in the file, if there is a valid one.
pub(crate) fn read(disk: &dyn Disk, journal: &Path) -> Option<SyncedLength> {
    let bytes = read_file(disk, &path(journal)).ok()?;
    let slot = |at: &u64| slot(bytes.get(*at as usize..)?.first_chunk()?);
    SLOTS.iter().filter_map(slot).max_by_key(|proof| (proof.number, proof.bytes)).filter(|proof| proof.number > 0)
}

fn slot(bytes: &[u8; SLOT_BYTES]) -> Option<SyncedLength> {
    let (content, sum) = bytes.split_at(SLOT_BYTES - 4);
    let whole = content[..8] == MAGIC && crc32c::crc32c(content).to_le_bytes() == sum;
    whole.then(|| SyncedLength::decode(content[8..].first_chunk()?)).flatten()
}

fn encode(proof: &SyncedLength) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..8 + PROOF_BYTES].copy_from_slice(&proof.encode());
    let sum = crc32c::crc32c(&bytes[..SLOT_BYTES - 4]);
    bytes[SLOT_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

impl SyncedLengthFile {
    /// Writes the synced length of the segment that recovery has finished; durable when it returns. If there is no room for the file there is none:
    /// then a lost end cannot be distinguished from a torn one.
    pub fn open(disk: &dyn Disk, journal: &Path, last: &SyncedLength) -> Result<Self, StoreError> {
        let path = path(journal);
        let make = || {
            let file = if disk.exists(&path) { disk.open(&path, true)? } else { disk.create(&path)? };
            SLOTS.iter().try_for_each(|at| file.write_at(*at, &encode(last)))?;
            file.sync()?;
            disk.sync_dir(journal)?;
            Ok(file)
        };
        let file = match make().map_err(|error| StoreError::io("writing", &path, error)) {
            Ok(file) => Some(file),
            Err(error @ StoreError::DiskFull { .. }) => {
                tracing::warn!(%error, "readings that the journal may lose are not noticed until the next start");
                // Its content is outdated.
                match disk.remove(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(StoreError::io("removing", &path, error));
                    }
                    _ => None,
                }
            }
            Err(error) => return Err(error),
        };
        Ok(Self { file, next: AtomicUsize::new(0), dirty: AtomicBool::new(false) })
    }

    /// Writes the synced length of the open segment; called from the journal thread only.
    pub fn note(&self, proof: &SyncedLength) {
        let Some(file) = &self.file else { return };
        let at = self.next.load(Relaxed);
        // If it cannot be written, the earlier length remains, which is also true.
        if file.write_at(SLOTS[at], &encode(proof)).is_ok() {
            self.next.store(1 - at, Relaxed);
            self.dirty.store(true, Relaxed);
        }
    }

    /// Syncs the file if it has changed.
    pub fn sync(&self) {
        if self.dirty.swap(false, Relaxed)
            && let Some(file) = &self.file
            && let Err(error) = file.sync()
        {
            tracing::debug!(%error, "the journal's length cannot be brought to stable storage");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::segment::SegmentSummary;

    #[test]
    fn whatever_is_damaged_in_it_says_nothing_or_something_earlier() {
        let dir = tempfile::tempdir().unwrap();
        let proof = |bytes| SyncedLength {
            number: 7,
            bytes,
            holds: Some(SegmentSummary { readings: bytes / 2, first: -5, last: 9 }),
        };
        let synced = SyncedLengthFile::open(&RealDisk, dir.path(), &SyncedLength::default()).unwrap();
        assert_eq!(read(&RealDisk, dir.path()), None);
        for bytes in [100, 200, 300] {
            synced.note(&proof(bytes));
            assert_eq!(read(&RealDisk, dir.path()), Some(proof(bytes)));
        }
        let whole = std::fs::read(path(dir.path())).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path(dir.path()), &bad).unwrap();
            assert!([Some(proof(200)), Some(proof(300))].contains(&read(&RealDisk, dir.path())), "bit {bit}");
        }
        for cut in 0..whole.len() {
            std::fs::write(path(dir.path()), &whole[..cut]).unwrap();
            assert!([None, Some(proof(200)), Some(proof(300))].contains(&read(&RealDisk, dir.path())), "cut at {cut}");
        }
    }
}
