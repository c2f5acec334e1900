//! Restricts readings to the time of a job.

use std::sync::Arc;

use wholegrain_store::{ChunkIter, Chunks, LineScan, ScanPartIter, SensorInfo, StoreError};

use super::JobScope;
use crate::holes;

/// [`Chunks`] that give of each sensor only the job's time on its node.
pub(super) struct SensorsDuringJob {
    chunks: Box<dyn Chunks>,
    job: Arc<JobScope>,
}

impl SensorsDuringJob {
    pub(super) fn new(chunks: Box<dyn Chunks>, job: Arc<JobScope>) -> Self {
        Self { chunks, job }
    }

    /// The part of a range in which the job was on the sensor's node; empty if there is none.
    fn cut(&self, sensor: &SensorInfo, from: i64, to: i64, around: i64) -> (i64, i64) {
        let Some((place, _)) = self.job.place(&sensor.path) else { return (from, from) };
        let from = from.max(place.from.saturating_sub(around));
        (from, to.min(place.to.saturating_add(around)).max(from))
    }
}

impl Chunks for SensorsDuringJob {
    fn range(&self, sensor: &SensorInfo, from: i64, to: i64) -> (i64, i64) {
        let (from, to) = self.cut(sensor, from, to, 0);
        self.chunks.range(sensor, from, to)
    }

    /// Operations need the samples next to their range; these may lie outside the job's time, within the reach of a line.
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        let (from, to) = self.cut(sensor, from, to, holes::reach_ns(sensor));
        if from < to { self.chunks.scan(sensor, from, to) } else { Ok(Box::new(std::iter::empty())) }
    }

    fn scan_beside(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        let (from, to) = self.cut(sensor, from, to, holes::reach_ns(sensor));
        if from < to { self.chunks.scan_beside(sensor, from, to) } else { Ok(Box::new(std::iter::empty())) }
    }

    fn scan_windows(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
    ) -> Result<Option<ScanPartIter>, StoreError> {
        let (from, to) = self.cut(sensor, from, to, 0);
        if from < to { self.chunks.scan_windows(sensor, from, to, every) } else { Ok(None) }
    }

    /// Readings next to the range may lie outside the job's time, as those of [`Chunks::scan`] do.
    fn scan_lines(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
        bound_ns: i64,
    ) -> Result<Option<LineScan>, StoreError> {
        let (from, to) = self.cut(sensor, from, to, holes::reach_ns(sensor));
        if from < to { self.chunks.scan_lines(sensor, from, to, every, bound_ns) } else { Ok(None) }
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        let (begin, end) = self.job.range(i64::MAX);
        let (from, to) = (from.max(begin), to.min(end));
        if from < to { self.chunks.tier(from, to, every) } else { None }
    }

    fn resolutions(&self) -> Vec<i64> {
        self.chunks.resolutions()
    }

    fn prefetch(&self, sensors: &[SensorInfo]) {
        self.chunks.prefetch(sensors);
    }

    fn prepare_notes(&self, sensors: &[SensorInfo], from: i64, to: i64) {
        for sensor in sensors {
            let (from, to) = self.cut(sensor, from, to, 0);
            if from < to {
                self.chunks.prepare_notes(std::slice::from_ref(sensor), from, to);
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        self.chunks.notes()
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        let (begin, end) = self.job.range(i64::MAX);
        let mut warnings = self.chunks.warnings(from.max(begin), to.min(end));
        warnings.extend(self.job.warnings());
        warnings
    }
}
