//! Statistics of a job's sensors: for each sensor on its node, and for each metric over the nodes.
//!
//! A metric is the path below the node's prefix. Gauges enter as read, counters as rates per second. All values have the same weight, whatever their
//! duration. One pass over the readings; memory grows with the number of metrics only.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use wholegrain_model::{Kind, Value};
use wholegrain_store::{ReadSnapshot, ScanRequest, SensorInfo, SensorRange, SnapshotReader};

use super::JobScope;
use crate::error::QueryError;
use crate::ops::DifferenceOp;
use crate::query::Op;
use crate::samples::{JoinedSamples, NeighbourSamples};
use crate::scale::Scale;
use crate::units::unit_of;

/// The most metrics of one answer.
pub const METRICS_MAX: usize = 10_000;

/// Statistics computed in one pass without storing the values (Welford 1962; merged as in Chan, Golub, LeVeque 1979). Values count from the first one,
/// so that the rounding of values that are large beside their deviation does not add up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunningStatistics {
    count: u64,
    min: f64,
    max: f64,
    /// The first value if it is finite, else 0.
    base: f64,
    /// The mean of the values less `base`.
    mean: f64,
    squares: f64,
}

impl Default for RunningStatistics {
    fn default() -> Self {
        Self { count: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, base: 0.0, mean: 0.0, squares: 0.0 }
    }
}

impl RunningStatistics {
    /// Adds one value to the statistics.
    pub fn push(&mut self, value: f64) {
        if self.count == 0 && value.is_finite() {
            self.base = value;
        }
        self.count += 1;
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
        let value = value - self.base;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &RunningStatistics) {
        if self.count == 0 {
            *self = *other;
            return;
        }
        if other.count == 0 {
            return;
        }
        let (here, there) = (self.count as f64, other.count as f64);
        let difference = (other.base - self.base) + (other.mean - self.mean);
        self.count += other.count;
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
        self.mean += difference * there / (here + there);
        self.squares += other.squares + difference * difference * here * there / (here + there);
    }

    /// The statistics of the values so far.
    pub fn spread(&self) -> ValueStatistics {
        let some = |value: f64| (self.count > 0 && !value.is_nan()).then_some(value);
        let mean = self.base + self.mean;
        let mean = if mean.is_nan() { mean } else { mean.max(self.min).min(self.max) };
        let deviation = (self.squares / self.count as f64).max(0.0).sqrt();
        ValueStatistics {
            count: self.count,
            min: some(self.min),
            mean: some(mean),
            max: some(self.max),
            deviation: some(deviation),
        }
    }
}

/// Statistics of values; `None` if there are none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ValueStatistics {
    pub count: u64,
    pub min: Option<f64>,
    pub mean: Option<f64>,
    pub max: Option<f64>,
    /// The standard deviation of the population (not an estimate from a sample).
    pub deviation: Option<f64>,
}

/// Statistics of one metric on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStatistics<'a> {
    pub node: &'a str,
    /// The path below the node's prefix.
    pub metric: &'a str,
    pub unit: &'a str,
    /// Over the values of this node.
    #[serde(flatten)]
    pub spread: ValueStatistics,
    /// The covered part of the time, 0 to 1: between two readings with values and no hole.
    pub coverage: f64,
}

/// Statistics of one metric over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricStatistics {
    /// The path below the nodes' prefixes.
    pub metric: String,
    pub unit: String,
    /// The number of nodes with the sensor.
    pub nodes: u64,
    /// Over all values of all nodes.
    #[serde(flatten)]
    pub spread: ValueStatistics,
    /// The covered part of the time of all these nodes.
    pub coverage: f64,
    /// Over the means of the nodes; `count` is the number of nodes with a value.
    pub node_means: ValueStatistics,
    /// The node with the least mean.
    pub min_node: Option<String>,
    /// The node with the greatest mean.
    pub max_node: Option<String>,
    /// The greatest mean of a node divided by the mean of all nodes, minus 1: 0 is perfect balance, 1 is a node with twice the mean. `None` if the mean is
    /// not positive.
    pub imbalance: Option<f64>,
}

#[derive(Default)]
struct NodeTotals {
    nodes: u64,
    all: RunningStatistics,
    means: RunningStatistics,
    covered_ns: f64,
    time_ns: f64,
    least: Option<(f64, Box<str>)>,
    greatest: Option<(f64, Box<str>)>,
}

/// Passes the statistics of each sensor to `take`, by path, until it returns false, and returns those over nodes. `sensors` belong to the job; the range
/// is cut to the job's time on each node, and `now` ends a running job.
pub fn statistics<'a>(
    job: &'a JobScope,
    snapshot: &dyn ReadSnapshot,
    sensors: &'a [SensorInfo],
    (from, to): (i64, i64),
    now: i64,
    mut take: impl FnMut(&NodeStatistics<'_>) -> bool,
) -> Result<Vec<MetricStatistics>, QueryError> {
    let metrics: HashSet<&str> =
        sensors.iter().filter_map(|sensor| job.place(&sensor.path)).map(|(_, below)| below).collect();
    if metrics.len() > METRICS_MAX {
        return Err(QueryError::Invalid(format!(
            "the patterns select {} metrics, at most {METRICS_MAX} are allowed; select fewer",
            metrics.len()
        )));
    }
    let mut over: BTreeMap<(String, String), NodeTotals> = BTreeMap::new();
    let on_node = |sensor: &'a SensorInfo| {
        let (place, below) = job.place(&sensor.path)?;
        let (from, to) = (from.max(place.from), to.min(if place.to == i64::MAX { now } else { place.to }));
        (from < to).then_some((place, below, SensorRange { sensor, from, to }))
    };
    let reader = snapshot.open(&mut sensors.iter().filter_map(on_node).map(|(.., range)| range))?;
    for (place, below, range) in sensors.iter().filter_map(on_node) {
        let SensorRange { sensor, from, to } = range;
        let (tally, covered_ns) = tally(reader.as_ref(), range)?;
        let op = (sensor.kind == Kind::Counter).then_some(Op::Rate);
        let unit = unit_of(&sensor.unit, op, None);
        let (spread, time_ns) = (tally.spread(), (to - from) as f64);
        let row = NodeStatistics {
            node: &place.node,
            metric: below,
            unit: &unit,
            spread,
            coverage: covered_ns as f64 / time_ns,
        };
        if !take(&row) {
            break;
        }
        let over = over.entry((below.to_owned(), unit)).or_default();
        over.nodes += 1;
        over.all.merge(&tally);
        over.covered_ns += covered_ns as f64;
        over.time_ns += time_ns;
        if let Some(mean) = spread.mean {
            over.means.push(mean);
            if over.least.as_ref().is_none_or(|least| mean < least.0) {
                over.least = Some((mean, place.node.clone()));
            }
            if over.greatest.as_ref().is_none_or(|greatest| mean > greatest.0) {
                over.greatest = Some((mean, place.node.clone()));
            }
        }
    }
    Ok(over.into_iter().map(|((metric, unit), over)| over.finish(metric, unit)).collect())
}

impl NodeTotals {
    fn finish(self, metric: String, unit: String) -> MetricStatistics {
        let node_means = self.means.spread();
        let imbalance = node_means.max.zip(node_means.mean).filter(|(_, mean)| *mean > 0.0);
        MetricStatistics {
            metric,
            unit,
            nodes: self.nodes,
            spread: self.all.spread(),
            coverage: self.covered_ns / self.time_ns,
            node_means,
            min_node: self.least.map(|(_, node)| node.into()),
            max_node: self.greatest.map(|(_, node)| node.into()),
            imbalance: imbalance.map(|(max, mean)| max / mean - 1.0),
        }
    }
}

/// The statistics of one sensor in a range, and the covered time in ns.
fn tally(reader: &dyn SnapshotReader, range: SensorRange<'_>) -> Result<(RunningStatistics, i64), QueryError> {
    let SensorRange { sensor, from, to } = range;
    let beside = NeighbourSamples::new(reader, sensor);
    let scan = reader.scan(&ScanRequest::readings(sensor, beside.back(from)?, beside.ahead(to)?))?;
    let scale = Scale::new(sensor.scale);
    let mut rates =
        (sensor.kind == Kind::Counter).then(|| DifferenceOp::new(Op::Rate, sensor.kind, sensor.wraps_at, scale));
    let (mut tally, mut covered, mut previous) = (RunningStatistics::default(), 0, None);
    for sample in JoinedSamples::new(scan.chunks(), beside) {
        let sample = sample?;
        let (time, value) = (sample.time, sample.value.filter(|value| !value.as_f64().is_nan()));
        if let (Some(before), true) = (previous, value.is_some() && sample.joined) {
            covered += (time.min(to) - from.max(before)).max(0);
        }
        previous = value.map(|_| time);
        let value = match &mut rates {
            Some(rates) => rates.step(&sample),
            None => value.map(Value::as_f64).map(|value| scale.apply(value)),
        };
        if let Some(value) = value.filter(|_| (from..to).contains(&time)) {
            tally.push(value);
        }
    }
    Ok((tally, covered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_large_beside_their_deviation_are_not_rounded_away() {
        // Whole numbers below 2^53: the differences to the first value are exact.
        let offsets: Vec<f64> = (0..141).map(|at| (at * 3) as f64).collect();
        let (mut near, mut far) = (RunningStatistics::default(), RunningStatistics::default());
        for part in offsets.chunks(50) {
            let (mut near_part, mut far_part) = (RunningStatistics::default(), RunningStatistics::default());
            part.iter().for_each(|value| near_part.push(*value));
            part.iter().for_each(|value| far_part.push(*value - 9e15));
            near.merge(&near_part);
            far.merge(&far_part);
        }
        assert_eq!(far.spread().mean, Some(near.spread().mean.unwrap() - 9e15));
        assert!((far.spread().deviation.unwrap() - near.spread().deviation.unwrap()).abs() < 1e-9);
        let mut one = RunningStatistics::default();
        [i64::MIN as f64; 3].iter().for_each(|value| one.push(*value));
        assert_eq!(one.spread().mean, Some(i64::MIN as f64));
    }

    #[test]
    fn merged_statistics_equal_those_of_all_values() {
        let values: Vec<f64> = (0..1000).map(|at| 1e6 + (at * 37 % 101) as f64).collect();
        let mean = values.iter().sum::<f64>() / 1000.0;
        let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 1000.0).sqrt();
        let mut merged = RunningStatistics::default();
        for part in values.chunks(77) {
            let mut tally = RunningStatistics::default();
            part.iter().for_each(|value| tally.push(*value));
            merged.merge(&tally);
            merged.merge(&RunningStatistics::default());
        }
        let found = merged.spread();
        assert_eq!((found.count, found.min, found.max), (1000, Some(1e6), Some(1e6 + 100.0)));
        assert!((found.mean.unwrap() - mean).abs() < 1e-6 && (found.deviation.unwrap() - deviation).abs() < 1e-6);
        assert_eq!(RunningStatistics::default().spread(), ValueStatistics::default());
    }
}
