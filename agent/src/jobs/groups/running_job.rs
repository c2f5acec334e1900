//! One job as it runs: its parts, its groups, what the API shows of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::{Interval, Schema, SchemaError, SensorDef, SensorPath, Value};
use wholegrain_sources::Reader;

use super::super::rules::{JobMetric, JobRules, RuleJob};
use super::super::tracker::Job;
use super::super::{JobView, MetricSetting, MetricView, SampleMode};
use super::capacity::{JobNeed, WaitReason};
use super::change_set::ChangeSet;
use super::counter_moves::{CounterMoves, origins};
use super::part::{PartIntake, RunningPart, SensorListPool};
use super::plan::{GroupKey, PlanStep, PlannedGroups, SensorPlace, diff, plan};
use super::reader::{CombinedReader, RediscoveryRequests};
use super::source::JobSourceHandle;
use crate::cache::newest_row;
use crate::engine::schedule::TickSchedule;
use crate::engine::{Group, GroupStart, GroupStats, Sampled};
use crate::manager::rediscovery::Rediscovery;
use crate::state::AgentState;

/// Over how long it is seen whether the ticks of a group are made: 5 s.
const WATCH: Duration = Duration::from_secs(5);

/// A group that is sampled.
struct SampledGroup {
    group: Arc<Group>,
    places: Vec<SensorPlace>,
    /// The parts that it reads, in the order of the readers.
    parts: Vec<u32>,
    asked: Arc<RediscoveryRequests>,
    watched: TickRatio,
}

/// How many of its ticks a group has made of late.
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

    /// Whether what it shows has changed.
    fn look(&mut self, stats: &GroupStats, now: Instant) -> bool {
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

/// Which of a job's parts are discovered again.
pub enum PartSelection<'a> {
    /// Those of every source, and all of them are other parts: the job is at another place.
    All,
    /// Those of one source.
    Source(&'a str),
    /// Those of the sources of these parts, which have themselves changed.
    Parts(&'a HashSet<u32>),
}

/// What the newest sample of `old` has of the sensors of `schema`.
fn carried(state: &AgentState, old: &Group, schema: &Schema) -> Option<(i64, Vec<Option<Value>>)> {
    let (time, values) = newest_row(state, old)?;
    let known: HashMap<&str, Option<Value>> =
        old.schema.sensors().iter().map(|sensor| sensor.name.as_str()).zip(values).collect();
    Some((time, schema.sensors().iter().map(|sensor| known.get(sensor.name.as_str()).copied().flatten()).collect()))
}

/// A group of a job that nobody samples.
pub struct GroupPreview {
    pub schema: Schema,
    pub interval: Interval,
    pub reader: Box<dyn Reader>,
}

pub struct RunningJob {
    /// As the tracker last reported it.
    pub job: Arc<Job>,
    parts: Vec<RunningPart>,
    next_part: u32,
    moves: CounterMoves,
    live: BTreeMap<GroupKey, SampledGroup>,
    rediscovery: Rediscovery,
    /// Parts that have asked for a new look and wait for it.
    asked: HashSet<u32>,
    view: Option<Arc<JobView>>,
    /// Why it is not read.
    held: Option<WaitReason>,
    /// What it needed when it was last asked for its parts.
    needed: JobNeed,
}

impl RunningJob {
    /// A job that began; nothing of it is read yet.
    pub fn new(job: Arc<Job>) -> Self {
        let (parts, live) = (Vec::new(), BTreeMap::new());
        let (moves, rediscovery, asked) = (CounterMoves::default(), Rediscovery::default(), HashSet::new());
        let (held, needed) = (None, JobNeed::default());
        Self { job, parts, next_part: 0, moves, live, rediscovery, asked, view: None, held, needed }
    }

    /// Why it is not read, if it is not.
    pub fn held(&self) -> Option<WaitReason> {
        self.held
    }

    /// It is not read, and has no parts.
    pub fn hold(&mut self, held: WaitReason) {
        self.needed = self.need();
        (self.held, self.view) = (Some(held), None);
        self.parts.clear();
    }

    /// It may be read.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// What it takes, or would take where it is not read.
    pub fn need(&self) -> JobNeed {
        let uid = self.job.record.uid;
        if self.held.is_some() {
            return JobNeed { uid, ..self.needed };
        }
        let sensors = self.parts.iter().map(|part| part.metrics().count()).sum();
        JobNeed { uid, sensors, files: self.parts.len() }
    }

    pub fn subject(&self) -> RuleJob<'_> {
        RuleJob::of(&self.job.record)
    }

    /// Everything that can be read of it.
    pub fn metrics(&self) -> Vec<JobMetric<'_>> {
        self.parts
            .iter()
            .flat_map(|part| {
                part.metrics()
                    .map(|(_, sensor)| JobMetric { name: sensor.name.as_str(), interval_min: part.interval_min })
            })
            .collect()
    }

    /// Asks the sources what there is to read. What they offer unchanged stays as it is, readers and all.
    pub fn gather(&mut self, supplies: &mut [JobSourceHandle], pool: &mut SensorListPool, again: &PartSelection<'_>) {
        let before = origins(&self.parts);
        let mut old = std::mem::take(&mut self.parts);
        let renewed: HashSet<&str> = match again {
            PartSelection::Parts(asked) => {
                old.iter().filter(|part| asked.contains(&part.id)).map(|part| part.source).collect()
            }
            PartSelection::Source(name) => HashSet::from([*name]),
            PartSelection::All => supplies.iter().map(|supply| supply.name).collect(),
        };
        let replaced = |part: &RunningPart| match again {
            PartSelection::All | PartSelection::Source(_) => true,
            PartSelection::Parts(asked) => asked.contains(&part.id),
        };
        let mut intake = PartIntake::new(pool, &mut self.next_part);
        for supply in supplies {
            let mine: Vec<RunningPart> = old.extract_if(.., |part| part.source == supply.name).collect();
            if !renewed.contains(supply.name) {
                mine.into_iter().for_each(|part| intake.keep(part));
                continue;
            }
            let mut mine: Vec<RunningPart> = mine.into_iter().filter(|part| !replaced(part)).collect();
            let (name, offered) = (supply.name, supply.parts(&self.job.place));
            for part in offered {
                let before = mine.iter().position(|old| old.name == part.name).map(|at| mine.swap_remove(at));
                intake.take(name, part, before, &mut |text| supply.note(text));
            }
        }
        self.parts = intake.into_parts();
        self.moves.note(before, &self.parts);
    }

    /// Puts in what the rules say; whether that changes anything.
    pub fn resolve(&mut self, rules: &JobRules) -> bool {
        let changed = self.parts.iter_mut().filter_map(|part| part.set(|metric| rules.resolve(metric)).then_some(()));
        // Counted, not `any`: each is to be set.
        let changed = changed.count() > 0;
        if changed {
            self.view = None;
        }
        changed
    }

    /// Makes the groups so that they are as wanted; whether anything changed.
    pub fn replan(&mut self, change_set: &mut ChangeSet<'_>) -> bool {
        let running: PlannedGroups = self.live.iter().map(|(key, live)| (key.clone(), live.places.clone())).collect();
        let wanted = plan(self.parts.iter().map(RunningPart::offer));
        let looks_same = |key: &GroupKey| {
            let now = self.live[key].group.schema.sensors();
            now.len() == wanted[key].len()
                && now.iter().zip(&wanted[key]).all(|(now, place)| *now == *self.sensor(*place))
        };
        let steps = diff(&running, &wanted, looks_same);
        for step in &steps {
            self.make(step, &wanted, change_set);
        }
        if steps.is_empty() {
            return false;
        }
        self.view = None;
        change_set.carry_out();
        true
    }

    fn sensor(&self, place: SensorPlace) -> &SensorDef {
        // A place is only ever of a part that is there: groups are planned from the parts.
        let part = self.parts.iter().find(|part| part.id == place.part).expect("the part of a planned place");
        &part.sensors[place.sensor as usize]
    }

    fn make(&mut self, step: &PlanStep, wanted: &PlannedGroups, change_set: &mut ChangeSet<'_>) {
        match step {
            PlanStep::Add(key, beside) => {
                let start = beside.as_ref().and_then(|beside| self.live.get(beside)).map(|live| live.group.id);
                let start = start.map_or(GroupStart::AtOnce, GroupStart::InStepWith);
                let Some(group) = self.group(key, &wanted[key], None, change_set) else { return };
                let (reader, live) = self.open(group.clone(), &wanted[key]);
                change_set.change(key.blocking).add(Sampled::new(group.clone(), reader), start);
                change_set.added.push(group);
                self.live.insert(key.clone(), live);
            }
            PlanStep::Rename(from, to) => {
                let Some(mut live) = self.live.remove(from) else { return };
                let Some(group) = self.group(to, &live.places, Some(&live.group), change_set) else {
                    return self.end(live, from, change_set);
                };
                change_set.change(to.blocking).retime(live.group.id, group.clone(), true);
                change_set.retired.push(live.group.id);
                change_set.added.push(group.clone());
                live.watched = TickRatio::new(&group);
                live.group = group;
                self.live.insert(to.clone(), live);
            }
            PlanStep::Reread(key) => {
                let Some(old) = self.live.remove(key) else { return };
                let (reader, live) = self.open(old.group.clone(), &wanted[key]);
                change_set.change(key.blocking).replace(old.group.id, Sampled::new(old.group, reader), true);
                self.live.insert(key.clone(), SampledGroup { watched: old.watched, ..live });
            }
            PlanStep::Reshape(key) => {
                let Some(old) = self.live.remove(key) else { return };
                let Some(group) = self.group(key, &wanted[key], Some(&old.group), change_set) else {
                    return self.end(old, key, change_set);
                };
                let (reader, live) = self.open(group.clone(), &wanted[key]);
                change_set.change(key.blocking).replace(old.group.id, Sampled::new(group.clone(), reader), true);
                change_set.retired.push(old.group.id);
                change_set.added.push(group);
                self.live.insert(key.clone(), SampledGroup { watched: old.watched, ..live });
            }
            PlanStep::Remove(key) => {
                if let Some(live) = self.live.remove(key) {
                    self.end(live, key, change_set);
                }
            }
        }
    }

    fn end(&self, live: SampledGroup, key: &GroupKey, change_set: &mut ChangeSet<'_>) {
        change_set.change(key.blocking).remove(live.group.id);
        change_set.retired.push(live.group.id);
    }

    /// A group for these sensors; `old` is the one whose place it takes.
    fn group(
        &self,
        key: &GroupKey,
        places: &[SensorPlace],
        old: Option<&Arc<Group>>,
        change_set: &mut ChangeSet<'_>,
    ) -> Option<Arc<Group>> {
        let name = key.name(&self.job.record.level);
        if key.blocking && !change_set.can_block() {
            return None;
        }
        let same = old.filter(|old| old.name() == name);
        if same.is_none() && change_set.state.registry.find(&name).is_some() {
            change_set.report(format!("group {name} is left out: there is one of that name already"));
            return None;
        }
        let prefix = change_set.state.prefix.join(&format!("job/{}", self.job.record.level));
        let sensors = places.iter().map(|place| self.sensor(*place).clone()).collect();
        let schema = match prefix.map(|prefix| Schema::new(prefix, name, sensors)) {
            Ok(Ok(schema)) => schema,
            Ok(Err(error)) => return change_set.left_out(&error),
            Err(error) => return change_set.left_out(&error),
        };
        let schema = change_set.shapes.shared(key, schema);
        let accumulated = match change_set.shapes.accumulated(key, &schema) {
            Ok(accumulated) => accumulated,
            Err(error) => return change_set.left_out(&error),
        };
        let ticking = TickSchedule { interval: key.interval, offset: Default::default(), synchronous: true };
        let (agent, send_interval) = (&change_set.state.name, change_set.send_interval);
        let stats = same.map(|old| old.stats.clone()).unwrap_or_default();
        let carried = old.and_then(|old| carried(change_set.state, old, &schema));
        let group = Group::new(super::SOURCE, agent, schema, ticking, key.blocking, send_interval, stats);
        Some(Arc::new(group.accumulating(accumulated).carrying(carried)))
    }

    /// A reader for these places of the parts.
    fn open(&self, group: Arc<Group>, places: &[SensorPlace]) -> (Box<dyn Reader>, SampledGroup) {
        let (reader, parts, asked) = self.reader(places);
        let watched = TickRatio::new(&group);
        (reader, SampledGroup { group, places: places.to_vec(), parts, asked, watched })
    }

    /// The same, with the parts that it reads and where they ask for a new look.
    fn reader(&self, places: &[SensorPlace]) -> (Box<dyn Reader>, Vec<u32>, Arc<RediscoveryRequests>) {
        let (mut readers, mut parts) = (Vec::new(), Vec::new());
        for part in &self.parts {
            let mut slots = vec![None; part.sensors.len()];
            for (row, place) in places.iter().enumerate().filter(|(_, place)| place.part == part.id) {
                slots[place.sensor as usize] = Some(row as u32);
            }
            if slots.iter().any(Option::is_some) {
                readers.push((part.open)(&slots));
                parts.push(part.id);
            }
        }
        let moved = places.iter().enumerate().filter_map(|(row, place)| {
            let moved = self.moves.of(&self.sensor(*place).name)?;
            Some((row, moved))
        });
        let asked = Arc::new(RediscoveryRequests::default());
        (Box::new(CombinedReader::new(readers, asked.clone()).moved(moved.collect())), parts, asked)
    }

    /// The groups that there would be, each with what reads it, and what is in the way of others.
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
        plan(self.parts.iter().map(RunningPart::offer)).iter().map(one).collect()
    }

    /// Takes all its groups from the samplers.
    pub fn stop(&mut self, change_set: &mut ChangeSet<'_>) {
        for (key, live) in std::mem::take(&mut self.live) {
            self.end(live, &key, change_set);
        }
        change_set.carry_out();
    }

    /// The parts whose readers asked for a rediscovery that is due now. `report` gets each problem.
    pub fn look(&mut self, now: Instant, mut report: impl FnMut(String)) -> Option<HashSet<u32>> {
        for live in self.live.values_mut() {
            let stats = &live.group.stats;
            if stats.layout_changed.swap(false, Ordering::AcqRel) {
                let bits = live.asked.take();
                let parts = live.parts.iter().enumerate().filter(|(at, _)| bits & RediscoveryRequests::bit(*at) != 0);
                self.asked.extend(parts.map(|(_, part)| *part));
            }
            if let Some(problem) = stats.problem.get() {
                report(problem.to_string());
            }
            if live.watched.look(stats, now) {
                self.view = None;
            }
        }
        self.rediscovery.is_due(!self.asked.is_empty(), now).then(|| std::mem::take(&mut self.asked))
    }

    /// The tracker has reported a change of the job.
    pub fn update_job(&mut self, job: Arc<Job>) {
        self.job = job;
        self.view = None;
    }

    /// What the API shows; built again only after a change. The second value says whether it was.
    pub fn view(&mut self) -> (Arc<JobView>, bool) {
        if let Some(view) = &self.view {
            return (view.clone(), false);
        }
        let metrics =
            self.parts.iter().flat_map(|part| part.metrics().map(|(index, sensor)| self.metric(part, index, sensor)));
        let view = Arc::new(JobView {
            record: self.job.record.clone(),
            place: self.job.place.clone(),
            held: self.held.map(WaitReason::text),
            metrics: metrics.collect(),
        });
        self.view = Some(view.clone());
        (view, true)
    }

    /// Whether its view has changed since it was last asked for.
    pub fn is_changed(&self) -> bool {
        self.view.is_none()
    }

    fn metric(&self, part: &RunningPart, index: usize, sensor: &SensorDef) -> MetricView {
        let rate = match &part.settings[index] {
            MetricSetting::On(rate) => Some(rate),
            MetricSetting::Off => None,
        };
        let live = rate.and_then(|rate| self.live.get(&GroupKey::of(rate, part.blocking)));
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
            rule: part.rules[index],
            group: live.map(|live| live.group.name().to_owned()),
            achieved: live.and_then(|live| live.watched.percent).map(|percent| f64::from(percent) / 100.0),
        }
    }
}
