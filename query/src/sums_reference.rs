//! Sums over time: sums over parts of a range add up to the sum over the range, and notes list omitted times.

use wholegrain_model::{Kind, Timestamp, Value, ValueType};
use wholegrain_store::SensorInfo;
use wholegrain_testkit::{Random, seed};

use crate::reference::{MS, Rows, Samples, answer, collect, query, random_samples, random_sensor, sensor};
use crate::{Agg, Op, Query};

const MIN: i64 = 60_000 * MS;
const H: i64 = 60 * MIN;

/// The sum of one sensor over a range, with the notes.
fn sum(sensor: &SensorInfo, samples: &Samples, op: Op, (from, to): (i64, i64)) -> (f64, Vec<String>) {
    let query = Query { op: Some(op), agg: Some(Agg::Sum), ..query(from, to) };
    let mut result = answer(vec![sensor.clone()], vec![samples.clone()], &query).unwrap();
    let batches: Vec<_> = result.batches.by_ref().collect();
    let notes = result.batches.notes();
    let values = batches.into_iter().flat_map(|batch| {
        let batch = batch.unwrap();
        let values: &arrow_array::Float64Array = arrow_array::cast::AsArray::as_primitive(batch.column(2));
        values.iter().flatten().collect::<Vec<f64>>()
    });
    (values.sum(), notes)
}

#[test]
fn sums_of_parts_add_up_to_the_whole() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut compared = 0;
    for round in 0..1_500 {
        let (op, kind) =
            random.pick(&[(Op::Delta, Kind::Counter), (Op::Delta, Kind::Gauge), (Op::Integral, Kind::Gauge)]);
        let mut sensor = random_sensor(0, kind, &mut random);
        sensor.interval_ns = random.pick(&[10, 1, 100, 0]) * MS as u64;
        let mut samples = random_samples(&sensor, &mut random);
        if sensor.interval_ns == 0 {
            // A bound of 5 minutes: samples are minutes apart.
            samples.iter_mut().for_each(|sample| sample.0 *= 30_000);
        }
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { continue };
        let (begin, end) = (first.0 - MS, last.0 + MS);
        let place = |random: &mut Random| begin + random.below((end - begin) as u64) as i64;
        let mut edges = vec![begin, end];
        for _ in 0..random.below(8) {
            // Also where a sample is, and right after it.
            let at = samples[random.below(samples.len() as u64) as usize].0;
            let anywhere = place(&mut random);
            edges.push(random.pick(&[at, at + 1, anywhere, anywhere]));
        }
        edges.sort_unstable();
        let whole = sum(&sensor, &samples, op, (begin, end));
        let parts: Vec<_> = edges.windows(2).map(|edge| sum(&sensor, &samples, op, (edge[0], edge[1]))).collect();
        let total: f64 = parts.iter().map(|part| part.0).sum();
        compared += parts.len();
        let size: f64 = samples
            .iter()
            .filter_map(|sample| sample.1)
            .map(Value::as_f64)
            .filter(|v| v.is_finite())
            .map(f64::abs)
            .sum();
        let size = size * sensor.scale.abs() * (end - begin) as f64 / 1e9;
        let context = format!("WHOLEGRAIN_SEED={seed} round {round}: {sensor:?}\n{edges:?}\n{samples:?}");
        assert!(
            (total - whole.0).abs() <= 1e-12 * (1.0 + size),
            "{total} of parts, {} of the whole\n{context}",
            whole.0
        );
        assert_eq!(
            whole.1.is_empty(),
            parts.iter().all(|part| part.1.is_empty()),
            "{:?}\n{parts:?}\n{context}",
            whole.1
        );
    }
    assert!(compared > 3_000, "only {compared} parts compared");
}

/// The readings of a meter, with their spacing and the increase between two.
fn meter(every: i64, step: i64, count: i64) -> Samples {
    (0..count).map(|at| (at * every, Some(Value::Int(at * step)))).collect()
}

#[test]
fn a_day_of_a_slow_meter_is_complete() {
    // Nobody has said how far apart the readings are, and then that they are a minute apart, as they are since.
    for interval_ns in [0, MIN as u64] {
        let info = SensorInfo { interval_ns, ..sensor(0, "/meter", Kind::Counter, ValueType::Int) };
        let gauge = SensorInfo { kind: Kind::Gauge, ..info.clone() };
        for (every, step) in [(H, 10), (15 * MIN, 10), (24 * H, 240)] {
            let samples = meter(every, step, 6 * 24 * H / every);
            let day = 24 * H;
            for from in [day, day + every / 3, 3 * day] {
                let expected = step * (24 * H / every);
                let (found, notes) = sum(&info, &samples, Op::Delta, (from, from + day));
                assert_eq!((found, notes.len()), (expected as f64, 0), "{every} {interval_ns} {notes:?}");
            }
            // 5 kW all day, in kWh.
            let power: Samples = samples.iter().map(|sample| (sample.0, Some(Value::Int(5)))).collect();
            let (found, _) = sum(&gauge, &power, Op::Integral, (day + 7 * MIN, 2 * day + 7 * MIN));
            assert_eq!(found / 3600.0, 120.0, "{every} {interval_ns}");
        }
    }
}

#[test]
fn an_interval_override_loses_no_reading() {
    // 10 s, then 1 s for a minute, then 10 s again; while it is boosted the interval is 1 s.
    let s = 1000 * MS;
    let times = (0..60).map(|at| at * 10 * s).chain((600..660).map(|at| at * s)).chain((66..120).map(|at| at * 10 * s));
    let samples: Samples = times.map(|time| (time, Some(Value::Int(time / s)))).collect();
    for interval_ns in [s as u64, 10 * s as u64] {
        let info = SensorInfo { interval_ns, ..sensor(0, "/c", Kind::Counter, ValueType::Int) };
        for from in [15 * s, 300 * s, 601 * s, 655 * s] {
            let (found, notes) = sum(&info, &samples, Op::Delta, (from, 1191 * s));
            let before = samples.iter().rfind(|sample| sample.0 < from).unwrap().0 / s;
            assert_eq!((found, notes.len()), ((1190 - before) as f64, 0), "from {} {notes:?}", Timestamp(from));
        }
    }
}

#[test]
fn omitted_times_are_noted() {
    let info = SensorInfo { interval_ns: MIN as u64, ..sensor(0, "/meter", Kind::Counter, ValueType::Int) };
    let mut samples = meter(MIN, 1, 600);
    samples.retain(|sample| !(100 * MIN..130 * MIN).contains(&sample.0) && !(400 * MIN..410 * MIN).contains(&sample.0));
    let (found, notes) = sum(&info, &samples, Op::Delta, (0, 600 * MIN));
    assert_eq!(found, 599.0 - 31.0 - 11.0);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let noted = "/meter: 2 times two readings are more than 3min apart; the time between them is not counted (42min in all, \
                the first from 1970-01-01T01:39:00Z to 1970-01-01T02:10:00Z)";
    assert!(notes[0].starts_with(noted), "{notes:?}");
    // Lengths are rounded for reading.
    let mut odd = samples.clone();
    odd.iter_mut().filter(|sample| sample.0 >= 130 * MIN).for_each(|sample| sample.0 += 658_516_736);
    assert!(sum(&info, &odd, Op::Delta, (0, 300 * MIN)).1[0].contains("(1861s in all"));
    // An interval that users set bridges them.
    let set = SensorInfo { interval_ns: 15 * MIN as u64, ..info.clone() };
    assert_eq!(sum(&set, &samples, Op::Delta, (0, 600 * MIN)), (599.0, vec![]));
    // There is no note outside the holes, and a note names only some of many sensors.
    assert_eq!(sum(&info, &samples, Op::Delta, (140 * MIN, 300 * MIN)), (160.0, vec![]));
    let many: Vec<_> = (0..20)
        .map(|id| SensorInfo { path: format!("/m{id:02}").into(), id: wholegrain_store::SensorId(id), ..info.clone() })
        .collect();
    let all = Query { op: Some(Op::Delta), ..query(0, 600 * MIN) };
    let mut result = answer(many.clone(), vec![samples; 20], &all).unwrap();
    let rows: usize = result.batches.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, 20 * 560);
    let notes = result.batches.notes();
    assert_eq!((notes.len(), notes[8].starts_with("24 times")), (9, true), "{notes:?}");
    let none: Rows = Vec::new();
    assert_eq!(collect(answer(many, vec![vec![]; 20], &all).unwrap()).remove("/m00").unwrap_or_default(), none);
}

/// The rows of one sensor.
fn rows(sensor: &SensorInfo, samples: &Samples, query: &Query) -> Rows {
    collect(answer(vec![sensor.clone()], vec![samples.clone()], query).unwrap())
        .remove(&*sensor.path)
        .unwrap_or_default()
}

#[test]
fn the_mean_of_a_rate_is_the_increase_over_its_time() {
    let seed = seed();
    let mut random = Random::new(seed);
    let s = 1000 * MS;
    // Exactly 100 a second, read at any time, at most 30 s apart.
    let info = SensorInfo { interval_ns: 10 * s as u64, ..sensor(0, "/c", Kind::Counter, ValueType::Int) };
    let mut time = 0;
    let samples: Samples = (0..2_000)
        .map(|_| {
            let most = random.pick(&[3_000, 3, 3]);
            time += 10 * MS * (1 + random.below(most) as i64);
            (time, Some(Value::Int(time / (10 * MS))))
        })
        .collect();
    let every = Some(wholegrain_model::Interval::from_s(60));
    for agg in [None, Some(Agg::Mean)] {
        let query = Query { op: Some(Op::Rate), every, agg, ..query(0, time) };
        let found = rows(&info, &samples, &query);
        assert!(found.len() > 50 && found.iter().all(|row| (row.1.unwrap() - 100.0).abs() < 1e-9), "{seed} {found:?}");
    }
    // Bursts: 0.1 s with 1,000 more, then 9.9 s with nothing. The truth is 100 a second.
    let bursts: Samples = (0..40)
        .flat_map(|at| [(at * 10 * s, at * 1000), (at * 10 * s + 100 * MS, (at + 1) * 1000)])
        .map(|(time, value)| (time, Some(Value::Int(value))))
        .collect();
    let of = |agg| {
        let query = Query { op: Some(Op::Rate), every, agg: Some(agg), ..query(60 * s, 360 * s) };
        rows(&info, &bursts, &query).iter().map(|row| row.1.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(Agg::Mean), vec![100.0; 5]);
    assert_eq!(of(Agg::SampleMean), vec![5_000.0; 5]);
}

#[test]
fn the_time_weighted_mean_is_the_area_over_its_time() {
    let s = 1000 * MS;
    let info =
        SensorInfo { interval_ns: 10 * s as u64, unit: "W".into(), ..sensor(0, "/p", Kind::Gauge, ValueType::Float) };
    // 1 W all the time but for a second with ten readings of 11 W.
    let times = (0..60).map(|at| (at * 10 * s, 1.0)).chain((0..=10).map(|at| (301 * s + at * 100 * MS, 11.0)));
    let mut samples: Samples = times.map(|(time, value)| (time, Some(Value::Float(value)))).collect();
    samples.extend([(300_999 * MS, Some(Value::Float(1.0))), (302_001 * MS, Some(Value::Float(1.0)))]);
    samples.sort_by_key(|sample| sample.0);
    let of = |agg| {
        let query = Query { agg: Some(agg), ..query(0, 590 * s) };
        rows(&info, &samples, &query)[0].1.unwrap()
    };
    assert!((of(Agg::Mean) - (590.0 + 10.0 * 1.001) / 590.0).abs() < 1e-9, "{}", of(Agg::Mean));
    assert_eq!(of(Agg::SampleMean), (61.0 + 11.0 * 11.0) / 72.0);
    // Of a counter the mean is that of its values.
    let counter = SensorInfo { kind: Kind::Counter, ..info.clone() };
    let query = Query { agg: Some(Agg::Mean), ..query(0, 590 * s) };
    assert_eq!(rows(&counter, &samples, &query)[0].1, Some(of(Agg::SampleMean)));
}

#[test]
fn a_mean_covers_the_readings_of_its_window_and_the_lines_next_to_them() {
    let s = 1000 * MS;
    let info = SensorInfo { interval_ns: 10 * s as u64, ..sensor(0, "/p", Kind::Gauge, ValueType::Float) };
    let means = |samples: &[(i64, f64)], every: i64, (from, to): (i64, i64)| {
        let samples = samples.iter().map(|&(at, value)| (at * s, (!value.is_nan()).then_some(Value::Float(value))));
        let every = Some(wholegrain_model::Interval::from_s(every as u64));
        let query = Query { every, ..query(from * s, to * s) };
        rows(&info, &samples.collect(), &query).iter().map(|row| (row.0 / s, row.1.unwrap())).collect::<Vec<_>>()
    };
    let steps: Vec<(i64, f64)> = (0..12).map(|at| (at * 10, at as f64)).collect();
    // One reading in a window is its mean; of none there is no row.
    assert_eq!(means(&steps, 10, (0, 40)), [(0, 0.0), (10, 1.0), (20, 2.0), (30, 3.0)]);
    assert_eq!(means(&steps, 4, (0, 22)), [(0, 0.0), (8, 1.0), (20, 2.0)]);
    // Of more, the lines up to the window's edges: from 15 to 45 and on.
    assert_eq!(means(&steps, 30, (0, 90)), [(0, 1.5), (30, 4.5), (60, 7.5)]);
    assert_eq!(means(&steps, 30, (15, 60)), [(0, 2.0), (30, 4.5)]);
    // The range's end cuts the line too, and so it does where no reading follows.
    assert_eq!(means(&steps, 60, (60, 115)), [(60, 8.5)]);
    // Two readings that no line joins weigh the same, and one alone weighs nothing beside others.
    assert_eq!(means(&[(0, 1.0), (100, 4.0)], 1000, (0, 1000)), [(0, 2.5)]);
    assert_eq!(means(&[(0, 1.0), (100, 4.0), (110, 6.0)], 1000, (0, 1000)), [(0, 5.0)]);
    assert_eq!(means(&[(0, 1.0), (10, f64::NAN), (20, 4.0), (30, 6.0)], 1000, (0, 1000)), [(0, 5.0)]);
    assert_eq!(means(&[(0, f64::NAN), (10, f64::NAN)], 1000, (0, 1000)), []);
}
