//! Limits how often a source is rediscovered. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Schedules the rediscovery that readers of a source request, with backoff: a file that keeps changing must not keep the agent busy.
#[derive(Debug, Default)]
pub struct Rediscovery {
    asked: bool,
    /// The last requested rediscovery, and the pause after it.
    last: Option<(Instant, Duration)>,
}

impl Rediscovery {
    /// The pause after a rediscovery: 1 s; doubled by each request soon after the pause.
    pub const PAUSE_MIN: Duration = Duration::from_secs(1);
    /// The longest pause: 1 min.
    pub const PAUSE_MAX: Duration = Duration::from_secs(60);

    /// Whether to rediscover now. A request within the pause is remembered.
    pub fn is_due(&mut self, asked: bool, now: Instant) -> bool {
        self.asked |= asked;
        let next = match self.last {
            Some((last, pause)) if now.saturating_duration_since(last) < pause => return false,
            // Quiet for as long again: the change was a single one.
            Some((last, pause)) if now.saturating_duration_since(last) < pause * 2 => (pause * 2).min(Self::PAUSE_MAX),
            _ => Self::PAUSE_MIN,
        };
        if self.asked {
            self.last = Some((now, next));
        }
        std::mem::take(&mut self.asked)
    }

    /// Requests a rediscovery after the pause.
    pub fn request(&mut self) {
        self.asked = true;
    }

    /// Whether a requested rediscovery waits.
    pub fn is_waiting(&self) -> bool {
        self.asked
    }

    /// Drops the request, because a rediscovery happens for another reason; whether there was one.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_always_requests_gets_ever_longer_pauses() {
        let (mut rediscovery, start) = (Rediscovery::default(), Instant::now());
        let looks: Vec<u64> = (0..3_000u64)
            .filter(|tenth| rediscovery.is_due(true, start + Duration::from_millis(100 * tenth)))
            .map(|tenth| tenth / 10)
            .collect();
        assert_eq!(looks, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }

    #[test]
    fn a_single_request_is_served_at_once_and_one_in_a_pause_is_remembered() {
        let (mut rediscovery, start) = (Rediscovery::default(), Instant::now());
        let mut at = |ms: u64, asked| rediscovery.is_due(asked, start + Duration::from_millis(ms));
        assert!(!at(0, false) && at(100, true), "at once");
        assert!(!at(200, true) && !at(900, false) && at(1_100, false), "asked for in the pause, done after it");
        assert!(!at(3_000, true) && at(3_200, false), "the second pause is longer");
        assert!(at(20_000, true) && at(21_001, true), "after a quiet time the pauses are short again");
    }
}
