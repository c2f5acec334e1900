//! What the API shows of jobs and rules: made by the manager's thread, read by every connection.

use std::sync::Arc;

use serde::Serialize;
use wholegrain_model::{JobRecord, Kind};
use wholegrain_sources::job::JobPlace;

/// Jobs and rules as they are now.
#[derive(Debug, Clone, Default)]
pub struct JobsView {
    /// Running jobs, by id.
    pub jobs: Vec<Arc<JobView>>,
    /// Rules in force, in the order in which they count: of two that match a metric the later one does.
    pub rules: Arc<Vec<RuleView>>,
}

#[derive(Debug, Clone, Serialize)]
pub struct JobView {
    /// What is known of it.
    #[serde(flatten)]
    pub record: JobRecord,
    /// Where it is on this node: how a process is known to be of it.
    #[serde(skip)]
    pub place: JobPlace,
    /// Why nothing of it is read, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<&'static str>,
    /// Everything that can be read of it, and what is.
    pub metrics: Vec<MetricView>,
}

/// A metric of a job.
#[derive(Debug, Clone, Serialize)]
pub struct MetricView {
    /// Below the job, such as `cpu/usage`.
    pub name: String,
    /// Unit of its values.
    pub unit: String,
    pub kind: Kind,
    /// How often it is read; `None` for not at all.
    pub interval_ns: Option<u64>,
    /// The window of an accumulation; `None` when every sample is kept.
    pub window_ns: Option<u64>,
    /// The rule that says so.
    pub rule: u64,
    /// The group that it is sampled in.
    pub group: Option<String>,
    /// The part of its ticks that were made, 0 to 1, in whole percents, of late; `None` while it is not known. Below 1 the source or the
    /// machine cannot sustain the interval.
    pub achieved: Option<f64>,
}

/// A rule in force.
#[derive(Debug, Clone, Serialize)]
pub struct RuleView {
    /// Its number; those of the configuration come first.
    pub id: u64,
    /// Metric patterns, below the job.
    pub metrics: Vec<String>,
    /// Pattern of job ids.
    pub jobs: String,
    /// The interval, or `off`.
    pub every: String,
    /// The window and the quantiles of an accumulation.
    pub accumulate: Option<super::Accumulation>,
    /// When it ends, RFC 3339.
    pub until: Option<String>,
    pub by: String,
    /// The uid of the user who made it; `None` for the configuration and administrators.
    pub uid: Option<u32>,
    /// That user's name, where a name is known.
    pub user: Option<String>,
    /// When it was made, RFC 3339.
    pub made: Option<String>,
}
