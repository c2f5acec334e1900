//! How often something may be within a minute, for each of those who do it and for all together.

use std::collections::HashMap;

/// The most whose counts are kept apart; further ones share one.
const KEYS_MAX: usize = 256;
/// A minute in ns.
const MINUTE_NS: i64 = 60_000_000_000;

/// Counts within minutes of the clock.
#[derive(Debug)]
pub struct RateLimit {
    each_max: u32,
    all_max: u32,
    minute: i64,
    all: u32,
    each: HashMap<String, u32>,
    /// What was over the rate since somebody asked.
    over: u64,
}

impl RateLimit {
    /// So many a minute for each, and for all.
    pub fn per_minute(each_max: u32, all_max: u32) -> Self {
        Self { each_max, all_max, minute: i64::MIN, all: 0, each: HashMap::new(), over: 0 }
    }

    /// Whether it may be once more.
    pub fn take(&mut self, key: &str, now: i64) -> bool {
        let minute = now.div_euclid(MINUTE_NS);
        if minute != self.minute {
            (self.minute, self.all) = (minute, 0);
            self.each.clear();
        }
        let key = if self.each.len() < KEYS_MAX || self.each.contains_key(key) { key } else { "" };
        let count = self.each.entry(key.to_owned()).or_default();
        if *count >= self.each_max || self.all >= self.all_max {
            self.over += 1;
            return false;
        }
        *count += 1;
        self.all += 1;
        true
    }

    /// How many were over the rate since this was last asked.
    pub fn take_excess(&mut self) -> u64 {
        std::mem::take(&mut self.over)
    }
}
