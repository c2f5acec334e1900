//! What is known of one sensor.

use std::hash::Hash;
use std::sync::Arc;
use wholegrain_model::Kind;
use wholegrain_model::ValueType;

/// A sensor's number within one store: counted from 0, never given to another path, nor to the same one after it was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorId(pub u32);

impl SensorId {
    /// From here on numbers are not the store's: they are of sensors that are computed, and mean something within one answer only.
    pub const COMPUTED: u32 = 1 << 31;

    /// Whether the sensor is computed from others.
    pub fn is_computed(self) -> bool {
        self.0 >= Self::COMPUTED
    }
}

/// A sensor as its latest schema defines it and people have set it, and what was last heard of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorInfo {
    /// Its number in this store.
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
    /// The interval that people set; else that of its latest batch, or the one learned when it was imported; ns. 0 when none of these is known, as for
    /// events without a rate.
    pub interval_ns: u64,
    /// Time of the newest sample of its group, ns since the Unix epoch; `None` before the first.
    pub last_time: Option<i64>,
    /// The agent that sent its latest batch; empty before the first.
    pub agent: Arc<str>,
}
