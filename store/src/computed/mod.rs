//! Results of computed sensors that are kept: whole pieces of time of one sensor, under `derived/` in the store's directory.
//!
//! - In: a [`CacheKey`] (a hash of everything that decides beside the readings, and the sensors whose readings are used), a piece's number and
//!   its bytes, made from a [`Snapshot`]'s [`SnapshotVersion`].
//! - Out: the same bytes, over restarts too, as long as nothing that they were made from has changed.
//! - Never: a result that is out of date, whatever came late, was deleted, imported or lost in a crash; more bytes than
//!   [`crate::StoreConfig::derived_bytes`] on disk; a file for a piece without rows; an opening that waits until the directory is read; a lock or an allocation for a batch whose times are behind everything that is kept.
//!
//! `index.rs` is what is kept, and which of it goes first; `file.rs` the files ([`../FORMAT.md`](../../FORMAT.md)); `noted.rs` what arrived that may concern it.
//!
//! # At an opening
//! The directory is read by a thread of its own while the store works already ([`ResultFiles::scan`]). Until that is done nothing is given out or kept,
//! everything that arrives is recorded as an invalidation, and an operation that must apply them (a seal, a deletion, an import) waits for the directory.
//!
//! # Why nothing kept is out of date
//! A piece is made from readings between two times, those of its grid widened by how far the computation looks back and ahead. The
//! store knows the last such time of everything it keeps ([`ResultFiles::until`]). Whatever arrives behind it concerns nothing that is kept: that
//! is one comparison for each commit of the journal, and the normal case. Anything else, be it late, sent again after an outage, or of
//! a sensor that was silent while the others went on, is noted with its sensors and times. Before anything is given out or kept, what is noted
//! is applied: each piece made from one of the sensors at one of the times is removed.
//!
//! *While a result is made* something may arrive that its snapshot does not have. A snapshot knows how many commits it has seen, and the
//! store the first time of each of the latest [`invalidation::RECENT`] commits. A piece is put into the index first, then every commit since its
//! snapshot is looked at; the journal numbers a commit first, then compares it with `until`. So one of the two sees the other.
//!
//! *In a crash.* A batch is acknowledged when the journal is on disk; that a piece is forgotten need not be then. When the store is opened,
//! everything in the journal is noted as if it arrived: what was forgotten is forgotten again. A journal segment goes only when a seal has put
//! it into blocks, and before that seal's commit the invalidations are applied and the removal of the files is synced
//! ([`Shared::sync_invalidations`]). Deletions and imports have no journal: [`Shared::changed`] is durable before their commit. The files
//! of pieces are not synced. One that a crash cut or left empty does not have its checksum, and one that got another's bytes not its own number.
//!
//! *Retention.* What is computed from readings that are not shown any more is not given out either: an answer must not depend on whether
//! somebody asked before. Readings hidden by a rule make the pieces that reach before them worthless, and blocks that go take with them
//! what was made from their time. *Damage* in a block makes nothing kept wrong, but nothing is kept of a range in which something is missing.

mod file;
mod index;
mod invalidation;
pub(crate) mod key;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::computed::key::{CacheKey, PIECE_BYTES_MAX, SnapshotVersion};
use crate::disk::Disk;
use crate::live::LiveBatch;
use crate::readings::LiveReadings;
use crate::retention::hidden_before;
use crate::stats::add;
use crate::store::Shared;
use crate::{SensorId, Snapshot, Store, StoreConfig, StoreError};
use index::ResultIndex;
use invalidation::Invalidations;

/// Nothing is kept while the disk has fewer bytes free than this: readings need them more.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// What is kept, and what arrived that may concern it.
pub(crate) struct ResultFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    bytes_max: u64,
    clock: crate::clock::Clock,
    index: Mutex<ResultIndex>,
    /// Whether the directory has been read. Only changed with the index in hand.
    ready: AtomicBool,
    /// Whether reading it is to end.
    stop: AtomicBool,
    noted: Invalidations,
    /// Deletions and imports so far.
    changes: AtomicU64,
}

impl ResultFiles {
    /// Nothing has been looked for yet.
    pub fn new(disk: &Arc<dyn Disk>, config: &StoreConfig) -> Self {
        let noted = Invalidations::default();
        noted.raise(i64::MAX);
        Self {
            disk: disk.clone(),
            dir: config.dir.join("derived"),
            bytes_max: config.derived_bytes.0,
            clock: config.clock.clone(),
            index: Mutex::default(),
            ready: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            noted,
            changes: AtomicU64::new(0),
        }
    }

    /// Finds what is there, unless that is known. Where nothing is to be kept, what is there goes: nobody would notice when it is out of
    /// date.
    pub fn scan(&self) -> Result<(), StoreError> {
        self.scanned().map(drop)
    }

    /// The index, after everything that is there has been found.
    fn scanned(&self) -> Result<MutexGuard<'_, ResultIndex>, StoreError> {
        let mut index = self.index();
        if !self.is_ready() {
            *index = ResultIndex::open(self.disk.as_ref(), &self.dir, self.bytes_max, self.clock.now(), &self.stop)?;
            self.noted.lower(index.until());
            self.ready.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(index)
    }

    fn is_ready(&self) -> bool {
        self.ready.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Has a scan on its way end.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    fn index(&self) -> MutexGuard<'_, ResultIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is kept now.
    pub fn is_any(&self) -> bool {
        self.noted.until() > i64::MIN
    }

    /// Takes note of what has become durable and can be seen by readers.
    pub fn heard(&self, batches: &[Arc<LiveBatch>], records: &[(u64, Arc<LiveReadings>)]) {
        self.noted.heard(batches, records);
    }

    /// Takes note of one reading that the journal held when the store was opened.
    pub fn replayed(&self, sensor: u32, time: i64) {
        self.noted.replayed(sensor, time);
    }

    /// Bytes on disk and pieces kept now.
    pub fn size(&self) -> (u64, u64) {
        if !self.is_ready() {
            return (0, 0);
        }
        let index = self.index();
        (index.bytes(), index.pieces())
    }
}

impl Shared {
    /// Forgets every kept result made from readings of `from <= time <= to` of these sensors, or of any. Durable when it returns.
    ///
    /// Whoever changes readings of the past by another way than an append (deletes, imports, brings back) calls this twice: before the
    /// change's commit point, so that no crash leaves a result that is out of date, and again when readers see the change, so that no
    /// result made meanwhile from a snapshot of before is kept.
    pub(crate) fn changed(&self, from: i64, to: i64, sensors: Option<&[SensorId]>) -> Result<(), StoreError> {
        self.kept.changes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match sensors {
            None => self.kept.noted.note_all(from, to),
            Some(ids) => ids.iter().for_each(|id| self.kept.noted.note(id.0, from, to)),
        }
        self.sync_invalidations()
    }

    /// Forgets what is out of date for what arrived, durably. Called before journal segments go.
    pub(crate) fn sync_invalidations(&self) -> Result<(), StoreError> {
        let mut index = self.kept.scanned()?;
        self.apply_invalidations(&mut index)?;
        index.sync(self.kept.disk.as_ref(), &self.kept.dir)
    }

    /// The same, not yet on stable storage.
    fn apply_invalidations(&self, index: &mut ResultIndex) -> Result<(), StoreError> {
        let Some(noted) = self.kept.noted.take() else { return Ok(()) };
        let by_sensor = noted.by_sensor(|hash| {
            let sensors = self.sensors();
            let Some(schema) = sensors.schema(hash) else { return Vec::new() };
            (0..schema.len()).filter_map(|column| sensors.id(&schema.path(column))).map(|id| id.0).collect()
        });
        let forgotten = index.forget(self.kept.disk.as_ref(), &self.kept.dir, &by_sensor, noted.all);
        match forgotten {
            Ok(count) => {
                add(&self.counters.derived_outdated, count);
                self.kept.noted.lower(index.until());
                Ok(())
            }
            Err(error) => {
                // No cached result is used before the invalidations are applied: the next attempt tries again.
                self.kept.noted.put_back(noted);
                Err(error)
            }
        }
    }
}

/// The kept results of a store.
#[derive(Clone)]
pub struct ResultCache(Arc<Shared>);

impl ResultCache {
    /// Those by one recipe, as a snapshot of this moment may use and make them.
    pub fn of(&self, cache_key: CacheKey, version: SnapshotVersion) -> CachedResults {
        let shared = self.0.clone();
        let hidden = if !shared.policy().has_rules() {
            i64::MIN
        } else {
            let sensors = shared.sensors();
            let paths = cache_key.operands.iter().filter_map(|id| sensors.path(*id));
            paths.map(|path| hidden_before(&shared, &path, version.retained_at)).max().unwrap_or(i64::MIN)
        };
        CachedResults { shared, cache_key, version, hidden }
    }
}

/// The kept results by one recipe.
#[derive(Clone)]
pub struct CachedResults {
    shared: Arc<Shared>,
    cache_key: CacheKey,
    version: SnapshotVersion,
    /// Readings of one of the operands before this are not shown any more.
    hidden: i64,
}

impl CachedResults {
    /// What they are made by and from.
    pub fn cache_key(&self) -> &CacheKey {
        &self.cache_key
    }

    /// Whether the piece `number` is kept, as far as is known without reading it.
    pub fn has(&self, number: i64) -> bool {
        if !self.shared.kept.is_ready() || self.cache_key.span(number).0 < self.hidden {
            return false;
        }
        let mut index = self.shared.kept.index();
        self.shared.apply_invalidations(&mut index).is_ok() && index.find(&self.cache_key, number).is_some()
    }

    /// The piece `number`, if it is kept and nothing that it was made from has changed since.
    pub fn get(&self, number: i64) -> Option<Vec<u8>> {
        if !self.shared.kept.is_ready() || self.cache_key.span(number).0 < self.hidden {
            return None;
        }
        let kept = &self.shared.kept;
        let found = {
            let mut index = kept.index();
            if let Err(error) = self.shared.apply_invalidations(&mut index) {
                tracing::warn!(%error, "cannot remove outdated results from the cache; they are computed again");
                return None;
            }
            index.find(&self.cache_key, number)
        };
        let Some(stamp) = found else {
            add(&self.shared.counters.derived_misses, 1);
            return None;
        };
        let content = file::read_piece(kept.disk.as_ref(), &kept.dir, &self.cache_key.key, number, stamp);
        if content.is_none() {
            tracing::warn!(dir = %kept.dir.display(), number, "a cached result is damaged; it is computed again");
            kept.index().drop_piece(kept.disk.as_ref(), &kept.dir, &self.cache_key.key, number, stamp);
            add(&self.shared.counters.derived_misses, 1);
            return None;
        }
        add(&self.shared.counters.derived_hits, 1);
        content
    }

    /// Keeps the piece `number`, made from a snapshot of this moment, unless something it was made from has changed since. What cannot be
    /// written is not kept.
    pub fn put(&self, number: i64, content: &[u8]) {
        let (kept, cache_key) = (&self.shared.kept, &self.cache_key);
        let (first, last) = cache_key.span(number);
        let room = kept.disk.free_bytes(&kept.dir).is_none_or(|free| free >= FREE_BYTES_MIN);
        let fits = kept.is_ready() && content.len() <= PIECE_BYTES_MAX;
        if !fits || first < self.hidden || !room || !self.is_current(last) {
            return;
        }
        // Held while the file is written: no seal may go by between the file and its place in the index, or a crash could leave a file that
        // nobody has looked at.
        let mut index = kept.index();
        let stamp = index.next_stamp();
        let written = file::write_piece(kept.disk.as_ref(), &kept.dir, cache_key, number, stamp, content);
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::debug!(%error, "a result cannot be kept");
                index.drop_piece(kept.disk.as_ref(), &kept.dir, &cache_key.key, number, stamp);
                return;
            }
        };
        // First this, then the look at what arrived: the journal does it the other way round.
        kept.noted.raise(last);
        let added = index.add(kept.disk.as_ref(), &kept.dir, cache_key, number, stamp, bytes);
        if added.is_err() || !self.is_current(last) {
            index.drop_piece(kept.disk.as_ref(), &kept.dir, &cache_key.key, number, stamp);
            return;
        }
        index.make_room(kept.disk.as_ref(), &kept.dir, kept.bytes_max);
        add(&self.shared.counters.derived_kept, 1);
    }

    /// Whether nothing up to this time has arrived or changed that the snapshot does not have.
    fn is_current(&self, last: i64) -> bool {
        let kept = &self.shared.kept;
        kept.changes.load(std::sync::atomic::Ordering::SeqCst) == self.version.changes
            && !self.shared.catalogue.is_suspect()
            && kept.noted.first_since(self.version.commits).is_some_and(|first| first > last)
    }
}

impl Store {
    /// The kept results; `None` when none are to be kept.
    pub fn derived(&self) -> Option<ResultCache> {
        (self.shared().config.derived_bytes.0 > 0).then(|| ResultCache(self.shared().clone()))
    }
}

impl Snapshot {
    /// What this snapshot has seen.
    pub fn version(&self) -> SnapshotVersion {
        self.version
    }
}
