//! The table `[plugins.ebpf]`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::ConfigureContext;
use wholegrain_sources::options::{self, GroupOptions};

use crate::programs::ProgramSet;

/// Where the packaged agent keeps its records of jobs.
const RECORDS: &str = "/var/lib/wholegrain-agent/jobs/records.json";
/// The jobs that are counted at a time without `jobs_max`.
const JOBS_USUAL: u32 = 64;
/// The most jobs that can be set. The kernel has 656 bytes for each on each CPU.
const JOBS_MAX: u32 = 1024;

/// The keys besides interval, offset, synchronous and metrics.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EbpfKeys {
    programs: Vec<ProgramSet>,
    jobs: bool,
    job_records: PathBuf,
    jobs_max: u32,
}

impl Default for EbpfKeys {
    fn default() -> Self {
        Self { programs: ProgramSet::ALL.to_vec(), jobs: true, job_records: RECORDS.into(), jobs_max: JOBS_USUAL }
    }
}

/// The settings of the plug-in, checked.
pub struct EbpfConfig {
    /// The settings of all groups.
    pub common: GroupOptions,
    pub programs: BTreeSet<ProgramSet>,
    /// The agent's records of jobs; `None` without sensors of jobs.
    pub job_records: Option<PathBuf>,
    pub jobs_max: u32,
    /// The description of the kernel's types.
    pub btf: PathBuf,
    pub proc: PathBuf,
    pub cgroup: PathBuf,
}

impl EbpfConfig {
    pub fn read(section: &Section, context: &ConfigureContext) -> Result<Self, ConfigError> {
        let (common, keys): (GroupOptions, EbpfKeys) = options::read(section)?;
        if keys.programs.is_empty() {
            return Err(section.error("programs", "programs is empty: name scheduler, block or tcp"));
        }
        if !(1..=JOBS_MAX).contains(&keys.jobs_max) {
            let message = format!("jobs_max is {}; expected 1 to {JOBS_MAX}, or jobs = false", keys.jobs_max);
            return Err(section.error("jobs_max", message));
        }
        Ok(Self {
            common,
            programs: keys.programs.into_iter().collect(),
            job_records: keys.jobs.then(|| context.resolve(&keys.job_records)),
            jobs_max: keys.jobs_max,
            btf: context.roots.sys.join("kernel/btf/vmlinux"),
            proc: context.roots.proc.clone(),
            cgroup: context.roots.cgroup.clone(),
        })
    }
}
