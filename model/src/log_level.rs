//! Log levels of the agent and the server.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// All levels, the most severe first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The name in configurations and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = Self::ALL.into_iter().find(|level| level.name() == text);
        level.ok_or_else(|| format!("{text:?} is not a log level; write error, warn, info, debug or trace"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_read_as_it_is_written() {
        assert!(LogLevel::ALL.into_iter().all(|level| level.to_string().parse() == Ok(level)));
        assert!("inof".parse::<LogLevel>().unwrap_err().contains("write error, warn"));
        assert!(LogLevel::Debug > LogLevel::Error);
    }
}
