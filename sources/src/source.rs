//! What a source implements: discovery of groups, and a reader for each group.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, SensorDef};

use crate::reader::Reader;

/// The mount points of the kernel's file systems, by default `/proc`, `/sys` and `/sys/fs/cgroup`. Tests replace them with recorded trees.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Roots {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

/// What a source needs besides its table of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ConfigureContext {
    pub roots: Roots,
    /// The directory of the configuration file.
    pub config_dir: PathBuf,
}

impl ConfigureContext {
    /// Resolves a path from the configuration: a relative path is relative to the directory of the configuration file.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.config_dir.join(path)
    }
}

impl From<Roots> for ConfigureContext {
    fn from(roots: Roots) -> Self {
        Self { roots, config_dir: PathBuf::new() }
    }
}

/// Creates a source from its table of the configuration.
pub type Configure = fn(&Section, &ConfigureContext) -> Result<Box<dyn Source>, ConfigError>;

/// A configured source at node scope.
pub trait Source: Send {
    /// Returns the groups that exist now. The agent calls it outside the sampling path: at start, when a reader reports a changed
    /// layout, and at every rescan, so it may run every few seconds. `report` takes one line for the administrator about each thing
    /// that this machine lacks; the agent logs each text once.
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan>;

    /// Names of groups that the last discovery could not check, because their files could not be opened for lack of permission,
    /// descriptors or memory. The agent keeps those that run and tries again at the next rescan.
    fn unseen(&self) -> &[&'static str] {
        &[]
    }

    /// Whether a discovery would give something else than the last one. A source that works on a thread of its own says so; the agent asks every
    /// second or so, and then runs discovery.
    fn has_news(&self) -> bool {
        false
    }
}

/// A group that a source offers: its sensors are sampled together, at the same time and interval.
pub struct GroupPlan {
    /// Name below the agent's prefix, such as `meminfo` or `net/dev`. Unique within the agent.
    pub name: String,
    /// The sensors in the row's order. Their names are below the agent's prefix, such as `meminfo/MemFree`.
    pub sensors: Vec<SensorDef>,
    pub reader: Box<dyn Reader>,
    pub timing: Timing,
    /// Whether a read can block (a device that may hang). The agent reads these groups on a separate thread for each source.
    pub blocking: bool,
}

/// When a group is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// `None` for the agent's default.
    pub interval: Option<Interval>,
    /// Added to the wall-clock multiples of the interval.
    pub offset: Interval,
    /// Reads at wall-clock multiples of the interval (true), or at intervals from the start (false).
    pub synchronous: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self { interval: None, offset: Interval::default(), synchronous: true }
    }
}

/// The node scope of a source that has only a job scope.
pub struct NoGroups;

impl Source for NoGroups {
    fn discover(&mut self, _report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        Vec::new()
    }
}
