//! A store whose Cassandra has not answered yet: the local store receives, and the server joins the others as soon as it can.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::Handle;
use wholegrain_store::{ReadSnapshot, SensorRange, SnapshotReader, Store, StoreError};

use crate::config::CassandraConfig;
use crate::member::unique;
use crate::session::{Closing, READ_TRIES, pause_after, sleep_unless_closing};
use crate::shared::{RETRY, Shared, join};
use crate::slices::wait;

pub(crate) struct Joining {
    pub local: Store,
    config: CassandraConfig,
    /// Identifies this start of the server.
    run: String,
    handle: Handle,
    closing: Closing,
    shared: OnceLock<Arc<Shared>>,
    /// Why the last attempt failed.
    reason: Mutex<String>,
}

impl Joining {
    /// A store that has not connected yet.
    pub fn new(config: CassandraConfig, local: Store, (handle, closing): (Handle, Closing)) -> Self {
        Self { local, config, run: unique(), handle, closing, shared: OnceLock::new(), reason: Mutex::default() }
    }

    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// What there is once Cassandra has answered.
    pub fn shared(&self, doing: &'static str) -> Result<&Arc<Shared>, StoreError> {
        let unanswered = || {
            let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            let reason = format!("Cassandra has not answered since this server started: {reason}");
            StoreError::RemoteUnavailable { doing, reason }
        };
        self.shared.get().ok_or_else(unanswered)
    }

    /// Connects and joins the other servers; tries once.
    pub fn join(&self) -> Result<(), StoreError> {
        let (config, run, local) = (self.config.clone(), self.run.clone(), self.local.clone());
        let with = (self.handle.clone(), self.closing.clone());
        let mut closing = self.closing.subscribe();
        let joined = wait(&self.handle, async move {
            let closed = async { drop(closing.wait_for(|is_closing| *is_closing).await) };
            tokio::select! {
                joined = join(&config, &run, local, with) => joined,
                () = closed => Err(StoreError::Closed),
            }
        });
        let joined = joined.map(Arc::new).and_then(|shared| {
            // What was deleted while this server was away is deleted here before anything is answered or uploaded.
            for tried in 1..READ_TRIES {
                match shared.refresh() {
                    Err(StoreError::RemoteUnavailable { .. }) => {
                        sleep_unless_closing(&self.handle, &self.closing, pause_after(tried));
                    }
                    result => return result.map(|()| shared),
                }
            }
            shared.refresh().map(|()| shared)
        });
        match joined {
            Ok(shared) => {
                let _ = self.shared.set(shared);
                Ok(())
            }
            Err(error) => {
                *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
                Err(error)
            }
        }
    }

    /// Joins the others if that was not possible yet; then exchanges with them until the store closes.
    pub fn poll_loop(&self) {
        let mut reported = false;
        while !self.is_closing() {
            if let Ok(shared) = self.shared("joining") {
                return shared.poll_loop();
            }
            match self.join() {
                Ok(()) => tracing::info!("Cassandra answers; what waits is uploaded"),
                Err(StoreError::RemoteUnavailable { .. } | StoreError::Closed) => reported = false,
                Err(error) if !std::mem::replace(&mut reported, true) => {
                    tracing::error!(%error, "Cassandra answers, but the store cannot use it; readings wait in the local store");
                }
                Err(_) => {}
            }
            sleep_unless_closing(&self.handle, &self.closing, RETRY);
        }
    }
}

/// The answer to a query before Cassandra has answered: which readings it has, and which were deleted, is not known.
pub(crate) struct UnansweredSnapshot(pub StoreError);

impl ReadSnapshot for UnansweredSnapshot {
    fn open(&self, _ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Err(self.0.clone())
    }
}
