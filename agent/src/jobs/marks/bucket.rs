//! A token bucket: limits a rate and allows bursts.

/// A bucket of tokens. Times are arguments, ns of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct TokenBucket {
    tokens: f64,
    at: i64,
}

impl TokenBucket {
    /// A bucket that is full at `now`.
    pub fn full(burst: f64, now: i64) -> Self {
        Self { tokens: burst, at: now }
    }

    /// Fills the bucket and returns its tokens; below 0 if more was spent than there was.
    pub fn fill(&mut self, per_second: f64, burst: f64, now: i64) -> f64 {
        let since = now.saturating_sub(self.at).max(0);
        self.at = now;
        self.tokens = (self.tokens + since as f64 * 1e-9 * per_second).min(burst);
        self.tokens
    }

    /// Takes `cost` tokens, even if there are fewer.
    pub fn spend(&mut self, cost: f64) {
        self.tokens -= cost;
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, per_second: f64, burst: f64, now: i64) -> bool {
        let is_there = self.fill(per_second, burst, now) >= 1.0;
        if is_there {
            self.spend(1.0);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut bucket = TokenBucket::full(20.0, 0);
        let taken = |bucket: &mut TokenBucket, from: i64, to: i64| {
            (from..to).step_by(1_000_000).filter(|now| bucket.take(10.0, 20.0, *now)).count()
        };
        assert_eq!(taken(&mut bucket, 0, S), 20 + 9, "the tenth of the first second comes with its end");
        assert_eq!(taken(&mut bucket, S, 11 * S), 100);
        assert_eq!(taken(&mut bucket, 100 * S, 100 * S + 1), 1);
        assert_eq!(bucket.fill(10.0, 20.0, 200 * S), 20.0, "never more than the burst");
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut bucket = TokenBucket::full(1.0, S);
        assert!(bucket.take(1.0, 1.0, S) && !bucket.take(1.0, 1.0, 0) && !bucket.take(1.0, 1.0, S / 2));
    }
}
