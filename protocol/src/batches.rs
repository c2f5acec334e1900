//! Sets of batches. A batch stands for (agent, boot, sequence number) and for its readings.

/// The most batches of one run of the model.
pub const BATCHES_MAX: u8 = 32;

/// A set of batches, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BatchSet(u32);

impl BatchSet {
    pub const EMPTY: Self = Self(0);

    pub fn of(batches: impl IntoIterator<Item = u8>) -> Self {
        Self(batches.into_iter().fold(0, |bits, batch| bits | 1 << batch))
    }

    pub fn contains(self, batch: u8) -> bool {
        self.0 >> batch & 1 == 1
    }

    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn is_within(self, other: Self) -> bool {
        self.without(other).is_empty()
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..BATCHES_MAX).filter(move |batch| self.contains(*batch))
    }

    /// The set after two batches changed their numbers.
    pub fn exchanged(self, one: u8, other: u8) -> Self {
        let differ = (self.0 >> one ^ self.0 >> other) & 1;
        Self(self.0 ^ (differ << one | differ << other))
    }
}

impl std::fmt::Debug for BatchSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_operations_of_sets() {
        let (low, high) = (BatchSet::of([0, 1, 2]), BatchSet::of([2, 31]));
        assert_eq!(low.with(high), BatchSet::of([0, 1, 2, 31]));
        assert_eq!(low.without(high), BatchSet::of([0, 1]));
        assert_eq!(low.common(high).iter().collect::<Vec<_>>(), [2]);
        assert!(low.common(high).is_within(high) && !low.is_within(high) && BatchSet::EMPTY.is_within(low));
        assert_eq!(low.exchanged(0, 31), BatchSet::of([1, 2, 31]));
        assert_eq!(low.exchanged(0, 1), low);
    }
}
