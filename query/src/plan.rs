//! What a query means for the sensors it chose: checks, defaults, and the chain of iterators for one sensor.

use wholegrain_model::{Kind, Value, ValueType};
use wholegrain_store::SensorInfo;

use crate::batches::{Row, RowIter};
use crate::holes::{self, Holes};
use crate::integral::{Cumulative, PerWindow, Segments};
use crate::ops::Difference;
use crate::samples::{Chunks, Pieces, Samples};
use crate::scale::Scale;
use crate::windows::{Aggregated, Piece, Windows, scaled};
use crate::{Agg, Op, PATTERNS_MAX, POINTS_MAX, Query, QueryError};

impl Query {
    /// Checks what can be checked without knowing the sensors.
    pub fn validate(&self) -> Result<(), QueryError> {
        let invalid = |text: String| Err(QueryError::Invalid(text));
        if self.patterns.is_empty() || self.patterns.len() > PATTERNS_MAX {
            return invalid(format!("{} patterns given, 1 to {PATTERNS_MAX} allowed", self.patterns.len()));
        }
        if self.from > self.to {
            return invalid(format!("from ({}) is after to ({}); exchange them", self.from, self.to));
        }
        match self.every {
            Some(every) if every.ns() == 0 => return invalid("every must be longer than 0, such as 10s".into()),
            Some(every) if i64::try_from(every.ns()).is_err() => {
                return invalid("every is longer than 292 years; leave it away for one value over the range".into());
            }
            _ => {}
        }
        if self.points.is_some() && self.every.is_some() {
            return invalid("points and every are both given; leave one away".into());
        }
        if self.points.is_some_and(|points| !(1..=POINTS_MAX).contains(&points)) {
            return invalid(format!("points must be 1 to {POINTS_MAX}"));
        }
        if self.limit == Some(0) {
            return invalid("limit must be at least 1; leave it away for everything".into());
        }
        if self.op == Some(Op::Integral) && self.agg.is_some_and(|agg| agg != Agg::Sum) {
            return invalid("the integral of a window is a sum; leave agg away or write sum".into());
        }
        Ok(())
    }
}

/// A query made ready.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) from: i64,
    pub(crate) to: i64,
    windows: Option<Windows>,
    agg: Option<Agg>,
    op: Option<Op>,
    pub(crate) limit: u64,
    /// Whether the answer's values are integers.
    pub(crate) exact: bool,
}

impl Plan {
    pub(crate) fn new(query: &Query, sensors: &[SensorInfo]) -> Result<Self, QueryError> {
        check_kinds(query.op, sensors)?;
        let windows = match (query.every, query.agg) {
            (Some(every), _) => Some(Windows::Every(i64::try_from(every.ns()).unwrap_or(i64::MAX))),
            (None, Some(_)) => Some(Windows::Whole(query.from.0)),
            (None, None) => None,
        };
        let (from, to) = (query.from.0, query.to.0);
        let limit = query.limit.unwrap_or(u64::MAX);
        let mut plan = Self { from, to, windows, agg: query.agg, op: query.op, limit, exact: false };
        plan.exact = !sensors.is_empty() && sensors.iter().all(|sensor| plan.is_exact(sensor));
        Ok(plan)
    }

    /// How the windows of `sensor` become values; `None` when there are no windows.
    pub(crate) fn agg_of(&self, sensor: &SensorInfo) -> Option<Agg> {
        self.windows?;
        Some(self.agg.unwrap_or(match (self.op, sensor.kind) {
            (Some(Op::Delta | Op::Integral), _) => Agg::Sum,
            (Some(Op::Rate | Op::Derivative), _) | (None, Kind::Gauge) => Agg::Mean,
            (None, Kind::Counter) => Agg::Last,
        }))
    }

    /// The resolution in ns of the tier that answers wherever it can.
    pub(crate) fn tier(&self, chunks: &dyn Chunks) -> Option<i64> {
        let windows = self.windows.filter(|_| self.op.is_none())?;
        chunks.tier(self.from, self.to, windows.every())
    }

    /// Whether every value of `sensor` in the answer is an integer as read times an integer.
    fn is_exact(&self, sensor: &SensorInfo) -> bool {
        match self.agg_of(sensor) {
            Some(Agg::Count) => true,
            Some(Agg::Mean | Agg::Sum) => false,
            None | Some(Agg::Min | Agg::Max | Agg::First | Agg::Last) => {
                self.op.is_none() && sensor.value_type == ValueType::Int && Scale::new(sensor.scale).is_integral()
            }
        }
    }

    /// The rows of one sensor, read as they are pulled.
    pub(crate) fn rows(&self, chunks: &dyn Chunks, sensor: &SensorInfo) -> Result<RowIter, QueryError> {
        if self.from == self.to {
            return Ok(Box::new(std::iter::empty()));
        }
        let (scale, exact) = (Scale::new(sensor.scale), self.exact);
        let Some(op) = self.op else {
            if let (Some(windows), Some(agg)) = (self.windows, self.agg_of(sensor))
                && let Some(parts) = chunks.scan_windows(sensor, self.from, self.to, windows.every())?
            {
                return Ok(Box::new(Aggregated::new(Pieces::new(parts), windows, agg, scale, exact)));
            }
            let samples = Samples::new(chunks.scan(sensor, self.from, self.to)?);
            return Ok(match (self.windows, self.agg_of(sensor)) {
                (Some(windows), Some(agg)) => {
                    let rows = samples.map(|sample| sample.map(|(time, value)| Piece::Row(Row { time, value })));
                    Box::new(Aggregated::new(rows, windows, agg, scale, exact))
                }
                _ => Box::new(samples.map(move |sample| {
                    let (time, value) = sample?;
                    Ok(Row { time, value: value.and_then(|value| scaled(value, scale, exact)) })
                })),
            });
        };
        let bound = holes::bound_ns(sensor);
        let ahead = if op == Op::Integral && self.windows.is_some() { bound } else { 0 };
        let scan = chunks.scan(sensor, self.from.saturating_sub(bound), self.to.saturating_add(ahead))?;
        let (samples, holes, range) = (Samples::new(scan), Holes::new(bound), (self.from, self.to));
        if op == Op::Integral {
            let segments = Segments::new(holes, scale);
            return Ok(match self.windows {
                Some(windows) => Box::new(PerWindow::new(samples, segments, windows, range)),
                None => Box::new(Cumulative::new(samples, segments, self.from)),
            });
        }
        let rows = differences(samples, Difference::new(op, sensor.kind, sensor.wraps_at, scale, holes), self.from);
        Ok(match (self.windows, self.agg_of(sensor)) {
            (Some(windows), Some(agg)) => {
                Box::new(Aggregated::new(rows.map(|row| row.map(Piece::Row)), windows, agg, Scale::ONE, exact))
            }
            _ => Box::new(rows),
        })
    }
}

/// Runs the operation over the samples; those before `from` only prepare it.
fn differences(
    samples: Samples,
    mut op: Difference,
    from: i64,
) -> impl Iterator<Item = Result<Row, QueryError>> + Send {
    samples.filter_map(move |sample| {
        let (time, value) = match sample {
            Ok(sample) => sample,
            Err(error) => return Some(Err(error)),
        };
        let value = op.step(time, value).map(Value::Float);
        (time >= from).then_some(Ok(Row { time, value }))
    })
}

/// Refuses an operation on sensors for which it has no meaning, and names one of them.
fn check_kinds(op: Option<Op>, sensors: &[SensorInfo]) -> Result<(), QueryError> {
    let (op, wrong, kind, advice) = match op {
        Some(op @ Op::Rate) => (op, Kind::Gauge, "gauges", "use derivative for gauges"),
        Some(op @ Op::Derivative) => (op, Kind::Counter, "counters", "use rate for counters"),
        Some(op @ Op::Integral) => (op, Kind::Counter, "counters", "use delta for counters, which are sums already"),
        Some(Op::Delta) | None => return Ok(()),
    };
    let mut found = sensors.iter().filter(|sensor| sensor.kind == wrong);
    let Some(first) = found.next() else { return Ok(()) };
    let count = 1 + found.count();
    Err(QueryError::Invalid(format!(
        "{op} has no meaning for {kind}, and {count} of the {} sensors chosen are {kind} ({}{}); {advice}, or choose fewer sensors",
        sensors.len(),
        first.path,
        if count > 1 { ", …" } else { "" },
    )))
}

/// The unit of an answer's values, from the sensor's unit: `By` becomes `By/s` by rate; the integral of `W` is `W.s` and of
/// `By/s` is `By`; a count is `1`.
pub fn unit_of(unit: &str, op: Option<Op>, agg: Option<Agg>) -> String {
    if agg == Some(Agg::Count) {
        return "1".to_owned();
    }
    let base = if unit.is_empty() { "1" } else { unit };
    match op {
        None | Some(Op::Delta) => unit.to_owned(),
        Some(Op::Rate | Op::Derivative) => format!("{base}/s"),
        Some(Op::Integral) => match (base, base.strip_suffix("/s")) {
            ("1", _) => "s".to_owned(),
            (_, Some(rest)) => rest.to_owned(),
            _ => format!("{base}.s"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (unit, op, agg, expected) in [
            ("By", None, Some(Agg::Mean), "By"),
            ("By", Some(Op::Rate), None, "By/s"),
            ("", Some(Op::Rate), None, "1/s"),
            ("By", Some(Op::Delta), Some(Agg::Sum), "By"),
            ("Cel", Some(Op::Derivative), None, "Cel/s"),
            ("W", Some(Op::Integral), None, "W.s"),
            ("By/s", Some(Op::Integral), None, "By"),
            ("1", Some(Op::Integral), None, "s"),
            ("1/s", Some(Op::Integral), None, "1"),
            ("By", Some(Op::Rate), Some(Agg::Count), "1"),
        ] {
            assert_eq!(unit_of(unit, op, agg), expected, "{unit} {op:?} {agg:?}");
        }
    }
}
