//! The metric sets of a job: sensors that one reader reads, with the settings in force.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wholegrain_model::name::check_relative;
use wholegrain_model::{Interval, Kind, SensorDef};
use wholegrain_sources::job::{MetricSet, OpenReader};

use super::super::MetricSetting;
use super::plan::SetOffer;

/// A metric set of one job.
pub struct RunningSet {
    /// Its number within the job; a metric set that replaces it gets another one.
    pub id: u32,
    pub source: &'static str,
    /// The name within the source.
    pub name: String,
    /// In memory once for all jobs.
    pub sensors: Arc<[SensorDef]>,
    pub interval_min: Interval,
    /// Whether reads can block.
    pub blocking: bool,
    pub open: OpenReader,
    /// The setting of each sensor, with the metric set's shortest interval applied.
    pub settings: Vec<MetricSetting>,
    /// The rule of each setting.
    pub rules: Vec<u64>,
    /// Sensors that are left out because of an invalid or a duplicate name.
    hidden: Vec<usize>,
}

impl RunningSet {
    pub fn offer(&self) -> SetOffer<'_> {
        SetOffer { set: self.id, blocking: self.blocking, settings: &self.settings }
    }

    /// The valid sensors with their indexes.
    pub fn metrics(&self) -> impl Iterator<Item = (usize, &SensorDef)> {
        self.sensors.iter().enumerate().filter(|(index, _)| !self.hidden.contains(index))
    }

    pub fn counters(&self) -> impl Iterator<Item = &str> {
        self.metrics().filter(|(_, sensor)| sensor.kind == Kind::Counter).map(|(_, sensor)| sensor.name.as_str())
    }

    /// Whether the other metric set can replace this one without a difference.
    pub fn is_like(&self, other: &RunningSet) -> bool {
        let same = |set: &RunningSet| (set.source, set.interval_min, set.blocking);
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

/// Sensor lists of metric sets, each in memory once because most jobs have the same: by source and metric set, the last list.
#[derive(Default)]
pub struct SensorListPool {
    lists: HashMap<(&'static str, String), Arc<[SensorDef]>>,
}

/// The most lists. Metric set names are few, but sources choose them.
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

/// Collects the metric sets of one job; each metric is in one metric set only.
pub struct SetIntake<'a> {
    pub pool: &'a mut SensorListPool,
    /// The number of the next metric set.
    pub next: &'a mut u32,
    names: HashSet<String>,
    sets: Vec<RunningSet>,
}

impl<'a> SetIntake<'a> {
    pub fn new(pool: &'a mut SensorListPool, next: &'a mut u32) -> Self {
        Self { pool, next, names: HashSet::new(), sets: Vec::new() }
    }

    /// Adds a metric set that has not changed.
    pub fn keep(&mut self, set: RunningSet) {
        self.names.extend(set.metrics().map(|(_, sensor)| sensor.name.clone()));
        self.sets.push(set);
    }

    /// Adds an offered metric set, or keeps `before` if it is equal. `report` gets notes.
    pub fn take(
        &mut self,
        source: &'static str,
        set: MetricSet,
        before: Option<RunningSet>,
        report: &mut dyn FnMut(String),
    ) {
        let mut hidden = Vec::new();
        for (index, sensor) in set.sensors.iter().enumerate() {
            if let Err(error) = check_relative(&sensor.name) {
                report(format!("{}: left out: {error}", set.name));
                hidden.push(index);
            } else if !self.names.insert(sensor.name.clone()) {
                report(format!("{}: {} is left out: there is one of that name already", set.name, sensor.name));
                hidden.push(index);
            }
        }
        let (count, id) = (set.sensors.len(), *self.next);
        let set = RunningSet {
            id,
            source,
            sensors: self.pool.shared(source, &set.name, set.sensors),
            name: set.name,
            interval_min: set.interval_min,
            blocking: set.blocking,
            open: set.open,
            settings: vec![MetricSetting::Off; count],
            rules: vec![0; count],
            hidden,
        };
        match before.filter(|before| before.is_like(&set)) {
            Some(before) => self.sets.push(before),
            None => {
                *self.next += 1;
                self.sets.push(set);
            }
        }
    }

    pub fn into_sets(self) -> Vec<RunningSet> {
        self.sets
    }
}
