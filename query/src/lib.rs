//! Answers over the store: sensors by pattern, a range of time, operations, aggregates; as Arrow record batches.
//!
//! - In: a [`Query`] and the store's snapshot, or anything else that gives [`Chunks`].
//! - Out: [`QueryResult`]: the sensors chosen, and lazily batches of (`sensor`, `time`, `value`) in the sensors' units.
//! - Never: a value that was not measured. A gap stays null, no operation looks across a hole in the readings, a window
//!   without a value gives no row. Memory does not grow with the range: one chunk of one sensor and one batch at a time;
//!   for a series over several sensors a bounded number of its rows.
//!
//! # What the answer holds
//! Rows are sorted by sensor (by path), then time. The range takes `from` and leaves out `to`.
//!
//! - Neither `every`, `agg` nor `op`: every sample, a gap as null.
//! - `op`: one row for each sample; null where the operation has no value there ([`Op`] says when).
//! - `every`: one row for each window with at least one value. Windows begin at wall-clock multiples of `every` since the
//!   Unix epoch and a row's time is the window's start, which for the first window can lie before `from`.
//! - `agg` without `every`: one row a sensor over the whole range, its time is `from`.
//! - `every` without `agg`: [`Agg::Mean`] for gauges, [`Agg::Last`] for counters (a mean of a running total says nothing);
//!   after `delta` [`Agg::Sum`], after `rate` and `derivative` [`Agg::Mean`].
//! - `op` and `every`: the operation first, then the aggregate of its values. A NaN is no value to either. The mean of a rate is how much over how
//!   long; `sample_mean` is the arithmetic mean of the rates.
//! - The `mean` of a gauge is over time: the area below the lines between samples over the time that they cover (`docs/sums.md`). A window with one
//!   sample has its value; `sample_mean` is the arithmetic mean.
//!
//! # Several sensors as one series
//! With `across` the rows are of groups of sensors ([`Across`]). Each sensor's value of a window (or its reading at an exact time) is made
//! first, as without it: then the `mean` is that of the sensors' means, `sum` the sum of them (of gauges; of counters the sum of their last
//! values), `min` and `max` the least and the greatest, `count` how many sensors have a value. Their units must agree, but for `count`.
//! A row is made of the sensors that have a value there, and nothing is put in place of those that have none: where some series' rows hold
//! fewer sensors than others, a note after the rows says how many rows and how few sensors ([`Batches::notes`]); `count` tells it row by
//! row. Without windows a time at which no sensor has a value, only gaps, is null. Sums of floats are compensated and do not depend on the
//! number of processors.
//!
//! A series is named by the levels that all its sensors have in common (with `levels` the first so many), the aggregate, and in brackets
//! the last levels that they have in common, or `*`: `/lab/rack1/sum(power)`.
//!
//! # Tiers
//! Windows without `op` are answered by the coarsest downsampled tier whose resolution divides their width ([`QueryResult::tier`]), as
//! far as there are tiers: where blocks overlap, where the range cuts a window and where nothing has been merged yet, readings are read. The answer
//! is the same: least, greatest, first, last, count and sums of integers to the last bit; a sum or mean of floats to within
//! 2^-52 times the number of tier windows in it times the sum of the magnitudes, because each tier window has its sum rounded once.
//! Means over time are the same to within 1e-12 of the largest values, from tiers that know the lines between their values; others are passed over, and where
//! nothing else is left a note says so. Operations ([`Op`]) need neighbouring readings and always read them. Where retention has dropped the readings, windows are all there is.

mod across;
mod batches;
mod beside;
mod columns;
mod holes;
mod integral;
pub mod jobs;
pub mod names;
mod ops;
mod plan;
mod points;
mod samples;
mod scale;
mod space;
mod units;
mod unshown;
mod until;
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
use wholegrain_store::{ReadStore, SensorInfo, StoreError};

pub use batches::{BATCH_ROWS_MAX, Batches, KINDS_KEY, UNIT_KEY, UNITS_KEY, schema, schema_int};
pub use columns::Stop;
pub use holes::{HOLE_INTERVALS, Holes, LOOK_BACK_NS_UNKNOWN, bound_ns as hole_bound_ns};
pub use plan::unit_of;
pub use points::POINTS_MAX;
pub use scale::Scale;
pub use space::Space;
pub use until::Until;
pub use wholegrain_store::{ChunkIter, Chunks};

/// The most patterns of one query.
pub const PATTERNS_MAX: usize = 256;
/// The most sensors of one query: what is known of each is in memory while it is answered, about 400 bytes.
pub const SENSORS_MAX: usize = 250_000;

/// How the values of a window become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Agg {
    /// The mean, in which each value weighs as much as it lasts: after `rate` and `derivative` the change over its time; of gauges the area below the
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
    /// All of them with their names.
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
/// are looked at for that, and for the value of the first sample of the range; `docs/sums.md` has the whole rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Counters: delta per second, in unit/s.
    Rate,
    /// Difference to the value before. A counter that fell has wrapped when it is known where it wraps (its modulus is
    /// added), and else has begun anew: the new value counts from 0, and a new value below 0 has no delta.
    Delta,
    /// Gauges: difference per second, in unit/s; may be negative.
    Derivative,
    /// Gauges: area by the trapezoidal rule, in unit.s; cumulative from `from`, or with `every` of each window, the
    /// trapezoids cut at the windows' edges. Holes add nothing.
    Integral,
}

impl Op {
    /// All of them with their names.
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

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Which sensors: those that match at least one.
    pub patterns: Vec<Pattern>,
    /// Start of the range, within it.
    pub from: Timestamp,
    /// End of the range, not within it.
    pub to: Timestamp,
    /// Width of the windows.
    pub every: Option<Interval>,
    /// In place of `every`: about so many windows, at most [`POINTS_MAX`]. Their width is a length that people count in and, from the
    /// finest tier's resolution on, a multiple of a tier's; the range is widened to whole windows.
    pub points: Option<u64>,
    /// How each window becomes one value.
    pub agg: Option<Agg>,
    /// What is computed before.
    pub op: Option<Op>,
    /// One series over several sensors in place of one for each.
    pub across: Option<Across>,
    /// The unit that values are wanted in, a UCUM code.
    pub unit: Option<String>,
    /// Stop after so many rows.
    pub limit: Option<u64>,
}

/// How the series of several sensors become one. Each sensor's value comes first: of each window as without it, or at each exact time. Then
/// the values that there are become one, each sensor counting alike however often it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Across {
    /// What the values of one time become: mean, min, max, sum or count.
    pub agg: Agg,
    /// One series for each group of sensors whose paths have so many first levels in common; one over all without it. A sensor that does
    /// not have more levels belongs to the path that it lies under.
    pub levels: Option<usize>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The query makes no sense; the text says what to change.
    #[error("{0}")]
    Invalid(String),
    /// The store could not be read.
    #[error("reading the store: {0}")]
    Store(#[from] StoreError),
    /// Nobody waits for the answer any more ([`Batches::stop_when`]).
    #[error("the query was cancelled")]
    Cancelled,
    /// Arrow refused the columns: a fault of this crate.
    #[error("making a record batch: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
}

/// The sensors that a query chose, and the batches to pull.
pub struct QueryResult {
    /// The sensors chosen, sorted by path; in this order they are the dictionary of every batch, unless series are made of several.
    pub sensors: Arc<[SensorInfo]>,
    /// With [`Query::across`] the names of the series, the dictionary of every batch then.
    pub series: Option<Vec<String>>,
    /// The unit of each series' values in the answer, after the operation.
    pub units: Vec<String>,
    /// What is known to be missing from the answer before its rows are read: blocks that overlap the range and are damaged, and what
    /// retention has dropped, a sentence each. [`Batches::warnings`] and [`Batches::notes`] after the last batch tell also of what the
    /// reading met.
    pub warnings: Vec<String>,
    /// What is left out on purpose because retention has dropped it, as far as it is known now; [`Batches::notes`] may know of more.
    pub notes: Vec<String>,
    /// The tier that answers wherever it can.
    pub tier: Option<Interval>,
    /// The width of the windows, also where their number was asked for.
    pub every: Option<Interval>,
    /// The rows. Its [`Batches::schema`] tells whether `value` is Float64 or Int64.
    pub batches: Batches,
}

/// Resolves the patterns and prepares the answer; readings are read when the batches are pulled, all out of one snapshot.
pub fn run(store: &dyn ReadStore, query: &Query) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let sensors = store.sensors_after(&query.patterns, None, SENSORS_MAX + 1);
    run_on(store.snapshot(), sensors, query)
}

/// The same over any readings: `sensors` are those chosen; one more than [`SENSORS_MAX`] of them are enough to see that there are too many.
pub fn run_on(
    chunks: Box<dyn Chunks>,
    sensors: impl Into<Arc<[SensorInfo]>>,
    query: &Query,
) -> Result<QueryResult, QueryError> {
    let mut sensors = sensors.into();
    query.validate()?;
    let query = &points::resolve(query, &chunks.resolutions());
    if sensors.len() > SENSORS_MAX {
        return Err(too_many());
    }
    if !sensors.is_sorted_by(|a, b| a.path <= b.path) {
        let mut sorted = sensors.to_vec();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        sensors = sorted.into();
    }
    chunks.prefetch(&sensors);
    let plan = plan::Plan::new(query, &sensors)?;
    let tier = plan.tier(chunks.as_ref()).map(|tier| Interval::from_ns(tier.cast_unsigned()));
    if tier.is_none() {
        chunks.prepare_notes(&sensors, query.from.0, query.to.0);
    }
    let (warnings, notes) = (chunks.warnings(query.from.0, query.to.0), chunks.notes());
    let groups = query.across.map(|across| across::groups(&sensors, across));
    let units: Vec<String> = match &groups {
        None => units::units(&sensors, query.op, |sensor| plan.agg_of(sensor), query.unit.as_deref()),
        Some(groups) => groups
            .iter()
            .map(|group| across::unit_of(group, &sensors, &plan, query.unit.as_deref()))
            .collect::<Result<_, QueryError>>()?,
    };
    let series = groups.as_ref().map(|groups| groups.iter().map(|group| group.name.clone()).collect());
    let batches = Batches::new(Arc::from(chunks), sensors.clone(), groups, &units, plan);
    Ok(QueryResult { sensors, series, units, warnings, notes, tier, every: query.every, batches })
}

/// Asks to narrow patterns that choose too many sensors.
fn too_many() -> QueryError {
    QueryError::Invalid(format!(
        "the patterns choose more than {SENSORS_MAX} sensors, which is the most that one query answers; choose fewer, such as one sub-tree after the other"
    ))
}
