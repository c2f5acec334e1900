/// Returns the seed in `WHOLEGRAIN_SEED`, else one from the clock, and prints it: a failing test shows how to repeat it.
pub fn seed() -> u64 {
    let from_clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    seed_or_else(from_clock)
}

fn seed_or_else(default: impl FnOnce() -> u64) -> u64 {
    let seed = match std::env::var("WHOLEGRAIN_SEED") {
        Ok(text) => text.parse().expect("WHOLEGRAIN_SEED is a number"),
        Err(_) => default(),
    };
    println!("WHOLEGRAIN_SEED={seed} repeats this run");
    seed
}

/// A generator of pseudo-random numbers (SplitMix64; Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn seeded() -> Self {
        Self(seed())
    }

    /// Uses `WHOLEGRAIN_SEED`, else `default`.
    pub fn seeded_or(default: u64) -> Self {
        Self(seed_or_else(|| default))
    }

    /// The next number, of 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    /// A number in `low..high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// An index in `0..length`; 0 if the length is 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True in `percent` of 100 calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// An item of a slice that is not empty.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())].clone()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.draw() as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_published_numbers_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let numbers = [random.draw(), random.draw(), random.draw()];
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        let mut random = Random::seeded();
        for _ in 0..1000 {
            assert!(random.below(7) < 7 && random.index(3) < 3 && (5..9).contains(&random.within(5, 9)));
            assert!(random.below(0) == 0 && !random.chance(0) && random.chance(100));
            assert!([1, 2].contains(&random.pick(&[1, 2])));
        }
        assert_eq!(random.bytes(5).len(), 5);
    }
}
