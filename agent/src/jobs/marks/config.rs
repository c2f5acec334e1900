//! The settings of marks and their fixed bounds.

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};

/// The longest name of a region or a value, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// The most names of all jobs of one user.
pub const NAMES_OF_USER_MAX: usize = 1024;
/// The most names of all jobs together: each has a group, which takes about 12 KiB.
pub const NAMES_OF_ALL_MAX: usize = 4096;
/// The largest difference between a mark's time and the agent's clock: 1 s. Beyond it the time of arrival is used.
pub const TIME_APART_NS_MAX: i64 = 1_000_000_000;

/// The settings of `[jobs.marks]`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MarksConfig {
    pub enabled: bool,
    /// The most names of regions and values of one job.
    pub names_max: usize,
    /// Marks per second of one job in the long run.
    pub per_second: f64,
    /// Marks of one job at once.
    pub burst: u32,
}

impl Default for MarksConfig {
    fn default() -> Self {
        Self { enabled: true, names_max: 32, per_second: 50.0, burst: 200 }
    }
}

impl MarksConfig {
    pub const PER_SECOND_MAX: f64 = 10_000.0;

    pub fn check(self, section: &Section) -> Result<Self, ConfigError> {
        let wrong = |key: &str, is: String, wanted: String| {
            Err(section.child("marks").error(key, format!("{key} is {is}; use {wanted}")))
        };
        if !(1..=NAMES_OF_USER_MAX).contains(&self.names_max) {
            return wrong("names_max", self.names_max.to_string(), format!("1 to {NAMES_OF_USER_MAX}"));
        }
        if !(self.per_second > 0.0 && self.per_second <= Self::PER_SECOND_MAX) {
            return wrong("per_second", self.per_second.to_string(), format!("over 0 to {}", Self::PER_SECOND_MAX));
        }
        if !(1..=100_000).contains(&self.burst) {
            return wrong("burst", self.burst.to_string(), "1 to 100000".into());
        }
        Ok(self)
    }
}
