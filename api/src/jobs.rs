//! Jobs: lists, records, and the sampling rules of running jobs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::UtcTime;

/// A page of jobs, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobPage {
    pub jobs: Vec<ListedJob>,
    /// The parameter `after` of the next page; null on the last page.
    pub next: Option<String>,
}

/// One run of a job, over all its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedJob {
    pub job: String,
    /// The second id, for resource managers that give a job two.
    pub also: Option<String>,
    pub manager: String,
    pub user: Option<String>,
    pub uid: Option<u32>,
    pub name: Option<String>,
    pub account: Option<String>,
    pub partition: Option<String>,
    pub state: RunState,
    /// The number of nodes.
    pub nodes: u64,
    /// The first eight nodes.
    pub node_names: Vec<String>,
    pub from: UtcTime,
    /// Null while the job runs.
    pub to: Option<UtcTime>,
    /// CPU seconds of all nodes.
    pub cpu_s: Option<f64>,
    /// The highest peak of memory of any node, in bytes.
    pub memory_peak: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    Running,
    Ended,
}

impl RunState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

/// A job with the records of all its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobDetails {
    pub job: ListedJob,
    /// All runs with this id, the newest first.
    pub runs: Vec<JobRun>,
    /// The records, by node.
    pub allocations: Vec<JobAllocation>,
    pub summary: JobSummary,
    /// The number of records that could not be read.
    pub damaged: u64,
}

/// One of several runs with the same id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobRun {
    pub job: String,
    pub manager: String,
    pub from: UtcTime,
    pub to: Option<UtcTime>,
    /// The number of nodes.
    pub nodes: u64,
}

/// The record of a job on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobAllocation {
    pub job: String,
    /// The level in the paths of the job's sensors: `<prefix>/job/<level>/…`.
    pub level: String,
    pub manager: String,
    pub node: String,
    pub prefix: String,
    /// The owner by the cgroup's path: `uid:<uid>` or `user:<name>` if the resource manager wrote it, `own:<uid>` below a user's own systemd
    /// manager, else empty.
    pub owner: String,
    pub uid: Option<u32>,
    pub user: Option<String>,
    /// The CPUs of the job, such as `0-3,8`.
    pub cpus: Option<String>,
    pub devices: Vec<String>,
    pub from: UtcTime,
    pub to: Option<UtcTime>,
    /// The agent was not running at the end: `to` is when it saw the job last.
    pub end_unseen: bool,
    pub name: Option<String>,
    pub account: Option<String>,
    pub partition: Option<String>,
    /// All nodes of the job as the resource manager writes them.
    pub nodes: Option<String>,
    pub also: Option<String>,
    pub steps: Vec<JobStepTimes>,
    /// The number of steps that the record had no room for.
    pub steps_dropped: u64,
    /// The last known totals by metric, in the metrics' units.
    pub totals: BTreeMap<String, f64>,
    /// Why the totals of an ended job have no `tasks/*`.
    pub tasks_missing: Option<String>,
    pub totals_at: Option<UtcTime>,
    /// Increases with every change of the record.
    pub revision: u64,
}

/// A step or a task of a job on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStepTimes {
    /// The path below the job, such as `step_0/task_1`.
    pub name: String,
    pub from: UtcTime,
    pub to: Option<UtcTime>,
}

/// The allocations of a job together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobSummary {
    /// The number of allocations.
    pub allocations: u64,
    /// The CPUs of all nodes that report them.
    pub cpus: u64,
    /// The number of nodes that report their CPUs.
    pub cpus_nodes: u64,
    /// The names of the devices.
    pub devices: BTreeSet<String>,
    /// The number of devices on all nodes.
    pub devices_count: u64,
    pub steps: Vec<JobStep>,
    /// The number of steps left out because the records or this list were full.
    pub steps_dropped: u64,
    pub totals: BTreeMap<String, JobMetricTotal>,
    /// The number of nodes whose agent was not running at the end.
    pub end_unseen: u64,
}

/// A step over its nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStep {
    pub name: String,
    pub from: UtcTime,
    pub to: Option<UtcTime>,
    /// The number of nodes.
    pub nodes: u64,
}

/// The totals of one metric over the nodes that have one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobMetricTotal {
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    /// The number of nodes.
    pub nodes: u64,
}

/// A sampling rule for a running job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddJobRule {
    /// Patterns of metrics below the job, such as `perf/*`.
    pub metrics: Vec<String>,
    /// The interval, such as 1ms; or off.
    pub every: String,
    /// How long the rule applies, such as 10m.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Keeps aggregates of windows in place of every sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<AccumulateWindows>,
    /// Which jobs; only in requests to an agent. The server takes the job from the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<String>,
}

/// The windows of a rule that keeps aggregates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccumulateWindows {
    /// The length of a window, such as 1s.
    pub window: String,
    #[serde(default)]
    pub quantiles: Vec<f64>,
}

/// The result of a command on all nodes of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeResponses {
    pub job: String,
    /// The number of nodes that failed.
    pub failed: u64,
    pub nodes: Vec<NodeResponse>,
}

/// The result of a command on one node: `ok` or `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeResponse {
    /// The agent's name, which is its client id.
    pub node: String,
    /// The agent's response, as its control socket gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The agent did not respond. Unless it was not connected, it may have run the command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}
