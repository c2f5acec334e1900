//! The data model of Wholegrain: names, patterns, units, schemas, batches, job records and times.
//!
//! - In: names, patterns, durations and configuration as users write them.
//! - Out: checked values ([`SensorPath`], [`Pattern`], [`Schema`], [`Batch`], [`Interval`]) that other crates trust.
//! - Never: I/O, threads, the current time. Time is an argument.

pub mod batch;
pub mod config;
pub mod interval;
pub mod job;
pub mod log_level;
pub mod name;
pub mod pattern;
pub mod schema;
pub mod size;
pub mod suggest;
pub mod text;
pub mod time;
pub mod unit;

pub use batch::{Batch, BatchHeader, Column, ColumnValues, Gaps, Value};
pub use interval::Interval;
pub use job::{JobRecord, StepRecord};
pub use log_level::LogLevel;
pub use name::{NameError, SensorPath};
pub use pattern::{Pattern, PatternError};
pub use schema::{Kind, Schema, SchemaError, SchemaHash, SensorDef, ValueType};
pub use time::Timestamp;
pub use unit::{Conversion, Dimension, Unit, UnitError};
