//! `[sources.perf]`: the source's keys.

use std::collections::BTreeMap;
use std::path::PathBuf;

use wholegrain_model::config::{ConfigError, Section};

use super::event::{Event, Family};
use super::machine::Wanted;
use crate::ConfigureContext;
use crate::options::{self, GroupOptions};

/// What is counted of jobs when the configuration does not say.
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

/// The most hardware events that are packed into a group when the configuration does not say.
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

/// The configuration, checked.
#[derive(Debug)]
pub struct PerfConfig {
    /// What is counted of each job.
    pub jobs: Vec<Wanted>,
    /// What is counted on the node.
    pub node: Vec<Wanted>,
    /// Whether the node's sensors are of each CPU.
    pub per_cpu: bool,
    /// Who has it has the hardware's counters.
    pub lock_file: Option<PathBuf>,
    /// The keys of the node's group.
    pub common: GroupOptions,
}

impl PerfConfig {
    /// Reads and checks the source's own.
    pub fn read(section: &Section, context: &ConfigureContext) -> Result<Self, ConfigError> {
        let (common, own): (GroupOptions, PerfKeys) = options::read(section)?;
        if !(1..=GROUP_EVENTS_MAX).contains(&own.group_max) {
            return Err(section
                .error("group_max", format!("group_max is {}; 1 to {GROUP_EVENTS_MAX} make sense", own.group_max)));
        }
        let job_groups = scope(section, "groups", &own.groups)?;
        let job_events = match &own.events {
            Some(events) => parse_all(section, "events", events)?,
            // Those that stand in a group are there already.
            None => {
                let mut events = parse_all(section, "events", &JOB_EVENTS)?;
                events.retain(|event| !job_groups.iter().flatten().any(|other| other.level == event.level));
                events
            }
        };
        let node_groups = scope(section, "node_groups", &own.node_groups)?;
        let node_events = parse_all(section, "node_events", &own.node_events)?;
        Ok(Self {
            jobs: wanted(job_groups, job_events, own.group_max).map_err(|error| section.error("events", error))?,
            node: wanted(node_groups, node_events, own.group_max)
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

/// The groups that somebody wrote down, each checked to be one that can be.
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
                format!("the group {} has events of several PMUs, which cannot be counted together; make it one for each PMU", group.join(", ")),
            ));
        }
        parsed.push(events);
    }
    Ok(parsed)
}

/// The groups as they are written, then the single events packed by kind: all that need no counter together, the others at most
/// `group_max` in one, as more could not be on the hardware at the same time.
fn wanted(groups: Vec<Vec<Event>>, singles: Vec<Event>, group_max: usize) -> Result<Vec<Wanted>, String> {
    let mut levels: Vec<&str> = groups.iter().flatten().chain(&singles).map(|event| event.level.as_str()).collect();
    if levels.len() > EVENTS_MAX {
        return Err(format!("{} events are wanted; at most {EVENTS_MAX} can be", levels.len()));
    }
    levels.sort_unstable();
    if let Some(twice) = levels.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("event `{}` is wanted twice; one sensor can have one counter only", twice[0]));
    }
    let mut packs: BTreeMap<Family, Vec<Event>> = BTreeMap::new();
    for event in singles {
        packs.entry(event.family()).or_default().push(event);
    }
    let mut all = Vec::new();
    for (index, events) in groups.into_iter().enumerate() {
        all.push(Wanted { name: format!("group_{}", index + 1), events });
    }
    for (family, events) in packs {
        let (name, size) = match family {
            Family::Software => ("software".to_owned(), GROUP_EVENTS_MAX),
            Family::Core => ("hardware".to_owned(), group_max),
            Family::Pmu(name) => (name, group_max),
        };
        for (index, events) in events.chunks(size).enumerate() {
            let name = if index == 0 { name.clone() } else { format!("{name}_{}", index + 1) };
            all.push(Wanted { name, events: events.to_vec() });
        }
    }
    // A PMU may be called as another group is.
    for index in 0..all.len() {
        while all[..index].iter().any(|other| other.name == all[index].name) {
            all[index].name.push_str("_pmu");
        }
    }
    Ok(all)
}
