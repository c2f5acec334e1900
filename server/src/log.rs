//! The log level, changed at run time by a reload or by an administrator for a bounded time.
//!
//! A process has one log, so [`on_change`] sets one function for the process.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use wholegrain_api::LogState;
use wholegrain_model::{Interval, LogLevel, Timestamp};

/// The shortest and the longest time for which a level can be requested.
pub const FOR: (Interval, Interval) = (Interval::from_ms(100), Interval::from_s(7 * 86_400));

type LevelSwitch = Box<dyn Fn(LogLevel) + Send + Sync>;
static SWITCH: OnceLock<LevelSwitch> = OnceLock::new();

/// The level as `tracing` names it.
pub fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Sets the function that changes the log level of this process. Later calls have no effect.
pub fn on_change(switch: impl Fn(LogLevel) + Send + Sync + 'static) {
    let _ = SWITCH.set(Box::new(switch));
}

/// The level in force, when it ends, and the level after it.
#[derive(Debug)]
pub(crate) struct LogControl(Mutex<LogControlState>);

#[derive(Debug)]
struct LogControlState {
    configured: LogLevel,
    now: LogLevel,
    until: Option<(Instant, Timestamp)>,
}

impl LogControl {
    /// Starts with the configured level, which the program has set already.
    pub fn new(configured: LogLevel) -> Self {
        Self(Mutex::new(LogControlState { configured, now: configured, until: None }))
    }

    /// Applies the level of the configuration file; ends a requested level.
    pub fn configure(&self, level: LogLevel) {
        let mut state = self.lock();
        (state.configured, state.until) = (level, None);
        state.put(level);
    }

    /// Applies another level: until a reload or, if given, for a length of time.
    pub fn set(&self, level: LogLevel, within: Option<Duration>, now: (Instant, Timestamp)) {
        let mut state = self.lock();
        state.until = within.map(|within| {
            let ns = i64::try_from(within.as_nanos()).unwrap_or(i64::MAX);
            (now.0 + within, now.1.saturating_add(ns))
        });
        state.put(level);
    }

    /// Ends a requested level when its time is over.
    pub fn look(&self, now: Instant) {
        let mut state = self.lock();
        if state.until.is_some_and(|(until, _)| now >= until) {
            state.until = None;
            let level = state.configured;
            state.put(level);
        }
    }

    pub fn state(&self) -> LogState {
        let state = self.lock();
        LogState {
            level: state.now.to_string(),
            configured: state.configured.to_string(),
            until: state.until.map(|(_, time)| time.into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogControlState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogControlState {
    fn put(&mut self, level: LogLevel) {
        if self.now == level {
            return;
        }
        // Logged at the lower of the two levels, so that at least one of the lines passes.
        let said = |level: LogLevel| tracing::warn!("the log level is now {level}");
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
        let levels = || (log.state().level.parse::<LogLevel>().unwrap(), log.state().until.is_some());
        log.set(LogLevel::Debug, Some(Duration::from_secs(10)), (now, Timestamp(0)));
        assert_eq!(log.state().until.map(|until| until.to_string()).as_deref(), Some("1970-01-01T00:00:10Z"));
        log.look(at(9));
        assert_eq!(levels(), (LogLevel::Debug, true));
        // A later request applies for its own time, whatever the end of the earlier one.
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
