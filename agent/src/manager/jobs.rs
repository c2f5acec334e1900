//! The manager's part of job monitoring: starts and stops it with `[jobs]`, and follows the configuration and the sources.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{CommandResult, Manager, ManagerError, NO_JOBS, STOP_TIMEOUT, TRIM_AFTER, TRIM_AGAIN, TRIM_SENSORS};
use crate::config::Config;
use crate::engine::clock;
use crate::jobs::groups::{JobGroups, JobsContext};
use crate::jobs::rules::Rules;
use crate::jobs::tracker::{NodeFacts, Tracker};
use crate::jobs::{JobsCommand, JobsView};

/// The job tracker, and the groups of the jobs it finds.
pub(super) struct JobMonitoring {
    tracker: Tracker,
    jobs: JobGroups,
}

impl Manager {
    /// Starts job monitoring if it is configured. A failure is logged, and the rest of the agent goes on.
    pub(super) fn start_jobs(&mut self) {
        self.state.control.execute(self.config.jobs.as_ref().is_none_or(|jobs| jobs.orders));
        let Some(config) = &self.config.jobs else { return };
        let (dir, now) = (config.dir.as_deref(), clock::real());
        let (rules, problems) = Rules::open(&config.rules, dir, now);
        problems.iter().for_each(|problem| tracing::warn!("jobs: {problem}"));
        let node = NodeFacts { name: self.config.name.clone(), prefix: self.config.prefix.to_string() };
        match Tracker::start(&config.tracker, dir, &self.config.roots, node, self.waker.clone()) {
            Ok((tracker, events, job_table)) => {
                self.state.set_job_table(Some(job_table));
                let mut jobs = JobGroups::new(events, rules, JobGroups::supplies(&self.config, &self.config.roots));
                jobs.bound(config.bounds);
                self.monitoring = Some(JobMonitoring { tracker, jobs });
            }
            Err(error) => tracing::error!("jobs are not monitored: {error:#}; the rest of the agent goes on"),
        }
    }

    /// Calls `f` if job monitoring runs.
    fn with_jobs<T>(&mut self, f: impl FnOnce(&mut JobMonitoring, &mut JobsContext<'_>, i64) -> T) -> Option<T> {
        let send_interval = self.config.send_interval();
        let mut context = JobsContext { state: &self.state, fast: &mut self.fast, send_interval };
        self.monitoring.as_mut().map(|monitoring| f(monitoring, &mut context, clock::real()))
    }

    /// Handles the events of jobs since the last round.
    pub(super) fn jobs_round(&mut self) {
        let done = self.with_jobs(|monitoring, context, now| {
            let changed = monitoring.jobs.round(context, now);
            let (counts, counters) = (monitoring.tracker.counts(), &context.state.counters);
            let copy = |from: &AtomicU64, to: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            copy(&counts.watches, &counters.watches);
            copy(&counts.jobs_passed_over, &counters.jobs_passed_over);
            copy(&counts.directories_passed_over, &counters.directories_passed_over);
            (changed, monitoring.jobs.take_freed())
        });
        let Some((changed, freed)) = done else { return };
        if changed {
            self.wake_encoder();
        }
        self.freed_sensors += freed;
        if self.freed_sensors >= TRIM_SENSORS {
            self.freed_sensors = 0;
            let now = Instant::now();
            self.next_trim = self.next_trim.min(now + TRIM_AFTER);
            self.trim_again = Some(now + TRIM_AGAIN);
        }
    }

    /// How long there is nothing to do for jobs.
    pub(super) fn jobs_wake(&self) -> Duration {
        self.monitoring
            .as_ref()
            .and_then(|monitoring| monitoring.jobs.next_wake(clock::real()))
            .unwrap_or(Duration::MAX)
    }

    /// Whether no job has readers that may request something.
    pub(super) fn jobs_idle(&self) -> bool {
        self.monitoring.as_ref().is_none_or(|monitoring| monitoring.jobs.is_idle())
    }

    pub(super) fn execute_jobs(&mut self, command: &JobsCommand) -> Result<CommandResult, ManagerError> {
        let result = self.with_jobs(|monitoring, context, now| monitoring.jobs.execute(command, context, now));
        let done = result.ok_or_else(|| ManagerError::Invalid(NO_JOBS.to_owned()))??;
        self.wake_encoder();
        Ok(CommandResult { done: done.done.clone(), jobs: Some(done), ..CommandResult::default() })
    }

    /// Stops a source at job scope, or starts it. Whether it was running; `None` when it has no job scope here.
    pub(super) fn switch_jobs(&mut self, name: &str, on: bool) -> Option<bool> {
        let config = self.config.sources.iter().find(|source| source.name == name).cloned();
        let roots = self.config.roots.clone();
        let was_running = self.with_jobs(|monitoring, context, now| {
            let was_running = monitoring.jobs.runs_source(name)?;
            match config {
                Some(config) if on && !was_running => {
                    let built = config.build_jobs(&roots)?;
                    monitoring.jobs.start_source(config.name, built, context, now);
                }
                _ if !on => {
                    monitoring.jobs.stop_source(name, context, now);
                }
                _ => {}
            }
            Some(was_running)
        });
        self.jobs_round();
        was_running.flatten()
    }

    /// A source's notes about jobs.
    pub(super) fn jobs_notes(&self, name: &str) -> &[String] {
        self.monitoring.as_ref().map_or(&[], |monitoring| monitoring.jobs.notes_of(name))
    }

    /// The configuration was loaded again. Jobs' groups that it does not change keep ticking.
    pub(super) fn reload_jobs(&mut self, old: &Config) {
        match (&self.config.jobs, self.monitoring.is_some()) {
            (None, true) => self.stop_jobs(),
            (Some(_), false) => self.start_jobs(),
            (Some(config), true) => {
                self.state.control.execute(config.orders);
                self.reconfigure_jobs(old);
            }
            (None, false) => {}
        }
        self.jobs_round();
        self.wake_encoder();
    }

    fn reconfigure_jobs(&mut self, old: &Config) {
        let (sources, roots, new) = (self.config.sources.clone(), self.config.roots.clone(), self.config.jobs.clone());
        let before = old.sources.clone();
        self.with_jobs(|monitoring, context, now| {
            if let Some(new) = new
                && old.jobs.as_ref() != Some(&new)
            {
                monitoring.tracker.configure(new.tracker.clone());
                monitoring.jobs.configure(&new.rules, context, now);
                monitoring.jobs.bound(new.bounds);
            }
            for gone in before.iter().filter(|old| !sources.iter().any(|source| source.name == old.name)) {
                monitoring.jobs.remove_source(gone.name, context, now);
            }
            for source in &sources {
                let same = before.iter().any(|old| old.name == source.name && old.table == source.table);
                // A source stopped through the API stays stopped.
                if same || monitoring.jobs.runs_source(source.name) == Some(false) {
                    continue;
                }
                if let Some(built) = source.build_jobs(&roots) {
                    monitoring.jobs.start_source(source.name, built, context, now);
                }
            }
        });
    }

    /// Ends job monitoring and all groups of jobs.
    fn stop_jobs(&mut self) {
        if let Some(JobMonitoring { tracker, jobs }) = self.monitoring.take() {
            let send_interval = self.config.send_interval();
            tracker.stop();
            jobs.dismiss(&mut JobsContext { state: &self.state, fast: &mut self.fast, send_interval }, STOP_TIMEOUT);
            self.state.set_job_table(None);
            self.state.set_jobs(JobsView::default());
        }
    }

    pub(super) fn finish_jobs(&mut self) {
        if let Some(JobMonitoring { tracker, jobs }) = self.monitoring.take() {
            tracker.stop();
            jobs.finish(STOP_TIMEOUT);
        }
    }
}
