//! Job monitoring as the manager runs it: the tracker and the groups of the jobs that it finds, started and stopped with `[jobs]`.

use std::sync::Arc;
use std::time::Duration;

use super::command::ManagerError;
use crate::config::{Config, SourceConfig};
use crate::engine::{Sampler, clock};
use crate::jobs::control::ControlChannel;
use crate::jobs::groups::{JobGroups, JobGroupsContext, JobSourceHandle};
use crate::jobs::rules::Rules;
use crate::jobs::tracker::{NodeFacts, Tracker};
use crate::jobs::{JobsCommand, JobsConfig, JobsOutcome};
use crate::waker::Waker;

/// How long a thread may take to end: 1 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// The error for commands about jobs without `[jobs]`.
const NO_JOBS: &str = "this agent monitors no jobs: its configuration has no [jobs]";

struct Monitoring {
    tracker: Tracker,
    groups: JobGroups,
}

pub(super) struct JobMonitor {
    context: JobGroupsContext,
    control: Arc<ControlChannel>,
    manager_waker: Arc<Waker>,
    /// `None` while jobs are not monitored.
    running: Option<Monitoring>,
}

impl JobMonitor {
    pub fn new(context: JobGroupsContext, control: Arc<ControlChannel>, manager_waker: Arc<Waker>) -> Self {
        Self { context, control, manager_waker, running: None }
    }

    /// Starts monitoring if it is configured. A failure is logged, and the rest of the agent goes on.
    pub fn start(&mut self, config: &Config) {
        self.control.accept(config.jobs.as_ref().is_none_or(|jobs| jobs.server_commands));
        let Some(jobs) = &config.jobs else { return };
        match self.open(config, jobs) {
            Ok(monitoring) => self.running = Some(monitoring),
            Err(error) => tracing::error!("jobs are not monitored: {error:#}; the rest of the agent goes on"),
        }
    }

    fn open(&self, config: &Config, jobs: &JobsConfig) -> anyhow::Result<Monitoring> {
        let dir = jobs.dir.as_deref();
        let (rules, problems) = Rules::open(&jobs.rules, dir, clock::real());
        problems.iter().for_each(|problem| tracing::warn!("jobs: {problem}"));
        let node = NodeFacts { name: config.name.clone(), prefix: config.prefix.to_string() };
        let (waker, counters) = (self.manager_waker.clone(), self.context.counters.clone());
        let (tracker, events, job_table) = Tracker::start(&jobs.tracker, dir, &config.roots, node, waker, counters)?;
        self.context.records.set(Some(job_table));
        let source =
            |source: &SourceConfig| Some(JobSourceHandle::started(source.name, source.build_jobs(&config.roots)?));
        let sources = config.sources.iter().filter_map(source).collect();
        let mut groups = JobGroups::new(self.context.clone(), events, rules, sources);
        groups.bound(jobs.bounds);
        Ok(Monitoring { tracker, groups })
    }

    /// Handles the tracker's events. Whether groups have changed.
    pub fn round(&mut self, fast: &mut Sampler) -> bool {
        self.running.as_mut().is_some_and(|running| running.groups.round(fast, clock::real()))
    }

    /// Sensors of jobs that have ended since the last call.
    pub fn take_freed(&mut self) -> usize {
        self.running.as_mut().map_or(0, |running| running.groups.take_freed())
    }

    /// The time until the next work is due, unless the tracker wakes the manager.
    pub fn due_in(&self) -> Duration {
        let next = self.running.as_ref().and_then(|running| running.groups.next_wake(clock::real()));
        next.unwrap_or(Duration::MAX)
    }

    /// Whether no job is read.
    pub fn is_idle(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.groups.is_empty())
    }

    pub fn execute(&mut self, command: &JobsCommand, fast: &mut Sampler) -> Result<JobsOutcome, ManagerError> {
        let Some(running) = &mut self.running else { return Err(ManagerError::Invalid(NO_JOBS.to_owned())) };
        Ok(running.groups.execute(command, fast, clock::real())?)
    }

    /// Starts or stops a source for jobs, if it has a job scope.
    pub fn switch(&mut self, name: &str, on: bool, config: &Config, fast: &mut Sampler) {
        let Some(Monitoring { groups, .. }) = &mut self.running else { return };
        let Some(was_running) = groups.runs_source(name) else { return };
        let source = config.sources.iter().find(|source| source.name == name);
        match source {
            Some(source) if on && !was_running => {
                if let Some(built) = source.build_jobs(&config.roots) {
                    groups.start_source(source.name, built, fast, clock::real());
                }
            }
            _ if !on => _ = groups.stop_source(name, fast, clock::real()),
            _ => {}
        }
    }

    /// A source's notes about jobs.
    pub fn notes(&self, name: &str) -> &[String] {
        self.running.as_ref().map_or(&[], |running| running.groups.notes_of(name))
    }

    /// Applies a configuration that was loaded again. Unchanged groups keep their ticks.
    pub fn reload(&mut self, config: &Config, old: &Config, fast: &mut Sampler) {
        match (&config.jobs, &mut self.running) {
            (None, Some(_)) => self.stop(fast),
            (Some(_), None) => self.start(config),
            (Some(jobs), Some(running)) => {
                self.control.accept(jobs.server_commands);
                running.configure(jobs, config, old, fast);
            }
            (None, None) => {}
        }
    }

    /// Ends monitoring and all groups of jobs.
    fn stop(&mut self, fast: &mut Sampler) {
        if let Some(Monitoring { tracker, groups }) = self.running.take() {
            tracker.stop();
            groups.dismiss(fast, STOP_TIMEOUT);
            self.context.records.set(None);
        }
    }

    /// Ends the threads, because the agent ends.
    pub fn finish(&mut self, timeout: Duration) {
        if let Some(Monitoring { tracker, groups }) = self.running.take() {
            tracker.stop();
            groups.finish(timeout);
        }
    }
}

impl Monitoring {
    fn configure(&mut self, jobs: &JobsConfig, config: &Config, old: &Config, fast: &mut Sampler) {
        let now = clock::real();
        if old.jobs.as_ref() != Some(jobs) {
            self.tracker.configure(jobs.tracker.clone());
            self.groups.configure(&jobs.rules, fast, now);
            self.groups.bound(jobs.bounds);
        }
        let is_configured = |name: &str| config.sources.iter().any(|source| source.name == name);
        for removed in old.sources.iter().filter(|source| !is_configured(source.name)) {
            self.groups.remove_source(removed.name, fast, now);
        }
        for source in &config.sources {
            let is_same = old.sources.iter().any(|old| old.name == source.name && old.table == source.table);
            // A source that was stopped through the API stays stopped.
            if is_same || self.groups.runs_source(source.name) == Some(false) {
                continue;
            }
            if let Some(built) = source.build_jobs(&config.roots) {
                self.groups.start_source(source.name, built, fast, now);
            }
        }
    }
}
