//! The files that count: blocks and tiers in the catalogue, and what readers see of them and of the head. A commit of the catalogue makes finished
//! blocks visible and replaced ones invisible in one step.

pub(crate) mod view;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::StoreError;
use crate::block::cache::BlockCache;
use crate::block::draft::FinishedBlock;
use crate::block::locate;
use crate::block::read::{Block, RemovedBlocks};
use crate::block::record::BlockRecord;
use crate::catalogue::imports::Imports;
use crate::catalogue::{Catalogue, CatalogueChange};
use crate::computed::ResultFiles;
use crate::disk::Disk;
use crate::files::view::StoreView;
use crate::paths::StorePaths;
use crate::ranges::StoredBatches;
use crate::segment::files::SegmentFiles;
use crate::sensors::SensorIndex;
use crate::sensors::gate::ExpiryGate;

/// What the catalogue's transactions change together.
#[derive(Default)]
pub(crate) struct CommitState {
    /// The batches in blocks.
    pub sealed: StoredBatches,
    /// The imports and their parts.
    pub imports: Imports,
    /// Blocks of transactions that failed, so that only the catalogue can tell whether they count.
    attempted: Vec<BlockRecord>,
}

/// The components that a commit uses and informs.
pub(crate) struct FileSetParts {
    pub disk: Arc<dyn Disk>,
    pub paths: Arc<StorePaths>,
    pub catalogue: Arc<Catalogue>,
    pub cache: Arc<BlockCache>,
    pub sensors: Arc<SensorIndex>,
    pub gate: Arc<ExpiryGate>,
    pub results: Arc<ResultFiles>,
    pub segments: Arc<SegmentFiles>,
    pub removed: Arc<RemovedBlocks>,
}

/// The blocks, tiers and segments that count.
pub(crate) struct FileSet {
    parts: FileSetParts,
    view: RwLock<Arc<StoreView>>,
    commit_state: Mutex<CommitState>,
}

type RemovedFiles = Vec<(u64, PathBuf)>;

impl FileSet {
    pub(crate) fn new(parts: FileSetParts, view: StoreView, sealed: StoredBatches, imports: Imports) -> Self {
        let commit_state = CommitState { sealed, imports, attempted: Vec::new() };
        Self { parts, view: RwLock::new(Arc::new(view)), commit_state: Mutex::new(commit_state) }
    }

    pub(crate) fn view(&self) -> Arc<StoreView> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change_view(&self, change: impl FnOnce(&mut StoreView)) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = StoreView::clone(&view);
        change(&mut next);
        *view = Arc::new(next);
    }

    /// The number of blocks, and the bytes of blocks and tiers.
    pub fn size(&self) -> (u64, u64) {
        let view = self.view();
        let bytes = view.blocks.iter().chain(&view.tiers).map(|file| file.record.bytes).sum();
        (view.blocks.len() as u64, bytes)
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.parts.cache
    }

    /// Waits for the commit under way. No other commits while the guard is held.
    pub fn commit_state(&self) -> MutexGuard<'_, CommitState> {
        self.commit_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block(&self, record: BlockRecord) -> Block {
        Block::new(record, &self.parts.paths.blocks, self.parts.disk.clone(), self.parts.removed.clone())
    }

    /// Gives finished blocks their names and commits the change; then readers see it. `false`, and nothing changed, if one of `replaced` is not in
    /// the view any more.
    pub fn publish(
        &self,
        finished: &[FinishedBlock],
        replaced: &[Arc<Block>],
        change: CatalogueChange,
    ) -> Result<bool, StoreError> {
        let mut commit_state = self.commit_state();
        let view = self.view();
        let all = view.blocks.iter().chain(&view.tiers).chain(&view.absent);
        let present = |block: &Arc<Block>| all.clone().any(|other| Arc::ptr_eq(block, other));
        let known = |id: &u64| view.blocks.iter().chain(&view.tiers).any(|other| other.record.id == *id);
        let relinked: Vec<u64> = change.relink.iter().map(|record| record.id).collect();
        if !replaced.iter().all(present) || !change.requires.iter().chain(&relinked).all(known) {
            return Ok(false);
        }
        if let Err(error) = self.name_files(finished) {
            for block in finished {
                // Dropping a block marked for removal removes its file; then its catalogue entry can go.
                self.block(block.record.clone()).remove_when_unused();
            }
            return Err(error);
        }
        let add: Vec<BlockRecord> = finished.iter().map(|block| block.record.clone()).collect();
        let remove: Vec<BlockRecord> = replaced.iter().map(|block| block.record.clone()).collect();
        let (gone, kept) = self.sync_removed();
        self.parts.removed.lock().unwrap_or_else(PoisonError::into_inner).extend(kept);
        let ids = gone.iter().map(|(id, _)| *id).collect();
        let relink = change.relink.clone();
        let result = self.parts.catalogue.commit(&CatalogueChange { add: &add, remove: &remove, gone: ids, ..change });
        if let Err(error) = result {
            // The transaction may still have committed: `reconcile` reads the database again.
            commit_state.attempted.extend(add);
            self.parts.removed.lock().unwrap_or_else(PoisonError::into_inner).extend(gone);
            return Err(error);
        }
        self.change_view(|view| {
            let stays = |block: &Arc<Block>| !replaced.iter().any(|other| Arc::ptr_eq(block, other));
            view.blocks.retain(stays);
            view.tiers.retain(stays);
            view.absent.retain(stays);
            for record in add {
                let list = if record.tier.is_some() { &mut view.tiers } else { &mut view.blocks };
                list.push(Arc::new(self.block(record)));
            }
            for tier in &mut view.tiers {
                if let Some(record) = relink.iter().find(|record| record.id == tier.record.id) {
                    *tier = Arc::new(tier.with_record(record.clone()));
                }
            }
            if let Some(number) = change.sealed_through {
                view.closed.retain(|segment| segment.number > number);
            }
        });
        for block in replaced {
            self.parts.cache.remove(block.record.id);
            block.remove_when_unused();
        }
        Ok(true)
    }

    /// Syncs the directories of removed blocks. Returns those whose removal is on stable storage now, and the others.
    fn sync_removed(&self) -> (RemovedFiles, RemovedFiles) {
        let removed = std::mem::take(&mut *self.parts.removed.lock().unwrap_or_else(PoisonError::into_inner));
        let dirs: BTreeSet<PathBuf> = removed.iter().map(|(_, dir)| dir.clone()).collect();
        let synced: BTreeSet<PathBuf> = dirs.into_iter().filter(|dir| self.parts.disk.sync_dir(dir).is_ok()).collect();
        removed.into_iter().partition(|(_, dir)| synced.contains(dir))
    }

    fn name_files(&self, finished: &[FinishedBlock]) -> Result<(), StoreError> {
        if finished.is_empty() {
            return Ok(());
        }
        let files: Vec<(u64, String)> =
            finished.iter().map(|block| (block.record.id, block.record.path.clone())).collect();
        self.parts.catalogue.intend(&files)?;
        let mut dirs = BTreeSet::new();
        for block in finished {
            let path = locate(&self.parts.paths.blocks, &block.record.path);
            let dir = path.parent().unwrap_or(&self.parts.paths.blocks).to_owned();
            self.parts.disk.create_dirs(&dir).map_err(|error| StoreError::io("creating", &dir, error))?;
            self.parts
                .disk
                .rename(&block.temporary.path, &path)
                .map_err(|error| StoreError::io("naming", &path, error))?;
            // The directories above too: a process that was killed may have created them without syncing their names.
            let above = dir.ancestors().take_while(|above| above.starts_with(&self.parts.paths.dir));
            dirs.extend(above.map(Path::to_owned));
        }
        for dir in dirs {
            self.parts.disk.sync_dir(&dir).map_err(|error| StoreError::io("syncing", &dir, error))?;
        }
        Ok(())
    }

    /// Locks the commit state. After a failed transaction it first opens the catalogue again and updates the view from it. Every operation that
    /// changes the catalogue holds this lock until memory is updated: otherwise one thread could read the catalogue in the middle of another's
    /// change and make an older state visible.
    pub fn reconcile(&self) -> Result<MutexGuard<'_, CommitState>, StoreError> {
        let mut commit_state = self.commit_state();
        if self.parts.catalogue.is_suspect() {
            self.reload(&mut commit_state)?;
        }
        Ok(commit_state)
    }

    /// Opens the catalogue again after a failed transaction and updates the view from it.
    pub fn reload(&self, commit_state: &mut CommitState) -> Result<(), StoreError> {
        let mut contents = self.parts.catalogue.reopen()?;
        {
            let mut sensors = self.parts.sensors.write();
            contents.sensors.keep_groups(&sensors);
            *sensors = contents.sensors;
            // Before the lock on the sensors is released.
            self.parts.gate.resolve();
        }
        let mut dropped = Vec::new();
        let mut sealed = Vec::new();
        self.change_view(|view| {
            let known = |id: u64| contents.blocks.iter().any(|record| record.id == id);
            let mut keep = |block: &Arc<Block>| {
                let keep = known(block.record.id);
                if !keep {
                    dropped.push(block.clone());
                }
                keep
            };
            view.blocks.retain(&mut keep);
            view.tiers.retain(&mut keep);
            for block in view.blocks.iter_mut().chain(&mut view.tiers).chain(&mut view.absent) {
                // A tier names the number of its block, which changes when the block is rewritten; any file may have new tombstones.
                let record = contents.blocks.iter().find(|record| record.id == block.record.id);
                if let Some(record) = record.filter(|record| **record != block.record) {
                    *block = Arc::new(block.with_record(record.clone()));
                }
            }
            for record in &contents.blocks {
                // Blocks that were damaged when the store was opened are in the catalogue and not in the view.
                let ours = commit_state.attempted.iter().any(|other| other.id == record.id);
                let list = if record.tier.is_some() { &mut view.tiers } else { &mut view.blocks };
                if ours && !list.iter().any(|block| block.record.id == record.id) {
                    list.push(Arc::new(self.block(record.clone())));
                }
            }
            view.closed.retain(|segment| {
                let keep = segment.number > contents.sealed_through;
                if !keep {
                    sealed.push(segment.clone());
                }
                keep
            });
        });
        for block in dropped {
            self.parts.cache.remove(block.record.id);
            block.remove_when_unused();
        }
        for record in std::mem::take(&mut commit_state.attempted) {
            if !contents.blocks.iter().any(|known| known.id == record.id) {
                self.block(record).remove_when_unused();
            }
        }
        commit_state.sealed = contents.held;
        commit_state.imports = contents.imports;
        for segment in sealed {
            self.parts.segments.remove(segment.number, &segment.size());
        }
        self.parts.results.changed_after_commit(i64::MIN, i64::MAX, None);
        Ok(())
    }

    /// Replaces the records of these files in the view. The catalogue has them already.
    pub fn relink(&self, records: &[BlockRecord]) {
        self.change_view(|view| {
            for block in view.blocks.iter_mut().chain(&mut view.tiers).chain(&mut view.absent) {
                if let Some(record) = records.iter().find(|record| record.id == block.record.id) {
                    *block = Arc::new(block.with_record(record.clone()));
                }
            }
        });
    }
}
