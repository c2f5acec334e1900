//! The tracker's thread: waits for the kernel to tell, looks, and tells what has changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wholegrain_sources::Roots;

use super::book::Book;
use super::core::{Core, NameOf, Now};
use super::hooks::{Gpu, HooksDir, gpustat};
use super::layout::{Found, Layouts, Spot};
use super::live::{DirId, Key, Stamp};
use super::names::Names;
use super::outlet::Outlet;
use super::totals::TotalsFiles;
use super::tree::Looks;
use super::trust::{MayOwn, Owned, Owners, Trust};
use super::watch::{Seen, Watched, Watches};
use super::{JobEvent, TrackerConfig, facts, tree};
use crate::bell::Bell;
use crate::engine::clock;
use crate::state::lock;

/// The most directories that one scan looks at.
const DIRS_MAX: usize = 200_000;
/// The most different lines that are told of.
const TOLD_MAX: usize = 256;
/// How often the book gets the totals of running jobs, so that they are on disk when the agent is killed: 30 s.
const REFRESH_NS: u64 = 30_000_000_000;
/// How soon it is tried again to hand over events that the manager's thread had no room for: 20 ms.
const RETRY_NS: u64 = 20_000_000;
/// Every so many scans all directories are listed and all watches made anew, whatever the directories say of themselves.
const WHOLE_EVERY: u64 = 12;
/// How long the first scan waits for the uids of the managers' accounts, of which the system's directory may know nothing: 2 s.
const ACCOUNTS_WAIT: Duration = Duration::from_secs(2);

/// The most buffers of inotify's that are taken before a scan that is due; its queue is shorter unless the system was told
/// otherwise.
const READS_MAX: usize = 64;

/// What the thread is asked.
#[derive(Debug, Default)]
pub struct Orders {
    /// Other settings.
    pub config: Option<TrackerConfig>,
    /// To end.
    pub stop: bool,
}

/// Everything the thread has.
pub struct Watcher {
    roots: Roots,
    config: TrackerConfig,
    core: Core,
    book: Arc<Book>,
    outlet: Outlet,
    names: Names,
    bell: Arc<Bell>,
    orders: Arc<Mutex<Orders>>,
    seen_before: Option<i64>,
    trust: Trust,
    own: Own,
}

/// What it makes for itself.
#[derive(Default)]
struct Own {
    watches: Option<Watches>,
    files: TotalsFiles,
    hooks: Option<HooksDir>,
    gpus: Vec<Gpu>,
    told: HashSet<String>,
    /// Directories named as a job's that were refused for their owners.
    refused: u64,
    /// All directories that were looked at, and what those looked like that can have others below.
    visited: BTreeMap<DirId, Option<Looks>>,
    /// Some are not watched.
    unwatched: bool,
    scans: u64,
    scan_at: u64,
    refresh_at: u64,
    overflow: bool,
    /// The uids of the accounts that layouts ask for.
    accounts: BTreeMap<String, u32>,
}

/// What a walk has seen.
#[derive(Default)]
struct Scan {
    seen: BTreeSet<DirId>,
    visited: BTreeMap<DirId, Option<Looks>>,
    blind: Vec<DirId>,
    renew: bool,
}

/// What the thread is made of.
pub struct Parts {
    /// Where the kernel's trees are.
    pub roots: Roots,
    /// Its settings.
    pub config: TrackerConfig,
    /// Its state.
    pub core: Core,
    /// Where records go.
    pub book: Arc<Book>,
    /// Where events go.
    pub outlet: Outlet,
    /// Who knows users' names.
    pub names: Names,
    /// What wakes it.
    pub bell: Arc<Bell>,
    /// What it is asked.
    pub orders: Arc<Mutex<Orders>>,
    /// When the agent was last there, if it was.
    pub seen_before: Option<i64>,
}

fn now() -> Now {
    Now { real: clock::real(), mono: clock::mono().max(0) as u64 }
}

impl Watcher {
    /// One that has seen nothing yet.
    pub fn new(parts: Parts) -> Self {
        let Parts { roots, config, core, book, outlet, names, bell, orders, seen_before } = parts;
        let own = Own { hooks: config.hooks.clone().map(HooksDir::new), ..Own::default() };
        Self { roots, config, core, book, outlet, names, bell, orders, seen_before, trust: Trust::of_process(), own }
    }

    /// Runs until it is asked to end.
    pub fn run(mut self) {
        let mut reads = 0;
        self.resolve_accounts();
        while !self.obey() {
            let more = self.take_some() && reads < READS_MAX;
            reads = if more { reads + 1 } else { 0 };
            // What a scan finds must not be older than what waits to be told.
            if !more && (now().mono >= self.own.scan_at || self.own.overflow) {
                self.scan();
            }
            for key in self.core.looks_due(now()) {
                self.look(&key);
            }
            self.ask_names();
            self.tell();
            if !more {
                self.wait();
            }
        }
        let running = self.core.running();
        self.book.refresh(running);
    }

    fn obey(&mut self) -> bool {
        let orders = std::mem::take(&mut *lock(&self.orders));
        if let Some(config) = orders.config {
            self.core.configure(Layouts::new(&config, &self.own.accounts), config.rescan.ns());
            if config.hooks != self.config.hooks {
                self.own.hooks = config.hooks.clone().map(HooksDir::new);
            }
            self.config = config;
            self.resolve_accounts();
            self.own.scans = 0;
            if let Some(watches) = &mut self.own.watches {
                watches.retain(|what| !matches!(what, Watched::Hooks | Watched::Gpus));
            }
            self.own.scan_at = 0;
        }
        orders.stop
    }

    /// Asks for the uids of the managers' accounts, and waits for the answers for a while: a job that ran before the agent was
    /// started must be known as one by the first scan.
    fn resolve_accounts(&mut self) {
        let deadline = Instant::now() + ACCOUNTS_WAIT;
        while !self.ask_accounts() && Instant::now() < deadline {
            self.bell.wait(deadline.saturating_duration_since(Instant::now()));
            self.ask_names();
        }
    }

    /// Whether the uids of all accounts are known, or that there are none.
    fn ask_accounts(&mut self) -> bool {
        let (mut all, mut changed) = (true, false);
        for name in self.config.accounts() {
            let uid = match name.parse() {
                Ok(uid) => Some(uid),
                Err(_) => self.names.ask(NameOf::User(name.clone()), now().mono).map(|(uid, _)| uid),
            };
            all &= uid.is_some() || !self.names.is_asking(&NameOf::User(name.clone()));
            // One that is known stays so while the system does not answer.
            if let Some(uid) = uid {
                changed |= self.own.accounts.insert(name, uid) != Some(uid);
            }
        }
        if changed {
            self.core.configure(Layouts::new(&self.config, &self.own.accounts), self.config.rescan.ns());
            self.own.scans = 0;
        }
        all
    }

    /// Tells people something, once.
    fn report(&mut self, line: String) {
        report(&mut self.own.told, line);
    }

    /// Takes a buffer of what the kernel tells; says whether there may be more.
    fn take_some(&mut self) -> bool {
        let mut seen = Vec::new();
        let Some(watches) = &mut self.own.watches else { return false };
        let more = match watches.read(&mut seen) {
            Ok(more) => more,
            Err(error) => {
                self.own.watches = None;
                self.report(format!(
                    "cannot read what inotify tells: {error}; jobs are found by the rescan until it can be"
                ));
                return false;
            }
        };
        for event in seen {
            match event {
                Seen::Made(dir) => {
                    let mut scan = Scan { renew: true, ..Scan::default() };
                    self.walk(dir, &mut scan);
                    self.own.visited.extend(scan.visited);
                }
                Seen::Gone(dir) => self.gone(&dir),
                Seen::Events(key) => self.look(&key),
                Seen::Hooks => self.read_hooks(),
                Seen::Gpus => self.read_gpus(),
                Seen::Overflow => self.own.overflow = true,
            }
        }
        more
    }

    fn gone(&mut self, dir: &DirId) {
        // Made anew in the meantime: another event will tell.
        if let Spot::Job(found) = self.core.spot(dir) {
            // The last chance, as long as other directories of the job are there.
            self.total(&self.core.key_of(&found));
        }
        if let Some(watches) = &mut self.own.watches {
            watches.remove_within(dir);
        }
        self.below(dir).iter().for_each(|dir| _ = self.own.visited.remove(dir));
        self.core.gone(dir, now());
    }

    /// The directories that were looked at within one, itself among them.
    fn below(&self, dir: &DirId) -> Vec<DirId> {
        let range = self.own.visited.range(dir.clone()..).map(|(other, _)| other);
        let near = range.take_while(|other| other.hierarchy == dir.hierarchy && other.path.starts_with(&*dir.path));
        near.filter(|other| other.is_within(dir)).cloned().collect()
    }

    /// The owners of the directories above one, from the hierarchy's root on; nothing where the root itself is not to be believed.
    fn above(&mut self, dir: &DirId) -> Option<Vec<Owned>> {
        let root = self.core.path(&DirId::new(dir.hierarchy, ""));
        let owned = Owned::of_root(&root).ok()?;
        if !self.trust.allows(MayOwn::Root, &owned) {
            self.report(format!(
                "{}: no jobs are looked for, as it belongs to uid {} with mode {:03o}; only root's and the agent's own trees are believed",
                root.display(),
                owned.uid,
                owned.mode & 0o777
            ));
            return None;
        }
        let ends = dir.path.match_indices('/').map(|(at, _)| &dir.path[..at]);
        ends.map(|above| Owned::of(&root.join(above)).ok()).collect()
    }

    /// Whether the owners on a path are such as one of these allows.
    fn believes(&mut self, all: &[Owners], owned: &[Owned], path: &Path) -> bool {
        let refused = all.iter().map(|owners| self.trust.refuses(owners, owned)).min().flatten();
        if let Some(level) = refused {
            self.own.refused += 1;
            let uid = owned.get(level).map(|owned| owned.uid).unwrap_or_default();
            if self.own.told.len() < TOLD_MAX && self.own.told.insert(format!("refused {uid}")) {
                tracing::warn!(
                    "{}: not taken for a job's, as a directory on its path belongs to uid {uid} or is open to others",
                    path.display()
                );
            }
        }
        refused.is_none()
    }

    /// Looks at everything below a directory, and at itself; what it finds is watched from then on.
    fn walk(&mut self, top: DirId, scan: &mut Scan) {
        let Some(above) = self.above(&top) else { return };
        let mut stack = vec![(top, Rc::new(above))];
        while let Some((dir, above)) = stack.pop() {
            if scan.visited.len() >= DIRS_MAX {
                scan.blind.push(DirId::new(dir.hierarchy, ""));
                self.report(format!("more than {DIRS_MAX} directories may have jobs below; the rest is not looked at"));
                return;
            }
            let path = self.core.path(&dir);
            let spot = self.core.spot(&dir);
            let asked = match &spot {
                Spot::Nothing => continue,
                Spot::Above(owners) => &owners[..],
                Spot::Job(found) => std::slice::from_ref(&found.owners),
            };
            let mut owned = (*above).clone();
            if !dir.path.is_empty() {
                match Owned::of(&path) {
                    Ok(own) => owned.push(own),
                    // It was there, however shortly, and those above it are as they must be.
                    Err(error) if is_gone(&error) => owned.push(Owned { uid: 0, gid: 0, mode: 0, is_dir: true }),
                    Err(error) => {
                        self.blind(&dir, &path, &error, scan);
                        continue;
                    }
                }
            }
            if !self.believes(asked, &owned, &path) {
                continue;
            }
            let deeper = match spot {
                Spot::Job(found) => self.take_job(&dir, &path, &found, scan) && self.may_be_deeper(&found, &owned),
                Spot::Above(_) => true,
                Spot::Nothing => false,
            };
            if !deeper {
                continue;
            }
            // Before the list, so that what comes after it is another look.
            scan.visited.insert(dir.clone(), tree::looks(&path).ok());
            // Watched first: what is made after the list is told of.
            self.watch(Watched::Dir(dir.clone()), path.clone(), scan.renew);
            let owned = Rc::new(owned);
            match tree::children(&path, false) {
                Ok(names) => stack.extend(names.iter().rev().map(|name| (dir.child(name), owned.clone()))),
                Err(error) if is_gone(&error) => {}
                Err(error) => self.blind(&dir, &path, &error, scan),
            }
        }
    }

    /// Below a directory that was given to somebody nothing is read.
    fn may_be_deeper(&self, found: &Found, owned: &[Owned]) -> bool {
        let given = found.owners.last() == Some(&MayOwn::Anyone);
        !given || owned.last().is_some_and(|owned| self.trust.has(owned.uid))
    }

    /// A directory of a job or a step; whether there may be others below it.
    fn take_job(&mut self, dir: &DirId, path: &Path, found: &Found, scan: &mut Scan) -> bool {
        let at = now();
        match facts::stamp(path, at.real) {
            Ok(stamp) => {
                self.core.made(dir.clone(), found, stamp, at);
                scan.seen.insert(dir.clone());
            }
            Err(error) if is_gone(&error) => {
                // It was there, however shortly: its end is told next.
                let stamp = Stamp { created: at.real, ..Stamp::default() };
                self.core.made(dir.clone(), found, stamp, at);
                return false;
            }
            Err(error) => {
                self.blind(dir, path, &error, scan);
                return false;
            }
        }
        if found.step.is_empty() {
            let key = self.core.key_of(found);
            if self.core.job(&key).is_some_and(|job| job.place.v2.as_deref() == Some(path)) {
                self.watch(Watched::Events(key), path.join("cgroup.events"), scan.renew);
            }
        }
        if !found.deeper {
            scan.visited.insert(dir.clone(), None);
        }
        found.deeper
    }

    fn blind(&mut self, dir: &DirId, path: &Path, error: &io::Error, scan: &mut Scan) {
        scan.blind.push(dir.clone());
        // One line for each kind of trouble: there can be a thousand such directories.
        if self.own.told.insert(format!("blind {:?}", error.raw_os_error())) {
            tracing::warn!("cannot look for jobs in {} and perhaps others: {error}", path.display());
        }
    }

    fn watch(&mut self, what: Watched, path: PathBuf, renew: bool) {
        let Some(watches) = &mut self.own.watches else { return };
        match watches.add(what, &path, renew) {
            Ok(()) => {}
            // What may not be watched may not be listed either, and that is told.
            Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => {
                self.own.unwatched = true;
                let why = match error.raw_os_error() {
                    Some(libc::ENOSPC) => {
                        "the user's limit is reached (raise it with sysctl fs.inotify.max_user_watches)".to_owned()
                    }
                    _ => error.to_string(),
                };
                let rescan = self.config.rescan;
                if self.own.told.insert(format!("watch {:?}", error.raw_os_error())) {
                    tracing::warn!(
                        "cannot watch {} and perhaps others: {why}; jobs there are found by the rescan every {rescan}",
                        path.display()
                    );
                }
            }
        }
    }

    /// Looks at the tree, and so repairs whatever inotify did not tell: mostly at those directories only that look different, as
    /// listing a cgroup costs ten times as much.
    fn scan(&mut self) {
        let whole = self.own.scans.is_multiple_of(WHOLE_EVERY)
            || std::mem::take(&mut self.own.overflow)
            || self.own.watches.is_none()
            || self.own.unwatched
            || self.own.visited.is_empty();
        self.ask_accounts();
        self.own.scans += 1;
        if whole {
            self.scan_whole()
        } else {
            self.scan_changed()
        }
        self.read_hooks();
        self.read_gpus();
        self.watch_files();
        self.core.ask_names();
        let at = now();
        if at.mono >= self.own.refresh_at {
            self.own.refresh_at = at.mono + REFRESH_NS;
            self.book.refresh(self.core.running());
        } else {
            self.book.touch();
        }
        if self.core.passed_over() > 0 {
            self.report("more jobs run at once than are kept; the rest is passed over".to_owned());
        }
        self.own.scan_at = at.mono + self.config.rescan.ns();
    }

    fn scan_changed(&mut self) {
        let visited = &self.own.visited;
        let dirs: Vec<(DirId, Looks)> =
            visited.iter().filter_map(|(dir, looks)| Some((dir.clone(), (*looks)?))).collect();
        for (dir, before) in dirs {
            // Gone with one above it.
            if !self.own.visited.contains_key(&dir) {
                continue;
            }
            let path = self.core.path(&dir);
            let listed = match tree::looks(&path) {
                Ok(looks) if looks == before => continue,
                Ok(looks) => tree::children(&path, false).map(|names| (looks, names)),
                Err(error) => Err(error),
            };
            match listed {
                Ok((looks, names)) => self.compare(&dir, looks, &names),
                Err(error) if is_gone(&error) => self.gone(&dir),
                // A whole scan will tell.
                Err(_) => {}
            }
        }
    }

    /// What has come into a directory, and what has gone.
    fn compare(&mut self, dir: &DirId, looks: Looks, names: &[String]) {
        let here: BTreeSet<DirId> = names.iter().map(|name| dir.child(name)).collect();
        let is_child =
            |other: &DirId| other != dir && !other.path[dir.path.len()..].trim_start_matches('/').contains('/');
        let known = self.below(dir);
        known.iter().filter(|other| is_child(other) && !here.contains(other)).for_each(|other| self.gone(other));
        let mut scan = Scan { renew: true, ..Scan::default() };
        here.into_iter().filter(|child| !known.contains(child)).for_each(|child| self.walk(child, &mut scan));
        self.own.visited.extend(scan.visited);
        self.own.visited.insert(dir.clone(), Some(looks));
    }

    fn scan_whole(&mut self) {
        self.own.unwatched = false;
        if self.own.watches.is_none() {
            match Watches::new() {
                Ok(watches) => self.own.watches = Some(watches),
                Err(error) => {
                    let rescan = self.config.rescan;
                    self.report(format!(
                        "cannot watch for jobs: {error} (see sysctl fs.inotify.max_user_instances and the limit of open files); they are found by the rescan every {rescan}"
                    ));
                }
            }
        }
        let mut scan = Scan { renew: true, ..Scan::default() };
        let mut lines = Vec::new();
        let hierarchies = tree::hierarchies(&self.roots, &self.config.hierarchies, &mut |line| lines.push(line));
        let mut known = HashSet::new();
        let unreadable = !lines.is_empty();
        lines.into_iter().for_each(|line| self.report(line));
        for hierarchy in hierarchies {
            let index = self.core.hierarchy(hierarchy);
            known.insert(index);
            self.walk(DirId::new(index, ""), &mut scan);
        }
        if unreadable {
            // Whatever was in those that cannot be seen now.
            let lost: Vec<DirId> =
                self.core.hierarchy_roots().filter(|root| !known.contains(&root.hierarchy)).collect();
            scan.blind.extend(lost);
        }
        let at = now();
        self.core.scanned(&scan.seen, &scan.blind, at);
        if let Some(seen) = self.seen_before.filter(|_| scan.blind.is_empty()) {
            self.seen_before = None;
            self.core.close_lost_steps(seen, at);
        }
        let before = std::mem::take(&mut self.own.visited);
        let unseen = before.into_iter().filter(|(dir, _)| scan.blind.iter().any(|blind| dir.is_within(blind)));
        self.own.visited = unseen.chain(std::mem::take(&mut scan.visited)).collect();
        self.forget_watches();
    }

    fn forget_watches(&mut self) {
        let (core, visited) = (&self.core, &self.own.visited);
        if let Some(watches) = &mut self.own.watches {
            watches.retain(|what| match what {
                Watched::Dir(dir) => visited.contains_key(dir),
                Watched::Events(key) => core.job(key).is_some(),
                Watched::Hooks | Watched::Gpus => true,
            });
        }
    }

    fn watch_files(&mut self) {
        let hooks = self.own.hooks.as_ref().map(|hooks| (Watched::Hooks, hooks.path().to_owned()));
        let gpus = self.config.gpustat.clone().map(|dir| (Watched::Gpus, dir));
        for (what, path) in hooks.into_iter().chain(gpus).filter(|(_, path)| path.is_dir()) {
            // Again each time: they can be removed and made anew, and few look there.
            self.watch(what, path, true);
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
            self.core.hook(hook, at);
        }
        lines.into_iter().for_each(|line| self.report(line));
    }

    fn read_gpus(&mut self) {
        let gpus = self.config.gpustat.as_deref().map(gpustat).unwrap_or_default();
        if gpus == self.own.gpus {
            return;
        }
        self.own.gpus = gpus;
        let keys: Vec<Key> = self.core.jobs().map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.look(key));
    }

    /// Reads what a job has used until now.
    fn total(&mut self, key: &Key) {
        let Some(job) = self.core.job(key) else { return };
        let (totals, error) = self.own.files.read(key, &job.place);
        self.core.total(key, &totals, clock::real());
        if let Some(error) = error
            && self.own.told.insert(format!("totals {:?}", error.kind()))
        {
            tracing::warn!("cannot read what jobs have used: {error}; it is tried again");
        }
    }

    /// Everything there is to learn of a job.
    fn look(&mut self, key: &Key) {
        self.total(key);
        let Some(job) = self.core.job(key) else { return };
        let mut learnt = super::live::Facts { cpus: facts::cpus(&job.place), ..Default::default() };
        learnt.devices = facts::devices(&job.place);
        let also = job.record.also.as_deref();
        let is_its = |gpu: &&Gpu| {
            (gpu.job == job.record.job || Some(gpu.job.as_str()) == also) && gpu.may_be_of(&job.owner, job.record.uid)
        };
        learnt.devices.extend(self.own.gpus.iter().filter(is_its).map(|gpu| gpu.device.clone()));
        if job.uid_from < super::live::UidFrom::Processes {
            let dirs = self.core.process_dirs(job);
            learnt.uid = facts::uid(&self.roots.proc, &dirs, job.account);
        }
        self.core.learn(key, learnt, now());
    }

    fn ask_names(&mut self) {
        let at = now();
        for (of, uid, user) in self.names.answers(at.mono) {
            self.core.named(&of, uid, &user, at);
        }
        for of in self.core.names_wanted() {
            if let Some((uid, user)) = self.names.ask(of.clone(), at.mono) {
                self.core.named(&of, uid, &user, at);
            }
        }
    }

    fn tell(&mut self) {
        let (events, written) = self.core.flush(now());
        for event in &events {
            if let JobEvent::Ended(job) = event {
                let record = &job.record;
                if let Some(hooks) = &mut self.own.hooks {
                    let told = &mut self.own.told;
                    hooks.remove(&record.manager, &record.job, record.also.as_deref(), &mut |line| report(told, line));
                }
            }
        }
        if events.iter().any(|event| matches!(event, JobEvent::Ended(_))) {
            let core = &self.core;
            self.own.files.retain(|key| core.job(key).is_some());
            if let Some(watches) = &mut self.own.watches {
                watches.retain(|what| !matches!(what, Watched::Events(key) if core.job(key).is_none()));
            }
        }
        self.book.put(written);
        if !events.is_empty() || self.outlet.is_full() {
            self.outlet.send(events);
        }
    }

    fn wait(&mut self) {
        let at = now().mono;
        let mut until = self.core.next().unwrap_or(u64::MAX).min(self.own.scan_at);
        if self.outlet.is_full() {
            until = until.min(at + RETRY_NS);
        }
        // Rounded up: a wait that ends early would be begun again and again.
        let ms = i32::try_from(until.saturating_sub(at).div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let inotify = self.own.watches.as_ref().map(Watches::fd);
        if wait(self.bell.fd(), inotify, ms) {
            self.bell.silence();
        }
    }
}

fn report(told: &mut HashSet<String>, line: String) {
    if told.len() < TOLD_MAX && !told.contains(&line) {
        tracing::warn!("{line}");
        told.insert(line);
    }
}

/// Whether a directory is not there, or its cgroup is not any more.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR))
}

/// Waits for either descriptor; says whether the first is readable.
fn wait(first: BorrowedFd<'_>, second: Option<BorrowedFd<'_>>, ms: i32) -> bool {
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(first.as_raw_fd()), entry(second.map_or(-1, |fd| fd.as_raw_fd()))];
    // SAFETY: two entries, which outlive the call; a negative descriptor is passed over.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, ms) > 0 && fds[0].revents != 0 }
}
