//! The send schedule: at once, once in each send interval at an instant that depends on the agent's name, or in bursts.

use std::time::Duration;

use crate::config::{MqttConfig, SendMode};

/// A minute in ns.
const MINUTE_NS: i64 = 60_000_000_000;

/// Opens the send window at instants of the wall clock, or keeps it open.
#[derive(Debug)]
pub struct SendSchedule {
    /// 0 if the window is always open.
    period: i64,
    phase: i64,
    next: i64,
}

/// FNV-1a, 64 bits: spreads names evenly, and equally on every machine.
pub fn spread(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl SendSchedule {
    pub fn new(config: &MqttConfig, name: &str, now_real: i64) -> Self {
        let (period, phase) = match config.mode {
            SendMode::Continuous => (0, 0),
            SendMode::Staggered => {
                let period = config.send_interval.ns() as i64;
                (period, (spread(name) % period as u64) as i64)
            }
            SendMode::Burst { per_minute } => (MINUTE_NS / i64::from(per_minute), 0),
        };
        let mut schedule = Self { period, phase, next: 0 };
        schedule.next = schedule.after(now_real);
        schedule
    }

    fn after(&self, now_real: i64) -> i64 {
        if self.period == 0 {
            return now_real;
        }
        let since = now_real - self.phase;
        since - since.rem_euclid(self.period) + self.period + self.phase
    }

    /// Whether the send window opens now: returns how many ns ago it should have opened, because later batches have missed it. It opens again at the
    /// next instant only.
    pub fn opens(&mut self, now_real: i64) -> Option<i64> {
        if self.period == 0 {
            return Some(0);
        }
        let late = now_real - self.next;
        // After a step back of the clock it must not stay closed for longer than a period.
        if late < 0 && late >= -self.period {
            return None;
        }
        self.next = self.after(now_real);
        Some(if late < 0 { 0 } else { now_real - (self.next - self.period) })
    }

    /// The time until it opens.
    pub fn next_in(&self, now_real: i64) -> Duration {
        Duration::from_nanos(u64::try_from(self.next - now_real).unwrap_or(0))
    }

    /// Whether it is ever closed.
    pub fn is_scheduled(&self) -> bool {
        self.period != 0
    }

    /// The longest time that it delays a batch.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn opens_once_a_period_at_its_phase() {
        let mut schedule = SendSchedule { period: 10 * S, phase: 3 * S, next: 0 };
        schedule.next = schedule.after(100 * S);
        assert_eq!(schedule.next_in(100 * S), Duration::from_secs(3));
        let opened: Vec<i64> = (100..140).filter(|second| schedule.opens(second * S).is_some()).collect();
        assert_eq!(opened, [103, 113, 123, 133]);
        assert_eq!(schedule.opens(20 * S), Some(0), "after a step back of the clock");
        assert_eq!(schedule.next, 23 * S);
        assert_eq!(schedule.opens(45 * S), Some(2 * S), "two instants have passed, the later one counts");
        assert_eq!(schedule.next, 53 * S);
    }

    #[test]
    fn names_spread_over_the_interval() {
        let mut tenths = [0; 10];
        for node in 0..1000 {
            tenths[(spread(&format!("node{node:04}")) % 1_000_000_000 / 100_000_000) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (50..200).contains(count)), "{tenths:?}");
    }
}
