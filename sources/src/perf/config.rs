//! The settings of `[sources.perf]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use wholegrain_model::config::{ConfigError, Section};

use super::event::{Event, Family};
use super::machine::RequestedGroup;
use crate::ConfigureContext;
use crate::options::{self, GroupOptions};

/// The default events of jobs.
pub const JOB_EVENTS: [&str; 12] = [
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "minor-faults",
    "major-faults",
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
];

/// The default of `group_max`.
const GROUP_MAX_DEFAULT: usize = 4;

/// The most events of one group.
pub const GROUP_EVENTS_MAX: usize = 64;

/// The most events of one scope.
const EVENTS_MAX: usize = 1024;

/// The keys of the source's table besides those of [`GroupOptions`].
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PerfKeys {
    events: Option<Vec<String>>,
    #[serde(default)]
    groups: Vec<Vec<String>>,
    #[serde(default)]
    node_events: Vec<String>,
    #[serde(default)]
    node_groups: Vec<Vec<String>>,
    #[serde(default = "group_max_default")]
    group_max: usize,
    #[serde(default)]
    per_cpu: bool,
    lock_file: Option<PathBuf>,
}

fn group_max_default() -> usize {
    GROUP_MAX_DEFAULT
}

/// The checked settings of the source.
#[derive(Debug)]
pub struct PerfConfig {
    /// The groups of each job.
    pub jobs: Vec<RequestedGroup>,
    /// The groups of the node.
    pub node: Vec<RequestedGroup>,
    /// Whether the node has sensors for each CPU in place of the sums.
    pub per_cpu: bool,
    /// Its owner may use the hardware's counters.
    pub lock_file: Option<PathBuf>,
    /// The settings of the node's group.
    pub common: GroupOptions,
}

impl PerfConfig {
    /// Reads and checks the source's own.
    pub fn read(section: &Section, context: &ConfigureContext) -> Result<Self, ConfigError> {
        let (common, own): (GroupOptions, PerfKeys) = options::read(section)?;
        if !(1..=GROUP_EVENTS_MAX).contains(&own.group_max) {
            return Err(
                section.error("group_max", format!("group_max is {}; expected 1 to {GROUP_EVENTS_MAX}", own.group_max))
            );
        }
        let job_groups = scope(section, "groups", &own.groups)?;
        let job_events = match &own.events {
            Some(events) => parse_all(section, "events", events)?,
            // Without the events that are in a group.
            None => {
                let mut events = parse_all(section, "events", &JOB_EVENTS)?;
                events.retain(|event| !job_groups.iter().flatten().any(|other| other.level == event.level));
                events
            }
        };
        let node_groups = scope(section, "node_groups", &own.node_groups)?;
        let node_events = parse_all(section, "node_events", &own.node_events)?;
        Ok(Self {
            jobs: groups(job_groups, job_events, own.group_max).map_err(|error| section.error("events", error))?,
            node: groups(node_groups, node_events, own.group_max)
                .map_err(|error| section.error("node_events", error))?,
            per_cpu: own.per_cpu,
            lock_file: own.lock_file.map(|path| context.resolve(&path)),
            common,
        })
    }
}

fn parse_all(section: &Section, key: &str, texts: &[impl AsRef<str>]) -> Result<Vec<Event>, ConfigError> {
    texts.iter().map(|text| Event::parse(text.as_ref()).map_err(|error| section.error(key, error))).collect()
}

/// The configured groups, checked: number of events, and only one PMU.
fn scope(section: &Section, key: &str, groups: &[Vec<String>]) -> Result<Vec<Vec<Event>>, ConfigError> {
    let mut parsed = Vec::new();
    for group in groups {
        if !(1..=GROUP_EVENTS_MAX).contains(&group.len()) {
            return Err(
                section.error(key, format!("a group has {} events; 1 to {GROUP_EVENTS_MAX} are allowed", group.len()))
            );
        }
        let events = parse_all(section, key, group)?;
        let mut families: Vec<Family> =
            events.iter().map(Event::family).filter(|family| *family != Family::Software).collect();
        families.dedup();
        if families.len() > 1 {
            return Err(section.error(
                key,
                format!("the group {} has events of several PMUs, which cannot be counted together; write a group for each PMU", group.join(", ")),
            ));
        }
        parsed.push(events);
    }
    Ok(parsed)
}

/// The configured groups, then groups of the single events: one for all events without a hardware counter, and for the others groups of at
/// most `group_max`, as the hardware could not count more at the same time.
fn groups(configured: Vec<Vec<Event>>, singles: Vec<Event>, group_max: usize) -> Result<Vec<RequestedGroup>, String> {
    let mut levels: Vec<&str> = configured.iter().flatten().chain(&singles).map(|event| event.level.as_str()).collect();
    if levels.len() > EVENTS_MAX {
        return Err(format!("{} events are configured; at most {EVENTS_MAX} are allowed", levels.len()));
    }
    levels.sort_unstable();
    if let Some(twice) = levels.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("event `{}` is configured twice; a sensor can have one counter only", twice[0]));
    }
    let mut packs: BTreeMap<Family, Vec<Event>> = BTreeMap::new();
    for event in singles {
        packs.entry(event.family()).or_default().push(event);
    }
    let mut all = Vec::new();
    for (index, events) in configured.into_iter().enumerate() {
        all.push(RequestedGroup { name: format!("group_{}", index + 1), events });
    }
    for (family, events) in packs {
        let (name, size) = match family {
            Family::Software => ("software".to_owned(), GROUP_EVENTS_MAX),
            Family::Core => ("hardware".to_owned(), group_max),
            Family::Pmu(name) => (name, group_max),
        };
        for (index, events) in events.chunks(size).enumerate() {
            let name = if index == 0 { name.clone() } else { format!("{name}_{}", index + 1) };
            all.push(RequestedGroup { name, events: events.to_vec() });
        }
    }
    // The name of a PMU may be that of another group.
    for index in 0..all.len() {
        while all[..index].iter().any(|other| other.name == all[index].name) {
            all[index].name.push_str("_pmu");
        }
    }
    Ok(all)
}
