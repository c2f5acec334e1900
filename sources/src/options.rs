//! The keys that a source's table and each of its groups' tables share: when to read, and which metrics.

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::pattern::Filter;
use wholegrain_model::{Interval, SensorDef};

use crate::Timing;

/// What `[sources.<source>.<group>]` takes.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupOptions {
    /// The interval; without it the source's.
    pub interval: Option<Interval>,
    /// The offset; without it the source's, and without that none.
    pub offset: Option<Interval>,
    /// Wall-clock multiples or free-running; without it as the source says, and without that wall-clock multiples.
    pub synchronous: Option<bool>,
    /// Which of the group's sensors, by their names below the agent's prefix.
    #[serde(default)]
    pub metrics: Filter,
}

impl GroupOptions {
    /// Refuses an interval under the shortest one and an offset that is no part of the interval. `section` is the table that
    /// these keys are in.
    pub fn check(&self, section: &Section) -> Result<(), ConfigError> {
        if let Some(interval) = self.interval.filter(|i| i.ns() < SAMPLING_INTERVAL_NS_MIN) {
            let shortest = Interval::from_ns(SAMPLING_INTERVAL_NS_MIN);
            return Err(section
                .error("interval", format!("interval {interval} is shorter than {shortest}, the shortest there is")));
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

    /// When to read a group that has these keys, in a source that has the keys `source`.
    pub fn timing(&self, source: &GroupOptions) -> Timing {
        let default = Timing::default();
        Timing {
            interval: self.interval.or(source.interval),
            offset: self.offset.or(source.offset).unwrap_or(default.offset),
            synchronous: self.synchronous.or(source.synchronous).unwrap_or(default.synchronous),
        }
    }
}

/// Whether a sensor is to be sampled: both the source's and the group's filter must keep it.
pub fn keeps(source: &GroupOptions, group: &GroupOptions, sensor: &SensorDef) -> bool {
    source.metrics.keeps(&sensor.name) && group.metrics.keeps(&sensor.name)
}
