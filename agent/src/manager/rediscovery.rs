//! How often what asks for a new look gets one. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// When a source is looked at again because its readers asked for it: a file that keeps changing must not keep the agent busy.
#[derive(Debug, Default)]
pub struct Rediscovery {
    asked: bool,
    /// The last look that was asked for, and how long to wait after it.
    last: Option<(Instant, Duration)>,
}

impl Rediscovery {
    /// The pause after a look: 1 s; each further one that is asked for soon after is twice as long.
    pub const PAUSE_MIN: Duration = Duration::from_secs(1);
    /// The longest pause: 1 min.
    pub const PAUSE_MAX: Duration = Duration::from_secs(60);

    /// Whether to look now. What was asked for within a pause is remembered.
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

    /// Asks for a look after the pause.
    pub fn request(&mut self) {
        self.asked = true;
    }

    /// Whether a look is put off.
    pub fn is_waiting(&self) -> bool {
        self.asked
    }

    /// Forgets what was asked for, because a look is made for another reason; whether something was.
    pub fn take(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_always_wants_a_look_gets_ever_fewer() {
        let (mut rediscovery, start) = (Rediscovery::default(), Instant::now());
        let looks: Vec<u64> = (0..3_000u64)
            .filter(|tenth| rediscovery.is_due(true, start + Duration::from_millis(100 * tenth)))
            .map(|tenth| tenth / 10)
            .collect();
        assert_eq!(looks, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }

    #[test]
    fn a_single_change_is_looked_at_at_once_and_one_in_a_pause_is_not_forgotten() {
        let (mut rediscovery, start) = (Rediscovery::default(), Instant::now());
        let mut at = |ms: u64, asked| rediscovery.is_due(asked, start + Duration::from_millis(ms));
        assert!(!at(0, false) && at(100, true), "at once");
        assert!(!at(200, true) && !at(900, false) && at(1_100, false), "asked for in the pause, done after it");
        assert!(!at(3_000, true) && at(3_200, false), "the second pause is longer");
        assert!(at(20_000, true) && at(21_001, true), "after a quiet time the pauses begin anew");
    }
}
