//! The store in Cassandra as a store of the checks: a put is an import into the local store, and is uploaded at once or later.

use std::sync::atomic::{AtomicBool, Ordering};

use wholegrain_cassandra::CassandraStore;
use wholegrain_model::{Pattern, Value};
use wholegrain_store::{Chunk, Deletion, ReadSnapshot, ReadStore, SchemalessSensor, SensorId, SensorInfo, StoreError};

use super::{PutOutcome, WritableStore};

/// Which puts are in Cassandra when they return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uploads {
    Each,
    EverySecond,
    None,
}

/// A store in Cassandra that uploads at fixed moments.
pub struct UploadingStore {
    pub store: CassandraStore,
    pub uploads: Uploads,
    pub odd: AtomicBool,
}

impl ReadStore for UploadingStore {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.store.sensors(patterns)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        self.store.newest(ids)
    }

    fn snapshot(&self) -> Box<dyn ReadSnapshot> {
        self.store.snapshot()
    }
}

impl WritableStore for UploadingStore {
    fn define(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        self.store.local().define(source, sensors)
    }

    fn put(&self, source: &str, number: u64, chunks: &[(SensorId, Chunk)]) -> Result<PutOutcome, StoreError> {
        let outcome = self.store.local().put(source, number, chunks)?;
        let odd = self.odd.fetch_xor(true, Ordering::Relaxed);
        if self.uploads == Uploads::Each || (self.uploads == Uploads::EverySecond && odd) {
            self.store.upload_all()?;
        }
        Ok(outcome)
    }

    fn delete(&self, patterns: &[Pattern], from: i64, to: i64) -> Result<(), StoreError> {
        self.store.delete(&Deletion { patterns: patterns.to_vec(), from, to }).map(drop)
    }
}
