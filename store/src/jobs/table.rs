//! `jobs.redb`: the records on disk, in a separate database, so that a site's millions of jobs neither lengthen the opening of the catalogue nor
//! endanger the readings if their file is damaged. Created with the first record.

use std::borrow::Cow;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use wholegrain_model::JobRecord;
use wholegrain_model::job::JOB_RECORD_BYTES_MAX;

use crate::StoreError;
use crate::database::{DatabaseFile, copy_file, create, fail};
use crate::disk::Disk;

/// Version of the tables.
const FORMAT_VERSION: u64 = 1;
/// Memory for the database's pages, in bytes.
const CACHE_BYTES: usize = 16 << 20;

/// A record is written once, and read when the store is opened or the job is requested.
const ZSTD_LEVEL: i32 = 1;
/// Checksum and length before a value's JSON.
const HEAD_BYTES: usize = 8;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// (job, manager, node and owner, from) -> CRC-32C of what follows, length of the JSON, and zstd of the record as JSON without null and empty
/// values.
const JOBS: TableDefinition<(&str, &str, &str, i64), &[u8]> = TableDefinition::new("jobs");

/// The name of an allocation on disk.
pub(super) type AllocationName<'a> = (&'a str, &'a str, Cow<'a, str>, i64);

/// An [`AllocationName`] that owns its texts.
pub(super) type SharedAllocationName = (Arc<str>, Arc<str>, Arc<str>, i64);

/// The allocation name of a record.
pub(super) fn name(record: &JobRecord) -> AllocationName<'_> {
    let node = match record.owner.as_str() {
        "" => Cow::Borrowed(record.node.as_str()),
        owner => Cow::Owned(node_of_owner(&record.node, owner)),
    };
    (&record.job, &record.manager, node, record.from)
}

/// The node, followed by the owner if the path of the job's cgroup names one: a job with the same id of another owner is another job.
pub(super) fn node_of_owner(node: &str, owner: &str) -> String {
    format!("{node}\0{owner}")
}

pub(super) fn encode(record: &JobRecord) -> Result<Vec<u8>, StoreError> {
    let refuse = |error: serde_json::Error| StoreError::Payload(error.to_string());
    let mut json = serde_json::to_value(record).map_err(refuse)?;
    if let Some(fields) = json.as_object_mut() {
        fields.retain(|_, value| match value {
            serde_json::Value::Null | serde_json::Value::Bool(false) => false,
            serde_json::Value::String(text) => !text.is_empty(),
            serde_json::Value::Array(values) => !values.is_empty(),
            serde_json::Value::Object(values) => !values.is_empty(),
            _ => true,
        });
    }
    let json = serde_json::to_vec(&json).map_err(refuse)?;
    if json.len() > JOB_RECORD_BYTES_MAX {
        let reason = format!("{} bytes of JSON, at most {JOB_RECORD_BYTES_MAX} are allowed", json.len());
        return Err(StoreError::Payload(reason));
    }
    let packed = zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| StoreError::Payload(error.to_string()))?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + packed.len());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&packed);
    let sum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

/// Decodes a value; `None` if it is not what was written under this name.
fn decode(wanted: &AllocationName<'_>, bytes: &[u8]) -> Option<JobRecord> {
    let (sum, rest) = bytes.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*sum) != crc32c::crc32c(rest) {
        return None;
    }
    let (length, packed) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let json = zstd::bulk::decompress(packed, length.min(JOB_RECORD_BYTES_MAX)).ok()?;
    serde_json::from_slice(&json).ok().filter(|record| name(record) == *wanted)
}

/// The database, if it exists.
pub(super) struct JobDatabase {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// `None` before the first record and after a failure.
    db: RwLock<Option<Database>>,
    /// Whether an operation failed: the next one opens the file again.
    suspect: AtomicBool,
    unsynced: Arc<AtomicBool>,
}

/// The result of an opening.
#[derive(Debug, Default)]
pub(super) struct JobDatabaseDamage {
    /// Names of damaged entries.
    pub damaged: Vec<String>,
    /// Where the file was moved if it is no database.
    pub moved_to: Option<PathBuf>,
}

impl JobDatabase {
    /// Opens the file if it exists, and passes every record to `take`.
    pub fn open(
        disk: &Arc<dyn Disk>,
        path: PathBuf,
        damaged_dir: &Path,
        mut take: impl FnMut(JobRecord),
    ) -> Result<(Self, JobDatabaseDamage), StoreError> {
        let table = Self {
            disk: disk.clone(),
            path,
            db: RwLock::new(None),
            suspect: AtomicBool::new(false),
            unsynced: Arc::default(),
        };
        let mut found = JobDatabaseDamage::default();
        if !disk.exists(&table.path) {
            return Ok((table, found));
        }
        // An earlier process may have been killed after an fsync that failed.
        match copy_file(disk.as_ref(), &table.path) {
            Err(error @ StoreError::DiskFull { .. }) => {
                tracing::warn!(%error, "cannot copy the jobs' records; going on with them as they are");
            }
            result => result?,
        }
        // The library may panic on bytes that it did not write.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let db = table.open_database()?;
            read_all(&db, &mut found.damaged, &mut take)?.map_err(|found| found_newer(&table.path, found))?;
            Ok::<Database, JobReadFault>(db)
        }));
        match read {
            Ok(Ok(db)) => *table.db.write().unwrap_or_else(PoisonError::into_inner) = Some(db),
            Ok(Err(JobReadFault::Store(error))) => return Err(error),
            Ok(Err(JobReadFault::Library(error))) if is_of_the_disk(&error) => {
                return Err(fail("reading", &table.path, error));
            }
            Ok(Err(JobReadFault::Library(_))) | Err(_) => found.moved_to = Some(table.moved_to(damaged_dir)?),
        }
        Ok((table, found))
    }

    fn open_database(&self) -> Result<Database, redb::Error> {
        let file = self.disk.open(&self.path, true).map_err(redb::Error::Io)?;
        let backend = DatabaseFile { file, unsynced: self.unsynced.clone() };
        Ok(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
    }

    /// Moves a file that is no database to `damaged/`; a new one begins with the next record.
    fn moved_to(&self, dir: &Path) -> Result<PathBuf, StoreError> {
        let free = (1u32..).map(|n| dir.join(format!("jobs-{n}.redb"))).find(|path| !self.disk.exists(path));
        let path = free.unwrap_or_else(|| dir.join("jobs.redb"));
        self.disk.rename(&self.path, &path).map_err(|error| StoreError::io("renaming", &self.path, error))?;
        for dir in [dir, self.path.parent().unwrap_or(&self.path)] {
            self.disk.sync_dir(dir).map_err(|error| StoreError::io("syncing", dir, error))?;
        }
        Ok(path)
    }

    /// Writes and removes in one transaction; durable when it returns. After a failure it may still have committed, which does no harm: a record is
    /// sent again.
    pub fn write<'a>(
        &self,
        put: impl Iterator<Item = (AllocationName<'a>, &'a [u8])>,
        remove: impl Iterator<Item = AllocationName<'a>>,
    ) -> Result<(), StoreError> {
        self.be_ready()?;
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        let Some(db) = db.as_ref() else { return Err(StoreError::Closed) };
        let run = || -> Result<(), redb::Error> {
            let txn = db.begin_write()?;
            {
                let mut jobs = txn.open_table(JOBS)?;
                for ((job, manager, node, from), value) in put {
                    jobs.insert((job, manager, &*node, from), value)?;
                }
                for (job, manager, node, from) in remove {
                    jobs.remove((job, manager, &*node, from))?;
                }
            }
            Ok(txn.commit()?)
        };
        run().map_err(|error| {
            self.suspect.store(true, Relaxed);
            fail("writing jobs", &self.path, error)
        })
    }

    /// Copies the file while no transaction runs; `false` when there is none.
    pub fn copy_to(&self, to: &Path) -> Result<bool, StoreError> {
        let _no_write = self.db.write().unwrap_or_else(PoisonError::into_inner);
        if !self.disk.exists(&self.path) {
            return Ok(false);
        }
        crate::database::copy_to(self.disk.as_ref(), &self.path, to).map(|()| true)
    }

    /// Creates the database with the first record, and opens it again after a failure.
    fn be_ready(&self) -> Result<(), StoreError> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        if db.is_some() && !self.suspect.load(Relaxed) {
            return Ok(());
        }
        *db = None;
        if !self.disk.exists(&self.path) {
            create(self.disk.as_ref(), &self.path, CACHE_BYTES, |txn| {
                txn.open_table(META)?.insert("version", FORMAT_VERSION)?;
                txn.open_table(JOBS)?;
                Ok(())
            })?;
        } else if self.unsynced.load(Relaxed) {
            copy_file(self.disk.as_ref(), &self.path)?;
        }
        self.unsynced.store(false, Relaxed);
        *db = Some(self.open_database().map_err(|error| fail("opening", &self.path, error))?);
        self.suspect.store(false, Relaxed);
        Ok(())
    }

    /// Passes the records with these names to `take` until it fails; `None` for a damaged or missing one.
    pub fn read(
        &self,
        names: impl Iterator<Item = SharedAllocationName>,
        mut take: impl FnMut(Option<JobRecord>) -> io::Result<()>,
    ) -> Result<io::Result<()>, StoreError> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        let Some(db) = db.as_ref() else { return Ok(Ok(())) };
        let jobs = (|| Ok(db.begin_read()?.open_table(JOBS)?))();
        let jobs = jobs.map_err(|error: redb::Error| fail("reading jobs", &self.path, error))?;
        for (job, manager, node, from) in names {
            let value = jobs.get((&*job, &*manager, &*node, from));
            let value = value.map_err(|error| fail("reading jobs", &self.path, error.into()))?;
            let name: AllocationName<'_> = (&job, &manager, Cow::Borrowed(&node), from);
            if let Err(error) = take(value.and_then(|value| decode(&name, value.value()))) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

/// Whether the disk failed, rather than the file being damaged.
fn is_of_the_disk(error: &redb::Error) -> bool {
    match error {
        redb::Error::Io(error) => !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
        _ => false,
    }
}

enum JobReadFault {
    Library(redb::Error),
    Store(StoreError),
}

impl From<redb::Error> for JobReadFault {
    fn from(error: redb::Error) -> Self {
        Self::Library(error)
    }
}

fn found_newer(path: &Path, found: u64) -> JobReadFault {
    JobReadFault::Store(StoreError::NewerVersion { path: path.to_owned(), found, known: FORMAT_VERSION })
}

/// Reads every record; returns the version if it is newer.
fn read_all(
    db: &Database,
    damaged: &mut Vec<String>,
    take: &mut impl FnMut(JobRecord),
) -> Result<Result<(), u64>, redb::Error> {
    let read = db.begin_read()?;
    let version = read.open_table(META)?.get("version")?.map_or(0, |value| value.value());
    if version > FORMAT_VERSION {
        return Ok(Err(version));
    }
    for entry in read.open_table(JOBS)?.iter()? {
        let (key, value) = entry?;
        let (job, manager, node, from) = key.value();
        match decode(&(job, manager, Cow::Borrowed(node), from), value.value()) {
            Some(record) => take(record),
            None => {
                let node = node.replace('\0', " of ");
                damaged.push(format!("{manager} job {job} on {node} from {}", wholegrain_model::Timestamp(from)));
            }
        }
    }
    Ok(Ok(()))
}
