//! Makes the samplers' groups of jobs, rules and sources at job scope.
//!
//! - In: what the tracker tells of jobs, what the sources offer of each, what the rules say of each metric.
//! - Out: groups `job/<level>/<interval>` on the samplers, notes for people, a view for the API.
//! - Never: a group touched that nothing has changed for; a metric that is in no group while it moves from one to another; a source
//!   that keeps the others from being read.
//!
//! [`plan`] says, without doing anything, which groups there have to be and by which steps; [`running`] takes those steps for one
//! job, through [`change_set`]; [`reader`] reads a group with the readers of its parts ([`part`]).

mod capacity;
mod change_set;
mod counter_moves;
pub mod look;
mod part;
pub mod plan;
pub mod reader;
mod running_job;
mod source;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use wholegrain_model::config::ConfigError;
use wholegrain_model::{Interval, JobRecord, Value};
use wholegrain_sources::job::{JobSource, Last};
use wholegrain_sources::{Roots, descriptors};

use self::capacity::SensorCapacity;
pub use self::capacity::WaitReason;
use self::change_set::{ChangeSet, SharedSchemas};
use self::part::SensorListPool;
use self::running_job::{PartSelection, RunningJob};
pub use self::source::JobSourceHandle;
use super::rules::{JobsRefusal, Rules, RulesConfig};
use super::tracker::{Job, JobEvent};
use super::{JobBounds, JobsCommand, JobsOutcome, JobsView, RuleView};
use crate::cache::{newest_row, scaled};
use crate::engine::Sampler;
use crate::state::AgentState;

/// What the groups of jobs give as their source.
pub const SOURCE: &str = "jobs";
/// The most events of the tracker that are taken before anything else is done.
const EVENTS_MAX: usize = 256;
/// Jobs without sensors that are looked at in one round when others have made room.
const TRIES_MAX: usize = 64;
/// How often it is warned that jobs are not read: 10 min.
const WARN_EVERY: Duration = Duration::from_secs(600);
/// Problems that are remembered as reported.
const REPORTED_MAX: usize = 256;

/// What jobs' groups are changed with.
pub struct JobsContext<'a> {
    /// Names and the registry.
    pub state: &'a AgentState,
    /// Reads what does not block.
    pub fast: &'a mut Sampler,
    /// How long samples are collected into a batch.
    pub send_interval: Interval,
}

/// All jobs that run, and their groups. Owned by the manager's thread.
pub struct JobGroups {
    events: Receiver<JobEvent>,
    rules: Rules,
    supplies: Vec<JobSourceHandle>,
    jobs: BTreeMap<String, RunningJob>,
    slow: Option<Sampler>,
    pool: SensorListPool,
    shapes: SharedSchemas,
    notes: Vec<String>,
    reported: HashSet<String>,
    shown_rules: Arc<Vec<RuleView>>,
    /// The view must be published again.
    stale: bool,
    /// Groups were added or removed since the encoder was last woken.
    changed: bool,
    /// The tracker has sent more events than were taken.
    behind: bool,
    room: SensorCapacity,
    /// Jobs that are not read because others take all there is, the longest waiting first.
    waiting: VecDeque<String>,
    /// Some job has given sensors back since those that wait were last looked at.
    has_room: bool,
    warned: Option<Instant>,
    /// Sensors of jobs that have ended since it was last asked for.
    freed: usize,
}

impl JobGroups {
    pub fn new(events: Receiver<JobEvent>, rules: Rules, supplies: Vec<JobSourceHandle>) -> Self {
        let shown_rules = Arc::new(rules.view());
        Self {
            events,
            rules,
            supplies,
            jobs: BTreeMap::new(),
            slow: None,
            pool: SensorListPool::default(),
            shapes: SharedSchemas::default(),
            notes: Vec::new(),
            reported: HashSet::new(),
            shown_rules,
            stale: true,
            changed: false,
            behind: false,
            room: SensorCapacity::default(),
            waiting: VecDeque::new(),
            has_room: false,
            warned: None,
            freed: 0,
        }
    }

    /// Other bounds: jobs that are read go on.
    pub fn bound(&mut self, bounds: JobBounds) {
        bounds.apply();
        self.room.bounds = bounds;
        self.has_room = true;
    }

    /// Sensors of jobs that have ended since this was last asked.
    pub fn take_freed(&mut self) -> usize {
        std::mem::take(&mut self.freed)
    }

    /// Handles events of the tracker and requests of readers, ends expired rules, and publishes the view. Whether groups have changed.
    pub fn round(&mut self, context: &mut JobsContext<'_>, now: i64) -> bool {
        self.behind = true;
        for _ in 0..EVENTS_MAX {
            match self.events.try_recv() {
                Ok(JobEvent::Began(job)) => self.begin(job, context, now),
                Ok(JobEvent::Changed(job)) => self.retell(job, context, now),
                Ok(JobEvent::Ended(job)) => self.end(&job, context),
                Err(_) => {
                    self.behind = false;
                    break;
                }
            }
        }
        if self.rules.next_expiry().is_some_and(|at| at <= now) && self.rules.expire(now) > 0 {
            self.rules_changed(context, now);
        }
        self.look(context, now);
        self.try_waiting(context, now);
        self.show(context.state);
        self.count(context.state);
        std::mem::take(&mut self.changed)
    }

    /// Whether no job is read.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// How long until there is something to do that nobody rings for: a rule that is over.
    pub fn next_wake(&self, now: i64) -> Option<Duration> {
        if self.behind {
            return Some(Duration::ZERO);
        }
        self.rules.next_expiry().map(|at| Duration::from_nanos(u64::try_from(at.saturating_sub(now)).unwrap_or(0)))
    }

    /// Executes a command about rules: its changes are in force when this returns.
    pub fn execute(
        &mut self,
        command: &JobsCommand,
        context: &mut JobsContext<'_>,
        now: i64,
    ) -> Result<JobsOutcome, JobsRefusal> {
        let jobs: Vec<_> = self.jobs.values().map(|running| (running.subject(), running.metrics())).collect();
        let done = self.rules.execute(command, &jobs, now)?;
        self.rules_changed(context, now);
        self.show(context.state);
        Ok(done)
    }

    /// Other rules and limits of the configuration.
    pub fn configure(&mut self, rules: &RulesConfig, context: &mut JobsContext<'_>, now: i64) {
        self.rules.configure(rules, now).iter().for_each(|problem| tracing::warn!("jobs: {problem}"));
        self.rules_changed(context, now);
    }

    fn rules_changed(&mut self, context: &mut JobsContext<'_>, now: i64) {
        self.shown_rules = Arc::new(self.rules.view());
        self.stale = true;
        for level in self.levels() {
            self.reconcile(&level, context, now);
        }
    }

    fn levels(&self) -> Vec<String> {
        self.jobs.keys().cloned().collect()
    }

    fn begin(&mut self, job: Arc<Job>, context: &mut JobsContext<'_>, now: i64) {
        let level = job.record.level.clone();
        if self.jobs.contains_key(&level) {
            return self.retell(job, context, now);
        }
        tracing::debug!("job {} began", job.record.job);
        self.jobs.insert(level.clone(), RunningJob::new(job));
        self.admit(&level, context, now);
    }

    /// Begins to read a job, if it is worth that and there is room.
    fn admit(&mut self, level: &str, context: &mut JobsContext<'_>, now: i64) {
        let Some(running) = self.jobs.get_mut(level) else { return };
        if !running.job.has_processes {
            return running.hold(WaitReason::Empty);
        }
        running.release();
        self.gather(level, &PartSelection::All);
        let Some(running) = self.jobs.get_mut(level) else { return };
        let need = running.need();
        match self.room.refuses(&need, descriptors::left(need.uid)) {
            None => {
                self.room.take(level, need);
                self.reconcile(level, context, now);
            }
            Some(held) => {
                running.hold(held);
                let place = running.job.place.clone();
                self.supplies.iter_mut().for_each(|supply| supply.forget(&place));
                self.stale = true;
                self.waiting.push_back(level.to_owned());
                self.warn(level, held);
            }
        }
    }

    fn warn(&mut self, level: &str, held: WaitReason) {
        let now = Instant::now();
        if self.warned.is_none_or(|warned| now.saturating_duration_since(warned) >= WARN_EVERY) {
            self.warned = Some(now);
            let waiting = self.waiting.len();
            tracing::warn!("job {level} is not read: {}; {waiting} jobs wait for room", held.text());
        }
    }

    /// Reads jobs that wait, where others have made room for them.
    fn try_waiting(&mut self, context: &mut JobsContext<'_>, now: i64) {
        if !std::mem::take(&mut self.has_room) {
            return;
        }
        for _ in 0..self.waiting.len().min(TRIES_MAX) {
            let Some(level) = self.waiting.pop_front() else { return };
            let Some(running) = self.jobs.get(&level).filter(|running| running.held().is_some()) else { continue };
            let need = running.need();
            if self.room.refuses(&need, descriptors::left(need.uid)).is_some() {
                self.waiting.push_back(level);
                continue;
            }
            self.has_room = true;
            self.admit(&level, context, now);
        }
    }

    fn count(&self, state: &AgentState) {
        let put = |count: &AtomicU64, value: usize| count.store(value as u64, Ordering::Relaxed);
        put(&state.counters.jobs, self.jobs.len());
        put(&state.counters.jobs_waiting, self.waiting.len());
        put(&state.counters.job_sensors, self.room.sensors());
    }

    fn retell(&mut self, job: Arc<Job>, context: &mut JobsContext<'_>, now: i64) {
        let level = job.record.level.clone();
        let Some(running) = self.jobs.get_mut(&level) else { return self.begin(job, context, now) };
        let moved = running.job.place != job.place;
        let other = !running.job.record.is_same(&job.record);
        let held = running.held();
        running.update_job(job);
        self.stale = true;
        match held {
            Some(WaitReason::Empty) => self.admit(&level, context, now),
            Some(_) => {}
            None => {
                if moved || other {
                    self.gather(&level, &PartSelection::All);
                }
                self.reconcile(&level, context, now);
            }
        }
    }

    fn end(&mut self, job: &Job, context: &mut JobsContext<'_>) {
        let level = &job.record.level;
        if !self.jobs.get(level).is_some_and(|running| running.job.record.is_same(&job.record)) {
            return;
        }
        let Some(mut running) = self.jobs.remove(level) else { return };
        tracing::debug!("job {} ended", job.record.job);
        complete(&job.record, context.state);
        let last = self.supplies.iter_mut().filter_map(|supply| supply.last(&running.job.place));
        finish(&job.record, last.collect(), context.state);
        self.with_change_set(context, |change_set| running.stop(change_set));
        self.supplies.iter_mut().for_each(|supply| supply.forget(&running.job.place));
        self.waiting.retain(|waiting| waiting != level);
        self.freed += self.room.leave(level);
        self.waiting.shrink_to(self.waiting.len() * 2);
        (self.stale, self.changed, self.has_room) = (true, true, true);
    }

    /// Asks sources what there is to read of a job.
    fn gather(&mut self, level: &str, again: &PartSelection<'_>) {
        if let Some(running) = self.jobs.get_mut(level).filter(|running| running.held().is_none()) {
            running.gather(&mut self.supplies, &mut self.pool, again);
        }
    }

    /// Makes a job's groups what the rules want of what there is.
    fn reconcile(&mut self, level: &str, context: &mut JobsContext<'_>, now: i64) {
        let Some(mut running) = self.jobs.remove(level) else { return };
        if running.held().is_none() {
            self.room.take(level, running.need());
        }
        running.resolve(&self.rules.of_job(&running.subject(), now));
        self.changed |= self.with_change_set(context, |change_set| running.replan(change_set));
        self.stale |= running.is_changed();
        self.jobs.insert(level.to_owned(), running);
    }

    fn with_change_set<T>(&mut self, context: &mut JobsContext<'_>, f: impl FnOnce(&mut ChangeSet<'_>) -> T) -> T {
        let JobsContext { state, fast, send_interval } = context;
        let mut notes = Vec::new();
        let mut change_set = ChangeSet::new(state, fast, &mut self.slow, *send_interval, &mut self.shapes, &mut notes);
        let result = f(&mut change_set);
        for note in notes {
            self.tell(format!("jobs: {note}"));
        }
        result
    }

    /// Tells a trouble once, whichever job it came from.
    fn tell(&mut self, text: String) {
        if self.reported.len() < REPORTED_MAX && !self.reported.contains(&text) {
            tracing::warn!("{text}");
            self.notes.push(text.clone());
            self.reported.insert(text);
        }
    }

    /// What the samplers have to say.
    fn look(&mut self, context: &mut JobsContext<'_>, now: i64) {
        if let Some(slow) = &self.slow {
            slow.collect();
        }
        let at = Instant::now();
        let mut troubles = Vec::new();
        let mut again = Vec::new();
        for (level, running) in &mut self.jobs {
            let id = &running.job.record.job.clone();
            let asked = running.look(at, |problem| {
                if !self.reported.contains(&problem) {
                    troubles.push((id.clone(), problem));
                }
            });
            self.stale |= running.is_changed();
            again.extend(asked.map(|asked| (level.clone(), asked)));
        }
        for (job, problem) in troubles {
            if self.reported.len() < REPORTED_MAX && self.reported.insert(problem.clone()) {
                tracing::warn!(
                    "job {job}: {problem}; its values are gaps until it can be read; reported once for all jobs"
                );
            }
        }
        for (level, asked) in again {
            self.gather(&level, &PartSelection::Parts(&asked));
            self.reconcile(&level, context, now);
        }
    }

    /// Puts the view in place if anything has changed; jobs that have not are the same as before.
    fn show(&mut self, state: &AgentState) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut jobs: Vec<_> = self.jobs.values_mut().map(|running| running.view().0).collect();
        jobs.sort_by(|a, b| a.record.job.cmp(&b.record.job));
        state.set_jobs(JobsView { jobs, rules: self.shown_rules.clone() });
    }

    /// Stops a source at job scope; `None` when it has none. Whether it was running.
    pub fn stop_source(&mut self, name: &str, context: &mut JobsContext<'_>, now: i64) -> Option<bool> {
        let supply = self.supplies.iter_mut().find(|supply| supply.name == name)?;
        let was_running = supply.is_running();
        for running in self.jobs.values() {
            supply.forget(&running.job.place);
        }
        supply.stop();
        self.regather(name, context, now);
        Some(was_running)
    }

    /// Starts a source at job scope, or restarts it if it runs.
    pub fn start_source(
        &mut self,
        name: &'static str,
        built: Result<Box<dyn JobSource>, ConfigError>,
        context: &mut JobsContext<'_>,
        now: i64,
    ) {
        match self.supplies.iter_mut().find(|supply| supply.name == name) {
            Some(supply) => supply.start(built),
            None => {
                let mut supply = JobSourceHandle::new(name, None);
                supply.start(built);
                self.supplies.push(supply);
            }
        }
        self.regather(name, context, now);
    }

    /// Forgets a source that the configuration has no more.
    pub fn remove_source(&mut self, name: &str, context: &mut JobsContext<'_>, now: i64) {
        self.stop_source(name, context, now);
        self.supplies.retain(|supply| supply.name != name);
    }

    fn regather(&mut self, name: &str, context: &mut JobsContext<'_>, now: i64) {
        for level in self.levels() {
            self.gather(&level, &PartSelection::Source(name));
            self.reconcile(&level, context, now);
        }
    }

    /// Whether a source runs at job scope; `None` when it has none.
    pub fn runs_source(&self, name: &str) -> Option<bool> {
        self.supplies.iter().find(|supply| supply.name == name).map(JobSourceHandle::is_running)
    }

    /// What a source had to say at job scope.
    pub fn notes_of(&self, name: &str) -> &[String] {
        self.supplies.iter().find(|supply| supply.name == name).map_or(&[], JobSourceHandle::notes)
    }

    /// The number of jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes all groups from the samplers, because nobody wants to know of jobs any more.
    pub fn dismiss(mut self, context: &mut JobsContext<'_>, timeout: Duration) {
        for (_, mut running) in std::mem::take(&mut self.jobs) {
            self.with_change_set(context, |change_set| running.stop(change_set));
        }
        context.state.set_jobs(JobsView::default());
        self.finish(timeout);
    }

    /// The end of the thread for reads that can take long; groups of the other one end with it.
    pub fn finish(mut self, timeout: Duration) {
        if let Some(slow) = self.slow.take()
            && !slow.join(timeout)
        {
            tracing::warn!("jobs: a read hangs; its thread is left behind");
        }
    }

    /// Sources of the configuration that have a job scope.
    pub fn supplies(config: &crate::config::Config, roots: &Roots) -> Vec<JobSourceHandle> {
        config.sources.iter().filter_map(|source| JobSourceHandle::of(source, roots)).collect()
    }
}

/// What the records call totals, all of which only ever rise.
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

/// Tells the book what was sampled last of a job that has ended: it may be later than what the tracker read.
fn complete(record: &JobRecord, state: &AgentState) {
    let Some(job_table) = state.job_table() else { return };
    let Ok(prefix) = state.prefix.join(&format!("job/{}", record.level)) else { return };
    let mut sampled: BTreeMap<String, f64> = BTreeMap::new();
    let mut at = i64::MIN;
    for group in state.registry.live().into_iter().filter(|group| *group.schema.prefix() == prefix) {
        let sensors = group.schema.sensors();
        if !sensors.iter().any(|sensor| TOTALS.contains(&sensor.name.as_str())) {
            continue;
        }
        let newest = newest_row(state, &group).filter(|(time, _)| record.totals_at.is_none_or(|read| *time > read));
        let Some((time, row)) = newest else { continue };
        for (sensor, value) in sensors.iter().zip(row) {
            if let Some(value) = value.filter(|_| TOTALS.contains(&sensor.name.as_str())) {
                sampled.insert(sensor.name.clone(), scaled(value, sensor).as_f64());
                at = at.max(time);
            }
        }
    }
    if !sampled.is_empty() {
        job_table.complete(record, &sampled, at);
    }
}

/// Tells the book what the counters of a job that has ended came to which are read at intervals only.
fn finish(record: &JobRecord, all: Vec<Last>, state: &AgentState) {
    let (mut totals, mut missing) = (BTreeMap::new(), None);
    for last in all {
        match last {
            Last::Counters(counters) => totals.extend(counters.into_iter().map(|(sensor, value)| {
                let value = scaled(Value::Int(value), &sensor).as_f64();
                (sensor.name, value)
            })),
            Last::Unknown(why) => missing = Some(why),
        }
    }
    if let Some(job_table) = state.job_table().filter(|_| !totals.is_empty() || missing.is_some()) {
        job_table.finish(record, &totals, missing);
    }
}
