use serde_json::json;
use wholegrain_testkit::Random;

use super::*;

fn one(kind: DocumentKind, document: Value) -> Vec<Measure> {
    let options = MeasureOptions { thresholds: true, health: true };
    measures(kind, &[("x".to_owned(), document)], options)
}

#[test]
fn units_become_ucum_codes() {
    for (units, reading_type, unit) in [
        (Some("Cel"), "Temperature", "Cel"),
        (Some("RPM"), "Rotational", "/min"),
        (Some("{rev}/min"), "Rotational", "/min"),
        (Some("kW.h"), "EnergykWh", "kW.h"),
        (Some("furlongs"), "Power", "W"),
        (Some(""), "Current", "A"),
        (None, "Humidity", "%"),
        (None, "Barometric", "1"),
        (Some(&"W.".repeat(100)), "Power", "W"),
    ] {
        assert_eq!(sensor_unit(units, reading_type), unit, "{units:?} {reading_type}");
        assert!(Unit::parse(unit).is_ok());
    }
    for (_, unit, ..) in ENDINGS {
        assert!(Unit::parse(unit).is_ok(), "{unit}");
    }
    for unit in
        BESIDE_READING.iter().map(|(.., unit)| unit).chain(SPELLINGS.iter().chain(&READING_TYPES).map(|(_, unit)| unit))
    {
        assert!(Unit::parse(unit).is_ok(), "{unit}");
    }
    let name = |key: &str| quantity(key).map(|(name, unit, _)| (name, unit));
    assert_eq!(name("EnergyJoules"), Some(("energy_joules".to_owned(), "J")));
    assert_eq!(name("EnergykWh"), Some(("energy".to_owned(), "kW.h")));
    assert_eq!((name("Name"), name("Watts")), (None, None));
}

#[test]
fn names_that_are_equal_are_distinguished_and_keep_their_names_in_another_order() {
    let part = |id: &str, name: &str| json!({ "MemberId": id, "Name": name, "ReadingCelsius": 1 });
    let names = |parts: Value| -> Vec<String> {
        let mut names: Vec<String> = one(DocumentKind::Thermal, json!({ "Temperatures": parts }))
            .into_iter()
            .map(|measure| measure.name)
            .collect();
        names.sort();
        names
    };
    let expected = ["temperature/CPU_0", "temperature/CPU_7", "temperature/In_let"];
    assert_eq!(names(json!([part("0", "CPU"), part("7", "CPU"), part("3", "In let")])), expected);
    assert_eq!(names(json!([part("3", "In let"), part("7", "CPU"), part("0", "CPU")])), expected);
    assert_eq!(names(json!([part("0", "A"), part("0", "A"), 5, null])), ["temperature/A_0_0", "temperature/A_0_1"]);
}

#[test]
fn any_json_gives_valid_names_units_and_no_panic() {
    let random = &mut Random::seeded();
    let texts = [
        "Name",
        "Reading",
        "Status",
        "State",
        "Absent",
        "Temperatures",
        "ReadingCelsius",
        "Fans",
        "PowerControl",
        "/",
        "",
        "..",
        "\u{0}",
        "PowerWatts",
        "é",
    ];
    fn value(random: &mut Random, texts: &[&str], depth: usize) -> Value {
        let text = |random: &mut Random| texts[random.below(texts.len() as u64) as usize].to_owned();
        match random.below(if depth == 0 { 4 } else { 8 }) {
            0 => Value::Null,
            1 => json!(random.below(1000)),
            2 => json!(text(random)),
            3 => json!(true),
            4 | 5 => (0..random.below(4)).map(|_| value(random, texts, depth - 1)).collect(),
            _ => (0..random.below(6)).map(|_| (text(random), value(random, texts, depth - 1))).collect(),
        }
    }
    for _ in 0..2_000 {
        let document = value(random, &texts, 5);
        for kind in [
            DocumentKind::Thermal,
            DocumentKind::Power,
            DocumentKind::ThermalMetrics,
            DocumentKind::Fans,
            DocumentKind::Supplies,
            DocumentKind::Environment,
            DocumentKind::Sensors,
            DocumentKind::State,
        ] {
            for measure in one(kind, document.clone()) {
                let sensor = measure.sensor("b");
                assert!(wholegrain_model::name::check_relative(&sensor.name).is_ok(), "{sensor:?} of {document}");
                assert!(Unit::parse(&sensor.unit).is_ok() && sensor.description.len() <= DESCRIPTION_BYTES_MAX);
            }
        }
    }
}
