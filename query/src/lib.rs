//! Queries over the store: sensors by pattern, a time range, operations and aggregates; results are Arrow record batches.
//!
//! - In: a [`Query`] and a snapshot of the store, or another implementation of [`ReadSnapshot`].
//! - Out: [`QueryResult`]: the selected sensors, and, read as they are pulled, batches of (`sensor`, `time`, `value`) in the sensors' units.
//! - Never: a value that was not measured. A gap stays null, no operation crosses a hole in the readings, a window
//!   without a value gives no row. Memory does not grow with the range: it holds one chunk of one sensor and one batch,
//!   and for a series over several sensors a bounded number of rows.
//!
//! # Rows of a result
//! Rows are sorted by sensor path, then by time. The range includes `from` and excludes `to`.
//!
//! - Neither `every`, `agg` nor `op`: every sample, a gap as null.
//! - `op`: one row for each sample; null where the operation has no value there ([`Op`] says when).
//! - `every`: one row for each window with at least one value. Windows begin at wall-clock multiples of `every` since the
//!   Unix epoch and a row's time is the window's start, which for the first window can lie before `from`.
//! - `agg` without `every`: one row a sensor over the whole range, its time is `from`.
//! - `every` without `agg`: [`Agg::Mean`] for gauges, [`Agg::Last`] for counters (the mean of a running total has no use);
//!   after `delta` [`Agg::Sum`], after `rate` and `derivative` [`Agg::Mean`].
//! - `op` and `every`: the operation first, then the aggregate of its values. Both skip NaN. The mean of a rate is the increase over its
//!   time; `sample_mean` is the arithmetic mean of the rates.
//! - The `mean` of a gauge is over time: the area below the lines between samples over the time that they cover (`docs/sums.md`). A window with one
//!   sample has its value; `sample_mean` is the arithmetic mean.
//!
//! # Several sensors as one series
//! With `across` the rows are of groups of sensors ([`Across`]). Each sensor's value of a window (or its reading at an exact time) is made
//! first, as without it: then the `mean` is that of the sensors' means, `sum` the sum of them (of gauges; of counters the sum of their last
//! values), `min` and `max` the least and the greatest, `count` how many sensors have a value. Their units must agree, except for `count`.
//! A row aggregates the sensors that have a value there; missing values are not replaced. If some rows of a series hold fewer sensors than
//! others, a note after the rows says how many rows and how few sensors ([`Batches::notes`]); `count` gives the number for each
//! row. Without windows a time at which no sensor has a value, only gaps, is null. Sums of floats are compensated and do not depend on the
//! number of processors.
//!
//! A series is named by the levels that all its sensors have in common (with `levels` the first so many), the aggregate, and in brackets
//! the last levels that they have in common, or `*`: `/lab/rack1/sum(power)`.
//!
//! # Tiers
//! The coarsest tier whose resolution divides the width answers windows without `op` ([`QueryResult::tier`]). Readings are read
//! where blocks overlap, where the range cuts a window, and where no tier exists yet. The result
//! is the same: least, greatest, first, last, count and sums of integers to the last bit; a sum or mean of floats to within
//! 2^-52 times the number of tier windows in it times the sum of the magnitudes, because each tier window has its sum rounded once.
//! Means over time are the same to within 1e-12 of the largest values, from tiers that store the area below the lines between readings. Other tiers
//! are used only where nothing else is left, and a note says so. Operations ([`Op`]) always read readings; where retention has deleted them, only windows remain.

mod across;
mod batches;
mod cancel;
mod columns;
mod conversion_loss;
mod holes;
mod integral;
pub mod jobs;
pub mod names;
mod ops;
mod plan;
mod points;
mod reading_spans;
mod samples;
mod scale;
mod space;
mod units;
pub mod virtuals;
mod windows;

#[cfg(test)]
mod across_reference;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod sums_reference;

use std::sync::Arc;

use wholegrain_model::{Interval, Pattern, Timestamp};
use wholegrain_store::{ReadSnapshot, ReadStore, SensorInfo, StoreError};

use jobs::JobScope;

pub use batches::{BATCH_ROWS_MAX, Batches, KINDS_KEY, UNIT_KEY, UNITS_KEY, schema, schema_int};
pub use cancel::CancellableSnapshot;
pub use columns::StopCheck;
pub use holes::{HOLE_INTERVALS, HoleDetector, LOOK_BACK_NS_UNKNOWN, bound_ns as hole_bound_ns};
pub use plan::unit_of;
pub use points::POINTS_MAX;
pub use scale::Scale;
pub use space::Space;

/// The most patterns of one query.
pub const PATTERNS_MAX: usize = 256;
/// The most sensors of one query: each takes about 400 bytes of memory during the query.
pub const SENSORS_MAX: usize = 250_000;

/// How the values of a window are aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Agg {
    /// The mean, each value weighted by its duration: after `rate` and `derivative` the change over its time; of gauges the area below the
    /// lines between samples, cut at the window's edges, over the time that they cover. Of counters, and after `delta`, as [`Agg::SampleMean`].
    Mean,
    /// The arithmetic mean of the values, each weighing the same however long it holds.
    #[serde(rename = "sample_mean")]
    SampleMean,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// Their sum.
    Sum,
    /// How many there are, gaps not counted.
    Count,
    /// The latest.
    Last,
    /// The earliest.
    First,
}

impl Agg {
    /// All variants with their names.
    pub const ALL: [(&'static str, Agg); 8] = [
        ("mean", Agg::Mean),
        ("min", Agg::Min),
        ("max", Agg::Max),
        ("sum", Agg::Sum),
        ("count", Agg::Count),
        ("last", Agg::Last),
        ("first", Agg::First),
        ("sample_mean", Agg::SampleMean),
    ];
}

/// What is computed from successive values of one sensor before any aggregate.
///
/// No operation looks across a hole: a gap, or two samples further apart than [`HOLE_INTERVALS`] times the sensor's
/// interval ([`LOOK_BACK_NS_UNKNOWN`] for one without) that are not one of three spacings alike in a row. Samples outside the range
/// decide this, and give the first sample of the range its value; `docs/sums.md` has the whole rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Counters: delta per second, in unit/s.
    Rate,
    /// Difference to the previous value. A counter that fell has wrapped if its modulus is known (which is then
    /// added); otherwise it has restarted: the new value counts from 0, and a negative new value has no delta.
    Delta,
    /// Gauges: difference per second, in unit/s; may be negative.
    Derivative,
    /// Gauges: area by the trapezoidal rule, in unit.s; cumulative from `from`, or with `every` of each window, the
    /// trapezoids cut at the windows' edges. Holes add nothing.
    Integral,
}

impl Op {
    /// All variants with their names.
    pub const ALL: [(&'static str, Op); 4] =
        [("rate", Op::Rate), ("delta", Op::Delta), ("derivative", Op::Derivative), ("integral", Op::Integral)];
}

macro_rules! named {
    ($type:ty, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let name = Self::ALL.iter().find(|(_, value)| value == self).map_or("", |(name, _)| name);
                f.write_str(name)
            }
        }

        impl std::str::FromStr for $type {
            type Err = QueryError;
            fn from_str(text: &str) -> Result<Self, QueryError> {
                let found = Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
                found.ok_or_else(|| {
                    let names = Self::ALL.map(|(name, _)| name);
                    QueryError::Invalid(format!("{text:?} is no {}; write one of {}", $what, names.join(", ")))
                })
            }
        }
    };
}

named!(Agg, "aggregate");
named!(Op, "operation");

/// A request for readings of the sensors that patterns select.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Selects the sensors that match at least one pattern.
    pub patterns: Vec<Pattern>,
    /// Start of the range, inclusive.
    pub from: Timestamp,
    /// End of the range, exclusive.
    pub to: Timestamp,
    /// Width of the windows.
    pub every: Option<Interval>,
    /// Instead of `every`: about how many windows, at most [`POINTS_MAX`]. Their width is a round length and, from the
    /// finest tier's resolution on, a multiple of a tier's resolution; the range is widened to whole windows.
    pub points: Option<u64>,
    /// The aggregate of each window.
    pub agg: Option<Agg>,
    /// Applied to the readings before `agg`.
    pub op: Option<Op>,
    /// Combines several sensors into one series.
    pub across: Option<Across>,
    /// Convert values to this unit, a UCUM code.
    pub unit: Option<String>,
    /// The most rows of the result.
    pub limit: Option<u64>,
}

/// Combines several sensors into one series. First each sensor gets its value, for each window or at each exact time; then the values of
/// one time are aggregated. Each sensor has the same weight, however often it is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Across {
    /// The aggregate over sensors: mean, min, max, sum or count.
    pub agg: Agg,
    /// One series for each group of sensors whose first `levels` levels are equal; without it one series over all. A sensor with
    /// fewer levels belongs to its parent path.
    pub levels: Option<usize>,
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The query is invalid; the text says what to change.
    #[error("{0}")]
    Invalid(String),
    /// The store could not be read.
    #[error("reading the store: {0}")]
    Store(#[from] StoreError),
    /// The client has gone ([`Batches::stop_when`]).
    #[error("the query was cancelled")]
    Cancelled,
    /// Arrow rejected the columns: a bug of this crate.
    #[error("making a record batch: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
}

/// The sensors that a query selected, and the batches to pull.
pub struct QueryResult {
    /// The selected sensors, sorted by path. They are the dictionary of every batch, unless `series` is.
    pub sensors: Arc<[SensorInfo]>,
    /// With [`Query::across`]: the names of the series, then the dictionary of every batch.
    pub series: Option<Vec<String>>,
    /// The unit of each series' values in the answer, after the operation.
    pub units: Vec<String>,
    /// Sentences about data that is known to be missing before rows are read, such as damaged blocks in the range.
    /// After the last batch [`Batches::warnings`] and [`Batches::notes`] also have what reading found.
    pub warnings: Vec<String>,
    /// Sentences about data that is missing by intent, such as deleted by retention; [`Batches::notes`] may have more.
    pub notes: Vec<String>,
    /// The tier that is read where possible.
    pub tier: Option<Interval>,
    /// The width of the windows, also if `points` was given.
    pub every: Option<Interval>,
    /// [`Batches::schema`] says whether `value` is Float64 or Int64.
    pub batches: Batches,
}

/// Resolves the patterns and plans the query; pulling the batches reads the readings, all from one snapshot.
pub fn run(store: &dyn ReadStore, query: &Query) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let sensors = store.sensors_after(&query.patterns, None, SENSORS_MAX + 1);
    run_on(store.snapshot(), sensors, query)
}

/// As [`run`], over a snapshot and the given sensors. More than [`SENSORS_MAX`] sensors are refused.
pub fn run_on(
    snapshot: Box<dyn ReadSnapshot>,
    sensors: impl Into<Arc<[SensorInfo]>>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    start(snapshot.into(), None, sensors.into(), query)
}

/// As [`run_on`], of each sensor only the job's time on its node: the query treats each sensor as if its range were the job's. `sensors` that do not
/// belong to the job have no readings.
pub fn run_in_job(
    snapshot: Box<dyn ReadSnapshot>,
    job: &Arc<JobScope>,
    sensors: impl Into<Arc<[SensorInfo]>>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    start(snapshot.into(), Some(job.clone()), sensors.into(), query)
}

fn start(
    snapshot: Arc<dyn ReadSnapshot>,
    job: Option<Arc<JobScope>>,
    mut sensors: Arc<[SensorInfo]>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let query = &points::resolve(query, &snapshot.resolutions());
    if sensors.len() > SENSORS_MAX {
        return Err(too_many());
    }
    if !sensors.is_sorted_by(|a, b| a.path <= b.path) {
        let mut sorted = sensors.to_vec();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        sensors = sorted.into();
    }
    let plan = plan::QueryPlan::new(query, snapshot.as_ref(), job, &sensors)?;
    let reader = snapshot.open(&mut plan.ranges(sensors.iter(), plan.range()))?;
    let (warnings, notes) = (plan.warnings(snapshot.as_ref()), plan.notes(snapshot.as_ref()));
    let groups = query.across.map(|across| across::groups(&sensors, across));
    let units: Vec<String> = match &groups {
        None => units::units(&sensors, query.op, |sensor| plan.agg_of(sensor), query.unit.as_deref()),
        Some(groups) => groups
            .iter()
            .map(|group| across::unit_of(group, &sensors, &plan, query.unit.as_deref()))
            .collect::<Result<_, QueryError>>()?,
    };
    let series = groups.as_ref().map(|groups| groups.iter().map(|group| group.name.clone()).collect());
    let tier = plan.tier.map(|tier| Interval::from_ns(tier.cast_unsigned()));
    let batches = Batches::new((snapshot, reader), sensors.clone(), groups, &units, plan);
    Ok(QueryResult { sensors, series, units, warnings, notes, tier, every: query.every, batches })
}

/// The error for patterns that select too many sensors.
fn too_many() -> QueryError {
    QueryError::Invalid(format!(
        "the patterns choose more than {SENSORS_MAX} sensors, the most that one query answers; select fewer, such as one subtree after the other"
    ))
}
