//! Statistics of a job's sensors.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{ListedJob, UtcTime};

/// Statistics of a job's sensors on each node and over the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStatistics {
    pub job: ListedJob,
    pub from: UtcTime,
    pub to: UtcTime,
    pub nodes: Vec<NodeMetric<'static>>,
    pub metrics: Vec<MetricOverNodes>,
    /// What is missing from these statistics.
    pub warnings: Vec<String>,
}

/// Statistics of values; null without values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Spread {
    pub count: u64,
    pub min: Option<f64>,
    pub mean: Option<f64>,
    pub max: Option<f64>,
    /// The standard deviation of the population.
    pub deviation: Option<f64>,
}

/// Statistics of one metric on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeMetric<'a> {
    pub node: Cow<'a, str>,
    /// The path below the node's prefix.
    pub metric: Cow<'a, str>,
    pub unit: Cow<'a, str>,
    #[serde(flatten)]
    pub spread: Spread,
    /// The covered part of the time, 0 to 1.
    pub coverage: f64,
}

/// Statistics of one metric over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MetricOverNodes {
    /// The path below the nodes' prefixes.
    pub metric: String,
    pub unit: String,
    /// The number of nodes that have the sensor.
    pub nodes: u64,
    #[serde(flatten)]
    pub spread: Spread,
    /// The covered part of the time of all these nodes, 0 to 1.
    pub coverage: f64,
    /// Statistics of the nodes' means.
    pub node_means: Spread,
    /// The node with the least mean.
    pub min_node: Option<String>,
    /// The node with the greatest mean.
    pub max_node: Option<String>,
    /// The greatest mean of a node divided by the mean of all nodes, minus 1; null if the mean is not above 0.
    pub imbalance: Option<f64>,
}
