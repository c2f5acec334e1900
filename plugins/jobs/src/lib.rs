//! The running jobs of the node, from the agent's file of records.
//!
//! - In: the file, which the agent replaces when a job begins or ends.
//! - Out: the level of each running job in sensors' names, its user, and its cgroup directories with their inode numbers.
//! - Never: a decision about which directory is a job (`agent/src/jobs/tracker` decides); a file that another user can have written.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::Deserialize;
use wholegrain_model::name::check_relative;

/// The largest file of records, in bytes: above the agent's own bound.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The version of the file.
const VERSION: u32 = 1;

#[derive(Deserialize)]
struct RecordFileContent {
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
    manager: String,
    #[serde(default)]
    uid: Option<u32>,
    #[serde(default)]
    from: i64,
    #[serde(default)]
    to: Option<i64>,
}

/// A job that runs, with its cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedJob {
    /// The job's level in sensors' names.
    pub level: String,
    /// The resource manager; `systemd` for units, which users can make themselves.
    pub manager: String,
    /// The user; `None` if unknown.
    pub uid: Option<u32>,
    /// The begin, ns since the Unix epoch.
    pub from: i64,
    /// The directories of its cgroups, each with its inode number, which is the cgroup's number in the kernel.
    pub directories: Vec<(PathBuf, u64)>,
}

/// The identity of a version of the file: its inode, its change in s and ns, its length.
type FileVersion = (u64, i64, i64, u64);

/// The file of records, read again when it has changed.
#[derive(Debug, Clone)]
pub struct JobRecordFile {
    path: PathBuf,
    version: Option<FileVersion>,
}

impl JobRecordFile {
    /// A file that was not read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, version: None }
    }

    /// The running jobs, if the file has changed since the last call. Without the file there are none. After an error those of the last call stand.
    pub fn read_changed(&mut self) -> Result<Option<Vec<RecordedJob>>, String> {
        let explain = |reason: String| format!("{}: {reason}", self.path.display());
        match std::fs::symlink_metadata(&self.path) {
            Ok(metadata) if self.version == Some(version(&metadata)) => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(self.version.take().map(|_| Vec::new()));
            }
            _ => {}
        }
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(options).open(&self.path);
        let file = file.map_err(|error| explain(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| explain(error.to_string()))?;
        if !metadata.is_file() || !is_trusted(&metadata) || metadata.len() > FILE_BYTES_MAX {
            return Err(explain(format!(
                "refused: only a file of root or of the agent's user, of at most {FILE_BYTES_MAX} bytes, counts"
            )));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| explain(error.to_string()))?;
        let jobs = parse(&bytes).map_err(explain)?;
        self.version = Some(version(&metadata));
        Ok(Some(jobs))
    }
}

fn version(metadata: &Metadata) -> FileVersion {
    (metadata.ino(), metadata.ctime(), metadata.ctime_nsec(), metadata.len())
}

/// Whether nobody but root and this process's user can have written a file.
pub fn is_trusted(metadata: &Metadata) -> bool {
    // SAFETY: takes no argument and cannot fail.
    let own = unsafe { libc::geteuid() };
    (metadata.uid() == 0 || metadata.uid() == own) && metadata.mode() & 0o022 == 0
}

/// The running jobs in the content of a file. A level that is no single level of a path is left out.
pub fn parse(bytes: &[u8]) -> Result<Vec<RecordedJob>, String> {
    let content: RecordFileContent =
        serde_json::from_slice(bytes).map_err(|error| format!("not the agent's records: {error}"))?;
    if content.version != VERSION {
        return Err(format!("its version is {}, and {VERSION} is known here", content.version));
    }
    let running = content.records.into_iter().filter(|job| job.record.to.is_none() && !job.dirs.is_empty());
    let valid = running.filter(|job| check_relative(&job.record.level).is_ok() && !job.record.level.contains('/'));
    let job = |JobEntry { dirs, record }| RecordedJob {
        level: record.level,
        manager: record.manager,
        uid: record.uid,
        from: record.from,
        directories: dirs,
    };
    Ok(valid.map(job).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_jobs_are_read_once_for_each_version_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records.json");
        let mut file = JobRecordFile::new(path.clone());
        assert_eq!(file.read_changed(), Ok(None), "no jobs without the file");
        let text = r#"{"version":1,"boot":"b","at":5,"dropped":0,"records":[
            {"acknowledged":1,"dirs":[["/c/memory/job_1",5],["/c/cpu/job_1",6]],
              "record":{"job":"1","level":"1","manager":"slurm","uid":1000,"user":"ann","from":7,"to":null}},
            {"acknowledged":1,"dirs":[["/c/memory/x",7]],"record":{"job":"x","level":"../x"}},
            {"acknowledged":1,"dirs":[],"record":{"job":"y","level":"y"}},
            {"acknowledged":1,"dirs":[["/c/memory/job_3",7]],"record":{"level":"3","to":9}}]}"#;
        std::fs::write(&path, text).unwrap();
        let directories = vec![("/c/memory/job_1".into(), 5), ("/c/cpu/job_1".into(), 6)];
        let (level, manager) = ("1".to_owned(), "slurm".to_owned());
        let expected = vec![RecordedJob { level, manager, uid: Some(1000), from: 7, directories }];
        assert_eq!(file.read_changed(), Ok(Some(expected)));
        assert_eq!(file.read_changed(), Ok(None));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((file.read_changed(), file.read_changed()), (Ok(Some(Vec::new())), Ok(None)));
    }

    #[test]
    fn a_file_that_is_not_the_agents_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records.json");
        let mut file = JobRecordFile::new(path.clone());
        let mut error = || file.read_changed().unwrap_err();
        std::fs::write(&path, r#"{"version":9,"records":[]}"#).unwrap();
        assert!(error().contains("version is 9"));
        std::fs::write(&path, "[{").unwrap();
        assert!(error().contains("not the agent's records"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(error().contains("refused"));
        std::fs::rename(&path, dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("real"), &path).unwrap();
        assert!(!error().is_empty(), "a link is not followed");
    }
}
