//! Repair keeps the readable part of a damaged file and moves the file to `damaged/`; compaction on request; statistics by sub-tree.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use support::{Random, seed};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Pattern, Schema, SensorDef, SensorPath, Value,
};
use wholegrain_store::repair::repair;
use wholegrain_store::verify::{FileKind, verify};
use wholegrain_store::{Deletion, RetentionRule, ScanPart, Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;
const SENSORS: usize = 40;
const SAMPLES: i64 = 1_000;
const ROUNDS: u64 = 6;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir) }
}

fn fill(dir: &Path, batches: u64) -> Store {
    let (store, _) = Store::open(config(dir)).unwrap();
    let sensors = (0..SENSORS).map(|i| SensorDef::gauge(format!("cpu/{i}"), "1", "")).collect();
    let schema = Schema::new(SensorPath::new("/n/a").unwrap(), "g", sensors).unwrap();
    store.register_schema(&schema).unwrap();
    for seq in 0..batches {
        let times: Vec<i64> = (0..SAMPLES).map(|i| START + (seq as i64 * SAMPLES + i) * SECOND).collect();
        let columns = (0..SENSORS as i64)
            .map(|sensor| Column {
                values: ColumnValues::Int(times.iter().map(|time| time / SECOND * (sensor + 7) % 99_991).collect()),
                gaps: Gaps::default(),
            })
            .collect();
        let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
        store.append_blocking(encode_batch(&Batch { header, times, columns }).into()).unwrap();
        store.seal().unwrap();
    }
    store
}

type RowsBySensor = BTreeMap<(String, i64), Option<Value>>;

fn rows(store: &Store) -> RowsBySensor {
    let mut rows = RowsBySensor::new();
    let snapshot = store.snapshot();
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        for chunk in snapshot.scan(sensor.id, i64::MIN, i64::MAX).unwrap() {
            let chunk = chunk.unwrap();
            let path = sensor.path.to_string();
            rows.extend((0..chunk.times.len()).map(|at| ((path.clone(), chunk.times[at]), chunk.column.get(at))));
        }
    }
    rows
}

fn files(dir: &Path, kind: FileKind) -> Vec<PathBuf> {
    let report = verify(dir, &mut |_, _| {}).unwrap();
    report.files.iter().filter(|file| file.kind == kind).map(|file| file.path.clone()).collect()
}

#[test]
fn of_a_damaged_block_what_can_be_read_is_kept() {
    let mut random = Random::new(seed());
    for round in 0..ROUNDS {
        let dir = tempfile::tempdir().unwrap();
        let store = fill(dir.path(), 3);
        store.maintain(START + 3 * DAY).unwrap();
        let expected = rows(&store);
        store.close().unwrap();
        drop(store);
        let path = files(dir.path(), FileKind::Block)[0].clone();
        let mut content = std::fs::read(&path).unwrap();
        // In the pages: the footer is small beside them.
        let at = 100 + random.below(content.len() as u64 * 3 / 4) as usize;
        content[at] ^= 1 << random.below(8);
        std::fs::write(&path, &content).unwrap();
        let would = repair(dir.path(), true, &mut |_, _| true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content, "a dry run changes nothing");
        let report = repair(dir.path(), false, &mut |_, _| true).unwrap();
        let what = format!("round {round}, byte {at}: {report:?}");
        assert_eq!((report.files.len(), report.files[0].path.clone()), (1, path.clone()), "{what}");
        assert_eq!(would.files[0].kept, report.files[0].kept, "{what}");
        let damaged_copies = report.files[0].damaged_copy.clone().unwrap();
        assert_eq!(std::fs::read(&damaged_copies).unwrap(), content, "{what}");
        assert!(!path.exists());
        let (store, opened) = Store::open(config(dir.path())).unwrap();
        assert!(opened.is_clean(), "{opened:?}");
        let found = rows(&store);
        assert_eq!(found.len() as u64, report.files[0].kept, "{what}");
        assert!(found.iter().all(|(key, value)| expected.get(key) == Some(value)), "{what}");
        // One page is lost, or none where names or a header were hit.
        assert!(found.len() >= expected.len() - 2 * 8_192 || report.lost() == expected.len() as u64, "{what}");
        assert_eq!(expected.len() - found.len(), report.lost() as usize, "{what}");
        store.maintain(START + 3 * DAY).unwrap();
        drop(store);
        assert!(verify(dir.path(), &mut |_, _| {}).unwrap().is_whole(), "{what}");
        assert_eq!(repair(dir.path(), false, &mut |_, _| true).unwrap().files, []);
    }
}

#[test]
fn a_tier_is_made_again_and_a_missing_block_is_named_and_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path(), 3);
    store.maintain(START + 3 * DAY).unwrap();
    let expected = rows(&store);
    store.close().unwrap();
    drop(store);
    let tier = files(dir.path(), FileKind::Tier)[0].clone();
    std::fs::write(&tier, b"damaged").unwrap();
    let report = repair(dir.path(), false, &mut |_, _| true).unwrap();
    assert_eq!((report.files.len(), report.lost()), (1, 0));
    let (store, _) = Store::open(config(dir.path())).unwrap();
    assert_eq!(store.stats().tiers, 2);
    store.maintain(START + 3 * DAY).unwrap();
    assert_eq!((store.stats().tiers, rows(&store)), (3, expected));
    store.close().unwrap();
    drop(store);
    let block = files(dir.path(), FileKind::Block)[0].clone();
    std::fs::remove_file(&block).unwrap();
    let (store, opened) = Store::open(config(dir.path())).unwrap();
    assert_eq!(opened.damaged_blocks, std::slice::from_ref(&block));
    let report = store.repair(false, &mut |_, _| true).unwrap();
    assert_eq!((report.files[0].kept, report.files[0].damaged_copy.clone()), (0, None));
    assert_eq!(report.lost(), SENSORS as u64 * 3 * SAMPLES as u64);
    store.close().unwrap();
    drop(store);
    assert!(Store::open(config(dir.path())).unwrap().1.is_clean());
}

#[test]
fn compacting_makes_one_block_of_a_day_now_and_says_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path(), 5);
    let expected = rows(&store);
    let mut reported = Vec::new();
    let done = store
        .compact(START + 1, &mut |done, total| {
            reported.push((done, total));
            true
        })
        .unwrap();
    assert_eq!((done.blocks, done.cut_short), ((5, 1), false));
    assert!(done.bytes.1 > 0 && reported.iter().all(|(done, total)| done <= total) && !reported.is_empty());
    assert_eq!(rows(&store), expected);
    assert_eq!(store.compact(START + 1, &mut |_, _| true).unwrap().blocks, (1, 1), "once is enough");
}

#[test]
fn what_is_held_by_subtree_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path(), 2);
    let all = [Pattern::new("/**").unwrap()];
    let now = START + 2 * SAMPLES * SECOND;
    let total = store.holdings_by(0, &all, now, &|| false).unwrap();
    assert_eq!(store.holdings_by(0, &all, now, &|| true).unwrap().iter().map(|share| share.readings).sum::<u64>(), 0);
    let rows = SENSORS as u64 * 2 * SAMPLES as u64;
    assert_eq!((total.len(), total[0].readings, total[0].sensors), (1, rows, SENSORS as u64));
    assert_eq!((total[0].live, total[0].per_s), (SENSORS as u64, SENSORS as f64));
    assert_eq!(total[0].times, Some((START, START + (2 * SAMPLES - 1) * SECOND)));
    let each = store.holdings_by(4, &all, now + DAY, &|| false).unwrap();
    assert_eq!((each.len(), each.iter().map(|share| share.readings).sum::<u64>()), (SENSORS, rows));
    assert!(each.iter().all(|share| share.live == 0 && share.path.starts_with("/n/a/cpu/")));
    let bytes: u64 = each.iter().map(|share| share.bytes).sum();
    assert!(bytes <= total[0].bytes && bytes + 2 * SENSORS as u64 >= total[0].bytes);
    let some = store.holdings_by(3, &[Pattern::new("cpu/1*").unwrap()], now, &|| false).unwrap();
    assert_eq!((some.len(), some[0].sensors), (1, 11));
}

#[test]
fn a_catalogue_is_made_from_the_blocks_where_there_is_none_that_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = fill(dir.path(), 3);
    store.maintain(START + 3 * DAY).unwrap();
    let expected = rows(&store);
    let tiers = store.stats().tiers;
    store.close().unwrap();
    drop(store);
    // A batch waits in the journal.
    let store = fill(dir.path(), 0);
    let schema = Schema::new(SensorPath::new("/n/z").unwrap(), "z", vec![SensorDef::gauge("v", "1", "")]).unwrap();
    store.register_schema(&schema).unwrap();
    let column = Column { values: ColumnValues::Int(vec![7]), gaps: Gaps::default() };
    let header = BatchHeader { agent: "n".into(), boot: 1, seq: 99, schema: schema.hash(), interval_ns: 1 };
    let waiting = encode_batch(&Batch { header, times: vec![START], columns: vec![column] });
    store.append_blocking(waiting.into()).unwrap();
    store.close().unwrap();
    drop(store);
    let catalogue = dir.path().join("catalogue.redb");
    let content = std::fs::read(&catalogue).unwrap();
    for damaged in [Some(vec![0x5a; content.len()]), None] {
        match &damaged {
            Some(damaged) => std::fs::write(&catalogue, damaged).unwrap(),
            None => std::fs::remove_file(&catalogue).unwrap(),
        }
        assert!(Store::open(config(dir.path())).is_err());
        let would = repair(dir.path(), true, &mut |_, _| true).unwrap().catalogue.unwrap();
        assert!(Store::open(config(dir.path())).is_err(), "a dry run changes nothing");
        let report = repair(dir.path(), false, &mut |_, _| true).unwrap();
        let made = report.catalogue.unwrap();
        assert_eq!((made.blocks, made.readings), (1 + tiers, expected.len() as u64), "{made:?}");
        assert_eq!((made.sensors, would.readings), (SENSORS as u64, made.readings));
        let (store, opened) = Store::open(config(dir.path())).unwrap();
        assert!(opened.is_clean(), "{opened:?}");
        assert_eq!((rows(&store), store.stats().tiers), (expected.clone(), tiers));
        assert_eq!(store.sensors(&[Pattern::new("cpu/1").unwrap()])[0].unit, "1");
        store.close().unwrap();
        drop(store);
        assert!(verify(dir.path(), &mut |_, _| {}).unwrap().is_whole());
        if damaged.is_some() {
            // The batches of the journal are readmitted once their schema is known.
            assert_eq!(made.batches, 1);
            let readmit =
                made.damaged_copies.iter().find(|path| path.extension().is_some_and(|end| end == "readmit")).unwrap();
            let (store, _) = Store::open(config(dir.path())).unwrap();
            store.register_schema(&schema).unwrap();
            store.close().unwrap();
            drop(store);
            std::fs::copy(readmit, dir.path().join("journal/1.readmit")).unwrap();
            let (store, _) = Store::open(config(dir.path())).unwrap();
            assert_eq!(rows(&store).get(&("/n/z/v".to_owned(), START)), Some(&Some(Value::Int(7))));
            store
                .delete(&wholegrain_store::Deletion {
                    patterns: vec![Pattern::new("/n/z/**").unwrap()],
                    from: 0,
                    to: i64::MAX,
                })
                .unwrap();
            store.maintain(START + 3 * DAY).unwrap();
            store.close().unwrap();
        }
    }
}

/// The sums of hours from the tiers.
fn hours(store: &Store) -> BTreeMap<(String, i64), i64> {
    let mut sums = BTreeMap::new();
    let snapshot = store.snapshot();
    let hour = 3_600 * SECOND;
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        let scan = support::windows(&snapshot, &sensor, (START, START + DAY), hour).unwrap();
        for part in scan.parts.take_while(|_| scan.resolution.is_some()) {
            let mut add = |time: i64, value: Option<Value>| {
                let Some(Value::Int(value)) = value else { panic!() };
                *sums.entry((sensor.path.to_string(), time / hour)).or_default() += value;
            };
            match part.unwrap() {
                ScanPart::Windows(rows) => {
                    (0..rows.len()).for_each(|at| add(rows.get(at).time, Some(rows.get(at).sum)))
                }
                ScanPart::Readings(chunk) => {
                    (0..chunk.times.len()).for_each(|at| add(chunk.times[at], chunk.column.get(at)));
                }
            }
        }
    }
    sums
}

#[test]
fn a_catalogue_that_is_made_again_knows_tiers_of_readings_that_retention_took() {
    let dir = tempfile::tempdir().unwrap();
    drop(fill(dir.path(), 3));
    let rule = RetentionRule {
        pattern: Pattern::new("cpu/1*").unwrap(),
        raw: Some(Interval::from_s(3_600)),
        tiers: [10, 300, 3_600].map(|seconds| (Interval::from_s(seconds), None)).to_vec(),
    };
    let open = || Store::open(StoreConfig { retention: vec![rule.clone()], ..config(dir.path()) }).unwrap().0;
    let store = open();
    store.seal().unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    store.maintain(START + 3 * DAY).unwrap();
    let (expected, readings) = (hours(&store), rows(&store).len());
    assert_eq!((expected.len(), readings), (SENSORS, (SENSORS - 11) * 3 * SAMPLES as usize));
    store.close().unwrap();
    drop(store);
    std::fs::remove_file(dir.path().join("catalogue.redb")).unwrap();
    let report = repair(dir.path(), false, &mut |_, _| true).unwrap();
    assert_eq!(report.catalogue.unwrap().blocks, 4);
    let store = open();
    assert_eq!(hours(&store), expected);
    // A deletion does not take them for windows of readings.
    let deletion = Deletion { patterns: vec![Pattern::new("cpu/2").unwrap()], from: START, to: START + 10 * SECOND };
    assert_eq!(store.delete(&deletion).unwrap().readings, 10);
    store.maintain(START + 3 * DAY).unwrap();
    let found = hours(&store);
    let differs: Vec<_> = expected.keys().filter(|key| found.get(key) != expected.get(key)).collect();
    assert_eq!(differs.len(), 1, "{differs:?}");
    assert!(differs[0].0.ends_with("cpu/2") && found.contains_key(differs[0]));
}
