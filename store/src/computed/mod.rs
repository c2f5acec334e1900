//! The result cache: results of virtual sensors in whole pieces of time, below `results/` in the store's directory.
//!
//! - In: a [`CacheKey`] (a hash of everything that decides except the readings, and the sensors whose readings are used), a piece's number and its
//!   bytes, computed from a snapshot with a [`SnapshotVersion`].
//! - Out: the same bytes, also after a restart, as long as nothing that they depend on has changed.
//! - Never: an outdated result, whatever arrived late, was deleted, imported or lost in a crash; more bytes on disk than
//!   [`crate::StoreConfig::result_cache_bytes`]; a file for a piece without rows; an opening that waits until the directory is read; a lock or an
//!   allocation for a batch that invalidates nothing.
//!
//! `index.rs` has the pieces and decides which one goes first; `file.rs` has the files (`FORMAT.md`); `invalidation.rs` notes which arrived
//! readings invalidate pieces.
//!
//! # At an opening
//!
//! A separate thread reads the directory while the store already works ([`ResultFiles::scan`]). Until that is done the cache returns and stores
//! nothing, everything that arrives is noted, and an operation that must apply the notes (a seal, a deletion, an import) waits for the directory.
//!
//! # Why no cached result is outdated
//!
//! A piece depends on readings between two times: those of its grid, widened by how far the computation looks back and ahead. The store knows the
//! last of these times over all pieces ([`Invalidations::until`]). Readings after it invalidate nothing: this is one comparison for each commit of
//! the journal, and the normal case. Everything else (late readings, readings that are sent again after an outage, readings of a sensor that was
//! silent while others went on) is noted with its sensors and times. Before the cache returns or stores a piece it applies the notes: it removes
//! each piece that depends on one of the sensors at one of the times.
//!
//! *While a result is computed*, readings may arrive that its snapshot does not contain. A snapshot knows how many commits it contains, and the
//! store knows the first time of each of the latest [`invalidation::RECENT`] commits. A piece is first added to the index, then every commit since
//! its snapshot is checked; the journal first numbers a commit, then compares it with `until`. So one of the two sees the other.
//!
//! *After a crash.* A batch is acknowledged when the journal is on disk; the removal of a piece may not be. When the store is opened, everything in
//! the journal is noted as if it arrived: what was removed is removed again. A journal segment is removed only after a seal has written its blocks,
//! and before that seal commits, the notes are applied and the removal of files is synced ([`ResultFiles::sync_invalidations`]). Deletions and
//! imports have no journal: [`ResultFiles::changed`] is durable before they commit. The files of pieces are not synced. A file that a crash
//! truncated or emptied has a wrong checksum, and one that got the content of another has a wrong number.
//!
//! *Retention.* Results computed from readings that are hidden now are not returned either: an answer must not depend on earlier queries. Readings
//! hidden by a rule invalidate the pieces that reach before them, and dropped blocks invalidate the pieces of their time. *Damage* in a block makes
//! no cached result wrong, but results of a range with missing readings are not stored.

mod file;
mod index;
mod invalidation;
pub(crate) mod key;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::catalogue::Catalogue;
use crate::computed::key::{CacheKey, PIECE_BYTES_MAX, SnapshotVersion};
use crate::disk::Disk;
use crate::head::live::LiveBatch;
use crate::head::readings::LiveReadings;
use crate::retention_policy::PolicyInForce;
use crate::sensors::SensorIndex;
use crate::stats::{Counters, add};
use crate::{SensorId, StoreConfig, StoreError};
use index::ResultIndex;
use invalidation::Invalidations;

/// Nothing is cached while the disk has fewer bytes free than this: readings need them more.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// The cache, and the arrived readings that invalidate it.
pub(crate) struct ResultFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    bytes_max: u64,
    clock: crate::clock::Clock,
    index: Mutex<ResultIndex>,
    /// Whether the directory has been read. Changed only while the index is locked.
    ready: AtomicBool,
    /// Whether reading it must stop.
    stop: AtomicBool,
    noted: Invalidations,
    /// Deletions and imports so far.
    changes: AtomicU64,
    sensors: Arc<SensorIndex>,
    catalogue: Arc<Catalogue>,
    policy: Arc<PolicyInForce>,
    counters: Arc<Counters>,
}

impl ResultFiles {
    /// Creates the cache; its directory is not read yet.
    pub fn new(
        disk: &Arc<dyn Disk>,
        config: &StoreConfig,
        sensors: Arc<SensorIndex>,
        catalogue: Arc<Catalogue>,
        policy: Arc<PolicyInForce>,
        counters: Arc<Counters>,
    ) -> Self {
        let noted = Invalidations::default();
        noted.raise(i64::MAX);
        Self {
            disk: disk.clone(),
            dir: config.dir.join("results"),
            bytes_max: config.result_cache_bytes.0,
            clock: config.clock.clone(),
            index: Mutex::default(),
            ready: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            noted,
            changes: AtomicU64::new(0),
            sensors,
            catalogue,
            policy,
            counters,
        }
    }

    /// Reads the directory unless that is done. If the cache is disabled, its files are removed: nothing would invalidate them.
    pub fn scan(&self) -> Result<(), StoreError> {
        self.scanned().map(drop)
    }

    /// The index, after the directory has been read.
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

    /// Stops a running scan.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    fn index(&self) -> MutexGuard<'_, ResultIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cache depends on any readings.
    pub fn is_any(&self) -> bool {
        self.noted.until() > i64::MIN
    }

    /// Notes what has become durable and visible to readers.
    pub fn note_arrivals(&self, batches: &[Arc<LiveBatch>], records: &[(u64, Arc<LiveReadings>)]) {
        self.noted.note_arrivals(batches, records);
    }

    /// Notes one replayed reading.
    pub fn replayed(&self, sensor: u32, time: i64) {
        self.noted.replayed(sensor, time);
    }

    /// Bytes on disk and number of pieces.
    pub fn size(&self) -> (u64, u64) {
        if !self.is_ready() {
            return (0, 0);
        }
        let index = self.index();
        (index.bytes(), index.pieces())
    }

    /// Removes every result that depends on readings of `from <= time <= to` of these sensors, or of any; durable when it returns.
    ///
    /// An operation that changes readings of the past in another way than an append (a deletion, an import, retention) calls this twice: before it
    /// commits, so that no crash leaves an outdated result; and again when readers see the change, so that no result computed meanwhile from an
    /// earlier snapshot is cached.
    pub(crate) fn changed(&self, from: i64, to: i64, sensors: Option<&[SensorId]>) -> Result<(), StoreError> {
        self.changes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match sensors {
            None => self.noted.note_all(from, to),
            Some(ids) => ids.iter().for_each(|id| self.noted.note(id.0, from, to)),
        }
        self.sync_invalidations()
    }

    /// The second call of [`ResultFiles::changed`]. On failure the invalidation stays pending and is applied before a cached result is used.
    pub(crate) fn changed_after_commit(&self, from: i64, to: i64, sensors: Option<&[SensorId]>) {
        if let Err(error) = self.changed(from, to, sensors) {
            tracing::warn!(%error, "outdated results cannot be removed from the cache; tried again");
        }
    }

    /// Removes what arrived readings have invalidated; durable when it returns. Called before journal segments are removed.
    pub(crate) fn sync_invalidations(&self) -> Result<(), StoreError> {
        let mut index = self.scanned()?;
        self.apply_invalidations(&mut index)?;
        index.sync(self.disk.as_ref(), &self.dir)
    }

    /// The same, not yet durable.
    fn apply_invalidations(&self, index: &mut ResultIndex) -> Result<(), StoreError> {
        let Some(noted) = self.noted.take() else { return Ok(()) };
        let by_sensor = noted.by_sensor(|hash| {
            let sensors = self.sensors.read();
            let Some(schema) = sensors.schema(hash) else { return Vec::new() };
            (0..schema.len()).filter_map(|column| sensors.id(&schema.path(column))).map(|id| id.0).collect()
        });
        let removed = index.invalidate(self.disk.as_ref(), &self.dir, &by_sensor, noted.all);
        match removed {
            Ok(count) => {
                add(&self.counters.result_cache_invalidated, count);
                self.noted.lower(index.until());
                Ok(())
            }
            Err(error) => {
                // No cached result is used before the invalidations are applied: the next attempt tries again.
                self.noted.put_back(noted);
                Err(error)
            }
        }
    }
}

/// The result cache of a store.
#[derive(Clone)]
pub struct ResultCache(Arc<ResultFiles>);

impl ResultFiles {
    /// The version of a snapshot that is taken now. Call it before taking the view.
    pub fn version(&self) -> SnapshotVersion {
        let changes = self.changes.load(std::sync::atomic::Ordering::SeqCst);
        SnapshotVersion { commits: self.noted.commits(), changes, retained_at: self.policy.passed_at() }
    }
}

impl ResultCache {
    pub(crate) fn new(results: Arc<ResultFiles>) -> Self {
        Self(results)
    }

    /// The results with one cache key, for a snapshot of this version.
    pub fn of(&self, cache_key: CacheKey, version: SnapshotVersion) -> CachedResults {
        let results = self.0.clone();
        let policy = results.policy.get();
        let hidden = if !policy.has_rules() {
            i64::MIN
        } else {
            let sensors = results.sensors.read();
            let paths = cache_key.operands.iter().filter_map(|id| sensors.path(*id));
            paths.map(|path| policy.hidden_before(&path, version.retained_at)).max().unwrap_or(i64::MIN)
        };
        CachedResults { results, cache_key, version, hidden }
    }
}

/// The cached results with one key.
#[derive(Clone)]
pub struct CachedResults {
    results: Arc<ResultFiles>,
    cache_key: CacheKey,
    version: SnapshotVersion,
    /// Readings of an operand before this are out of their retention.
    hidden: i64,
}

impl CachedResults {
    /// The key of these results.
    pub fn cache_key(&self) -> &CacheKey {
        &self.cache_key
    }

    /// Whether the piece `number` is cached, as far as is known without reading it.
    pub fn has(&self, number: i64) -> bool {
        if !self.results.is_ready() || self.cache_key.span(number).0 < self.hidden {
            return false;
        }
        let mut index = self.results.index();
        self.results.apply_invalidations(&mut index).is_ok() && index.find(&self.cache_key, number).is_some()
    }

    /// The piece `number`, if it is cached and valid.
    pub fn get(&self, number: i64) -> Option<Vec<u8>> {
        if !self.results.is_ready() || self.cache_key.span(number).0 < self.hidden {
            return None;
        }
        let kept = &self.results;
        let found = {
            let mut index = kept.index();
            if let Err(error) = self.results.apply_invalidations(&mut index) {
                tracing::warn!(%error, "cannot remove outdated results from the cache; they are computed again");
                return None;
            }
            index.find(&self.cache_key, number)
        };
        let Some(stamp) = found else {
            add(&self.results.counters.result_cache_misses, 1);
            return None;
        };
        let content = file::read_piece(kept.disk.as_ref(), &kept.dir, &self.cache_key.key, number, stamp);
        if content.is_none() {
            tracing::warn!(dir = %kept.dir.display(), number, "a cached result is damaged; it is computed again");
            kept.index().drop_piece(kept.disk.as_ref(), &kept.dir, &self.cache_key.key, number, stamp);
            add(&self.results.counters.result_cache_misses, 1);
            return None;
        }
        add(&self.results.counters.result_cache_hits, 1);
        content
    }

    /// Caches the piece `number`, computed from a snapshot of this version, unless something that it depends on has changed since. Errors of the
    /// disk are ignored.
    pub fn put(&self, number: i64, content: &[u8]) {
        let (kept, cache_key) = (&self.results, &self.cache_key);
        let (first, last) = cache_key.span(number);
        let room = kept.disk.free_bytes(&kept.dir).is_none_or(|free| free >= FREE_BYTES_MIN);
        let fits = kept.is_ready() && content.len() <= PIECE_BYTES_MAX;
        if !fits || first < self.hidden || !room || !self.is_current(last) {
            return;
        }
        // Locked while the file is written: no seal may complete between writing the file and adding it to the index, or a crash could leave a file
        // that was never checked.
        let mut index = kept.index();
        let stamp = index.next_stamp();
        let written = file::write_piece(kept.disk.as_ref(), &kept.dir, cache_key, number, stamp, content);
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::debug!(%error, "a result cannot be cached");
                index.drop_piece(kept.disk.as_ref(), &kept.dir, &cache_key.key, number, stamp);
                return;
            }
        };
        // First this, then the check of what arrived; the journal does it in the opposite order.
        kept.noted.raise(last);
        let added = index.add(kept.disk.as_ref(), &kept.dir, cache_key, number, stamp, bytes);
        if added.is_err() || !self.is_current(last) {
            index.drop_piece(kept.disk.as_ref(), &kept.dir, &cache_key.key, number, stamp);
            return;
        }
        index.make_room(kept.disk.as_ref(), &kept.dir, kept.bytes_max);
        add(&self.results.counters.result_cache_stored, 1);
    }

    /// Whether nothing up to this time has arrived or changed since the snapshot.
    fn is_current(&self, last: i64) -> bool {
        let kept = &self.results;
        kept.changes.load(std::sync::atomic::Ordering::SeqCst) == self.version.changes
            && !self.results.catalogue.is_suspect()
            && kept.noted.first_since(self.version.commits).is_some_and(|first| first > last)
    }
}
