//! Messages made by hand from the specification: births, data by alias and by name, deaths, losses, bounds.

use wholegrain_testkit::Random;

use super::super::template::DevicePayload;
use super::*;
use crate::prometheus::wire::{put_bytes, put_int, put_varint};

const NOON_MS: i64 = 1_769_860_800_000;
const ARRIVED: i64 = (NOON_MS + 60_000) * MS;

type Message = Vec<u8>;

/// A metric: name, alias, datatype, and its value by the number of the field.
fn metric(name: &str, alias: Option<i64>, datatype: i64, value: Option<(u64, i64)>) -> Message {
    let mut out = Vec::new();
    if !name.is_empty() {
        put_bytes(1, name.as_bytes(), &mut out);
    }
    alias.into_iter().for_each(|alias| put_int(2, alias, &mut out));
    put_int(4, datatype, &mut out);
    match value {
        None => put_int(7, 1, &mut out),
        Some((13, bits)) => {
            put_varint(13 << 3 | 1, &mut out);
            out.extend(bits.to_le_bytes());
        }
        Some((field, value)) => put_int(field, value, &mut out),
    }
    out
}

fn payload(sequence: i64, metrics: &[Message]) -> Message {
    let mut out = Vec::new();
    put_int(1, NOON_MS + sequence, &mut out);
    metrics.iter().for_each(|metric| put_bytes(2, metric, &mut out));
    put_int(3, sequence, &mut out);
    out
}

struct Edge {
    nodes: SparkplugNodes,
    room: usize,
}

impl Edge {
    fn new() -> Self {
        Self { nodes: SparkplugNodes::default(), room: 1 << 20 }
    }

    fn take(&mut self, on: &str, payload: &[u8]) -> (Vec<String>, bool, usize) {
        let template = DeviceTemplate::new(DevicePayload::Sparkplug, "x", "/{group}/{node}/{device}/{path}").unwrap();
        let (kind, names) = topic(on).unwrap_or_else(|| panic!("{on}"));
        let room = &mut self.room;
        let mut grow = |bytes| {
            let fits = bytes <= *room;
            *room -= if fits { bytes } else { 0 };
            fits
        };
        let answer = self.nodes.take(&template, kind, &names, payload, ARRIVED, &mut grow).unwrap();
        let one = |one: &DeviceReading| format!("{}={:?}@{}", one.path, one.value, one.time / MS - NOON_MS);
        let readings = answer.message.readings.iter().map(one).collect();
        (readings, answer.is_after_loss, answer.message.left_out)
    }
}

fn birth_number(number: i64) -> Message {
    metric("bdSeq", None, 8, Some((11, number)))
}

#[test]
fn births_data_and_deaths() {
    let mut edge = Edge::new();
    let (nbirth, dbirth) = ("spBv1.0/g/NBIRTH/e", "spBv1.0/g/DBIRTH/e/d");
    let rebirth = metric("Node Control/Rebirth", None, 11, Some((14, 0)));
    let node = [birth_number(7), rebirth, metric("Load", Some(1), 10, Some((13, 1.5f64.to_bits() as i64)))];
    assert_eq!(edge.take(nbirth, &payload(0, &node)), (vec!["/g/e/Load=Float(1.5)@0".to_owned()], false, 0));
    let device = [
        metric("Flow/In", Some(2), 3, Some((10, i64::from(u32::MAX)))),
        metric("Open", None, 11, Some((14, 1))),
        metric("Name", Some(3), 12, Some((15, 0))),
        metric("Big", Some(4), 8, None),
    ];
    let (found, _, left_out) = edge.take(dbirth, &payload(1, &device));
    assert_eq!(found, ["/g/e/d/Flow/In=Int(-1)@1", "/g/e/d/Open=Int(1)@1", "/g/e/d/Big=Float(NaN)@1"]);
    assert_eq!(left_out, 0, "a text is no sensor");
    // By alias without a name and a datatype, by name, a text's alias, an unknown alias.
    let data = [
        metric("", Some(2), 0, Some((10, 5))),
        metric("Open", None, 11, Some((14, 0))),
        metric("", Some(3), 12, Some((10, 1))),
        metric("", Some(99), 3, Some((10, 1))),
    ];
    let (found, lost, left_out) = edge.take("spBv1.0/g/DDATA/e/d", &payload(2, &data));
    assert_eq!(
        (found.join(" "), lost, left_out),
        ("/g/e/d/Flow/In=Int(5)@2 /g/e/d/Open=Int(0)@2".to_owned(), false, 1)
    );
    let (_, lost, _) = edge.take("spBv1.0/g/NDATA/e", &payload(5, &[]));
    assert!(lost, "3 and 4 are missing");
    // The device dies, then the node; a death of an earlier birth ends nothing.
    let (found, lost, _) = edge.take("spBv1.0/g/DDEATH/e/d", &payload(6, &[]));
    assert_eq!((found.len(), lost), (3, false));
    assert!(found.iter().all(|gap| gap.ends_with("=Float(NaN)@6")), "{found:?}");
    assert_eq!(edge.take("spBv1.0/g/DDATA/e/d", &payload(7, &data)).2, 4, "without a birth");
    let death = |number| payload(0, &[birth_number(number)]);
    assert_eq!(edge.take("spBv1.0/g/NDEATH/e", &death(6)).0.len(), 0);
    assert_eq!(edge.take("spBv1.0/g/NDEATH/e", &death(7)).0, ["/g/e/Load=Float(NaN)@60000"]);
    assert_eq!(edge.nodes.bytes(), 0);
    assert_eq!(edge.take("spBv1.0/g/NDATA/e", &payload(1, &data)).2, 4, "after its death");
}

#[test]
fn equal_aliases_of_devices_are_not_mixed() {
    let mut edge = Edge::new();
    let one = |name: &str| [metric(name, Some(1), 3, Some((10, 7)))];
    edge.take("spBv1.0/g/NBIRTH/e", &payload(0, &one("N")));
    edge.take("spBv1.0/g/DBIRTH/e/a", &payload(1, &one("A")));
    edge.take("spBv1.0/g/DBIRTH/e/b", &payload(2, &one("B")));
    let data = |value| [metric("", Some(1), 0, Some((10, value)))];
    assert_eq!(edge.take("spBv1.0/g/NDATA/e", &payload(3, &data(10))).0, ["/g/e/N=Int(10)@3"]);
    assert_eq!(edge.take("spBv1.0/g/DDATA/e/a", &payload(4, &data(20))).0, ["/g/e/a/A=Int(20)@4"]);
    assert_eq!(edge.take("spBv1.0/g/DDATA/e/b", &payload(5, &data(30))).0, ["/g/e/b/B=Int(30)@5"]);
    // Within one birth an alias means the first metric that has it.
    let twice = [metric("C", Some(1), 3, Some((10, 1))), metric("D", Some(1), 3, Some((10, 2)))];
    let (found, _, left_out) = edge.take("spBv1.0/g/DBIRTH/e/a", &payload(6, &twice));
    assert_eq!((found, left_out), (vec!["/g/e/a/C=Int(1)@6".to_owned()], 1));
    edge.take("spBv1.0/g/DDEATH/e/a", &payload(7, &[]));
    edge.take("spBv1.0/g/DDEATH/e/b", &payload(8, &[]));
    edge.take("spBv1.0/g/NDEATH/e", &payload(0, &[]));
    assert_eq!(edge.nodes.bytes(), 0);
}

#[test]
fn sequence_numbers_wrap_and_births_start_again() {
    let mut edge = Edge::new();
    assert!(!edge.take("spBv1.0/g/NBIRTH/e", &payload(0, &[])).1);
    for sequence in 1..600 {
        assert!(!edge.take("spBv1.0/g/NDATA/e", &payload(sequence % 256, &[])).1, "{sequence}");
    }
    assert!(!edge.take("spBv1.0/g/NBIRTH/e", &payload(0, &[])).1);
    assert!(edge.take("spBv1.0/g/NDATA/e", &payload(2, &[])).1);
}

#[test]
fn the_end_of_a_connection_ends_all_nodes() {
    let mut edge = Edge::new();
    for node in ["a", "b"] {
        let load = metric("Load", Some(1), 9, None);
        edge.take(&format!("spBv1.0/g/NBIRTH/{node}"), &payload(0, &[birth_number(1), load]));
    }
    let gaps = edge.nodes.end_all(5);
    let mut paths: Vec<&str> = gaps.iter().map(|gap| gap.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!((paths, edge.nodes.bytes()), (vec!["/g/a/Load", "/g/b/Load"], 0));
}

#[test]
fn bounds_and_collisions() {
    let mut edge = Edge { room: 1000, ..Edge::new() };
    let many: Vec<Message> = (0..10).map(|at| metric(&format!("m{at}"), Some(at), 3, Some((10, at)))).collect();
    let (found, _, left_out) = edge.take("spBv1.0/g/NBIRTH/e", &payload(0, &many));
    assert!(found.len() == 3 && left_out == 7 && edge.nodes.bytes() <= 1000, "{found:?}");
    let twice = [metric("x", Some(1), 3, Some((10, 1))), metric("x", Some(2), 3, Some((10, 2)))];
    let (found, _, left_out) = Edge::new().take("spBv1.0/g/NBIRTH/e", &payload(0, &twice));
    assert_eq!((found.join(""), left_out), ("/g/e/x=Int(1)@0".to_owned(), 1));
    let hostile = [metric("../../x", Some(1), 3, Some((10, 1))), metric("a b", None, 3, Some((10, 2)))];
    let (found, ..) = Edge::new().take("spBv1.0/g/NBIRTH/e", &payload(0, &hostile));
    assert_eq!(found, ["/g/e/%2E%2E/%2E%2E/x=Int(1)@0", "/g/e/a%20b=Int(2)@0"]);
    for other in
        ["spBv1.0/g/NCMD/e", "spBv1.0/g/NBIRTH/e/d", "spBv1.0/g/DBIRTH/e", "spBv1.0/STATE/h", "spBv1.0//NBIRTH/e"]
    {
        assert_eq!(topic(other), None, "{other}");
    }
}

#[test]
fn the_unit_of_a_metric_is_a_property() {
    let mut value = Vec::new();
    put_int(1, 12, &mut value);
    put_bytes(8, b"kW", &mut value);
    let mut properties = Vec::new();
    for key in ["engHigh", "engUnit"] {
        put_bytes(1, key.as_bytes(), &mut properties);
    }
    put_bytes(2, b"", &mut properties);
    put_bytes(2, &value, &mut properties);
    assert_eq!(unit(&properties), Ok(Some("kW")));
    assert_eq!(unit(&properties[..properties.len() - value.len() - 2]), Ok(None));
}

#[test]
fn any_bytes_are_read_without_panic() {
    let mut random = Random::seeded_or(0x5b_17);
    let whole = payload(0, &[birth_number(7), metric("Load", Some(1), 10, Some((13, 7)))]);
    let mut edge = Edge::new();
    let template = DeviceTemplate::new(DevicePayload::Sparkplug, "x", "/{group}/{node}/{device}/{path}").unwrap();
    for round in 0..20_000_usize {
        let mut bytes = whole.clone();
        for _ in 0..round % 5 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let kind = ["NBIRTH", "NDATA", "NDEATH"][round % 3];
        let on = format!("spBv1.0/g/{kind}/e");
        let (kind, names) = topic(&on).unwrap();
        let _ = edge.nodes.take(&template, kind, &names, &bytes, ARRIVED, &mut |_| true);
    }
}
