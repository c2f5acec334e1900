//! How much is logged, changed while the server runs: by a reload, or by somebody for a while.
//!
//! A process has one log, so the switch of the program that writes it is one for the process too ([`on_change`]).

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use wholegrain_model::{Interval, Timestamp};

use crate::config::LogLevel;

/// The shortest and the longest time that a level may be asked for.
pub const FOR: (Interval, Interval) = (Interval::from_ms(100), Interval::from_s(7 * 86_400));

type Switch = Box<dyn Fn(LogLevel) + Send + Sync>;
static SWITCH: OnceLock<Switch> = OnceLock::new();

/// Tells what changes the level of the log that this process writes. The first one counts.
pub fn on_change(switch: impl Fn(LogLevel) + Send + Sync + 'static) {
    let _ = SWITCH.set(Box::new(switch));
}

/// The level in force, and when and to what it falls back.
#[derive(Debug)]
pub(crate) struct LogControl(Mutex<State>);

#[derive(Debug)]
struct State {
    configured: LogLevel,
    now: LogLevel,
    until: Option<(Instant, Timestamp)>,
}

/// What is asked and answered about the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LogState {
    /// In force.
    pub level: LogLevel,
    /// What the configuration says.
    pub configured: LogLevel,
    /// When the configured level holds again by itself.
    pub until: Option<String>,
}

impl LogControl {
    /// With the configured level, which the program has set already.
    pub fn new(configured: LogLevel) -> Self {
        Self(Mutex::new(State { configured, now: configured, until: None }))
    }

    /// What the file says holds from now on, whatever was asked for before.
    pub fn configure(&self, level: LogLevel) {
        let mut state = self.lock();
        (state.configured, state.until) = (level, None);
        state.put(level);
    }

    /// Another level: until a reload or, with a length of time, for so long.
    pub fn set(&self, level: LogLevel, within: Option<Duration>, now: (Instant, Timestamp)) {
        let mut state = self.lock();
        state.until = within.map(|within| {
            let ns = i64::try_from(within.as_nanos()).unwrap_or(i64::MAX);
            (now.0 + within, now.1.saturating_add(ns))
        });
        state.put(level);
    }

    /// Falls back when it is time.
    pub fn look(&self, now: Instant) {
        let mut state = self.lock();
        if state.until.is_some_and(|(until, _)| now >= until) {
            state.until = None;
            let level = state.configured;
            state.put(level);
        }
    }

    /// What is in force.
    pub fn state(&self) -> LogState {
        let state = self.lock();
        LogState {
            level: state.now,
            configured: state.configured,
            until: state.until.map(|(_, time)| time.to_string()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, level: LogLevel) {
        if self.now == level {
            return;
        }
        // Said at the more talkative of the two, so that one of them at least can be seen under both.
        let said = |level: LogLevel| tracing::warn!("the log's level is {level} now");
        if level < self.now {
            said(level);
        }
        self.now = level;
        if let Some(switch) = SWITCH.get() {
            switch(level);
        }
        if level > LogLevel::Error {
            said(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_for_a_while_falls_back_and_a_reload_ends_it() {
        let log = LogControl::new(LogLevel::Info);
        let now = Instant::now();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let levels = || (log.state().level, log.state().until.is_some());
        log.set(LogLevel::Debug, Some(Duration::from_secs(10)), (now, Timestamp(0)));
        assert_eq!(log.state().until.as_deref(), Some("1970-01-01T00:00:10Z"));
        log.look(at(9));
        assert_eq!(levels(), (LogLevel::Debug, true));
        // A later wish holds for its own time, whatever the earlier one's end.
        log.set(LogLevel::Warn, Some(Duration::from_secs(20)), (now, Timestamp(0)));
        log.look(at(10));
        assert_eq!(levels(), (LogLevel::Warn, true));
        log.look(at(20));
        assert_eq!(levels(), (LogLevel::Info, false));
        log.set(LogLevel::Debug, None, (now, Timestamp(0)));
        log.look(at(1_000_000));
        assert_eq!(levels(), (LogLevel::Debug, false));
        log.configure(LogLevel::Error);
        assert_eq!(levels(), (LogLevel::Error, false));
    }
}
