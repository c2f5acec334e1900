//! A histogram of how late reads begin, in powers of two; one thread writes it, any thread reads it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of buckets: bucket `i` counts lags below 2^i µs, the last one everything longer (2^23 µs is 8 s).
pub const BUCKETS: usize = 25;

/// Counts of lags by size, with one writer. A reader may see a count that is off by one.
#[derive(Debug, Default)]
pub struct LagHistogram {
    counts: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
}

/// The bucket of a lag.
fn bucket(lag_ns: u64) -> usize {
    let us = lag_ns / 1_000;
    (64 - us.leading_zeros() as usize).min(BUCKETS - 1)
}

impl LagHistogram {
    /// Counts one lag. Only the thread that samples the group may call it.
    #[inline]
    pub fn record(&self, lag_ns: u64) {
        let count = &self.counts[bucket(lag_ns)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if lag_ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(lag_ns, Ordering::Relaxed);
        }
    }

    pub fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed))
    }

    /// The largest lag so far, ns.
    pub fn max_ns(&self) -> u64 {
        self.max_ns.load(Ordering::Relaxed)
    }

    /// The exclusive upper end in ns of the bucket in which the given quantile (0 to 1) lies; 0 without any lag.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let counts = self.counts();
        let wanted = (counts.iter().sum::<u64>() as f64 * part).ceil() as u64;
        let mut sum = 0;
        for (index, count) in counts.iter().enumerate() {
            sum += count;
            if sum >= wanted && sum > 0 {
                return (1 << index) * 1_000;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_quantiles_and_the_maximum() {
        for (lag_ns, expected) in
            [(0, 0), (999, 0), (1_000, 1), (1_999, 1), (2_000, 2), (1_000_000, 10), (u64::MAX, BUCKETS - 1)]
        {
            assert_eq!(bucket(lag_ns), expected, "{lag_ns}");
        }
        let histogram = LagHistogram::default();
        assert_eq!(histogram.quantile_ns(0.5), 0);
        for _ in 0..99 {
            histogram.record(1_500);
        }
        histogram.record(3_000_000);
        assert_eq!(
            (histogram.quantile_ns(0.5), histogram.quantile_ns(0.99), histogram.max_ns()),
            (2_000, 2_000, 3_000_000)
        );
        assert_eq!(histogram.quantile_ns(1.0), 4_096_000);
        assert_eq!(histogram.counts().iter().sum::<u64>(), 100);
    }
}
