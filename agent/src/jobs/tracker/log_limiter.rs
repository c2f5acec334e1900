//! Limits log lines: each line once, and lasting conditions at most every 10 min.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The most different lines that are logged.
const REPORTED_MAX: usize = 256;
/// How often a lasting condition is logged: 10 min.
const AGAIN: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub struct LogLimiter {
    lines: HashSet<String>,
    last: HashMap<String, Instant>,
}

impl LogLimiter {
    /// Whether the line is new. Afterwards it is not.
    pub fn is_new(&mut self, line: String) -> bool {
        self.lines.len() < REPORTED_MAX && self.lines.insert(line)
    }

    pub fn once(&mut self, line: String) {
        if self.is_new(line.clone()) {
            tracing::warn!("{line}");
        }
    }

    /// Warns about `what` unless that was done within 10 min.
    pub fn seldom(&mut self, what: &str, line: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.last.get(what).is_some_and(|last| now.saturating_duration_since(*last) < AGAIN) {
            return;
        }
        if self.last.len() >= REPORTED_MAX {
            self.last.retain(|_, last| now.saturating_duration_since(*last) < AGAIN);
        }
        if self.last.len() < REPORTED_MAX {
            self.last.insert(what.to_owned(), now);
            tracing::warn!("{}", line());
        }
    }
}
