//! The file of the job table: `records.json`, replaced as a whole.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use wholegrain_model::JobRecord;

/// The bound in bytes, as [`RECORDS_MAX`].
pub const BYTES_MAX: usize = 16 << 20;
/// The name of the file, and of one that could not be read.
const NAME: &str = "records.json";
const DAMAGED: &str = "records.damaged";
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
    dir: PathBuf,
    boot: String,
}

impl RecordDirectory {
    /// Creates the directory if necessary.
    pub fn open(dir: &Path, boot: String) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), boot })
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// Reads the file. A damaged one is renamed and reported.
    pub fn read(&self, now: i64) -> (StoredRecords, Option<String>) {
        let path = self.path();
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| {
            let changed = file.metadata()?.modified()?;
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
            Ok(changed)
        });
        let changed = match read {
            Ok(changed) => changed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (StoredRecords::default(), None),
            Err(error) => return (StoredRecords::default(), Some(format!("cannot read {}: {error}", path.display()))),
        };
        let whole: Result<RecordFile<JobRecord>, String> = match text.len() as u64 > FILE_BYTES_MAX {
            true => Err(format!("it has more than {FILE_BYTES_MAX} bytes")),
            false => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        };
        let whole = match whole {
            Ok(whole) if whole.version == VERSION => whole,
            Ok(whole) => {
                return (StoredRecords::default(), Some(self.rename_damaged(&format!("version {}", whole.version))));
            }
            Err(error) => return (StoredRecords::default(), Some(self.rename_damaged(&error))),
        };
        let changed = changed.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let mut records = whole.records;
        if whole.boot != self.boot {
            records.iter_mut().for_each(|record| record.dirs.clear());
        }
        (StoredRecords { records, dropped: whole.dropped, seen: whole.at.max(changed).min(now) }, None)
    }

    fn rename_damaged(&self, why: &str) -> String {
        let (from, to) = (self.path(), self.dir.join(DAMAGED));
        match std::fs::rename(&from, &to) {
            Ok(()) => format!(
                "{} is not a file of job records ({why}); it is now {}, and jobs that ended before are not reported again",
                from.display(),
                to.display()
            ),
            Err(error) => {
                format!("{} is not a file of job records ({why}), and cannot be renamed: {error}", from.display())
            }
        }
    }

    pub fn write<'a>(
        &self,
        records: impl Iterator<Item = (&'a JobRecord, &'a [(PathBuf, u64)], u64)>,
        dropped: u64,
        at: i64,
    ) -> io::Result<()> {
        let records =
            records.map(|(record, dirs, acknowledged)| StoredRecord { acknowledged, dirs: dirs.to_vec(), record });
        let whole = RecordFile { version: VERSION, boot: self.boot.clone(), at, dropped, records: records.collect() };
        let new = self.dir.join(".records.new");
        let mut file = BufWriter::new(File::create(&new)?);
        serde_json::to_writer(&mut file, &whole)?;
        file.flush()?;
        file.get_ref().sync_all()?;
        std::fs::rename(&new, self.path())?;
        File::open(&self.dir)?.sync_all()
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
        assert_eq!(directory.read(i64::MAX), (StoredRecords::default(), None));
        let record = JobRecord { job: "a\n\"b".to_owned(), from: 7, ..JobRecord::default() };
        let dirs = vec![(PathBuf::from("/a"), 5)];
        directory.write([(&record, &dirs[..], 3)].into_iter(), 2, 1_000).unwrap();
        let (on_disk, problem) = directory.read(i64::MAX);
        let expected = StoredRecord { acknowledged: 3, dirs, record };
        assert_eq!((on_disk.records, on_disk.dropped, problem), (vec![expected], 2, None));
        assert!(on_disk.seen > 1_600_000_000_000_000_000, "the file's own time");
        assert_eq!(directory.read(4_000).0.seen, 4_000, "never in the future");
        let other = RecordDirectory::open(&dir.path().join("a/b"), "boot2".to_owned()).unwrap();
        assert!(other.read(0).0.records[0].dirs.is_empty(), "another boot has other inodes");
    }

    #[test]
    fn a_damaged_file_is_renamed_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let directory = RecordDirectory::open(dir.path(), String::new()).unwrap();
        for (text, why) in [
            ("{\"version\":1,\"boot\":\"\",\"at\":0,\"dropped\":0,\"records\":[{", "EOF"),
            ("", "EOF"),
            ("{\"version\":9,\"boot\":\"\",\"at\":0,\"dropped\":0,\"records\":[]}", "version 9"),
        ] {
            std::fs::write(directory.path(), text).unwrap();
            let (on_disk, problem) = directory.read(i64::MAX);
            let problem = problem.expect("a problem");
            assert!(problem.contains("records.damaged") && problem.contains(why), "{problem}");
            assert_eq!(on_disk, StoredRecords::default());
            assert_eq!(std::fs::read_to_string(dir.path().join(DAMAGED)).unwrap(), text);
            assert!(!directory.path().exists());
        }
    }
}
