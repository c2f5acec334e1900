//! The embedded store as queries read it.

use std::path::PathBuf;
use std::sync::Arc;

use wholegrain_model::{Pattern, Value};

use crate::computed::key::SnapshotVersion;
use crate::engine::Store;
use crate::error::StoreError;
use crate::read_store::{ReadSnapshot, ReadStore, Resolution, Scan, ScanRequest, SensorRange, SnapshotReader};
use crate::sensors::info::{SensorId, SensorInfo};
use crate::snapshot::Snapshot;

impl ReadStore for Store {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        Store::sensors(self, patterns)
    }

    fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        Store::sensors_after(self, patterns, after, most)
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        Store::newest(self, ids)
    }

    fn snapshot(&self) -> Box<dyn ReadSnapshot> {
        Box::new(Store::snapshot(self))
    }
}

impl ReadSnapshot for Snapshot {
    fn open(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(self.prefetching(ranges.map(|range| range.sensor.id))))
    }

    fn resolutions(&self) -> Vec<i64> {
        Snapshot::resolutions(self)
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        self.tier_for(from, to, every)
    }

    fn version(&self) -> Option<SnapshotVersion> {
        Some(Snapshot::version(self))
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        Snapshot::spans(self, from, to)
    }

    fn removed(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Vec<String> {
        self.removed_in(&mut ranges.map(|range| (&*range.sensor.path, range.from, range.to)))
    }

    fn notes(&self) -> Vec<String> {
        Snapshot::notes(self)
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        let damaged = self.damaged_blocks(from, to);
        let warning = |block: &PathBuf| format!("{} cannot be read; its readings are missing here", block.display());
        damaged.iter().map(warning).chain(self.lost(from, to)).collect()
    }
}

impl SnapshotReader for Snapshot {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let ScanRequest { sensor, from, to, resolution, neighbours } = *request;
        let windows = match resolution {
            Resolution::Readings => None,
            Resolution::Windows { every } => self.scan_parts(sensor.id, (from, to), every, None)?,
            Resolution::Lines { every, max_gap_ns } => {
                self.scan_parts(sensor.id, (from, to), every, Some(max_gap_ns))?
            }
        };
        match windows {
            Some(scan) => Ok(scan),
            None if request.needs_windows() => Ok(Scan::empty(request)),
            None => {
                let chunks =
                    if neighbours { self.merged(sensor.id, from, to)? } else { self.noted(sensor.id, from, to)? };
                Ok(Scan::of_chunks(request, chunks))
            }
        }
    }
}
