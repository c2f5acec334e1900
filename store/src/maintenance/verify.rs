//! Reads everything that a store holds and reports what is not as it was written. Changes nothing, and needs no lock: a server may be running.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::StoreError;
use crate::block::find::SensorRows;
use crate::block::locate;
use crate::block::read::{Block, OpenBlock};
use crate::block::record::BlockRecord;
use crate::block::rows::RowReader;
use crate::catalogue::{CatalogueContents, read_copy};
use crate::disk::{Disk, RealDisk, checksum, files_below, read_file};
use crate::segment::{SEGMENT_VERSION, proof_in, recover, segment_number};
use crate::time::floor;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    Catalogue,
    Journal,
    /// A block of readings.
    Block,
    Tier,
    /// A file that the catalogue does not know.
    Unknown,
}

/// The report on one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileReport {
    pub path: PathBuf,
    pub kind: FileKind,
    /// Its size as the catalogue or the file system says.
    pub bytes: u64,
    /// Readings, windows or records in it.
    pub rows: u64,
    /// What is damaged; empty if nothing is.
    pub problems: Vec<String>,
    /// Why it was not read, or other remarks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Every file, in the order in which they were read.
    pub files: Vec<FileReport>,
    /// The losses that nobody has acknowledged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<crate::LossRecord>,
}

impl VerifyReport {
    /// The files that are damaged.
    pub fn damaged(&self) -> impl Iterator<Item = &FileReport> {
        self.files.iter().filter(|file| !file.problems.is_empty())
    }

    /// Whether nothing is damaged or lost.
    pub fn is_whole(&self) -> bool {
        self.damaged().next().is_none() && self.lost.is_empty()
    }
}

/// The content of a store, as its catalogue says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoredFiles {
    pub sensors: u64,
    /// Blocks: integers, floats, and tiers by the length of their windows.
    pub groups: BTreeMap<String, StoredFileGroup>,
    /// Bytes of journal segments.
    pub journal_bytes: u64,
}

/// One kind of files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoredFileGroup {
    pub files: u64,
    pub bytes: u64,
    /// Readings or windows in them.
    pub rows: u64,
    /// The first and the last time, ns since the Unix epoch.
    pub times: Option<(i64, i64)>,
}

/// Called with the bytes done and the bytes in total.
pub type ProgressCallback<'a> = &'a mut dyn FnMut(u64, u64);

/// Verifies the store in `dir`. An error means that it could not begin; damage is in the report.
pub fn verify(dir: &Path, progress: ProgressCallback) -> Result<VerifyReport, StoreError> {
    verify_on(&(Arc::new(RealDisk) as Arc<dyn Disk>), dir, progress)
}

/// The same on another file system than the real one.
pub fn verify_on(disk: &Arc<dyn Disk>, dir: &Path, progress: ProgressCallback) -> Result<VerifyReport, StoreError> {
    run(disk, dir, &mut |done, total| {
        progress(done, total);
        true
    })
}

/// The same, until `watch` returns false.
pub fn verify_watched(dir: &Path, watch: crate::CancellableProgress) -> Result<VerifyReport, StoreError> {
    run(&(Arc::new(RealDisk) as Arc<dyn Disk>), dir, watch)
}

fn run(disk: &Arc<dyn Disk>, dir: &Path, watch: crate::CancellableProgress) -> Result<VerifyReport, StoreError> {
    let catalogue = dir.join("catalogue.redb");
    let mut report = VerifyReport { lost: crate::losses::on_record(disk, dir)?, ..VerifyReport::default() };
    let size = |path: &Path| disk.open(path, false).and_then(|file| file.size());
    let mut entry = FileReport {
        bytes: size(&catalogue).map_err(|error| StoreError::io("opening", &catalogue, error))?,
        path: catalogue.clone(),
        kind: FileKind::Catalogue,
        rows: 0,
        problems: Vec::new(),
        note: None,
    };
    let contents = match read_copy(disk.as_ref(), &catalogue) {
        Ok(contents) => contents,
        Err(StoreError::Damaged { reason, .. }) => {
            entry.problems.push(reason);
            report.files.push(entry);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    entry.rows = contents.blocks.len() as u64;
    report.files.push(entry);
    let total = contents.blocks.iter().map(|record| record.bytes).sum();
    let mut done = 0;
    let mut verifier = Verifier { disk, dir, catalogue: &catalogue, report: &mut report };
    for record in &contents.blocks {
        verifier.block(record);
        done += record.bytes;
        if !watch(done, total) {
            return Ok(report);
        }
    }
    verifier.journal(&contents);
    verifier.unknown(&contents);
    Ok(report)
}

/// The content of the store in `dir`. Needs no lock.
pub fn holdings(dir: &Path) -> Result<StoredFiles, StoreError> {
    let contents = read_copy(&RealDisk, &dir.join("catalogue.redb"))?;
    let mut holdings = StoredFiles { sensors: contents.sensors.len() as u64, ..StoredFiles::default() };
    for record in &contents.blocks {
        let name = match (record.tier, record.value_type) {
            (Some(tier), _) => {
                format!("tier {}", wholegrain_model::Interval::from_ns(tier.resolution_ns.cast_unsigned()))
            }
            (None, wholegrain_model::ValueType::Int) => "integers".to_owned(),
            (None, wholegrain_model::ValueType::Float) => "floats".to_owned(),
        };
        let holding = holdings.groups.entry(name).or_default();
        holding.files += 1;
        holding.bytes += record.bytes;
        holding.rows += record.rows;
        let (first, last) = holding.times.unwrap_or((i64::MAX, i64::MIN));
        holding.times = Some((first.min(record.first_time), last.max(record.last_time)));
    }
    for entry in RealDisk.list(&dir.join("journal")).unwrap_or_default() {
        holdings.journal_bytes += RealDisk.open(&entry.path, false).and_then(|file| file.size()).unwrap_or(0);
    }
    Ok(holdings)
}

struct Verifier<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    catalogue: &'a Path,
    report: &'a mut VerifyReport,
}

impl Verifier<'_> {
    /// Whether the catalogue still names a file: a running server may have merged it meanwhile.
    fn still_there(&self, id: u64) -> bool {
        let now = read_copy(self.disk.as_ref(), self.catalogue);
        now.map_or(true, |contents| contents.blocks.iter().any(|record| record.id == id))
    }

    fn block(&mut self, record: &BlockRecord) {
        let blocks = self.dir.join("blocks");
        let block = Block::new(record.clone(), &blocks, self.disk.clone(), Arc::default());
        let mut problems = check_file(self.disk, &block).err().into_iter().collect::<Vec<_>>();
        let mut note = None;
        if !problems.is_empty() && !self.still_there(record.id) {
            problems.clear();
            note = Some("replaced by the running server meanwhile; not read".to_owned());
        }
        let kind = if record.tier.is_some() { FileKind::Tier } else { FileKind::Block };
        let (bytes, rows) = (record.bytes, record.rows);
        self.report.files.push(FileReport { path: block.path.clone(), kind, bytes, rows, problems, note });
    }
}

/// Checks one file: its checksums, and that its rows are what its index says, in order. The error says what is damaged.
pub(crate) fn check_file(disk: &Arc<dyn Disk>, block: &Block) -> Result<(), String> {
    let text = |error: StoreError| match error {
        StoreError::Damaged { reason, .. } => reason,
        StoreError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => "it is missing".to_owned(),
        other => other.to_string(),
    };
    let (_, sum) =
        disk.open(&block.path, false).and_then(|file| checksum(file.as_ref())).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "it is missing".to_owned(),
            _ => format!("it cannot be read: {error}"),
        })?;
    let opened = Arc::new(OpenBlock::open(block).map_err(text)?);
    match block.record.tier {
        Some(tier) => check_windows(&opened, tier.resolution_ns).map_err(text)?,
        None => check_rows(&opened).map_err(text)?,
    }?;
    let entries = opened.entries();
    if !entries.is_sorted_by(|a, b| a.path < b.path) {
        return Err("its sensors are not in order".to_owned());
    }
    let first = entries.iter().map(|entry| entry.first_time).min();
    let last = entries.iter().map(|entry| entry.last_time).max();
    if !entries.is_empty() && (first, last) != (Some(block.record.first_time), Some(block.record.last_time)) {
        return Err("its times are not those that the catalogue has".to_owned());
    }
    match block.record.sums {
        Some(sums) if sums.file != sum => Err("it does not have its checksum".to_owned()),
        _ => Ok(()),
    }
}

impl Verifier<'_> {
    fn journal(&mut self, contents: &CatalogueContents) {
        let listed = self.disk.list(&self.dir.join("journal")).unwrap_or_default();
        let mut segments: Vec<(u64, PathBuf)> =
            listed.into_iter().filter_map(|entry| Some((segment_number(&entry.path)?, entry.path))).collect();
        segments.sort();
        let newest = segments.last().map(|(number, _)| *number);
        // Read before the segments: what is on stable storage only grows.
        let synced = crate::segment::synced::read(self.disk.as_ref(), &self.dir.join("journal"));
        let head = |(number, path): &(u64, PathBuf)| {
            let bytes = read_file(self.disk.as_ref(), path).ok()?;
            proof_in(&bytes, *number)
        };
        let vouched: BTreeMap<u64, u64> = synced
            .into_iter()
            .chain(segments.iter().filter_map(head))
            .map(|proof| (proof.number, proof.bytes))
            .collect();
        for (number, path) in segments {
            let mut file =
                FileReport { path, kind: FileKind::Journal, bytes: 0, rows: 0, problems: Vec::new(), note: None };
            if number <= contents.sealed_through {
                file.note = Some("in blocks already; the next start removes it".to_owned());
            }
            match read_file(self.disk.as_ref(), &file.path) {
                Ok(bytes) => segment(&bytes, vouched.get(&number).copied(), Some(number) == newest, &mut file),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    file.note = Some("sealed by the running server meanwhile; not read".to_owned());
                }
                Err(error) => file.problems.push(format!("it cannot be read: {error}")),
            }
            self.report.files.push(file);
        }
    }

    /// Files that neither the catalogue nor an interrupted change knows.
    fn unknown(&mut self, contents: &CatalogueContents) {
        let mut found = files_below(self.disk.as_ref(), &self.dir.join("blocks"));
        found.extend(files_below(self.disk.as_ref(), &self.dir.join("tiers")));
        // Read after the files were listed: what a running server has added since is in it.
        let now = read_copy(self.disk.as_ref(), self.catalogue).ok();
        let blocks = self.dir.join("blocks");
        for path in found {
            let knows = |contents: &CatalogueContents| {
                let pending_files = contents.pending_files.iter().map(|(_, path)| path);
                contents
                    .blocks
                    .iter()
                    .map(|record| &record.path)
                    .chain(pending_files)
                    .any(|known| locate(&blocks, known) == path)
            };
            if !knows(contents) && !now.as_ref().is_some_and(knows) {
                let bytes = self.disk.open(&path, false).and_then(|file| file.size()).unwrap_or(0);
                let note = Some("not a file of this store; nothing reads it".to_owned());
                self.report.files.push(FileReport {
                    path,
                    kind: FileKind::Unknown,
                    bytes,
                    rows: 0,
                    problems: Vec::new(),
                    note,
                });
            }
        }
    }
}

/// Checks the bytes of a segment.
fn segment(bytes: &[u8], must: Option<u64>, newest: bool, file: &mut FileReport) {
    let found = recover(bytes);
    file.bytes = bytes.len() as u64;
    file.rows = found.payloads.len() as u64;
    if let Some(version) = found.newer {
        file.problems.push(format!("it has format version {version}, this release reads up to {SEGMENT_VERSION}"));
        return;
    }
    for damaged in &found.damaged {
        file.problems.push(format!("bytes {} to {} are no record", damaged.start, damaged.end));
    }
    let must = must.and_then(|must| usize::try_from(must).ok()).unwrap_or(0);
    if found.end < must {
        let end = found.end;
        file.problems
            .push(format!("bytes {end} to {must} were on stable storage and are no records now: readings are lost"));
    } else if found.end < bytes.len() {
        let text = format!(
            "bytes {} to {} are no record yet: an append under way, or one that a crash cut short",
            found.end,
            bytes.len()
        );
        if newest {
            file.note = Some(text);
        } else {
            file.problems.push(text);
        }
    }
}

/// Checks the readings of a block: times rise strictly within each sensor and agree with the index.
fn check_rows(opened: &Arc<OpenBlock>) -> Result<Result<(), String>, StoreError> {
    let mut reader = RowReader::new(opened.clone(), None);
    let mut of_first = RowReader::new(opened.clone(), None);
    for (at, entry) in opened.entries().iter().enumerate() {
        let SensorRows { start, times, rows, .. } = opened.found(at);
        let (mut row, end, mut before, mut first) = (start, start + rows, None, None);
        while row < end {
            let chunk = reader.read(row, end - row)?;
            if times != start && of_first.times(times + row - start, chunk.times.len() as u64)? != chunk.times {
                return Ok(Err(format!("times of {} are not those that its footer says it shares", entry.path)));
            }
            row += chunk.times.len() as u64;
            first = first.or(chunk.times.first().copied());
            for time in chunk.times {
                if before >= Some(time) {
                    return Ok(Err(format!("times of {} do not rise", entry.path)));
                }
                before = Some(time);
            }
        }
        if (first, before) != (Some(entry.first_time), Some(entry.last_time)) {
            return Ok(Err(format!("times of {} are not those of its index", entry.path)));
        }
    }
    opened.check_sensors()
}

/// Checks the windows of a tier: their starts rise (one window may have several rows) and are multiples of the resolution.
fn check_windows(opened: &Arc<OpenBlock>, resolution_ns: i64) -> Result<Result<(), String>, StoreError> {
    let mut reader = RowReader::new(opened.clone(), None);
    let mut row = 0;
    for entry in opened.entries() {
        let (end, mut before) = (row + entry.rows, floor(entry.first_time, resolution_ns));
        while row < end {
            let windows = reader.read_lines(row, end - row)?;
            row += windows.len() as u64;
            for at in 0..windows.len() {
                let time = windows.get(at).time;
                if time < before || time > entry.last_time || floor(time, resolution_ns) != time {
                    return Ok(Err(format!("windows of {} are not in order", entry.path)));
                }
                before = time;
            }
        }
    }
    opened.check_sensors()
}
