//! Compares series of several sensors with the naive rules: the result of each sensor, then the aggregate at each time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arrow_schema::DataType;
use wholegrain_model::{Interval, Kind, Value, ValueType};
use wholegrain_store::{ReadSnapshot, Scan, ScanRequest, SensorInfo, SensorRange, SnapshotReader, StoreError};
use wholegrain_testkit::{Random, seed};

use crate::reference::{
    MS, Rows, Samples, answer, assert_close, collect, naive, naive_agg, query, random_query, random_samples,
    random_sensor, sensor,
};
use crate::{Across, Agg, Op, Query, QueryError, run_on};

/// The rule, over all rows of all sensors at once.
fn naive_across(answers: &[Rows], agg: Agg, windows: bool) -> Rows {
    let mut times: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for (time, value) in answers.iter().flatten() {
        times.entry(*time).or_default().extend(value.filter(|value| !value.is_nan()));
    }
    let count = |values: &[f64]| Some(values.len() as f64);
    let row = |(time, values): (i64, Vec<f64>)| match agg {
        Agg::Count => (time, count(&values)),
        _ if values.is_empty() => (time, None),
        agg => (time, naive_agg(agg, &values)),
    };
    let rows: Rows = times.into_iter().map(row).collect();
    assert!(!windows || rows.iter().all(|row| row.1.is_some() || agg != Agg::Count));
    rows
}

#[test]
fn random_groups_agree_with_the_naive_rules() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut compared = 0;
    for round in 0..400 {
        let some_op = random.pick(&Op::ALL).1;
        let op = random.pick(&[None, None, Some(some_op)]);
        let kind = match op {
            Some(Op::Rate) => Kind::Counter,
            Some(Op::Derivative | Op::Integral) => Kind::Gauge,
            _ => random.pick(&[Kind::Gauge, Kind::Counter]),
        };
        let count = random.pick(&[1, 2, 3, 20, 90]);
        let mut sensors: Vec<_> = (0..count).map(|id| random_sensor(id, kind, &mut random)).collect();
        for sensor in &mut sensors {
            sensor.path = Arc::from(format!("/n{}/s{}", sensor.id.0 % 3, sensor.id.0));
        }
        // As a rule sensors have the times of others.
        let mut samples: Vec<Samples> = sensors.iter().map(|sensor| random_samples(sensor, &mut random)).collect();
        for at in 1..samples.len() {
            if sensors[at].value_type == sensors[at - 1].value_type && random.below(3) > 0 {
                samples[at] = samples[at - 1].clone();
                let keep = random.below(30) + 1;
                samples[at].retain(|_| keep > 20 || random.below(keep) > 0);
            }
        }
        let agg = random.pick(&[Agg::Mean, Agg::Sum, Agg::Min, Agg::Max, Agg::Count]);
        let levels = random.pick(&[None, Some(1), Some(7)]);
        let query = Query { across: Some(Across { agg, levels }), ..random_query(op, &mut random) };
        if op == Some(Op::Integral) && query.every.is_none() && query.agg.is_none() {
            assert!(query.validate().unwrap_err().to_string().contains("running integral"));
            continue;
        }
        let mut groups: BTreeMap<String, Vec<Rows>> = BTreeMap::new();
        for (sensor, samples) in sensors.iter().zip(&samples) {
            let front = if levels.is_none() && count > 1 { "" } else { &sensor.path[..3] };
            let back = if count == 1 || (levels.is_some() && count <= 3) { &sensor.path[4..] } else { "*" };
            groups.entry(format!("{front}/{agg}({back})")).or_default().push(naive(sensor, samples, &query));
        }
        let windows = query.every.is_some() || query.agg.is_some();
        let mut found = collect(answer(sensors.clone(), samples, &query).unwrap());
        for (name, answers) in &groups {
            let found = found.remove(name).unwrap_or_default();
            compared += found.len();
            let context = format!("seed {seed} round {round}\n{query:?}\n{name}");
            assert_close(&found, &naive_across(answers, agg, windows), &context);
        }
        assert!(found.is_empty(), "{:?} beside {:?}", found.keys(), groups.keys());
    }
    assert!(compared > 5_000, "only {compared} rows compared");
}

fn across(agg: Agg, levels: Option<usize>) -> Query {
    Query { across: Some(Across { agg, levels }), ..query(0, 100 * MS) }
}

fn ints(values: &[i64]) -> Samples {
    values.iter().enumerate().map(|(at, value)| (at as i64 * 10 * MS, Some(Value::Int(*value)))).collect()
}

#[test]
fn groups_have_names_and_integers_stay() {
    let paths = ["/lab/r1/n1/cpu/user", "/lab/r1/n2/cpu/user", "/lab/r10/n1/cpu/idle", "/lab/power", "/lab/r2/n1/user"];
    let sensors: Vec<_> = (0..5).map(|id| sensor(id, paths[id as usize], Kind::Gauge, ValueType::Int)).collect();
    let samples = vec![ints(&[i64::MAX]), ints(&[i64::MAX - 1]), ints(&[1]), ints(&[2]), ints(&[3])];
    let names = |levels, agg| {
        let result = answer(sensors.clone(), samples.clone(), &across(agg, levels)).unwrap();
        assert_eq!(result.sensors.len(), 5);
        let series = result.series.clone().unwrap();
        let rows = collect(result);
        assert_eq!(rows.keys().cloned().collect::<Vec<_>>(), series);
        rows.into_iter().map(|(name, rows)| (name, rows[0].1.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(names(None, Agg::Count), [("/lab/count(*)".to_owned(), 5.0)]);
    let expected =
        [("/lab/max(power)", 2.0), ("/lab/r1/max(cpu/user)", i64::MAX as f64), ("/lab/r10/max(n1/cpu/idle)", 1.0)];
    let found = names(Some(2), Agg::Max);
    assert_eq!(found[..3], expected.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(found[3].0, "/lab/r2/max(n1/user)");
    let result = answer(sensors.clone(), samples.clone(), &across(Agg::Max, None)).unwrap();
    assert_eq!(result.batches.schema().field(2).data_type(), &DataType::Int64);
    let result = answer(sensors.clone(), samples, &across(Agg::Sum, None)).unwrap();
    assert_eq!(result.batches.schema().field(2).data_type(), &DataType::Float64);
}

#[test]
fn incompatible_sensors_are_refused() {
    let watts = SensorInfo { unit: "W".into(), ..sensor(0, "/a/p", Kind::Gauge, ValueType::Int) };
    let celsius = SensorInfo { unit: "Cel".into(), ..sensor(1, "/a/t", Kind::Gauge, ValueType::Int) };
    let ask = |query: Query| answer(vec![watts.clone(), celsius.clone()], vec![ints(&[1]), ints(&[2])], &query);
    let error = ask(across(Agg::Sum, None)).err().unwrap().to_string();
    assert!(error.contains("/a/p is in W and /a/t in Cel"), "{error}");
    assert_eq!(collect(ask(across(Agg::Count, None)).unwrap())["/a/count(*)"], [(0, Some(2.0))]);
    for (query, part) in [
        (across(Agg::Last, None), "no first or last"),
        (across(Agg::Sum, Some(0)), "levels must be at least 1"),
        (Query { op: Some(Op::Integral), ..across(Agg::Sum, None) }, "running integral"),
    ] {
        let error = ask(query).err().expect(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn rows_with_fewer_sensors_are_noted() {
    let sensors = vec![sensor(0, "/a/p", Kind::Gauge, ValueType::Int), sensor(1, "/b/p", Kind::Gauge, ValueType::Int)];
    let notes = |query: &Query| {
        let mut result = answer(sensors.clone(), vec![ints(&[1, 2, 3, 4]), ints(&[5, 6])], query).unwrap();
        let rows: usize = result.batches.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
        (rows, result.batches.notes())
    };
    let note =
        "/sum(p): 2 of 4 rows have values of fewer than 2 sensors, the least 1; the first at 1970-01-01T00:00:00.02Z";
    assert_eq!(notes(&across(Agg::Sum, None)), (4, vec![note.to_owned()]));
    assert_eq!(notes(&across(Agg::Sum, Some(1))), (6, vec![]));
    let wide = Query { every: Some(Interval::from_ms(20)), ..across(Agg::Sum, None) };
    assert_eq!(notes(&wide).0, 2);
    let few = Query { limit: Some(3), ..across(Agg::Sum, None) };
    assert_eq!(notes(&few).0, 3);
}

/// A day with one reading per millisecond for every sensor, generated by the scan.
#[derive(Clone)]
struct Endless(Arc<AtomicUsize>);

impl ReadSnapshot for Endless {
    fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(self.clone()))
    }
}

impl SnapshotReader for Endless {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let ScanRequest { from, to, .. } = *request;
        let read = self.0.clone();
        let starts = (from..to).step_by(1000 * MS as usize);
        let chunk = move |start| {
            read.fetch_add(1, Relaxed);
            let times: Vec<i64> = (0..1000).map(|at| start + at * MS).take_while(|time| *time < to).collect();
            let values = wholegrain_model::ColumnValues::Int(times.clone());
            let column = wholegrain_model::Column { values, gaps: wholegrain_model::Gaps::default() };
            Ok(wholegrain_store::Chunk { times, column })
        };
        Ok(Scan::of_chunks(request, starts.map(chunk)))
    }
}

#[test]
fn a_cancelled_query_ends_before_its_first_row() {
    let sensors: Vec<_> = (0..40).map(|id| sensor(id, &format!("/s{id}"), Kind::Gauge, ValueType::Int)).collect();
    let day = 86_400_000 * MS;
    for query in [
        Query { agg: Some(Agg::Mean), ..across(Agg::Sum, None) },
        Query { agg: Some(Agg::Mean), across: None, ..across(Agg::Sum, None) },
        Query { every: Some(Interval::from_s(86_400)), op: Some(Op::Derivative), ..across(Agg::Sum, None) },
    ] {
        let read = Arc::new(AtomicUsize::new(0));
        let query = Query { to: wholegrain_model::Timestamp(day), ..query };
        let mut batches = run_on(Box::new(Endless(read.clone())), sensors.clone(), &query).unwrap().batches;
        let seen = read.clone();
        batches.stop_when(move || seen.load(Relaxed) > 500);
        assert!(matches!(batches.next(), Some(Err(QueryError::Cancelled))), "{query:?}");
        assert!(batches.next().is_none());
        let read = read.load(Relaxed);
        assert!(read < 600, "{read} chunks were read though nobody waited after 500");
    }
}
