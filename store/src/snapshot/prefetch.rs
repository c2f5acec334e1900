//! Decodes columns of unsealed batches ahead of a query over many sensors of a group. A batch holds the columns of its sensors one after the other:
//! decoding them sensor by sensor would pass over the same bytes once for each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{Column, Schema, SchemaHash};
use wholegrain_transport::payload::{PayloadError, decode_column, for_each_column};

use crate::Chunk;
use crate::chunk::{append, empty};
use crate::head::live::LiveBatch;
use crate::scan::TimeOrder;

/// The most bytes of values decoded ahead for one group.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// The most bytes of values and times decoded ahead for one reader; above it the columns of the least recently used group are dropped.
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Decoding a whole batch costs about as much as passing over its columns this many times.
const WHOLE_BATCH_COLUMNS: usize = 8;

/// What one reader has decoded ahead.
#[derive(Default)]
pub(crate) struct DecodedColumns(Mutex<DecodedColumnsContent>);

#[derive(Default)]
struct DecodedColumnsContent {
    /// The columns that will be requested, in order, by schema.
    expected: HashMap<SchemaHash, VecDeque<u32>>,
    /// The least recently used first.
    groups: Vec<DecodedGroupColumns>,
}

struct DecodedGroupColumns {
    schema: SchemaHash,
    range: (i64, i64),
    times: Vec<i64>,
    columns: HashMap<u32, Column>,
}

impl DecodedGroupColumns {
    fn bytes(&self) -> usize {
        (self.columns.len() + 1) * self.times.len() * size_of::<i64>()
    }
}

impl DecodedColumns {
    /// For scans of these columns, in this order.
    pub fn new(places: impl Iterator<Item = (SchemaHash, u32)>) -> Self {
        let mut expected: HashMap<SchemaHash, VecDeque<u32>> = HashMap::new();
        for (schema, column) in places {
            expected.entry(schema).or_default().push_back(column);
        }
        // A single column is decoded by its scan.
        expected.retain(|_, columns| columns.len() > 1);
        Self(Mutex::new(DecodedColumnsContent { expected, groups: Vec::new() }))
    }

    /// One sensor's readings from the batches of `from <= time < to`, in time order. `None`, and nothing decoded, if it was not expected. `batches`
    /// is called only if needed.
    pub fn take(
        &self,
        schema: &Schema,
        column: u32,
        range: (i64, i64),
        batches: impl FnOnce() -> Vec<Arc<LiveBatch>>,
        fault: impl FnMut(&LiveBatch, &PayloadError),
    ) -> Option<Chunk> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = schema.hash();
        // Several threads may read different groups of one schema.
        let holds = |group: &DecodedGroupColumns| {
            group.schema == hash && group.range == range && group.columns.contains_key(&column)
        };
        let at = state.groups.iter().position(holds);
        let known = at.map(|at| state.groups.remove(at));
        if let Some(mut group) = known {
            let found = group.columns.remove(&column);
            let done = group.columns.is_empty();
            let chunk = found.map(|column| Chunk { times: group.times.clone(), column });
            if !done {
                state.groups.push(group);
            }
            if chunk.is_some() {
                return chunk;
            }
        }
        let expected = state.expected.get_mut(&hash)?;
        // Another thread may still request those before it.
        let skip = expected.iter().position(|next| *next == column)?;
        let batches = batches();
        let rows: usize = batches.iter().map(|batch| batch.samples).sum();
        let width = (GROUP_BYTES_MAX / size_of::<i64>() / rows.max(1)).max(1).min(expected.len() - skip);
        let wanted: Vec<u32> = expected.drain(skip..skip + width).collect();
        let mut group = decode(schema, range, &batches, &wanted, fault);
        let found = group.columns.remove(&column);
        let chunk = found.map(|column| Chunk { times: group.times.clone(), column });
        state.groups.retain(|group| group.schema != hash || group.range == range);
        state.groups.push(group);
        while state.groups.len() > 1
            && state.groups.iter().map(DecodedGroupColumns::bytes).sum::<usize>() > AHEAD_BYTES_MAX
        {
            state.groups.remove(0);
        }
        chunk
    }
}

/// The requested columns of all batches, each in time order. Batches are in the order of arrival.
fn decode(
    schema: &Schema,
    range: (i64, i64),
    batches: &[Arc<LiveBatch>],
    wanted: &[u32],
    mut fault: impl FnMut(&LiveBatch, &PayloadError),
) -> DecodedGroupColumns {
    let rows = batches.iter().map(|batch| batch.samples).sum();
    let mut slots = vec![usize::MAX; schema.len()];
    wanted.iter().enumerate().for_each(|(slot, column)| slots[*column as usize] = slot);
    let value_type = |column: &u32| schema.sensors()[*column as usize].value_type;
    let mut columns: Vec<Column> = wanted.iter().map(|column| empty(value_type(column))).collect();
    let mut times: Vec<i64> = Vec::with_capacity(rows);
    for batch in batches {
        let mut put = |index: usize, column: &Column| {
            if let Some(to) = columns.get_mut(slots[index]) {
                append(to, &column.values, &column.gaps, 0, column.len(), rows);
            }
        };
        let found = if wanted.len() >= WHOLE_BATCH_COLUMNS {
            for_each_column(&batch.payload, schema, put)
        } else {
            let mut one = |column: &u32| {
                let (times, values) = decode_column(&batch.payload, schema, *column as usize)?;
                put(*column as usize, &values);
                Ok(times)
            };
            wanted.iter().try_fold(Vec::new(), |_, column| one(column))
        };
        match found {
            Ok(found) => times.extend(found),
            Err(error) => {
                // Rows decoded before the fault are dropped, so that all columns have the same rows.
                columns.iter_mut().for_each(|column| truncate(column, times.len()));
                fault(batch, &error);
            }
        }
    }
    let order = TimeOrder::of(&times);
    let times = order.times(times);
    let columns = wanted.iter().zip(columns).map(|(at, column)| (*at, order.column(column))).collect();
    DecodedGroupColumns { schema: schema.hash(), range, times, columns }
}

fn truncate(column: &mut Column, rows: usize) {
    use wholegrain_model::ColumnValues;
    for row in rows..column.len() {
        if let Some(word) = column.gaps.0.get_mut(row / 64) {
            *word &= !(1 << (row % 64));
        }
    }
    match &mut column.values {
        ColumnValues::Int(values) => values.truncate(rows),
        ColumnValues::Float(values) => values.truncate(rows),
    }
}
