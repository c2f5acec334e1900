//! Log lines about steps of the wall clock.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use wholegrain_model::{Interval, Timestamp};

use crate::counters::AgentCounters;
use crate::rate_limit::RateLimit;

/// Lines in a minute: a clock that is stepped again and again must not fill the log.
const LINES_PER_MINUTE: u32 = 6;

/// Reports each step of the clock once, at a bounded rate.
#[derive(Debug)]
pub struct ClockStepLog {
    reported: u64,
    lines: RateLimit,
}

impl Default for ClockStepLog {
    fn default() -> Self {
        Self { reported: 0, lines: RateLimit::per_minute(LINES_PER_MINUTE, LINES_PER_MINUTE) }
    }
}

impl ClockStepLog {
    /// A step that has not been reported: a line for the agent's log, and a notice for the server's.
    pub fn check(&mut self, counters: &AgentCounters, now: i64) -> Option<(String, Value)> {
        let steps = counters.clock_steps.load(Ordering::Acquire);
        if steps == self.reported || !self.lines.take("", now) {
            return None;
        }
        let more = steps - std::mem::replace(&mut self.reported, steps) - 1;
        let by = counters.clock_step_ns.load(Ordering::Relaxed);
        let length = Interval::from_ns(by.unsigned_abs() / 1_000_000 * 1_000_000);
        let direction = if by < 0 { "back" } else { "forward" };
        let mut text = format!("the clock was stepped {direction} by {length}: a gap is stored, and no rate spans it");
        let held_until = counters.held_until(now);
        if let Some(until) = held_until {
            text.push_str(&format!(
                "; nothing is sampled before {}, because readings of these times exist already",
                Timestamp(until)
            ));
        }
        if more > 0 {
            text.push_str(&format!(" ({more} earlier steps were not reported)"));
        }
        Some((text, json!({ "clock_step": { "by_ns": by, "held_until": held_until, "unreported": more } })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::passes::ClockPasses;

    #[test]
    fn a_step_is_reported_once_and_many_are_counted() {
        const S: i64 = 1_000_000_000;
        let (counters, mut log) = (AgentCounters::default(), ClockStepLog::default());
        assert_eq!(log.check(&counters, 0), None);
        let mut passes = ClockPasses::new(0);
        passes.stepped(100 * S, 95 * S);
        counters.note_step(-5 * S, passes);
        let (text, notice) = log.check(&counters, 95 * S).unwrap();
        assert_eq!(
            text,
            "the clock was stepped back by 5s: a gap is stored, and no rate spans it; nothing is sampled before \
             1970-01-01T00:01:40Z, because readings of these times exist already"
        );
        assert_eq!(
            notice,
            json!({ "clock_step": { "by_ns": -5_000_000_000_i64, "held_until": 100_000_000_000_i64, "unreported": 0 } })
        );
        assert_eq!(log.check(&counters, 96 * S), None);
        let lines = (0..20).filter(|_| {
            counters.note_step(S, passes);
            log.check(&counters, 110 * S).is_some()
        });
        assert_eq!(lines.count(), 5);
        let (text, notice) = log.check(&counters, 180 * S).unwrap();
        assert_eq!(notice["clock_step"]["unreported"], 14);
        assert!(
            text.starts_with("the clock was stepped forward by 1s")
                && text.ends_with("(14 earlier steps were not reported)"),
            "{text}"
        );
    }
}
