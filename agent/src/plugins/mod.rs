//! Sources that are loaded at run time: shared objects and Python programs.
//!
//! - In: `[plugins]` and the file of each plug-in, which is opened once and checked.
//! - Out: a [`Source`] for each plug-in. By default its code runs in a process of its own, which shares one row of values with the agent.
//! - Never: a file that an ordinary user can change; a wait of the manager or of another source for a plug-in; trust in what its process writes.

mod capability;
mod config;
mod elf;
mod in_process;
mod isolated;
mod library;
mod limits;
mod modules;
mod process;
mod process_tree;
mod program;
mod progress;
mod script;
mod services;
mod shared_row;
mod supervisor;
mod texts;
mod trusted;
mod usage;
mod wire;

use wholegrain_sources::Source;

pub use config::{PluginConfig, PluginsConfig};
pub use process::ARGUMENT;
pub use progress::{PluginProgress, SharedProgress};
pub use services::{PluginError, PluginServices, set_host_program};
pub use supervisor::run as run_host;

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
