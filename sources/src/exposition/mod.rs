//! The text of exporters: Prometheus text 0.0.4, OpenMetrics 1.0, and plain lines `name value`.
//!
//! - In: the bytes of one answer or one file.
//! - Out: sensors with kind, unit and description ([`SeriesCatalogue::learn`]), and their values ([`SeriesTable::read`]).
//! - Never: I/O; a value of a line that is not complete; an allocation for a series that stands where it stood before.
//!
//! A series is found by the bytes before its value, first where the previous text had it. Only a series that is written otherwise than before
//! (another order of labels) is parsed again.

mod family;
mod lines;
mod number;
mod plain;
mod rules;
mod series;
mod table;
mod template;

pub use family::{Families, FamilyKind};
pub use lines::{Dialect, Line, SampleLine};
pub use plain::Attributes;
pub use rules::{MetricRule, SensorNaming};
pub use series::Series;
pub use table::{ExpositionRead, SeriesBounds, SeriesCatalogue, SeriesTable};
pub use template::PathTemplate;
