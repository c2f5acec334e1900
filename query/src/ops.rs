//! Delta, rate and derivative of successive samples.

use wholegrain_model::{Kind, Value};

use crate::line_segment::NS_PER_S;
use crate::query::Op;
use crate::samples::JoinedSample;
use crate::scale::Scale;

/// The change between two samples, assigned to the later one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ValueChange {
    pub time: i64,
    pub by: f64,
    /// The time since the previous sample.
    pub ns: i64,
}

/// The operation on one sensor, sample by sample.
pub(crate) struct DifferenceOp {
    op: Op,
    kind: Kind,
    wraps_at: Option<u64>,
    scale: Scale,
    previous: Option<(i64, Value)>,
}

impl DifferenceOp {
    pub(crate) fn new(op: Op, kind: Kind, wraps_at: Option<u64>, scale: Scale) -> Self {
        Self { op, kind, wraps_at, scale, previous: None }
    }

    /// Takes the next sample and returns the operation's value there, scaled.
    pub(crate) fn step(&mut self, sample: &JoinedSample) -> Option<f64> {
        let ValueChange { by, ns, .. } = self.change(sample)?;
        let result = if self.op == Op::Delta { by } else { by / (ns as f64 / NS_PER_S) };
        (!result.is_nan()).then_some(result)
    }

    /// Takes the next sample and returns the scaled change since the previous one.
    pub(crate) fn change(&mut self, sample: &JoinedSample) -> Option<ValueChange> {
        let JoinedSample { time, value, joined } = *sample;
        let value = value.filter(|value| !value.as_f64().is_nan());
        let previous = std::mem::replace(&mut self.previous, value.map(|value| (time, value)));
        let ((before, old), new) = (previous?, value?);
        if !joined || time <= before {
            return None;
        }
        let by = self.scale.apply(match self.kind {
            Kind::Gauge => subtract(new, old),
            Kind::Counter => advance(old, new, self.wraps_at)?,
        });
        (!by.is_nan()).then_some(ValueChange { time, by, ns: time.saturating_sub(before) })
    }
}

/// The difference. Integers are subtracted exactly and then converted.
fn subtract(new: Value, old: Value) -> f64 {
    match (new, old) {
        (Value::Int(new), Value::Int(old)) => (i128::from(new) - i128::from(old)) as f64,
        (new, old) => new.as_f64() - old.as_f64(),
    }
}

/// The increase of a counter from `old` to `new`. A lower `new` has wrapped at the modulus if that is an increase of at most half of it; otherwise,
/// and without a modulus, the counter restarted from 0. A counter that advances by more between two readings is read too seldom to know how often
/// it wrapped, while a restart at any time would look like one that nearly went all the way round.
pub(crate) fn advance(old: Value, new: Value, wraps_at: Option<u64>) -> Option<f64> {
    if new.as_f64() > old.as_f64() {
        return Some(subtract(new, old));
    }
    // Integers beyond 2^53 can be equal as floats and different as integers.
    let difference = subtract(new, old);
    if difference >= 0.0 {
        return Some(difference);
    }
    // After an infinity, which an exporter can send, what was counted is not known.
    if new.as_f64() < 0.0 || old.as_f64().is_infinite() {
        return None;
    }
    match (new, old, wraps_at) {
        (Value::Int(int), Value::Int(old), Some(modulus)) => {
            let (modulus, old) = (i128::from(modulus), i128::from(old));
            let wrapped = i128::from(int) + modulus - old;
            let is_wrap = old < modulus && wrapped * 2 <= modulus;
            Some(if is_wrap { wrapped as f64 } else { new.as_f64() })
        }
        (_, old, Some(modulus)) => {
            let (modulus, old) = (modulus as f64, old.as_f64());
            let wrapped = difference + modulus;
            let is_wrap = old < modulus && wrapped * 2.0 <= modulus;
            Some(if is_wrap { wrapped } else { new.as_f64() })
        }
        (new, _, None) => Some(new.as_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(op: Op, kind: Kind, wraps_at: Option<u64>, scale: f64, values: &[Option<Value>]) -> Vec<Option<f64>> {
        let mut state = DifferenceOp::new(op, kind, wraps_at, Scale::new(scale));
        let sample = |i: usize, value| JoinedSample { time: i as i64 * 2_000_000_000, value, joined: i > 0 };
        values.iter().enumerate().map(|(i, value)| state.step(&sample(i, *value))).collect()
    }

    fn ints(values: &[i64]) -> Vec<Option<Value>> {
        values.iter().map(|v| Some(Value::Int(*v))).collect()
    }

    fn floats(values: &[f64]) -> Vec<Option<Value>> {
        values.iter().map(|v| Some(Value::Float(*v))).collect()
    }

    #[track_caller]
    fn check(op: Op, kind: Kind, wraps_at: Option<u64>, values: Vec<Option<Value>>, expected: &[Option<f64>]) {
        assert_eq!(run(op, kind, wraps_at, 1.0, &values), expected);
    }

    #[test]
    fn counters() {
        let (delta, rate, counter) = (Op::Delta, Op::Rate, Kind::Counter);
        check(delta, counter, None, ints(&[5, 7, 7, 17]), &[None, Some(2.0), Some(0.0), Some(10.0)]);
        check(rate, counter, None, ints(&[5, 7, 7, 17]), &[None, Some(1.0), Some(0.0), Some(5.0)]);
        check(delta, counter, None, ints(&[100, 3, 4]), &[None, Some(3.0), Some(1.0)]);
        check(delta, counter, Some(1000), ints(&[990, 5]), &[None, Some(15.0)]);
        check(rate, counter, Some(1000), ints(&[990, 5]), &[None, Some(7.5)]);
        check(delta, counter, Some(1 << 63), ints(&[i64::MAX - 1, 1]), &[None, Some(3.0)]);
        // A value that the modulus says is impossible: restarted, not wrapped.
        check(delta, counter, Some(10), ints(&[50, 4]), &[None, Some(4.0)]);
        check(delta, counter, None, ints(&[5, -3, -1]), &[None, None, Some(2.0)]);
        check(delta, counter, None, floats(&[1.5, 2.0, 0.25]), &[None, Some(0.5), Some(0.25)]);
        check(delta, counter, Some(4), floats(&[3.5, 0.25]), &[None, Some(0.75)]);
    }

    #[test]
    fn a_restart_of_a_counter_that_could_wrap_is_no_wrap() {
        let (delta, counter, modulus) = (Op::Delta, Kind::Counter, 1 << 32);
        // The machine started again: 7 counted since, and not 4,294,966,303.
        check(delta, counter, Some(modulus), ints(&[1000, 7, 9]), &[None, Some(7.0), Some(2.0)]);
        check(delta, counter, Some(modulus), floats(&[1000.0, 7.0, 9.0]), &[None, Some(7.0), Some(2.0)]);
        // An increase of half of the modulus is the largest that is taken for a wrap.
        check(delta, counter, Some(1000), ints(&[600, 100]), &[None, Some(500.0)]);
        check(delta, counter, Some(1000), ints(&[600, 101]), &[None, Some(101.0)]);
        check(delta, counter, Some(1000), floats(&[600.0, 100.0]), &[None, Some(500.0)]);
        check(delta, counter, Some(1000), floats(&[600.0, 101.0]), &[None, Some(101.0)]);
        // Values of both types, as one that was first whole and then not.
        let mixed = vec![Some(Value::Int(990)), Some(Value::Float(5.5)), Some(Value::Int(3))];
        check(delta, counter, Some(1000), mixed, &[None, Some(15.5), Some(3.0)]);
    }

    #[test]
    fn integers_beyond_float_precision() {
        let base = i64::MAX - 10;
        check(Op::Delta, Kind::Counter, None, ints(&[base, base + 1, base + 3]), &[None, Some(1.0), Some(2.0)]);
        check(Op::Delta, Kind::Gauge, None, ints(&[base, base - 1]), &[None, Some(-1.0)]);
        check(Op::Delta, Kind::Gauge, None, ints(&[i64::MIN, i64::MAX]), &[None, Some(u64::MAX as f64)]);
        // Equal as floats, lower as integers: still a counter that restarted.
        check(Op::Delta, Kind::Counter, None, ints(&[base, base - 1]), &[None, Some((base - 1) as f64)]);
    }

    #[test]
    fn gauges_fall() {
        check(Op::Delta, Kind::Gauge, None, ints(&[5, 1]), &[None, Some(-4.0)]);
        check(Op::Derivative, Kind::Gauge, None, floats(&[5.0, 1.0]), &[None, Some(-2.0)]);
    }

    #[test]
    fn nothing_across_gaps_and_nan() {
        let gap = vec![Some(Value::Int(1)), None, Some(Value::Int(5)), Some(Value::Int(6))];
        check(Op::Delta, Kind::Counter, None, gap, &[None, None, None, Some(1.0)]);
        check(Op::Delta, Kind::Gauge, None, floats(&[1.0, f64::NAN, 2.0, 3.0]), &[None, None, None, Some(1.0)]);
        let (inf, none) = (f64::INFINITY, None);
        check(Op::Delta, Kind::Gauge, None, floats(&[1.0, inf, inf, 3.0]), &[none, Some(inf), none, Some(-inf)]);
        check(Op::Delta, Kind::Counter, None, floats(&[1.0, inf, 3.0, 4.0]), &[none, Some(inf), none, Some(1.0)]);
        let mut state = DifferenceOp::new(Op::Rate, Kind::Counter, None, Scale::ONE);
        let sample = |s: i64| JoinedSample { time: s * 1_000_000_000, value: Some(Value::Int(s)), joined: s != 60 };
        let at = |s: i64, state: &mut DifferenceOp| state.step(&sample(s));
        let rates: Vec<_> = [0, 1, 2, 60, 61].into_iter().map(|s| at(s, &mut state)).collect();
        assert_eq!(rates, [None, Some(1.0), Some(1.0), None, Some(1.0)]);
    }

    #[test]
    fn scale_applies_to_the_difference() {
        assert_eq!(run(Op::Delta, Kind::Counter, Some(100), 0.001, &ints(&[99, 2])), [None, Some(0.003)]);
        assert_eq!(run(Op::Delta, Kind::Gauge, None, -2.0, &ints(&[1, 4])), [None, Some(-6.0)]);
    }
}
