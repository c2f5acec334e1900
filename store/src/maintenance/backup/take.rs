//! Receiving a backup: into a directory, where what is there already need not come again, or into a tar file.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::disk::{make_dirs, private};
use crate::maintenance::backup::{BackupError, BackupFile, BackupManifest, MANIFEST, MANIFEST_BYTES_MAX, copy, tar};
use crate::path_owners::{check_above, check_directory, check_directory_owner};

/// Content and damage of a received backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupReport {
    pub manifest: BackupManifest,
    /// Files that came; the others were there.
    pub files: u64,
    pub bytes: u64,
    /// Files that came with another content than their checksum says: damaged at the server. They are left out.
    pub damaged: Vec<String>,
}

/// How far receiving has come: bytes of the files received and those of all files that are not there yet.
pub type BackupProgress<'a> = &'a mut dyn FnMut(u64, u64);

fn say<E: std::fmt::Display>(doing: &str, path: &Path) -> impl Fn(E) -> BackupError {
    move |error| format!("{doing} {}: {error}", path.display())
}

/// The files of the backup that is in a directory, as far as they are whole.
pub fn held_in(dir: &Path) -> Result<Vec<BackupFile>, BackupError> {
    check_directory(dir)?;
    let path = dir.join(MANIFEST);
    if !path.exists() {
        // One that broke off has left whole files too, but nothing says what they should be.
        let filled = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if filled && !dir.join("blocks").exists() {
            return Err(format!("{} is not empty and holds no backup; name another directory", dir.display()));
        }
        return Ok(Vec::new());
    }
    let manifest = BackupManifest::read(&fs::read(&path).map_err(say("reading", &path))?)?;
    let whole = |file: &BackupFile| {
        let sum = File::open(dir.join(&file.name)).and_then(|mut file| copy(&mut file, |_| Ok(())));
        sum.is_ok_and(|sum| sum == (file.bytes, file.sum))
    };
    Ok(manifest.files.into_iter().filter(whole).collect())
}

/// A new file, whatever had its name: nothing is written through a link.
fn fresh(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    private().create_new(true).open(path)
}

/// Makes a directory of the backup, or takes one that nobody else can put links in.
fn own_dir(dir: &Path) -> Result<(), BackupError> {
    check_directory_owner(dir)?;
    make_dirs(dir).map_err(say("creating", dir))
}

/// The manifest at the beginning of a stream.
pub(super) fn manifest_of<R: Read>(reader: &mut tar::TarReader<R>) -> Result<BackupManifest, BackupError> {
    let broken = |error: io::Error| format!("the backup cannot be read: {error}");
    match reader.next().map_err(broken)? {
        Some((name, bytes)) if name == MANIFEST && bytes <= MANIFEST_BYTES_MAX => {
            let mut json = Vec::new();
            reader.read_to_end(&mut json).map_err(broken)?;
            BackupManifest::read(&json)
        }
        _ => Err(format!("it is no backup: it does not begin with {MANIFEST}")),
    }
}

/// Receives a stream into a directory. The backup that was there before is whole until this one is; then what only the former needs goes.
pub fn take_into(
    stream: impl Read,
    dir: &Path,
    held: &[BackupFile],
    progress: BackupProgress,
) -> Result<BackupReport, BackupError> {
    check_directory(dir)?;
    own_dir(dir)?;
    let mut reader = tar::TarReader::new(stream);
    let manifest = manifest_of(&mut reader)?;
    let known = manifest.by_name();
    let mut there: HashSet<&str> = HashSet::new();
    for file in held {
        // The same name may stand for something else since a store was restored.
        if let Some(wanted) = known.get(file.name.as_str())
            && **wanted == *file
        {
            there.insert(&wanted.name);
        }
    }
    let total = manifest.files.iter().filter(|file| !there.contains(file.name.as_str())).map(|file| file.bytes).sum();
    let mut taken = BackupReport { manifest: manifest.clone(), files: 0, bytes: 0, damaged: Vec::new() };
    let broken = |error: io::Error| format!("the backup broke off: {error}; the previous backup is unchanged");
    while let Some((name, _)) = reader.next().map_err(broken)? {
        let Some(wanted) = known.get(name.as_str()) else { return Err(format!("the backup brings {name:?} unasked")) };
        let path = dir.join(&name);
        let partial = PathBuf::from(format!("{}.part", path.display()));
        let parent = path.parent().unwrap_or(dir);
        let mut below = dir.to_owned();
        for level in parent.strip_prefix(dir).unwrap_or(Path::new("")) {
            below.push(level);
            own_dir(&below)?;
        }
        let mut file = fresh(&partial).map_err(say("creating", &partial))?;
        let mut done = taken.bytes;
        let sum = copy(&mut reader, |piece| {
            done += piece.len() as u64;
            progress(done, total);
            file.write_all(piece)
        });
        let sum = sum.map_err(|error| {
            let _ = fs::remove_file(&partial);
            format!("writing {}: {error}; the previous backup is unchanged", partial.display())
        })?;
        if sum != (wanted.bytes, wanted.sum) {
            fs::remove_file(&partial).map_err(say("removing", &partial))?;
            taken.damaged.push(name);
            continue;
        }
        file.sync_all().map_err(say("syncing", &partial))?;
        fs::rename(&partial, &path).map_err(say("naming", &path))?;
        sync_dir(parent)?;
        there.insert(&wanted.name);
        (taken.files, taken.bytes) = (taken.files + 1, done);
    }
    let lost: Vec<&String> =
        taken.damaged.iter().filter(|name| name.starts_with(crate::maintenance::backup::STATE_DIR)).collect();
    if let Some(name) = lost.first() {
        return Err(format!("{name} came damaged; the previous backup is unchanged"));
    }
    let mut manifest = manifest.clone();
    manifest.files.retain(|file| there.contains(file.name.as_str()));
    manifest.damaged.extend(taken.damaged.iter().cloned());
    finish(dir, &manifest)?;
    Ok(BackupReport { manifest, ..taken })
}

/// Makes a backup the one that is in the directory, and removes what it does not need.
fn finish(dir: &Path, manifest: &BackupManifest) -> Result<(), BackupError> {
    let (path, new) = (dir.join(MANIFEST), dir.join(format!("{MANIFEST}.new")));
    let json = serde_json::to_vec(manifest).map_err(|error| error.to_string())?;
    let write = || -> io::Result<()> {
        let mut file = fresh(&new)?;
        file.write_all(&json)?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    write().map_err(say("writing", &new))?;
    sync_dir(dir)?;
    let known: HashSet<PathBuf> = manifest.files.iter().map(|file| dir.join(&file.name)).collect();
    let mut dirs: Vec<PathBuf> = vec![dir.join("blocks"), dir.join("tiers")];
    let listed = fs::read_dir(dir).map_err(say("listing", dir))?.flatten();
    dirs.extend(listed.map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(crate::maintenance::backup::STATE_DIR))
    }));
    let mut emptied = dirs.clone();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            // What a link leads to is not part of the backup.
            if entry.is_dir() && !entry.is_symlink() {
                emptied.push(entry.clone());
                dirs.push(entry);
            } else if !known.contains(&entry) {
                fs::remove_file(&entry).map_err(say("removing", &entry))?;
            }
        }
    }
    // The deepest first; those that hold something stay.
    emptied.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
    Ok(())
}

fn sync_dir(dir: &Path) -> Result<(), BackupError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(say("syncing", dir))
}

/// Receives a stream into one tar file, which appears when it is whole.
pub fn take_tar(stream: impl Read, path: &Path, progress: BackupProgress) -> Result<BackupReport, BackupError> {
    check_above(path)?;
    let partial = PathBuf::from(format!("{}.part", path.display()));
    let file = fresh(&partial).map_err(say("creating", &partial))?;
    let taken = checked(Tee { stream, file: &file }, progress);
    let taken = taken.inspect_err(|_| drop(fs::remove_file(&partial)))?;
    file.sync_all().map_err(say("syncing", &partial))?;
    fs::rename(&partial, path).map_err(say("naming", path))?;
    sync_dir(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(taken)
}

/// Goes through a whole stream and checks it.
fn checked(stream: impl Read, progress: BackupProgress) -> Result<BackupReport, BackupError> {
    let mut reader = tar::TarReader::new(stream);
    let manifest = manifest_of(&mut reader)?;
    let (known, total) = (manifest.by_name(), manifest.bytes());
    let mut taken = BackupReport { manifest: manifest.clone(), files: 0, bytes: 0, damaged: Vec::new() };
    let broken = |error: io::Error| format!("the backup broke off: {error}");
    let mut missing: HashSet<&str> = known.keys().copied().collect();
    while let Some((name, _)) = reader.next().map_err(broken)? {
        let Some(wanted) = known.get(name.as_str()) else { return Err(format!("the backup brings {name:?} unasked")) };
        let sum = copy(&mut reader, |piece| {
            taken.bytes += piece.len() as u64;
            progress(taken.bytes, total);
            Ok(())
        });
        if sum.map_err(broken)? != (wanted.bytes, wanted.sum) {
            taken.damaged.push(name.clone());
        }
        missing.remove(name.as_str());
        taken.files += 1;
    }
    // The end of the archive has two blocks; what reads the first only would leave the other out of the copy.
    io::copy(&mut reader.into_inner(), &mut io::sink()).map_err(broken)?;
    match missing.into_iter().next() {
        None => Ok(taken),
        Some(name) => Err(format!("the backup ends without {name}")),
    }
}

/// Writes what is read.
struct Tee<'a, R> {
    stream: R,
    file: &'a File,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(out)?;
        let mut file = self.file;
        file.write_all(&out[..read])?;
        Ok(read)
    }
}
