//! Sealing: a closed journal segment becomes blocks, one for each UTC day and type of value.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use wholegrain_model::{Column, ColumnValues, Schema, Value, ValueType};
use wholegrain_transport::payload::{decode_column, for_each_column};

use crate::block::read::{append, empty};
use crate::catalogue::Change;
use crate::live::{LiveBatch, Segment};
use crate::log::{chunks, present};
use crate::publish::{DAY_NS, Draft, Finished, Kind, publish, reconcile, remove_segment};
use crate::ranges::RangeSet;
use crate::scan::Order;
use crate::sensors::HEARD_SENSORS;
use crate::stats::add;
use crate::store::Shared;
use crate::{Chunk, SensorId, StoreError};

/// The most days that one seal makes blocks of their own for; readings of further days go together into one block that is never merged.
/// Only a broken clock or a drained spool of two months gets there.
const DAYS_MAX: usize = 64;
/// Stands for a group where a sensor's readings came without a schema. After all groups, so that a reading counts before a batch's of its time.
const LOOSE: usize = usize::MAX;

/// Seals the oldest closed segment; `false` when there is none.
pub(crate) fn seal_oldest(shared: &Shared) -> Result<bool, StoreError> {
    let _one_at_a_time = shared.sealing.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reconcile(shared)?);
    let Some(segment) = shared.view().closed.first().cloned() else { return Ok(false) };
    let mut drafts = Drafts::new(shared, segment.number, DAYS_MAX);
    let result = write_segment(shared, &segment, &mut drafts);
    let finished = match result {
        Ok(()) => drafts.finish()?,
        Err(error) => {
            drafts.discard();
            return Err(error);
        }
    };
    // The journal is what an opening learns from what came late: before it goes, no result may be kept that does not have it.
    shared.settle_derived().inspect_err(|_| finished.iter().for_each(|block| block.discard(shared)))?;
    let (ranges, groups) = what_is_held(shared, &segment);
    let encoded = ranges.iter().map(|((agent, boot), set)| (agent.clone(), *boot, set.encode())).collect();
    let heard = heard_times(shared, &segment);
    let change = Change { sealed_through: Some(segment.number), ranges: encoded, groups, heard, ..Change::default() };
    publish(shared, &finished, &[], change)?;
    {
        let mut ledger = shared.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.into_iter().for_each(|((agent, boot), set)| ledger.sealed.set(&agent, boot, set));
    }
    remove_segment(shared, segment.number, &segment.size());
    add(&shared.counters.seals, 1);
    crate::properties::keep_up(shared);
    Ok(true)
}

type Ranges = HashMap<(Arc<str>, u64), RangeSet>;
type Groups = Vec<(wholegrain_model::SchemaHash, crate::sensors::GroupState)>;

/// The ranges and groups as they are when this segment is in blocks.
fn what_is_held(shared: &Shared, segment: &Segment) -> (Ranges, Groups) {
    let ledger = shared.ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let sensors = shared.sensors.read().unwrap_or_else(PoisonError::into_inner);
    let mut ranges: Ranges = HashMap::new();
    let mut groups = Vec::new();
    for batches in segment.groups() {
        for batch in &batches {
            let known = || ledger.sealed.ranges(&batch.agent, batch.boot).cloned().unwrap_or_default();
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
fn heard_times(shared: &Shared, segment: &Segment) -> Vec<(u32, Vec<u8>)> {
    let chunks: BTreeSet<u32> = segment.all_readings().sensors.iter().map(|id| id / HEARD_SENSORS).collect();
    let sensors = shared.sensors();
    chunks.into_iter().map(|chunk| (chunk, sensors.heard_times(chunk))).collect()
}

/// One schema's batches, decoded when its first sensor is due.
struct Group {
    schema: Schema,
    batches: Vec<Arc<LiveBatch>>,
    decoded: Option<Decoded>,
}

struct Decoded {
    times: Vec<i64>,
    order: Order,
    columns: Vec<Option<Column>>,
    left: usize,
}

/// Goes through the sensors of the segment in the order of their paths. A group's columns are in memory from its first sensor to its last.
fn write_segment(shared: &Shared, segment: &Segment, drafts: &mut Drafts) -> Result<(), StoreError> {
    let mut groups: Vec<Group> = Vec::new();
    for batches in segment.groups() {
        if let Some(first) = batches.first() {
            groups.push(Group { schema: first.schema.clone(), batches, decoded: None });
        }
    }
    let mut sensors: Vec<(Arc<str>, usize, usize)> = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        sensors.extend((0..group.schema.len()).map(|column| (group.schema.path(column).into(), at, column)));
    }
    let loose = segment.all_readings();
    {
        let known = shared.sensors();
        let path = |(slot, id): (usize, &u32)| Some((known.path(SensorId(*id))?, LOOSE, slot));
        sensors.extend(loose.sensors.iter().enumerate().filter_map(path));
    }
    let readings = loose.sorted();
    sensors.sort_unstable();
    for same in sensors.chunk_by(|a, b| a.0 == b.0) {
        match same {
            [(path, LOOSE, slot)] => {
                for chunk in chunks(readings.readings(*slot).map(present).collect()) {
                    drafts.push(path, &chunk.times, &chunk.column)?;
                }
            }
            [.., (path, LOOSE, slot)] => {
                let mut rows = rows_of(in_order(&groups, &same[..same.len() - 1]), |batch, error| {
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
                for chunk in combine(shared, &groups, several) {
                    drafts.push(&several[0].0, &chunk.times, &chunk.column)?;
                }
            }
        }
    }
    Ok(())
}

impl Group {
    /// One sensor's readings, in time order. Each column is taken once.
    fn take(&mut self, shared: &Shared, column: usize) -> Chunk {
        let decoded = self.decoded.get_or_insert_with(|| decode(shared, &self.schema, &self.batches));
        let values = decoded.columns[column].take();
        let values = values.unwrap_or_else(|| empty(self.schema.sensors()[column].value_type));
        decoded.left = decoded.left.saturating_sub(1);
        let chunk = if decoded.left == 0 {
            let decoded = self.decoded.take();
            decoded.map(|decoded| Chunk { times: decoded.times, column: decoded.order.column(values) })
        } else {
            Some(Chunk { times: decoded.times.clone(), column: decoded.order.column(values) })
        };
        chunk.unwrap_or_else(|| Chunk { times: Vec::new(), column: empty(ValueType::Int) })
    }
}

/// All columns of a group's batches, one after the other.
fn decode(shared: &Shared, schema: &Schema, batches: &[Arc<LiveBatch>]) -> Decoded {
    let rows = batches.iter().map(|batch| batch.samples).sum();
    let column = |value_type| match value_type {
        ValueType::Int => ColumnValues::Int(Vec::with_capacity(rows)),
        ValueType::Float => ColumnValues::Float(Vec::with_capacity(rows)),
    };
    let mut columns: Vec<Column> = schema
        .sensors()
        .iter()
        .map(|sensor| Column { values: column(sensor.value_type), gaps: wholegrain_model::Gaps::default() })
        .collect();
    let mut times = Vec::with_capacity(rows);
    for batch in batches {
        let each =
            |at: usize, column: &Column| append(&mut columns[at], &column.values, &column.gaps, 0, column.len(), rows);
        match for_each_column(&batch.payload, schema, each) {
            Ok(more) => times.extend(more),
            Err(error) => undecodable(shared, batch, &error),
        }
    }
    let order = Order::of(&times);
    let times = order.times(times);
    Decoded { times, order, left: columns.len(), columns: columns.into_iter().map(Some).collect() }
}

/// Cannot happen to what was checked before it was accepted, other than by broken memory.
fn undecodable(shared: &Shared, batch: &LiveBatch, error: &wholegrain_transport::payload::PayloadError) {
    add(&shared.counters.damaged_bytes, batch.payload.len() as u64);
    tracing::error!(agent = %batch.agent, seq = batch.seq, %error, "a batch cannot be decoded any more and is left out");
}

/// A sensor that several schemas of the segment have: its readings in the order of arrival, then sorted, integers and floats apart.
fn combine(shared: &Shared, groups: &[Group], places: &[(Arc<str>, usize, usize)]) -> Vec<Chunk> {
    let mut found = join(in_order(groups, places), |batch, error| undecodable(shared, batch, error));
    found.retain(|chunk| !chunk.times.is_empty());
    found
}

/// The batches of several groups with the column of one sensor in each, in the order of arrival.
fn in_order<'a>(
    groups: &'a [Group],
    places: &[(Arc<str>, usize, usize)],
) -> impl Iterator<Item = (&'a Arc<LiveBatch>, usize)> {
    let mut batches: Vec<(&Arc<LiveBatch>, usize)> = Vec::new();
    for (_, group, column) in places {
        batches.extend(groups[*group].batches.iter().map(|batch| (batch, *column)));
    }
    batches.sort_by_key(|(batch, _)| batch.arrival);
    batches.into_iter()
}

/// One sensor's column of each batch, reading by reading, in the order of the batches.
pub(crate) fn rows_of<'a>(
    batches: impl Iterator<Item = (&'a Arc<LiveBatch>, usize)>,
    mut fault: impl FnMut(&LiveBatch, &wholegrain_transport::payload::PayloadError),
) -> Vec<(i64, Option<Value>, ValueType)> {
    let mut rows = Vec::new();
    for (batch, column) in batches {
        let value_type = batch.schema.sensors()[column].value_type;
        match decode_column(&batch.payload, &batch.schema, column) {
            Ok((times, values)) => {
                rows.extend(times.iter().enumerate().map(|(at, time)| (*time, values.get(at), value_type)));
            }
            Err(error) => fault(batch, &error),
        }
    }
    rows
}

/// One sensor's column of each batch, later batches counting more, joined into at most one run of each type.
pub(crate) fn join<'a>(
    batches: impl Iterator<Item = (&'a Arc<LiveBatch>, usize)>,
    mut fault: impl FnMut(&LiveBatch, &wholegrain_transport::payload::PayloadError),
) -> Vec<Chunk> {
    let mut runs: [Option<Chunk>; 2] = [None, None];
    for (batch, column) in batches {
        let (times, values) = match decode_column(&batch.payload, &batch.schema, column) {
            Ok(decoded) => decoded,
            Err(error) => {
                fault(batch, &error);
                continue;
            }
        };
        let value_type = batch.schema.sensors()[column].value_type;
        let slot = usize::from(value_type == ValueType::Float);
        let run = runs[slot].get_or_insert_with(|| Chunk { times: Vec::new(), column: empty(value_type) });
        let len = run.times.len() + times.len();
        append(&mut run.column, &values.values, &values.gaps, 0, times.len(), len);
        run.times.extend(times);
    }
    let sorted = |run: Chunk| {
        let order = Order::of(&run.times);
        Chunk { times: order.times(run.times), column: order.column(run.column) }
    };
    runs.into_iter().flatten().map(sorted).collect()
}

/// The blocks that a seal or an import writes.
pub(crate) struct Drafts<'a> {
    shared: &'a Shared,
    segment: u64,
    /// How many blocks of a day of their own there may be.
    days_max: usize,
    /// By type (integers first) and day.
    open: BTreeMap<(bool, Option<i64>), Draft>,
}

impl<'a> Drafts<'a> {
    pub fn new(shared: &'a Shared, segment: u64, days_max: usize) -> Self {
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

    fn draft(&mut self, day: i64, column: &Column) -> Result<&mut Draft, StoreError> {
        let is_float = matches!(column.values, ColumnValues::Float(_));
        let key = (is_float, Some(day));
        let key = if self.open.len() < self.days_max || self.open.contains_key(&key) { key } else { (is_float, None) };
        match self.open.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let kind = Kind {
                    value_type: if is_float { ValueType::Float } else { ValueType::Int },
                    day: key.1,
                    level: 0,
                    first_segment: self.segment,
                    last_segment: self.segment,
                    import: 0,
                };
                Ok(entry.insert(Draft::create(self.shared, kind, self.shared.config.seal_zstd_level)?))
            }
        }
    }

    pub fn finish(self) -> Result<Vec<Finished>, StoreError> {
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

    pub fn discard(self) {
        self.open.into_values().for_each(|draft| draft.discard(self.shared));
    }
}
