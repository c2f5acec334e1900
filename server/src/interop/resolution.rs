//! Sensors of readings without a schema: requests for their ids, and the results.

use wholegrain_model::schema::{DESCRIPTION_BYTES_MAX, UNIT_BYTES_MAX};
use wholegrain_model::{Kind, Value};
use wholegrain_store::{GAP_BITS, SensorId};
use wholegrain_transport::mqtt::ReasonCode;

use super::dcdb::SensorAnnouncement;

/// Floats represent integers up to this size exactly.
pub const EXACT_MAX: u64 = 1 << 53;

/// A sensor of received readings that has to be resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorRequest {
    /// The sensor's path, or a topic with an announced name.
    pub topic: String,
    /// Whether a value is a float. A known sensor with integers then becomes one with floats.
    pub float: bool,
    pub properties: SensorProperties,
}

/// Whether a value needs a sensor with floats; a gap does not.
pub fn is_float(value: Value) -> bool {
    matches!(value, Value::Float(value) if value.to_bits() != GAP_BITS)
}

/// The sender's statements about a sensor.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorProperties {
    /// Empty if the sender gave none.
    pub unit: String,
    pub kind: Kind,
    pub description: String,
    /// Whether a known sensor adopts them. If not, they are a guess for a new sensor.
    pub is_declared: bool,
}

impl Default for SensorProperties {
    fn default() -> Self {
        Self { unit: String::new(), kind: Kind::Gauge, description: String::new(), is_declared: false }
    }
}

impl SensorProperties {
    /// Drops a unit that the store refuses, and cuts the description to its bound.
    pub fn bounded(mut self) -> Self {
        if self.unit.len() > UNIT_BYTES_MAX || self.unit.contains(char::is_control) {
            self.unit.clear();
        }
        self.description = cut(&self.description, DESCRIPTION_BYTES_MAX);
        self
    }
}

/// The beginning of a text, at most `bytes_max` bytes.
pub fn cut(text: &str, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Why readings of a sensor are refused.
pub type ReadingRefusal = (ReasonCode, String);

/// A sensor with a number in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolvedSensor {
    pub id: SensorId,
    pub float: bool,
}

impl ResolvedSensor {
    /// Converts a value to the sensor's type if that is exact: an integer of a float sensor becomes a float. A float of an integer sensor stays one;
    /// the store accepts both.
    pub fn fit(self, value: Value) -> Value {
        match value {
            Value::Int(int) if self.float && int.unsigned_abs() <= EXACT_MAX => Value::Float(int as f64),
            other => other,
        }
    }
}

/// A sensor's number, or why its readings are refused.
pub type SensorResolution = Result<ResolvedSensor, ReadingRefusal>;

/// The names that a run needs before it can be stored.
#[derive(Debug, Clone, PartialEq)]
pub enum NameRequest {
    Sensors(Vec<SensorRequest>),
    /// An announcement to store.
    Announced(SensorAnnouncement),
}
