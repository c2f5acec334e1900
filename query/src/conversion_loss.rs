//! Counts values that a result cannot represent: all values of a result have one type.

use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{ColumnValues, Conversion};
use wholegrain_store::Chunk;

use crate::columns::raw::rescale;
use crate::scale::Scale;
use crate::units::converted_chunk;

/// The most sensors that notes name, for each kind of loss.
const NAMED_MAX: usize = 8;
/// Floats represent every integer up to this one.
const EXACT_MAX: u64 = 1 << 53;

/// Numbers of values by sensor; sensors beyond [`NAMED_MAX`] are counted together.
#[derive(Debug, Default)]
struct SensorCounts {
    named: Vec<(Arc<str>, u64)>,
    more: u64,
}

impl SensorCounts {
    fn add(&mut self, path: &Arc<str>, count: u64) {
        if let Some((_, known)) = self.named.iter_mut().find(|(named, _)| named == path) {
            *known += count;
        } else if self.named.len() < NAMED_MAX {
            self.named.push((path.clone(), count));
        } else {
            self.more += count;
        }
    }

    fn notes(&self, what: &str) -> Vec<String> {
        let mut notes: Vec<String> = self.named.iter().map(|(path, count)| format!("{path}: {count} {what}")).collect();
        if self.more > 0 {
            notes.push(format!("more sensors: {} {what}", self.more));
        }
        notes
    }
}

/// The values lost so far.
#[derive(Debug, Default)]
pub(crate) struct ConversionLoss {
    /// Values that do not fit into the result's 64-bit integers and became gaps.
    gaps: Mutex<SensorCounts>,
    /// Integers that were rounded to floats.
    rounded: Mutex<SensorCounts>,
}

impl ConversionLoss {
    /// Scales a chunk of readings to the result's unit and type.
    pub fn readings(&self, path: &Arc<str>, chunk: Chunk, scale: Scale, exact: bool) -> Chunk {
        let ColumnValues::Int(values) = &chunk.column.values else { return self.rescale(path, chunk, scale, exact) };
        if exact && !scale.is_one() {
            return self.rescale(path, chunk, scale, exact);
        }
        // Such values are rare: one pass without branches checks for any.
        let beyond = |value: &i64| value.unsigned_abs() > EXACT_MAX;
        if !exact && scale.is_one() && values.iter().fold(false, |any, value| any | beyond(value)) {
            let is_gap = |row: usize| chunk.column.gaps.is_gap(row);
            let count = values.iter().enumerate().filter(|(row, value)| beyond(value) && !is_gap(*row)).count();
            if count > 0 {
                self.rounded.lock().unwrap_or_else(PoisonError::into_inner).add(path, count as u64);
            }
        }
        rescale(chunk, scale, exact)
    }

    /// Converts a chunk of the result to another unit.
    pub fn converted(&self, path: &Arc<str>, chunk: Chunk, to: Conversion, exact: bool) -> Chunk {
        let before = gaps(&chunk);
        let chunk = converted_chunk(chunk, to, exact);
        self.gaps_of(path, gaps(&chunk) - before);
        chunk
    }

    fn rescale(&self, path: &Arc<str>, chunk: Chunk, scale: Scale, exact: bool) -> Chunk {
        let before = gaps(&chunk);
        let chunk = rescale(chunk, scale, exact);
        self.gaps_of(path, gaps(&chunk) - before);
        chunk
    }

    /// Rows of windows. Every window has a value, so a gap is a value that was lost.
    pub fn windows(&self, path: &Arc<str>, chunk: Chunk) -> Chunk {
        self.gaps_of(path, gaps(&chunk));
        chunk
    }

    fn gaps_of(&self, path: &Arc<str>, count: u64) {
        if count > 0 {
            self.gaps.lock().unwrap_or_else(PoisonError::into_inner).add(path, count);
        }
    }

    /// One sentence for each sensor.
    pub fn notes(&self) -> Vec<String> {
        let gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes = gaps.notes(
            "values do not fit into 64-bit integers in the unit of the result and are gaps here; to get them, query the mean or add a sensor of floats",
        );
        let rounded = self.rounded.lock().unwrap_or_else(PoisonError::into_inner);
        notes.extend(rounded.notes(
            "integers beyond 2^53 are rounded, because the result has floats; to get every digit, query sensors of integers separately",
        ));
        notes
    }
}

fn gaps(chunk: &Chunk) -> u64 {
    chunk.column.gaps.count() as u64
}
