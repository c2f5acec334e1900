//! Jobs and rules as the API shows them: the manager's thread makes the view, connections read it.

use std::sync::{Arc, Mutex};

use serde::Serialize;
use wholegrain_model::{JobRecord, Kind};
use wholegrain_sources::job::JobCgroups;

use super::{CallerIdentity, Role};
use crate::sync::lock;

/// Jobs and rules at one time.
#[derive(Debug, Clone, Default)]
pub struct JobsView {
    /// Running jobs, by id.
    pub jobs: Vec<Arc<JobView>>,
    /// Rules in force, in the order in which they count: of two that match a metric, the later one.
    pub rules: Arc<Vec<RuleView>>,
}

/// The view in force.
#[derive(Debug, Default)]
pub struct SharedJobsView(Mutex<Arc<JobsView>>);

impl SharedJobsView {
    pub fn get(&self) -> Arc<JobsView> {
        lock(&self.0).clone()
    }

    pub fn set(&self, view: Arc<JobsView>) {
        *lock(&self.0) = view;
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct JobView {
    #[serde(flatten)]
    pub record: JobRecord,
    /// The job's directories on this node, by which its processes are recognized.
    #[serde(skip)]
    pub cgroups: JobCgroups,
    /// Why the job is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_reason: Option<&'static str>,
    /// All its metrics, read or not.
    pub metrics: Vec<MetricView>,
}

impl JobView {
    /// Whether this is one of the job's ids.
    pub fn has_id(&self, id: &str) -> bool {
        let JobRecord { job, level, also, .. } = &self.record;
        job == id || level == id || also.as_deref() == Some(id)
    }

    pub fn is_owned_by(&self, who: &CallerIdentity) -> bool {
        who.owns(self.record.uid, self.record.user.as_deref())
    }

    /// Whether the caller may see the job.
    pub fn is_visible_to(&self, who: &CallerIdentity) -> bool {
        who.role != Role::User || self.is_owned_by(who)
    }
}

/// A metric of a job.
#[derive(Debug, Clone, Serialize)]
pub struct MetricView {
    /// The name below the job, such as `cpu/usage`.
    pub name: String,
    pub unit: String,
    pub kind: Kind,
    /// `None` if it is not read.
    pub interval_ns: Option<u64>,
    /// The window of an accumulation; `None` if every sample is kept.
    pub window_ns: Option<u64>,
    /// The number of the rule.
    pub rule: u64,
    /// The group in which it is sampled.
    pub group: Option<String>,
    /// The fraction of its recent ticks that were read, 0 to 1, in whole percent; `None` while unknown. Below 1 the source or the machine cannot
    /// sustain the interval.
    pub achieved: Option<f64>,
}

/// A rule in force.
#[derive(Debug, Clone, Serialize)]
pub struct RuleView {
    /// Rules of the configuration have the lowest numbers.
    pub id: u64,
    /// Metric patterns below the job.
    pub metrics: Vec<String>,
    pub jobs: String,
    /// The interval, or `off`.
    pub every: String,
    pub accumulate: Option<super::Accumulation>,
    /// The end, RFC 3339.
    pub until: Option<String>,
    pub by: String,
    /// The uid of the user who added it; `None` for the configuration and administrators.
    pub uid: Option<u32>,
    /// That user's name, if known.
    pub user: Option<String>,
    /// When it was added, RFC 3339.
    pub made: Option<String>,
}
