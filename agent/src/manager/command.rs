//! Commands to the manager from other threads.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use serde::Serialize;
use wholegrain_model::{Interval, LogLevel};

use crate::jobs::rules::JobsRefusal;
use crate::jobs::{JobsCommand, JobsOutcome};
use crate::waker::Waker;

/// How long a caller waits for the manager: 10 s.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

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
}

impl CommandResult {
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

    /// Sends a command and waits for the result.
    pub fn execute(&self, command: ManagerCommand) -> Result<CommandResult, ManagerError> {
        let (sender, receiver) = sync_channel(1);
        self.commands.send((command, sender)).map_err(|_| ManagerError::Busy)?;
        self.waker.wake();
        receiver.recv_timeout(RESPONSE_TIMEOUT).map_err(|_| ManagerError::Busy)?
    }

    /// Sends a command about rules of jobs and waits for the result.
    pub fn execute_jobs(&self, command: JobsCommand) -> Result<JobsOutcome, ManagerError> {
        self.execute(ManagerCommand::Jobs(command)).map(|done| done.jobs.unwrap_or_default())
    }
}
