//! The expiry of sensors without stored readings: memory and catalogue shrink, no readable reading is lost, and a sender announces an expired schema
//! again.

mod support;

use std::sync::Arc;

use support::FaultyDisk;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Pattern, Schema, SensorDef, SensorPath, Value,
    ValueType,
};
use wholegrain_store::{AppendOutcome, Deletion, Reading, SchemalessSensor, SensorId, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;
const JOBS: usize = 60;
const SENSORS: usize = 100;

fn config() -> StoreConfig {
    StoreConfig {
        background: false,
        retention_age: Some(Interval::from_s(2 * 86_400)),
        sensors_age: Some(Interval::from_s(86_400)),
        ..StoreConfig::new("/store")
    }
}

fn open(disk: &FaultyDisk) -> Store {
    Store::open_on(config(), Arc::new(disk.clone())).unwrap().0
}

fn job(number: usize) -> Schema {
    // With enough to say of each that the catalogue becomes larger than it is made.
    let description = "d".repeat(400);
    let sensors = (0..SENSORS).map(|i| SensorDef::gauge(format!("job/{number}/m{i}"), "1", &description)).collect();
    Schema::new(SensorPath::new("/site/n1").unwrap(), format!("job-{number}"), sensors).unwrap()
}

fn payload(schema: &Schema, seq: u64, time: i64) -> Vec<u8> {
    let columns = (0..schema.len())
        .map(|_| Column { values: ColumnValues::Int(vec![seq as i64]), gaps: Gaps::default() })
        .collect();
    let header = BatchHeader { agent: "n1".into(), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
    encode_batch(&Batch { header, times: vec![time], columns })
}

fn count(store: &Store, pattern: &str) -> usize {
    store.sensors(&[Pattern::new(pattern).unwrap()]).len()
}

fn numbers(store: &Store) -> Vec<u32> {
    store.sensors(&[Pattern::new("/**").unwrap()]).iter().map(|sensor| sensor.id.0).collect()
}

#[test]
fn sensors_of_many_ended_jobs_expire_after_their_readings_and_can_be_registered_again() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    for number in 0..JOBS {
        store.register_schema(&job(number)).unwrap();
        store.append_blocking(payload(&job(number), number as u64, START + number as i64 * DAY / 10).into()).unwrap();
        if number % 10 == 9 {
            store.seal().unwrap();
        }
    }
    assert_eq!((store.stats().sensors, store.stats().schemas), ((JOBS * SENSORS) as u64, JOBS as u64));
    let sizes = disk.used();
    // Two days after the first job's day is over: its ten jobs are out of retention, and not heard of for longer than a day.
    store.maintain(START + 3 * DAY + DAY / 2).unwrap();
    let left = count(&store, "/**");
    assert!(left.is_multiple_of(SENSORS) && ((JOBS - 20) * SENSORS..=(JOBS - 10) * SENSORS).contains(&left), "{left}");
    assert_eq!(store.stats().schemas as usize * SENSORS, left);
    assert_eq!(count(&store, "/site/n1/job/0/**"), 0);
    let snapshot = store.snapshot();
    for sensor in store.sensors(&[Pattern::new("/**").unwrap()]) {
        assert_eq!(snapshot.scan(sensor.id, i64::MIN, i64::MAX).unwrap().count(), 1, "{}", sensor.path);
    }
    // All, and the journal's too once it is sealed and out.
    store.maintain(START + 30 * DAY).unwrap();
    assert_eq!((store.stats().sensors, store.stats().schemas, store.stats().blocks), (0, 0, 0));
    let used = numbers(&store);
    assert!(used.is_empty());
    // A batch that was delivered is known by its number whatever its schema is; but the schema must be announced again.
    let again = store.append_blocking(payload(&job(0), 0, START).into());
    assert!(matches!(again, Err(StoreError::UnknownSchema(hash)) if hash == job(0).hash()), "{again:?}");
    store.close().unwrap();
    let disk = disk.after_kill();
    drop(store);
    let store = open(&disk);
    assert_eq!((store.stats().sensors, store.stats().schemas), (0, 0));
    store.register_schema(&job(0)).unwrap();
    assert_eq!(store.append_blocking(payload(&job(0), 0, START).into()).unwrap(), AppendOutcome::Duplicate);
    let fresh = numbers(&store);
    assert!(fresh.len() == SENSORS && fresh.iter().all(|id| *id as usize >= JOBS * SENSORS), "never given again");
    store.append_blocking(payload(&job(0), 999, START + 30 * DAY).into()).unwrap();
    assert_eq!(store.snapshot().scan(SensorId(fresh[0]), i64::MIN, i64::MAX).unwrap().count(), 1);
    // As many others find their room where those were.
    (JOBS..2 * JOBS).for_each(|number| store.register_schema(&job(number)).unwrap());
    assert!(disk.used() < sizes * 3 / 2, "{} bytes, {sizes} before", disk.used());
}

#[test]
fn what_has_a_reading_anywhere_stays() {
    let disk = FaultyDisk::default();
    let store = Store::open_on(StoreConfig { retention_age: None, ..config() }, Arc::new(disk.clone())).unwrap().0;
    let (old, live, mixed) = (job(1), job(2), job(3));
    for (seq, schema) in [&old, &live, &mixed].into_iter().enumerate() {
        store.register_schema(schema).unwrap();
        store.append_blocking(payload(schema, seq as u64, START).into()).unwrap();
    }
    store.seal().unwrap();
    // One waits in the journal, however old its times are; of another one sensor keeps its reading.
    store.append_blocking(payload(&live, 7, START + 1).into()).unwrap();
    let delete = |pattern: &str| {
        let patterns = vec![Pattern::new(pattern).unwrap()];
        store.delete(&Deletion { patterns, from: i64::MIN, to: START + 1 }).unwrap()
    };
    delete("/site/n1/job/1/**");
    delete("/site/n1/job/2/**");
    delete("/site/n1/job/3/m1*");
    store.append_blocking(payload(&live, 8, START + 2).into()).unwrap();
    store.maintain(START + 20 * DAY).unwrap();
    assert_eq!((count(&store, "job/1/*"), count(&store, "job/2/*"), count(&store, "job/3/*")), (0, SENSORS, SENSORS));
    let sensors = store.sensors(&[Pattern::new("job/3/m2").unwrap()]);
    assert_eq!(store.newest(&[sensors[0].id])[0], Some((START, Some(Value::Int(2)))));
    assert_eq!(store.stats().schemas, 2);
    // While a file cannot be read, the sensors that may be in it stay.
    delete("/site/n1/job/3/**");
    let path = disk.files("blocks/")[0].clone();
    disk.put(&path, b"damaged");
    store.maintain(START + 20 * DAY).unwrap();
    assert_eq!(count(&store, "job/3/*"), SENSORS);
}

#[test]
fn schemaless_sensors_expire_too_and_register_again() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    let sensor = |name: &str| SchemalessSensor {
        path: SensorPath::new(format!("/l/{name}")).unwrap(),
        unit: "1".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Int,
        scale: 1.0,
        description: String::new(),
    };
    let ids = store.register_sensors("gw", &[sensor("a"), sensor("b"), sensor("never")]).unwrap();
    let send = |id: SensorId, time: i64| {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let reading = Reading { sensor: id, time, value: Value::Int(1) };
        store.append_readings("gw", vec![reading], Box::new(move |result| drop(sender.send(result))));
        receiver.recv().unwrap()
    };
    send(ids[0], START).unwrap();
    send(ids[1], START + 19 * DAY + DAY / 2).unwrap();
    store.seal().unwrap();
    store.maintain(START + 20 * DAY).unwrap();
    assert_eq!(count(&store, "/l/*"), 2, "one was found without readings for the first time now");
    store.maintain(START + 20 * DAY + DAY / 2).unwrap();
    assert_eq!(count(&store, "/l/*"), 2);
    store.maintain(START + 21 * DAY + SECOND).unwrap();
    assert_eq!(count(&store, "/l/*"), 1);
    assert!(matches!(send(ids[0], START + 20 * DAY), Err(StoreError::Sensor(_))));
    let again = store.register_sensors("gw", &[sensor("a")]).unwrap();
    assert!(again[0].0 > ids[2].0);
    send(again[0], START + 20 * DAY).unwrap();
    store.close().unwrap();
    drop(store);
    let (store, report) = Store::open_on(config(), Arc::new(disk.after_kill())).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(store.newest(&[again[0], ids[1]]).iter().flatten().count(), 2);
}
