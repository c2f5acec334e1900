//! Sealed blocks for another store, which adopts their readings; then they are released.

use std::sync::Arc;

use crate::block::read::{Block, OpenBlock};
use crate::block::rows::RowReader;
use crate::block::tombstones::remaining;
use crate::catalogue::CatalogueChange;
use crate::chunk::{CHUNK_ROWS, cut};
use crate::files::FileSet;
use crate::{Chunk, StoreError};

/// A block of readings as it was when it was taken.
pub struct SealedBlock {
    block: Arc<Block>,
    opened: Arc<OpenBlock>,
}

impl SealedBlock {
    /// The readable block that comes first in rank: of equal times in two blocks, those in the later one count.
    pub(crate) fn first(files: &FileSet) -> Result<Option<Self>, StoreError> {
        let view = files.view();
        let readable = view.blocks.iter().filter(|block| !block.is_damaged());
        let Some(block) = readable.min_by_key(|block| (block.record.rank(), block.record.id)) else { return Ok(None) };
        match OpenBlock::open_once(block) {
            Ok(opened) => Ok(Some(Self { block: block.clone(), opened })),
            Err(error) => {
                if matches!(error, StoreError::Damaged { .. }) {
                    block.mark_damaged(&error);
                }
                Err(error)
            }
        }
    }

    /// Removes the block and its tiers. `false`, and nothing changed, if it was replaced since it was taken, as by a deletion.
    pub(crate) fn release(&self, files: &FileSet) -> Result<bool, StoreError> {
        drop(files.reconcile()?);
        let id = self.block.record.id;
        let view = files.view();
        let tiers = view.tiers.iter().filter(|tier| tier.record.tier.is_some_and(|tier| tier.block == id)).cloned();
        let replaced: Vec<Arc<Block>> = tiers.chain([self.block.clone()]).collect();
        files.publish(&[], &replaced, CatalogueChange::default())
    }

    /// Whether readers still see this block as it was when it was taken.
    pub(crate) fn is_current(&self, files: &FileSet) -> bool {
        files.view().blocks.iter().any(|block| Arc::ptr_eq(block, &self.block))
    }

    /// Its number in the catalogue.
    pub fn id(&self) -> u64 {
        self.block.record.id
    }

    /// The number of readings in the file, including gaps and those that deletions hide.
    pub fn rows(&self) -> u64 {
        self.block.record.rows
    }

    /// The size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.block.record.bytes
    }

    /// The first and the last time, ns since the Unix epoch.
    pub fn span(&self) -> (i64, i64) {
        (self.block.record.first_time, self.block.record.last_time)
    }

    /// The number of sensors.
    pub fn sensors(&self) -> usize {
        self.opened.entries().len()
    }

    /// The path of the sensor at this place; they are sorted.
    pub fn path(&self, at: usize) -> &str {
        &self.opened.entries()[at].path
    }

    /// A reader of its sensors. Each page is decoded once if the sensors are read in their order.
    pub fn reader(&self) -> SealedReader<'_> {
        SealedReader { sealed: self, rows: RowReader::new(self.opened.clone(), None) }
    }
}

/// Reads the sensors of a [`SealedBlock`].
pub struct SealedReader<'a> {
    sealed: &'a SealedBlock,
    rows: RowReader,
}

impl SealedReader<'_> {
    /// The readings of the sensor at this place in time order, without those that deletions hide.
    pub fn read(&mut self, at: usize) -> Result<Vec<Chunk>, StoreError> {
        let found = self.sealed.opened.found(at);
        self.rows.begin(found);
        let (mut row, end) = (found.start, found.start + found.rows);
        let left = match self.sealed.block.record.tombstones.as_slice() {
            [] => None,
            tombstones => Some(remaining(tombstones, self.sealed.path(at), i64::MIN, i64::MAX)),
        };
        let mut chunks = Vec::new();
        while row < end {
            let chunk = self.rows.read(row, (end - row).min(CHUNK_ROWS as u64))?;
            if chunk.times.is_empty() {
                break;
            }
            row += chunk.times.len() as u64;
            match &left {
                None => chunks.push(chunk),
                Some(left) => chunks.extend(left.iter().map(|(from, to)| cut(chunk.clone(), *from, *to))),
            }
        }
        chunks.retain(|chunk| !chunk.times.is_empty());
        Ok(chunks)
    }
}
