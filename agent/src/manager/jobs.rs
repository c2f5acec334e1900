//! Jobs as the manager keeps them: started and stopped with `[jobs]`, in step with the configuration and with the sources.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Done, Manager, NO_JOBS, Refusal, STOP_PATIENCE, TRIM_AFTER, TRIM_AGAIN, TRIM_SENSORS};
use crate::config::Config;
use crate::engine::clock;
use crate::jobs::groups::{Context, Jobs};
use crate::jobs::rules::Rules;
use crate::jobs::tracker::{NodeFacts, Tracker};
use crate::jobs::{JobsAsk, JobsView};

/// What looks for jobs, and what is made of them.
pub(super) struct Looking {
    tracker: Tracker,
    jobs: Jobs,
}

impl Manager {
    /// Begins to look for jobs, if the configuration says so. Where that cannot be, the log says why and all else goes on.
    pub(super) fn start_jobs(&mut self) {
        self.state.control.obey(self.config.jobs.as_ref().is_none_or(|jobs| jobs.orders));
        let Some(config) = &self.config.jobs else { return };
        let (dir, now) = (config.dir.as_deref(), clock::real());
        let (rules, problems) = Rules::open(&config.rules, dir, now);
        problems.iter().for_each(|problem| tracing::warn!("jobs: {problem}"));
        let node = NodeFacts { name: self.config.name.clone(), prefix: self.config.prefix.to_string() };
        match Tracker::start(&config.tracker, dir, &self.config.roots, node, self.bell.clone()) {
            Ok((tracker, events, book)) => {
                self.state.set_book(Some(book));
                let mut jobs = Jobs::new(events, rules, Jobs::supplies(&self.config, &self.config.roots));
                jobs.bound(config.bounds);
                self.looking = Some(Looking { tracker, jobs });
            }
            Err(error) => tracing::error!("jobs are not looked for: {error:#}; all else goes on"),
        }
    }

    /// Does something with the jobs, if there are any to be looked for.
    fn with_jobs<T>(&mut self, f: impl FnOnce(&mut Looking, &mut Context<'_>, i64) -> T) -> Option<T> {
        let send_interval = self.config.send_interval();
        let mut context = Context { state: &self.state, fast: &mut self.fast, send_interval };
        self.looking.as_mut().map(|looking| f(looking, &mut context, clock::real()))
    }

    /// What has happened to jobs since the last round.
    pub(super) fn jobs_round(&mut self) {
        let done = self.with_jobs(|looking, context, now| {
            let changed = looking.jobs.round(context, now);
            let (counts, counters) = (looking.tracker.counts(), &context.state.counters);
            let copy = |from: &AtomicU64, to: &AtomicU64| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            copy(&counts.watches, &counters.watches);
            copy(&counts.jobs_passed_over, &counters.jobs_passed_over);
            copy(&counts.directories_passed_over, &counters.directories_passed_over);
            (changed, looking.jobs.take_freed())
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

    /// How long nothing is to be done about jobs.
    pub(super) fn jobs_wake(&self) -> Duration {
        self.looking.as_ref().and_then(|looking| looking.jobs.next_wake(clock::real())).unwrap_or(Duration::MAX)
    }

    /// Whether there are no jobs whose readers may have something to say.
    pub(super) fn jobs_idle(&self) -> bool {
        self.looking.as_ref().is_none_or(|looking| looking.jobs.is_idle())
    }

    pub(super) fn obey_jobs(&mut self, ask: &JobsAsk) -> Result<Done, Refusal> {
        let obeyed = self.with_jobs(|looking, context, now| looking.jobs.obey(ask, context, now));
        let done = obeyed.ok_or_else(|| Refusal::Invalid(NO_JOBS.to_owned()))??;
        self.wake_encoder();
        Ok(Done { done: done.done.clone(), jobs: Some(done), ..Done::default() })
    }

    /// Stops a source at job scope, or starts it. Whether it was running; `None` when it has no job scope here.
    pub(super) fn switch_jobs(&mut self, name: &str, on: bool) -> Option<bool> {
        let config = self.config.sources.iter().find(|source| source.name == name).cloned();
        let roots = self.config.roots.clone();
        let was_running = self.with_jobs(|looking, context, now| {
            let was_running = looking.jobs.runs_source(name)?;
            match config {
                Some(config) if on && !was_running => {
                    let built = config.build_jobs(&roots)?;
                    looking.jobs.start_source(config.name, built, context, now);
                }
                _ if !on => {
                    looking.jobs.stop_source(name, context, now);
                }
                _ => {}
            }
            Some(was_running)
        });
        self.jobs_round();
        was_running.flatten()
    }

    /// What a source had to say about jobs.
    pub(super) fn jobs_notes(&self, name: &str) -> &[String] {
        self.looking.as_ref().map_or(&[], |looking| looking.jobs.notes_of(name))
    }

    /// The configuration was loaded again. Jobs' groups that it does not change keep ticking.
    pub(super) fn reload_jobs(&mut self, old: &Config) {
        match (&self.config.jobs, self.looking.is_some()) {
            (None, true) => self.stop_jobs(),
            (Some(_), false) => self.start_jobs(),
            (Some(config), true) => {
                self.state.control.obey(config.orders);
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
        self.with_jobs(|looking, context, now| {
            if let Some(new) = new
                && old.jobs.as_ref() != Some(&new)
            {
                looking.tracker.configure(new.tracker.clone());
                looking.jobs.configure(&new.rules, context, now);
                looking.jobs.bound(new.bounds);
            }
            for gone in before.iter().filter(|old| !sources.iter().any(|source| source.name == old.name)) {
                looking.jobs.remove_source(gone.name, context, now);
            }
            for source in &sources {
                let same = before.iter().any(|old| old.name == source.name && old.table == source.table);
                // What people have stopped stays so.
                if same || looking.jobs.runs_source(source.name) == Some(false) {
                    continue;
                }
                if let Some(built) = source.build_jobs(&roots) {
                    looking.jobs.start_source(source.name, built, context, now);
                }
            }
        });
    }

    /// Looks for jobs no more: their groups end.
    fn stop_jobs(&mut self) {
        if let Some(Looking { tracker, jobs }) = self.looking.take() {
            let send_interval = self.config.send_interval();
            tracker.stop();
            jobs.dismiss(&mut Context { state: &self.state, fast: &mut self.fast, send_interval }, STOP_PATIENCE);
            self.state.set_book(None);
            self.state.set_jobs(JobsView::default());
        }
    }

    /// The agent ends.
    pub(super) fn finish_jobs(&mut self) {
        if let Some(Looking { tracker, jobs }) = self.looking.take() {
            tracker.stop();
            jobs.finish(STOP_PATIENCE);
        }
    }
}
