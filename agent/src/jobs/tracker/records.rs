//! The file of the job table: `records.json`, replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use wholegrain_model::JobRecord;

use crate::jobs::state_file::{StateFile, check_version};

/// The bound in bytes, as [`RECORDS_MAX`](super::job_table::RECORDS_MAX).
pub const BYTES_MAX: usize = 16 << 20;
/// The name of the file.
const NAME: &str = "records.json";
/// The version of the format.
const VERSION: u32 = 1;
/// A longer file was not written by an agent.
const FILE_BYTES_MAX: u64 = 2 * BYTES_MAX as u64 + (1 << 20);
/// The pause after a failed write.
pub const RETRY: Duration = Duration::from_secs(10);

/// A record from before the agent started.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierRecord {
    pub record: JobRecord,
    /// The time at which it was last known to run, ns since the Unix epoch.
    pub seen: i64,
    /// Its directories that still exist, with their inodes.
    pub dirs: Vec<(PathBuf, u64)>,
}

/// A changed record for the job table.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordUpdate {
    /// The record, with a new revision.
    pub record: JobRecord,
    /// The directories of a running job and their inodes, to recognize it after a restart.
    pub dirs: Vec<(PathBuf, u64)>,
}

/// The contents of the file.
#[derive(Debug, Default, PartialEq)]
pub struct StoredRecords {
    pub records: Vec<StoredRecord<JobRecord>>,
    /// The number of dropped records so far.
    pub dropped: u64,
    /// The time of the last write, ns since the Unix epoch.
    pub seen: i64,
}

/// A record with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredRecord<T> {
    /// The last revision that the server has.
    pub acknowledged: u64,
    /// The directories of a running job, and their inodes.
    pub dirs: Vec<(PathBuf, u64)>,
    pub record: T,
}

#[derive(Serialize, Deserialize)]
struct RecordFile<T> {
    version: u32,
    /// The boot of the system: another boot has other inodes, and none of the jobs.
    boot: String,
    at: i64,
    dropped: u64,
    records: Vec<StoredRecord<T>>,
}

#[derive(Debug, Clone)]
pub struct RecordDirectory {
    file: StateFile,
    boot: String,
}

impl RecordDirectory {
    /// Creates the directory if necessary.
    pub fn open(dir: &Path, boot: String) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let loss = "jobs that ended before are not reported again";
        Ok(Self { file: StateFile::new(dir.join(NAME), FILE_BYTES_MAX, loss), boot })
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads the file. The error reports a damaged one.
    pub fn read(&self, now: i64) -> Result<StoredRecords, String> {
        let changed = fs::metadata(self.path()).and_then(|file| file.modified()).unwrap_or(UNIX_EPOCH);
        let Some(content) =
            self.file.read(|content: &RecordFile<JobRecord>| check_version(content.version, VERSION))?
        else {
            return Ok(StoredRecords::default());
        };
        let changed = changed.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let mut records = content.records;
        if content.boot != self.boot {
            records.iter_mut().for_each(|record| record.dirs.clear());
        }
        Ok(StoredRecords { records, dropped: content.dropped, seen: content.at.max(changed).min(now) })
    }

    pub fn write<'a>(
        &self,
        records: impl Iterator<Item = (&'a JobRecord, &'a [(PathBuf, u64)], u64)>,
        dropped: u64,
        at: i64,
    ) -> io::Result<()> {
        let records =
            records.map(|(record, dirs, acknowledged)| StoredRecord { acknowledged, dirs: dirs.to_vec(), record });
        let records = records.collect();
        self.file.write(&RecordFile { version: VERSION, boot: self.boot.clone(), at, dropped, records })
    }

    /// Updates the file's time.
    pub fn touch(&self) -> io::Result<()> {
        match File::open(self.path()) {
            Ok(file) => file.set_modified(SystemTime::now()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The bytes of a record in the file.
pub fn bytes_of(record: &JobRecord) -> usize {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    let _ = serde_json::to_writer(&mut count, record);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let directory = RecordDirectory::open(&dir.path().join("a/b"), "boot1".to_owned()).unwrap();
        assert_eq!(directory.read(i64::MAX), Ok(StoredRecords::default()));
        let record = JobRecord { job: "a\n\"b".to_owned(), from: 7, ..JobRecord::default() };
        let dirs = vec![(PathBuf::from("/a"), 5)];
        directory.write([(&record, &dirs[..], 3)].into_iter(), 2, 1_000).unwrap();
        let on_disk = directory.read(i64::MAX).unwrap();
        let expected = StoredRecord { acknowledged: 3, dirs, record };
        assert_eq!((on_disk.records, on_disk.dropped), (vec![expected], 2));
        assert!(on_disk.seen > 1_600_000_000_000_000_000, "the file's own time");
        assert_eq!(directory.read(4_000).unwrap().seen, 4_000, "never in the future");
        let other = RecordDirectory::open(&dir.path().join("a/b"), "boot2".to_owned()).unwrap();
        assert!(other.read(0).unwrap().records[0].dirs.is_empty(), "another boot has other inodes");
    }

    #[test]
    fn a_damaged_file_is_renamed_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let directory = RecordDirectory::open(dir.path(), String::new()).unwrap();
        for (text, why) in [
            ("{\"version\":1,\"boot\":\"\",\"at\":0,\"dropped\":0,\"records\":[{", "EOF"),
            ("", "EOF"),
            ("{\"version\":9,\"boot\":\"\",\"at\":0,\"dropped\":0,\"records\":[]}", "version is 9"),
        ] {
            fs::write(directory.path(), text).unwrap();
            let problem = directory.read(i64::MAX).unwrap_err();
            assert!(problem.contains("records.json.damaged") && problem.contains(why), "{problem}");
            assert_eq!(fs::read_to_string(dir.path().join("records.json.damaged")).unwrap(), text);
            assert!(!directory.path().exists());
        }
    }
}
