//! Marks of jobs: regions of their code and values of their own, as sensors of the job.
//!
//! - In: marks of processes of running jobs, with the time of the event; views of the running jobs.
//! - Out: a group for each name, `job/<level>/region/<name>` (how many times the region is open) or `job/<level>/app/<name>`, with one
//!   sample for each event; encoded, sent and cached as all others are.
//! - Never: a sample of an ended job; more names, samples or memory of one job than its bounds; a sampler thread.
//!
//! A region that is open when its job ends is closed then. A token bucket ([`bucket`]) bounds the samples of a job: marks beyond it are counted
//! and dropped, except that the last one of each name is written once the bucket has a token, so that the sensor's final value is right.

pub mod bucket;
pub mod config;
mod job_marks;
pub mod process;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use wholegrain_sources::Roots;

pub use self::config::MarksConfig;
pub use self::job_marks::{JobMarks, Mark, MarkCounts, MarkError, MarkKind};

use self::job_marks::MarksContext;
use super::{CallerIdentity, JobView, JobsView, SharedJobsView};
use crate::counters::AgentCounters;
use crate::engine::clock::Wake;
use crate::engine::schedule::ClockReading;
use crate::identity::AgentIdentity;
use crate::rate_limit::RateLimit;
use crate::registry::GroupRegistry;
use crate::sync::lock;

/// Refusals that are logged in a minute: of one user, and of all.
const REFUSALS_PER_MINUTE: (u32, u32) = (10, 60);

/// Identifies one job on this node; a later job with the same id has another key.
type MarksKey = (String, String, i64);

fn key(job: &JobView) -> MarksKey {
    (job.record.level.clone(), job.record.manager.clone(), job.record.from)
}

/// The marks of all jobs.
#[derive(Debug)]
pub struct Marks {
    context: Arc<MarksContext>,
    view: Arc<SharedJobsView>,
    roots: Roots,
    jobs: Mutex<HashMap<MarksKey, Arc<JobMarks>>>,
    refusals: Mutex<RateLimit>,
}

impl Marks {
    pub fn new(
        config: MarksConfig,
        roots: Roots,
        identity: Arc<AgentIdentity>,
        registry: Arc<GroupRegistry>,
        counters: Arc<AgentCounters>,
        encoder_wake: Arc<Wake>,
        view: Arc<SharedJobsView>,
    ) -> Self {
        let (each, all) = REFUSALS_PER_MINUTE;
        Self {
            context: Arc::new(MarksContext::new(config, identity, registry, counters, encoder_wake)),
            view,
            roots,
            jobs: Mutex::default(),
            refusals: Mutex::new(RateLimit::per_minute(each, all)),
        }
    }

    /// Applies other settings. Names beyond a lower bound stay.
    pub fn configure(&self, config: MarksConfig) {
        self.context.configure(config);
    }

    /// Where the kernel's trees are mounted.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Logs that a caller was refused, rate-limited.
    pub fn log_refusal(&self, who: &CallerIdentity, why: &str, now: ClockReading) {
        if let Some(more) = lock(&self.refusals).note_refusal(&who.key(), now.real) {
            tracing::info!("refused {}: {why}{more}", who.name);
        }
    }

    /// The marks of a running job.
    pub fn of(&self, job: &JobView) -> Result<Arc<JobMarks>, MarkError> {
        let key = key(job);
        let mut jobs = lock(&self.jobs);
        if let Some(marks) = jobs.get(&key) {
            return Ok(marks.clone());
        }
        // The view is read under the lock: `follow`, which removes ended jobs, comes after the view is published and takes the lock too.
        if !self.view.get().jobs.iter().any(|now| self::key(now) == key) {
            return Err(MarkError::Over(job.record.job.clone()));
        }
        let marks = Arc::new(JobMarks::new(&job.record, self.context.clone()));
        jobs.insert(key, marks.clone());
        Ok(marks)
    }

    /// Ends the marks of jobs that are not in the view any more: closes their regions and retires their groups. To be called after the view is
    /// published.
    pub fn follow(&self, view: &JobsView, now: ClockReading) {
        let ended: Vec<Arc<JobMarks>> = {
            let mut jobs = lock(&self.jobs);
            if jobs.is_empty() {
                return;
            }
            let running: HashSet<MarksKey> = view.jobs.iter().map(|job| key(job)).collect();
            jobs.extract_if(|key, _| !running.contains(key)).map(|(_, marks)| marks).collect()
        };
        ended.iter().for_each(|marks| marks.end(now));
    }

    /// Whether marks wait for [`Marks::flush`].
    pub fn is_pending(&self) -> bool {
        self.context.is_pending()
    }

    /// Writes delayed marks for which there is room again.
    pub fn flush(&self, now: ClockReading) {
        if self.context.take_pending() {
            let jobs: Vec<Arc<JobMarks>> = lock(&self.jobs).values().cloned().collect();
            jobs.iter().for_each(|job| job.flush(now));
        }
    }
}
