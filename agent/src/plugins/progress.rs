//! How a plug-in is doing: what `ctl plugin list` shows.

use std::sync::{Arc, Mutex};

use serde::Serialize;

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
    /// Crashes, hangs and exceeded limits.
    pub faults: u64,
    /// The last one, or why it was refused.
    pub fault: Option<String>,
}

/// The plug-in's own thread writes it, the API reads it.
pub type SharedProgress = Arc<Mutex<PluginProgress>>;
