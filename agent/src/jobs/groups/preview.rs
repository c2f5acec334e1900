//! The groups that the running jobs would have, for `--check` and `--once`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use wholegrain_model::SensorPath;
use wholegrain_sources::Roots;

pub use super::running_job::GroupPreview;
use super::running_job::{RunningJob, SetSelection};
use super::running_set::SensorListPool;
use super::source::JobSourceHandle;
use crate::engine::clock;
use crate::jobs::JobsConfig;
use crate::jobs::rules::Rules;
use crate::jobs::tracker::{Job, JobEvent, NodeFacts, Tracker};
use crate::reconcile::{SensorOwners, taken_metric};
use crate::waker::Waker;

/// The list of jobs is complete when the tracker has reported nothing for 200 ms.
const QUIET: Duration = Duration::from_millis(200);
/// The longest wait for the tracker: 5 s.
const PREVIEW_MAX: Duration = Duration::from_secs(5);

/// The node and its sources, as a preview needs them.
pub struct PreviewNode<'a> {
    pub name: &'a str,
    pub prefix: &'a SensorPath,
    pub roots: &'a Roots,
    pub sources: Vec<JobSourceHandle>,
    /// The sensors of the node's own groups.
    pub owners: &'a SensorOwners,
}

/// The groups of all running jobs by the configuration's rules; rules that people have added are known to the running agent only. `note` gets what
/// an administrator should know.
pub fn preview(config: &JobsConfig, node: PreviewNode<'_>, note: &mut dyn FnMut(String)) -> Vec<GroupPreview> {
    let jobs = match find(config, &node) {
        Ok(jobs) => jobs,
        Err(error) => {
            note(format!("jobs: {error:#}"));
            return Vec::new();
        }
    };
    let (rules, now) = (Rules::open(&config.rules, None, clock::real()).0, clock::real());
    let (mut sources, mut pool) = (node.sources, SensorListPool::default());
    let mut groups = Vec::new();
    note(format!("jobs: {} run on this node now", jobs.len()));
    for job in jobs {
        let mut running = RunningJob::new(job);
        running.gather(&mut sources, &mut pool, &SetSelection::All);
        let taken = node.owners.below(&format!("{}/job/{}/", node.prefix, running.job.record.level));
        for (metric, group) in running.metrics().into_iter().filter_map(|metric| taken.get_key_value(metric.name)) {
            note(taken_metric(metric, group));
        }
        running.resolve(&rules.of_job(&running.subject(), now), &taken);
        for group in running.preview(node.prefix) {
            match group {
                Ok(group) => groups.push(group),
                Err(error) => note(format!("jobs: left out: {error}")),
            }
        }
    }
    sources.iter().flat_map(|source| source.notes()).for_each(|text| note(text.clone()));
    groups
}

/// The running jobs, as reported by a tracker that is stopped afterwards.
fn find(config: &JobsConfig, node: &PreviewNode<'_>) -> anyhow::Result<Vec<Arc<Job>>> {
    let facts = NodeFacts { name: node.name.to_owned(), prefix: node.prefix.to_string() };
    let waker = Arc::new(Waker::new()?);
    let (tracker, events, _) = Tracker::start(&config.tracker, None, node.roots, facts, waker, Arc::default())?;
    let jobs = collect(&events, Instant::now() + PREVIEW_MAX);
    tracker.stop();
    Ok(jobs)
}

fn collect(events: &Receiver<JobEvent>, until: Instant) -> Vec<Arc<Job>> {
    let mut found: Vec<Arc<Job>> = Vec::new();
    while Instant::now() < until {
        let (job, runs) = match events.recv_timeout(QUIET) {
            Ok(JobEvent::Began(job) | JobEvent::Changed(job)) => (job, true),
            Ok(JobEvent::Ended(job)) => (job, false),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        };
        found.retain(|other| other.record.level != job.record.level);
        if runs {
            found.push(job);
        }
    }
    found
}
