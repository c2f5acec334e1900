//! Makes a backup of an open store.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::StoreError;
use crate::block::draft::{DraftDirectory, TemporaryFile};
use crate::block::read::Block;
use crate::catalogue::Catalogue;
use crate::compaction::seal::Sealer;
use crate::disk::{Disk, DiskFile, checksum};
use crate::files::FileSet;
use crate::jobs::Jobs;
use crate::maintenance::backup::{BackupFile, BackupManifest, FORMAT, MANIFEST, PIECE_BYTES, STATE_DIR, tar};
use crate::paths::StorePaths;
use crate::registry::Registry;

/// A backup that has begun. Its content is pinned and does not change. Creating it costs a copy of the catalogue and the jobs.
pub struct Backup {
    manifest: BackupManifest,
    sources: Vec<BackupSource>,
    /// Keeps their files while they are read.
    blocks: Vec<Arc<Block>>,
    disk: Arc<dyn Disk>,
    /// Copies under `tmp/`, removed with the backup.
    _copies: Vec<TemporaryFile>,
}

/// The source of a file's content.
enum BackupSource {
    /// A block, opened when it is written, because there are many.
    Path(PathBuf),
    File(Arc<dyn DiskFile>),
}

/// Begins backups of an open store.
pub(crate) struct BackupMaker {
    pub disk: Arc<dyn Disk>,
    pub paths: Arc<StorePaths>,
    pub drafts: Arc<DraftDirectory>,
    pub files: Arc<FileSet>,
    pub catalogue: Arc<Catalogue>,
    pub jobs: Arc<Jobs>,
    pub registry: Arc<Registry>,
    pub sealer: Arc<Sealer>,
}

impl BackupMaker {
    pub(crate) fn backup(&self, now: i64) -> Result<Backup, StoreError> {
        // Then the blocks hold everything, and the journal only what arrives later.
        self.sealer.seal_all()?;
        let disk = &self.disk;
        let number = self.drafts.next_id();
        let copy = |name: &str| self.drafts.file(&format!("backup-{number}-{name}"));
        let mut copies = Vec::new();
        let mut state: Vec<(String, Arc<dyn DiskFile>)> = Vec::new();
        // The catalogue and the view have the same state.
        let view = {
            let _commit_state = self.files.reconcile()?;
            let copy = copy("catalogue.redb");
            self.catalogue.copy_to(&copy.path)?;
            state.push(("catalogue.redb".to_owned(), open(disk.as_ref(), &copy.path)?));
            copies.push(copy);
            self.files.view()
        };
        let jobs = copy("jobs.redb");
        if self.jobs.copy_to(&jobs.path)? {
            state.push(("jobs.redb".to_owned(), open(disk.as_ref(), &jobs.path)?));
            copies.push(jobs);
        }
        let registry = copy(crate::registry::FILE);
        if self.registry.copy_to(&registry.path)? {
            state.push((crate::registry::FILE.to_owned(), open(disk.as_ref(), &registry.path)?));
            copies.push(registry);
        }
        let listed = disk.list(&self.paths.quarantine);
        for entry in listed.map_err(|error| StoreError::io("listing", &self.paths.quarantine, error))? {
            let name = entry.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !entry.is_dir {
                state.push((format!("quarantine/{name}"), open(disk.as_ref(), &entry.path)?));
            }
        }
        let mut backup = Backup {
            manifest: BackupManifest {
                format: FORMAT,
                made_at: now,
                release: env!("CARGO_PKG_VERSION").to_owned(),
                files: Vec::new(),
                damaged: Vec::new(),
            },
            sources: Vec::new(),
            blocks: view.blocks.iter().chain(&view.tiers).cloned().collect(),
            disk: disk.clone(),
            _copies: copies,
        };
        let absent = view.absent.iter().map(|block| block.record.path.clone());
        backup.manifest.damaged.extend(absent);
        for block in backup.blocks.clone() {
            backup.add_block(disk.as_ref(), &self.paths.dir, &block)?;
        }
        // The catalogue comes last: a store without it is not opened.
        state.sort_by_key(|(name, _)| name == "catalogue.redb");
        for (name, file) in state {
            let sum = checksum(file.as_ref()).map_err(|error| StoreError::io("reading", Path::new(&name), error))?;
            backup.add(format!("{STATE_DIR}{now}/{name}"), sum, BackupSource::File(file));
        }
        Ok(backup)
    }
}

fn open(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>, StoreError> {
    disk.open(path, false).map_err(|error| StoreError::io("opening", path, error))
}

impl Backup {
    /// The list of its files.
    pub fn manifest(&self) -> &BackupManifest {
        &self.manifest
    }

    fn add(&mut self, name: String, (bytes, sum): (u64, u32), source: BackupSource) {
        self.manifest.files.push(BackupFile { name, bytes, sum });
        self.sources.push(source);
    }

    fn add_block(&mut self, disk: &dyn Disk, dir: &Path, block: &Block) -> Result<(), StoreError> {
        let name = block.path.strip_prefix(dir).unwrap_or(&block.path).to_string_lossy().into_owned();
        let source = match disk.open(&block.path, false) {
            Ok(source) => source,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.manifest.damaged.push(name);
                return Ok(());
            }
            Err(error) => return Err(StoreError::io("opening", &block.path, error)),
        };
        let sum = match block.record.sums {
            Some(sums) => (block.record.bytes, sums.file),
            None => checksum(source.as_ref()).map_err(|error| StoreError::io("reading", &block.path, error))?,
        };
        self.add(name, sum, BackupSource::Path(block.path.clone()));
        Ok(())
    }

    /// Writes a tar stream: the manifest, then the files for which `has` returns false. An error of `out` ends it.
    pub fn write_tar(&self, has: &dyn Fn(&BackupFile) -> bool, out: &mut dyn Write) -> io::Result<()> {
        let json = serde_json::to_vec(&self.manifest).map_err(io::Error::other)?;
        out.write_all(&tar::header(MANIFEST, json.len() as u64)?)?;
        out.write_all(&json)?;
        out.write_all(tar::padding(json.len() as u64))?;
        let mut piece = vec![0; PIECE_BYTES];
        for (file, source) in self.manifest.files.iter().zip(&self.sources).filter(|(file, _)| !has(file)) {
            let source = match source {
                BackupSource::Path(path) => self.disk.open(path, false)?,
                BackupSource::File(file) => file.clone(),
            };
            out.write_all(&tar::header(&file.name, file.bytes)?)?;
            let mut at = 0;
            while at < file.bytes {
                let length = usize::try_from(file.bytes - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                source.read_at(at, &mut piece[..length])?;
                out.write_all(&piece[..length])?;
                at += length as u64;
            }
            out.write_all(tar::padding(file.bytes))?;
        }
        tar::finish(out)?;
        out.flush()
    }
}
