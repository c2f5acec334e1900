//! A limit for log lines about repeated losses.

use std::time::{Duration, Instant};

/// How often the same problem is logged: 10 s.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Limits how often the same problem is logged, and counts what it suppresses.
#[derive(Debug, Default)]
pub struct LogLimiter {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimiter {
    /// Adds `more`; returns the sum to log now, if it is time.
    pub fn due(&mut self, more: u64) -> Option<u64> {
        self.suppressed += more;
        if self.suppressed == 0 || self.last.is_some_and(|last| last.elapsed() < LOG_EVERY) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed))
    }
}
