//! Snapshots: a consistent view of all acknowledged readings in blocks and in the head.

mod choose;
pub(crate) mod newest;
mod plan;
mod prefetch;
mod tiers;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wholegrain_model::{Interval, Schema, SchemaHash, Timestamp, Value};
use wholegrain_transport::payload::PayloadError;

use crate::block::find::SensorRows;
use crate::block::read::{Block, OpenBlock, tolerate};
use crate::block::rows::RowReader;
use crate::block::tombstones::remaining;
use crate::chunk::{Chunk, cut};
use crate::computed::ResultFiles;
use crate::computed::key::SnapshotVersion;
use crate::config::StoreConfig;
use crate::files::FileSet;
use crate::files::view::StoreView;
use crate::head::columns::{chunks, join, rows_of, schemaless_row};
use crate::head::live::{LiveBatch, LiveSegment};
use crate::losses::Losses;
use crate::read_store::ChunkIter;
use crate::retention_policy::{PolicyInForce, RetentionPolicy};
use crate::scan::{MergeInput, MergedChunks, split};
use crate::sensors::SensorIndex;
use crate::snapshot::prefetch::DecodedColumns;
use crate::{SensorId, StoreError};

/// A consistent view of all acknowledged readings, unaffected by later seals, merges, deletions and drops; only sensors that have expired, because
/// none of their readings is stored, are not found. Cheap to take and to clone. It keeps the files and batches that it needs.
#[derive(Clone)]
pub struct Snapshot {
    source: Arc<SnapshotSource>,
    pub(crate) view: Arc<StoreView>,
    /// The pass of retention that decides what is hidden.
    pub(crate) retained_at: i64,
    pub(crate) policy: Arc<RetentionPolicy>,
    pub(crate) version: SnapshotVersion,
    /// Later arrivals in the open segment are not visible.
    watermark: u64,
    /// Shared by the scans of one reader.
    ahead: Arc<DecodedColumns>,
    /// Notes of the scans for the answer.
    notes: Arc<Mutex<BTreeSet<String>>>,
    /// The tiers whose blocks are gone: first and last time, and resolution.
    gone: Arc<OnceLock<Vec<(i64, i64, i64)>>>,
}

/// What snapshots read from.
pub(crate) struct SnapshotSource {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub sensors: Arc<SensorIndex>,
    pub policy: Arc<PolicyInForce>,
    pub results: Arc<ResultFiles>,
    pub losses: Arc<Losses>,
}

impl SnapshotSource {
    /// Everything acknowledged until now.
    pub fn snapshot(self: &Arc<Self>) -> Snapshot {
        Snapshot::new(self.clone())
    }
}

/// The most notes of one snapshot.
const NOTES_MAX: usize = 64;

impl Snapshot {
    fn new(source: Arc<SnapshotSource>) -> Self {
        let policy = source.policy.get();
        let version = source.results.version();
        let view = source.files.view();
        let watermark = view.open.last_arrival();
        Self {
            source,
            view,
            policy,
            retained_at: version.retained_at,
            version,
            watermark,
            ahead: Arc::default(),
            notes: Arc::default(),
            gone: Arc::default(),
        }
    }

    pub(crate) fn source(&self) -> &SnapshotSource {
        &self.source
    }

    /// The state of the store that the snapshot shows, for the cache of results.
    pub fn version(&self) -> SnapshotVersion {
        self.version
    }

    /// Readings of a sensor before this time are hidden by a rule of retention.
    pub fn hidden_before(&self, path: &str) -> i64 {
        self.policy.hidden_before(path, self.retained_at)
    }

    /// What the scans so far left out for other reasons than damage, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            notes.insert(text);
        }
    }

    /// What retention has removed of each sensor's readings in its range.
    pub(crate) fn removed_in(&self, ranges: &mut dyn Iterator<Item = (&str, i64, i64)>) -> Vec<String> {
        let mut notes = BTreeSet::new();
        for (path, from, to) in ranges {
            if notes.len() < NOTES_MAX {
                notes.extend(self.removed_of(path, from, to));
            }
        }
        notes.into_iter().collect()
    }

    /// First and last time, and resolution, of the tiers whose blocks are gone.
    fn gone(&self) -> &[(i64, i64, i64)] {
        self.gone.get_or_init(|| {
            let has_raw = |tier: &Arc<Block>| {
                let of = tier.record.tier.map_or(0, |tier| tier.block);
                self.view.blocks.iter().any(|block| block.record.id == of)
            };
            self.view.tiers.iter().filter(|tier| !has_raw(tier)).map(span_of).collect()
        })
    }

    /// Whether retention has dropped blocks of the range.
    pub(crate) fn is_gone(&self, from: i64, to: i64) -> bool {
        self.gone().iter().any(|(first, last, _)| *first < to && *last >= from)
    }

    /// A note if retention has removed readings of the range and kept windows of it.
    fn removed_of(&self, path: &str, from: i64, to: i64) -> Option<String> {
        let shown_from = from.max(self.policy.hidden_before(path, self.retained_at));
        let gone = self.gone();
        let is_shown = |(_, last, resolution_ns): &(i64, i64, i64), to: i64| {
            self.policy.tier_hidden_before(path, self.retained_at, *resolution_ns) <= (*last).min(to)
        };
        let in_range = |(first, last, _): &(i64, i64, i64), to: i64| *first < to && *last >= from;
        let spans = gone.iter().filter(|span| in_range(span, to) && is_shown(span, to));
        let spans = spans.map(|(_, last, resolution_ns)| (*last, *resolution_ns));
        let hidden_to = to.min(shown_from);
        let hidden = self.view.tiers.iter().map(span_of).filter(|span| shown_from > from && in_range(span, hidden_to));
        let hidden =
            hidden.filter(|span| is_shown(span, hidden_to)).map(|(.., resolution_ns)| (shown_from, resolution_ns));
        let (until, resolution) = spans.chain(hidden).reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))?;
        let (until, every) = (Timestamp(until.min(to)), Interval::from_ns(resolution.cast_unsigned()));
        Some(format!(
            "readings up to {until} are out of their retention and missing here; windows of {every} or its multiples may still be there (every={every})"
        ))
    }

    /// The same snapshot for scans of these sensors, one each in this order: their readings that are not sealed are decoded together, within a bound
    /// in bytes.
    pub(crate) fn prefetching(&self, ids: impl Iterator<Item = SensorId>) -> Self {
        let sensors = self.source.sensors.read();
        let places = ids.flat_map(|id| sensors.places(id).to_vec());
        let ahead = DecodedColumns::new(places.map(|place| (sensors.schema_at(place.schema).hash(), place.column)));
        Self { ahead: Arc::new(ahead), ..self.clone() }
    }

    /// Unreadable files with times in `from <= time < to`, as far as they are known now: those found before, and those that a scan met. Their
    /// readings are missing from the answers.
    pub fn damaged_blocks(&self, from: i64, to: i64) -> Vec<PathBuf> {
        let overlaps = |block: &&Arc<Block>| block.record.first_time < to && block.record.last_time >= from;
        let known = self.view.blocks.iter().chain(&self.view.absent).chain(&self.view.tiers);
        // A damaged tier is replaced by its block, unless retention has dropped it.
        let matters = |block: &&Arc<Block>| {
            let of = block.record.tier.map(|tier| tier.block);
            of.is_none_or(|of| !self.view.blocks.iter().any(|block| block.record.id == of))
        };
        known
            .filter(|block| block.is_damaged())
            .filter(matters)
            .filter(overlaps)
            .map(|block| block.path.clone())
            .collect()
    }

    /// The unacknowledged losses in `from <= time < to`, a sentence each.
    pub fn lost(&self, from: i64, to: i64) -> Vec<String> {
        let lost = self.source.losses.open();
        let overlap = lost.iter().filter(|lost| lost.from < to && lost.to >= from);
        overlap.map(|lost| format!("{}; `wholegrain config lost` says more", lost.sentence())).collect()
    }

    /// The times in `from <= time < to` at which there may be readings, first and last, in order; between them no sensor has any.
    pub fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        let blocks = self.view.blocks.iter().map(|block| (block.record.first_time, block.record.last_time));
        let live = self.live_segments().filter_map(|(segment, _)| segment.span());
        let mut spans: Vec<(i64, i64)> = blocks.chain(live).filter(|span| span.0 < to && span.1 >= from).collect();
        spans.sort_unstable();
        spans.dedup_by(|next, before| {
            let joined = next.0 <= before.1;
            if joined {
                before.1 = before.1.max(next.1);
            }
            joined
        });
        spans.into_iter().map(|(first, last)| (first.max(from), last.min(to.saturating_sub(1)))).collect()
    }

    /// The readings of a sensor with `from <= time < to` in time order, in chunks of at most 65,536 rows. If a time occurs twice, the later arrival
    /// counts. A chunk holds integers or floats; a sensor that changed its type gives both. A damaged block is left out, logged and counted in
    /// [`crate::StoreStats::damaged_blocks`].
    pub fn scan(&self, id: SensorId, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        Ok(Box::new(self.noted(id, from, to)?))
    }

    /// The same without a box.
    pub(crate) fn noted(&self, id: SensorId, from: i64, to: i64) -> Result<MergedChunks<'static>, StoreError> {
        let note = self.source.sensors.read().path(id).and_then(|path| self.removed_of(&path, from, to));
        note.into_iter().for_each(|note| self.note(note));
        self.merged(id, from, to)
    }

    /// The same without a note of what retention has removed.
    pub(crate) fn merged(&self, id: SensorId, from: i64, to: i64) -> Result<MergedChunks<'static>, StoreError> {
        let Some(path) = self.source.sensors.read().path(id) else { return Ok(MergedChunks::new(Vec::new())) };
        let from = from.max(self.policy.hidden_before(&path, self.retained_at));
        if from >= to {
            return Ok(MergedChunks::new(Vec::new()));
        }
        let mut inputs = Vec::new();
        for block in &self.view.blocks {
            if let Some(input) = self.block_input(block, &path, from, to)? {
                inputs.push(input);
            }
        }
        inputs.extend(self.live_inputs(id, from, to));
        Ok(MergedChunks::new(inputs))
    }

    /// The sensor's rows in a block, if it has any in the range.
    pub(crate) fn block_input(
        &self,
        block: &Arc<Block>,
        path: &str,
        from: i64,
        to: i64,
    ) -> Result<Option<MergeInput<'static>>, StoreError> {
        if block.record.last_time < from || block.record.first_time >= to || block.is_damaged() {
            return Ok(None);
        }
        let Some(opened) = self.open(block)? else { return Ok(None) };
        Ok(opened.find(path).and_then(|entry| self.input_of((block, &opened), entry, path, (from, to))))
    }

    /// A block with its footer, unless it is damaged.
    pub(crate) fn open(&self, block: &Block) -> Result<Option<Arc<OpenBlock>>, StoreError> {
        tolerate(block, self.source.files.cache().open(block))
    }

    /// Finds a sensor's rows in a block.
    pub(crate) fn found_in(&self, block: &Block, path: &str) -> Result<Option<SensorRows>, StoreError> {
        Ok(self.open(block)?.and_then(|opened| opened.find(path)))
    }

    /// The rows of the range among those found in a block, if there are any.
    pub(crate) fn input_of(
        &self,
        (block, opened): (&Arc<Block>, &Arc<OpenBlock>),
        entry: SensorRows,
        path: &str,
        (from, to): (i64, i64),
    ) -> Option<MergeInput<'static>> {
        // Hidden readings may reach behind the end of the range.
        if from >= to || entry.last_time < from || entry.first_time >= to || block.is_damaged() {
            return None;
        }
        let rank = block.record.rank();
        let rows = |from: i64, to: i64| BlockRowIter {
            block: block.clone(),
            row: entry.start,
            end: entry.start + entry.rows,
            seek: entry.first_time < from,
            is_last: entry.last_time == from,
            from,
            to,
            until: (entry.last_time >= to).then_some(to),
            reader: RowReader::of(opened.clone(), Some(self.source.files.cache().clone()), entry),
        };
        if block.record.tombstones.is_empty() {
            let first_time = entry.first_time.max(from);
            return Some(MergeInput { rank, first_time, source: Box::new(rows(from, to)) });
        }
        let mut left = remaining(&block.record.tombstones, path, from, to);
        left.retain(|(from, to)| entry.first_time < *to && entry.last_time >= *from);
        let first_time = left.first().map(|(from, _)| entry.first_time.max(*from))?;
        let pieces: Vec<BlockRowIter> = left.into_iter().map(|(from, to)| rows(from, to)).collect();
        Some(MergeInput { rank, first_time, source: Box::new(pieces.into_iter().flatten()) })
    }

    /// The sensor's unsealed rows: for batches at most one input a type; with schemaless readings, one for each segment.
    fn live_inputs(&self, id: SensorId, from: i64, to: i64) -> Vec<MergeInput<'static>> {
        let input = |(rank, chunk): (u64, Chunk)| MergeInput { rank, first_time: chunk.times[0], source: split(chunk) };
        self.live_chunks(id, from, to).into_iter().map(input).collect()
    }

    /// The same as chunks of any length, none of them empty, each with the rank of its input.
    pub(crate) fn live_chunks(&self, id: SensorId, from: i64, to: i64) -> Vec<(u64, Chunk)> {
        let schemaless = self.live_segments().any(|(segment, _)| segment.has_readings(id));
        let places: Vec<(Schema, u32)> = {
            let sensors = self.source.sensors.read();
            let places = sensors.places(id);
            let places = places.iter().map(|place| (sensors.schema_at(place.schema).clone(), place.column));
            places.filter(|(schema, _)| self.has_live(&schema.hash())).collect()
        };
        let fault = |batch: &LiveBatch, error: &PayloadError| {
            tracing::error!(agent = %batch.agent, seq = batch.seq, %error, "a batch in memory cannot be decoded");
        };
        if schemaless {
            return self.mixed_chunks(id, &places, (from, to), fault);
        }
        let ahead = match &places[..] {
            [] => return Vec::new(),
            [(schema, column)] => {
                let batches = || self.live_batches(&schema.hash(), from, to);
                self.ahead.take(schema, *column, (from, to), batches, fault)
            }
            _ => None,
        };
        let chunks = ahead.map_or_else(
            || {
                let mut batches: Vec<(Arc<LiveBatch>, usize)> = Vec::new();
                for (schema, column) in &places {
                    let found = self.live_batches(&schema.hash(), from, to);
                    batches.extend(found.into_iter().map(|batch| (batch, *column as usize)));
                }
                batches.sort_by_key(|(batch, _)| batch.arrival);
                join(batches.iter().map(|(batch, column)| (batch, *column)), fault)
            },
            |chunk| vec![chunk],
        );
        let cut = chunks.into_iter().map(|chunk| cut(chunk, from, to)).filter(|chunk| !chunk.times.is_empty());
        // Sealed readings arrived earlier.
        cut.map(|chunk| (u64::MAX, chunk)).collect()
    }

    /// Chunks of a schemaless sensor, which may also have batches.
    fn mixed_chunks(
        &self,
        id: SensorId,
        places: &[(Schema, u32)],
        (from, to): (i64, i64),
        mut fault: impl FnMut(&LiveBatch, &PayloadError),
    ) -> Vec<(u64, Chunk)> {
        let mut ranked = Vec::new();
        for (segment, watermark) in self.live_segments() {
            let mut batches: Vec<(Arc<LiveBatch>, usize)> = Vec::new();
            for (schema, column) in places {
                let found = segment.batches(&schema.hash(), watermark, from, to);
                batches.extend(found.into_iter().map(|batch| (batch, *column as usize)));
            }
            batches.sort_by_key(|(batch, _)| batch.arrival);
            let mut rows = rows_of(batches.iter().map(|(batch, column)| (batch, *column)), &mut fault);
            rows.retain(|row| (from..to).contains(&row.0));
            let readings = segment.readings(id, watermark).map(|chain| chain.readings(from, to)).unwrap_or_default();
            rows.extend(readings.into_iter().map(schemaless_row));
            // After all blocks, and in the order in which they will become blocks.
            let rank = u64::MAX / 2 + segment.number;
            ranked.extend(chunks(rows).into_iter().map(|chunk| (rank, chunk)));
        }
        ranked
    }

    fn live_segments(&self) -> impl Iterator<Item = (&Arc<LiveSegment>, u64)> {
        let closed = self.view.closed.iter().map(|segment| (segment, u64::MAX));
        closed.chain([(&self.view.open, self.watermark)])
    }

    fn has_live(&self, schema: &SchemaHash) -> bool {
        self.live_segments().any(|(segment, _)| segment.has(schema))
    }

    /// Unsealed batches of a schema in the range, in the order of arrival.
    fn live_batches(&self, schema: &SchemaHash, from: i64, to: i64) -> Vec<Arc<LiveBatch>> {
        self.live_segments().flat_map(|(segment, watermark)| segment.batches(schema, watermark, from, to)).collect()
    }

    /// The newest reading of a sensor whose newest time is `time`.
    pub(crate) fn newest_since(&self, id: SensorId, time: i64) -> Option<(i64, Option<Value>)> {
        let mut last = None;
        for chunk in self.scan(id, time, i64::MAX).ok()?.flatten() {
            let at = chunk.times.len() - 1;
            last = Some((chunk.times[at], chunk.column.get(at)));
        }
        last.or_else(|| self.newest_in_blocks(id))
    }

    /// The newest reading of a sensor in the blocks.
    fn newest_in_blocks(&self, id: SensorId) -> Option<(i64, Option<Value>)> {
        let path = self.source.sensors.read().path(id)?;
        let mut blocks: Vec<&Arc<Block>> = self.view.blocks.iter().filter(|block| !block.is_damaged()).collect();
        blocks.sort_by_key(|block| std::cmp::Reverse((block.record.last_time, block.record.rank())));
        let mut best: Option<(i64, Option<Value>)> = None;
        for block in blocks {
            if best.is_some_and(|(time, _)| time >= block.record.last_time) {
                break;
            }
            let Ok(Some(opened)) = tolerate(block, self.source.files.cache().open(block)) else { continue };
            let Some(entry) = opened.find(&path) else { continue };
            if best.is_some_and(|(time, _)| time >= entry.last_time) {
                continue;
            }
            let mut reader = RowReader::of(opened.clone(), Some(self.source.files.cache().clone()), entry);
            let (row, end) = (entry.start, entry.start + entry.rows);
            let mut last = || -> Result<Option<(i64, Option<Value>)>, StoreError> {
                for (from, to) in remaining(&block.record.tombstones, &path, i64::MIN, i64::MAX).into_iter().rev() {
                    let end = if to <= entry.last_time { reader.seek(row, end, to)? } else { end };
                    if end > row {
                        let chunk = reader.read(end - 1, 1)?;
                        if let Some(time) = chunk.times.first().filter(|time| **time >= from) {
                            return Ok(Some((*time, chunk.column.get(0))));
                        }
                    }
                }
                Ok(None)
            };
            if let Ok(Some(Some(found))) = tolerate(block, last())
                && best.is_none_or(|(time, _)| time < found.0)
            {
                best = Some(found);
            }
        }
        best
    }
}

/// Reads the rows of one sensor in one block.
struct BlockRowIter {
    /// Keeps the file while it is read.
    block: Arc<Block>,
    row: u64,
    end: u64,
    /// Whether the first row of the range must be searched.
    seek: bool,
    /// Whether the range has only the last row, whose time is in the index.
    is_last: bool,
    from: i64,
    to: i64,
    /// The end of the range, if there are rows after it.
    until: Option<i64>,
    reader: RowReader,
}

impl BlockRowIter {
    fn next_chunk(&mut self) -> Result<Option<Chunk>, StoreError> {
        if self.is_last && self.row < self.end {
            self.row = self.end;
            return self.reader.read_one(self.end - 1, self.from).map(Some);
        }
        if self.seek {
            self.row = self.reader.seek(self.row, self.end, self.from)?;
            self.seek = false;
        }
        if self.row >= self.end {
            return Ok(None);
        }
        let chunk = self.reader.read_until(self.row, self.end - self.row, self.until)?;
        self.row += chunk.times.len() as u64;
        let chunk = cut(chunk, self.from, self.to);
        if chunk.times.is_empty() {
            self.row = self.end;
            return Ok(None);
        }
        Ok(Some(chunk))
    }
}

impl Iterator for BlockRowIter {
    type Item = Result<Chunk, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = self.next_chunk();
        match tolerate(&self.block, chunk) {
            Ok(chunk) => {
                if chunk.is_none() {
                    self.row = self.end;
                }
                chunk.flatten().map(Ok)
            }
            Err(error) => {
                self.row = self.end;
                Some(Err(error))
            }
        }
    }
}

/// First and last time of a tier, and its resolution.
fn span_of(tier: &Arc<Block>) -> (i64, i64, i64) {
    let resolution_ns = tier.record.tier.map_or(0, |tier| tier.resolution_ns);
    (tier.record.first_time, tier.record.last_time, resolution_ns)
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{Column, ColumnValues, Gaps, Kind, SensorPath, ValueType};

    use super::*;
    use crate::{ImportSeries, SchemalessSensor, Store, StoreConfig};

    #[test]
    fn the_last_reading_is_found_and_an_empty_range_has_none() {
        const DAY: i64 = 86_400_000_000_000;
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap();
        let sensor = SchemalessSensor {
            path: SensorPath::new("/n/x").unwrap(),
            unit: "W".into(),
            kind: Kind::Gauge,
            value_type: ValueType::Int,
            scale: 1.0,
            description: String::new(),
        };
        let column = Column { values: ColumnValues::Int(vec![7, 8, 9]), gaps: Gaps::default() };
        let times = vec![20_000 * DAY, 20_000 * DAY + 5, 20_000 * DAY + 9];
        store.import("i", 0, "i", vec![ImportSeries { sensor, times: times.clone(), column }]).unwrap();
        let snapshot = store.snapshot();
        let block = snapshot.view.blocks[0].clone();
        let opened = snapshot.open(&block).unwrap().unwrap();
        let found = opened.find("/n/x").unwrap();
        let rows = |from: i64, to: i64| -> Vec<Chunk> {
            let input = snapshot.input_of((&block, &opened), found, "/n/x", (from, to));
            input.into_iter().flat_map(|input| input.source).map(Result::unwrap).collect()
        };
        let last = Chunk {
            times: vec![times[2]],
            column: Column { values: ColumnValues::Int(vec![9]), gaps: Gaps::default() },
        };
        assert_eq!(rows(times[2], i64::MAX), [last]);
        assert_eq!((rows(times[2], times[2]), rows(times[2], times[1])), (vec![], vec![]));
    }
}
