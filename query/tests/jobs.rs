//! A query over a job gives each sensor the same rows as a query over that sensor in the job's time on its node: random jobs, readings and queries, over
//! blocks, tiers and the head.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, JobRecord, Pattern, Schema, SensorDef, SensorPath,
    Timestamp,
};
use wholegrain_query::jobs::JobScope;
use wholegrain_query::{Agg, Op, Query, QueryResult, run, run_in_job};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_testkit::Random;
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;
const NODES: usize = 3;

fn time(random: &mut Random) -> i64 {
    START + random.below(7200) as i64 * SECOND + random.pick(&[0, 17])
}

fn open(dir: &Path) -> Store {
    let config = StoreConfig { background: false, merge_fan_in: 3, ..StoreConfig::new(dir) };
    Store::open(config).unwrap().0
}

fn schema(node: usize) -> Schema {
    let sensors = vec![
        SensorDef::gauge("power", "W", "").float(),
        SensorDef::gauge("cpu/0/frequency", "Hz", ""),
        SensorDef::gauge("cpu/1/frequency", "Hz", ""),
        SensorDef::counter("energy", "J", ""),
        SensorDef::counter("job/7/cpu/usage", "s", ""),
        SensorDef::counter("job/8/cpu/usage", "s", ""),
    ];
    Schema::new(SensorPath::new(format!("/s/n{node}")).unwrap(), "g", sensors).unwrap()
}

/// Two hours with a reading each second on every node, with gaps and holes, partly sealed and in tiers.
fn fill(store: &Store, random: &mut Random) {
    for node in 0..NODES {
        let schema = schema(node);
        store.register_schema(&schema).unwrap();
        let mut count = 0;
        for seq in 0..12u64 {
            let begin = START + seq as i64 * 600 * SECOND;
            let times: Vec<i64> = (0..600).filter(|at| at % 97 > 10).map(|at| begin + at * SECOND).collect();
            let columns = (0..schema.len()).map(|sensor| {
                let mut gaps = Gaps::default();
                let values: Vec<i64> = (0..times.len())
                    .map(|at| {
                        if random.below(12) == 0 {
                            gaps.set(at, times.len());
                            return 0;
                        }
                        count += random.below(5) as i64;
                        if sensor < 3 { random.below(500) as i64 } else { count }
                    })
                    .collect();
                let values = match sensor {
                    0 => ColumnValues::Float(values.iter().map(|value| *value as f64 / 8.0).collect()),
                    _ => ColumnValues::Int(values),
                };
                Column { values, gaps }
            });
            let columns = columns.collect();
            let header = BatchHeader {
                agent: format!("n{node}"),
                boot: 1,
                seq,
                schema: schema.hash(),
                interval_ns: SECOND as u64,
            };
            store.append_blocking(encode_batch(&Batch { header, times, columns }).into()).unwrap();
            if seq % 4 == 0 {
                store.seal().unwrap();
                store.maintain(START + 9 * 86_400 * SECOND).unwrap();
            }
        }
    }
}

fn put(store: &Store, records: Vec<JobRecord>) {
    let (done, wait) = mpsc::channel();
    store.put_jobs(records, Box::new(move |result| drop(done.send(result.map(|_| ())))));
    wait.recv().unwrap().unwrap();
}

fn record(job: &str, node: usize, from: i64, to: Option<i64>) -> JobRecord {
    JobRecord {
        job: job.into(),
        level: job.into(),
        manager: "slurm".into(),
        node: format!("n{node}"),
        prefix: format!("/s/n{node}"),
        user: Some("anna".into()),
        cpus: Some("1".into()),
        from,
        to,
        revision: 1,
        ..JobRecord::default()
    }
}

type Rows = BTreeMap<String, Vec<(i64, Option<f64>)>>;

fn rows(mut result: QueryResult) -> Rows {
    let mut rows = Rows::new();
    for batch in result.batches.by_ref() {
        let batch = batch.unwrap();
        let sensors = batch.column(0).as_dictionary::<Int32Type>();
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        for row in 0..batch.num_rows() {
            let name = sensors.values().as_string::<i32>().value(sensors.keys().value(row) as usize).to_owned();
            let value = batch.column(2);
            let value = match value.as_primitive_opt::<Int64Type>() {
                _ if value.is_null(row) => None,
                Some(ints) => Some(ints.value(row) as f64),
                None => Some(value.as_primitive::<Float64Type>().value(row)),
            };
            rows.entry(name).or_default().push((times.value(row), value));
        }
    }
    rows
}

fn query(pattern: &str, from: i64, to: i64) -> Query {
    Query {
        patterns: vec![Pattern::new(pattern).unwrap()],
        from: Timestamp(from),
        to: Timestamp(to),
        ..Query::default()
    }
}

fn of_job(store: &Store, job: &Arc<JobScope>, query: &Query) -> Rows {
    let mut sensors = store.sensors(&query.patterns);
    job.retain(&mut sensors);
    rows(run_in_job(Box::new(store.snapshot()), job, sensors, query).unwrap())
}

/// The rows of the same query over each sensor alone in its part of the range.
fn expected(store: &Store, job: &JobScope, query: &Query) -> Rows {
    let mut expected = Rows::new();
    for sensor in store.sensors(&query.patterns) {
        let Some((place, below)) = job.place(&sensor.path) else { continue };
        assert!(!below.starts_with("job/8") && !below.starts_with("cpu/0"), "{below}");
        let (from, to) = (query.from.0.max(place.from), query.to.0.min(place.to));
        if from >= to {
            continue;
        }
        let one = Query {
            patterns: vec![Pattern::new(&*sensor.path).unwrap()],
            from: Timestamp(from),
            to: Timestamp(to),
            ..query.clone()
        };
        for (name, mut found) in rows(run(store, &one).unwrap()) {
            if query.every.is_none() && query.agg.is_some() {
                // The one window over the whole range is named by the range that was asked for.
                found.iter_mut().for_each(|row| row.0 = query.from.0);
            }
            expected.insert(name, found);
        }
    }
    expected
}

#[test]
fn a_query_over_a_job_equals_queries_over_each_sensors_part_of_the_range() {
    let mut random = Random::seeded();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    fill(&store, &mut random);
    let (mut some, mut tiered) = (0, 0);
    for number in 0..20 {
        let name = if number == 0 { "7".to_owned() } else { format!("j{number}") };
        let begin = START + random.below(4000) as i64 * SECOND;
        let records: Vec<JobRecord> = (0..2)
            .map(|node| {
                let from = begin + random.below(9) as i64 * SECOND + random.below(1000) as i64;
                let to = from + random.below(3000) as i64 * SECOND;
                JobRecord { level: "7".into(), ..record(&name, node, from, (random.below(5) > 0).then_some(to)) }
            })
            .collect();
        put(&store, records);
        let job = Arc::new(JobScope::find(&store, &name, Some("anna"), None).unwrap().unwrap());
        for _ in 0..30 {
            let (a, b) = (time(&mut random), time(&mut random));
            let (from, to) = match random.below(3) {
                0 => job.range(START + 7200 * SECOND),
                _ => (a.min(b), a.max(b)),
            };
            let (pattern, op) = match random.below(5) {
                0 => ("/s/*/energy", Some(Op::Rate)),
                1 => ("cpu/usage", Some(Op::Delta)),
                2 => ("power", Some(Op::Integral)),
                3 => ("frequency", Some(Op::Derivative)),
                _ => ("/**", None),
            };
            let agg = match op {
                Some(Op::Integral) => None,
                _ => (random.below(2) == 0).then(|| Agg::ALL[random.below(7) as usize].1),
            };
            let every = [None, Some(7), Some(10), Some(60), Some(300)][random.below(5) as usize];
            let every = every.map(Interval::from_s);
            let query = Query { op, agg, every, ..query(pattern, from, to) };
            let found = of_job(&store, &job, &query);
            let wanted = expected(&store, &job, &query);
            assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "{query:?}");
            for (name, rows) in &found {
                assert_eq!(rows, &wanted[name], "{name}, {query:?}, {:?}", job.places());
            }
            some += found.len();
            let sensors = store.sensors(&query.patterns[..1]);
            let result = run_in_job(Box::new(store.snapshot()), &job, sensors, &query);
            tiered += usize::from(result.unwrap().tier.is_some());
        }
    }
    assert!(some > 500 && tiered > 20, "{some} series, {tiered} with a tier");
}

#[test]
fn users_find_only_their_own_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, vec![record("5", 0, START, Some(START + SECOND)), record("5", 0, START + 60 * SECOND, None)]);
    let find = |user, at| JobScope::find(&store, "5", user, at).unwrap();
    assert!(find(Some("bert"), None).is_none());
    let (now, runs) = (START + 100 * SECOND, [find(Some("anna"), None), find(None, Some(START + 5))]);
    let ranges = runs.map(|job| job.unwrap().range(now));
    assert_eq!(ranges, [(START + 60 * SECOND, now), (START, START + SECOND + 1)]);
}
