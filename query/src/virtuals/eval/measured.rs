//! Measured readings, the operands of virtual sensors.

use std::sync::Arc;

use wholegrain_store::{Chunk, ReadSnapshot, ScanRequest, SensorInfo, SnapshotReader, StoreError};

/// A snapshot of measured sensors, opened.
#[derive(Clone)]
pub(super) struct MeasuredReadings {
    pub snapshot: Arc<dyn ReadSnapshot>,
    pub reader: Arc<dyn SnapshotReader>,
}

impl MeasuredReadings {
    /// The readings of a sensor in a range, in chunks.
    pub fn scan(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
    ) -> Result<impl Iterator<Item = Result<Chunk, StoreError>> + Send, StoreError> {
        Ok(self.reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks())
    }
}
