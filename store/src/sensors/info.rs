//! The number and the properties of a sensor.

use std::hash::Hash;
use std::sync::Arc;

use wholegrain_model::{Kind, ValueType};

/// A sensor's number within one store: counted from 0, and never given to another path, nor again to the same path after the sensor expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorId(pub u32);

impl SensorId {
    /// Numbers from here on are of virtual sensors and are valid within one answer only.
    pub const COMPUTED: u32 = 1 << 31;

    /// Whether the sensor is virtual.
    pub fn is_computed(self) -> bool {
        self.0 >= Self::COMPUTED
    }
}

/// A sensor as its latest schema and the settings of users define it, and its newest time.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorInfo {
    pub id: SensorId,
    pub path: Arc<str>,
    /// Unit of the scaled value, UCUM code.
    pub unit: String,
    pub kind: Kind,
    /// Type of the raw values.
    pub value_type: ValueType,
    /// Raw value times scale is the quantity in `unit`.
    pub scale: f64,
    /// For a counter that wraps: its modulus in raw values.
    pub wraps_at: Option<u64>,
    pub description: String,
    /// The interval set by users; else that of its latest batch, or the one learned from an import; ns. 0 if none of these is known, as for events
    /// without a rate.
    pub interval_ns: u64,
    /// Time of the newest sample of its group, ns since the Unix epoch; `None` before the first.
    pub last_time: Option<i64>,
    /// The agent that sent its latest batch; empty before the first.
    pub agent: Arc<str>,
}
