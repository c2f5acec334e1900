//! Helpers for tests of parsers.

use std::collections::HashSet;

use wholegrain_model::SensorDef;

use crate::options::NO_OPTIONS;
use crate::parse::ParseOutcome;
use crate::plan::SensorPlan;
use crate::reader::Row;

/// A row after a parse.
pub struct Filled {
    pub values: Vec<Option<i64>>,
    pub outcome: ParseOutcome,
}

/// Parses into a new row of `sensors`.
pub fn filled(sensors: usize, parse: impl FnOnce(&mut Row<'_>) -> ParseOutcome) -> Filled {
    let (mut values, mut gaps) = (vec![0; sensors], vec![0; sensors.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let outcome = parse(&mut row);
    Filled { values: (0..sensors).map(|index| row.int(index)).collect(), outcome }
}

/// The sensors that `plan` adds to a group without filters, and its result.
pub fn planned<T>(plan: impl FnOnce(&mut SensorPlan<'_>) -> T) -> (Vec<SensorDef>, T) {
    let (mut taken, mut report) = (HashSet::new(), |_| {});
    let mut sensors = SensorPlan::new(&NO_OPTIONS, &NO_OPTIONS, &mut report).without_duplicates_of(&mut taken);
    let result = plan(&mut sensors);
    (sensors.into_sensors(), result)
}

/// Random numbers for tests (xorshift64*, Vigna 2016). It prints its seed; `WHOLEGRAIN_SEED` repeats a run.
pub struct Random(u64);

impl Random {
    /// With the seed of `WHOLEGRAIN_SEED`, else a new one.
    pub fn new() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let fresh = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let seed = std::env::var("WHOLEGRAIN_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(fresh);
        println!("WHOLEGRAIN_SEED={seed}");
        Self(seed | 1)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

/// Replaces some numbers by others of any length, as the kernel would.
pub fn with_other_numbers(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let (seldom, mut text) = (1 + random.below(30), Vec::new());
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let is_digit = first.is_ascii_digit();
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit() == is_digit).count();
        // Not digits of a name, and not decimals, of which there are always two.
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

/// Flips, deletes, repeats and replaces bytes, ranges of bytes and lines.
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
