//! Limits how often each key may do something in a minute, and all keys together.

use std::collections::HashMap;

/// The most keys with a count of their own; further ones share one.
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
    /// Attempts over the rate since the last [`RateLimit::take_excess`].
    over: u64,
}

impl RateLimit {
    /// With these limits for each key and for all.
    pub fn per_minute(each_max: u32, all_max: u32) -> Self {
        Self { each_max, all_max, minute: i64::MIN, all: 0, each: HashMap::new(), over: 0 }
    }

    /// Counts one attempt. Whether it is within the rate.
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

    /// Counts one refusal for the log. Within the rate, returns what is to be added to its line about those that were not logged.
    pub fn note_refusal(&mut self, key: &str, now: i64) -> Option<String> {
        self.take(key, now).then(|| match self.take_excess() {
            0 => String::new(),
            count => format!(" ({count} refusals before were not logged)"),
        })
    }

    /// The attempts over the rate since the last call.
    pub fn take_excess(&mut self) -> u64 {
        std::mem::take(&mut self.over)
    }
}
