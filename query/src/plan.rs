//! Plans a query for the selected sensors: checks it, applies defaults, and builds the chain of iterators for each sensor.

use std::collections::BTreeSet;
use std::sync::Arc;

use wholegrain_model::{Kind, Unit, Value, ValueType};
use wholegrain_store::{
    Chunk, ReadSnapshot, Resolution, Scan, ScanPart, ScanRequest, SensorInfo, SensorRange, SnapshotReader,
};

use crate::columns::aggregate::{WindowAggregation, WindowAggregator};
use crate::columns::mean::{ApproximateMeans, TimeWeightedMeans};
use crate::columns::weighted::WeightedMeans;
use crate::columns::{Cancellable, ResultRow, RowChunkIter, RowChunks, StopCheck};
use crate::conversion_loss::ConversionLoss;
use crate::error::QueryError;
use crate::holes;
use crate::integral::{CumulativeIntegral, LineSegments, WindowIntegrals};
use crate::jobs::scope::JobScope;
use crate::ops::{DifferenceOp, ValueChange};
use crate::points::POINTS_MAX;
use crate::query::{Across, Agg, Op, PATTERNS_MAX, Query};
use crate::samples::{JoinedSample, JoinedSamples, NeighbourSamples, SkippedHoles};
use crate::scale::Scale;
use crate::units::{Conversions, unit_of};
use crate::windows::Windows;

impl Query {
    /// Checks the query as far as that is possible without the sensors.
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
                return invalid("every is longer than 292 years; omit it for one value over the range".into());
            }
            _ => {}
        }
        if self.points.is_some() && self.every.is_some() {
            return invalid("points and every are both given; omit one".into());
        }
        if self.points.is_some_and(|points| !(1..=POINTS_MAX).contains(&points)) {
            return invalid(format!("points must be 1 to {POINTS_MAX}"));
        }
        if self.limit == Some(0) {
            return invalid("limit must be at least 1; omit it for all rows".into());
        }
        if self.op == Some(Op::Integral) && self.agg.is_some_and(|agg| agg != Agg::Sum) {
            return invalid("the integral of a window is a sum; omit agg or write sum".into());
        }
        if let Some(Err(error)) = self.unit.as_deref().map(Unit::parse) {
            return invalid(error.to_string());
        }
        self.across.map_or(Ok(()), |across| self.validate_across(across))
    }

    fn validate_across(&self, across: Across) -> Result<(), QueryError> {
        let invalid = |text: &str| Err(QueryError::Invalid(text.into()));
        if across.agg == Agg::SampleMean {
            return invalid("across: all values of one time have the same weight; write mean");
        }
        if matches!(across.agg, Agg::First | Agg::Last) {
            return invalid("across: sensors have no first or last value; write mean, min, max, sum or count");
        }
        if across.levels == Some(0) {
            return invalid("levels must be at least 1; omit it for one series over all sensors");
        }
        if self.op == Some(Op::Integral) && self.every.is_none() && self.points.is_none() && self.agg.is_none() {
            return invalid(
                "the running integral of several sensors is not supported; give every, points, or agg=sum for one value",
            );
        }
        Ok(())
    }
}

/// A query, checked and resolved for its sensors.
#[derive(Debug)]
pub(crate) struct QueryPlan {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) windows: Option<Windows>,
    agg: Option<Agg>,
    pub(crate) op: Option<Op>,
    pub(crate) across: Option<Across>,
    pub(crate) limit: u64,
    /// Whether the values of each sensor are integers.
    pub(crate) exact: bool,
    /// Conversions to [`Query::unit`], if given.
    conversions: Option<Conversions>,
    /// Restricts each sensor to the job's time on its node.
    job: Option<Arc<JobScope>>,
    /// The resolution in ns of the tier that is read where possible.
    pub(crate) tier: Option<i64>,
    /// The resolutions of all tiers, finest first.
    resolutions: Arc<[i64]>,
    /// Notes about readings that retention has removed, unless a tier answers.
    removed: Vec<String>,
    /// Holes that operations have skipped so far.
    pub(crate) skipped_holes: Arc<SkippedHoles>,
    /// Values that the result's type cannot represent.
    pub(crate) conversion_loss: Arc<ConversionLoss>,
    /// Means over time that tiers can only approximate.
    pub(crate) approximate_means: Arc<ApproximateMeans>,
}

/// The part of a query's range that is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeRange {
    pub from: i64,
    pub to: i64,
}

impl QueryPlan {
    pub(crate) fn new(
        query: &Query,
        snapshot: &dyn ReadSnapshot,
        job: Option<Arc<JobScope>>,
        sensors: &[SensorInfo],
    ) -> Result<Self, QueryError> {
        check_kinds(query.op, sensors)?;
        let windows = match (query.every, query.agg) {
            (Some(every), _) => Some(Windows::Every(i64::try_from(every.ns()).unwrap_or(i64::MAX))),
            (None, Some(_)) => Some(Windows::Whole(query.from.0)),
            (None, None) => None,
        };
        let mut plan = Self {
            from: query.from.0,
            to: query.to.0,
            windows,
            agg: query.agg,
            op: query.op,
            across: query.across,
            limit: query.limit.unwrap_or(u64::MAX),
            exact: false,
            conversions: None,
            job,
            tier: None,
            resolutions: snapshot.resolutions().into(),
            removed: Vec::new(),
            skipped_holes: Arc::default(),
            conversion_loss: Arc::default(),
            approximate_means: Arc::default(),
        };
        if let Some(unit) = &query.unit {
            plan.conversions = Some(Conversions::new(unit, sensors, query.op, |sensor| plan.agg_of(sensor))?);
        }
        if let Some(windows) = windows.filter(|_| query.op.is_none()) {
            let (from, to) = plan.cut_to_job();
            plan.tier = if from < to { snapshot.tier(from, to, windows.every()) } else { None };
        }
        if plan.tier.is_none() {
            let removed = snapshot.removed(&mut plan.ranges(sensors.iter(), plan.range()));
            plan.removed = removed;
        }
        plan.exact = !sensors.is_empty() && sensors.iter().all(|sensor| plan.is_exact(sensor));
        Ok(plan)
    }

    /// Whether the values of the result are integers.
    pub(crate) fn answers_exactly(&self) -> bool {
        match self.across.map(|across| across.agg) {
            None | Some(Agg::Min | Agg::Max) => self.exact,
            Some(Agg::Count) => true,
            Some(_) => false,
        }
    }

    /// The aggregate of the windows of `sensor`; `None` without windows.
    pub(crate) fn agg_of(&self, sensor: &SensorInfo) -> Option<Agg> {
        self.windows?;
        Some(self.agg.unwrap_or(match (self.op, sensor.kind) {
            (Some(Op::Delta | Op::Integral), _) => Agg::Sum,
            (Some(Op::Rate | Op::Derivative), _) | (None, Kind::Gauge) => Agg::Mean,
            (None, Kind::Counter) => Agg::Last,
        }))
    }

    /// The unit of a sensor's values, before `across` combines them.
    pub(crate) fn unit_of(&self, sensor: &SensorInfo) -> String {
        unit_of(&sensor.unit, self.op, self.agg_of(sensor))
    }

    /// The query's range, or the part of it in which the job ran.
    fn cut_to_job(&self) -> (i64, i64) {
        let (begin, end) = self.job.as_ref().map_or((i64::MIN, i64::MAX), |job| job.range(i64::MAX));
        (self.from.max(begin), self.to.min(end))
    }

    /// The part of a range in which the query reads `sensor`, extended by `around` ns on each side; empty if there is none.
    fn range_of(&self, sensor: &SensorInfo, range: TimeRange, around: i64) -> (i64, i64) {
        let TimeRange { from, to } = range;
        let Some(job) = &self.job else { return (from, to) };
        let Some((place, _)) = job.place(&sensor.path) else { return (from, from) };
        let from = from.max(place.from.saturating_sub(around));
        (from, to.min(place.to.saturating_add(around)).max(from))
    }

    /// The sensors with the part of a range in which the query reads each.
    pub(crate) fn ranges<'a>(
        &'a self,
        sensors: impl Iterator<Item = &'a SensorInfo>,
        range: TimeRange,
    ) -> impl Iterator<Item = SensorRange<'a>> {
        let range_of = move |sensor| {
            let (from, to) = self.range_of(sensor, range, 0);
            SensorRange { sensor, from, to }
        };
        sensors.map(range_of).filter(|range| range.from < range.to)
    }

    /// Sentences about data that retention has removed, as far as known.
    pub(crate) fn notes(&self, snapshot: &dyn ReadSnapshot) -> Vec<String> {
        let notes: BTreeSet<String> = snapshot.notes().into_iter().chain(self.removed.iter().cloned()).collect();
        notes.into_iter().collect()
    }

    /// Sentences about data that is missing from the query's range.
    pub(crate) fn warnings(&self, snapshot: &dyn ReadSnapshot) -> Vec<String> {
        let (from, to) = self.cut_to_job();
        let mut warnings = snapshot.warnings(from, to);
        warnings.extend(self.job.iter().flat_map(|job| job.warnings()));
        warnings
    }

    /// The samples next to the range of a sensor. They can lie outside the job's time, by at most the length of a line.
    fn neighbours(
        &self,
        reader: &Arc<dyn SnapshotReader>,
        sensor: &SensorInfo,
    ) -> NeighbourSamples<Arc<dyn SnapshotReader>> {
        let always = TimeRange { from: i64::MIN, to: i64::MAX };
        let limits = self.range_of(sensor, always, holes::reach_ns(sensor));
        NeighbourSamples::new(reader.clone(), sensor).within(limits).with_resolutions(&self.resolutions)
    }

    /// Whether every value of `sensor` in the result is a raw integer times an integer.
    fn is_exact(&self, sensor: &SensorInfo) -> bool {
        if self.conversions.as_ref().is_some_and(|to| to.of(sensor).integer().is_none()) {
            return false;
        }
        match self.agg_of(sensor) {
            Some(Agg::Count) => true,
            Some(Agg::Mean | Agg::SampleMean | Agg::Sum) => false,
            None | Some(Agg::Min | Agg::Max | Agg::First | Agg::Last) => {
                self.op.is_none() && sensor.value_type == ValueType::Int && Scale::new(sensor.scale).is_integral()
            }
        }
    }

    /// The whole range of the query.
    pub(crate) fn range(&self) -> TimeRange {
        TimeRange { from: self.from, to: self.to }
    }

    /// The rows of one sensor in the unit of the result, read as they are pulled.
    pub(crate) fn rows(
        &self,
        reader: &Arc<dyn SnapshotReader>,
        sensor: &SensorInfo,
        range: TimeRange,
        stop: &StopCheck,
    ) -> Result<RowChunkIter, QueryError> {
        let own = Scale::new(sensor.scale);
        let Some(to) = self.conversions.as_ref().map(|to| to.of(sensor)).filter(|to| !to.is_identity()) else {
            return self.rows_scaled(reader, sensor, own, range, stop);
        };
        // A count has no scale. An integral scales its values and converts the area.
        let separately = self.exact || self.op == Some(Op::Integral) || self.agg_of(sensor) == Some(Agg::Count);
        if let Some(both) = own.then(to).filter(|_| !separately) {
            return self.rows_scaled(reader, sensor, both, range, stop);
        }
        let rows = self.rows_scaled(reader, sensor, own, range, stop)?;
        let (exact, conversion_loss, path) = (self.exact, self.conversion_loss.clone(), sensor.path.clone());
        Ok(Box::new(rows.map(move |chunk| chunk.map(|chunk| conversion_loss.converted(&path, chunk, to, exact)))))
    }

    /// The rows of one sensor, scaled.
    fn rows_scaled(
        &self,
        reader: &Arc<dyn SnapshotReader>,
        sensor: &SensorInfo,
        scale: Scale,
        range: TimeRange,
        stop: &StopCheck,
    ) -> Result<RowChunkIter, QueryError> {
        let (from, to) = self.range_of(sensor, range, 0);
        if from >= to {
            return Ok(Box::new(std::iter::empty()));
        }
        let exact = self.exact;
        let aggregation = self.windows.zip(self.agg_of(sensor)).map(|(windows, agg)| WindowAggregation {
            windows,
            agg,
            scale,
            exact,
        });
        let Some(op) = self.op else {
            if let Some(aggregation) =
                aggregation.filter(|aggregation| aggregation.agg == Agg::Mean && sensor.kind == Kind::Gauge)
            {
                return self.means(reader, sensor, aggregation, (from, to), stop);
            }
            let request = ScanRequest::readings(sensor, from, to);
            if let Some(aggregation) = aggregation {
                let scan = reader.scan(&request.at(Resolution::Windows { every: aggregation.windows.every() }))?;
                let parts = Cancellable::new(scan.parts, stop);
                return Ok(self.note_lost_values(sensor, WindowAggregator::of(parts, aggregation)));
            }
            let chunks = Cancellable::new(reader.scan(&request)?.chunks(), stop);
            let (conversion_loss, path) = (self.conversion_loss.clone(), sensor.path.clone());
            return Ok(Box::new(
                chunks.map(move |chunk| chunk.map(|chunk| conversion_loss.readings(&path, chunk, scale, exact))),
            ));
        };
        let beside = self.neighbours(reader, sensor);
        let first = beside.back(from)?;
        let last = if op == Op::Integral && self.windows.is_some() { beside.ahead(to)? } else { to };
        // A note about the range itself has been taken from `ReadSnapshot::removed`.
        let scan = reader.scan(&ScanRequest::neighbours(sensor, first, last))?;
        let samples = JoinedSamples::new(Cancellable::new(scan.chunks(), stop), beside)
            .with_skipped_holes(Some(&self.skipped_holes), (from, to));
        if op == Op::Integral {
            let segments = LineSegments::new(scale);
            return Ok(match self.windows {
                Some(windows) => Box::new(RowChunks::new(WindowIntegrals::new(samples, segments, windows, (from, to)))),
                None => Box::new(RowChunks::new(CumulativeIntegral::new(samples, segments, from))),
            });
        }
        if let Some(WindowAggregation { windows, agg: Agg::Mean, .. }) = aggregation.filter(|_| op != Op::Delta) {
            let op = DifferenceOp::new(op, sensor.kind, sensor.wraps_at, Scale::ONE);
            return Ok(Box::new(WeightedMeans::of(changes(samples, op, from), windows, scale)));
        }
        // Windows are scaled at their end and so rounded once.
        let each = if aggregation.is_some() { Scale::ONE } else { scale };
        let rows =
            RowChunks::new(differences(samples, DifferenceOp::new(op, sensor.kind, sensor.wraps_at, each), from));
        Ok(match aggregation {
            Some(aggregation) => {
                Box::new(WindowAggregator::of(rows.map(|chunk| chunk.map(ScanPart::Readings)), aggregation))
            }
            None => Box::new(rows),
        })
    }

    /// The time-weighted means of a gauge's windows.
    fn means(
        &self,
        reader: &Arc<dyn SnapshotReader>,
        sensor: &SensorInfo,
        aggregation: WindowAggregation,
        (from, to): (i64, i64),
        stop: &StopCheck,
    ) -> Result<RowChunkIter, QueryError> {
        let beside = self.neighbours(reader, sensor);
        let lines = Resolution::Lines { every: aggregation.windows.every(), max_gap_ns: beside.bound_ns() };
        let Scan { parts, range, resolution } = reader.scan(&ScanRequest::readings(sensor, from, to).at(lines))?;
        let aggregation = (aggregation.windows, aggregation.scale);
        Ok(Box::new(TimeWeightedMeans::of(
            Cancellable::new(parts, stop),
            beside,
            aggregation,
            range,
            resolution.or(self.tier),
            self.approximate_means.clone(),
        )))
    }

    /// The rows of windows; counts the integers that the result cannot represent.
    fn note_lost_values(
        &self,
        sensor: &SensorInfo,
        rows: impl Iterator<Item = Result<Chunk, QueryError>> + Send + 'static,
    ) -> RowChunkIter {
        if !self.exact {
            return Box::new(rows);
        }
        let (conversion_loss, path) = (self.conversion_loss.clone(), sensor.path.clone());
        Box::new(rows.map(move |chunk| chunk.map(|chunk| conversion_loss.windows(&path, chunk))))
    }
}

/// Applies the operation to the samples; those before `from` only initialize it.
fn differences(
    samples: impl Iterator<Item = Result<JoinedSample, QueryError>> + Send,
    mut op: DifferenceOp,
    from: i64,
) -> impl Iterator<Item = Result<ResultRow, QueryError>> + Send {
    samples.filter_map(move |sample| {
        let sample = match sample {
            Ok(sample) => sample,
            Err(error) => return Some(Err(error)),
        };
        let value = op.step(&sample);
        (sample.time >= from).then_some(Ok(ResultRow { time: sample.time, value: value.map(Value::Float) }))
    })
}

/// The changes at the samples from `from` on; earlier samples only initialize the operation.
fn changes(
    samples: impl Iterator<Item = Result<JoinedSample, QueryError>> + Send,
    mut op: DifferenceOp,
    from: i64,
) -> impl Iterator<Item = Result<ValueChange, QueryError>> + Send {
    samples.filter_map(move |sample| match sample {
        Ok(sample) => op.change(&sample).filter(|change| change.time >= from).map(Ok),
        Err(error) => Some(Err(error)),
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
        "{op} has no meaning for {kind}, and {count} of the {} selected sensors are {kind} ({}{}); {advice}, or select fewer sensors",
        sensors.len(),
        first.path,
        if count > 1 { ", …" } else { "" },
    )))
}
