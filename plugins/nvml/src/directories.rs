//! The jobs of the node by the directories of their cgroups, from the agent's records of jobs.
//!
//! The agent decides which directory is a job and what its level is called (`agent/src/jobs/tracker`); here its decisions are looked up.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use wholegrain_job_records::{JobRecordFile, RecordedJob};

/// The longest `/proc/<pid>/cgroup`, in bytes: 16 hierarchies with the longest paths.
const CGROUP_BYTES_MAX: u64 = 64 << 10;

/// The directories of running jobs.
#[derive(Debug, Clone)]
pub struct JobDirectories {
    records: JobRecordFile,
    proc: PathBuf,
    cgroup: PathBuf,
    /// The level in sensors' names, by directory.
    levels: HashMap<PathBuf, String>,
}

impl JobDirectories {
    /// Directories of no job, until the first refresh.
    pub fn new(records: PathBuf, proc: &Path, cgroup: &Path) -> Self {
        let records = JobRecordFile::new(records);
        Self { records, proc: proc.to_owned(), cgroup: cgroup.to_owned(), levels: HashMap::new() }
    }

    /// Reads the file if it has changed. Whether it has. Without the file there are no jobs.
    pub fn refresh(&mut self) -> Result<bool, String> {
        let Some(jobs) = self.records.read_changed()? else { return Ok(false) };
        let all = jobs.into_iter().flat_map(|RecordedJob { level, directories, .. }| {
            directories.into_iter().map(move |(path, _)| (path, level.clone()))
        });
        self.levels = all.collect();
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
}
