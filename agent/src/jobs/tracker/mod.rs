//! Finds jobs in the cgroup tree, and keeps their records until the server has them.
//!
//! - In: directories that come and go (inotify, and a rescan that repairs what inotify lost), hooks of the resource manager.
//! - Out: [`JobEvent`]s for the manager's thread; records.
//! - Never: a wait of the manager's thread or of a job.

mod config;
mod core;
mod event_sender;
mod facts;
mod hooks;
mod job_table;
mod layout;
mod live;
mod log_limiter;
mod records;
mod run;
mod shares;
mod totals;
mod tree;
mod trust;
mod user_names;
mod visited;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::Context;
use wholegrain_model::JobRecord;
use wholegrain_sources::Roots;
use wholegrain_sources::job::JobPlace;

pub use config::{
    RawPattern, RawTracker, TrackerConfig, default_gpustat, default_hierarchies, default_hooks, default_managers,
    default_pbs_prefixes, default_slurm_slices, default_units,
};
pub use job_table::{JobTable, PendingCallback};

use self::core::TrackerCore;
use event_sender::EventSender;
use layout::Layouts;
use records::RecordDirectory;
use run::{TrackerCommands, TrackerParts, TrackerThread};
use user_names::UserNames;

use crate::engine::clock;
use crate::state::lock;
use crate::waker::Waker;

/// A job that runs here or has just ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// What is known of it.
    pub record: JobRecord,
    pub place: JobPlace,
    /// Whether it has had a process: a directory alone is not worth reading yet. True where the kernel does not say.
    pub has_processes: bool,
}

/// A change of a job. `record.level` identifies it: no other running job has the same.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEvent {
    /// It began, or was found running when the agent started.
    Began(Arc<Job>),
    /// Its record or its place changed.
    Changed(Arc<Job>),
    /// It ended; the record has `to` and the last totals.
    Ended(Arc<Job>),
}

/// Who the agent is, for its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    /// What its sensors' names are below.
    pub prefix: String,
}

/// What the tracker counts, for whoever asks.
#[derive(Debug, Default)]
pub struct TrackerCounts {
    pub watches: AtomicU64,
    /// Directories of jobs that are passed over now, as there are as many jobs as the bounds allow.
    pub jobs_passed_over: AtomicU64,
    /// Directories that are not looked into or not all of whose directories are looked at, as their users have too many.
    pub directories_passed_over: AtomicU64,
}

/// The thread that looks for jobs, and the one that writes their records.
pub struct Tracker {
    counts: Arc<TrackerCounts>,
    orders: Arc<Mutex<TrackerCommands>>,
    waker: Arc<Waker>,
    job_table: Arc<JobTable>,
    thread: JoinHandle<()>,
    writer: Option<JoinHandle<()>>,
}

impl Tracker {
    /// Starts it: events come out of the receiver, and `waker` rings when one waits there. Records that outlived the last agent
    /// are read from `dir`, if there is one.
    pub fn start(
        config: &TrackerConfig,
        dir: Option<&Path>,
        roots: &Roots,
        node: NodeFacts,
        waker: Arc<Waker>,
    ) -> anyhow::Result<(Tracker, Receiver<JobEvent>, Arc<JobTable>)> {
        let boot = std::fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let directory = dir.map(|dir| {
            let directory = RecordDirectory::open(dir, boot.trim().to_owned());
            directory.with_context(|| format!("[jobs] dir: cannot keep records in {}", dir.display()))
        });
        let directory = directory.transpose()?;
        let on_disk = directory.as_ref().map(|directory| {
            let (on_disk, problem) = directory.read(clock::real());
            problem.iter().for_each(|problem| tracing::warn!("{problem}"));
            on_disk
        });
        let on_disk = on_disk.unwrap_or_default();
        let seen = on_disk.seen;
        let (job_table, kept) = JobTable::new(on_disk, |(path, inode)| {
            // A file system that gives an inode's number away again tells when the directory was made.
            let stamp = facts::stamp(path, i64::MAX);
            stamp.is_ok_and(|stamp| stamp.inode == *inode && !(stamp.is_birth && stamp.created > seen))
        });
        let job_table = Arc::new(job_table);
        let own_waker = Arc::new(Waker::new().context("cannot make the tracker's bell")?);
        let names =
            UserNames::start(own_waker.clone()).context("cannot start the thread that asks for users' names")?;
        let (outlet, events) = EventSender::new(waker);
        let orders: Arc<Mutex<TrackerCommands>> = Arc::default();
        let counts: Arc<TrackerCounts> = Arc::default();
        let watcher = TrackerThread::new(TrackerParts {
            roots: roots.clone(),
            config: config.clone(),
            core: TrackerCore::new(Layouts::new(config, &BTreeMap::new()), config.rescan.ns(), node, kept),
            job_table: job_table.clone(),
            outlet,
            names,
            waker: own_waker.clone(),
            orders: orders.clone(),
            counts: counts.clone(),
            seen_before: (seen > 0).then_some(seen),
        });
        let thread = std::thread::Builder::new().name("tracker".to_owned()).spawn(move || watcher.run());
        let thread = thread.context("cannot start the tracker's thread")?;
        let mut tracker =
            Tracker { counts, orders, waker: own_waker, job_table: job_table.clone(), thread, writer: None };
        if let Some(directory) = directory {
            let theirs = job_table.clone();
            let writer = std::thread::Builder::new().name("records".to_owned());
            match writer.spawn(move || theirs.write_until_closed(&directory)) {
                Ok(writer) => tracker.writer = Some(writer),
                Err(error) => {
                    tracker.stop();
                    return Err(error).context("cannot start the thread that writes the jobs' records");
                }
            }
        }
        Ok((tracker, events, job_table))
    }

    pub fn counts(&self) -> &TrackerCounts {
        &self.counts
    }

    /// Other settings: jobs that are none by them end here, unseen.
    pub fn configure(&self, config: TrackerConfig) {
        lock(&self.orders).config = Some(config);
        self.waker.wake();
    }

    /// Ends the thread; jobs that run are kept in the records as running.
    pub fn stop(self) {
        lock(&self.orders).stop = true;
        self.waker.wake();
        let _ = self.thread.join();
        self.job_table.close();
        if let Some(writer) = self.writer {
            let _ = writer.join();
        }
    }
}
