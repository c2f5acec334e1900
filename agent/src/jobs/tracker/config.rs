//! The tracker's settings in `[jobs]`.

use std::path::PathBuf;

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

impl Default for TrackerConfig {
    fn default() -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            rescan: Interval::from_s(5),
            managers: owned(&["slurm", "oar", "pbs", "flux"]),
            patterns: Vec::new(),
            units: owned(&["*.scope"]),
            // The links of OAR 2 to the hierarchies that it mounts itself.
            hierarchies: vec!["/dev/oar_cgroups_links".into()],
            // The directory of the packaged hooks.
            hooks: Some("/run/wholegrain-hooks".into()),
            // The directory of Jobstats' prologs.
            gpustat: Some("/run/gpustat".into()),
            flux_user: "flux".to_owned(),
            oar_user: "oar".to_owned(),
            // PBS since version 20, and PBS Professional.
            pbs_prefixes: owned(&["pbs_jobs", "pbspro"]),
            slurm_slices: owned(&["system.slice"]),
            slurm_nodes: owned(&["*"]),
            bounds: JobBounds::default(),
        }
    }
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

    pub fn check(&self, section: &Section) -> Result<(), ConfigError> {
        let known = &MANAGER_NAMES;
        for name in &self.managers {
            if !known.contains(&name.as_str()) {
                return Err(section.error("managers", unknown("resource manager", name, known)));
            }
        }
        for (index, pattern) in self.patterns.iter().enumerate() {
            if pattern.name.is_empty() || pattern.name.len() > 64 || pattern.name.contains(char::is_whitespace) {
                let text = format!("pattern {}: its name must be one word of 1 to 64 bytes", index + 1);
                return Err(section.error("pattern", text));
            }
            if let Err(message) = JobPathPattern::new(pattern) {
                return Err(section.error("pattern", format!("pattern `{}`: {message}", pattern.name)));
            }
        }
        for (key, names) in [("pbs_prefixes", &self.pbs_prefixes), ("slurm_slices", &self.slurm_slices)] {
            if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains('/')) {
                return Err(section.error(key, format!("{name:?} is not the name of a directory")));
            }
        }
        match self.slurm_slices.iter().find(|name| !name.ends_with(".slice")) {
            Some(name) => {
                Err(section.error("slurm_slices", format!("{name:?} is not a slice; its name ends with `.slice`")))
            }
            None => Ok(()),
        }
    }
}
