//! Sessions, QoS 2, wills, shared subscriptions and limits over the network, with a client that sends single packets
//! as the test says, and with Mosquitto's clients.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use bytes::{Bytes, BytesMut};
use wholegrain_transport::mqtt::{
    self, Ack, ConnAck, Connect, Disconnect, Packet, Properties, Property, Publish, QoS, ReasonCode, Subscribe,
    Subscription, Text, Version, Will,
};

use crate::harness::{DEADLINE, NOON, PASSWORD, TestServer, VERSIONS, batch, schema, wait_for, wait_until};

const ANONYMOUS: &str = "anonymous = true";

/// A connection, and the bytes that have arrived on it.
pub struct RawClient {
    stream: TcpStream,
    input: BytesMut,
    version: Version,
}

fn connect(version: Version, id: &str, clean: bool, expiry_s: u32) -> Connect {
    let mut connect = Connect::new(version, id, 60);
    connect.clean_start = clean;
    if version == Version::V5 {
        connect.properties = Properties::new().with(Property::SessionExpiryInterval(expiry_s));
    }
    connect
}

impl RawClient {
    fn open(server: &TestServer, connect: Connect) -> (Self, ConnAck) {
        let stream = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut raw = Self { stream, input: BytesMut::new(), version: connect.version };
        raw.send(Packet::Connect(Box::new(connect)));
        match raw.next() {
            Packet::ConnAck(connack) => (raw, connack),
            other => panic!("{other:?}"),
        }
    }

    /// An anonymous client without a session to keep.
    pub fn new(server: &TestServer, version: Version, id: &str) -> Self {
        Self::open(server, connect(version, id, true, 0)).0
    }

    fn send(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        mqtt::encode(&packet, self.version, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next packet; `None` when the server has closed.
    fn next_or_end(&mut self) -> Option<Packet> {
        loop {
            if let Some(packet) = mqtt::decode(&mut self.input, Some(self.version), 1 << 20).unwrap() {
                return Some(packet);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[track_caller]
    pub fn next(&mut self) -> Packet {
        self.next_or_end().expect("the server has closed")
    }

    #[track_caller]
    fn message(&mut self) -> Publish {
        match self.next() {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    fn subscribe(&mut self, filter: &str, qos: QoS) {
        let filters = vec![Subscription::new(filter, qos)];
        self.send(Packet::Subscribe(Subscribe { packet_id: 9, filters, properties: Properties::new() }));
        match self.next() {
            Packet::SubAck(suback) => assert_eq!(suback.reasons, [ReasonCode(qos as u8)]),
            other => panic!("{other:?}"),
        }
    }

    pub fn publish(&mut self, topic: &str, payload: impl Into<Bytes>, qos: QoS, id: u16, dup: bool) {
        let (topic, payload, packet_id) = (Text::from(topic), payload.into(), (qos != QoS::AtMostOnce).then_some(id));
        let properties = Properties::new();
        self.send(Packet::Publish(Publish { dup, qos, retain: false, topic, packet_id, payload, properties }));
    }

    /// Sends PINGREQ and waits for PINGRESP: earlier packets have been handled, and earlier messages have arrived.
    fn ping(&mut self) -> Vec<Packet> {
        self.send(Packet::PingReq);
        let mut before = Vec::new();
        loop {
            match self.next() {
                Packet::PingResp => return before,
                other => before.push(other),
            }
        }
    }
}

fn ack(id: u16) -> Ack {
    Ack::success(id)
}

#[test]
fn a_batch_of_qos_2_is_durable_before_pubrec_and_stored_once_however_often_it_comes() {
    let server = TestServer::start_with(ANONYMOUS);
    for version in VERSIONS {
        let schema = schema("n1", &format!("{version:?}"), "s");
        let mut raw = RawClient::open(&server, connect(version, "n1", false, 60)).0;
        raw.publish(&format!("wholegrain/v1/schema/n1/{version:?}"), schema.encode(), QoS::ExactlyOnce, 1, false);
        assert_eq!(raw.next(), Packet::PubRec(ack(1)));
        raw.send(Packet::PubRel(ack(1)));
        assert_eq!(raw.next(), Packet::PubComp(ack(1)));
        let payload = batch("n1", 70 + version as u64, 1, &schema, &[(NOON, 5)]);
        let topic = format!("wholegrain/v1/batch/n1/{version:?}");
        let mut listener = RawClient::new(&server, version, "listener");
        listener.subscribe("wholegrain/v1/batch/#", QoS::ExactlyOnce);
        raw.publish(&topic, payload.clone(), QoS::ExactlyOnce, 2, false);
        assert_eq!(raw.next(), Packet::PubRec(ack(2)));
        let newest = server.get(&format!("/api/v1/newest?pattern={}", schema.path(0)));
        assert_eq!(newest.json()["readings"][0]["value"], 5120, "acknowledged means visible");
        // The connection breaks before PUBREC arrived, say: the same again, on a new one.
        drop(raw);
        let (mut raw, connack) = RawClient::open(&server, connect(version, "n1", false, 60));
        assert!(connack.session_present);
        raw.publish(&topic, payload.clone(), QoS::ExactlyOnce, 2, true);
        assert_eq!(raw.next(), Packet::PubRec(ack(2)));
        raw.send(Packet::PubRel(ack(2)));
        assert_eq!(raw.next(), Packet::PubComp(ack(2)));
        let got = listener.message();
        assert_eq!((got.qos, &got.payload[..]), (QoS::ExactlyOnce, &payload[..]));
        assert_eq!(listener.ping(), [], "once only");
        // An unknown packet identifier is reported.
        raw.send(Packet::PubRel(ack(2)));
        let Packet::PubComp(unknown) = raw.next() else { panic!() };
        let expected = if version == Version::V5 { ReasonCode::PACKET_ID_NOT_FOUND } else { ReasonCode::SUCCESS };
        assert_eq!(unknown.reason, expected);
        raw.send(Packet::Disconnect(Disconnect::default()));
    }
    assert_eq!(server.metric("wholegrain_server_store_batches_total"), 2.0);
    assert_eq!(server.metric("wholegrain_server_duplicates_total"), 0.0, "not even offered to the store twice");
}

#[test]
fn a_session_is_resumed_with_unacknowledged_and_new_messages_but_not_after_a_restart() {
    let mut server = TestServer::start_with(ANONYMOUS);
    for version in VERSIONS {
        let id = format!("{version:?}");
        let (mut raw, connack) = RawClient::open(&server, connect(version, &id, false, 60));
        assert!(!connack.session_present);
        raw.subscribe("a/#", QoS::ExactlyOnce);
        let mut other = RawClient::new(&server, version, "other");
        for (number, qos) in [(1, QoS::AtLeastOnce), (2, QoS::ExactlyOnce), (3, QoS::ExactlyOnce)] {
            other.publish("a/b", format!("{number}"), qos, number, false);
        }
        let before: Vec<_> = (0..3).map(|_| raw.message()).collect();
        assert!(before.iter().all(|message| !message.dup));
        raw.send(Packet::PubRec(ack(before[1].packet_id.unwrap())));
        assert_eq!(raw.next(), Packet::PubRel(ack(before[1].packet_id.unwrap())));
        drop(raw);
        wait_until("it is away", || server.metric("wholegrain_server_sessions_kept") == 1.0);
        other.publish("a/c", "4", QoS::AtLeastOnce, 4, false);
        other.publish("a/c", "5", QoS::AtMostOnce, 0, false);
        other.ping();
        let (mut raw, connack) = RawClient::open(&server, connect(version, &id, false, 0));
        assert!(connack.session_present);
        let again = raw.message();
        assert_eq!((again.dup, again.packet_id, &again.payload), (true, before[0].packet_id, &before[0].payload));
        assert_eq!(raw.next(), Packet::PubRel(ack(before[1].packet_id.unwrap())));
        let again = raw.message();
        assert_eq!((again.dup, again.packet_id, &again.payload), (true, before[2].packet_id, &before[2].payload));
        let new = raw.message();
        assert_eq!((new.dup, new.qos, &new.payload[..]), (false, QoS::AtLeastOnce, &b"4"[..]));
        assert_eq!(raw.ping(), [], "QoS 0 does not wait");
        // A clean start leaves nothing of the old session.
        let (mut raw, connack) = RawClient::open(&server, connect(version, &id, true, 60));
        assert!(!connack.session_present);
        other.publish("a/c", "6", QoS::AtLeastOnce, 6, false);
        other.ping();
        assert_eq!(raw.ping(), []);
        raw.send(Packet::Disconnect(Disconnect::default()));
        assert_eq!(raw.next_or_end(), None);
        let mut raw = RawClient::open(&server, connect(version, &id, false, 60)).0;
        raw.subscribe("a/#", QoS::AtLeastOnce);
        drop((raw, other));
        wait_until("it is away", || server.metric("wholegrain_server_sessions_kept") == 1.0);
        assert_eq!(server.metric("wholegrain_server_subscriptions"), 1.0);
        server = server.restart();
        let (_, connack) = RawClient::open(&server, connect(version, &id, false, 0));
        assert!(!connack.session_present, "sessions do not survive the server");
        drop(RawClient::open(&server, connect(version, &id, true, 0)));
        wait_until("it is gone", || server.metric("wholegrain_server_sessions") == 0.0);
    }
}

#[test]
fn sessions_end_in_time_and_leave_nothing_behind() {
    let server = TestServer::start_with("anonymous = true\nlimits = { session_expiry_max = \"1s\" }");
    for version in VERSIONS {
        let (mut raw, connack) = RawClient::open(&server, connect(version, "a", false, 3600));
        if version == Version::V5 {
            assert_eq!(connack.properties.session_expiry_interval(), Some(&1), "the shorter expiry is announced");
        }
        raw.subscribe("a/#", QoS::AtLeastOnce);
        raw.subscribe("$share/g/b", QoS::AtLeastOnce);
        drop(raw);
        wait_until("it is away", || server.metric("wholegrain_server_sessions_kept") == 1.0);
        let mut other = RawClient::new(&server, version, "other");
        other.publish("a/b", "1", QoS::AtLeastOnce, 1, false);
        other.publish("b", "2", QoS::AtLeastOnce, 2, false);
        other.ping();
        other.send(Packet::Disconnect(Disconnect::default()));
        for gauge in ["sessions", "sessions_kept", "subscriptions", "queued_bytes"] {
            let gauge = format!("wholegrain_server_{gauge}");
            wait_for(&gauge, || (server.metric(&gauge) == 0.0).then_some(()));
        }
    }
    assert_eq!(server.metric("wholegrain_server_sessions_expired_total"), 2.0);
}

#[test]
fn the_queue_of_an_absent_client_is_bounded_and_drops_are_counted() {
    let server = TestServer::start_with("anonymous = true\nlimits = { queue_messages_max = 5 }");
    let mut raw = RawClient::open(&server, connect(Version::V5, "a", false, 60)).0;
    raw.subscribe("t", QoS::AtLeastOnce);
    drop(raw);
    wait_until("it is away", || server.metric("wholegrain_server_sessions_kept") == 1.0);
    let mut other = RawClient::new(&server, Version::V5, "other");
    for id in 1..=8 {
        other.publish("t", format!("{id}"), QoS::AtLeastOnce, id, false);
        assert_eq!(other.next(), Packet::PubAck(ack(id)), "the publisher does not wait");
    }
    assert_eq!(server.metric("wholegrain_server_messages_dropped_total"), 3.0);
    let mut raw = RawClient::open(&server, connect(Version::V5, "a", false, 60)).0;
    let got: Vec<_> = (0..5).map(|_| raw.message().payload).collect();
    assert_eq!(got, ["1", "2", "3", "4", "5"], "the first, in order");
}

#[test]
fn a_replaced_connection_learns_why_and_a_delayed_will_waits_for_the_client_to_return() {
    let server = TestServer::start_with(ANONYMOUS);
    let mut listener = RawClient::new(&server, Version::V5, "listener");
    listener.subscribe("wills/#", QoS::AtLeastOnce);
    let with_will = |topic: &str, delay_s| {
        let mut connect = connect(Version::V5, "a", false, 60);
        let properties = Properties::new()
            .with(Property::WillDelayInterval(delay_s))
            .with(Property::ContentType(Text::from("text/plain")));
        let (topic, payload, qos) = (Text::from(topic), Bytes::from_static(b"gone"), QoS::AtLeastOnce);
        connect.will = Some(Will { topic, payload, qos, retain: false, properties });
        connect
    };
    let mut first = RawClient::open(&server, with_will("wills/1", 3600)).0;
    let mut second = RawClient::open(&server, with_will("wills/2", 0)).0;
    let Packet::Disconnect(why) = first.next() else { panic!() };
    assert_eq!((why.reason, first.next_or_end()), (ReasonCode::SESSION_TAKEN_OVER, None));
    assert_eq!(second.ping(), []);
    let mut third = RawClient::open(&server, with_will("wills/3", 1)).0;
    let will = listener.message();
    assert_eq!((&*will.topic, will.qos), ("wills/2", QoS::AtLeastOnce), "the first's will was cancelled");
    assert_eq!(will.properties.content_type().map(|text| text.as_str()), Some("text/plain"));
    assert_eq!(third.ping(), []);
    drop(third);
    assert_eq!(&*listener.message().topic, "wills/3");
    let reason = ReasonCode::DISCONNECT_WITH_WILL;
    let mut fourth = RawClient::open(&server, with_will("wills/4", 0)).0;
    fourth.send(Packet::Disconnect(Disconnect { reason, properties: Properties::new() }));
    assert_eq!(&*listener.message().topic, "wills/4");
    let mut fifth = RawClient::open(&server, with_will("wills/5", 0)).0;
    fifth.send(Packet::Disconnect(Disconnect::default()));
    assert_eq!(fifth.next_or_end(), None);
    assert_eq!(listener.ping(), []);
    assert_eq!(server.metric("wholegrain_server_wills_total"), 3.0);
}

#[test]
fn a_client_above_its_rate_is_read_more_slowly_and_loses_nothing() {
    let server = TestServer::start_with("anonymous = true\nlimits = { publishes_per_s_max = 50 }");
    let mut fast = RawClient::new(&server, Version::V311, "fast");
    let mut other = RawClient::new(&server, Version::V311, "other");
    for id in 1..=80 {
        fast.publish("t", "x", QoS::AtLeastOnce, id, false);
    }
    // A client below its rate is not delayed.
    other.publish("t", "x", QoS::AtLeastOnce, 1, false);
    assert_eq!(other.next(), Packet::PubAck(ack(1)));
    for id in 1..=80 {
        assert_eq!(fast.next(), Packet::PubAck(ack(id)));
    }
    assert!(server.metric("wholegrain_server_throttles_total") >= 1.0);
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), 0.0);
}

#[test]
fn receive_maximum_and_topic_aliases_are_bounds_and_breaking_them_has_its_reason() {
    let server = TestServer::start_with("anonymous = true\nlimits = { inflight_max = 4, topic_aliases_max = 2 }");
    let (mut raw, connack) = RawClient::open(&server, connect(Version::V5, "a", true, 0));
    let announced = &connack.properties;
    assert_eq!((announced.receive_maximum(), announced.topic_alias_maximum()), (Some(&4), Some(&2)));
    for id in 1..=4 {
        raw.publish("t", "x", QoS::ExactlyOnce, id, false);
        assert_eq!(raw.next(), Packet::PubRec(ack(id)));
    }
    raw.publish("t", "x", QoS::ExactlyOnce, 5, false);
    let Packet::Disconnect(why) = raw.next() else { panic!() };
    assert_eq!((why.reason, raw.next_or_end()), (ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, None));
    for alias in [0, 3] {
        let mut raw = RawClient::new(&server, Version::V5, "a");
        // By hand, for nothing here writes alias 0.
        raw.stream.write_all(&[0x30, 7, 0, 1, b't', 3, 0x23, 0, alias]).unwrap();
        let Packet::Disconnect(why) = raw.next() else { panic!() };
        assert_eq!((why.reason, raw.next_or_end()), (ReasonCode::TOPIC_ALIAS_INVALID, None), "{alias}");
    }
}

fn mosquitto(server: &TestServer, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(["-h", "localhost", "-p", &server.addresses.mqtt.unwrap().port().to_string()]);
    command.args(["-u", "n1", "-P", PASSWORD]).args(arguments);
    command
}

#[test]
fn mosquitto_keeps_its_session_and_shares_subscriptions_with_qos_2() {
    let server = TestServer::start();
    for version in ["mqttv311", "mqttv5"] {
        let expiry: &[&str] = if version == "mqttv5" { &["-x", "60"] } else { &[] };
        let common = ["-V", version, "-q", "2", "-t", "t/#"];
        let session = [&common[..], &["-i", "keeper", "-c"], expiry].concat();
        // Subscribes and disconnects at once; later messages wait for it.
        let left = mosquitto(&server, "mosquitto_sub", &[&session[..], &["-E"]].concat()).status().unwrap();
        assert!(left.success());
        wait_until("it is away", || server.metric("wholegrain_server_sessions_kept") == 1.0);
        let lines: String = (0..40).map(|i| format!("{version} {i}\n")).collect();
        let publish = ["-V", version, "-q", "2", "-t", "t/x", "-l"];
        let mut publisher = mosquitto(&server, "mosquitto_pub", &publish).stdin(Stdio::piped()).spawn().unwrap();
        publisher.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(publisher.wait().unwrap().success());
        let output = mosquitto(&server, "mosquitto_sub", &[&session[..], &["-C", "40", "-W", "30"]].concat()).output();
        assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), lines);
        // Two that share; between them everything once.
        let sub = ["-V", version, "-q", "2", "-t", "$share/g/s/#", "-C", "10", "-W", "30"];
        let before = server.metric("wholegrain_server_subscriptions");
        let members =
            [(), ()].map(|()| mosquitto(&server, "mosquitto_sub", &sub).stdout(Stdio::piped()).spawn().unwrap());
        wait_until("both", || server.metric("wholegrain_server_subscriptions") == before + 2.0);
        let lines: Vec<String> = (0..20).map(|i| format!("{i:02}")).collect();
        let publish = ["-V", version, "-q", "2", "-t", "s/x", "-l"];
        let mut publisher = mosquitto(&server, "mosquitto_pub", &publish).stdin(Stdio::piped()).spawn().unwrap();
        publisher.stdin.take().unwrap().write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
        assert!(publisher.wait().unwrap().success());
        let mut got = Vec::new();
        for mut member in members {
            got.extend(BufReader::new(member.stdout.take().unwrap()).lines().map(Result::unwrap));
            member.wait().unwrap();
        }
        got.sort();
        assert_eq!(got, lines, "{version}");
        let clean = ["-V", version, "-i", "keeper", "-t", "t/#", "-E"];
        assert!(mosquitto(&server, "mosquitto_sub", &clean).status().unwrap().success());
        wait_until("its end", || server.metric("wholegrain_server_sessions") == 0.0);
    }
    assert_eq!(server.metric("wholegrain_server_messages_dropped_total"), 0.0);
}

#[test]
fn the_server_publishes_its_state_below_sys() {
    let rights = r##"acl = [{ identity = "anonymous", subscribe = ["#", "$SYS/#"] }]"##;
    let server = TestServer::start_strict(&format!("{ANONYMOUS}\n{rights}"));
    let mut raw = RawClient::new(&server, Version::V311, "a");
    raw.subscribe("#", QoS::AtMostOnce);
    assert_eq!(raw.ping(), [], "not to a wildcard at the beginning");
    raw.subscribe("$SYS/broker/version", QoS::AtMostOnce);
    let version = raw.message();
    assert!(version.payload.starts_with(b"wholegrain "), "{version:?}");
}
