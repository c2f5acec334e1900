//! Imports: parts become blocks at once, replace earlier readings, and are stored once.

mod support;

use std::path::Path;
use std::sync::Arc;

use support::{EIO, Fault, FaultyDisk};
use wholegrain_model::{Column, ColumnValues, Gaps, Interval, Kind, Pattern, SensorPath, Value, ValueType};
use wholegrain_store::{
    IMPORT_ROWS_MAX, ImportReport, ImportSeries, ImportState, Reading, RetentionRule, ScanPart, SchemalessSensor,
    SensorId, SensorSetting, Store, StoreConfig, StoreError,
};

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;

fn schemaless(path: &str, unit: &str) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: unit.to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 1.0,
        description: String::new(),
    }
}

/// Readings at seconds after the start; `None` is a gap.
fn series(path: &str, rows: &[(i64, Option<f64>)]) -> ImportSeries {
    let mut gaps = Gaps::default();
    let gap = |(at, row): (usize, &(i64, Option<f64>))| row.1.is_none().then_some(at);
    rows.iter().enumerate().filter_map(gap).for_each(|at| gaps.set(at, rows.len()));
    let values = ColumnValues::Float(rows.iter().map(|row| row.1.unwrap_or(0.0)).collect());
    let times = rows.iter().map(|row| START + row.0 * SECOND).collect();
    ImportSeries { sensor: schemaless(path, "W"), times, column: Column { values, gaps } }
}

fn manual(dir: impl AsRef<Path>) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir.as_ref()) }
}

fn open(dir: impl AsRef<Path>) -> Store {
    Store::open(manual(dir)).unwrap().0
}

fn append(store: &Store, id: SensorId, second: i64, value: f64) {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let reading = Reading { sensor: id, time: START + second * SECOND, value: Value::Float(value) };
    store.append_readings("gateway", vec![reading], Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap().unwrap();
}

fn rows(store: &Store, path: &str) -> Vec<(i64, Option<f64>)> {
    let id = store.sensor_id(path).unwrap();
    let mut rows = Vec::new();
    for chunk in store.snapshot().scan(id, i64::MIN, i64::MAX).unwrap() {
        let chunk = chunk.unwrap();
        rows.extend(chunk.times.iter().enumerate().map(|(i, t)| {
            let value = chunk.column.get(i).map(|value| match value {
                Value::Float(value) => value,
                Value::Int(value) => value as f64,
            });
            ((t - START) / SECOND, value)
        }));
    }
    rows
}

fn stored(readings: u64) -> ImportReport {
    ImportReport { readings, ..ImportReport::default() }
}

#[test]
fn a_part_is_visible_at_once_stays_over_a_restart_and_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let held = store.snapshot();
    let part = vec![series("/i/b", &[(1, Some(1.5)), (2, None), (9, Some(2.5))]), series("/i/a", &[(-5, Some(7.0))])];
    assert_eq!(store.import("x", 3, "me", part.clone()).unwrap(), stored(4));
    let expected = [(1, Some(1.5)), (2, None), (9, Some(2.5))];
    assert_eq!(rows(&store, "/i/b"), expected);
    assert_eq!(held.scan(store.sensor_id("/i/b").unwrap(), i64::MIN, i64::MAX).unwrap().count(), 0);
    let again = store.import("x", 3, "me", vec![series("/i/b", &[(1, Some(99.0))])]).unwrap();
    assert!(again.duplicate && again.readings == 0);
    let ids: Vec<SensorId> = ["/i/a", "/i/b"].iter().map(|path| store.sensor_id(path).unwrap()).collect();
    let newest =
        vec![Some((START - 5 * SECOND, Some(Value::Float(7.0)))), Some((START + 9 * SECOND, Some(Value::Float(2.5))))];
    assert_eq!(store.newest(&ids), newest);
    let info = store.sensor(ids[1]).unwrap();
    assert_eq!((info.unit.as_str(), info.last_time, &*info.agent), ("W", Some(START + 9 * SECOND), "me"));
    let stats = store.stats();
    assert_eq!((stats.batches, stats.schemaless_readings, stats.fsyncs), (0, 0, 0), "nothing went through the journal");
    store.close().unwrap();
    drop((store, held));
    let store = open(dir.path());
    assert_eq!(rows(&store, "/i/b"), expected);
    assert_eq!(store.newest(&ids), newest, "the newest times are in the catalogue");
    assert_eq!(store.import_state("x").unwrap(), ImportState { readings: 4, parts: vec![(3, 3)] });
    assert!(store.import("x", 3, "me", part.clone()).unwrap().duplicate);
    assert!(!store.import("x", 4, "me", part).unwrap().duplicate);
    assert_eq!(store.import_state("x").unwrap().parts, [(3, 4)]);
    assert_eq!(rows(&store, "/i/b"), expected, "each time once");
}

#[test]
fn of_one_time_the_later_arrival_counts_live_sealed_and_merged() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { merge_fan_in: 2, merge_delay: Interval::from_s(1), ..manual(dir.path()) };
    let store = Store::open(config).unwrap().0;
    let id = store.register_sensors("gateway", &[schemaless("/i/a", "W")]).unwrap()[0];
    let import = |part: u64, rows: &[(i64, Option<f64>)]| {
        store.import("x", part, "me", vec![series("/i/a", rows)]).unwrap();
    };
    for second in 0..6 {
        append(&store, id, second, 0.0);
    }
    store.seal().unwrap();
    append(&store, id, 1, 1.0);
    // Over a sealed reading, over one that waits, and over another import.
    import(1, &[(0, Some(10.0)), (1, Some(10.0)), (2, Some(10.0)), (3, Some(10.0)), (4, Some(10.0))]);
    let check = |expected: &[f64]| {
        let found: Vec<f64> = rows(&store, "/i/a").into_iter().map(|row| row.1.unwrap()).collect();
        assert_eq!(found, expected);
    };
    check(&[10.0, 10.0, 10.0, 10.0, 10.0, 0.0]);
    import(2, &[(2, Some(20.0)), (3, Some(20.0)), (4, Some(20.0))]);
    append(&store, id, 3, 30.0);
    // Of several days, in a block that is never merged; it must not win over what came later, nor lose to what came before.
    let far: Vec<(i64, Option<f64>)> = (1..40).map(|day| (day * 86_400, Some(5.0))).collect();
    let mut wide = vec![(4, Some(40.0))];
    wide.extend(&far);
    import(3, &wide);
    append(&store, id, 5, 50.0);
    let mut expected = vec![10.0, 10.0, 20.0, 30.0, 40.0, 50.0];
    expected.extend(far.iter().map(|_| 5.0));
    check(&expected);
    store.seal().unwrap();
    check(&expected);
    for second in [100, 101, 102] {
        append(&store, id, second, 1.0);
        store.seal().unwrap();
    }
    let with_later: Vec<f64> =
        expected[..6].iter().copied().chain([1.0, 1.0, 1.0]).chain(far.iter().map(|_| 5.0)).collect();
    check(&with_later);
    store.maintain(START + 100 * DAY).unwrap();
    assert!(store.stats().merges > 0);
    check(&with_later);
    assert_eq!(store.newest(&[id])[0], Some((START + 39 * DAY, Some(Value::Float(5.0)))));
}

#[test]
fn values_fit_the_sensor_that_is_known_and_another_unit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let known = SchemalessSensor { scale: 0.001, value_type: ValueType::Int, ..schemaless("/i/a", "W") };
    let id = store.register_sensors("gateway", &[known]).unwrap()[0];
    store.import("x", 0, "me", vec![series("/i/a", &[(0, Some(1.5)), (1, None)])]).unwrap();
    let chunk = store.snapshot().scan(id, i64::MIN, i64::MAX).unwrap().next().unwrap().unwrap();
    assert_eq!((chunk.column.get(0), chunk.column.get(1)), (Some(Value::Int(1500)), None));
    let mut other = series("/i/a", &[(2, Some(1.0))]);
    other.sensor.unit = "kW".to_owned();
    let both = vec![series("/i/new", &[(2, Some(1.0))]), other];
    match store.import("x", 1, "me", both).unwrap_err() {
        StoreError::Sensor(text) => assert!(text.contains("/i/a") && text.contains("kW"), "{text}"),
        other => panic!("{other}"),
    }
    assert_eq!(store.sensor_id("/i/new"), None, "nothing of a refused part stays");
    assert_eq!(store.import_state("x").unwrap().parts, [(0, 0)]);
}

#[test]
fn what_is_no_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let refused = |id: &str, part: Vec<ImportSeries>, text: &str| match store.import(id, 0, "me", part).unwrap_err() {
        StoreError::Payload(reason) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{other}"),
    };
    let good = || series("/i/a", &[(0, Some(1.0)), (1, Some(2.0))]);
    refused("", vec![good()], "id");
    refused("a b", vec![good()], "id");
    refused(&"a".repeat(65), vec![good()], "id");
    refused("x", vec![good(), good()], "twice");
    refused("x", vec![series("/i/a", &[(1, Some(1.0)), (1, Some(2.0))])], "after the one before");
    let mut short = good();
    short.times.pop();
    refused("x", vec![short], "number of values");
    let many: Vec<i64> = (0..=IMPORT_ROWS_MAX as i64).collect();
    let values = ColumnValues::Int(vec![0; many.len()]);
    let many =
        ImportSeries { sensor: schemaless("/i/a", ""), times: many, column: Column { values, gaps: Gaps::default() } };
    refused("x", vec![many], "at most");
    assert_eq!(store.stats().blocks, 0);
    assert_eq!(store.import("x", 0, "me", Vec::new()).unwrap(), stored(0), "a part may be empty");
    assert!(store.import("x", 0, "me", vec![good()]).unwrap().duplicate);
}

#[test]
fn few_large_files_rather_than_many_small_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let days = |count: i64| -> Vec<(i64, Option<f64>)> { (0..count).map(|day| (day * 86_400, Some(1.0))).collect() };
    store.import("x", 0, "me", vec![series("/i/a", &days(3))]).unwrap();
    assert_eq!(store.stats().blocks, 3);
    store.import("x", 1, "me", vec![series("/i/a", &days(3_000))]).unwrap();
    assert_eq!(store.stats().blocks, 4);
    // Tiers of it are made like those of others.
    store.maintain(START + 4_000 * DAY).unwrap();
    assert!(store.stats().tiers >= 12, "{:?}", store.stats());
}

#[test]
fn what_is_older_than_kept_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let rule = RetentionRule {
        pattern: Pattern::new("/i/short").unwrap(),
        raw: Some(Interval::from_s(3_600)),
        tiers: Vec::new(),
    };
    let store = Store::open(StoreConfig { retention: vec![rule], ..manual(dir.path()) }).unwrap().0;
    let part = vec![series("/i/short", &[(0, Some(1.0)), (1, Some(1.0))]), series("/i/kept", &[(0, Some(1.0))])];
    let imported = store.import("x", 0, "me", part).unwrap();
    assert_eq!((imported.readings, imported.past_retention), (3, 2));
}

#[test]
fn a_failing_disk_leaves_the_part_out_whole_and_it_can_be_sent_again() {
    for operation in 0.. {
        let disk = FaultyDisk::default();
        let store = Store::open_on(manual("/store"), Arc::new(disk.clone())).unwrap().0;
        disk.plan(operation, Fault::Errors(EIO, 1));
        let part = || vec![series("/i/a", &[(0, Some(1.0)), (1, Some(2.0))]), series("/i/b", &[(0, Some(3.0))])];
        let first = store.import("x", 0, "me", part());
        disk.calm();
        let visible = |path: &str| store.sensor_id(path).map_or(0, |_| rows(&store, path).len());
        match &first {
            Ok(imported) => assert_eq!(imported, &stored(3)),
            Err(_) => assert_eq!(visible("/i/a") + visible("/i/b"), 0, "operation {operation}"),
        }
        let again = store.import("x", 0, "me", part()).unwrap();
        assert!(first.is_err() || again.duplicate);
        assert_eq!((visible("/i/a"), visible("/i/b")), (2, 1), "operation {operation}");
        assert_eq!(store.stats().block_rows, 3, "operation {operation}: once");
        if first.is_ok() && operation > 40 {
            return;
        }
    }
}

#[test]
fn an_import_learns_how_far_apart_readings_are() {
    let dir = tempfile::tempdir().unwrap();
    let every = |path: &str, from: i64, every: i64| {
        let rows: Vec<(i64, Option<f64>)> = (0..20).map(|at| (from + at * every, Some(at as f64))).collect();
        series(path, &rows)
    };
    let interval = |store: &Store, path: &str| store.sensor(store.sensor_id(path).unwrap()).unwrap().interval_ns;
    let seconds = |seconds: u64| seconds * SECOND as u64;
    let store = open(dir.path());
    let two = series("/i/two", &[(0, Some(1.0)), (60, Some(2.0))]);
    store.import("x", 0, "me", vec![every("/i/hourly", 0, 3600), every("/i/quarter", 0, 900), two]).unwrap();
    let found = ["/i/hourly", "/i/quarter", "/i/two"].map(|path| interval(&store, path));
    assert_eq!(found, [seconds(3600), seconds(900), 0]);
    // Nearer readings of a later part count, those that are further apart do not; what else is known stays.
    let plain = ImportSeries { sensor: schemaless("/i/quarter", ""), ..every("/i/quarter", 100_000, 86_400) };
    store.import("x", 1, "me", vec![every("/i/hourly", 100_000, 10), plain]).unwrap();
    store.register_sensors("gateway", &[schemaless("/i/hourly", "W")]).unwrap();
    let set = SensorSetting {
        pattern: Pattern::new("/i/two").unwrap(),
        unit: None,
        scale: None,
        kind: None,
        description: None,
        interval: Some(Interval::from_s(60)),
    };
    store.set_properties(&[set], false, "anna", START).unwrap();
    drop(store);
    let store = open(dir.path());
    let found = ["/i/hourly", "/i/quarter", "/i/two"].map(|path| interval(&store, path));
    assert_eq!(found, [seconds(10), seconds(900), seconds(60)]);
    assert_eq!(store.sensor(store.sensor_id("/i/quarter").unwrap()).unwrap().unit, "W");
    store.unset_properties(&Pattern::new("/i/two").unwrap(), &[], "anna", START).unwrap();
    assert_eq!(interval(&store, "/i/two"), 0);
}

#[test]
fn readings_imported_again_after_retention_took_them_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let hours = |hours: u64| Some(Interval::from_s(hours * 3600));
    let tiers = [10, 300, 3600].map(|seconds| (Interval::from_s(seconds), None)).to_vec();
    let rule = RetentionRule { pattern: Pattern::new("/i/**").unwrap(), raw: hours(1), tiers };
    let config = StoreConfig { retention: vec![rule], ..manual(dir.path()) };
    let store = Store::open(config).unwrap().0;
    let rows: Vec<(i64, Option<f64>)> = (0..720).map(|at| (at * 10 + 3, Some((at % 7) as f64))).collect();
    let sensor = || store.sensors(&[Pattern::new("/i/a").unwrap()]).remove(0);
    let counts = || -> Vec<u64> {
        let snapshot = store.snapshot();
        let range = (START, START + 7200 * SECOND);
        let parts = support::windows(&snapshot, &sensor(), range, 3600 * SECOND).unwrap().parts;
        let mut counts = vec![0; 2];
        for part in parts {
            let ScanPart::Windows(windows) = part.unwrap() else { panic!("readings") };
            (0..windows.len()).map(|at| windows.get(at)).for_each(|window| {
                counts[((window.time - START) / (3600 * SECOND)) as usize] += window.count;
            });
        }
        counts
    };
    let now = START + 12 * 86_400 * SECOND;
    let merge_all = || (0..3).for_each(|_| store.maintain(now).unwrap());
    store.import("x", 0, "me", vec![series("/i/a", &rows)]).unwrap();
    merge_all();
    assert_eq!(counts(), [360, 360]);
    // All of them, and the second half of each hour.
    store.import("y", 0, "me", vec![series("/i/a", &rows)]).unwrap();
    merge_all();
    assert_eq!(counts(), [360, 360]);
    let half: Vec<_> = rows.iter().copied().filter(|(second, _)| second % 3600 >= 1800).collect();
    store.import("z", 0, "me", vec![series("/i/a", &half)]).unwrap();
    merge_all();
    assert_eq!(counts(), [360, 360]);
    let notes = {
        let snapshot = store.snapshot();
        let range = (START, START + 7200 * SECOND);
        let parts = support::windows(&snapshot, &sensor(), range, 3600 * SECOND).unwrap().parts;
        parts.for_each(|part| drop(part.unwrap()));
        snapshot.notes()
    };
    assert!(notes.iter().any(|note| note.contains("came at several times")), "{notes:?}");
}

#[test]
fn a_float_makes_a_sensor_of_integers_one_of_floats() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let value_type = |store: &Store| store.sensor(store.sensor_id("/i/a").unwrap()).unwrap().value_type;
    let known =
        SchemalessSensor { value_type: ValueType::Int, description: "of old".into(), ..schemaless("/i/a", "W") };
    store.register_sensors("gateway", &[known]).unwrap();
    store.import("x", 0, "me", vec![series("/i/a", &[(0, Some(2.0)), (1, None)])]).unwrap();
    assert_eq!(value_type(&store), ValueType::Int);
    store.import("x", 1, "me", vec![series("/i/a", &[(2, Some(2.5))])]).unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(value_type(&store), ValueType::Float);
    assert_eq!(store.sensor(store.sensor_id("/i/a").unwrap()).unwrap().description, "of old");
}

fn set(store: &Store, pattern: &str, unit: Option<&str>, scale: Option<f64>) {
    let pattern = Pattern::new(pattern).unwrap();
    let unit = unit.map(str::to_owned);
    let setting = SensorSetting { pattern, unit, scale, kind: None, description: None, interval: None };
    store.set_properties(&[setting], false, "anna", START).unwrap();
}

fn integers(path: &str, unit: &str, rows: &[(i64, i64)]) -> ImportSeries {
    let values = ColumnValues::Int(rows.iter().map(|row| row.1).collect());
    let times = rows.iter().map(|row| START + row.0 * SECOND).collect();
    let sensor = SchemalessSensor { value_type: ValueType::Int, ..schemaless(path, unit) };
    ImportSeries { sensor, times, column: Column { values, gaps: Gaps::default() } }
}

/// The values with the scale in force, and the unit.
#[track_caller]
fn check_values(store: &Store, path: &str, unit: &str, expected: &[f64]) {
    let info = store.sensor(store.sensor_id(path).unwrap()).unwrap();
    assert_eq!(info.unit, unit);
    let found: Vec<f64> = rows(store, path).iter().map(|row| row.1.unwrap() * info.scale).collect();
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs();
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?}, not {expected:?}");
}

#[test]
fn another_unit_than_the_set_one_is_refused_of_a_new_sensor_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    set(&store, "/i/**/power", Some("W"), None);
    for unit in ["kW", "J"] {
        let mut other = series("/i/hall/power", &[(0, Some(5.4321))]);
        other.sensor.unit = unit.to_owned();
        match store.import("x", 0, "me", vec![series("/i/hall/a", &[(0, Some(1.0))]), other]).unwrap_err() {
            StoreError::Sensor(text) => {
                let named = ["/i/hall/power", "\"W\"", &format!("{unit:?}")].iter().all(|part| text.contains(part));
                assert!(named, "{text}");
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((store.sensor_id("/i/hall/power"), store.sensor_id("/i/hall/a")), (None, None), "nothing of it stays");
    // The set unit, and none.
    let plain = ImportSeries { sensor: schemaless("/i/lab/power", ""), ..series("/i/lab/power", &[(0, Some(7.5))]) };
    store.import("x", 0, "me", vec![series("/i/hall/power", &[(0, Some(5.5))]), plain]).unwrap();
    check_values(&store, "/i/hall/power", "W", &[5.5]);
    check_values(&store, "/i/lab/power", "W", &[7.5]);
}

#[test]
fn values_of_a_new_sensor_fit_the_scale_that_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    set(&store, "/i/**", None, Some(0.1));
    set(&store, "/i/third", None, Some(3.0));
    set(&store, "/i/tiny", None, Some(1e-300));
    let import = |part: u64, series: Vec<ImportSeries>| store.import("x", part, "me", series);
    let first = vec![
        series("/i/float", &[(0, Some(1.0)), (1, Some(5.4321))]),
        integers("/i/int", "W", &[(0, 1), (1, -20)]),
        integers("/i/third", "W", &[(0, 1), (1, 6)]),
    ];
    import(0, first).unwrap();
    let second = vec![series("/i/float", &[(2, Some(1.0))]), integers("/i/int", "W", &[(2, 1)])];
    import(1, second).unwrap();
    let check = |store: &Store| {
        check_values(store, "/i/float", "W", &[1.0, 5.4321, 1.0]);
        check_values(store, "/i/int", "W", &[1.0, -20.0, 1.0]);
        check_values(store, "/i/third", "W", &[1.0, 6.0]);
        let value_type = |path: &str| store.sensor(store.sensor_id(path).unwrap()).unwrap().value_type;
        assert_eq!((value_type("/i/int"), value_type("/i/third")), (ValueType::Int, ValueType::Float));
    };
    check(&store);
    // No raw value gives that.
    match import(2, vec![series("/i/tiny", &[(0, Some(1e20))])]).unwrap_err() {
        StoreError::Sensor(text) => assert!(text.contains("/i/tiny") && text.contains("1e-300"), "{text}"),
        other => panic!("{other}"),
    }
    assert_eq!(store.sensor_id("/i/tiny"), None);
    import(2, vec![series("/i/tiny", &[(0, Some(1.0)), (1, Some(0.0)), (2, None)])]).unwrap();
    drop(store);
    let store = open(dir.path());
    check(&store);
    // The imported readings stay as they are without the setting.
    for pattern in ["/i/**", "/i/third", "/i/tiny"] {
        store.unset_properties(&Pattern::new(pattern).unwrap(), &[], "anna", START).unwrap();
    }
    check(&store);
}
