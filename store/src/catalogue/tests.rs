use wholegrain_model::SensorDef;

use super::*;
use crate::disk::RealDisk;

fn schema(prefix: &str, names: &[&str]) -> Schema {
    let sensors = names.iter().map(|name| SensorDef::gauge(*name, "1", "")).collect();
    Schema::new(SensorPath::new(prefix).unwrap(), "g", sensors).unwrap()
}

fn register(catalogue: &Catalogue, sensors: &mut Sensors, schema: &Schema) {
    let registration = sensors.plan_schema(&mut sensors.plan(), schema).unwrap();
    catalogue.add_schemas(std::slice::from_ref(&registration)).unwrap();
    sensors.register(registration);
}

fn ids(sensors: &Sensors, schema: &Schema) -> Vec<Option<u32>> {
    (0..schema.len()).map(|i| sensors.id(&schema.path(i)).map(|id| id.0)).collect()
}

/// What each of a schema's sensors is defined by.
fn defined(sensors: &Sensors, schema: &Schema) -> Vec<SchemaHash> {
    let of = |i| {
        let id = sensors.id(&schema.path(i)).unwrap();
        sensors.schema_at(sensors.places(id).last().unwrap().schema).hash()
    };
    (0..schema.len()).map(of).collect()
}

#[test]
fn schemas_share_sensors_and_the_later_one_defines_them() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, path): (Arc<dyn Disk>, _) = (Arc::new(RealDisk), dir.path().join("catalogue.redb"));
    let (catalogue, contents) = Catalogue::open(&disk, &path).unwrap();
    let mut sensors = contents.sensors;
    let old = schema("/a", &["x", "y"]);
    // One that shares a sensor, and one of its own; then the old one again, which moves.
    let (shares, own) = (schema("/a", &["y", "z"]), schema("/b", &["x", "y"]));
    for one in [&old, &shares, &own, &old] {
        register(&catalogue, &mut sensors, one);
    }
    assert!(sensors.is_current(&old));
    drop(catalogue);
    let (catalogue, contents) = Catalogue::open(&disk, &path).unwrap();
    for sensors in [&sensors, &contents.sensors] {
        assert_eq!(ids(sensors, &old), [Some(0), Some(1)]);
        assert_eq!(ids(sensors, &shares), [Some(1), Some(2)]);
        assert_eq!(ids(sensors, &own), [Some(3), Some(4)]);
        assert_eq!((sensors.len(), sensors.next_number(), sensors.schemas_len()), (5, 5, 3));
        assert_eq!(defined(sensors, &old), [old.hash(), old.hash()]);
        assert_eq!(defined(sensors, &shares), [old.hash(), shares.hash()]);
    }
    drop(catalogue);
}

#[test]
fn an_unknown_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, path): (Arc<dyn Disk>, _) = (Arc::new(RealDisk), dir.path().join("catalogue.redb"));
    let set = |version: u64| {
        let db = Database::create(&path).unwrap();
        let txn = db.begin_write().unwrap();
        txn.open_table(META).unwrap().insert("version", version).unwrap();
        txn.commit().unwrap();
    };
    drop(Catalogue::open(&disk, &path).unwrap());
    set(FORMAT_VERSION + 1);
    assert!(matches!(Catalogue::open(&disk, &path), Err(StoreError::NewerVersion { found: 5, known: 4, .. })));
    set(FORMAT_VERSION - 1);
    assert!(matches!(Catalogue::open(&disk, &path), Err(StoreError::Damaged { .. })));
    set(FORMAT_VERSION);
    drop(Catalogue::open(&disk, &path).unwrap());
}

#[test]
fn lists_go_with_the_last_schema_and_what_stays_keeps_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, path): (Arc<dyn Disk>, _) = (Arc::new(RealDisk), dir.path().join("catalogue.redb"));
    let (catalogue, contents) = Catalogue::open(&disk, &path).unwrap();
    let mut sensors = contents.sensors;
    let (a, b, later) = (schema("/a", &["x", "y"]), schema("/b", &["x", "y"]), schema("/a", &["y", "z"]));
    for one in [&a, &b, &later] {
        register(&catalogue, &mut sensors, one);
    }
    let lists = |catalogue: &Catalogue| {
        let db = catalogue.db.read().unwrap();
        let read = db.as_ref().unwrap().begin_read().unwrap();
        let table = read.open_table(LISTS).unwrap();
        table.iter().unwrap().count()
    };
    assert_eq!(lists(&catalogue), 2);
    // Of `/a` the sensor x goes with the schema; y is the later one's too.
    let (going, schemas) = ([SensorId(0)], [a.hash()]);
    let left = sensors.left_by(&going, &schemas);
    assert_eq!(left, [(1, "/a/y".into())]);
    catalogue.remove_sensors(&going, &schemas, &left, sensors.next_number()).unwrap();
    sensors.remove(&going, &schemas);
    assert_eq!(lists(&catalogue), 2);
    drop(catalogue);
    let (catalogue, contents) = Catalogue::open(&disk, &path).unwrap();
    for sensors in [&sensors, &contents.sensors] {
        assert_eq!(ids(sensors, &a), [None, Some(1)]);
        assert_eq!(ids(sensors, &b), [Some(2), Some(3)]);
        assert_eq!((ids(sensors, &later), sensors.len()), (vec![Some(1), Some(4)], 4));
        assert_eq!(
            sensors.paths_from(1).iter().map(|path| &**path).collect::<Vec<_>>(),
            ["/a/y", "/b/x", "/b/y", "/a/z"]
        );
        assert!(!sensors.has(SensorId(0)) && sensors.path(SensorId(0)).is_none());
    }
    catalogue.remove_sensors(&[SensorId(2), SensorId(3)], &[b.hash()], &[], sensors.next_number()).unwrap();
    assert_eq!(lists(&catalogue), 1);
}
