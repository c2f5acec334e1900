//! The parts of a service that can be chosen, each with an interval of its own.

use serde::Deserialize;
use wholegrain_model::Interval;

/// A part of a service that is polled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subsystem {
    /// Temperatures and fans of each chassis.
    Thermal,
    /// Power, voltages and power supplies of each chassis.
    Power,
    /// `EnvironmentMetrics` of each chassis.
    Environment,
    /// The `Sensors` of each chassis.
    Sensors,
    /// Health and power state of each chassis, system and manager.
    State,
    /// Metric reports of the telemetry service.
    Telemetry,
}

impl Subsystem {
    /// All, in the order in which they are polled.
    pub const ALL: [Self; 6] =
        [Self::Thermal, Self::Power, Self::Environment, Self::Sensors, Self::State, Self::Telemetry];
    /// Those without `subsystems`. The sensors are read where a chassis has nothing else.
    pub const USUAL: [Self; 5] = [Self::Thermal, Self::Power, Self::Environment, Self::Sensors, Self::State];
}

/// The table `intervals`: one key for each subsystem.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemIntervals {
    thermal: Option<Interval>,
    power: Option<Interval>,
    environment: Option<Interval>,
    sensors: Option<Interval>,
    state: Option<Interval>,
    telemetry: Option<Interval>,
}

impl SubsystemIntervals {
    /// The interval of a subsystem, if the table has one.
    pub fn of(&self, subsystem: Subsystem) -> Option<Interval> {
        match subsystem {
            Subsystem::Thermal => self.thermal,
            Subsystem::Power => self.power,
            Subsystem::Environment => self.environment,
            Subsystem::Sensors => self.sensors,
            Subsystem::State => self.state,
            Subsystem::Telemetry => self.telemetry,
        }
    }
}
