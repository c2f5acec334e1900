//! A reader that has prefetched many sensors of a group returns the same readings as scans without a prefetch.

use std::sync::Arc;

use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath, ValueType,
};
use wholegrain_store::{
    Chunk, ReadSnapshot, ScanRequest, SensorInfo, SensorRange, Snapshot, SnapshotReader, Store, StoreConfig,
};
use wholegrain_transport::payload::encode_batch;

fn schema(sensors: usize, floats_every: usize) -> Schema {
    let def = |i: usize| {
        let def = SensorDef::gauge(format!("s{i}"), "1", "");
        if i % floats_every == 1 { def.float() } else { def }
    };
    Schema::new(SensorPath::new("/n").unwrap(), "g", (0..sensors).map(def).collect()).unwrap()
}

fn send(store: &Store, schema: &Schema, seq: u64, times: &[i64]) {
    let column = |at: usize| {
        let mut gaps = Gaps::default();
        let gap = |i: usize| (i + at + seq as usize).is_multiple_of(7);
        (0..times.len()).filter(|i| gap(*i)).for_each(|i| gaps.set(i, times.len()));
        let value = |i: usize| if gap(i) { 0 } else { (times[i] * 31 + at as i64 * 1009 + seq as i64) % 4099 };
        let values = match schema.sensors()[at].value_type {
            ValueType::Int => ColumnValues::Int((0..times.len()).map(value).collect()),
            ValueType::Float => ColumnValues::Float((0..times.len()).map(|i| value(i) as f64 / 4.0).collect()),
        };
        Column { values, gaps }
    };
    let header = BatchHeader { agent: "n".to_owned(), boot: 1, seq, schema: schema.hash(), interval_ns: 1 };
    let columns = (0..schema.len()).map(column).collect();
    store.append_blocking(encode_batch(&Batch { header, times: times.to_vec(), columns }).into()).unwrap();
}

fn scan(reader: &dyn SnapshotReader, sensor: &SensorInfo, (from, to): (i64, i64)) -> Vec<Chunk> {
    reader.scan(&ScanRequest::readings(sensor, from, to)).unwrap().chunks().map(Result::unwrap).collect()
}

fn open_for(snapshot: &Snapshot, sensors: &[SensorInfo], (from, to): (i64, i64)) -> Arc<dyn SnapshotReader> {
    snapshot.open(&mut sensors.iter().map(|sensor| SensorRange { sensor, from, to })).unwrap()
}

#[track_caller]
fn check(store: &Store, ranges: &[(i64, i64)]) {
    let sensors = store.sensors(&[Pattern::new("/**").unwrap()]);
    let plain = open_for(&store.snapshot(), &[], (0, 0));
    for &range in ranges {
        let expected: Vec<_> = sensors.iter().map(|sensor| scan(plain.as_ref(), sensor, range)).collect();
        let orders: [Vec<SensorInfo>; 3] =
            [sensors.clone(), sensors.iter().rev().cloned().collect(), sensors.iter().step_by(3).cloned().collect()];
        for order in orders {
            let reader = open_for(&store.snapshot(), &order, range);
            // Scanned in an order of its own now and then, some twice, and of several ranges: it may cost, it must not change anything.
            for (at, sensor) in
                order.iter().enumerate().flat_map(|(i, sensor)| vec![(i, sensor); 1 + usize::from(i % 5 == 0)])
            {
                let before = if at % 4 == 3 { scan(reader.as_ref(), &order[at - 2], range) } else { Vec::new() };
                let of =
                    |sensor: &SensorInfo| &expected[sensors.iter().position(|other| other.id == sensor.id).unwrap()];
                assert!(before.is_empty() || &before == of(&order[at - 2]), "{range:?}");
                assert_eq!(&scan(reader.as_ref(), sensor, range), of(sensor), "{range:?}, sensor {at}");
            }
        }
    }
}

fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap().0
}

#[test]
fn many_sensors_at_once_or_one_by_one_give_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let (first, second) = (schema(30, 4), schema(20, 3));
    store.register_schema(&first).unwrap();
    for seq in 0..40 {
        let at = seq as i64 * 10;
        // Out of order, and some times twice.
        send(&store, &first, seq, &[at + 3, at + 1, at + 2, at - 5]);
        if seq == 15 {
            store.seal().unwrap();
        }
    }
    let ranges = [(i64::MIN, i64::MAX), (95, 300), (1_000, 2_000)];
    check(&store, &ranges);
    // The group changes: some sensors are in both schemas, some of another type.
    store.register_schema(&second).unwrap();
    for seq in 40..50 {
        send(&store, &second, seq, &[seq as i64 * 10 + 1, seq as i64 * 10 + 2]);
    }
    check(&store, &ranges);
}

#[test]
fn more_than_is_decoded_ahead_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let schema = schema(12, 5);
    store.register_schema(&schema).unwrap();
    // 8 MiB are five columns of these.
    for seq in 0..40u64 {
        let times: Vec<i64> = (0..5_000).map(|i| seq as i64 * 5_000 + i).collect();
        send(&store, &schema, seq, &times);
    }
    check(&store, &[(0, i64::MAX)]);
}
