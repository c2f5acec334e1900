//! The log level, which can change while the agent runs. A process has one log, so the switch is global.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::Serialize;
use wholegrain_model::{Interval, LogLevel, Timestamp};

/// The shortest and the longest time for which a level can be set.
pub const LEVEL_TIMES: (Interval, Interval) = (Interval::from_ms(100), Interval::from_s(7 * 86_400));

type LevelSwitch = Box<dyn Fn(LogLevel) + Send + Sync>;
static SWITCH: OnceLock<LevelSwitch> = OnceLock::new();

/// Sets the function that changes the level of the process's log. Only the first call has an effect.
pub fn on_change(switch: impl Fn(LogLevel) + Send + Sync + 'static) {
    let _ = SWITCH.set(Box::new(switch));
}

/// The level in force, and the one that it returns to.
#[derive(Debug, Clone, Serialize)]
pub struct LogSetting {
    pub level: LogLevel,
    /// The level of the configuration.
    pub configured: LogLevel,
    /// When the configured level returns, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    #[serde(skip)]
    end: Option<Instant>,
}

impl LogSetting {
    /// The configured level, which the program has set already.
    pub fn new(configured: LogLevel) -> Self {
        Self { level: configured, configured, until: None, end: None }
    }

    /// Sets the configured level and ends a temporary one.
    pub fn configure(&mut self, level: LogLevel) {
        (self.configured, self.until, self.end) = (level, None, None);
        self.put(level);
    }

    /// Sets another level until a reload or, with `within`, for a time.
    pub fn set(&mut self, level: LogLevel, within: Option<Duration>, now: (Instant, Timestamp)) {
        self.end = within.map(|within| now.0 + within);
        self.until =
            within.map(|within| now.1.saturating_add(i64::try_from(within.as_nanos()).unwrap_or(i64::MAX)).to_string());
        self.put(level);
    }

    /// Returns to the configured level when the time is over.
    pub fn expire(&mut self, now: Instant) {
        if self.end.is_some_and(|end| now >= end) {
            self.configure(self.configured);
        }
    }

    fn put(&mut self, level: LogLevel) {
        if self.level != level {
            self.level = level;
            if let Some(switch) = SWITCH.get() {
                switch(level);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_for_a_while_falls_back() {
        let mut log = LogSetting::new(LogLevel::Info);
        let now = Instant::now();
        log.set(LogLevel::Debug, Some(Duration::from_secs(10)), (now, Timestamp(0)));
        assert_eq!(log.until.as_deref(), Some("1970-01-01T00:00:10Z"));
        log.expire(now + Duration::from_secs(9));
        assert_eq!(log.level, LogLevel::Debug);
        log.expire(now + Duration::from_secs(10));
        assert_eq!((log.level, log.until.clone()), (LogLevel::Info, None));
        log.set(LogLevel::Trace, None, (now, Timestamp(0)));
        log.expire(now + Duration::from_secs(1_000_000));
        assert_eq!(log.level, LogLevel::Trace);
    }
}
