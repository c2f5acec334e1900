//! The tracker's settings in `[jobs]`.

use std::path::{Path, PathBuf};

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section, unknown};

use super::super::JobBounds;
use super::layout::{JobPathPattern, RawPattern};

/// The resource managers whose layouts are known, in the order in which they are tried.
pub const MANAGER_NAMES: [&str; 5] = ["slurm", "oar", "pbs", "flux", "systemd"];

/// The directories that are jobs, and further sources of facts.
#[derive(Debug, Clone, PartialEq)]
pub struct TrackerConfig {
    /// How often the whole tree is scanned.
    pub rescan: Interval,
    /// The resource managers whose layouts are used.
    pub managers: Vec<String>,
    /// Layouts of the configuration.
    pub patterns: Vec<RawPattern>,
    /// Names of the units that are jobs of the manager `systemd`, with `*` for any text.
    pub units: Vec<String>,
    /// Directories with version 1 hierarchies by controller, besides the root of the cgroup tree.
    pub hierarchies: Vec<PathBuf>,
    /// The directory of prologs' and epilogs' files.
    pub hooks: Option<PathBuf>,
    /// The directory with a file for each GPU that has `jobid uid`.
    pub gpustat: Option<PathBuf>,
    /// The account that runs Flux, or its uid: its jobs are below that user's systemd manager only. Empty for none.
    pub flux_user: String,
    /// The account that owns the directories of OAR 2 besides root, or its uid. Empty for none.
    pub oar_user: String,
    /// The prefixes of PBS's cgroups (`cgroup_prefix` of its hook).
    pub pbs_prefixes: Vec<String>,
    /// The slices of Slurm's scope (`CgroupSlice`); `-.slice` is the root.
    pub slurm_slices: Vec<String>,
    /// The names of several Slurm nodes on one machine, with `*` for any text.
    pub slurm_nodes: Vec<String>,
    pub bounds: JobBounds,
}

/// The tracker's keys of `[jobs]` as they are written.
#[derive(Debug, Clone, PartialEq)]
pub struct RawTracker {
    /// As in [`TrackerConfig`], like all of them.
    pub rescan: Interval,
    pub managers: Vec<String>,
    pub patterns: Vec<RawPattern>,
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

/// The default resource managers.
pub fn default_managers() -> Vec<String> {
    ["slurm", "oar", "pbs", "flux"].map(str::to_owned).to_vec()
}

/// The default units of the manager `systemd`.
pub fn default_units() -> Vec<String> {
    vec!["*.scope".to_owned()]
}

/// The links of OAR 2 to the hierarchies that it mounts itself.
pub fn default_hierarchies() -> Vec<PathBuf> {
    vec![PathBuf::from("/dev/oar_cgroups_links")]
}

/// The directory of the packaged hooks.
pub fn default_hooks() -> PathBuf {
    PathBuf::from("/run/wholegrain-hooks")
}

/// The directory of Jobstats' prologs.
pub fn default_gpustat() -> PathBuf {
    PathBuf::from("/run/gpustat")
}

/// The prefixes of PBS since version 20, and of PBS Professional.
pub fn default_pbs_prefixes() -> Vec<String> {
    ["pbs_jobs", "pbspro"].map(str::to_owned).to_vec()
}

/// The default slice of Slurm's scope.
pub fn default_slurm_slices() -> Vec<String> {
    vec!["system.slice".to_owned()]
}

impl TrackerConfig {
    /// The accounts that its layouts need the uids of.
    pub fn accounts(&self) -> Vec<String> {
        let of = |manager: &str, name: &String| {
            (self.managers.iter().any(|other| other == manager) && !name.is_empty()).then(|| name.clone())
        };
        let managers = of("flux", &self.flux_user).into_iter().chain(of("oar", &self.oar_user));
        managers.chain(self.patterns.iter().filter_map(|pattern| pattern.owner.clone())).collect()
    }

    /// Checks the keys; relative paths are below `dir`, and an empty path is none.
    pub fn check(section: &Section, raw: RawTracker, dir: &Path) -> Result<Self, ConfigError> {
        let known = &MANAGER_NAMES;
        for name in &raw.managers {
            if !known.contains(&name.as_str()) {
                return Err(section.error("managers", unknown("resource manager", name, known)));
            }
        }
        for (index, pattern) in raw.patterns.iter().enumerate() {
            if pattern.name.is_empty() || pattern.name.len() > 64 || pattern.name.contains(char::is_whitespace) {
                let text = format!("pattern {}: its name must be one word of 1 to 64 bytes", index + 1);
                return Err(section.error("pattern", text));
            }
            if let Err(message) = JobPathPattern::new(pattern) {
                return Err(section.error("pattern", format!("pattern `{}`: {message}", pattern.name)));
            }
        }
        for (key, names) in [("pbs_prefixes", &raw.pbs_prefixes), ("slurm_slices", &raw.slurm_slices)] {
            if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('/')) {
                return Err(section.error(key, format!("{name:?} is not the name of a directory")));
            }
        }
        if let Some(name) = raw.slurm_slices.iter().find(|name| !name.ends_with(".slice")) {
            return Err(section.error("slurm_slices", format!("{name:?} is not a slice; its name ends with `.slice`")));
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
