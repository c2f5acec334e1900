//! A slow reference implementation of every rule, written from the documentation, and random queries that compare both.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use wholegrain_model::{Column, ColumnValues, Gaps, Interval, Kind, Pattern, Timestamp, Value, ValueType};
use wholegrain_store::{
    Chunk, ReadSnapshot, Scan, ScanRequest, SensorId, SensorInfo, SensorRange, SnapshotReader, StoreError,
};
use wholegrain_testkit::{Random, seed};

use crate::{Agg, BATCH_ROWS_MAX, HOLE_INTERVALS, Op, Query, QueryError, QueryResult, UNIT_KEY, UNITS_KEY, run_on};

pub(crate) const MS: i64 = 1_000_000;

pub(crate) type Samples = Vec<(i64, Option<Value>)>;
pub(crate) type Rows = Vec<(i64, Option<f64>)>;

/// Readings in memory, in chunks of a few samples. A sensor's id is its index.
#[derive(Clone)]
pub(crate) struct Readings {
    pub samples: Vec<Samples>,
    pub chunk_samples: usize,
}

impl ReadSnapshot for Readings {
    fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(self.clone()))
    }
}

impl SnapshotReader for Readings {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let ScanRequest { sensor, from, to, .. } = *request;
        let inside = self.samples[sensor.id.0 as usize].iter().filter(|s| (from..to).contains(&s.0)).copied();
        let inside: Samples = inside.collect();
        let value_type = sensor.value_type;
        let chunks: Vec<_> = inside.chunks(self.chunk_samples).map(|part| Ok(chunk(part, value_type))).collect();
        Ok(Scan::of_chunks(request, chunks.into_iter()))
    }
}

pub(crate) fn chunk(part: &[(i64, Option<Value>)], value_type: ValueType) -> Chunk {
    let mut gaps = Gaps::default();
    for (i, sample) in part.iter().enumerate() {
        if sample.1.is_none() {
            gaps.set(i, part.len());
        }
    }
    let values = match value_type {
        ValueType::Int => {
            ColumnValues::Int(part.iter().map(|s| if let Some(Value::Int(v)) = s.1 { v } else { 0 }).collect())
        }
        ValueType::Float => ColumnValues::Float(part.iter().map(|s| s.1.map_or(0.0, Value::as_f64)).collect()),
    };
    Chunk { times: part.iter().map(|s| s.0).collect(), column: Column { values, gaps } }
}

pub(crate) fn sensor(id: u32, path: &str, kind: Kind, value_type: ValueType) -> SensorInfo {
    SensorInfo {
        id: SensorId(id),
        path: Arc::from(path),
        unit: "By".into(),
        kind,
        value_type,
        scale: 1.0,
        wraps_at: None,
        description: String::new(),
        interval_ns: 10 * MS as u64,
        last_time: None,
        agent: "a".into(),
    }
}

pub(crate) fn query(from: i64, to: i64) -> Query {
    let patterns = vec![Pattern::new("/**").unwrap()];
    Query { patterns, from: Timestamp(from), to: Timestamp(to), ..Query::default() }
}

pub(crate) fn answer(
    sensors: Vec<SensorInfo>,
    samples: Vec<Samples>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    run_on(Box::new(Readings { samples, chunk_samples: 7 }), sensors, query)
}

/// All rows of a result, by sensor.
pub(crate) fn collect(result: QueryResult) -> BTreeMap<String, Rows> {
    let mut rows: BTreeMap<String, Rows> = BTreeMap::new();
    for batch in result.batches {
        let batch = batch.unwrap();
        assert!(batch.num_rows() > 0 && batch.num_rows() <= BATCH_ROWS_MAX);
        for (path, time, value) in rows_of(&batch) {
            rows.entry(path).or_default().push((time, value));
        }
    }
    rows
}

fn rows_of(batch: &RecordBatch) -> Vec<(String, i64, Option<f64>)> {
    let sensors = batch.column(0).as_dictionary::<Int32Type>();
    let names = sensors.values().as_string::<i32>();
    let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
    let values = batch.column(2);
    let value = |row: usize| match values.data_type() {
        _ if values.is_null(row) => None,
        DataType::Int64 => Some(values.as_primitive::<Int64Type>().value(row) as f64),
        _ => Some(values.as_primitive::<Float64Type>().value(row)),
    };
    let name = |row: usize| names.value(sensors.keys().value(row) as usize).to_owned();
    (0..batch.num_rows()).map(|row| (name(row), times.value(row), value(row))).collect()
}

/// The rules, over all samples of a sensor at once and in floats only.
pub(crate) fn naive(sensor: &SensorInfo, samples: &Samples, query: &Query) -> Rows {
    let (from, to) = (query.from.0, query.to.0);
    let seen = samples;
    let over_time = query.op.is_none()
        && sensor.kind == Kind::Gauge
        && (query.agg == Some(Agg::Mean) || (query.every.is_some() && query.agg.is_none()));
    let raw = query.op.is_none() && !over_time;
    let value = |i: usize| seen[i].1.map(|v| v.as_f64() * sensor.scale).filter(|v| !v.is_nan() || raw);
    let joined = |i: usize| naive_joined(sensor, seen, i);
    let pairs: Vec<Option<(f64, f64)>> =
        (0..seen.len()).map(|i| if joined(i) { Some((value(i - 1)?, value(i)?)) } else { None }).collect();
    let pair = |i: usize| pairs[i];
    let seconds = |a: i64, b: i64| (b - a) as f64 / 1e9;
    let inside = |i: &usize| (from..to).contains(&seen[*i].0);
    let difference = |i: usize| {
        let (old, new) = pair(i)?;
        let (modulus, per) = (sensor.wraps_at.map(|m| m as f64 * sensor.scale), seconds(seen[i - 1].0, seen[i].0));
        let delta = match (sensor.kind, modulus) {
            // Scaled values may miss exactly half of the modulus by a rounding.
            (Kind::Counter, Some(modulus)) if new < old && new + modulus - old <= modulus * (0.5 + 1e-9) => {
                new + modulus - old
            }
            (Kind::Counter, _) if new < old => new,
            _ => new - old,
        };
        Some(if query.op == Some(Op::Delta) { delta } else { delta / per })
    };
    if query.op == Some(Op::Integral) || over_time {
        // The area between two instants, of every line there is; the mean is that over its time, for two readings or more.
        let area = |a: i64, b: i64| {
            let (mut parts, mut covered) = (Vec::new(), 0.0);
            let own: Vec<f64> = (0..seen.len()).filter(|&i| (a..b).contains(&seen[i].0)).filter_map(value).collect();
            for i in 1..seen.len() {
                let (t0, t1) = (seen[i - 1].0, seen[i].0);
                let (lo, hi) = (t0.max(a), t1.min(b));
                if let (Some((v0, v1)), true) = (pair(i), lo < hi) {
                    let at = |t: i64| v0 + (v1 - v0) * seconds(t0, t) / seconds(t0, t1);
                    parts.push((at(lo) + at(hi)) / 2.0 * seconds(lo, hi));
                    covered += seconds(lo, hi);
                }
            }
            let sum: f64 = parts.iter().sum();
            match own.len() {
                _ if !over_time => (!parts.is_empty()).then_some(sum),
                0 => None,
                many if many == 1 || parts.is_empty() => Some(own.iter().sum::<f64>() / many as f64),
                _ => Some(sum / covered),
            }
        };
        return match (query.every, query.agg) {
            (None, None) => {
                let cumulative = |i: usize| value(i).map(|_| area(from, seen[i].0).unwrap_or(0.0));
                (0..seen.len()).filter(inside).map(|i| (seen[i].0, cumulative(i))).collect()
            }
            (None, Some(_)) => area(from, to).map(|a| (from, Some(a))).into_iter().collect(),
            (Some(every), _) => {
                let every = every.ns() as i64;
                let starts = (from.div_euclid(every)..=to.div_euclid(every)).map(|n| n * every);
                starts.filter_map(|s| area(s.max(from), (s + every).min(to)).map(|a| (s, Some(a)))).collect()
            }
        };
    }
    let points: Rows = (0..seen.len())
        .filter(inside)
        .map(|i| (seen[i].0, if query.op.is_some() { difference(i).filter(|v| !v.is_nan()) } else { value(i) }))
        .collect();
    if query.every.is_none() && query.agg.is_none() {
        return points;
    }
    let weighted = matches!(query.agg, None | Some(Agg::Mean));
    if weighted && matches!(query.op, Some(Op::Rate | Op::Derivative)) {
        // Each rate times the time that it holds for, over all of that time.
        let mut windows: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
        for i in (0..seen.len()).filter(inside) {
            if let Some(rate) = difference(i).filter(|rate| !rate.is_nan()) {
                let start =
                    query.every.map_or(from, |every| seen[i].0.div_euclid(every.ns() as i64) * every.ns() as i64);
                let of = windows.entry(start).or_default();
                let long = seconds(seen[i - 1].0, seen[i].0);
                *of = (of.0 + rate * long, of.1 + long);
            }
        }
        return windows.into_iter().map(|(start, (sum, long))| (start, Some(sum / long))).collect();
    }
    let mut windows: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for (time, value) in points {
        let start = query.every.map_or(from, |every| time.div_euclid(every.ns() as i64) * every.ns() as i64);
        if let Some(value) = value.filter(|v| !v.is_nan()) {
            windows.entry(start).or_default().push(value);
        }
    }
    let default = match (query.op, sensor.kind) {
        (Some(Op::Delta), _) => Agg::Sum,
        (None, Kind::Counter) => Agg::Last,
        _ => Agg::Mean,
    };
    windows.into_iter().map(|(start, values)| (start, naive_agg(query.agg.unwrap_or(default), &values))).collect()
}

/// Whether there is no hole between sample `i` and the previous one: they are at most three intervals apart, or their spacing, up to a day, is one of
/// three successive ones of which the others are two thirds to one and a half times as long.
pub(crate) fn naive_joined(sensor: &SensorInfo, samples: &Samples, i: usize) -> bool {
    if i == 0 {
        return false;
    }
    let spacing = |i: usize| (samples[i].0 - samples[i - 1].0) as f64;
    let three = |first: usize| {
        let row = first..first + 3;
        let alike = |of: usize| (2.0 / 3.0..=1.5).contains(&(spacing(of) / spacing(i)));
        first > 0 && row.end <= samples.len() && row.contains(&i) && row.clone().all(alike)
    };
    let bound = sensor.interval_ns as f64 * HOLE_INTERVALS as f64;
    spacing(i) <= bound || (spacing(i) <= 86_400e9 && (i.saturating_sub(2)..=i).any(three))
}

pub(crate) fn naive_agg(agg: Agg, values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    Some(match agg {
        Agg::Mean | Agg::SampleMean => sum / values.len() as f64,
        Agg::Sum => sum,
        Agg::Count => values.len() as f64,
        Agg::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
        Agg::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Agg::First => values[0],
        Agg::Last => values[values.len() - 1],
    })
    .filter(|v| !v.is_nan())
}

pub(crate) fn random_sensor(id: u32, kind: Kind, random: &mut Random) -> SensorInfo {
    let value_type = random.pick(&[ValueType::Int, ValueType::Float]);
    let wraps_at = if kind == Kind::Counter { random.pick(&[None, Some(1000)]) } else { None };
    let scale = random.pick(&[1.0, 1024.0, 0.001, -2.0]);
    // A counter that counts backwards is no counter to the naive rules, which compare scaled values.
    let scale = if kind == Kind::Counter { f64::abs(scale) } else { scale };
    SensorInfo { scale, wraps_at, ..sensor(id, &format!("/n/s{id}"), kind, value_type) }
}

pub(crate) fn random_samples(sensor: &SensorInfo, random: &mut Random) -> Samples {
    let mut time = -2_000 * MS + random.below(50) as i64 * MS;
    let mut counter = random.below(900) as i64;
    let mut samples = Vec::new();
    let mut usual = 10 * MS;
    for _ in 0..random.below(300) {
        // Sampled faster or more slowly for a while, as a boost does it.
        if random.below(25) == 0 {
            usual = random.pick(&[10, 10, 1, 40, 120]) * MS;
        }
        time += match random.below(40) {
            0 => random.below(500) as i64 * MS + 1,
            1..5 => random.below(25) as i64 * MS + 1,
            _ => usual,
        };
        let value = match sensor.kind {
            Kind::Gauge => random.below(2000) as i64 - 1000,
            Kind::Counter => {
                counter =
                    if random.below(30) == 0 { random.below(50) as i64 } else { counter + random.below(30) as i64 };
                counter %= 1000;
                counter
            }
        };
        let value = match sensor.value_type {
            _ if random.below(15) == 0 => None,
            ValueType::Int => Some(Value::Int(value)),
            ValueType::Float if random.below(30) == 0 => Some(Value::Float(f64::NAN)),
            ValueType::Float => Some(Value::Float(value as f64)),
        };
        samples.push((time, value));
    }
    samples
}

pub(crate) fn random_query(op: Option<Op>, random: &mut Random) -> Query {
    let from = -2_100 * MS + random.below(4_000) as i64 * MS;
    let every = random.pick(&[None, Some(1), Some(7), Some(100), Some(333), Some(10_000)]).map(Interval::from_ms);
    let some_agg = random.pick(&Agg::ALL).1;
    let agg = random.pick(&[None, Some(some_agg)]);
    let agg = match (op, agg) {
        (Some(Op::Integral), agg) => agg.map(|_| Agg::Sum),
        (_, agg) => agg,
    };
    Query { every, agg, op, ..query(from, from + random.below(4_000) as i64 * MS) }
}

#[track_caller]
pub(crate) fn assert_close(found: &Rows, expected: &Rows, context: &str) {
    let near =
        |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()));
    let same = found.len() == expected.len()
        && found.iter().zip(expected).all(|(f, e)| {
            let values = match (f.1, e.1) {
                (Some(f), Some(e)) => near(f, e),
                (f, e) => f == e,
            };
            f.0 == e.0 && values
        });
    if !same {
        let at = found.iter().zip(expected).position(|(f, e)| f != e).unwrap_or(found.len().min(expected.len()));
        let around = at.saturating_sub(2);
        let part = |rows: &Rows| rows.iter().skip(around).take(6).copied().collect::<Vec<_>>();
        panic!("{context}\nrow {at}\nfound    {:?}\nexpected {:?}", part(found), part(expected));
    }
}

#[test]
fn random_queries_agree_with_the_naive_rules() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut rows = 0;
    for round in 0..2_000 {
        let some_op = random.pick(&Op::ALL).1;
        let op = random.pick(&[None, Some(some_op)]);
        let kind = match op {
            Some(Op::Rate) => Kind::Counter,
            Some(Op::Derivative | Op::Integral) => Kind::Gauge,
            _ => random.pick(&[Kind::Gauge, Kind::Counter]),
        };
        let sensors: Vec<_> = (0..1 + random.below(3) as u32).map(|id| random_sensor(id, kind, &mut random)).collect();
        let samples: Vec<_> = sensors.iter().map(|sensor| random_samples(sensor, &mut random)).collect();
        let query = random_query(op, &mut random);
        let mut found = collect(answer(sensors.clone(), samples.clone(), &query).unwrap());
        for (sensor, samples) in sensors.iter().zip(&samples) {
            let expected = naive(sensor, samples, &query);
            let found = found.remove(&*sensor.path).unwrap_or_default();
            rows += found.len();
            assert_close(&found, &expected, &format!("seed {seed} round {round}\n{query:?}\n{sensor:?}"));
        }
        assert!(found.is_empty());
    }
    assert!(rows > 10_000, "only {rows} rows compared");
}

#[test]
fn batches_span_sensors_and_share_one_dictionary() {
    let samples = |n: i64| (0..n).map(|i| (i, Some(Value::Int(i)))).collect::<Samples>();
    let sensors = vec![sensor(1, "/b", Kind::Gauge, ValueType::Int), sensor(0, "/a", Kind::Gauge, ValueType::Int)];
    let result = answer(sensors, vec![samples(9_000), samples(500)], &query(0, 10_000)).unwrap();
    assert_eq!(result.sensors.iter().map(|s| &*s.path).collect::<Vec<_>>(), ["/a", "/b"]);
    assert_eq!(result.batches.schema().field(2).data_type(), &DataType::Int64);
    assert_eq!(result.batches.schema().metadata()[UNIT_KEY], "By");
    let batches: Vec<RecordBatch> = result.batches.map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [8192, 1308]);
    let names = |batch: &RecordBatch| batch.column(0).as_dictionary::<Int32Type>().values().to_data();
    assert!(names(&batches[0]).ptr_eq(&names(&batches[1])));
    let last = rows_of(&batches[1]);
    assert_eq!((last[807].0.as_str(), last[808].0.as_str(), last[1307].1), ("/a", "/b", 499));
}

#[test]
fn integers_stay_integers_only_when_all_are() {
    let int = sensor(0, "/a", Kind::Gauge, ValueType::Int);
    let float = sensor(1, "/b", Kind::Gauge, ValueType::Float);
    let kib = SensorInfo { scale: 1024.0, ..int.clone() };
    let milli = SensorInfo { scale: 1e-3, ..int.clone() };
    let counter = SensorInfo { kind: Kind::Counter, ..int.clone() };
    let check = |sensors: &[&SensorInfo], every: bool, agg: Option<Agg>, op: Option<Op>, expected: DataType| {
        let query = Query { every: every.then_some(Interval::from_s(1)), agg, op, ..query(0, 10) };
        let sensors = sensors.iter().map(|s| (*s).clone()).collect();
        let result = answer(sensors, vec![vec![], vec![]], &query).unwrap();
        assert_eq!(result.batches.schema().field(2).data_type(), &expected, "{query:?}");
    };
    use DataType::{Float64, Int64};
    check(&[&int], false, None, None, Int64);
    check(&[&kib], false, None, None, Int64);
    check(&[&milli], false, None, None, Float64);
    check(&[&int, &float], false, None, None, Float64);
    check(&[], false, None, None, Float64);
    check(&[&int], true, None, None, Float64);
    check(&[&counter], true, None, None, Int64);
    check(&[&int], true, Some(Agg::Max), None, Int64);
    check(&[&int], true, Some(Agg::Sum), None, Float64);
    check(&[&float, &milli], true, Some(Agg::Count), None, Int64);
    check(&[&counter], false, None, Some(Op::Delta), Float64);
}

#[test]
fn values_keep_their_last_digit() {
    let big = i64::MAX - 1;
    let result = answer(
        vec![sensor(0, "/a", Kind::Gauge, ValueType::Int)],
        vec![vec![(0, Some(Value::Int(big))), (1, None), (2, Some(Value::Int(i64::MIN)))]],
        &query(0, 10),
    );
    let batch = result.unwrap().batches.next().unwrap().unwrap();
    let values = batch.column(2).as_primitive::<Int64Type>();
    assert_eq!(values.iter().collect::<Vec<_>>(), [Some(big), None, Some(i64::MIN)]);
}

#[test]
fn nan_and_infinities_stay_unchanged_without_an_operation() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
    let samples = odd.iter().enumerate().map(|(i, v)| (i as i64, Some(Value::Float(*v)))).collect();
    let result = answer(vec![sensor(0, "/a", Kind::Gauge, ValueType::Float)], vec![samples], &query(0, 10)).unwrap();
    let found: Vec<f64> = collect(result)["/a"].iter().map(|row| row.1.unwrap()).collect();
    assert!(found[0].is_nan());
    assert_eq!(found[1..], odd[1..]);
}

#[test]
fn limit_stops_across_sensors() {
    let samples = |n: i64| (0..n).map(|i| (i, Some(Value::Int(i)))).collect::<Samples>();
    let sensors = vec![sensor(0, "/a", Kind::Gauge, ValueType::Int), sensor(1, "/b", Kind::Gauge, ValueType::Int)];
    for (limit, expected) in [(1, [1, 0]), (5, [5, 0]), (7, [5, 2]), (10, [5, 5]), (99, [5, 5])] {
        let limited = Query { limit: Some(limit), ..query(0, 10) };
        let found = collect(answer(sensors.clone(), vec![samples(5), samples(5)], &limited).unwrap());
        let rows = ["/a", "/b"].map(|path| found.get(path).map_or(0, Vec::len));
        assert_eq!(rows, expected, "limit {limit}");
    }
}

#[test]
fn the_first_sample_of_the_range_has_a_rate() {
    let samples: Samples = (0..10).map(|i| (i * 10 * MS, Some(Value::Int(i * 2)))).collect();
    let counter = sensor(0, "/a", Kind::Counter, ValueType::Int);
    let rate = Query { op: Some(Op::Rate), ..query(50 * MS, 70 * MS) };
    let found = collect(answer(vec![counter], vec![samples], &rate).unwrap());
    assert_eq!(found["/a"], [(50 * MS, Some(200.0)), (60 * MS, Some(200.0))]);
}

#[test]
fn invalid_queries_are_refused_with_advice() {
    let gauge = sensor(0, "/g", Kind::Gauge, ValueType::Int);
    let counter = sensor(1, "/c", Kind::Counter, ValueType::Int);
    let check = |query: Query, part: &str| {
        let sensors = vec![gauge.clone(), counter.clone()];
        let error = answer(sensors, vec![vec![], vec![]], &query).err().expect(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    check(query(10, 9), "from (1970-01-01T00:00:00.00000001Z) is after to");
    check(Query { patterns: vec![], ..query(0, 1) }, "0 patterns given");
    check(Query { patterns: vec![Pattern::new("/a").unwrap(); 257], ..query(0, 1) }, "257 patterns given");
    check(Query { every: Some(Interval::from_ns(0)), ..query(0, 1) }, "every must be longer than 0");
    check(Query { every: Some(Interval::from_ns(u64::MAX)), ..query(0, 1) }, "292 years");
    check(Query { limit: Some(0), ..query(0, 1) }, "limit must be at least 1");
    check(Query { op: Some(Op::Integral), agg: Some(Agg::Mean), ..query(0, 1) }, "omit agg or write sum");
    check(Query { op: Some(Op::Rate), ..query(0, 1) }, "1 of the 2 selected sensors are gauges (/g); use derivative");
    check(Query { op: Some(Op::Derivative), ..query(0, 1) }, "counters (/c); use rate");
    check(Query { op: Some(Op::Integral), ..query(0, 1) }, "use delta for counters");
    assert_eq!("mode".parse::<Agg>().unwrap_err().to_string().split(';').next(), Some("\"mode\" is not an aggregate"));
    assert_eq!("rate".parse::<Op>().unwrap().to_string(), "rate");
}

#[test]
fn different_units_are_listed_in_order() {
    let bytes = sensor(0, "/a", Kind::Counter, ValueType::Int);
    let seconds = SensorInfo { unit: "s".into(), ..sensor(1, "/b", Kind::Counter, ValueType::Int) };
    let rate = Query { op: Some(Op::Rate), ..query(0, 10) };
    let result = answer(vec![seconds, bytes], vec![vec![], vec![]], &rate).unwrap();
    assert_eq!(result.batches.schema().metadata()[UNITS_KEY], "By/s\ns/s");
    assert_eq!(result.units, ["By/s", "s/s"]);
}

#[test]
fn extremes_of_time_do_not_overflow() {
    let samples: Samples =
        vec![(i64::MIN, Some(Value::Int(1))), (0, Some(Value::Int(2))), (i64::MAX - 1, Some(Value::Int(3)))];
    for op in [None, Some(Op::Delta), Some(Op::Integral), Some(Op::Derivative)] {
        for every in [None, Some(Interval::from_ns(i64::MAX as u64)), Some(Interval::from_s(86_400 * 365 * 100))] {
            let whole = Query { op, every, ..query(i64::MIN, i64::MAX) };
            let gauge = sensor(0, "/a", Kind::Gauge, ValueType::Int);
            collect(answer(vec![gauge], vec![samples.clone()], &whole).unwrap());
        }
    }
}

#[test]
fn an_error_of_the_store_ends_the_result() {
    #[derive(Clone)]
    struct Failing;
    impl ReadSnapshot for Failing {
        fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
            Ok(Arc::new(self.clone()))
        }
    }
    impl SnapshotReader for Failing {
        fn scan(&self, _: &ScanRequest<'_>) -> Result<Scan, StoreError> {
            Err(StoreError::Closed)
        }
    }
    let sensors = vec![sensor(0, "/a", Kind::Gauge, ValueType::Int)];
    let mut batches = run_on(Box::new(Failing), sensors, &query(0, 10)).unwrap().batches;
    assert!(matches!(batches.next(), Some(Err(QueryError::Store(_)))));
    assert!(batches.next().is_none());
}

/// Readings of both types.
#[derive(Clone)]
struct Mixed;

impl ReadSnapshot for Mixed {
    fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(self.clone()))
    }
}

impl SnapshotReader for Mixed {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let ints: Samples = vec![(0, Some(Value::Int(7))), (1, None), (2, Some(Value::Int(i64::MAX)))];
        let floats: Samples = vec![(3, Some(Value::Float(0.5))), (4, Some(Value::Float(2.0))), (5, None)];
        let both = [chunk(&ints, ValueType::Int), chunk(&floats, ValueType::Float)];
        let only = usize::from(request.sensor.value_type == ValueType::Float);
        Ok(Scan::of_chunks(request, both.into_iter().skip(only).map(Ok)))
    }
}

#[test]
fn values_that_a_result_cannot_represent_are_noted() {
    let int = sensor(0, "/int", Kind::Gauge, ValueType::Int);
    let float = sensor(1, "/float", Kind::Gauge, ValueType::Float);
    let ask = |sensors: &[&SensorInfo], query: &Query| {
        let sensors: Vec<SensorInfo> = sensors.iter().map(|one| (*one).clone()).collect();
        let mut result = run_on(Box::new(Mixed), sensors, query).unwrap();
        let rows: usize = result.batches.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
        (rows, result.batches.notes())
    };
    let check = |sensors: &[&SensorInfo], query: &Query, rows: usize, starts: &[&str]| {
        let (found, notes) = ask(sensors, query);
        assert_eq!((found, notes.len()), (rows, starts.len()), "{notes:?}");
        assert!(notes.iter().zip(starts).all(|(note, starts)| note.starts_with(starts)), "{notes:?}");
    };
    check(&[&int], &query(0, 10), 6, &["/int: 1 values do not fit"]);
    check(&[&int, &float], &query(0, 10), 9, &["/int: 1 integers beyond 2^53 are rounded"]);
    check(&[&float], &query(0, 10), 3, &[]);
    let every = Query { every: Some(Interval::from_ns(1)), agg: Some(Agg::Max), ..query(0, 10) };
    check(&[&int], &every, 4, &["/int: 1 values do not fit"]);
    check(&[&int], &Query { agg: Some(Agg::Mean), ..query(0, 10) }, 1, &[]);
    let doubled = SensorInfo { scale: 2.0, ..int.clone() };
    check(&[&doubled], &query(0, 10), 6, &["/int: 1 values do not fit"]);
    // Also what only the unit of the answer makes too large.
    let kilo = SensorInfo { unit: "kBy".into(), ..int.clone() };
    check(&[&kilo], &Query { unit: Some("By".into()), ..query(0, 10) }, 6, &["/int: 2 values do not fit"]);
}
