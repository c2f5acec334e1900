//! The request of a query.

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
    /// The mean weighted by time: after `rate` and `derivative` the change divided by its time; for gauges the area below the lines between
    /// samples, cut at the window's edges, divided by the covered time. For counters, and after `delta`, it is [`Agg::SampleMean`].
    Mean,
    /// The arithmetic mean of the values. All have the same weight, whatever their duration.
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

/// An operation on successive values of one sensor, applied before any aggregate.
///
/// No operation crosses a hole: a gap, or two samples further apart than [`HOLE_INTERVALS`] times the sensor's interval
/// ([`LOOK_BACK_NS_UNKNOWN`] without an interval), unless three similar spacings in a row show a longer interval. Samples outside the range
/// help to decide this, and give the first sample of the range its value; `docs/sums.md` has the whole rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Counters: delta per second, in unit/s.
    Rate,
    /// Difference to the previous value. A counter with a modulus that fell has wrapped if it then rose by at most half of the modulus; any other
    /// that fell has restarted, and the new value counts from 0. A negative new value has no delta.
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
                    QueryError::Invalid(format!("{text:?} is not an {}; write one of {}", $what, names.join(", ")))
                })
            }
        }
    };
}

named!(Agg, "aggregate");
named!(Op, "operation");

/// A request for readings of the sensors that patterns select.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Selects the sensors that match at least one pattern.
    pub patterns: Vec<Pattern>,
    /// Start of the range, inclusive.
    pub from: Timestamp,
    /// End of the range, exclusive.
    pub to: Timestamp,
    /// Width of the windows.
    pub every: Option<Interval>,
    /// Instead of `every`: the approximate number of windows, at most [`POINTS_MAX`]. Their width is a round length and, if it is not shorter
    /// than the finest tier's resolution, a multiple of a tier's resolution. The range is extended to whole windows.
    pub points: Option<u64>,
    /// The aggregate of each window.
    pub agg: Option<Agg>,
    /// Applied to the readings before `agg`.
    pub op: Option<Op>,
    /// Combines several sensors into one series.
    pub across: Option<Across>,
    /// Converts values to this unit, a UCUM code.
    pub unit: Option<String>,
    /// The most rows of the result.
    pub limit: Option<u64>,
}

/// Combines several sensors into one series. First each sensor's value is computed, for each window or at each exact time; then the values
/// at one time are aggregated. All sensors have the same weight, whatever their intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Across {
    /// The aggregate over sensors: mean, min, max, sum or count.
    pub agg: Agg,
    /// One series for each group of sensors with equal first `levels` levels; `None` combines all. A sensor with fewer levels belongs to
    /// its parent path.
    pub levels: Option<usize>,
}
