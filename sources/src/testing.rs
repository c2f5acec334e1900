//! What the tests of the parsers share.

use crate::Row;
use crate::table::Parsed;

/// A row after a parse.
pub struct Filled {
    pub values: Vec<Option<i64>>,
    pub parsed: Parsed,
}

/// Parses into a fresh row of `sensors`.
pub fn filled(sensors: usize, parse: impl FnOnce(&mut Row<'_>) -> Parsed) -> Filled {
    let (mut values, mut gaps) = (vec![0; sensors], vec![0; sensors.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let parsed = parse(&mut row);
    Filled { values: (0..sensors).map(|index| row.int(index)).collect(), parsed }
}

/// Random numbers for tests (xorshift64*, Vigna 2016). The seed is printed, which shows when the test fails, and is taken from
/// `WHOLEGRAIN_SEED` to run the same again.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let fresh = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let seed = std::env::var("WHOLEGRAIN_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(fresh);
        println!("WHOLEGRAIN_SEED={seed}");
        Self(seed | 1)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

/// Puts other numbers in place of some, of any length, as the kernel would.
pub fn with_other_numbers(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let (seldom, mut text) = (1 + random.below(30), Vec::new());
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let is_digit = first.is_ascii_digit();
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit() == is_digit).count();
        // Not what belongs to a name, nor decimals, of which there are two.
        let is_own = text.last().is_none_or(|byte| b" =\t".contains(byte));
        if is_digit && is_own && random.below(seldom) == 0 {
            let number = random.below(usize::MAX) >> random.below(40);
            text.extend_from_slice(number.to_string().as_bytes());
        } else {
            text.extend_from_slice(&rest[..length]);
        }
        rest = &rest[length..];
    }
    text
}

/// Flips, deletes, doubles and replaces bytes, runs of bytes and lines.
pub fn changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(40)).min(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = b" \n:-/.0159\0\xff"[random.below(12)],
            2 => drop(bytes.drain(at..end)),
            3 => {
                let doubled = bytes[at..end].to_vec();
                bytes.splice(at..at, doubled);
            }
            4 => drop(bytes.splice(at..at, b"99999999999999999999".iter().copied())),
            _ => {
                let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
                let (one, other) = (random.below(lines.len()), random.below(lines.len()));
                lines.swap(one, other);
                bytes = lines.concat();
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}
