//! Makes groups of the jobs, the rules and the sources at job scope.
//!
//! - In: events of the tracker, metric sets that the sources offer of each job, settings that the rules give each metric.
//! - Out: groups `job/<level>/<interval>`, notes for administrators, a view for the API.
//! - Never: a change of a group that nothing has changed for; a metric that is in no group while it moves between two; a source that keeps the others
//!   from being read.
//!
//! [`plan`] computes the groups that settings ask for, and the steps from the running ones; [`running_job`] takes those steps for one job with a
//! [`group_builder`]; [`reader`] reads a group with the readers of its metric sets ([`running_set`]).

mod capacity;
mod context;
mod counter_moves;
mod group_builder;
pub mod plan;
pub mod preview;
pub mod reader;
mod running_job;
mod running_set;
mod source;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use wholegrain_model::config::ConfigError;
use wholegrain_model::{JobRecord, Value};
use wholegrain_sources::descriptors;
use wholegrain_sources::job::{FinalCounters, JobSource};

use self::capacity::SensorCapacity;
pub use self::capacity::WaitReason;
pub use self::context::JobGroupsContext;
pub use self::group_builder::SOURCE;
use self::group_builder::{GroupBuilder, SharedSchemas};
use self::running_job::{RunningJob, SetSelection};
use self::running_set::SensorListPool;
pub use self::source::JobSourceHandle;
use super::rules::{JobsRefusal, Rules, RulesConfig};
use super::tracker::{Job, JobEvent};
use super::{JobBounds, JobsCommand, JobsOutcome, JobsView, RuleView};
use crate::engine::{Sampler, clock};
use crate::log_limiter::LogLimiter;
use crate::readings::scaled;
use crate::reconcile::{BlockingSampler, GroupChanges, taken_metric};

/// The name of the thread for blocking reads.
const BLOCKING_THREAD: &str = "jobs";
/// The most events of the tracker that one round handles.
const EVENTS_MAX: usize = 256;
/// The most waiting jobs that one round tries when there is room again.
const TRIES_MAX: usize = 64;

/// All running jobs and their groups. Owned by the manager's thread.
pub struct JobGroups {
    context: JobGroupsContext,
    events: Receiver<JobEvent>,
    rules: Rules,
    sources: Vec<JobSourceHandle>,
    jobs: BTreeMap<String, RunningJob>,
    blocking: BlockingSampler,
    pool: SensorListPool,
    schemas: SharedSchemas,
    log_limiter: LogLimiter,
    shown_rules: Arc<Vec<RuleView>>,
    /// The view has to be published again.
    stale: bool,
    /// Groups were added or removed since the encoder was last woken.
    changed: bool,
    /// The tracker has sent more events than one round handles.
    behind: bool,
    room: SensorCapacity,
    /// Jobs that are not read because of the bounds, the longest waiting first.
    waiting: VecDeque<String>,
    /// A job has released sensors since the waiting ones were last tried.
    has_room: bool,
    /// Sensors of ended jobs since the last [`JobGroups::take_freed`].
    freed: usize,
}

impl JobGroups {
    pub fn new(
        context: JobGroupsContext,
        events: Receiver<JobEvent>,
        rules: Rules,
        sources: Vec<JobSourceHandle>,
    ) -> Self {
        let shown_rules = Arc::new(rules.view());
        Self {
            context,
            events,
            rules,
            sources,
            jobs: BTreeMap::new(),
            blocking: BlockingSampler::new(BLOCKING_THREAD),
            pool: SensorListPool::default(),
            schemas: SharedSchemas::default(),
            log_limiter: LogLimiter::default(),
            shown_rules,
            stale: true,
            changed: false,
            behind: false,
            room: SensorCapacity::default(),
            waiting: VecDeque::new(),
            has_room: false,
            freed: 0,
        }
    }

    /// Applies other bounds. Jobs that are read go on.
    pub fn bound(&mut self, bounds: JobBounds) {
        bounds.apply();
        self.room.bounds = bounds;
        self.has_room = true;
    }

    /// The sensors of jobs that have ended since the last call.
    pub fn take_freed(&mut self) -> usize {
        std::mem::take(&mut self.freed)
    }

    /// Handles events of the tracker and requests of readers, ends expired rules, and publishes the view. Whether groups have changed.
    pub fn round(&mut self, fast: &mut Sampler, now: i64) -> bool {
        self.behind = true;
        for _ in 0..EVENTS_MAX {
            match self.events.try_recv() {
                Ok(JobEvent::Began(job)) => self.begin(job, fast, now),
                Ok(JobEvent::Changed(job)) => self.update(job, fast, now),
                Ok(JobEvent::Ended(job)) => self.end(&job, fast),
                Err(_) => {
                    self.behind = false;
                    break;
                }
            }
        }
        if self.rules.next_expiry().is_some_and(|at| at <= now) && self.rules.expire(now) > 0 {
            self.rules_changed(fast, now);
        }
        self.handle_requests(fast, now);
        self.try_waiting(fast, now);
        self.publish();
        self.count();
        std::mem::take(&mut self.changed)
    }

    /// The time until the next rule expires, which no event reports.
    pub fn next_wake(&self, now: i64) -> Option<Duration> {
        if self.behind {
            return Some(Duration::ZERO);
        }
        self.rules.next_expiry().map(|at| Duration::from_nanos(u64::try_from(at.saturating_sub(now)).unwrap_or(0)))
    }

    /// Executes a command about rules. Its changes are in force when this returns.
    pub fn execute(&mut self, command: &JobsCommand, fast: &mut Sampler, now: i64) -> Result<JobsOutcome, JobsRefusal> {
        let jobs: Vec<_> = self.jobs.values().map(|running| (running.subject(), running.metrics())).collect();
        let done = self.rules.execute(command, &jobs, now)?;
        self.rules_changed(fast, now);
        self.publish();
        Ok(done)
    }

    /// Applies other rules and limits of the configuration.
    pub fn configure(&mut self, rules: &RulesConfig, fast: &mut Sampler, now: i64) {
        self.rules.configure(rules, now).iter().for_each(|problem| tracing::warn!("jobs: {problem}"));
        self.rules_changed(fast, now);
    }

    fn rules_changed(&mut self, fast: &mut Sampler, now: i64) {
        self.shown_rules = Arc::new(self.rules.view());
        self.stale = true;
        for level in self.levels() {
            self.reconcile(&level, fast, now);
        }
    }

    fn levels(&self) -> Vec<String> {
        self.jobs.keys().cloned().collect()
    }

    fn begin(&mut self, job: Arc<Job>, fast: &mut Sampler, now: i64) {
        let level = job.record.level.clone();
        if self.jobs.contains_key(&level) {
            return self.update(job, fast, now);
        }
        tracing::debug!("job {} began", job.record.job);
        self.jobs.insert(level.clone(), RunningJob::new(job));
        self.admit(&level, fast, now);
    }

    /// Starts reading a job if it has processes and the bounds allow it.
    fn admit(&mut self, level: &str, fast: &mut Sampler, now: i64) {
        let Some(running) = self.jobs.get_mut(level) else { return };
        if !running.job.has_processes {
            return running.wait(WaitReason::Empty);
        }
        running.release();
        self.gather(level, &SetSelection::All);
        let Some(running) = self.jobs.get_mut(level) else { return };
        let need = running.need();
        match self.room.refuses(&need, descriptors::left(need.uid)) {
            None => {
                self.room.take(level, need);
                self.reconcile(level, fast, now);
            }
            Some(wait_reason) => {
                running.wait(wait_reason);
                let cgroups = running.job.cgroups.clone();
                self.sources.iter_mut().for_each(|source| source.forget(&cgroups));
                self.stale = true;
                self.waiting.push_back(level.to_owned());
                let (reason, waiting) = (wait_reason.text(), self.waiting.len());
                self.log_limiter
                    .seldom("waiting", || format!("job {level} is not read: {reason}; {waiting} jobs wait for room"));
            }
        }
    }

    /// Starts reading waiting jobs for which there is room now.
    fn try_waiting(&mut self, fast: &mut Sampler, now: i64) {
        if !std::mem::take(&mut self.has_room) {
            return;
        }
        for _ in 0..self.waiting.len().min(TRIES_MAX) {
            let Some(level) = self.waiting.pop_front() else { return };
            let Some(running) = self.jobs.get(&level).filter(|running| running.wait_reason().is_some()) else {
                continue;
            };
            let need = running.need();
            if self.room.refuses(&need, descriptors::left(need.uid)).is_some() {
                self.waiting.push_back(level);
                continue;
            }
            self.has_room = true;
            self.admit(&level, fast, now);
        }
    }

    fn count(&self) {
        let put = |count: &AtomicU64, value: usize| count.store(value as u64, Ordering::Relaxed);
        put(&self.context.counters.jobs, self.jobs.len());
        put(&self.context.counters.jobs_waiting, self.waiting.len());
        put(&self.context.counters.job_sensors, self.room.sensors());
    }

    fn update(&mut self, job: Arc<Job>, fast: &mut Sampler, now: i64) {
        let level = job.record.level.clone();
        let Some(running) = self.jobs.get_mut(&level) else { return self.begin(job, fast, now) };
        let moved = running.job.cgroups != job.cgroups;
        let other = !running.job.record.is_same(&job.record);
        let wait_reason = running.wait_reason();
        running.update_job(job);
        self.stale = true;
        match wait_reason {
            Some(WaitReason::Empty) => self.admit(&level, fast, now),
            Some(_) => {}
            None => {
                if moved || other {
                    self.gather(&level, &SetSelection::All);
                }
                self.reconcile(&level, fast, now);
            }
        }
    }

    fn end(&mut self, job: &Job, fast: &mut Sampler) {
        let level = &job.record.level;
        if !self.jobs.get(level).is_some_and(|running| running.job.record.is_same(&job.record)) {
            return;
        }
        let Some(mut running) = self.jobs.remove(level) else { return };
        tracing::debug!("job {} ended", job.record.job);
        self.complete(&job.record);
        let last = self.sources.iter_mut().filter_map(|source| source.last(&running.job.cgroups));
        let last = last.collect();
        self.finish_totals(&job.record, last);
        self.stop_groups(&mut running, fast);
        self.sources.iter_mut().for_each(|source| source.forget(&running.job.cgroups));
        self.waiting.retain(|waiting| waiting != level);
        self.freed += self.room.leave(level);
        self.waiting.shrink_to(self.waiting.len() * 2);
        (self.stale, self.changed, self.has_room) = (true, true, true);
    }

    /// Discovers the metric sets of a job.
    fn gather(&mut self, level: &str, again: &SetSelection<'_>) {
        if let Some(running) = self.jobs.get_mut(level).filter(|running| running.wait_reason().is_none()) {
            running.gather(&mut self.sources, &mut self.pool, again);
        }
    }

    /// Changes a job's groups to what the rules and the metric sets ask for.
    fn reconcile(&mut self, level: &str, fast: &mut Sampler, now: i64) {
        let Some(mut running) = self.jobs.remove(level) else { return };
        if running.wait_reason().is_none() {
            self.room.take(level, running.need());
        }
        let taken = self.taken_below(level);
        for metric in running.metrics() {
            if let Some(group) = taken.get(metric.name) {
                self.log_limiter.once(&taken_metric(metric.name, group));
            }
        }
        running.resolve(&self.rules.of_job(&running.subject(), now), &taken);
        self.replan(&mut running, fast);
        self.stale |= running.is_changed();
        self.jobs.insert(level.to_owned(), running);
    }

    /// The sensors of a job that groups of the node's sources and plug-ins have, by their names within the job, with these groups.
    fn taken_below(&self, level: &str) -> BTreeMap<String, String> {
        let (below, prefix) = (format!("job/{level}/"), &self.context.identity.prefix);
        let groups = self.context.registry.live().into_iter();
        let mut taken = BTreeMap::new();
        for group in groups.filter(|group| group.source != SOURCE && group.schema.prefix() == prefix) {
            let names = group.schema.sensors().iter().filter_map(|sensor| sensor.name.strip_prefix(&below));
            taken.extend(names.map(|name| (name.to_owned(), group.name().to_owned())));
        }
        taken
    }

    fn replan(&mut self, running: &mut RunningJob, fast: &mut Sampler) {
        let mut builder = GroupBuilder {
            context: &self.context,
            blocking: &mut self.blocking,
            schemas: &mut self.schemas,
            notes: Vec::new(),
            changes: GroupChanges::default(),
        };
        self.changed |= running.replan(&mut builder);
        let GroupBuilder { notes, changes, .. } = builder;
        changes.apply(&self.context.registry, fast, &mut self.blocking);
        // Once, whichever job it comes from.
        notes.iter().for_each(|note| self.log_limiter.once(&format!("jobs: {note}")));
    }

    fn stop_groups(&mut self, running: &mut RunningJob, fast: &mut Sampler) {
        let mut changes = GroupChanges::default();
        running.stop(&mut changes);
        changes.apply(&self.context.registry, fast, &mut self.blocking);
    }

    /// Handles problems and requests of the readers.
    fn handle_requests(&mut self, fast: &mut Sampler, now: i64) {
        self.blocking.collect();
        let at = Instant::now();
        let mut again = Vec::new();
        for (level, running) in &mut self.jobs {
            let id = running.job.clone();
            let asked = running.take_requests(at, |problem| {
                if self.log_limiter.is_new(&problem) {
                    let job = &id.record.job;
                    tracing::warn!(
                        "job {job}: {problem}; its values are gaps until it can be read; reported once for all jobs"
                    );
                }
            });
            self.stale |= running.is_changed();
            again.extend(asked.map(|asked| (level.clone(), asked)));
        }
        for (level, asked) in again {
            self.gather(&level, &SetSelection::Sets(&asked));
            self.reconcile(&level, fast, now);
        }
    }

    /// Publishes the view if anything has changed; unchanged jobs keep theirs.
    fn publish(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut jobs: Vec<_> = self.jobs.values_mut().map(|running| running.view().0).collect();
        jobs.sort_by(|a, b| a.record.job.cmp(&b.record.job));
        self.set_view(JobsView { jobs, rules: self.shown_rules.clone() });
    }

    fn set_view(&self, view: JobsView) {
        let view = Arc::new(view);
        self.context.view.set(view.clone());
        // After the view: a caller that looks up a job from now on does not find an ended one.
        self.context.marks.follow(&view, clock::now());
    }

    /// Stops a source at job scope. Whether it was running; `None` if there is none of this name.
    pub fn stop_source(&mut self, name: &str, fast: &mut Sampler, now: i64) -> Option<bool> {
        let source = self.sources.iter_mut().find(|source| source.name == name)?;
        let was_running = source.is_running();
        for running in self.jobs.values() {
            source.forget(&running.job.cgroups);
        }
        source.stop();
        self.regather(name, fast, now);
        Some(was_running)
    }

    /// Starts a source at job scope, or restarts it.
    pub fn start_source(
        &mut self,
        name: &'static str,
        built: Result<Box<dyn JobSource>, ConfigError>,
        fast: &mut Sampler,
        now: i64,
    ) {
        match self.sources.iter_mut().find(|source| source.name == name) {
            Some(source) => source.start(built),
            None => self.sources.push(JobSourceHandle::started(name, built)),
        }
        self.regather(name, fast, now);
    }

    /// Removes a source that the configuration no longer has.
    pub fn remove_source(&mut self, name: &str, fast: &mut Sampler, now: i64) {
        self.stop_source(name, fast, now);
        self.sources.retain(|source| source.name != name);
    }

    fn regather(&mut self, name: &str, fast: &mut Sampler, now: i64) {
        for level in self.levels() {
            self.gather(&level, &SetSelection::Source(name));
            self.reconcile(&level, fast, now);
        }
    }

    /// Whether a source runs at job scope; `None` if it has none.
    pub fn runs_source(&self, name: &str) -> Option<bool> {
        self.sources.iter().find(|source| source.name == name).map(JobSourceHandle::is_running)
    }

    /// A source's notes at job scope.
    pub fn notes_of(&self, name: &str) -> &[String] {
        self.sources.iter().find(|source| source.name == name).map_or(&[], JobSourceHandle::notes)
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Removes all groups, because jobs are not monitored any more.
    pub fn dismiss(mut self, fast: &mut Sampler, timeout: Duration) {
        for (_, mut running) in std::mem::take(&mut self.jobs) {
            self.stop_groups(&mut running, fast);
        }
        self.set_view(JobsView::default());
        self.finish(timeout);
    }

    /// Ends the thread for blocking reads; groups of the other one end with it.
    pub fn finish(mut self, timeout: Duration) {
        if !self.blocking.join(timeout) {
            tracing::warn!("jobs: a read hangs; its thread is abandoned");
        }
    }

    /// Completes the totals of an ended job with its last samples: they may be later than what the tracker read.
    fn complete(&self, record: &JobRecord) {
        let Some(records) = self.context.records.get() else { return };
        let Ok(prefix) = self.context.identity.prefix.join(&format!("job/{}", record.level)) else { return };
        let mut sampled: BTreeMap<String, f64> = BTreeMap::new();
        let mut at = i64::MIN;
        for group in self.context.registry.live().into_iter().filter(|group| *group.schema.prefix() == prefix) {
            let sensors = group.schema.sensors();
            if !sensors.iter().any(|sensor| TOTALS.contains(&sensor.name.as_str())) {
                continue;
            }
            let newest = self.context.readings.newest_row(&group);
            let newest = newest.filter(|(time, _)| record.totals_at.is_none_or(|read| *time > read));
            let Some((time, row)) = newest else { continue };
            for (sensor, value) in sensors.iter().zip(row) {
                if let Some(value) = value.filter(|_| TOTALS.contains(&sensor.name.as_str())) {
                    sampled.insert(sensor.name.clone(), scaled(value, sensor).as_f64());
                    at = at.max(time);
                }
            }
        }
        if !sampled.is_empty() {
            records.complete(record, &sampled, at);
        }
    }

    /// Adds the final values of counters that are read at intervals only to the record of an ended job.
    fn finish_totals(&self, record: &JobRecord, all: Vec<FinalCounters>) {
        let (mut totals, mut missing) = (BTreeMap::new(), None);
        for last in all {
            match last {
                FinalCounters::Known(counters) => totals.extend(counters.into_iter().map(|(sensor, value)| {
                    let value = scaled(Value::Int(value), &sensor).as_f64();
                    (sensor.name, value)
                })),
                FinalCounters::Unknown(why) => missing = Some(why),
            }
        }
        if let Some(records) = self.context.records.get().filter(|_| !totals.is_empty() || missing.is_some()) {
            records.finish(record, &totals, missing);
        }
    }
}

/// The totals of job records; all of them only rise.
const TOTALS: [&str; 8] = [
    "cpu/usage",
    "cpu/user",
    "cpu/system",
    "memory/peak",
    "memory/events/oom_kill",
    "io/read_bytes",
    "io/write_bytes",
    "pids/peak",
];
