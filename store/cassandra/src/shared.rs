//! What the threads and the snapshots of one store share once Cassandra has answered: uploads, and the exchange with the other servers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use wholegrain_store::{Store, StoreError};

use crate::catalogue::SharedCatalogue;
use crate::config::CassandraConfig;
use crate::extents::ExtentCache;
use crate::member::Member;
use crate::session::{CassandraSession, Closing, READ_TRIES, connect, pause_after, sleep_unless_closing};
use crate::slices::wait;
use crate::snapshot::{CassandraSnapshot, ChunkReader};
use crate::stamps::Stamps;
use crate::upload::Uploader;
use crate::view::SharedView;
use crate::{member, migrations};

/// How often the tables that servers share are read.
const POLL: Duration = Duration::from_millis(500);
/// How often the server says that it is alive.
const BEAT: Duration = Duration::from_secs(3);
/// A server that has read the shared tables longer ago reads them before it answers: it was paused, and deletions may have been made meanwhile.
const STALE: Duration = Duration::from_secs(2);
/// The longest pause after a failure, and the shortest.
pub(crate) const RETRY: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(100);

pub(crate) struct Shared {
    pub session: Arc<CassandraSession>,
    pub handle: Handle,
    pub local: Store,
    pub reader: Arc<ChunkReader>,
    /// Changes together with the local store: a snapshot has each reading in one of the two.
    view: RwLock<Arc<SharedView>>,
    /// When the shared tables were last read, by the time at which that began.
    polled: Mutex<Instant>,
    /// Whether the last attempt to read them failed.
    is_cut_off: AtomicBool,
    pub stamps: Stamps,
    pub member: Member,
    uploader: Uploader,
    /// Held during an upload and while a deletion is applied.
    upload: Mutex<()>,
    catalogue: tokio::sync::Mutex<SharedCatalogue>,
    closing: Closing,
    pub counters: UploadCounters,
}

/// Counts of uploads since the start.
#[derive(Debug, Default)]
pub(crate) struct UploadCounters {
    pub blocks: AtomicU64,
    pub rows: AtomicU64,
    pub readings: AtomicU64,
    pub bytes: AtomicU64,
    pub failures: AtomicU64,
}

/// Connects and joins the other servers. Can be repeated with the same `run`. What fails is tried a few times: the whole has hundreds of requests.
pub(crate) async fn join(
    config: &CassandraConfig,
    run: &str,
    local: Store,
    (handle, closing): (Handle, Closing),
) -> Result<Shared, StoreError> {
    let session = connect(config).await?;
    let mut tried = 0;
    let shard_levels = loop {
        tried += 1;
        match migrations::check(&session, &config.keyspace).await {
            Err(StoreError::RemoteUnavailable { .. }) if tried < READ_TRIES => {
                tokio::time::sleep(pause_after(tried)).await
            }
            result => break result?,
        }
    };
    let session = Arc::new(CassandraSession::new(session, config, closing.clone()));
    let stamps = Stamps::new(config.clock.clone());
    let store = member::store_id(&local.dir())?;
    let mut tried = 0;
    let member = loop {
        tried += 1;
        match Member::join(&session, (&config.server, run), &store, stamps.next()).await {
            Err(StoreError::RemoteUnavailable { .. }) if tried < READ_TRIES => {
                tokio::time::sleep(pause_after(tried)).await
            }
            result => break result?,
        }
    };
    let polled = Instant::now();
    let view = SharedView::read(&session, &SharedView::default()).await?;
    view.vector.values().for_each(|stamp| stamps.raise(*stamp));
    member.alive(&session, &|beat| stamps.raise(beat)).await?;
    let catalogue = SharedCatalogue::open(&session, &local, member.number, stamps.next()).await?;
    let uploader = Uploader::new(session.clone(), handle.clone(), local.clone(), (member.number, shard_levels));
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
        polled: Mutex::new(polled),
        is_cut_off: AtomicBool::new(false),
        stamps,
        member,
        uploader,
        upload: Mutex::default(),
        catalogue: tokio::sync::Mutex::new(catalogue),
        closing,
        counters: UploadCounters::default(),
    })
}

impl Shared {
    pub fn uploading(&self) -> MutexGuard<'_, ()> {
        self.upload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn view(&self) -> Arc<SharedView> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The view for a change. Snapshots wait until it is dropped.
    pub fn lock_view(&self) -> RwLockWriteGuard<'_, Arc<SharedView>> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn snapshot(self: &Arc<Self>) -> CassandraSnapshot {
        self.refresh_if_stale();
        // While this is locked, no block moves from the local store to the complete uploads.
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        let local = self.local.snapshot();
        CassandraSnapshot { reader: self.reader.clone(), local, view: view.clone() }
    }

    /// After a pause of this process, reads what was deleted meanwhile. A server that is cut off answers without it.
    pub fn refresh_if_stale(self: &Arc<Self>) {
        let polled = *self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        if polled.elapsed() > STALE
            && !self.is_cut_off.load(Ordering::Relaxed)
            && let Err(error) = self.refresh()
        {
            tracing::debug!(%error, "the shared tables cannot be read before an answer");
        }
    }

    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Uploads the first sealed block. `false` if there is none.
    pub fn upload_next(self: &Arc<Self>) -> Result<bool, StoreError> {
        let _uploading = self.uploading();
        self.member.check()?;
        let Some(block) = self.local.first_block()? else { return Ok(false) };
        let shared = self.clone();
        // Whoever reads the chunks must know their sensors.
        wait(&self.handle, async move { shared.send_catalogue().await })?;
        let stamp = self.stamps.next();
        let counts = self.uploader.upload(&block, stamp)?;
        let (session, server, (first, last)) = (self.session.clone(), self.member.number, block.span());
        let readings = i64::try_from(counts.readings).unwrap_or(i64::MAX);
        wait(&self.handle, async move {
            let insert =
                "INSERT INTO $.commits (server, stamp, first_time, last_time, readings) VALUES (?, ?, ?, ?, ?)";
            session.write("completing an upload", insert, (server, stamp, first, last, readings)).await
        })?;
        {
            let mut view = self.lock_view();
            let mut next = SharedView::clone(&view);
            next.complete(self.member.number, stamp, last);
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
        if !catalogue.is_sent(&self.local) {
            // Whoever has joined before reads changes from its own stamps on: these must not be far below.
            self.member.alive(&self.session, &|beat| self.stamps.raise(beat)).await?;
        }
        catalogue.send(&self.session, &self.local, self.member.number, &|| self.stamps.next()).await
    }

    /// Uploads until the store closes.
    pub fn upload_loop(self: &Arc<Self>, woken: &Receiver<()>) {
        let mut failed = false;
        let mut retry = RETRY_MIN;
        while !self.is_closing() {
            let pause = match self.upload_next() {
                Ok(true) => {
                    retry = RETRY_MIN;
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
                    retry = (retry * 2).min(RETRY);
                    retry
                }
            };
            let _ = woken.recv_timeout(pause);
        }
    }

    /// Exchanges with the other servers what is shared.
    pub fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let begun = Instant::now();
        let (shared, known) = (self.clone(), self.view());
        let read = wait(&self.handle, async move {
            shared.send_catalogue().await?;
            let now = shared.stamps.next();
            shared.catalogue.lock().await.receive(&shared.session, &shared.local, now).await?;
            SharedView::read(&shared.session, &known).await
        })?;
        // An upload after what is known here has a later stamp, whatever the clocks show.
        read.vector.values().for_each(|stamp| self.stamps.raise(*stamp));
        for cut in &read.cuts {
            if !cut.upto.contains_key(&self.member.number) {
                self.apply_cut(cut)?;
            }
        }
        let mut view = self.lock_view();
        let mut next = SharedView::clone(&view);
        next.merge(read);
        *view = Arc::new(next);
        drop(view);
        let mut polled = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        *polled = begun.max(*polled);
        Ok(())
    }

    /// Exchanges with the other servers until the store closes.
    pub fn poll_loop(self: &Arc<Self>) {
        let mut failed = false;
        let mut beat_at = Instant::now();
        while !self.is_closing() {
            let result = self.refresh().and_then(|()| {
                if Instant::now() < beat_at {
                    return Ok(());
                }
                beat_at = Instant::now() + BEAT;
                let shared = self.clone();
                wait(&self.handle, async move {
                    // Seen regularly, a server that has ended is known to be dead before a deletion would wait for it.
                    shared.member.alive(&shared.session, &|beat| shared.stamps.raise(beat)).await?;
                    shared.member.beat(&shared.session, shared.stamps.next()).await
                })
            });
            let has_failed = result.is_err();
            self.is_cut_off.store(has_failed, Ordering::Relaxed);
            let is_new = std::mem::replace(&mut failed, has_failed) != has_failed && !self.is_closing();
            match result {
                Ok(()) if is_new => tracing::info!("Cassandra answers again"),
                Err(error @ StoreError::RemoteUnavailable { .. }) if is_new => {
                    tracing::warn!(%error, "Cassandra does not answer; readings wait in the local store");
                }
                Err(error) if is_new => tracing::error!(%error, "the servers of the keyspace cannot work together"),
                _ => {}
            }
            sleep_unless_closing(&self.handle, &self.closing, POLL);
        }
    }
}
