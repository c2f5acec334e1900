//! The running jobs and the numbers of their directories, from the agent's records of jobs.
//!
//! The agent decides which directory is a job and what its level is called (`agent/src/jobs/tracker`). The number of a directory is the cgroup's in
//! the kernel, so that no process is asked who it is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::name::check_relative;

/// The largest file of records, in bytes: above the agent's own bound.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The version of the file.
const VERSION: u32 = 1;
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

#[derive(Deserialize)]
struct RunningJobsFile {
    version: u32,
    records: Vec<JobEntry>,
}

#[derive(Deserialize)]
struct JobEntry {
    dirs: Vec<(PathBuf, u64)>,
    record: JobIdentity,
}

#[derive(Deserialize)]
struct JobIdentity {
    level: String,
    #[serde(default)]
    to: Option<i64>,
}

/// The running jobs in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunningJobs {
    pub hierarchy: Hierarchy,
    /// The numbers of the directories, by the job's level in sensors' names.
    pub jobs: BTreeMap<String, Vec<u64>>,
    /// Jobs without a directory in this hierarchy.
    pub elsewhere: usize,
}

/// The identity of a version of the file: its inode, its change in s and ns, its length.
type RecordStamp = (u64, i64, i64, u64);

fn stamp(metadata: &std::fs::Metadata) -> RecordStamp {
    (metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.len())
}

/// Whether nobody but root and this process's user can have written a file.
fn is_trusted(metadata: &std::fs::Metadata) -> bool {
    // SAFETY: takes no argument and cannot fail.
    let own = unsafe { libc::geteuid() };
    (metadata.uid() == 0 || metadata.uid() == own) && metadata.mode() & 0o022 == 0
}

/// The file of records, read again when it changes.
pub struct RecordReader {
    file: PathBuf,
    cgroup: PathBuf,
    /// Whether `cgroup` itself is the unified hierarchy.
    is_unified: bool,
    stamp: Option<RecordStamp>,
    running: RunningJobs,
}

impl RecordReader {
    /// Jobs of the cgroup tree `cgroup`; none until the first refresh.
    pub fn new(file: PathBuf, cgroup: &Path) -> Self {
        let is_unified = is_unified(cgroup);
        Self { file, cgroup: cgroup.to_owned(), is_unified, stamp: None, running: RunningJobs::default() }
    }

    /// The jobs of the file as it is now. Without the file there are none. After an error those of the last refresh go on.
    pub fn refresh(&mut self) -> Result<&RunningJobs, String> {
        let explain = |reason: String| format!("{}: {reason}", self.file.display());
        match std::fs::symlink_metadata(&self.file) {
            Ok(metadata) if self.stamp == Some(stamp(&metadata)) => return Ok(&self.running),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.stamp = None;
                self.running = RunningJobs::default();
                return Ok(&self.running);
            }
            _ => {}
        }
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(options).open(&self.file);
        let file = file.map_err(|error| explain(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| explain(error.to_string()))?;
        if !metadata.is_file() || !is_trusted(&metadata) || metadata.len() > FILE_BYTES_MAX {
            return Err(explain(format!(
                "refused: only a file of root or of the agent's user, of at most {FILE_BYTES_MAX} bytes, counts"
            )));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| explain(error.to_string()))?;
        self.running = parse(&bytes, &self.cgroup, self.is_unified).map_err(explain)?;
        self.stamp = Some(stamp(&metadata));
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

fn parse(bytes: &[u8], cgroup: &Path, is_unified: bool) -> Result<RunningJobs, String> {
    let file: RunningJobsFile =
        serde_json::from_slice(bytes).map_err(|error| format!("not the agent's records: {error}"))?;
    if file.version != VERSION {
        return Err(format!("its version is {}, and {VERSION} is known here", file.version));
    }
    let running = file.records.into_iter().filter(|job| job.record.to.is_none() && !job.dirs.is_empty());
    let valid = running.filter(|job| check_relative(&job.record.level).is_ok() && !job.record.level.contains('/'));
    let mut levels = 0;
    let mut all: BTreeMap<Hierarchy, BTreeMap<String, Vec<u64>>> = BTreeMap::new();
    for job in valid {
        levels += 1;
        for (directory, number) in job.dirs {
            for hierarchy in hierarchies(&directory, cgroup, is_unified) {
                all.entry(hierarchy).or_default().entry(job.record.level.clone()).or_default().push(number);
            }
        }
    }
    let Some((hierarchy, jobs)) = all.pop_first() else {
        return Ok(RunningJobs { elsewhere: levels, ..RunningJobs::default() });
    };
    Ok(RunningJobs { hierarchy, elsewhere: levels.saturating_sub(jobs.len()), jobs })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(text: &str, is_unified: bool) -> RunningJobs {
        parse(text.as_bytes(), Path::new("/sys/fs/cgroup"), is_unified).unwrap()
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

    #[test]
    fn a_file_that_is_not_the_agents_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("records.json");
        let mut records = RecordReader::new(file.clone(), Path::new("/sys/fs/cgroup"));
        assert_eq!(records.refresh(), Ok(&RunningJobs::default()), "no jobs without the file");
        std::fs::write(&file, r#"{"version":9,"records":[]}"#).unwrap();
        assert!(records.refresh().unwrap_err().contains("version is 9"));
        std::fs::write(&file, "[{").unwrap();
        assert!(records.refresh().unwrap_err().contains("not the agent's records"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(records.refresh().unwrap_err().contains("refused"));
        std::fs::rename(&file, dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("real"), &file).unwrap();
        assert!(records.refresh().is_err(), "a link is not followed");
    }
}
