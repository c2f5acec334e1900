//! Batches and schemas that contradict themselves or each other: none is stored, each is named, the others' go on.

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SchemaHash};
use wholegrain_transport::client::{ClientError, Event};
use wholegrain_transport::mqtt::{ReasonCode, Version};
use wholegrain_transport::payload;

use crate::harness::{DEADLINE, NOON, SECOND, TestAgent, TestServer, batch, needed, schema, wait_until};

/// An agent of MQTT 5, whose refusals have reasons, with a known schema.
fn announced(server: &TestServer, name: &str, group: &str, sensor: &str) -> (TestAgent, Schema) {
    let schema = schema(name, group, sensor);
    let mut agent = server.agent(&server.mutual(Version::V5, name));
    let id = agent.schema(&schema);
    agent.acked(&[id]);
    (agent, schema)
}

fn stored(server: &TestServer, sensor: &str) -> u64 {
    let answer = server.get(&format!("/api/v1/query?pattern={sensor}&from=2026-01-31&to=2026-02-01&agg=count"));
    if answer.body.is_empty() { 0 } else { answer.json()["value"].as_u64().unwrap() }
}

/// The publish is refused with this reason.
#[track_caller]
fn refused(agent: &mut TestAgent, topic: &str, bytes: &[u8], reason: ReasonCode) {
    let id = agent.publish(topic, bytes);
    assert_eq!(agent.event(), Event::Acked { packet_id: id, reason });
}

/// A batch of this number of sensors; its schema may have another.
fn of_sensors(sensors: usize, schema: SchemaHash) -> Vec<u8> {
    let header = BatchHeader { agent: "n1".into(), boot: 7, seq: 1, schema, interval_ns: 1 };
    let column = || Column { values: ColumnValues::Int(vec![1]), gaps: Gaps::default() };
    payload::encode_batch(&Batch { header, times: vec![NOON], columns: (0..sensors).map(|_| column()).collect() })
}

#[test]
fn a_batch_that_names_anothers_schema_is_refused() {
    let server = TestServer::start();
    let (_owner, theirs) = announced(&server, "n2", "g", "theirs");
    let (mut liar, own) = announced(&server, "n1", "g", "own");
    let forged = batch("n1", 7, 1, &theirs, &[(NOON, 666)]);
    refused(&mut liar, "wholegrain/v1/batch/n1/g", &forged, ReasonCode::NOT_AUTHORIZED);
    let id = liar.batch(&own, &[(NOON, 1)]);
    liar.acked(&[id]);
    assert_eq!((stored(&server, "theirs"), stored(&server, "own")), (0, 1));
}

#[test]
fn a_batch_that_does_not_fit_the_schema_it_names_is_refused() {
    let server = TestServer::start();
    let (mut agent, one) = announced(&server, "n1", "g", "s");
    let topic = "wholegrain/v1/batch/n1/g";
    for sensors in [2, 5, 300] {
        refused(&mut agent, topic, &of_sensors(sensors, one.hash()), ReasonCode::PAYLOAD_FORMAT_INVALID);
    }
    // The schema has an integer there.
    let header = BatchHeader { agent: "n1".into(), boot: 7, seq: 1, schema: one.hash(), interval_ns: 1 };
    let float = Column { values: ColumnValues::Float(vec![1.5]), gaps: Gaps::default() };
    let floats = payload::encode_batch(&Batch { header, times: vec![NOON], columns: vec![float] });
    refused(&mut agent, topic, &floats, ReasonCode::PAYLOAD_FORMAT_INVALID);
    let id = agent.batch(&one, &[(NOON, 1)]);
    agent.acked(&[id]);
    assert_eq!(stored(&server, "s"), 1);
    assert_eq!(server.metric("wholegrain_server_in_flight"), 0.0);
}

#[test]
fn a_batch_of_a_schema_that_was_changed_after_it_was_hashed_waits_for_the_true_one() {
    let server = TestServer::start_with("limits = { schema_wait_max = \"300ms\" }");
    let truth = schema("n1", "g", "said");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    agent.client.subscribe("wholegrain/v1/need/n1").unwrap();
    let mut changed = truth.encode();
    let at = changed.windows(4).position(|bytes| bytes == b"said").unwrap();
    changed[at] = b'x';
    let id = agent.publish("wholegrain/v1/schema/n1/g", &changed);
    agent.batch(&truth, &[(NOON, 1)]);
    // The schema that arrives is not the one that the batch names: the server still requests the named one.
    let (mut acked, mut asked) = (false, false);
    while !(acked && asked) {
        match agent.event() {
            Event::Acked { packet_id, reason } => acked |= packet_id == id && reason == ReasonCode::SUCCESS,
            Event::Message { payload, .. } => asked |= needed(&payload) == [truth.hash()],
            _ => {}
        }
    }
    assert_eq!((stored(&server, "said"), stored(&server, "xaid")), (0, 0));
    let ended = (0..10).find_map(|_| match agent.client.poll(DEADLINE) {
        Err(ClientError::Closed { .. }) => Some(()),
        _ => None,
    });
    assert!(ended.is_some(), "a batch whose schema does not come ends its connection");
    let waiting = || server.metric("wholegrain_server_waiting_for_schema");
    wait_until("nothing waits", || waiting() == 0.0);
}

#[test]
fn false_counts_allocate_nothing() {
    let server = TestServer::start();
    let (mut agent, one) = announced(&server, "n1", "g", "s");
    let (mut bystander, theirs) = announced(&server, "n2", "g", "t");
    let good = batch("n1", 7, 1, &one, &[(NOON, 1)]);
    // Where the header has the number of samples and of sensors: behind magic, version, flags, the agent's name, its start,
    // a sequence number of one byte, the schema and the interval.
    let span = payload::read_header(&good).unwrap().1;
    assert_eq!((span.samples, span.sensors), (1, 1));
    let at = good.windows(10).position(|bytes| bytes[..2] == [1, 1] && bytes[2..] == NOON.to_le_bytes()).unwrap();
    let lie = |samples: &[u8], sensors: &[u8]| [&good[..at], samples, sensors, &good[at + 2..]].concat();
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let lies: [(&str, Vec<u8>); 8] = [
        ("2^64 samples", lie(&most, &[1])),
        ("2^64 sensors", lie(&[1], &most)),
        ("both", lie(&most, &most)),
        ("a million samples", lie(&[0xc0, 0x84, 0x3d], &[1])),
        ("a hundred samples of one", lie(&[100], &[1])),
        ("no samples", lie(&[0], &[1])),
        ("no sensors", lie(&[1], &[0])),
        ("two of one sensor", lie(&[1], &[2])),
    ];
    for (seq, (what, bytes)) in lies.iter().enumerate() {
        let id = agent.publish("wholegrain/v1/batch/n1/g", bytes);
        match agent.event() {
            Event::Acked { packet_id, reason } => {
                assert_eq!((packet_id, reason), (id, ReasonCode::PAYLOAD_FORMAT_INVALID), "{what}")
            }
            other => panic!("{what}: {other:?}"),
        }
        let id = bystander.batch(&theirs, &[(NOON + seq as i64 * SECOND, 1)]);
        bystander.acked(&[id]);
    }
    for end in 0..good.len() {
        refused(&mut agent, "wholegrain/v1/batch/n1/g", &good[..end], ReasonCode::PAYLOAD_FORMAT_INVALID);
    }
    assert_eq!((stored(&server, "s"), stored(&server, "t")), (0, lies.len() as u64));
    let id = agent.publish("wholegrain/v1/batch/n1/g", &good);
    agent.acked(&[id]);
    assert_eq!(stored(&server, "s"), 1);
}

#[test]
fn invalid_schemas_are_refused_and_leave_nothing() {
    let server = TestServer::start();
    let (mut agent, one) = announced(&server, "n1", "g", "s");
    let topic = "wholegrain/v1/schema/n1/g";
    let good = schema("n1", "g", "other").encode();
    for end in 0..good.len() {
        refused(&mut agent, topic, &good[..end], ReasonCode::PAYLOAD_FORMAT_INVALID);
    }
    let longer = [&good[..], b"x"].concat();
    refused(&mut agent, topic, &longer, ReasonCode::PAYLOAD_FORMAT_INVALID);
    // Below another agent's prefix.
    let theirs = schema("n2", "g", "s").encode();
    refused(&mut agent, topic, &theirs, ReasonCode::NOT_AUTHORIZED);
    assert_eq!(server.metric("wholegrain_server_schemas_total"), 1.0);
    let id = agent.batch(&one, &[(NOON, 1)]);
    agent.acked(&[id]);
}
