//! Answers over the store: sensors by pattern, a range of time, operations, aggregates; as Arrow record batches.
//!
//! - In: a [`Query`] and the store's snapshot, or anything else that gives [`Chunks`].
//! - Out: [`QueryResult`]: the sensors chosen, and lazily batches of (`sensor`, `time`, `value`) in the sensors' units.
//! - Never: a value that was not measured. A gap stays null, no operation looks across a hole in the readings, a window
//!   without a value gives no row. Memory does not grow with the range: one chunk of one sensor and one batch at a time.
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
//! - `op` and `every`: the operation first, then the aggregate of its values. A NaN is no value to either.
//!
//! # Tiers
//! Windows without `op` are answered by the coarsest downsampled tier whose resolution divides their width ([`QueryResult::tier`]), as
//! far as there are tiers: where blocks overlap, where the range cuts a window and where nothing has been merged yet, readings are read. The answer
//! is the same: least, greatest, first, last, count and sums of integers to the last bit; a sum or mean of floats to within
//! 2^-52 times the number of tier windows in it times the sum of the magnitudes, because each tier window has its sum rounded once.
//! Operations ([`Op`]) need neighbouring readings and always read them. Where retention has dropped the readings, windows are all there is.

mod batches;
mod holes;
mod integral;
mod ops;
mod plan;
mod points;
mod samples;
mod scale;
mod windows;

#[cfg(test)]
mod reference;

use wholegrain_model::{Interval, Pattern, Timestamp};
use wholegrain_store::{SensorInfo, Store, StoreError};

pub use batches::{BATCH_ROWS_MAX, Batches, UNIT_KEY, UNITS_KEY, schema, schema_int};
pub use holes::{HOLE_INTERVALS, LOOK_BACK_NS_UNKNOWN};
pub use plan::unit_of;
pub use points::POINTS_MAX;
pub use samples::{ChunkIter, Chunks};
pub use scale::Scale;

/// The most patterns of one query.
pub const PATTERNS_MAX: usize = 256;
/// The most sensors of one query; their names make up the dictionary of the answer.
pub const SENSORS_MAX: usize = 1_000_000;

/// How the values of a window become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Agg {
    /// Arithmetic mean of the values.
    Mean,
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
    pub const ALL: [(&'static str, Agg); 7] = [
        ("mean", Agg::Mean),
        ("min", Agg::Min),
        ("max", Agg::Max),
        ("sum", Agg::Sum),
        ("count", Agg::Count),
        ("last", Agg::Last),
        ("first", Agg::First),
    ];
}

/// What is computed from successive values of one sensor before any aggregate.
///
/// No operation looks across a hole: a gap, or two samples further apart than [`HOLE_INTERVALS`] times the sensor's
/// interval. To have a value for the first sample of the range, samples before `from` are looked at, as far back as a hole
/// can not reach ([`LOOK_BACK_NS_UNKNOWN`] for a sensor without an interval).
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
    /// Stop after so many rows.
    pub limit: Option<u64>,
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
    /// Arrow refused the columns: a fault of this crate.
    #[error("making a record batch: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
}

/// The sensors that a query chose, and the batches to pull.
pub struct QueryResult {
    /// The sensors chosen, sorted by path; in this order they are the dictionary of every batch.
    pub sensors: Vec<SensorInfo>,
    /// The unit of each sensor's values in the answer, after the operation.
    pub units: Vec<String>,
    /// What is known to be missing from the answer before its rows are read: blocks that overlap the range and are damaged, and what
    /// retention has dropped, a sentence each. [`Batches::warnings`] and [`Batches::notes`] after the last batch tell also of what the
    /// reading met.
    pub warnings: Vec<String>,
    /// The tier that answers wherever it can.
    pub tier: Option<Interval>,
    /// The width of the windows, also where their number was asked for.
    pub every: Option<Interval>,
    /// The rows. Its [`Batches::schema`] tells whether `value` is Float64 or Int64.
    pub batches: Batches,
}

/// Resolves the patterns and prepares the answer; readings are read when the batches are pulled, all out of one snapshot.
pub fn run(store: &Store, query: &Query) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let sensors = store.sensors(&query.patterns);
    run_on(Box::new(store.snapshot()), sensors, query)
}

/// The same over any readings: `sensors` are those chosen.
pub fn run_on(chunks: Box<dyn Chunks>, mut sensors: Vec<SensorInfo>, query: &Query) -> Result<QueryResult, QueryError> {
    query.validate()?;
    let query = &points::resolve(query, &chunks.resolutions());
    if sensors.len() > SENSORS_MAX {
        return Err(QueryError::Invalid(format!(
            "the patterns choose {} sensors, at most {SENSORS_MAX} allowed; choose fewer",
            sensors.len()
        )));
    }
    sensors.sort_by(|a, b| a.path.cmp(&b.path));
    chunks.expect(&sensors);
    let plan = plan::Plan::new(query, &sensors)?;
    let tier = plan.tier(chunks.as_ref()).map(|tier| Interval::from_ns(tier.cast_unsigned()));
    if tier.is_none() {
        chunks.foresee(&sensors, query.from.0, query.to.0);
    }
    let mut warnings = chunks.warnings(query.from.0, query.to.0);
    warnings.extend(chunks.notes());
    let units: Vec<String> =
        sensors.iter().map(|sensor| unit_of(&sensor.unit, query.op, plan.agg_of(sensor))).collect();
    let batches = Batches::new(chunks, sensors.clone(), &units, plan);
    Ok(QueryResult { sensors, units, warnings, tier, every: query.every, batches })
}
