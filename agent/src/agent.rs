//! Wires the parts of the agent, starts its threads and ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use wholegrain_transport::spool::{Spool, SpoolConfig};

use crate::api::{ApiContext, ApiServer, Listeners};
use crate::batch::SendInterval;
use crate::cache::BatchCache;
use crate::config::Config;
use crate::counters::AgentCounters;
use crate::encoder::{EncoderContext, EncoderThread};
use crate::engine::Sampler;
use crate::engine::clock::{self, Wake};
use crate::heap;
use crate::identity::AgentIdentity;
use crate::jobs::SharedJobsView;
use crate::jobs::control::{self, ControlChannel};
use crate::jobs::groups::JobGroupsContext;
use crate::jobs::marks::Marks;
use crate::jobs::pending_records::RecordsSlot;
use crate::log::LogSetting;
use crate::manager::{AgentThreads, Manager, ManagerContext, ManagerHandle};
use crate::readings::RecentReadings;
use crate::registry::GroupRegistry;
use crate::send_queue::spool::segment_bytes;
use crate::send_queue::{IncomingBatches, SendQueueContext};
use crate::sender::{SenderContext, SenderThread};
use crate::service::ServiceNotifier;
use crate::status::AgentStatus;
use crate::waker::Waker;

/// What the parts of one agent share. Each part is constructed with those handles that it needs.
#[derive(Debug, Clone)]
pub struct AgentHandles {
    pub identity: Arc<AgentIdentity>,
    pub counters: Arc<AgentCounters>,
    pub registry: Arc<GroupRegistry>,
    pub cache: Arc<BatchCache>,
    pub readings: RecentReadings,
    pub queue: Arc<IncomingBatches>,
    pub control: Arc<ControlChannel>,
    pub jobs: Arc<SharedJobsView>,
    pub marks: Arc<Marks>,
    pub records: Arc<RecordsSlot>,
    pub status: Arc<AgentStatus>,
    pub send_interval: Arc<SendInterval>,
    encoder_wake: Arc<Wake>,
    sender_waker: Arc<Waker>,
    manager_waker: Arc<Waker>,
}

impl AgentHandles {
    /// The handles of an agent that starts now.
    pub fn new(config: &Config) -> std::io::Result<Self> {
        let identity = Arc::new(AgentIdentity {
            name: config.name.clone(),
            prefix: config.prefix.clone(),
            boot_ns: clock::real() as u64,
            started: Instant::now(),
        });
        let (counters, registry): (Arc<AgentCounters>, Arc<GroupRegistry>) = Default::default();
        let (jobs, encoder_wake): (Arc<SharedJobsView>, Arc<Wake>) = Default::default();
        let (sender_waker, manager_waker) = (Arc::new(Waker::new()?), Arc::new(Waker::new()?));
        let cache = Arc::new(BatchCache::new(config.cache));
        let queue_bytes_max = config.mqtt.as_ref().map(|mqtt| mqtt.queue_bytes_max.0);
        let marks = Marks::new(
            config.jobs.as_ref().map(|jobs| jobs.marks).unwrap_or_default(),
            config.roots.clone(),
            identity.clone(),
            registry.clone(),
            counters.clone(),
            encoder_wake.clone(),
            jobs.clone(),
        );
        Ok(Self {
            readings: RecentReadings::new(registry.clone(), cache.clone()),
            queue: Arc::new(IncomingBatches::new(queue_bytes_max, counters.clone(), sender_waker.clone())),
            control: Arc::new(ControlChannel::new(sender_waker.clone())),
            records: Arc::new(RecordsSlot::new(sender_waker.clone())),
            status: Arc::new(AgentStatus::new(LogSetting::new(config.log_level))),
            send_interval: Arc::new(SendInterval::new(config.send_interval())),
            marks: Arc::new(marks),
            identity,
            counters,
            registry,
            cache,
            jobs,
            encoder_wake,
            sender_waker,
            manager_waker,
        })
    }

    pub fn encoder(&self) -> EncoderContext {
        EncoderContext {
            identity: self.identity.clone(),
            registry: self.registry.clone(),
            counters: self.counters.clone(),
            cache: self.cache.clone(),
            queue: self.queue.clone(),
            send_interval: self.send_interval.clone(),
            wake: self.encoder_wake.clone(),
            manager_waker: self.manager_waker.clone(),
        }
    }

    pub fn sender(&self) -> SenderContext {
        SenderContext {
            identity: self.identity.clone(),
            counters: self.counters.clone(),
            status: self.status.clone(),
            control: self.control.clone(),
            records: self.records.clone(),
            waker: self.sender_waker.clone(),
        }
    }

    pub fn send_queue(&self) -> SendQueueContext {
        SendQueueContext {
            agent: self.identity.name.clone(),
            incoming: self.queue.clone(),
            registry: self.registry.clone(),
            counters: self.counters.clone(),
        }
    }

    pub fn job_groups(&self) -> JobGroupsContext {
        JobGroupsContext {
            identity: self.identity.clone(),
            registry: self.registry.clone(),
            counters: self.counters.clone(),
            readings: self.readings.clone(),
            send_interval: self.send_interval.clone(),
            records: self.records.clone(),
            view: self.jobs.clone(),
            marks: self.marks.clone(),
        }
    }

    pub fn api(&self) -> ApiContext {
        ApiContext {
            identity: self.identity.clone(),
            counters: self.counters.clone(),
            registry: self.registry.clone(),
            cache: self.cache.clone(),
            readings: self.readings.clone(),
            jobs: self.jobs.clone(),
            marks: self.marks.clone(),
            status: self.status.clone(),
            send_interval: self.send_interval.clone(),
        }
    }

    fn manager(&self) -> ManagerContext {
        ManagerContext {
            jobs: self.job_groups(),
            cache: self.cache.clone(),
            queue: self.queue.clone(),
            control: self.control.clone(),
            status: self.status.clone(),
            waker: self.manager_waker.clone(),
        }
    }
}

/// Asks an agent to end or to reload, from any thread or a signal handler.
#[derive(Debug)]
pub struct Shutdown {
    asked: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Shutdown {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { asked: Arc::default(), reload: Arc::default(), waker: Arc::new(Waker::new()?) })
    }

    pub fn request(&self) {
        self.asked.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the end was requested.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Requests the end on these signals.
    pub fn on_signals(&self, signals: &[i32]) -> std::io::Result<()> {
        signals.iter().try_for_each(|signal| self.on_signal(*signal, &self.asked))
    }

    /// Requests a reload of the configuration on this signal.
    pub fn reload_on_signal(&self, signal: i32) -> std::io::Result<()> {
        self.on_signal(signal, &self.reload)
    }

    fn on_signal(&self, signal: i32, flag: &Arc<AtomicBool>) -> std::io::Result<()> {
        signal_hook::flag::register(signal, flag.clone())?;
        signal_hook::low_level::pipe::register(signal, self.waker.wake_fd()?)?;
        Ok(())
    }
}

/// Runs an agent until its end is requested. `ready` is called once everything has started.
pub fn run(
    config: Config,
    shutdown: &Shutdown,
    ready: impl FnOnce(&AgentHandles, &ManagerHandle),
) -> anyhow::Result<()> {
    let mut handles = AgentHandles::new(&config).context("cannot start")?;
    handles.manager_waker = shutdown.waker.clone();
    let sender = start_sender(&config, &handles)?;
    let fast = Sampler::start("sampler", handles.counters.clone(), true).context("cannot start the sampler thread")?;
    let encoder = EncoderThread::start(handles.encoder()).context("cannot start the encoder thread")?;
    let listeners = Listeners::of(&config);
    let threads = AgentThreads { fast, encoder, sender };
    let (mut manager, manager_handle) = Manager::new(config, handles.manager(), threads);
    if let Err(error) = start_control(&handles, manager_handle.clone()) {
        manager.finish();
        return Err(error).context("cannot start the thread for the server's commands");
    }
    let api = match ApiServer::start(&listeners, handles.api(), &manager_handle) {
        Ok(api) => api,
        Err(error) => {
            manager.finish();
            return Err(error);
        }
    };
    heap::trim();
    ready(&handles, &manager_handle);
    let mut service = ServiceNotifier::new();
    service.ready();
    let result = loop {
        if shutdown.is_asked() {
            break Ok(());
        }
        if shutdown.reload.swap(false, Ordering::AcqRel) {
            service.reloading();
            manager.reload_on_signal();
            service.ready();
        }
        service.alive(Instant::now());
        if let Err(error) = manager.round(service.every().unwrap_or(Duration::MAX)) {
            break Err(error);
        }
    };
    service.stopping();
    api.stop();
    handles.control.stop();
    manager.finish();
    result
}

fn start_control(handles: &AgentHandles, manager: ManagerHandle) -> std::io::Result<()> {
    let run = move |command| manager.execute_jobs(command).map_err(|error| error.to_string());
    control::start(handles.control.clone(), handles.identity.name.clone(), handles.jobs.clone(), run)
}

fn start_sender(config: &Config, handles: &AgentHandles) -> anyhow::Result<Option<SenderThread>> {
    let Some(mqtt) = &config.mqtt else { return Ok(None) };
    let spool = match &config.spool {
        Some(spool) => {
            let segment_bytes = segment_bytes(spool.bytes_max.0);
            let opened = Spool::open(SpoolConfig {
                dir: spool.dir.clone(),
                bytes_max: spool.bytes_max.0,
                segment_bytes,
                sync: true,
            });
            let (opened, report) = opened.context("[spool]")?;
            report.problems.iter().for_each(|problem| tracing::warn!("spool: {problem}"));
            if report.records > 0 {
                tracing::info!("spool: {} messages of earlier runs wait, {} bytes", report.records, report.bytes);
            }
            Some((opened, spool.clone()))
        }
        None => None,
    };
    let sender = SenderThread::start(handles.sender(), handles.send_queue(), mqtt.clone(), spool);
    Ok(Some(sender.context("cannot start the sender thread")?))
}

/// Raises the limit of open files from the soft to the hard limit: the files of all sensors stay open, and a machine with many devices has more
/// than the usual 1024.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid buffer for the result; the call has no other effect.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the structure, which outlives the call. The agent uses no select(2), for which a larger limit would be wrong.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        tracing::warn!("cannot raise the number of open files to {}", limit.rlim_max);
    }
}
