//! Computes virtual sensors, chunk by chunk.
//!
//! - In: a snapshot of measured sensors, and the definitions of the computed ones ([`SensorLookup`]).
//! - Out: a snapshot of both. A computed sensor's times are whole multiples of its interval since the Unix epoch.
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
mod measured;
mod piece;
mod plan;
mod run;
mod series;

#[cfg(test)]
mod reference;

use std::sync::Arc;

use wholegrain_store::{
    ReadSnapshot, ResultCache, Scan, ScanRequest, SensorRange, SnapshotReader, SnapshotVersion, StoreError,
};

use super::SensorLookup;
use measured::MeasuredReadings;
use plan::EvalPlan;

pub use plan::{EDGES_MAX, INTERVAL_NS_UNKNOWN, STAGES_MAX, interval_ns};

/// Measured readings, and the derived readings of virtual sensors.
pub struct ComputedSnapshot {
    measured: Arc<dyn ReadSnapshot>,
    lookup: Arc<dyn SensorLookup>,
    cache: Option<ResultCache>,
}

impl ComputedSnapshot {
    /// Over the measured readings of `measured`. Results are cached if `cache` is given and `measured` has a version ([`ReadSnapshot::version`]).
    pub fn new(measured: Box<dyn ReadSnapshot>, lookup: Arc<dyn SensorLookup>, cache: Option<ResultCache>) -> Self {
        Self { measured: measured.into(), lookup, cache }
    }
}

impl ReadSnapshot for ComputedSnapshot {
    fn open(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        let reader = self.measured.open(&mut ranges.filter(is_measured))?;
        let cache = self.cache.clone().zip(self.measured.version());
        let snapshot = self.measured.clone();
        Ok(Arc::new(ComputedReader {
            measured: MeasuredReadings { snapshot, reader },
            lookup: self.lookup.clone(),
            cache,
        }))
    }

    fn resolutions(&self) -> Vec<i64> {
        self.measured.resolutions()
    }

    fn tier(&self, from: i64, to: i64, every: Option<i64>) -> Option<i64> {
        self.measured.tier(from, to, every)
    }

    fn version(&self) -> Option<SnapshotVersion> {
        self.measured.version()
    }

    fn spans(&self, from: i64, to: i64) -> Vec<(i64, i64)> {
        self.measured.spans(from, to)
    }

    fn removed(&self, ranges: &mut dyn Iterator<Item = SensorRange<'_>>) -> Vec<String> {
        self.measured.removed(&mut ranges.filter(is_measured))
    }

    fn notes(&self) -> Vec<String> {
        self.measured.notes()
    }

    fn warnings(&self, from: i64, to: i64) -> Vec<String> {
        self.measured.warnings(from, to)
    }
}

fn is_measured(range: &SensorRange<'_>) -> bool {
    !range.sensor.id.is_computed()
}

struct ComputedReader {
    measured: MeasuredReadings,
    lookup: Arc<dyn SensorLookup>,
    cache: Option<(ResultCache, SnapshotVersion)>,
}

impl SnapshotReader for ComputedReader {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        if !request.sensor.id.is_computed() {
            return self.measured.reader.scan(request);
        }
        if request.needs_windows() {
            return Ok(Scan::empty(request));
        }
        let plan = EvalPlan::new(self.lookup.as_ref(), request.sensor)?;
        let cache = self.cache.as_ref().map(|(cache, version)| cache.of(plan.cache_key.clone(), *version));
        let (from, to) = (request.from, request.to);
        let series = series::ComputedSeries::new(self.measured.clone(), Arc::new(plan), cache, from, to);
        Ok(Scan::of_chunks(request, series))
    }
}
