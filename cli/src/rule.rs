//! The options of a rule for one agent or for all nodes of a job.

use clap::Args;
use wholegrain_api::{AccumulateWindows, AddJobRule};
use wholegrain_model::{Interval, Pattern};

/// The metrics, interval, windows and duration of a rule.
#[derive(Debug, Clone, Args)]
pub struct RuleArgs {
    /// Metrics below the job; can be repeated
    #[arg(long, required = true, value_name = "PATTERN")]
    metrics: Vec<Pattern>,
    /// The interval, such as 1ms; or off
    #[arg(long, value_name = "LENGTH")]
    every: String,
    /// How long the rule applies, such as 10m
    #[arg(long = "for", value_name = "LENGTH")]
    within: Option<Interval>,
    /// Keep minimum, maximum, mean, last and count of windows of this length instead of every sample
    #[arg(long, value_name = "LENGTH")]
    accumulate: Option<Interval>,
    /// Quantiles of each window, between 0 and 1, separated by commas
    #[arg(long, value_delimiter = ',', requires = "accumulate", value_name = "LIST")]
    quantiles: Vec<f64>,
    /// Change nothing; print what the rule would do
    #[arg(long)]
    pub dry_run: bool,
}

impl RuleArgs {
    /// The body of the request to an agent or to the server.
    pub fn request(&self) -> AddJobRule {
        let window =
            |window: Interval| AccumulateWindows { window: window.to_string(), quantiles: self.quantiles.clone() };
        AddJobRule {
            metrics: self.metrics.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            every: self.every.clone(),
            duration: self.within.map(|within| within.to_string()),
            accumulate: self.accumulate.map(window),
            jobs: None,
        }
    }
}
