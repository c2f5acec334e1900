//! Jobs: what is known of one job on one node, and how it travels to the server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The longest job id, in bytes.
pub const JOB_ID_BYTES_MAX: usize = 128;
/// The most steps of one job that a record tells of; further ones are counted only.
pub const STEPS_MAX: usize = 1024;
/// The largest record, in bytes of JSON.
pub const JOB_RECORD_BYTES_MAX: usize = 1 << 20;

/// One job on one node: an allocation, and what was found out about it. Sent each time it changes; the same (node, manager,
/// job, owner, from) with a higher revision takes the place of an earlier one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRecord {
    /// The id as the resource manager writes it, such as `4711`, `4711.pbs01`, `ƒ2oLkTLb` or a SLUID.
    pub job: String,
    /// The level of the hierarchy that the job's sensors are below: `<prefix>/job/<level>/…`. The id, made fit for a name.
    pub level: String,
    /// `slurm`, `oar`, `pbs`, `flux`, `systemd`, or the name of a configured pattern.
    pub manager: String,
    /// The agent's name.
    pub node: String,
    /// The agent's prefix.
    pub prefix: String,
    /// Who the path of its cgroup says that it is of: `uid:<uid>` or `user:<name>` that the manager wrote there; `own:<uid>` where
    /// it lies below that user's own systemd manager, so that the user chose the id; empty where the path does not say.
    pub owner: String,
    /// Whose processes they are; `None` when it could not be found out.
    pub uid: Option<u32>,
    /// The name that belongs to `uid` on the node.
    pub user: Option<String>,
    /// The CPUs it may use as the kernel lists them, such as `0-3,8`; `None` when it could not be found out.
    pub cpus: Option<String>,
    /// Devices given to it, such as `gpu/0`.
    pub devices: Vec<String>,
    /// When it began here, ns since the Unix epoch: the creation of its cgroup.
    pub from: i64,
    /// When it ended here; `None` while it runs.
    pub to: Option<i64>,
    /// The agent was not there to see the end: `to` is when it was last seen.
    pub end_unseen: bool,
    /// From a prolog hook.
    pub name: Option<String>,
    /// From a prolog hook.
    pub account: Option<String>,
    /// From a prolog hook.
    pub partition: Option<String>,
    /// All nodes of the job as the resource manager writes them, from a prolog hook.
    pub nodes: Option<String>,
    /// The id of a manager that knows the job by two, such as Slurm's job id beside a SLUID, from a prolog hook.
    pub also: Option<String>,
    /// Steps and tasks below it, in the order in which they began.
    pub steps: Vec<StepRecord>,
    /// Steps beyond [`STEPS_MAX`].
    pub steps_dropped: u64,
    /// Last known totals by metric, in the metrics' units (`cpu/usage` in s, `memory/peak` in By, …). Of a job that has ended the counters
    /// `tasks/*` too, where they are known up to the end of its last process.
    pub totals: BTreeMap<String, f64>,
    /// Why a job that has ended has no `tasks/*` among its totals, though its processes were looked at while it ran.
    pub tasks_missing: Option<String>,
    /// When the latest of `totals` was read, ns since the Unix epoch.
    pub totals_at: Option<i64>,
    /// Rises with every change.
    pub revision: u64,
}

/// A step or a task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepRecord {
    /// Its path below the job, such as `step_0` or `step_0/task_1`.
    pub name: String,
    /// When it began, ns since the Unix epoch.
    pub from: i64,
    /// When it ended; `None` while it runs.
    pub to: Option<i64>,
}

impl JobRecord {
    /// Whether it is the same job on the same node.
    pub fn is_same(&self, other: &JobRecord) -> bool {
        (&self.node, &self.manager, &self.job, &self.owner, self.from)
            == (&other.node, &other.manager, &other.job, &other.owner, other.from)
    }
}
