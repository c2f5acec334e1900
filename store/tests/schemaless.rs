//! Schemaless sensors and their single readings: an acknowledged reading counts once, live, sealed, merged and after a restart.

mod support;

use std::path::Path;
use std::sync::Arc;

use support::FaultyDisk;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Kind, Pattern, Schema, SensorDef, SensorPath, Value, ValueType,
};
use wholegrain_store::{AppendOutcome, LiveItem, Reading, SchemalessSensor, SensorId, Store, StoreConfig, StoreError};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const START: i64 = 20_000 * DAY;

fn schemaless(path: &str) -> SchemalessSensor {
    SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: "Cel".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 0.5,
        description: "A \"temperature\".".to_owned(),
    }
}

fn manual(dir: impl AsRef<Path>) -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new(dir.as_ref()) }
}

fn open(dir: impl AsRef<Path>) -> Store {
    Store::open(manual(dir)).unwrap().0
}

fn append(store: &Store, source: &str, readings: &[Reading]) -> Result<AppendOutcome, StoreError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    store.append_readings(source, readings.to_vec(), Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap()
}

fn float(sensor: SensorId, second: i64, value: f64) -> Reading {
    Reading { sensor, time: START + second * SECOND, value: Value::Float(value) }
}

fn int(sensor: SensorId, second: i64, value: i64) -> Reading {
    Reading { sensor, time: START + second * SECOND, value: Value::Int(value) }
}

fn rows(store: &Store, id: SensorId) -> Vec<(i64, Option<Value>)> {
    let mut rows = Vec::new();
    for chunk in store.snapshot().scan(id, i64::MIN, i64::MAX).unwrap() {
        let chunk = chunk.unwrap();
        rows.extend(chunk.times.iter().enumerate().map(|(i, t)| ((t - START) / SECOND, chunk.column.get(i))));
    }
    rows
}

#[test]
fn the_whole_life_of_a_single_reading() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let sensors = [schemaless("/hall/a"), schemaless("/hall/b"), schemaless("/hall/a")];
    let ids = store.register_sensors("gateway", &sensors).unwrap();
    assert_eq!(ids, [SensorId(0), SensorId(1), SensorId(0)]);
    assert_eq!(store.register_sensors("gateway", &sensors).unwrap(), ids, "known paths keep their number");
    assert_eq!((store.sensor_id("/hall/b"), store.sensor_id("/hall/c")), (Some(SensorId(1)), None));
    let live = store.subscribe(4);
    let sent = [float(ids[0], 3, 1.5), float(ids[1], 1, 2.5), int(ids[0], 1, -7), float(ids[0], 2, 9.0)];
    assert_eq!(append(&store, "gateway", &sent).unwrap(), AppendOutcome::Stored);
    match &live.recv().unwrap()[0] {
        LiveItem::Readings(readings) => assert_eq!((&*readings.source, &readings.readings[..]), ("gateway", &sent[..])),
        LiveItem::Batch(batch) => panic!("{batch:?}"),
    }
    append(&store, "gateway", &[float(ids[0], 2, 4.0), float(ids[1], 1, 2.5)]).unwrap();
    let expected = vec![(1, Some(Value::Int(-7))), (2, Some(Value::Float(4.0))), (3, Some(Value::Float(1.5)))];
    let newest =
        vec![Some((START + 3 * SECOND, Some(Value::Float(1.5)))), Some((START + SECOND, Some(Value::Float(2.5))))];
    let check = |store: &Store, what: &str| {
        assert_eq!(rows(store, ids[0]), expected, "{what}");
        assert_eq!(rows(store, ids[1]), [(1, Some(Value::Float(2.5)))], "{what}");
        assert_eq!(store.newest(&ids[..2]), newest, "{what}");
        let info = &store.sensors(&[Pattern::new("/hall/a").unwrap()])[0];
        assert_eq!((info.unit.as_str(), info.scale, info.kind), ("Cel", 0.5, Kind::Gauge), "{what}");
        assert_eq!((&*info.agent, info.last_time), ("gateway", Some(START + 3 * SECOND)), "{what}");
    };
    check(&store, "live");
    drop(store);
    let (store, report) = Store::open(manual(dir.path())).unwrap();
    assert_eq!((report.readings, report.is_clean()), (6, true));
    check(&store, "replayed");
    store.seal().unwrap();
    check(&store, "sealed");
    assert_eq!(store.stats().block_rows, 4);
    let csv = std::fs::read_to_string(dir.path().join("sensors.csv")).unwrap();
    assert!(csv.contains("/hall/a,\"Cel\",gauge,float,0.5,,0,\"A \"\"temperature\"\".\"\n"), "{csv}");
    drop(store);
    let store = open(dir.path());
    check(&store, "sealed and opened again");
    append(&store, "gateway", &[float(ids[0], 2, 4.0), float(ids[1], 1, 2.5)]).unwrap();
    check(&store, "sent again");
    store.seal().unwrap();
    check(&store, "sent again and sealed");
    store.maintain(START + 3 * DAY).unwrap();
    check(&store, "merged");
    assert_eq!(store.stats().block_rows, 4, "each once");
}

#[test]
fn a_sensor_of_a_schema_takes_single_readings_too_and_the_later_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let schema = Schema::new(
        SensorPath::new("/n1").unwrap(),
        "g",
        vec![SensorDef::gauge("x", "By", "Of the schema."), SensorDef::gauge("y", "1", "")],
    )
    .unwrap();
    let id = store.register_sensors("gateway", &[schemaless("/n1/x")]).unwrap()[0];
    assert_eq!(store.sensor(id).unwrap().unit, "Cel");
    store.register_schema(&schema).unwrap();
    let batch = |seq: u64, seconds: &[i64]| {
        let header = BatchHeader { agent: "n1".into(), boot: 1, seq, schema: schema.hash(), interval_ns: 1 };
        let column = || Column { values: ColumnValues::Int(vec![seq as i64; seconds.len()]), gaps: Gaps::default() };
        let times = seconds.iter().map(|s| START + s * SECOND).collect();
        encode_batch(&Batch { header, times, columns: vec![column(), column()] })
    };
    store.append_blocking(batch(1, &[1, 2, 3]).into()).unwrap();
    append(&store, "gateway", &[float(id, 2, 20.0), int(id, 4, 40)]).unwrap();
    let expected = vec![
        (1, Some(Value::Int(1))),
        (2, Some(Value::Float(20.0))),
        (3, Some(Value::Int(1))),
        (4, Some(Value::Int(40))),
    ];
    assert_eq!(rows(&store, id), expected, "live");
    store.seal().unwrap();
    assert_eq!(rows(&store, id), expected, "sealed");
    store.append_blocking(batch(2, &[2]).into()).unwrap();
    let mut later = expected.clone();
    later[1].1 = Some(Value::Int(2));
    assert_eq!(rows(&store, id), later, "a later segment");
    store.seal().unwrap();
    assert_eq!(rows(&store, id), later);
    assert_eq!(store.sensor(id).unwrap().unit, "By", "a schema defines its sensors");
    store.register_sensors("gateway", &[schemaless("/n1/x")]).unwrap();
    assert_eq!(store.sensor(id).unwrap().unit, "By");
    assert_eq!(store.newest(&[id]), [Some((START + 4 * SECOND, Some(Value::Int(40))))]);
}

#[test]
fn what_is_not_allowed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let refused = |sensor: SchemalessSensor, part: &str| {
        let error = store.register_sensors("g", &[sensor]).unwrap_err().to_string();
        assert!(error.contains("/a") && error.contains(part), "{error}");
    };
    refused(SchemalessSensor { scale: 0.0, ..schemaless("/a") }, "scale");
    refused(SchemalessSensor { unit: "\n".into(), ..schemaless("/a") }, "unit");
    refused(SchemalessSensor { description: "x".repeat(513), ..schemaless("/a") }, "description");
    assert_eq!(store.stats().sensors, 0);
    let error = append(&store, "g", &[float(SensorId(0), 1, 1.0)]).unwrap_err();
    assert!(matches!(error, StoreError::Sensor(_)), "{error}");
    assert!(store.register_sensors(&"x".repeat(200), &[schemaless("/a")]).is_err());
    assert_eq!(append(&store, "g", &[]).unwrap(), AppendOutcome::Stored);
    assert_eq!(store.stats().rejected, 1);
    store.close().unwrap();
    assert!(matches!(store.register_sensors("g", &[schemaless("/a")]), Err(StoreError::Closed)));
}

#[test]
fn a_snapshot_does_not_see_later_readings() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let id = store.register_sensors("g", &[schemaless("/a")]).unwrap()[0];
    append(&store, "g", &[float(id, 1, 1.0)]).unwrap();
    let snapshot = store.snapshot();
    append(&store, "g", &[float(id, 2, 1.0)]).unwrap();
    let count = |id| snapshot.scan(id, 0, i64::MAX).unwrap().map(|chunk| chunk.unwrap().times.len()).sum::<usize>();
    assert_eq!(count(id), 1);
    store.seal().unwrap();
    assert_eq!(count(id), 1, "sealed meanwhile");
    assert_eq!(rows(&store, id).len(), 2);
}

#[test]
fn a_full_disk_registers_and_acknowledges_nothing_and_recovers_by_itself() {
    let disk = FaultyDisk::default();
    let (store, _) = Store::open_on(manual("/store"), Arc::new(disk.clone())).unwrap();
    let id = store.register_sensors("g", &[schemaless("/a")]).unwrap()[0];
    append(&store, "g", &[float(id, 1, 1.0)]).unwrap();
    disk.limit(Some(disk.used()));
    let several: Vec<Reading> = (2..12).map(|second| float(id, second, 1.0)).collect();
    assert!(matches!(append(&store, "g", &several), Err(StoreError::DiskFull { .. })));
    // More than the catalogue's file has room for.
    let long = SchemalessSensor { description: "d".repeat(500), ..schemaless("/x") };
    let path = |i| SensorPath::new(format!("/many/s{i}")).unwrap();
    let many: Vec<SchemalessSensor> = (0..20_000).map(|i| SchemalessSensor { path: path(i), ..long.clone() }).collect();
    let result = store.register_sensors("g", &many).map(|ids| ids.len());
    assert!(matches!(result, Err(StoreError::DiskFull { .. })), "{result:?}");
    assert_eq!(rows(&store, id).len(), 1);
    disk.limit(None);
    let ids = store.register_sensors("g", &many).unwrap();
    append(&store, "g", &[float(id, 2, 1.0), float(ids[9_999], 2, 1.0)]).unwrap();
    drop(store);
    let (store, _) = Store::open_on(manual("/store"), Arc::new(disk)).unwrap();
    assert_eq!((rows(&store, id).len(), rows(&store, ids[9_999]).len()), (2, 1));
    assert_eq!(store.register_sensors("g", &many).unwrap(), ids, "numbers stay");
}
