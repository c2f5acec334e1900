//! Sealing: the readings of a closed journal segment are written as blocks, one for each UTC day and type of value.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::schema::SensorDef;
use wholegrain_model::{Column, ColumnValues, Schema, ValueType};
use wholegrain_transport::payload::append_columns;

use crate::block::draft::DraftDirectory;
use crate::block::drafts::BlockDrafts;
use crate::catalogue::CatalogueChange;
use crate::chunk::empty;
use crate::computed::ResultFiles;
use crate::config::StoreConfig;
use crate::files::FileSet;
use crate::head::columns::{chunks, join, rows_of, schemaless_row};
use crate::head::live::{LiveBatch, LiveSegment};
use crate::head::log::ClosedLog;
use crate::ranges::RangeSet;
use crate::scan::TimeOrder;
use crate::segment::files::SegmentFiles;
use crate::sensors::file::SensorFile;
use crate::sensors::{NEWEST_TIMES_SENSORS, SensorIndex};
use crate::stats::{Counters, add};
use crate::wal::queue::AppendQueue;
use crate::{Chunk, SensorId, StoreError};

/// The most days for which one seal writes separate blocks; readings of further days go into one block that is never merged. Only a wrong clock or
/// a drained spool of two months gets there.
const DAYS_MAX: usize = 64;
/// Stands for a group if a sensor's readings are schemaless. It sorts after all groups, so that a reading counts before a batch's reading of the
/// same time.
const SCHEMALESS: usize = usize::MAX;

/// Turns closed segments into blocks, one at a time.
pub(crate) struct Sealer {
    pub config: Arc<StoreConfig>,
    pub files: Arc<FileSet>,
    pub drafts: Arc<DraftDirectory>,
    pub segments: Arc<SegmentFiles>,
    pub sensors: Arc<SensorIndex>,
    pub results: Arc<ResultFiles>,
    pub sensor_file: Arc<SensorFile>,
    pub queue: Arc<AppendQueue>,
    pub counters: Arc<Counters>,
    /// Held while a segment is sealed.
    pub lock: Mutex<()>,
}

impl Sealer {
    /// No segment is sealed while the guard is held.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals everything appended until now and waits for it.
    pub fn seal_all(&self) -> Result<(), StoreError> {
        let (sender, receiver) = sync_channel(1);
        if !self.queue.rotate(sender) || receiver.recv().is_err() {
            return Err(StoreError::Closed);
        }
        while self.seal_oldest()? {}
        self.sensor_file.bring_up();
        Ok(())
    }

    /// Seals the oldest closed segment; `false` when there is none.
    pub(crate) fn seal_oldest(&self) -> Result<bool, StoreError> {
        let _one_at_a_time = self.lock();
        drop(self.files.reconcile()?);
        let Some(segment) = self.files.view().closed.first().cloned() else { return Ok(false) };
        let mut drafts = BlockDrafts::new(&self.drafts, self.config.seal_zstd_level, segment.number, DAYS_MAX);
        self.write_segment(&segment, &mut drafts)?;
        let finished = drafts.finish()?;
        // An opening learns from the journal what arrived late. Before the segment goes, outdated results must be removed.
        self.results.sync_invalidations()?;
        let (ranges, groups) = self.commit_state_after(&segment);
        let encoded = ranges.iter().map(|((agent, boot), set)| (agent.clone(), *boot, set.encode())).collect();
        let newest_times = self.newest_times(&segment);
        let change = CatalogueChange {
            sealed_through: Some(segment.number),
            ranges: encoded,
            groups,
            newest_times,
            ..CatalogueChange::default()
        };
        self.files.publish(&finished, &[], change)?;
        {
            let mut commit_state = self.files.commit_state();
            ranges.into_iter().for_each(|((agent, boot), set)| commit_state.sealed.set(&agent, boot, set));
        }
        self.segments.remove(segment.number, &segment.size());
        add(&self.counters.seals, 1);
        self.sensor_file.keep_up();
        Ok(true)
    }

    /// The ranges and groups after this segment is in blocks.
    fn commit_state_after(&self, segment: &LiveSegment) -> (SequenceRanges, GroupStates) {
        let commit_state = self.files.commit_state();
        let sensors = self.sensors.read();
        let mut ranges: SequenceRanges = HashMap::new();
        let mut groups = Vec::new();
        for batches in segment.groups() {
            for batch in &batches {
                let known = || commit_state.sealed.ranges(&batch.agent, batch.boot).cloned().unwrap_or_default();
                ranges.entry((batch.agent.clone(), batch.boot)).or_insert_with(known).insert(batch.seq);
            }
            if let Some(hash) = batches.first().map(|batch| batch.schema.hash())
                && let Some(state) = sensors.group(&hash)
            {
                groups.push((hash, state.clone()));
            }
        }
        (ranges, groups)
    }

    /// The newest times of the schemaless sensors in this segment, and of those that share an entry of the catalogue with them.
    fn newest_times(&self, segment: &LiveSegment) -> Vec<(u32, Vec<u8>)> {
        let chunks: BTreeSet<u32> = segment.all_readings().sensors.iter().map(|id| id / NEWEST_TIMES_SENSORS).collect();
        let sensors = self.sensors.read();
        chunks.into_iter().map(|chunk| (chunk, sensors.newest_times(chunk))).collect()
    }

    /// Writes the sensors of the segment in the order of their paths. A group's columns are in memory from its first sensor to its last.
    fn write_segment(&self, segment: &LiveSegment, drafts: &mut BlockDrafts) -> Result<(), StoreError> {
        let mut groups = groups_of(segment);
        let schemaless = segment.all_readings();
        if !schemaless.sensors.is_empty() {
            let all: Vec<usize> = (0..groups.len()).collect();
            return self.write_together(&mut groups, &all, &schemaless, drafts);
        }
        let mut scratch = DecodedGroup::default();
        for together in apart(&groups) {
            match together[..] {
                [alone] => self.write_alone(&groups[alone], &mut scratch, drafts)?,
                _ => self.write_together(&mut groups, &together, &schemaless, drafts)?,
            }
        }
        Ok(())
    }

    /// Writes a group whose paths are contiguous. `scratch` keeps its memory from one group to the next.
    fn write_alone(
        &self,
        group: &SealGroup,
        scratch: &mut DecodedGroup,
        drafts: &mut BlockDrafts,
    ) -> Result<(), StoreError> {
        scratch.fill(&self.counters, &group.schema, &group.batches);
        let mut path = format!("{}/", group.schema.prefix());
        let prefix = path.len();
        for &column in group.by_name.iter() {
            let column = column as usize;
            path.truncate(prefix);
            path.push_str(&group.schema.sensors()[column].name);
            match scratch.order.reordered(&scratch.columns[column]) {
                Some(sorted) => drafts.push(&path, &scratch.times, &sorted)?,
                None => drafts.push(&path, &scratch.times, &scratch.columns[column])?,
            }
        }
        Ok(())
    }

    /// Writes groups with interleaved paths, and schemaless sensors.
    fn write_together(
        &self,
        groups: &mut [SealGroup],
        together: &[usize],
        schemaless: &ClosedLog,
        drafts: &mut BlockDrafts,
    ) -> Result<(), StoreError> {
        let mut sensors: Vec<(Arc<str>, usize, usize)> = Vec::new();
        for &at in together {
            let schema = &groups[at].schema;
            sensors.extend((0..schema.len()).map(|column| (schema.path(column).into(), at, column)));
        }
        {
            let known = self.sensors.read();
            let path = |(slot, id): (usize, &u32)| Some((known.path(SensorId(*id))?, SCHEMALESS, slot));
            sensors.extend(schemaless.sensors.iter().enumerate().filter_map(path));
        }
        let readings = schemaless.sorted();
        sensors.sort_unstable();
        for same in sensors.chunk_by(|a, b| a.0 == b.0) {
            match same {
                [(path, SCHEMALESS, slot)] => {
                    for chunk in chunks(readings.readings(*slot).map(schemaless_row).collect()) {
                        drafts.push(path, &chunk.times, &chunk.column)?;
                    }
                }
                [.., (path, SCHEMALESS, slot)] => {
                    let mut rows = rows_of(in_order(groups, &same[..same.len() - 1]), |batch, error| {
                        undecodable(&self.counters, batch, error);
                    });
                    rows.extend(readings.readings(*slot).map(schemaless_row));
                    for chunk in chunks(rows) {
                        drafts.push(path, &chunk.times, &chunk.column)?;
                    }
                }
                [(path, group, column)] => {
                    let chunk = groups[*group].take(&self.counters, *column);
                    drafts.push(path, &chunk.times, &chunk.column)?;
                }
                several => {
                    for chunk in combine(&self.counters, groups, several) {
                        drafts.push(&several[0].0, &chunk.times, &chunk.column)?;
                    }
                }
            }
        }
        Ok(())
    }
}

type SequenceRanges = HashMap<(Arc<str>, u64), RangeSet>;
type GroupStates = Vec<(wholegrain_model::SchemaHash, crate::sensors::GroupState)>;

/// The batches of one schema, decoded when its first sensor is written.
struct SealGroup {
    schema: Schema,
    batches: Vec<Arc<LiveBatch>>,
    decoded: Option<DecodedGroup>,
    /// Its columns in the order of their names, shared by schemas with the same sensors.
    by_name: Arc<[u32]>,
}

#[derive(Default)]
struct DecodedGroup {
    times: Vec<i64>,
    order: TimeOrder,
    columns: Vec<Column>,
    left: usize,
}

fn groups_of(segment: &LiveSegment) -> Vec<SealGroup> {
    let mut known: HashMap<*const SensorDef, Arc<[u32]>> = HashMap::new();
    let mut groups: Vec<SealGroup> = Vec::new();
    for batches in segment.groups() {
        let Some(first) = batches.first() else { continue };
        let schema = first.schema.clone();
        let sensors = schema.sensors();
        let by_name = known.entry(sensors.as_ptr()).or_insert_with(|| {
            let mut order: Vec<u32> = (0..u32::try_from(sensors.len()).unwrap_or(u32::MAX)).collect();
            order.sort_unstable_by_key(|&column| sensors[column as usize].name.as_str());
            order.into()
        });
        let by_name = by_name.clone();
        groups.push(SealGroup { schema, batches, decoded: None, by_name });
    }
    groups
}

/// The groups in the order of their paths. Groups with interleaved paths are together: their sensors have to be sorted.
fn apart(groups: &[SealGroup]) -> Vec<Vec<usize>> {
    let edge = |group: &SealGroup, column: Option<&u32>| group.schema.path(column.map_or(0, |column| *column as usize));
    let span = |group: &SealGroup| (edge(group, group.by_name.first()), edge(group, group.by_name.last()));
    let mut spans: Vec<(String, String, usize)> = (groups.iter().enumerate())
        .map(|(at, group)| (span(group), at))
        .map(|((first, last), at)| (first, last, at))
        .collect();
    spans.sort_unstable();
    let mut found: Vec<(String, Vec<usize>)> = Vec::new();
    for (first, last, at) in spans {
        match found.last_mut() {
            Some((end, together)) if first <= *end => {
                together.push(at);
                if last > *end {
                    *end = last;
                }
            }
            _ => found.push((last, vec![at])),
        }
    }
    found.into_iter().map(|(_, together)| together).collect()
}

impl SealGroup {
    /// Takes one sensor's readings, in time order. Each column is taken once.
    fn take(&mut self, counters: &Counters, column: usize) -> Chunk {
        let decoded = self.decoded.get_or_insert_with(|| {
            let mut decoded = DecodedGroup::default();
            decoded.fill(counters, &self.schema, &self.batches);
            decoded
        });
        let values = std::mem::replace(&mut decoded.columns[column], empty(ValueType::Int));
        let values = decoded.order.column(values);
        decoded.left = decoded.left.saturating_sub(1);
        if decoded.left > 0 {
            return Chunk { times: decoded.times.clone(), column: values };
        }
        let times = self.decoded.take().map(|decoded| decoded.times).unwrap_or_default();
        Chunk { times, column: values }
    }
}

impl DecodedGroup {
    /// Decodes all columns of a group's batches, one after the other, and replaces the previous content.
    fn fill(&mut self, counters: &Counters, schema: &Schema, batches: &[Arc<LiveBatch>]) {
        let rows = batches.iter().map(|batch| batch.samples).sum();
        self.columns.truncate(schema.len());
        for (column, value_type) in self.columns.iter_mut().zip(schema.types()) {
            column.gaps.0.clear();
            match (&mut column.values, value_type) {
                (ColumnValues::Int(values), ValueType::Int) => values.clear(),
                (ColumnValues::Float(values), ValueType::Float) => values.clear(),
                (values, other) => *values = empty(*other).values,
            }
        }
        self.columns.extend(schema.types()[self.columns.len()..].iter().map(|value_type| empty(*value_type)));
        for column in &mut self.columns {
            match &mut column.values {
                ColumnValues::Int(values) => values.reserve_exact(rows),
                ColumnValues::Float(values) => values.reserve_exact(rows),
            }
        }
        let mut times = std::mem::take(&mut self.times);
        times.clear();
        for batch in batches {
            if let Err(error) = append_columns(&batch.payload, schema, &mut times, &mut self.columns, rows) {
                undecodable(counters, batch, &error);
            }
        }
        self.order = TimeOrder::of(&times);
        self.times = self.order.times(times);
        self.left = self.columns.len();
    }
}

/// Counts a batch that cannot be decoded. A batch was checked before it was accepted, so only broken memory causes this.
fn undecodable(counters: &Counters, batch: &LiveBatch, error: &wholegrain_transport::payload::PayloadError) {
    add(&counters.damaged_bytes, batch.payload.len() as u64);
    tracing::error!(agent = %batch.agent, seq = batch.seq, %error, "a batch cannot be decoded and is left out");
}

/// The readings of a sensor that several schemas of the segment have, sorted by time, integers and floats apart.
fn combine(counters: &Counters, groups: &[SealGroup], places: &[(Arc<str>, usize, usize)]) -> Vec<Chunk> {
    let mut found = join(in_order(groups, places), |batch, error| undecodable(counters, batch, error));
    found.retain(|chunk| !chunk.times.is_empty());
    found
}

/// The batches of several groups, each with the column of one sensor, in the order of arrival.
fn in_order<'a>(
    groups: &'a [SealGroup],
    places: &[(Arc<str>, usize, usize)],
) -> impl Iterator<Item = (&'a Arc<LiveBatch>, usize)> {
    let mut batches: Vec<(&Arc<LiveBatch>, usize)> = Vec::new();
    for (_, group, column) in places {
        batches.extend(groups[*group].batches.iter().map(|batch| (batch, *column)));
    }
    batches.sort_by_key(|(batch, _)| batch.arrival);
    batches.into_iter()
}

#[cfg(test)]
mod tests {
    use wholegrain_model::SensorPath;

    use super::*;

    fn group(prefix: &str, names: &[&str]) -> SealGroup {
        let sensors = names.iter().map(|name| SensorDef::gauge(*name, "1", "")).collect();
        let schema = Schema::new(SensorPath::new(prefix).unwrap(), "g", sensors).unwrap();
        let mut by_name: Vec<u32> = (0..names.len() as u32).collect();
        by_name.sort_by_key(|at| names[*at as usize]);
        SealGroup { schema, batches: Vec::new(), decoded: None, by_name: by_name.into() }
    }

    #[test]
    fn only_groups_among_whose_sensors_others_lie_are_sorted_together() {
        let groups = [
            group("/n2", &["x"]),
            group("/n1", &["cpu/b", "cpu/a", "mem/a"]),
            group("/n1", &["cpu/c"]),
            group("/n1", &["net/a", "mem/b"]),
            group("/n10", &["x"]),
            group("/n2", &["x"]),
        ];
        assert_eq!(apart(&groups), [vec![1, 2], vec![3], vec![4], vec![0, 5]]);
        let mut paths: Vec<String> = Vec::new();
        for together in apart(&groups) {
            let of = |at: &usize| {
                let group = &groups[*at];
                group.by_name.iter().map(|column| group.schema.path(*column as usize)).collect::<Vec<_>>()
            };
            let mut some: Vec<String> = together.iter().flat_map(of).collect();
            if together.len() > 1 {
                some.sort();
            }
            paths.append(&mut some);
        }
        assert!(paths.is_sorted(), "{paths:?}");
    }
}
