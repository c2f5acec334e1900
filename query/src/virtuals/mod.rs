//! Sensors that are computed from others by an expression.
//!
//! - In: definitions from the registry; the sensors and readings of a store.
//! - Out: sensors and chunks, with the same interface as measured ones.
//! - Never: a value where an operand has none, a result that needs all operands in memory at once, a sum of metres and seconds.
//!
//! `lex.rs` and `parse.rs` parse an expression into the tree of `ast.rs`; `check.rs` checks units and references; `definition_error.rs` formats
//! errors. `define.rs` has checked definitions and single virtual sensors, `registry.rs` all definitions in order, `index.rs` the sensors that
//! they make. `change.rs` validates changes; `sensors.rs` keeps everything up to date with the store. `file.rs` reads definition files and
//! contains the library.

pub mod ast;
mod change;
mod check;
mod define;
mod definition_error;
pub mod eval;
mod file;
mod index;
mod lex;
mod overlap;
mod parse;
mod registry;
mod sensors;

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

pub use change::{ChangeReport, DefinitionChange};
pub use define::{
    CheckedDefinition, INSTANCES_MAX, OPERANDS_MAX, SensorLookup, VirtualSensor, absolute, each_reference,
};
pub use definition_error::DefinitionError;
pub use file::{DefinitionFile, LIBRARY};
pub use parse::{DEPTH_MAX, EXPRESSION_BYTES_MAX, NESTED_MAX, NODES_MAX, function_names, parse};
pub use registry::{CHAIN_MAX, DEFINITIONS_MAX};
pub(crate) use sensors::merged;
pub use sensors::{ListedDefinition, VirtualError, VirtualSensors};

/// The kind under which the registry keeps definitions; the key is their path.
pub const KIND: &str = "virtual";

/// The result of an aggregate at a time when operands are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingOperands {
    /// A gap: nothing is aggregated from incomplete data.
    #[default]
    Gap,
    /// The aggregate of the others. A sum is then too small while an operand is missing.
    Skip,
}

/// A virtual sensor or a template, as written by a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// With wildcards it is a template: it makes one sensor for each place where all its references exist.
    pub path: String,
    pub expression: String,
    /// The unit, a UCUM code.
    pub unit: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Rows lie at whole multiples of this since the Unix epoch. Default: the shortest interval of the operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// The maximum gap over which an operand is interpolated. Default: three of the operand's intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Interval>,
    #[serde(default)]
    pub missing: MissingOperands,
}
