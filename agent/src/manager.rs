//! Decides what is sampled: discovers groups, gives them to the samplers, and applies changes of the configuration, the machine and the API.

mod clock_steps;
mod jobs;
pub mod rediscovery;
mod running_source;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::suggest::nearest;
use wholegrain_model::{Interval, LogLevel, Timestamp};

use self::running_source::RunningSource;
use crate::config::Config;
use crate::encoder::EncoderThread;
use crate::engine::cpu_placement::CpuPlacer;
use crate::engine::{Sampler, clock};
use crate::heap;
use crate::jobs::rules::JobsRefusal;
use crate::jobs::{JobsCommand, JobsOutcome};
use crate::log::FOR;
use crate::selfstat::{self, SelfSource};
use crate::sender::SenderThread;
use crate::state::AgentState;
use crate::waker::Waker;

/// How often jobs and postponed rediscoveries are checked: 1 s.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while no job runs and nothing is put off: 10 s. The encoder wakes the manager when a sampler needs attention.
const LOOK_SELDOM: Duration = Duration::from_secs(10);
/// The heap is trimmed 10 s after the start and after the end of many jobs, and at least
/// every 10 min.
const TRIM_AFTER: Duration = Duration::from_secs(10);
const TRIM_EVERY: Duration = Duration::from_secs(600);
/// It is trimmed again so long after the end of many jobs: records wait 60 s for epilogs, and keep pages of the heap in use.
const TRIM_AGAIN: Duration = Duration::from_secs(75);
/// This many sensors of ended jobs, about 1 MB, make a trim due.
const TRIM_SENSORS: usize = 1000;
/// How long a caller of the API waits for the manager: 10 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a sampler thread may take to end: 1 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The error for commands about jobs if jobs are not tracked.
const NO_JOBS: &str = "this agent monitors no jobs: its configuration has no [jobs]";

/// A command of the API or of a signal to the manager.
#[derive(Debug, Clone)]
pub enum ManagerCommand {
    Stop(String),
    /// Start a source that was stopped.
    Start(String),
    /// Give a group another interval, until the next reload.
    Interval(String, Interval),
    /// Log so much: until a reload, or for so long.
    Log(LogLevel, Option<Interval>),
    /// Read the configuration again.
    Reload,
    /// Change how often metrics of jobs are read.
    Jobs(JobsCommand),
}

/// Why a command was not executed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ManagerError {
    /// There is no such thing.
    #[error("{0}")]
    Unknown(String),
    #[error("{0}")]
    Invalid(String),
    /// Whoever asks may not.
    #[error("{0}")]
    Forbidden(String),
    /// The disk or the agent itself is in the way.
    #[error("{0}")]
    Failed(String),
    /// The manager is busy with something that takes long.
    #[error("the agent is busy; try again in a moment")]
    Busy,
}

impl From<JobsRefusal> for ManagerError {
    fn from(refusal: JobsRefusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            JobsRefusal::Forbidden(_) => Self::Forbidden(text),
            JobsRefusal::Unknown(_) => Self::Unknown(text),
            JobsRefusal::Invalid(_) | JobsRefusal::Limit { .. } => Self::Invalid(text),
            JobsRefusal::Failed(_) => Self::Failed(text),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CommandResult {
    pub done: String,
    /// Settings that changed in the file and take effect only after a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs_restart: Vec<&'static str>,
    /// What came of [`ManagerCommand::Jobs`].
    #[serde(skip)]
    pub jobs: Option<JobsOutcome>,
}

impl CommandResult {
    fn new(done: impl Into<String>) -> Self {
        Self { done: done.into(), ..Self::default() }
    }
}

type PendingCommand = (ManagerCommand, SyncSender<Result<CommandResult, ManagerError>>);

/// Sends commands to the manager from other threads.
#[derive(Debug, Clone)]
pub struct ManagerHandle {
    questions: Sender<PendingCommand>,
    waker: Arc<Waker>,
}

impl ManagerHandle {
    /// Sends a command and waits for the result.
    pub fn execute(&self, command: ManagerCommand) -> Result<CommandResult, ManagerError> {
        let (sender, receiver) = sync_channel(1);
        self.questions.send((command, sender)).map_err(|_| ManagerError::Busy)?;
        self.waker.wake();
        receiver.recv_timeout(ANSWER_TIMEOUT).map_err(|_| ManagerError::Busy)?
    }

    /// Sends a command about rules of jobs and waits for the result.
    pub fn execute_jobs(&self, command: JobsCommand) -> Result<JobsOutcome, ManagerError> {
        self.execute(ManagerCommand::Jobs(command)).map(|done| done.jobs.unwrap_or_default())
    }
}

/// The manager. Lives on the thread that runs the agent.
pub struct Manager {
    config: Config,
    state: Arc<AgentState>,
    waker: Arc<Waker>,
    questions: Receiver<PendingCommand>,
    fast: Sampler,
    encoder: Option<EncoderThread>,
    sender: Option<SenderThread>,
    running: Vec<RunningSource>,
    /// Intervals set through the API until the next reload, by group.
    interval_overrides: HashMap<String, Interval>,
    next_rescan: Instant,
    next_trim: Instant,
    /// The next time after that, where it is sooner than usual.
    trim_again: Option<Instant>,
    /// Sensors of jobs that have ended since the heap was last trimmed for this reason.
    freed_sensors: usize,
    placer: CpuPlacer,
    monitoring: Option<jobs::JobMonitoring>,
    clock_step_log: clock_steps::ClockStepLog,
}

/// The threads that the manager directs.
pub struct AgentThreads {
    /// Reads all groups that do not block.
    pub fast: Sampler,
    pub encoder: EncoderThread,
    /// Sends, if there is where to.
    pub sender: Option<SenderThread>,
}

impl Manager {
    /// Starts every configured source.
    pub fn new(
        config: Config,
        state: Arc<AgentState>,
        waker: Arc<Waker>,
        threads: AgentThreads,
    ) -> (Self, ManagerHandle) {
        let (questions, receiver) = channel();
        let manager_handle = ManagerHandle { questions, waker: waker.clone() };
        let next_rescan = Instant::now() + config.rescan.duration();
        let _ = state.manager_waker.set(waker.clone());
        let placer = CpuPlacer::new(threads.fast.placement(), config.sampler_cpu);
        let mut manager = Self {
            config,
            state,
            waker,
            questions: receiver,
            fast: threads.fast,
            encoder: Some(threads.encoder),
            sender: threads.sender,
            running: Vec::new(),
            interval_overrides: HashMap::new(),
            next_rescan,
            next_trim: Instant::now() + TRIM_AFTER,
            trim_again: None,
            freed_sensors: 0,
            placer,
            monitoring: None,
            clock_step_log: clock_steps::ClockStepLog::default(),
        };
        manager.start_own();
        for source in manager.config.sources.clone() {
            manager.running.push(RunningSource::configured(&source));
        }
        for index in 0..manager.running.len() {
            manager.start(index);
        }
        manager.start_jobs();
        manager.jobs_round();
        manager.publish_sources();
        (manager, manager_handle)
    }

    fn start_own(&mut self) {
        let source = SelfSource::new(self.config.own, self.state.counters.clone());
        self.running.push(RunningSource::of(selfstat::NAME, "the agent itself", Box::new(source)));
    }

    /// One round: waits at most `timeout` for work and does it. Fails if a thread has died.
    pub fn round(&mut self, timeout: Duration) -> anyhow::Result<()> {
        self.waker.wait(timeout.min(self.wait()));
        self.jobs_round();
        while let Ok((command, answer)) = self.questions.try_recv() {
            let result = self.execute(&command);
            match &result {
                // The rules log their own commands, rate-limited.
                _ if matches!(command, ManagerCommand::Jobs(_)) => {}
                Ok(done) => tracing::info!("{}", done.done),
                Err(refusal) => tracing::info!("refused: {refusal}"),
            }
            self.publish_sources();
            let _ = answer.send(result);
        }
        self.look();
        let died =
            |name| Err(anyhow::anyhow!("the {name} thread has died; see the message above, and please report it"));
        if self.fast.has_ended() {
            return died("sampler");
        }
        if self.encoder.as_ref().is_some_and(EncoderThread::has_ended) {
            return died("encoder");
        }
        if self.sender.as_ref().is_some_and(SenderThread::has_ended) {
            return died("sender");
        }
        Ok(())
    }

    /// How long there is nothing to do, unless the waker is used.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let is_changing = self.running.iter().any(RunningSource::is_changing) || self.state.log().until.is_some();
        let look = if is_changing || !self.jobs_idle() { LOOK_EVERY } else { LOOK_SELDOM };
        let timed = [self.next_rescan, self.next_trim].map(|at| at.saturating_duration_since(now));
        let placer = self.placer.due_in(now).unwrap_or(Duration::MAX);
        timed.into_iter().fold(look.min(self.jobs_wake()).min(placer), Duration::min)
    }

    /// The shortest interval at which the common sampler thread reads, of jobs too.
    fn interval_min(&self) -> Option<u64> {
        let jobs = self.state.registry.live();
        let jobs = jobs.iter().filter(|group| group.source == crate::jobs::groups::SOURCE && !group.blocking);
        let jobs = jobs.map(|group| group.ticking.interval.ns()).filter(|interval| *interval > 0);
        self.running.iter().filter_map(RunningSource::interval_min).chain(jobs).min()
    }

    /// Handles requests of the samplers, and discovers changes of the machine.
    fn look(&mut self) {
        self.fast.collect();
        if let Some((said, notice)) = self.clock_step_log.look(&self.state.counters, crate::engine::clock::real()) {
            tracing::warn!("{said}");
            self.state.control.tell(&notice);
            self.state.outbox.waker().wake();
        }
        self.placer.look(Instant::now(), self.interval_min());
        self.state.set_log(|log| log.look(Instant::now()));
        let rescan = Instant::now() >= self.next_rescan;
        if rescan {
            self.next_rescan = Instant::now() + self.config.rescan.duration();
        }
        for index in 0..self.running.len() {
            let running = &mut self.running[index];
            running.tell_problems();
            let changed = running.take_layout_changed(rescan);
            if running.is_running() && (rescan || changed) {
                self.discover(index, changed);
            }
        }
        if rescan {
            self.publish_sources();
        }
        if Instant::now() >= self.next_trim {
            let again = self.trim_again.take();
            self.next_trim = again.unwrap_or_else(|| Instant::now() + TRIM_EVERY);
            heap::trim();
        }
    }

    fn publish_sources(&self) {
        let status = |running: &RunningSource| {
            let mut status = running.status();
            let more = self.jobs_notes(&running.name).iter().filter(|note| !running.has_said(note));
            status.notes.extend(more.cloned());
            status
        };
        self.state.set_sources(self.running.iter().map(status).collect());
    }

    fn execute(&mut self, command: &ManagerCommand) -> Result<CommandResult, ManagerError> {
        match command {
            ManagerCommand::Stop(name) => {
                let index = self.find_source(name)?;
                self.switch_jobs(name, false);
                if !self.running[index].is_running() {
                    return Ok(CommandResult::new(format!("source {name} was stopped already")));
                }
                self.stop(index);
                Ok(CommandResult::new(format!("stopped source {name}")))
            }
            ManagerCommand::Start(name) => {
                let index = self.find_source(name)?;
                self.switch_jobs(name, true);
                if self.running[index].is_running() {
                    return Ok(CommandResult::new(format!("source {name} was running already")));
                }
                self.start(index);
                Ok(CommandResult::new(format!("started source {name}")))
            }
            ManagerCommand::Interval(group, interval) => self.change_interval(group, *interval),
            ManagerCommand::Log(level, within) => self.change_log(*level, *within),
            ManagerCommand::Reload => self.reload(),
            ManagerCommand::Jobs(command) => self.execute_jobs(command),
        }
    }

    fn find_source(&self, name: &str) -> Result<usize, ManagerError> {
        self.running.iter().position(|running| running.name == name).ok_or_else(|| {
            let known = self.running.iter().map(|running| running.name.as_str());
            ManagerError::Unknown(no_such("source", name, nearest(name, known)))
        })
    }

    fn change_interval(&mut self, name: &str, interval: Interval) -> Result<CommandResult, ManagerError> {
        if interval.ns() < SAMPLING_INTERVAL_NS_MIN {
            return Err(ManagerError::Invalid(format!("{interval} is too short: 1ms is the shortest that is sampled")));
        }
        if interval.ns() > crate::engine::schedule::INTERVAL_NS_MAX as u64 {
            return Err(ManagerError::Invalid(format!("{interval} is too long: ten years is the longest")));
        }
        let Some(index) = self.running.iter().position(|running| running.has_group(name)) else {
            let live = self.state.registry.live();
            if live.iter().any(|group| group.name() == name && group.source == crate::jobs::groups::SOURCE) {
                return Err(ManagerError::Invalid(format!(
                    "group {name} is a job's: how often its metrics are read is said by rules; `wholegrain ctl rules --help` tells how to add one"
                )));
            }
            return Err(ManagerError::Unknown(no_such(
                "group",
                name,
                nearest(name, live.iter().map(|group| group.name())),
            )));
        };
        self.interval_overrides.insert(name.to_owned(), interval);
        let (mut running, context) = self.split(index);
        running.retime(name, interval, context);
        self.wake_encoder();
        Ok(CommandResult::new(format!(
            "group {name} is sampled every {interval} now, until the configuration is loaded again"
        )))
    }

    fn change_log(&mut self, level: LogLevel, within: Option<Interval>) -> Result<CommandResult, ManagerError> {
        if let Some(within) = within.filter(|within| !(FOR.0..=FOR.1).contains(within)) {
            return Err(ManagerError::Invalid(format!(
                "the level cannot be set for {within}: use {} to {}",
                FOR.0, FOR.1
            )));
        }
        let now = (Instant::now(), Timestamp(clock::real()));
        self.state.set_log(|log| log.set(level, within.map(Interval::duration), now));
        let until = self.state.log().until.map_or("the configuration is loaded again".to_owned(), |until| until);
        Ok(CommandResult::new(format!("the log's level is {} until {until}", format!("{level:?}").to_lowercase())))
    }

    /// Reads the file again because a signal asked for it; the log says what came of it.
    pub fn reload_asked(&mut self) {
        match self.reload() {
            Ok(done) if done.needs_restart.is_empty() => tracing::info!("{}", done.done),
            Ok(done) => {
                tracing::warn!(
                    "{}; not in force until the agent is restarted: {}",
                    done.done,
                    done.needs_restart.join(", ")
                );
            }
            Err(refusal) => tracing::error!("{refusal}"),
        }
        self.publish_sources();
    }

    /// Reads the file again. Groups that it does not change keep ticking; a file with an error changes nothing.
    fn reload(&mut self) -> Result<CommandResult, ManagerError> {
        let new = Config::load(&self.config.file)
            .map_err(|error| ManagerError::Invalid(format!("{error}; the configuration in force stays")))?;
        let mut done = CommandResult::new(format!("loaded {}", self.config.file.display()));
        done.needs_restart = self.config.needs_restart(&new);
        let old = std::mem::replace(&mut self.config, new);
        self.config.keep(&old);
        self.interval_overrides.clear();
        self.placer.configure(self.config.sampler_cpu);
        self.state.set_log(|log| log.configure(self.config.log_level));
        self.state.cache.configure(self.config.cache);
        self.state.set_send_interval(self.config.send_interval());
        self.state.marks.configure(self.config.jobs.as_ref().map(|jobs| jobs.marks).unwrap_or_default());
        if let (Some(sender), Some(mqtt)) = (&self.sender, &self.config.mqtt)
            && self.config.mqtt != old.mqtt
        {
            self.state.outbox.set_bytes_max(Some(mqtt.queue_bytes_max.0));
            sender.configure(mqtt.clone());
        }
        self.reload_sources(&old);
        self.reload_jobs(&old);
        Ok(done)
    }

    fn reload_sources(&mut self, old: &Config) {
        let wanted = self.config.sources.clone();
        for index in (0..self.running.len()).rev() {
            let name = &self.running[index].name;
            if name != selfstat::NAME && !wanted.iter().any(|source| source.name == name) {
                self.stop(index);
                self.running.remove(index);
            }
        }
        for source in &wanted {
            let before = old.sources.iter().find(|other| other.name == source.name);
            match self.running.iter().position(|running| running.name == source.name) {
                Some(index) if before.is_some_and(|before| before.table == source.table) => self.discover(index, false),
                Some(index) => {
                    self.running[index].reconfigured(source);
                    if self.running[index].is_running() {
                        self.running[index].build(&self.config.roots);
                        self.discover(index, true);
                    }
                }
                None => {
                    self.running.push(RunningSource::configured(source));
                    self.start(self.running.len() - 1);
                }
            }
        }
        if let Some(index) = self.running.iter().position(|running| running.name == selfstat::NAME) {
            if old.own != self.config.own {
                let source = SelfSource::new(self.config.own, self.state.counters.clone());
                self.running[index].put_source(Box::new(source));
            }
            self.discover(index, old.own != self.config.own);
        }
    }

    fn start(&mut self, index: usize) {
        if !self.running[index].prepare(&self.config.roots) {
            return;
        }
        self.discover(index, true);
    }

    fn stop(&mut self, index: usize) {
        let (mut running, context) = self.split(index);
        running.stop(context);
        self.wake_encoder();
    }

    fn discover(&mut self, index: usize, afresh: bool) {
        if !self.running[index].is_running() {
            return;
        }
        let (mut running, context) = self.split(index);
        if running.discover(context, afresh) {
            self.wake_encoder();
        }
    }

    /// A source, and what it needs of the manager to change its groups.
    fn split(&mut self, index: usize) -> (running_source::SourceChange<'_>, running_source::SourceContext<'_>) {
        let context = running_source::SourceContext {
            state: &self.state,
            fast: &mut self.fast,
            interval_overrides: &self.interval_overrides,
            interval: self.config.interval,
            send_interval: self.config.send_interval(),
        };
        (running_source::SourceChange(&mut self.running[index]), context)
    }

    fn wake_encoder(&self) {
        if let Some(encoder) = &self.encoder {
            encoder.wake();
        }
    }

    /// Ends the agent: takes the last samples, encodes them, and sends or spools them.
    pub fn finish(mut self) {
        for running in &mut self.running {
            running.stop_own_thread(STOP_TIMEOUT);
        }
        self.finish_jobs();
        if !self.fast.join(STOP_TIMEOUT) {
            tracing::warn!("the sampler did not end within {STOP_TIMEOUT:?}: a read hangs; it is left behind");
        }
        if let Some(encoder) = self.encoder.take() {
            encoder.finish();
        }
        if let Some(sender) = self.sender.take() {
            sender.finish();
        }
    }
}

fn no_such(what: &str, name: &str, near: Option<&str>) -> String {
    match near {
        Some(near) => format!("there is no {what} {name:?}; did you mean {near:?}?"),
        None => format!("there is no {what} {name:?}; `wholegrain ctl {what}s` lists them"),
    }
}
