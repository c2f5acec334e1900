//! Rate limit of log lines that a client can cause; the rest is counted.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Warnings in one [`WINDOW`].
pub const LINES_MAX: u32 = 20;
/// Lines about a store that cannot write: all clients have the same problem.
pub const TROUBLE_MAX: u32 = 2;
/// Lines about clients that connect and disconnect in one [`WINDOW`].
pub const CONNECTIONS_MAX: u32 = 200;
pub const WINDOW: Duration = Duration::from_secs(10);

/// The most characters of a client's text, such as a topic or an identifier, in one line.
pub const QUOTED_CHARS_MAX: usize = 100;

/// Admits a number of lines in each [`WINDOW`].
#[derive(Debug)]
pub struct LogLimit {
    lines_max: u32,
    state: Mutex<LogLimitState>,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(LINES_MAX)
    }
}

#[derive(Debug, Default)]
struct LogLimitState {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogLimit {
    pub fn new(lines_max: u32) -> Self {
        Self { lines_max, state: Mutex::default() }
    }

    /// Whether to write a line now; if so, how many were left out since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now >= since + WINDOW) {
            *state = LogLimitState { since: Some(now), lines: 0, left_out: state.left_out };
        }
        if state.lines >= self.lines_max {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }

    /// Writes a warning within the limit.
    pub fn warn(&self, text: std::fmt::Arguments<'_>) {
        match self.admit(Instant::now()) {
            Some(0) => tracing::warn!("{text}"),
            Some(left_out) => tracing::warn!("{text} ({left_out} such lines were left out before)"),
            None => {}
        }
    }

    /// Writes an information within the limit.
    pub fn info(&self, text: std::fmt::Arguments<'_>) {
        match self.admit(Instant::now()) {
            Some(0) => tracing::info!("{text}"),
            Some(left_out) => tracing::info!("{text} ({left_out} such lines were left out before)"),
            None => {}
        }
    }
}

/// A client's text, safe for a log line: one line, no control characters, at most [`QUOTED_CHARS_MAX`] long.
pub fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_clients_is_truncated_and_escaped() {
        assert_eq!(quoted("a/b\n\x1b[31m\"c\""), "a/b\\n\\u{1b}[31m\\\"c\\\"");
        assert_eq!(quoted(&"é".repeat(70_000)).chars().count(), QUOTED_CHARS_MAX + 1);
    }

    #[test]
    fn a_flood_is_truncated_and_counted() {
        let limit = LogLimit::default();
        let start = Instant::now();
        let written = (0..LINES_MAX + 30).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(limit.admit(start + WINDOW), Some(30));
        assert_eq!(limit.admit(start + WINDOW), Some(0));
    }
}
