//! Aggregates the values of one window, slice by slice.

use wholegrain_model::{Column, ColumnValues, Value};
use wholegrain_store::{TierWindows, WindowColumns as TierRows};

use super::without_gaps;
use crate::float_sum::FloatSum;
use crate::query::Agg;
use crate::scale::Scale;

/// The aggregate of the values of one window so far. Values are raw: the scale is applied at the end, so that sums of integers stay exact.
#[derive(Debug)]
pub(crate) struct ValueFold {
    agg: Agg,
    negative: bool,
    count: u64,
    ints: i128,
    floats: FloatSum,
    selected: Option<Value>,
}

impl ValueFold {
    pub(crate) fn new(agg: Agg, scale: Scale) -> Self {
        let negative = scale.is_negative();
        Self { agg, negative, count: 0, ints: 0, floats: FloatSum::default(), selected: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the rows `from..to` without gaps and NaN.
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

    /// Takes the rows `from..to` of tier windows within this one.
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
            Agg::Last => self.selected = Some(value(rows.lasts[to - 1])),
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
            Agg::Last => self.selected = Some(Value::Int(*last)),
            Agg::First => self.choose(Value::Int(*first)),
            Agg::Min | Agg::Max => {
                let best = if self.wants_less() { values.iter().min() } else { values.iter().max() };
                best.into_iter().for_each(|best| self.choose(Value::Int(*best)));
            }
        }
    }

    fn floats(&mut self, values: &[f64]) {
        let is_number = |value: &&f64| !value.is_nan();
        match self.agg {
            Agg::Mean | Agg::SampleMean | Agg::Sum => {
                for value in values.iter().filter(is_number) {
                    self.count += 1;
                    self.floats.add(*value);
                }
                return;
            }
            Agg::Count => {}
            Agg::Last => {
                self.selected = values.iter().rfind(is_number).map(|last| Value::Float(*last)).or(self.selected);
            }
            Agg::First | Agg::Min | Agg::Max => {
                values.iter().filter(is_number).for_each(|value| self.choose(Value::Float(*value)));
            }
        }
        self.count += values.iter().filter(is_number).count() as u64;
    }

    /// Whether to find the least raw value: with a negative scale it is the greatest quantity.
    fn wants_less(&self) -> bool {
        (self.agg == Agg::Min) != self.negative
    }

    /// Applies first, min or max.
    fn choose(&mut self, value: Value) {
        let replaces = match (self.agg, self.selected) {
            (_, None) => true,
            (Agg::First, _) => false,
            (_, Some(best)) if self.wants_less() => less(value, best),
            (_, Some(best)) => less(best, value),
        };
        if replaces {
            self.selected = Some(value);
        }
    }

    /// The scaled value of a window that has values.
    pub fn finish(&self, scale: Scale, exact: bool) -> Option<Value> {
        let float = |value: f64| (!value.is_nan()).then_some(Value::Float(value));
        match self.agg {
            Agg::Count if exact => Some(Value::Int(i64::try_from(self.count).unwrap_or(i64::MAX))),
            Agg::Count => float(self.count as f64),
            Agg::Sum => float(scale.apply(self.ints as f64 + self.floats.total())),
            Agg::Mean | Agg::SampleMean => {
                float(scale.apply((self.ints as f64 + self.floats.total()) / self.count as f64))
            }
            _ => super::raw::scaled(self.selected?, scale, exact),
        }
    }
}

fn less(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a < b,
        (a, b) => a.as_f64() < b.as_f64(),
    }
}

/// The exact sum of integers. Upper and lower halves are added separately in 64 bits, which cannot overflow and allows vector instructions.
pub(crate) fn sum(values: &[i64]) -> i128 {
    /// The halves of this many values add up to less than 2^64.
    const BLOCK: usize = 1 << 31;
    let block = |values: &[i64]| {
        let (mut low, mut high) = (0u64, 0u64);
        for value in values {
            // Shifted by 2^63, which makes the upper half non-negative.
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
    use wholegrain_testkit::Random;

    use super::*;

    #[test]
    fn integers_are_added_without_loss() {
        let values = [i64::MAX, i64::MAX, i64::MIN, -1, 0, 1, i64::MIN, 1 << 32, -(1 << 32), 0xffff_ffff];
        for end in 0..=values.len() {
            let expected: i128 = values[..end].iter().map(|value| i128::from(*value)).sum();
            assert_eq!(sum(&values[..end]), expected, "{end}");
        }
        let mut random = Random::seeded();
        let many: Vec<i64> = (0..10_000).map(|_| random.draw().cast_signed()).collect();
        assert_eq!(sum(&many), many.iter().map(|value| i128::from(*value)).sum::<i128>());
    }
}
