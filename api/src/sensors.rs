//! Sensors, their names, and readings.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Number;
use wholegrain_model::{Kind, ValueType};

use crate::UtcTime;

/// A page of sensors, sorted by path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SensorPage<'a> {
    pub sensors: Vec<Sensor<'a>>,
    /// The parameter `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A stored or virtual sensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sensor<'a> {
    pub path: Cow<'a, str>,
    /// The unit as a UCUM code.
    pub unit: Cow<'a, str>,
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::KindName"))]
    pub kind: Kind,
    /// The type of the raw value.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ValueTypeName"))]
    pub value_type: ValueType,
    /// The raw value times the scale is the quantity in the unit. Readings in responses are scaled already.
    pub scale: f64,
    /// The interval of the latest batch; 0 without a batch, and for events.
    pub interval_ns: u64,
    pub last_time: Option<UtcTime>,
    pub description: Cow<'a, str>,
    pub agent: Cow<'a, str>,
}

/// Names of sensors, sorted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NameList {
    pub names: Vec<String>,
}

/// A page of newest readings, sorted by path. Sensors without a reading are left out, so a page may have fewer readings than its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewestPage {
    pub readings: Vec<NewestValue>,
    /// The parameter `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The newest reading of one sensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewestValue {
    pub path: String,
    pub time: UtcTime,
    /// In the sensor's unit; null is a gap.
    pub value: Option<Number>,
    pub unit: String,
}

/// A line of a query's or a stream's response: a reading; or, in the last lines, a warning or a note.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum QueryLine {
    Reading {
        sensor: String,
        time: UtcTime,
        /// In the sensor's unit; null is a gap.
        value: Option<Number>,
    },
    /// Readings are missing from the response, for example because a block is damaged.
    Warning { warning: String },
    /// The response leaves readings out on purpose, for example because retention dropped them.
    Note { note: String },
}
