//! Snapshots: the local store's readings and the chunks that are complete, as one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::runtime::Handle;
use wholegrain_model::Schema;
use wholegrain_store::{
    CHUNK_ROWS_MAX, Chunk, MergeInput, MergedChunks, ReadSnapshot, Scan, ScanRequest, SensorRange, Snapshot,
    SnapshotReader, Store, StoreError,
};

use crate::encode::part;
use crate::extents::{Extent, ExtentCache, PlaceExtents};
use crate::layout::{SensorPlace, bucket_of, bucket_times, cell_of};
use crate::session::CassandraSession;
use crate::slices::{SliceFetcher, SliceKey, SliceRow, SliceRows};
use crate::view::{Cut, SharedView};

/// What readers of chunks need.
pub(crate) struct ChunkReader {
    pub session: Arc<CassandraSession>,
    pub handle: Handle,
    pub local: Store,
    pub shard_levels: u8,
    pub extents: ExtentCache,
}

impl ChunkReader {
    /// Where chunks can have the readings of a sensor.
    pub fn places(&self, path: &str) -> Vec<SensorPlace> {
        let Some(id) = self.local.sensor_id(path) else { return Vec::new() };
        let columns = self.local.schema_columns(id);
        let of_schema = |(schema, column): &(Schema, usize)| SensorPlace::of_schema(schema, *column, self.shard_levels);
        // A sensor that has a schema now can have had none before.
        let single = self.local.is_schemaless(id).then(|| SensorPlace::of_path(path, self.shard_levels));
        columns.iter().map(of_schema).chain(single).collect()
    }

    /// The partitions of sub-trees that a view shows.
    pub fn extents(
        &self,
        view: &SharedView,
        places: impl Iterator<Item = Arc<str>>,
    ) -> Result<PlaceExtents, StoreError> {
        self.extents.of(&self.session, &self.handle, view, places)
    }
}

/// A consistent view of the local store and the complete uploads.
pub(crate) struct CassandraSnapshot {
    pub reader: Arc<ChunkReader>,
    pub local: Snapshot,
    pub view: Arc<SharedView>,
}

impl CassandraSnapshot {
    /// The slices of a sensor in a range, in time order: windows of time, each with its slices.
    fn plan(&self, extents: &PlaceExtents, path: &str, (from, to): (i64, i64)) -> Vec<ScanWindow> {
        let mut windows: BTreeMap<(i64, i64), Vec<PlannedSlice>> = BTreeMap::new();
        for place in self.reader.places(path) {
            let Some(extents) = extents.get(&place.place) else { continue };
            let in_range = |extent: &&Extent| {
                let (start, end) = bucket_times(extent.bucket, extent.span);
                start < to && (end > from || end == i64::MAX)
            };
            let extents: Vec<&Extent> = extents.iter().filter(in_range).collect();
            let shortest = extents.iter().map(|extent| extent.span).max().unwrap_or(0);
            for extent in extents {
                let (start, end) = bucket_times(extent.bucket, extent.span);
                // Long buckets are read in windows as short as the shortest bucket, so that all fit together in memory.
                let mut at = start.max(from);
                let end = end.min(to);
                while at < end || (at == end && end == i64::MAX) {
                    let (window_start, window_end) = bucket_times(bucket_of(at, shortest), shortest);
                    let window = (window_start.max(from), window_end.min(to));
                    let key = SliceKey {
                        class: extent.class,
                        place: place.place.clone(),
                        span: extent.span,
                        bucket: extent.bucket,
                        group: place.group,
                        band: place.band,
                        from: cell_of(window.0, extent.span).max(start),
                        to: window.1,
                    };
                    windows.entry(window).or_default().push(PlannedSlice { key, column: place.column });
                    if window_end >= end {
                        break;
                    }
                    at = window_end;
                }
            }
        }
        windows.into_iter().map(|(range, slices)| ScanWindow { range, slices }).collect()
    }

    /// The part of a request that is not hidden by retention.
    fn shown(&self, path: &str, from: i64, to: i64) -> (i64, i64) {
        (from.max(self.local.hidden_before(path)), to)
    }
}

/// Times that are read together.
struct ScanWindow {
    range: (i64, i64),
    slices: Vec<PlannedSlice>,
}

struct PlannedSlice {
    key: SliceKey,
    column: u8,
}

impl ReadSnapshot for CassandraSnapshot {
    fn open(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        let ranges: Vec<SensorRange<'_>> = ranges.collect();
        let local = ReadSnapshot::open(&self.local, &mut ranges.iter().copied())?;
        // Later ranges are only in the local store: they are answered while Cassandra does not answer.
        let in_chunks: Vec<&SensorRange<'_>> = ranges.iter().filter(|range| self.view.reaches(range.from)).collect();
        let places = in_chunks.iter().flat_map(|range| self.reader.places(&range.sensor.path)).map(|place| place.place);
        let extents = self.reader.extents(&self.view, places)?;
        let planned = in_chunks.iter().flat_map(|range| {
            let shown = self.shown(&range.sensor.path, range.from, range.to);
            self.plan(&extents, &range.sensor.path, shown).into_iter().flat_map(|window| window.slices)
        });
        let planned = planned.map(|slice| slice.key);
        let reader = self.reader.clone();
        let fetcher = SliceFetcher::new(reader.session.clone(), reader.handle.clone(), self.view.clone(), planned);
        let snapshot = Self { reader, local: self.local.clone(), view: self.view.clone() };
        Ok(Arc::new(CassandraReader { snapshot, local, fetcher: Arc::new(fetcher) }))
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        let mut spans = Snapshot::spans(&self.local, from, to);
        for day in &self.view.days {
            let (start, end) = bucket_times(*day, 0);
            if start < to && end > from {
                spans.push((start.max(from), end.min(to) - 1));
            }
        }
        spans.sort_unstable();
        spans.dedup_by(|next, before| {
            let joined = next.0 <= before.1.saturating_add(1);
            if joined {
                before.1 = before.1.max(next.1);
            }
            joined
        });
        spans
    }

    fn notes(&self) -> Vec<String> {
        Snapshot::notes(&self.local)
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        ReadSnapshot::warnings(&self.local, from, to)
    }
}

/// Scans the local store and the chunks.
struct CassandraReader {
    snapshot: CassandraSnapshot,
    local: Arc<dyn SnapshotReader>,
    fetcher: Arc<SliceFetcher>,
}

impl SnapshotReader for CassandraReader {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let readings = ScanRequest { resolution: wholegrain_store::Resolution::Readings, ..*request };
        if request.needs_windows() {
            return Ok(Scan::empty(request));
        }
        let path = &request.sensor.path;
        let (from, to) = self.snapshot.shown(path, request.from, request.to);
        let local = self.local.scan(&readings)?.chunks();
        if !self.snapshot.view.reaches(from) {
            return Ok(Scan::of_chunks(request, local));
        }
        let places = self.snapshot.reader.places(path).into_iter().map(|place| place.place);
        let extents = self.snapshot.reader.extents(&self.snapshot.view, places)?;
        let windows = if from < to { self.snapshot.plan(&extents, path, (from, to)) } else { Vec::new() };
        if windows.is_empty() {
            return Ok(Scan::of_chunks(request, local));
        }
        let cuts: Vec<Cut> = self.snapshot.view.cuts.iter().filter(|cut| cut.chooses(path)).cloned().collect();
        let first_time = windows.first().map_or(from, |window| window.range.0);
        let uploaded = WindowIter {
            fetcher: self.fetcher.clone(),
            windows: windows.into_iter(),
            cuts: Arc::new(cuts),
            current: None,
        };
        // What is still in the local store was received after what was uploaded from it.
        let inputs = vec![
            MergeInput { rank: 0, first_time, source: Box::new(uploaded) },
            MergeInput { rank: 1, first_time: from, source: Box::new(local) },
        ];
        Ok(Scan::of_chunks(request, MergedChunks::new(inputs)))
    }
}

/// Reads windows one after the other.
struct WindowIter {
    fetcher: Arc<SliceFetcher>,
    windows: std::vec::IntoIter<ScanWindow>,
    cuts: Arc<Vec<Cut>>,
    current: Option<MergedChunks<'static>>,
}

impl WindowIter {
    fn open(&self, window: ScanWindow) -> Result<MergedChunks<'static>, StoreError> {
        let mut rows: Vec<(SliceRef, u8)> = Vec::new();
        for slice in window.slices {
            let found = self.fetcher.rows(&slice.key)?;
            rows.extend((0..found.rows().len()).map(|at| (SliceRef { rows: found.clone(), at }, slice.column)));
        }
        rows.retain(|(row, _)| row.get().last_time >= window.range.0);
        rows.sort_by_key(|(row, _)| (row.get().first_time, row.get().stamp, row.get().server));
        Ok(merge(rows, window.range, &self.cuts))
    }
}

impl Iterator for WindowIter {
    type Item = Result<Chunk, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = self.current.as_mut().and_then(Iterator::next) {
                return Some(chunk);
            }
            let window = self.windows.next()?;
            match self.open(window) {
                Ok(chunks) => self.current = Some(chunks),
                Err(error) => {
                    self.windows = Vec::new().into_iter();
                    self.current = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// A row of a slice that is shared.
struct SliceRef {
    rows: SliceRows,
    at: usize,
}

impl SliceRef {
    fn get(&self) -> &SliceRow {
        &self.rows.rows()[self.at]
    }

    /// The readings of a column within the range and without what deletions hide.
    fn decode(&self, column: u8, range: (i64, i64), cuts: &[Cut]) -> Vec<Result<Chunk, StoreError>> {
        decode(self.get(), self.rows.room(), column, range, cuts)
    }
}

/// Merges rows that are sorted by their first time. Rows that follow each other without an overlap form one input, so that a merge has few inputs.
fn merge(rows: Vec<(SliceRef, u8)>, range: (i64, i64), cuts: &Arc<Vec<Cut>>) -> MergedChunks<'static> {
    // (end of the last row, rows) of each input, all of one upload after the other in rank.
    let mut lanes: Vec<(i64, Vec<(SliceRef, u8)>)> = Vec::new();
    for (row, column) in rows {
        let (first, last) = (row.get().first_time, row.get().last_time);
        match lanes.iter_mut().find(|(end, _)| *end < first) {
            Some((end, lane)) => {
                *end = last;
                lane.push((row, column));
            }
            None => lanes.push((last, vec![(row, column)])),
        }
    }
    if lanes.len() <= 1 {
        let lane = lanes.pop().map(|(_, rows)| rows).unwrap_or_default();
        return MergedChunks::new(vec![lane_input(lane, 0, range, cuts)]);
    }
    // Lanes mix uploads of any age, so rows that overlap others are inputs of their own.
    let all = lanes.into_iter().flat_map(|(_, rows)| rows);
    let mut order: Vec<(SliceRef, u8)> = all.collect();
    order.sort_by_key(|(row, _)| (row.get().stamp, row.get().server));
    let inputs = order.into_iter().enumerate().map(|(rank, row)| lane_input(vec![row], rank as u64, range, cuts));
    MergedChunks::new(inputs.collect())
}

fn lane_input(rows: Vec<(SliceRef, u8)>, rank: u64, range: (i64, i64), cuts: &Arc<Vec<Cut>>) -> MergeInput<'static> {
    let first_time = rows.first().map_or(range.0, |(row, _)| row.get().first_time.max(range.0));
    let cuts = cuts.clone();
    let chunks = rows.into_iter().flat_map(move |(row, column)| row.decode(column, range, &cuts));
    MergeInput { rank, first_time, source: Box::new(chunks) }
}

/// The readings of a column in a row, within the range and without what deletions hide.
pub(crate) fn decode(
    row: &SliceRow,
    room: Option<&AtomicUsize>,
    column: u8,
    (from, to): (i64, i64),
    cuts: &[Cut],
) -> Vec<Result<Chunk, StoreError>> {
    let damaged = |what: String| {
        let reason = format!("the chunk of server {} and upload {} {what}", row.server, row.stamp);
        vec![Err(StoreError::Remote { doing: "reading chunks", reason })]
    };
    let chunk = match row.column(column, room) {
        Ok(Some(chunk)) => chunk,
        Ok(None) => return Vec::new(),
        Err(what) => return damaged(what),
    };
    let mut left = vec![(from, to)];
    for cut in cuts.iter().filter(|cut| cut.hides(row.server, row.stamp)) {
        left = left.into_iter().flat_map(|(lo, hi)| [(lo, hi.min(cut.from)), (lo.max(cut.to), hi)]).collect();
        left.retain(|(lo, hi)| lo < hi);
    }
    let pieces = left.into_iter().flat_map(|(from, to)| {
        let start = chunk.times.partition_point(|time| *time < from);
        let end = chunk.times.partition_point(|time| *time < to);
        pieces(start, end.max(start))
    });
    let take = |(start, end): (usize, usize)| {
        Ok(Chunk { times: chunk.times[start..end].to_vec(), column: part(&chunk.column, start, end) })
    };
    pieces.map(take).collect()
}

/// Parts of at most [`CHUNK_ROWS_MAX`] rows.
fn pieces(start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
    (start..end).step_by(CHUNK_ROWS_MAX).map(move |at| (at, end.min(at + CHUNK_ROWS_MAX)))
}
