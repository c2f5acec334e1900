//! Encoded batches in memory, bounded by time and by bytes; the oldest are dropped first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, Schema};

use crate::batch::EncodedBatch;
use crate::engine::clock;
use crate::sync::lock;

/// The bounds of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    pub duration: Interval,
    pub bytes_max: ByteSize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { duration: Interval::from_s(120), bytes_max: ByteSize::mib(2) }
    }
}

/// Encoded batches of all groups, the oldest first.
#[derive(Debug)]
pub struct BatchCache {
    inner: Mutex<CacheState>,
}

#[derive(Debug)]
struct CacheState {
    batches: VecDeque<Arc<EncodedBatch>>,
    bytes: u64,
    config: CacheConfig,
}

impl CacheState {
    fn shrink(&mut self, now_mono: i64) {
        while let Some(oldest) = self.batches.front() {
            let age = u64::try_from(now_mono - oldest.made_mono).unwrap_or(0);
            if self.bytes <= self.config.bytes_max.0 && age <= self.config.duration.ns() {
                break;
            }
            self.bytes -= oldest.bytes();
            self.batches.pop_front();
        }
    }
}

impl BatchCache {
    pub fn new(config: CacheConfig) -> Self {
        Self { inner: Mutex::new(CacheState { batches: VecDeque::new(), bytes: 0, config }) }
    }

    pub fn configure(&self, config: CacheConfig) {
        let mut inner = lock(&self.inner);
        inner.config = config;
        inner.shrink(clock::mono());
    }

    pub fn push(&self, batch: Arc<EncodedBatch>) {
        let mut inner = lock(&self.inner);
        let now = batch.made_mono;
        inner.bytes += batch.bytes();
        inner.batches.push_back(batch);
        inner.shrink(now);
    }

    /// The number of batches and their bytes.
    pub fn size(&self) -> (usize, u64) {
        let inner = lock(&self.inner);
        (inner.batches.len(), inner.bytes)
    }

    /// The batches of one schema that overlap `from..to`, the oldest first.
    pub fn overlapping(&self, schema: &Schema, from: i64, to: i64) -> Vec<Arc<EncodedBatch>> {
        let inner = lock(&self.inner);
        let within =
            |batch: &&Arc<EncodedBatch>| batch.schema.hash() == schema.hash() && batch.last >= from && batch.first < to;
        inner.batches.iter().filter(within).cloned().collect()
    }

    /// The newest batch of a schema.
    pub fn newest(&self, schema: &Schema) -> Option<Arc<EncodedBatch>> {
        lock(&self.inner).batches.iter().rev().find(|batch| batch.schema.hash() == schema.hash()).cloned()
    }

    /// The schemas of the batches: a group that has changed has more than one.
    pub fn schemas(&self) -> Vec<Schema> {
        let mut schemas: Vec<Schema> = Vec::new();
        for batch in &lock(&self.inner).batches {
            if !schemas.contains(&batch.schema) {
                schemas.push(batch.schema.clone());
            }
        }
        schemas
    }
}
