//! A server's store in Cassandra: the local store receives, its sealed blocks become chunks, and both together answer.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::{Handle, Runtime};
use wholegrain_model::{Pattern, Value};
use wholegrain_store::{
    Deletion, DeletionReport, ReadSnapshot, ReadStore, ScanRequest, SensorId, SensorInfo, SensorRange, Store,
    StoreError,
};

use crate::catalogue::SharedCatalogue;
use crate::config::{CassandraConfig, KeyspaceOptions};
use crate::extents::ExtentCache;
use crate::member::Member;
use crate::newest::newest_of;
use crate::session::{CassandraSession, connect};
use crate::slices::wait;
use crate::snapshot::{CassandraSnapshot, ChunkReader};
use crate::upload::Uploader;
use crate::view::{Cut, SharedView, read_cuts};
use crate::{member, migrations};

/// How often the tables that servers share are read.
const POLL: Duration = Duration::from_millis(500);
/// How often the server says that it is alive.
const BEAT: Duration = Duration::from_secs(3);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// How long a deletion waits for the other servers.
const DELETE_WAIT: Duration = Duration::from_secs(30);
/// Threads of the driver.
const DRIVER_THREADS: usize = 2;

/// Numbers of uploads that only grow, also beyond a clock that steps back: microseconds since the Unix epoch.
#[derive(Default)]
pub(crate) struct Stamps(AtomicI64);

impl Stamps {
    /// Raises the numbers above this one.
    fn raise(&self, above: i64) {
        self.0.fetch_max(above, Ordering::Relaxed);
    }

    fn next(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let next = |last: i64| Some(now.max(last.saturating_add(1)));
        let last = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_else(|last| last);
        now.max(last.saturating_add(1))
    }

    /// The newest number that was given.
    fn newest(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the threads and the snapshots of one store share.
struct Shared {
    session: Arc<CassandraSession>,
    handle: Handle,
    local: Store,
    reader: Arc<ChunkReader>,
    /// Changes together with the local store: a snapshot has each reading in one of the two.
    view: RwLock<Arc<SharedView>>,
    stamps: Stamps,
    member: Member,
    uploader: Uploader,
    /// Held during an upload and while a deletion is applied.
    upload: Mutex<()>,
    catalogue: tokio::sync::Mutex<SharedCatalogue>,
    is_closing: Arc<AtomicBool>,
    counters: UploadCounters,
}

/// Counts of uploads since the start.
#[derive(Debug, Default)]
struct UploadCounters {
    blocks: AtomicU64,
    rows: AtomicU64,
    readings: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
}

/// What was uploaded since the start, and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadStats {
    pub blocks: u64,
    pub rows: u64,
    pub readings: u64,
    /// Bytes of the chunks, before Cassandra compresses them.
    pub bytes: u64,
    pub failures: u64,
    /// Sealed blocks of the local store that are not uploaded yet, and their bytes.
    pub waiting_blocks: u64,
    pub waiting_bytes: u64,
}

/// A store that keeps sealed readings in Cassandra. A clone is another handle; the threads end when the last is dropped.
#[derive(Clone)]
pub struct CassandraStore(Arc<StoreThreads>);

struct StoreThreads {
    shared: Arc<Shared>,
    wake: Mutex<Sender<()>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    runtime: Mutex<Option<Runtime>>,
}

/// Creates the keyspace and its tables, or brings them up to date; what is up to date is not changed. Refuses a keyspace of a newer release.
pub fn create(config: &CassandraConfig, options: &KeyspaceOptions) -> Result<(), StoreError> {
    let runtime = runtime()?;
    let (config, options) = (config.clone(), options.clone());
    let result = wait(runtime.handle(), async move {
        let session = connect(&config).await?;
        migrations::create(&session, &config.keyspace, &options).await
    });
    runtime.shutdown_background();
    result
}

fn runtime() -> Result<Runtime, StoreError> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(DRIVER_THREADS)
        .thread_name("cassandra")
        .enable_all()
        .build();
    built.map_err(|error| StoreError::Remote { doing: "starting the driver of Cassandra", reason: error.to_string() })
}

impl CassandraStore {
    /// Opens the store of this server. The local store must be open with [`wholegrain_store::StoreConfig::hands_over`]. Refuses a keyspace that is
    /// missing or of a newer release, and a name that another server uses.
    pub fn open(config: CassandraConfig, local: Store) -> Result<Self, StoreError> {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let opened = {
            let (handle, local) = (handle.clone(), local.clone());
            wait(&runtime.handle().clone(), async move { open(config, local, handle).await })
        };
        let shared = match opened {
            Ok(shared) => Arc::new(shared),
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let (wake, woken) = channel();
        let threads = StoreThreads {
            shared,
            wake: Mutex::new(wake),
            threads: Mutex::default(),
            runtime: Mutex::new(Some(runtime)),
        };
        let store = Self(Arc::new(threads));
        let shared = &store.0.shared;
        // What was deleted while this server was away is deleted here before anything is answered or uploaded.
        shared.refresh()?;
        let (polls, uploads) = (shared.clone(), shared.clone());
        store.0.spawn("cassandra-poll", move || polls.poll_loop())?;
        store.0.spawn("cassandra-upload", move || uploads.upload_loop(&woken))?;
        Ok(store)
    }

    pub fn local(&self) -> &Store {
        &self.0.shared.local
    }

    /// Seals everything that the local store has received, uploads it, and waits for it.
    pub fn upload_all(&self) -> Result<(), StoreError> {
        self.0.shared.local.seal()?;
        while self.0.shared.upload_next()? {}
        Ok(())
    }

    /// Deletes the stored readings of a range here and in Cassandra; in force at all servers when it returns. An error says which server has not
    /// confirmed: there the deletion is in force as soon as it answers again.
    pub fn delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        self.0.shared.delete(deletion)
    }

    /// What [`CassandraStore::delete`] would delete now; changes nothing. Reads what it counts.
    pub fn would_delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        let local = self.0.shared.local.would_delete(deletion)?;
        self.0.shared.count(deletion, local)
    }

    pub fn upload_stats(&self) -> UploadStats {
        let counters = &self.0.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let local = self.0.shared.local.stats();
        UploadStats {
            blocks: get(&counters.blocks),
            rows: get(&counters.rows),
            readings: get(&counters.readings),
            bytes: get(&counters.bytes),
            failures: get(&counters.failures),
            waiting_blocks: local.blocks,
            waiting_bytes: local.block_bytes,
        }
    }

    /// Uploads what is sealed soon.
    pub fn wake(&self) {
        let _ = self.0.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
    }

    /// Stops the threads. What is not uploaded is uploaded after the next opening.
    pub fn close(&self) {
        self.0.close();
    }
}

impl StoreThreads {
    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread =
            thread.map_err(|error| StoreError::Remote { doing: "starting a thread", reason: error.to_string() })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    fn close(&self) {
        if self.shared.is_closing.swap(true, Ordering::Relaxed) {
            return;
        }
        let _ = self.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the store in Cassandra panicked");
            }
        }
        let shared = self.shared.clone();
        let left = wait(&self.shared.handle, async move { shared.member.leave(&shared.session).await });
        if let Err(error) = left {
            tracing::debug!(%error, "the end was not recorded; other servers notice it by themselves");
        }
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for StoreThreads {
    fn drop(&mut self) {
        self.close();
    }
}

async fn open(config: CassandraConfig, local: Store, handle: Handle) -> Result<Shared, StoreError> {
    let session = connect(&config).await?;
    let shard_levels = migrations::check(&session, &config.keyspace).await?;
    let session = Arc::new(CassandraSession::new(session, &config));
    let member = Member::join(&session, &config.server, &member::store_id(&local.dir())?).await?;
    let view = SharedView::read(&session, None).await?;
    let stamps = Stamps::default();
    stamps.raise(view.vector.get(&member.number).copied().unwrap_or(0));
    let catalogue = SharedCatalogue::open(&session, &local, member.number, stamps.next()).await?;
    let is_closing: Arc<AtomicBool> = Arc::default();
    let is_over: Arc<dyn Fn() -> bool + Send + Sync> = {
        let is_closing = is_closing.clone();
        Arc::new(move || is_closing.load(Ordering::Relaxed))
    };
    let of = (member.number, shard_levels);
    let uploader = Uploader::new(session.clone(), handle.clone(), local.clone(), of, is_over);
    let reader = ChunkReader {
        session: session.clone(),
        handle: handle.clone(),
        local: local.clone(),
        shard_levels,
        extents: ExtentCache::default(),
    };
    Ok(Shared {
        session,
        handle,
        local,
        reader: Arc::new(reader),
        view: RwLock::new(Arc::new(view)),
        stamps,
        member,
        uploader,
        upload: Mutex::default(),
        catalogue: tokio::sync::Mutex::new(catalogue),
        is_closing,
        counters: UploadCounters::default(),
    })
}

impl Shared {
    fn uploading(&self) -> MutexGuard<'_, ()> {
        self.upload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> Arc<SharedView> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn snapshot(&self) -> CassandraSnapshot {
        // While this is locked, no block moves from the local store to the complete uploads.
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let local = self.local.snapshot();
        CassandraSnapshot { reader: self.reader.clone(), local, view: view.clone() }
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Uploads the first sealed block. `false` if there is none.
    fn upload_next(self: &Arc<Self>) -> Result<bool, StoreError> {
        let _uploading = self.uploading();
        let Some(block) = self.local.first_block()? else { return Ok(false) };
        let shared = self.clone();
        // Whoever reads the chunks must know their sensors.
        wait(&self.handle, async move { shared.send_catalogue().await })?;
        let stamp = self.stamps.next();
        let counts = self.uploader.upload(&block, stamp)?;
        let (session, server, (first, last)) = (self.session.clone(), self.member.number, block.span());
        let (readings, is_over) = (i64::try_from(counts.readings).unwrap_or(i64::MAX), self.is_closing.clone());
        wait(&self.handle, async move {
            let insert =
                "INSERT INTO $.commits (server, stamp, first_time, last_time, readings) VALUES (?, ?, ?, ?, ?)";
            let is_over = move || is_over.load(Ordering::Relaxed);
            session.write("completing an upload", insert, (server, stamp, first, last, readings), &is_over).await
        })?;
        {
            let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
            let mut next = SharedView::clone(&view);
            next.vector.insert(self.member.number, stamp);
            next.days.extend(self.uploader.days());
            *view = Arc::new(next);
            // A block that was changed meanwhile stays, and is uploaded again: its readings are the same.
            self.local.release_block(&block)?;
        }
        let add = |counter: &AtomicU64, by: u64| {
            counter.fetch_add(by, Ordering::Relaxed);
        };
        add(&self.counters.blocks, 1);
        add(&self.counters.rows, counts.rows);
        add(&self.counters.readings, counts.readings);
        add(&self.counters.bytes, counts.bytes);
        Ok(true)
    }

    async fn send_catalogue(&self) -> Result<(), StoreError> {
        let mut catalogue = self.catalogue.lock().await;
        catalogue.send(&self.session, &self.local, self.member.number, &|| self.stamps.next()).await
    }

    fn upload_loop(self: &Arc<Self>, woken: &Receiver<()>) {
        let mut failed = false;
        while !self.is_closing() {
            let pause = match self.upload_next() {
                Ok(true) => {
                    if std::mem::take(&mut failed) {
                        tracing::info!("uploads to Cassandra go on");
                    }
                    continue;
                }
                Ok(false) => POLL,
                Err(error) => {
                    self.counters.failures.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut failed, true) && !self.is_closing() {
                        tracing::warn!(%error, "an upload to Cassandra failed; it is repeated, the local store keeps everything");
                    }
                    RETRY
                }
            };
            let _ = woken.recv_timeout(pause);
        }
    }

    /// Exchanges with the other servers what is shared.
    fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let shared = self.clone();
        let read = wait(&self.handle, async move {
            shared.send_catalogue().await?;
            let now = shared.stamps.next();
            shared.catalogue.lock().await.receive(&shared.session, &shared.local, now).await?;
            SharedView::read(&shared.session, Some(&shared.view())).await
        })?;
        for cut in &read.cuts {
            if !cut.upto.contains_key(&self.member.number) {
                self.apply_cut(cut)?;
            }
        }
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = SharedView::clone(&view);
        for (server, stamp) in read.vector {
            // What is known of this server's own uploads is newer than what was read.
            let known = next.vector.entry(server).or_insert(stamp);
            *known = stamp.max(*known);
        }
        for cut in read.cuts {
            match next.cuts.iter_mut().find(|known| known.id == cut.id) {
                Some(known) => known.upto.extend(cut.upto),
                None => next.cuts.push(cut),
            }
        }
        next.days.extend(read.days);
        *view = Arc::new(next);
        Ok(())
    }

    fn poll_loop(self: &Arc<Self>) {
        let mut failed = false;
        let mut beat_at = Instant::now();
        while !self.is_closing() {
            let result = self.refresh().and_then(|()| {
                if Instant::now() < beat_at {
                    return Ok(());
                }
                let shared = self.clone();
                wait(&self.handle, async move {
                    shared.member.beat(&shared.session).await?;
                    // A server that has died is known to be dead when a deletion asks.
                    shared.member.alive(&shared.session).await
                })?;
                beat_at = Instant::now() + BEAT;
                Ok(())
            });
            match result {
                Ok(()) if std::mem::take(&mut failed) => tracing::info!("Cassandra answers again"),
                Ok(()) => {}
                Err(error) if !std::mem::replace(&mut failed, true) && !self.is_closing() => {
                    tracing::warn!(%error, "Cassandra does not answer; readings wait in the local store");
                }
                Err(_) => {}
            }
            std::thread::sleep(POLL);
        }
    }

    /// Applies a deletion to the local store, and writes that this server has done so.
    fn apply_cut(self: &Arc<Self>, cut: &Cut) -> Result<DeletionReport, StoreError> {
        let _uploading = self.uploading();
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let number = self.member.number;
        // Applied already, though the confirmation may not be written: readings that came since are new.
        let known = view.cuts.iter().find(|known| known.id == cut.id);
        let applied = known.and_then(|known| known.upto.get(&number)).copied();
        let (report, stamp) = match applied {
            Some(stamp) => (DeletionReport::default(), stamp),
            None => {
                let deletion = Deletion { patterns: cut.patterns.clone(), from: cut.from, to: cut.to };
                (self.local.delete(&deletion)?, self.stamps.newest())
            }
        };
        let mut next = SharedView::clone(&view);
        match next.cuts.iter_mut().find(|known| known.id == cut.id) {
            Some(known) => drop(known.upto.insert(number, stamp)),
            None => {
                let mut cut = cut.clone();
                cut.upto.insert(number, stamp);
                next.cuts.push(cut);
            }
        }
        *view = Arc::new(next);
        drop(view);
        let (session, id, is_closing) = (self.session.clone(), cut.id.clone(), self.is_closing.clone());
        wait(&self.handle, async move {
            let insert = "INSERT INTO $.cuts (k, id, server, stamp) VALUES (0, ?, ?, ?)";
            let is_over = move || is_closing.load(Ordering::Relaxed);
            session.write("confirming a deletion", insert, (id.as_str(), number, stamp), &is_over).await
        })?;
        Ok(report)
    }

    /// The readings of a range here and in Cassandra, each once. `local` are those of the local store, with its files.
    fn count(&self, deletion: &Deletion, local: DeletionReport) -> Result<DeletionReport, StoreError> {
        let snapshot = self.snapshot();
        let sensors = self.local.sensors(&deletion.patterns);
        let (from, to) = (deletion.from, deletion.to);
        let reader = snapshot.open(&mut sensors.iter().map(|sensor| SensorRange { sensor, from, to }))?;
        let mut report = DeletionReport { sensors: 0, readings: 0, times: None, ..local };
        for sensor in &sensors {
            let before = report.readings;
            for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
                let chunk = chunk?;
                report.readings += chunk.times.len() as u64;
                if let (Some(first), Some(last)) = (chunk.times.first(), chunk.times.last()) {
                    let (from, to) = report.times.unwrap_or((*first, *last));
                    report.times = Some((from.min(*first), to.max(*last)));
                }
            }
            report.sensors += u64::from(report.readings > before);
        }
        Ok(report)
    }

    fn delete(self: &Arc<Self>, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        let counted = self.count(deletion, self.local.would_delete(deletion)?)?;
        let id = format!("{:020}-{}", self.stamps.next(), self.member.number);
        let cut = Cut {
            id: id.clone(),
            patterns: deletion.patterns.clone(),
            from: deletion.from,
            to: deletion.to,
            upto: Default::default(),
        };
        let (session, patterns) = (self.session.clone(), deletion.patterns.clone());
        let (id_of, from, to) = (id.clone(), deletion.from, deletion.to);
        wait(&self.handle, async move {
            let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
            let insert = "INSERT INTO $.cuts (k, id, server, patterns, from_time, to_time) VALUES (0, ?, 0, ?, ?, ?)";
            session.write_once("writing a deletion", insert, (id_of.as_str(), patterns, from, to)).await
        })?;
        let report = self.apply_cut(&cut)?;
        let report = DeletionReport { files: report.files, unreadable: report.unreadable, ..counted };
        let deadline = Instant::now() + DELETE_WAIT;
        loop {
            let (shared, id) = (self.clone(), id.clone());
            let missing = wait(&self.handle, async move { shared.unconfirmed(&id).await })?;
            let Some(server) = missing.first() else { return Ok(report) };
            if Instant::now() > deadline {
                let reason =
                    format!("the server {server} has not confirmed it; there it is in force when it answers again");
                return Err(StoreError::Remote { doing: "deleting at all servers", reason });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The names of the live servers that have not applied a deletion.
    async fn unconfirmed(&self, id: &str) -> Result<Vec<String>, StoreError> {
        let servers = self.member.alive(&self.session).await?;
        if servers.is_empty() {
            return Ok(Vec::new());
        }
        let cuts = read_cuts(&self.session).await?;
        let upto = cuts.into_iter().find(|cut| cut.id == id).map(|cut| cut.upto).unwrap_or_default();
        Ok(servers.into_iter().filter(|(number, _)| !upto.contains_key(number)).map(|(_, name)| name).collect())
    }
}

impl ReadStore for CassandraStore {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.0.shared.local.sensors(patterns)
    }

    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.0.shared.local.sensors_after(patterns, after, most)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        let shared = &self.0.shared;
        let mut found = shared.local.newest(ids);
        // After the local store: a block that moves meanwhile is in the one or the other.
        let view = shared.view();
        let older = |at: &usize| {
            let last = shared.local.sensor(ids[*at]).and_then(|info| info.last_time);
            last.is_some() && found[*at].map(|(time, _)| time) < last
        };
        let wanted: Vec<usize> = (0..ids.len()).filter(older).collect();
        if wanted.is_empty() {
            return found;
        }
        let path = |at: &usize| shared.local.sensor(ids[*at]).map_or_else(|| "".into(), |info| info.path);
        let paths: Vec<Arc<str>> = wanted.iter().map(path).collect();
        match newest_of(&shared.reader, &view, &paths) {
            Ok(chunks) => {
                for (at, chunk) in wanted.into_iter().zip(chunks) {
                    let Some(chunk) = chunk else { continue };
                    if found[at].is_none_or(|(time, _)| time < chunk.times[0]) {
                        found[at] = Some((chunk.times[0], chunk.column.get(0)));
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the newest readings in Cassandra cannot be read"),
        }
        found
    }

    fn snapshot(&self) -> Box<dyn ReadSnapshot> {
        Box::new(self.0.shared.snapshot())
    }
}
