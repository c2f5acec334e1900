//! Jobs and their changes, as the tracker reports them.

use std::sync::Arc;

use wholegrain_model::JobRecord;
use wholegrain_sources::job::JobCgroups;

/// A running job, or one that has just ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub record: JobRecord,
    pub cgroups: JobCgroups,
    /// Whether it has had a process: until then it is not read. True if the kernel does not say.
    pub has_processes: bool,
}

/// A change of a job. `record.level` identifies it: no other running job has the same.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEvent {
    /// The job began, or was running when the agent started.
    Began(Arc<Job>),
    /// Its record or its cgroups changed.
    Changed(Arc<Job>),
    /// The job ended; the record has `to` and the last totals.
    Ended(Arc<Job>),
}

/// The agent's identity in job records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    /// The path above all its sensors.
    pub prefix: String,
}
