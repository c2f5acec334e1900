//! What is asked about rules, by people on this node, over HTTPS and through the server: the same for all of them.

use serde::{Deserialize, Serialize};

use super::CallerIdentity;
use super::rules::RawRule;

/// A command about rules, checked and executed on the manager's thread.
#[derive(Debug, Clone)]
pub struct JobsCommand {
    pub who: CallerIdentity,
    pub order: JobsAction,
}

/// What can be asked; as JSON, `{"add": {"metrics": ["perf/*"], "jobs": "4711", "every": "1ms", "for": "10m"}}` `{"remove": 17}` or `{"end": "4711"}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobsAction {
    Add(RawRule),
    /// The end of a rule.
    Remove(u64),
    /// The end of all rules that name exactly this job: a user's own, for an administrator everybody's.
    End(String),
    /// Nothing is changed: what the answer to an `add` would be.
    Try(RawRule),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JobsOutcome {
    pub done: String,
    /// Of which metrics not everything that was asked for comes true, and why; `done` says it too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The number of the rule made or removed.
    pub rule: Option<u64>,
    /// Running jobs that it applies to.
    pub jobs: Vec<String>,
    /// How many metrics of those it applies to.
    pub metrics: u64,
    /// When it ends, RFC 3339.
    pub until: Option<String>,
    /// Readings a second that all metrics of all jobs of this node come to now; for a user those of their own jobs.
    pub readings_per_second: f64,
}
