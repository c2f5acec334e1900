//! Wires the store's components and owns its threads.
//!
//! [`Store`] is a handle to the engine. Its methods, in the files of this folder, call the component that does the work.

mod appends;
mod data;
mod jobs;
mod open;
pub(crate) mod repair;
mod sensors;
mod settings;
mod upkeep;

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::compaction::Compactor;
use crate::compaction::seal::Sealer;
use crate::computed::ResultFiles;
use crate::deletes::Deleter;
use crate::disk::{Disk, RealDisk};
use crate::expiry::SensorExpiry;
use crate::files::FileSet;
use crate::head::live::{LiveSubscribers, NewestBatches};
use crate::imports::Importer;
use crate::jobs::Jobs;
use crate::losses::Losses;
use crate::maintenance::backup::BackupMaker;
use crate::maintenance::repair::Repairer;
use crate::registration::Registration;
use crate::registry::Registry;
use crate::retention::Retention;
use crate::retention::rules::RetentionRules;
use crate::segment::synced::SyncedLengthFile;
use crate::sensors::SensorIndex;
use crate::sensors::file::SensorFile;
use crate::settings::change::PropertySettings;
use crate::snapshot::SnapshotSource;
use crate::snapshot::newest::NewestReadings;
use crate::stats::{Counters, OpenReport, add};
use crate::wal::appender::Appender;
use crate::wal::queue::AppendQueue;
use crate::work::WorkSignal;
use crate::{StoreConfig, StoreError};

/// How long a failed seal waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The time between two passes of the expiry of sensors.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);
/// The time after which merging and retention look for work although nothing woke them.
const UPKEEP: Duration = Duration::from_secs(10);

/// The components of an open store.
struct Engine {
    config: Arc<StoreConfig>,
    disk: Arc<dyn Disk>,
    counters: Arc<Counters>,
    work: Arc<WorkSignal>,
    registry: Arc<Registry>,
    losses: Arc<Losses>,
    sensors: Arc<SensorIndex>,
    sensor_file: Arc<SensorFile>,
    registration: Arc<Registration>,
    properties: PropertySettings,
    jobs: Arc<Jobs>,
    queue: Arc<AppendQueue>,
    appender: Appender,
    synced: Arc<SyncedLengthFile>,
    newest: Arc<NewestBatches>,
    newest_readings: NewestReadings,
    subscribers: Arc<LiveSubscribers>,
    files: Arc<FileSet>,
    snapshots: Arc<SnapshotSource>,
    results: Arc<ResultFiles>,
    sealer: Arc<Sealer>,
    compactor: Arc<Compactor>,
    rules: RetentionRules,
    retention: Retention,
    expiry: SensorExpiry,
    importer: Importer,
    deleter: Deleter,
    repairer: Repairer,
    backups: BackupMaker,
    /// Locks the directory until the last thread has ended.
    _lock: Box<dyn Any + Send + Sync>,
}

/// The store. A clone is another handle to the same one; it closes when the last is dropped.
#[derive(Clone)]
pub struct Store(Arc<StoreHandle>);

struct StoreHandle {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens or creates the store: locks the directory, removes what interrupted seals left, replays the journal. Damaged files are moved
    /// aside and reported; a directory in use, one of a newer release and a damaged catalogue are refused.
    pub fn open(config: StoreConfig) -> Result<(Store, OpenReport), StoreError> {
        crate::disk::close_to_others(&config.dir);
        Self::open_on(config, Arc::new(RealDisk))
    }

    /// The same on another file system than the real one.
    pub fn open_on(config: StoreConfig, disk: Arc<dyn Disk>) -> Result<(Store, OpenReport), StoreError> {
        let (engine, journal, report) = open::open(config, disk)?;
        let mut threads = Vec::new();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map_err(|error| StoreError::io("starting a thread for", &engine.config.dir, error))
        };
        threads.push(spawn("store-journal", Box::new(move || journal.run()))?);
        let jobs = engine.jobs.clone();
        threads.push(spawn("store-jobs", Box::new(move || jobs.run()))?);
        if engine.config.background {
            let for_sealer = engine.clone();
            threads.push(spawn("store-sealer", Box::new(move || for_sealer.seal_loop()))?);
            let for_results = engine.clone();
            threads.push(spawn("store-results", Box::new(move || for_results.scan_results()))?);
            let for_merger = engine.clone();
            threads.push(spawn("store-merger", Box::new(move || for_merger.merge_loop()))?);
        }
        Ok((Store(Arc::new(StoreHandle { engine, threads: Mutex::new(threads) })), report))
    }

    fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The directory of the store.
    pub fn dir(&self) -> PathBuf {
        self.engine().config.dir.clone()
    }

    /// Accepts nothing more, writes and answers what is queued, and stops the threads. What is not sealed yet is replayed from the
    /// journal at the next opening. Dropping the last handle does the same.
    pub fn close(&self) -> Result<(), StoreError> {
        self.0.close();
        Ok(())
    }
}

impl Engine {
    /// Reads the directory of cached results. After a failure the next seal tries again.
    fn scan_results(&self) {
        match self.results.scan() {
            Err(error) if !self.work.is_closing() => tracing::error!(%error, "cached results cannot be read"),
            _ => {}
        }
    }

    fn seal_loop(&self) {
        let mut seen = 0;
        let mut settings = self.sensors.read().settings_changes();
        while self.work.wait(&mut seen, UPKEEP) {
            loop {
                match self.sealer.seal_oldest() {
                    Ok(true) if !self.work.is_closing() => {}
                    Ok(_) => break,
                    Err(error) => {
                        add(&self.counters.seal_errors, 1);
                        tracing::error!(%error, "sealing failed; tried again shortly, the journal keeps everything");
                        // While the disk is full, each wake would only fail again.
                        self.work.pause(RETRY);
                        self.work.wake();
                        break;
                    }
                }
            }
            self.synced.sync();
            // Settings go to sensors.csv soon, also while nothing is sealed.
            let set = self.sensors.read().settings_changes();
            if std::mem::replace(&mut settings, set) != set {
                self.sensor_file.keep_up();
            }
            self.newest.remove_silent(self.config.live.duration(), Instant::now());
        }
    }

    fn merge_loop(&self) {
        let mut seen = 0;
        let mut expire_at = Instant::now();
        while self.work.wait(&mut seen, UPKEEP) {
            if let Err(error) = self.retention.retain(self.config.clock.now()) {
                tracing::error!(%error, "retention failed; tried again shortly");
            }
            if let Err(error) = self.jobs.expire(self.config.clock.now()) {
                tracing::error!(%error, "retention of jobs failed; tried again shortly");
            }
            if self.config.hands_over {
                continue;
            }
            self.expire_sensors(&mut expire_at);
            while !self.work.is_closing() {
                match self.compactor.merge_once(self.config.clock.now()) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        add(&self.counters.merge_errors, 1);
                        tracing::error!(%error, "merging failed; tried again shortly");
                        break;
                    }
                }
            }
        }
    }

    /// Runs a pass of the expiry of sensors if one is due.
    fn expire_sensors(&self, next: &mut Instant) {
        if Instant::now() < *next {
            return;
        }
        *next = Instant::now() + EXPIRE_EVERY;
        if let Err(error) = self.expiry.pass(self.config.clock.now()) {
            tracing::error!(%error, "the expiry of sensors failed; tried again later");
        }
    }
}

impl StoreHandle {
    fn close(&self) {
        let engine = &self.engine;
        engine.work.close();
        engine.results.stop();
        engine.queue.close();
        engine.jobs.queue.close();
        engine.work.wake();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A handle that a sender's callback held is dropped on the journal thread: it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        engine.synced.sync();
        engine.subscribers.close();
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.close();
    }
}
