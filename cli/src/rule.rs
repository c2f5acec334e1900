//! A rule as people write it on the command line: the same for one agent and for all nodes of a job.

use clap::Args;
use serde_json::{Value, json};
use wholegrain_model::{Interval, Pattern};

/// What is sampled, how often, what is kept, for how long.
#[derive(Debug, Clone, Args)]
pub struct RuleArgs {
    /// Which metrics, below the job; can be given more than once
    #[arg(long, required = true, value_name = "PATTERN")]
    metrics: Vec<Pattern>,
    /// How often, such as 1ms; or off
    #[arg(long, value_name = "LENGTH")]
    every: String,
    /// How long, such as 10m
    #[arg(long = "for", value_name = "LENGTH")]
    within: Option<Interval>,
    /// Keep minimum, maximum, mean, last and count of windows of this length in place of every sample
    #[arg(long, value_name = "LENGTH")]
    accumulate: Option<Interval>,
    /// Quantiles of each window, between 0 and 1, with commas between
    #[arg(long, value_delimiter = ',', requires = "accumulate", value_name = "LIST")]
    quantiles: Vec<f64>,
    /// Change nothing; say what would be answered
    #[arg(long = "try")]
    pub dry: bool,
}

impl RuleArgs {
    /// As agents and the server want it.
    pub fn to_json(&self) -> Value {
        let metrics: Vec<&str> = self.metrics.iter().map(Pattern::as_str).collect();
        let mut rule = json!({ "metrics": metrics, "every": self.every });
        if let Some(within) = self.within {
            rule["for"] = json!(within.to_string());
        }
        if let Some(window) = self.accumulate {
            rule["accumulate"] = json!({ "window": window.to_string(), "quantiles": self.quantiles });
        }
        rule
    }
}
