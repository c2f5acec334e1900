use super::*;

const DEVICE: &str = "r1/sw1";

fn object(name: &str, kind: Option<Kind>) -> ObjectSpec {
    ObjectSpec {
        oid: Oid::new([1, 3, 6, 1, 4, 1, 1, name.len() as u32]),
        name: name.to_owned(),
        unit: "By".to_owned(),
        scale: 1.0,
        kind,
        value_type: None,
        description: String::new(),
        gap: Some(-1),
        scale_by: None,
    }
}

fn group(objects: Vec<ObjectSpec>, tables: Vec<TableSpec>) -> GroupSpec {
    GroupSpec { name: "g".to_owned(), interval: None, offset: None, objects, tables, is_preset: false }
}

/// An answer `at_s` seconds after the first one, of an agent that started `uptime_s` before.
fn answer(at_s: i64, uptime_s: u32, objects: Vec<Option<SnmpValue>>) -> GroupAnswer {
    let at_ns = at_s * 1_000_000_000;
    GroupAnswer { objects, tables: Vec::new(), uptime: Some(uptime_s.wrapping_mul(100)), boots: None, at_ns }
}

/// Takes answers with one Counter32: seconds since the first answer, uptime, number; `None` for a gap.
fn counted(uptimes: bool, answers: &[(i64, u32, u32)]) -> Vec<Option<i64>> {
    let spec = group(vec![object("octets", None)], Vec::new());
    let mut layout = GroupLayout::default();
    let mut take = |&(at_s, uptime_s, raw): &(i64, u32, u32)| {
        let mut answer = answer(at_s, uptime_s, vec![Some(SnmpValue::Counter32(raw))]);
        answer.uptime = answer.uptime.filter(|_| uptimes);
        layout.take(DEVICE, &spec, &answer);
        let value = layout.values()[0].map(|bits| bits as i64);
        layout.note_read();
        value
    };
    answers.iter().map(&mut take).collect()
}

#[test]
fn a_counter_of_32_bits_is_unwrapped_unless_the_device_started_again() {
    // sysUpTime itself wraps after 497 days.
    let near_end = u32::MAX / 100 - 3;
    let answers = [
        ((0, 1000, 4_000_000_000), None, "whether it had wrapped before is not known"),
        ((10, 1010, 4_000_000_010), Some(4_000_000_010), ""),
        ((20, 1020, 100), Some(COUNTER32 + 100), "a wrap"),
        ((30, 1030, 50), Some(2 * COUNTER32 + 50), "a second wrap"),
        ((40, 1040, 60), Some(2 * COUNTER32 + 60), ""),
        ((50, 5, 7), Some(7), "the device started again: a reset, no wrap"),
        ((60, 8, 5), Some(5), "it started again within the interval"),
        ((70, 18, 6), Some(6), ""),
        ((80, near_end, 4_000_000_000), Some(4_000_000_000), "the uptime says nothing, and there were no wraps"),
        ((90, (near_end + 10) % (u32::MAX / 100 + 1), 1), Some(COUNTER32 + 1), "only sysUpTime wrapped"),
    ];
    let found = counted(true, &answers.map(|(answer, ..)| answer));
    for ((answer, expected, what), found) in answers.iter().zip(found) {
        assert_eq!(found, *expected, "{answer:?} {what}");
    }
    // Polled 1 s after a start, and started again soon after: the uptime is shorter than the time since.
    let found = counted(true, &[(0, 1, 900), (60, 49, 30), (120, 109, 40)]);
    assert_eq!(found, [None, Some(30), Some(40)]);
}

#[test]
fn a_gap_that_separates_stays_until_it_is_read() {
    let spec = group(vec![object("octets", None)], Vec::new());
    let mut layout = GroupLayout::default();
    let mut take = |at_s, is_read| {
        if is_read {
            layout.note_read();
        }
        layout.take(DEVICE, &spec, &answer(at_s, 1000 + at_s as u32, vec![Some(SnmpValue::Counter32(7))]));
        layout.values()[0]
    };
    assert_eq!(
        [take(0, false), take(1, false), take(2, false), take(3, true), take(4, false)],
        [None, None, None, Some(7), Some(7)]
    );
}

#[test]
fn a_lost_sum_of_wraps_is_a_gap_and_no_fall() {
    // Our clock was stepped by an hour, or the device answered from a cache: it did not start again, but whether it wrapped is not known.
    for step in [3600, -3600] {
        let after = |seconds: i64, raw| (step + seconds, 100_000 + seconds as u32, raw);
        let found = counted(true, &[(0, 100_000, 10), (10, 100_010, 5), after(20, 20), after(30, 30), after(40, 40)]);
        assert_eq!(found, [None, Some(COUNTER32 + 5), None, Some(30), Some(40)], "{step}");
    }
    // A device without sysUpTime: its own numbers, always.
    assert_eq!(counted(false, &[(0, 0, 10), (10, 0, 20), (20, 0, 5)]), [10, 20, 5].map(Some));
}

#[test]
fn wrong_types_are_gaps_and_nothing_else_changes() {
    let spec = group(vec![object("a", None), object("bb", Some(Kind::Gauge)), object("ccc", None)], Vec::new());
    let mut layout = GroupLayout::default();
    let first = vec![Some(SnmpValue::Counter64(5)), Some(SnmpValue::Text(b"0.25\0".to_vec())), None];
    let sensors = layout.take(DEVICE, &spec, &answer(0, 0, first)).unwrap();
    let named: Vec<(&str, Kind, ValueType)> =
        sensors.iter().map(|sensor| (sensor.name.as_str(), sensor.kind, sensor.value_type)).collect();
    let expected = [("r1/sw1/a", Kind::Counter, ValueType::Int), ("r1/sw1/bb", Kind::Gauge, ValueType::Float)];
    assert_eq!(named, expected);
    assert_eq!(layout.values(), [Some(5), Some(0.25f64.to_bits())]);
    // Text without a number, an identifier, and a number over 63 bits.
    for value in
        [SnmpValue::Text(b"n/a".to_vec()), SnmpValue::Other, SnmpValue::Counter64(u64::MAX), SnmpValue::Integer(-1)]
    {
        let values = vec![Some(value), Some(SnmpValue::Integer(3)), None];
        assert!(layout.take(DEVICE, &spec, &answer(10, 10, values)).is_none());
        assert_eq!(layout.values(), [None, Some(3f64.to_bits())]);
    }
    let values = vec![Some(SnmpValue::Counter64(6)), None, Some(SnmpValue::Integer(1))];
    assert_eq!(layout.take(DEVICE, &spec, &answer(20, 20, values)).unwrap().len(), 3, "a new object is a new sensor");
    assert_eq!(layout.values(), [Some(6), None, Some(1)]);
}

fn text(text: &str) -> Option<SnmpValue> {
    Some(SnmpValue::Text(text.as_bytes().to_vec()))
}

#[test]
fn rows_have_names_that_do_not_depend_on_order() {
    let column = object("octets", None);
    let index = Oid::new([1, 3, 6, 1, 9]);
    let table =
        TableSpec { name: "port".to_owned(), index: Some(index), columns: vec![column], style: TableStyle::Plain };
    let spec = group(Vec::new(), vec![table]);
    let number = |number| Some(SnmpValue::Counter64(number));
    let take = |layout: &mut GroupLayout, rows: Vec<(u32, Option<SnmpValue>, &str)>| {
        let cells = rows.into_iter().map(|(index, value, name)| (vec![index], vec![value, text(name)])).collect();
        let answer = GroupAnswer { tables: vec![cells], ..answer(0, 0, Vec::new()) };
        let sensors = layout.take(DEVICE, &spec, &answer);
        let values = layout.values().to_vec();
        (sensors.map(|sensors| sensors.into_iter().map(|sensor| sensor.name).collect::<Vec<_>>()), values)
    };
    let mut layout = GroupLayout::default();
    let (names, values) = take(
        &mut layout,
        vec![
            (1, number(1), "eth 0/1"),
            (2, number(2), "lo"),
            (3, number(3), "x"),
            (4, number(4), "x"),
            (5, number(5), ""),
        ],
    );
    let expected = ["5", "eth_0_1", "lo", "x:3", "x:4"].map(|row| format!("r1/sw1/port/{row}/octets"));
    assert_eq!(names.unwrap(), expected);
    assert_eq!(values, [Some(5), Some(1), Some(2), Some(3), Some(4)]);
    // The indexes changed, the names did not: the values follow the names.
    let (names, values) = take(&mut layout, vec![(7, number(20), "lo"), (9, number(10), "eth 0/1")]);
    assert_eq!(names, None);
    assert_eq!(values, [None, Some(10), Some(20), None, None]);
}

#[test]
fn entity_sensors_have_the_unit_of_their_row() {
    let value = ObjectSpec { oid: Oid::new([1, 3, 6, 1, 2, 1, 99, 1, 1, 1, 4]), ..object("value", None) };
    let table =
        TableSpec { name: "sensor".to_owned(), index: None, columns: vec![value], style: TableStyle::EntitySensor };
    let spec = group(Vec::new(), vec![table]);
    let row = |values: [i64; 5]| values.into_iter().map(|value| Some(SnmpValue::Integer(value))).collect::<Vec<_>>();
    // value, type, scale, precision, state
    let cells = [(1, row([231, 8, 9, 1, 1])), (2, row([5, 5, 8, 0, 1])), (3, row([5, 5, 8, 0, 2]))];
    let cells = cells.into_iter().map(|(index, row)| (vec![index], row)).collect();
    let answer = GroupAnswer { tables: vec![cells], ..answer(0, 0, Vec::new()) };
    let sensors = GroupLayout::default().take(DEVICE, &spec, &answer).unwrap();
    let units: Vec<(&str, &str, f64)> =
        sensors.iter().map(|sensor| (sensor.name.as_str(), sensor.unit.as_str(), sensor.scale)).collect();
    assert_eq!(units, [("r1/sw1/sensor/1", "Cel", 0.1), ("r1/sw1/sensor/2", "A", 0.001)], "a failed sensor is none");
}

#[test]
fn what_is_no_sensor_is_named_with_its_reason() {
    let answer = |objects| answer(0, 1, objects);
    let spec = group(vec![object("a", None), object("ab", None), object("abc", None)], Vec::new());
    let text = Some(SnmpValue::Text(b"Linux".to_vec()));
    let said = remark(DEVICE, &spec, &answer(vec![None, Some(SnmpValue::Gauge32(1)), text])).unwrap();
    for part in ["device r1/sw1, group g: no sensors for a (", "ends in .0)", ", abc (its value is no number"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(remark(DEVICE, &spec, &answer(vec![Some(SnmpValue::Gauge32(1)); 3])), None);
    let preset = GroupSpec { is_preset: true, ..spec };
    assert_eq!(remark(DEVICE, &preset, &answer(vec![None, Some(SnmpValue::Gauge32(1)), None])), None);
    assert!(remark(DEVICE, &preset, &answer(vec![None; 3])).unwrap().contains("nothing of this preset"));
}
