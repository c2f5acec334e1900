//! The bounds of what a plug-in may offer. The process that calls the plug-in checks them, and the agent again.

use std::collections::HashSet;

use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::name::check_relative;
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, SENSORS_MAX, UNIT_BYTES_MAX};
use wholegrain_model::{SensorDef, Unit};

/// The most groups of a plug-in.
pub const GROUPS_MAX: usize = 16_384;
/// The most sensors of a plug-in, over all its groups.
const PLUGIN_SENSORS_MAX: usize = 1 << 20;
/// The most lines of one discovery for the administrator.
pub const NOTES_MAX: usize = 100;
/// The longest of these lines, in bytes.
pub const NOTE_BYTES_MAX: usize = 1000;
/// The longest interval of a group: ten years, in ns.
const INTERVAL_NS_MAX: u64 = 10 * 365 * 86_400 * 1_000_000_000;

/// Why a group or a sensor of a plug-in is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLimitError(pub String);

impl std::fmt::Display for PluginLimitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PluginLimitError {}

/// Checks the groups and sensors of one discovery, in their order.
#[derive(Debug, Default)]
pub struct SensorChecks {
    groups: HashSet<String>,
    sensors: HashSet<String>,
    in_group: usize,
}

fn refuse<T>(text: String) -> Result<T, PluginLimitError> {
    Err(PluginLimitError(text))
}

impl SensorChecks {
    /// Begins a group, and checks its name and timing.
    pub fn group(&mut self, name: &str, interval_ns: u64, offset_ns: u64) -> Result<(), PluginLimitError> {
        self.in_group = 0;
        if let Err(error) = check_relative(name) {
            return refuse(format!("a group is left out: {error}"));
        }
        if self.groups.len() == GROUPS_MAX {
            return refuse(format!("group {name} is left out: a plug-in has at most {GROUPS_MAX} groups"));
        }
        if interval_ns != 0 && !(SAMPLING_INTERVAL_NS_MIN..=INTERVAL_NS_MAX).contains(&interval_ns) {
            return refuse(format!(
                "group {name} is left out: an interval of {interval_ns} ns is not between 1 ms and ten years"
            ));
        }
        if offset_ns != 0 && offset_ns >= if interval_ns == 0 { INTERVAL_NS_MAX } else { interval_ns } {
            return refuse(format!("group {name} is left out: its offset of {offset_ns} ns is not below its interval"));
        }
        if !self.groups.insert(name.to_owned()) {
            return refuse(format!("group {name} is offered twice; the second is left out"));
        }
        Ok(())
    }

    /// Checks a sensor of the last group.
    pub fn sensor(&mut self, group: &str, sensor: &SensorDef) -> Result<(), PluginLimitError> {
        let name = &sensor.name;
        if let Err(error) = check_relative(name) {
            return refuse(format!("group {group}: a sensor is left out: {error}"));
        }
        let problem = if self.in_group == SENSORS_MAX {
            format!("a group has at most {SENSORS_MAX} sensors")
        } else if self.sensors.len() == PLUGIN_SENSORS_MAX {
            format!("a plug-in has at most {PLUGIN_SENSORS_MAX} sensors")
        } else if sensor.unit.len() > UNIT_BYTES_MAX {
            format!("its unit has more than {UNIT_BYTES_MAX} bytes")
        } else if let Err(error) = Unit::parse(&sensor.unit) {
            format!("its unit {:?} is not a UCUM code: {error}", sensor.unit)
        } else if !sensor.scale.is_finite() || sensor.scale == 0.0 {
            format!("its scale {} is not a number other than 0", sensor.scale)
        } else if sensor.description.len() > DESCRIPTION_BYTES_MAX || sensor.description.chars().any(char::is_control) {
            format!("its description has more than {DESCRIPTION_BYTES_MAX} bytes, or control characters")
        } else if !self.sensors.insert(name.clone()) {
            "the plug-in has another sensor of this name".to_owned()
        } else {
            self.in_group += 1;
            return Ok(());
        };
        refuse(format!("group {group}: sensor {name} is left out: {problem}"))
    }
}
