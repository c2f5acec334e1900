//! The state that the agent's threads share. A sampler thread touches only each group's own atomics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use bytes::Bytes;
use serde::Serialize;
use wholegrain_model::{Interval, Schema, SensorPath};

use crate::cache::BatchCache;
use crate::counters::AgentCounters;
use crate::engine::{Group, clock};
use crate::jobs::JobsView;
use crate::jobs::control::ControlChannel;
use crate::jobs::marks::Marks;
use crate::log::LogSetting;
use crate::outbox::Outbox;
use crate::sender::{PendingRecords, RecordsSlot};
use crate::waker::Waker;

/// A batch as it is sent, cached and spooled.
#[derive(Debug)]
pub struct EncodedBatch {
    pub payload: Bytes,
    /// The schema it needs.
    pub schema: Schema,
    pub topic: Arc<str>,
    pub seq: u64,
    /// Time of the first sample, ns since the Unix epoch.
    pub first: i64,
    /// Time of the last sample.
    pub last: i64,
    pub samples: usize,
    /// Monotonic time at which it was encoded, ns.
    pub made_mono: i64,
}

impl EncodedBatch {
    /// Bytes of memory beside the payload, about: the structure, its places in cache and queue, the allocator's own.
    const OVERHEAD: u64 = 192;

    /// What it takes in memory.
    pub fn bytes(&self) -> u64 {
        self.payload.len() as u64 + Self::OVERHEAD
    }
}

/// The running groups, and those whose last samples are still to be encoded.
#[derive(Debug, Default)]
pub struct GroupRegistry {
    lists: RwLock<GroupLists>,
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct GroupLists {
    live: Vec<Arc<Group>>,
    draining: Vec<Arc<Group>>,
}

impl GroupRegistry {
    /// The groups that are sampled, in the order of their names.
    pub fn live(&self) -> Vec<Arc<Group>> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).live.clone()
    }

    /// The groups that are no longer sampled but not yet encoded to the end, the oldest first.
    pub fn draining(&self) -> Vec<Arc<Group>> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).draining.clone()
    }

    /// The group of this name.
    pub fn find(&self, name: &str) -> Option<Arc<Group>> {
        self.lists
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .live
            .iter()
            .find(|group| group.name() == name)
            .cloned()
    }

    fn change(&self, f: impl FnOnce(&mut GroupLists)) {
        f(&mut self.lists.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Counts changes of the list of groups: whoever has selected sensors selects them again when it differs.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Takes a new group.
    pub fn add(&self, group: Arc<Group>) {
        self.exchange(&[], vec![group]);
    }

    /// Takes a new group unless there is one of its name, which is then the error.
    pub fn add_new(&self, group: Arc<Group>) -> Result<(), Arc<Group>> {
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        let at = lists.live.partition_point(|other| other.name() < group.name());
        if let Some(other) = lists.live.get(at).filter(|other| other.name() == group.name()) {
            return Err(other.clone());
        }
        lists.live.insert(at, group);
        drop(lists);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Moves groups to those that are drained and takes others, so that whoever looks sees either all of it or nothing.
    pub fn exchange(&self, retired: &[u64], added: Vec<Arc<Group>>) {
        self.change(|lists| {
            for id in retired {
                if let Some(at) = lists.live.iter().position(|group| group.id == *id) {
                    let group = lists.live.remove(at);
                    lists.draining.push(group);
                }
            }
            for group in added {
                let at = lists.live.partition_point(|other| other.name() < group.name());
                lists.live.insert(at, group);
            }
        });
    }

    /// Moves a group to those that are drained.
    pub fn retire(&self, id: u64) {
        self.exchange(&[id], Vec::new());
    }

    /// Forgets the groups that are drained, and says which.
    pub fn forget_drained(&self) -> Vec<Arc<Group>> {
        let mut drained = Vec::new();
        self.change(|lists| drained.extend(lists.draining.extract_if(.., |group| group.is_drained())));
        drained
    }
}

/// How it stands with the server.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LinkStatus {
    /// Where to; empty without `[mqtt]`.
    pub url: String,
    /// `off`, `connecting`, `connected` or `waiting`.
    pub state: &'static str,
    /// Why the last connection failed or ended.
    pub last_error: Option<String>,
    /// Batches sent and not yet acknowledged.
    pub in_flight: usize,
}

/// How it stands with a source.
#[derive(Debug, Clone, Serialize)]
pub struct SourceStatus {
    /// Its name in the configuration.
    pub name: String,
    /// One line about it.
    pub summary: String,
    /// `running`, `stopped` or `failed`.
    pub state: &'static str,
    pub groups: Vec<String>,
    /// What it said when it looked at the system.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub struct AgentState {
    pub name: String,
    /// What every sensor is below.
    pub prefix: SensorPath,
    /// Start of the process, ns since the Unix epoch.
    pub boot_ns: u64,
    /// The same for measuring.
    pub started: Instant,
    pub counters: Arc<AgentCounters>,
    pub registry: GroupRegistry,
    pub cache: BatchCache,
    /// What is to be sent.
    pub outbox: Outbox,
    /// Orders of the server and the answers to them.
    pub control: ControlChannel,
    /// What jobs say of themselves.
    pub marks: Marks,
    /// Ends the sleep of the encoder thread.
    pub(crate) encoder_wake: Arc<clock::Wake>,
    /// Ends the wait of the manager.
    pub(crate) manager_waker: OnceLock<Arc<Waker>>,
    link: Mutex<LinkStatus>,
    log: Mutex<LogSetting>,
    sources: Mutex<Vec<SourceStatus>>,
    jobs: Mutex<Arc<JobsView>>,
    job_table: RecordsSlot,
    send_interval_ns: AtomicU64,
}

/// A lock whose holder panicked is still good for what it guards here: whole values put in place.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AgentState {
    /// The state of an agent that starts now.
    pub fn new(config: &crate::config::Config) -> std::io::Result<Self> {
        let counters = Arc::new(AgentCounters::default());
        let queue_bytes_max = config.mqtt.as_ref().map(|mqtt| mqtt.queue_bytes_max.0);
        Ok(Self {
            name: config.name.clone(),
            prefix: config.prefix.clone(),
            boot_ns: clock::real() as u64,
            started: Instant::now(),
            cache: BatchCache::new(config.cache),
            outbox: Outbox::new(queue_bytes_max, counters.clone())?,
            counters,
            registry: GroupRegistry::default(),
            control: ControlChannel::default(),
            encoder_wake: Arc::default(),
            manager_waker: OnceLock::new(),
            link: Mutex::new(LinkStatus { state: "off", ..LinkStatus::default() }),
            log: Mutex::new(LogSetting::new(config.log_level)),
            sources: Mutex::new(Vec::new()),
            jobs: Mutex::default(),
            marks: Marks::new(config),
            job_table: RecordsSlot::default(),
            send_interval_ns: AtomicU64::new(config.send_interval().ns()),
        })
    }

    /// How long samples are collected into a batch.
    pub fn send_interval(&self) -> Interval {
        Interval::from_ns(self.send_interval_ns.load(Ordering::Relaxed))
    }

    pub fn set_send_interval(&self, interval: Interval) {
        self.send_interval_ns.store(interval.ns(), Ordering::Relaxed);
    }

    /// How it stands with the server.
    pub fn link(&self) -> LinkStatus {
        lock(&self.link).clone()
    }

    /// Changes how it stands with the server.
    pub fn set_link(&self, change: impl FnOnce(&mut LinkStatus)) {
        change(&mut lock(&self.link));
    }

    /// How much is logged.
    pub fn log(&self) -> LogSetting {
        lock(&self.log).clone()
    }

    /// Changes how much is logged.
    pub fn set_log(&self, change: impl FnOnce(&mut LogSetting)) {
        change(&mut lock(&self.log));
    }

    pub fn sources(&self) -> Vec<SourceStatus> {
        lock(&self.sources).clone()
    }

    /// Puts the sources' new states in place.
    pub fn set_sources(&self, sources: Vec<SourceStatus>) {
        *lock(&self.sources) = sources;
    }

    /// Takes a group that no sampler reads: samples are put into it with [`AgentState::push_event`]. Its batches have the interval 0. The
    /// name of its schema's group must be nobody's; else that group is the error.
    pub fn add_event_group(&self, source: &str, schema: Schema) -> Result<Arc<Group>, Arc<Group>> {
        let group = Arc::new(Group::of_events(source, &self.name, schema));
        self.registry.add_new(group.clone()).map(|()| group)
    }

    /// Puts a sample into a group of events: 64 bits for each sensor, and the gaps, 64 a word. One thread at a time: the caller sees to that. `false`
    /// when too many wait for the encoder: the sample is dropped and counted.
    pub fn push_event(&self, group: &Group, time: i64, values: &[u64], gaps: &[u64]) -> bool {
        let fits = group.push_event(time, values, gaps);
        let count = if fits { &self.counters.samples } else { &self.counters.missed };
        count.fetch_add(1, Ordering::Relaxed);
        fits
    }

    /// The end of a group of events: what is in it is still encoded. Nothing may be put into it any more.
    pub fn remove_event_group(&self, group: &Group) {
        group.sealed.store(true, Ordering::Release);
        self.registry.retire(group.id);
    }

    /// Lets the encoder look at once: samples that come on no tick would else be too many before it next does.
    pub fn encode_soon(&self) {
        self.encoder_wake.wake();
    }

    pub fn jobs(&self) -> Arc<JobsView> {
        lock(&self.jobs).clone()
    }

    /// Records of jobs that the server is to have.
    pub fn job_table(&self) -> Option<Arc<dyn PendingRecords>> {
        self.job_table.job_table()
    }

    /// Where the sender finds them from now on.
    pub fn set_job_table(&self, job_table: Option<Arc<dyn PendingRecords>>) {
        self.job_table.set(job_table);
        self.outbox.waker().wake();
    }

    /// Puts a new view of jobs and rules in place.
    pub fn set_jobs(&self, jobs: JobsView) {
        let jobs = Arc::new(jobs);
        *lock(&self.jobs) = jobs.clone();
        // In this order: who looks for a job after this does not find one that has ended.
        self.marks.follow(&jobs, self, clock::now());
    }
}
