//! Ends the scans of a request whose client has disconnected.

use std::sync::Arc;

use wholegrain_store::{ReadSnapshot, Scan, ScanRequest, SensorRange, SnapshotReader, StoreError};

/// A snapshot whose scans end early once the request is over, which is checked before each part.
pub struct CancellableSnapshot {
    snapshot: Box<dyn ReadSnapshot>,
    is_over: IsOver,
}

type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

impl CancellableSnapshot {
    /// Wraps `snapshot`; scans end once `is_over` returns true.
    pub fn new(snapshot: Box<dyn ReadSnapshot>, is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { snapshot, is_over: Arc::new(is_over) }
    }
}

impl ReadSnapshot for CancellableSnapshot {
    fn open(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(CancellableReader { reader: self.snapshot.open(ranges)?, is_over: self.is_over.clone() }))
    }

    fn resolutions(&self) -> Vec<i64> {
        self.snapshot.resolutions()
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        self.snapshot.tier(from, to, every)
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        self.snapshot.spans(from, to)
    }

    fn removed(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Vec<String> {
        self.snapshot.removed(ranges)
    }

    fn notes(&self) -> Vec<String> {
        self.snapshot.notes()
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        self.snapshot.warnings(from, to)
    }
}

struct CancellableReader {
    reader: Arc<dyn SnapshotReader>,
    is_over: IsOver,
}

impl SnapshotReader for CancellableReader {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let scan = self.reader.scan(request)?;
        let is_over = self.is_over.clone();
        let mut parts = scan.parts.fuse();
        let parts = std::iter::from_fn(move || if is_over() { None } else { parts.next() });
        Ok(Scan { parts: Box::new(parts), ..scan })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use wholegrain_model::Kind;

    use super::*;
    use crate::jobs::tests::{readings, sensor};

    #[test]
    fn a_cancelled_scan_ends() {
        for (waits, chunks) in [(usize::MAX, 10), (3, 3), (0, 0)] {
            let asked = Arc::new(AtomicUsize::new(0));
            let is_over = {
                let asked = asked.clone();
                move || asked.fetch_add(1, Relaxed) >= waits
            };
            let snapshot = CancellableSnapshot::new(Box::new(readings((0..70).map(|at| (at, 1.0)))), is_over);
            let reader = snapshot.open(&mut std::iter::empty()).unwrap();
            let sensor = sensor("/a", "W", Kind::Gauge);
            assert_eq!(reader.scan(&ScanRequest::readings(&sensor, 0, 70)).unwrap().parts.count(), chunks);
            assert_eq!(asked.load(Relaxed), chunks + 1, "asked before each chunk and before the end");
        }
    }
}
