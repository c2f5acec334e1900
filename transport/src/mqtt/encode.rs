//! Encodes packets. Properties and reason codes are omitted for 3.1.1, which has none.

use bytes::{BufMut, BytesMut};

use super::properties::{self, Value, place};
use super::{
    Ack, CodecError, ConnAck, Connect, FIELD_BYTES_MAX, Packet, PacketType, Properties, Property, QoS,
    REMAINING_LENGTH_MAX, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe, Version, valid_filter, valid_topic,
};

type EncodeResult<T> = std::result::Result<T, &'static str>;

/// Appends one packet to `out`; after an error `out` is unchanged.
pub fn encode(packet: &Packet, version: Version, out: &mut BytesMut) -> std::result::Result<(), CodecError> {
    let packet_type = packet.packet_type();
    if let Packet::Publish(publish) = packet {
        let parts = PublishParts {
            dup: publish.dup,
            qos: publish.qos,
            retain: publish.retain,
            topic: &publish.topic,
            packet_id: publish.packet_id,
            payload: &publish.payload,
            properties: &publish.properties,
        };
        return encode_publish(&parts, version, out);
    }
    let start = out.len();
    let flags = match packet_type {
        PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => 2,
        _ => 0,
    };
    out.put_u8((packet_type as u8) << 4 | flags);
    // Room for the shortest length; a longer one moves the body.
    out.put_u8(0);
    let result = Writer { out, v5: version == Version::V5 }.body(packet).and_then(|()| {
        let remaining = out.len() - start - 2;
        insert_length(remaining, start + 1, out)
    });
    result.map_err(|reason| {
        out.truncate(start);
        CodecError::Unencodable { packet: packet_type.name(), reason }
    })
}

/// A PUBLISH with a borrowed topic and payload, so that a sender copies its batches only once.
#[derive(Debug, Clone, Copy)]
pub struct PublishParts<'a> {
    pub dup: bool,
    pub qos: QoS,
    /// The server retains the message for later subscribers.
    pub retain: bool,
    pub topic: &'a str,
    /// Present exactly when `qos` is above 0; never 0.
    pub packet_id: Option<u16>,
    pub payload: &'a [u8],
    /// Omitted in version 3.1.1.
    pub properties: &'a Properties,
}

/// Appends one PUBLISH to `out`; after an error `out` is unchanged.
pub fn encode_publish(
    publish: &PublishParts<'_>,
    version: Version,
    out: &mut BytesMut,
) -> std::result::Result<(), CodecError> {
    let start = out.len();
    put_publish(publish, version == Version::V5, out).map_err(|reason| {
        out.truncate(start);
        CodecError::Unencodable { packet: PacketType::Publish.name(), reason }
    })
}

fn put_publish(publish: &PublishParts<'_>, v5: bool, out: &mut BytesMut) -> EncodeResult<()> {
    let aliased = v5 && publish.properties.topic_alias().is_some() && publish.topic.is_empty();
    if !aliased && !valid_topic(publish.topic) {
        return Err("topic is empty, too long or has a wildcard");
    }
    if publish.dup && publish.qos == QoS::AtMostOnce {
        return Err("a duplicate of quality of service 0");
    }
    match (publish.qos, publish.packet_id) {
        (QoS::AtMostOnce, None) => {}
        (QoS::AtMostOnce, Some(_)) => return Err("packet identifier with quality of service 0"),
        (_, None | Some(0)) => return Err("no packet identifier"),
        _ => {}
    }
    let start = out.len();
    let flags = u8::from(publish.dup) << 3 | (publish.qos as u8) << 1 | u8::from(publish.retain);
    out.reserve(publish.topic.len() + publish.payload.len() + 16);
    out.put_u8((PacketType::Publish as u8) << 4 | flags);
    out.put_u8(0);
    let mut writer = Writer { out, v5 };
    writer.binary(publish.topic.as_bytes())?;
    if let Some(id) = publish.packet_id {
        writer.out.put_u16(id);
    }
    writer.properties(publish.properties, place::PUBLISH)?;
    // The length precedes the payload, so that a large payload is not moved.
    let remaining = out.len() - start - 2 + publish.payload.len();
    insert_length(remaining, start + 1, out)?;
    out.put_slice(publish.payload);
    Ok(())
}

/// Replaces the byte at `at` by a variable byte integer.
fn insert_length(length: usize, at: usize, out: &mut BytesMut) -> EncodeResult<()> {
    if length > REMAINING_LENGTH_MAX {
        return Err("longer than MQTT can say");
    }
    let (bytes, count) = varint(length as u32);
    let end = out.len();
    out.resize(end + count - 1, 0);
    out.copy_within(at + 1..end, at + count);
    out[at..at + count].copy_from_slice(&bytes[..count]);
    Ok(())
}

fn varint(mut number: u32) -> ([u8; 4], usize) {
    let mut bytes = [0; 4];
    let mut count = 0;
    loop {
        bytes[count] = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 || count == 3 {
            return (bytes, count + 1);
        }
        bytes[count] |= 0x80;
        count += 1;
    }
}

struct Writer<'a> {
    out: &'a mut BytesMut,
    v5: bool,
}

impl Writer<'_> {
    fn body(mut self, packet: &Packet) -> EncodeResult<()> {
        match packet {
            Packet::Connect(connect) => self.connect(connect),
            Packet::ConnAck(connack) => self.connack(connack),
            Packet::Publish(_) => Err("written elsewhere"),
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
                self.ack(ack, packet.packet_type())
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe),
            Packet::SubAck(suback) => self.suback(suback),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(unsubscribe),
            Packet::UnsubAck(unsuback) => self.unsuback(unsuback),
            Packet::PingReq | Packet::PingResp => Ok(()),
            Packet::Disconnect(disconnect) => {
                self.reason_and_properties(disconnect.reason, &disconnect.properties, PacketType::Disconnect)
            }
            Packet::Auth(_) if !self.v5 => Err("3.1.1 has no such packet"),
            Packet::Auth(auth) => self.reason_and_properties(auth.reason, &auth.properties, PacketType::Auth),
        }
    }

    fn connect(&mut self, connect: &Connect) -> EncodeResult<()> {
        if (connect.version == Version::V5) != self.v5 {
            return Err("version differs from the connection's");
        }
        if !self.v5 && connect.password.is_some() && connect.user.is_none() {
            return Err("password without a user name");
        }
        let will_flags = connect.will.as_ref().map_or(0, |will| 4 | (will.qos as u8) << 3 | u8::from(will.retain) << 5);
        let flags = u8::from(connect.clean_start) << 1
            | will_flags
            | u8::from(connect.password.is_some()) << 6
            | u8::from(connect.user.is_some()) << 7;
        self.binary(b"MQTT")?;
        self.out.put_u8(if self.v5 { 5 } else { 4 });
        self.out.put_u8(flags);
        self.out.put_u16(connect.keep_alive_s);
        self.properties(&connect.properties, place::CONNECT)?;
        self.text(&connect.client_id)?;
        if let Some(will) = &connect.will {
            self.properties(&will.properties, place::WILL)?;
            if !valid_topic(&will.topic) {
                return Err("topic of the will is empty, too long or has a wildcard");
            }
            self.text(&will.topic)?;
            self.binary(&will.payload)?;
        }
        if let Some(user) = &connect.user {
            self.text(user)?;
        }
        if let Some(password) = &connect.password {
            self.binary(password)?;
        }
        Ok(())
    }

    fn connack(&mut self, connack: &ConnAck) -> EncodeResult<()> {
        if connack.session_present && connack.reason != ReasonCode::SUCCESS {
            return Err("a session present in a refusal");
        }
        self.out.put_u8(u8::from(connack.session_present));
        if self.v5 {
            self.reason(connack.reason, PacketType::ConnAck)?;
        } else {
            self.out.put_u8(connack.reason.to_connack_v311());
        }
        self.properties(&connack.properties, place::CONNACK)
    }

    fn ack(&mut self, ack: &Ack, packet_type: PacketType) -> EncodeResult<()> {
        self.packet_id(ack.packet_id)?;
        self.reason_and_properties(ack.reason, &ack.properties, packet_type)
    }

    fn subscribe(&mut self, subscribe: &Subscribe) -> EncodeResult<()> {
        self.packet_id(subscribe.packet_id)?;
        self.properties(&subscribe.properties, place::SUBSCRIBE)?;
        if subscribe.filters.is_empty() {
            return Err("no topic filter");
        }
        for wanted in &subscribe.filters {
            self.filter(&wanted.filter)?;
            if wanted.no_local && super::shared(&wanted.filter).is_some() {
                return Err("no-local on a shared subscription");
            }
            let options = u8::from(wanted.no_local) << 2
                | u8::from(wanted.retain_as_published) << 3
                | (wanted.retain_handling as u8) << 4;
            self.out.put_u8(wanted.qos as u8 | if self.v5 { options } else { 0 });
        }
        Ok(())
    }

    fn suback(&mut self, suback: &SubAck) -> EncodeResult<()> {
        self.packet_id(suback.packet_id)?;
        self.properties(&suback.properties, place::ACK)?;
        if suback.reasons.is_empty() {
            return Err("no reason code");
        }
        for &reason in &suback.reasons {
            let reason = if !self.v5 && reason.is_error() { ReasonCode::UNSPECIFIED_ERROR } else { reason };
            self.reason(reason, PacketType::SubAck)?;
        }
        Ok(())
    }

    fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) -> EncodeResult<()> {
        self.packet_id(unsubscribe.packet_id)?;
        self.properties(&unsubscribe.properties, place::UNSUBSCRIBE)?;
        if unsubscribe.filters.is_empty() {
            return Err("no topic filter");
        }
        unsubscribe.filters.iter().try_for_each(|filter| self.filter(filter))
    }

    fn unsuback(&mut self, unsuback: &UnsubAck) -> EncodeResult<()> {
        self.packet_id(unsuback.packet_id)?;
        self.properties(&unsuback.properties, place::ACK)?;
        if !self.v5 {
            return Ok(());
        }
        if unsuback.reasons.is_empty() {
            return Err("no reason code");
        }
        unsuback.reasons.iter().try_for_each(|&reason| self.reason(reason, PacketType::UnsubAck))
    }

    /// Omits the reason code and the properties for success without properties.
    fn reason_and_properties(
        &mut self,
        reason: ReasonCode,
        list: &Properties,
        packet_type: PacketType,
    ) -> EncodeResult<()> {
        if !self.v5 || reason == ReasonCode::SUCCESS && list.is_empty() {
            return Ok(());
        }
        self.reason(reason, packet_type)?;
        if list.is_empty() {
            return Ok(());
        }
        let at = match packet_type {
            PacketType::Disconnect => place::DISCONNECT,
            PacketType::Auth => place::AUTH,
            _ => place::ACK,
        };
        self.properties(list, at)
    }

    fn reason(&mut self, reason: ReasonCode, packet_type: PacketType) -> EncodeResult<()> {
        if !reason.allowed_in(packet_type) {
            return Err("reason code of another packet");
        }
        self.out.put_u8(reason.0);
        Ok(())
    }

    fn properties(&mut self, list: &Properties, at: u16) -> EncodeResult<()> {
        if !self.v5 {
            return Ok(());
        }
        if list.is_empty() {
            self.out.put_u8(0);
            return Ok(());
        }
        properties::check(&list.0, at)?;
        let start = self.out.len();
        self.out.put_u8(0);
        list.0.iter().try_for_each(|property| self.property(property))?;
        let length = self.out.len() - start - 1;
        insert_length(length, start, self.out)
    }

    fn property(&mut self, property: &Property) -> EncodeResult<()> {
        self.out.put_u8(property.id());
        match properties::value(property) {
            Value::Flag(flag) => self.out.put_u8(u8::from(flag)),
            Value::U16(number) => self.out.put_u16(number),
            Value::U32(number) => self.out.put_u32(number),
            Value::VarInt(number) if number as usize > REMAINING_LENGTH_MAX => return Err("number over four bytes"),
            Value::VarInt(number) => {
                let (bytes, count) = varint(number);
                self.out.put_slice(&bytes[..count]);
            }
            Value::Text(text) => self.text(&text)?,
            Value::Binary(bytes) => self.binary(&bytes)?,
            Value::Pair(name, value) => {
                self.text(&name)?;
                self.text(&value)?;
            }
        }
        Ok(())
    }

    fn packet_id(&mut self, id: u16) -> EncodeResult<()> {
        if id == 0 {
            return Err("packet identifier 0");
        }
        self.out.put_u16(id);
        Ok(())
    }

    fn binary(&mut self, bytes: &[u8]) -> EncodeResult<()> {
        if bytes.len() > FIELD_BYTES_MAX {
            return Err("field over 65,535 bytes");
        }
        self.out.put_u16(bytes.len() as u16);
        self.out.put_slice(bytes);
        Ok(())
    }

    fn text(&mut self, text: &str) -> EncodeResult<()> {
        if text.contains('\0') {
            return Err("U+0000 in a text");
        }
        self.binary(text.as_bytes())
    }

    fn filter(&mut self, filter: &str) -> EncodeResult<()> {
        if !valid_filter(filter) {
            return Err("topic filter is not valid");
        }
        self.binary(filter.as_bytes())
    }
}
