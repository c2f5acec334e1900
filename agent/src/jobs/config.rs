//! `[jobs]` of the configuration. Each part checks its own table.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};

use super::{JobBounds, marks, rules, tracker};

/// The shortest time between two scans of the whole cgroup tree: 100 ms.
pub const RESCAN_NS_MIN: u64 = 100_000_000;

#[derive(Debug, Clone, PartialEq)]
pub struct JobsConfig {
    /// The directory of records and rules; `None`: they do not survive a restart.
    pub dir: Option<PathBuf>,
    /// The Unix socket for all users of the node.
    pub socket: Option<PathBuf>,
    /// Whether commands of the server are executed.
    pub server_commands: bool,
    pub tracker: tracker::TrackerConfig,
    pub rules: rules::RulesConfig,
    pub marks: marks::MarksConfig,
    pub bounds: JobBounds,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawJobs {
    dir: Option<PathBuf>,
    socket: Option<PathBuf>,
    server_commands: bool,
    rescan: Interval,
    managers: Vec<String>,
    pattern: Vec<tracker::RawPattern>,
    units: Vec<String>,
    hierarchies: Vec<PathBuf>,
    hooks: PathBuf,
    gpustat: PathBuf,
    flux_user: String,
    oar_user: String,
    pbs_prefixes: Vec<String>,
    slurm_slices: Vec<String>,
    slurm_nodes: Vec<String>,
    rule: Vec<rules::RawRule>,
    limits: rules::Limits,
    marks: marks::MarksConfig,
    bounds: JobBounds,
}

impl Default for RawJobs {
    fn default() -> Self {
        Self {
            dir: None,
            socket: None,
            server_commands: true,
            rescan: Interval::from_s(5),
            managers: tracker::default_managers(),
            pattern: Vec::new(),
            units: tracker::default_units(),
            hierarchies: tracker::default_hierarchies(),
            hooks: tracker::default_hooks(),
            gpustat: tracker::default_gpustat(),
            flux_user: "flux".to_owned(),
            oar_user: "oar".to_owned(),
            pbs_prefixes: tracker::default_pbs_prefixes(),
            slurm_slices: tracker::default_slurm_slices(),
            slurm_nodes: vec!["*".to_owned()],
            rule: Vec::new(),
            limits: rules::Limits::default(),
            marks: marks::MarksConfig::default(),
            bounds: JobBounds::default(),
        }
    }
}

impl JobsConfig {
    /// Reads and checks the table; relative paths are below `dir`.
    pub fn read(section: &Section, dir: &Path) -> Result<Self, ConfigError> {
        let raw: RawJobs = section.parse()?;
        if raw.rescan.ns() < RESCAN_NS_MIN {
            return Err(section.error("rescan", format!("rescan is {}; 100ms is the shortest", raw.rescan)));
        }
        let bounds = raw.bounds.check(&section.child("bounds"))?;
        let tracker = tracker::RawTracker {
            bounds,
            rescan: raw.rescan,
            managers: raw.managers,
            patterns: raw.pattern,
            units: raw.units,
            hierarchies: raw.hierarchies,
            hooks: raw.hooks,
            gpustat: raw.gpustat,
            flux_user: raw.flux_user,
            oar_user: raw.oar_user,
            pbs_prefixes: raw.pbs_prefixes,
            slurm_slices: raw.slurm_slices,
            slurm_nodes: raw.slurm_nodes,
        };
        Ok(Self {
            dir: raw.dir.map(|path| dir.join(path)),
            socket: raw.socket.map(|path| dir.join(path)),
            server_commands: raw.server_commands,
            tracker: tracker::TrackerConfig::check(section, tracker, dir)?,
            rules: rules::RulesConfig::check(section, raw.rule, raw.limits)?,
            marks: raw.marks.check(section)?,
            bounds,
        })
    }
}
