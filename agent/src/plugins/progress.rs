//! How a plug-in is doing: what `ctl plugin list` shows.

use std::sync::{Arc, Mutex};

use serde::Serialize;
use wholegrain_model::Timestamp;

use crate::engine::clock;

/// The state of one plug-in.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PluginProgress {
    /// `starting`, `running`, `failing` (it is started again later), `refused` or `stopped`.
    pub state: &'static str,
    /// The plug-in's own version.
    pub version: String,
    /// The process that runs it; `None` without one.
    pub pid: Option<u32>,
    /// Starts after the first.
    pub restarts: u64,
    /// Crashes, hangs, exceeded limits and refusals.
    pub faults: u64,
    /// The last one, or why it was refused.
    pub fault: Option<String>,
    /// The time of the last fault.
    pub fault_time: Option<String>,
}

impl PluginProgress {
    /// Counts a fault, after which no process runs.
    pub fn count_fault(&mut self, state: &'static str, fault: String) {
        self.faults += 1;
        (self.state, self.pid) = (state, None);
        (self.fault, self.fault_time) = (Some(fault), Some(Timestamp(clock::real()).to_string()));
    }
}

/// The plug-in's own thread writes it, the API reads it.
pub type SharedProgress = Arc<Mutex<PluginProgress>>;
