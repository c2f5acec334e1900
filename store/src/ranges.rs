//! The stored batches: for each (agent, boot) the ranges of sequence numbers. They identify a batch that is delivered again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wholegrain_model::schema::put_varint;

/// The most separate ranges of one (agent, boot). Batches are numbered consecutively, so only dropped or delayed ones separate ranges; at
/// the bound a batch that would add a range is refused.
pub const RANGES_MAX: usize = 65_536;
/// The most boots of one agent whose ranges are stored; the oldest are dropped.
pub const BOOTS_MAX: usize = 256;

/// A set of numbers as disjoint ranges that do not touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RangeSet {
    /// No range or one, whose start is not behind its end: nearly every agent has this, at a tenth of a tree's memory.
    AtMostOne(Option<(u64, u64)>),
    Many(BTreeMap<u64, u64>),
}

impl Default for RangeSet {
    fn default() -> Self {
        RangeSet::AtMostOne(None)
    }
}

impl RangeSet {
    pub(crate) fn contains(&self, number: u64) -> bool {
        match self {
            RangeSet::AtMostOne(range) => range.is_some_and(|(start, end)| (start..=end).contains(&number)),
            RangeSet::Many(ranges) => ranges.range(..=number).next_back().is_some_and(|(_, &end)| number <= end),
        }
    }

    /// Adds a number; `false` if it is there.
    pub fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        match self {
            RangeSet::AtMostOne(None) => *self = RangeSet::AtMostOne(Some((number, number))),
            RangeSet::AtMostOne(Some((_, end))) if end.checked_add(1) == Some(number) => *end = number,
            RangeSet::AtMostOne(Some((start, _))) if number.checked_add(1) == Some(*start) => *start = number,
            RangeSet::AtMostOne(Some(range)) => *self = RangeSet::Many([*range, (number, number)].into()),
            RangeSet::Many(ranges) => {
                insert(ranges, number);
                if let (1, Some(range)) = (ranges.len(), ranges.first_key_value()) {
                    *self = RangeSet::AtMostOne(Some((*range.0, *range.1)));
                }
            }
        }
        true
    }

    /// The ranges, both ends within.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (few, many) = match self {
            RangeSet::AtMostOne(range) => (*range, None),
            RangeSet::Many(ranges) => (None, Some(ranges)),
        };
        few.into_iter().chain(many.into_iter().flatten().map(|(start, end)| (*start, *end)))
    }

    /// Whether adding `number` would exceed [`RANGES_MAX`].
    pub fn is_full_for(&self, number: u64) -> bool {
        let RangeSet::Many(ranges) = self else { return false };
        ranges.len() >= RANGES_MAX
            && !ranges.contains_key(&number.wrapping_add(1))
            && ranges.range(..number).next_back().is_none_or(|(_, &end)| end.wrapping_add(1) != number)
    }

    /// Each range as two varints: its start minus the end of the previous range, and its end minus its start.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut before = 0;
        for (start, end) in self.iter() {
            put_varint(start - before, &mut out);
            put_varint(end - start, &mut out);
            before = end;
        }
        out
    }

    /// Reads what [`RangeSet::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut ranges, mut at, mut before) = (BTreeMap::new(), 0, 0u64);
        while at < bytes.len() {
            let start = before.checked_add(get_varint(bytes, &mut at)?)?;
            let end = start.checked_add(get_varint(bytes, &mut at)?)?;
            ranges.insert(start, end);
            before = end;
        }
        let mut few = ranges.iter().map(|(start, end)| (*start, *end));
        Some(match (few.next(), few.next()) {
            (range, None) => RangeSet::AtMostOne(range),
            _ => RangeSet::Many(ranges),
        })
    }
}

/// Adds a number that is in no range.
fn insert(ranges: &mut BTreeMap<u64, u64>, number: u64) {
    let (mut start, mut end) = (number, number);
    if let Some((&s, &e)) = ranges.range(..number).next_back()
        && e.checked_add(1) == Some(number)
    {
        start = s;
    }
    if let Some(next) = number.checked_add(1)
        && let Some(e) = ranges.remove(&next)
    {
        end = e;
    }
    ranges.insert(start, end);
}

/// Reads an unsigned LEB128 number at `at` and moves it on.
pub(crate) fn get_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A signed number as an unsigned one: 0, -1, 1, -2 … become 0, 1, 2, 3 ….
pub(crate) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// The number that [`zigzag`] encoded.
pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BatchKey {
    pub agent: Arc<str>,
    pub boot: u64,
    pub seq: u64,
}

/// The ranges of all agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredBatches(HashMap<Arc<str>, BTreeMap<u64, RangeSet>>);

impl StoredBatches {
    pub(crate) fn contains(&self, key: &BatchKey) -> bool {
        self.ranges(&key.agent, key.boot).is_some_and(|ranges| ranges.contains(key.seq))
    }

    pub(crate) fn is_full_for(&self, key: &BatchKey) -> bool {
        self.ranges(&key.agent, key.boot).is_some_and(|ranges| ranges.is_full_for(key.seq))
    }

    pub(crate) fn ranges(&self, agent: &str, boot: u64) -> Option<&RangeSet> {
        self.0.get(agent)?.get(&boot)
    }

    /// Adds a batch; `false` if it is there.
    pub fn insert(&mut self, key: &BatchKey) -> bool {
        let boots = self.0.entry(key.agent.clone()).or_default();
        let new = boots.entry(key.boot).or_default().insert(key.seq);
        if boots.len() > BOOTS_MAX {
            boots.pop_first();
        }
        new
    }

    /// Replaces the ranges of one (agent, boot).
    pub fn set(&mut self, agent: &str, boot: u64, ranges: RangeSet) {
        let boots = self.0.entry(agent.into()).or_default();
        boots.insert(boot, ranges);
        if boots.len() > BOOTS_MAX {
            boots.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn random_inserts_agree_with_a_plain_set() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut ranges, mut plain) = (RangeSet::default(), BTreeSet::new());
        for _ in 0..5_000 {
            let number = random(600) + if random(2) == 0 { 0 } else { u64::MAX - 700 };
            assert_eq!(ranges.insert(number), plain.insert(number), "{number}");
        }
        for number in (0..700).chain(u64::MAX - 750..=u64::MAX) {
            assert_eq!(ranges.contains(number), plain.contains(&number), "{number}");
        }
        assert_eq!(RangeSet::decode(&ranges.encode()), Some(ranges.clone()));
        let joined = ranges.iter().zip(ranges.iter().skip(1)).all(|((_, end), (start, _))| end + 1 < start);
        assert!(joined, "neighbours are one range");
    }

    #[test]
    fn boots_and_holes_are_bounded() {
        let mut held = StoredBatches::default();
        let key = |boot, seq| BatchKey { agent: "n1".into(), boot, seq };
        for boot in 0..BOOTS_MAX as u64 + 10 {
            assert!(held.insert(&key(boot, 1)));
        }
        assert!(!held.contains(&key(0, 1)));
        assert!(held.contains(&key(BOOTS_MAX as u64 + 9, 1)));
        for i in 0..RANGES_MAX as u64 {
            held.insert(&key(1_000, i * 2));
        }
        assert!(held.is_full_for(&key(1_000, RANGES_MAX as u64 * 2 + 5)));
        assert!(!held.is_full_for(&key(1_000, 1)), "joining two ranges needs no room");
    }
}
