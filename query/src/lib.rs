//! Queries over the store: they select sensors by pattern and a time range, apply operations and aggregates, and return Arrow record batches.
//!
//! - In: a [`Query`] and a snapshot of the store, or another implementation of [`ReadSnapshot`].
//! - Out: [`QueryResult`]: the selected sensors, and batches of (`sensor`, `time`, `value`) in the sensors' units, which are read as they are pulled.
//! - Never: a value that was not measured. A gap stays null, no operation crosses a hole in the readings, and a window without a value has no row.
//!   Memory does not grow with the range: it holds one chunk of one sensor and one batch, and for a series over several sensors a bounded number
//!   of rows.
//!
//! # Rows of a result
//! Rows are sorted by sensor path, then by time. The range includes `from` and excludes `to`.
//!
//! - Neither `every`, `agg` nor `op`: every sample, a gap as null.
//! - `op`: one row for each sample; null where the operation has no value there ([`Op`] says when).
//! - `every`: one row for each window with at least one value. Windows begin at multiples of `every` since the Unix epoch. A row's time is the
//!   window's start, which for the first window can lie before `from`.
//! - `agg` without `every`: one row for each sensor over the whole range, at `from`.
//! - `every` without `agg`: [`Agg::Mean`] for gauges, [`Agg::Last`] for counters (the mean of a running total is useless);
//!   after `delta` [`Agg::Sum`], after `rate` and `derivative` [`Agg::Mean`].
//! - `op` and `every`: the operation first, then the aggregate of its values. Both skip NaN. The mean of a rate is the increase over its
//!   time; `sample_mean` is the arithmetic mean of the rates.
//! - The `mean` of a gauge is weighted by time: the area below the lines between samples, divided by the covered time (`docs/sums.md`). A window
//!   with one sample has its value; `sample_mean` is the arithmetic mean.
//!
//! # Several sensors as one series
//! With `across` each row belongs to a group of sensors ([`Across`]). First each sensor's value of a window (or its reading at an exact time) is
//! computed as without `across`. Then `mean` is the mean of the sensors' means, `sum` their sum (for counters the sum of the last values), `min` and
//! `max` the least and the greatest, and `count` the number of sensors with a value. Units must agree, except for `count`. A row aggregates the
//! sensors that have a value there; missing values are not replaced. If some rows of a series have fewer sensors than others, a note after the
//! rows says how many rows and how few sensors ([`Batches::notes`]); `count` gives the number for each row. Without windows, a time at which
//! all sensors have gaps is null. Sums of floats are compensated and do not depend on the number of processors.
//!
//! The name of a series has the first levels that all its sensors share (with `levels` that number of levels), the aggregate, and in parentheses the
//! last levels that they share, or `*`: `/lab/rack1/sum(power)`.
//!
//! # Tiers
//! The coarsest tier whose resolution divides the width answers windows without `op` ([`QueryResult::tier`]). Readings are read where blocks
//! overlap, where the range cuts a window, and where no tier exists yet. The result is the same: minimum, maximum, first, last, count and sums of
//! integers exactly; a sum or mean of floats to within 2^-52 times the number of its tier windows times the sum of the magnitudes, because each
//! tier window rounds its sum once; means weighted by time to within 1e-12 of the largest values, from tiers that store the area below the lines
//! between readings. Other tiers are used only where nothing else is left, and a note says so. Operations ([`Op`]) always use readings; where
//! retention has deleted them, only windows remain.

mod across;
mod batches;
mod cancel;
mod columns;
mod conversion_loss;
mod error;
mod float_sum;
mod holes;
mod integral;
pub mod jobs;
mod line_segment;
pub mod names;
mod nearest;
mod ops;
mod plan;
mod points;
mod query;
mod reading_spans;
mod run;
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

pub use batches::{BATCH_ROWS_MAX, Batches, KINDS_KEY, UNIT_KEY, UNITS_KEY, schema, schema_int};
pub use cancel::CancellableSnapshot;
pub use columns::StopCheck;
pub use error::QueryError;
pub use holes::{HOLE_INTERVALS, HoleDetector, LOOK_BACK_NS_UNKNOWN, bound_ns as hole_bound_ns};
pub use points::POINTS_MAX;
pub use query::{Across, Agg, Op, PATTERNS_MAX, Query, SENSORS_MAX};
pub use run::{QueryResult, run, run_in_job, run_on};
pub use scale::Scale;
pub use space::Space;
pub use units::unit_of;
