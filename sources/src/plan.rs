//! Collecting the sensors of a group during discovery: filtered, unique, bounded.

use std::collections::HashSet;

use wholegrain_model::SensorDef;
use wholegrain_model::name::check_relative;
use wholegrain_model::schema::SENSORS_MAX;

use crate::options::{self, GroupOptions};

/// The index of a value in the row; `None` when its sensor is not sampled.
pub type Slot = Option<u32>;

/// The slot that replaces `slot` when slot `n` becomes `slots[n]`.
pub fn mapped(slot: Slot, slots: &[Slot]) -> Slot {
    slots.get(slot? as usize).copied().flatten()
}

/// Collects the sensors of one group.
pub struct SensorPlan<'a> {
    source: &'a GroupOptions,
    group: &'a GroupOptions,
    sensors: Vec<SensorDef>,
    names: HashSet<String>,
    /// Names that other groups have; see [`SensorPlan::without_duplicates_of`].
    taken: Option<&'a mut HashSet<String>>,
    report: &'a mut dyn FnMut(String),
}

impl<'a> SensorPlan<'a> {
    /// An empty group with the filters of the source and of the group. `report` takes lines for the administrator.
    pub fn new(source: &'a GroupOptions, group: &'a GroupOptions, report: &'a mut dyn FnMut(String)) -> Self {
        Self { source, group, sensors: Vec::new(), names: HashSet::new(), taken: None, report }
    }

    /// Skips sensors whose names are in `taken`, and adds the names of this group to it.
    pub fn without_duplicates_of(self, taken: &'a mut HashSet<String>) -> Self {
        Self { taken: Some(taken), ..self }
    }

    /// Whether the filters keep a sensor.
    pub fn keeps(&self, sensor: &SensorDef) -> bool {
        options::keeps(self.source, self.group, sensor)
    }

    /// Adds a sensor and gives its slot. A sensor whose name this group has already (two devices that differ only in characters that a
    /// name cannot have) gets `_2`, `_3`, … after its name.
    pub fn add(&mut self, mut sensor: SensorDef) -> Slot {
        if !self.keeps(&sensor) || self.taken.as_ref().is_some_and(|taken| taken.contains(&sensor.name)) {
            return None;
        }
        if self.sensors.len() == SENSORS_MAX {
            (self.report)(format!(
                "{}: left out, as a group has at most {SENSORS_MAX} sensors; filter some",
                sensor.name
            ));
            return None;
        }
        let name = sensor.name.clone();
        if self.names.contains(&name) {
            let free = (2..).map(|n| format!("{name}_{n}")).find(|name| !self.names.contains(name));
            sensor.name = free.unwrap_or_default();
        }
        if let Err(error) = check_relative(&sensor.name) {
            (self.report)(format!("left out: {error}"));
            return None;
        }
        if let Some(taken) = &mut self.taken {
            taken.insert(name);
        }
        self.names.insert(sensor.name.clone());
        self.sensors.push(sensor);
        Some(self.sensors.len() as u32 - 1)
    }

    /// Adds a sensor and gives its slot. A sensor whose name this group has already is left out and reported: two objects that differ only
    /// in characters that a name cannot have, of which the order must not decide the names.
    pub fn add_once(&mut self, sensor: SensorDef) -> Slot {
        if self.names.contains(&sensor.name) {
            (self.report)(format!("{}: left out, as another object has this name already", sensor.name));
            return None;
        }
        self.add(sensor)
    }

    /// Reports a line to the administrator.
    pub fn report(&mut self, text: String) {
        (self.report)(text);
    }

    /// The sensors in the order in which they were added.
    pub fn into_sensors(self) -> Vec<SensorDef> {
        self.sensors
    }
}
