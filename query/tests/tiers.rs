//! Windows are the same whether a tier or the readings answer: random readings with gaps, NaN, late, repeated and overlapping ones, over several seals, merges
//! and days, put to a store with tiers and to one without.

use std::path::Path;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Timestamp,
    ValueType,
};
use wholegrain_query::{Agg, Op, Query, run};
use wholegrain_store::{RetentionRule, Store, StoreConfig};
use wholegrain_testkit::Random;
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;

fn open(dir: &Path, tiers: bool) -> Store {
    let mut config = StoreConfig { background: false, merge_fan_in: 3, ..StoreConfig::new(dir) };
    if !tiers {
        config.tiers.clear();
    }
    Store::open(config).unwrap().0
}

fn schema() -> Schema {
    let sensors = vec![
        SensorDef::gauge("int", "1", ""),
        SensorDef::gauge("float", "1", "").float(),
        SensorDef::gauge("large", "1", "").scaled(-2.0),
        SensorDef::counter("count", "1", ""),
    ];
    Schema::new(SensorPath::new("/n").unwrap(), "g", sensors).unwrap()
}

fn value(sensor: usize, random: &mut Random) -> f64 {
    match sensor {
        0 | 3 => random.below(1000) as f64 - 500.0,
        1 if random.below(20) == 0 => f64::NAN,
        1 => (random.below(1_000_000) as f64 - 5e5) / 7.0,
        _ => i64::MAX as f64 - random.below(1 << 50) as f64,
    }
}

fn batch(schema: &Schema, seq: u64, times: &[i64], random: &mut Random) -> Vec<u8> {
    let column = |sensor: usize| {
        let mut gaps = Gaps::default();
        let mut values = Vec::new();
        for at in 0..times.len() {
            let gap = random.below(10) == 0;
            if gap {
                gaps.set(at, times.len());
            }
            values.push(if gap { 0.0 } else { value(sensor, random) });
        }
        let values = match schema.sensors()[sensor].value_type {
            ValueType::Int => ColumnValues::Int(values.iter().map(|value| *value as i64).collect()),
            ValueType::Float => ColumnValues::Float(values),
        };
        Column { values, gaps }
    };
    let columns = (0..schema.len()).map(column).collect();
    let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times: times.to_vec(), columns })
}

fn query(from: i64, to: i64, every: Option<i64>, agg: Option<Agg>) -> Query {
    Query {
        patterns: vec![Pattern::new("/**").unwrap()],
        from: Timestamp(from),
        to: Timestamp(to),
        every: every.map(|every| Interval::from_ns(every as u64)),
        agg,
        ..Query::default()
    }
}

type Rows = Vec<(String, i64, Option<f64>)>;

fn answer(store: &Store, query: &Query) -> (Rows, Option<Interval>, Vec<String>) {
    let mut result = run(store, query).unwrap();
    let mut rows = Vec::new();
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
            rows.push((name, times.value(row), value));
        }
    }
    let mut warnings = result.batches.warnings();
    warnings.extend(result.batches.notes());
    (rows, result.tier, warnings)
}

/// With `rounds`, results can differ by rounding, as time-weighted means do.
#[track_caller]
fn same(found: &Rows, expected: &Rows, rounds: bool, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let close = match (found.2, expected.2) {
            // A sum of floats: bounded by the magnitudes, at most 1e5 each, 1e5 of them.
            (Some(a), Some(b)) if found.0 == "/n/float" => (a - b).abs() <= 1e-5,
            // Of values up to 500, and of those near 2^64.
            (Some(a), Some(b)) if rounds => (a - b).abs() <= 1e-12 * f64::max(500.0, a.abs()),
            (a, b) => a == b,
        };
        assert!(found.0 == expected.0 && found.1 == expected.1 && close, "{what}: {found:?}, expected {expected:?}");
    }
}

fn times(random: &mut Random) -> Vec<i64> {
    let from = match random.below(6) {
        0 => random.below(3 * 86_400),
        1 => 86_400 - 20,
        _ => random.below(4) * 3_600 + random.below(3_600),
    } as i64;
    let step = [SECOND, SECOND, 10 * SECOND, 100_000_000][random.below(4) as usize];
    let jitter = random.below(3) as i64 * 1_000;
    (0..10 + random.below(300) as i64).map(|at| START + from * SECOND + at * step + jitter).collect()
}

fn compare(tiered: &Store, raw: &Store, random: &mut Random, used: &mut usize) {
    for _ in 0..12 {
        let every = match random.below(8) {
            0 => None,
            1 => Some(7 * SECOND),
            n => Some([10, 60, 300, 900, 3_600, 86_400][(n - 2) as usize] * SECOND),
        };
        let edge = |random: &mut Random| {
            let second = random.below(3 * 86_400) as i64 * SECOND;
            START + if random.below(2) == 0 { second / (3_600 * SECOND) * 3_600 * SECOND } else { second + 17 }
        };
        let (a, b) = (edge(random), edge(random));
        let (from, to) = if random.below(3) == 0 { (START, START + 4 * DAY) } else { (a.min(b), a.max(b)) };
        let agg = if random.below(8) == 0 { Agg::SampleMean } else { Agg::ALL[random.below(7) as usize].1 };
        let query = query(from, to, every, (every.is_none() || random.below(5) > 0).then_some(agg));
        let rounds = matches!(query.agg, None | Some(Agg::Mean));
        let (found, tier, warnings) = answer(tiered, &query);
        let (expected, none, _) = answer(raw, &query);
        assert_eq!((none, warnings), (None, vec![]));
        *used += usize::from(tier.is_some());
        same(&found, &expected, rounds, &format!("{query:?}, tier {tier:?}"));
    }
}

#[test]
fn a_tier_gives_the_same_result_as_its_readings() {
    let mut random = Random::seeded();
    let mut used = 0;
    for _ in 0..6 {
        let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (tiered, raw) = (open(with.path(), true), open(without.path(), false));
        let schema = schema();
        let both = [&tiered, &raw];
        both.iter().for_each(|store| store.register_schema(&schema).unwrap());
        for seq in 0..40 {
            let payload = batch(&schema, seq, &times(&mut random), &mut random);
            for store in both {
                store.append_blocking(payload.clone().into()).unwrap();
            }
            if random.below(3) == 0 {
                both.iter().for_each(|store| store.seal().unwrap());
            }
            if random.below(8) == 0 {
                let now = START + random.below(6) as i64 * DAY;
                both.iter().for_each(|store| store.maintain(now).unwrap());
                compare(&tiered, &raw, &mut random, &mut used);
            }
        }
        compare(&tiered, &raw, &mut random, &mut used);
        both.iter().for_each(|store| store.seal().unwrap());
        both.iter().for_each(|store| store.maintain(START + 9 * DAY).unwrap());
        assert!(tiered.stats().tiers >= 6 && raw.stats().tiers == 0);
        compare(&tiered, &raw, &mut random, &mut used);
        drop(tiered);
        compare(&open(with.path(), true), &raw, &mut random, &mut used);
    }
    assert!(used > 50, "a tier was used {used} times");
}

/// A batch's times from `from` on, of one of the ways in which readings come.
fn irregular(from: i64, random: &mut Random) -> Vec<i64> {
    let (way, mut time) = (random.below(5), from);
    let step = |at: u64, random: &mut Random| match way {
        0 => SECOND,
        // Further apart than three intervals, evenly or about so.
        1 => 10 * SECOND,
        2 => 8 * SECOND + random.below(3_000_000_000) as i64,
        // At any time within them.
        3 => 1 + random.below(3_000_000_000) as i64,
        // With a hole now and then.
        _ if at % 50 == 17 => random.below(100 * SECOND as u64) as i64 + 1,
        _ => SECOND,
    };
    let mut times = Vec::new();
    for at in 0..150 + random.below(400) {
        times.push(time);
        time += step(at, random);
    }
    times
}

#[test]
fn a_mean_of_windows_equals_that_of_the_deleted_readings() {
    let mut random = Random::seeded_or(4711);
    let (mut compared, mut with_note) = (0, 0);
    {
        let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let keep = |seconds: i64| Some(Interval::from_s(seconds.unsigned_abs()));
        let tiers = vec![(Interval::from_s(10), None), (Interval::from_s(300), None), (Interval::from_s(3_600), None)];
        let rule = RetentionRule { pattern: Pattern::new("/n/**").unwrap(), raw: keep(86_400), tiers };
        let config = StoreConfig { background: false, retention: vec![rule], ..StoreConfig::new(with.path()) };
        let (tiered, raw) = (Store::open(config).unwrap().0, open(without.path(), false));
        let schema = schema();
        for store in [&tiered, &raw] {
            store.register_schema(&schema).unwrap();
        }
        let mut from = START + random.below(7_200) as i64 * SECOND;
        for seq in 0..30 {
            let times = irregular(from, &mut random);
            from = times[times.len() - 1] + 1 + random.below(15_000) as i64 * SECOND * random.below(2) as i64;
            let payload = batch(&schema, seq, &times, &mut random);
            for store in [&tiered, &raw] {
                store.append_blocking(payload.clone().into()).unwrap();
            }
        }
        for store in [&tiered, &raw] {
            store.seal().unwrap();
            store.maintain(START + 12 * DAY).unwrap();
            store.maintain(START + 12 * DAY).unwrap();
        }
        let all = answer(&tiered, &query(START, START + 12 * DAY, None, None)).0;
        assert_eq!(all, [], "the readings are gone");
        for _ in 0..40 {
            let every = [None, Some(10), Some(60), Some(3_600), Some(86_400)][random.below(5) as usize];
            let hour = |random: &mut Random| START + random.below(3 * 24) as i64 * 3_600 * SECOND;
            let (a, b) = (hour(&mut random), hour(&mut random));
            let one = ["/n/int", "/n/float", "/n/large"][random.below(3) as usize];
            let patterns = vec![Pattern::new(one).unwrap()];
            let every = every.map(|every| every * SECOND);
            let query = Query { patterns, ..query(a.min(b), a.max(b), every, Some(Agg::Mean)) };
            let (found, tier, notes) = answer(&tiered, &query);
            let (expected, _, _) = answer(&raw, &query);
            if notes.is_empty() {
                compared += expected.len();
                same(&found, &expected, true, &format!("{query:?}, tier {tier:?}"));
            } else {
                assert!(notes.iter().all(|note| note.contains("retention")), "{notes:?}");
                with_note += 1;
            }
        }
    }
    assert!(compared > 1_000 && with_note < 6, "{compared} rows compared, {with_note} answers with a note");
}

/// Readings of one sensor with an interval of 10 s: one that stands alone at either end of a day, many at once, and some days in which they come
/// every 40 s, longer apart than is bridged without others like it.
fn lone_and_slow(store: &Store) {
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("x", "1", "")]).unwrap();
    store.register_schema(&schema).unwrap();
    let hour = 3_600;
    let day = 24 * hour;
    let mut seconds: Vec<i64> = vec![300];
    seconds.extend((3_000..6 * hour).step_by(10));
    seconds.extend(6 * hour..6 * hour + 600);
    seconds.extend((6 * hour + 600..20 * hour).step_by(10));
    seconds.push(23 * hour + 1_800);
    seconds.extend((day + 600..day + 12 * hour).step_by(10));
    seconds.extend((day + 12 * hour..3 * day + 6 * hour).step_by(40));
    for (seq, seconds) in (0..).zip(seconds.chunk_by(|a, b| a / day == b / day)) {
        let times: Vec<i64> = seconds.iter().map(|second| START + second * SECOND).collect();
        let values =
            seconds.iter().map(|second| if (6 * hour..6 * hour + 600).contains(second) { 5_000 } else { second % 977 });
        let column = Column { values: ColumnValues::Int(values.collect()), gaps: Gaps::default() };
        let interval_ns = 10 * SECOND as u64;
        let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema.hash(), interval_ns };
        store.append_blocking(encode_batch(&Batch { header, times, columns: vec![column] }).into()).unwrap();
        store.seal().unwrap();
    }
}

#[test]
fn windows_store_whether_lines_join_the_first_and_last_deleted_reading_of_a_day() {
    let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tiers = [10, 300, 3_600].map(|seconds| (Interval::from_s(seconds), None)).to_vec();
    let rule = RetentionRule { pattern: Pattern::new("/n/**").unwrap(), raw: Some(Interval::from_s(86_400)), tiers };
    let config = StoreConfig { background: false, retention: vec![rule], ..StoreConfig::new(with.path()) };
    let (tiered, raw) = (Store::open(config).unwrap().0, open(without.path(), false));
    for store in [&tiered, &raw] {
        lone_and_slow(store);
        store.maintain(START + 12 * DAY).unwrap();
        store.maintain(START + 12 * DAY).unwrap();
    }
    assert_eq!(answer(&tiered, &query(START, START + 4 * DAY, None, None)).0, [], "the readings are gone");
    for every in [None, Some(10), Some(300), Some(3_600), Some(86_400)] {
        for (from, to) in [(0, 4 * DAY), (0, DAY), (DAY, 3 * DAY)] {
            let query = query(START + from, START + to, every.map(|every| every * SECOND), Some(Agg::Mean));
            let (found, _, notes) = answer(&tiered, &query);
            assert_eq!(notes, Vec::<String>::new(), "{query:?}");
            same(&found, &answer(&raw, &query).0, true, &format!("{query:?}"));
        }
    }
}

#[test]
fn a_mean_from_coarser_windows_includes_the_lines_at_both_ends() {
    let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rule = |path: &str, fine: Option<Interval>| RetentionRule {
        pattern: Pattern::new(path).unwrap(),
        raw: Some(Interval::from_s(86_400)),
        tiers: vec![(Interval::from_s(300), fine), (Interval::from_s(3_600), None)],
    };
    let retention = vec![rule("/n/x", Some(Interval::from_s(86_400))), rule("/n/y", None)];
    let config = StoreConfig { background: false, retention, ..StoreConfig::new(with.path()) };
    let (tiered, raw) = (Store::open(config).unwrap().0, open(without.path(), false));
    let sensors = vec![SensorDef::gauge("x", "1", ""), SensorDef::gauge("y", "1", "")];
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", sensors).unwrap();
    let times: Vec<i64> = (7..86_400).step_by(290).map(|second| START + second * SECOND).collect();
    let column = || {
        let values = (0..times.len() as i64).map(|at| at * at % 1_009).collect();
        Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
    };
    let interval_ns = 290 * SECOND as u64;
    let header = BatchHeader { agent: "n".into(), boot: 1, seq: 0, schema: schema.hash(), interval_ns };
    let payload = encode_batch(&Batch { header, times: times.clone(), columns: vec![column(), column()] });
    for store in [&tiered, &raw] {
        store.register_schema(&schema).unwrap();
        store.append_blocking(payload.clone().into()).unwrap();
        store.seal().unwrap();
        store.maintain(START + 12 * DAY).unwrap();
        store.maintain(START + 12 * DAY).unwrap();
    }
    let hour = 3_600 * SECOND;
    for (from, to) in [(10, 14), (10, 15), (1, 8), (0, 5)] {
        let query = query(START + from * hour, START + to * hour, None, Some(Agg::Mean));
        let (found, tier, notes) = answer(&tiered, &query);
        assert_eq!((found.len(), tier, notes), (2, Some(Interval::from_s(300)), vec![]), "{query:?}");
        same(&found, &answer(&raw, &query).0, true, &format!("{query:?}"));
    }
}

/// A reading each 10 s for two days, each day in its block, except for an hour and some single ones.
fn two_days(store: &Store, random: &mut Random) {
    let schema =
        Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("x", "1", "").float()]).unwrap();
    store.register_schema(&schema).unwrap();
    for day in 0..2 {
        let there = |second: &i64| (second + 3) % 1_700 != 0 && !(50_000..53_600).contains(second);
        let seconds = (0..86_400).step_by(10).filter(there);
        let times: Vec<i64> = seconds.map(|second| START + day * DAY + second * SECOND + 3_515_000_000).collect();
        let values = times.iter().map(|_| if random.below(9) == 0 { 1000.0 } else { random.below(100) as f64 });
        let column = Column { values: ColumnValues::Float(values.collect()), gaps: Gaps::default() };
        let interval_ns = 10 * SECOND as u64;
        let header = BatchHeader { agent: "n".into(), boot: 1, seq: day as u64, schema: schema.hash(), interval_ns };
        store.append_blocking(encode_batch(&Batch { header, times, columns: vec![column] }).into()).unwrap();
        store.seal().unwrap();
    }
}

#[test]
fn a_range_that_cuts_a_window_does_not_change_the_mean_of_the_whole_window_next_to_it() {
    let mut random = Random::seeded_or(4711);
    let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tiers = [10, 300, 3_600].map(|seconds| (Interval::from_s(seconds), None)).to_vec();
    let rule = RetentionRule { pattern: Pattern::new("/n/**").unwrap(), raw: Some(Interval::from_s(86_400)), tiers };
    let config = StoreConfig { background: false, retention: vec![rule], ..StoreConfig::new(with.path()) };
    let (tiered, raw) = (Store::open(config).unwrap().0, open(without.path(), false));
    for store in [&tiered, &raw] {
        two_days(store, &mut random.clone());
        store.maintain(START + 12 * DAY).unwrap();
        store.maintain(START + 12 * DAY).unwrap();
    }
    assert_eq!(answer(&tiered, &query(START, START + 2 * DAY, None, None)).0, [], "the readings are gone");
    let minute = 60 * SECOND;
    let hour = 60 * minute;
    let mut ranges = vec![
        (10 * hour, 11 * hour + 4 * minute + 12 * SECOND),
        (10 * hour + 57 * minute, 12 * hour),
        (10 * hour, 11 * hour + 1),
        (10 * hour - 1, 11 * hour),
        (20 * hour, DAY + 1),
        (DAY - 1, DAY + 4 * hour),
        (20 * hour, DAY + 5 * minute + 1),
    ];
    for _ in 0..60 {
        let (from, long) = (random.below(40 * hour as u64) as i64, 2 * hour + random.below(6 * hour as u64) as i64);
        ranges.push(match random.below(3) {
            0 => (from - from % hour, from + long),
            1 => (from, (from + long) / hour * hour),
            _ => (from, from + long),
        });
    }
    let mut compared = 0;
    for (from, to) in ranges {
        for every in [300, 900, 3_600].map(|every| every * SECOND) {
            let cut = query(START + from, START + to, Some(every), Some(Agg::Mean));
            let whole = |rows: Rows| -> Rows {
                rows.into_iter().filter(|row| row.1 >= START + from && row.1 + every <= START + to).collect()
            };
            let found = whole(answer(&tiered, &cut).0);
            compared += found.len();
            same(&found, &whole(answer(&raw, &cut).0), true, &format!("{cut:?}"));
        }
        let aligned = ((from + 10 * SECOND - 1) / (10 * SECOND) * (10 * SECOND), to / (10 * SECOND) * (10 * SECOND));
        let one = |(from, to): (i64, i64)| query(START + from, START + to, None, Some(Agg::Mean));
        let mut found = answer(&tiered, &one((from, to))).0;
        let expected = answer(&raw, &one(aligned)).0;
        assert!(found.len() == 1 && found[0].1 == START + from, "{found:?}");
        found[0].1 = expected[0].1;
        same(&found, &expected, true, &format!("{from} to {to}"));
    }
    assert!(compared > 1_000, "{compared} rows compared");
}

/// One sensor with one reading a second, for a number of days, each sealed and merged.
fn days(store: &Store, days: i64) {
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("x", "1", "")]).unwrap();
    store.register_schema(&schema).unwrap();
    for day in 0..days {
        let times: Vec<i64> = (0..86_400).step_by(10).map(|second| START + day * DAY + second * SECOND).collect();
        let column = Column { values: ColumnValues::Int((0..8_640).collect()), gaps: Gaps::default() };
        let header = BatchHeader {
            agent: "n".into(),
            boot: 1,
            seq: day as u64,
            schema: schema.hash(),
            interval_ns: 10 * SECOND as u64,
        };
        let payload = encode_batch(&Batch { header, times, columns: vec![column] });
        store.append_blocking(payload.into()).unwrap();
        store.seal().unwrap();
    }
}

#[test]
fn windows_outlive_their_readings_and_a_raw_query_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let days_of = |days: u64| Some(Interval::from_s(days * 86_400));
    let rule = RetentionRule {
        pattern: Pattern::new("/n/**").unwrap(),
        raw: days_of(2),
        tiers: vec![(Interval::from_s(300), days_of(4)), (Interval::from_s(3_600), None)],
    };
    let config = StoreConfig { background: false, retention: vec![rule], ..StoreConfig::new(dir.path()) };
    let (store, _) = Store::open(config.clone()).unwrap();
    days(&store, 8);
    let now = START + 8 * DAY + 3 * 3_600 * SECOND;
    store.maintain(now).unwrap();
    store.maintain(now).unwrap();
    let check = |store: &Store| {
        let (rows, _, warnings) = answer(store, &query(START, START + 8 * DAY, None, None));
        assert!(rows.iter().all(|row| row.1 >= now - 2 * DAY - 3_600 * SECOND) && !rows.is_empty());
        assert!(warnings.len() == 1 && warnings[0].contains("out of their retention"), "{warnings:?}");
        let hours = query(START, START + 8 * DAY, Some(3_600 * SECOND), Some(Agg::Count));
        let (rows, tier, warnings) = answer(store, &hours);
        assert_eq!((rows.len(), tier, warnings), (8 * 24, Some(Interval::from_s(3_600)), vec![]));
        assert!(rows.iter().all(|row| row.2 == Some(360.0)));
        // Operations need the readings, whatever windows are kept (docs/sums.md).
        for op in [Op::Delta, Op::Derivative, Op::Integral] {
            let (rows, tier, notes) =
                answer(store, &Query { op: Some(op), ..query(START, START + 8 * DAY, Some(3_600 * SECOND), None) });
            assert!(tier.is_none() && !rows.is_empty(), "{op:?}");
            assert!(rows.iter().all(|row| row.1 >= now - 2 * DAY - 2 * 3_600 * SECOND), "{op:?} {:?}", rows[0]);
            assert!(notes.len() == 1 && notes[0].contains("out of their retention"), "{op:?} {notes:?}");
        }
        // Windows of five minutes are kept for four days only.
        let (rows, tier, _) = answer(store, &query(START, START + 8 * DAY, Some(300 * SECOND), Some(Agg::Sum)));
        assert_eq!(tier, Some(Interval::from_s(300)));
        assert!(rows[0].1 >= now - 4 * DAY - 3_600 * SECOND && rows[0].1 <= now - 4 * DAY, "{:?}", rows[0]);
        // A range that cuts a window of which only the whole is left.
        let cut = query(START + 1_000 * SECOND, START + 2 * 3_600 * SECOND, Some(3_600 * SECOND), Some(Agg::Count));
        let (rows, _, warnings) = answer(store, &cut);
        assert_eq!((rows.len(), rows[0].1, warnings.len()), (1, START + 3_600 * SECOND, 1), "{warnings:?}");
        // One value over a range of which windows of an hour alone are left, and over one that cuts windows of five minutes of which others are there.
        let whole = |from: i64, to: i64| answer(store, &query(START + from, START + to, None, Some(Agg::Count)));
        let hour = 3_600 * SECOND;
        let (rows, tier, notes) = whole(hour, 5 * hour);
        assert_eq!((rows[0].2, tier, notes), (Some(4.0 * 360.0), Some(Interval::from_s(3_600)), vec![]));
        let days_5_to_7 = 5 * DAY + 7 * SECOND;
        let (rows, _, notes) = whole(days_5_to_7, 7 * DAY - hour);
        let expected = (DAY + 23 * hour - 300 * SECOND) / (10 * SECOND);
        assert_eq!(
            (rows[0].2, notes.len()),
            (Some(expected as f64), 1),
            "five minutes are cut and not an hour: {notes:?}"
        );
        let points = Query { points: Some(16), ..query(START + 7, START + 8 * DAY - 7, None, None) };
        let result = run(store, &points).unwrap();
        assert_eq!((result.every, result.tier), (Some(Interval::from_s(12 * 3_600)), Some(Interval::from_s(3_600))));
        assert_eq!(answer(store, &points).0.len(), 16);
    };
    check(&store);
    let stats = store.stats();
    assert_eq!(stats.retention_rows, 6 * 8_640 - (stats.block_rows - 2 * 8_640), "whole days went");
    drop(store);
    let (store, _) = Store::open(config).unwrap();
    store.maintain(now).unwrap();
    check(&store);
}
