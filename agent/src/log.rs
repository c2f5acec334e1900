//! How much is logged, changed while the agent runs. A process has one log, so its switch is one for the process too.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::Serialize;
use wholegrain_model::{Interval, LogLevel, Timestamp};

/// The shortest and the longest time that a level may be asked for.
pub const FOR: (Interval, Interval) = (Interval::from_ms(100), Interval::from_s(7 * 86_400));

type LevelSwitch = Box<dyn Fn(LogLevel) + Send + Sync>;
static SWITCH: OnceLock<LevelSwitch> = OnceLock::new();

/// Tells what changes the level of the log that this process writes. The first one counts.
pub fn on_change(switch: impl Fn(LogLevel) + Send + Sync + 'static) {
    let _ = SWITCH.set(Box::new(switch));
}

/// The level in force, and when and to what it falls back.
#[derive(Debug, Clone, Serialize)]
pub struct LogSetting {
    pub level: LogLevel,
    /// What the configuration says.
    pub configured: LogLevel,
    /// When the configured level holds again by itself, ns since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    #[serde(skip)]
    end: Option<Instant>,
}

impl LogSetting {
    /// With the configured level, which the program has set already.
    pub fn new(configured: LogLevel) -> Self {
        Self { level: configured, configured, until: None, end: None }
    }

    /// What the file says holds from now on, whatever was asked for before.
    pub fn configure(&mut self, level: LogLevel) {
        (self.configured, self.until, self.end) = (level, None, None);
        self.put(level);
    }

    /// Another level: until a reload or, with a length of time, for so long.
    pub fn set(&mut self, level: LogLevel, within: Option<Duration>, now: (Instant, Timestamp)) {
        self.end = within.map(|within| now.0 + within);
        self.until =
            within.map(|within| now.1.saturating_add(i64::try_from(within.as_nanos()).unwrap_or(i64::MAX)).to_string());
        self.put(level);
    }

    /// Falls back when it is time.
    pub fn look(&mut self, now: Instant) {
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
        log.look(now + Duration::from_secs(9));
        assert_eq!(log.level, LogLevel::Debug);
        log.look(now + Duration::from_secs(10));
        assert_eq!((log.level, log.until.clone()), (LogLevel::Info, None));
        log.set(LogLevel::Trace, None, (now, Timestamp(0)));
        log.look(now + Duration::from_secs(1_000_000));
        assert_eq!(log.level, LogLevel::Trace);
    }
}
