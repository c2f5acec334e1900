//! Virtual sensors: sensors defined by an expression over other sensors.
//!
//! - In: definitions from the registry; the sensors and readings of a store.
//! - Out: sensors and chunks, with the same interface as measured ones.
//! - Never: a value where an operand has none; all operands in memory at once; a sum of metres and seconds.
//!
//! `lex.rs` and `parse.rs` parse an expression into the tree of `ast.rs`; `check.rs` checks units and references; `definition_error.rs` formats
//! errors. `define.rs` has checked definitions and single virtual sensors, `registry.rs` all definitions in order, `index.rs` their sensors.
//! `change.rs` validates changes; `sensors.rs` keeps everything up to date with the store. `file.rs` parses definition files and contains the
//! library.

pub mod ast;
mod change;
mod check;
mod define;
mod definition;
mod definition_error;
pub mod eval;
mod file;
mod index;
mod lex;
mod overlap;
mod parse;
mod registry;
mod sensors;

pub use change::{ChangeReport, DefinitionChange};
pub use define::{
    CheckedDefinition, INSTANCES_MAX, OPERANDS_MAX, SensorLookup, VirtualSensor, absolute, each_reference,
};
pub use definition::{Definition, KIND, MissingOperands};
pub use definition_error::DefinitionError;
pub use file::{DefinitionFile, LIBRARY};
pub use parse::{DEPTH_MAX, EXPRESSION_BYTES_MAX, NESTED_MAX, NODES_MAX, function_names, parse};
pub use registry::{CHAIN_MAX, DEFINITIONS_MAX};
pub(crate) use sensors::merged;
pub use sensors::{ListedDefinition, VirtualError, VirtualSensors};
