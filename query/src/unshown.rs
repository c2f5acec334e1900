//! Values that an answer cannot show as they are: it has one type for all of its values.

use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{ColumnValues, Conversion};
use wholegrain_store::Chunk;

use crate::columns::raw::rescale;
use crate::scale::Scale;
use crate::units::converted_chunk;

/// The most sensors that are told of by name, of each kind.
const TOLD_MAX: usize = 8;
/// Beyond this floats do not have every integer.
const EXACT_MAX: u64 = 1 << 53;

/// How many values of which sensors.
#[derive(Debug, Default)]
struct Count {
    told: Vec<(Arc<str>, u64)>,
    more: u64,
}

impl Count {
    fn add(&mut self, path: &Arc<str>, count: u64) {
        if let Some((_, known)) = self.told.iter_mut().find(|(told, _)| told == path) {
            *known += count;
        } else if self.told.len() < TOLD_MAX {
            self.told.push((path.clone(), count));
        } else {
            self.more += count;
        }
    }

    fn notes(&self, what: &str) -> Vec<String> {
        let mut notes: Vec<String> = self.told.iter().map(|(path, count)| format!("{path}: {count} {what}")).collect();
        if self.more > 0 {
            notes.push(format!("more sensors: {} {what}", self.more));
        }
        notes
    }
}

/// What was met so far.
#[derive(Debug, Default)]
pub(crate) struct Unshown {
    /// No integers of 64 bits in an answer of integers: gaps in their place.
    gaps: Mutex<Count>,
    /// Integers that floats do not have.
    rounded: Mutex<Count>,
}

impl Unshown {
    /// A chunk of readings of a sensor in the answer's unit and type.
    pub fn readings(&self, path: &Arc<str>, chunk: Chunk, scale: Scale, exact: bool) -> Chunk {
        let ColumnValues::Int(values) = &chunk.column.values else { return self.told(path, chunk, scale, exact) };
        if exact && !scale.is_one() {
            return self.told(path, chunk, scale, exact);
        }
        // Nearly never is there one, and that is found without a branch for each.
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

    /// A chunk of the answer in another unit.
    pub fn converted(&self, path: &Arc<str>, chunk: Chunk, to: Conversion, exact: bool) -> Chunk {
        let before = gaps(&chunk);
        let chunk = converted_chunk(chunk, to, exact);
        self.gaps_of(path, gaps(&chunk) - before);
        chunk
    }

    fn told(&self, path: &Arc<str>, chunk: Chunk, scale: Scale, exact: bool) -> Chunk {
        let before = gaps(&chunk);
        let chunk = rescale(chunk, scale, exact);
        self.gaps_of(path, gaps(&chunk) - before);
        chunk
    }

    /// The rows of windows, each of which has a value: what is a gap could not be shown.
    pub fn windows(&self, path: &Arc<str>, chunk: Chunk) -> Chunk {
        self.gaps_of(path, gaps(&chunk));
        chunk
    }

    fn gaps_of(&self, path: &Arc<str>, count: u64) {
        if count > 0 {
            self.gaps.lock().unwrap_or_else(PoisonError::into_inner).add(path, count);
        }
    }

    /// A sentence for each sensor.
    pub fn notes(&self) -> Vec<String> {
        let gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes = gaps.notes(
            "values are no integers of 64 bits in the answer's unit, and are gaps here; the mean, or an answer with a sensor of floats, has them",
        );
        let rounded = self.rounded.lock().unwrap_or_else(PoisonError::into_inner);
        notes.extend(rounded.notes(
            "integers beyond 2^53 are rounded, because the answer is of floats; choose integers apart from floats to have every digit",
        ));
        notes
    }
}

fn gaps(chunk: &Chunk) -> u64 {
    chunk.column.gaps.0.iter().map(|word| u64::from(word.count_ones())).sum()
}
