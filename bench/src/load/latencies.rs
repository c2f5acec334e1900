//! How long things took, by the hundred million, in a few kilobytes.

use std::time::Duration;

/// Buckets in each doubling: a value is known to about 3 %.
const PARTS: u64 = 32;
/// Doublings of a microsecond.
const DOUBLINGS: u64 = 40;

/// A histogram with logarithmic buckets from 1 us on.
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: vec![0; (PARTS * DOUBLINGS) as usize], count: 0, max: Duration::ZERO }
    }
}

/// Values below [`PARTS`] have a bucket each; above, each doubling has [`PARTS`].
fn bucket(us: u64) -> usize {
    if us < PARTS {
        return us as usize;
    }
    let doubling = u64::from(us.ilog2() - PARTS.ilog2());
    (((doubling + 1) * PARTS + (us >> doubling) - PARTS).min(PARTS * DOUBLINGS - 1)) as usize
}

/// The smallest value of a bucket.
fn least(bucket: usize) -> u64 {
    let (doubling, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    if doubling == 0 { part } else { (PARTS + part) << (doubling - 1) }
}

impl Latencies {
    pub fn record(&mut self, duration: Duration) {
        self.buckets[bucket(duration.as_micros() as u64)] += 1;
        self.count += 1;
        self.max = self.max.max(duration);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The duration that the share `q` stayed at or below, in ms; 0 of nothing.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let wanted = (self.count as f64 * q).ceil().max(1.0) as u64;
        let mut below = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= wanted && self.count > 0 {
                return (least(at + 1) as f64 / 1e3).min(self.max_ms());
            }
        }
        self.max_ms()
    }

    /// The longest, in ms.
    pub fn max_ms(&self) -> f64 {
        self.max.as_secs_f64() * 1e3
    }

    /// For the file of results.
    pub fn json(&self) -> serde_json::Value {
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|q| self.quantile_ms(q));
        serde_json::json!({ "count": self.count, "p50": p50, "p90": p90, "p99": p99, "p999": p999, "max": self.max_ms() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        for us in (0..100_000).chain([1 << 20, 1 << 30, (1 << 30) + 12_345_678]) {
            let at = bucket(us);
            assert!(least(at) <= us && us < least(at + 1), "{us} in {at}: {} to {}", least(at), least(at + 1));
        }
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_ms(0.5), 0.0);
        (1..=1000).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        for (q, ms) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latencies.quantile_ms(q);
            assert!((ms..ms * 1.04).contains(&found), "{q}: {found}, not {ms}");
        }
        assert_eq!((latencies.count(), latencies.max_ms()), (1000, 1000.0));
    }
}
