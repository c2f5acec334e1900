//! What can be read of a damaged block or tier, in a new file.

use std::sync::Arc;

use crate::StoreError;
use crate::block::draft::{BlockDraft, FinishedBlock};
use crate::block::read::{Block, OpenBlock};
use crate::block::record::kind_of;
use crate::block::rows::RowReader;
use crate::block::tombstones::remaining;
use crate::chunk::cut;
use crate::maintenance::repair::Repairer;

impl Repairer {
    /// A new file with the rows whose pages are whole, without what has been deleted; `None` when there are none.
    pub(super) fn salvage(&self, file: &Arc<Block>) -> Result<Option<FinishedBlock>, StoreError> {
        let opened = match OpenBlock::open(file) {
            Ok(opened) => Arc::new(opened),
            Err(StoreError::Damaged { .. }) => return Ok(None),
            Err(StoreError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if file.record.tier.is_some() {
            return self.downsampler.salvaged(&file.record, &opened);
        }
        let mut draft = BlockDraft::create(&self.drafts, kind_of(&file.record), self.config.seal_zstd_level)?;
        draft.trimmed = file.record.trimmed;
        copy(&opened, file, &mut draft)?;
        let finished = draft.finish()?;
        Ok(Some(finished).filter(|finished| finished.record.rows > 0))
    }
}

fn copy(opened: &Arc<OpenBlock>, file: &Block, draft: &mut BlockDraft) -> Result<(), StoreError> {
    let mut reader = RowReader::new(opened.clone(), None);
    let mut start = 0;
    for entry in opened.entries() {
        let (mut row, end) = (start, start + entry.rows);
        start = end;
        let mut before = None;
        while row < end {
            let until = reader.whole_until(row).min(end);
            match reader.read(row, until - row) {
                Ok(chunk) => {
                    row += chunk.times.len() as u64;
                    // Pages have checksums; that they belong together has none but the order of the times.
                    let rises = chunk.times.is_sorted_by(|a, b| a < b) && before < chunk.times.first().copied();
                    let within = chunk.times.iter().all(|time| (entry.first_time..=entry.last_time).contains(time));
                    if !rises || !within {
                        continue;
                    }
                    before = chunk.times.last().copied();
                    for (from, to) in remaining(&file.record.tombstones, &entry.path, i64::MIN, i64::MAX) {
                        let left = cut(chunk.clone(), from, to);
                        draft.writer.push(&entry.path, &left.times, &left.column)?;
                    }
                }
                Err(StoreError::Damaged { .. }) => row = until,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
