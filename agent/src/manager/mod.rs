//! Decides which groups are sampled: discovers them, and applies changes of the configuration, the machine, the jobs and the API.

mod clock_steps;
mod command;
mod monitoring;
mod plugins;
mod source;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::suggest::nearest;
use wholegrain_model::{Interval, LogLevel, Timestamp};

use self::clock_steps::ClockStepLog;
use self::command::PendingCommand;
pub use self::command::{CommandResult, ManagerCommand, ManagerError, ManagerHandle, PluginAction};
use self::monitoring::JobMonitor;
use self::source::{DiscoveryContext, RunningSource};
use crate::cache::BatchCache;
use crate::config::Config;
use crate::encoder::EncoderThread;
use crate::engine::cpu_placement::CpuPlacer;
use crate::engine::schedule::INTERVAL_NS_MAX;
use crate::engine::{Sampler, clock};
use crate::heap::TrimSchedule;
use crate::jobs::JobsCommand;
use crate::jobs::control::ControlChannel;
use crate::jobs::groups::{self, JobGroupsContext};
use crate::log::LEVEL_TIMES;
use crate::selfstat::{self, SelfSource};
use crate::send_queue::IncomingBatches;
use crate::sender::SenderThread;
use crate::status::AgentStatus;
use crate::waker::Waker;

/// How often jobs and postponed rediscoveries are checked: 1 s.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The same while no job runs and no rediscovery waits: 10 s. The encoder wakes the manager when a sampler needs attention.
const CHECK_IDLE_EVERY: Duration = Duration::from_secs(10);
/// How long a sampler thread may take to end: 1 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What the manager is constructed with.
pub struct ManagerContext {
    pub jobs: JobGroupsContext,
    pub cache: Arc<BatchCache>,
    pub queue: Arc<IncomingBatches>,
    pub control: Arc<ControlChannel>,
    pub status: Arc<AgentStatus>,
    /// Ends the manager's wait.
    pub waker: Arc<Waker>,
}

/// Runs on the thread that started the agent.
pub struct Manager {
    config: Config,
    context: ManagerContext,
    commands: Receiver<PendingCommand>,
    fast: Sampler,
    encoder: Option<EncoderThread>,
    sender: Option<SenderThread>,
    sources: Vec<RunningSource>,
    /// Intervals set through the API until the next reload, by group.
    interval_overrides: HashMap<String, Interval>,
    next_rescan: Instant,
    trim: TrimSchedule,
    placer: CpuPlacer,
    jobs: JobMonitor,
    clock_step_log: ClockStepLog,
}

/// The threads that the manager controls.
pub struct AgentThreads {
    /// Reads all groups that do not block.
    pub fast: Sampler,
    pub encoder: EncoderThread,
    /// `None` without a server.
    pub sender: Option<SenderThread>,
}

impl Manager {
    /// Starts all configured sources.
    pub fn new(config: Config, context: ManagerContext, threads: AgentThreads) -> (Self, ManagerHandle) {
        let (handle, commands) = ManagerHandle::new(context.waker.clone());
        let mut manager = Self {
            next_rescan: Instant::now() + config.rescan.duration(),
            placer: CpuPlacer::new(threads.fast.placement(), config.sampler_cpu),
            jobs: JobMonitor::new(context.jobs.clone(), context.control.clone(), context.waker.clone()),
            config,
            context,
            commands,
            fast: threads.fast,
            encoder: Some(threads.encoder),
            sender: threads.sender,
            sources: Vec::new(),
            interval_overrides: HashMap::new(),
            trim: TrimSchedule::new(Instant::now()),
            clock_step_log: ClockStepLog::default(),
        };
        manager.start_own();
        for source in manager.config.sources.clone() {
            manager.sources.push(RunningSource::configured(&source));
        }
        manager.add_plugins();
        for index in 0..manager.sources.len() {
            manager.start(index);
        }
        manager.jobs.start(&manager.config);
        manager.jobs_round();
        manager.publish_sources();
        (manager, handle)
    }

    fn start_own(&mut self) {
        let source = SelfSource::new(self.config.own, self.context.jobs.counters.clone());
        self.sources.push(RunningSource::built(selfstat::NAME, "the agent itself", Box::new(source)));
    }

    /// Waits at most `timeout` for work and does it. Fails if a thread has died.
    pub fn round(&mut self, timeout: Duration) -> anyhow::Result<()> {
        self.context.waker.wait(timeout.min(self.wait()));
        self.jobs_round();
        while let Ok((command, response)) = self.commands.try_recv() {
            let result = self.execute(&command);
            match &result {
                // The rules log their own commands, rate-limited.
                _ if matches!(command, ManagerCommand::Jobs(_)) => {}
                Ok(done) => tracing::info!("{}", done.done),
                Err(refusal) => tracing::info!("refused: {refusal}"),
            }
            self.publish_sources();
            let _ = response.send(result);
        }
        self.check();
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

    /// The time until the next work is due.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let is_changing =
            self.sources.iter().any(RunningSource::is_changing) || self.context.status.log().until.is_some();
        let check = if is_changing || !self.jobs.is_idle() { CHECK_EVERY } else { CHECK_IDLE_EVERY };
        let timed = [self.next_rescan, self.trim.next()].map(|at| at.saturating_duration_since(now));
        let placer = self.placer.due_in(now).unwrap_or(Duration::MAX);
        timed.into_iter().fold(check.min(self.jobs.due_in()).min(placer), Duration::min)
    }

    /// The shortest interval of the common sampler thread, jobs included.
    fn interval_min(&self) -> Option<u64> {
        let jobs = self.context.jobs.registry.live();
        let jobs = jobs.iter().filter(|group| group.source == groups::SOURCE && !group.blocking);
        let jobs = jobs.map(|group| group.ticking.interval.ns()).filter(|interval| *interval > 0);
        self.sources.iter().filter_map(RunningSource::interval_min).chain(jobs).min()
    }

    /// Handles requests of the samplers, and rediscovers the machine when that is due.
    fn check(&mut self) {
        self.fast.collect();
        if let Some((text, notice)) = self.clock_step_log.check(&self.context.jobs.counters, clock::real()) {
            tracing::warn!("{text}");
            self.context.control.notify(&notice);
        }
        self.placer.move_if_due(Instant::now(), self.interval_min());
        self.context.status.change_log(|log| log.expire(Instant::now()));
        let rescan = Instant::now() >= self.next_rescan;
        if rescan {
            self.next_rescan = Instant::now() + self.config.rescan.duration();
        }
        let mut is_changed = false;
        for index in 0..self.sources.len() {
            let source = &mut self.sources[index];
            source.log_problems();
            let changed = source.take_layout_changed(rescan);
            if source.is_running() && (rescan || changed) {
                self.discover(index, changed);
                is_changed |= changed;
            }
        }
        if rescan || is_changed {
            self.publish_sources();
        }
        self.trim.trim_if_due(Instant::now());
    }

    fn publish_sources(&self) {
        let status = |running: &RunningSource| {
            let mut status = running.status();
            let more = self.jobs.notes(&running.name).iter().filter(|note| !running.has_note(note));
            status.notes.extend(more.cloned());
            status
        };
        self.context.status.set_sources(self.sources.iter().map(status).collect());
        self.context.status.set_plugins(self.sources.iter().filter_map(RunningSource::plugin_status).collect());
    }

    fn execute(&mut self, command: &ManagerCommand) -> Result<CommandResult, ManagerError> {
        match command {
            ManagerCommand::Stop(name) => {
                let index = self.find_source(name)?;
                self.switch_jobs(name, false);
                if !self.sources[index].is_running() {
                    return Ok(CommandResult::new(format!("source {name} was stopped already")));
                }
                self.stop(index);
                Ok(CommandResult::new(format!("stopped source {name}")))
            }
            ManagerCommand::Start(name) => {
                let index = self.find_source(name)?;
                self.switch_jobs(name, true);
                if self.sources[index].is_running() {
                    return Ok(CommandResult::new(format!("source {name} was running already")));
                }
                self.start(index);
                Ok(CommandResult::new(format!("started source {name}")))
            }
            ManagerCommand::Interval(group, interval) => self.change_interval(group, *interval),
            ManagerCommand::Log(level, within) => self.change_log(*level, *within),
            ManagerCommand::Reload => self.reload(),
            ManagerCommand::Plugin(action, name) => self.change_plugin(*action, name),
            ManagerCommand::Jobs(command) => self.execute_jobs(command),
        }
    }

    fn find_source(&self, name: &str) -> Result<usize, ManagerError> {
        self.sources.iter().position(|running| running.name == name).ok_or_else(|| {
            let known = self.sources.iter().map(|running| running.name.as_str());
            ManagerError::Unknown(no_such("source", name, nearest(name, known)))
        })
    }

    fn change_interval(&mut self, name: &str, interval: Interval) -> Result<CommandResult, ManagerError> {
        if interval.ns() < SAMPLING_INTERVAL_NS_MIN {
            return Err(ManagerError::Invalid(format!("{interval} is too short: 1ms is the shortest that is sampled")));
        }
        if interval.ns() > INTERVAL_NS_MAX as u64 {
            return Err(ManagerError::Invalid(format!("{interval} is too long: ten years is the longest")));
        }
        let Some(index) = self.sources.iter().position(|running| running.has_group(name)) else {
            let live = self.context.jobs.registry.live();
            if live.iter().any(|group| group.name() == name && group.source == groups::SOURCE) {
                return Err(ManagerError::Invalid(format!(
                    "group {name} belongs to a job, whose intervals are set by rules; see `wholegrain ctl rules --help`"
                )));
            }
            return Err(ManagerError::Unknown(no_such(
                "group",
                name,
                nearest(name, live.iter().map(|group| group.name())),
            )));
        };
        self.interval_overrides.insert(name.to_owned(), interval);
        let (source, mut context) = self.split(index);
        source.retime(name, interval, &mut context);
        self.wake_encoder();
        Ok(CommandResult::new(format!(
            "group {name} is sampled every {interval} now, until the configuration is loaded again"
        )))
    }

    fn change_log(&mut self, level: LogLevel, within: Option<Interval>) -> Result<CommandResult, ManagerError> {
        if let Some(within) = within.filter(|within| !(LEVEL_TIMES.0..=LEVEL_TIMES.1).contains(within)) {
            return Err(ManagerError::Invalid(format!(
                "the level cannot be set for {within}: use {} to {}",
                LEVEL_TIMES.0, LEVEL_TIMES.1
            )));
        }
        let now = (Instant::now(), Timestamp(clock::real()));
        self.context.status.change_log(|log| log.set(level, within.map(Interval::duration), now));
        let until =
            self.context.status.log().until.map_or("the configuration is loaded again".to_owned(), |until| until);
        Ok(CommandResult::new(format!("the log's level is {} until {until}", format!("{level:?}").to_lowercase())))
    }

    /// Reads the file again after a signal, and logs the result.
    pub fn reload_on_signal(&mut self) {
        match self.reload() {
            Ok(done) if done.needs_restart.is_empty() => tracing::info!("{}", done.done),
            Ok(done) => {
                tracing::warn!("{}; takes effect after a restart: {}", done.done, done.needs_restart.join(", "));
            }
            Err(refusal) => tracing::error!("{refusal}"),
        }
        self.publish_sources();
    }

    /// Reads the file again. Unchanged groups keep their ticks; a file with an error changes nothing.
    fn reload(&mut self) -> Result<CommandResult, ManagerError> {
        let new = Config::load(&self.config.file)
            .map_err(|error| ManagerError::Invalid(format!("{error}; the configuration in force stays")))?;
        let mut done = CommandResult::new(format!("loaded {}", self.config.file.display()));
        done.needs_restart = self.config.needs_restart(&new);
        let old = std::mem::replace(&mut self.config, new);
        self.config.keep(&old);
        self.interval_overrides.clear();
        self.placer.configure(self.config.sampler_cpu);
        self.context.status.change_log(|log| log.configure(self.config.log_level));
        self.context.cache.configure(self.config.cache);
        self.context.jobs.send_interval.set(self.config.send_interval());
        self.context.jobs.marks.configure(self.config.jobs.as_ref().map(|jobs| jobs.marks).unwrap_or_default());
        if let (Some(sender), Some(mqtt)) = (&self.sender, &self.config.mqtt)
            && self.config.mqtt != old.mqtt
        {
            self.context.queue.set_bytes_max(Some(mqtt.queue_bytes_max.0));
            sender.configure(mqtt.clone());
        }
        self.reload_sources(&old);
        let unchanged = self.reload_plugins();
        if unchanged > 0 {
            let noun = if unchanged == 1 { "plug-in runs" } else { "plug-ins run" };
            done.done += &format!(
                "; {unchanged} {noun} on, as the tables are unchanged: other files, such as credentials, are read again by \
                 `wholegrain ctl plugin restart NAME`"
            );
        }
        done.started = self.started_plugins();
        self.jobs.reload(&self.config, &old, &mut self.fast);
        self.jobs_round();
        self.wake_encoder();
        Ok(done)
    }

    fn reload_sources(&mut self, old: &Config) {
        let configured = self.config.sources.clone();
        for index in (0..self.sources.len()).rev() {
            let name = &self.sources[index].name;
            if self.sources[index].is_in_sources() && !configured.iter().any(|source| source.name == name) {
                self.stop(index);
                self.sources.remove(index);
            }
        }
        for source in &configured {
            let before = old.sources.iter().find(|other| other.name == source.name);
            match self.sources.iter().position(|running| running.name == source.name) {
                Some(index) if before.is_some_and(|before| before.table == source.table) => self.discover(index, false),
                Some(index) => {
                    self.sources[index].reconfigured(source);
                    if self.sources[index].is_running() {
                        self.sources[index].build(&self.config.roots);
                        self.discover(index, true);
                    }
                }
                None => {
                    self.sources.push(RunningSource::configured(source));
                    self.start(self.sources.len() - 1);
                }
            }
        }
        if let Some(index) = self.sources.iter().position(|running| running.name == selfstat::NAME) {
            if old.own != self.config.own {
                let source = SelfSource::new(self.config.own, self.context.jobs.counters.clone());
                self.sources[index].put_source(Box::new(source));
            }
            self.discover(index, old.own != self.config.own);
        }
    }

    fn start(&mut self, index: usize) {
        if !self.sources[index].prepare(&self.config.roots) {
            return;
        }
        self.discover(index, true);
    }

    fn stop(&mut self, index: usize) {
        let (source, mut context) = self.split(index);
        source.stop(&mut context);
        self.wake_encoder();
    }

    /// Discovers the groups of a source again; `reopen` exchanges the readers of unchanged groups too.
    fn discover(&mut self, index: usize, reopen: bool) {
        if !self.sources[index].is_running() {
            return;
        }
        let (source, mut context) = self.split(index);
        if source.discover(&mut context, reopen) {
            self.wake_encoder();
        }
    }

    /// A source, and what it needs of the manager to change its groups.
    fn split(&mut self, index: usize) -> (&mut RunningSource, DiscoveryContext<'_>) {
        let context = DiscoveryContext {
            identity: &self.context.jobs.identity,
            registry: &self.context.jobs.registry,
            counters: &self.context.jobs.counters,
            fast: &mut self.fast,
            interval_overrides: &self.interval_overrides,
            interval: self.config.interval,
            send_interval: self.config.send_interval(),
        };
        (&mut self.sources[index], context)
    }

    /// Handles the events of jobs since the last round.
    fn jobs_round(&mut self) {
        let changed = self.jobs.round(&mut self.fast);
        self.trim.count_freed(self.jobs.take_freed(), Instant::now());
        if changed {
            self.wake_encoder();
        }
    }

    fn switch_jobs(&mut self, name: &str, on: bool) {
        self.jobs.switch(name, on, &self.config, &mut self.fast);
        self.jobs_round();
    }

    fn execute_jobs(&mut self, command: &JobsCommand) -> Result<CommandResult, ManagerError> {
        let done = self.jobs.execute(command, &mut self.fast)?;
        self.wake_encoder();
        Ok(CommandResult { done: done.done.clone(), jobs: Some(done), ..CommandResult::default() })
    }

    fn wake_encoder(&self) {
        if let Some(encoder) = &self.encoder {
            encoder.wake();
        }
    }

    /// Ends the agent: stops the samplers, encodes the last samples, and sends or spools them.
    pub fn finish(mut self) {
        for source in &mut self.sources {
            source.stop_blocking(STOP_TIMEOUT);
            source.end_plugin();
        }
        self.jobs.finish(STOP_TIMEOUT);
        if !self.fast.join(STOP_TIMEOUT) {
            tracing::warn!("the sampler did not end within {STOP_TIMEOUT:?}: a read hangs; its thread is abandoned");
        }
        if let Some(encoder) = self.encoder.take() {
            encoder.finish();
        }
        if let Some(sender) = self.sender.take() {
            sender.finish();
        }
    }
}

/// The error for an unknown source or group.
fn no_such(what: &str, name: &str, near: Option<&str>) -> String {
    match near {
        Some(near) => format!("there is no {what} {name:?}; did you mean {near:?}?"),
        None if what == "plugin" => format!("there is no plugin {name:?}; `wholegrain ctl plugin list` lists them"),
        None => format!("there is no {what} {name:?}; `wholegrain ctl {what}s` lists them"),
    }
}
