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
        let tracker = tracker::TrackerConfig::default();
        Self {
            dir: None,
            socket: None,
            server_commands: true,
            rescan: tracker.rescan,
            managers: tracker.managers,
            pattern: tracker.patterns,
            units: tracker.units,
            hierarchies: tracker.hierarchies,
            hooks: tracker.hooks.unwrap_or_default(),
            gpustat: tracker.gpustat.unwrap_or_default(),
            flux_user: tracker.flux_user,
            oar_user: tracker.oar_user,
            pbs_prefixes: tracker.pbs_prefixes,
            slurm_slices: tracker.slurm_slices,
            slurm_nodes: tracker.slurm_nodes,
            rule: Vec::new(),
            limits: rules::Limits::default(),
            marks: marks::MarksConfig::default(),
            bounds: tracker.bounds,
        }
    }
}

impl JobsConfig {
    /// Reads and checks the table. Relative paths are below `dir`; an empty path of `hooks` or `gpustat` is none.
    pub fn read(section: &Section, dir: &Path) -> Result<Self, ConfigError> {
        let raw: RawJobs = section.parse()?;
        if raw.rescan.ns() < RESCAN_NS_MIN {
            return Err(section.error("rescan", format!("rescan is {}; 100ms is the shortest", raw.rescan)));
        }
        let bounds = raw.bounds.check(&section.child("bounds"))?;
        let optional = |path: PathBuf| (!path.as_os_str().is_empty()).then(|| dir.join(path));
        let tracker = tracker::TrackerConfig {
            bounds,
            rescan: raw.rescan,
            managers: raw.managers,
            patterns: raw.pattern,
            units: raw.units,
            hierarchies: raw.hierarchies.into_iter().map(|path| dir.join(path)).collect(),
            hooks: optional(raw.hooks),
            gpustat: optional(raw.gpustat),
            flux_user: raw.flux_user,
            oar_user: raw.oar_user,
            pbs_prefixes: raw.pbs_prefixes,
            slurm_slices: raw.slurm_slices,
            slurm_nodes: raw.slurm_nodes,
        };
        tracker.check(section)?;
        Ok(Self {
            dir: raw.dir.map(|path| dir.join(path)),
            socket: raw.socket.map(|path| dir.join(path)),
            server_commands: raw.server_commands,
            tracker,
            rules: rules::RulesConfig::check(section, raw.rule, raw.limits)?,
            marks: raw.marks.check(section)?,
            bounds,
        })
    }
}
