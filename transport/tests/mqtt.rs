//! The MQTT codec: vectors by hand from the specifications, refusals, random round trips, damaged bytes.

mod packets;

use bytes::{Bytes, BytesMut};
use packets::random_packet;
use wholegrain_testkit::Random;
use wholegrain_transport::mqtt::{
    Ack, Auth, CodecError, ConnAck, Connect, Disconnect, Packet, Properties, Property, Publish, QoS, ReasonCode,
    RetainHandling, SubAck, Subscribe, Subscription, Text, UnsubAck, Unsubscribe, Version, Will, decode, encode,
};

const MAX: usize = 1 << 20;

fn hex(text: &str) -> BytesMut {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// Both ways: these bytes are this packet.
fn same(version: Version, bytes: &str, packet: Packet) {
    let mut out = BytesMut::new();
    encode(&packet, version, &mut out).unwrap();
    assert_eq!(format!("{:02x?}", &out[..]), format!("{:02x?}", &hex(bytes)[..]), "{packet:?}");
    let mut buffer = hex(bytes);
    assert_eq!(decode(&mut buffer, Some(version), MAX).unwrap(), Some(packet));
    assert!(buffer.is_empty());
}

/// The specification refuses these bytes, for this reason.
fn refused(version: Version, bytes: &str, part: &str) {
    let result = decode(&mut hex(bytes), Some(version), MAX);
    let error = result.expect_err(bytes).to_string();
    assert!(error.contains(part), "{bytes}: {error}");
}

fn publish(qos: QoS, packet_id: Option<u16>, payload: &'static [u8]) -> Publish {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: "a/b".into(),
        packet_id,
        payload: Bytes::from_static(payload),
        properties: Properties::new(),
    }
}

use Version::{V5, V311};

#[test]
fn connect() {
    let mut plain = Connect::new(V311, "", 10);
    same(V311, "10 0c 00 04 4d 51 54 54 04 02 00 0a 00 00", Packet::Connect(Box::new(plain.clone())));
    plain.version = V5;
    same(V5, "10 0d 00 04 4d 51 54 54 05 02 00 0a 00 00 00", Packet::Connect(Box::new(plain)));
    // User, password, will of QoS 1, clean start, session expiry 10 s: the variable header shown in 3.1.2.12.
    let full = Connect {
        version: V5,
        clean_start: true,
        keep_alive_s: 10,
        client_id: "cl".into(),
        will: Some(Will {
            topic: "w".into(),
            payload: Bytes::from_static(b"bye"),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: Properties::new().with(Property::WillDelayInterval(5)),
        }),
        user: Some("u".into()),
        password: Some(Bytes::from_static(b"p")),
        properties: Properties::new().with(Property::SessionExpiryInterval(10)),
    };
    same(
        V5,
        "10 28 00 04 4d 51 54 54 05 ce 00 0a 05 11 00 00 00 0a 00 02 63 6c \
         05 18 00 00 00 05 00 01 77 00 03 62 79 65 00 01 75 00 01 70",
        Packet::Connect(Box::new(full)),
    );
    let mut first = hex("10 0c 00 04 4d 51 54 54 04 02 00 0a 00 00");
    assert!(matches!(decode(&mut first, None, MAX), Ok(Some(Packet::Connect(connect))) if connect.version == V311));
}

#[test]
fn connect_refused() {
    refused(V5, "10 0d 00 04 4d 51 54 54 05 03 00 0a 00 00 00", "reserved connect flag");
    refused(V5, "10 0d 00 04 4d 51 54 54 05 0a 00 0a 00 00 00", "will flags without a will");
    refused(V5, "10 0d 00 04 4d 51 54 54 05 22 00 0a 00 00 00", "will flags without a will");
    refused(V5, "10 0d 00 04 4d 51 54 54 05 1e 00 0a 00 00 00", "quality of service 3");
    refused(V311, "10 0f 00 04 4d 51 54 54 04 42 00 0a 00 00 00 01 70", "password without a user name");
    refused(V5, "10 0d 00 04 4d 51 54 54 06 02 00 0a 00 00 00", "level 6");
    refused(V311, "10 0e 00 06 4d 51 49 73 64 70 03 02 00 0a 00 00", "protocol name");
    refused(V311, "10 0d 00 04 4d 51 54 54 04 02 00 0a 00 00 00", "after the end");
    refused(V311, "10 0b 00 04 4d 51 54 54 04 02 00 0a 00", "cut short");
    refused(V5, "11 00", "reserved flags");
    let error = decode(&mut hex("c0 00"), None, MAX).unwrap_err();
    assert_eq!(error, CodecError::ExpectedConnect("PINGREQ"));
    assert_eq!(error.reason_code(), ReasonCode::PROTOCOL_ERROR);
    // Bounds on properties: receive maximum 0, one given twice, one of another packet, data without a method, a bad flag.
    refused(V5, "10 10 00 04 4d 51 54 54 05 02 00 0a 03 21 00 00 00 00", "receive maximum is 0");
    refused(V5, "10 13 00 04 4d 51 54 54 05 02 00 0a 06 21 00 01 21 00 01 00 00", "twice");
    refused(V5, "10 10 00 04 4d 51 54 54 05 02 00 0a 03 23 00 01 00 00", "does not take");
    refused(V5, "10 10 00 04 4d 51 54 54 05 02 00 0a 03 16 00 00 00 00", "without a method");
    refused(V5, "10 0f 00 04 4d 51 54 54 05 02 00 0a 02 17 02 00 00", "must be 0 or 1");
    refused(V5, "10 0f 00 04 4d 51 54 54 05 02 00 0a 02 7e 02 00 00", "unknown property");
    refused(V5, "10 0f 00 04 4d 51 54 54 05 02 00 0a 82 00 17 01 00", "shortest form");
}

#[test]
fn connack() {
    let accepted = ConnAck { session_present: true, reason: ReasonCode::SUCCESS, properties: Properties::new() };
    same(V311, "20 02 01 00", Packet::ConnAck(accepted.clone()));
    let reason = ReasonCode::BAD_USER_OR_PASSWORD;
    let denied = ConnAck { session_present: false, reason, properties: Properties::new() };
    same(V311, "20 02 00 04", Packet::ConnAck(denied.clone()));
    same(V5, "20 03 00 86 00", Packet::ConnAck(denied));
    let properties =
        Properties::new().with(Property::ReceiveMaximum(20)).with(Property::AssignedClientIdentifier("x".into()));
    same(V5, "20 0a 01 00 07 21 00 14 12 00 01 78", Packet::ConnAck(ConnAck { properties, ..accepted }));
    refused(V311, "20 02 02 00", "reserved acknowledge flags");
    refused(V311, "20 02 00 06", "reserved return code");
    refused(V311, "20 02 01 05", "session present");
    refused(V5, "20 03 00 01 00", "reason code of another packet");
}

#[test]
fn publish_packets() {
    same(V311, "30 07 00 03 61 2f 62 68 69", Packet::Publish(publish(QoS::AtMostOnce, None, b"hi")));
    same(V311, "32 09 00 03 61 2f 62 00 0a 68 69", Packet::Publish(publish(QoS::AtLeastOnce, Some(10), b"hi")));
    same(V5, "32 0a 00 03 61 2f 62 00 0a 00 68 69", Packet::Publish(publish(QoS::AtLeastOnce, Some(10), b"hi")));
    let mut all = publish(QoS::ExactlyOnce, Some(0x1234), b"");
    (all.dup, all.retain) = (true, true);
    same(V311, "3d 07 00 03 61 2f 62 12 34", Packet::Publish(all));
    let mut aliased = publish(QoS::AtMostOnce, None, b"x");
    aliased.topic = Text::default();
    aliased.properties = Properties::new()
        .with(Property::TopicAlias(3))
        .with(Property::SubscriptionIdentifier(128))
        .with(Property::SubscriptionIdentifier(1))
        .with(Property::UserProperty("k".into(), "v".into()));
    same(V5, "30 13 00 00 0f 23 00 03 0b 80 01 0b 01 26 00 01 6b 00 01 76 78", Packet::Publish(aliased));

    refused(V5, "36 0a 00 03 61 2f 62 00 0a 00 68 69", "quality of service 3");
    refused(V5, "38 08 00 03 61 2f 62 00 68 69", "duplicate");
    refused(V5, "32 0a 00 03 61 2f 62 00 00 00 68 69", "packet identifier 0");
    refused(V311, "30 05 00 03 61 2f 23", "wildcard");
    refused(V311, "30 05 00 03 61 2b 62", "wildcard");
    refused(V311, "30 02 00 00", "neither a topic");
    refused(V5, "30 03 00 00 00", "neither a topic");
    refused(V311, "30 05 00 03 61 00 62", "U+0000");
    refused(V311, "30 05 00 03 ed a0 80", "not UTF-8");
    refused(V5, "30 07 00 01 61 03 23 00 00", "topic alias is 0");
    refused(V5, "30 08 00 01 61 04 08 00 01 23", "response topic");
    refused(V5, "30 06 00 01 61 02 0b 00", "subscription identifier is 0");
}

#[test]
fn acknowledgements() {
    same(V311, "40 02 00 07", Packet::PubAck(Ack::success(7)));
    same(V5, "40 02 00 07", Packet::PubAck(Ack::success(7)));
    let denied = Ack { reason: ReasonCode::NOT_AUTHORIZED, ..Ack::success(7) };
    same(V5, "40 03 00 07 87", Packet::PubAck(denied.clone()));
    let properties = Properties::new().with(Property::ReasonString("no".into()));
    same(V5, "50 09 00 07 87 05 1f 00 02 6e 6f", Packet::PubRec(Ack { properties, ..denied }));
    same(V5, "62 03 00 07 92", Packet::PubRel(Ack { reason: ReasonCode::PACKET_ID_NOT_FOUND, ..Ack::success(7) }));
    same(V311, "70 02 ff ff", Packet::PubComp(Ack::success(65_535)));
    refused(V311, "40 03 00 07 00", "after the end");
    refused(V5, "40 02 00 00", "packet identifier 0");
    refused(V5, "40 03 00 07 92", "reason code of another packet");
    refused(V5, "60 02 00 07", "reserved flags");
    refused(V5, "40 01 00", "cut short");
}

#[test]
fn subscriptions() {
    let filters = vec![Subscription::new("a/b", QoS::AtLeastOnce), Subscription::new("c/d", QoS::ExactlyOnce)];
    let subscribe = Subscribe { packet_id: 10, filters, properties: Properties::new() };
    // Figure 3.23 of version 3.1.1.
    same(V311, "82 0e 00 0a 00 03 61 2f 62 01 00 03 63 2f 64 02", Packet::Subscribe(subscribe.clone()));
    same(V5, "82 0f 00 0a 00 00 03 61 2f 62 01 00 03 63 2f 64 02", Packet::Subscribe(subscribe));
    let wanted = Subscription {
        filter: "#".into(),
        qos: QoS::AtMostOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
    };
    let properties = Properties::new().with(Property::SubscriptionIdentifier(7));
    let subscribe = Subscribe { packet_id: 1, filters: vec![wanted], properties };
    same(V5, "82 09 00 01 02 0b 07 00 01 23 2c", Packet::Subscribe(subscribe));
    let reasons = vec![ReasonCode::SUCCESS, ReasonCode::GRANTED_QOS_2, ReasonCode::UNSPECIFIED_ERROR];
    let suback = SubAck { packet_id: 10, reasons, properties: Properties::new() };
    same(V311, "90 05 00 0a 00 02 80", Packet::SubAck(suback.clone()));
    same(V5, "90 06 00 0a 00 00 02 80", Packet::SubAck(suback));
    let unsubscribe = Unsubscribe { packet_id: 10, filters: vec!["a/b".into()], properties: Properties::new() };
    same(V311, "a2 07 00 0a 00 03 61 2f 62", Packet::Unsubscribe(unsubscribe.clone()));
    same(V5, "a2 08 00 0a 00 00 03 61 2f 62", Packet::Unsubscribe(unsubscribe));
    let unsuback = UnsubAck { packet_id: 10, reasons: vec![], properties: Properties::new() };
    same(V311, "b0 02 00 0a", Packet::UnsubAck(unsuback.clone()));
    let reasons = vec![ReasonCode::NO_SUBSCRIPTION_EXISTED];
    same(V5, "b0 04 00 0a 00 11", Packet::UnsubAck(UnsubAck { reasons, ..unsuback }));

    refused(V311, "80 06 00 0a 00 01 61 01", "reserved flags");
    refused(V311, "82 02 00 0a", "no topic filter");
    refused(V5, "82 03 00 0a 00", "no topic filter");
    refused(V311, "82 06 00 0a 00 01 61 03", "quality of service 3");
    refused(V311, "82 06 00 0a 00 01 61 05", "reserved subscription options");
    refused(V5, "82 07 00 0a 00 00 01 61 41", "reserved subscription options");
    refused(V5, "82 07 00 0a 00 00 01 61 31", "retain handling 3");
    refused(V5, "82 10 00 0a 00 00 0a 24 73 68 61 72 65 2f 67 2f 61 05", "no-local on a shared");
    refused(V311, "82 07 00 0a 00 02 61 23 01", "topic filter is not valid");
    refused(V311, "82 06 00 00 00 01 61 01", "packet identifier 0");
    refused(V311, "90 03 00 0a 03", "reason code");
    refused(V311, "90 03 00 0a 87", "reserved return code");
    refused(V311, "90 02 00 0a", "no reason code");
    refused(V311, "a2 02 00 0a", "no topic filter");
    refused(V5, "b0 03 00 0a 00", "no reason code");
}

#[test]
fn the_rest() {
    for version in [V311, V5] {
        same(version, "c0 00", Packet::PingReq);
        same(version, "d0 00", Packet::PingResp);
        same(version, "e0 00", Packet::Disconnect(Disconnect::default()));
        refused(version, "c1 00", "reserved flags");
        refused(version, "c0 01 00", "after the end");
        refused(version, "00 00", "packet type 0");
    }
    let reason = ReasonCode::SERVER_SHUTTING_DOWN;
    same(V5, "e0 01 8b", Packet::Disconnect(Disconnect { reason, properties: Properties::new() }));
    let properties = Properties::new()
        .with(Property::AuthenticationMethod("m".into()))
        .with(Property::AuthenticationData(Bytes::from_static(&[0, 1])));
    let auth = Auth { reason: ReasonCode::CONTINUE_AUTHENTICATION, properties };
    same(V5, "f0 0b 18 09 15 00 01 6d 16 00 02 00 01", Packet::Auth(auth.clone()));
    refused(V311, "f0 00", "reserved in 3.1.1");
    assert!(encode(&Packet::Auth(auth), V311, &mut BytesMut::new()).is_err());
}

#[test]
fn fixed_header() {
    let need = |bytes: &str| assert_eq!(decode(&mut hex(bytes), Some(V5), MAX), Ok(None), "{bytes}");
    ["", "30", "30 80", "30 80 80", "30 05 00 03 61", "c0"].iter().for_each(|bytes| need(bytes));
    refused(V5, "30 80 80 80 80 01", "over four bytes");
    refused(V5, "30 85 00 00 03 61 2f 62", "more bytes than it needs");
    let error = decode(&mut hex("30 ff ff ff 7f"), Some(V5), MAX).unwrap_err();
    assert_eq!(error, CodecError::TooLarge { bytes: 268_435_460, max: MAX });
    let mut buffer = hex("30 ff ff ff 7f 00");
    assert_eq!(decode(&mut buffer, Some(V5), 1 << 30), Ok(None));
    assert!(buffer.capacity() < 100_000, "a length that lies made room for {} bytes", buffer.capacity());
    // Lengths at which the remaining length grows by a byte.
    for payload in [0, 121, 122, 16_377, 16_378, 2_097_145, 2_097_146] {
        let packet =
            Packet::Publish(Publish { payload: vec![7; payload].into(), ..publish(QoS::AtMostOnce, None, b"") });
        let mut out = BytesMut::new();
        encode(&packet, V311, &mut out).unwrap();
        assert_eq!(decode(&mut out, Some(V311), 1 << 22), Ok(Some(packet)));
        assert!(out.is_empty());
    }
}

#[test]
fn the_payload_is_not_copied() {
    let mut out = BytesMut::new();
    encode(&Packet::Publish(publish(QoS::AtLeastOnce, Some(1), b"payload")), V5, &mut out).unwrap();
    let range = out.as_ptr_range();
    let Ok(Some(Packet::Publish(publish))) = decode(&mut out, Some(V5), MAX) else { panic!() };
    assert!(range.contains(&publish.payload.as_ptr()));
    assert!(range.contains(&publish.topic.as_ptr()));
}

#[test]
fn what_may_not_be_sent_is_not_written() {
    let mut out = BytesMut::from(&b"before"[..]);
    let mut check = |packet: Packet, part: &str| {
        let error = encode(&packet, V5, &mut out).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(&out[..], b"before");
    };
    check(Packet::Publish(publish(QoS::AtLeastOnce, None, b"")), "no packet identifier");
    check(Packet::Publish(publish(QoS::AtMostOnce, Some(1), b"")), "packet identifier with");
    check(Packet::Publish(Publish { topic: "a/#".into(), ..publish(QoS::AtMostOnce, None, b"") }), "wildcard");
    check(Packet::Publish(Publish { dup: true, ..publish(QoS::AtMostOnce, None, b"") }), "duplicate");
    check(Packet::PubAck(Ack::success(0)), "packet identifier 0");
    check(Packet::PubAck(Ack { reason: ReasonCode::BANNED, ..Ack::success(1) }), "another packet");
    check(Packet::Connect(Box::new(Connect::new(V311, "x", 0))), "version differs");
    check(Packet::Connect(Box::new(Connect::new(V5, "x".repeat(65_536), 0))), "65,535");
    check(Packet::Connect(Box::new(Connect::new(V5, "\0", 0))), "U+0000");
    let properties = Properties::new().with(Property::ServerKeepAlive(1));
    check(Packet::Disconnect(Disconnect { properties, ..Disconnect::default() }), "does not take");
    check(
        Packet::Subscribe(Subscribe { packet_id: 1, filters: vec![], properties: Properties::new() }),
        "no topic filter",
    );
}

#[test]
fn random_packets_come_back_however_they_are_cut() {
    let mut random = Random::seeded();
    for _ in 0..300 {
        let packets: Vec<Packet> = (0..=random.index(5)).map(|_| random_packet(&mut random)).collect();
        let mut stream = BytesMut::new();
        packets.iter().for_each(|packet| encode(packet, V5, &mut stream).unwrap());
        let mut buffer = BytesMut::new();
        let mut back = Vec::new();
        while !stream.is_empty() {
            let count = (1 + random.index(20)).min(stream.len());
            buffer.extend_from_slice(&stream.split_to(count));
            while let Some(packet) = decode(&mut buffer, Some(V5), MAX).unwrap() {
                back.push(packet);
            }
        }
        assert_eq!(back, packets);
        assert!(buffer.is_empty());
    }
}

/// What a 3.1.1 packet cannot carry is left out, the rest comes back.
#[test]
fn random_packets_survive_3_1_1() {
    let mut random = Random::seeded();
    for _ in 0..1000 {
        let packet = random_packet(&mut random);
        let mut out = BytesMut::new();
        if encode(&packet, V311, &mut out).is_ok() {
            let back = decode(&mut out, Some(V311), MAX).unwrap().unwrap();
            assert_eq!(back.packet_type(), packet.packet_type());
            if let (Packet::Publish(a), Packet::Publish(b)) = (&packet, &back) {
                assert_eq!((&a.topic, &a.payload, a.packet_id), (&b.topic, &b.payload, b.packet_id));
            }
            let mut again = BytesMut::new();
            encode(&back, V311, &mut again).unwrap();
            assert_eq!(decode(&mut again, Some(V311), MAX).unwrap(), Some(back));
        } else {
            assert!(matches!(packet, Packet::Connect(_) | Packet::Auth(_)), "{packet:?}");
        }
    }
}

/// No bytes make it panic, and what it takes it can write again.
#[test]
fn damaged_packets_never_panic() {
    let mut random = Random::seeded();
    for round in 0..20_000 {
        let mut buffer = BytesMut::new();
        encode(&random_packet(&mut random), V5, &mut buffer).unwrap();
        for _ in 0..=random.index(3) {
            let at = random.index(buffer.len());
            buffer[at] = random.draw() as u8;
        }
        let version = [None, Some(V311), Some(V5)][round % 3];
        if let Ok(Some(packet)) = decode(&mut buffer, version, MAX) {
            let version = match &packet {
                Packet::Connect(connect) => connect.version,
                _ => version.unwrap(),
            };
            encode(&packet, version, &mut BytesMut::new()).unwrap();
        }
    }
}
