//! The running jobs and the numbers of their directories, from the agent's records of jobs.
//!
//! The agent decides which directory is a job and what its level is called (`agent/src/jobs/tracker`). The number of a directory is the cgroup's in
//! the kernel, so that no process is asked who it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use wholegrain_job_records::{JobRecordFile, RecordedJob};

use crate::processes::{WaitingJob, WaitingJobs};

/// The type of the unified hierarchy's file system (`CGROUP2_SUPER_MAGIC` of include/uapi/linux/magic.h).
const CGROUP2_MAGIC: u32 = 0x6367_7270;
/// The directory of the unified hierarchy on machines with both versions.
const HYBRID: &str = "unified";
/// The manager of units, which users can make themselves.
const UNITS: &str = "systemd";

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
    /// By the job's level in sensors' names.
    pub jobs: BTreeMap<String, RunningJob>,
    /// Jobs without a directory in this hierarchy.
    pub elsewhere: usize,
    /// Jobs that had no process so far.
    pub without_process: usize,
}

/// A job in a hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunningJob {
    /// The owner; `None` if unknown.
    pub uid: Option<u32>,
    /// The begin, ns since the Unix epoch.
    pub from: i64,
    /// The numbers of the directories.
    pub cgroups: Vec<u64>,
}

/// The file of records, read again when it changes.
pub struct RecordReader {
    file: JobRecordFile,
    cgroup: PathBuf,
    /// Whether `cgroup` itself is the unified hierarchy.
    is_unified: bool,
    waiting: WaitingJobs,
    running: RunningJobs,
}

impl RecordReader {
    /// Jobs of the cgroup tree `cgroup`; none until the first refresh.
    pub fn new(file: PathBuf, cgroup: &Path) -> Self {
        let is_unified = is_unified(cgroup);
        let file = JobRecordFile::new(file);
        let cgroup = cgroup.to_owned();
        Self { file, cgroup, is_unified, waiting: WaitingJobs::default(), running: RunningJobs::default() }
    }

    /// The jobs of the file as it is now that have had a process. Without the file there are none. After an error those of the last refresh go on.
    pub fn refresh(&mut self) -> Result<&RunningJobs, String> {
        if let Some(jobs) = self.file.read_changed()? {
            self.take(recorded_jobs(jobs, &self.cgroup, self.is_unified));
        }
        self.running.jobs.extend(self.waiting.take_populated());
        self.running.without_process = self.waiting.count();
        Ok(&self.running)
    }

    /// Replaces the jobs. One that has had a process is not asked for one again.
    fn take(&mut self, recorded: RecordedJobs) {
        let RecordedJobs { hierarchy, jobs, elsewhere } = recorded;
        let before = std::mem::take(&mut self.running);
        let is_known = |level: &String| before.hierarchy == hierarchy && before.jobs.contains_key(level);
        let (known, others) = jobs.into_iter().partition(|(level, _)| is_known(level));
        let known: BTreeMap<String, WaitingJob> = known;
        let jobs = known.into_iter().map(|(level, job)| (level, job.job)).collect();
        self.waiting.replace(others);
        self.running = RunningJobs { hierarchy, jobs, elsewhere, without_process: 0 };
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

/// The jobs of the file in one hierarchy, with or without processes.
struct RecordedJobs {
    hierarchy: Hierarchy,
    jobs: BTreeMap<String, WaitingJob>,
    elsewhere: usize,
}

/// The jobs in the first hierarchy that has one. Units do not choose it: with them a user could choose one that no other job is in.
fn recorded_jobs(recorded: Vec<RecordedJob>, cgroup: &Path, is_unified: bool) -> RecordedJobs {
    let mut levels = 0;
    let mut first: Option<(bool, Hierarchy)> = None;
    let mut all: BTreeMap<Hierarchy, BTreeMap<String, WaitingJob>> = BTreeMap::new();
    for RecordedJob { level, manager, uid, from, directories } in recorded {
        levels += 1;
        for (directory, number) in directories {
            for hierarchy in hierarchies(&directory, cgroup, is_unified) {
                let order = (manager == UNITS, hierarchy);
                first = Some(first.map_or(order, |first| first.min(order)));
                let found = all.entry(hierarchy).or_default().entry(level.clone()).or_default();
                (found.job.uid, found.job.from) = (uid, from);
                found.job.cgroups.push(number);
                found.directories.push(directory.clone());
            }
        }
    }
    let hierarchy = first.map_or(Hierarchy::default(), |(_, hierarchy)| hierarchy);
    let jobs = all.remove(&hierarchy).unwrap_or_default();
    RecordedJobs { hierarchy, elsewhere: levels - jobs.len(), jobs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(text: &str, is_unified: bool) -> RecordedJobs {
        let recorded = wholegrain_job_records::parse(text.as_bytes()).unwrap();
        recorded_jobs(recorded, Path::new("/sys/fs/cgroup"), is_unified)
    }

    fn cgroups(found: &RecordedJobs) -> BTreeMap<&str, &[u64]> {
        found.jobs.iter().map(|(level, job)| (level.as_str(), &job.job.cgroups[..])).collect()
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
        assert_eq!(cgroups(&found), BTreeMap::from([("1", &[5][..]), ("2", &[9])]));
        let text = r#"{"version":1,"records":[{"dirs":[["/sys/fs/cgroup/system.slice/slurmstepd.scope/job_2",7]],"record":{"level":"2"}}]}"#;
        assert_eq!(cgroups(&jobs(text, true)), BTreeMap::from([("2", &[7][..])]));
        assert_eq!(jobs(text, false).elsewhere, 1, "no such controller");
        let text = text.replace("cgroup/", "cgroup/unified/");
        assert_eq!(jobs(&text, false).hierarchy, Hierarchy::Unified);
        assert_eq!(jobs(&text, false).jobs.len(), 1);
    }

    #[test]
    fn units_of_a_user_do_not_choose_the_hierarchy() {
        let unit = r#"{"dirs":[["/sys/fs/cgroup/unified/run-r1.scope",7]],"record":{"level":"r","manager":"systemd","uid":1000,"from":3}}"#;
        let job = r#"{"dirs":[["/sys/fs/cgroup/freezer/slurm/uid_7/job_1",5]],"record":{"level":"1","manager":"slurm","uid":7,"from":4}}"#;
        let found = jobs(&format!(r#"{{"version":1,"records":[{unit},{job}]}}"#), false);
        assert_eq!((found.hierarchy, found.elsewhere), (Hierarchy::Freezer, 1));
        assert_eq!((found.jobs["1"].job.uid, found.jobs["1"].job.from), (Some(7), 4));
        let found = jobs(&format!(r#"{{"version":1,"records":[{unit}]}}"#), false);
        assert_eq!((found.hierarchy, found.elsewhere), (Hierarchy::Unified, 0));
    }

    #[test]
    fn a_job_counts_once_it_has_a_process() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = folder.path().join("unified");
        let write = |levels: &[&str]| {
            let record = |level: &&str| {
                format!(r#"{{"dirs":[["{}/{level}",7]],"record":{{"level":"{level}"}}}}"#, cgroup.display())
            };
            let records: Vec<String> = levels.iter().map(record).collect();
            let new = folder.path().join("new");
            std::fs::write(&new, format!(r#"{{"version":1,"records":[{}]}}"#, records.join(","))).unwrap();
            std::fs::rename(new, folder.path().join("records.json")).unwrap();
        };
        let populate = |level: &str, populated: u8| {
            std::fs::create_dir_all(cgroup.join(level)).unwrap();
            let text = format!("populated {populated}\nfrozen 0\n");
            std::fs::write(cgroup.join(level).join("cgroup.events"), text).unwrap();
        };
        let mut reader = RecordReader::new(folder.path().join("records.json"), folder.path());
        let mut check = |expected: &[&str], without_process: usize| {
            let found = reader.refresh().unwrap();
            assert_eq!(found.jobs.keys().collect::<Vec<_>>(), expected);
            assert_eq!(found.without_process, without_process);
        };
        populate("1", 1);
        populate("2", 0);
        write(&["1", "2", "gone"]);
        check(&["1"], 2);
        // The file is the same; the job has a process now.
        populate("2", 1);
        check(&["1", "2"], 1);
        // A job between two steps goes on.
        populate("1", 0);
        check(&["1", "2"], 1);
        write(&["1", "3"]);
        check(&["1"], 1);
        // It has ended, and another one of that name has no process.
        write(&[]);
        check(&[], 0);
        write(&["1"]);
        check(&[], 1);
    }
}
