//! The energy of a job.

use serde::{Deserialize, Serialize};

use crate::{ListedJob, UtcTime};

/// The energy of a job's nodes in its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobEnergy {
    pub job: ListedJob,
    pub from: UtcTime,
    pub to: UtcTime,
    pub nodes: Vec<JobNodeEnergy>,
    #[serde(flatten)]
    pub result: JobEnergyResult,
}

/// The end of a [`JobEnergy`], which follows the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobEnergyResult {
    pub total: JobEnergyTotal,
    /// `node` or `facility`: whose sensors were read.
    pub source: String,
    /// The patterns of the sensors.
    pub meters: Vec<String>,
    /// How shared nodes are divided: `cores`, `cpu_time` or `all`.
    pub share: String,
    /// The same in a sentence.
    pub rule: String,
    /// How gaps count in the energy.
    pub gaps: String,
    pub warnings: Vec<String>,
}

/// The energy of one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobNodeEnergy {
    pub node: String,
    /// Null if nothing was measured.
    pub joules: Option<f64>,
    /// The covered part of the time, 0 to 1.
    pub coverage: f64,
    /// The job's share of the node's energy, averaged over its time there.
    pub share: Option<f64>,
    /// The number of other jobs there at the same time.
    pub shared_with: u64,
    pub sensors: Vec<String>,
    /// Why the energy is not known.
    pub problem: Option<String>,
}

/// The energy of all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobEnergyTotal {
    pub joules: Option<f64>,
    pub kwh: Option<f64>,
    /// The covered part of the nodes' time, 0 to 1.
    pub coverage: f64,
    pub covered_s: f64,
    pub time_s: f64,
    /// The number of nodes.
    pub nodes: u64,
    /// The number of nodes that were measured.
    pub nodes_measured: u64,
}
