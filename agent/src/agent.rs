//! The whole agent in one process: threads started in order, ended in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use wholegrain_transport::spool::{Spool, SpoolConfig};

use crate::api::{ApiServer, Listeners};
use crate::config::Config;
use crate::encoder::EncoderThread;
use crate::engine::Sampler;
use crate::heap;
use crate::jobs;
use crate::manager::{AgentThreads, Manager, ManagerHandle};
use crate::sender::{SenderThread, segment_bytes};
use crate::service::ServiceNotifier;
use crate::state::AgentState;
use crate::waker::Waker;

/// How an agent is asked to end, from any thread or a signal handler.
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

    /// Whether it was asked.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Lets these signals ask.
    pub fn on_signals(&self, signals: &[i32]) -> std::io::Result<()> {
        signals.iter().try_for_each(|signal| self.on_signal(*signal, &self.asked))
    }

    /// Lets this signal ask for the configuration to be read again.
    pub fn reload_on_signal(&self, signal: i32) -> std::io::Result<()> {
        self.on_signal(signal, &self.reload)
    }

    fn on_signal(&self, signal: i32, flag: &Arc<AtomicBool>) -> std::io::Result<()> {
        signal_hook::flag::register(signal, flag.clone())?;
        signal_hook::low_level::pipe::register(signal, self.waker.wake_fd()?)?;
        Ok(())
    }
}

/// Runs an agent until it is asked to end. `ready` is called once everything has started.
pub fn run(
    config: Config,
    shutdown: &Shutdown,
    ready: impl FnOnce(&Arc<AgentState>, &ManagerHandle),
) -> anyhow::Result<()> {
    let state = Arc::new(AgentState::new(&config).context("cannot start")?);
    let sender = start_sender(&config, &state)?;
    let fast = Sampler::start("sampler", state.counters.clone(), true).context("cannot start the sampler thread")?;
    let encoder = EncoderThread::start(state.clone()).context("cannot start the encoder thread")?;
    let listeners = Listeners::of(&config);
    let (mut manager, manager_handle) =
        Manager::new(config, state.clone(), shutdown.waker.clone(), AgentThreads { fast, encoder, sender });
    if let Err(error) = jobs::control::start(state.clone(), manager_handle.clone()) {
        manager.finish();
        return Err(error).context("cannot start the thread for the server's orders");
    }
    let api = match ApiServer::start(&listeners, &state, &manager_handle) {
        Ok(api) => api,
        Err(error) => {
            manager.finish();
            return Err(error);
        }
    };
    heap::trim();
    ready(&state, &manager_handle);
    let mut service = ServiceNotifier::new();
    service.ready();
    let result = loop {
        if shutdown.is_asked() {
            break Ok(());
        }
        if shutdown.reload.swap(false, Ordering::AcqRel) {
            service.reloading();
            manager.reload_asked();
            service.ready();
        }
        service.alive(Instant::now());
        if let Err(error) = manager.round(service.every().unwrap_or(Duration::MAX)) {
            break Err(error);
        }
    };
    service.stopping();
    api.stop();
    state.control.stop();
    manager.finish();
    result
}

fn start_sender(config: &Config, state: &Arc<AgentState>) -> anyhow::Result<Option<SenderThread>> {
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
                tracing::info!("spool: {} messages wait from before, {} bytes", report.records, report.bytes);
            }
            Some((opened, spool.clone()))
        }
        None => None,
    };
    Ok(Some(SenderThread::start(state.clone(), mqtt.clone(), spool).context("cannot start the sender thread")?))
}

/// Raises the number of files that may be open from the soft to the hard limit: every sensor's file stays open, and a machine
/// with many devices has more of them than the usual 1024.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the result; the call has no other effect.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the structure, which outlives the call; the agent uses no select(2), which a larger number would break.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        tracing::warn!("cannot raise the number of open files to {}", limit.rlim_max);
    }
}
