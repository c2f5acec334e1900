//! Sources that are loaded at run time: shared objects and Python programs.
//!
//! - In: `[plugins]` and the file of each plug-in, which is opened once and checked.
//! - Out: a [`Source`] for each plug-in. By default its code runs in a process of its own, which shares one row of values with the agent.
//! - Never: a file that an ordinary user can change; a wait of the manager or of another source for a plug-in; trust in what its process writes.

mod capability;
mod config;
mod in_process;
mod isolated;
mod library;
mod limits;
mod process;
mod process_tree;
mod program;
mod progress;
mod script;
mod shared_row;
mod supervisor;
mod texts;
mod trusted;
mod usage;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use wholegrain_sources::Source;

pub use config::{PluginConfig, PluginsConfig};
pub use process::ARGUMENT;
pub use progress::{PluginProgress, SharedProgress};
pub use supervisor::run as run_host;

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
fn host_program() -> PathBuf {
    HOST_PROGRAM.get().cloned().unwrap_or_else(|| "/proc/self/exe".into())
}

/// Opens and checks the plug-in's file and starts it.
pub fn start(config: &PluginConfig, services: PluginServices) -> Result<Box<dyn Source>, PluginError> {
    let file = trusted::open(&config.library)?;
    if config.isolate {
        return Ok(Box::new(isolated::IsolatedSource::start(config, file, services)?));
    }
    if file.is_script {
        let library = config.library.display();
        return Err(PluginError(config.message(
            0,
            &format!("{library} is a program in Python, which is always isolated: remove isolate = false"),
        )));
    }
    Ok(Box::new(in_process::InProcessSource::start(config, file, &services)?))
}
