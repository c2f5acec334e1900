//! Finished blocks become visible, and replaced ones invisible, in one step: the catalogue's transaction.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::StoreError;
use crate::block::locate;
use crate::block::read::Block;
use crate::block::record::{BlockKind, BlockRecord, block_path};
use crate::block::write::{BlockSummary, BlockWriter};
use crate::catalogue::CatalogueChange;
use crate::segment::segment_path;
use crate::stats::sub;
use crate::store::{CommitState, Shared};

/// A block being written under a temporary name.
pub(crate) struct BlockDraft {
    id: u64,
    temporary: PathBuf,
    kind: BlockKind,
    pub writer: BlockWriter,
    /// Whether rows of some sensors are left out of it.
    pub trimmed: bool,
}

/// A block that is on stable storage under its temporary name.
pub(crate) struct FinishedBlock {
    pub temporary: PathBuf,
    pub record: BlockRecord,
}

impl BlockDraft {
    pub(crate) fn create(shared: &Shared, kind: BlockKind, zstd_level: i32) -> Result<Self, StoreError> {
        let id = shared.next_block.fetch_add(1, Relaxed);
        let temporary = shared.paths.temporary.join(format!("{id}.parquet"));
        let writer = BlockWriter::create(shared.disk.as_ref(), &temporary, kind.value_type, zstd_level);
        let writer = writer.inspect_err(|_| drop(shared.disk.remove(&temporary)))?;
        Ok(Self { id, temporary, kind, writer, trimmed: false })
    }

    /// The number that the block will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Writes what is left. After an error nothing of it stays.
    pub fn finish(mut self, shared: &Shared) -> Result<FinishedBlock, StoreError> {
        self.writer.say_segments(self.kind.first_segment, self.kind.last_segment);
        let BlockSummary { rows, bytes, first_time, last_time, sums, .. } = match self.writer.finish() {
            Ok(written) => written,
            Err(error) => {
                let _ = shared.disk.remove(&self.temporary);
                return Err(error);
            }
        };
        let BlockKind { value_type, day, level, first_segment, last_segment, import } = self.kind;
        let path = block_path(self.id, value_type, first_time);
        let id = self.id;
        let record = BlockRecord {
            id,
            path,
            value_type,
            day,
            level,
            first_segment,
            last_segment,
            import,
            first_time,
            last_time,
            rows,
            bytes,
            tier: None,
            trimmed: self.trimmed,
            sums: Some(sums),
            tombstones: Vec::new(),
        };
        Ok(FinishedBlock { temporary: self.temporary, record })
    }

    /// Removes the temporary file.
    pub fn discard(self, shared: &Shared) {
        let _ = shared.disk.remove(&self.temporary);
    }
}

impl FinishedBlock {
    /// Removes the temporary file.
    pub fn discard(&self, shared: &Shared) {
        let _ = shared.disk.remove(&self.temporary);
    }
}

/// Gives finished blocks their names and commits the change; then readers see it. `false` when an input was dropped meanwhile, and
/// nothing was changed.
pub(crate) fn publish(
    shared: &Shared,
    finished: &[FinishedBlock],
    replaced: &[Arc<Block>],
    change: CatalogueChange,
) -> Result<bool, StoreError> {
    let mut commit_state = shared.commit_state.lock().unwrap_or_else(PoisonError::into_inner);
    let view = shared.view();
    let all = view.blocks.iter().chain(&view.tiers).chain(&view.absent);
    let present = |block: &Arc<Block>| all.clone().any(|other| Arc::ptr_eq(block, other));
    let known = |id: &u64| view.blocks.iter().chain(&view.tiers).any(|other| other.record.id == *id);
    let discard = || finished.iter().for_each(|block| block.discard(shared));
    let relinked: Vec<u64> = change.relink.iter().map(|record| record.id).collect();
    if !replaced.iter().all(present) || !change.requires.iter().chain(&relinked).all(known) {
        discard();
        return Ok(false);
    }
    if let Err(error) = name_files(shared, finished) {
        discard();
        for block in finished {
            // Dropping a block marked for removal removes its file; then its catalogue entry can go.
            shared.block(block.record.clone()).remove_when_unused();
        }
        return Err(error);
    }
    let add: Vec<BlockRecord> = finished.iter().map(|block| block.record.clone()).collect();
    let remove: Vec<BlockRecord> = replaced.iter().map(|block| block.record.clone()).collect();
    let (gone, kept) = sync_removed(shared);
    shared.removed.lock().unwrap_or_else(PoisonError::into_inner).extend(kept);
    let ids = gone.iter().map(|(id, _)| *id).collect();
    let relink = change.relink.clone();
    let result = shared.catalogue.commit(&CatalogueChange { add: &add, remove: &remove, gone: ids, ..change });
    if let Err(error) = result {
        // Whether it took effect only the database can tell, when it can be read again: see `reconcile`.
        commit_state.attempted.extend(add);
        shared.removed.lock().unwrap_or_else(PoisonError::into_inner).extend(gone);
        return Err(error);
    }
    shared.change_view(|view| {
        let stays = |block: &Arc<Block>| !replaced.iter().any(|other| Arc::ptr_eq(block, other));
        view.blocks.retain(stays);
        view.tiers.retain(stays);
        view.absent.retain(stays);
        for record in add {
            let list = if record.tier.is_some() { &mut view.tiers } else { &mut view.blocks };
            list.push(Arc::new(shared.block(record)));
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
        shared.cache.forget(block.record.id);
        block.remove_when_unused();
    }
    Ok(true)
}

type RemovedFiles = Vec<(u64, PathBuf)>;

/// The removed blocks whose removal is on stable storage now, and the others.
fn sync_removed(shared: &Shared) -> (RemovedFiles, RemovedFiles) {
    let removed = std::mem::take(&mut *shared.removed.lock().unwrap_or_else(PoisonError::into_inner));
    let dirs: BTreeSet<PathBuf> = removed.iter().map(|(_, dir)| dir.clone()).collect();
    let synced: BTreeSet<PathBuf> = dirs.into_iter().filter(|dir| shared.disk.sync_dir(dir).is_ok()).collect();
    removed.into_iter().partition(|(_, dir)| synced.contains(dir))
}

fn name_files(shared: &Shared, finished: &[FinishedBlock]) -> Result<(), StoreError> {
    if finished.is_empty() {
        return Ok(());
    }
    let files: Vec<(u64, String)> = finished.iter().map(|block| (block.record.id, block.record.path.clone())).collect();
    shared.catalogue.intend(&files)?;
    let mut dirs = BTreeSet::new();
    for block in finished {
        let path = locate(&shared.paths.blocks, &block.record.path);
        let dir = path.parent().unwrap_or(&shared.paths.blocks).to_owned();
        shared.disk.create_dirs(&dir).map_err(|error| StoreError::io("creating", &dir, error))?;
        shared.disk.rename(&block.temporary, &path).map_err(|error| StoreError::io("naming", &path, error))?;
        // Those above too: a process that was killed may have made them and not synced their names.
        let above = dir.ancestors().take_while(|above| above.starts_with(&shared.paths.dir));
        dirs.extend(above.map(Path::to_owned));
    }
    for dir in dirs {
        shared.disk.sync_dir(&dir).map_err(|error| StoreError::io("syncing", &dir, error))?;
    }
    Ok(())
}

/// After a failed transaction: opens the catalogue again and updates the view from it. Every operation that changes the catalogue holds
/// the lock on the commit state until memory is updated: otherwise one thread could read the catalogue in the middle of
/// another's change, and put in place what it read before.
pub(crate) fn reconcile(shared: &Shared) -> Result<MutexGuard<'_, CommitState>, StoreError> {
    let mut commit_state = shared.commit_state.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.catalogue.is_suspect() {
        reload_catalogue(shared, &mut commit_state)?;
    }
    Ok(commit_state)
}

/// What [`reconcile`] does after a failed transaction, for who has the ledger already.
pub(crate) fn reload_catalogue(shared: &Shared, commit_state: &mut CommitState) -> Result<(), StoreError> {
    let mut contents = shared.catalogue.reopen()?;
    {
        let mut sensors = shared.sensors.write().unwrap_or_else(PoisonError::into_inner);
        contents.sensors.keep_groups(&sensors);
        *sensors = contents.sensors;
        // Known again for certain, before anybody else can look.
        shared.expiry_unresolved.store(false, Relaxed);
    }
    let mut dropped = Vec::new();
    let mut sealed = Vec::new();
    shared.change_view(|view| {
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
            // A tier whose block was rewritten has another one's number; of any file something may have been deleted.
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
                list.push(Arc::new(shared.block(record.clone())));
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
        shared.cache.forget(block.record.id);
        block.remove_when_unused();
    }
    for record in std::mem::take(&mut commit_state.attempted) {
        if !contents.blocks.iter().any(|known| known.id == record.id) {
            shared.block(record).remove_when_unused();
        }
    }
    commit_state.sealed = contents.held;
    commit_state.imports = contents.imports;
    for segment in sealed {
        remove_segment(shared, segment.number, &segment.size());
    }
    if let Err(error) = shared.changed(i64::MIN, i64::MAX, None) {
        // On failure the invalidation stays pending and is applied before a cached result is used.
        tracing::warn!(%error, "kept results cannot be removed; tried again");
    }
    Ok(())
}

/// Removes the file of a sealed segment.
pub(crate) fn remove_segment(shared: &Shared, number: u64, size: &crate::live::SegmentSize) {
    let path = segment_path(&shared.paths.journal, number);
    if let Err(error) = shared.disk.remove(&path) {
        // The next opening knows that it is sealed and removes it.
        tracing::warn!(segment = %path.display(), %error, "cannot remove a sealed journal segment");
    }
    sub(&shared.counters.journal_bytes, size.file_bytes);
    if number < shared.first_segment {
        sub(&shared.backlog_bytes, size.payload_bytes);
    }
    sub(&shared.counters.live_bytes, size.payload_bytes);
}
