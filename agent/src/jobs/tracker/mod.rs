//! Finds jobs in the cgroup tree, and keeps their records until the server has them.
//!
//! - In: created and removed directories (inotify, and a rescan that finds missed ones), hooks of the resource manager.
//! - Out: [`JobEvent`]s for the manager's thread; records.
//! - Never: a wait of the manager's thread or of a job.

mod config;
mod core;
mod event_sender;
mod events;
mod facts;
mod hooks;
mod job_table;
mod layout;
mod live;
mod records;
mod run;
mod shares;
mod totals;
mod tree;
mod trust;
mod user_names;
mod visited;
mod watch;

use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::Context;
use wholegrain_sources::Roots;

pub use config::TrackerConfig;
pub use events::{Job, JobEvent, NodeFacts};
pub use job_table::JobTable;
pub use layout::RawPattern;
pub use user_names::UserLookup;

use self::core::TrackerCore;
use event_sender::EventSender;
use records::{RecordDirectory, StoredRecords};
use run::{TrackerCommands, TrackerFiles, TrackerThread};
use trust::TrustedUser;
use user_names::UserNames;

use crate::counters::AgentCounters;
use crate::engine::clock;
use crate::sync::lock;
use crate::waker::Waker;

/// The thread that finds jobs, and the one that writes their records.
pub struct Tracker {
    commands: Arc<Mutex<TrackerCommands>>,
    waker: Arc<Waker>,
    job_table: Arc<JobTable>,
    thread: JoinHandle<()>,
    writer: Option<JoinHandle<()>>,
}

impl Tracker {
    /// Starts the threads. Events come out of the receiver, and `waker` is woken for each. Records of earlier runs are read from `dir`.
    pub fn start(
        config: &TrackerConfig,
        dir: Option<&Path>,
        roots: &Roots,
        node: NodeFacts,
        waker: Arc<Waker>,
        counters: Arc<AgentCounters>,
    ) -> anyhow::Result<(Tracker, Receiver<JobEvent>, Arc<JobTable>)> {
        let boot = std::fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let directory = dir.map(|dir| {
            let directory = RecordDirectory::open(dir, boot.trim().to_owned());
            directory.with_context(|| format!("[jobs] dir: cannot keep records in {}", dir.display()))
        });
        let directory = directory.transpose()?;
        let on_disk = match directory.as_ref().map_or(Ok(StoredRecords::default()), |dir| dir.read(clock::real())) {
            Ok(on_disk) => on_disk,
            Err(problem) => {
                tracing::warn!("{problem}");
                StoredRecords::default()
            }
        };
        let seen = on_disk.seen;
        let (job_table, kept) = JobTable::new(on_disk, |(path, inode)| {
            // If the file system uses an inode number again, the creation time tells the directories apart.
            let stamp = facts::stamp(path, i64::MAX);
            stamp.is_ok_and(|stamp| stamp.inode == *inode && !(stamp.is_birth && stamp.created > seen))
        });
        let job_table = Arc::new(job_table);
        let own_waker = Arc::new(Waker::new().context("cannot make the tracker's waker")?);
        let names = UserNames::start(own_waker.clone()).context("cannot start the thread that looks up users")?;
        let (event_sender, events) = EventSender::new(waker);
        let commands: Arc<Mutex<TrackerCommands>> = Arc::default();
        let watcher = TrackerThread {
            roots: roots.clone(),
            config: config.clone(),
            core: TrackerCore::new(config, node, kept),
            job_table: job_table.clone(),
            event_sender,
            names,
            waker: own_waker.clone(),
            commands: commands.clone(),
            counters,
            seen_before: (seen > 0).then_some(seen),
            trust: TrustedUser::of_process(),
            own: TrackerFiles::default(),
        };
        let thread = std::thread::Builder::new().name("tracker".to_owned()).spawn(move || watcher.run());
        let thread = thread.context("cannot start the tracker's thread")?;
        let mut tracker = Tracker { commands, waker: own_waker, job_table: job_table.clone(), thread, writer: None };
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

    /// Applies other settings. Jobs that are none by the new settings end.
    pub fn configure(&self, config: TrackerConfig) {
        lock(&self.commands).config = Some(config);
        self.waker.wake();
    }

    /// Ends the threads; running jobs stay in the records as running.
    pub fn stop(self) {
        lock(&self.commands).stop = true;
        self.waker.wake();
        let _ = self.thread.join();
        self.job_table.close();
        if let Some(writer) = self.writer {
            let _ = writer.join();
        }
    }
}
