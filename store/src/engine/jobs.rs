//! Jobs.

use std::collections::HashSet;
use std::io;

use wholegrain_model::JobRecord;

use super::Store;
use crate::append::AppendCallback;
use crate::error::StoreError;
use crate::jobs::list::{JobFilter, JobList};
use crate::jobs::{JobAllocation, JobSearchResult};

impl Store {
    /// Checks records and queues them. Calls `done` once: at once if one of them is refused (then none is stored) or there is no room, else from
    /// the jobs thread when all are durable ([`crate::AppendOutcome::Duplicate`] if all were stored before) or could not be written. Of several
    /// records of an allocation the one with the highest revision counts, in whatever order they arrive. A record that has ended replaces one that
    /// runs, whatever the revisions: an agent that lost its revisions can still end a job.
    pub fn put_jobs(&self, records: Vec<JobRecord>, done: AppendCallback) {
        self.engine().jobs.put(records, done)
    }

    /// The jobs that match a filter, the newest first. Reads memory only.
    pub fn jobs(&self, filter: &JobFilter) -> JobList {
        self.engine().jobs.list(filter)
    }

    /// The allocations of all runs of the jobs with this id, level or other id, by time. Reads memory only.
    pub fn job(&self, id: &str) -> Vec<JobAllocation> {
        self.engine().jobs.allocations(id)
    }

    /// The job with this id, level or other id; of several runs the newest that had begun at the time `at`. With `only_user`, jobs of other users
    /// do not count.
    pub fn find_job(&self, id: &str, only_user: Option<&str>, at: Option<i64>) -> Option<JobSearchResult> {
        self.engine().jobs.find(id, only_user, at)
    }

    /// Passes the records of a job to `take`, by node, until `take` fails. Returns how many records are damaged and left out.
    pub fn job_records(
        &self,
        job: &JobSearchResult,
        take: impl FnMut(JobRecord) -> io::Result<()>,
    ) -> Result<io::Result<u64>, StoreError> {
        self.engine().jobs.records(job, take)
    }

    /// Passes the records of all jobs on these nodes between two times (the second excluded) to `take`, in no order. Returns how many are damaged
    /// and left out; `None`, and `take` is not called, if there are more than `most`. The caller checks who may see them.
    pub fn job_records_on(
        &self,
        nodes: &HashSet<&str>,
        (from, to): (i64, i64),
        most: usize,
        take: impl FnMut(JobRecord),
    ) -> Result<Option<u64>, StoreError> {
        self.engine().jobs.records_on(nodes, (from, to), most, take)
    }

    /// Whether a user may see a sensor: those of their own jobs, and those that belong to no job.
    pub fn sees(&self, user: &str, path: &str) -> bool {
        self.engine().jobs.sees(user, path)
    }

    /// Removes the sensors that a user may not see.
    pub fn retain_seen(&self, user: &str, sensors: &mut Vec<crate::SensorInfo>) {
        self.engine().jobs.retain_seen(user, sensors)
    }

    /// Changes whenever the answer of [`Store::sees`] may have changed.
    pub fn jobs_generation(&self) -> u64 {
        self.engine().jobs.generation()
    }
}
