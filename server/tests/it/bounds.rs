//! Clients that use too much, take too long or write others' sensors: each reaches a limit, and other clients are not affected.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use wholegrain_model::{Schema, SensorDef, SensorPath};
use wholegrain_transport::client::{ClientError, Event};
use wholegrain_transport::mqtt::{ReasonCode, Version};

use crate::harness::{
    DEADLINE, NOON, PASSWORD, SECOND, TestAgent, TestServer, VERSIONS, batch, schema, wait_for, wait_until,
};
use crate::malformed::{connect_keeping, packet, text};

const CONNACK: [u8; 4] = [0x20, 2, 0, 0];

/// A client that sends raw bytes, after CONNECT and CONNACK.
fn raw(server: &TestServer, keep_alive_s: u8) -> TcpStream {
    let mut stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(&connect_keeping("n1", PASSWORD, keep_alive_s)).unwrap();
    assert_eq!(read(&mut stream), CONNACK);
    stream
}

pub fn read<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

pub fn subscribe(stream: &mut TcpStream, filters: &[&str]) {
    let filters: Vec<u8> = filters.iter().flat_map(|filter| [text(filter), vec![0]].concat()).collect();
    stream.write_all(&packet(0x82, &[vec![0, 1], filters].concat())).unwrap();
}

/// Whether the server closes within the deadline, possibly after other packets.
#[track_caller]
fn is_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "not closed");
    }
}

/// An agent whose schema is known.
fn announced(server: &TestServer, version: Version, name: &str) -> (TestAgent, Schema) {
    let schema = schema(name, "g", "s");
    let mut agent = server.agent(&server.mutual(version, name));
    let id = agent.schema(&schema);
    agent.acked(&[id]);
    (agent, schema)
}

fn stored(server: &TestServer) -> u64 {
    let answer = server.get("/api/v1/query?pattern=s&from=2026-01-31&to=2026-02-01&agg=count");
    if answer.body.is_empty() { 0 } else { answer.json()["value"].as_u64().unwrap() }
}

#[test]
fn a_slow_subscriber_loses_counted_messages_and_ingest_continues() {
    let server = TestServer::start_with("limits = { queue_messages_max = 4 }");
    let (mut agent, schema) = announced(&server, Version::V5, "n2");
    let mut slow = raw(&server, 0);
    subscribe(&mut slow, &["#"]);
    assert_eq!(read(&mut slow), [0x90, 3, 0, 1, 0]);
    let large = vec![7; 256 << 10];
    let mut batches = 0;
    // It reads nothing: socket buffers and queues are soon full.
    while server.metric("wholegrain_server_messages_dropped_total") == 0.0 {
        assert!(batches < 1000, "nothing is ever dropped");
        batches += 1;
        let ids = [agent.publish("site/large", &large), agent.batch(&schema, &[(NOON + batches * SECOND, 1)])];
        agent.acked(&ids);
    }
    assert_eq!(stored(&server), batches as u64);
    // It is still served, from where it stopped.
    let first: [u8; 1] = read(&mut slow);
    assert!(matches!(first[0] & 0xf0, 0x30), "{first:?}");
}

#[test]
fn subscribers_are_bounded_in_bytes_too() {
    let server = TestServer::start_with("limits = { packet_bytes_max = \"1MiB\", queue_bytes_max = \"1MiB\" }");
    let (mut agent, _) = announced(&server, Version::V5, "n2");
    let mut slow = raw(&server, 0);
    subscribe(&mut slow, &["#"]);
    assert_eq!(read(&mut slow), [0x90, 3, 0, 1, 0]);
    let large = vec![7; 512 << 10];
    // Far fewer than the 1024 messages that may wait.
    for count in 0.. {
        if server.metric("wholegrain_server_messages_dropped_total") > 0.0 {
            break;
        }
        assert!(count < 200, "nothing is dropped though over 100 MB wait");
        let id = agent.publish("site/large", &large);
        agent.acked(&[id]);
    }
}

#[test]
fn one_subscribe_packet_does_not_cost_more_looks_than_subscriptions_are_allowed() {
    let server = TestServer::start_with("limits = { subscriptions_max = 2 }");
    let mut stream = raw(&server, 0);
    subscribe(&mut stream, &["a", "a", "a", "a"]);
    assert_eq!(read(&mut stream), [0x90, 6, 0, 1, 0, 0, 0x80, 0x80]);
}

#[test]
fn a_half_open_connection_is_closed_by_its_keep_alive_and_leaves_nothing_behind() {
    let server = TestServer::start();
    let mut gone = raw(&server, 1);
    subscribe(&mut gone, &["a/#"]);
    assert_eq!(read(&mut gone), [0x90, 3, 0, 1, 0]);
    // In the middle of a packet; as after a power failure no FIN arrives.
    gone.write_all(&[0x30, 100, 0, 3, b'a']).unwrap();
    wait_until("its end", || server.metric("wholegrain_server_connections") == 0.0);
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), 1.0);
    assert_eq!(server.metric("wholegrain_server_subscriptions"), 0.0);
}

/// Sends a byte every few milliseconds until the server has had enough.
#[track_caller]
fn trickle(mut stream: TcpStream, bytes: impl Iterator<Item = u8>) {
    let deadline = Instant::now() + DEADLINE;
    for byte in bytes {
        assert!(Instant::now() < deadline, "still open");
        // A failure means that the server has closed.
        if stream.write_all(&[byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("took it all");
}

#[test]
fn a_packet_that_trickles_in_is_not_waited_for() {
    let server = TestServer::start_with("limits = { packet_time_max = \"300ms\" }");
    let (mut good, schema) = announced(&server, Version::V311, "n2");
    let mut stream = raw(&server, 60);
    // PUBLISH of 2 MB.
    stream.write_all(&[0x30, 0x80, 0x80, 0x80, 0x01, 0, 1, b'a']).unwrap();
    trickle(stream, std::iter::repeat(b'x'));
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), 1.0);
    let id = good.batch(&schema, &[(NOON, 1)]);
    good.acked(&[id]);
}

#[test]
fn greetings_that_do_not_come_are_not_waited_for() {
    let server = TestServer::start_with("limits = { connect_time_max = \"300ms\" }");
    let open = |address: Option<SocketAddr>| {
        let stream = TcpStream::connect(address.unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    };
    let (plain, tls) = (server.addresses.mqtt, server.addresses.mqtt_tls);
    is_closed(&mut open(plain));
    is_closed(&mut open(tls));
    // CONNECT with an identifier of 110 bytes.
    let greeting = [vec![0x10, 122], text("MQTT"), vec![4, 0xc2, 0, 60, 0, 110], vec![b'x'; 109]].concat();
    trickle(open(plain), greeting.into_iter());
    assert_eq!(server.metric("wholegrain_server_connections_refused_total"), 3.0);
    wait_until("their end", || server.metric("wholegrain_server_connections") == 0.0);
}

#[test]
fn a_batch_whose_schema_never_comes_ends_its_connection_and_is_not_lost() {
    let server = TestServer::start_with("limits = { schema_wait_max = \"300ms\" }");
    for version in VERSIONS {
        let schema = schema("n1", &format!("{version:?}"), "s");
        let mut agent = server.agent(&server.mutual(version, "n1"));
        agent.batch(&schema, &[(NOON, 1)]);
        match agent.client.poll(DEADLINE) {
            Err(ClientError::Closed { .. }) => {}
            other => panic!("{other:?}"),
        }
        wait_until("its end", || server.metric("wholegrain_server_connections") == 0.0);
        for gauge in ["in_flight", "in_flight_bytes", "waiting_for_schema"] {
            assert_eq!(server.metric(&format!("wholegrain_server_{gauge}")), 0.0, "{gauge}");
        }
        // Unacknowledged, so the agent still has it; with its schema it is taken.
        let mut agent = server.agent(&server.mutual(version, "n1"));
        let ids = [agent.schema(&schema), agent.batch(&schema, &[(NOON, 1)])];
        agent.acked(&ids);
        agent.client.disconnect().unwrap();
    }
}

#[test]
fn a_batch_with_another_agents_schema_is_refused() {
    let server = TestServer::start();
    let (mut owner, theirs) = announced(&server, Version::V5, "n1");
    let id = owner.batch(&theirs, &[(NOON, 1)]);
    owner.acked(&[id]);
    for version in VERSIONS {
        let mut thief = server.agent(&server.mutual(version, "n2"));
        // Its own topic, its own name in the header, and a schema of n1's sensors.
        let forged = batch("n2", 1, 1, &theirs, &[(NOON + SECOND, 666)]);
        let packet_id = thief.publish("wholegrain/v1/batch/n2/g", &forged);
        match version {
            Version::V5 => {
                assert_eq!(thief.event(), Event::Acked { packet_id, reason: ReasonCode::NOT_AUTHORIZED });
            }
            Version::V311 => assert!(matches!(thief.client.poll(DEADLINE), Err(ClientError::Closed { .. }))),
        }
    }
    assert_eq!(stored(&server), 1);
}

#[test]
fn new_schemas_without_end_are_refused_and_known_ones_stay_welcome() {
    // Four schemas: each counts with at least 4 KiB.
    let server = TestServer::start_with("limits = { schema_bytes_per_hour_max = \"16KiB\" }");
    let flood: Vec<_> = (0..6).map(|i| schema("n1", "g", &format!("s{i}"))).collect();
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    for schema in &flood[..4] {
        let id = agent.schema(schema);
        agent.acked(&[id]);
    }
    for schema in &flood[4..] {
        let packet_id = agent.schema(schema);
        assert_eq!(agent.event(), Event::Acked { packet_id, reason: ReasonCode::QUOTA_EXCEEDED });
    }
    let ids = [agent.schema(&flood[0]), agent.batch(&flood[0], &[(NOON, 1)])];
    agent.acked(&ids);
    assert_eq!(server.metric("wholegrain_server_schemas_over_allowance_total"), 2.0);
    assert_eq!(server.metric("wholegrain_server_store_schemas"), 4.0);
    // Others have an allowance of their own.
    announced(&server, Version::V5, "n2");
    let mut old = server.agent(&server.mutual(Version::V311, "n1"));
    old.schema(&flood[5]);
    // An error is the end of the connection, as a close or as a reset; an answer or none in time would be no error.
    let ended = old.client.poll(DEADLINE);
    assert!(ended.is_err(), "3.1.1 can only be disconnected: {ended:?}");
}

#[test]
fn new_sensors_of_schemas_without_end_are_refused_and_known_ones_cost_nothing() {
    let server = TestServer::start_with("limits = { schema_sensors_per_hour_max = 10 }");
    let group = |group: &str, sensors: std::ops::Range<usize>| {
        let sensors = sensors.map(|i| SensorDef::gauge(format!("s{i}"), "1", "")).collect();
        Schema::new(SensorPath::new("/site/n1").unwrap(), group, sensors).unwrap()
    };
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    // The second has six of the first one's, and the third all of both.
    for (name, sensors) in [("a", 0..6), ("b", 0..8), ("c", 0..8)] {
        let id = agent.schema(&group(name, sensors));
        agent.acked(&[id]);
    }
    for count in [11, 12] {
        let packet_id = agent.schema(&group("d", 0..count));
        assert_eq!(agent.event(), Event::Acked { packet_id, reason: ReasonCode::QUOTA_EXCEEDED });
    }
    let ids = [agent.schema(&group("d", 0..10)), agent.schema(&group("a", 0..6))];
    agent.acked(&ids);
    assert_eq!(server.metric("wholegrain_server_schemas_over_allowance_total"), 2.0);
    assert_eq!(server.metric("wholegrain_server_schema_sensors_over_allowance_total"), 3.0 + 4.0);
    assert_eq!(server.get("/api/v1/sensors").sensors.as_deref(), Some("10"));
    announced(&server, Version::V5, "n2");
}

#[test]
fn a_takeover_in_the_middle_of_appends_neither_loses_nor_doubles() {
    let server = TestServer::start();
    for version in VERSIONS {
        let schema = schema("n1", &format!("{version:?}"), "s");
        let config = server.mutual(version, "n1");
        let mut first = server.agent(&config);
        let id = first.schema(&schema);
        first.acked(&[id]);
        let samples: Vec<_> = (0..40).map(|i| [(NOON + i * SECOND, i)]).collect();
        for sample in &samples {
            first.batch(&schema, sample);
        }
        first.client.flush().unwrap();
        // The newer connection of the same client sends everything again while the store still works on the first's.
        let mut second = server.agent(&config);
        second.boot = first.boot;
        let ids: Vec<u16> = samples.iter().map(|sample| second.batch(&schema, sample)).collect();
        second.acked(&ids);
        assert_eq!(stored(&server), samples.len() as u64);
        let batches = server.metric("wholegrain_server_store_batches_total") as usize;
        assert_eq!(batches, samples.len() * (1 + usize::from(version == VERSIONS[1])), "each once for each version");
        drop(first);
        second.client.disconnect().unwrap();
        wait_until("nothing in flight", || server.metric("wholegrain_server_in_flight") == 0.0);
    }
}

#[test]
fn silent_connections_do_not_lock_out_others_and_a_client_has_a_limit() {
    let server = TestServer::start_with(
        "limits = { unauthenticated_max = 8, client_connections_max = 2, connections_max = 100, connect_time_max = \"1h\" }",
    );
    let crowd: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap()).collect();
    let metric = |name: &str| server.metric(&format!("wholegrain_server_{name}{{protocol=\"mqtt\"}}"));
    wait_until("most are closed", || metric("connections_displaced_total") >= 52.0);
    // Several attempts may be needed: the new connection may be displaced before it is authenticated.
    let connect = |config: &wholegrain_transport::client::ClientConfig, id: &str| {
        let config = wholegrain_transport::client::ClientConfig { client_id: id.to_owned(), ..config.clone() };
        wholegrain_transport::client::Client::connect(&config)
    };
    let n1 = server.plain(Version::V5);
    let one = wait_for("n1 is in", || connect(&n1, "n1").ok());
    let two = wait_for("n1 is in again", || connect(&n1, "n1-b").ok());
    let before = metric("connections_full_total");
    wait_for("a third is refused", || {
        let refused =
            matches!(connect(&n1, "n1-c"), Err(ClientError::Refused { reason: ReasonCode::QUOTA_EXCEEDED, .. }));
        refused.then_some(())
    });
    assert!(metric("connections_full_total") > before);
    let other = wait_for("n2 is in", || connect(&server.mutual(Version::V311, "n2"), "n2").ok());
    drop(one);
    let third = wait_for("n1 has a place again", || connect(&n1, "n1-c").ok());
    assert!(metric("connections_unproven") <= 8.0);
    drop((crowd, two, other, third));
}

#[test]
fn one_client_cannot_fill_the_retained_messages_of_others() {
    let server = TestServer::start_with("limits = { retained_client_messages_max = 3, retained_messages_max = 100 }");
    let retain = |agent: &mut TestAgent, topic: &str| agent.client.publish(topic, b"x", true, true).unwrap();
    let mut n1 = server.agent(&server.plain(Version::V5));
    let ids: Vec<u16> = (0..3).map(|number| retain(&mut n1, &format!("site/{number}"))).collect();
    n1.acked(&ids);
    let id = retain(&mut n1, "site/3");
    assert_eq!(n1.event(), Event::Acked { packet_id: id, reason: ReasonCode::QUOTA_EXCEEDED });
    let id = retain(&mut n1, "site/2");
    n1.acked(&[id]);
    // Another client has its own quota, and schemas do not count.
    let (mut n2, _) = announced(&server, Version::V311, "n2");
    let ids: Vec<u16> = (4..7).map(|number| retain(&mut n2, &format!("site/{number}"))).collect();
    n2.acked(&ids);
    assert_eq!(server.metric("wholegrain_server_retained_refused_total"), 1.0);
    // 3.1.1 has no reason to give.
    retain(&mut n2, "site/7");
    assert!(matches!(n2.client.poll(DEADLINE), Err(ClientError::Closed { .. })), "closed");
    let mut hearer = raw(&server, 0);
    subscribe(&mut hearer, &["site/#"]);
    assert_eq!(read(&mut hearer), [0x90, 3, 0, 1, 0]);
    for number in [0, 1, 2, 4, 5, 6] {
        let message: [u8; 11] = read(&mut hearer);
        assert_eq!(message[..], [&[0x31, 9, 0, 6][..], format!("site/{number}x").as_bytes()].concat()[..]);
    }
}

/// What a client costs that subscribes to filters which match nothing: not filters times messages, and it is looked up in parts.
#[test]
fn filters_that_match_nothing_cost_a_bounded_part() {
    let server = TestServer::start_with("limits = { subscriptions_max = 8 }");
    let mut n1 = server.agent(&server.plain(Version::V5));
    for number in 0..2000 {
        let id = n1.client.publish(&format!("site/n{number}/x"), b"x", true, true).unwrap();
        n1.acked(&[id]);
    }
    let work = || server.metric("wholegrain_server_retained_work_total");
    let before = work();
    let mut attacker = raw(&server, 0);
    for _ in 0..50 {
        let filters: Vec<String> = (0..8).map(|number| format!("+/n{number}/none")).collect();
        subscribe(&mut attacker, &filters.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for _ in 0..50 {
        assert_eq!(read(&mut attacker), [0x90, 10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    drop(attacker);
    assert!(work() - before < 50.0 * 8.0 * 20.0, "{} topics looked at", work() - before);
}
