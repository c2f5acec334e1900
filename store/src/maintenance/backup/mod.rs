//! Backups of everything that was acknowledged before they began, while the store goes on; and restoring them. `FORMAT.md` describes the format.
//!
//! - In: an open store; or a backup, a directory or a tar file. Out: a tar stream with what the receiver does not have; a directory that opens with
//!   the same answers.
//! - Never: an overwritten file in a directory; a backup with wrong checksums reported as whole; a whole backup made worse by an interrupted one.

mod make;
mod restore;
mod take;
mod tar;

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

pub use crate::maintenance::backup::make::Backup;
pub(crate) use crate::maintenance::backup::make::BackupMaker;
pub use crate::maintenance::backup::restore::RestoreReport;
pub use crate::maintenance::backup::restore::restore;
pub use crate::maintenance::backup::take::BackupReport;
pub use crate::maintenance::backup::take::held_in;
pub use crate::maintenance::backup::take::take_into;
pub use crate::maintenance::backup::take::take_tar;

/// The name of the manifest in a backup.
pub const MANIFEST: &str = "backup.json";
/// The version of the backup format.
const FORMAT: u64 = 1;
/// The largest manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;
/// What the directories of files that change from backup to backup begin with.
const STATE_DIR: &str = "state-";

/// What a backup consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupManifest {
    pub format: u64,
    /// When it was begun, ns since the Unix epoch: everything acknowledged before is in it.
    pub made_at: i64,
    /// The release that made it.
    pub release: String,
    pub files: Vec<BackupFile>,
    /// Files that were missing or damaged in the store already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupFile {
    /// Its path within the backup.
    pub name: String,
    pub bytes: u64,
    /// CRC-32C of its content.
    pub sum: u32,
}

/// What can go wrong, in words.
pub type BackupError = String;

impl BackupManifest {
    fn read(json: &[u8]) -> Result<Self, BackupError> {
        let found = serde_json::from_slice::<serde_json::Value>(json).ok();
        match found.and_then(|value| value["format"].as_u64()) {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => {
                return Err(format!(
                    "the backup has format version {newer}, this release reads up to {FORMAT}; use the release that made it or a later one"
                ));
            }
            _ => return Err(format!("{MANIFEST} is not a backup's manifest")),
        }
        let manifest: Self = serde_json::from_slice(json).map_err(|error| format!("{MANIFEST}: {error}"))?;
        match manifest.files.iter().find(|file| !is_plain(&file.name)) {
            None => Ok(manifest),
            Some(file) => Err(format!("{MANIFEST} names {:?}, which is no file of a backup", file.name)),
        }
    }

    fn by_name(&self) -> HashMap<&str, &BackupFile> {
        self.files.iter().map(|file| (file.name.as_str(), file)).collect()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Whether a name stays below the directory that it is put in.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Where a file of a backup belongs in the store's directory.
fn place(name: &str) -> &str {
    match name.split_once('/') {
        Some((dir, rest)) if dir.starts_with(STATE_DIR) => rest,
        _ => name,
    }
}

/// Copies a stream to where `put` takes it; its length and checksum.
fn copy(from: &mut dyn Read, mut put: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<(u64, u32)> {
    let mut piece = vec![0; PIECE_BYTES];
    let (mut bytes, mut sum) = (0, 0);
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return Ok((bytes, sum)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        sum = crc32c::crc32c_append(sum, &piece[..read]);
        bytes += read as u64;
        put(&piece[..read])?;
    }
}
