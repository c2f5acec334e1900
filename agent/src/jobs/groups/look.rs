//! One look at the jobs of this machine, for `--check` and `--once`: what would be sampled of each.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::JobGroups;
use super::part::SensorListPool;
use super::running_job::{GroupPreview, PartSelection, RunningJob};
use crate::config::Config;
use crate::engine::clock;
use crate::jobs::JobsConfig;
use crate::jobs::rules::Rules;
use crate::jobs::tracker::{Job, JobEvent, NodeFacts, Tracker};
use crate::waker::Waker;

/// All jobs count as known when the tracker has reported nothing new for this time: 200 ms.
const QUIET: Duration = Duration::from_millis(200);
/// The longest look: 5 s.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// The groups of all jobs that run, by the configuration's rules; those that people have made are the running agent's. `note` gets what
/// people should know.
pub fn look(config: &Config, note: &mut dyn FnMut(String)) -> Vec<GroupPreview> {
    let Some(jobs) = &config.jobs else { return Vec::new() };
    let found = match find(config, jobs) {
        Ok(found) => found,
        Err(error) => {
            note(format!("jobs: {error:#}"));
            return Vec::new();
        }
    };
    let (rules, now) = (Rules::open(&jobs.rules, None, clock::real()).0, clock::real());
    let (mut supplies, mut pool) = (JobGroups::supplies(config, &config.roots), SensorListPool::default());
    let mut groups = Vec::new();
    note(format!("jobs: {} run on this node now", found.len()));
    for job in found {
        let mut running = RunningJob::new(job);
        running.gather(&mut supplies, &mut pool, &PartSelection::All);
        running.resolve(&rules.of_job(&running.subject(), now));
        for group in running.preview(&config.prefix) {
            match group {
                Ok(group) => groups.push(group),
                Err(error) => note(format!("jobs: left out: {error}")),
            }
        }
    }
    supplies.iter().flat_map(|supply| supply.notes()).for_each(|text| note(text.clone()));
    groups
}

/// The jobs that run, as a tracker tells of them that is asked for nothing else.
fn find(config: &Config, jobs: &JobsConfig) -> anyhow::Result<Vec<Arc<Job>>> {
    let node = NodeFacts { name: config.name.clone(), prefix: config.prefix.to_string() };
    let (tracker, events, _) = Tracker::start(&jobs.tracker, None, &config.roots, node, Arc::new(Waker::new()?))?;
    let found = collect(&events, Instant::now() + LOOK_MAX);
    tracker.stop();
    Ok(found)
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
