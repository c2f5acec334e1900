//! When an agent looks whether it can return to a server that it prefers: once in each return interval, at an instant that depends on its name. After a
//! server was away, its agents return spread over the interval.

use std::time::Duration;

use super::send_schedule::spread;

/// After returns that did not last, intervals are skipped: at most 15 in a row.
const SKIPPED_DOUBLINGS_MAX: u32 = 4;

/// The instants of one agent, on the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct ReturnSchedule {
    interval_ns: i64,
    phase_ns: i64,
}

impl ReturnSchedule {
    pub fn new(interval: Duration, agent: &str) -> Self {
        let interval_ns = i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX).max(1);
        Self { interval_ns, phase_ns: (spread(agent) % interval_ns.unsigned_abs()) as i64 }
    }

    /// The time until the next instant. After `vain` returns in a row that did not last, the pause doubles with each.
    pub fn next_in(&self, now_real: i64, vain: u32) -> Duration {
        let since = now_real.saturating_sub(self.phase_ns).rem_euclid(self.interval_ns);
        let skipped = (1_i64 << vain.min(SKIPPED_DOUBLINGS_MAX)) - 1;
        let wait = (self.interval_ns - since).saturating_add(self.interval_ns.saturating_mul(skipped));
        Duration::from_nanos(wait.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn ten_thousand_agents_spread_over_the_interval() {
        let interval = Duration::from_secs(300);
        let mut minutes = [0; 5];
        for node in 0..10_000 {
            let wait = ReturnSchedule::new(interval, &format!("node{node:05}")).next_in(1_800_000_000 * S, 0);
            assert!(!wait.is_zero() && wait <= interval);
            minutes[(wait.as_secs() / 60).min(4) as usize] += 1;
        }
        assert!(minutes.iter().all(|count| (1800..=2200).contains(count)), "{minutes:?}");
    }

    #[test]
    fn an_instant_comes_once_in_each_interval_and_more_rarely_after_vain_returns() {
        let schedule = ReturnSchedule { interval_ns: 10 * S, phase_ns: 3 * S };
        let waits = [0, 2, 3, 4, 12].map(|second| schedule.next_in(second * S, 0).as_secs());
        assert_eq!(waits, [3, 1, 10, 9, 1]);
        let waits = [0, 1, 2, 3, 4, 5, 99].map(|vain| schedule.next_in(2 * S, vain).as_secs());
        assert_eq!(waits, [1, 11, 31, 71, 151, 151, 151]);
    }
}
