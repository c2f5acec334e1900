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

use wholegrain_model::suggest::nearest;
use wholegrain_sources::Source;

pub use config::{PluginConfig, PluginsConfig};
pub use isolated::NOT_RUNNING;
pub use process::ARGUMENT;
pub use progress::{PluginProgress, SharedProgress};
pub use services::{PluginError, PluginServices, set_host_program};
pub use supervisor::run as run_host;

/// The most entries of a folder among which a similar name is looked for.
const ENTRIES_MAX: usize = 1000;

/// For a file that does not exist: the file in its folder with the most similar name.
fn similar_file(config: &PluginConfig) -> String {
    let (Some(folder), Some(name)) = (config.library.parent(), config.library.file_name()) else {
        return String::new();
    };
    if config.library.symlink_metadata().is_ok() {
        return String::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX).flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".so") || name.ends_with(".py")).collect();
    names.sort();
    match nearest(&name.to_string_lossy(), names.iter().map(String::as_str)) {
        Some(near) => format!("; did you mean {near:?}?"),
        None => "; name the file with library, or its folder with dir in [plugins]".to_owned(),
    }
}

/// Opens and checks the plug-in's file and starts it.
pub fn start(config: &PluginConfig, services: PluginServices) -> Result<Box<dyn Source>, PluginError> {
    let file = trusted::open(&config.library)
        .map_err(|error| PluginError(config.message(0, &format!("{error}{}", similar_file(config)))))?;
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
