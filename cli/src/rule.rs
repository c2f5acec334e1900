//! A rule as people write it on the command line: the same for one agent and for all nodes of a job.

use clap::Args;
use wholegrain_api::{AccumulateWindows, AddJobRule};
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
