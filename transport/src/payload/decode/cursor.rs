//! A position in a payload's bytes. Every step checks the bounds.

use super::DecodeResult;
use crate::payload::PayloadError;

#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// The error `reason` at this position.
    #[cold]
    pub fn fail<T>(&self, reason: &'static str) -> DecodeResult<T> {
        Err(PayloadError::Malformed { reason, offset: self.at })
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> DecodeResult<&'a [u8]> {
        let Some(slice) = self.bytes.get(self.at..).and_then(|rest| rest.get(..count)) else {
            return self.fail("cut short");
        };
        self.at += count;
        Ok(slice)
    }

    /// A bit for each of `count` differences. Bits after the last difference are refused, because skipping the column would count them.
    pub fn changes(&mut self, steps: usize) -> DecodeResult<&'a [u8]> {
        let bitmap = self.take(steps.div_ceil(8))?;
        match (steps % 8, bitmap.last()) {
            (used @ 1.., Some(last)) if last >> used != 0 => self.fail("changes after the last sample"),
            _ => Ok(bitmap),
        }
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> DecodeResult<[u8; N]> {
        match self.take(N)?.first_chunk() {
            Some(array) => Ok(*array),
            None => self.fail("cut short"),
        }
    }

    /// The next byte, without interpretation.
    #[inline]
    pub fn byte(&mut self) -> DecodeResult<u8> {
        let Some(&byte) = self.bytes.get(self.at) else {
            return self.fail("cut short");
        };
        self.at += 1;
        Ok(byte)
    }

    /// The next LEB128 number of at most 64 bits.
    #[inline]
    pub fn varint(&mut self) -> DecodeResult<u64> {
        let byte = self.byte()?;
        if byte < 0x80 { Ok(u64::from(byte)) } else { self.long_varint(u64::from(byte & 0x7f)) }
    }

    /// As `varint`, without a branch for each byte; faster if most numbers have several bytes.
    #[inline]
    pub fn wide_varint(&mut self) -> DecodeResult<u64> {
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) else {
            return self.varint();
        };
        let word = u64::from_le_bytes(*bytes);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends == 0 {
            return self.varint();
        }
        let used = ends.trailing_zeros() / 8 + 1;
        self.at += used as usize;
        // Seven bits of each byte, moved together in pairs, then pairs of pairs.
        let word = word & (u64::MAX >> (64 - 8 * used)) & 0x7f7f_7f7f_7f7f_7f7f;
        let word = (word & 0x007f_007f_007f_007f) | ((word & 0x7f00_7f00_7f00_7f00) >> 1);
        let word = (word & 0x0000_3fff_0000_3fff) | ((word & 0x3fff_0000_3fff_0000) >> 2);
        Ok((word & 0x0fff_ffff) | ((word & 0x0fff_ffff_0000_0000) >> 4))
    }

    /// Skips varints and checks that each has at most 64 bits.
    pub fn check_varints(&mut self, mut count: usize) -> DecodeResult<()> {
        while count > 0 {
            let chunk = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>());
            let ends = chunk.map_or(0, |bytes| !u64::from_le_bytes(*bytes) & 0x8080_8080_8080_8080);
            // As `count_ones` of the highest bits of bytes; the build's baseline has no instruction for it.
            let whole = ((ends >> 7).wrapping_mul(0x0101_0101_0101_0101) >> 56) as usize;
            if whole == 0 || whole > count {
                self.varint()?;
                count -= 1;
            } else {
                // Varints that end in the chunk have at most eight bytes; the next begins after the last of them.
                self.at += 8 - ends.leading_zeros() as usize / 8;
                count -= whole;
            }
        }
        Ok(())
    }

    fn long_varint(&mut self, mut number: u64) -> DecodeResult<u64> {
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        self.fail("number over 64 bits")
    }

    /// A number that may be at most `max`.
    pub fn count(&mut self, max: usize, reason: &'static str) -> DecodeResult<usize> {
        match self.varint()? {
            number if number <= max as u64 => Ok(number as usize),
            _ => self.fail(reason),
        }
    }

    /// A float's bits without the zero bytes at both ends; see `put_xor`.
    #[inline]
    pub fn xor(&mut self) -> DecodeResult<u64> {
        let (low, count) = self.xor_lengths()?;
        let Some(chunk) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) else {
            // The last few bytes of a payload.
            let mut bytes = [0; 8];
            bytes[low..low + count].copy_from_slice(self.take(count)?);
            return Ok(u64::from_le_bytes(bytes));
        };
        self.at += count;
        let mask = u64::MAX.checked_shr(64 - 8 * count as u32).unwrap_or(0);
        Ok((u64::from_le_bytes(*chunk) & mask).checked_shl(8 * low as u32).unwrap_or(0))
    }

    /// Skips one XOR-coded float.
    #[inline]
    pub fn skip_xor(&mut self) -> DecodeResult<()> {
        let (_, count) = self.xor_lengths()?;
        if count > self.bytes.len() - self.at {
            return self.fail("cut short");
        }
        self.at += count;
        Ok(())
    }

    #[inline]
    fn xor_lengths(&mut self) -> DecodeResult<(usize, usize)> {
        let byte = self.byte()?;
        let (low, count) = (usize::from(byte >> 4), usize::from(byte & 0xf));
        if low + count > 8 {
            return self.fail("float of more than eight bytes");
        }
        Ok((low, count))
    }

    /// Skips varints by counting their last bytes.
    pub fn skip_varints(&mut self, mut count: usize) -> DecodeResult<()> {
        while count >= 8 {
            let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) else { break };
            count -= (!u64::from_le_bytes(*bytes) & 0x8080_8080_8080_8080).count_ones() as usize;
            self.at += 8;
        }
        // If the chunk ended within a number, the number ends here.
        while count > 0 {
            count -= usize::from(self.byte()? < 0x80);
        }
        Ok(())
    }
}
