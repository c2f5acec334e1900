//! Ends scans of a request whose client has gone.

use std::sync::Arc;

use wholegrain_store::{ChunkIter, Chunks, SensorInfo, StoreError};

/// [`Chunks`] whose scans end early once the request is over, which is checked before each chunk. Gives readings only, no windows.
pub struct CancellableChunks {
    chunks: Box<dyn Chunks>,
    is_over: IsOver,
}

type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

impl CancellableChunks {
    /// Wraps `chunks`; scans end once `is_over` returns true.
    pub fn new(chunks: Box<dyn Chunks>, is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { chunks, is_over: Arc::new(is_over) }
    }

    fn until(&self, chunks: ChunkIter) -> ChunkIter {
        let is_over = self.is_over.clone();
        let mut chunks = chunks.fuse();
        Box::new(std::iter::from_fn(move || if is_over() { None } else { chunks.next() }))
    }
}

impl Chunks for CancellableChunks {
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        Ok(self.until(self.chunks.scan(sensor, from, to)?))
    }

    fn scan_beside(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        Ok(self.until(self.chunks.scan_beside(sensor, from, to)?))
    }

    fn range(&self, sensor: &SensorInfo, from: i64, to: i64) -> (i64, i64) {
        self.chunks.range(sensor, from, to)
    }

    fn prefetch(&self, sensors: &[SensorInfo]) {
        self.chunks.prefetch(sensors);
    }

    fn prepare_notes(&self, sensors: &[SensorInfo], from: i64, to: i64) {
        self.chunks.prepare_notes(sensors, from, to);
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        self.chunks.spans(from, to)
    }

    fn notes(&self) -> Vec<String> {
        self.chunks.notes()
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        self.chunks.warnings(from, to)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use wholegrain_model::Kind;

    use super::*;
    use crate::jobs::tests::{Fake, sensor};

    #[test]
    fn a_long_scan_ends_when_nobody_waits() {
        let readings: Vec<(i64, f64)> = (0..70).map(|at| (at, 1.0)).collect();
        for (waits, chunks) in [(usize::MAX, 10), (3, 3), (0, 0)] {
            let asked = Arc::new(AtomicUsize::new(0));
            let is_over = {
                let asked = asked.clone();
                move || asked.fetch_add(1, Relaxed) >= waits
            };
            let until = CancellableChunks::new(Box::new(Fake(readings.clone())), is_over);
            assert_eq!(until.scan(&sensor("/a", "W", Kind::Gauge), 0, 70).unwrap().count(), chunks);
            assert_eq!(asked.load(Relaxed), chunks + 1, "asked before each chunk and before the end");
        }
    }
}
