//! Which sensors somebody may read, and their newest readings.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use wholegrain_model::{Kind, Pattern, SensorDef, Value};

use super::SENSORS_MAX;
use crate::cache::{newest_row, scaled};
use crate::engine::Group;
use crate::engine::ring::RowCopy;
use crate::jobs::view::JobView;
use crate::jobs::{CallerIdentity, JobsView, Role};
use crate::state::AgentState;

/// What somebody may read.
enum ReadScope {
    Everything,
    /// The sensors of the jobs at these levels.
    Jobs(HashSet<String>),
}

impl ReadScope {
    fn of(who: &CallerIdentity, jobs: &JobsView) -> Self {
        if who.role != Role::User {
            return Self::Everything;
        }
        let owns = |job: &JobView| who.owns(job.record.uid, job.record.user.as_deref());
        let mut levels: HashSet<String> = HashSet::new();
        levels.extend(jobs.jobs.iter().filter(|job| owns(job)).map(|job| job.record.level.clone()));
        // Two jobs of different owners can have one level: then nobody can say whose a sensor is.
        for job in jobs.jobs.iter().filter(|job| !owns(job)) {
            levels.remove(&job.record.level);
        }
        Self::Jobs(levels)
    }

    /// A name below the agent's prefix.
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Jobs(levels) => level(name).is_some_and(|level| levels.contains(level)),
        }
    }
}

/// A path's name below the agent's prefix. Groups of jobs have prefixes of their own, which are below it.
fn below<'a>(path: &'a str, state: &AgentState) -> Option<&'a str> {
    path.strip_prefix(state.prefix.as_str())?.strip_prefix('/')
}

/// The job's level of a name such as `job/4711/cpu/usage`.
fn level(name: &str) -> Option<&str> {
    name.strip_prefix("job/")?.split('/').next()
}

/// Why a pattern that names one sensor is not answered; `None` when it is. One with wildcards is answered with what may be read.
pub fn refusal(pattern: &Pattern, who: &CallerIdentity, state: &AgentState) -> Option<String> {
    let text = pattern.as_str();
    if !pattern.is_literal() || !text.starts_with('/') {
        return None;
    }
    let readable = ReadScope::of(who, &state.jobs());
    let is_readable =
        matches!(readable, ReadScope::Everything) || below(text, state).is_some_and(|name| readable.has(name));
    (!is_readable)
        .then(|| format!("{text} is no sensor of a running job of yours; those are all that you may read here"))
}

/// The sensors that patterns choose of those that may be read, in the order of their paths; no pattern chooses all.
fn choose(
    patterns: &[Pattern],
    who: &CallerIdentity,
    state: &AgentState,
    jobs: &JobsView,
) -> Vec<(String, Arc<Group>, usize)> {
    let readable = ReadScope::of(who, jobs);
    let mut list = Vec::new();
    let is_user = matches!(readable, ReadScope::Jobs(_));
    // Groups of jobs have names that begin so; the node's many others need not be looked at sensor by sensor.
    for group in state.registry.live().into_iter().filter(|group| !is_user || group.name().starts_with("job/")) {
        for index in 0..group.schema.len() {
            let path = group.schema.path(index);
            let is_chosen = patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(&path));
            if is_chosen && below(&path, state).is_some_and(|name| readable.has(name)) {
                list.push((path, group.clone(), index));
            }
        }
    }
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list.dedup_by(|a, b| a.0 == b.0);
    list
}

/// A word that is never empty and has no space in it.
fn word(text: &str) -> std::borrow::Cow<'_, str> {
    match text {
        "" => "-".into(),
        text if text.contains(char::is_whitespace) => text.replace(char::is_whitespace, "_").into(),
        text => text.into(),
    }
}

/// `sensors`: what there is.
pub fn sensors(patterns: &[Pattern], who: &CallerIdentity, state: &AgentState, out: &mut Vec<u8>) {
    let list = choose(patterns, who, state, &state.jobs());
    let count = list.len().min(SENSORS_MAX);
    let _ = writeln!(out, "sensors {count} {}", list.len() - count);
    for (path, group, index) in &list[..count] {
        let sensor = &group.schema.sensors()[*index];
        let kind = if sensor.kind == Kind::Counter { "counter" } else { "gauge" };
        let (interval, description) = (group.ticking.interval.ns(), sensor.description.replace(char::is_control, " "));
        let _ = writeln!(out, "{path} {} {kind} {interval} {description}", word(&sensor.unit));
    }
}

/// What is read of a group: each sensor's place in the row, and among those of the selection.
type GroupColumns = (Arc<Group>, Vec<(usize, usize)>);

/// Sensors chosen once, read often. A sensor keeps its place for as long as the selection is kept; new ones come after it.
#[derive(Debug)]
pub struct SensorWatch {
    patterns: Vec<Pattern>,
    slots: Vec<WatchSlot>,
    places: HashMap<String, usize>,
    plan: Vec<GroupColumns>,
    left: usize,
    /// Groups and jobs when this was chosen.
    changes: u64,
    jobs: Arc<JobsView>,
    row: RowCopy,
}

#[derive(Debug)]
struct WatchSlot {
    path: String,
    unit: String,
    /// Where it is now.
    at: Option<(Arc<Group>, usize)>,
    /// Where it was, as long as there is no sample where it is now.
    before: Option<(Arc<Group>, usize)>,
    reading: LatestReading,
}

/// Time and value; no time when there is no reading, no value for a gap.
type LatestReading = Option<(i64, Option<Value>)>;

fn value_of(bits: Option<u64>, sensor: &SensorDef) -> Option<Value> {
    bits.map(|bits| scaled(Value::from_bits(bits, sensor.value_type), sensor))
}

impl SensorWatch {
    pub fn new(patterns: Vec<Pattern>, who: &CallerIdentity, state: &AgentState) -> Self {
        // In this order: a change while this chooses is seen at the next read.
        let (changes, jobs) = (state.registry.changes(), state.jobs());
        let (slots, places, plan) = (Vec::new(), HashMap::new(), Vec::new());
        let mut watch = Self { patterns, slots, places, plan, left: 0, changes, jobs, row: RowCopy::default() };
        watch.choose(who, state);
        watch
    }

    /// Selects the sensors again if groups or jobs have changed.
    fn follow(&mut self, who: &CallerIdentity, state: &AgentState) {
        let (changes, jobs) = (state.registry.changes(), state.jobs());
        if changes != self.changes || !Arc::ptr_eq(&jobs, &self.jobs) {
            (self.changes, self.jobs) = (changes, jobs);
            self.choose(who, state);
        }
    }

    fn choose(&mut self, who: &CallerIdentity, state: &AgentState) {
        let chosen = choose(&self.patterns, who, state, &self.jobs);
        let mut moved: Vec<Option<(Arc<Group>, usize)>> = self.slots.iter_mut().map(|slot| slot.at.take()).collect();
        self.left = 0;
        for (path, group, index) in chosen {
            let place = match self.places.get(&path) {
                Some(place) => *place,
                None if self.slots.len() < SENSORS_MAX => {
                    let unit = word(&group.schema.sensors()[index].unit).into_owned();
                    self.places.insert(path.clone(), self.slots.len());
                    self.slots.push(WatchSlot { path, unit, at: None, before: None, reading: None });
                    moved.push(None);
                    self.slots.len() - 1
                }
                None => {
                    self.left += 1;
                    continue;
                }
            };
            let slot = &mut self.slots[place];
            match moved[place].take() {
                Some(at) if at.0.id != group.id => slot.before = Some(at),
                _ => {}
            }
            slot.at = Some((group, index));
        }
        self.plan.clear();
        for (place, slot) in self.slots.iter_mut().enumerate() {
            let Some((group, index)) = &slot.at else {
                slot.before = None;
                continue;
            };
            match self.plan.iter_mut().rev().find(|(other, _)| other.id == group.id) {
                Some((_, of_group)) => of_group.push((*index, place)),
                None => self.plan.push((group.clone(), vec![(*index, place)])),
            }
        }
    }

    /// Reads every sensor's newest.
    fn read(&mut self, state: &AgentState) {
        for slot in &mut self.slots {
            slot.reading = None;
        }
        for (group, of_group) in &self.plan {
            let sensors = group.schema.sensors();
            if group.ring.newest(&mut self.row) {
                for (index, place) in of_group {
                    let slot = &mut self.slots[*place];
                    slot.reading = Some((self.row.time, value_of(self.row.get(*index), &sensors[*index])));
                    slot.before = None;
                }
                continue;
            }
            let cached = newest_row(state, group);
            for (index, place) in of_group {
                let slot = &mut self.slots[*place];
                slot.reading = match (&slot.before, &cached) {
                    (Some((group, index)), _) if group.ring.newest(&mut self.row) => {
                        Some((self.row.time, value_of(self.row.get(*index), &group.schema.sensors()[*index])))
                    }
                    (_, Some((time, values))) => {
                        let value = values.get(*index).copied().flatten();
                        Some((*time, value.map(|value| scaled(value, &sensors[*index]))))
                    }
                    _ => None,
                };
            }
        }
    }

    /// `watch`, `list`: its sensors from the place `from` on.
    pub fn list(&mut self, handle: usize, from: usize, who: &CallerIdentity, state: &AgentState, out: &mut Vec<u8>) {
        self.follow(who, state);
        let _ = writeln!(out, "watch {handle} {} {}", self.slots.len(), self.left);
        for slot in self.slots.iter().skip(from) {
            let _ = writeln!(out, "{} {}", slot.path, slot.unit);
        }
    }

    /// `get`: their newest readings.
    pub fn get(&mut self, who: &CallerIdentity, state: &AgentState, out: &mut Vec<u8>) {
        self.follow(who, state);
        self.read(state);
        let _ = writeln!(out, "values {}", self.slots.len());
        for slot in &self.slots {
            reading(slot.reading, out);
            out.push(b'\n');
        }
    }

    /// `newest`: paths, newest readings and units. Whether there was any.
    pub fn newest(&mut self, state: &AgentState, out: &mut Vec<u8>) -> bool {
        self.read(state);
        let _ = writeln!(out, "readings {} {}", self.slots.len(), self.left);
        for slot in &self.slots {
            let _ = write!(out, "{} ", slot.path);
            reading(slot.reading, out);
            let _ = writeln!(out, " {}", slot.unit);
        }
        !self.slots.is_empty()
    }
}

/// `TIME VALUE`, with `-` for what there is not.
fn reading(reading: LatestReading, out: &mut Vec<u8>) {
    let _ = match reading {
        None => write!(out, "- -"),
        Some((time, None)) => write!(out, "{time} -"),
        Some((time, Some(Value::Int(value)))) => write!(out, "{time} {value}"),
        // As short as can be without another number being read from it.
        Some((time, Some(Value::Float(value)))) => write!(out, "{time} {value:?}"),
    };
}
