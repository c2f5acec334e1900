//! The agent's name and start.

use std::time::Instant;

use wholegrain_model::SensorPath;

/// What does not change while the process runs.
#[derive(Debug)]
pub struct AgentIdentity {
    pub name: String,
    /// The path above all its sensors.
    pub prefix: SensorPath,
    /// Start of the process, ns since the Unix epoch; the boot in batch headers.
    pub boot_ns: u64,
    pub started: Instant,
}
