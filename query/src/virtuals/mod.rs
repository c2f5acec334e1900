//! Sensors that are computed from others by an expression.
//!
//! - In: definitions, out of the registry; the sensors and readings of a store.
//! - Out: sensors and chunks like any others, so that everything that can be asked of a measured one can be asked of them.
//! - Never: a value where an operand has none, an answer that needs all operands in memory at once, a sum of metres and seconds.
//!
//! `ast.rs` is what an expression is, once read (`lex.rs`, `parse.rs`), `check.rs` whether it makes sense, `refused.rs` how it is said where it
//! does not. `define.rs` is what a definition is, once checked, and what one sensor of it is. `book.rs` holds all definitions, `index.rs` the
//! sensors that they make, `change.rs` looks at a change from every side, `sensors.rs` keeps all that up to date with a
//! store. `file.rs` reads files of definitions and has the library.

pub mod ast;
mod book;
mod change;
mod check;
mod define;
pub mod eval;
mod file;
mod index;
mod lex;
mod overlap;
mod parse;
mod refused;
mod sensors;

use serde::{Deserialize, Serialize};
use wholegrain_model::Interval;

pub use book::{CHAIN_MAX, DEFINITIONS_MAX};
pub use change::{Change, Changed};
pub use define::{Checked, INSTANCES_MAX, Instance, OPERANDS_MAX, Resolve, absolute, each_reference};
pub use file::{DefinitionFile, LIBRARY};
pub use parse::{DEPTH_MAX, EXPRESSION_BYTES_MAX, NESTED_MAX, NODES_MAX, function_names, parse};
pub use refused::Refused;
pub(crate) use sensors::merged;
pub use sensors::{Listed, VirtualError, Virtuals};

/// The kind under which the registry keeps definitions; the key is their path.
pub const KIND: &str = "virtual";

/// What a time at which operands of an aggregate are missing gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// A gap: no statistic is made from part of the data.
    #[default]
    Gap,
    /// What the others come to. A sum is then too small while one is away.
    Skip,
}

/// A virtual sensor as a person writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Its path. With wildcards it is a template: one sensor for each place where all that it refers to is there.
    pub path: String,
    /// What it is computed by.
    pub expression: String,
    /// Its unit, a UCUM code.
    pub unit: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Its times: whole multiples of this since the Unix epoch. Without it, of the shortest interval of its operands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// No operand is interpolated between two readings that are further apart; without it, than three of the operand's intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Interval>,
    /// What becomes of a time at which some operands of an aggregate are missing.
    #[serde(default)]
    pub missing: Missing,
}
