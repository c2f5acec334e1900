//! Repair: the readable pages of a damaged file (those with a correct checksum) become a new file; the damaged file is moved to `damaged/` and
//! reported.
//!
//! - In: an open store, or a directory. Out: blocks without damage; tiers made again; a catalogue built from the blocks if it is unreadable.
//! - Never: a reading with a wrong checksum; a damaged file removed before its readable content is stored.

pub(crate) mod rebuild;
mod salvage;

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use crate::block::draft::DraftDirectory;
use crate::block::read::Block;
use crate::catalogue::CatalogueChange;
use crate::compaction::Compactor;
use crate::disk::Disk;
use crate::downsample::write::Downsampler;
use crate::files::FileSet;
use crate::maintenance::verify::{FileKind, check_file};
use crate::paths::StorePaths;
use crate::progress::CancellableProgress;
use crate::work::WorkSignal;
use crate::{StoreConfig, StoreError};

pub use rebuild::RebuildReport;

/// The outcome for one damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairedFile {
    pub path: PathBuf,
    pub kind: FileKind,
    /// What was wrong with it.
    pub problem: String,
    /// Readings or windows in it, according to the catalogue.
    pub rows: u64,
    /// How many of these could be saved.
    pub kept: u64,
    /// Where the file was copied; `None` if it is missing, or nothing was changed.
    pub damaged_copy: Option<PathBuf>,
    /// Why nothing is lost though nothing was saved, or what the administrator should do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a repair did or would do.
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

/// Repairs damaged files of an open store.
pub(crate) struct Repairer {
    pub disk: Arc<dyn Disk>,
    pub paths: Arc<StorePaths>,
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub drafts: Arc<DraftDirectory>,
    pub downsampler: Arc<Downsampler>,
    pub compactor: Arc<Compactor>,
    pub work: Arc<WorkSignal>,
}

impl Repairer {
    pub(crate) fn repair(&self, dry_run: bool, watch: CancellableProgress) -> Result<RepairReport, StoreError> {
        let view = self.files.view();
        let files: Vec<Arc<Block>> = view.blocks.iter().chain(&view.tiers).chain(&view.absent).cloned().collect();
        let total = files.iter().map(|file| file.record.bytes).sum();
        let (mut report, mut done) = (RepairReport::default(), 0);
        for file in files {
            if !watch(done, total) {
                break;
            }
            done += file.record.bytes;
            if let Err(problem) = check_file(&self.disk, &file) {
                report.files.extend(self.repair_file(&file, problem, dry_run)?);
            }
        }
        watch(done, total);
        self.work.wake();
        Ok(report)
    }

    fn repair_file(
        &self,
        file: &Arc<Block>,
        problem: String,
        dry_run: bool,
    ) -> Result<Option<RepairedFile>, StoreError> {
        let _no_merge = self.compactor.lock();
        drop(self.files.reconcile()?);
        let view = self.files.view();
        let mut known = view.blocks.iter().chain(&view.tiers).chain(&view.absent);
        // It may have been merged meanwhile, or have another record.
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
            && view
                .blocks
                .iter()
                .any(|block| block.record.id == of.block && !block.record.trimmed && !block.is_damaged())
        {
            repaired.kept = record.rows;
            repaired.note = Some("made again from its readings".to_owned());
            if !dry_run {
                repaired.damaged_copy = self.move_to_damaged(&file)?;
                self.files.publish(&[], &[file], CatalogueChange::default())?;
            }
            return Ok(Some(repaired));
        }
        let finished = self.salvage(&file)?;
        repaired.kept = finished.as_ref().map_or(0, |finished| finished.record.rows);
        if dry_run {
            return Ok(Some(repaired));
        }
        repaired.damaged_copy = self.move_to_damaged(&file)?;
        let finished: Vec<_> = finished.into_iter().collect();
        let mut relink = Vec::new();
        let mut replaced = vec![file.clone()];
        if let (None, Some(new)) = (record.tier, finished.first()) {
            // Tiers with windows whose readings are gone from the block are kept; others are made again.
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
        self.files.publish(&finished, &replaced, CatalogueChange { relink, ..CatalogueChange::default() })?;
        let (kept, rows) = (repaired.kept, repaired.rows);
        tracing::warn!(file = %repaired.path.display(), kept, rows, "a damaged file was repaired");
        Ok(Some(repaired))
    }

    /// Copies a damaged file to `damaged/`; the original goes with the transaction that replaces it.
    fn move_to_damaged(&self, file: &Block) -> Result<Option<PathBuf>, StoreError> {
        if !self.disk.exists(&file.path) {
            return Ok(None);
        }
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let to = self.paths.damaged.join(name);
        crate::database::copy_to(self.disk.as_ref(), &file.path, &to)?;
        let dir = &self.paths.damaged;
        self.disk.sync_dir(dir).map_err(|error| StoreError::io("syncing", dir, error))?;
        Ok(Some(to))
    }
}
