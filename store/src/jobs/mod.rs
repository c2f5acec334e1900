//! Jobs: where and when they ran, whose they are, and their records.
//!
//! - In: [`JobRecord`]s ([`crate::Store::put_jobs`]), each with everything known about one allocation; the same allocation comes again with a
//!   higher revision.
//! - Out: an answer when a record is durable; rows of jobs ([`crate::Store::jobs`]); all records of a job ([`crate::Store::find_job`],
//!   [`crate::Store::job_records`]); who may see the sensors of a job ([`crate::Store::sees`]).
//! - Never: an fsync for each record when many arrive at once; an old record that replaces a newer one; a damaged record that makes others
//!   unreadable.
//!
//! `table.rs` has the database, `index.rs` the index in memory, `list.rs` the lists, `writer.rs` the thread.

mod index;
pub mod list;
mod table;
mod writer;

use std::borrow::Cow;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use wholegrain_model::job::JOB_ID_BYTES_MAX;
use wholegrain_model::{JobRecord, SensorPath, Timestamp};

use self::index::{AllocationIndex, AllocationKey, RUNNING};
use self::list::{JobFilter, JobList, JobRow};
use self::table::{JobDatabase, SharedAllocationName};
use self::writer::JobQueue;
use crate::append::AppendCallback;
use crate::disk::Disk;
use crate::paths::StorePaths;
use crate::stats::{Counters, add};
use crate::{StoreConfig, StoreError};

/// Allocations that one transaction of the retention removes.
const EXPIRE_MAX: usize = 10_000;
/// A job may have begun this long ago, in ns: 400 days.
const BEGIN_NS_MAX: i64 = 400 * 86_400 * 1_000_000_000;
/// Damaged records that are named in the log; further ones are counted.
const NAMED_MAX: usize = 16;

/// The jobs of the store: their index in memory, their database, and the queue of the thread that writes it.
pub(crate) struct Jobs {
    index: RwLock<AllocationIndex>,
    table: JobDatabase,
    pub(crate) queue: JobQueue,
    /// Locked while table and index change.
    writing: Mutex<()>,
    /// Rises when the answer of [`Jobs::sees`] may change.
    generation: AtomicU64,
    config: Arc<StoreConfig>,
    counters: Arc<Counters>,
}

/// The result of a search by id.
#[derive(Debug, Clone)]
pub struct JobSearchResult {
    /// The run found, over all its nodes.
    pub row: JobRow,
    /// All runs with the id, the newest first.
    pub runs: Vec<JobRun>,
    names: Vec<SharedAllocationName>,
}

/// A job on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobAllocation {
    /// The job's id as its manager writes it.
    pub job: String,
    pub manager: String,
    pub node: String,
    pub user: Option<String>,
    /// When it began, ns since the Unix epoch.
    pub from: i64,
    /// When it ended; `None` while it runs.
    pub to: Option<i64>,
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct JobRun {
    /// The job's id as its manager writes it.
    pub job: String,
    pub manager: String,
    /// When it began, ns since the Unix epoch.
    pub from: i64,
    /// When it ended; `None` while it runs.
    pub to: Option<i64>,
    pub nodes: usize,
}

impl Jobs {
    /// Reads the database; returns a message for each damaged record.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        paths: &StorePaths,
        config: Arc<StoreConfig>,
        counters: Arc<Counters>,
    ) -> Result<(Self, Vec<String>), StoreError> {
        let mut index = AllocationIndex::default();
        let (table, mut found) = JobDatabase::open(disk, paths.dir.join("jobs.redb"), &paths.damaged, |record| {
            index.put(&record);
        })?;
        if let Some(path) = found.moved_to {
            index = AllocationIndex::default();
            found.damaged = vec![format!(
                "all jobs: jobs.redb is not a database; it was moved to {}, and a new one begins",
                path.display()
            )];
        }
        for text in found.damaged.iter().take(NAMED_MAX) {
            tracing::error!("jobs: damaged and left out: {text}");
        }
        if found.damaged.len() > NAMED_MAX {
            tracing::error!("jobs: {} more are damaged and left out", found.damaged.len() - NAMED_MAX);
        }
        add(&counters.damaged_jobs, found.damaged.len() as u64);
        let jobs = Self {
            index: RwLock::new(index),
            table,
            queue: JobQueue::default(),
            writing: Mutex::default(),
            generation: AtomicU64::new(0),
            config,
            counters,
        };
        Ok((jobs, found.damaged))
    }

    /// Copies the file while no transaction runs; `false` if there is none.
    pub(crate) fn copy_to(&self, to: &Path) -> Result<bool, StoreError> {
        self.table.copy_to(to)
    }

    fn index(&self) -> RwLockReadGuard<'_, AllocationIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, AllocationIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many allocations there are.
    pub(crate) fn len(&self) -> usize {
        self.index().len()
    }

    /// Removes allocations that ended longer ago than the configuration keeps them.
    pub(crate) fn expire(&self, now: i64) -> Result<(), StoreError> {
        let Some(age) = self.config.jobs_age else { return Ok(()) };
        let limit = now.saturating_sub(i64::try_from(age.ns()).unwrap_or(i64::MAX));
        loop {
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let old: Vec<(AllocationKey, _)> = {
                let index = self.index();
                let begun = index.order.range(..AllocationKey::first(limit));
                let over = begun.filter(|(_, entry)| entry.to != RUNNING && entry.to < limit);
                over.take(EXPIRE_MAX).map(|(key, _)| (*key, names(&index, key))).collect()
            };
            if old.is_empty() {
                return Ok(());
            }
            let gone =
                old.iter().map(|(_, (job, manager, node, from))| (&**job, &**manager, Cow::Borrowed(&**node), *from));
            self.table.write(std::iter::empty(), gone)?;
            let mut index = self.index_mut();
            old.iter().for_each(|(key, _)| index.remove(key));
            index.tidy();
            self.generation.fetch_add(1, Relaxed);
            add(&self.counters.jobs_dropped, old.len() as u64);
        }
    }
}

fn names(index: &AllocationIndex, key: &AllocationKey) -> SharedAllocationName {
    let text = |number| index.texts.get(number).cloned().unwrap_or_else(|| "".into());
    let node = match index.texts.text(key.owner) {
        "" => text(key.node),
        owner => table::node_of_owner(index.texts.text(key.node), owner).into(),
    };
    (text(key.job), text(key.manager), node, key.from)
}

/// Checks a job's times against [`StoreConfig::past_max`] and [`StoreConfig::future_max`], except that a job, such as a service, may have begun
/// [`BEGIN_NS_MAX`] ago. Otherwise one node with a wrong clock could change when the whole job began.
fn check_times(record: &JobRecord, config: &StoreConfig) -> Result<(), StoreError> {
    let ns = |interval: wholegrain_model::Interval| i64::try_from(interval.ns()).unwrap_or(i64::MAX);
    let now = config.clock.now();
    let first = config.past_max.map_or(i64::MIN, |past| now.saturating_sub(ns(past).max(BEGIN_NS_MAX)));
    let last = config.future_max.map_or(i64::MAX, |future| now.saturating_add(ns(future)));
    for (what, time) in [("from", Some(record.from)), ("to", record.to), ("totals_at", record.totals_at)] {
        if let Some(time) = time.filter(|time| !(first..=last).contains(time)) {
            let (time, first, last) = (Timestamp(time), Timestamp(first), Timestamp(last));
            let reason = format!(
                "`{what}` is {time}, allowed is {first} to {last}; check the clock of the node, or see store.past_max and store.future_max"
            );
            return Err(StoreError::Payload(reason));
        }
    }
    Ok(())
}

/// Checks the texts of a record.
fn check(record: &JobRecord) -> Result<(), StoreError> {
    let refuse = |reason: String| Err(StoreError::Payload(reason));
    for (what, text) in [("job", &record.job), ("manager", &record.manager), ("node", &record.node)] {
        if text.is_empty() || text.len() > JOB_ID_BYTES_MAX {
            return refuse(format!("`{what}` is {} bytes long, 1 to {JOB_ID_BYTES_MAX} are allowed", text.len()));
        }
    }
    if record.owner.len() > JOB_ID_BYTES_MAX || record.node.contains('\0') {
        return refuse(format!("`owner` is {} bytes long, at most {JOB_ID_BYTES_MAX} are allowed", record.owner.len()));
    }
    if let Err(error) = SensorPath::new(record.prefix.as_str()) {
        return refuse(format!("`prefix`: {error}"));
    }
    let level = SensorPath::new(format!("/{}", record.level));
    if level.is_err() || record.level.contains('/') {
        return refuse(format!("`level` is {:?}, which is no level of a sensor's path", record.level));
    }
    Ok(())
}

impl Jobs {
    pub(crate) fn put(&self, records: Vec<JobRecord>, done: AppendCallback) {
        let mut encoded = Vec::with_capacity(records.len());
        for record in records {
            let checked = check(&record).and_then(|()| check_times(&record, &self.config));
            let bytes = checked.and_then(|()| table::encode(&record));
            match bytes {
                Ok(bytes) => encoded.push((record, bytes)),
                Err(error) => return done(Err(error)),
            }
        }
        self.queue.push(encoded, done);
    }

    pub(crate) fn list(&self, filter: &JobFilter) -> JobList {
        list::list(&self.index(), filter)
    }

    pub(crate) fn allocations(&self, id: &str) -> Vec<JobAllocation> {
        let index = self.index();
        let mut all = Vec::new();
        for (key, entry) in index.find(id).into_iter().flat_map(|job| index.of_job(job)) {
            let text = |number| index.texts.get(number).map(|text| text.to_string());
            all.push(JobAllocation {
                job: text(key.job).unwrap_or_default(),
                manager: text(key.manager).unwrap_or_default(),
                node: text(key.node).unwrap_or_default(),
                user: text(entry.user),
                from: key.from,
                to: Some(entry.to).filter(|to| *to != RUNNING),
            });
        }
        all.sort_by_key(|allocation| allocation.from);
        all
    }

    pub(crate) fn find(&self, id: &str, only_user: Option<&str>, at: Option<i64>) -> Option<JobSearchResult> {
        let index = self.index();
        let all = list::runs_of(&index, id, only_user);
        let begun = |run: &&Vec<AllocationKey>| run.iter().any(|key| at.is_none_or(|at| key.from <= at));
        let chosen = all.iter().find(begun)?;
        let runs = all.iter().map(|run| {
            let JobRow { job, manager, from, to, nodes, .. } = list::row(&index, run);
            JobRun { job, manager, from, to, nodes }
        });
        let mut names: Vec<_> = chosen.iter().map(|key| names(&index, key)).collect();
        names.sort_by(|a, b| a.2.cmp(&b.2));
        Some(JobSearchResult { row: list::row(&index, chosen), runs: runs.collect(), names })
    }

    pub(crate) fn records(
        &self,
        job: &JobSearchResult,
        mut take: impl FnMut(JobRecord) -> io::Result<()>,
    ) -> Result<io::Result<u64>, StoreError> {
        let mut damaged = 0;
        let read = self.table.read(job.names.iter().cloned(), |record| match record {
            Some(record) => take(record),
            None => {
                damaged += 1;
                Ok(())
            }
        })?;
        if damaged > 0 {
            add(&self.counters.damaged_jobs, damaged);
            tracing::error!("jobs: {damaged} records of job {} are damaged and left out", job.row.job);
        }
        Ok(read.map(|()| damaged))
    }

    pub(crate) fn records_on(
        &self,
        nodes: &HashSet<&str>,
        (from, to): (i64, i64),
        most: usize,
        mut take: impl FnMut(JobRecord),
    ) -> Result<Option<u64>, StoreError> {
        let names: Vec<SharedAllocationName> = {
            let index = self.index();
            let nodes: HashSet<u32> = nodes.iter().filter_map(|node| index.texts.find(node)).collect();
            let begun = index.order.range(..AllocationKey::first(to));
            let there = begun.filter(|(key, entry)| entry.to >= from && nodes.contains(&key.node));
            there.take(most + 1).map(|(key, _)| names(&index, key)).collect()
        };
        if names.len() > most {
            return Ok(None);
        }
        let mut damaged = 0;
        let read = self.table.read(names.into_iter(), |record| {
            match record {
                Some(record) => take(record),
                None => damaged += 1,
            }
            io::Result::Ok(())
        })?;
        Ok(read.map(|()| damaged).ok())
    }

    pub(crate) fn sees(&self, user: &str, path: &str) -> bool {
        self.index().sees(user, path)
    }

    pub(crate) fn retain_seen(&self, user: &str, sensors: &mut Vec<crate::SensorInfo>) {
        let index = self.index();
        sensors.retain(|sensor| index.sees(user, &sensor.path));
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }
}
