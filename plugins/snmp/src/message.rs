//! Requests and answers: PDUs (RFC 3416) in messages of the versions 1 and 2c (RFC 1901). `usm.rs` has the messages of version 3.

use crate::ber::{self, BerError, BerReader, Oid};

pub const GET: u8 = 0xa0;
pub const GET_NEXT: u8 = 0xa1;
pub const RESPONSE: u8 = 0xa2;
pub const GET_BULK: u8 = 0xa5;
pub const REPORT: u8 = 0xa8;

/// The error of an answer that does not fit into a message.
pub const TOO_BIG: i64 = 1;
/// The error of version 1 for a name that does not exist.
pub const NO_SUCH_NAME: i64 = 2;

/// A value that an agent answered.
#[derive(Debug, Clone, PartialEq)]
pub enum SnmpValue {
    Integer(i64),
    Counter32(u32),
    /// A value of type Gauge32 or Unsigned32.
    Gauge32(u32),
    /// Hundredths of a second.
    TimeTicks(u32),
    Counter64(u64),
    /// An Opaque of Net-SNMP with a float or a double.
    Float(f64),
    Text(Vec<u8>),
    /// A type that is no number: an object identifier, an address, bits.
    Other,
    /// There is no value with this name.
    Absent,
    /// There is no name after this one.
    EndOfMib,
}

/// The values of an answer, in the order of the request.
pub type Varbinds = Vec<(Oid, SnmpValue)>;

/// A request. For GETBULK, `repetitions` names are asked for after each one.
#[derive(Debug, Clone, Copy)]
pub struct PduRequest<'a> {
    pub kind: u8,
    pub id: i32,
    pub repetitions: u32,
    pub names: &'a [Oid],
}

/// An answer or a report.
#[derive(Debug, Clone, PartialEq)]
pub struct PduAnswer {
    pub kind: u8,
    pub id: i64,
    pub error: i64,
    /// The number of the name with the error, from 1.
    pub error_index: i64,
    pub values: Varbinds,
}

/// Appends the PDU of a request.
pub fn put_request(out: &mut Vec<u8>, request: &PduRequest<'_>) {
    ber::put(out, request.kind, |out| {
        ber::put_integer(out, ber::INTEGER, i64::from(request.id));
        // For GETBULK the two numbers are the non-repeaters and the maximum of repetitions, else 0.
        ber::put_integer(out, ber::INTEGER, 0);
        ber::put_integer(out, ber::INTEGER, i64::from(request.repetitions));
        ber::put(out, ber::SEQUENCE, |out| {
            for name in request.names {
                ber::put(out, ber::SEQUENCE, |out| {
                    ber::put_oid(out, name);
                    ber::put(out, ber::NULL, |_| {});
                });
            }
        });
    });
}

/// Reads the PDU of an answer.
pub fn read_answer(reader: &mut BerReader<'_>) -> Result<PduAnswer, BerError> {
    let (kind, content) = reader.any()?;
    if kind != RESPONSE && kind != REPORT {
        return Err(BerError("it is no answer"));
    }
    let mut pdu = BerReader::new(content);
    let (id, error, error_index) = (pdu.integer()?, pdu.integer()?, pdu.integer()?);
    let mut list = pdu.inner(ber::SEQUENCE)?;
    let mut values = Vec::new();
    while !list.is_empty() {
        let mut binding = list.inner(ber::SEQUENCE)?;
        values.push((binding.oid()?, value(binding.any()?)?));
    }
    Ok(PduAnswer { kind, id, error, error_index, values })
}

fn value((tag, content): (u8, &[u8])) -> Result<SnmpValue, BerError> {
    let number32 = |content| {
        let number = ber::unsigned(content)?;
        u32::try_from(number).map_err(|_| BerError("a number of 32 bits with more than these"))
    };
    Ok(match tag {
        ber::INTEGER => SnmpValue::Integer(ber::signed(content)?),
        ber::OCTET_STRING => SnmpValue::Text(content.to_vec()),
        0x41 => SnmpValue::Counter32(number32(content)?),
        0x42 => SnmpValue::Gauge32(number32(content)?),
        0x43 => SnmpValue::TimeTicks(number32(content)?),
        0x44 => opaque(content),
        0x46 => SnmpValue::Counter64(ber::unsigned(content)?),
        0x80 | 0x81 => SnmpValue::Absent,
        0x82 => SnmpValue::EndOfMib,
        _ => SnmpValue::Other,
    })
}

/// An Opaque that Net-SNMP fills with a float (`9f 78 04`) or a double (`9f 79 08`).
fn opaque(content: &[u8]) -> SnmpValue {
    match content {
        [0x9f, 0x78, 4, a, b, c, d] => SnmpValue::Float(f64::from(f32::from_be_bytes([*a, *b, *c, *d]))),
        [0x9f, 0x79, 8, bytes @ ..] => {
            bytes.try_into().map_or(SnmpValue::Other, |b| SnmpValue::Float(f64::from_be_bytes(b)))
        }
        _ => SnmpValue::Other,
    }
}

/// Appends a message of version 1 (`version` 0) or 2c (1).
pub fn put_community_message(out: &mut Vec<u8>, version: u8, community: &[u8], request: &PduRequest<'_>) {
    ber::put(out, ber::SEQUENCE, |out| {
        ber::put_integer(out, ber::INTEGER, i64::from(version));
        ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(community));
        put_request(out, request);
    });
}

/// Reads a message of version 1 or 2c with this community.
pub fn read_community_message(bytes: &[u8], version: u8, community: &[u8]) -> Result<PduAnswer, BerError> {
    let mut message = BerReader::new(bytes).inner(ber::SEQUENCE)?;
    if message.integer()? != i64::from(version) || message.tagged(ber::OCTET_STRING)? != community {
        return Err(BerError("another version or community"));
    }
    read_answer(&mut message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_bytes_of_the_standard() {
        let names = [Oid::parse("1.3.6.1.2.1.1.3.0").unwrap()];
        let mut out = Vec::new();
        put_community_message(&mut out, 1, b"public", &PduRequest { kind: GET, id: 5, repetitions: 0, names: &names });
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "302602010104067075626c6963a019020105020100020100300e300c06082b060102010103000500");
    }

    #[test]
    fn values_of_all_types() {
        let check = |tag: u8, content: &[u8], expected: SnmpValue| assert_eq!(value((tag, content)), Ok(expected));
        check(2, &[0xff], SnmpValue::Integer(-1));
        check(0x41, &[0, 0xff, 0xff, 0xff, 0xff], SnmpValue::Counter32(u32::MAX));
        check(0x42, &[5], SnmpValue::Gauge32(5));
        check(0x43, &[1, 0], SnmpValue::TimeTicks(256));
        check(0x46, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], SnmpValue::Counter64(u64::MAX));
        check(0x44, &[0x9f, 0x78, 4, 0x41, 0xbc, 0, 0], SnmpValue::Float(23.5));
        check(0x44, &[1, 2], SnmpValue::Other);
        check(4, b"abc", SnmpValue::Text(b"abc".to_vec()));
        check(0x80, &[], SnmpValue::Absent);
        check(0x82, &[], SnmpValue::EndOfMib);
        check(0x40, &[127, 0, 0, 1], SnmpValue::Other);
        assert!(value((0x41, &[1, 0, 0, 0, 0])).is_err());
    }
}
