//! Schemaless sensors and their readings.

use wholegrain_model::batch::AGENT_BYTES_MAX;
use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX};
use wholegrain_model::{Kind, SensorPath, Value, ValueType};

use crate::{SensorId, StoreError};

/// The most readings of one call of [`crate::Store::append_readings`].
pub const READINGS_MAX: usize = 262_144;

/// A schemaless sensor: its readings arrive one at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemalessSensor {
    pub path: SensorPath,
    /// Unit of the scaled value, UCUM code; may be empty.
    pub unit: String,
    pub kind: Kind,
    /// The usual type of its readings. A reading of the other type is stored as it is.
    pub value_type: ValueType,
    /// Raw value times scale is the quantity in `unit`. Finite and not zero.
    pub scale: f64,
    pub description: String,
}

impl SchemalessSensor {
    /// Checks the bounds that a schema has for its sensors.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let refuse = |what: String| Err(StoreError::Sensor(format!("sensor {}: {what}", self.path)));
        if !self.scale.is_finite() || self.scale == 0.0 {
            return refuse(format!("has the scale {}; it must be finite and not 0", self.scale));
        }
        if self.unit.len() > UNIT_BYTES_MAX || self.unit.chars().any(char::is_control) {
            return refuse(format!("has a unit over {UNIT_BYTES_MAX} bytes or with control characters"));
        }
        if self.description.len() > DESCRIPTION_BYTES_MAX {
            return refuse(format!("has a description over {DESCRIPTION_BYTES_MAX} bytes"));
        }
        Ok(())
    }
}

/// One value of one sensor at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Its number from [`crate::Store::register_sensors`].
    pub sensor: SensorId,
    /// ns since the Unix epoch.
    pub time: i64,
    /// Raw: times the sensor's scale it is the quantity. A float with the bits [`GAP_BITS`] is a gap.
    pub value: Value,
}

/// The bits of the float that stands for a gap in [`Reading::value`]: the stale marker of Prometheus, a NaN that no computation has as its result.
pub const GAP_BITS: u64 = 0x7ff0_0000_0000_0002;

/// The value of a reading that is a gap.
pub const GAP: Value = Value::Float(f64::from_bits(GAP_BITS));

/// Checks the length of a sender's name.
pub(crate) fn check_source(source: &str) -> Result<(), StoreError> {
    if source.len() <= AGENT_BYTES_MAX {
        return Ok(());
    }
    Err(StoreError::Payload(format!(
        "the sender's name has {} bytes, at most {AGENT_BYTES_MAX} are allowed",
        source.len()
    )))
}
