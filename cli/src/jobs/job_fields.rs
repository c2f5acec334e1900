//! Fields and options that several subcommands of `wholegrain jobs` have.

use clap::ValueEnum;
use wholegrain_api::ListedJob;
use wholegrain_model::Timestamp;

use crate::failure::Failure;
use crate::output::values;

/// The user's name, or the uid without a name.
pub fn owner(job: &ListedJob) -> String {
    job.user.clone().or_else(|| job.uid.map(|uid| uid.to_string())).unwrap_or_default()
}

/// The length of the job, until `now` while it runs, in ns.
pub fn length(job: &ListedJob, now: i64) -> i64 {
    job.to.map_or(now, |to| to.0).saturating_sub(job.from.0).max(0)
}

/// The parameter `at` of an option `--at`.
pub fn at_parameter(at: Option<&str>) -> Result<Option<(&'static str, String)>, Failure> {
    let parse = |at| Timestamp::parse(at, values::now()).map_err(|error| Failure::Usage(format!("--at: {error}")));
    Ok(at.map(parse).transpose()?.map(|at| ("at", at.to_string())))
}

/// The output format for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobsFormat {
    /// Aligned tables, for people
    Table,
    /// One indented JSON object
    Json,
}
