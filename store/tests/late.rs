//! Late readings: they are merged into the blocks of their day, without a rewrite of a large block for each of them. The bytes that merges write are bounded.

use std::path::Path;

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath, Value};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;

fn open(dir: &Path) -> (Store, Schema) {
    let config = StoreConfig { background: false, merge_fan_in: 8, ..StoreConfig::new(dir) };
    let (store, _) = Store::open(config).unwrap();
    let sensors = (0..20).map(|i| SensorDef::gauge(format!("x{i:02}"), "1", "")).collect();
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", sensors).unwrap();
    store.register_schema(&schema).unwrap();
    (store, schema)
}

/// `count` readings, one every `step` seconds from `from` on; the value is the number of the batch.
fn send(store: &Store, schema: &Schema, seq: u64, from: i64, count: i64, step: i64) {
    let times: Vec<i64> = (0..count).map(|at| START + (from + at * step) * SECOND).collect();
    let noise = |sensor: usize, at: i64| (sensor as i64 + 1) * (at * 7_919 % 1_000) + seq as i64 * 1_000_000;
    let column = |sensor| Column {
        values: ColumnValues::Int((0..count).map(|at| noise(sensor, at)).collect()),
        gaps: Gaps::default(),
    };
    let columns = (0..schema.len()).map(column).collect();
    let header = BatchHeader { agent: "n".into(), boot: 1, seq, schema: schema.hash(), interval_ns: 1 };
    store.append_blocking(encode_batch(&Batch { header, times, columns }).into()).unwrap();
    store.seal().unwrap();
}

fn readings(store: &Store) -> Vec<(i64, Option<Value>)> {
    let id = store.sensors(&[Pattern::new("/n/x07").unwrap()])[0].id;
    let mut rows = Vec::new();
    for chunk in store.snapshot().scan(id, i64::MIN, i64::MAX).unwrap() {
        let chunk = chunk.unwrap();
        rows.extend(chunk.times.iter().enumerate().map(|(at, time)| (*time, chunk.column.get(at))));
    }
    rows
}

#[test]
fn late_readings_come_into_their_day_at_a_bounded_cost() {
    let dir = tempfile::tempdir().unwrap();
    let (store, schema) = open(dir.path());
    for hour in 0..24 {
        send(&store, &schema, hour, hour as i64 * 3_600, 1_800, 2);
        store.maintain(START + (hour as i64 + 1) * 3_600 * SECOND).unwrap();
    }
    let later = |days: i64| START + days * DAY + 3 * 3_600 * SECOND;
    store.maintain(later(1)).unwrap();
    let stats = store.stats();
    assert_eq!((stats.blocks, stats.tiers), (1, 3));
    let day_bytes = stats.block_bytes;
    // Each level once, and the day: three times what there is, at the most.
    assert!(stats.merge_bytes <= 3 * day_bytes, "{} bytes merged into a day of {day_bytes}", stats.merge_bytes);
    // For ten days, every now and then a few readings of that day, between those that are there and over them.
    for late in 0..60u64 {
        send(&store, &schema, 100 + late, 600 * late as i64 + 1, 40, if late % 2 == 0 { 2 } else { 1 });
        store.maintain(later(1 + late as i64 / 6)).unwrap();
    }
    let written = store.stats().merge_bytes - stats.merge_bytes;
    assert!(written < day_bytes, "{written} bytes written for a few late readings of a day of {day_bytes}");
    let rows = readings(&store);
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
    // Odd seconds are new; of the even ones that came again the later counts.
    assert_eq!(rows.len(), 43_200 + 30 * 40 + 30 * 20);
    let repeated = rows.iter().filter(|row| matches!(row.1, Some(Value::Int(value)) if value >= 100_000_000));
    assert_eq!(repeated.count(), 60 * 40);
    // A spool of a whole day is worth it.
    send(&store, &schema, 999, 1, 30_000, 2);
    store.maintain(later(12)).unwrap();
    assert_eq!((store.stats().blocks, store.stats().tiers), (1, 3));
    assert!(readings(&store).is_sorted_by(|a, b| a.0 < b.0));
}
