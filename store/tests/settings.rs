//! Properties that users set: they apply to present and future sensors, survive a restart, and can be unset.

mod support;

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use support::{Fault, FaultyDisk};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, Kind, Pattern, Schema, SensorDef, SensorPath, ValueType,
};
use wholegrain_store::{
    Property, Resolution, ScanPart, ScanRequest, SchemalessSensor, SensorInfo, SensorSetting, SetReport,
    SnapshotReader, Store, StoreConfig, StoreError,
};
use wholegrain_transport::payload::encode_batch;

fn open(dir: &Path) -> Store {
    Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) }).unwrap().0
}

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn setting(of: &str) -> SensorSetting {
    SensorSetting { pattern: pattern(of), unit: None, scale: None, kind: None, description: None, interval: None }
}

fn unit(of: &str, unit: &str) -> SensorSetting {
    SensorSetting { unit: Some(unit.to_owned()), ..setting(of) }
}

fn schema(node: &str) -> Schema {
    let sensors = vec![
        SensorDef::gauge("power", "1", "Power."),
        SensorDef { wraps_at: Some(1 << 32), ..SensorDef::counter("energy", "J", "").scaled(1e-6) },
    ];
    Schema::new(SensorPath::new(format!("/lrz/{node}")).unwrap(), "g", sensors).unwrap()
}

fn info(store: &Store, path: &str) -> SensorInfo {
    let listed = store.sensors(&[pattern(path)]);
    assert_eq!(listed.len(), 1, "{path}");
    assert_eq!(store.sensor(listed[0].id).as_ref(), listed.first());
    listed.into_iter().next().unwrap()
}

fn set(store: &Store, settings: &[SensorSetting]) -> SetReport {
    store.set_properties(settings, false, "ada", 5).unwrap()
}

#[test]
fn what_is_set_holds_for_what_is_there_and_what_comes_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.register_schema(&schema("n1")).unwrap();
    let generation = store.properties_generation();
    let scaled =
        SensorSetting { scale: Some(0.001), description: Some("Of the node.".into()), ..unit("/lrz/**/power", "W") };
    assert_eq!(set(&store, &[scaled]), SetReport { set: 3, same: 0 });
    assert!(store.properties_generation() > generation);
    store.register_schema(&schema("n2")).unwrap();
    let late = SchemalessSensor {
        path: SensorPath::new("/lrz/n3/power").unwrap(),
        unit: "kW".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 2.0,
        description: String::new(),
    };
    store.register_sensors("x", &[late]).unwrap();
    store.seal().unwrap();
    let csv = std::fs::read_to_string(dir.path().join("sensors.csv")).unwrap();
    assert!(csv.contains("/lrz/n2/power,\"W\",gauge,int,0.001,"), "{csv}");
    drop(store);
    let store = open(dir.path());
    for node in ["n1", "n2", "n3"] {
        let info = info(&store, &format!("/lrz/{node}/power"));
        assert_eq!((info.unit.as_str(), info.scale, info.kind), ("W", 0.001, Kind::Gauge), "{node}");
        assert_eq!(info.description, "Of the node.");
    }
    let energy = info(&store, "/lrz/n1/energy");
    assert_eq!((energy.unit.as_str(), energy.scale, energy.wraps_at), ("J", 1e-6, Some(1 << 32)));
}

#[test]
fn the_later_setting_wins_property_by_property() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.register_schema(&schema("n1")).unwrap();
    set(&store, &[SensorSetting { scale: Some(2.0), ..unit("/lrz/n1/power", "kW") }]);
    // In one call the later in the list.
    set(&store, &[unit("/lrz/**", "V"), unit("power", "MW")]);
    set(&store, &[SensorSetting { kind: Some(Kind::Gauge), ..setting("energy") }]);
    let power = info(&store, "/lrz/n1/power");
    assert_eq!((power.unit.as_str(), power.scale), ("MW", 2.0));
    // Only counters wrap.
    let energy = info(&store, "/lrz/n1/energy");
    assert_eq!((energy.unit.as_str(), energy.kind, energy.wraps_at), ("V", Kind::Gauge, None));
    let reported = store.explain(&[power]);
    let from: Vec<Option<&str>> =
        reported[0].set.iter().map(|setting| setting.as_ref().map(|setting| setting.pattern.as_str())).collect();
    assert_eq!(from, [Some("power"), Some("/lrz/n1/power"), None, None, None]);
    assert_eq!((reported[0].value(Property::Unit), reported[0].sent(Property::Unit)), (json!("MW"), json!("1")));
    // An earlier one set again is the latest.
    set(&store, &[unit("/lrz/n1/power", "kW")]);
    assert_eq!(info(&store, "/lrz/n1/power").unit, "kW");
    assert_eq!(store.unset_properties(&pattern("/lrz/n1/power"), &[Property::Unit], "eve", 9).unwrap(), 1);
    assert_eq!(store.unset_properties(&pattern("/lrz/n1/power"), &[Property::Unit], "eve", 9).unwrap(), 0);
    assert_eq!((info(&store, "/lrz/n1/power").unit.as_str(), info(&store, "/lrz/n1/power").scale), ("MW", 2.0));
    for of in ["power", "/lrz/**", "/lrz/n1/power", "energy"] {
        assert!(store.unset_properties(&pattern(of), &[], "eve", 10).unwrap() > 0, "{of}");
    }
    let power = info(&store, "/lrz/n1/power");
    assert_eq!((power.unit.as_str(), power.scale), ("1", 1.0));
    assert_eq!(info(&store, "/lrz/n1/energy").wraps_at, Some(1 << 32));
    let history = store.property_history(Some(&pattern("/lrz/n1/power")), 100).unwrap();
    let reported: Vec<_> =
        history.iter().map(|one| (one.property.name(), one.value.clone(), one.who.as_str(), one.at)).collect();
    assert_eq!(
        reported,
        [
            ("unit", Some(json!("kW")), "ada", 5),
            ("scale", Some(json!(2.0)), "ada", 5),
            ("unit", Some(json!("kW")), "ada", 5),
            ("unit", None, "eve", 9),
            ("scale", None, "eve", 10),
        ]
    );
    assert_eq!(store.property_history(None, 3).unwrap().len(), 3);
    assert!(store.property_settings().is_empty());
}

#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.register_schema(&schema("n1")).unwrap();
    let refused = |bad: SensorSetting, part: &str| {
        let both = [unit("/lrz/**", "V"), bad];
        for result in [store.set_properties(&both, false, "ada", 5), store.try_properties(&both, false)] {
            let Err(StoreError::Sensor(text)) = result else { panic!("{part}: taken") };
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(info(&store, "/lrz/n1/power").unit, "1");
    };
    refused(unit("/lrz/**", "kw"), "did you mean `kW`?");
    refused(unit("/lrz/**", &"m.".repeat(40)), "longer than 64 bytes");
    for scale in [0.0, f64::NAN, f64::INFINITY] {
        refused(SensorSetting { scale: Some(scale), ..setting("/x") }, "finite and not 0");
    }
    refused(SensorSetting { interval: Some(Interval::from_ns(0)), ..setting("/x") }, "over 0");
    refused(SensorSetting { interval: Some(Interval::from_s(400 * 86_400)), ..setting("/x") }, "at most");
    refused(SensorSetting { description: Some("a\nb".into()), ..setting("/x") }, "control character");
    refused(SensorSetting { description: Some("a".repeat(513)), ..setting("/x") }, "longer than 512");
    assert!(store.property_history(None, 100).unwrap().is_empty());
    // Trying changes nothing either.
    assert_eq!(store.try_properties(&[unit("/lrz/**", "V")], false).unwrap(), SetReport { set: 1, same: 0 });
    assert_eq!(info(&store, "/lrz/n1/power").unit, "1");
}

#[test]
fn properties_that_a_sensor_has_already_are_not_set_if_that_is_requested() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.register_schema(&schema("n1")).unwrap();
    let list = [
        SensorSetting { scale: Some(1.0), ..unit("/lrz/n1/power", "1") },
        SensorSetting { scale: Some(1e-6), ..unit("/lrz/n1/energy", "kJ") },
        unit("/lrz/none/power", "W"),
    ];
    assert_eq!(store.set_properties(&list, true, "ada", 5).unwrap(), SetReport { set: 2, same: 3 });
    assert_eq!(store.set_properties(&list[..2], true, "ada", 6).unwrap(), SetReport { set: 0, same: 4 });
    assert_eq!(store.property_settings().len(), 2);
    assert_eq!((store.count_sensors(&pattern("/lrz/**")), store.count_sensors(&pattern("power"))), (2, 1));
}

#[test]
fn a_catalogue_read_again_keeps_the_settings() {
    let disk = FaultyDisk::default();
    let config = StoreConfig { background: false, ..StoreConfig::new("/store") };
    let store = Store::open_on(config, Arc::new(disk.clone())).unwrap().0;
    store.register_schema(&schema("n1")).unwrap();
    set(&store, &[unit("/lrz/**/power", "W")]);
    disk.plan(1, Fault::Errors(5, 1));
    assert!(store.register_schema(&schema("n2")).is_err());
    disk.calm();
    store.register_schema(&schema("n2")).unwrap();
    for node in ["n1", "n2"] {
        assert_eq!(info(&store, &format!("/lrz/{node}/power")).unit, "W", "{node}");
    }
}

#[test]
fn compacting_writes_tiers_again_whose_sensors_have_another_interval() {
    const SECOND: i64 = 1_000_000_000;
    const DAY: i64 = 86_400 * SECOND;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let schema = schema("n1");
    store.register_schema(&schema).unwrap();
    // 25 s and 45 s apart: no three alike in a row.
    let times: Vec<i64> = (0..1_000).map(|at| (at / 2 * 70 + at % 2 * 25) * SECOND).collect();
    let column = || Column { values: ColumnValues::Int((0..1_000).collect()), gaps: Gaps::default() };
    let interval_ns = 20 * SECOND.unsigned_abs();
    let header = BatchHeader { agent: "n1".into(), boot: 1, seq: 1, schema: schema.hash(), interval_ns };
    store.append_blocking(encode_batch(&Batch { header, times, columns: vec![column(), column()] }).into()).unwrap();
    store.seal().unwrap();
    let now = 2 * DAY;
    store.maintain(now).unwrap();
    let power = info(&store, "/lrz/n1/power");
    // Whether windows with lines answer where readings up to three intervals apart are joined.
    let has_lines = |seconds: i64| {
        let lines = Resolution::Lines { every: Some(300 * SECOND), max_gap_ns: 3 * seconds * SECOND };
        let request = ScanRequest::readings(&power, 0, DAY).at(lines);
        let mut scan = SnapshotReader::scan(&store.snapshot(), &request).unwrap();
        scan.parts.any(|part| matches!(part.unwrap(), ScanPart::Windows(_)))
    };
    assert_eq!((has_lines(20), has_lines(10)), (true, false));
    store.compact(now, &mut |_, _| true).unwrap();
    assert_eq!((has_lines(20), has_lines(10)), (true, false), "nothing has changed");
    let tiers = store.stats().tiers;
    set(&store, &[SensorSetting { interval: Some(Interval::from_s(10)), ..setting("/lrz/**") }]);
    store.compact(now, &mut |_, _| true).unwrap();
    assert_eq!((has_lines(20), has_lines(10)), (false, true));
    assert_eq!(store.stats().tiers, tiers);
}
