//! The settings that every source has: when a group is read, and which of its metrics.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeOwned, IgnoredAny, Visitor};
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

/// The same for a source with groups of their own tables, such as `[sources.procfs.stat]`: `names` are the groups. Gives the settings of each group
/// that has a table.
pub fn read_groups<T: DeserializeOwned>(
    section: &Section,
    names: &[&str],
) -> Result<(GroupOptions, BTreeMap<String, GroupOptions>, T), ConfigError> {
    let mut keys = KEYS.to_vec();
    keys.extend(names);
    let (_, own): (BTreeMap<String, IgnoredAny>, T) = section.parse_split(&keys)?;
    let (common, _): (GroupOptions, BTreeMap<String, IgnoredAny>) = section.parse_split(&KEYS)?;
    common.check(section)?;
    let mut groups = BTreeMap::new();
    for name in section.keys()?.into_iter().filter(|key| names.contains(&key.as_str())) {
        let table = section.child(&name);
        let options: GroupOptions = table.parse()?;
        options.check(&table)?;
        groups.insert(name, options);
    }
    Ok((common, groups, own))
}

/// A list of groups in the configuration: names, `default` for the groups that are on without settings, and `all`.
pub const GROUPS_DEFAULT: &str = "default";
/// Stands for every group in a list of groups.
pub const GROUPS_ALL: &str = "all";

/// Whether a list of groups contains a group. `is_on` says whether it is on without settings.
pub fn selects(list: &[&'static str], name: &str, is_on: bool) -> bool {
    list.iter().any(|entry| *entry == name || *entry == GROUPS_ALL || (*entry == GROUPS_DEFAULT && is_on))
}

/// Reads the name of a group, or one of the words for several. `known` are the groups.
pub fn group_name<'de, D: Deserializer<'de>>(
    deserializer: D,
    known: &'static [&'static str],
) -> Result<&'static str, D::Error> {
    deserializer.deserialize_str(GroupNameVisitor(known))
}

/// Gives the error at the place of the name; after `String::deserialize` it would have that of the list.
struct GroupNameVisitor(&'static [&'static str]);

impl Visitor<'_> for GroupNameVisitor {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a group in quotes")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<&'static str, E> {
        let found = self.0.iter().find(|known| **known == name);
        found.copied().ok_or_else(|| E::unknown_variant(name, self.0))
    }
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
        self.timing_or(source, None)
    }

    /// The same for a group that has an interval of its own without settings.
    pub fn timing_or(&self, source: &GroupOptions, interval: Option<Interval>) -> Timing {
        let default = Timing::default();
        Timing {
            interval: self.interval.or(source.interval).or(interval),
            offset: self.offset.or(source.offset).unwrap_or(default.offset),
            synchronous: self.synchronous.or(source.synchronous).unwrap_or(default.synchronous),
        }
    }
}

/// Whether the filters of the source and of the group keep a sensor.
pub fn keeps(source: &GroupOptions, group: &GroupOptions, sensor: &SensorDef) -> bool {
    source.metrics.keeps(&sensor.name) && group.metrics.keeps(&sensor.name)
}
