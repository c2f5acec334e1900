//! Data with implausible times is quarantined: durable, counted and acknowledged; a clock that is set back loses nothing.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use support::{EIO, Fault, FaultyDisk};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Pattern, Schema, SensorDef, SensorPath, Value,
    ValueType,
};
use wholegrain_store::{AppendOutcome, Clock, Reading, SchemalessSensor, SensorId, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;
const NOW: i64 = 20_000 * DAY;

fn config(dir: impl AsRef<Path>, clock: &Arc<AtomicI64>) -> StoreConfig {
    let clock = clock.clone();
    StoreConfig {
        background: false,
        past_max: Some(Interval::from_s(30 * 86_400)),
        future_max: Some(Interval::from_s(86_400)),
        clock: Clock::new(move || clock.load(Ordering::Relaxed)),
        ..StoreConfig::new(dir.as_ref())
    }
}

fn clock() -> Arc<AtomicI64> {
    Arc::new(AtomicI64::new(NOW))
}

fn schema() -> Schema {
    Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("x", "1", "")]).unwrap()
}

fn batch(seq: u64, times: &[i64]) -> bytes::Bytes {
    let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema().hash(), interval_ns: SECOND as u64 };
    let values = ColumnValues::Int(times.iter().map(|time| time / SECOND).collect());
    let columns = vec![Column { values, gaps: Gaps::default() }];
    encode_batch(&Batch { header, times: times.to_vec(), columns }).into()
}

fn schemaless(path: &str) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: String::new(),
        kind: Kind::Gauge,
        value_type: ValueType::Int,
        scale: 1.0,
        description: String::new(),
    }
}

fn append(store: &Store, readings: Vec<Reading>) -> Result<AppendOutcome, StoreError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    store.append_readings("gateway", readings, Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap()
}

fn times(store: &Store, path: &str) -> Vec<i64> {
    let id = store.sensors(&[Pattern::new(path).unwrap()])[0].id;
    let chunks = store.snapshot().scan(id, i64::MIN, i64::MAX).unwrap();
    chunks.flat_map(|chunk| chunk.unwrap().times).map(|time| time - NOW).collect()
}

fn reading(sensor: SensorId, time: i64) -> Reading {
    Reading { sensor, time: NOW + time, value: Value::Int(1) }
}

#[test]
fn what_is_out_of_bounds_is_acknowledged_and_not_among_the_readings() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), clock());
    let (store, _) = Store::open(config(dir.path(), &clock)).unwrap();
    store.register_schema(&schema()).unwrap();
    let id = store.register_sensors("gateway", &[schemaless("/l")]).unwrap()[0];
    for (seq, (time, expected)) in [
        (-30 * DAY, AppendOutcome::Stored),
        (-30 * DAY - 1, AppendOutcome::Quarantined),
        (DAY, AppendOutcome::Stored),
        (DAY + 1, AppendOutcome::Quarantined),
        (i64::MIN - NOW.wrapping_neg(), AppendOutcome::Quarantined),
    ]
    .into_iter()
    .enumerate()
    {
        let time = NOW.wrapping_add(time);
        assert_eq!(store.append_blocking(batch(seq as u64 + 1, &[time])).unwrap(), expected, "{time}");
    }
    let several = vec![reading(id, 0), reading(id, 2 * DAY), reading(id, 1), reading(id, -31 * DAY)];
    assert_eq!(append(&store, several).unwrap(), AppendOutcome::Quarantined, "some of it");
    assert_eq!(append(&store, vec![reading(id, 5)]).unwrap(), AppendOutcome::Stored);
    assert_eq!((times(&store, "/n/x"), times(&store, "/l")), (vec![-30 * DAY, DAY], vec![0, 1, 5]));
    let stats = store.stats();
    assert_eq!((stats.quarantined_readings, stats.readings, stats.queue_bytes), (5, 5, 0));
    let file = dir.path().join("quarantine/0000000001.wal");
    assert_eq!(stats.quarantine_bytes, std::fs::metadata(&file).unwrap().len());
    drop(store);
    // With the clock put right it is taken in, by hand.
    let (store, _) = Store::open(config(dir.path(), &clock)).unwrap();
    assert_eq!(store.stats().quarantine_bytes, std::fs::metadata(&file).unwrap().len());
    store.seal().unwrap();
    drop(store);
    std::fs::rename(&file, dir.path().join("journal/quarantine-1.readmit")).unwrap();
    let (store, report) = Store::open(config(dir.path(), &clock)).unwrap();
    assert_eq!((report.batches, report.readings, report.is_clean()), (3, 2, true));
    assert_eq!(times(&store, "/l"), [-31 * DAY, 0, 1, 5, 2 * DAY]);
    assert_eq!(times(&store, "/n/x").len(), 5);
    store.seal().unwrap();
    assert_eq!(store.stats().block_rows, 10);
    assert_eq!(store.append_blocking(batch(2, &[NOW - 30 * DAY - 1])).unwrap(), AppendOutcome::Quarantined);
}

#[test]
fn a_clock_set_back_an_hour_sets_nothing_aside_and_loses_nothing() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), clock());
    let (store, _) = Store::open(config(dir.path(), &clock)).unwrap();
    store.register_schema(&schema()).unwrap();
    let id = store.register_sensors("gateway", &[schemaless("/l")]).unwrap()[0];
    let send = |seq: i64| {
        let time = seq * 60 * SECOND;
        assert_eq!(
            store.append_blocking(batch(seq as u64 + 1, &[NOW + time])).unwrap(),
            AppendOutcome::Stored,
            "{seq}"
        );
        assert_eq!(append(&store, vec![reading(id, time)]).unwrap(), AppendOutcome::Stored, "{seq}");
    };
    for seq in 0..180 {
        // The agents' clocks are right; the server's is an hour back from the 60th minute on, and right again from the 120th.
        let wrong = if (60..120).contains(&seq) { HOUR } else { 0 };
        clock.store(NOW + seq * 60 * SECOND - wrong, Ordering::Relaxed);
        send(seq);
        if seq % 25 == 0 {
            store.seal().unwrap();
            store.maintain(clock.load(Ordering::Relaxed)).unwrap();
        }
    }
    let expected: Vec<i64> = (0..180).map(|seq| seq * 60 * SECOND).collect();
    assert_eq!((times(&store, "/n/x"), times(&store, "/l")), (expected.clone(), expected));
    assert_eq!((store.stats().quarantined_readings, store.stats().quarantine_bytes), (0, 0));
}

#[test]
fn quarantined_data_is_durable_when_it_is_acknowledged_and_an_error_otherwise() {
    for after in 0..8 {
        let clock = clock();
        let disk = FaultyDisk::default();
        let (store, _) = Store::open_on(config("/store", &clock), Arc::new(disk.clone())).unwrap();
        store.register_schema(&schema()).unwrap();
        let quarantine = |seq| store.append_blocking(batch(seq, &[NOW + 9 * DAY + seq as i64]));
        disk.plan(after, Fault::Errors(EIO, 1));
        let mut failed = 0;
        for seq in 1..=4 {
            while let Err(error) = quarantine(seq) {
                assert!(matches!(error, StoreError::Io { .. }), "{error}");
                failed += 1;
                assert!(failed < 3, "after {after}");
            }
        }
        assert_eq!(store.stats().quarantined_readings, 4, "after {after}");
        let crashed = disk.after_crash(&mut support::Random::new(after));
        for file in crashed.files("/quarantine/") {
            crashed.rename_for_test(
                &file,
                Path::new(&format!("/store/journal/{}.readmit", file.file_stem().unwrap().to_string_lossy())),
            );
        }
        let (store, report) = Store::open_on(config("/store", &clock), Arc::new(crashed)).unwrap();
        assert_eq!((report.batches, times(&store, "/n/x").len()), (4, 4), "after {after}");
    }
}

#[test]
fn the_quarantine_is_bounded_and_the_oldest_goes_first() {
    let clock = clock();
    let disk = FaultyDisk::default();
    let (store, _) = Store::open_on(config("/store", &clock), Arc::new(disk.clone())).unwrap();
    let id = store.register_sensors("gateway", &[schemaless("/l")]).unwrap()[0];
    let far = |i: i64| Reading { sensor: id, time: NOW + 400 * DAY + i * 7919, value: Value::Int(i64::MAX - i * 31) };
    let many: Vec<Reading> = (0..262_144).map(far).collect();
    let mut sent = 0;
    while store.stats().quarantine_dropped_bytes == 0 {
        assert_eq!(append(&store, many.clone()).unwrap(), AppendOutcome::Quarantined);
        sent += 1;
        assert!(sent < 200, "{:?}", store.stats());
    }
    let files = disk.files("/quarantine/");
    let bytes: usize = files.iter().map(|file| disk.content(file).len()).sum();
    assert_eq!(store.stats().quarantine_bytes as usize, bytes);
    assert!(bytes <= 256 << 20 && bytes > 200 << 20, "{bytes}");
    assert!(!files.iter().any(|file| file.ends_with("0000000001.wal")), "{files:?}");
}
