//! Helpers for tests of parsers.

use std::collections::HashSet;

use wholegrain_model::SensorDef;
pub use wholegrain_testkit::Random;

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

/// Replaces some numbers by others of any length, as the kernel would.
pub fn with_other_numbers(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let (seldom, mut text) = (1 + random.index(30), Vec::new());
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        let is_digit = first.is_ascii_digit();
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit() == is_digit).count();
        // Not digits of a name, and not decimals, of which there are always two.
        let is_own = text.last().is_none_or(|byte| b" =\t".contains(byte));
        if is_digit && is_own && random.index(seldom) == 0 {
            let number = random.index(usize::MAX) >> random.index(40);
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
    for _ in 0..1 + random.index(4) {
        let at = random.index(bytes.len());
        let end = (at + 1 + random.index(40)).min(bytes.len());
        match random.index(6) {
            0 => bytes[at] ^= 1 << random.index(8),
            1 => bytes[at] = b" \n:-/.0159\0\xff"[random.index(12)],
            2 => drop(bytes.drain(at..end)),
            3 => {
                let doubled = bytes[at..end].to_vec();
                bytes.splice(at..at, doubled);
            }
            4 => drop(bytes.splice(at..at, b"99999999999999999999".iter().copied())),
            _ => {
                let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
                let (one, other) = (random.index(lines.len()), random.index(lines.len()));
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
