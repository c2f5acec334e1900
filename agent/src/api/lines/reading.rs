//! The sensors that a caller may read, and their newest readings.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use wholegrain_model::{Kind, Pattern, SensorDef, Value};

use super::limits::SENSORS_MAX;
use crate::api::context::ApiContext;
use crate::api::scope::AccessScope;
use crate::engine::Group;
use crate::engine::ring::RowCopy;
use crate::jobs::{CallerIdentity, JobsView};
use crate::readings::{matches_any, scaled};

/// Why a pattern that names one sensor is refused. A pattern with wildcards is never refused; it selects what the caller may read.
pub fn refusal(pattern: &Pattern, who: &CallerIdentity, context: &ApiContext) -> Option<String> {
    let text = pattern.as_str();
    if !pattern.is_literal() || !text.starts_with('/') {
        return None;
    }
    let scope = AccessScope::of(who, &context.jobs.get(), &context.identity.prefix);
    (!scope.includes(text))
        .then(|| format!("{text} is not a sensor of a running job of yours; you may read only those"))
}

/// The sensors that patterns select among the readable ones, ordered by path; an empty list selects all.
fn choose(
    patterns: &[Pattern],
    who: &CallerIdentity,
    context: &ApiContext,
    jobs: &JobsView,
) -> Vec<(String, Arc<Group>, usize)> {
    let scope = AccessScope::of(who, jobs, &context.identity.prefix);
    let mut list = Vec::new();
    let is_user = matches!(scope, AccessScope::Jobs { .. });
    // Only groups of jobs have names that begin so; the node's many sensors need no check.
    for group in context.registry.live().into_iter().filter(|group| !is_user || group.name().starts_with("job/")) {
        for index in 0..group.schema.len() {
            let path = group.schema.path(index);
            if matches_any(patterns, &path) && scope.includes(&path) {
                list.push((path, group.clone(), index));
            }
        }
    }
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list.dedup_by(|a, b| a.0 == b.0);
    list
}

/// The text without spaces, or `-` if it is empty.
fn word(text: &str) -> std::borrow::Cow<'_, str> {
    match text {
        "" => "-".into(),
        text if text.contains(char::is_whitespace) => text.replace(char::is_whitespace, "_").into(),
        text => text.into(),
    }
}

pub fn sensors(patterns: &[Pattern], who: &CallerIdentity, context: &ApiContext, out: &mut Vec<u8>) {
    let list = choose(patterns, who, context, &context.jobs.get());
    let count = list.len().min(SENSORS_MAX);
    let _ = writeln!(out, "sensors {count} {}", list.len() - count);
    for (path, group, index) in &list[..count] {
        let sensor = &group.schema.sensors()[*index];
        let kind = if sensor.kind == Kind::Counter { "counter" } else { "gauge" };
        let (interval, description) = (group.ticking.interval.ns(), sensor.description.replace(char::is_control, " "));
        let _ = writeln!(out, "{path} {} {kind} {interval} {description}", word(&sensor.unit));
    }
}

/// A group with the sensors to read: their index in the sample and in the selection.
type GroupColumns = (Arc<Group>, Vec<(usize, usize)>);

/// A selection of sensors that is read often. A sensor keeps its index; new sensors are appended.
#[derive(Debug)]
pub struct SensorWatch {
    patterns: Vec<Pattern>,
    slots: Vec<WatchSlot>,
    places: HashMap<String, usize>,
    plan: Vec<GroupColumns>,
    left: usize,
    /// Groups and jobs at the time of the selection.
    changes: u64,
    jobs: Arc<JobsView>,
    row: RowCopy,
}

#[derive(Debug)]
struct WatchSlot {
    path: String,
    unit: String,
    /// The sensor's present group and index.
    at: Option<(Arc<Group>, usize)>,
    /// Its former group and index, while the present group has no sample.
    before: Option<(Arc<Group>, usize)>,
    reading: LatestReading,
}

/// Time and value; `None` without a reading, no value for a gap.
type LatestReading = Option<(i64, Option<Value>)>;

fn value_of(bits: Option<u64>, sensor: &SensorDef) -> Option<Value> {
    bits.map(|bits| scaled(Value::from_bits(bits, sensor.value_type), sensor))
}

impl SensorWatch {
    pub fn new(patterns: Vec<Pattern>, who: &CallerIdentity, context: &ApiContext) -> Self {
        // In this order: a change during the selection is detected at the next read.
        let (changes, jobs) = (context.registry.changes(), context.jobs.get());
        let (slots, places, plan) = (Vec::new(), HashMap::new(), Vec::new());
        let mut watch = Self { patterns, slots, places, plan, left: 0, changes, jobs, row: RowCopy::default() };
        watch.choose(who, context);
        watch
    }

    /// Selects the sensors again if groups or jobs have changed.
    fn follow(&mut self, who: &CallerIdentity, context: &ApiContext) {
        let (changes, jobs) = (context.registry.changes(), context.jobs.get());
        if changes != self.changes || !Arc::ptr_eq(&jobs, &self.jobs) {
            (self.changes, self.jobs) = (changes, jobs);
            self.choose(who, context);
        }
    }

    fn choose(&mut self, who: &CallerIdentity, context: &ApiContext) {
        let chosen = choose(&self.patterns, who, context, &self.jobs);
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

    /// Reads the newest value of every sensor.
    fn read(&mut self, context: &ApiContext) {
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
            let cached = context.readings.newest_row(group);
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

    /// `watch`, `list`: the sensors from index `from` on.
    pub fn list(&mut self, handle: usize, from: usize, who: &CallerIdentity, context: &ApiContext, out: &mut Vec<u8>) {
        self.follow(who, context);
        let _ = writeln!(out, "watch {handle} {} {}", self.slots.len(), self.left);
        for slot in self.slots.iter().skip(from) {
            let _ = writeln!(out, "{} {}", slot.path, slot.unit);
        }
    }

    /// `get`: the newest readings.
    pub fn get(&mut self, who: &CallerIdentity, context: &ApiContext, out: &mut Vec<u8>) {
        self.follow(who, context);
        self.read(context);
        let _ = writeln!(out, "values {}", self.slots.len());
        for slot in &self.slots {
            reading(slot.reading, out);
            out.push(b'\n');
        }
    }

    /// `newest`: paths, newest readings and units. Whether there was any sensor.
    pub fn newest(&mut self, context: &ApiContext, out: &mut Vec<u8>) -> bool {
        self.read(context);
        let _ = writeln!(out, "readings {} {}", self.slots.len(), self.left);
        for slot in &self.slots {
            let _ = write!(out, "{} ", slot.path);
            reading(slot.reading, out);
            let _ = writeln!(out, " {}", slot.unit);
        }
        !self.slots.is_empty()
    }
}

/// `TIME VALUE`, with `-` for a missing one.
fn reading(reading: LatestReading, out: &mut Vec<u8>) {
    let _ = match reading {
        None => write!(out, "- -"),
        Some((time, None)) => write!(out, "{time} -"),
        Some((time, Some(Value::Int(value)))) => write!(out, "{time} {value}"),
        // The shortest text that parses to the same number.
        Some((time, Some(Value::Float(value)))) => write!(out, "{time} {value:?}"),
    };
}
