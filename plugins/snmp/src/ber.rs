//! The Basic Encoding Rules of ASN.1 (X.690), as far as SNMP uses them (RFC 3417, section 8): definite lengths, low tag numbers.

use std::fmt;

/// The most numbers of an object identifier (RFC 2578, section 3.5).
pub const OID_NUMBERS_MAX: usize = 128;

pub const INTEGER: u8 = 0x02;
pub const OCTET_STRING: u8 = 0x04;
pub const NULL: u8 = 0x05;
pub const OBJECT_ID: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;

/// Bytes that are not the encoding of the expected type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an SNMP message: {0}")]
pub struct BerError(pub &'static str);

/// An object identifier: `1.3.6.1.2.1.1.3.0`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Oid(Vec<u32>);

impl Oid {
    /// Takes the numbers of an identifier.
    pub fn new(numbers: impl Into<Vec<u32>>) -> Self {
        Self(numbers.into())
    }

    /// Parses `1.3.6.1`, also with a leading dot.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('.').unwrap_or(text);
        let numbers: Vec<u32> = text.split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let is_good = (2..=OID_NUMBERS_MAX).contains(&numbers.len()) && numbers[0] < 3 && numbers[1] < 40;
        is_good.then_some(Self(numbers))
    }

    /// The numbers from left to right.
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// The numbers after `prefix`, if the identifier lies below it.
    pub fn below(&self, prefix: &Oid) -> Option<&[u32]> {
        self.0.strip_prefix(prefix.0.as_slice()).filter(|rest| !rest.is_empty())
    }

    /// This identifier with `last` after it.
    pub fn child(&self, last: u32) -> Self {
        Self(self.0.iter().copied().chain([last]).collect())
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if at == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Appends a value whose content `write` appends.
pub fn put(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    if length < 0x80 {
        out.insert(start, length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        let head = [0x80 | (bytes.len() - zeros) as u8];
        out.splice(start..start, head.into_iter().chain(bytes[zeros..].iter().copied()));
    }
}

/// Appends a signed integer in the fewest bytes.
pub fn put_integer(out: &mut Vec<u8>, tag: u8, value: i64) {
    let bytes = value.to_be_bytes();
    let redundant = bytes
        .windows(2)
        .take_while(|pair| (pair[0] == 0 && pair[1] < 0x80) || (pair[0] == 0xff && pair[1] >= 0x80))
        .count();
    put(out, tag, |out| out.extend_from_slice(&bytes[redundant..]));
}

/// Appends an object identifier.
pub fn put_oid(out: &mut Vec<u8>, oid: &Oid) {
    put(out, OBJECT_ID, |out| {
        let numbers = oid.numbers();
        let first = numbers.first().copied().unwrap_or(0) * 40 + numbers.get(1).copied().unwrap_or(0);
        for number in std::iter::once(first).chain(numbers.iter().skip(2).copied()) {
            let groups = (1..5).rev().filter(|group| number >> (7 * group) > 0);
            out.extend(groups.map(|group| 0x80 | (number >> (7 * group) & 0x7f) as u8));
            out.push((number & 0x7f) as u8);
        }
    });
}

/// Reads values one after the other.
#[derive(Clone, Copy)]
pub struct BerReader<'a> {
    bytes: &'a [u8],
}

impl<'a> BerReader<'a> {
    /// A reader of these bytes, which are not trusted.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], BerError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(BerError("it is cut short"))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// The next value: its tag and its content.
    pub fn any(&mut self) -> Result<(u8, &'a [u8]), BerError> {
        let head = self.take(2)?;
        let (tag, length) = (head[0], head[1]);
        if tag & 0x1f == 0x1f {
            return Err(BerError("a tag of several bytes"));
        }
        let length = match length {
            0..=0x7f => usize::from(length),
            0x81..=0x84 => {
                let bytes = self.take(usize::from(length & 0x7f))?;
                bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
            }
            _ => return Err(BerError("a length without end or of more than four bytes")),
        };
        Ok((tag, self.take(length)?))
    }

    /// The content of the next value, which has this tag.
    pub fn tagged(&mut self, tag: u8) -> Result<&'a [u8], BerError> {
        match self.any()? {
            (is, content) if is == tag => Ok(content),
            _ => Err(BerError("a value of another type")),
        }
    }

    /// A reader of the content of the next value, which has this tag.
    pub fn inner(&mut self, tag: u8) -> Result<BerReader<'a>, BerError> {
        Ok(Self::new(self.tagged(tag)?))
    }

    /// The next value, an INTEGER.
    pub fn integer(&mut self) -> Result<i64, BerError> {
        signed(self.tagged(INTEGER)?)
    }

    /// The next value, an OBJECT IDENTIFIER.
    pub fn oid(&mut self) -> Result<Oid, BerError> {
        oid(self.tagged(OBJECT_ID)?)
    }
}

/// A signed integer of 1 to 8 bytes.
pub fn signed(content: &[u8]) -> Result<i64, BerError> {
    match content {
        [first, ..] if content.len() <= 8 => {
            let start = if *first >= 0x80 { -1 } else { 0 };
            Ok(content.iter().fold(start, |value, byte| value << 8 | i64::from(*byte)))
        }
        _ => Err(BerError("an integer of no or more than eight bytes")),
    }
}

/// An unsigned integer of at most 64 bits. Some agents omit the zero before a first bit of 1: they mean a positive number as well.
pub fn unsigned(content: &[u8]) -> Result<u64, BerError> {
    match content {
        [0, rest @ ..] | rest if (1..=9).contains(&content.len()) && rest.len() <= 8 => {
            Ok(rest.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        }
        _ => Err(BerError("an integer of no or more than 64 bits")),
    }
}

/// The numbers of an encoded object identifier.
pub fn oid(content: &[u8]) -> Result<Oid, BerError> {
    let mut numbers = Vec::with_capacity(content.len() + 1);
    let mut number = 0u32;
    let mut is_complete = true;
    for byte in content {
        if number >> 25 != 0 {
            return Err(BerError("an object identifier with a number over 32 bits"));
        }
        number = number << 7 | u32::from(byte & 0x7f);
        is_complete = byte & 0x80 == 0;
        if is_complete {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.extend([first, number - first * 40]);
            } else {
                numbers.push(number);
            }
            number = 0;
        }
        if numbers.len() > OID_NUMBERS_MAX {
            return Err(BerError("an object identifier of more than 128 numbers"));
        }
    }
    if numbers.is_empty() || !is_complete {
        return Err(BerError("an object identifier without end"));
    }
    Ok(Oid(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_in_both_directions() {
        for value in [0, 1, 127, 128, 255, 256, -1, -128, -129, i64::from(i32::MAX), i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_integer(&mut out, INTEGER, value);
            assert_eq!(BerReader::new(&out).integer(), Ok(value));
        }
        let mut out = Vec::new();
        put_integer(&mut out, INTEGER, 128);
        assert_eq!(out, [2, 2, 0, 128]);
        assert_eq!(unsigned(&[0, 0xff, 0xff, 0xff, 0xff]), Ok(u64::from(u32::MAX)));
        assert_eq!(unsigned(&[0xff, 0xff, 0xff, 0xff]), Ok(u64::from(u32::MAX)));
        assert_eq!(unsigned(&[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Ok(u64::MAX));
        assert!(unsigned(&[]).is_err() && unsigned(&[1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err() && signed(&[]).is_err());
    }

    #[test]
    fn identifiers_in_both_directions() {
        for text in ["1.3.6.1.2.1.1.3.0", "0.0", "2.39.1", "1.3.4294967295.128.16384.127"] {
            let mut out = Vec::new();
            let written = Oid::parse(text).unwrap();
            put_oid(&mut out, &written);
            let read = BerReader::new(&out).oid().unwrap();
            assert_eq!((read.to_string().as_str(), &read), (text, &written));
        }
        assert!([".1", "1", "", "1.x", "3.1", "1.40", "1.4294967296"].iter().all(|text| Oid::parse(text).is_none()));
        assert!(
            oid(&[0x2b, 0x81]).is_err() && oid(&[]).is_err() && oid(&[0x2b, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err()
        );
        assert!(oid(&[1; 200]).is_err());
    }

    #[test]
    fn lengths() {
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let mut out = Vec::new();
            put(&mut out, OCTET_STRING, |out| out.resize(out.len() + length, 7));
            assert_eq!(BerReader::new(&out).tagged(OCTET_STRING).unwrap().len(), length);
            assert!(BerReader::new(&out[..out.len() - 1]).any().is_err());
        }
        for bad in
            [&[4, 0x80][..], &[4, 0x85, 0, 0, 0, 0, 1, 1], &[0x1f, 1, 1], &[4], &[4, 0x84, 0xff, 0xff, 0xff, 0xff]]
        {
            assert!(BerReader::new(bad).any().is_err(), "{bad:?}");
        }
    }
}
