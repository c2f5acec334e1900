//! The store's front: what everything else calls, and what its threads share.

use std::any::Any;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::{Pattern, Schema, SchemaHash, SensorPath, Value};
use wholegrain_transport::payload::{Checked, check_batch, for_each_column, last_row, read_origin};

use crate::append::{AppendCallback, AppendOutcome};
use crate::block::cache::BlockCache;
use crate::block::read::{Block, RemovedBlocks};
use crate::block::record::BlockRecord;
use crate::catalogue::Catalogue;
use crate::computed::ResultFiles;
use crate::disk::{Disk, RealDisk};
use crate::import::Imports;
use crate::jobs::Jobs;
use crate::journal::{AppendQueue, PendingAppend, group_state};
use crate::live::{LiveBatch, LiveItem, LiveSubscribers, NewestBatches};
use crate::losses::LossRecord;
use crate::paths::StorePaths;
use crate::quarantine::PlausibleTimes;
use crate::ranges::StoredBatches;
use crate::readings::LiveReadings;
use crate::registration::RegistrationQueue;
use crate::registry::Registry;
use crate::retention::policy::RetentionPolicy;
use crate::sensors::Sensors;
use crate::stats::{Counters, add};
use crate::synced::SyncedLengthFile;
use crate::view::StoreView;
use crate::{OpenReport, SensorId, SensorInfo, Snapshot, StoreConfig, StoreError, StoreStats};

/// How long a failed seal or merge waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is looked for sensors to forget.
const FORGET_EVERY: Duration = Duration::from_secs(600);
/// How often merging and retention look for work.
const UPKEEP: Duration = Duration::from_secs(10);

/// What the catalogue's transactions change together.
#[derive(Default)]
pub(crate) struct CommitState {
    /// The batches in blocks.
    pub sealed: StoredBatches,
    /// The imports and their parts.
    pub imports: Imports,
    /// Blocks of transactions that failed, so that only the catalogue can tell whether they count.
    pub attempted: Vec<BlockRecord>,
}

/// What the store's threads share.
pub(crate) struct Shared {
    pub config: StoreConfig,
    pub paths: StorePaths,
    pub disk: Arc<dyn Disk>,
    pub catalogue: Catalogue,
    pub queue: AppendQueue,
    pub counters: Counters,
    pub newest: NewestBatches,
    pub subscribers: LiveSubscribers,
    pub cache: Arc<BlockCache>,
    pub sensors: RwLock<Sensors>,
    pub jobs: Jobs,
    pub registry: Registry,
    /// How far the journal is on stable storage.
    pub synced: SyncedLengthFile,
    /// What the journal has lost and nobody has acknowledged.
    pub lost: RwLock<Arc<[LossRecord]>>,
    /// Held while properties are set.
    pub setting: Mutex<()>,
    /// How often properties have been set since the opening.
    pub settings_changes: AtomicU64,
    /// The rules of retention in force.
    pub policy: RwLock<Arc<RetentionPolicy>>,
    pub kept: ResultFiles,
    pub view: RwLock<Arc<StoreView>>,
    pub commit_state: Mutex<CommitState>,
    pub removed: Arc<RemovedBlocks>,
    pub next_block: AtomicU64,
    /// Segments before this one were there when the store was opened.
    pub first_segment: u64,
    /// Payload bytes of those of them that are not sealed yet.
    pub backlog_bytes: AtomicU64,
    /// The time of the last pass of retention; the least number before the first.
    pub retained_at: AtomicI64,
    /// Definitions there were when `sensors.csv` was last written.
    pub properties_written: AtomicU64,
    /// Until when it is not written again.
    pub properties_rest: Mutex<Option<std::time::Instant>>,
    /// Held for reading while the journal takes a group in, for writing while sensors are forgotten.
    pub expiring: RwLock<()>,
    /// Whether an expiry ever failed: sensors known in memory may then be unknown after the catalogue was opened again.
    pub expiry_failed: AtomicBool,
    /// Forgetting failed, and whether it came true is not known yet: nothing is taken in that might be of what is forgotten.
    pub expiry_unresolved: AtomicBool,
    pub expiry_state: Mutex<crate::expiry::ExpiryState>,
    /// Schemas that are to be registered.
    pub registrations: RegistrationQueue,
    pub sealing: Mutex<()>,
    /// Held while the blocks of an import's part are written.
    pub importing: Mutex<()>,
    pub merging: Mutex<()>,
    pub closing: AtomicBool,
    pub work: Mutex<u64>,
    pub worked: Condvar,
    /// Holds the directory until the last thread is done with it.
    pub _lock: Box<dyn Any + Send + Sync>,
}

impl Shared {
    pub(crate) fn view(&self) -> Arc<StoreView> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change_view(&self, change: impl FnOnce(&mut StoreView)) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = StoreView::clone(&view);
        change(&mut next);
        *view = Arc::new(next);
    }

    pub(crate) fn lost(&self) -> Arc<[LossRecord]> {
        self.lost.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the loss records from the registry again.
    pub fn read_lost(&self) {
        *self.lost.write().unwrap_or_else(PoisonError::into_inner) = crate::losses::open(&self.registry).into();
    }

    pub(crate) fn policy(&self) -> Arc<RetentionPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn sensors(&self) -> RwLockReadGuard<'_, Sensors> {
        self.sensors.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn block(&self, record: BlockRecord) -> Block {
        Block::new(record, &self.paths.blocks, self.disk.clone(), self.removed.clone())
    }

    /// Notes what the groups of these batches, and the sensors of these readings, said last.
    pub fn heard(&self, batches: &[Arc<LiveBatch>], records: &[(u64, Arc<LiveReadings>)]) {
        let mut sensors = self.sensors.write().unwrap_or_else(PoisonError::into_inner);
        batches.iter().for_each(|batch| sensors.heard(batch.schema.hash(), group_state(batch)));
        records.iter().for_each(|(_, record)| sensors.note_newest_times(&record.source, &record.readings));
        drop(sensors);
        self.kept.heard(batches, records);
    }

    fn work(&self) -> MutexGuard<'_, u64> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake_sealer(&self) {
        *self.work() += 1;
        self.worked.notify_all();
    }

    /// Waits until there may be work; `false` when the store closes.
    fn wait_for_work(&self, seen: &mut u64, timeout: Duration) -> bool {
        let work = self.work();
        let waiting = |work: &mut u64| *work == *seen && !self.closing.load(Relaxed);
        let result = self.worked.wait_timeout_while(work, timeout, waiting);
        *seen = *result.unwrap_or_else(PoisonError::into_inner).0;
        !self.closing.load(Relaxed)
    }

    /// Waits for so long, whatever work there is, or until the store closes.
    fn rest(&self, time: Duration) {
        drop(self.worked.wait_timeout_while(self.work(), time, |_| !self.closing.load(Relaxed)));
    }
}

/// The store. A clone is another handle to the same one; it closes when the last is dropped.
#[derive(Clone)]
pub struct Store(Arc<StoreHandle>);

struct StoreHandle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens or makes the store: takes the directory, removes what interrupted seals left, replays the journal. Damage is set
    /// aside and reported; a directory in use, one of a newer release and a damaged catalogue are refused.
    pub fn open(config: StoreConfig) -> Result<(Store, OpenReport), StoreError> {
        crate::disk::close_to_others(&config.dir);
        Self::open_on(config, Arc::new(RealDisk))
    }

    /// The same on another file system than the real one.
    pub fn open_on(config: StoreConfig, disk: Arc<dyn Disk>) -> Result<(Store, OpenReport), StoreError> {
        let (shared, journal, report) = crate::open::open(config, disk)?;
        let mut threads = Vec::new();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map_err(|error| StoreError::io("starting a thread for", &shared.paths.dir, error))
        };
        threads.push(spawn("store-journal", Box::new(move || journal.run()))?);
        let for_jobs = shared.clone();
        threads.push(spawn("store-jobs", Box::new(move || for_jobs.jobs.run(&for_jobs.counters)))?);
        if shared.config.background {
            let for_sealer = shared.clone();
            threads.push(spawn("store-sealer", Box::new(move || seal_loop(&for_sealer)))?);
            let for_kept = shared.clone();
            threads.push(spawn("store-kept", Box::new(move || scan_kept(&for_kept)))?);
            let for_merger = shared.clone();
            threads.push(spawn("store-merger", Box::new(move || merge_loop(&for_merger)))?);
        }
        Ok((Store(Arc::new(StoreHandle { shared, threads: Mutex::new(threads) })), report))
    }

    /// The schema of this hash, if it is known.
    pub fn schema(&self, hash: &SchemaHash) -> Option<Schema> {
        self.0.shared.sensors().schema(hash).cloned()
    }

    /// How many of a schema's sensors are not known, by this schema or another one.
    pub fn unknown_sensors(&self, schema: &Schema) -> usize {
        let sensors = self.0.shared.sensors();
        (0..schema.len()).filter(|&at| sensors.id(&schema.path(at)).is_none()).count()
    }

    /// Each schema's prefix with the agent of its newest batch, in the order of registration: who was where first. Schemas of which
    /// no batch came are left out.
    pub fn schema_agents(&self) -> Vec<(SensorPath, Arc<str>)> {
        self.0.shared.sensors().schema_agents()
    }

    /// Checks a batch and queues it. `done` is called once: at once when the batch is refused or there is no room, else from the
    /// journal thread when it is durable or could not be made so.
    pub fn append(&self, payload: Bytes, done: AppendCallback) {
        let counters = &self.0.shared.counters;
        let batch = match self.check(payload) {
            Ok(batch) => batch,
            Err(error) => {
                add(&counters.rejected, 1);
                return done(Err(error));
            }
        };
        if self.is_closed() {
            return done(Err(StoreError::Closed));
        }
        if !self.append_room() {
            add(&counters.busy, 1);
            return done(Err(StoreError::Busy));
        }
        let pending = PendingAppend::batch(batch, PlausibleTimes::of(&self.0.shared.config), done);
        let bytes = pending.bytes();
        add(&counters.queue_bytes, bytes);
        if let Err(done) = self.0.shared.queue.push(pending) {
            crate::stats::sub(&counters.queue_bytes, bytes);
            done(Err(StoreError::Closed));
        }
    }

    /// Finds everything that could make the batch unusable later, before it is acknowledged.
    fn check(&self, payload: Bytes) -> Result<LiveBatch, StoreError> {
        let refuse = |error: wholegrain_transport::payload::PayloadError| StoreError::Payload(error.to_string());
        let (agent, hash, _) = read_origin(&payload).map_err(refuse)?;
        let (schema, agent) = {
            let sensors = self.0.shared.sensors();
            let schema = sensors.schema(&hash).ok_or(StoreError::UnknownSchema(hash))?.clone();
            // An agent's name is in memory once, not with each of its batches.
            let known = sensors.group(&hash).map(|state| &state.agent).filter(|known| &***known == agent);
            (schema, known.map_or_else(|| agent.into(), Arc::clone))
        };
        live_batch(payload, schema, agent)
    }

    /// Whether [`Store::append`] would take a batch now. What the opening found unsealed has its place already: senders do not
    /// wait for it.
    pub fn append_room(&self) -> bool {
        let (counters, config) = (&self.0.shared.counters, &self.0.shared.config);
        let queued = counters.queue_bytes.load(Relaxed);
        let backlog = self.0.shared.backlog_bytes.load(Relaxed);
        let live = counters.live_bytes.load(Relaxed).saturating_sub(backlog);
        queued < config.queue_bytes_max.0 && queued + live < config.live_bytes_max.0
    }

    /// Appends a batch and waits for its fate.
    pub fn append_blocking(&self, payload: Bytes) -> Result<AppendOutcome, StoreError> {
        let (sender, receiver) = sync_channel(1);
        self.append(payload, Box::new(move |result| drop(sender.send(result))));
        receiver.recv().unwrap_or(Err(StoreError::Closed))
    }

    /// What people set while the server runs.
    pub fn registry(&self) -> &Registry {
        &self.0.shared.registry
    }

    /// Every sensor that one of the patterns chooses, sorted by path, each once.
    pub fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.sensors_after(patterns, None, usize::MAX)
    }

    /// The first `most` of them whose paths come after `after`: a part of a list that may be of any length.
    pub fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.sensors_after_until(patterns, after, most, &|| false)
    }

    /// The same, or fewer when nobody waits for them any more, which is asked now and then. Who has new sensors to add comes in between.
    pub fn sensors_after_until(
        &self,
        patterns: &[Pattern],
        after: Option<&str>,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<SensorInfo> {
        let (mut found, mut next) = self.0.shared.sensors().select_part(patterns, after, most);
        while let Some(after) = next.filter(|_| !is_over()) {
            let (part, further) = self.0.shared.sensors().select_part(patterns, Some(&after), most - found.len());
            found.extend(part);
            next = further;
        }
        found
    }

    /// The newest reading of each sensor: its time, and its value or `None` for a gap.
    pub fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        let shared = &self.0.shared;
        let mut rows: HashMap<u32, Option<SampleRow>> = HashMap::new();
        let mut snapshot = None;
        let mut one = |id: SensorId| {
            let mut best: Option<(i64, Option<Value>)> = None;
            let mut heard = None;
            {
                let sensors = shared.sensors();
                if let Some((time, value)) = sensors.last_schemaless(id) {
                    heard = Some(time);
                    best = value.map(|value| (time, Some(value)));
                }
                for place in sensors.places(id).iter() {
                    let hash = sensors.schema_at(place.schema).hash();
                    heard = heard.max(sensors.group(&hash).map(|state| state.last_time));
                    let row = rows.entry(place.schema).or_insert_with(|| newest_row(&*shared.newest.get(&hash)?));
                    if let Some((time, values)) = row
                        && best.is_none_or(|(known, _)| *time >= known)
                    {
                        best = Some((*time, values.get(place.column as usize).copied().flatten()));
                    }
                }
            }
            // A group that fell silent, or that sends old batches after a restart: something newer is on disk.
            if heard > best.map(|(time, _)| time) {
                let snapshot = snapshot.get_or_insert_with(|| self.snapshot());
                let stored = snapshot.newest_since(id, heard.unwrap_or(i64::MIN));
                best = stored.into_iter().chain(best).max_by_key(|(time, _)| *time);
            }
            best
        };
        ids.iter().map(|id| one(*id)).collect()
    }

    /// Everything acknowledged until now, as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.0.shared.clone())
    }

    /// Everything from now on, after it is durable: together what became so together. At most `bound` of these wait for the receiver; what is in
    /// further ones is lost to it and counted.
    pub fn subscribe(&self, bound: usize) -> Receiver<Arc<[LiveItem]>> {
        self.0.shared.subscribers.subscribe(bound)
    }

    /// Counters and sizes of the store.
    pub fn stats(&self) -> StoreStats {
        let shared = &self.0.shared;
        let view = shared.view();
        let sum = |of: fn(&BlockRecord) -> u64| view.blocks.iter().map(|block| of(&block.record)).sum();
        let (sensors, schemas) = {
            let sensors = shared.sensors();
            (sensors.len() as u64, sensors.schemas_len() as u64)
        };
        StoreStats {
            blocks: view.blocks.len() as u64,
            block_bytes: sum(|record| record.bytes),
            block_rows: sum(|record| record.rows),
            damaged_blocks: shared.counters.damaged_at_open.load(Relaxed)
                + view.blocks.iter().filter(|block| block.is_damaged()).count() as u64,
            sensors,
            schemas,
            deletion_files: view
                .blocks
                .iter()
                .chain(&view.tiers)
                .filter(|block| !block.record.tombstones.is_empty())
                .count() as u64,
            derived_bytes: shared.kept.size().0,
            derived_pieces: shared.kept.size().1,
            lost: shared.lost().len() as u64,
            lost_readings: shared.lost().iter().filter_map(|lost| lost.readings).sum(),
            tiers: view.tiers.len() as u64,
            tier_bytes: view.tiers.iter().map(|tier| tier.record.bytes).sum(),
            tier_rows: view.tiers.iter().map(|tier| tier.record.rows).sum(),
            allocations: shared.jobs.len() as u64,
            newest_groups: shared.newest.len() as u64,
            segments: view.closed.len() as u64 + 1,
            free_bytes: shared.disk.free_bytes(&shared.paths.dir),
            ..shared.counters.read()
        }
    }

    /// Seals everything appended until now into blocks and waits for it.
    pub fn seal(&self) -> Result<(), StoreError> {
        let (sender, receiver) = sync_channel(1);
        if !self.0.shared.queue.rotate(sender) || receiver.recv().is_err() {
            return Err(StoreError::Closed);
        }
        while crate::seal::seal_oldest(&self.0.shared)? {}
        crate::properties::bring_up(&self.0.shared);
        Ok(())
    }

    /// Merges until there is nothing to merge and applies the retention, as of the time `now` (ns since the Unix epoch).
    pub fn maintain(&self, now: i64) -> Result<(), StoreError> {
        crate::retention::retain(&self.0.shared, now)?;
        while crate::merge::merge_once(&self.0.shared, now)? {}
        crate::retention::retain(&self.0.shared, now)?;
        crate::expiry::pass(&self.0.shared, now)?;
        expire_jobs(&self.0.shared, now)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The directory of the store.
    pub fn dir(&self) -> PathBuf {
        self.0.shared.paths.dir.clone()
    }

    /// How long readings are kept that no rule speaks of.
    pub fn retention_age(&self) -> Option<wholegrain_model::Interval> {
        self.0.shared.config.retention_age
    }

    fn is_closed(&self) -> bool {
        self.0.shared.closing.load(Relaxed)
    }

    /// Takes nothing more, writes and answers what waits, and stops the threads. What is not sealed yet is replayed from the
    /// journal at the next opening. Dropping the last handle does the same.
    pub fn close(&self) -> Result<(), StoreError> {
        self.0.close();
        Ok(())
    }
}

/// What every batch must pass before it is stored, and what is known of it afterwards. Its header names `agent`.
fn live_batch(payload: Bytes, schema: Schema, agent: Arc<str>) -> Result<LiveBatch, StoreError> {
    let checked = check_batch(&payload, &schema).map_err(|error| StoreError::Payload(error.to_string()))?;
    let Checked { boot, seq, interval_ns, samples, range: (first_time, last_time), .. } = checked;
    Ok(LiveBatch { schema, agent, boot, seq, interval_ns, samples, first_time, last_time, payload, arrival: 0 })
}

/// One sample: its time, and a value or gap for each sensor of its schema.
type SampleRow = (i64, Vec<Option<Value>>);

/// The sample with the largest time.
fn newest_row(batch: &LiveBatch) -> Option<SampleRow> {
    let (time, values) = last_row(&batch.payload, &batch.schema).ok()?;
    if time == batch.last_time {
        return Some((time, values));
    }
    let mut row = Vec::with_capacity(batch.schema.len());
    let mut columns = Vec::with_capacity(batch.schema.len());
    let times = for_each_column(&batch.payload, &batch.schema, |_, column| columns.push(column.clone())).ok()?;
    let at = times.iter().rposition(|time| *time == batch.last_time)?;
    row.extend(columns.iter().map(|column| column.get(at)));
    Some((batch.last_time, row))
}

/// Finds the kept results. After a failure the next seal tries again.
fn scan_kept(shared: &Shared) {
    match shared.kept.scan() {
        Err(error) if !shared.closing.load(Relaxed) => tracing::error!(%error, "kept results cannot be looked for"),
        _ => {}
    }
}

fn seal_loop(shared: &Shared) {
    let mut seen = 0;
    let mut settings = shared.sensors().settings_changes();
    while shared.wait_for_work(&mut seen, UPKEEP) {
        loop {
            match crate::seal::seal_oldest(shared) {
                Ok(true) if !shared.closing.load(Relaxed) => {}
                Ok(_) => break,
                Err(error) => {
                    add(&shared.counters.seal_errors, 1);
                    tracing::error!(%error, "sealing failed; tried again shortly, the journal keeps everything");
                    // A disk that is full gives much to do and takes none of it.
                    shared.rest(RETRY);
                    shared.wake_sealer();
                    break;
                }
            }
        }
        shared.synced.sync();
        // Settings go to sensors.csv soon, also while nothing is sealed.
        let set = shared.sensors().settings_changes();
        if std::mem::replace(&mut settings, set) != set {
            crate::properties::keep_up(shared);
        }
        shared.newest.forget(shared.config.live.duration(), std::time::Instant::now());
    }
}

fn merge_loop(shared: &Shared) {
    let mut seen = 0;
    let mut forget_at = Instant::now();
    while shared.wait_for_work(&mut seen, UPKEEP) {
        if let Err(error) = crate::retention::retain(shared, shared.config.clock.now()) {
            tracing::error!(%error, "retention failed; tried again shortly");
        }
        if let Err(error) = expire_jobs(shared, shared.config.clock.now()) {
            tracing::error!(%error, "retention of jobs failed; tried again shortly");
        }
        forget(shared, &mut forget_at);
        while !shared.closing.load(Relaxed) {
            match crate::merge::merge_once(shared, shared.config.clock.now()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    add(&shared.counters.merge_errors, 1);
                    tracing::error!(%error, "merging failed; tried again shortly");
                    break;
                }
            }
        }
    }
}

/// Forgets sensors now and then.
fn forget(shared: &Shared, next: &mut Instant) {
    if Instant::now() < *next {
        return;
    }
    *next = Instant::now() + FORGET_EVERY;
    if let Err(error) = crate::expiry::pass(shared, shared.config.clock.now()) {
        tracing::error!(%error, "forgetting sensors failed; tried again later");
    }
}

fn expire_jobs(shared: &Shared, now: i64) -> Result<(), StoreError> {
    let dropped = shared.jobs.expire(&shared.config, now)?;
    add(&shared.counters.jobs_dropped, dropped);
    Ok(())
}

impl StoreHandle {
    fn close(&self) {
        self.shared.closing.store(true, Relaxed);
        self.shared.kept.stop();
        self.shared.queue.close();
        self.shared.jobs.queue.close();
        self.shared.wake_sealer();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A handle that a sender's callback held is dropped on the journal thread: it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the store panicked");
            }
        }
        self.shared.synced.sync();
        self.shared.subscribers.close();
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.close();
    }
}
