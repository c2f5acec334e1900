//! What plug-ins need of the agent, and why one was not started.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::progress::{PluginProgress, SharedProgress};
use crate::counters::AgentCounters;
use crate::waker::Waker;

/// What a plug-in needs of the agent.
#[derive(Clone)]
pub struct PluginServices {
    pub counters: Arc<AgentCounters>,
    /// Wakes the manager when there is something to discover. `None`: the first discovery waits for the plug-in, as `--check` does.
    pub waker: Option<Arc<Waker>>,
    /// What `ctl plugin list` shows.
    pub progress: SharedProgress,
}

impl PluginServices {
    /// The state of a plug-in that was not started.
    pub fn new_progress() -> SharedProgress {
        let progress = PluginProgress { state: "stopped", ..PluginProgress::default() };
        Arc::new(std::sync::Mutex::new(progress))
    }
}

/// Why a plug-in was not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PluginError(pub String);

static HOST_PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that runs plug-ins in their processes; without it, this one. For tests, whose program is another.
pub fn set_host_program(program: PathBuf) {
    let _ = HOST_PROGRAM.set(program);
}

/// The program of this process also after its file was replaced.
pub(super) fn host_program() -> PathBuf {
    HOST_PROGRAM.get().cloned().unwrap_or_else(|| "/proc/self/exe".into())
}
