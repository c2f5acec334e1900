//! Repair: the readable pages of a damaged file (those with a correct checksum) become a new file; the damaged file is moved to `damaged/` and reported.
//!
//! - In: an open store, or a directory. Out: blocks without damage; tiers made again; a catalogue built from the blocks if there is no readable one.
//! - Never: a reading that has not its checksum; a damaged file that is gone before what could be read of it is stored.

mod rebuild;
mod salvage;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use serde::Serialize;

use crate::block::read::Block;
use crate::catalogue::CatalogueChange;
use crate::disk::{Disk, RealDisk};
use crate::maintenance::CancellableProgress;
use crate::publish::{publish, reconcile};
use crate::store::Shared;
use crate::verify::{FileKind, check_file};
use crate::{Store, StoreConfig, StoreError};
pub use rebuild::RebuildReport;

/// What became of one damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairedFile {
    pub path: PathBuf,
    pub kind: FileKind,
    /// What was wrong with it.
    pub problem: String,
    /// Readings or windows in it, as the catalogue says.
    pub rows: u64,
    /// How many of them are kept.
    pub kept: u64,
    /// Where the file was put; `None` where it is missing, or nothing was changed.
    pub damaged_copy: Option<PathBuf>,
    /// Why nothing of it is lost though it is not kept, or what is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a repair did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// How the catalogue was rebuilt, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<RebuildReport>,
    pub files: Vec<RepairedFile>,
}

impl RepairReport {
    /// Readings and windows that are lost.
    pub fn lost(&self) -> u64 {
        self.files.iter().map(|file| file.rows.saturating_sub(file.kept)).sum()
    }
}

/// Repairs the store in `dir`, whose server must not run; with `dry_run` only says what would be done.
pub fn repair(dir: &Path, dry_run: bool, watch: CancellableProgress) -> Result<RepairReport, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let config = StoreConfig { background: false, ..StoreConfig::new(dir) };
    let catalogue = rebuild::if_damaged(&disk, dir, dry_run)?;
    if dry_run && catalogue.is_some() {
        return Ok(RepairReport { catalogue, files: Vec::new() });
    }
    let (store, _) = Store::open_on(config, disk)?;
    let report = store.repair(dry_run, watch)?;
    store.close()?;
    Ok(RepairReport { catalogue, ..report })
}

impl Store {
    /// Reads every file and repairs those that are damaged; with `dry_run` only says what would be done.
    pub fn repair(&self, dry_run: bool, watch: CancellableProgress) -> Result<RepairReport, StoreError> {
        let shared = self.shared();
        let view = shared.view();
        let files: Vec<Arc<Block>> = view.blocks.iter().chain(&view.tiers).chain(&view.absent).cloned().collect();
        let total = files.iter().map(|file| file.record.bytes).sum();
        let (mut report, mut done) = (RepairReport::default(), 0);
        for file in files {
            if !watch(done, total) {
                break;
            }
            done += file.record.bytes;
            if let Err(problem) = check_file(&shared.disk, &file) {
                report.files.extend(repair_file(shared, &file, problem, dry_run)?);
            }
        }
        watch(done, total);
        shared.wake_sealer();
        Ok(report)
    }
}

fn repair_file(
    shared: &Shared,
    file: &Arc<Block>,
    problem: String,
    dry_run: bool,
) -> Result<Option<RepairedFile>, StoreError> {
    let _no_merge = shared.merging.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    let view = shared.view();
    let mut known = view.blocks.iter().chain(&view.tiers).chain(&view.absent);
    // It may have been merged meanwhile, or be of another record now.
    let Some(file) = known.find(|other| other.record.id == file.record.id).cloned() else { return Ok(None) };
    let record = &file.record;
    let kind = if record.tier.is_some() { FileKind::Tier } else { FileKind::Block };
    let mut repaired = RepairedFile {
        path: file.path.clone(),
        kind,
        problem,
        rows: record.rows,
        kept: 0,
        damaged_copy: None,
        note: None,
    };
    if let Some(of) = record.tier
        && view.blocks.iter().any(|block| block.record.id == of.block && !block.record.trimmed && !block.is_damaged())
    {
        repaired.kept = record.rows;
        repaired.note = Some("made again from its readings".to_owned());
        if !dry_run {
            repaired.damaged_copy = move_to_damaged(shared, &file)?;
            publish(shared, &[], &[file], CatalogueChange::default())?;
        }
        return Ok(Some(repaired));
    }
    let finished = salvage::salvage(shared, &file)?;
    repaired.kept = finished.as_ref().map_or(0, |finished| finished.record.rows);
    if dry_run {
        finished.iter().for_each(|finished| finished.discard(shared));
        return Ok(Some(repaired));
    }
    repaired.damaged_copy = move_to_damaged(shared, &file)?;
    let finished: Vec<_> = finished.into_iter().collect();
    let mut relink = Vec::new();
    let mut replaced = vec![file.clone()];
    if let (None, Some(new)) = (record.tier, finished.first()) {
        // Tiers with windows of readings that the block no longer has are kept; others are made again.
        for tier in view.tiers.iter().filter(|tier| tier.record.tier.is_some_and(|of| of.block == record.id)) {
            let mut tier_record = tier.record.clone();
            if let Some(of) = &mut tier_record.tier {
                of.block = new.record.id;
            }
            if repaired.kept == record.rows || record.trimmed {
                relink.push(tier_record)
            } else {
                replaced.push(tier.clone())
            }
        }
    }
    publish(shared, &finished, &replaced, CatalogueChange { relink, ..CatalogueChange::default() })?;
    let (kept, rows) = (repaired.kept, repaired.rows);
    tracing::warn!(file = %repaired.path.display(), kept, rows, "a damaged file was repaired");
    Ok(Some(repaired))
}

/// Copies a damaged file to where a person can look at it; the original goes with the transaction that replaces it.
fn move_to_damaged(shared: &Shared, file: &Block) -> Result<Option<PathBuf>, StoreError> {
    if !shared.disk.exists(&file.path) {
        return Ok(None);
    }
    let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let to = shared.paths.damaged.join(name);
    crate::database::copy_to(shared.disk.as_ref(), &file.path, &to)?;
    let dir = &shared.paths.damaged;
    shared.disk.sync_dir(dir).map_err(|error| StoreError::io("syncing", dir, error))?;
    Ok(Some(to))
}
