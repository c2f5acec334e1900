//! The tracker's settings in `[jobs]`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section, unknown};

use super::layout::{MANAGERS, Pattern};

/// Which directories are jobs, and where more is learnt of them.
#[derive(Debug, Clone, PartialEq)]
pub struct TrackerConfig {
    /// How often the whole tree is looked at.
    pub rescan: Interval,
    /// Names of the resource managers whose layouts are looked for.
    pub managers: Vec<String>,
    /// Layouts of the configuration's own.
    pub patterns: Vec<RawPattern>,
    /// Names of the units that are jobs to the manager `systemd`, with `*` for any text.
    pub units: Vec<String>,
    /// Directories with version 1 hierarchies by controller, beside the root of the cgroup tree.
    pub hierarchies: Vec<PathBuf>,
    /// Where prologs and epilogs leave what they know.
    pub hooks: Option<PathBuf>,
    /// Where a file for each GPU says `jobid uid`.
    pub gpustat: Option<PathBuf>,
}

/// `[[jobs.pattern]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPattern {
    /// What the records call the manager.
    pub name: String,
    /// A regular expression over the path below the hierarchy's root, with a capture `job`, and perhaps `uid`, `user`, `step`.
    pub path: String,
}

/// The tracker's keys of `[jobs]` as they are written.
#[derive(Debug, Clone, PartialEq)]
pub struct RawTracker {
    /// See [`TrackerConfig`], as for all of them.
    pub rescan: Interval,
    /// Names of managers.
    pub managers: Vec<String>,
    /// `[[jobs.pattern]]`.
    pub patterns: Vec<RawPattern>,
    /// Units that are jobs.
    pub units: Vec<String>,
    /// Further hierarchies.
    pub hierarchies: Vec<PathBuf>,
    /// The hooks' directory.
    pub hooks: PathBuf,
    /// The GPUs' directory.
    pub gpustat: PathBuf,
}

/// The layouts that are looked for unless the configuration says otherwise.
pub fn default_managers() -> Vec<String> {
    ["slurm", "oar", "pbs", "flux"].map(str::to_owned).to_vec()
}

/// The units that are jobs where the manager `systemd` is asked for.
pub fn default_units() -> Vec<String> {
    vec!["*.scope".to_owned()]
}

/// Where OAR 2 links the hierarchies that it mounts itself.
pub fn default_hierarchies() -> Vec<PathBuf> {
    vec![PathBuf::from("/dev/oar_cgroups_links")]
}

/// Where the packages' hooks write.
pub fn default_hooks() -> PathBuf {
    PathBuf::from("/run/wholegrain/hooks")
}

/// Where the prologs of Jobstats and the like write.
pub fn default_gpustat() -> PathBuf {
    PathBuf::from("/run/gpustat")
}

impl TrackerConfig {
    /// Checks the keys; relative paths are below `dir`, and an empty one is none.
    pub fn check(section: &Section, raw: RawTracker, dir: &Path) -> Result<Self, ConfigError> {
        let known: Vec<&str> = MANAGERS.iter().map(|manager| manager.name).collect();
        for name in &raw.managers {
            if !known.contains(&name.as_str()) {
                return Err(section.error("managers", unknown("resource manager", name, &known)));
            }
        }
        for (index, pattern) in raw.patterns.iter().enumerate() {
            if pattern.name.is_empty() || pattern.name.len() > 64 || pattern.name.contains(char::is_whitespace) {
                let text = format!("pattern {}: its name is to be one word of 1 to 64 bytes", index + 1);
                return Err(section.error("pattern", text));
            }
            if let Err(message) = Pattern::new(pattern) {
                return Err(section.error("pattern", format!("pattern `{}`: {message}", pattern.name)));
            }
        }
        let optional = |path: PathBuf| (!path.as_os_str().is_empty()).then(|| dir.join(path));
        Ok(Self {
            rescan: raw.rescan,
            managers: raw.managers,
            patterns: raw.patterns,
            units: raw.units,
            hierarchies: raw.hierarchies.into_iter().map(|path| dir.join(path)).collect(),
            hooks: optional(raw.hooks),
            gpustat: optional(raw.gpustat),
        })
    }
}
