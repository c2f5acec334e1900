use wholegrain_devices::{AnswerSlot, SecretText};
use wholegrain_model::Kind;
use wholegrain_testkit::Random;

use super::*;
use crate::ber::{self, BerReader};
use crate::message::RESPONSE;
use crate::spec::{ObjectSpec, TableSpec, TableStyle};

/// A request that an agent received.
struct Received {
    kind: u8,
    id: i64,
    repetitions: i64,
    names: Vec<Oid>,
}

fn received(bytes: &[u8]) -> Received {
    let mut message = BerReader::new(bytes).inner(ber::SEQUENCE).unwrap();
    message.integer().unwrap();
    message.tagged(ber::OCTET_STRING).unwrap();
    let (kind, content) = message.any().unwrap();
    let mut pdu = BerReader::new(content);
    let (id, _, repetitions) = (pdu.integer().unwrap(), pdu.integer().unwrap(), pdu.integer().unwrap());
    let (mut list, mut names) = (pdu.inner(ber::SEQUENCE).unwrap(), Vec::new());
    while !list.is_empty() {
        names.push(list.inner(ber::SEQUENCE).unwrap().oid().unwrap());
    }
    Received { kind, id, repetitions, names }
}

/// What an agent has: integers and texts by name.
type Mib = std::collections::BTreeMap<Oid, (u8, Vec<u8>)>;

fn respond(version: i64, id: i64, error: (i64, i64), values: &[(Oid, u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    ber::put(&mut out, ber::SEQUENCE, |out| {
        ber::put_integer(out, ber::INTEGER, version);
        ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(b"public"));
        ber::put(out, RESPONSE, |out| {
            [id, error.0, error.1].iter().for_each(|number| ber::put_integer(out, ber::INTEGER, *number));
            ber::put(out, ber::SEQUENCE, |out| {
                for (name, tag, content) in values {
                    ber::put(out, ber::SEQUENCE, |out| {
                        ber::put_oid(out, name);
                        ber::put(out, *tag, |out| out.extend_from_slice(content));
                    });
                }
            });
        });
    });
    out
}

/// Answers as an agent of version 1 (0) or 2c (1) with at most `values_max` values in an answer.
fn answer(mib: &Mib, version: i64, values_max: usize, bytes: &[u8]) -> Vec<u8> {
    let request = received(bytes);
    let mut values = Vec::new();
    let next = |name: &Oid| mib.range(name.clone()..).find(|(other, _)| *other != name);
    match request.kind {
        GET => {
            for (at, name) in request.names.iter().enumerate() {
                match mib.get(name) {
                    Some((tag, content)) => values.push((name.clone(), *tag, content.clone())),
                    None if version == 0 => return respond(version, request.id, (2, at as i64 + 1), &[]),
                    None => values.push((name.clone(), 0x80, Vec::new())),
                }
            }
        }
        _ => {
            let mut names = request.names.clone();
            for _ in 0..request.repetitions.max(1) {
                for (at, name) in names.iter_mut().enumerate() {
                    match next(name) {
                        Some((other, (tag, content))) => {
                            values.push((other.clone(), *tag, content.clone()));
                            *name = other.clone();
                        }
                        None if version == 0 => return respond(version, request.id, (2, at as i64 + 1), &[]),
                        None => values.push((name.clone(), 0x82, Vec::new())),
                    }
                }
            }
        }
    }
    if request.kind == GET_BULK {
        values.truncate(values_max.max(1));
    } else if values.len() > values_max {
        return respond(version, request.id, (1, 0), &[]);
    }
    respond(version, request.id, (0, 0), &values)
}

/// The cell of `row` in the column of `name`.
fn row_of(name: &Oid, row: u32) -> Oid {
    Oid::new(&name.numbers()[..7]).child(row)
}

fn oid(text: &str) -> Oid {
    Oid::parse(text).unwrap()
}

fn column(name: &str, number: u32) -> ObjectSpec {
    ObjectSpec {
        oid: oid("1.3.6.1.9.1").child(number),
        name: name.to_owned(),
        unit: "1".to_owned(),
        scale: 1.0,
        kind: Some(Kind::Gauge),
        value_type: None,
        description: String::new(),
        gap: None,
        scale_by: None,
    }
}

/// A table of three columns and three objects; `rows` rows named `row1`, `row2`, …
fn example(rows: u32) -> (SharedGroup, Mib) {
    let objects: Vec<ObjectSpec> = (1..=3)
        .map(|number| ObjectSpec { oid: oid("1.3.6.1.8").child(number).child(0), ..column(&format!("o{number}"), 1) })
        .collect();
    let table = TableSpec {
        name: "t".to_owned(),
        index: Some(oid("1.3.6.1.9.1.1")),
        columns: vec![column("a", 2), column("b", 3)],
        style: TableStyle::Plain,
    };
    let spec = GroupSpec {
        name: "g".to_owned(),
        interval: None,
        offset: None,
        objects,
        tables: vec![table],
        is_preset: false,
    };
    let mut mib = Mib::new();
    mib.insert(oid("1.3.6.1.2.1.1.3.0"), (0x43, vec![1, 0]));
    // The second object does not exist.
    mib.insert(oid("1.3.6.1.8.1.0"), (2, vec![11]));
    mib.insert(oid("1.3.6.1.8.3.0"), (2, vec![33]));
    for row in 1..=rows {
        mib.insert(oid("1.3.6.1.9.1.1").child(row), (4, format!("row{row}").into_bytes()));
        mib.insert(oid("1.3.6.1.9.1.2").child(row), (2, (row as u16).to_be_bytes().to_vec()));
        // A sparse column.
        if row % 2 == 0 {
            mib.insert(oid("1.3.6.1.9.1.3").child(row), (2, vec![7]));
        }
    }
    mib.insert(oid("1.3.6.1.9.2.1"), (2, vec![1]));
    (SharedGroup::new(Arc::new(spec)), mib)
}

fn agent(version: u8, group: SharedGroup) -> SnmpAgent {
    let identity = SnmpIdentity::Community { version, community: SecretText::new("public") };
    SnmpAgent::new("dev", identity, &[group], 20)
}

/// Runs one poll against `peer`. The result of the poll, and the requests.
fn poll(
    agent: &mut SnmpAgent,
    slot: &AnswerSlot,
    mut peer: impl FnMut(&[u8]) -> Vec<u8>,
) -> (Option<Result<(), DeviceProblem>>, usize) {
    let (mut out, mut requests) = (Vec::new(), 0);
    let mut turn = PollTurn::new(&mut out, slot, 1_000);
    agent.begin(0, &mut turn);
    loop {
        requests += 1;
        assert!(requests < 10_000, "a poll without end");
        let answer = peer(&out);
        let before = out.clone();
        let mut turn = PollTurn::new(&mut out, slot, 1_000);
        let consumed = agent.receive(&answer, &mut turn);
        if let Some(end) = turn.ended() {
            return (Some(end), requests);
        }
        if consumed == 0 {
            assert_eq!(out, before, "an answer that does not fit sends nothing");
            return (None, requests);
        }
    }
}

fn check_example(slot: &AnswerSlot, rows: u32) {
    let sensors = slot.sensors().unwrap();
    assert_eq!(sensors.len() as u32, 2 + rows + rows / 2);
    let mut names: Vec<&str> = sensors.iter().map(|sensor| sensor.name.as_str()).collect();
    assert!(names.is_sorted());
    names.retain(|name| ["dev/o1", "dev/o3", "dev/t/row2/a", "dev/t/row2/b"].contains(name));
    assert_eq!(names.len(), if rows < 2 { 2 } else { 4 });
}

#[test]
fn objects_and_tables_are_read_in_both_versions() {
    for (version, rows, values_max) in [(1, 50, 1000), (1, 50, 7), (1, 50, 1), (0, 20, 1000), (0, 20, 2), (1, 0, 1000)]
    {
        let (group, mib) = example(rows);
        let mut agent = agent(version, group);
        let slot = AnswerSlot::default();
        let peer = |bytes: &[u8]| answer(&mib, i64::from(version), values_max, bytes);
        let (end, requests) = poll(&mut agent, &slot, peer);
        assert_eq!(end, Some(Ok(())), "version {version}, {rows} rows, {values_max} values");
        check_example(&slot, rows);
        if values_max == 1000 && version == 1 {
            assert!(requests <= 6, "{requests} requests for {rows} rows");
        }
        // The agent's bound is remembered.
        let (end, _) = poll(&mut agent, &slot, |bytes| answer(&mib, i64::from(version), values_max, bytes));
        assert_eq!(end, Some(Ok(())));
    }
}

#[test]
fn a_walk_that_loops_ends() {
    let (group, mib) = example(5);
    let mut agent = agent(1, group);
    let slot = AnswerSlot::default();
    let (end, requests) = poll(&mut agent, &slot, |bytes| {
        let request = received(bytes);
        if request.kind == GET {
            return answer(&mib, 1, 1000, bytes);
        }
        // Always the first row of each column.
        let values: Vec<_> = request.names.iter().map(|name| (row_of(name, 1), 2, vec![1])).collect();
        respond(1, request.id, (0, 0), &values)
    });
    assert_eq!(end, Some(Err(DeviceProblem::Garbage("a walk whose names do not increase"))));
    assert!(requests < 5);
    // An agent that invents rows without end.
    let (group, mib) = example(5);
    let mut agent = self::agent(1, group);
    let mut row = 0;
    let (end, _) = poll(&mut agent, &slot, |bytes| {
        let request = received(bytes);
        if request.kind == GET {
            return answer(&mib, 1, 1000, bytes);
        }
        let mut values = Vec::new();
        for _ in 0..request.repetitions {
            row += 1;
            values.extend(request.names.iter().map(|name| (row_of(name, row), 2, vec![1])));
        }
        respond(1, request.id, (0, 0), &values)
    });
    assert_eq!(end, Some(Err(DeviceProblem::Garbage("a table of more than 8192 rows"))));
    assert!(slot.sensors().is_none());
}

#[test]
fn answers_to_other_requests_are_not_taken() {
    let (group, mib) = example(2);
    let mut agent = agent(1, group);
    let slot = AnswerSlot::default();
    type Change = fn(&mut Vec<u8>);
    let changes: [Change; 4] = [
        |bytes| {
            // The number of the request.
            let at = bytes.windows(6).position(|window| window == b"public").unwrap() + 6;
            bytes[at + 6] ^= 1;
        },
        |bytes| {
            let at = bytes.windows(6).position(|window| window == b"public").unwrap();
            bytes[at] = b'q';
        },
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| *bytes = vec![0x30; 64 << 10],
    ];
    for change in changes {
        let (end, _) = poll(&mut agent, &slot, |request| {
            let mut bytes = answer(&mib, 1, 1000, request);
            change(&mut bytes);
            bytes
        });
        assert_eq!(end, None, "it is not the answer");
        assert!(slot.sensors().is_none());
    }
}

#[test]
fn errors_of_an_agent() {
    let (group, mib) = example(2);
    let mut agent = agent(1, group);
    let slot = AnswerSlot::default();
    let mut with_error = |error: (i64, i64)| {
        poll(&mut agent, &slot, |bytes| {
            let request = received(bytes);
            if request.kind == GET { respond(1, request.id, error, &[]) } else { answer(&mib, 1, 1000, bytes) }
        })
        .0
    };
    assert_eq!(with_error((16, 0)), Some(Err(DeviceProblem::Refused("access is not allowed"))));
    assert_eq!(with_error((1, 0)), Some(Err(DeviceProblem::Refused("the answer is too big for the agent"))));
    // genErr for each object: the table is read nevertheless.
    assert_eq!(with_error((5, 0)), Some(Ok(())));
    assert_eq!(slot.sensors().unwrap().len(), 3);
    assert_eq!(with_error((5, 1)), Some(Ok(())));
    assert_eq!(with_error((5, 99)), Some(Ok(())));
}

#[test]
fn random_damage_never_panics_and_never_goes_on_for_ever() {
    let mut random = Random::seeded();
    for _ in 0..2000 {
        let (group, mib) = example(random.below(6) as u32);
        let version = random.below(2) as u8;
        let mut agent = agent(version, group);
        let slot = AnswerSlot::default();
        for _ in 0..2 {
            poll(&mut agent, &slot, |request| {
                let mut bytes = answer(&mib, i64::from(version), 30, request);
                if random.below(4) > 0 {
                    return bytes;
                }
                for _ in 0..=random.below(3) {
                    let at = random.below(bytes.len() as u64) as usize;
                    match random.below(4) {
                        0 => bytes[at] = random.draw() as u8,
                        1 => bytes[at] ^= 1 << random.below(8),
                        2 => bytes.truncate(at + 1),
                        _ => bytes.insert(at, random.draw() as u8),
                    }
                }
                bytes
            });
        }
    }
}
