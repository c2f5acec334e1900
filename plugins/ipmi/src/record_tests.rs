use super::*;

/// A full record with these bytes of units, formula and name.
fn full(units: u8, linearisation: u8, m: i16, b: i16, exponents: u8, name: &[u8]) -> Vec<u8> {
    let mut record = vec![0; 47];
    (record[3], record[5], record[7], record[13], record[20]) = (1, 0x20, 9, 1, units);
    (record[23], record[24], record[25]) = (linearisation, m as u8, ((m >> 2) as u8) & 0xc0);
    (record[26], record[27], record[29]) = (b as u8, ((b >> 2) as u8) & 0xc0, exponents);
    record.extend_from_slice(name);
    record
}

#[track_caller]
fn check(record: &[u8], raw: u8, expected: Option<f64>) {
    let sensors = sensors(record);
    let value = sensors[0].factors.and_then(|factors| factors.value(raw));
    match (value, expected) {
        (Some(value), Some(expected)) => assert!((value - expected).abs() < 1e-9, "{value}, expected {expected}"),
        other => assert_eq!(other.0, other.1),
    }
}

#[test]
fn numbers_by_formula_and_sign() {
    let name = [0xc1, b'x'];
    check(&full(0, 0, 1, 0, 0, &name), 200, Some(200.0));
    check(&full(0x80, 0, 1, 0, 0, &name), 200, Some(-56.0));
    check(&full(0x40, 0, 1, 0, 0, &name), 0xfe, Some(-1.0));
    check(&full(0x40, 0, 1, 0, 0, &name), 0x7f, Some(127.0));
    check(&full(0xc0, 0, 1, 0, 0, &name), 1, None);
    // -512 and 511 are the ends of ten bits.
    check(&full(0, 0, -512, 511, 0, &name), 2, Some(-513.0));
    // (59 x + 20) / 1000, and (x + 5 * 100) * 10, and (4 x - 0.5) * 100.
    check(&full(0, 0, 59, 20, 0xd0, &name), 200, Some(11.82));
    check(&full(0, 0, 1, 5, 0x12, &name), 1, Some(5010.0));
    check(&full(0, 0, 4, -5, 0x2f, &name), 1, Some(350.0));
    let formulas: [(u8, f64); 11] = [
        (1, 4f64.ln()),
        (2, 4f64.log10()),
        (3, 2.0),
        (4, 4f64.exp()),
        (5, 1e4),
        (6, 16.0),
        (7, 0.25),
        (8, 16.0),
        (9, 64.0),
        (10, 2.0),
        (11, 4f64.cbrt()),
    ];
    for (formula, expected) in formulas {
        check(&full(0, formula, 1, 0, 0, &name), 4, Some(expected));
    }
    check(&full(0, 7, 1, 0, 0, &name), 0, None);
    check(&full(0, 1, 1, 0, 0, &name), 0, None);
    check(&full(0, 0x70, 1, 0, 0, &name), 1, None);
}

#[test]
fn names_in_every_coding() {
    let named = |name: &[u8]| sensors(&full(0, 0, 1, 0, 0, name))[0].name.clone();
    assert_eq!(named(b"\xc8CPU Temp"), "CPU Temp");
    assert_eq!(named(b"\xc8CPU"), "CPU", "shorter than it says");
    assert_eq!(named(&[0xc3, b'T', 0xe9, 0]), "Té");
    // The example of 43.15: "IPMI" in 6-bit characters.
    assert_eq!(named(&[0x83, 0x29, 0xdc, 0xa6]), "IPMI");
    assert_eq!(named(&[0x42, 0x12, 0xb3]), "12-3");
    assert_eq!(named(&[0xc0]), "Sensor 9", "no name");
}

#[test]
fn shared_records_are_several_sensors() {
    let mut record = vec![0; 32];
    (record[3], record[5], record[7], record[9], record[13]) = (2, 0x20, 10, 1, 0x6f);
    (record[23], record[24], record[31]) = (0x13, 0x99, 0xc3);
    record.extend_from_slice(b"Fan");
    let shared = sensors(&record);
    let names: Vec<&str> = shared.iter().map(|sensor| sensor.name.as_str()).collect();
    assert_eq!(names, ["FanZ", "FanAA", "FanAB"]);
    let places: Vec<(u8, u8)> = shared.iter().map(|sensor| (sensor.key.number, sensor.instance)).collect();
    assert_eq!(places, [(10, 1), (11, 2), (12, 3)]);
    (record[23], record[24]) = (0x02, 0x07);
    let names: Vec<String> = sensors(&record).into_iter().map(|sensor| sensor.name).collect();
    assert_eq!(names, ["Fan7", "Fan8"]);
}

#[test]
fn cut_and_odd_records_are_no_sensors() {
    let whole = full(0, 0, 1, 0, 0, b"\xc8CPU Temp");
    for length in 0..=whole.len() {
        assert_eq!(sensors(&whole[..length]).len(), usize::from(length > 47), "{length} bytes");
    }
    let mut random = wholegrain_testkit::Random::seeded();
    for _ in 0..20_000 {
        let length = random.below(80) as usize;
        let mut record = random.bytes(length);
        if let Some(kind) = record.get_mut(3) {
            *kind = random.below(4) as u8;
        }
        for sensor in sensors(&record) {
            let value = |raw| sensor.factors.and_then(|factors| factors.value(raw));
            assert!((0..=255).filter_map(value).all(f64::is_finite));
        }
    }
}
