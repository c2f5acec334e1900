//! Jobs and their metrics as rules see them.

use wholegrain_model::Interval;

/// A job as rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleJob<'a> {
    pub id: &'a str,
    /// The level of its sensors' names.
    pub level: &'a str,
    pub also: Option<&'a str>,
    pub uid: Option<u32>,
    pub user: Option<&'a str>,
}

impl RuleJob<'_> {
    pub fn of(record: &wholegrain_model::JobRecord) -> RuleJob<'_> {
        RuleJob {
            id: &record.job,
            level: &record.level,
            also: record.also.as_deref(),
            uid: record.uid,
            user: record.user.as_deref(),
        }
    }
}

/// A metric of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobMetric<'a> {
    /// The name below the job.
    pub name: &'a str,
    /// The shortest interval at which it can be read.
    pub interval_min: Interval,
}
