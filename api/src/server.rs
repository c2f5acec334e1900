//! The server itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::UtcTime;

/// The body of every response with an error status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorResponse {
    /// The cause, and what to do.
    pub error: String,
}

/// The server can make readings durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerStatus {
    /// Always `ok`; a server that is not ready answers with an error.
    pub status: String,
}

/// The same in the form of InfluxDB 2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HealthResponse {
    pub name: String,
    pub message: String,
    /// The state: `pass` or `fail`.
    pub status: String,
    /// Always empty; InfluxDB clients expect the field.
    pub checks: Vec<Value>,
}

/// The log level, and until when it applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogState {
    /// The level in force: `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// The level in the configuration.
    pub configured: String,
    /// When the configured level applies again; null for no time.
    pub until: Option<UtcTime>,
}

/// The result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReloadResult {
    /// Changed settings and certificate files.
    pub changed: Vec<String>,
    /// Settings of the file that differ from those in force until a restart.
    pub needs_restart: Vec<String>,
}
