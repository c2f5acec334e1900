//! A running job: its metric sets, its groups, and its view for the API.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::{Interval, Schema, SchemaError, SensorDef, SensorPath};
use wholegrain_sources::Reader;

use super::super::rules::{JobMetric, JobRules, RuleJob};
use super::super::tracker::Job;
use super::super::{JobView, MetricSetting, MetricView, SampleMode};
use super::capacity::{JobNeed, WaitReason};
use super::counter_moves::{CounterMoves, origins};
use super::group_builder::GroupBuilder;
use super::plan::{GroupKey, PlanStep, PlannedGroups, SensorPlace, diff, plan};
use super::reader::{CombinedReader, RediscoveryRequests};
use super::running_set::{RunningSet, SensorListPool, SetIntake};
use super::source::JobSourceHandle;
use crate::engine::{Group, GroupStart, GroupStats};
use crate::reconcile::GroupChanges;
use crate::rediscovery::Rediscovery;

/// The time over which the fraction of ticks with a read is measured: 5 s.
const WATCH: Duration = Duration::from_secs(5);

/// A group that is sampled.
struct SampledGroup {
    group: Arc<Group>,
    places: Vec<SensorPlace>,
    /// The metric sets that it reads, in the order of the readers.
    sets: Vec<u32>,
    asked: Arc<RediscoveryRequests>,
    ticks: TickRatio,
}

/// The fraction of a group's recent ticks that were read.
struct TickRatio {
    from: Instant,
    samples: u64,
    missed: u64,
    percent: Option<u8>,
}

impl TickRatio {
    fn new(group: &Group) -> Self {
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        Self {
            from: Instant::now(),
            samples: load(&group.stats.samples),
            missed: load(&group.stats.missed),
            percent: None,
        }
    }

    /// Measures again if it is time. Whether the result has changed.
    fn update(&mut self, stats: &GroupStats, now: Instant) -> bool {
        if now.saturating_duration_since(self.from) < WATCH {
            return false;
        }
        let (samples, missed) = (stats.samples.load(Ordering::Relaxed), stats.missed.load(Ordering::Relaxed));
        let (made, lost) = (samples.saturating_sub(self.samples), missed.saturating_sub(self.missed));
        (self.from, self.samples, self.missed) = (now, samples, missed);
        let percent = (made * 100).checked_div(made + lost).map(|percent| percent as u8).or(self.percent);
        percent != std::mem::replace(&mut self.percent, percent)
    }
}

/// The metric sets of a job that are discovered again.
pub enum SetSelection<'a> {
    /// Those of every source, as new metric sets: the job has moved to other directories.
    All,
    /// Those of one source.
    Source(&'a str),
    /// These metric sets, which have changed.
    Sets(&'a HashSet<u32>),
}

/// A group of a job that is not sampled.
pub struct GroupPreview {
    pub schema: Schema,
    pub interval: Interval,
    pub reader: Box<dyn Reader>,
}

pub struct RunningJob {
    /// As the tracker last reported it.
    pub job: Arc<Job>,
    sets: Vec<RunningSet>,
    next_set: u32,
    moves: CounterMoves,
    live: BTreeMap<GroupKey, SampledGroup>,
    rediscovery: Rediscovery,
    /// Metric sets that wait for their rediscovery.
    asked: HashSet<u32>,
    view: Option<Arc<JobView>>,
    /// Why it is not read.
    wait_reason: Option<WaitReason>,
    /// Its need at the last discovery of its metric sets.
    needed: JobNeed,
}

impl RunningJob {
    /// A job that is not read yet.
    pub fn new(job: Arc<Job>) -> Self {
        let (sets, live) = (Vec::new(), BTreeMap::new());
        let (moves, rediscovery, asked) = (CounterMoves::default(), Rediscovery::default(), HashSet::new());
        let (wait_reason, needed) = (None, JobNeed::default());
        Self { job, sets, next_set: 0, moves, live, rediscovery, asked, view: None, wait_reason, needed }
    }

    /// Why the job is not read, if it is not.
    pub fn wait_reason(&self) -> Option<WaitReason> {
        self.wait_reason
    }

    /// Marks the job as not read, and drops its metric sets.
    pub fn wait(&mut self, wait_reason: WaitReason) {
        self.needed = self.need();
        (self.wait_reason, self.view) = (Some(wait_reason), None);
        self.sets.clear();
    }

    /// Marks the job as read.
    pub fn release(&mut self) {
        self.wait_reason = None;
    }

    /// The sensors and files that it needs, or would need if it is not read.
    pub fn need(&self) -> JobNeed {
        let uid = self.job.record.uid;
        if self.wait_reason.is_some() {
            return JobNeed { uid, ..self.needed };
        }
        let sensors = self.sets.iter().map(|set| set.metrics().count()).sum();
        JobNeed { uid, sensors, files: self.sets.len() }
    }

    pub fn subject(&self) -> RuleJob<'_> {
        RuleJob::of(&self.job.record)
    }

    pub fn metrics(&self) -> Vec<JobMetric<'_>> {
        self.sets
            .iter()
            .flat_map(|set| {
                set.metrics()
                    .map(|(_, sensor)| JobMetric { name: sensor.name.as_str(), interval_min: set.interval_min })
            })
            .collect()
    }

    /// Discovers the metric sets. An unchanged metric set keeps its readers.
    pub fn gather(&mut self, sources: &mut [JobSourceHandle], pool: &mut SensorListPool, again: &SetSelection<'_>) {
        let before = origins(&self.sets);
        let mut old = std::mem::take(&mut self.sets);
        let renewed: HashSet<&str> = match again {
            SetSelection::Sets(asked) => {
                old.iter().filter(|set| asked.contains(&set.id)).map(|set| set.source).collect()
            }
            SetSelection::Source(name) => HashSet::from([*name]),
            SetSelection::All => sources.iter().map(|source| source.name).collect(),
        };
        let replaced = |set: &RunningSet| match again {
            SetSelection::All | SetSelection::Source(_) => true,
            SetSelection::Sets(asked) => asked.contains(&set.id),
        };
        let mut intake = SetIntake::new(pool, &mut self.next_set);
        for source in sources {
            let mine: Vec<RunningSet> = old.extract_if(.., |set| set.source == source.name).collect();
            if !renewed.contains(source.name) {
                mine.into_iter().for_each(|set| intake.keep(set));
                continue;
            }
            let mut mine: Vec<RunningSet> = mine.into_iter().filter(|set| !replaced(set)).collect();
            let (name, offered) = (source.name, source.metric_sets(&self.job.cgroups));
            for set in offered {
                let before = mine.iter().position(|old| old.name == set.name).map(|at| mine.swap_remove(at));
                intake.take(name, set, before, &mut |text| source.note(text));
            }
        }
        self.sets = intake.into_sets();
        self.moves.note(before, &self.sets);
    }

    /// Applies the rules to every metric set. Metrics in `taken` are off: another group has their sensors. Whether a setting has changed.
    pub fn resolve(&mut self, rules: &JobRules, taken: &BTreeMap<String, String>) -> bool {
        let resolve = |metric: &str| {
            let (setting, rule) = rules.resolve(metric);
            (if taken.contains_key(metric) { MetricSetting::Off } else { setting }, rule)
        };
        let changed = self.sets.iter_mut().filter_map(|set| set.set(resolve).then_some(()));
        // Counted, not `any`: every metric set has to be updated.
        let changed = changed.count() > 0;
        if changed {
            self.view = None;
        }
        changed
    }

    /// Collects the steps from the running groups to those that the settings ask for. Whether there are any.
    pub fn replan(&mut self, builder: &mut GroupBuilder<'_>) -> bool {
        let running: PlannedGroups = self.live.iter().map(|(key, live)| (key.clone(), live.places.clone())).collect();
        let planned = plan(self.sets.iter().map(RunningSet::offer));
        let has_same_sensors = |key: &GroupKey| {
            let now = self.live[key].group.schema.sensors();
            now.len() == planned[key].len()
                && now.iter().zip(&planned[key]).all(|(now, place)| *now == *self.sensor(*place))
        };
        let steps = diff(&running, &planned, has_same_sensors);
        for step in &steps {
            self.take_step(step, &planned, builder);
        }
        if !steps.is_empty() {
            self.view = None;
        }
        !steps.is_empty()
    }

    fn sensor(&self, place: SensorPlace) -> &SensorDef {
        // A place always belongs to an existing metric set, because groups are planned from the metric sets.
        let set = self.sets.iter().find(|set| set.id == place.set).expect("the metric set of a planned place");
        &set.sensors[place.sensor as usize]
    }

    fn take_step(&mut self, step: &PlanStep, planned: &PlannedGroups, builder: &mut GroupBuilder<'_>) {
        match step {
            PlanStep::Add(key, beside) => {
                let start = beside.as_ref().and_then(|beside| self.live.get(beside)).map(|live| live.group.id);
                let start = start.map_or(GroupStart::AtOnce, GroupStart::InStepWith);
                let Some(group) = self.group(key, &planned[key], None, builder) else { return };
                let (reader, live) = self.open(group.clone(), &planned[key]);
                builder.changes.add(group, reader, start);
                self.live.insert(key.clone(), live);
            }
            PlanStep::Rename(from, to) => {
                let Some(mut live) = self.live.remove(from) else { return };
                let Some(group) = self.group(to, &live.places, Some(&live.group), builder) else {
                    return builder.changes.remove(&live.group);
                };
                builder.changes.retime(&live.group, group.clone(), true);
                live.ticks = TickRatio::new(&group);
                live.group = group;
                self.live.insert(to.clone(), live);
            }
            PlanStep::Reread(key) => {
                let Some(old) = self.live.remove(key) else { return };
                let (reader, live) = self.open(old.group.clone(), &planned[key]);
                builder.changes.reopen(&old.group, reader);
                self.live.insert(key.clone(), SampledGroup { ticks: old.ticks, ..live });
            }
            PlanStep::Reshape(key) => {
                let Some(old) = self.live.remove(key) else { return };
                let Some(group) = self.group(key, &planned[key], Some(&old.group), builder) else {
                    return builder.changes.remove(&old.group);
                };
                let (reader, live) = self.open(group.clone(), &planned[key]);
                builder.changes.replace(&old.group, group, reader, true);
                self.live.insert(key.clone(), SampledGroup { ticks: old.ticks, ..live });
            }
            PlanStep::Remove(key) => {
                if let Some(live) = self.live.remove(key) {
                    builder.changes.remove(&live.group);
                }
            }
        }
    }

    /// A group of these sensors; `old` is the one that it replaces.
    fn group(
        &self,
        key: &GroupKey,
        places: &[SensorPlace],
        old: Option<&Arc<Group>>,
        builder: &mut GroupBuilder<'_>,
    ) -> Option<Arc<Group>> {
        let sensors = places.iter().map(|place| self.sensor(*place).clone()).collect();
        builder.group(&self.job.record.level, key, sensors, old)
    }

    /// A reader for these places of the metric sets.
    fn open(&self, group: Arc<Group>, places: &[SensorPlace]) -> (Box<dyn Reader>, SampledGroup) {
        let (reader, sets, asked) = self.reader(places);
        let ticks = TickRatio::new(&group);
        (reader, SampledGroup { group, places: places.to_vec(), sets, asked, ticks })
    }

    /// A reader, its metric sets, and their requests for a rediscovery.
    fn reader(&self, places: &[SensorPlace]) -> (Box<dyn Reader>, Vec<u32>, Arc<RediscoveryRequests>) {
        let (mut readers, mut sets) = (Vec::new(), Vec::new());
        for set in &self.sets {
            let mut slots = vec![None; set.sensors.len()];
            for (row, place) in places.iter().enumerate().filter(|(_, place)| place.set == set.id) {
                slots[place.sensor as usize] = Some(row as u32);
            }
            if slots.iter().any(Option::is_some) {
                readers.push((set.open)(&slots));
                sets.push(set.id);
            }
        }
        let moved = places.iter().enumerate().filter_map(|(row, place)| {
            let moved = self.moves.of(&self.sensor(*place).name)?;
            Some((row, moved))
        });
        let asked = Arc::new(RediscoveryRequests::default());
        (Box::new(CombinedReader::new(readers, asked.clone()).moved(moved.collect())), sets, asked)
    }

    /// The groups that the job would have, and the errors of those that cannot be.
    pub fn preview(&self, prefix: &SensorPath) -> Vec<Result<GroupPreview, SchemaError>> {
        let one = |(key, places): (&GroupKey, &Vec<SensorPlace>)| {
            let level = &self.job.record.level;
            let sensors = places
                .iter()
                .map(|place| self.sensor(*place))
                .map(|sensor| SensorDef { name: format!("job/{level}/{}", sensor.name), ..sensor.clone() });
            let schema = Schema::new(prefix.clone(), key.name(level), sensors.collect())?;
            Ok(GroupPreview { schema, interval: key.interval, reader: self.reader(places).0 })
        };
        plan(self.sets.iter().map(RunningSet::offer)).iter().map(one).collect()
    }

    /// Removes all its groups.
    pub fn stop(&mut self, changes: &mut GroupChanges) {
        for live in std::mem::take(&mut self.live).into_values() {
            changes.remove(&live.group);
        }
    }

    /// The metric sets whose requested rediscovery is due now. `report` gets each problem.
    pub fn take_requests(&mut self, now: Instant, mut report: impl FnMut(String)) -> Option<HashSet<u32>> {
        for live in self.live.values_mut() {
            let stats = &live.group.stats;
            if stats.layout_changed.swap(false, Ordering::AcqRel) {
                let bits = live.asked.take();
                let sets = live.sets.iter().enumerate().filter(|(at, _)| bits & RediscoveryRequests::bit(*at) != 0);
                self.asked.extend(sets.map(|(_, set)| *set));
            }
            if let Some(problem) = stats.problem.get() {
                report(problem.to_string());
            }
            if live.ticks.update(stats, now) {
                self.view = None;
            }
        }
        self.rediscovery.is_due(!self.asked.is_empty(), now).then(|| std::mem::take(&mut self.asked))
    }

    /// Takes a change that the tracker has reported.
    pub fn update_job(&mut self, job: Arc<Job>) {
        self.job = job;
        self.view = None;
    }

    /// The view, rebuilt only after a change. The second value says whether it was rebuilt.
    pub fn view(&mut self) -> (Arc<JobView>, bool) {
        if let Some(view) = &self.view {
            return (view.clone(), false);
        }
        let metrics =
            self.sets.iter().flat_map(|set| set.metrics().map(|(index, sensor)| self.metric(set, index, sensor)));
        let view = Arc::new(JobView {
            record: self.job.record.clone(),
            cgroups: self.job.cgroups.clone(),
            wait_reason: self.wait_reason.map(WaitReason::text),
            metrics: metrics.collect(),
        });
        self.view = Some(view.clone());
        (view, true)
    }

    /// Whether the view has to be rebuilt.
    pub fn is_changed(&self) -> bool {
        self.view.is_none()
    }

    fn metric(&self, set: &RunningSet, index: usize, sensor: &SensorDef) -> MetricView {
        let rate = match &set.settings[index] {
            MetricSetting::On(rate) => Some(rate),
            MetricSetting::Off => None,
        };
        let live = rate.and_then(|rate| self.live.get(&GroupKey::of(rate, set.blocking)));
        let window = rate.and_then(|rate| match &rate.mode {
            SampleMode::Raw => None,
            SampleMode::Accumulate(accumulation) => Some(accumulation.window.ns()),
        });
        MetricView {
            name: sensor.name.clone(),
            unit: sensor.unit.clone(),
            kind: sensor.kind,
            interval_ns: rate.map(|rate| rate.interval.ns()),
            window_ns: window,
            rule: set.rules[index],
            group: live.map(|live| live.group.name().to_owned()),
            achieved: live.and_then(|live| live.ticks.percent).map(|percent| f64::from(percent) / 100.0),
        }
    }
}
