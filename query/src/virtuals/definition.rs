//! Definitions as users write them.

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

/// The kind of definitions in the registry; their key is the path.
pub const KIND: &str = "virtual";

/// The result of an aggregate at a time when operands are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingOperands {
    /// The result is a gap.
    #[default]
    Gap,
    /// The result covers the other operands. A sum is then too small.
    Skip,
}

/// A virtual sensor or a template, as written by a user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// With wildcards it is a template: it makes one sensor at each place where all its references exist.
    pub path: String,
    pub expression: String,
    /// The unit, a UCUM code.
    pub unit: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Times of rows are multiples of this since the Unix epoch. Default: the shortest interval of the operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// The maximum gap over which an operand is interpolated. Default: three of the operand's intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Interval>,
    #[serde(default)]
    pub missing: MissingOperands,
}
