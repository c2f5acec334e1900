//! A server's store in Cassandra: the local store receives, its sealed blocks become chunks, and both together answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use wholegrain_model::{Pattern, Value};
use wholegrain_store::{Deletion, DeletionReport, ReadSnapshot, ReadStore, SensorId, SensorInfo, Store, StoreError};

use crate::config::{CassandraConfig, KeyspaceOptions};
use crate::joining::{Joining, UnansweredSnapshot};
use crate::migrations;
use crate::newest::newest_of;
use crate::session::{Closing, connect};
use crate::slices::wait;

/// Threads of the driver.
const DRIVER_THREADS: usize = 2;

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
    joining: Arc<Joining>,
    closing: Closing,
    wake: Mutex<Sender<()>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    runtime: Mutex<Option<Runtime>>,
}

/// Creates the keyspace and its tables, or brings them up to date; what is up to date is not changed. Refuses a keyspace of a newer release.
pub fn create(config: &CassandraConfig, options: &KeyspaceOptions) -> Result<(), StoreError> {
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let session = connect(config).await?;
        migrations::create(&session, &config.keyspace, options).await
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
    /// missing or of a newer release, wrong credentials, and a name that another server uses.
    ///
    /// While Cassandra does not answer, the store is open too: the local store receives, queries fail, and it goes on as soon as Cassandra answers.
    pub fn open(config: CassandraConfig, local: Store) -> Result<Self, StoreError> {
        let runtime = runtime()?;
        let closing: Closing = Arc::new(watch::Sender::new(false));
        let joining = Joining::new(config, local, (runtime.handle().clone(), closing.clone()));
        let joining = Arc::new(joining);
        match joining.join() {
            Ok(()) => {}
            Err(error @ StoreError::RemoteUnavailable { .. }) => {
                tracing::warn!(%error, "Cassandra does not answer; readings wait in the local store, and queries fail until it does");
            }
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        }
        let (wake, woken) = channel();
        let store = Self(Arc::new(StoreThreads {
            joining: joining.clone(),
            closing,
            wake: Mutex::new(wake),
            threads: Mutex::default(),
            runtime: Mutex::new(Some(runtime)),
        }));
        let polls = joining.clone();
        store.0.spawn("cassandra-poll", move || polls.poll_loop())?;
        store.0.spawn("cassandra-upload", move || upload_loop(&joining, &woken))?;
        Ok(store)
    }

    pub fn local(&self) -> &Store {
        &self.0.joining.local
    }

    /// Seals everything that the local store has received, uploads it, and waits for it.
    pub fn upload_all(&self) -> Result<(), StoreError> {
        let shared = self.0.joining.shared("uploading")?;
        shared.local.seal()?;
        while shared.upload_next()? {}
        Ok(())
    }

    /// Deletes the stored readings of a range here and in Cassandra; in force at all servers when it returns. An error says which servers have not
    /// confirmed: there the deletion is in force as soon as they answer again.
    pub fn delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        self.0.joining.shared("deleting readings")?.delete(deletion)
    }

    /// What [`CassandraStore::delete`] would delete now; changes nothing. Reads what it counts.
    pub fn would_delete(&self, deletion: &Deletion) -> Result<DeletionReport, StoreError> {
        let shared = self.0.joining.shared("counting readings")?;
        shared.count(deletion, shared.local.would_delete(deletion)?)
    }

    pub fn upload_stats(&self) -> UploadStats {
        let shared = self.0.joining.shared("counting uploads").ok();
        let counters = shared.map(|shared| &shared.counters);
        let get = |counter: Option<&AtomicU64>| counter.map_or(0, |counter| counter.load(Ordering::Relaxed));
        let local = self.local().stats();
        UploadStats {
            blocks: get(counters.map(|counters| &counters.blocks)),
            rows: get(counters.map(|counters| &counters.rows)),
            readings: get(counters.map(|counters| &counters.readings)),
            bytes: get(counters.map(|counters| &counters.bytes)),
            failures: get(counters.map(|counters| &counters.failures)),
            waiting_blocks: local.blocks,
            waiting_bytes: local.block_bytes,
        }
    }

    /// Uploads what is sealed soon.
    pub fn wake(&self) {
        let _ = self.0.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
    }

    /// Stops the threads, soon also while Cassandra does not answer. What is not uploaded is uploaded after the next opening.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Uploads as soon as Cassandra has answered.
fn upload_loop(joining: &Joining, woken: &Receiver<()>) {
    while !joining.is_closing() {
        match joining.shared("uploading") {
            Ok(shared) => return shared.upload_loop(woken),
            Err(_) => drop(woken.recv_timeout(crate::shared::RETRY)),
        }
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
        if self.closing.send_replace(true) {
            return;
        }
        let _ = self.wake.lock().unwrap_or_else(PoisonError::into_inner).send(());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the store in Cassandra panicked");
            }
        }
        if let Ok(shared) = self.joining.shared("ending") {
            let last = shared.clone();
            let left = wait(&shared.handle, async move { last.member.leave(&last.session).await });
            if let Err(error) = left {
                tracing::debug!(%error, "the end was not recorded; other servers notice it by themselves");
            }
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

impl ReadStore for CassandraStore {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.local().sensors(patterns)
    }

    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.local().sensors_after(patterns, after, most)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        let Ok(shared) = self.0.joining.shared("reading the newest readings") else { return vec![None; ids.len()] };
        shared.refresh_if_stale();
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
        match self.0.joining.shared("reading") {
            Ok(shared) => Box::new(shared.snapshot()),
            Err(error) => Box::new(UnansweredSnapshot(error)),
        }
    }
}
