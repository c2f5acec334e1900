//! Deletions: exact, also in windows, in what is newest and in what is sent again; refused whole when the disk is full.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use support::{ENOSPC, Fault, FaultyDisk};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Value,
};
use wholegrain_store::{Appended, Deletion, Part, RetentionRule, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const START: i64 = 20_000 * DAY;

fn config() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new("/store") }
}

fn schema() -> Schema {
    let sensors = vec![SensorDef::gauge("a", "1", ""), SensorDef::gauge("b", "1", "")];
    Schema::new(SensorPath::new("/n").unwrap(), "g", sensors).unwrap()
}

/// Ten minutes of both sensors, one reading a second, from `second` after the start on.
fn payload(seq: u64, second: i64) -> Vec<u8> {
    let times: Vec<i64> = (second..second + 600).map(|second| START + second * SECOND).collect();
    let column = |factor: i64| {
        let values = (second..second + 600).map(|second| second * factor).collect();
        Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
    };
    let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema().hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times, columns: vec![column(1), column(-1)] })
}

/// Two hours in blocks that are merged and have tiers, ten minutes in a block of its own, ten in the journal.
fn filled(disk: &FaultyDisk) -> Store {
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    store.register_schema(&schema()).unwrap();
    for seq in 0..12 {
        store.append_blocking(payload(seq, seq as i64 * 600).into()).unwrap();
        if seq % 3 == 2 {
            store.seal().unwrap();
        }
    }
    store.maintain(START + 2 * DAY).unwrap();
    assert!(store.stats().tiers >= 3);
    store.append_blocking(payload(12, 12 * 600).into()).unwrap();
    store.seal().unwrap();
    store.append_blocking(payload(13, 13 * 600).into()).unwrap();
    store
}

fn deletion(pattern: &str, from: i64, to: i64) -> Deletion {
    Deletion { patterns: vec![Pattern::new(pattern).unwrap()], from: START + from, to: START + to }
}

type Rows = BTreeMap<(String, i64), i64>;

fn rows(store: &Store) -> Rows {
    let snapshot = store.snapshot();
    let mut rows = Rows::new();
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        for chunk in snapshot.scan(sensor.id, i64::MIN, i64::MAX).unwrap() {
            let chunk = chunk.unwrap();
            for (at, time) in chunk.times.iter().enumerate() {
                let Some(Value::Int(value)) = chunk.column.get(at) else { panic!() };
                rows.insert((sensor.path.to_string(), time - START), value);
            }
        }
    }
    rows
}

/// Sums of windows by way of the tiers, as a query makes them.
fn sums(store: &Store, every: i64) -> Rows {
    let snapshot = store.snapshot();
    let mut sums = Rows::new();
    let (from, to) = (START, START + DAY);
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        let parts = snapshot.scan_windows(sensor.id, from, to, Some(every)).unwrap();
        let parts = parts.unwrap_or_else(|| {
            Box::new(snapshot.scan(sensor.id, from, to).unwrap().map(|chunk| chunk.map(Part::Readings)))
        });
        let mut add = |time: i64, value: Option<Value>| {
            let Some(Value::Int(value)) = value else { panic!() };
            *sums.entry((sensor.path.to_string(), (time - START) / every)).or_default() += value;
        };
        for part in parts {
            match part.unwrap() {
                Part::Readings(chunk) => {
                    (0..chunk.times.len()).for_each(|at| add(chunk.times[at], chunk.column.get(at)))
                }
                Part::Windows(windows) => {
                    (0..windows.len()).for_each(|at| add(windows.get(at).time, Some(windows.get(at).sum)))
                }
            }
        }
    }
    sums
}

/// Where two answers differ, the first few.
#[track_caller]
fn same(left: &Rows, right: &Rows, what: &str) {
    let keys = left.keys().chain(right.keys()).filter(|key| left.get(key) != right.get(key));
    let differ: Vec<_> = keys.take(4).map(|key| (key, left.get(key), right.get(key))).collect();
    assert!(differ.is_empty(), "{what}: {differ:?}");
}

#[track_caller]
fn sums_agree(store: &Store, rows: &Rows) {
    for every in [10 * SECOND, 300 * SECOND, HOUR] {
        let mut expected = Rows::new();
        for ((path, time), value) in rows {
            *expected.entry((path.clone(), time / every)).or_default() += value;
        }
        same(&sums(store, every), &expected, &format!("windows of {every}"));
    }
}

#[test]
fn exactly_the_range_goes_from_readings_and_windows_at_once_and_for_ever() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let before = rows(&store);
    assert_eq!(before.len(), 2 * 14 * 600);
    // Across merged, sealed and live readings; not at the edges of windows.
    let ranges =
        [("/n/a", 1234 * SECOND + 1, 1300 * SECOND), ("/n/*", 7000 * SECOND, 8000 * SECOND), ("/n/b", 0, SECOND)];
    let mut expected = before.clone();
    for (pattern, from, to) in ranges {
        let deletion = deletion(pattern, from, to);
        let chosen = &deletion.patterns[0];
        let goes = |key: &(String, i64)| chosen.matches(&key.0) && (from..to).contains(&key.1);
        let (count, sensors) =
            (expected.keys().filter(|key| goes(key)).count() as u64, if pattern == "/n/*" { 2 } else { 1 });
        let would = store.would_delete(&deletion).unwrap();
        assert_eq!((would.readings, would.sensors), (count, sensors), "{pattern}");
        same(&rows(&store), &expected, "asking changes nothing");
        let done = store.delete(&deletion).unwrap();
        assert_eq!((done.readings, done.sensors), (count, sensors), "{pattern}");
        expected.retain(|key, _| !goes(key));
        same(&rows(&store), &expected, "readings");
        sums_agree(&store, &expected);
        assert_eq!(store.would_delete(&deletion).unwrap().readings, 0);
    }
    // After a crash, before and after the files are written again.
    assert!(store.stats().deletion_files > 0);
    store.close().unwrap();
    let disk = disk.after_kill();
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    same(&rows(&store), &expected, "readings");
    sums_agree(&store, &expected);
    let bytes = store.stats().block_bytes;
    store.maintain(START + 3 * DAY).unwrap();
    let stats = store.stats();
    assert_eq!((stats.deletion_files, stats.block_rows), (0, expected.len() as u64));
    assert!(stats.block_bytes < bytes);
    same(&rows(&store), &expected, "readings");
    sums_agree(&store, &expected);
    // Everything, and nothing is left of it on the disk.
    store.delete(&deletion("/**", -DAY, DAY)).unwrap();
    assert_eq!(rows(&store), Rows::new());
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!((store.stats().blocks, store.stats().tiers), (0, 0));
}

#[test]
fn what_is_sent_again_stays_gone_and_what_is_new_is_kept() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let all = deletion("/n/a", 0, DAY);
    store.delete(&all).unwrap();
    for seq in 0..14 {
        let again = store.append_blocking(payload(seq, seq as i64 * 600).into()).unwrap();
        assert_eq!(again, Appended::Duplicate);
    }
    assert!(rows(&store).keys().all(|(path, _)| path == "/n/b"));
    let ids: Vec<_> = store.sensors(&[Pattern::new("/n/*").unwrap()]).iter().map(|sensor| sensor.id).collect();
    let newest = store.newest(&ids);
    assert_eq!((newest[0], newest[1].unwrap().0), (None, START + (14 * 600 - 1) * SECOND));
    // A batch of its own number is new, also in the range.
    store.append_blocking(payload(99, 0).into()).unwrap();
    assert_eq!(rows(&store).keys().filter(|(path, _)| path == "/n/a").count(), 600);
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!(rows(&store).keys().filter(|(path, _)| path == "/n/a").count(), 600);
    assert_eq!(store.newest(&ids)[0].unwrap().0, START + 599 * SECOND);
}

#[test]
fn of_windows_that_outlived_their_readings_whole_ones_go() {
    let disk = FaultyDisk::default();
    let rule = RetentionRule {
        pattern: Pattern::new("/**").unwrap(),
        raw: Some(Interval::from_s(86_400)),
        tiers: vec![(Interval::from_s(3600), None), (Interval::from_s(300), None), (Interval::from_s(10), None)],
    };
    let config = || StoreConfig { retention: vec![rule.clone()], ..config() };
    let store = filled(&disk);
    let before = rows(&store);
    store.seal().unwrap();
    store.close().unwrap();
    drop(store);
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    store.maintain(START + 5 * DAY).unwrap();
    assert!(rows(&store).is_empty() && store.stats().blocks == 0);
    let deletion = deletion("/n/a", 605 * SECOND, 1195 * SECOND);
    let would = store.would_delete(&deletion).unwrap();
    assert!(would.windows > 0 && would.readings == 0, "{would:?}");
    store.delete(&deletion).unwrap();
    let expected = |every: i64, lo: i64, hi: i64| {
        let mut sums = Rows::new();
        for ((path, time), value) in &before {
            if path != "/n/a" || !(lo..hi).contains(&(time / SECOND)) {
                *sums.entry((path.clone(), time / every)).or_default() += value;
            }
        }
        sums
    };
    for _ in 0..2 {
        same(&sums(&store, 10 * SECOND), &expected(10 * SECOND, 600, 1200), "windows");
        same(&sums(&store, 300 * SECOND), &expected(300 * SECOND, 600, 1200), "windows");
        same(&sums(&store, HOUR), &expected(HOUR, 0, 3600), "windows");
        store.maintain(START + 5 * DAY).unwrap();
        assert_eq!(store.stats().deletion_files, 0);
    }
}

#[test]
fn on_a_full_disk_nothing_is_deleted_and_all_goes_on() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let before = rows(&store);
    disk.plan(0, Fault::Errors(ENOSPC, u32::MAX));
    let error = store.delete(&deletion("/n/a", 0, HOUR)).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    disk.calm();
    same(&rows(&store), &before, "readings");
    store.delete(&deletion("/n/a", 0, HOUR)).unwrap();
    disk.plan(0, Fault::Errors(ENOSPC, u32::MAX));
    store.maintain(START + 3 * DAY).unwrap_err();
    let hidden = rows(&store);
    assert_eq!(hidden.len(), before.len() - 3600);
    disk.calm();
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!((rows(&store), store.stats().deletion_files), (hidden, 0));
}

#[test]
fn rules_set_at_run_time_come_first_and_last() {
    let disk = FaultyDisk::default();
    let store = filled(&disk);
    let pattern = |text: &str| Pattern::new(text).unwrap();
    let day = |days: u64| Some(Interval::from_s(days * 86_400));
    let rule = RetentionRule { pattern: pattern("/n/b"), raw: day(1), tiers: Vec::new() };
    let would = store.would_expire(&rule, START + 3 * DAY).unwrap();
    assert_eq!((would.sensors, would.readings), (1, 14 * 600));
    store.set_retention(&pattern("/n/*"), day(1), "ada", 5).unwrap();
    store.set_retention(&pattern("/n/a"), None, "eve", 6).unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    assert!(rows(&store).keys().all(|(path, _)| path == "/n/a"));
    store.close().unwrap();
    drop(store);
    let (store, _) = Store::open_on(config(), Arc::new(disk.clone())).unwrap();
    let rules = store.retention_rules();
    let told: Vec<_> = rules.iter().map(|rule| (rule.rule.pattern.as_str(), rule.rule.raw, rule.set.clone())).collect();
    assert_eq!(told, [("/n/a", None, Some(("eve".into(), 6))), ("/n/*", day(1), Some(("ada".into(), 5)))]);
    assert!(store.unset_retention("/n/a", "eve", 7).unwrap() && !store.unset_retention("/n/a", "eve", 7).unwrap());
    store.maintain(START + 3 * DAY).unwrap();
    assert!(rows(&store).is_empty());
    assert!(store.set_retention(&pattern("/n/a"), Some(Interval::from_s(0)), "eve", 8).is_err());
}
