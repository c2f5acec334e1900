//! What jobs say of themselves: regions of their code and values of their own, as the job's sensors.
//!
//! - In: marks of processes of running jobs, with the time of the event; views of the jobs that run.
//! - Out: for each name a group of its own, `job/<level>/region/<name>` (how often the region is open) or `job/<level>/app/<name>`,
//!   with a row for each event; encoded, sent and cached as all others are.
//! - Never: a row of a job that has ended; more names, rows or memory of one job than its bounds; a sampler thread.
//!
//! A region that is open when its job ends is closed then. The rows of a job are bounded by a [`bucket`]: what is over is counted,
//! and of each name only the last is kept back and written once there is room, so that what a sensor shows in the end is true.

pub mod bucket;
mod job_marks;
pub mod process;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::Roots;

pub use job_marks::{JobMarks, Mark, MarkCounts, MarkKind};

use super::rules::RateLimit;
use super::{CallerIdentity, JobView, JobsView};
use crate::engine::schedule::ClockReading;
use crate::state::{AgentState, lock};

/// The longest name of a region or a value, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// The most names of all jobs of one user.
pub const NAMES_OF_USER_MAX: usize = 1024;
/// The most names of all jobs together: each has a group, which takes about 12 KiB.
pub const NAMES_OF_ALL_MAX: usize = 4096;
/// How far the time that a mark carries may be from the agent's clock: 1 s. The time of its arrival is taken for one beyond.
pub const TIME_APART_NS_MAX: i64 = 1_000_000_000;

/// Refusals that the log tells of a minute: of one user, and of all.
const REFUSALS_PER_MINUTE: (u32, u32) = (10, 60);

/// The settings of `[jobs.marks]`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MarksConfig {
    /// Whether marks are taken at all.
    pub enabled: bool,
    /// The most names of regions and values of one job.
    pub names_max: usize,
    /// Marks a second of one job that are taken in the long run.
    pub per_second: f64,
    /// Marks of one job that are taken at once.
    pub burst: u32,
}

impl Default for MarksConfig {
    fn default() -> Self {
        Self { enabled: true, names_max: 32, per_second: 50.0, burst: 200 }
    }
}

impl MarksConfig {
    /// The most marks a second that may be configured.
    pub const PER_SECOND_MAX: f64 = 10_000.0;

    pub fn check(self, section: &Section) -> Result<Self, ConfigError> {
        let wrong = |key: &str, is: String, wanted: String| {
            Err(section.child("marks").error(key, format!("{key} is {is}; use {wanted}")))
        };
        if !(1..=NAMES_OF_USER_MAX).contains(&self.names_max) {
            return wrong("names_max", self.names_max.to_string(), format!("1 to {NAMES_OF_USER_MAX}"));
        }
        if !(self.per_second > 0.0 && self.per_second <= Self::PER_SECOND_MAX) {
            return wrong("per_second", self.per_second.to_string(), format!("over 0 to {}", Self::PER_SECOND_MAX));
        }
        if !(1..=100_000).contains(&self.burst) {
            return wrong("burst", self.burst.to_string(), "1 to 100000".into());
        }
        Ok(self)
    }
}

/// Why a mark was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// Too many a second.
    #[error("{0}")]
    Dropped(String),
    #[error("{0}")]
    Refused(String),
    /// The job is no more.
    #[error("job {0} has ended")]
    Over(String),
}

/// What tells one job on this node from all others, a later one of the same id included.
type MarksKey = (String, String, i64);

fn key(job: &JobView) -> MarksKey {
    (job.record.level.clone(), job.record.manager.clone(), job.record.from)
}

/// The marks of all jobs.
#[derive(Debug)]
pub struct Marks {
    config: Mutex<MarksConfig>,
    roots: Roots,
    jobs: Mutex<HashMap<MarksKey, Arc<JobMarks>>>,
    /// Something is kept back.
    is_pending: AtomicBool,
    /// How many refusals the log tells of.
    refusals: Mutex<RateLimit>,
}

impl Marks {
    pub fn new(config: &crate::Config) -> Self {
        let (each, all) = REFUSALS_PER_MINUTE;
        let refusals = Mutex::new(RateLimit::per_minute(each, all));
        let marks = config.jobs.as_ref().map(|jobs| jobs.marks).unwrap_or_default();
        Self {
            config: Mutex::new(marks),
            roots: config.roots.clone(),
            jobs: Mutex::default(),
            is_pending: AtomicBool::new(false),
            refusals,
        }
    }

    /// The bounds in force.
    pub fn config(&self) -> MarksConfig {
        *lock(&self.config)
    }

    /// Other bounds. Names beyond a lower bound stay.
    pub fn configure(&self, config: MarksConfig) {
        *lock(&self.config) = config;
    }

    /// Where the kernel's trees are.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Somebody may not what they asked for: the log tells of it, as far as it is not too much.
    pub fn tell_refusal(&self, who: &CallerIdentity, why: &str, now: ClockReading) {
        let key = who.uid.map_or_else(|| who.name.clone(), |uid| format!("uid {uid}"));
        let mut refusals = lock(&self.refusals);
        if refusals.take(&key, now.real) {
            let more = match refusals.take_excess() {
                0 => String::new(),
                count => format!(" ({count} refusals before were not logged)"),
            };
            tracing::info!("refused {}: {why}{more}", who.name);
        }
    }

    /// The marks of a job of the view.
    pub fn of(&self, job: &JobView, state: &AgentState) -> Result<Arc<JobMarks>, MarkError> {
        let key = key(job);
        let mut jobs = lock(&self.jobs);
        if let Some(marks) = jobs.get(&key) {
            return Ok(marks.clone());
        }
        // Looked at under the lock: the job is there until `follow`, which comes after this, takes it away.
        if !state.jobs().jobs.iter().any(|now| self::key(now) == key) {
            return Err(MarkError::Over(job.record.job.clone()));
        }
        let marks = Arc::new(JobMarks::new(&job.record));
        jobs.insert(key, marks.clone());
        Ok(marks)
    }

    /// Ends the marks of the jobs that run no more: closes their regions and gives their groups to be drained.
    pub fn follow(&self, view: &JobsView, state: &AgentState, now: ClockReading) {
        let ended: Vec<Arc<JobMarks>> = {
            let mut jobs = lock(&self.jobs);
            if jobs.is_empty() {
                return;
            }
            let running: std::collections::HashSet<MarksKey> = view.jobs.iter().map(|job| key(job)).collect();
            jobs.extract_if(|key, _| !running.contains(key)).map(|(_, marks)| marks).collect()
        };
        ended.iter().for_each(|marks| marks.end(state, now));
    }

    /// Whether marks wait for [`Marks::flush`].
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Acquire)
    }

    /// Writes what was kept back where there is room again.
    pub fn flush(&self, state: &AgentState, now: ClockReading) {
        if self.is_pending.swap(false, Ordering::AcqRel) {
            let jobs: Vec<Arc<JobMarks>> = lock(&self.jobs).values().cloned().collect();
            jobs.iter().for_each(|job| job.flush(state, now));
        }
    }

    /// Whether one name more is within the bounds of its user and of all.
    fn is_room(&self, uid: Option<u32>) -> Result<(), MarkError> {
        let jobs = lock(&self.jobs);
        let names = |of: &dyn Fn(&JobMarks) -> bool| -> usize {
            jobs.values().filter(|job| of(job)).map(|job| job.names.load(Ordering::Relaxed)).sum()
        };
        if names(&|_| true) >= NAMES_OF_ALL_MAX {
            return Err(MarkError::Refused(format!(
                "the jobs of this node have {NAMES_OF_ALL_MAX} names, which is all there may be"
            )));
        }
        if names(&|job| job.uid == uid) >= NAMES_OF_USER_MAX {
            return Err(MarkError::Refused(format!(
                "this user's jobs have {NAMES_OF_USER_MAX} names, which is all there may be"
            )));
        }
        Ok(())
    }
}
