//! The tracker's thread: waits for events of the kernel, reads directories, and reports changes of jobs.

mod job_facts;
mod overload;
mod trusted;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wholegrain_sources::Roots;

use super::config::TrackerConfig;
use super::core::{TrackerCore, TrackerTime};
use super::event_sender::EventSender;
use super::events::JobEvent;
use super::hooks::{GpuAssignment, HooksDir, gpustat};
use super::job_table::JobTable;
use super::layout::{DirectoryRole, JobPath};
use super::live::{DirId, DirectoryStamp, JobKey};
use super::totals::TotalsFiles;
use super::tree::DirectoryStat;
use super::trust::{Ownership, TrustedUser};
use super::user_names::{UserLookup, UserNames};
use super::visited::VisitedDirectories;
use super::watch::{InotifyWatches, WatchEvent, WatchTarget};
use super::{facts, tree};
use crate::counters::AgentCounters;
use crate::engine::clock;
use crate::log_limiter::LogLimiter;
use crate::sync::lock;
use crate::waker::Waker;

/// The most directories of one scan.
const DIRS_MAX: usize = 200_000;
/// The most events of one user's directories and jobs between two scans. Beyond it the user's watches are removed, and scans find the changes: events
/// cost more to handle than to cause.
const EVENTS_OF_USER_MAX: usize = 4096;
/// How long all facts about an empty job are read; later only its processes: 10 s.
const EMPTY_NS_MAX: u64 = 10_000_000_000;
/// How often the totals of running jobs go to the job table, so that they are on disk if the agent is killed: 30 s.
const REFRESH_NS: u64 = 30_000_000_000;
/// The pause before events are sent again for which the channel had no room: 20 ms.
const RETRY_NS: u64 = 20_000_000;
/// After this many scans all directories are listed and all watches are renewed, even if no directory has changed.
const WHOLE_EVERY: u64 = 12;
/// How long the first scan waits for the uids of the managers' accounts: 2 s.
const ACCOUNTS_WAIT: Duration = Duration::from_secs(2);
/// The most inotify buffers that are read before a scan that is due; the kernel's queue is shorter unless configured otherwise.
const READS_MAX: usize = 64;

/// Commands to the thread.
#[derive(Debug, Default)]
pub struct TrackerCommands {
    pub config: Option<TrackerConfig>,
    pub stop: bool,
}

pub struct TrackerThread {
    /// Where the kernel's trees are mounted.
    pub roots: Roots,
    pub config: TrackerConfig,
    pub core: TrackerCore,
    pub job_table: Arc<JobTable>,
    pub event_sender: EventSender,
    pub names: UserNames,
    pub waker: Arc<Waker>,
    pub commands: Arc<Mutex<TrackerCommands>>,
    /// When an agent last ran.
    pub seen_before: Option<i64>,
    pub counters: Arc<AgentCounters>,
    pub trust: TrustedUser,
    pub own: TrackerFiles,
}

/// Files and watches of the thread.
#[derive(Default)]
pub struct TrackerFiles {
    watches: Option<InotifyWatches>,
    files: TotalsFiles,
    hooks: Option<HooksDir>,
    gpus: Vec<GpuAssignment>,
    log_limiter: LogLimiter,
    /// Directories that look like a job's and were refused because of their owners.
    refused: u64,
    /// All directories that were visited.
    visited: VisitedDirectories,
    /// Events of each user's directories since the last scan.
    events: HashMap<u32, usize>,
    /// Whether some directories are not watched.
    unwatched: bool,
    scans: u64,
    scan_at: u64,
    refresh_at: u64,
    overflow: bool,
    /// The uids of the accounts in the layouts.
    accounts: BTreeMap<String, u32>,
}

/// The results of one walk.
#[derive(Default)]
struct TreeScan {
    seen: BTreeSet<DirId>,
    visited: VisitedDirectories,
    unreadable: Vec<DirId>,
    /// Directories that were not read completely, because their users have too many.
    over: BTreeSet<DirId>,
    /// The number of directories found within directories of each user.
    charged: HashMap<u32, usize>,
    renew: bool,
    /// The walk begins at the roots, so that earlier visits do not count.
    whole: bool,
}

fn now() -> TrackerTime {
    TrackerTime { real: clock::real(), mono: clock::mono().max(0) as u64 }
}

impl TrackerThread {
    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut reads = 0;
        self.own.hooks = self.config.hooks.clone().map(HooksDir::new);
        self.resolve_accounts();
        while !self.apply_commands() {
            let more = self.handle_events() && reads < READS_MAX;
            reads = if more { reads + 1 } else { 0 };
            // The results of a scan must not be older than the waiting events.
            if !more && (now().mono >= self.own.scan_at || self.own.overflow) {
                self.scan();
            }
            for key in self.core.reads_due(now()) {
                self.read_facts(&key);
            }
            self.look_up_names();
            self.publish();
            if !more {
                self.wait();
            }
        }
        let running = self.core.running();
        self.job_table.refresh(running);
    }

    fn apply_commands(&mut self) -> bool {
        let commands = std::mem::take(&mut *lock(&self.commands));
        if let Some(config) = commands.config {
            self.core.configure(&config, &self.own.accounts);
            if config.bounds.watches != self.config.bounds.watches {
                self.own.watches = None;
            }
            if config.hooks != self.config.hooks {
                self.own.hooks = config.hooks.clone().map(HooksDir::new);
            }
            self.config = config;
            self.resolve_accounts();
            self.own.scans = 0;
            if let Some(watches) = &mut self.own.watches {
                watches.retain(|what| !matches!(what, WatchTarget::Hooks | WatchTarget::Gpus));
            }
            self.own.scan_at = 0;
        }
        commands.stop
    }

    /// Looks up the uids of the managers' accounts, and waits for the results for a while, so that the first scan recognizes the jobs that ran before
    /// the agent started.
    fn resolve_accounts(&mut self) {
        let deadline = Instant::now() + ACCOUNTS_WAIT;
        while !self.look_up_accounts() && Instant::now() < deadline {
            self.waker.wait(deadline.saturating_duration_since(Instant::now()));
            self.look_up_names();
        }
    }

    /// Whether all accounts are resolved.
    fn look_up_accounts(&mut self) -> bool {
        let (mut all, mut changed) = (true, false);
        for name in self.config.accounts() {
            let uid = match name.parse() {
                Ok(uid) => Some(uid),
                Err(_) => self.names.look_up(UserLookup::User(name.clone()), now().mono).map(|(uid, _)| uid),
            };
            all &= uid.is_some() || !self.names.is_pending(&UserLookup::User(name.clone()));
            // A known uid stays while the system does not respond.
            if let Some(uid) = uid {
                changed |= self.own.accounts.insert(name, uid) != Some(uid);
            }
        }
        if changed {
            self.core.configure(&self.config, &self.own.accounts);
            self.own.scans = 0;
        }
        all
    }

    /// Logs a line once.
    fn report(&mut self, line: &str) {
        self.own.log_limiter.once(line);
    }

    /// Handles one buffer of events. Whether there may be more.
    fn handle_events(&mut self) -> bool {
        let mut seen = Vec::new();
        let Some(watches) = &mut self.own.watches else { return false };
        let more = match watches.read(&mut seen) {
            Ok(more) => more,
            Err(error) => {
                self.own.watches = None;
                self.report(&format!("cannot read events of inotify: {error}; until then the rescan finds jobs"));
                return false;
            }
        };
        for event in seen {
            match event {
                WatchEvent::Created(dir) => {
                    let mut scan = TreeScan { renew: true, ..TreeScan::default() };
                    if self.admit_event(self.owner_above(&dir)) {
                        self.walk(dir, &mut scan);
                        self.own.visited.extend(scan.visited);
                    }
                }
                WatchEvent::Removed(dir) => {
                    self.admit_event(self.owner_above(&dir));
                    self.remove(&dir);
                }
                WatchEvent::Events(key) => {
                    if self.admit_event(self.core.job(&key).and_then(|job| job.record.uid).unwrap_or(0)) {
                        self.read_facts(&key);
                    }
                }
                WatchEvent::Hooks => self.read_hooks(),
                WatchEvent::Gpus => self.read_gpus(),
                WatchEvent::Overflow => self.own.overflow = true,
            }
        }
        more
    }

    fn remove(&mut self, dir: &DirId) {
        // Created again meanwhile: another event follows.
        if let DirectoryRole::Job(found) = self.core.role_of(dir) {
            // The last chance, as long as other directories of the job exist.
            self.read_totals(&self.core.key_of(&found));
        }
        if let Some(watches) = &mut self.own.watches {
            watches.remove_within(dir);
        }
        self.own.visited.below(dir).iter().for_each(|dir| self.own.visited.remove(dir));
        self.core.removed(dir, now());
    }

    /// Walks a directory and everything below it, and watches what it finds.
    fn walk(&mut self, top: DirId, scan: &mut TreeScan) {
        let Some(above) = self.above(&top) else { return };
        let uid = owner(&above);
        if self.allowance(uid, scan) == 0 {
            return self.report_incomplete(top, uid, scan);
        }
        *scan.charged.entry(uid).or_default() += 1;
        let mut stack = vec![(top, Rc::new(above))];
        while let Some((dir, above)) = stack.pop() {
            if scan.visited.len() >= DIRS_MAX {
                scan.unreadable.push(DirId::new(dir.hierarchy, ""));
                self.report(&format!("more than {DIRS_MAX} directories may have jobs below; the rest is not read"));
                return;
            }
            let path = self.core.path(&dir);
            let role = self.core.role_of(&dir);
            let asked = match &role {
                DirectoryRole::Nothing => continue,
                DirectoryRole::Above(owners) => &owners[..],
                DirectoryRole::Job(found) => std::slice::from_ref(&found.owners),
            };
            let mut owned = (*above).clone();
            if !dir.path.is_empty() {
                match Ownership::of(&path) {
                    Ok(own) => owned.push(own),
                    // It existed, however briefly, and its parents have the right owners.
                    Err(error) if is_gone(&error) => owned.push(Ownership { uid: 0, gid: 0, mode: 0, is_dir: true }),
                    Err(error) => {
                        self.report_unreadable(&dir, &path, &error, scan);
                        continue;
                    }
                }
            }
            if !self.has_allowed_owners(&dir, asked, &owned, &path) {
                continue;
            }
            let deeper = match role {
                DirectoryRole::Job(found) => match self.take_job(&dir, &path, &found, scan) {
                    Some(deeper) => deeper && self.may_be_deeper(&found, &owned),
                    None => continue,
                },
                DirectoryRole::Above(_) => true,
                DirectoryRole::Nothing => false,
            };
            if !deeper {
                scan.visited.insert(dir, None, owner(&above));
                continue;
            }
            // Before the listing, so that later changes cause another one.
            let stat = tree::stat(&path).ok();
            let uid = stat.map_or(0, |stat| stat.uid);
            scan.visited.insert(dir.clone(), stat, owner(&above));
            // Watched first: an event reports directories that are created after the listing.
            self.watch(WatchTarget::Dir(dir.clone()), path.clone(), scan.renew);
            let owned = Rc::new(owned);
            match tree::children(&path, false, self.allowance(uid, scan)) {
                Ok((names, is_cut)) => {
                    *scan.charged.entry(uid).or_default() += names.len();
                    stack.extend(names.iter().rev().map(|name| (dir.child(name), owned.clone())));
                    if is_cut {
                        self.report_incomplete(dir, uid, scan);
                    }
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => self.report_unreadable(&dir, &path, &error, scan),
            }
        }
    }

    /// Handles a directory of a job or a step. Whether others can be below it, if it exists.
    fn take_job(&mut self, dir: &DirId, path: &Path, found: &JobPath, scan: &mut TreeScan) -> Option<bool> {
        let at = now();
        match facts::stamp(path, at.real) {
            Ok(stamp) => {
                let before = self.core.accounting_directories(found);
                self.core.created(dir.clone(), found, stamp, at);
                scan.seen.insert(dir.clone());
                if self.core.accounting_directories(found) > before {
                    self.read_new_totals(found, path);
                }
            }
            Err(error) if is_gone(&error) => {
                // It existed, however briefly: the event of its end follows.
                let stamp = DirectoryStamp { created: at.real, ..DirectoryStamp::default() };
                self.core.created(dir.clone(), found, stamp, at);
                return None;
            }
            Err(error) => {
                self.report_unreadable(dir, path, &error, scan);
                return None;
            }
        }
        if found.step.is_empty() {
            let key = self.core.key_of(found);
            if self.core.job(&key).is_some_and(|job| job.cgroups.v2.as_deref() == Some(path)) {
                self.watch(WatchTarget::Events(key), path.join("cgroup.events"), scan.renew);
            }
        }
        Some(found.deeper)
    }

    fn report_unreadable(&mut self, dir: &DirId, path: &Path, error: &io::Error, scan: &mut TreeScan) {
        scan.unreadable.push(dir.clone());
        // One line for each kind of problem: there can be a thousand such directories.
        if self.own.log_limiter.is_new(&format!("unreadable {:?}", error.raw_os_error())) {
            tracing::warn!("cannot find jobs in {} and perhaps others: {error}", path.display());
        }
    }

    fn watch(&mut self, what: WatchTarget, path: PathBuf, renew: bool) {
        let Some(watches) = &mut self.own.watches else { return };
        match watches.add(what, &path, renew) {
            Ok(()) => {}
            // A directory that may not be watched may not be listed either; this is logged.
            Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => {
                self.own.unwatched = true;
                let why = match error.raw_os_error() {
                    Some(libc::ENOSPC) => {
                        "the user's limit is reached (raise it with sysctl fs.inotify.max_user_watches)".to_owned()
                    }
                    _ if error.kind() == io::ErrorKind::QuotaExceeded => {
                        format!("there are {} watches ([jobs.bounds] watches)", self.config.bounds.watches)
                    }
                    _ => error.to_string(),
                };
                let rescan = self.config.rescan;
                if self.own.log_limiter.is_new(&format!("watch {:?}", error.kind())) {
                    tracing::warn!(
                        "cannot watch {} and perhaps others: {why}; jobs there are found by the rescan every {rescan}",
                        path.display()
                    );
                }
            }
        }
    }

    /// Scans the tree, and so finds changes that inotify missed. Mostly only directories whose state differs are listed, because listing a cgroup
    /// costs ten times as much.
    fn scan(&mut self) {
        let whole = self.own.scans.is_multiple_of(WHOLE_EVERY)
            || std::mem::take(&mut self.own.overflow)
            || self.own.watches.is_none()
            || self.own.unwatched
            || self.own.visited.is_empty();
        self.look_up_accounts();
        self.own.scans += 1;
        self.own.events.clear();
        if whole {
            self.scan_whole()
        } else {
            self.scan_changed()
        }
        self.read_hooks();
        self.read_gpus();
        self.watch_files();
        self.core.request_lookups();
        let at = now();
        if at.mono >= self.own.refresh_at {
            self.own.refresh_at = at.mono + REFRESH_NS;
            self.job_table.refresh(self.core.running());
        } else {
            self.job_table.touch();
        }
        self.count();
        self.own.scan_at = at.mono + self.config.rescan.ns();
    }

    fn scan_changed(&mut self) {
        for (dir, before) in self.own.visited.above_others() {
            // Removed with one of its parents.
            if !self.own.visited.contains(&dir) {
                continue;
            }
            let path = self.core.path(&dir);
            let listed = match tree::stat(&path) {
                Ok(stat) if stat == before => continue,
                Ok(stat) => tree::children(&path, false, self.listed_max(stat.uid)).map(|listed| (stat, listed)),
                Err(error) => Err(error),
            };
            match listed {
                Ok((stat, (names, is_cut))) => self.compare(&dir, stat, &names, is_cut),
                Err(error) if is_gone(&error) => self.remove(&dir),
                // A whole scan will find it.
                Err(_) => {}
            }
        }
    }

    /// Compares a directory's listing with the known directories.
    fn compare(&mut self, dir: &DirId, stat: DirectoryStat, names: &[String], is_cut: bool) {
        let here: BTreeSet<DirId> = names.iter().map(|name| dir.child(name)).collect();
        let is_child =
            |other: &DirId| other != dir && !other.path[dir.path.len()..].trim_start_matches('/').contains('/');
        let known = self.own.visited.below(dir);
        for other in known.iter().filter(|other| is_child(other) && !here.contains(other)) {
            // A directory missing in a truncated list may exist.
            if !is_cut || tree::stat(&self.core.path(other)).is_err_and(|error| is_gone(&error)) {
                self.remove(other);
            }
        }
        let mut scan = TreeScan { renew: true, ..TreeScan::default() };
        here.into_iter().filter(|child| !known.contains(child)).for_each(|child| self.walk(child, &mut scan));
        self.own.visited.extend(scan.visited);
        let above = self.owner_above(dir);
        self.own.visited.insert(dir.clone(), Some(stat), above);
    }

    fn scan_whole(&mut self) {
        self.own.unwatched = false;
        if self.own.watches.is_none() {
            match InotifyWatches::new(self.config.bounds.watches) {
                Ok(watches) => self.own.watches = Some(watches),
                Err(error) => {
                    let rescan = self.config.rescan;
                    self.report(&format!(
                        "cannot watch for jobs: {error} (see sysctl fs.inotify.max_user_instances and the limit of open files); they are found by the rescan every {rescan}"
                    ));
                }
            }
        }
        self.core.reset_skipped();
        let mut scan = TreeScan { renew: true, whole: true, ..TreeScan::default() };
        let mut lines = Vec::new();
        let hierarchies = tree::hierarchies(&self.roots, &self.config.hierarchies, &mut |line| lines.push(line));
        let mut known = HashSet::new();
        let unreadable = !lines.is_empty();
        lines.into_iter().for_each(|line| self.report(&line));
        for hierarchy in hierarchies {
            let index = self.core.hierarchy(hierarchy);
            known.insert(index);
            self.walk(DirId::new(index, ""), &mut scan);
        }
        if unreadable {
            // All directories within those that cannot be read now.
            let lost: Vec<DirId> =
                self.core.hierarchy_roots().filter(|root| !known.contains(&root.hierarchy)).collect();
            scan.unreadable.extend(lost);
        }
        self.report_skipped(&mut scan);
        let at = now();
        self.core.scanned(&scan.seen, &scan.unreadable, at);
        if let Some(seen) = self.seen_before.filter(|_| scan.unreadable.is_empty()) {
            self.seen_before = None;
            self.core.close_lost_steps(seen, at);
        }
        self.own.visited.retain(|dir| scan.unreadable.iter().any(|unreadable| dir.is_within(unreadable)));
        self.own.visited.extend(std::mem::take(&mut scan.visited));
        self.counters.directories_skipped.store(scan.over.len() as u64, Ordering::Relaxed);
        self.forget_watches();
    }

    fn forget_watches(&mut self) {
        let (core, visited) = (&self.core, &self.own.visited);
        if let Some(watches) = &mut self.own.watches {
            watches.retain(|what| match what {
                WatchTarget::Dir(dir) => visited.contains(dir),
                WatchTarget::Events(key) => core.job(key).is_some(),
                WatchTarget::Hooks | WatchTarget::Gpus => true,
            });
        }
    }

    fn watch_files(&mut self) {
        let hooks = self.own.hooks.as_ref().map(|hooks| (WatchTarget::Hooks, hooks.path().to_owned()));
        let gpus = self.config.gpustat.clone().map(|dir| (WatchTarget::Gpus, dir));
        for (what, path) in hooks.into_iter().chain(gpus).filter(|(_, path)| path.is_dir()) {
            // Each time again: they can be removed and created again, and there are few.
            self.watch(what, path, true);
        }
    }

    /// The first prolog creates the directory of hooks, which is not watched yet: without this, its job would get its name only at the next scan, or
    /// never if it is shorter.
    fn read_first_hooks(&mut self) {
        let Some(dir) = self.own.hooks.as_ref().map(|hooks| hooks.path().to_owned()) else { return };
        if self.own.watches.as_ref().is_some_and(|watches| !watches.has(&WatchTarget::Hooks)) && dir.is_dir() {
            self.watch(WatchTarget::Hooks, dir, false);
            self.read_hooks();
        }
    }

    fn read_hooks(&mut self) {
        let Some(dir) = &mut self.own.hooks else { return };
        let at = now();
        let mut lines = Vec::new();
        for hook in dir.read(at.real / 1_000_000_000, &mut |line| lines.push(line)) {
            if hook.ended {
                dir.remove(&hook.manager, &hook.job, hook.also.as_deref(), &mut |line| lines.push(line));
            }
            self.core.apply_hook(hook, at);
        }
        lines.into_iter().for_each(|line| self.report(&line));
    }

    fn read_gpus(&mut self) {
        let gpus = self.config.gpustat.as_deref().map(gpustat).unwrap_or_default();
        if gpus == self.own.gpus {
            return;
        }
        self.own.gpus = gpus;
        let keys: Vec<JobKey> = self.core.jobs().map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.read_facts(key));
    }

    fn look_up_names(&mut self) {
        let at = now();
        for (of, uid, user) in self.names.results(at.mono) {
            self.core.apply_name(&of, uid, &user, at);
        }
        for of in self.core.take_lookups() {
            if let Some((uid, user)) = self.names.look_up(of.clone(), at.mono) {
                self.core.apply_name(&of, uid, &user, at);
            }
        }
    }

    fn publish(&mut self) {
        if self.core.has_begun() {
            self.read_first_hooks();
        }
        let (events, written) = self.core.flush(now());
        for event in &events {
            if let JobEvent::Ended(job) = event {
                let record = &job.record;
                if let Some(hooks) = &mut self.own.hooks {
                    let log_limiter = &mut self.own.log_limiter;
                    hooks.remove(&record.manager, &record.job, record.also.as_deref(), &mut |line| {
                        log_limiter.once(&line)
                    });
                }
            }
        }
        if events.iter().any(|event| matches!(event, JobEvent::Ended(_))) {
            let core = &self.core;
            self.own.files.retain(|key| core.job(key).is_some());
            if let Some(watches) = &mut self.own.watches {
                watches.retain(|what| !matches!(what, WatchTarget::Events(key) if core.job(key).is_none()));
            }
        }
        self.job_table.put(written);
        if !events.is_empty() || self.event_sender.is_full() {
            self.event_sender.send(events);
        }
    }

    fn wait(&mut self) {
        let at = now().mono;
        let mut until = self.core.next().unwrap_or(u64::MAX).min(self.own.scan_at);
        if self.event_sender.is_full() {
            until = until.min(at + RETRY_NS);
        }
        // Rounded up: a wait that ends early would be repeated at once.
        let ms = i32::try_from(until.saturating_sub(at).div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let inotify = self.own.watches.as_ref().map(InotifyWatches::fd);
        if wait(self.waker.fd(), inotify, ms) {
            self.waker.reset();
        }
    }
}

/// The owner of a directory, by the owners from the root on.
fn owner(owned: &[Ownership]) -> u32 {
    owned.last().map_or(0, |owned| owned.uid)
}

/// Whether a directory or its cgroup was removed.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR))
}

/// Waits for either descriptor. Whether the first is readable.
fn wait(first: BorrowedFd<'_>, second: Option<BorrowedFd<'_>>, ms: i32) -> bool {
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(first.as_raw_fd()), entry(second.map_or(-1, |fd| fd.as_raw_fd()))];
    // SAFETY: two entries that outlive the call; negative descriptors are ignored.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, ms) > 0 && fds[0].revents != 0 }
}
