//! Computes virtual sensors, chunk by chunk.
//!
//! - In: a snapshot of measured sensors, and the definitions of the computed ones ([`SensorLookup`]).
//! - Out: a snapshot of both. A computed sensor's times are whole multiples of its interval since the Unix epoch.
//! - Never: a value across a hole or a gap, or from infinity; memory that grows with the range or the number of operands; a value before it is pulled.
//!
//! `plan.rs` lists the *stages*: the sensor and all computed sensors below it, each once, operands first. It needs no recursion, so definitions can
//! be nested to any depth. `run.rs` advances through time in slices: each stage computes its due points and passes them to the stages above it. Only
//! one chunk of a measured operand is in memory: `grid.rs` resamples its readings to the grid, and `group.rs` adds the operands of an aggregate
//! one by one. `compute.rs` evaluates the expression over columns, `along.rs` functions along time. `series.rs` produces the chunks of one sensor;
//! `piece.rs` encodes cached pieces.
//!
//! # Semantics of values
//! - A time of the grid has a row if an operand is sampled there: it has a reading (gap or value) at the time, or two readings around it that are at
//!   most `bridge` apart (default: three of the operand's intervals, 5 minutes without an interval).
//! - An operand's value is its reading at the time, else interpolated between the two readings; if one of them is a gap, a gap.
//! - Everything is computed in coherent SI units; the result is in the declared unit. NaN, infinity and a division by 0 are gaps at each step.
//! - Comparisons, `and`, `or`, `not` give 1 or 0, or a gap if an operand is a gap. `if` needs only the condition and the selected branch.
//! - `delta` and `rate` refer to the previous point of the grid. For a counter they use its readings, with wraps and resets, and distribute an increase
//!   evenly over the time between two readings. A step that is not completely known is a gap.
//! - `integral` is the area below the lines between successive points since the last multiple of the period, where it begins at 0. A gap adds nothing;
//!   at a gap the integral is a gap.
//! - Moving aggregates cover the points in (t - window, t]; a gap if there is no value at t.
//! - Aggregates over sensors are a gap if one sensor has no value; with `missing` = `skip` they cover the others. `count` counts sensors with a value.

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

/// A snapshot of measured readings that also computes virtual sensors.
pub struct ComputedSnapshot {
    measured: Arc<dyn ReadSnapshot>,
    lookup: Arc<dyn SensorLookup>,
    cache: Option<ResultCache>,
}

impl ComputedSnapshot {
    /// Results are cached if `cache` is given and `measured` has a version ([`ReadSnapshot::version`]).
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
