//! Windows on the wall clock and what becomes of the values within each.

use wholegrain_model::Value;
use wholegrain_store::Window;

use crate::batches::Row;
use crate::scale::Scale;
use crate::{Agg, QueryError};

/// How time is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// One window, named by its start.
    Whole(i64),
    /// Multiples of so many ns since the epoch.
    Every(i64),
}

impl Windows {
    /// Their width; `None` for one over the whole range.
    pub(crate) fn every(self) -> Option<i64> {
        match self {
            Windows::Whole(_) => None,
            Windows::Every(every) => Some(every),
        }
    }

    /// The start of the window that `time` falls into.
    pub(crate) fn start(self, time: i64) -> i64 {
        match self {
            Windows::Whole(from) => from,
            Windows::Every(every) => time.saturating_sub(time.rem_euclid(every)),
        }
    }

    /// Where the window of `time` ends (not within); the end of time for a whole range.
    pub(crate) fn end(self, time: i64) -> i64 {
        match self {
            Windows::Whole(_) => i64::MAX,
            // Not start + every: the start of the first window of all may have been cut off at the beginning of time.
            Windows::Every(every) => time.saturating_add(every - time.rem_euclid(every)),
        }
    }
}

/// What windows are made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Piece {
    /// A reading.
    Row(Row),
    /// A tier's window, or part of one, that lies within a window here.
    Window(Window),
}

/// Aggregates rows into one for each window that has a value. The rows' values are raw: `scale` is applied at the end, so
/// that sums of integers lose nothing before.
pub(crate) struct Aggregated<I> {
    rows: I,
    windows: Windows,
    agg: Agg,
    scale: Scale,
    exact: bool,
    open: Option<Open>,
}

struct Open {
    start: i64,
    acc: Accumulator,
}

impl<I> Aggregated<I> {
    pub(crate) fn new(rows: I, windows: Windows, agg: Agg, scale: Scale, exact: bool) -> Self {
        Self { rows, windows, agg, scale, exact, open: None }
    }

    fn close(&self, window: Open) -> Row {
        Row { time: window.start, value: window.acc.finish(self.agg, self.scale, self.exact) }
    }
}

impl<I: Iterator<Item = Result<Piece, QueryError>>> Iterator for Aggregated<I> {
    type Item = Result<Row, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let piece = match self.rows.next() {
                Some(Ok(piece)) => piece,
                Some(Err(error)) => return Some(Err(error)),
                None => return self.open.take().map(|window| Ok(self.close(window))),
            };
            let time = match piece {
                Piece::Row(row) if row.value.is_none_or(|value| value.as_f64().is_nan()) => continue,
                Piece::Row(row) => row.time,
                Piece::Window(window) => window.time,
            };
            let start = self.windows.start(time);
            let mut closed = None;
            if self.open.as_ref().is_none_or(|open| open.start != start) {
                closed = self.open.replace(Open { start, acc: Accumulator::default() });
            }
            if let Some(open) = &mut self.open {
                match piece {
                    Piece::Row(row) => {
                        row.value.into_iter().for_each(|value| open.acc.push(value, self.agg, self.scale.is_negative()))
                    }
                    Piece::Window(window) => open.acc.push_window(&window, self.agg, self.scale.is_negative()),
                }
            }
            if let Some(window) = closed {
                return Some(Ok(self.close(window)));
            }
        }
    }
}

/// What is kept of one window's values.
#[derive(Debug, Default)]
struct Accumulator {
    count: u64,
    ints: i128,
    floats: FloatSum,
    chosen: Option<Value>,
}

impl Accumulator {
    fn push(&mut self, value: Value, agg: Agg, negative_scale: bool) {
        self.count += 1;
        if matches!(agg, Agg::Mean | Agg::Sum) {
            match value {
                Value::Int(int) => self.ints += i128::from(int),
                Value::Float(float) => self.floats.add(float),
            }
        }
        self.choose(value, agg, negative_scale);
    }

    /// A window's values at once.
    fn push_window(&mut self, window: &Window, agg: Agg, negative_scale: bool) {
        self.count += window.count;
        let value = match agg {
            Agg::Count => return,
            Agg::Mean | Agg::Sum => {
                match window.sum {
                    Value::Int(int) => self.ints += i128::from(int),
                    Value::Float(float) => self.floats.add(float),
                }
                return;
            }
            Agg::Last => window.last,
            Agg::First => window.first,
            Agg::Min if negative_scale => window.max,
            Agg::Max if negative_scale => window.min,
            Agg::Min => window.min,
            Agg::Max => window.max,
        };
        self.choose(value, agg, negative_scale);
    }

    fn choose(&mut self, value: Value, agg: Agg, negative_scale: bool) {
        let replaces = match agg {
            Agg::Count | Agg::Mean | Agg::Sum => false,
            Agg::Last => true,
            Agg::First => self.chosen.is_none(),
            // The least quantity is the greatest raw value when the scale is negative.
            Agg::Min => {
                self.chosen.is_none_or(|best| if negative_scale { less(best, value) } else { less(value, best) })
            }
            Agg::Max => {
                self.chosen.is_none_or(|best| if negative_scale { less(value, best) } else { less(best, value) })
            }
        };
        if replaces {
            self.chosen = Some(value);
        }
    }

    fn finish(self, agg: Agg, scale: Scale, exact: bool) -> Option<Value> {
        let float = |value: f64| (!value.is_nan()).then_some(Value::Float(value));
        match agg {
            Agg::Count if exact => Some(Value::Int(i64::try_from(self.count).unwrap_or(i64::MAX))),
            Agg::Count => float(self.count as f64),
            Agg::Sum => float(scale.apply(self.ints as f64 + self.floats.total())),
            Agg::Mean => float(scale.apply((self.ints as f64 + self.floats.total()) / self.count as f64)),
            _ => scaled(self.chosen?, scale, exact),
        }
    }
}

/// A raw value in its unit, as the answer's column has it.
pub(crate) fn scaled(raw: Value, scale: Scale, exact: bool) -> Option<Value> {
    if exact { scale.apply_exact(raw).map(Value::Int) } else { Some(Value::Float(scale.apply(raw.as_f64()))) }
}

fn less(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a < b,
        (a, b) => a.as_f64() < b.as_f64(),
    }
}

/// A sum that keeps what each addition rounds away (Neumaier's variant of compensated summation).
#[derive(Debug, Default)]
pub(crate) struct FloatSum {
    sum: f64,
    lost: f64,
}

impl FloatSum {
    pub(crate) fn add(&mut self, value: f64) {
        let next = self.sum + value;
        // With an infinity in it there is nothing to compensate, and the difference would be no number.
        if next.is_finite() {
            let larger_first = self.sum.abs() >= value.abs();
            self.lost += if larger_first { (self.sum - next) + value } else { (value - next) + self.sum };
        }
        self.sum = next;
    }

    pub(crate) fn total(&self) -> f64 {
        if self.sum.is_finite() { self.sum + self.lost } else { self.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[(i64, Option<Value>)]) -> Vec<Result<Piece, QueryError>> {
        values.iter().map(|&(time, value)| Ok(Piece::Row(Row { time, value }))).collect()
    }

    #[track_caller]
    fn check(
        windows: Windows,
        agg: Agg,
        scale: f64,
        exact: bool,
        input: &[(i64, Option<Value>)],
        expected: &[(i64, Option<Value>)],
    ) {
        let found = Aggregated::new(rows(input).into_iter(), windows, agg, Scale::new(scale), exact);
        let found: Vec<_> = found.map(|row| row.map(|r| (r.time, r.value)).unwrap()).collect();
        assert_eq!(found, expected, "{agg}");
    }

    fn int(v: i64) -> Option<Value> {
        Some(Value::Int(v))
    }

    fn float(v: f64) -> Option<Value> {
        Some(Value::Float(v))
    }

    #[test]
    fn windows_begin_at_multiples_before_the_epoch_too() {
        let every = Windows::Every(10);
        for (time, start, end) in [(0, 0, 10), (9, 0, 10), (10, 10, 20), (-1, -10, 0), (-10, -10, 0), (-11, -20, -10)] {
            assert_eq!((every.start(time), every.end(time)), (start, end), "{time}");
        }
        assert!(every.start(i64::MIN) <= i64::MIN + 9);
        assert_eq!(every.end(i64::MAX), i64::MAX);
        assert_eq!(Windows::Every(i64::MAX).start(5), 0);
    }

    #[test]
    fn every_aggregate() {
        let input = [(1, int(3)), (2, None), (3, int(1)), (9, int(8)), (30, int(2)), (31, float(f64::NAN)), (40, None)];
        let every = Windows::Every(10);
        check(every, Agg::Mean, 1.0, false, &input, &[(0, float(4.0)), (30, float(2.0))]);
        check(every, Agg::Sum, 2.0, false, &input, &[(0, float(24.0)), (30, float(4.0))]);
        check(every, Agg::Min, 1.0, true, &input, &[(0, int(1)), (30, int(2))]);
        check(every, Agg::Max, 1.0, true, &input, &[(0, int(8)), (30, int(2))]);
        check(every, Agg::Min, -1.0, true, &input, &[(0, int(-8)), (30, int(-2))]);
        check(every, Agg::Max, -1.0, true, &input, &[(0, int(-1)), (30, int(-2))]);
        check(every, Agg::Count, 7.0, true, &input, &[(0, int(3)), (30, int(1))]);
        check(every, Agg::First, 1.0, true, &input, &[(0, int(3)), (30, int(2))]);
        check(every, Agg::Last, 1.0, true, &input, &[(0, int(8)), (30, int(2))]);
        check(Windows::Whole(1), Agg::Sum, 1.0, false, &input, &[(1, float(14.0))]);
        check(every, Agg::Sum, 1.0, false, &[(1, None)], &[]);
    }

    #[test]
    fn integers_do_not_overflow_and_infinities_stay() {
        let max = int(i64::MAX);
        check(Windows::Whole(0), Agg::Mean, 1.0, false, &[(0, max), (1, max)], &[(0, float(i64::MAX as f64))]);
        check(Windows::Whole(0), Agg::Max, 2.0, true, &[(0, max)], &[(0, None)]);
        let (up, down) = (float(f64::INFINITY), float(f64::NEG_INFINITY));
        check(Windows::Whole(0), Agg::Sum, 1.0, false, &[(0, up), (1, float(1.0))], &[(0, up)]);
        check(Windows::Whole(0), Agg::Mean, 1.0, false, &[(0, up), (1, down)], &[(0, None)]);
        check(Windows::Whole(0), Agg::Min, 1.0, false, &[(0, up), (1, down)], &[(0, down)]);
    }

    #[test]
    fn sums_keep_small_parts() {
        let mut sum = FloatSum::default();
        for value in [1e100, 1.0, -1e100] {
            sum.add(value);
        }
        assert_eq!(sum.total(), 1.0);
    }
}
