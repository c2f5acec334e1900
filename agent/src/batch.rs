//! An encoded batch, and how long samples are collected into one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use wholegrain_model::{Interval, Schema};

/// A batch as it is sent, cached and spooled.
#[derive(Debug)]
pub struct EncodedBatch {
    pub payload: Bytes,
    /// The schema it needs.
    pub schema: Schema,
    pub topic: Arc<str>,
    pub seq: u64,
    /// Time of the first sample, ns since the Unix epoch.
    pub first: i64,
    /// Time of the last sample.
    pub last: i64,
    pub samples: usize,
    /// Monotonic time at which it was encoded, ns.
    pub made_mono: i64,
}

impl EncodedBatch {
    /// Estimated bytes of memory beside the payload: the structure, its entries in cache and queue, the allocator's overhead.
    const OVERHEAD: u64 = 192;

    /// Its size in memory.
    pub fn bytes(&self) -> u64 {
        self.payload.len() as u64 + Self::OVERHEAD
    }
}

/// How long samples are collected into a batch. The manager sets it, the encoder follows.
#[derive(Debug)]
pub struct SendInterval(AtomicU64);

impl SendInterval {
    pub fn new(interval: Interval) -> Self {
        Self(AtomicU64::new(interval.ns()))
    }

    pub fn get(&self) -> Interval {
        Interval::from_ns(self.0.load(Ordering::Relaxed))
    }

    pub fn set(&self, interval: Interval) {
        self.0.store(interval.ns(), Ordering::Relaxed);
    }
}
