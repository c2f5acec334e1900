//! Random numbers for tests: from `WHOLEGRAIN_SEED`, or from the clock; a failing test prints the seed.

/// The generator SplitMix64, seeded.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        let seed = match std::env::var("WHOLEGRAIN_SEED") {
            Ok(text) => text.parse().expect("WHOLEGRAIN_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        };
        println!("seed: run again with WHOLEGRAIN_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// 0 to `end`, not included.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
