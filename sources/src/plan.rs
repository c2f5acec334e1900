//! Collecting a group's sensors during discovery: filtered, unique, bounded.

use std::collections::HashSet;

use wholegrain_model::SensorDef;
use wholegrain_model::name::check_relative;
use wholegrain_model::schema::SENSORS_MAX;

use crate::options::{self, GroupOptions};

/// Where a value of a file goes in the row; `None` when its sensor is not sampled.
pub type Slot = Option<u32>;

/// The sensors of one group as they are found.
pub struct Plan<'a> {
    source: &'a GroupOptions,
    group: &'a GroupOptions,
    sensors: Vec<SensorDef>,
    names: HashSet<String>,
    report: &'a mut dyn FnMut(String),
}

impl<'a> Plan<'a> {
    /// An empty group, filtered by the keys of its source and its own; `report` gets what people should know.
    pub fn new(source: &'a GroupOptions, group: &'a GroupOptions, report: &'a mut dyn FnMut(String)) -> Self {
        Self { source, group, sensors: Vec::new(), names: HashSet::new(), report }
    }

    /// Whether the filters keep a sensor.
    pub fn keeps(&self, sensor: &SensorDef) -> bool {
        options::keeps(self.source, self.group, sensor)
    }

    /// Takes a sensor and says where its value goes. One whose name is taken (two devices that differ only in characters
    /// that a name cannot have) gets `_2`, `_3`, … after its name.
    pub fn add(&mut self, mut sensor: SensorDef) -> Slot {
        if !self.keeps(&sensor) {
            return None;
        }
        if self.sensors.len() == SENSORS_MAX {
            (self.report)(format!(
                "{}: left out, as a group has at most {SENSORS_MAX} sensors; filter some",
                sensor.name
            ));
            return None;
        }
        if self.names.contains(&sensor.name) {
            let free = (2..).map(|n| format!("{}_{n}", sensor.name)).find(|name| !self.names.contains(name));
            sensor.name = free.unwrap_or_default();
        }
        if let Err(error) = check_relative(&sensor.name) {
            (self.report)(format!("left out: {error}"));
            return None;
        }
        self.names.insert(sensor.name.clone());
        self.sensors.push(sensor);
        Some(self.sensors.len() as u32 - 1)
    }

    /// Tells people something.
    pub fn report(&mut self, text: String) {
        (self.report)(text);
    }

    /// The sensors in the order in which they were added.
    pub fn into_sensors(self) -> Vec<SensorDef> {
        self.sensors
    }
}
