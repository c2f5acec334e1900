//! The settings that every source has: when a group is read, and which of its metrics.

use serde::de::DeserializeOwned;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::pattern::Filter;
use wholegrain_model::{Interval, SensorDef};

use crate::source::Timing;

/// The settings of a group: the table `[sources.<source>.<group>]`, or the same keys in the table of the source for all its groups.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupOptions {
    /// Without it the group has the interval of the source.
    pub interval: Option<Interval>,
    /// Without it the group has the offset of the source, or 0.
    pub offset: Option<Interval>,
    /// Without it the group has the setting of the source, or true.
    pub synchronous: Option<bool>,
    /// The sensors to sample, by their names below the agent's prefix.
    #[serde(default)]
    pub metrics: Filter,
}

const TIMING_KEYS: [&str; 3] = ["interval", "offset", "synchronous"];
/// The keys of [`GroupOptions`].
const KEYS: [&str; 4] = ["interval", "offset", "synchronous", "metrics"];

/// For a source or a group without settings of its own.
pub static NO_OPTIONS: GroupOptions = GroupOptions {
    interval: None,
    offset: None,
    synchronous: None,
    metrics: Filter { include: Vec::new(), exclude: Vec::new() },
};

/// Reads the table of a source: the keys of [`GroupOptions`], and the source's own keys into `T`.
pub fn read<T: DeserializeOwned>(section: &Section) -> Result<(GroupOptions, T), ConfigError> {
    read_keys(section, &KEYS)
}

/// The same without the key `metrics`, for a source that does not filter its sensors.
pub fn read_timing<T: DeserializeOwned>(section: &Section) -> Result<(GroupOptions, T), ConfigError> {
    read_keys(section, &TIMING_KEYS)
}

fn read_keys<T: DeserializeOwned>(section: &Section, keys: &[&str]) -> Result<(GroupOptions, T), ConfigError> {
    let (options, own): (GroupOptions, T) = section.parse_split(keys)?;
    options.check(section)?;
    Ok((options, own))
}

impl GroupOptions {
    /// Refuses an interval below the minimum and an offset that is not below the interval. `section` is the table of these keys.
    pub fn check(&self, section: &Section) -> Result<(), ConfigError> {
        if let Some(interval) = self.interval.filter(|i| i.ns() < SAMPLING_INTERVAL_NS_MIN) {
            let shortest = Interval::from_ns(SAMPLING_INTERVAL_NS_MIN);
            return Err(section
                .error("interval", format!("interval {interval} is shorter than {shortest}, the shortest interval")));
        }
        match (self.interval, self.offset) {
            (Some(interval), Some(offset)) if offset >= interval => Err(section.error(
                "offset",
                format!(
                    "offset {offset} is not below the interval {interval}; write the remainder, which means the same"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The timing of a group with these settings in a source with the settings `source`.
    pub fn timing(&self, source: &GroupOptions) -> Timing {
        let default = Timing::default();
        Timing {
            interval: self.interval.or(source.interval),
            offset: self.offset.or(source.offset).unwrap_or(default.offset),
            synchronous: self.synchronous.or(source.synchronous).unwrap_or(default.synchronous),
        }
    }
}

/// Whether the filters of the source and of the group keep a sensor.
pub fn keeps(source: &GroupOptions, group: &GroupOptions, sensor: &SensorDef) -> bool {
    source.metrics.keeps(&sensor.name) && group.metrics.keeps(&sensor.name)
}
