//! `[sources.cgroup]`: the source's keys.

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;

use crate::options::GroupOptions;

/// The table as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Table {
    metrics: Filter,
    per_device: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { metrics: Filter::default(), per_device: true }
    }
}

/// The configuration, checked.
#[derive(Debug)]
pub struct Config {
    /// Which metrics, by their names below the job.
    pub options: GroupOptions,
    /// Whether each block device has metrics of its own.
    pub per_device: bool,
}

impl Config {
    /// Reads and checks the source's table.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let table: Table = section.parse()?;
        let options = GroupOptions { metrics: table.metrics, ..GroupOptions::default() };
        Ok(Self { options, per_device: table.per_device })
    }
}
