//! Decodes the columns of batches that are not sealed.

use std::sync::Arc;

use wholegrain_model::{Column, ColumnValues, Gaps, Value, ValueType};
use wholegrain_transport::payload::decode_column;

use crate::Chunk;
use crate::chunk::{append, empty};
use crate::head::live::LiveBatch;
use crate::scan::TimeOrder;
use crate::sensors::reading::GAP_BITS;

/// Decodes one sensor's column of each batch into readings, in the order of the batches.
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

/// Decodes one sensor's column of each batch into at most one chunk of each type. Later batches count more.
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
        let order = TimeOrder::of(&run.times);
        Chunk { times: order.times(run.times), column: order.column(run.column) }
    };
    runs.into_iter().flatten().map(sorted).collect()
}

/// Sorts the readings of one sensor, given in the order of arrival, into at most one chunk of each type. If a time occurs twice, the later arrival
/// counts, whatever the types.
pub(crate) fn chunks(mut readings: Vec<(i64, Option<Value>, ValueType)>) -> Vec<Chunk> {
    if !readings.is_sorted_by(|a, b| a.0 < b.0) {
        readings.sort_by_key(|reading| reading.0);
        // `dedup_by` keeps the first of equal ones, so the later is moved there.
        readings.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
    }
    let mut found = Vec::new();
    for value_type in [ValueType::Int, ValueType::Float] {
        let mut times = Vec::new();
        let (mut ints, mut floats, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        for (time, value, _) in readings.iter().filter(|reading| reading.2 == value_type) {
            if value.is_none() {
                gaps.push(times.len());
            }
            times.push(*time);
            match value {
                Some(Value::Int(value)) => ints.push(*value),
                Some(Value::Float(value)) => floats.push(*value),
                None if value_type == ValueType::Int => ints.push(0),
                None => floats.push(0.0),
            }
        }
        if times.is_empty() {
            continue;
        }
        let values = if value_type == ValueType::Int { ColumnValues::Int(ints) } else { ColumnValues::Float(floats) };
        let mut column = Column { values, gaps: Gaps::default() };
        gaps.iter().for_each(|at| column.gaps.set(*at, times.len()));
        found.push(Chunk { times, column });
    }
    found
}

/// A reading of a schemaless sensor, as [`chunks`] takes it.
pub(crate) fn schemaless_row((time, value): (i64, Value)) -> (i64, Option<Value>, ValueType) {
    match value {
        Value::Int(_) => (time, Some(value), ValueType::Int),
        Value::Float(float) if float.to_bits() == GAP_BITS => (time, None, ValueType::Float),
        Value::Float(_) => (time, Some(value), ValueType::Float),
    }
}
