//! Where readings come from, one sensor at a time.

use std::path::PathBuf;

use wholegrain_model::Value;
use wholegrain_store::{Chunk, SensorId, SensorInfo, Snapshot, StoreError};

use crate::QueryError;

/// The chunks of one sensor, in time order.
pub type ChunkIter = Box<dyn Iterator<Item = Result<Chunk, StoreError>> + Send>;

/// Readings that do not change while a query reads them: the store's snapshot, or a test's.
pub trait Chunks: Send {
    /// The samples of `sensor` from `from` (within) to `to` (not within), in time order, each time once.
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError>;

    /// Told before the scans: these will be scanned next, in this order, each once.
    fn expect(&self, _sensors: &[SensorInfo]) {}

    /// What is missing from the answer in this range, a sentence each; may know of more when the scans are done.
    fn warnings(&self, _from: i64, _to: i64) -> Vec<String> {
        Vec::new()
    }
}

impl Chunks for Snapshot {
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        Snapshot::scan(self, sensor.id, from, to)
    }

    fn expect(&self, sensors: &[SensorInfo]) {
        let ids: Vec<SensorId> = sensors.iter().map(|sensor| sensor.id).collect();
        Snapshot::expect(self, &ids);
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        let damaged = self.damaged_blocks(from, to);
        let warning = |block: &PathBuf| format!("{} cannot be read; its readings are missing here", block.display());
        damaged.iter().map(warning).collect()
    }
}

/// One sensor's samples, one by one; a gap is `None`.
pub(crate) struct Samples {
    chunks: ChunkIter,
    chunk: Option<Chunk>,
    at: usize,
}

impl Samples {
    pub(crate) fn new(chunks: ChunkIter) -> Self {
        Self { chunks, chunk: None, at: 0 }
    }
}

impl Iterator for Samples {
    type Item = Result<(i64, Option<Value>), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = &self.chunk
                && let Some(time) = chunk.times.get(self.at)
            {
                let value = chunk.column.get(self.at);
                self.at += 1;
                return Some(Ok((*time, value)));
            }
            match self.chunks.next()? {
                Ok(chunk) => (self.chunk, self.at) = (Some(chunk), 0),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}
