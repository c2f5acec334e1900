//! Messages of BACnet/IP: the datagram (annex J), the network layer (clause 6) and the services (clauses 13 to 16) that this source uses.

use crate::tag::{
    INSTANCE_MAX, Malformed, ObjectId, Tag, TagReader, TaggedValue, object, put_closing, put_context_bool,
    put_context_object, put_context_unsigned, put_opening, unsigned,
};

/// The first byte of every datagram of BACnet/IP.
const BVLC: u8 = 0x81;
const BVLC_UNICAST: u8 = 0x0a;
const BVLC_BROADCAST: u8 = 0x0b;
const BVLC_FORWARDED: u8 = 0x04;
/// The network layer's bit for an answer that is expected.
const EXPECTS_ANSWER: u8 = 0x04;
/// The largest answer that this source takes, in bytes: code 5 of 20.1.2.5.
pub const APDU_BYTES_MAX: usize = 1476;
const APDU_CODE: u8 = 5;

const SERVICE_COV: u8 = 1;
const SERVICE_UNCONFIRMED_COV: u8 = 2;
const SERVICE_SUBSCRIBE_COV: u8 = 5;
const SERVICE_READ: u8 = 12;
const SERVICE_READ_MULTIPLE: u8 = 14;
const SERVICE_WHO_IS: u8 = 8;
const SERVICE_I_AM: u8 = 0;

/// Properties that this source reads (clause 21, BACnetPropertyIdentifier).
pub mod property {
    pub const MAX_PRES_VALUE: u32 = 65;
    pub const OBJECT_IDENTIFIER: u32 = 75;
    pub const OBJECT_LIST: u32 = 76;
    pub const OBJECT_NAME: u32 = 77;
    pub const PRESENT_VALUE: u32 = 85;
    pub const STATUS_FLAGS: u32 = 111;
    pub const SYSTEM_STATUS: u32 = 112;
    pub const UNITS: u32 = 117;
    pub const SCALE: u32 = 187;
}

/// A property of an object, or one element of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PropertyRef {
    pub object: ObjectId,
    pub property: u32,
    pub index: Option<u32>,
}

/// Why a property has no value: class and code of an error (clause 18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PropertyError {
    pub class: u32,
    pub code: u32,
}

/// The error of a device that lacks the object.
pub const UNKNOWN_OBJECT: PropertyError = PropertyError { class: 1, code: 31 };

impl std::fmt::Display for PropertyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            31 => f.write_str("unknown object"),
            32 => f.write_str("unknown property"),
            42 => f.write_str("invalid array index"),
            27 => f.write_str("read access denied"),
            code => write!(f, "error class {}, code {code}", self.class),
        }
    }
}

/// The values of a property.
pub type PropertyResult = Result<Vec<TaggedValue>, PropertyError>;

/// What a device says of itself (16.10.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceIdentity {
    pub instance: u32,
    pub apdu_bytes_max: usize,
}

/// A change of an object's values (13.7.1).
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeNotice {
    pub process: u32,
    pub device: u32,
    pub object: ObjectId,
    pub values: Vec<(u32, Vec<TaggedValue>)>,
}

/// A message from a device.
#[derive(Debug, Clone, PartialEq)]
pub enum DeviceMessage {
    IAm(DeviceIdentity),
    /// An answer to ReadProperty or ReadPropertyMultiple.
    Values {
        invoke: u8,
        values: Vec<(PropertyRef, PropertyResult)>,
    },
    /// The service was done, and has no values.
    Done {
        invoke: u8,
    },
    Error {
        invoke: u8,
        error: PropertyError,
    },
    /// The device does not have the service, or refuses the request (clause 18.9).
    Reject {
        invoke: u8,
        reason: u8,
    },
    /// The device cannot answer (18.10): the answer would be too long, for one.
    Abort {
        invoke: u8,
        reason: u8,
    },
    /// `invoke` is the number to acknowledge, of a notice that is confirmed.
    Change {
        invoke: Option<u8>,
        notice: ChangeNotice,
    },
    /// Something else that BACnet knows.
    Other,
}

/// Begins a datagram for one device.
fn begin(out: &mut Vec<u8>, function: u8, expects_answer: bool) {
    out.extend_from_slice(&[BVLC, function, 0, 0, 1, if expects_answer { EXPECTS_ANSWER } else { 0 }]);
}

/// Sets the length of a datagram.
fn end(out: &mut [u8]) {
    let length = u16::try_from(out.len()).unwrap_or(u16::MAX).to_be_bytes();
    out[2..4].copy_from_slice(&length);
}

fn begin_confirmed(out: &mut Vec<u8>, invoke: u8, service: u8) {
    begin(out, BVLC_UNICAST, true);
    // No segments, neither sent nor accepted: requests are divided instead.
    out.extend_from_slice(&[0x00, APDU_CODE, invoke, service]);
}

/// Asks for the identity of the device that has this address, or with `broadcast` of all in the network.
pub fn who_is(out: &mut Vec<u8>, instance: Option<u32>, is_broadcast: bool) {
    begin(out, if is_broadcast { BVLC_BROADCAST } else { BVLC_UNICAST }, false);
    out.extend_from_slice(&[0x10, SERVICE_WHO_IS]);
    if let Some(instance) = instance {
        put_context_unsigned(out, 0, instance);
        put_context_unsigned(out, 1, instance);
    }
    end(out);
}

/// A ReadProperty request (clause 15.5).
pub fn read_property(out: &mut Vec<u8>, invoke: u8, wanted: PropertyRef) {
    begin_confirmed(out, invoke, SERVICE_READ);
    put_context_object(out, 0, wanted.object);
    put_context_unsigned(out, 1, wanted.property);
    if let Some(index) = wanted.index {
        put_context_unsigned(out, 2, index);
    }
    end(out);
}

/// ReadPropertyMultiple (15.7). Properties of one object stand together if they follow each other.
pub fn read_multiple(out: &mut Vec<u8>, invoke: u8, wanted: &[PropertyRef]) {
    begin_confirmed(out, invoke, SERVICE_READ_MULTIPLE);
    for of_object in wanted.chunk_by(|a, b| a.object == b.object) {
        put_context_object(out, 0, of_object[0].object);
        put_opening(out, 1);
        for one in of_object {
            put_context_unsigned(out, 0, one.property);
            if let Some(index) = one.index {
                put_context_unsigned(out, 1, index);
            }
        }
        put_closing(out, 1);
    }
    end(out);
}

/// A SubscribeCOV request (clause 13.14).
pub fn subscribe(out: &mut Vec<u8>, invoke: u8, process: u32, object: ObjectId, confirmed: bool, lifetime_s: u32) {
    begin_confirmed(out, invoke, SERVICE_SUBSCRIBE_COV);
    put_context_unsigned(out, 0, process);
    put_context_object(out, 1, object);
    put_context_bool(out, 2, confirmed);
    put_context_unsigned(out, 3, lifetime_s);
    end(out);
}

/// The acknowledgement of a confirmed notice.
pub fn acknowledge(out: &mut Vec<u8>, invoke: u8) {
    begin(out, BVLC_UNICAST, false);
    out.extend_from_slice(&[0x20, invoke, SERVICE_COV]);
    end(out);
}

/// Reads one datagram of a device.
pub fn parse(datagram: &[u8]) -> Result<DeviceMessage, Malformed> {
    let [BVLC, function, high, low, rest @ ..] = datagram else { return Err(Malformed) };
    if usize::from(u16::from_be_bytes([*high, *low])) != datagram.len() {
        return Err(Malformed);
    }
    let npdu = match *function {
        BVLC_UNICAST | BVLC_BROADCAST => rest,
        // The address of the device for which another one forwards.
        BVLC_FORWARDED => rest.get(6..).ok_or(Malformed)?,
        _ => return Ok(DeviceMessage::Other),
    };
    match network(npdu)? {
        Some(apdu) => application(apdu),
        None => Ok(DeviceMessage::Other),
    }
}

/// The bytes after the header of the network layer (6.2); `None` for a message of that layer.
fn network(npdu: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let [1, control, rest @ ..] = npdu else { return Err(Malformed) };
    let mut rest = rest;
    let has_destination = control & 0x20 != 0;
    for has_address in [has_destination, control & 0x08 != 0] {
        if has_address {
            let [_, _, length, after @ ..] = rest else { return Err(Malformed) };
            rest = after.get(usize::from(*length)..).ok_or(Malformed)?;
        }
    }
    if has_destination {
        rest = rest.get(1..).ok_or(Malformed)?;
    }
    Ok((control & 0x80 == 0).then_some(rest))
}

fn application(apdu: &[u8]) -> Result<DeviceMessage, Malformed> {
    match *apdu {
        [first, ..] if first >> 4 == 0 => match apdu {
            [first, _, invoke, SERVICE_COV, rest @ ..] if first & 0x08 == 0 => {
                Ok(DeviceMessage::Change { invoke: Some(*invoke), notice: change(rest)? })
            }
            [_, _, _, _, ..] => Ok(DeviceMessage::Other),
            _ => Err(Malformed),
        },
        [first, SERVICE_I_AM, ref rest @ ..] if first >> 4 == 1 => i_am(rest),
        [first, SERVICE_UNCONFIRMED_COV, ref rest @ ..] if first >> 4 == 1 => {
            Ok(DeviceMessage::Change { invoke: None, notice: change(rest)? })
        }
        [first, _, ..] if first >> 4 == 1 => Ok(DeviceMessage::Other),
        [first, invoke, _] if first >> 4 == 2 => Ok(DeviceMessage::Done { invoke }),
        // A part of a longer answer: none was asked for in parts.
        [first, invoke, ..] if first >> 4 == 3 && first & 0x08 != 0 => {
            Ok(DeviceMessage::Abort { invoke, reason: ABORT_SEGMENTATION })
        }
        [first, invoke, SERVICE_READ, ref rest @ ..] if first >> 4 == 3 => {
            Ok(DeviceMessage::Values { invoke, values: vec![read_answer(rest)?] })
        }
        [first, invoke, SERVICE_READ_MULTIPLE, ref rest @ ..] if first >> 4 == 3 => {
            Ok(DeviceMessage::Values { invoke, values: multiple_answer(rest)? })
        }
        [first, _, _, ..] if first >> 4 == 3 || first >> 4 == 4 => Ok(DeviceMessage::Other),
        [first, invoke, _, ref rest @ ..] if first >> 4 == 5 => {
            Ok(DeviceMessage::Error { invoke, error: error(&mut TagReader::new(rest))? })
        }
        [first, invoke, reason] if first >> 4 == 6 => Ok(DeviceMessage::Reject { invoke, reason }),
        [first, invoke, reason] if first >> 4 == 7 => Ok(DeviceMessage::Abort { invoke, reason }),
        _ => Err(Malformed),
    }
}

/// The reasons of an abort that a shorter answer avoids (18.10): the buffer is too small, or segments are needed.
const ABORT_BUFFER: u8 = 1;
const ABORT_SEGMENTATION: u8 = 4;
/// Reasons of a reject (18.9) that a shorter request avoids.
const REJECT_BUFFER: u8 = 1;
const REJECT_TOO_MANY: u8 = 7;
const ABORT_APDU_TOO_LONG: u8 = 11;

/// Whether a shorter request can succeed after an abort for this reason.
pub fn is_too_long(reason: u8) -> bool {
    matches!(reason, ABORT_BUFFER | ABORT_SEGMENTATION | ABORT_APDU_TOO_LONG)
}

/// Whether a shorter request can succeed after a reject for this reason.
pub fn is_reject_too_long(reason: u8) -> bool {
    matches!(reason, REJECT_BUFFER | REJECT_TOO_MANY)
}

/// The reason of a reject by a device that does not have the service.
pub const REJECT_UNRECOGNIZED_SERVICE: u8 = 9;

fn i_am(bytes: &[u8]) -> Result<DeviceMessage, Malformed> {
    let mut reader = TagReader::new(bytes);
    match (reader.value()?, reader.value()?) {
        (TaggedValue::Object(object), TaggedValue::Unsigned(bytes)) if object.kind == 8 => {
            let apdu_bytes_max = usize::try_from(bytes).unwrap_or(APDU_BYTES_MAX).clamp(50, APDU_BYTES_MAX);
            Ok(DeviceMessage::IAm(DeviceIdentity { instance: object.instance, apdu_bytes_max }))
        }
        _ => Err(Malformed),
    }
}

fn small(content: &[u8]) -> Result<u32, Malformed> {
    u32::try_from(unsigned(content)?).map_err(|_| Malformed)
}

fn error(reader: &mut TagReader<'_>) -> Result<PropertyError, Malformed> {
    match (reader.value()?, reader.value()?) {
        (TaggedValue::Enumerated(class), TaggedValue::Enumerated(code)) => Ok(PropertyError { class, code }),
        _ => Err(Malformed),
    }
}

fn read_answer(bytes: &[u8]) -> Result<(PropertyRef, PropertyResult), Malformed> {
    let mut reader = TagReader::new(bytes);
    let object = object(reader.context(0)?)?;
    let property = small(reader.context(1)?)?;
    let index = reader.optional(2).map(small).transpose()?;
    reader.expect(Tag::Opening(3))?;
    let values = reader.values_to_closing(3)?;
    if !reader.is_empty() {
        return Err(Malformed);
    }
    Ok((PropertyRef { object, property, index }, Ok(values)))
}

fn multiple_answer(bytes: &[u8]) -> Result<Vec<(PropertyRef, PropertyResult)>, Malformed> {
    let (mut reader, mut all) = (TagReader::new(bytes), Vec::new());
    while !reader.is_empty() {
        let object = object(reader.context(0)?)?;
        reader.expect(Tag::Opening(1))?;
        while reader.peek()? != Tag::Closing(1) {
            let property = small(reader.context(2)?)?;
            let index = reader.optional(3).map(small).transpose()?;
            let result = match reader.next()? {
                Tag::Opening(4) => Ok(reader.values_to_closing(4)?),
                Tag::Opening(5) => {
                    let error = error(&mut reader)?;
                    reader.expect(Tag::Closing(5))?;
                    Err(error)
                }
                _ => return Err(Malformed),
            };
            all.push((PropertyRef { object, property, index }, result));
        }
        reader.expect(Tag::Closing(1))?;
    }
    Ok(all)
}

fn change(bytes: &[u8]) -> Result<ChangeNotice, Malformed> {
    let mut reader = TagReader::new(bytes);
    let process = small(reader.context(0)?)?;
    let device = object(reader.context(1)?)?.instance;
    let changed = object(reader.context(2)?)?;
    reader.context(3)?;
    reader.expect(Tag::Opening(4))?;
    let mut values = Vec::new();
    while reader.peek()? != Tag::Closing(4) {
        let property = small(reader.context(0)?)?;
        reader.optional(1);
        reader.expect(Tag::Opening(2))?;
        values.push((property, reader.values_to_closing(2)?));
        reader.optional(3);
    }
    reader.expect(Tag::Closing(4))?;
    Ok(ChangeNotice { process, device, object: changed, values })
}

/// The device object for which any instance stands.
pub const ANY_DEVICE: ObjectId = ObjectId { kind: 8, instance: INSTANCE_MAX };

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
