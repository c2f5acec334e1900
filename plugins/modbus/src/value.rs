//! Values from the bytes of registers and bits: types, orders of bytes and words, values that mean "none".

use std::fmt;
use std::str::FromStr;

/// The type of a value in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegisterType {
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    /// Four decimal digits in 16 bits.
    Bcd16,
    /// Eight decimal digits in 32 bits.
    Bcd32,
    /// One bit of a register, or a coil or discrete input.
    Bit,
}

impl RegisterType {
    /// The number of registers of a value.
    pub fn registers(self) -> u16 {
        match self {
            RegisterType::U16 | RegisterType::I16 | RegisterType::Bcd16 | RegisterType::Bit => 1,
            RegisterType::U32 | RegisterType::I32 | RegisterType::F32 | RegisterType::Bcd32 => 2,
            RegisterType::U64 | RegisterType::I64 | RegisterType::F64 => 4,
        }
    }

    /// Whether the values are floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, RegisterType::F32 | RegisterType::F64)
    }

    /// The first value that a counter of this type cannot represent. `None` for types that are no counters, or that are too large for a modulus.
    pub fn modulus(self) -> Option<u64> {
        match self {
            RegisterType::U16 => Some(1 << 16),
            RegisterType::U32 => Some(1 << 32),
            RegisterType::Bcd16 => Some(10_000),
            RegisterType::Bcd32 => Some(100_000_000),
            _ => None,
        }
    }
}

/// The order in which a device sends the bytes of a value. `A` is the most significant byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// `ABCD`: as Modbus has it within a register.
    Big,
    /// `CDAB`: the least significant register first.
    WordSwap,
    /// `BADC`: the bytes of each register exchanged.
    ByteSwap,
    /// `DCBA`: bytes and words are swapped.
    Little,
    /// Any other order of two, four or eight bytes: the place, from the most significant, of each received byte.
    Explicit { places: [u8; 8], length: u8 },
}

impl FromStr for ByteOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "big" => return Ok(ByteOrder::Big),
            "word-swap" => return Ok(ByteOrder::WordSwap),
            "byte-swap" => return Ok(ByteOrder::ByteSwap),
            "little" => return Ok(ByteOrder::Little),
            _ => {}
        }
        let wrong = || {
            format!(
                "`{text}` is no order of bytes; write big, word-swap, byte-swap, little, or each byte once by a letter, A the \
                 most significant, in the order in which the device sends them, such as CDAB"
            )
        };
        let (mut places, mut present) = ([0; 8], [false; 8]);
        if ![2, 4, 8].contains(&text.len()) {
            return Err(wrong());
        }
        for (place, letter) in places.iter_mut().zip(text.bytes()) {
            let index = letter.to_ascii_uppercase().wrapping_sub(b'A');
            match present[..text.len()].get_mut(usize::from(index)) {
                Some(present) if !*present => (*present, *place) = (true, index),
                _ => return Err(wrong()),
            }
        }
        Ok(ByteOrder::Explicit { places, length: text.len() as u8 })
    }
}

impl fmt::Display for ByteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ByteOrder::Big => f.write_str("big"),
            ByteOrder::WordSwap => f.write_str("word-swap"),
            ByteOrder::ByteSwap => f.write_str("byte-swap"),
            ByteOrder::Little => f.write_str("little"),
            ByteOrder::Explicit { places, length } => {
                places[..usize::from(*length)].iter().try_for_each(|p| write!(f, "{}", char::from(b'A' + p)))
            }
        }
    }
}

impl ByteOrder {
    /// Whether the order is one for values of `registers` registers. Names fit all.
    pub fn fits(self, registers: u16) -> bool {
        match self {
            ByteOrder::Explicit { length, .. } => u16::from(length) == registers * 2,
            _ => true,
        }
    }

    /// The place of the received byte `index` of `length`, from the most significant.
    fn place(self, index: usize, length: usize) -> usize {
        match self {
            ByteOrder::Big => index,
            ByteOrder::WordSwap => length - 2 - index / 2 * 2 + index % 2,
            ByteOrder::ByteSwap => index ^ 1,
            ByteOrder::Little => length - 1 - index,
            ByteOrder::Explicit { places, .. } => usize::from(places[index]),
        }
    }

    /// The bits of a value in received bytes, of which there are two, four or eight.
    fn bits(self, bytes: &[u8]) -> u64 {
        let length = bytes.len();
        bytes
            .iter()
            .enumerate()
            .fold(0, |bits, (index, byte)| bits | u64::from(*byte) << (8 * (length - 1 - self.place(index, length))))
    }
}

/// A value as the row of a sample has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RegisterValue {
    Int(i64),
    Float(f64),
}

/// How the value of one sensor is read from the bytes of its registers.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    pub data_type: RegisterType,
    pub order: ByteOrder,
    /// The bit of [`RegisterType::Bit`] in a register, 0 the least significant.
    pub bit: u8,
    /// Raw values by which the device says that it has no value.
    pub absent: Vec<i64>,
    /// Factor and summand that make a floating-point value of the raw one. `None` where the raw value is kept.
    pub linear: Option<(f64, f64)>,
}

impl Decoder {
    /// The value in the bytes of [`RegisterType::registers`] registers. `None` where they have none: a number that is not finite, a decimal digit above
    /// 9, a number that an `i64` cannot have, or an absent value.
    pub fn value(&self, bytes: &[u8]) -> Option<RegisterValue> {
        let bits = self.order.bits(bytes);
        let value = match self.data_type {
            RegisterType::U16 | RegisterType::U32 => RegisterValue::Int(bits as i64),
            RegisterType::U64 => RegisterValue::Int(i64::try_from(bits).ok()?),
            RegisterType::I16 => RegisterValue::Int((bits as i16).into()),
            RegisterType::I32 => RegisterValue::Int((bits as i32).into()),
            RegisterType::I64 => RegisterValue::Int(bits as i64),
            RegisterType::F32 => RegisterValue::Float(f32::from_bits(bits as u32).into()),
            RegisterType::F64 => RegisterValue::Float(f64::from_bits(bits)),
            RegisterType::Bcd16 => RegisterValue::Int(decimal(bits, 4)?),
            RegisterType::Bcd32 => RegisterValue::Int(decimal(bits, 8)?),
            RegisterType::Bit => RegisterValue::Int((bits >> self.bit & 1) as i64),
        };
        self.finish(value)
    }

    /// The value of a coil or discrete input.
    pub fn bit_value(&self, is_set: bool) -> Option<RegisterValue> {
        self.finish(RegisterValue::Int(is_set.into()))
    }

    fn finish(&self, value: RegisterValue) -> Option<RegisterValue> {
        match value {
            RegisterValue::Float(v) if !v.is_finite() || self.absent.iter().any(|a| *a as f64 == v) => return None,
            RegisterValue::Int(v) if self.absent.contains(&v) => return None,
            _ => {}
        }
        let Some((scale, offset)) = self.linear else { return Some(value) };
        let raw = match value {
            RegisterValue::Int(v) => v as f64,
            RegisterValue::Float(v) => v,
        };
        let scaled = raw * scale + offset;
        scaled.is_finite().then_some(RegisterValue::Float(scaled))
    }
}

/// A number of decimal digits in four bits each.
fn decimal(bits: u64, digits: u32) -> Option<i64> {
    (0..digits).rev().try_fold(0, |number, digit| {
        let digit = (bits >> (4 * digit) & 0xf) as i64;
        (digit < 10).then_some(number * 10 + digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(data_type: RegisterType, order: &str) -> Decoder {
        let order = order.parse().expect("an order");
        Decoder { data_type, order, bit: 0, absent: Vec::new(), linear: None }
    }

    fn check(data_type: RegisterType, order: &str, bytes: &[u8], expected: Option<RegisterValue>) {
        assert_eq!(decoder(data_type, order).value(bytes), expected, "{data_type:?} {order} {bytes:02x?}");
    }

    #[test]
    fn every_order_of_a_number() {
        let number = Some(RegisterValue::Int(0x0102_0304));
        for (orders, bytes) in [
            (["big", "ABCD"], [1, 2, 3, 4]),
            (["word-swap", "CDAB"], [3, 4, 1, 2]),
            (["byte-swap", "BADC"], [2, 1, 4, 3]),
            (["little", "dcba"], [4, 3, 2, 1]),
        ] {
            orders.iter().for_each(|order| check(RegisterType::U32, order, &bytes, number));
        }
        let number = Some(RegisterValue::Int(0x0102_0304_0506_0708));
        for (order, bytes) in [
            ("big", [1, 2, 3, 4, 5, 6, 7, 8]),
            ("word-swap", [7, 8, 5, 6, 3, 4, 1, 2]),
            ("byte-swap", [2, 1, 4, 3, 6, 5, 8, 7]),
            ("little", [8, 7, 6, 5, 4, 3, 2, 1]),
            ("EFGHABCD", [5, 6, 7, 8, 1, 2, 3, 4]),
        ] {
            check(RegisterType::U64, order, &bytes, number);
        }
        check(RegisterType::U16, "byte-swap", &[2, 1], Some(RegisterValue::Int(0x0102)));
        check(RegisterType::U16, "word-swap", &[1, 2], Some(RegisterValue::Int(0x0102)));
    }

    #[test]
    fn orders_that_name_a_byte_twice_or_not_are_refused() {
        for wrong in ["", "A", "ABC", "AACD", "ABCE", "ABCDEFGHI", "middle", "ABCDEF", "ÄB"] {
            assert!(wrong.parse::<ByteOrder>().is_err(), "{wrong}");
        }
        let order: ByteOrder = "CDAB".parse().expect("an order");
        assert!(order.fits(2) && !order.fits(1) && !order.fits(4) && ByteOrder::Little.fits(4));
        assert_eq!(order.to_string(), "CDAB");
    }

    #[test]
    fn signs_and_fractions() {
        check(RegisterType::I16, "big", &[0xff, 0xfe], Some(RegisterValue::Int(-2)));
        check(RegisterType::I32, "word-swap", &[0xff, 0xfe, 0xff, 0xff], Some(RegisterValue::Int(-2)));
        check(RegisterType::I64, "big", &[0xff; 8], Some(RegisterValue::Int(-1)));
        check(RegisterType::U64, "big", &[0xff; 8], None);
        check(RegisterType::F32, "big", &230.5f32.to_be_bytes(), Some(RegisterValue::Float(230.5)));
        check(RegisterType::F64, "little", &(-0.25f64).to_le_bytes(), Some(RegisterValue::Float(-0.25)));
        check(RegisterType::F32, "big", &f32::NAN.to_be_bytes(), None);
        check(RegisterType::F64, "big", &f64::INFINITY.to_be_bytes(), None);
    }

    #[test]
    fn decimal_digits_and_bits() {
        check(RegisterType::Bcd16, "big", &[0x12, 0x34], Some(RegisterValue::Int(1234)));
        check(RegisterType::Bcd32, "word-swap", &[0x56, 0x78, 0x12, 0x34], Some(RegisterValue::Int(12_345_678)));
        check(RegisterType::Bcd16, "big", &[0x12, 0x3a], None);
        let bit = |bit| Decoder { bit, ..decoder(RegisterType::Bit, "big") }.value(&[0x80, 0x01]);
        assert_eq!([bit(0), bit(1), bit(15)], [1, 0, 1].map(|v| Some(RegisterValue::Int(v))));
    }

    #[test]
    fn absent_values_are_none_before_they_are_scaled() {
        let absent = Decoder { absent: vec![-32768], ..decoder(RegisterType::I16, "big") };
        let linear = Decoder { linear: Some((0.1, -40.0)), ..absent.clone() };
        assert_eq!(absent.value(&[0x80, 0]), None);
        assert_eq!(linear.value(&[0x80, 0]), None);
        assert_eq!(linear.value(&[0x02, 0x58]), Some(RegisterValue::Float(20.0)));
        assert_eq!(absent.value(&[0x02, 0x58]), Some(RegisterValue::Int(600)));
        let float = Decoder { absent: vec![-9999], ..decoder(RegisterType::F32, "big") };
        assert_eq!(float.value(&(-9999.0f32).to_be_bytes()), None);
    }
}
