//! Sources at job scope: what can be read of one job.
//!
//! - In: where a job is on this node ([`JobPlace`]).
//! - Out: parts ([`JobPart`]): what is read together, its sensors, and a reader for any choice of them.
//! - Never: which of them are sampled and when; that is decided by the agent's rules, for each sensor, and changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, SensorDef};

use crate::plan::Slot;
use crate::reader::Reader;
use crate::source::ConfigureContext;

/// Where a job is on this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobPlace {
    /// The level of the job's sensors' names (`JobRecord::level`).
    pub level: String,
    /// Its directory in the unified hierarchy.
    pub v2: Option<PathBuf>,
    /// Its directories in version 1 hierarchies, by controller (`cpuacct`, `memory`, `blkio`, `pids`, `cpuset`, `freezer`, …).
    pub v1: BTreeMap<String, PathBuf>,
    /// Whose processes they are.
    pub uid: Option<u32>,
    /// The CPUs it may use; empty for all, or when it could not be found out.
    pub cpus: Vec<u32>,
}

impl JobPlace {
    /// Its directory for a version 1 controller.
    pub fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.get(controller).map(PathBuf::as_path)
    }
}

/// A source of readings of jobs.
pub trait JobSource: Send {
    /// What there is to read of a job. Called off the sampling path: when a job begins, when a reader says that its layout has
    /// changed, and when the job's place changes. What this machine lacks is left out and told to `report` (one line for people
    /// each; the caller logs each text once, whichever job it came from).
    fn parts(&mut self, place: &JobPlace, report: &mut dyn FnMut(String)) -> Vec<JobPart>;

    /// What the job's counters came to, its processes being gone; called before [`JobSource::forget`]. `None` where the source has
    /// nothing that is read at intervals only, or never read it.
    fn last(&mut self, _place: &JobPlace) -> Option<Last> {
        None
    }

    /// The job is over: what was kept for it is given back.
    fn forget(&mut self, place: &JobPlace);
}

/// The last of a job's counters.
#[derive(Debug, Clone, PartialEq)]
pub enum Last {
    /// Each with its value as read.
    Counters(Vec<(SensorDef, i64)>),
    /// They are not whole, for this reason: a clause for people.
    Unknown(&'static str),
}

/// What is read of a job with one system call, or as few as can be: one file, or one set of counters.
pub struct JobPart {
    /// For people, such as `cpu.stat`. Unique within the source.
    pub name: String,
    /// Everything it can give; names below the job, such as `cpu/usage`.
    pub sensors: Vec<SensorDef>,
    /// The shortest interval that it can be read at; shorter ones are refused.
    pub interval_min: Interval,
    /// Whether a read can take long, so that it is made on a thread of its own.
    pub blocking: bool,
    /// Makes a reader of a choice of the sensors.
    pub open: OpenPart,
}

/// Makes a reader that puts the sensor `n` of [`JobPart::sensors`] at the place `slots[n]` of the row, and touches no other place of
/// it; `None` for one that is not wanted. Called again with another choice when rules change, before the earlier reader is
/// dropped: what must not start anew (counters) is shared between the readers of a part.
pub type OpenPart = Box<dyn Fn(&[Slot]) -> Box<dyn Reader> + Send>;

/// Creates the job scope of a source from its table of the configuration.
pub type ConfigureJobs = fn(&Section, &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError>;
