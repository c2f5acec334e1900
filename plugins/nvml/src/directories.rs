//! The jobs of the node by the directories of their cgroups, from the agent's records of jobs.
//!
//! The agent decides which directory is a job and what its level is called (`agent/src/jobs/tracker`); here its decisions are looked up.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::name::check_relative;

use crate::library::is_trusted;

/// The largest file of records, in bytes: above the agent's own bound.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The version of the file.
const VERSION: u32 = 1;
/// The longest `/proc/<pid>/cgroup`, in bytes: 16 hierarchies with the longest paths.
const CGROUP_BYTES_MAX: u64 = 64 << 10;

#[derive(Deserialize)]
struct RecordFile {
    version: u32,
    records: Vec<StoredJob>,
}

#[derive(Deserialize)]
struct StoredJob {
    dirs: Vec<(PathBuf, u64)>,
    record: JobOfRecord,
}

#[derive(Deserialize)]
struct JobOfRecord {
    level: String,
    #[serde(default)]
    to: Option<i64>,
}

/// The identity of a version of the file: its inode, its change in ns, its length.
type Stamp = (u64, i64, i64, u64);

/// The directories of running jobs.
#[derive(Debug, Clone)]
pub struct JobDirectories {
    records: PathBuf,
    proc: PathBuf,
    cgroup: PathBuf,
    stamp: Option<Stamp>,
    /// The level in sensors' names, by directory.
    levels: HashMap<PathBuf, String>,
}

impl JobDirectories {
    /// Directories of no job, until the first refresh.
    pub fn new(records: PathBuf, proc: &Path, cgroup: &Path) -> Self {
        Self { records, proc: proc.to_owned(), cgroup: cgroup.to_owned(), stamp: None, levels: HashMap::new() }
    }

    /// Reads the file if it has changed. Whether it has. Without the file there are no jobs.
    pub fn refresh(&mut self) -> Result<bool, String> {
        let explain = |reason: String| format!("{}: {reason}", self.records.display());
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match File::options().read(true).custom_flags(options).open(&self.records) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.stamp = None;
                self.levels.clear();
                return Ok(false);
            }
            Err(error) => return Err(explain(error.to_string())),
        };
        let metadata = file.metadata().map_err(|error| explain(error.to_string()))?;
        let stamp = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.len());
        if self.stamp == Some(stamp) {
            return Ok(false);
        }
        if !metadata.is_file() || !is_trusted(&metadata) || metadata.len() > FILE_BYTES_MAX {
            return Err(explain(format!(
                "refused: only a file of root or of the agent's user, of at most {FILE_BYTES_MAX} bytes, counts"
            )));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| explain(error.to_string()))?;
        self.levels = parse(&bytes).map_err(explain)?;
        self.stamp = Some(stamp);
        Ok(true)
    }

    /// Whether a job of that level runs.
    pub fn has(&self, level: &str) -> bool {
        self.levels.values().any(|known| known == level)
    }

    /// The level of the job of a process; `None` if it is in no job, or has ended.
    pub fn level_of(&self, pid: u32) -> Option<&str> {
        if self.levels.is_empty() {
            return None;
        }
        let file = File::open(self.proc.join(pid.to_string()).join("cgroup")).ok()?;
        let mut text = String::new();
        file.take(CGROUP_BYTES_MAX).read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| self.level_of_line(line))
    }

    /// A line of `/proc/<pid>/cgroup` (cgroups(7)): number, controllers, path. Version 2 has the number 0 and no controllers.
    fn level_of_line(&self, line: &str) -> Option<&str> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let mounts = match controllers {
            "" => vec![self.cgroup.clone(), self.cgroup.join("unified")],
            list => std::iter::once(list)
                .chain(list.split(','))
                .map(|name| self.cgroup.join(name.strip_prefix("name=").unwrap_or(name)))
                .collect(),
        };
        let path = Path::new(path.strip_prefix('/')?);
        let above = path.ancestors().filter(|path| !path.as_os_str().is_empty());
        above
            .into_iter()
            .find_map(|path| mounts.iter().find_map(|mount| self.levels.get(&mount.join(path))))
            .map(String::as_str)
    }
}

fn parse(bytes: &[u8]) -> Result<HashMap<PathBuf, String>, String> {
    let file: RecordFile =
        serde_json::from_slice(bytes).map_err(|error| format!("not the agent's records: {error}"))?;
    if file.version != VERSION {
        return Err(format!("its version is {}, and {VERSION} is known here", file.version));
    }
    let running = file.records.into_iter().filter(|job| job.record.to.is_none());
    let valid = running.filter(|job| check_relative(&job.record.level).is_ok() && !job.record.level.contains('/'));
    let all = valid.flat_map(|job| job.dirs.into_iter().map(move |(path, _)| (path, job.record.level.clone())));
    Ok(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_belong_to_the_job_of_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("records.json");
        let mut jobs = JobDirectories::new(records.clone(), &dir.path().join("proc"), Path::new("/sys/fs/cgroup"));
        assert_eq!(jobs.refresh(), Ok(false), "no jobs without the file");
        let text = r#"{"version":1,"boot":"b","at":5,"dropped":0,"records":[
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/memory/slurm/uid_7/job_1",5],["/sys/fs/cgroup/cpu,cpuacct/slurm/uid_7/job_1",6]],
             "record":{"job":"1","level":"1","from":7,"to":null}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/system.slice/slurmstepd.scope/job_2",7]],"record":{"job":"2","level":"2"}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/a/b",7]],"record":{"job":"x","level":"../x"}},
            {"acknowledged":1,"dirs":[["/sys/fs/cgroup/system.slice/slurmstepd.scope/job_3",7]],"record":{"level":"3","to":9}}]}"#;
        std::fs::write(&records, text).unwrap();
        assert_eq!((jobs.refresh(), jobs.refresh()), (Ok(true), Ok(false)));
        for (pid, cgroup, level) in [
            (1, "5:memory:/slurm/uid_7/job_1/step_0/task_0\n0::/\n", Some("1")),
            (2, "4:cpu,cpuacct:/slurm/uid_7/job_1\n", Some("1")),
            (3, "0::/system.slice/slurmstepd.scope/job_2/step_0/user/task_0\n", Some("2")),
            (4, "0::/system.slice/slurmstepd.scope/job_3\n", None),
            (5, "0::/user.slice/slurm/uid_7/job_1\n", None),
            (6, "0::/a/b\n", None),
            (7, "garbage\n::\n0::\n", None),
            (8, "", None),
        ] {
            let folder = dir.path().join("proc").join(pid.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cgroup"), cgroup).unwrap();
            assert_eq!(jobs.level_of(pid), level, "{cgroup}");
        }
        assert_eq!(jobs.level_of(99), None, "it has ended");
        assert!(jobs.has("1") && !jobs.has("3"));
    }

    #[test]
    fn a_file_that_is_not_the_agents_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("records.json");
        let mut jobs = JobDirectories::new(records.clone(), dir.path(), dir.path());
        std::fs::write(&records, r#"{"version":9,"records":[]}"#).unwrap();
        assert!(jobs.refresh().unwrap_err().contains("version is 9"));
        std::fs::write(&records, "[{").unwrap();
        assert!(jobs.refresh().unwrap_err().contains("not the agent's records"));
        std::fs::set_permissions(&records, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(jobs.refresh().unwrap_err().contains("refused"));
        std::fs::rename(&records, dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("real"), &records).unwrap();
        assert!(jobs.refresh().is_err(), "a link is not followed");
    }
}
