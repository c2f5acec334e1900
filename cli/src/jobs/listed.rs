//! Properties of listed jobs.

use wholegrain_api::ListedJob;

/// The user's name, or the uid without a name.
pub fn owner(job: &ListedJob) -> String {
    job.user.clone().or_else(|| job.uid.map(|uid| uid.to_string())).unwrap_or_default()
}

/// The length of the job, until `now` while it runs, in ns.
pub fn length(job: &ListedJob, now: i64) -> i64 {
    job.to.map_or(now, |to| to.0).saturating_sub(job.from.0).max(0)
}
