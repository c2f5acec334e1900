//! Virtual sensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

use crate::UtcTime;

/// A virtual sensor or a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VirtualDefinition {
    /// With wildcards it is a template: it makes one sensor for each place where all its relative references exist.
    pub path: String,
    pub expression: String,
    /// The unit as a UCUM code.
    pub unit: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The times are multiples of this, such as 10s. Default: the shortest interval of the operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub interval: Option<Interval>,
    /// The maximum gap over which an operand is interpolated. Default: three of the operand's intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub bridge: Option<Interval>,
    #[serde(default)]
    pub missing: MissingOperands,
}

/// The value of an aggregate at a time when operands are missing: a gap, or the aggregate of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MissingOperands {
    #[default]
    Gap,
    Skip,
}

impl MissingOperands {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Skip => "skip",
        }
    }
}

/// The definitions, sorted by path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VirtualSensorList {
    #[serde(rename = "virtual")]
    pub definitions: Vec<VirtualSensor>,
}

/// A definition and its last change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VirtualSensor {
    #[serde(flatten)]
    pub definition: VirtualDefinition,
    /// The number of sensors that it makes.
    pub sensors: u64,
    /// The number of the change that set it.
    pub number: u64,
    pub at: UtcTime,
    pub who: String,
}

/// A change of several definitions; all or none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeDefinitions {
    /// New definitions; they replace definitions of the same path.
    #[serde(default)]
    pub define: Vec<VirtualDefinition>,
    /// Paths of definitions to remove.
    #[serde(default)]
    pub remove: Vec<String>,
    /// Removes definitions even if others refer to them.
    #[serde(default)]
    pub force: bool,
}

/// The effect of a change, applied or only checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DefinitionsChanged {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
    /// The number of definitions that did not change.
    pub unchanged: u64,
    /// The number of sensors that each definition makes, by path.
    pub sensors: BTreeMap<String, u64>,
    pub warnings: Vec<String>,
}

/// All definitions and removals, the latest last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DefinitionHistory {
    pub history: Vec<DefinitionHistoryEntry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DefinitionHistoryEntry {
    pub path: String,
    pub number: u64,
    pub at: UtcTime,
    pub who: String,
    /// Null if the definition was removed.
    pub definition: Option<VirtualDefinition>,
}
