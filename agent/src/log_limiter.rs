//! Limits log lines: each line once, lasting conditions at most every 10 min, losses with their sum every 10 s.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The most different lines that are logged.
const LINES_MAX: usize = 256;
/// How often a lasting condition is logged: 10 min.
const CONDITION_EVERY: Duration = Duration::from_secs(600);
/// How often losses of one kind are logged: 10 s.
const LOSS_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct LogLimiter {
    lines: HashSet<String>,
    conditions: HashMap<String, Instant>,
}

impl LogLimiter {
    /// Whether the line is new. Afterwards it is not.
    pub fn is_new(&mut self, line: &str) -> bool {
        self.lines.len() < LINES_MAX && !self.lines.contains(line) && self.lines.insert(line.to_owned())
    }

    pub fn once(&mut self, line: &str) {
        if self.is_new(line) {
            tracing::warn!("{line}");
        }
    }

    /// Warns about a condition unless that was done within 10 min.
    pub fn seldom(&mut self, condition: &str, line: impl FnOnce() -> String) {
        let now = Instant::now();
        let is_recent = |last: &Instant| now.saturating_duration_since(*last) < CONDITION_EVERY;
        if self.conditions.get(condition).is_some_and(is_recent) {
            return;
        }
        if self.conditions.len() >= LINES_MAX {
            self.conditions.retain(|_, last| is_recent(last));
        }
        if self.conditions.len() < LINES_MAX {
            self.conditions.insert(condition.to_owned(), now);
            tracing::warn!("{}", line());
        }
    }
}

/// Sums losses between two log lines.
#[derive(Debug, Default)]
pub struct LossLog {
    last: Option<Instant>,
    unlogged: u64,
}

impl LossLog {
    /// Adds `more`; returns the sum to log now, if it is time.
    pub fn due(&mut self, more: u64) -> Option<u64> {
        self.unlogged += more;
        if self.unlogged == 0 || self.last.is_some_and(|last| last.elapsed() < LOSS_EVERY) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.unlogged))
    }
}
