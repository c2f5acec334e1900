//! Decodes packets.

use bytes::{Buf, Bytes, BytesMut};

use super::properties::{self, Form, Value, place};
use super::{
    Ack, Auth, CodecError, ConnAck, Connect, Disconnect, FILTERS_MAX, PROPERTIES_MAX, Packet, PacketType, Properties,
    Publish, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, Subscription, Text, UnsubAck, Unsubscribe, Version,
    Will, valid_filter, valid_topic,
};

/// The least free space in the buffer while a packet is incomplete, in bytes.
const READ_BYTES: usize = 4096;

type Result<T> = std::result::Result<T, CodecError>;

/// Takes one packet from the front of `buffer`; `None` if more bytes are needed. `version` is the version of the connection's CONNECT; with `None`
/// only CONNECT is accepted. Packets over `packet_bytes_max` are refused as soon as their length is known. After an error the connection must be
/// closed: the buffer's content is unspecified.
pub fn decode(buffer: &mut BytesMut, version: Option<Version>, packet_bytes_max: usize) -> Result<Option<Packet>> {
    let Some(&first) = buffer.first() else { return Ok(None) };
    let Some(packet_type) = PacketType::from_number(first >> 4) else {
        return Err(CodecError::Malformed { packet: "fixed header", reason: "packet type 0 is reserved" });
    };
    let name = packet_type.name();
    let malformed = |reason| CodecError::Malformed { packet: name, reason };
    if version.is_none() && packet_type != PacketType::Connect {
        return Err(CodecError::ExpectedConnect(name));
    }
    let flags = first & 0xf;
    let wanted = match packet_type {
        PacketType::Publish => flags,
        PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => 2,
        _ => 0,
    };
    if flags != wanted {
        return Err(malformed("reserved flags of the fixed header"));
    }
    if packet_type == PacketType::Auth && version == Some(Version::V311) {
        return Err(malformed("packet type 15 is reserved in 3.1.1"));
    }
    let Some((remaining, header)) = remaining_length(&buffer[1..]).map_err(malformed)? else { return Ok(None) };
    let total = 1 + header + remaining;
    if total > packet_bytes_max {
        return Err(CodecError::TooLarge { bytes: total, max: packet_bytes_max });
    }
    if buffer.len() < total {
        // Grows with the received bytes, not with the announced length: ten bytes must not allocate megabytes.
        buffer.reserve((total - buffer.len()).min(buffer.len().max(READ_BYTES)));
        return Ok(None);
    }
    let mut bytes = buffer.split_to(total).freeze();
    bytes.advance(1 + header);
    let version = version.unwrap_or(Version::V5);
    let mut body = Body { bytes, packet: name, v5: version == Version::V5 };
    let packet = body.packet(packet_type, flags)?;
    if !body.bytes.is_empty() {
        return Err(malformed("bytes after the end"));
    }
    Ok(Some(packet))
}

/// The remaining length and the size of its field; `None` if the field is incomplete (1.5.5, 2.1.4).
fn remaining_length(bytes: &[u8]) -> std::result::Result<Option<(usize, usize)>, &'static str> {
    let mut length = 0;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return Err("remaining length in more bytes than it needs");
            }
            return Ok(Some((length, index + 1)));
        }
    }
    if bytes.len() >= 4 { Err("remaining length over four bytes") } else { Ok(None) }
}

/// The bytes after the fixed header.
struct Body {
    bytes: Bytes,
    packet: &'static str,
    v5: bool,
}

impl Body {
    fn packet(&mut self, packet_type: PacketType, flags: u8) -> Result<Packet> {
        Ok(match packet_type {
            PacketType::Connect => Packet::Connect(Box::new(self.connect()?)),
            PacketType::ConnAck => Packet::ConnAck(self.connack()?),
            PacketType::Publish => Packet::Publish(self.publish(flags)?),
            PacketType::PubAck => Packet::PubAck(self.ack(packet_type)?),
            PacketType::PubRec => Packet::PubRec(self.ack(packet_type)?),
            PacketType::PubRel => Packet::PubRel(self.ack(packet_type)?),
            PacketType::PubComp => Packet::PubComp(self.ack(packet_type)?),
            PacketType::Subscribe => Packet::Subscribe(self.subscribe()?),
            PacketType::SubAck => Packet::SubAck(self.suback()?),
            PacketType::Unsubscribe => Packet::Unsubscribe(self.unsubscribe()?),
            PacketType::UnsubAck => Packet::UnsubAck(self.unsuback()?),
            PacketType::PingReq => Packet::PingReq,
            PacketType::PingResp => Packet::PingResp,
            PacketType::Disconnect => {
                let (reason, properties) = self.reason_and_properties(packet_type, place::DISCONNECT)?;
                Packet::Disconnect(Disconnect { reason, properties })
            }
            PacketType::Auth => {
                let (reason, properties) = self.reason_and_properties(packet_type, place::AUTH)?;
                Packet::Auth(Auth { reason, properties })
            }
        })
    }

    fn connect(&mut self) -> Result<Connect> {
        if self.binary()?.as_ref() != b"MQTT" {
            return self.malformed("protocol name is not MQTT");
        }
        let version = match self.byte()? {
            4 => Version::V311,
            5 => Version::V5,
            level => return Err(CodecError::UnsupportedVersion { level }),
        };
        self.v5 = version == Version::V5;
        let flags = self.byte()?;
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let Some(will_qos) = QoS::from_number(flags >> 3 & 3) else {
            return self.malformed("quality of service 3 of the will");
        };
        if flag(0) {
            return self.malformed("reserved connect flag");
        }
        if !flag(2) && (will_qos != QoS::AtMostOnce || flag(5)) {
            return self.malformed("will flags without a will");
        }
        if !self.v5 && flag(6) && !flag(7) {
            return self.malformed("password without a user name");
        }
        let keep_alive_s = self.u16()?;
        let properties = self.properties(place::CONNECT)?;
        let client_id = self.text()?;
        let will = if flag(2) {
            let properties = self.properties(place::WILL)?;
            let topic = self.topic()?;
            Some(Will { topic, payload: self.binary()?, qos: will_qos, retain: flag(5), properties })
        } else {
            None
        };
        let user = if flag(7) { Some(self.text()?) } else { None };
        let password = if flag(6) { Some(self.binary()?) } else { None };
        Ok(Connect { version, clean_start: flag(1), keep_alive_s, client_id, will, user, password, properties })
    }

    fn connack(&mut self) -> Result<ConnAck> {
        let flags = self.byte()?;
        if flags > 1 {
            return self.malformed("reserved acknowledge flags");
        }
        let code = self.byte()?;
        let reason = if self.v5 {
            self.checked(ReasonCode(code), PacketType::ConnAck)?
        } else {
            match ReasonCode::from_connack_v311(code) {
                Some(reason) => reason,
                None => return self.malformed("reserved return code"),
            }
        };
        let session_present = flags == 1;
        if session_present && reason != ReasonCode::SUCCESS {
            return self.protocol("a session present in a refusal");
        }
        Ok(ConnAck { session_present, reason, properties: self.properties(place::CONNACK)? })
    }

    fn publish(&mut self, flags: u8) -> Result<Publish> {
        let Some(qos) = QoS::from_number(flags >> 1 & 3) else {
            return self.malformed("quality of service 3");
        };
        let dup = flags & 8 != 0;
        if dup && qos == QoS::AtMostOnce {
            return self.malformed("a duplicate of quality of service 0");
        }
        let topic = self.text()?;
        let packet_id = if qos == QoS::AtMostOnce { None } else { Some(self.packet_id()?) };
        let properties = self.properties(place::PUBLISH)?;
        if topic.is_empty() {
            if properties.topic_alias().is_none() {
                return self.protocol("neither a topic nor a topic alias");
            }
        } else if !valid_topic(&topic) {
            return self.malformed("wildcard in the topic");
        }
        let payload = std::mem::take(&mut self.bytes);
        Ok(Publish { dup, qos, retain: flags & 1 == 1, topic, packet_id, payload, properties })
    }

    fn ack(&mut self, packet_type: PacketType) -> Result<Ack> {
        let packet_id = self.packet_id()?;
        let (reason, properties) =
            if self.v5 { self.reason_and_properties(packet_type, place::ACK)? } else { Default::default() };
        Ok(Ack { packet_id, reason, properties })
    }

    fn subscribe(&mut self) -> Result<Subscribe> {
        let packet_id = self.packet_id()?;
        let properties = self.properties(place::SUBSCRIBE)?;
        let mut filters = Vec::new();
        while !self.bytes.is_empty() {
            self.one_more(filters.len(), FILTERS_MAX, "topic filters")?;
            let filter = self.filter()?;
            let options = self.byte()?;
            let reserved = if self.v5 { 0xc0 } else { 0xfc };
            let retain_handling = match options >> 4 & 3 {
                0 => RetainHandling::Send,
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => return self.protocol("retain handling 3"),
            };
            let Some(qos) = QoS::from_number(options & 3) else {
                return self.malformed("quality of service 3");
            };
            if options & reserved != 0 {
                return self.malformed("reserved subscription options");
            }
            let no_local = options & 4 != 0;
            if no_local && super::shared(&filter).is_some() {
                return self.protocol("no-local on a shared subscription");
            }
            filters.push(Subscription {
                filter,
                qos,
                no_local,
                retain_as_published: options & 8 != 0,
                retain_handling,
            });
        }
        if filters.is_empty() {
            return self.protocol("no topic filter");
        }
        Ok(Subscribe { packet_id, filters, properties })
    }

    fn suback(&mut self) -> Result<SubAck> {
        let packet_id = self.packet_id()?;
        let properties = self.properties(place::ACK)?;
        let reasons = self.reasons(PacketType::SubAck)?;
        if !self.v5 && reasons.iter().any(|reason| !matches!(reason.0, 0..=2 | 0x80)) {
            return self.malformed("reserved return code");
        }
        Ok(SubAck { packet_id, reasons, properties })
    }

    fn unsubscribe(&mut self) -> Result<Unsubscribe> {
        let packet_id = self.packet_id()?;
        let properties = self.properties(place::UNSUBSCRIBE)?;
        let mut filters = Vec::new();
        while !self.bytes.is_empty() {
            self.one_more(filters.len(), FILTERS_MAX, "topic filters")?;
            filters.push(self.filter()?);
        }
        if filters.is_empty() {
            return self.protocol("no topic filter");
        }
        Ok(Unsubscribe { packet_id, filters, properties })
    }

    fn unsuback(&mut self) -> Result<UnsubAck> {
        let packet_id = self.packet_id()?;
        let properties = self.properties(place::ACK)?;
        let reasons = if self.v5 { self.reasons(PacketType::UnsubAck)? } else { Vec::new() };
        Ok(UnsubAck { packet_id, reasons, properties })
    }

    /// The remaining bytes as reason codes; at least one.
    fn reasons(&mut self, packet_type: PacketType) -> Result<Vec<ReasonCode>> {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() {
            return self.malformed("no reason code");
        }
        bytes.iter().map(|&code| self.checked(ReasonCode(code), packet_type)).collect()
    }

    /// The reason code and the properties, which are omitted for success without properties; 3.1.1 has neither.
    fn reason_and_properties(&mut self, packet_type: PacketType, at: u16) -> Result<(ReasonCode, Properties)> {
        if !self.v5 || self.bytes.is_empty() {
            return Ok(Default::default());
        }
        let code = ReasonCode(self.byte()?);
        let reason = self.checked(code, packet_type)?;
        let properties = if self.bytes.is_empty() { Properties::new() } else { self.properties(at)? };
        Ok((reason, properties))
    }

    fn checked(&self, reason: ReasonCode, packet_type: PacketType) -> Result<ReasonCode> {
        if reason.allowed_in(packet_type) { Ok(reason) } else { self.malformed("reason code of another packet") }
    }

    fn properties(&mut self, at: u16) -> Result<Properties> {
        if !self.v5 {
            return Ok(Properties::new());
        }
        let length = self.varint()? as usize;
        if length == 0 {
            return Ok(Properties::new());
        }
        let mut inner = Body { bytes: self.take(length)?, packet: self.packet, v5: true };
        let mut list = Vec::new();
        while !inner.bytes.is_empty() {
            self.one_more(list.len(), PROPERTIES_MAX, "properties")?;
            list.push(inner.property()?);
        }
        match properties::check(&list, at) {
            Ok(()) => Ok(Properties(list)),
            Err(reason) => self.protocol(reason),
        }
    }

    fn property(&mut self) -> Result<super::Property> {
        // All known identifiers are below 128 and take one byte.
        let id = self.byte()?;
        let Some((form, _)) = properties::describe(id) else {
            return self.malformed("unknown property");
        };
        let value = match form {
            Form::Flag => match self.byte()? {
                0 => Value::Flag(false),
                1 => Value::Flag(true),
                _ => return self.protocol("property that must be 0 or 1"),
            },
            Form::U16 => Value::U16(self.u16()?),
            Form::U32 => Value::U32(u32::from_be_bytes(self.array()?)),
            Form::VarInt => Value::VarInt(self.varint()?),
            Form::Text => Value::Text(self.text()?),
            Form::Binary => Value::Binary(self.binary()?),
            Form::Pair => Value::Pair(self.text()?, self.text()?),
        };
        match properties::make(id, value) {
            Some(property) => Ok(property),
            None => self.malformed("unknown property"),
        }
    }

    fn malformed<T>(&self, reason: &'static str) -> Result<T> {
        Err(CodecError::Malformed { packet: self.packet, reason })
    }

    /// Fails if the count is at its maximum.
    fn one_more(&self, count: usize, max: usize, what: &'static str) -> Result<()> {
        if count < max { Ok(()) } else { Err(CodecError::TooMany { packet: self.packet, what, max }) }
    }

    fn protocol<T>(&self, reason: &'static str) -> Result<T> {
        Err(CodecError::Protocol { packet: self.packet, reason })
    }

    fn take(&mut self, count: usize) -> Result<Bytes> {
        if count > self.bytes.len() {
            return self.malformed("cut short");
        }
        Ok(self.bytes.split_to(count))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.bytes.first_chunk::<N>().copied() {
            Some(array) => {
                self.bytes.advance(N);
                Ok(array)
            }
            None => self.malformed("cut short"),
        }
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn packet_id(&mut self) -> Result<u16> {
        match self.u16()? {
            0 => self.malformed("packet identifier 0"),
            id => Ok(id),
        }
    }

    fn varint(&mut self) -> Result<u32> {
        match remaining_length(&self.bytes) {
            Ok(Some((number, bytes))) => {
                self.bytes.advance(bytes);
                Ok(number as u32)
            }
            Ok(None) => self.malformed("cut short"),
            Err(_) => self.malformed("variable byte integer is not in its shortest form of up to four bytes"),
        }
    }

    fn binary(&mut self) -> Result<Bytes> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    fn text(&mut self) -> Result<Text> {
        let bytes = self.binary()?;
        if bytes.contains(&0) {
            return self.malformed("U+0000 in a text");
        }
        match Text::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => self.malformed("text is not UTF-8"),
        }
    }

    fn topic(&mut self) -> Result<Text> {
        let topic = self.text()?;
        if valid_topic(&topic) { Ok(topic) } else { self.malformed("topic is empty or has a wildcard") }
    }

    fn filter(&mut self) -> Result<Text> {
        let filter = self.text()?;
        if valid_filter(&filter) { Ok(filter) } else { self.malformed("topic filter is not valid") }
    }
}
