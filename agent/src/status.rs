//! What the agent publishes about its connection, its sources and its log.

use std::sync::Mutex;

use serde::Serialize;

use crate::log::LogSetting;
use crate::plugins::SharedProgress;
use crate::sync::lock;

/// The connection to the server in use.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LinkStatus {
    /// Of the server in use; without a connection, of all.
    pub url: String,
    /// Of the server in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why this server of several is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `off`, `connecting`, `connected` or `waiting`.
    pub state: &'static str,
    /// Why the last connection failed or ended.
    pub last_error: Option<String>,
    /// Batches sent and not yet acknowledged.
    pub in_flight: usize,
    /// The candidates in the agent's order, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateStatus>,
}

/// One address of one of several servers.
#[derive(Debug, Clone, Serialize)]
pub struct CandidateStatus {
    pub url: String,
    pub address: String,
    /// `in use`, `failed` or `ready`: no failure is known.
    pub state: &'static str,
    /// The last failure since the last success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct SourceStatus {
    /// Its name in the configuration.
    pub name: String,
    /// One line that describes it.
    pub summary: String,
    /// `running`, `stopped` or `failed`.
    pub state: &'static str,
    pub groups: Vec<String>,
    /// Messages of its last discoveries.
    pub notes: Vec<String>,
}

/// A plug-in and how it is doing.
#[derive(Debug, Clone)]
pub struct PluginStatus {
    pub name: String,
    pub library: String,
    pub isolated: bool,
    pub groups: usize,
    pub sensors: usize,
    /// Changes at any time.
    pub progress: SharedProgress,
}

/// The states that the sender and the manager publish, and the API shows.
#[derive(Debug)]
pub struct AgentStatus {
    link: Mutex<LinkStatus>,
    log: Mutex<LogSetting>,
    sources: Mutex<Vec<SourceStatus>>,
    plugins: Mutex<Vec<PluginStatus>>,
}

impl AgentStatus {
    pub fn new(log: LogSetting) -> Self {
        let link = LinkStatus { state: "off", ..LinkStatus::default() };
        Self { link: Mutex::new(link), log: Mutex::new(log), sources: Mutex::default(), plugins: Mutex::default() }
    }

    pub fn link(&self) -> LinkStatus {
        lock(&self.link).clone()
    }

    pub fn change_link(&self, change: impl FnOnce(&mut LinkStatus)) {
        change(&mut lock(&self.link));
    }

    pub fn log(&self) -> LogSetting {
        lock(&self.log).clone()
    }

    pub fn change_log(&self, change: impl FnOnce(&mut LogSetting)) {
        change(&mut lock(&self.log));
    }

    pub fn sources(&self) -> Vec<SourceStatus> {
        lock(&self.sources).clone()
    }

    pub fn plugins(&self) -> Vec<PluginStatus> {
        lock(&self.plugins).clone()
    }

    pub fn set_plugins(&self, plugins: Vec<PluginStatus>) {
        *lock(&self.plugins) = plugins;
    }

    pub fn set_sources(&self, sources: Vec<SourceStatus>) {
        *lock(&self.sources) = sources;
    }
}
