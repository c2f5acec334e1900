use super::*;
use wholegrain_model::{Interval, SensorDef, SensorPath};

use crate::engine::schedule::TickSchedule;

const S: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;

fn group(name: &str, sensors: Vec<SensorDef>, window: Interval, quantiles: &[f64]) -> Group {
    let interval = Interval::from_ms(1);
    let schema = Schema::new(SensorPath::new("/n/job/1").unwrap(), name, sensors).unwrap();
    let plan = Accumulated::new(&schema, interval, window, quantiles).unwrap();
    let ticking = TickSchedule { interval, offset: Interval::default(), synchronous: true };
    Group::new("jobs", "n", schema, ticking, false, Interval::from_s(1), Arc::default())
        .accumulating(Some(Arc::new(plan)))
}

fn row(time: i64, values: &[Option<u64>]) -> RowCopy {
    let mut gaps = vec![0u64; values.len().div_ceil(64)];
    for (index, _) in values.iter().enumerate().filter(|(_, value)| value.is_none()) {
        gaps[index / 64] |= 1 << (index % 64);
    }
    RowCopy { time, interval_ns: MS as u64, values: values.iter().map(|value| value.unwrap_or(77)).collect(), gaps }
}

/// The closed windows: start, and each value or `-` for a gap.
fn closed(fold: &Fold) -> Vec<(i64, String)> {
    let shown = |sample: usize| {
        let one = |sensor: usize| match (fold.closed.is_gap(sensor, sample), fold.plan.types[sensor]) {
            (true, _) => "-".to_owned(),
            (_, ValueType::Int) => (fold.closed.value(sensor, sample) as i64).to_string(),
            (_, ValueType::Float) => f64::from_bits(fold.closed.value(sensor, sample)).to_string(),
        };
        (0..fold.plan.types.len()).map(one).collect::<Vec<_>>().join(" ")
    };
    fold.closed.times.iter().enumerate().map(|(sample, time)| (*time, shown(sample))).collect()
}

fn folded(sensor: SensorDef, quantiles: &[f64], rows: &[(i64, Option<u64>)]) -> Vec<(i64, String)> {
    let group = group("g", vec![sensor], Interval::from_s(1), quantiles);
    let mut fold = Fold::new(&group, 0).unwrap();
    rows.iter().for_each(|(time, value)| fold.take(&row(*time, &[*value])));
    fold.close();
    closed(&fold)
}

fn expect(got: Vec<(i64, String)>, expected: &[(i64, &str)]) {
    assert_eq!(got, expected.iter().map(|(time, text)| (*time, (*text).to_owned())).collect::<Vec<_>>());
}

#[test]
fn gauges() {
    let gauge = || SensorDef::gauge("m", "By", "").scaled(2.0);
    let rows: Vec<(i64, Option<u64>)> =
        [5i64, 1, 9, 3].iter().enumerate().map(|(n, v)| (10 * S + n as i64 * 100 * MS, Some(*v as u64))).collect();
    expect(folded(gauge(), &[0.0, 0.5, 0.75, 1.0], &rows), &[(10 * S, "2 18 9 3 4 2 8 12 18")]);
    expect(folded(gauge(), &[0.5], &[(10 * S, Some(-7i64 as u64))]), &[(10 * S, "-14 -14 -14 -7 1 -14")]);
    // The edge belongs to the later window; gaps are not counted; a window without any value is gaps and a count of 0.
    let rows = [(S - 1, Some(1)), (S, Some(2)), (S + 1, None), (2 * S + 5, None), (9 * S, Some(4)), (-1, Some(8))];
    expect(
        folded(gauge(), &[], &rows),
        &[(0, "2 2 2 1 1"), (S, "4 4 4 2 1"), (2 * S, "- - - - 0"), (9 * S, "8 8 8 4 1"), (-S, "16 16 16 8 1")],
    );
}

#[test]
fn floats_and_what_is_no_number() {
    let gauge = SensorDef::gauge("m", "1", "").float();
    let bits = |value: f64| Some(value.to_bits());
    let rows = [(0, bits(0.5)), (1, bits(f64::NAN)), (2, bits(-1.5))];
    let got = folded(gauge, &[0.5], &rows);
    assert_eq!(got[0].1, "-1.5 0.5 -0.5 -1.5 2 -0.5");
}

#[test]
fn counters_are_rates_between_values() {
    let counter = || SensorDef::counter("c", "s", "").scaled(0.5);
    // 10/s over half a second, 0/s over a quarter; the next window's first rate is that from the value before.
    let rows = [(0, Some(100)), (S / 2, Some(110)), (3 * S / 4, Some(110)), (S, Some(110)), (S + S / 2, Some(140))];
    expect(folded(counter(), &[], &rows), &[(0, "0 10 6.666666666666667 110 3"), (S, "0 30 20 140 2")]);
    // One value has no rate yet; nor has one after a gap.
    expect(
        folded(counter(), &[0.5], &[(0, Some(10)), (S, None), (2 * S, Some(30))]),
        &[(0, "- - - 10 1 -"), (S, "- - - - 0 -"), (2 * S, "- - - 30 1 -")],
    );
    // Reset to 0; over its modulus; a clock stepped back gives no rate.
    expect(folded(counter(), &[], &[(0, Some(1000)), (S, Some(8))])[1..].to_vec(), &[(S, "4 4 4 8 1")]);
    let wraps = SensorDef { wraps_at: Some(1024), ..counter() };
    expect(folded(wraps, &[], &[(0, Some(1020)), (S, Some(4))])[1..].to_vec(), &[(S, "4 4 4 4 1")]);
    let restarts = SensorDef { wraps_at: Some(1024), ..counter() };
    expect(folded(restarts, &[], &[(0, Some(500)), (S, Some(4))])[1..].to_vec(), &[(S, "2 2 2 4 1")]);
    expect(folded(counter(), &[], &[(5 * S, Some(7)), (S, Some(9))])[1..].to_vec(), &[(S, "- - - 9 1")]);
    assert_eq!(advance(Value::Int(5), Value::Int(-1), None), None);
    assert_eq!(advance(Value::Int(i64::MAX - 1), Value::Int(i64::MAX), None), Some(1.0));
    assert_eq!(advance(Value::Float(9.0), Value::Float(1.0), Some(10)), Some(2.0));
    assert_eq!(advance(Value::Float(3.0), Value::Float(1.0), Some(10)), Some(1.0));
}

/// In version 1 a controller's directory goes before the others at a job's end, and the unified hierarchy's file, which has counted less, takes
/// its place after a gap: a rate between the last values of the two windows would take the fall for a counter reset.
#[test]
fn last_values_of_a_counter_tell_of_no_step_across_a_gap() {
    let counter = || SensorDef::counter("c", "s", "");
    let rows = [
        (0, Some(100)),
        (S / 2, Some(110)),
        (S, None),
        (S + S / 2, Some(50)),
        (2 * S, Some(60)),
        (2 * S + S / 2, Some(70)),
        (3 * S, Some(80)),
        (3 * S + S / 2, None),
        (5 * S, Some(5)),
        (6 * S, Some(6)),
    ];
    expect(
        folded(counter(), &[], &rows),
        &[
            (0, "20 20 20 110 2"),
            (S, "- - - - 1"),
            (2 * S, "20 20 20 70 2"),
            (3 * S, "20 20 20 80 1"),
            (5 * S, "- - - - 1"),
            (6 * S, "1 1 1 6 1"),
        ],
    );
    // Before its first value there is nothing to look back to.
    expect(folded(counter(), &[], &[(0, None), (1, Some(7))]), &[(0, "- - - 7 1")]);
}

#[test]
fn quantiles_are_those_of_all_values_and_the_values_kept_are_bounded() {
    let mut values: Vec<f64> = (0..=100).map(f64::from).rev().collect();
    for (quantile, expected) in [(0.0, 0.0), (0.01, 1.0), (0.5, 50.0), (0.995, 99.5), (1.0, 100.0)] {
        assert_eq!(quantile_of(&mut values, quantile), expected);
    }
    assert_eq!(quantile_of(&mut [3.0], 0.99), 3.0);
    let group = group("g", vec![SensorDef::gauge("m", "1", "")], Interval::from_s(10), &[0.5]);
    let mut fold = Fold::new(&group, 0).unwrap();
    (0..20_000).for_each(|n| fold.take(&row(n * MS / 2, &[Some(n as u64)])));
    assert!(fold.series[0].kept.len() <= QUANTILE_VALUES_MAX && fold.series[0].kept.len() > 3_000);
    fold.close();
    assert!(closed(&fold)[0].1.starts_with("0 19999 9999.5 19999 20000 "), "all but the quantiles are of every value");
}

#[test]
fn a_successor_goes_on_with_the_open_window_and_who_left_is_closed() {
    let sensor = |name: &str| SensorDef::gauge(name, "1", "");
    let s = Interval::from_s(1);
    let old = group("g", vec![sensor("a"), sensor("b")], s, &[0.5]);
    let new = group("g", vec![sensor("c"), sensor("a")], s, &[0.5]);
    let mut fold = Fold::new(&old, 0).unwrap();
    fold.take(&row(0, &[Some(1), Some(10)]));
    fold.take(&row(1, &[Some(3), Some(30)]));
    let mut next = fold.hand_over(&new, 0).unwrap();
    expect(closed(&fold), &[(0, "- - - - - - 10 30 20 30 2 20")]);
    next.take(&row(2, &[Some(7), Some(8)]));
    next.close();
    expect(closed(&next), &[(0, "7 7 7 7 1 7 1 8 4 8 3 3")]);
    // Nobody left: nothing is cut short.
    let more = group("g", vec![sensor("a"), sensor("b"), sensor("c")], s, &[0.5]);
    let mut fold = Fold::new(&old, 0).unwrap();
    fold.take(&row(0, &[Some(1), Some(10)]));
    assert!(fold.hand_over(&more, 0).is_some() && fold.closed.times.is_empty());
}
