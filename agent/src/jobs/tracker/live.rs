//! A running job: its directories, its steps, its record. No I/O and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wholegrain_model::job::STEPS_MAX;
use wholegrain_model::{JobRecord, StepRecord};
use wholegrain_sources::job::JobCgroups;

use super::hooks::Hook;
use super::layout::{JobPath, PathOwner};

/// The highest valid CPU number.
const CPU_MAX: u32 = 65_535;

/// A directory: the number of its hierarchy, and the path below the hierarchy's root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirId {
    pub hierarchy: usize,
    /// Without a leading slash; empty for the root.
    pub path: Arc<str>,
}

impl DirId {
    pub fn new(hierarchy: usize, path: &str) -> Self {
        Self { hierarchy, path: path.into() }
    }

    pub fn child(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.into() } else { format!("{}/{name}", self.path).into() };
        Self { hierarchy: self.hierarchy, path }
    }

    /// Whether this is `other` or below it.
    pub fn is_within(&self, other: &DirId) -> bool {
        self.hierarchy == other.hierarchy
            && (other.path.is_empty()
                || self.path.strip_prefix(&*other.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

/// Identifies a running job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JobKey {
    pub manager: Arc<str>,
    pub instance: Arc<str>,
    pub job: Arc<str>,
    /// The owner that the path of the job's first directory names.
    pub owner: PathOwner,
}

impl JobKey {
    pub fn of(found: &JobPath) -> Self {
        Self {
            manager: found.manager.as_str().into(),
            instance: found.instance.as_str().into(),
            job: found.job.as_str().into(),
            owner: found.owner.clone(),
        }
    }
}

/// The identity of a directory in the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryStamp {
    /// The creation time, ns since the Unix epoch, as far as it is known.
    pub created: i64,
    /// Whether that is the real creation time, or only a time at which the directory existed.
    pub is_birth: bool,
    /// The inode: the kernel gives no two cgroups the same. 0 if it was removed before it was read.
    pub inode: u64,
}

impl DirectoryStamp {
    /// Whether it differs from another directory's.
    pub fn is_other(&self, other: &DirectoryStamp) -> bool {
        let known = self.inode != 0 && other.inode != 0;
        known && self.inode != other.inode || (self.is_birth && other.is_birth && self.created != other.created)
    }
}

/// The existing directories of a job or a step.
#[derive(Debug, Default)]
pub struct JobDirectories {
    here: BTreeMap<DirId, (DirectoryStamp, bool)>,
    accounted: bool,
}

impl JobDirectories {
    /// Adds a directory; `accounts` if its hierarchy accounts resources. `false` if it was known.
    pub fn add(&mut self, dir: DirId, stamp: DirectoryStamp, accounts: bool) -> bool {
        self.accounted |= accounts;
        if stamp.inode == 0 && self.here.contains_key(&dir) {
            return false;
        }
        self.here.insert(dir, (stamp, accounts)).is_none()
    }

    /// Removes those within `dir`. Whether there were any.
    pub fn remove_within(&mut self, dir: &DirId) -> bool {
        let gone: Vec<DirId> = self.here.keys().filter(|here| here.is_within(dir)).cloned().collect();
        gone.iter().for_each(|dir| _ = self.here.remove(dir));
        !gone.is_empty()
    }

    /// Whether another directory with the same path has replaced a known one.
    pub fn is_other(&self, dir: &DirId, stamp: DirectoryStamp) -> bool {
        self.here.get(dir).is_some_and(|(known, _)| known.is_other(&stamp))
    }

    /// The job ends with its last accounting directory, or if there was none, with the last of all: a remaining freezer does not keep a job running.
    pub fn is_over(&self) -> bool {
        if self.accounted { !self.here.values().any(|(_, accounts)| *accounts) } else { self.here.is_empty() }
    }

    pub fn accounting(&self) -> impl Iterator<Item = &DirId> {
        self.here.iter().filter(|(_, (_, accounts))| *accounts).map(|(dir, _)| dir)
    }

    pub fn not_accounting(&self) -> impl Iterator<Item = (&DirId, DirectoryStamp)> {
        self.here.iter().filter(|(_, (_, accounts))| !accounts).map(|(dir, (stamp, _))| (dir, *stamp))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&DirId, DirectoryStamp)> {
        self.here.iter().map(|(dir, (stamp, _))| (dir, *stamp))
    }
}

#[derive(Debug, Default)]
struct StepDirectories {
    /// The index in the record; `None` if the record has too many.
    index: Option<usize>,
    dirs: JobDirectories,
}

/// The origin of the uid; a better one replaces a worse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum UidSource {
    #[default]
    Nothing,
    /// All processes are root's.
    RootOnly,
    /// From the owner of its processes or its directory.
    Processes,
    Hook,
    /// From the directory's path.
    Path,
}

/// Facts about a running job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFacts {
    /// The owner of its processes.
    pub uid: Option<u32>,
    /// Its CPUs in the kernel's list format.
    pub cpus: Option<String>,
    /// Its devices, if they can be read.
    pub devices: Vec<String>,
    pub has_processes: bool,
}

pub type TotalsByMetric = BTreeMap<&'static str, f64>;

#[derive(Debug)]
pub struct LiveJob {
    pub record: JobRecord,
    pub cgroups: JobCgroups,
    pub dirs: JobDirectories,
    steps: BTreeMap<String, StepDirectories>,
    /// Whether it has had processes.
    pub has_processes: bool,
    /// Whether an event was sent for it.
    pub is_announced: bool,
    /// When it was found, by the clock that is never stepped, ns.
    pub seen_mono: u64,
    /// Whether `record.from` is final.
    pub from_fixed: bool,
    /// The origin of the uid.
    pub uid_from: UidSource,
    /// The owner that its directories' paths name.
    pub owner: PathOwner,
    /// The account of the manager's own daemons.
    pub account: Option<u32>,
    hook_devices: Vec<String>,
    seen_devices: Vec<String>,
}

impl LiveJob {
    pub fn new(record: JobRecord, mono: u64) -> Self {
        let cgroups = JobCgroups { level: record.level.clone(), ..JobCgroups::default() };
        let mut live = Self {
            cgroups,
            dirs: JobDirectories::default(),
            steps: BTreeMap::new(),
            has_processes: false,
            is_announced: false,
            seen_mono: mono,
            from_fixed: record.from != 0,
            uid_from: if record.uid.is_some() { UidSource::Processes } else { UidSource::Nothing },
            owner: PathOwner::of_record(&record.owner),
            account: None,
            hook_devices: record.devices.clone(),
            seen_devices: Vec::new(),
            record,
        };
        live.cgroups.uid = live.record.uid;
        live.cgroups.cpus = live.record.cpus.as_deref().and_then(cpu_list).unwrap_or_default();
        live
    }

    /// Sets the uid if its origin is better than the present one's. Whether anything has changed.
    pub fn set_uid(&mut self, uid: u32, from: UidSource) -> bool {
        if from < self.uid_from || (from == self.uid_from && from != UidSource::Hook) {
            return false;
        }
        self.uid_from = from;
        if self.record.uid == Some(uid) {
            return false;
        }
        if self.record.uid.is_some() {
            self.record.user = None;
        }
        self.record.uid = Some(uid);
        self.cgroups.uid = Some(uid);
        true
    }

    /// Applies the owner that a directory's path names.
    pub fn apply_owner(&mut self, found: &JobPath) {
        if self.owner == PathOwner::Unspecified {
            self.owner = found.owner.clone();
            // Part of the record's identity, which others know by then.
            if !self.is_announced && self.record.revision == 0 {
                self.record.owner = self.owner.to_string();
            }
        }
        self.account = self.account.or(found.account);
        if let Some(uid) = found.uid {
            self.set_uid(uid, UidSource::Path);
        }
        if found.user.is_some() {
            self.record.user.clone_from(&found.user);
        }
    }

    /// Applies facts. Whether anything has changed.
    pub fn apply_facts(&mut self, facts: JobFacts, mono: u64) -> bool {
        let mut changed = facts.has_processes && !self.has_processes;
        self.has_processes |= facts.has_processes;
        if let Some(uid) = facts.uid {
            // A manager's daemon precedes the job's processes and runs as root: the job is root's only if that remains so.
            let is_old = mono.saturating_sub(self.seen_mono) >= 1_000_000_000;
            if uid != 0 {
                changed |= self.set_uid(uid, UidSource::Processes);
            } else if is_old || &*self.record.manager == "systemd" {
                changed |= self.set_uid(0, UidSource::RootOnly);
            }
        }
        if facts.cpus.is_some() && facts.cpus != self.record.cpus {
            self.cgroups.cpus = facts.cpus.as_deref().and_then(cpu_list).unwrap_or_default();
            self.record.cpus = facts.cpus;
            changed = true;
        }
        if !facts.devices.is_empty() && facts.devices != self.seen_devices {
            self.seen_devices = facts.devices;
            changed |= self.join_devices();
        }
        changed
    }

    fn join_devices(&mut self) -> bool {
        let all: BTreeSet<&String> = self.hook_devices.iter().chain(&self.seen_devices).collect();
        let all: Vec<String> = all.into_iter().cloned().collect();
        let changed = all != self.record.devices;
        self.record.devices = all;
        changed
    }

    /// Applies a hook. Whether anything has changed.
    pub fn merge(&mut self, hook: &Hook) -> bool {
        let mut changed = hook.uid.is_some_and(|uid| self.set_uid(uid, UidSource::Hook));
        changed |= hook.merge_into(&mut self.record);
        if !hook.devices.is_empty() {
            self.hook_devices = hook.devices.clone();
            changed |= self.join_devices();
        }
        changed
    }

    /// Adds a directory of a step. Whether the record has changed.
    pub fn step_created(&mut self, name: &str, dir: DirId, stamp: DirectoryStamp, accounts: bool) -> bool {
        let mut changed = false;
        let record = &mut self.record;
        let step = self.steps.entry(name.to_owned()).or_insert_with(|| {
            changed = true;
            // A step that ran when the agent last did continues.
            if let Some(index) = record.steps.iter().position(|step| step.name == name && step.to.is_none()) {
                return StepDirectories { index: Some(index), dirs: JobDirectories::default() };
            }
            if record.steps.len() >= STEPS_MAX {
                record.steps_dropped += 1;
                return StepDirectories::default();
            }
            record.steps.push(StepRecord { name: name.to_owned(), from: stamp.created, to: None });
            StepDirectories { index: Some(record.steps.len() - 1), dirs: JobDirectories::default() }
        });
        step.dirs.add(dir, stamp, accounts);
        changed
    }

    /// Removes the directories within `dir` from the steps. Whether the record has changed.
    pub fn steps_removed(&mut self, dir: &DirId, now: i64) -> bool {
        let mut changed = false;
        let steps = &mut self.record.steps;
        self.steps.retain(|_, step| {
            step.dirs.remove_within(dir);
            if !step.dirs.is_over() {
                return true;
            }
            changed = true;
            if let Some(step) = step.index.and_then(|index| steps.get_mut(index)) {
                step.to = Some(now.max(step.from));
            }
            false
        });
        changed
    }

    /// Ends steps that run only in the record: they ended while the agent did not run, after `seen`.
    pub fn close_lost_steps(&mut self, seen: i64) -> bool {
        let mut changed = false;
        for (index, step) in self.record.steps.iter_mut().enumerate() {
            let running = self.steps.values().any(|here| here.index == Some(index));
            if step.to.is_none() && !running {
                step.to = Some(seen.max(step.from));
                changed = true;
            }
        }
        changed
    }

    /// All directories of its steps.
    pub fn step_dirs(&self) -> impl Iterator<Item = &DirId> {
        self.steps.values().flat_map(|step| step.dirs.here.keys())
    }
}

/// Adds new totals to old ones. Totals only rise: a lower value comes from another file that began to count later, for example because a controller's
/// directory was removed and the unified hierarchy has the same value.
pub fn add_totals(totals: &mut BTreeMap<String, f64>, new: &TotalsByMetric) {
    for (name, value) in new {
        match totals.get_mut(*name) {
            Some(old) => *old = old.max(*value),
            None => _ = totals.insert((*name).to_owned(), *value),
        }
    }
}

/// Parses the kernel's list format, such as `0-3,8`; `None` if it is invalid.
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > CPU_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        for (text, expected) in [
            ("0", Some(vec![0])),
            ("0-3,8", Some(vec![0, 1, 2, 3, 8])),
            ("8,1-2,2", Some(vec![1, 2, 8])),
            ("", Some(vec![])),
            ("3-1", None),
            ("0-4294967295", None),
            ("a", None),
            ("0,,1", None),
        ] {
            assert_eq!(cpu_list(text), expected, "{text}");
        }
    }

    #[test]
    fn within_is_by_levels() {
        let dir = |path: &str| DirId::new(0, path);
        assert!(dir("a/b").is_within(&dir("a")) && dir("a").is_within(&dir("a")) && dir("a").is_within(&dir("")));
        assert!(!dir("a-b").is_within(&dir("a")) && !DirId::new(1, "a").is_within(&dir("a")));
    }

    #[test]
    fn totals_never_fall() {
        let mut totals = BTreeMap::new();
        add_totals(&mut totals, &TotalsByMetric::from([("memory/peak", 5.0), ("cpu/usage", 1.0)]));
        add_totals(&mut totals, &TotalsByMetric::from([("memory/peak", 3.0), ("cpu/usage", 2.0)]));
        add_totals(&mut totals, &TotalsByMetric::from([("cpu/usage", 1.5)]));
        assert_eq!((totals["memory/peak"], totals["cpu/usage"]), (5.0, 2.0));
    }
}
