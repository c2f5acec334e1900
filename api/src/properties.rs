//! Properties of sensors, and settings of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::UtcTime;

/// A page of sensors with their properties, sorted by path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SensorPropertiesPage {
    pub sensors: Vec<SensorProperties>,
    /// The parameter `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The properties of one sensor and their origins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SensorProperties {
    pub path: String,
    pub agent: String,
    pub unit: PropertyValue,
    pub scale: PropertyValue,
    pub kind: PropertyValue,
    pub description: PropertyValue,
    pub interval: PropertyValue,
    pub ttl: PropertyValue,
}

impl SensorProperties {
    pub fn each(&self) -> [(PropertyName, &PropertyValue); 6] {
        [
            (PropertyName::Unit, &self.unit),
            (PropertyName::Scale, &self.scale),
            (PropertyName::Kind, &self.kind),
            (PropertyName::Description, &self.description),
            (PropertyName::Interval, &self.interval),
            (PropertyName::Ttl, &self.ttl),
        ]
    }
}

/// A property in force and its origin. `pattern` and `who` are absent if the agent sent it, `who` if the server's configuration sets it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PropertyValue {
    pub value: Value,
    /// The value that the agent sent, if a setting replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Value>,
    /// The pattern of the setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<UtcTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PropertyName {
    Unit,
    Scale,
    Kind,
    Description,
    Interval,
    Ttl,
}

impl PropertyName {
    pub const ALL: [Self; 6] = [Self::Unit, Self::Scale, Self::Kind, Self::Description, Self::Interval, Self::Ttl];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Scale => "scale",
            Self::Kind => "kind",
            Self::Description => "description",
            Self::Interval => "interval",
            Self::Ttl => "ttl",
        }
    }
}

/// The settings in force, the latest first: it takes precedence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PropertySettings {
    pub settings: Vec<PropertyChange>,
}

/// All settings and removals of settings, the latest last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PropertyHistory {
    pub history: Vec<PropertyChange>,
}

/// One property set, or removed, for the sensors that match a pattern.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PropertyChange {
    pub pattern: String,
    pub property: PropertyName,
    /// Null if the setting was removed.
    pub value: Option<Value>,
    pub who: String,
    pub time: UtcTime,
}

/// Settings to apply together. If several match a sensor, the last one applies, for each property.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SetProperties"))]
#[serde(deny_unknown_fields)]
pub struct SetProperties<T = SetPropertiesOf> {
    pub settings: Vec<T>,
}

/// New values of the properties of all sensors that match a pattern; absent properties stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetPropertiesOf {
    pub pattern: String,
    /// The unit as a UCUM code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The factor of raw values; not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::KindName>"))]
    pub kind: Option<wholegrain_model::Kind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The time between readings, such as 15min. Only a distance of more than three intervals is a hole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// How long readings are kept, such as 30d; or forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
}

/// The result of setting properties.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetPropertiesResult {
    /// The number of properties that were set.
    pub set: u64,
    /// The number of properties that had this value already.
    pub same: u64,
    /// The number of sensors that match each setting; null if there are more than 16 settings.
    pub sensors: Option<Vec<u64>>,
}

/// The result of removing settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnsetPropertiesResult {
    /// The number of properties whose setting was removed.
    pub unset: u64,
}
