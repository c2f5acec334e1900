//! What a query asks for.

use wholegrain_model::{Interval, Pattern, Timestamp};

use crate::error::QueryError;

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
    /// The lowest of the values.
    Min,
    /// The highest of the values.
    Max,
    /// The sum of the values.
    Sum,
    /// The number of values, without gaps.
    Count,
    /// The latest of the values.
    Last,
    /// The earliest of the values.
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
