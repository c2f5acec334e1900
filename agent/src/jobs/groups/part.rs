//! The parts of a job: what can be read of it, and the settings in force.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wholegrain_model::name::check_relative;
use wholegrain_model::{Interval, Kind, SensorDef};
use wholegrain_sources::job::{JobPart, OpenPart};

use super::super::MetricSetting;
use super::plan::PartOffer;

/// A part of one job.
pub struct RunningPart {
    /// Its number within the job; a part that takes its place gets another.
    pub id: u32,
    pub source: &'static str,
    /// The part's name within the source.
    pub name: String,
    /// What it can give; in memory once for all jobs.
    pub sensors: Arc<[SensorDef]>,
    pub interval_min: Interval,
    /// Whether a read can take long.
    pub blocking: bool,
    pub open: OpenPart,
    /// The setting of each sensor, with its shortest interval applied.
    pub settings: Vec<MetricSetting>,
    /// The rule that says so.
    pub rules: Vec<u64>,
    /// Sensors that are left out, for their name is not one or is another part's.
    hidden: Vec<usize>,
}

impl RunningPart {
    pub fn offer(&self) -> PartOffer<'_> {
        PartOffer { part: self.id, blocking: self.blocking, settings: &self.settings }
    }

    /// The sensors that are there, with their places.
    pub fn metrics(&self) -> impl Iterator<Item = (usize, &SensorDef)> {
        self.sensors.iter().enumerate().filter(|(index, _)| !self.hidden.contains(index))
    }

    /// The counters that are there.
    pub fn counters(&self) -> impl Iterator<Item = &str> {
        self.metrics().filter(|(_, sensor)| sensor.kind == Kind::Counter).map(|(_, sensor)| sensor.name.as_str())
    }

    /// Whether the other can be read in its place without anybody seeing a difference.
    pub fn is_like(&self, other: &RunningPart) -> bool {
        let same = |part: &RunningPart| (part.source, part.interval_min, part.blocking);
        same(self) == same(other)
            && self.name == other.name
            && self.hidden == other.hidden
            && self.sensors == other.sensors
    }

    /// Puts in what `resolve` says of each sensor; whether that changes anything.
    pub fn set(&mut self, resolve: impl Fn(&str) -> (MetricSetting, u64)) -> bool {
        let mut changed = false;
        for index in 0..self.sensors.len() {
            if self.hidden.contains(&index) {
                continue;
            }
            let (setting, rule) = resolve(&self.sensors[index].name);
            let setting = setting.at_most_every(self.interval_min);
            changed |= self.settings[index] != setting || self.rules[index] != rule;
            (self.settings[index], self.rules[index]) = (setting, rule);
        }
        changed
    }
}

/// Sensors of parts, each list in memory once: most jobs have the same. By source and part, the list last seen.
#[derive(Default)]
pub struct SensorListPool {
    lists: HashMap<(&'static str, String), Arc<[SensorDef]>>,
}

/// Lists kept, at most: names of parts are few, but that is up to the sources.
const LISTS_MAX: usize = 1024;

impl SensorListPool {
    fn shared(&mut self, source: &'static str, name: &str, sensors: Vec<SensorDef>) -> Arc<[SensorDef]> {
        let key = (source, name.to_owned());
        if let Some(known) = self.lists.get(&key).filter(|known| known[..] == sensors[..]) {
            return known.clone();
        }
        let list: Arc<[SensorDef]> = sensors.into();
        if self.lists.len() < LISTS_MAX {
            self.lists.insert(key, list.clone());
        }
        list
    }
}

/// Takes the parts that the sources offer of one job: one metric, one part.
pub struct PartIntake<'a> {
    /// Where lists are shared.
    pub pool: &'a mut SensorListPool,
    /// The number of the next part.
    pub next: &'a mut u32,
    names: HashSet<String>,
    parts: Vec<RunningPart>,
}

impl<'a> PartIntake<'a> {
    pub fn new(pool: &'a mut SensorListPool, next: &'a mut u32) -> Self {
        Self { pool, next, names: HashSet::new(), parts: Vec::new() }
    }

    /// Takes one that stays as it is.
    pub fn keep(&mut self, part: RunningPart) {
        self.names.extend(part.metrics().map(|(_, sensor)| sensor.name.clone()));
        self.parts.push(part);
    }

    /// Takes one that is offered; where `before` is like it, that one stays. `report` gets what people should know.
    pub fn take(
        &mut self,
        source: &'static str,
        part: JobPart,
        before: Option<RunningPart>,
        report: &mut dyn FnMut(String),
    ) {
        let mut hidden = Vec::new();
        for (index, sensor) in part.sensors.iter().enumerate() {
            if let Err(error) = check_relative(&sensor.name) {
                report(format!("{}: left out: {error}", part.name));
                hidden.push(index);
            } else if !self.names.insert(sensor.name.clone()) {
                report(format!("{}: {} is left out: there is one of that name already", part.name, sensor.name));
                hidden.push(index);
            }
        }
        let (count, id) = (part.sensors.len(), *self.next);
        let part = RunningPart {
            id,
            source,
            sensors: self.pool.shared(source, &part.name, part.sensors),
            name: part.name,
            interval_min: part.interval_min,
            blocking: part.blocking,
            open: part.open,
            settings: vec![MetricSetting::Off; count],
            rules: vec![0; count],
            hidden,
        };
        match before.filter(|before| before.is_like(&part)) {
            Some(before) => self.parts.push(before),
            None => {
                *self.next += 1;
                self.parts.push(part);
            }
        }
    }

    pub fn into_parts(self) -> Vec<RunningPart> {
        self.parts
    }
}
