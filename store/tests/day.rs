//! Days of operation by a simulated clock: the memory and the disk space of the store do not grow.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use support::FaultyDisk;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Schema, SensorDef, SensorPath, Value, ValueType,
};
use wholegrain_store::{Clock, Reading, SchemalessSensor, Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
const START: i64 = 20_000 * 24 * HOUR;
/// The time between two batches, and between two seals.
const STEP: i64 = 300 * SECOND;

/// The sizes that must not grow.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sizes {
    blocks: u64,
    files: usize,
    open_files: u64,
    catalogue: usize,
    bytes: usize,
}

#[test]
fn a_day_of_operation_grows_nothing() {
    let disk = FaultyDisk::default();
    let now = Arc::new(AtomicI64::new(START));
    let clock = now.clone();
    let config = StoreConfig {
        background: false,
        clock: Clock::new(move || clock.load(Ordering::Relaxed)),
        past_max: Some(Interval::from_s(3600)),
        future_max: Some(Interval::from_s(60)),
        retention_age: Some(Interval::from_s(2 * 3600)),
        merge_fan_in: 4,
        ..StoreConfig::new("/store")
    };
    let (store, _) = Store::open_on(config, Arc::new(disk.clone())).unwrap();
    let sensors = || (0..20).map(|i| SensorDef::gauge(format!("s{i}"), "1", "")).collect();
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", sensors()).unwrap();
    store.register_schema(&schema).unwrap();
    let schemaless = SchemalessSensor {
        path: SensorPath::new("/l").unwrap(),
        unit: String::new(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 1.0,
        description: String::new(),
    };
    let mut most: Option<Sizes> = None;
    let mut registered = Vec::new();
    for step in 0..24 * HOUR / STEP {
        let time = START + step * STEP;
        now.store(time, Ordering::Relaxed);
        registered = store.register_sensors("gateway", std::slice::from_ref(&schemaless)).unwrap();
        // The agent restarts now and then.
        let boot = (step / 40) as u64;
        let header =
            BatchHeader { agent: "n".into(), boot, seq: step as u64 + 1, schema: schema.hash(), interval_ns: 1 };
        let times: Vec<i64> = (0..30).map(|i| time - (30 - i) * 10 * SECOND).collect();
        let column = |at: i64| {
            let values = ColumnValues::Int((0..30).map(|i| (i * 7919 + step) % (at + 2)).collect());
            Column { values, gaps: Gaps::default() }
        };
        let columns = (0..20).map(column).collect();
        store.append_blocking(encode_batch(&Batch { header, times, columns }).into()).unwrap();
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let reading =
            |i: i64| Reading { sensor: registered[0], time: time - i * SECOND, value: Value::Float(i as f64) };
        store.append_readings("gateway", (0..10).map(reading).collect(), Box::new(move |r| drop(sender.send(r))));
        receiver.recv().unwrap().unwrap();
        store.seal().unwrap();
        store.maintain(time).unwrap();
        // Somebody reads, too.
        let chunks = store.snapshot().scan(registered[0], time - HOUR, time + 1).unwrap();
        let rows: usize = chunks.map(|chunk| chunk.unwrap().times.len()).sum();
        assert!(rows >= 10, "step {step}");
        let stats = store.stats();
        assert_eq!((stats.live_bytes, stats.queue_bytes, stats.segments), (0, 0, 1), "step {step}");
        assert_eq!((stats.sensors, stats.schemas, stats.newest_groups), (21, 1, 1), "step {step}");
        let catalogue = disk.content(std::path::Path::new("/store/catalogue.redb")).len();
        let (files, bytes) = (disk.files("/store/").len(), disk.used());
        let sizes = Sizes { blocks: stats.blocks, files, open_files: disk.open_files(), catalogue, bytes };
        let larger = |a: Sizes, b: Sizes| Sizes {
            blocks: a.blocks.max(b.blocks),
            files: a.files.max(b.files),
            open_files: a.open_files.max(b.open_files),
            catalogue: a.catalogue.max(b.catalogue),
            bytes: a.bytes.max(b.bytes),
        };
        // The first six hours show how large everything becomes.
        if time < START + 6 * HOUR {
            most = Some(most.map_or(sizes, |most| larger(most, sizes)));
        } else if let Some(most) = most {
            let room =
                Sizes { blocks: most.blocks + 2, files: most.files + 4, open_files: most.open_files + 4, ..most };
            let room = Sizes { catalogue: most.catalogue * 3 / 2, bytes: most.bytes * 3 / 2, ..room };
            assert_eq!(larger(sizes, room), room, "step {step}: more than in the first six hours");
        }
    }
    assert!(store.stats().retention_blocks > 10 && store.stats().merges > 10, "{:?}", store.stats());
    assert_eq!(registered.len(), 1);
}
