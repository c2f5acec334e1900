//! How much may be read: so many events and bytes a second in the mean of some seconds.

use std::time::{Duration, Instant};

/// A bound on a rate.
#[derive(Debug, Clone, Copy)]
pub struct PaceLimit {
    pub events_s: f64,
    pub bytes_s: f64,
    /// The seconds over which the mean is taken: so much may come at once.
    pub burst_s: f64,
}

/// What may still be read now. It refills evenly, and what was read too much has to be waited for.
#[derive(Debug)]
pub struct PaceBudget {
    limit: PaceLimit,
    events: f64,
    bytes: f64,
    /// When the two were right; `None` before the first use.
    at: Option<Instant>,
}

impl PaceBudget {
    /// A budget that is full at first.
    pub fn new(limit: PaceLimit) -> Self {
        let PaceLimit { events_s, bytes_s, burst_s } = limit;
        Self { limit, events: events_s * burst_s, bytes: bytes_s * burst_s, at: None }
    }

    /// Takes what was read. How long to wait until it is within the limit: zero if it is.
    pub fn take(&mut self, events: u64, bytes: usize, now: Instant) -> Duration {
        let PaceLimit { events_s, bytes_s, burst_s } = self.limit;
        let passed = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        self.events = (self.events + passed * events_s).min(events_s * burst_s) - events as f64;
        self.bytes = (self.bytes + passed * bytes_s).min(bytes_s * burst_s) - bytes as f64;
        let wait_s = (-self.events / events_s).max(-self.bytes / bytes_s).max(0.0);
        Duration::try_from_secs_f64(wait_s).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_the_mean_has_to_be_waited_for() {
        let mut budget = PaceBudget::new(PaceLimit { events_s: 10.0, bytes_s: 1000.0, burst_s: 10.0 });
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(budget.take(100, 10_000, begin), Duration::ZERO, "all at once");
        assert_eq!(budget.take(5, 0, begin), Duration::from_millis(500));
        assert_eq!(budget.take(0, 2_000, begin), Duration::from_secs(2));
        assert_eq!(budget.take(1, 1, begin), Duration::from_secs_f64(2.001), "the longer one counts");
        assert_eq!(budget.take(24, 1_000, after(4)), Duration::ZERO);
        assert_eq!(budget.take(101, 0, after(1000)), Duration::from_millis(100), "no more than the burst is saved");
    }
}
