//! The tracker's state: created and removed directories in, changes of jobs out. No I/O and no clock.

mod ended;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::JobRecord;

use self::ended::EndedJobs;
use super::config::TrackerConfig;
use super::events::{Job, JobEvent, NodeFacts};
use super::hooks::{HOOKS_MAX, Hook};
use super::layout::{CgroupVersion, DirectoryRole, JobPath, Layouts, PathOwner};
use super::live::{DirId, DirectoryStamp, JobFacts, JobKey, LiveJob, TotalsByMetric, UidSource, add_totals};
use super::records::{EarlierRecord, RecordUpdate};
use super::tree::CgroupHierarchy;
use super::user_names::UserLookup;
use crate::jobs::JobBounds;

/// How long a change waits for further ones, so that a job whose directories appear one after another is reported once: 20 ms.
const CHANGE_DELAY_NS: u64 = 20_000_000;
/// The same for steps, of which there can be a thousand in a minute: 1 s.
const STEPS_DELAY_NS: u64 = 1_000_000_000;
/// The longest pause between two checks of a job without processes: 1 s. Version 1 reports no event for the first process.
const EMPTY_READ_NS_MAX: u64 = 1_000_000_000;
/// The first pause between two reads of a job's totals; each pause is as long as the job's age.
const READ_NS_MIN: u64 = 10_000_000;

/// One instant by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerTime {
    /// ns since the Unix epoch.
    pub real: i64,
    /// ns of a clock that is never stepped.
    pub mono: u64,
}

pub struct TrackerCore {
    layouts: Layouts,
    node: NodeFacts,
    rescan_ns: u64,
    hierarchies: Vec<CgroupHierarchy>,
    jobs: BTreeMap<JobKey, LiveJob>,
    levels: BTreeSet<String>,
    /// Directories that remained when the job's accounting directory was removed.
    leftovers: BTreeMap<DirId, DirectoryStamp>,
    /// Records of earlier runs, until the first whole scan has shown which jobs still run.
    earlier: Vec<EarlierRecord>,
    hooks: VecDeque<Hook>,
    ended: EndedJobs,
    begun: Vec<JobKey>,
    changed: BTreeMap<JobKey, u64>,
    reads: BTreeMap<JobKey, u64>,
    events: Vec<JobEvent>,
    updates: Vec<RecordUpdate>,
    names: BTreeSet<UserLookup>,
    bounds: JobBounds,
    /// Whether hooks report ended jobs. Without hooks, no records wait for them.
    has_epilogs: bool,
    /// Directories of jobs that were skipped since [`TrackerCore::reset_skipped`].
    skipped: usize,
}

impl TrackerCore {
    /// No directory is known yet; `earlier` are the records of jobs that ran when the agent last did.
    pub fn new(config: &TrackerConfig, node: NodeFacts, earlier: Vec<EarlierRecord>) -> Self {
        let (earlier, over): (Vec<EarlierRecord>, Vec<EarlierRecord>) =
            earlier.into_iter().partition(|earlier| !earlier.dirs.is_empty());
        let mut core = Self {
            layouts: Layouts::new(config, &BTreeMap::new()),
            node,
            rescan_ns: config.rescan.ns(),
            hierarchies: Vec::new(),
            jobs: BTreeMap::new(),
            levels: earlier.iter().map(|earlier| earlier.record.level.clone()).collect(),
            leftovers: BTreeMap::new(),
            earlier,
            hooks: VecDeque::new(),
            ended: EndedJobs::default(),
            begun: Vec::new(),
            changed: BTreeMap::new(),
            reads: BTreeMap::new(),
            events: Vec::new(),
            updates: Vec::new(),
            names: BTreeSet::new(),
            bounds: config.bounds,
            has_epilogs: config.hooks.is_some(),
            skipped: 0,
        };
        over.into_iter().for_each(|earlier| core.end_unseen(earlier.record, earlier.seen));
        core
    }

    /// Applies other settings, or other uids of the managers' accounts. Jobs that are none by the new layouts end with the next scan; the bounds
    /// remove no running job.
    pub fn configure(&mut self, config: &TrackerConfig, accounts: &BTreeMap<String, u32>) {
        self.layouts = Layouts::new(config, accounts);
        self.rescan_ns = config.rescan.ns();
        self.bounds = config.bounds;
        self.has_epilogs = config.hooks.is_some();
    }

    /// Whether the bounds of all or of the user forbid one more job.
    fn is_full(&self, found: &JobPath) -> bool {
        let of_user = |uid| self.jobs.values().filter(|live| live.record.uid == Some(uid)).count();
        self.jobs.len() >= self.bounds.jobs
            || found.uid.filter(|uid| *uid != 0).is_some_and(|uid| of_user(uid) >= self.bounds.jobs_per_user)
    }

    /// The number of a hierarchy, which never changes.
    pub fn hierarchy(&mut self, hierarchy: CgroupHierarchy) -> usize {
        match self.hierarchies.iter().position(|known| known.root == hierarchy.root) {
            Some(index) => {
                self.hierarchies[index] = hierarchy;
                index
            }
            None => {
                self.hierarchies.push(hierarchy);
                self.hierarchies.len() - 1
            }
        }
    }

    /// The roots of all hierarchies so far.
    pub fn hierarchy_roots(&self) -> impl Iterator<Item = DirId> {
        (0..self.hierarchies.len()).map(|index| DirId::new(index, ""))
    }

    /// The directories with the processes of a job and its steps in the same hierarchy.
    pub fn process_dirs(&self, live: &LiveJob) -> Vec<PathBuf> {
        let Some(first) = live.dirs.iter().map(|(dir, _)| dir).max_by_key(|dir| {
            self.hierarchies.get(dir.hierarchy).is_some_and(|hierarchy| hierarchy.version == CgroupVersion::V2)
        }) else {
            return Vec::new();
        };
        let steps = live.step_dirs().filter(|dir| dir.hierarchy == first.hierarchy);
        std::iter::once(first).chain(steps).map(|dir| self.path(dir)).collect()
    }

    /// The files that tell whether a job has processes: `cgroup.events` of the unified hierarchy, and directories of one version 1 hierarchy with all
    /// below them. Both include directories of the user's own that are no step.
    pub fn populated_files(&self, live: &LiveJob) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let is_v2 =
            |dir: &DirId| self.hierarchies.get(dir.hierarchy).is_some_and(|one| one.version == CgroupVersion::V2);
        let own = || live.dirs.iter().map(|(dir, _)| dir);
        let events = own().filter(|dir| is_v2(dir)).map(|dir| self.path(dir).join("cgroup.events")).collect();
        let first = live.dirs.accounting().chain(own()).find(|dir| !is_v2(dir)).map(|dir| dir.hierarchy);
        let v1 = own().filter(|dir| Some(dir.hierarchy) == first);
        (events, v1.map(|dir| self.path(dir)).collect())
    }

    /// The path of a directory.
    pub fn path(&self, dir: &DirId) -> PathBuf {
        let root = self.hierarchies.get(dir.hierarchy).map(|hierarchy| hierarchy.root.clone()).unwrap_or_default();
        if dir.path.is_empty() { root } else { root.join(&*dir.path) }
    }

    /// The role of a directory. The root is above everything.
    pub fn role_of(&self, dir: &DirId) -> DirectoryRole {
        match self.hierarchies.get(dir.hierarchy) {
            None => DirectoryRole::Nothing,
            Some(_) if dir.path.is_empty() => DirectoryRole::Above(vec![Vec::new()]),
            Some(hierarchy) => self.layouts.role_of(hierarchy.version, &dir.path),
        }
    }

    pub fn job(&self, key: &JobKey) -> Option<&LiveJob> {
        self.jobs.get(key)
    }

    /// The running jobs that a directory can belong to: those with the manager, the daemon and the id of its path.
    fn of_id<'a>(&'a self, found: &JobPath) -> impl Iterator<Item = (&'a JobKey, &'a LiveJob)> + use<'a> {
        let first = JobKey { owner: PathOwner::Unspecified, ..JobKey::of(found) };
        let is_it = {
            let first = first.clone();
            move |key: &JobKey| (&key.manager, &key.instance, &key.job) == (&first.manager, &first.instance, &first.job)
        };
        self.jobs.range(first..).take_while(move |(key, _)| is_it(key))
    }

    /// The job that a directory belongs to, or will: the one with the same owner, otherwise the only one that can be the same job.
    pub fn key_of(&self, found: &JobPath) -> JobKey {
        let key = JobKey::of(found);
        let mut same = self.of_id(found).filter(|(_, live)| live.owner.may_be(&found.owner));
        let exact = self.of_id(found).find(|(_, live)| live.owner == found.owner);
        match (exact, same.next(), same.next()) {
            (Some((key, _)), ..) | (None, Some((key, _)), None) => key.clone(),
            _ => key,
        }
    }

    /// The number of directories and controllers that a job is read in; 0 for an unknown job.
    pub fn accounting_directories(&self, found: &JobPath) -> usize {
        let job = self.jobs.get(&self.key_of(found));
        job.map_or(0, |live| live.cgroups.v1.len() + usize::from(live.cgroups.v2.is_some()))
    }

    pub fn jobs(&self) -> impl Iterator<Item = (&JobKey, &LiveJob)> {
        self.jobs.iter()
    }

    /// The number of directories of jobs that were skipped because of the bounds since [`TrackerCore::reset_skipped`].
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Begins a whole scan, which counts skipped directories.
    pub fn reset_skipped(&mut self) {
        self.skipped = 0;
    }

    /// Adds a directory of a job or a step.
    pub fn created(&mut self, dir: DirId, found: &JobPath, stamp: DirectoryStamp, now: TrackerTime) {
        match self.leftovers.get(&dir) {
            Some(known) if !known.is_other(&stamp) => return,
            Some(_) => _ = self.leftovers.remove(&dir),
            None => {}
        }
        let Some(hierarchy) = self.hierarchies.get(dir.hierarchy) else { return };
        let (accounts, version, controllers) = (hierarchy.accounts(), hierarchy.version, hierarchy.controllers.clone());
        let path = self.path(&dir);
        let key = self.key_of(found);
        let mut moved_directories = Vec::new();
        if accounts && let Some(live) = self.jobs.get(&key).filter(|live| live.dirs.is_other(&dir, stamp)) {
            // The same id again, without an event for the end of the first job. Other accounting directories with that id belong to the second job:
            // created for it, still in use by it, or removed, which the next scan shows.
            moved_directories = live.dirs.accounting().filter(|other| **other != dir).cloned().collect();
            self.end(&key, now);
            self.leftovers.remove(&dir);
        }
        if !self.jobs.contains_key(&key) {
            // A step alone is the rest of a job.
            if !found.step.is_empty() {
                return;
            }
            if self.is_full(found) {
                self.skipped += 1;
                return;
            }
            self.begin(&key, found, (&path, stamp.inode), now);
        }
        let Some(live) = self.jobs.get_mut(&key) else { return };
        live.apply_owner(found);
        if !found.step.is_empty() {
            let is_empty = !live.has_processes;
            if live.step_created(&found.step, dir, stamp, accounts) {
                self.change(&key, now, STEPS_DELAY_NS);
            }
            if is_empty {
                self.reads.insert(key, now.mono);
            }
            return;
        }
        if !live.dirs.add(dir, stamp, accounts) {
            return;
        }
        if !live.from_fixed {
            live.record.from = if live.record.from == 0 { stamp.created } else { live.record.from.min(stamp.created) };
        }
        match version {
            CgroupVersion::V2 => _ = live.cgroups.v2.get_or_insert(path),
            CgroupVersion::V1 => {
                for controller in controllers {
                    live.cgroups.v1.entry(controller).or_insert_with(|| path.clone());
                }
            }
        }
        self.change(&key, now, CHANGE_DELAY_NS);
        for other in moved_directories {
            // Without an inode, so that none is taken for a third job's.
            self.created(other, found, DirectoryStamp { created: stamp.created, ..DirectoryStamp::default() }, now);
        }
    }

    fn begin(&mut self, key: &JobKey, found: &JobPath, dir: (&Path, u64), now: TrackerTime) {
        let mut record = match self.take_earlier(found, dir) {
            Some(record) => record,
            None => JobRecord {
                job: found.job.clone(),
                level: self.free_level(found),
                manager: found.manager.clone(),
                ..JobRecord::default()
            },
        };
        record.node.clone_from(&self.node.name);
        record.prefix.clone_from(&self.node.prefix);
        self.levels.insert(record.level.clone());
        let mut live = LiveJob::new(record, now.mono);
        live.apply_owner(found);
        if let Some(at) = self.hooks.iter().rposition(|hook| hook.is_of(&live.record))
            && let Some(hook) = self.hooks.remove(at)
        {
            live.merge(&hook);
        }
        self.names.extend(lookup_of(&live.record));
        self.jobs.insert(key.clone(), live);
        self.begun.push(key.clone());
        self.reads.insert(key.clone(), now.mono);
    }

    /// The record of a job that ran before the agent started and still runs: the one that had this directory, otherwise the only possible one.
    fn take_earlier(&mut self, found: &JobPath, (path, inode): (&Path, u64)) -> Option<JobRecord> {
        let can_be = |earlier: &EarlierRecord| {
            let record = &earlier.record;
            let owner = PathOwner::of_record(&record.owner);
            (&record.job, &record.manager) == (&found.job, &found.manager) && owner.may_be(&found.owner)
        };
        let had = |earlier: &EarlierRecord| earlier.dirs.iter().any(|(dir, known)| dir == path && *known == inode);
        let all: Vec<usize> = (0..self.earlier.len()).filter(|at| can_be(&self.earlier[*at])).collect();
        let at = all.iter().copied().find(|at| had(&self.earlier[*at])).or(match all[..] {
            [one] => Some(one),
            _ => None,
        })?;
        Some(self.earlier.swap_remove(at).record)
    }

    /// A level that no other job has. Of two jobs with one id and two owners, the second one's level contains its owner.
    fn free_level(&self, found: &JobPath) -> String {
        let with = |after: &str| super::layout::level_of(&format!("{}-{after}", found.level));
        let mut tries = vec![found.level.clone()];
        if !found.instance.is_empty() {
            tries.push(with(&found.instance));
        }
        let other = self
            .earlier
            .iter()
            .any(|earlier| (&earlier.record.job, &earlier.record.manager) == (&found.job, &found.manager));
        if other || self.of_id(found).next().is_some() {
            match &found.owner {
                PathOwner::Uid(uid) => tries.push(with(&format!("u{uid}"))),
                PathOwner::Name(name) => tries.push(with(name)),
                PathOwner::Unspecified | PathOwner::Own(_) => {}
            }
        }
        tries.push(with(&found.manager));
        let numbered = (2_u64..).map(|n| with(&n.to_string()));
        tries.into_iter().chain(numbered).find(|level| !self.levels.contains(level)).unwrap_or_default()
    }

    /// Removes a directory with all below it.
    pub fn removed(&mut self, dir: &DirId, now: TrackerTime) {
        let keys: Vec<JobKey> = match self.role_of(dir) {
            DirectoryRole::Job(found) => self.of_id(&found).map(|(key, _)| key.clone()).collect(),
            DirectoryRole::Above(_) => self.jobs.keys().cloned().collect(),
            DirectoryRole::Nothing => return,
        };
        self.leftovers.retain(|left, _| !left.is_within(dir));
        for key in keys {
            self.remove_directories(&key, dir, now, false);
        }
    }

    fn remove_directories(&mut self, key: &JobKey, dir: &DirId, now: TrackerTime, unseen: bool) {
        let Some(live) = self.jobs.get_mut(key) else { return };
        let steps = live.steps_removed(dir, now.real);
        let own = live.dirs.remove_within(dir);
        if own && live.dirs.is_over() {
            live.record.end_unseen = unseen;
            self.end(key, now);
            return;
        }
        if own {
            let root = self.hierarchies.get(dir.hierarchy).map(|hierarchy| hierarchy.root.clone()).unwrap_or_default();
            let here: BTreeSet<PathBuf> = live
                .dirs
                .iter()
                .filter(|(here, _)| here.hierarchy == dir.hierarchy)
                .map(|(dir, _)| root.join(&*dir.path))
                .collect();
            let is_gone = |path: &PathBuf| path.starts_with(&root) && !here.contains(path);
            live.cgroups.v1.retain(|_, path| !is_gone(path));
            if live.cgroups.v2.as_ref().is_some_and(is_gone) {
                live.cgroups.v2 = None;
            }
            self.change(key, now, CHANGE_DELAY_NS);
        } else if steps {
            self.change(key, now, STEPS_DELAY_NS);
        }
    }

    /// Applies a whole scan. Known directories that it did not find are removed, except within unreadable ones.
    pub fn scanned(&mut self, seen: &BTreeSet<DirId>, unreadable: &[DirId], now: TrackerTime) {
        let is_gone =
            |dir: &DirId| !seen.contains(dir) && !unreadable.iter().any(|unreadable| dir.is_within(unreadable));
        let known = self.jobs.iter().flat_map(|(key, live)| {
            let dirs = live.dirs.iter().map(|(dir, _)| dir).chain(live.step_dirs());
            dirs.map(move |dir| (key.clone(), dir))
        });
        let gone: Vec<(JobKey, DirId)> =
            known.filter(|(_, dir)| is_gone(dir)).map(|(key, dir)| (key, dir.clone())).collect();
        for (key, dir) in gone {
            // A directory that is no job by the new settings may continue.
            let unseen = !matches!(self.role_of(&dir), DirectoryRole::Job(_));
            self.remove_directories(&key, &dir, now, unseen);
        }
        self.leftovers.retain(|dir, _| !is_gone(dir));
        if !unreadable.is_empty() {
            return;
        }
        for earlier in std::mem::take(&mut self.earlier) {
            self.levels.remove(&earlier.record.level);
            self.end_unseen(earlier.record, earlier.seen);
        }
    }

    /// A job that ended while the agent did not run.
    fn end_unseen(&mut self, mut record: JobRecord, seen: i64) {
        record.to = Some(seen.max(record.from));
        record.end_unseen = true;
        for step in record.steps.iter_mut().filter(|step| step.to.is_none()) {
            step.to = Some(seen.max(step.from));
        }
        record.revision += 1;
        self.updates.push(RecordUpdate { record, dirs: Vec::new() });
    }

    /// After the first scan: ends steps of continuing jobs that ended while the agent did not run.
    pub fn close_lost_steps(&mut self, seen: i64, now: TrackerTime) {
        let changed: Vec<JobKey> =
            self.jobs.iter_mut().filter_map(|(key, live)| live.close_lost_steps(seen).then(|| key.clone())).collect();
        changed.iter().for_each(|key| self.change(key, now, STEPS_DELAY_NS));
    }

    fn end(&mut self, key: &JobKey, now: TrackerTime) {
        self.report_begun(now);
        let Some(mut live) = self.jobs.remove(key) else { return };
        self.changed.remove(key);
        self.reads.remove(key);
        self.levels.remove(&live.record.level);
        self.leftovers.extend(live.dirs.not_accounting().map(|(dir, stamp)| (dir.clone(), stamp)));
        let to = now.real.max(live.record.from);
        live.record.to = Some(to);
        for step in live.record.steps.iter_mut().filter(|step| step.to.is_none()) {
            step.to = Some(to.max(step.from));
        }
        live.record.revision += 1;
        if self.has_epilogs {
            self.ended.push(now.mono, live.record.clone());
        }
        self.updates.push(RecordUpdate { record: live.record.clone(), dirs: Vec::new() });
        let LiveJob { record, cgroups, has_processes, .. } = live;
        self.events.push(JobEvent::Ended(Arc::new(Job { record, cgroups, has_processes })));
    }

    /// Applies facts about a job.
    pub fn apply_facts(&mut self, key: &JobKey, facts: JobFacts, now: TrackerTime) {
        let Some(live) = self.jobs.get_mut(key) else { return };
        if live.apply_facts(facts, now.mono) {
            self.names.extend(lookup_of(&live.record));
            self.change(key, now, CHANGE_DELAY_NS);
        }
    }

    /// Applies totals of a job. They cause no event and are reported with the next one.
    pub fn apply_totals(&mut self, key: &JobKey, totals: &TotalsByMetric, real: i64) {
        if let Some(live) = self.jobs.get_mut(key).filter(|_| !totals.is_empty()) {
            // If some totals can no longer be read, the time stays that of the last complete ones.
            let whole = live.record.totals.keys().all(|name| totals.contains_key(name.as_str()));
            add_totals(&mut live.record.totals, totals);
            if whole {
                live.record.totals_at = Some(real);
            }
        }
    }

    /// Applies a hook: to a running job, to one that has just ended, or to a later one.
    pub fn apply_hook(&mut self, hook: Hook, now: TrackerTime) {
        let keys: Vec<JobKey> =
            self.jobs.iter().filter(|(_, live)| hook.is_of(&live.record)).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            if self.jobs.get_mut(key).is_some_and(|live| live.merge(&hook)) {
                self.names.extend(self.jobs.get(key).and_then(|live| lookup_of(&live.record)));
                self.change(key, now, CHANGE_DELAY_NS);
            }
        }
        if !keys.is_empty() {
            return;
        }
        if hook.ended {
            if let Some(record) = self.ended.find(|record| hook.is_of(record))
                && hook.merge_into(record)
            {
                record.revision += 1;
                self.updates.push(RecordUpdate { record: record.clone(), dirs: Vec::new() });
            }
            return;
        }
        self.hooks.retain(|other| (&other.manager, &other.job, other.uid) != (&hook.manager, &hook.job, hook.uid));
        self.hooks.push_back(hook);
        if self.hooks.len() > HOOKS_MAX {
            self.hooks.pop_front();
        }
    }

    /// Applies resolved user names.
    pub fn apply_name(&mut self, of: &UserLookup, uid: u32, user: &str, now: TrackerTime) {
        let mut changed = Vec::new();
        for (key, live) in &mut self.jobs {
            match of {
                UserLookup::Uid(uid) if live.record.uid == Some(*uid) && live.record.user.is_none() => {
                    live.record.user = Some(user.to_owned());
                }
                UserLookup::User(name) if live.record.user.as_ref() == Some(name) => {
                    if !live.set_uid(uid, UidSource::Path) {
                        continue;
                    }
                    live.record.user = Some(name.clone());
                }
                _ => continue,
            }
            changed.push(key.clone());
        }
        changed.iter().for_each(|key| self.change(key, now, CHANGE_DELAY_NS));
    }

    /// The lookups of users that are needed; the caller caches them.
    pub fn take_lookups(&mut self) -> BTreeSet<UserLookup> {
        std::mem::take(&mut self.names)
    }

    /// Requests all missing names again.
    pub fn request_lookups(&mut self) {
        let wanted: Vec<UserLookup> = self.jobs.values().filter_map(|live| lookup_of(&live.record)).collect();
        self.names.extend(wanted);
    }

    /// The jobs whose totals have to be read now. Each pause is as long as the job was known before, so that the totals of a short job are never
    /// older than half its life.
    pub fn reads_due(&mut self, now: TrackerTime) -> Vec<JobKey> {
        let due: Vec<JobKey> =
            self.reads.iter().filter(|(_, at)| **at <= now.mono).map(|(key, _)| key.clone()).collect();
        for key in &due {
            self.note_read(key, now);
        }
        due
    }

    /// A job was read for another reason: the next read can wait.
    pub fn note_read(&mut self, key: &JobKey, now: TrackerTime) {
        if let Some(live) = self.jobs.get(key) {
            let age = now.mono.saturating_sub(live.seen_mono);
            let most = if live.has_processes { self.rescan_ns } else { self.rescan_ns.min(EMPTY_READ_NS_MAX) };
            self.reads.insert(key.clone(), now.mono + age.clamp(READ_NS_MIN, most.max(READ_NS_MIN)));
        }
    }

    /// The time of the next action, by the clock that is never stepped.
    pub fn next(&self) -> Option<u64> {
        let begun = if self.begun.is_empty() { None } else { Some(0) };
        self.reads.values().chain(self.changed.values()).copied().chain(begun).min()
    }

    fn change(&mut self, key: &JobKey, now: TrackerTime, delay: u64) {
        let at = now.mono + delay;
        let due = self.changed.entry(key.clone()).or_insert(at);
        *due = (*due).min(at);
    }

    /// Whether begun jobs have not been reported yet.
    pub fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    fn report_begun(&mut self, now: TrackerTime) {
        for key in std::mem::take(&mut self.begun) {
            if let Some(live) = self.jobs.get_mut(&key) {
                live.is_announced = true;
                live.from_fixed = true;
                if live.record.from <= 0 {
                    live.record.from = now.real;
                }
                self.changed.remove(&key);
                self.report(&key, JobEvent::Began);
            }
        }
    }

    fn report(&mut self, key: &JobKey, event: fn(Arc<Job>) -> JobEvent) {
        let Some(live) = self.jobs.get_mut(key) else { return };
        live.record.revision += 1;
        let (record, cgroups) = (live.record.clone(), live.cgroups.clone());
        let job = Job { record, cgroups, has_processes: live.has_processes };
        self.events.push(event(Arc::new(job)));
        self.updates.extend(self.update_of(key));
    }

    fn update_of(&self, key: &JobKey) -> Option<RecordUpdate> {
        let live = self.jobs.get(key)?;
        let dirs = live.dirs.iter().map(|(dir, stamp)| (self.path(dir), stamp.inode)).collect();
        Some(RecordUpdate { record: live.record.clone(), dirs })
    }

    /// All events that are due.
    pub fn flush(&mut self, now: TrackerTime) -> (Vec<JobEvent>, Vec<RecordUpdate>) {
        self.report_begun(now);
        let due: Vec<JobKey> =
            self.changed.iter().filter(|(_, at)| **at <= now.mono).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.changed.remove(&key);
            self.report(&key, JobEvent::Changed);
        }
        self.ended.expire(now.mono);
        (std::mem::take(&mut self.events), std::mem::take(&mut self.updates))
    }

    /// Running jobs for the job table: their totals have changed without an event.
    pub fn running(&self) -> Vec<RecordUpdate> {
        let is_announced = self.jobs.iter().filter(|(_, live)| live.is_announced);
        is_announced.filter_map(|(key, _)| self.update_of(key)).collect()
    }
}

fn lookup_of(record: &JobRecord) -> Option<UserLookup> {
    match (record.uid, &record.user) {
        (Some(uid), None) => Some(UserLookup::Uid(uid)),
        (None, Some(user)) => Some(UserLookup::User(user.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
