//! The job scope of sources: the sensors of one job.
//!
//! - In: the directories of a job on this node ([`JobCgroups`]).
//! - Out: metric sets ([`MetricSet`]): sensors that are read together, and readers for any selection of them.
//! - Never: the selection and the interval. The agent's rules decide them for each sensor, and change them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, SensorDef};

use crate::plan::Slot;
use crate::reader::Reader;
use crate::source::ConfigureContext;

/// The directories, the owner and the CPUs of a job on this node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobCgroups {
    /// The level in the names of the job's sensors (`JobRecord::level`).
    pub level: String,
    /// The directory in the unified hierarchy.
    pub v2: Option<PathBuf>,
    /// The directories in hierarchies of version 1, by controller (`cpuacct`, `memory`, `blkio`, `pids`, `cpuset`, `freezer`, …).
    pub v1: BTreeMap<String, PathBuf>,
    /// The user of the job's processes.
    pub uid: Option<u32>,
    /// The CPUs that the job may use; empty for all, or if unknown.
    pub cpus: Vec<u32>,
}

impl JobCgroups {
    /// The directory of a controller of version 1.
    pub fn v1(&self, controller: &str) -> Option<&Path> {
        self.v1.get(controller).map(PathBuf::as_path)
    }
}

/// The job scope of a configured source.
pub trait JobSource: Send {
    /// The metric sets of a job. The agent calls it outside the sampling path: when a job begins, when a reader reports a changed layout, and when the
    /// job's cgroups changes. `report` takes one line for the administrator about each thing that this machine lacks; the agent logs each text once,
    /// whichever job it comes from.
    fn metric_sets(&mut self, cgroups: &JobCgroups, report: &mut dyn FnMut(String)) -> Vec<MetricSet>;

    /// The final counters of a job whose processes have ended. The agent calls it before [`JobSource::forget`]. `None` if the counters come from
    /// files that the agent reads itself, or if the job was never read.
    fn final_counters(&mut self, _place: &JobCgroups) -> Option<FinalCounters> {
        None
    }

    /// Drops the state of a job that has ended.
    fn forget(&mut self, cgroups: &JobCgroups);
}

/// The final counters of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum FinalCounters {
    /// Sensors with their raw values.
    Known(Vec<(SensorDef, i64)>),
    /// The counters are incomplete: the reason, as a clause for messages.
    Unknown(&'static str),
}

/// Sensors of a job that are read together, with as few system calls as possible: one file, or one group of counters.
pub struct MetricSet {
    /// Name in messages, such as `cpu.stat`. Unique within the source.
    pub name: String,
    /// All sensors of the metric set, with names below the job, such as `cpu/usage`.
    pub sensors: Vec<SensorDef>,
    /// The shortest interval of a read. The agent refuses shorter ones.
    pub interval_min: Interval,
    /// Whether a read can block, so that the agent reads it on another thread.
    pub blocking: bool,
    /// Opens a reader for a selection of the sensors.
    pub open: OpenReader,
}

/// Opens a reader that writes sensor `n` of [`MetricSet::sensors`] to `slots[n]` of the row and no other slot; `None` leaves the sensor out. When rules
/// change, the agent opens another reader before it drops the previous one. So the readers of a metric set share counters, which must not restart.
pub type OpenReader = Box<dyn Fn(&[Slot]) -> Box<dyn Reader> + Send>;

/// Creates the job scope of a source from its table of the configuration.
pub type ConfigureJobs = fn(&Section, &ConfigureContext) -> Result<Box<dyn JobSource>, ConfigError>;
