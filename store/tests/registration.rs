//! Schemas that are registered together: one transaction, separate numbers, and no acknowledged schema lost in a crash.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use support::{EIO, Fault, FaultyDisk, Random, seed};
use wholegrain_model::{Pattern, Schema, SensorDef, SensorPath};
use wholegrain_store::{Store, StoreConfig, StoreError};

fn config() -> StoreConfig {
    StoreConfig { background: false, ..StoreConfig::new("/store") }
}

fn open(disk: &FaultyDisk) -> Store {
    Store::open_on(config(), Arc::new(disk.clone())).unwrap().0
}

fn schema(prefix: &str, group: &str, names: &[&str]) -> Schema {
    let sensors = names.iter().map(|name| SensorDef::gauge(*name, "1", "")).collect();
    Schema::new(SensorPath::new(prefix).unwrap(), group, sensors).unwrap()
}

fn fleet(agents: usize) -> Vec<Schema> {
    (0..agents).map(|i| schema(&format!("/site/n{i}"), "g", &["cpu/user", "cpu/system", "load"])).collect()
}

/// Every sensor's path and number.
fn numbers(store: &Store) -> BTreeMap<String, u32> {
    let all = store.sensors(&[Pattern::new("/**").unwrap()]);
    let numbers: BTreeMap<String, u32> = all.iter().map(|sensor| (sensor.path.to_string(), sensor.id.0)).collect();
    assert_eq!((numbers.len() as u64, all.len()), (store.stats().sensors, numbers.len()));
    for (path, number) in &numbers {
        let sensor = store.sensor(wholegrain_store::SensorId(*number)).unwrap();
        assert_eq!((&*sensor.path, store.sensor_id(path)), (path.as_str(), Some(sensor.id)));
    }
    let mut unique: Vec<u32> = numbers.values().copied().collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), numbers.len(), "a number twice");
    numbers
}

#[test]
fn a_fleet_that_comes_together_takes_few_transactions_and_little_room() {
    let schemas = fleet(300);
    let cost = |register: &dyn Fn(&Store)| {
        let disk = FaultyDisk::default();
        let store = open(&disk);
        let before = disk.operations();
        register(&store);
        let operations = disk.operations() - before;
        let known = numbers(&store);
        drop(store);
        assert_eq!(numbers(&open(&disk)), known);
        (operations, known)
    };
    let (together, numbers) =
        cost(&|store| store.register_schemas(&schemas).into_iter().for_each(|answer| answer.unwrap()));
    let (alone, same) = cost(&|store| schemas.iter().for_each(|schema| store.register_schema(schema).unwrap()));
    assert_eq!(numbers, same);
    assert_eq!(numbers["/site/n7/load"], 7 * 3 + 2);
    assert!(together < 100 && alone > 300, "{together} and {alone} operations");
}

#[test]
fn threads_that_register_at_once_get_numbers_of_their_own() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    // Each schema comes from two threads; half of them have a sensor of the others.
    let schemas: Vec<Schema> = (0..40)
        .flat_map(|i| {
            let prefix = format!("/n{i}");
            [schema(&prefix, "a", &["x", "y/z", "y"]), schema(&prefix, "b", &["y", "y/a", "y/zz", "w"])]
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (store, schemas) = (&store, &schemas);
            scope.spawn(move || {
                for schema in schemas.iter().skip(thread / 2).step_by(8) {
                    store.register_schema(schema).unwrap();
                    assert!(store.schema(&schema.hash()).is_some());
                }
            });
        }
    });
    let known = numbers(&store);
    assert_eq!(known.len(), 40 * 6);
    drop(store);
    let store = open(&disk.after_crash(&mut Random::new(1)));
    assert_eq!(numbers(&store), known);
    assert!(schemas.iter().all(|schema| store.schema(&schema.hash()).is_some()));
}

#[test]
fn a_failure_in_a_transaction_of_many_loses_nothing_that_was_acknowledged() {
    let mut random = Random::new(seed());
    let (mut refused, mut crashed) = (0, 0);
    for after in 0..40 {
        let disk = FaultyDisk::default();
        let store = open(&disk);
        let first = fleet(5);
        assert!(store.register_schemas(&first).iter().all(Result::is_ok));
        let fault = if after % 2 == 0 { Fault::Errors(EIO, 1 + random.below(3) as u32) } else { Fault::Crash };
        disk.plan(after / 2, fault);
        let mut second = fleet(12);
        // One of them twice, and others that share a sensor.
        second.extend([fleet(9).pop().unwrap(), schema("/site", "s", &["n1/load", "n11/load", "a"])]);
        let answers = store.register_schemas(&second);
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        refused += usize::from(failed > 0);
        let known = if failed == 0 { Some(numbers(&store)) } else { None };
        crashed += usize::from(disk.crashed());
        drop(store);
        let disk = disk.after_crash(&mut random);
        let store = open(&disk);
        for (schema, answer) in second.iter().zip(&answers) {
            assert!(answer.is_err() || store.schema(&schema.hash()).is_some(), "{after}: {schema:?} is lost");
        }
        let now = numbers(&store);
        assert!(known.is_none_or(|known| known == now), "{after}: numbers changed");
        assert!(store.register_schemas(&second).iter().all(Result::is_ok));
        let all = numbers(&store);
        assert_eq!(all.len(), 12 * 3 + 1);
        assert!(now.iter().all(|(path, number)| all[path] == *number), "{after}: numbers changed");
    }
    assert!(refused > 5 && crashed > 5, "{refused} {crashed}");
}

#[test]
fn after_a_failure_the_next_attempt_finds_its_way_and_closing_refuses() {
    let disk = FaultyDisk::default();
    let store = open(&disk);
    disk.plan(0, Fault::Errors(EIO, 1));
    let schemas = fleet(3);
    assert!(store.register_schemas(&schemas).iter().all(Result::is_err));
    assert!(store.register_schemas(&schemas).iter().all(Result::is_ok));
    assert_eq!(numbers(&store).len(), 9);
    let operations = disk.operations();
    assert!(store.register_schemas(&schemas).iter().all(Result::is_ok));
    assert_eq!(disk.operations(), operations, "what is known needs no transaction");
    store.close().unwrap();
    assert!(matches!(store.register_schema(&schemas[0]), Err(StoreError::Closed)));
}
