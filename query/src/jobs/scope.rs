//! The sensors of a job, and its time on each node.

use std::collections::HashMap;
use std::io;

use wholegrain_model::JobRecord;
use wholegrain_store::{JobRow, JobSearchResult, SensorInfo, Store, StoreError};

/// The level below an agent's prefix that contains the sensors of jobs.
const JOB: &str = "job";
/// The level above the number of a CPU.
const CPU: &str = "cpu";

/// CPUs as the kernel lists them, such as `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cpus(Box<[(u32, u32)]>);

impl Cpus {
    /// Parses a list (Linux: Documentation/admin-guide/cputopology.rst); `None` if it is invalid.
    pub fn parse(list: &str) -> Option<Self> {
        let ranges = list.split(',').map(str::trim).filter(|range| !range.is_empty()).map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some((first, last))
        });
        ranges.collect::<Option<_>>().map(Self)
    }

    /// Whether the list includes a CPU.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    /// The number of CPUs in the list.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }
}

/// A job on one node.
#[derive(Debug, Clone, PartialEq)]
pub struct JobNode {
    pub node: Box<str>,
    /// The path prefix of the node's sensors.
    pub prefix: Box<str>,
    /// The level of the job's own sensors: `<prefix>/job/<level>/…`.
    pub level: Box<str>,
    /// The CPUs that the job may use, if known.
    pub cpus: Option<Cpus>,
    /// Allocated devices, such as `gpu/0`; empty if none is known.
    pub devices: Box<[Box<str>]>,
    /// The job's begin on this node, ns since the Unix epoch.
    pub from: i64,
    /// The job's end on this node, exclusive; `i64::MAX` while it runs.
    pub to: i64,
}

impl JobNode {
    /// The node of one job record.
    pub fn of(record: &JobRecord) -> Self {
        Self {
            node: record.node.as_str().into(),
            prefix: record.prefix.as_str().into(),
            level: record.level.as_str().into(),
            cpus: record.cpus.as_deref().and_then(Cpus::parse),
            devices: record.devices.iter().map(|device| by_sensors(device).into()).collect(),
            from: record.from,
            // Includes a sample at the end itself.
            to: record.to.map_or(i64::MAX, |to| to.saturating_add(1)),
        }
    }

    /// Whether a sensor of the node, given by its path below the prefix, belongs to the job. The job has its own sensors, those of its CPUs and its
    /// allocated devices, and those of the whole node. Unknown CPUs and devices exclude nothing.
    pub fn has(&self, below: &str) -> bool {
        if let Some(rest) = below.strip_prefix(JOB).and_then(|rest| rest.strip_prefix('/')) {
            return rest.split_once('/').is_some_and(|(level, _)| *level == *self.level);
        }
        let mut levels = below.split('/');
        let Some(mut kind) = levels.next() else { return false };
        for level in levels {
            if kind == CPU
                && let (Some(cpus), Ok(number)) = (&self.cpus, level.parse::<u32>())
                && !cpus.contains(number)
            {
                return false;
            }
            let mut given = self.devices.iter().filter_map(|device| device.rsplit_once('/'));
            let mut same = given.clone().filter(|of| is_same_kind(of.0, kind)).peekable();
            if same.peek().is_some() && !given.any(|of| of == (kind, level)) {
                return false;
            }
            kind = level;
        }
        true
    }
}

/// The name of a device in the paths of its sensors, if the record has the name of its file: `dev/nvidia0` is `gpu/0`, `dev/dri/renderD128` is
/// `gpu/renderD128`.
fn by_sensors(device: &str) -> String {
    let number = device.strip_prefix("dev/nvidia").filter(|number| number.parse::<u32>().is_ok());
    match number.or_else(|| device.strip_prefix("dev/dri/").filter(|name| name.starts_with("renderD"))) {
        Some(name) => format!("gpu/{name}"),
        None => device.to_owned(),
    }
}

/// Whether devices of one kind limit those of the other: a job with an instance of a GPU has not the other GPUs.
fn is_same_kind(given: &str, kind: &str) -> bool {
    const GPUS: [&str; 2] = ["gpu", "mig"];
    given == kind || (GPUS.contains(&given) && GPUS.contains(&kind))
}

/// One run of a job: its nodes and its times on them.
#[derive(Debug, Clone)]
pub struct JobScope {
    row: JobRow,
    places: Vec<JobNode>,
    by_prefix: HashMap<Box<str>, usize>,
    damaged: u64,
}

impl JobScope {
    /// Finds a job by id with [`Store::find_job`]; `None` if there is none, or with `only_user` none of that user.
    pub fn find(store: &Store, id: &str, only_user: Option<&str>, at: Option<i64>) -> Result<Option<Self>, StoreError> {
        store.find_job(id, only_user, at).map(|found| Self::of(store, &found)).transpose()
    }

    /// The scope of a job that [`Store::find_job`] found.
    pub fn of(store: &Store, found: &JobSearchResult) -> Result<Self, StoreError> {
        let mut places = Vec::with_capacity(found.row.nodes);
        let damaged = store.job_records(found, |record| {
            places.push(JobNode::of(&record));
            io::Result::Ok(())
        })?;
        Ok(Self::new(found.row.clone(), places, damaged.unwrap_or_default()))
    }

    /// Builds a scope. `damaged` is the number of unreadable records. A prefix that occurs twice counts from its first begin to its last end.
    pub fn new(row: JobRow, all: Vec<JobNode>, damaged: u64) -> Self {
        let mut by_prefix: HashMap<Box<str>, usize> = HashMap::with_capacity(all.len());
        let mut places: Vec<JobNode> = Vec::with_capacity(all.len());
        for place in all {
            match by_prefix.get(&place.prefix) {
                Some(known) => {
                    let known = &mut places[*known];
                    (known.from, known.to) = (known.from.min(place.from), known.to.max(place.to));
                    if known.cpus != place.cpus {
                        known.cpus = None;
                    }
                }
                None => {
                    by_prefix.insert(place.prefix.clone(), places.len());
                    places.push(place);
                }
            }
        }
        Self { row, places, by_prefix, damaged }
    }

    /// The job as lists show it.
    pub fn row(&self) -> &JobRow {
        &self.row
    }

    /// The nodes, sorted by name.
    pub fn places(&self) -> &[JobNode] {
        &self.places
    }

    /// The range in which the job was on any node, end exclusive; `now` ends the range of a running job.
    pub fn range(&self, now: i64) -> (i64, i64) {
        let from = self.places.iter().map(|place| place.from).min().unwrap_or(self.row.from);
        let to = self.places.iter().map(|place| place.to).max().unwrap_or(from);
        (from, if to == i64::MAX { now.max(from) } else { to })
    }

    /// A warning if records of the job are damaged.
    pub fn warnings(&self) -> Vec<String> {
        let text = || {
            format!(
                "the records of {} nodes of job {} are damaged; those nodes' sensors are missing here",
                self.damaged, self.row.job
            )
        };
        (self.damaged > 0).then(text).into_iter().collect()
    }

    /// The node of a sensor and its path below the node's prefix, if the sensor belongs to the job.
    pub fn place<'a>(&self, path: &'a str) -> Option<(&JobNode, &'a str)> {
        self.place_index(path).map(|(place, below)| (&self.places[place], below))
    }

    /// As [`JobScope::place`], with the node's index in [`JobScope::places`].
    pub(crate) fn place_index<'a>(&self, path: &'a str) -> Option<(usize, &'a str)> {
        let (at, place) = path.rmatch_indices('/').find_map(|(at, _)| Some((at, *self.by_prefix.get(&path[..at])?)))?;
        let below = &path[at + 1..];
        self.places[place].has(below).then_some((place, below))
    }

    /// Removes sensors that do not belong to the job.
    pub fn retain(&self, sensors: &mut Vec<SensorInfo>) {
        sensors.retain(|sensor| self.place(&sensor.path).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        for (list, count) in
            [("0", Some(1)), ("0-3,8", Some(5)), ("", Some(0)), ("3-1", None), ("a", None), ("0-", None)]
        {
            assert_eq!(Cpus::parse(list).map(|cpus| cpus.count()), count, "{list:?}");
        }
        let cpus = Cpus::parse("0-3, 8").unwrap();
        assert!(cpus.contains(2) && cpus.contains(8) && !cpus.contains(4));
    }

    #[test]
    fn sensors_of_a_job() {
        let record = |cpus: Option<&str>, devices: &[&str]| JobRecord {
            node: "n1".into(),
            prefix: "/s/n1".into(),
            level: "7".into(),
            cpus: cpus.map(str::to_owned),
            devices: devices.iter().map(|device| (*device).to_owned()).collect(),
            ..JobRecord::default()
        };
        let all = JobNode::of(&record(None, &[]));
        let some = JobNode::of(&record(Some("0-1,10"), &["gpu/0", "gpu/3", "dev/nvidia5", "dev/dri/renderD129"]));
        let part = JobNode::of(&record(None, &["mig/0-gi1-ci0"]));
        for (below, expected) in [
            ("mig/0-gi1-ci0/memory/used", true),
            ("mig/0-gi2-ci0/memory/used", false),
            ("gpu/0/power", false),
            ("nic/1/bytes", true),
        ] {
            assert_eq!(part.has(below), expected, "{below} of a job with an instance");
        }
        for (below, in_all, in_some) in [
            ("power", true, true),
            ("cpu/user", true, true),
            ("cpu/1/user", true, true),
            ("cpu/2/user", true, false),
            ("cpu/10/user", true, true),
            ("perf/cpu/2/cycles", true, false),
            ("perf/cpu/0/cycles", true, true),
            ("gpu/0/power", true, true),
            ("gpu/1/power", true, false),
            ("gpu/5/power", true, true),
            ("gpu/renderD129/power", true, true),
            ("gpu/renderD128/power", true, false),
            ("mig/0-gi1-ci0/memory/used", true, false),
            ("job/7/gpu/1/memory_used", true, true),
            ("nic/1/bytes", true, true),
            ("job/7/cpu/usage", true, true),
            ("job/7/perf/cpu/5/x", true, true),
            ("job/71/cpu/usage", false, false),
            ("job/7", false, false),
            ("job", true, true),
            ("jobs/8/x", true, true),
        ] {
            assert_eq!((all.has(below), some.has(below)), (in_all, in_some), "{below}");
        }
    }
}
