//! From many values to one, a slice at a time.

use wholegrain_model::{Column, ColumnValues, Value};
use wholegrain_store::{TierWindows, WindowColumns as TierRows};

use super::without_gaps;
use crate::float_sum::FloatSum;
use crate::query::Agg;
use crate::scale::Scale;

/// What is kept of the values of one window. They are raw: the scale is applied at the end, so that sums of integers lose nothing before.
#[derive(Debug)]
pub(crate) struct ValueFold {
    agg: Agg,
    negative: bool,
    count: u64,
    ints: i128,
    floats: FloatSum,
    chosen: Option<Value>,
}

impl ValueFold {
    pub(crate) fn new(agg: Agg, scale: Scale) -> Self {
        let negative = scale.is_negative();
        Self { agg, negative, count: 0, ints: 0, floats: FloatSum::default(), chosen: None }
    }

    /// Whether there was no value yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the rows `from..to`; gaps and NaN are no values.
    pub fn readings(&mut self, column: &Column, from: usize, to: usize) {
        match &column.values {
            ColumnValues::Int(values) => {
                without_gaps(&column.gaps, from, to, |from, to| self.ints(&values[from..to]));
            }
            ColumnValues::Float(values) => {
                without_gaps(&column.gaps, from, to, |from, to| self.floats(&values[from..to]));
            }
        }
    }

    /// Takes the rows `from..to` of windows that lie within this one.
    pub fn windows(&mut self, windows: &TierWindows, from: usize, to: usize) {
        match windows {
            TierWindows::Int(rows) => {
                self.window_rows(rows, from, to, Value::Int, |fold, sums| fold.ints += sum(sums));
            }
            TierWindows::Float(rows) => {
                let add = |fold: &mut Self, sums: &[f64]| sums.iter().for_each(|sum| fold.floats.add(*sum));
                self.window_rows(rows, from, to, Value::Float, add);
            }
        }
    }

    fn window_rows<T: Copy>(
        &mut self,
        rows: &TierRows<T>,
        from: usize,
        to: usize,
        value: impl Fn(T) -> Value,
        add: impl Fn(&mut Self, &[T]),
    ) {
        if from >= to {
            return;
        }
        self.count += rows.counts[from..to].iter().map(|count| count.cast_unsigned()).sum::<u64>();
        match self.agg {
            Agg::Count => {}
            Agg::Mean | Agg::SampleMean | Agg::Sum => add(self, &rows.sums[from..to]),
            Agg::Last => self.chosen = Some(value(rows.lasts[to - 1])),
            Agg::First => self.choose(value(rows.firsts[from])),
            Agg::Min | Agg::Max => {
                let of = if self.wants_less() { &rows.mins } else { &rows.maxs };
                of[from..to].iter().for_each(|best| self.choose(value(*best)));
            }
        }
    }

    fn ints(&mut self, values: &[i64]) {
        let (Some(first), Some(last)) = (values.first(), values.last()) else { return };
        self.count += values.len() as u64;
        match self.agg {
            Agg::Count => {}
            Agg::Mean | Agg::SampleMean | Agg::Sum => self.ints += sum(values),
            Agg::Last => self.chosen = Some(Value::Int(*last)),
            Agg::First => self.choose(Value::Int(*first)),
            Agg::Min | Agg::Max => {
                let best = if self.wants_less() { values.iter().min() } else { values.iter().max() };
                best.into_iter().for_each(|best| self.choose(Value::Int(*best)));
            }
        }
    }

    fn floats(&mut self, values: &[f64]) {
        let there = |value: &&f64| !value.is_nan();
        match self.agg {
            Agg::Mean | Agg::SampleMean | Agg::Sum => {
                for value in values.iter().filter(there) {
                    self.count += 1;
                    self.floats.add(*value);
                }
                return;
            }
            Agg::Count => {}
            Agg::Last => {
                self.chosen = values.iter().rfind(there).map(|last| Value::Float(*last)).or(self.chosen);
            }
            Agg::First | Agg::Min | Agg::Max => {
                values.iter().filter(there).for_each(|value| self.choose(Value::Float(*value)));
            }
        }
        self.count += values.iter().filter(there).count() as u64;
    }

    /// Whether the least raw value is sought: with a negative scale it is the greatest quantity.
    fn wants_less(&self) -> bool {
        (self.agg == Agg::Min) != self.negative
    }

    /// Of first, min and max.
    fn choose(&mut self, value: Value) {
        let replaces = match (self.agg, self.chosen) {
            (_, None) => true,
            (Agg::First, _) => false,
            (_, Some(best)) if self.wants_less() => less(value, best),
            (_, Some(best)) => less(best, value),
        };
        if replaces {
            self.chosen = Some(value);
        }
    }

    /// The window's value in the answer's unit; of a window that has values.
    pub fn finish(&self, scale: Scale, exact: bool) -> Option<Value> {
        let float = |value: f64| (!value.is_nan()).then_some(Value::Float(value));
        match self.agg {
            Agg::Count if exact => Some(Value::Int(i64::try_from(self.count).unwrap_or(i64::MAX))),
            Agg::Count => float(self.count as f64),
            Agg::Sum => float(scale.apply(self.ints as f64 + self.floats.total())),
            Agg::Mean | Agg::SampleMean => {
                float(scale.apply((self.ints as f64 + self.floats.total()) / self.count as f64))
            }
            _ => super::raw::scaled(self.chosen?, scale, exact),
        }
    }
}

fn less(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a < b,
        (a, b) => a.as_f64() < b.as_f64(),
    }
}

/// The sum of integers, exactly: their upper and lower halves are added apart, in lanes that cannot overflow.
pub(crate) fn sum(values: &[i64]) -> i128 {
    /// Of so many values the halves add up to less than 2^64.
    const BLOCK: usize = 1 << 31;
    let block = |values: &[i64]| {
        let (mut low, mut high) = (0u64, 0u64);
        for value in values {
            // Shifted by 2^63, so that the upper half is not negative.
            let shifted = value.cast_unsigned() ^ (1 << 63);
            low += shifted & 0xffff_ffff;
            high += shifted >> 32;
        }
        (i128::from(high) << 32) + i128::from(low) - ((values.len() as i128) << 63)
    };
    values.chunks(BLOCK).map(block).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_added_without_loss() {
        let values = [i64::MAX, i64::MAX, i64::MIN, -1, 0, 1, i64::MIN, 1 << 32, -(1 << 32), 0xffff_ffff];
        for end in 0..=values.len() {
            let expected: i128 = values[..end].iter().map(|value| i128::from(*value)).sum();
            assert_eq!(sum(&values[..end]), expected, "{end}");
        }
        let mut state = 1u64;
        let many: Vec<i64> = (0..10_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state.cast_signed()
            })
            .collect();
        assert_eq!(sum(&many), many.iter().map(|value| i128::from(*value)).sum::<i128>());
    }
}
