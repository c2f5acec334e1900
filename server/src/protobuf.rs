//! Reads the fields of protobuf messages, without copies and without I/O. A field is a varint of number and wire type, then a varint (0), eight
//! bytes (1), a length and that many bytes (2), or four bytes (5).

/// Why a message is invalid.
pub type WireError = &'static str;

/// The value of one field, by its wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireValue<'a> {
    Int(u64),
    Bytes(&'a [u8]),
    /// Eight bytes, little-endian: a double or a fixed integer.
    Fixed64(u64),
    /// Four bytes, little-endian: a float or a fixed integer.
    Fixed32(u32),
}

impl WireValue<'_> {
    /// The value of a field of type double.
    pub fn double(self) -> Option<f64> {
        if let WireValue::Fixed64(bits) = self { Some(f64::from_bits(bits)) } else { None }
    }
}

/// Iterates over the fields of a message: numbers and values. The first error ends it.
#[derive(Debug, Clone)]
pub struct WireFields<'a>(pub &'a [u8]);

const CUT: WireError = "it is truncated";

/// Takes a varint from the beginning of `bytes`.
pub fn varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(CUT)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number has over ten bytes")
}

/// The text of a field of type string.
pub fn utf8(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")
}

impl<'a> WireFields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], WireError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(CUT)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn field(&mut self) -> Result<(u64, WireValue<'a>), WireError> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => WireValue::Int(varint(&mut self.0)?),
            1 => WireValue::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let length = varint(&mut self.0)?;
                WireValue::Bytes(self.take(usize::try_from(length).map_err(|_| CUT)?)?)
            }
            5 => WireValue::Fixed32(u32::from_le_bytes(self.fixed()?)),
            _ => return Err("it is not protobuf"),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for WireFields<'a> {
    type Item = Result<(u64, WireValue<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_type_is_read_and_the_first_error_ends_a_message() {
        let message = [0x08, 0x96, 0x01, 0x11, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x1a, 1, b'x', 0x25, 7, 0, 0, 0];
        let read: Result<Vec<_>, _> = WireFields(&message).collect();
        let read = read.unwrap();
        assert_eq!((read[0], read[1].1.double()), ((1, WireValue::Int(150)), Some(1.5)));
        assert_eq!(read[2..], [(3, WireValue::Bytes(b"x")), (4, WireValue::Fixed32(7))]);
        for end in [2, 5, 11, 14, 17] {
            let read: Vec<_> = WireFields(&message[..end]).collect();
            assert_eq!(read.iter().position(Result::is_err), Some(read.len() - 1), "{end}: {read:?}");
        }
    }
}
