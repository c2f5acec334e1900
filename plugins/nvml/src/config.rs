//! The table `[plugins.nvml]`.

use std::path::PathBuf;

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::ConfigureContext;
use wholegrain_sources::options::{self, GroupOptions};

/// Where the packaged agent keeps its records of jobs.
const RECORDS: &str = "/var/lib/wholegrain-agent/jobs/records.json";
/// The interval of counters of errors, in ns: they change a few times in the life of a GPU.
const HEALTH_INTERVAL_NS: u64 = 60_000_000_000;

/// What a device's level in the names of its sensors is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceNaming {
    /// The number in `/dev/nvidia<n>`, which Slurm and cgroups use; an instance is `<n>-gi<i>-ci<j>`.
    #[default]
    Minor,
    /// The library's own identifiers, `GPU-…` and `MIG-…`.
    Uuid,
    /// The address on the bus, such as `0000:3b:00.0`.
    Pci,
}

/// The keys besides interval, offset, synchronous and metrics.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NvmlKeys {
    nvml: Option<PathBuf>,
    names: DeviceNaming,
    pcie_throughput: bool,
    jobs: bool,
    job_records: PathBuf,
    health: GroupOptions,
    nvlink: GroupOptions,
}

impl Default for NvmlKeys {
    fn default() -> Self {
        Self {
            nvml: None,
            names: DeviceNaming::default(),
            pcie_throughput: false,
            jobs: true,
            job_records: RECORDS.into(),
            health: GroupOptions::default(),
            nvlink: GroupOptions::default(),
        }
    }
}

/// The settings of the plug-in, checked.
pub struct NvmlConfig {
    /// The settings of all groups.
    pub common: GroupOptions,
    pub health: GroupOptions,
    pub nvlink: GroupOptions,
    /// The library, if it is not the one that the driver installed.
    pub library: Option<PathBuf>,
    pub names: DeviceNaming,
    /// Whether to measure the throughput of PCIe where the driver has no counters, for 40 ms of each read.
    pub pcie_throughput: bool,
    /// The agent's records of jobs; `None` without sensors of jobs.
    pub job_records: Option<PathBuf>,
    /// The root of /proc.
    pub proc: PathBuf,
    pub cgroup: PathBuf,
}

impl NvmlConfig {
    pub fn read(section: &Section, context: &ConfigureContext) -> Result<Self, ConfigError> {
        let (common, keys): (GroupOptions, NvmlKeys) = options::read(section)?;
        keys.health.check(&section.child("health"))?;
        keys.nvlink.check(&section.child("nvlink"))?;
        let mut health = keys.health;
        health.interval = health.interval.or(Some(Interval::from_ns(HEALTH_INTERVAL_NS)));
        Ok(Self {
            common,
            health,
            nvlink: keys.nvlink,
            library: keys.nvml.map(|path| context.resolve(&path)),
            names: keys.names,
            pcie_throughput: keys.pcie_throughput,
            job_records: keys.jobs.then(|| context.resolve(&keys.job_records)),
            proc: context.roots.proc.clone(),
            cgroup: context.roots.cgroup.clone(),
        })
    }
}
