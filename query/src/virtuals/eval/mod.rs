//! Computes virtual sensors, chunk by chunk.
//!
//! - In: [`Chunks`] of measured sensors, and what the computed ones are ([`SensorLookup`]).
//! - Out: [`Chunks`] of both. A computed sensor's times are whole multiples of its interval since the Unix epoch.
//! - Never: a value across a hole or a gap, or from infinity; memory that grows with the range or the number of operands; a computation that nobody
//!   pulls.
//!
//! `plan.rs` says what has to be computed: the sensor and all computed ones below it, each once (a *stage*), operands first, without recursion, so that
//! they may be nested to any depth. `run.rs` goes through time in slices: each stage computes the points that are due and gives them to those
//! that are made from it. Of a measured operand only one chunk is in memory: its readings are brought onto the grid (`grid.rs`) and, where many
//! are added up, into the sums at once (`group.rs`), sensor by sensor. `compute.rs` is the expression over columns, `along.rs` what looks
//! along time. `series.rs` is the chunks of one sensor, with the encoding of cached pieces (`piece.rs`).
//!
//! # What a value is
//! - There is a row at a time of the grid when one of the operands is sampled there: it has a reading at the time, gap or value, or two readings
//!   around it that are not further apart than `bridge` (of the definition; else three of the operand's intervals, 5 minutes for one without).
//! - An operand's value is its reading at the time, else the line between the two. A gap at one of them is a gap between them.
//! - Everything is computed in coherent SI units, the result in the unit declared. NaN, infinity and what is divided by 0 are gaps, at each step.
//! - Comparisons, `and`, `or`, `not` give 1 or 0, a gap where an operand is one. Of `if` only the branch taken matters, and the condition.
//! - `delta` and `rate` are from one point of the grid to the next; of a counter by its readings, wraps and resets understood, in between spread
//!   evenly. A step of which a part is not known is a gap.
//! - `integral` is the area below the lines between neighbouring points since the last whole multiple of the period; it begins with 0 there. Where one of the
//!   points is a gap nothing is added; at a gap it is one.
//! - Moving aggregates are over the values of the points in (t - window, t]; a gap where there is no value at t.
//! - Aggregates over sensors: a gap when one of them has no value, with `missing` = `skip` what the others come to. `count` counts those that have one.

mod along;
mod compute;
mod grid;
mod group;
mod piece;
mod plan;
mod run;
mod series;

#[cfg(test)]
mod reference;

use std::sync::Arc;

use wholegrain_store::{
    ChunkIter, Chunks, LineScan, ResultCache, ScanPartIter, SensorInfo, SnapshotVersion, StoreError,
};

use super::SensorLookup;
use plan::EvalPlan;

pub use plan::{EDGES_MAX, INTERVAL_NS_UNKNOWN, STAGES_MAX, interval_ns};

/// Measured readings, and the derived readings of virtual sensors.
pub struct ComputedChunks {
    inner: Arc<dyn Chunks>,
    resolve: Arc<dyn SensorLookup>,
    kept: Option<ResultCache>,
}

impl ComputedChunks {
    /// Over `inner`. Results are cached if `kept` is given and `inner` has a snapshot version ([`Chunks::snapshot_version`]).
    pub fn new(inner: Box<dyn Chunks>, resolve: Arc<dyn SensorLookup>, kept: Option<ResultCache>) -> Self {
        Self { inner: inner.into(), resolve, kept }
    }
}

impl Chunks for ComputedChunks {
    fn scan(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        if !sensor.id.is_computed() {
            return self.inner.scan(sensor, from, to);
        }
        let plan = EvalPlan::new(self.resolve.as_ref(), sensor)?;
        let kept = self.kept.as_ref().zip(self.inner.snapshot_version());
        let kept = kept.map(|(kept, moment)| kept.of(plan.cache_key.clone(), moment));
        Ok(Box::new(series::ComputedSeries::new(self.inner.clone(), Arc::new(plan), kept, from, to)))
    }

    fn scan_beside(&self, sensor: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
        if sensor.id.is_computed() { self.scan(sensor, from, to) } else { self.inner.scan_beside(sensor, from, to) }
    }

    fn scan_windows(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
    ) -> Result<Option<ScanPartIter>, StoreError> {
        if sensor.id.is_computed() {
            return Ok(None);
        }
        self.inner.scan_windows(sensor, from, to, every)
    }

    fn scan_lines(
        &self,
        sensor: &SensorInfo,
        from: i64,
        to: i64,
        every: Option<i64>,
        bound_ns: i64,
    ) -> Result<Option<LineScan>, StoreError> {
        if sensor.id.is_computed() {
            return Ok(None);
        }
        self.inner.scan_lines(sensor, from, to, every, bound_ns)
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        self.inner.tier(from, to, every)
    }

    fn resolutions(&self) -> Vec<i64> {
        self.inner.resolutions()
    }

    fn prefetch(&self, sensors: &[SensorInfo]) {
        let measured: Vec<SensorInfo> = sensors.iter().filter(|sensor| !sensor.id.is_computed()).cloned().collect();
        self.inner.prefetch(&measured);
    }

    fn prepare_notes(&self, sensors: &[SensorInfo], from: i64, to: i64) {
        let measured: Vec<SensorInfo> = sensors.iter().filter(|sensor| !sensor.id.is_computed()).cloned().collect();
        self.inner.prepare_notes(&measured, from, to);
    }

    fn snapshot_version(&self) -> Option<SnapshotVersion> {
        self.inner.snapshot_version()
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        self.inner.spans(from, to)
    }

    fn notes(&self) -> Vec<String> {
        self.inner.notes()
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        self.inner.warnings(from, to)
    }
}
