//! The tracker's settings in `[jobs]`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section, unknown};

use super::super::JobBounds;
use super::layout::{JobPathPattern, MANAGERS};

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
    /// The account, or its uid, that Flux runs as: its jobs are below that user's systemd manager and nobody else's. Empty for none.
    pub flux_user: String,
    /// The account, or its uid, that owns the directories of OAR 2 beside root. Empty for none.
    pub oar_user: String,
    /// What the names of PBS's cgroups begin with (`cgroup_prefix` of its hook).
    pub pbs_prefixes: Vec<String>,
    /// The slices that Slurm's scope is in (`CgroupSlice`); `-.slice` is the root.
    pub slurm_slices: Vec<String>,
    /// The node names of several Slurm daemons on a node, with `*` for any text.
    pub slurm_nodes: Vec<String>,
    /// What jobs may take of the node.
    pub bounds: JobBounds,
}

/// A table `[[jobs.pattern]]` as it is written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPattern {
    /// What the records call the manager.
    pub name: String,
    /// A regular expression over the path below the hierarchy's root, with a capture `job`, and perhaps `uid`, `user`, `step`.
    pub path: String,
    /// An account, or its uid, that may own the directories beside root.
    #[serde(default)]
    pub owner: Option<String>,
}

/// The tracker's keys of `[jobs]` as they are written.
#[derive(Debug, Clone, PartialEq)]
pub struct RawTracker {
    /// See [`TrackerConfig`], as for all of them.
    pub rescan: Interval,
    pub managers: Vec<String>,
    pub patterns: Vec<RawPattern>,
    /// Units that are jobs.
    pub units: Vec<String>,
    pub hierarchies: Vec<PathBuf>,
    pub hooks: PathBuf,
    pub gpustat: PathBuf,
    pub flux_user: String,
    pub oar_user: String,
    pub pbs_prefixes: Vec<String>,
    pub slurm_slices: Vec<String>,
    pub slurm_nodes: Vec<String>,
    pub bounds: JobBounds,
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
    PathBuf::from("/run/wholegrain-hooks")
}

/// Where the prologs of Jobstats and the like write.
pub fn default_gpustat() -> PathBuf {
    PathBuf::from("/run/gpustat")
}

/// What the names of PBS's cgroups begin with: since version 20, and in PBS Professional.
pub fn default_pbs_prefixes() -> Vec<String> {
    ["pbs_jobs", "pbspro"].map(str::to_owned).to_vec()
}

/// The slice that Slurm's scope is in.
pub fn default_slurm_slices() -> Vec<String> {
    vec!["system.slice".to_owned()]
}

impl TrackerConfig {
    /// The accounts that are to be resolved for its layouts.
    pub fn accounts(&self) -> Vec<String> {
        let of = |manager: &str, name: &String| {
            (self.managers.iter().any(|other| other == manager) && !name.is_empty()).then(|| name.clone())
        };
        let managers = of("flux", &self.flux_user).into_iter().chain(of("oar", &self.oar_user));
        managers.chain(self.patterns.iter().filter_map(|pattern| pattern.owner.clone())).collect()
    }

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
            if let Err(message) = JobPathPattern::new(pattern) {
                return Err(section.error("pattern", format!("pattern `{}`: {message}", pattern.name)));
            }
        }
        for (key, names) in [("pbs_prefixes", &raw.pbs_prefixes), ("slurm_slices", &raw.slurm_slices)] {
            if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('/')) {
                return Err(section.error(key, format!("{name:?} is no name of a directory")));
            }
        }
        if let Some(name) = raw.slurm_slices.iter().find(|name| !name.ends_with(".slice")) {
            return Err(section.error("slurm_slices", format!("{name:?} is no slice; its name ends with `.slice`")));
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
            flux_user: raw.flux_user,
            oar_user: raw.oar_user,
            pbs_prefixes: raw.pbs_prefixes,
            slurm_slices: raw.slurm_slices,
            slurm_nodes: raw.slurm_nodes,
            bounds: raw.bounds,
        })
    }
}
