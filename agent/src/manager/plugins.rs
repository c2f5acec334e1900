//! Plug-ins: started with the agent, changed by a reload, and by commands one at a time. No other source is touched.

use wholegrain_model::suggest::nearest;

use super::command::{CommandResult, ManagerError, PluginAction, StartedPlugin};
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

    /// Applies a configuration that was loaded again. Unchanged plug-ins run on; one that was unloaded stays so, and one that was refused is
    /// tried again. How many run on.
    pub(super) fn reload_plugins(&mut self) -> usize {
        let mut unchanged = 0;
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
                Some(index)
                    if self.sources[index].plugin_config() == Some(&plugin) && !self.sources[index].is_refused() =>
                {
                    unchanged += usize::from(self.sources[index].is_started());
                    self.discover(index, false);
                }
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
        unchanged
    }

    /// The plug-ins that run or begin to run.
    pub(super) fn started_plugins(&self) -> Vec<StartedPlugin> {
        self.sources.iter().filter_map(RunningSource::started_plugin).collect()
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
        self.start_plugin(index, format!("restarted plug-in {name}"))
    }

    /// Starts a plug-in that does not run as its table is now: it is not loaded, was refused, or its table has changed.
    fn load_plugin(&mut self, name: &str) -> Result<CommandResult, ManagerError> {
        let at = self.find_plugin(name);
        let new = Config::load(&self.config.file).map_err(|error| ManagerError::Invalid(error.to_string()))?;
        let Some(plugin) = new.plugins.find(name) else {
            let file = self.config.file.display();
            return Err(ManagerError::Unknown(format!("{file} has no table [plugins.{name}]; add one")));
        };
        let runs = |running: &RunningSource| {
            running.is_started() && !running.is_refused() && running.plugin_config() == Some(plugin)
        };
        if at.is_some_and(|index| runs(&self.sources[index])) {
            let done = format!("plug-in {name} was loaded already, with this table; `restart` starts it again");
            return Ok(CommandResult::new(done));
        }
        let plugins = &mut self.config.plugins.plugins;
        match plugins.iter_mut().find(|known| known.name == name) {
            Some(known) => *known = plugin.clone(),
            None => plugins.push(plugin.clone()),
        }
        let running = self.plugin_source(plugin);
        let index = match at {
            Some(index) => {
                self.stop(index);
                self.sources[index] = running;
                index
            }
            None => {
                self.sources.push(running);
                self.sources.len() - 1
            }
        };
        self.start_plugin(index, format!("loaded plug-in {name}"))
    }

    fn start_plugin(&mut self, index: usize, done: String) -> Result<CommandResult, ManagerError> {
        self.start(index);
        if self.sources[index].is_running() {
            let started = self.sources[index].started_plugin().into_iter().collect();
            return Ok(CommandResult { started, ..CommandResult::new(done) });
        }
        let notes = self.sources[index].status().notes;
        Err(ManagerError::Invalid(notes.last().cloned().unwrap_or_else(|| "the plug-in did not start".to_owned())))
    }
}
