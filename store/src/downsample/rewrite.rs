//! Rewrites a tier file: without deleted readings, or with the readable part of a damaged one.
//!
//! Retention removes readings from a block sensor by sensor. So for each sensor some windows are made from the block's readings, and others are
//! copied because their readings are gone.

use std::sync::Arc;

use crate::StoreError;
use crate::block::draft::FinishedBlock;
use crate::block::index::IndexEntry;
use crate::block::read::{Block, OpenBlock};
use crate::block::record::{BlockRecord, kind_of};
use crate::block::rows::RowReader;
use crate::block::runs::runs_of;
use crate::block::tombstones::{remaining_windows, touches};
use crate::block::windows::{LineSpacings, TierSource, TierWindows};
use crate::config::coarsest;
use crate::downsample::build::AnyWindowBuilder;
use crate::downsample::readings_from;
use crate::downsample::write::{Downsampler, TierWriter, record};
use crate::time::floor;

/// A block and its open file.
pub(crate) type BlockReadings<'a> = (&'a Arc<Block>, Arc<OpenBlock>);

impl Downsampler {
    /// Writes a tier file without deleted readings; `None` if no window is left. Windows that a tombstone touches are made from the readings of
    /// `block`, and dropped if these are gone.
    pub(crate) fn without_tombstones(
        &self,
        old: &BlockRecord,
        opened: &Arc<OpenBlock>,
        block: Option<BlockReadings>,
    ) -> Result<Option<FinishedBlock>, StoreError> {
        self.written_again(old, opened, block, &|_| true)
    }

    /// Writes a damaged tier file with the sensors whose windows are all readable; `None` if there are none.
    pub(crate) fn salvaged(
        &self,
        old: &BlockRecord,
        opened: &Arc<OpenBlock>,
    ) -> Result<Option<FinishedBlock>, StoreError> {
        let mut reader = RowReader::new(opened.clone(), None);
        let mut readable = |start: u64, end: u64| {
            let mut row = start;
            while row < end {
                match reader.read_lines(row, end - row) {
                    Ok(windows) => row += windows.len() as u64,
                    Err(StoreError::Damaged { .. }) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            Ok(true)
        };
        let (mut start, mut whole) = (0, Vec::new());
        for entry in opened.entries() {
            whole.push(readable(start, start + entry.rows)?);
            start += entry.rows;
        }
        self.written_again(old, opened, None, &|at| whole[at])
    }

    fn written_again(
        &self,
        old: &BlockRecord,
        opened: &Arc<OpenBlock>,
        block: Option<BlockReadings>,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Option<FinishedBlock>, StoreError> {
        let Some(tier) = old.tier else { return Ok(None) };
        let (id, temporary) = self.drafts.next();
        let (disk, level) = (self.drafts.disk(), self.config.seal_zstd_level);
        let writer = TierWriter::create(disk.as_ref(), &temporary.path, old.value_type, level)?;
        let reader = RowReader::new(opened.clone(), None);
        let readings = block.map(|(block, opened)| (block, RowReader::new(opened.clone(), None), opened));
        let mut rewrite = TierRewrite { downsampler: self, old, tier, reader, readings, writer };
        let mut start = 0;
        for (at, entry) in opened.entries().iter().enumerate() {
            let rows = (start, start + entry.rows);
            start = rows.1;
            if wanted(at) {
                rewrite.sensor(entry, rows, opened.drawn_at(at))?;
            }
        }
        let written = rewrite.writer.finish()?;
        let record = record(kind_of(old), id, tier, &written);
        Ok((written.entries > 0).then_some(FinishedBlock { temporary, record }))
    }
}

struct TierRewrite<'a> {
    downsampler: &'a Downsampler,
    old: &'a BlockRecord,
    tier: TierSource,
    reader: RowReader,
    readings: Option<(&'a Arc<Block>, RowReader, Arc<OpenBlock>)>,
    writer: TierWriter,
}

/// Windows made from readings, with the times of the first and the last reading.
struct RewrittenWindows {
    windows: TierWindows,
    range: (i64, i64),
    drawn: LineSpacings,
}

impl TierRewrite<'_> {
    /// Writes one sensor, whose windows are these rows of the old file.
    fn sensor(
        &mut self,
        entry: &IndexEntry,
        (row, end): (u64, u64),
        mut drawn: LineSpacings,
    ) -> Result<(), StoreError> {
        let (path, resolution) = (&entry.path, self.tier.resolution_ns);
        let (first, last) = (entry.first_time, entry.last_time);
        let made_from = Some(self.there_from(entry))
            .filter(|from| *from <= last && touches(&self.old.tombstones, path, first.max(*from), last, resolution));
        let (from, to) = (floor(first, resolution), last.saturating_add(1).min(made_from.unwrap_or(i64::MAX)));
        let mut kept = Vec::new();
        for (lo, hi) in remaining_windows(&self.old.tombstones, path, from, to, resolution) {
            if lo < hi {
                let row = if lo > from { self.reader.seek(row, end, lo)? } else { row };
                let end = if hi <= last { self.reader.seek(row, end, hi)? } else { end };
                kept.push((lo, hi, row..end));
            }
        }
        let made = match made_from {
            Some(from) => {
                let joined = kept.last().filter(|(_, hi, rows)| *hi == from && !rows.is_empty());
                let before = joined.map(|(.., rows)| self.last_value(rows.end - 1)).transpose()?.flatten();
                self.made(path, from, before)?
            }
            None => None,
        };
        if let Some(made) = &made {
            drawn = drawn.with(made.drawn);
        }
        for (lo, hi, rows) in kept {
            let range = (first.max(lo), last.min(hi.saturating_sub(1)));
            self.writer.copy(&mut self.reader, (path, drawn), rows, range, lo > from)?;
        }
        match made {
            Some(made) => self.writer.push(path, &made.windows, made.range, drawn),
            None => Ok(()),
        }
    }

    /// The time from which all readings of a sensor are in the block.
    fn there_from(&self, entry: &IndexEntry) -> i64 {
        let Some((block, _, opened)) = &self.readings else { return i64::MAX };
        let coarsest = coarsest(&self.downsampler.config.tiers, self.tier.resolution_ns);
        let in_block = opened.find(&entry.path).map(|found| found.first_time);
        readings_from(block.record.trimmed, in_block, entry.first_time, coarsest)
    }

    /// The time of a window's last value, and whether a gap follows it.
    fn last_value(&mut self, row: u64) -> Result<Option<(i64, bool)>, StoreError> {
        let windows = self.reader.read_lines(row, 1)?;
        let (time, lines) = (windows.times().first(), windows.lines());
        Ok(time.zip(lines).map(|(time, lines)| (time + lines.last_after[0], lines.edges[0].gap_after)))
    }

    /// Makes the windows of a sensor's readings in the block from a time on; `before` is the last value of the window before.
    fn made(
        &mut self,
        path: &str,
        from: i64,
        before: Option<(i64, bool)>,
    ) -> Result<Option<RewrittenWindows>, StoreError> {
        let Some((block, reader, opened)) = &mut self.readings else { return Ok(None) };
        let Some(found) = opened.find(path) else { return Ok(None) };
        let (rows, first_time, last_time) = (found.rows, found.first_time, found.last_time);
        let entry = IndexEntry { path: path.to_owned(), rows, first_time, last_time };
        let rows = (found.start, found.start + found.rows);
        let mut builder = AnyWindowBuilder::new(self.old.value_type, &[self.tier.resolution_ns]);
        builder.begin(self.downsampler.sensors.interval_ns(path));
        before.into_iter().for_each(|(time, gap)| builder.follow(time, gap));
        let mut range: Option<(i64, i64)> = None;
        for run in runs_of(reader, &entry, rows, from, &block.record.tombstones)? {
            let mut row = run.row;
            while row < run.end {
                let chunk = reader.read(row, run.end - row)?;
                row += chunk.times.len() as u64;
                if let (Some(first), Some(last)) = (chunk.times.first(), chunk.times.last()) {
                    range = Some((range.map_or(*first, |range| range.0), *last));
                }
                builder.push(&chunk.times, &chunk.column);
            }
        }
        let drawn = builder.drawn();
        let windows = builder.finish().pop();
        Ok(windows.zip(range).map(|(windows, range)| RewrittenWindows { windows, range, drawn }))
    }
}
