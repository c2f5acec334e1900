//! Commands about rules: the same on this node, over HTTPS and through the server.

use serde::{Deserialize, Serialize};

use super::CallerIdentity;
use super::rules::RawRule;

/// A command about rules. The manager's thread checks and executes it.
#[derive(Debug, Clone)]
pub struct JobsCommand {
    pub who: CallerIdentity,
    pub action: JobsAction,
}

/// An action; as JSON, `{"add": {"metrics": ["perf/*"], "jobs": "4711", "every": "1ms", "for": "10m"}}`, `{"remove": 17}` or `{"end": "4711"}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobsAction {
    Add(RawRule),
    Remove(u64),
    /// Removes all rules for exactly this job: the user's own, or for an administrator everybody's.
    End(String),
    /// Checks an `add` without a change.
    Try(RawRule),
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JobsOutcome {
    pub done: String,
    /// Metrics for which the rule does not fully apply, with the reason; `done` has them too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The number of the added or removed rule.
    pub rule: Option<u64>,
    /// Running jobs that it applies to.
    pub jobs: Vec<String>,
    /// The number of metrics that it applies to.
    pub metrics: u64,
    /// The end of the rule, RFC 3339.
    pub until: Option<String>,
    /// Readings per second of all metrics of all jobs of this node; for a user of the user's jobs.
    pub readings_per_second: f64,
}
