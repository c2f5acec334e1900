//! Restores a store from a backup.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::disk::{make_dirs, private};
use crate::maintenance::backup::take::{BackupProgress, manifest_of};
use crate::maintenance::backup::{BackupError, BackupFile, BackupManifest, MANIFEST, copy, place, tar};
use crate::path_owners::check_directory;

/// The outcome of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreReport {
    pub manifest: BackupManifest,
    /// Files that are missing or damaged in the backup; their readings are missing in the store.
    pub damaged: Vec<String>,
}

/// Writes the store of a backup, a directory or a tar file, into `dir`, which must be empty or missing. The catalogue comes last: an interrupted
/// restore cannot be opened.
pub fn restore(backup: &Path, dir: &Path, progress: BackupProgress) -> Result<RestoreReport, BackupError> {
    check_directory(dir)?;
    let taken = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if taken {
        return Err(format!("{} is not empty; nothing is overwritten: name another directory", dir.display()));
    }
    let open = || File::open(backup).map_err(|error| format!("opening {}: {error}", backup.display()));
    if !backup.is_dir() {
        let mut reader = tar::TarReader::new(open()?);
        let manifest = manifest_of(&mut reader)?;
        return from_tar(reader, manifest, dir, progress);
    }
    let path = backup.join(MANIFEST);
    let json = fs::read(&path).map_err(|error| format!("{} holds no backup: {error}", backup.display()))?;
    let manifest = BackupManifest::read(&json)?;
    let mut target = RestoreTarget::new(&manifest, dir, progress)?;
    for file in &manifest.files {
        match File::open(backup.join(&file.name)) {
            Ok(mut source) => target.put(file, &mut source)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.damaged.push(file.name.clone()),
            Err(error) => return Err(format!("opening {}: {error}", backup.join(&file.name).display())),
        }
    }
    target.finish()
}

fn from_tar(
    mut reader: tar::TarReader<File>,
    manifest: BackupManifest,
    dir: &Path,
    progress: BackupProgress,
) -> Result<RestoreReport, BackupError> {
    let known = manifest.by_name();
    let mut target = RestoreTarget::new(&manifest, dir, progress)?;
    let broken = |error: io::Error| format!("the backup cannot be read: {error}");
    let mut found = std::collections::HashSet::new();
    while let Some((name, _)) = reader.next().map_err(broken)? {
        let Some(file) = known.get(name.as_str()) else { return Err(format!("{name:?} is not in the manifest")) };
        target.put(file, &mut reader)?;
        found.insert(name);
    }
    let missing = manifest.files.iter().filter(|file| !found.contains(&file.name));
    target.damaged.extend(missing.map(|file| file.name.clone()));
    target.finish()
}

struct RestoreTarget<'a> {
    manifest: &'a BackupManifest,
    dir: &'a Path,
    progress: BackupProgress<'a>,
    done: u64,
    damaged: Vec<String>,
}

impl<'a> RestoreTarget<'a> {
    fn new(manifest: &'a BackupManifest, dir: &'a Path, progress: BackupProgress<'a>) -> Result<Self, BackupError> {
        make_dirs(dir).map_err(|error| format!("creating {}: {error}", dir.display()))?;
        Ok(Self { manifest, dir, progress, done: 0, damaged: Vec::new() })
    }

    fn put(&mut self, file: &BackupFile, source: &mut dyn Read) -> Result<(), BackupError> {
        let path = self.dir.join(place(&file.name));
        let say = |error: io::Error| format!("writing {}: {error}", path.display());
        let parent = path.parent().unwrap_or(self.dir);
        make_dirs(parent).map_err(say)?;
        let mut out = private().create_new(true).open(&path).map_err(say)?;
        let (total, done, progress) = (self.manifest.bytes(), &mut self.done, &mut self.progress);
        let sum = copy(source, |piece| {
            *done += piece.len() as u64;
            progress(*done, total);
            out.write_all(piece)
        });
        if sum.map_err(say)? == (file.bytes, file.sum) {
            return out.sync_all().and_then(|()| File::open(parent)?.sync_all()).map_err(say);
        }
        fs::remove_file(&path).map_err(say)?;
        self.damaged.push(file.name.clone());
        Ok(())
    }

    fn finish(self) -> Result<RestoreReport, BackupError> {
        let state = |name: &&String| name.starts_with(crate::maintenance::backup::STATE_DIR);
        if let Some(name) = self.damaged.iter().find(state) {
            return Err(format!(
                "{name} is missing or damaged in the backup, which cannot be restored without it; {} holds a part only and is not opened",
                self.dir.display()
            ));
        }
        let mut dirs = vec![self.dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            let say = |error: io::Error| format!("syncing {}: {error}", dir.display());
            File::open(&dir).and_then(|dir| dir.sync_all()).map_err(say)?;
            let below = fs::read_dir(&dir).map_err(say)?.flatten().map(|entry| entry.path());
            dirs.extend(below.filter(|path| path.is_dir()));
        }
        let manifest = self.manifest.clone();
        let damaged = manifest.damaged.iter().cloned().chain(self.damaged).collect();
        Ok(RestoreReport { manifest, damaged })
    }
}
