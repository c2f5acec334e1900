//! Commands to the manager from other threads.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use wholegrain_model::{Interval, LogLevel};

use crate::jobs::rules::JobsRefusal;
use crate::jobs::{JobsCommand, JobsOutcome};
use crate::plugins::{PluginProgress, SharedProgress};
use crate::sync::lock;
use crate::waker::Waker;

/// How long a caller waits for the manager: 10 s.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a caller waits for the start of plug-ins: 5 s. Some begin with requests to devices that do not answer.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a caller that waits looks: 5 ms.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The most plug-ins that a message names; it counts the others.
const NAMED_MAX: usize = 5;

/// A command of the API.
#[derive(Debug, Clone)]
pub enum ManagerCommand {
    Stop(String),
    /// Starts a stopped source.
    Start(String),
    /// Gives a group another interval until the next reload.
    Interval(String, Interval),
    /// Sets the log level until the next reload, or for a time.
    Log(LogLevel, Option<Interval>),
    /// Reads the configuration again.
    Reload,
    /// Loads, unloads or restarts a plug-in.
    Plugin(PluginAction, String),
    /// Changes the rules of jobs.
    Jobs(JobsCommand),
}

/// What is done with a plug-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginAction {
    /// Reads its table of the configuration again and starts it.
    Load,
    /// Ends it until it is loaded or the agent starts again.
    Unload,
    /// Ends it and starts it, with its file as it is now.
    Restart,
}

/// Why a command was not executed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ManagerError {
    /// The named source, group, job or rule does not exist.
    #[error("{0}")]
    Unknown(String),
    #[error("{0}")]
    Invalid(String),
    /// The caller has no permission.
    #[error("{0}")]
    Forbidden(String),
    /// The disk or the agent failed.
    #[error("{0}")]
    Failed(String),
    /// The manager did not respond in time.
    #[error("the agent is busy; try again in a moment")]
    Busy,
}

impl From<JobsRefusal> for ManagerError {
    fn from(refusal: JobsRefusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            JobsRefusal::Forbidden(_) => Self::Forbidden(text),
            JobsRefusal::Unknown(_) => Self::Unknown(text),
            JobsRefusal::Invalid(_) | JobsRefusal::Limit { .. } => Self::Invalid(text),
            JobsRefusal::Failed(_) => Self::Failed(text),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CommandResult {
    pub done: String,
    /// Changed settings that take effect only after a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs_restart: Vec<&'static str>,
    /// The result of [`ManagerCommand::Jobs`].
    #[serde(skip)]
    pub jobs: Option<JobsOutcome>,
    /// Plug-ins whose start the caller waits for.
    #[serde(skip)]
    pub started: Vec<StartedPlugin>,
}

/// A plug-in that a command has started.
#[derive(Debug, Clone)]
pub struct StartedPlugin {
    pub name: String,
    pub progress: SharedProgress,
}

impl PartialEq for StartedPlugin {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.progress, &other.progress)
    }
}

/// `what` for each of these plug-ins, at most [`NAMED_MAX`].
fn named(plugins: &[(String, PluginProgress)], state: &str, what: &str) -> Option<String> {
    let chosen: Vec<_> = plugins.iter().filter(|(_, progress)| progress.state == state).collect();
    let text = |(name, progress): &&(String, PluginProgress)| match &progress.fault {
        Some(fault) if state != "starting" => format!("plug-in {name} {what}: {fault}"),
        _ => format!("plug-in {name} {what}"),
    };
    let mut texts: Vec<String> = chosen.iter().take(NAMED_MAX).map(text).collect();
    if chosen.len() > NAMED_MAX {
        texts.push(format!("{} more; `wholegrain ctl plugin list` lists them", chosen.len() - NAMED_MAX));
    }
    (!texts.is_empty()).then(|| texts.join("; "))
}

impl CommandResult {
    /// Waits until the started plug-ins run, and adds those that do not. An error if one is refused.
    fn with_started(mut self) -> Result<Self, ManagerError> {
        let deadline = Instant::now() + START_TIMEOUT;
        let is_starting = |plugin: &StartedPlugin| lock(&plugin.progress).state == "starting";
        while self.started.iter().any(is_starting) && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        let started = std::mem::take(&mut self.started).into_iter();
        let plugins: Vec<_> = started.map(|plugin| (plugin.name, lock(&plugin.progress).clone())).collect();
        let more = [("failing", "fails and is started again later"), ("starting", "has not begun to run yet")];
        let more: Vec<String> = more.iter().filter_map(|(state, what)| named(&plugins, state, what)).collect();
        self.done = [vec![std::mem::take(&mut self.done)], more].concat().join("; ");
        let Some(refused) = named(&plugins, "refused", "is refused") else { return Ok(self) };
        if !self.needs_restart.is_empty() {
            self.done += &format!("; takes effect after a restart: {}", self.needs_restart.join(", "));
        }
        Err(ManagerError::Invalid(format!("{}, but {refused}", self.done)))
    }

    pub fn new(done: impl Into<String>) -> Self {
        Self { done: done.into(), ..Self::default() }
    }
}

/// A command, and where its result goes.
pub type PendingCommand = (ManagerCommand, SyncSender<Result<CommandResult, ManagerError>>);

/// Sends commands to the manager.
#[derive(Debug, Clone)]
pub struct ManagerHandle {
    commands: Sender<PendingCommand>,
    waker: Arc<Waker>,
}

impl ManagerHandle {
    /// A handle, and the manager's end. `waker` ends the manager's wait.
    pub fn new(waker: Arc<Waker>) -> (Self, Receiver<PendingCommand>) {
        let (commands, receiver) = channel();
        (Self { commands, waker }, receiver)
    }

    /// Sends a command and waits for the result, and for the start of plug-ins. The manager itself waits for no plug-in.
    pub fn execute(&self, command: ManagerCommand) -> Result<CommandResult, ManagerError> {
        let (sender, receiver) = sync_channel(1);
        self.commands.send((command, sender)).map_err(|_| ManagerError::Busy)?;
        self.waker.wake();
        receiver.recv_timeout(RESPONSE_TIMEOUT).map_err(|_| ManagerError::Busy)?.and_then(CommandResult::with_started)
    }

    /// Sends a command about rules of jobs and waits for the result.
    pub fn execute_jobs(&self, command: JobsCommand) -> Result<JobsOutcome, ManagerError> {
        self.execute(ManagerCommand::Jobs(command)).map(|done| done.jobs.unwrap_or_default())
    }
}
