//! Rate limit of log lines that a client can cause; the rest is counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Warnings in one [`WINDOW`].
pub const LINES_MAX: u32 = 20;
/// Lines about a store that cannot write: all clients have the same problem.
pub const TROUBLE_MAX: u32 = 2;
/// Lines about clients that connect and disconnect in one [`WINDOW`].
pub const CONNECTIONS_MAX: u32 = 200;
pub const WINDOW: Duration = Duration::from_secs(10);
/// Between two warnings of [`SenderLog`] about one sender: 10 min.
const SENDER_WINDOW: Duration = Duration::from_secs(600);
/// The most senders that are warned about in one [`SENDER_WINDOW`].
const SENDERS_MAX: usize = 1024;

/// The most characters of a client's text, such as a topic or an identifier, in one line.
pub const QUOTED_CHARS_MAX: usize = 100;
/// The most characters of a reason with such texts.
const REASON_CHARS_MAX: usize = 400;

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

/// Warnings about what senders send, one for each sender in [`SENDER_WINDOW`].
#[derive(Debug, Default)]
pub struct SenderLog(Mutex<HashMap<String, Instant>>);

impl SenderLog {
    /// Whether to write a line about this sender now.
    fn admit(&self, sender: &str, now: Instant) -> bool {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if since.get(sender).is_some_and(|at| now < *at + SENDER_WINDOW) {
            return false;
        }
        if since.len() >= SENDERS_MAX {
            since.retain(|_, at| now < *at + SENDER_WINDOW);
        }
        let is_room = since.len() < SENDERS_MAX;
        if is_room {
            since.insert(sender.to_owned(), now);
        }
        is_room
    }

    /// Warns that something of a sender is refused, within the limit. `why` can have the sender's texts.
    pub fn warn(&self, sender: &str, what: std::fmt::Arguments<'_>, why: &str) {
        if self.admit(sender, Instant::now()) {
            let (sender, why, minutes) = (quoted(sender), cut(why, REASON_CHARS_MAX), SENDER_WINDOW.as_secs() / 60);
            tracing::warn!(
                "{sender}: {what} are refused: {why}; further refusals within {minutes} min are only counted"
            );
        }
    }
}

/// A client's text, safe for a log line: one line, no control characters, at most [`QUOTED_CHARS_MAX`] long.
pub fn quoted(text: &str) -> String {
    cut(text, QUOTED_CHARS_MAX)
}

/// The same of at most `chars_max` characters.
fn cut(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).flat_map(char::escape_debug).collect();
    if text.chars().nth(chars_max).is_some() {
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
    fn each_sender_is_warned_about_once_and_a_bounded_number_of_them() {
        let (log, start) = (SenderLog::default(), Instant::now());
        assert!(log.admit("a", start) && !log.admit("a", start) && log.admit("b", start));
        let admitted = (0..2 * SENDERS_MAX).filter(|sender| log.admit(&sender.to_string(), start)).count();
        assert_eq!(admitted, SENDERS_MAX - 2);
        assert!(log.admit("a", start + SENDER_WINDOW) && log.admit("c", start + SENDER_WINDOW));
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
