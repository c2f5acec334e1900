//! Random packets of every type, valid in MQTT 5.

use bytes::Bytes;
use wholegrain_transport::mqtt::Version::V5;
use wholegrain_transport::mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketType, Properties, Property, Publish, QoS, ReasonCode,
    RetainHandling, SubAck, Subscribe, Subscription, Text, UnsubAck, Unsubscribe, Will,
};

use wholegrain_testkit::Random;

fn random_text(random: &mut Random) -> Text {
    const LETTERS: [&str; 8] = ["a", "/", "é", "𝄞", "b", "\u{1}", " ", "xyz"];
    (0..random.index(9)).map(|_| LETTERS[random.index(8)]).collect::<String>().into()
}

fn random_topic(random: &mut Random) -> Text {
    format!("t{}", random_text(random)).into()
}

fn random_bytes(random: &mut Random) -> Bytes {
    let count = random.index(40);
    random.bytes(count).into()
}

/// Some of the properties that the packet takes, each at most once.
fn random_properties(random: &mut Random, packet: &str) -> Properties {
    use Property::*;
    let number = random.draw() as u16 | 1;
    let all: Vec<(Property, &str)> = vec![
        (PayloadFormatIndicator(random.chance(50)), "will publish"),
        (MessageExpiryInterval(random.draw() as u32), "will publish"),
        (ContentType(random_text(random)), "will publish"),
        (ResponseTopic(random_topic(random)), "will publish"),
        (CorrelationData(random_bytes(random)), "will publish"),
        (SubscriptionIdentifier(1 + random.draw() as u32 % 268_435_455), "publish subscribe"),
        (SessionExpiryInterval(random.draw() as u32), "connect connack disconnect"),
        (AssignedClientIdentifier(random_text(random)), "connack"),
        (ServerKeepAlive(number), "connack"),
        (AuthenticationMethod(random_text(random)), "connect connack auth"),
        (RequestProblemInformation(random.chance(50)), "connect"),
        (WillDelayInterval(random.draw() as u32), "will"),
        (RequestResponseInformation(random.chance(50)), "connect"),
        (ResponseInformation(random_text(random)), "connack"),
        (ServerReference(random_text(random)), "connack disconnect"),
        (ReasonString(random_text(random)), "connack ack disconnect auth"),
        (ReceiveMaximum(number), "connect connack"),
        (TopicAliasMaximum(number), "connect connack"),
        (TopicAlias(number), "publish"),
        (MaximumQoS(random.chance(50)), "connack"),
        (RetainAvailable(random.chance(50)), "connack"),
        (MaximumPacketSize(u32::from(number)), "connect connack"),
        (WildcardSubscriptionAvailable(random.chance(50)), "connack"),
        (SubscriptionIdentifierAvailable(random.chance(50)), "connack"),
        (SharedSubscriptionAvailable(random.chance(50)), "connack"),
    ];
    let percent = [0, 20, 100][random.index(3)];
    let mut properties = Properties::new();
    for (property, packets) in all {
        if packets.split(' ').any(|name| name == packet) && random.chance(percent) {
            properties = properties.with(property);
        }
    }
    for _ in 0..if random.chance(20) { random.index(3) } else { 0 } {
        properties = properties.with(UserProperty(random_text(random), random_text(random)));
    }
    properties
}

fn random_reason(random: &mut Random, packet: PacketType) -> ReasonCode {
    loop {
        let reason = ReasonCode(random.draw() as u8);
        if reason.allowed_in(packet) {
            return reason;
        }
    }
}

fn random_ack(random: &mut Random, packet: PacketType) -> Ack {
    Ack {
        packet_id: random.draw() as u16 | 1,
        reason: random_reason(random, packet),
        properties: random_properties(random, "ack"),
    }
}

fn random_connect(random: &mut Random) -> Packet {
    let qos = QoS::from_number(random.index(3) as u8).unwrap();
    let will = Will {
        topic: random_topic(random),
        payload: random_bytes(random),
        qos,
        retain: random.chance(50),
        properties: random_properties(random, "will"),
    };
    Packet::Connect(Box::new(Connect {
        version: V5,
        clean_start: random.chance(50),
        keep_alive_s: random.draw() as u16,
        client_id: random_text(random),
        will: random.chance(50).then_some(will),
        user: random.chance(50).then(|| random_text(random)),
        password: random.chance(50).then(|| random_bytes(random)),
        properties: random_properties(random, "connect"),
    }))
}

pub fn random_packet(random: &mut Random) -> Packet {
    let packet_type = PacketType::from_number(1 + random.index(15) as u8).unwrap();
    let packet_id = random.draw() as u16 | 1;
    let qos = QoS::from_number(random.index(3) as u8).unwrap();
    match packet_type {
        PacketType::Connect => random_connect(random),
        PacketType::ConnAck => {
            let reason = random_reason(random, packet_type);
            let session_present = reason == ReasonCode::SUCCESS && random.chance(50);
            Packet::ConnAck(ConnAck { session_present, reason, properties: random_properties(random, "connack") })
        }
        PacketType::Publish => Packet::Publish(Publish {
            dup: qos != QoS::AtMostOnce && random.chance(50),
            qos,
            retain: random.chance(50),
            topic: random_topic(random),
            packet_id: (qos != QoS::AtMostOnce).then_some(packet_id),
            payload: random_bytes(random),
            properties: random_properties(random, "publish"),
        }),
        PacketType::PubAck => Packet::PubAck(random_ack(random, packet_type)),
        PacketType::PubRec => Packet::PubRec(random_ack(random, packet_type)),
        PacketType::PubRel => Packet::PubRel(random_ack(random, packet_type)),
        PacketType::PubComp => Packet::PubComp(random_ack(random, packet_type)),
        PacketType::Subscribe => {
            let filters = (0..=random.index(3))
                .map(|_| Subscription {
                    filter: random_topic(random),
                    qos,
                    no_local: random.chance(50),
                    retain_as_published: random.chance(50),
                    retain_handling: [RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend]
                        [random.index(3)],
                })
                .collect();
            Packet::Subscribe(Subscribe { packet_id, filters, properties: random_properties(random, "subscribe") })
        }
        PacketType::SubAck => {
            let reasons = (0..=random.index(3)).map(|_| random_reason(random, packet_type)).collect();
            Packet::SubAck(SubAck { packet_id, reasons, properties: random_properties(random, "ack") })
        }
        PacketType::Unsubscribe => {
            let filters = (0..=random.index(3)).map(|_| random_topic(random)).collect();
            Packet::Unsubscribe(Unsubscribe {
                packet_id,
                filters,
                properties: random_properties(random, "unsubscribe"),
            })
        }
        PacketType::UnsubAck => {
            let reasons = (0..=random.index(3)).map(|_| random_reason(random, packet_type)).collect();
            Packet::UnsubAck(UnsubAck { packet_id, reasons, properties: random_properties(random, "ack") })
        }
        PacketType::PingReq => Packet::PingReq,
        PacketType::PingResp => Packet::PingResp,
        PacketType::Disconnect => {
            let reason = random_reason(random, packet_type);
            Packet::Disconnect(Disconnect { reason, properties: random_properties(random, "disconnect") })
        }
        PacketType::Auth => {
            let reason = random_reason(random, packet_type);
            Packet::Auth(Auth { reason, properties: random_properties(random, "auth") })
        }
    }
}
