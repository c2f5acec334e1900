//! The parts of a job: sensors that one reader reads, with the settings in force.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wholegrain_model::name::check_relative;
use wholegrain_model::{Interval, Kind, SensorDef};
use wholegrain_sources::job::{JobPart, OpenPart};

use super::super::MetricSetting;
use super::plan::PartOffer;

/// A part of one job.
pub struct RunningPart {
    /// Its number within the job; a part that replaces it gets another one.
    pub id: u32,
    pub source: &'static str,
    /// The name within the source.
    pub name: String,
    /// In memory once for all jobs.
    pub sensors: Arc<[SensorDef]>,
    pub interval_min: Interval,
    /// Whether reads can block.
    pub blocking: bool,
    pub open: OpenPart,
    /// The setting of each sensor, with the part's shortest interval applied.
    pub settings: Vec<MetricSetting>,
    /// The rule of each setting.
    pub rules: Vec<u64>,
    /// Sensors that are left out because of an invalid or a duplicate name.
    hidden: Vec<usize>,
}

impl RunningPart {
    pub fn offer(&self) -> PartOffer<'_> {
        PartOffer { part: self.id, blocking: self.blocking, settings: &self.settings }
    }

    /// The valid sensors with their indexes.
    pub fn metrics(&self) -> impl Iterator<Item = (usize, &SensorDef)> {
        self.sensors.iter().enumerate().filter(|(index, _)| !self.hidden.contains(index))
    }

    pub fn counters(&self) -> impl Iterator<Item = &str> {
        self.metrics().filter(|(_, sensor)| sensor.kind == Kind::Counter).map(|(_, sensor)| sensor.name.as_str())
    }

    /// Whether the other part can replace this one without a difference.
    pub fn is_like(&self, other: &RunningPart) -> bool {
        let same = |part: &RunningPart| (part.source, part.interval_min, part.blocking);
        same(self) == same(other)
            && self.name == other.name
            && self.hidden == other.hidden
            && self.sensors == other.sensors
    }

    /// Sets the setting of each sensor. Whether any has changed.
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

/// Sensor lists of parts, each in memory once because most jobs have the same: by source and part, the last list.
#[derive(Default)]
pub struct SensorListPool {
    lists: HashMap<(&'static str, String), Arc<[SensorDef]>>,
}

/// The most lists. Part names are few, but sources choose them.
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

/// Collects the parts of one job; each metric is in one part only.
pub struct PartIntake<'a> {
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

    /// Adds a part that has not changed.
    pub fn keep(&mut self, part: RunningPart) {
        self.names.extend(part.metrics().map(|(_, sensor)| sensor.name.clone()));
        self.parts.push(part);
    }

    /// Adds an offered part, or keeps `before` if it is equal. `report` gets notes.
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
