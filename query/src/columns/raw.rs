//! Scales raw values.

use wholegrain_model::{ColumnValues, Gaps, Value};
use wholegrain_store::Chunk;

use super::set_gap;
use crate::scale::Scale;

/// Scales a raw value to the type of the result.
pub(crate) fn scaled(raw: Value, scale: Scale, exact: bool) -> Option<Value> {
    if exact { scale.apply_exact(raw).map(Value::Int) } else { Some(Value::Float(scale.apply(raw.as_f64()))) }
}

/// Scales a chunk: to integers if `exact`, with a gap for each that does not fit, else to floats.
pub(crate) fn rescale(mut chunk: Chunk, scale: Scale, exact: bool) -> Chunk {
    chunk.column.values = match (chunk.column.values, exact) {
        (ColumnValues::Int(values), true) if scale.is_one() => ColumnValues::Int(values),
        (ColumnValues::Float(values), false) if scale.is_one() => ColumnValues::Float(values),
        (ColumnValues::Int(values), false) => {
            ColumnValues::Float(values.iter().map(|value| scale.apply(*value as f64)).collect())
        }
        (ColumnValues::Float(values), false) => {
            ColumnValues::Float(values.iter().map(|value| scale.apply(*value)).collect())
        }
        (ColumnValues::Int(values), true) => {
            rescale_exactly(values.into_iter().map(Value::Int), scale, &mut chunk.column.gaps)
        }
        (ColumnValues::Float(values), true) => {
            rescale_exactly(values.into_iter().map(Value::Float), scale, &mut chunk.column.gaps)
        }
    };
    chunk
}

fn rescale_exactly(values: impl Iterator<Item = Value>, scale: Scale, gaps: &mut Gaps) -> ColumnValues {
    let mut scaled = Vec::new();
    for (row, value) in values.enumerate() {
        let value = scale.apply_exact(value);
        if value.is_none() {
            set_gap(gaps, row);
        }
        scaled.push(value.unwrap_or(0));
    }
    ColumnValues::Int(scaled)
}
