//! The running jobs and the numbers of their directories, from the agent's records of jobs.
//!
//! The agent decides which directory is a job and what its level is called (`agent/src/jobs/tracker`). The number of a directory is the cgroup's in
//! the kernel, so that no process is asked who it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wholegrain_job_records::{JobRecordFile, RecordedJob};

/// The type of the unified hierarchy's file system (`CGROUP2_SUPER_MAGIC` of include/uapi/linux/magic.h).
const CGROUP2_MAGIC: u32 = 0x6367_7270;
/// The directory of the unified hierarchy on machines with both versions.
const HYBRID: &str = "unified";

/// A hierarchy of cgroups, by its number in `programs.bpf.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Hierarchy {
    #[default]
    Unified,
    Freezer,
    Memory,
    Cpuacct,
    Cpuset,
    Pids,
    Devices,
}

/// The controllers of version 1, by which jobs are recognized in this order: freezer has a directory for each job of Slurm.
const CONTROLLERS: [(&str, Hierarchy); 6] = [
    ("freezer", Hierarchy::Freezer),
    ("memory", Hierarchy::Memory),
    ("cpuacct", Hierarchy::Cpuacct),
    ("cpuset", Hierarchy::Cpuset),
    ("pids", Hierarchy::Pids),
    ("devices", Hierarchy::Devices),
];

/// The running jobs in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunningJobs {
    pub hierarchy: Hierarchy,
    /// The numbers of the directories, by the job's level in sensors' names.
    pub jobs: BTreeMap<String, Vec<u64>>,
    /// Jobs without a directory in this hierarchy.
    pub elsewhere: usize,
}

/// The file of records, read again when it changes.
pub struct RecordReader {
    file: JobRecordFile,
    cgroup: PathBuf,
    /// Whether `cgroup` itself is the unified hierarchy.
    is_unified: bool,
    running: RunningJobs,
}

impl RecordReader {
    /// Jobs of the cgroup tree `cgroup`; none until the first refresh.
    pub fn new(file: PathBuf, cgroup: &Path) -> Self {
        let is_unified = is_unified(cgroup);
        let file = JobRecordFile::new(file);
        Self { file, cgroup: cgroup.to_owned(), is_unified, running: RunningJobs::default() }
    }

    /// The jobs of the file as it is now. Without the file there are none. After an error those of the last refresh go on.
    pub fn refresh(&mut self) -> Result<&RunningJobs, String> {
        if let Some(jobs) = self.file.read_changed()? {
            self.running = running_jobs(jobs, &self.cgroup, self.is_unified);
        }
        Ok(&self.running)
    }
}

fn is_unified(cgroup: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(cgroup.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a text that ends with zero, and a place for the result.
    let result = unsafe { libc::statfs(path.as_ptr(), &mut found) };
    result == 0 && found.f_type as u32 == CGROUP2_MAGIC
}

/// The hierarchies of a job's directory: several if controllers are mounted together.
fn hierarchies(directory: &Path, cgroup: &Path, is_unified: bool) -> Vec<Hierarchy> {
    let Ok(below) = directory.strip_prefix(cgroup) else { return Vec::new() };
    let first = below.components().next().and_then(|first| first.as_os_str().to_str());
    match first {
        _ if is_unified => vec![Hierarchy::Unified],
        Some(HYBRID) => vec![Hierarchy::Unified],
        Some(mount) => {
            let has = |name: &str| mount.split(',').any(|part| part == name);
            CONTROLLERS.iter().filter(|(name, _)| has(name)).map(|(_, hierarchy)| *hierarchy).collect()
        }
        None => Vec::new(),
    }
}

fn running_jobs(recorded: Vec<RecordedJob>, cgroup: &Path, is_unified: bool) -> RunningJobs {
    let mut levels = 0;
    let mut all: BTreeMap<Hierarchy, BTreeMap<String, Vec<u64>>> = BTreeMap::new();
    for job in recorded {
        levels += 1;
        for (directory, number) in job.directories {
            for hierarchy in hierarchies(&directory, cgroup, is_unified) {
                all.entry(hierarchy).or_default().entry(job.level.clone()).or_default().push(number);
            }
        }
    }
    let Some((hierarchy, jobs)) = all.pop_first() else {
        return RunningJobs { elsewhere: levels, ..RunningJobs::default() };
    };
    RunningJobs { hierarchy, elsewhere: levels.saturating_sub(jobs.len()), jobs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(text: &str, is_unified: bool) -> RunningJobs {
        let recorded = wholegrain_job_records::parse(text.as_bytes()).unwrap();
        running_jobs(recorded, Path::new("/sys/fs/cgroup"), is_unified)
    }

    #[test]
    fn directories_of_running_jobs_by_hierarchy() {
        let text = r#"{"version":1,"boot":"b","at":5,"dropped":0,"records":[
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/memory/slurm/uid_7/job_1",5],["/sys/fs/cgroup/cpu,cpuacct/slurm/uid_7/job_1",6],
              ["/sys/fs/cgroup/systemd/slurm/job_1",8]],"record":{"job":"1","level":"1","from":7,"to":null}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/memory/slurm/uid_7/job_2",9]],"record":{"job":"2","level":"2"}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/cpu,cpuacct/slurm/uid_7/job_3",7]],"record":{"job":"3","level":"3"}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/memory/b",7]],"record":{"job":"x","level":"../x"}},
            {"acknowledged":1,"dirs":[["/elsewhere/memory/b",7]],"record":{"job":"x","level":"x"}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/memory/c",7]],"record":{"level":"4","to":9}}]}"#;
        let found = jobs(text, false);
        assert_eq!((found.hierarchy, found.elsewhere), (Hierarchy::Memory, 2));
        assert_eq!(found.jobs, BTreeMap::from([("1".to_owned(), vec![5]), ("2".to_owned(), vec![9])]));
        let text = r#"{"version":1,"records":[{"dirs":[["/sys/fs/cgroup/system.slice/slurmstepd.scope/job_2",7]],"record":{"level":"2"}}]}"#;
        assert_eq!(jobs(text, true).jobs, BTreeMap::from([("2".to_owned(), vec![7])]));
        assert_eq!(jobs(text, false).elsewhere, 1, "no such controller");
        let text = text.replace("cgroup/", "cgroup/unified/");
        assert_eq!(jobs(&text, false).hierarchy, Hierarchy::Unified);
        assert_eq!(jobs(&text, false).jobs.len(), 1);
    }
}
