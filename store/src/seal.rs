//! Sealing: a closed journal segment becomes blocks, one for each UTC day and type of value.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use wholegrain_model::schema::SensorDef;
use wholegrain_model::{Column, ColumnValues, Schema, ValueType};
use wholegrain_transport::payload::append_columns;

use crate::block::record::BlockKind;
use crate::catalogue::CatalogueChange;
use crate::chunk::{append, empty};
use crate::live::{LiveBatch, LiveSegment};
use crate::live_columns::{chunks, join, present, rows_of};
use crate::log::ClosedLog;
use crate::publish::{BlockDraft, FinishedBlock, publish, reconcile, remove_segment};
use crate::ranges::RangeSet;
use crate::scan::TimeOrder;
use crate::sensors::HEARD_SENSORS;
use crate::stats::add;
use crate::store::Shared;
use crate::time::DAY_NS;
use crate::{Chunk, SensorId, StoreError};

/// The most days that one seal makes blocks of their own for; readings of further days go together into one block that is never merged.
/// Only a broken clock or a drained spool of two months gets there.
const DAYS_MAX: usize = 64;
/// Stands for a group where a sensor's readings came without a schema. After all groups, so that a reading counts before a batch's of its time.
const SCHEMALESS: usize = usize::MAX;

/// Seals the oldest closed segment; `false` when there is none.
pub(crate) fn seal_oldest(shared: &Shared) -> Result<bool, StoreError> {
    let _one_at_a_time = shared.sealing.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    let Some(segment) = shared.view().closed.first().cloned() else { return Ok(false) };
    let mut drafts = BlockDrafts::new(shared, segment.number, DAYS_MAX);
    let result = write_segment(shared, &segment, &mut drafts);
    let finished = match result {
        Ok(()) => drafts.finish()?,
        Err(error) => {
            drafts.discard();
            return Err(error);
        }
    };
    // The journal is what an opening learns from what came late: before it goes, no result may be kept that does not have it.
    shared.sync_invalidations().inspect_err(|_| finished.iter().for_each(|block| block.discard(shared)))?;
    let (ranges, groups) = commit_state_after(shared, &segment);
    let encoded = ranges.iter().map(|((agent, boot), set)| (agent.clone(), *boot, set.encode())).collect();
    let heard = newest_times(shared, &segment);
    let change = CatalogueChange {
        sealed_through: Some(segment.number),
        ranges: encoded,
        groups,
        heard,
        ..CatalogueChange::default()
    };
    publish(shared, &finished, &[], change)?;
    {
        let mut commit_state = shared.commit_state.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.into_iter().for_each(|((agent, boot), set)| commit_state.sealed.set(&agent, boot, set));
    }
    remove_segment(shared, segment.number, &segment.size());
    add(&shared.counters.seals, 1);
    crate::properties::keep_up(shared);
    Ok(true)
}

type SequenceRanges = HashMap<(Arc<str>, u64), RangeSet>;
type GroupStates = Vec<(wholegrain_model::SchemaHash, crate::sensors::GroupState)>;

/// The ranges and groups as they are when this segment is in blocks.
fn commit_state_after(shared: &Shared, segment: &LiveSegment) -> (SequenceRanges, GroupStates) {
    let commit_state = shared.commit_state.lock().unwrap_or_else(PoisonError::into_inner);
    let sensors = shared.sensors.read().unwrap_or_else(PoisonError::into_inner);
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

/// The newest times of the sensors without a schema that are in this segment, and of those that share an entry of the catalogue with them.
fn newest_times(shared: &Shared, segment: &LiveSegment) -> Vec<(u32, Vec<u8>)> {
    let chunks: BTreeSet<u32> = segment.all_readings().sensors.iter().map(|id| id / HEARD_SENSORS).collect();
    let sensors = shared.sensors();
    chunks.into_iter().map(|chunk| (chunk, sensors.newest_times(chunk))).collect()
}

/// One schema's batches, decoded when its first sensor is due.
struct SealGroup {
    schema: Schema,
    batches: Vec<Arc<LiveBatch>>,
    decoded: Option<DecodedGroup>,
    /// Its columns in the order of their names; schemas with the same sensors have it in common.
    by_name: Arc<[u32]>,
}

#[derive(Default)]
struct DecodedGroup {
    times: Vec<i64>,
    order: TimeOrder,
    columns: Vec<Column>,
    left: usize,
}

/// Goes through the sensors of the segment in the order of their paths. A group's columns are in memory from its first sensor to its last.
fn write_segment(shared: &Shared, segment: &LiveSegment, drafts: &mut BlockDrafts) -> Result<(), StoreError> {
    let mut groups = groups_of(segment);
    let schemaless = segment.all_readings();
    if !schemaless.sensors.is_empty() {
        let all: Vec<usize> = (0..groups.len()).collect();
        return write_together(shared, &mut groups, &all, &schemaless, drafts);
    }
    let mut scratch = DecodedGroup::default();
    for together in apart(&groups) {
        match together[..] {
            [alone] => write_alone(shared, &groups[alone], &mut scratch, drafts)?,
            _ => write_together(shared, &mut groups, &together, &schemaless, drafts)?,
        }
    }
    Ok(())
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

/// The groups in the order of their paths. Those among whose paths another one's lie are together: their sensors have to be sorted.
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

/// A group whose sensors stand together. `scratch` keeps its memory from one group to the next.
fn write_alone(
    shared: &Shared,
    group: &SealGroup,
    scratch: &mut DecodedGroup,
    drafts: &mut BlockDrafts,
) -> Result<(), StoreError> {
    scratch.fill(shared, &group.schema, &group.batches);
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

/// Groups whose sensors stand between each other's, and the sensors without a schema.
fn write_together(
    shared: &Shared,
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
        let known = shared.sensors();
        let path = |(slot, id): (usize, &u32)| Some((known.path(SensorId(*id))?, SCHEMALESS, slot));
        sensors.extend(schemaless.sensors.iter().enumerate().filter_map(path));
    }
    let readings = schemaless.sorted();
    sensors.sort_unstable();
    for same in sensors.chunk_by(|a, b| a.0 == b.0) {
        match same {
            [(path, SCHEMALESS, slot)] => {
                for chunk in chunks(readings.readings(*slot).map(present).collect()) {
                    drafts.push(path, &chunk.times, &chunk.column)?;
                }
            }
            [.., (path, SCHEMALESS, slot)] => {
                let mut rows = rows_of(in_order(groups, &same[..same.len() - 1]), |batch, error| {
                    undecodable(shared, batch, error);
                });
                rows.extend(readings.readings(*slot).map(present));
                for chunk in chunks(rows) {
                    drafts.push(path, &chunk.times, &chunk.column)?;
                }
            }
            [(path, group, column)] => {
                let chunk = groups[*group].take(shared, *column);
                drafts.push(path, &chunk.times, &chunk.column)?;
            }
            several => {
                for chunk in combine(shared, groups, several) {
                    drafts.push(&several[0].0, &chunk.times, &chunk.column)?;
                }
            }
        }
    }
    Ok(())
}

impl SealGroup {
    /// One sensor's readings, in time order. Each column is taken once.
    fn take(&mut self, shared: &Shared, column: usize) -> Chunk {
        let decoded = self.decoded.get_or_insert_with(|| {
            let mut decoded = DecodedGroup::default();
            decoded.fill(shared, &self.schema, &self.batches);
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
    /// All columns of a group's batches, one after the other, in place of what was there.
    fn fill(&mut self, shared: &Shared, schema: &Schema, batches: &[Arc<LiveBatch>]) {
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
                undecodable(shared, batch, &error);
            }
        }
        self.order = TimeOrder::of(&times);
        self.times = self.order.times(times);
        self.left = self.columns.len();
    }
}

/// Cannot happen to what was checked before it was accepted, other than by broken memory.
fn undecodable(shared: &Shared, batch: &LiveBatch, error: &wholegrain_transport::payload::PayloadError) {
    add(&shared.counters.damaged_bytes, batch.payload.len() as u64);
    tracing::error!(agent = %batch.agent, seq = batch.seq, %error, "a batch cannot be decoded any more and is left out");
}

/// A sensor that several schemas of the segment have: its readings in the order of arrival, then sorted, integers and floats apart.
fn combine(shared: &Shared, groups: &[SealGroup], places: &[(Arc<str>, usize, usize)]) -> Vec<Chunk> {
    let mut found = join(in_order(groups, places), |batch, error| undecodable(shared, batch, error));
    found.retain(|chunk| !chunk.times.is_empty());
    found
}

/// The batches of several groups with the column of one sensor in each, in the order of arrival.
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

/// The blocks that a seal or an import writes.
pub(crate) struct BlockDrafts<'a> {
    shared: &'a Shared,
    segment: u64,
    /// How many blocks of a day of their own there may be.
    days_max: usize,
    /// By type (integers first) and day.
    open: BTreeMap<(bool, Option<i64>), BlockDraft>,
}

impl<'a> BlockDrafts<'a> {
    pub(crate) fn new(shared: &'a Shared, segment: u64, days_max: usize) -> Self {
        Self { shared, segment, days_max, open: BTreeMap::new() }
    }

    /// Readings of one sensor in time order, distributed over the days.
    pub fn push(&mut self, path: &str, times: &[i64], column: &Column) -> Result<(), StoreError> {
        let mut at = 0;
        while at < times.len() {
            let day = times[at].div_euclid(DAY_NS);
            let rows = times[at..].partition_point(|time| time.div_euclid(DAY_NS) == day);
            let draft = self.draft(day, column)?;
            if rows == times.len() {
                draft.writer.push(path, times, column)?;
            } else {
                let len = column.len();
                let value_type =
                    if matches!(column.values, ColumnValues::Int(_)) { ValueType::Int } else { ValueType::Float };
                let mut part = empty(value_type);
                append(&mut part, &column.values, &column.gaps, at, rows, len);
                draft.writer.push(path, &times[at..at + rows], &part)?;
            }
            at += rows;
        }
        Ok(())
    }

    fn draft(&mut self, day: i64, column: &Column) -> Result<&mut BlockDraft, StoreError> {
        let is_float = matches!(column.values, ColumnValues::Float(_));
        let key = (is_float, Some(day));
        let key = if self.open.len() < self.days_max || self.open.contains_key(&key) { key } else { (is_float, None) };
        match self.open.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let kind = BlockKind {
                    value_type: if is_float { ValueType::Float } else { ValueType::Int },
                    day: key.1,
                    level: 0,
                    first_segment: self.segment,
                    last_segment: self.segment,
                    import: 0,
                };
                Ok(entry.insert(BlockDraft::create(self.shared, kind, self.shared.config.seal_zstd_level)?))
            }
        }
    }

    pub(crate) fn finish(self) -> Result<Vec<FinishedBlock>, StoreError> {
        let (mut finished, mut failed) = (Vec::new(), None);
        for draft in self.open.into_values() {
            match failed {
                None => match draft.finish(self.shared) {
                    Ok(block) => finished.push(block),
                    Err(error) => failed = Some(error),
                },
                Some(_) => draft.discard(self.shared),
            }
        }
        match failed {
            None => Ok(finished),
            Some(error) => {
                finished.iter().for_each(|block| block.discard(self.shared));
                Err(error)
            }
        }
    }

    pub(crate) fn discard(self) {
        self.open.into_values().for_each(|draft| draft.discard(self.shared));
    }
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
