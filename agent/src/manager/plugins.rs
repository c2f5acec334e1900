//! Plug-ins: started with the agent, changed by a reload, and by commands one at a time. No other source is touched.

use wholegrain_model::suggest::nearest;

use super::command::{CommandResult, ManagerError, PluginAction};
use super::source::RunningSource;
use super::{Manager, no_such};
use crate::config::Config;
use crate::plugins::{PluginConfig, PluginServices};

impl Manager {
    fn plugin_source(&self, config: &PluginConfig) -> RunningSource {
        let services = PluginServices {
            counters: self.context.jobs.counters.clone(),
            waker: Some(self.context.waker.clone()),
            progress: PluginServices::new_progress(),
        };
        RunningSource::plugin(config, services)
    }

    /// Adds the configured plug-ins, not started yet.
    pub(super) fn add_plugins(&mut self) {
        for plugin in self.config.plugins.plugins.clone() {
            self.sources.push(self.plugin_source(&plugin));
        }
    }

    fn find_plugin(&self, name: &str) -> Option<usize> {
        self.sources.iter().position(|running| running.name == name && running.plugin_config().is_some())
    }

    /// Applies a configuration that was loaded again. Unchanged plug-ins run on; one that was unloaded stays so.
    pub(super) fn reload_plugins(&mut self) {
        for index in (0..self.sources.len()).rev() {
            let is_gone = |plugin: &PluginConfig| self.config.plugins.find(&plugin.name).is_none();
            if self.sources[index].plugin_config().is_some_and(is_gone) {
                self.stop(index);
                self.sources.remove(index);
            }
        }
        for plugin in self.config.plugins.plugins.clone() {
            match self.find_plugin(&plugin.name) {
                None => {
                    self.sources.push(self.plugin_source(&plugin));
                    self.start(self.sources.len() - 1);
                }
                Some(index) if self.sources[index].plugin_config() == Some(&plugin) => self.discover(index, false),
                Some(index) => {
                    let was_running = self.sources[index].is_started();
                    self.stop(index);
                    self.sources[index] = self.plugin_source(&plugin);
                    if was_running {
                        self.start(index);
                    }
                }
            }
        }
    }

    /// Executes a command about one plug-in.
    pub(super) fn change_plugin(&mut self, action: PluginAction, name: &str) -> Result<CommandResult, ManagerError> {
        if action == PluginAction::Load {
            return self.load_plugin(name);
        }
        let Some(index) = self.find_plugin(name) else {
            let known = self.sources.iter().filter(|running| running.plugin_config().is_some());
            let near = nearest(name, known.map(|running| running.name.as_str()));
            return Err(ManagerError::Unknown(no_such("plugin", name, near)));
        };
        let was_started = self.sources[index].is_started();
        self.stop(index);
        if action == PluginAction::Unload {
            let done = if was_started { "unloaded plug-in" } else { "not loaded: plug-in" };
            return Ok(CommandResult::new(format!("{done} {name}")));
        }
        self.start_plugin(index)?;
        Ok(CommandResult::new(format!("restarted plug-in {name}")))
    }

    /// Starts a plug-in that is not loaded, as its table is now.
    fn load_plugin(&mut self, name: &str) -> Result<CommandResult, ManagerError> {
        let at = self.find_plugin(name);
        if at.is_some_and(|index| self.sources[index].is_started()) {
            return Ok(CommandResult::new(format!("plug-in {name} was loaded already; `restart` starts it again")));
        }
        let new = Config::load(&self.config.file).map_err(|error| ManagerError::Invalid(error.to_string()))?;
        let Some(plugin) = new.plugins.find(name) else {
            let file = self.config.file.display();
            return Err(ManagerError::Unknown(format!("{file} has no table [plugins.{name}]; add one")));
        };
        let plugins = &mut self.config.plugins.plugins;
        match plugins.iter_mut().find(|known| known.name == name) {
            Some(known) => *known = plugin.clone(),
            None => plugins.push(plugin.clone()),
        }
        let running = self.plugin_source(plugin);
        let index = match at {
            Some(index) => {
                self.sources[index] = running;
                index
            }
            None => {
                self.sources.push(running);
                self.sources.len() - 1
            }
        };
        self.start_plugin(index)?;
        Ok(CommandResult::new(format!("loaded plug-in {name}")))
    }

    fn start_plugin(&mut self, index: usize) -> Result<(), ManagerError> {
        self.start(index);
        if self.sources[index].is_running() {
            return Ok(());
        }
        let notes = self.sources[index].status().notes;
        Err(ManagerError::Invalid(notes.last().cloned().unwrap_or_else(|| "the plug-in did not start".to_owned())))
    }
}
