//! Resamples readings to the times of a grid: a reading at the time unchanged, else linear interpolation between its neighbours.
//!
//! A value is a float, and a gap is NaN; [`RawSamples::convert`] makes NaN and infinite readings gaps. A time is sampled if there is a reading (or gap)
//! at it, or one on each side at most the bridge apart. Elsewhere there is a hole: no row.

use wholegrain_model::{ColumnValues, Conversion, Value};
use wholegrain_store::{Chunk, SensorInfo};

use crate::ops::advance;
use crate::scale::Scale;

/// Receives values at points of the grid. A point is a time divided by the grid's interval.
pub(super) trait GridSink {
    /// Takes the values of successive points, NaN for gaps.
    fn run(&mut self, point: i64, values: &[f64]);
}

/// Resamples rows to a grid.
#[derive(Debug, Clone)]
pub(super) struct GridSampler {
    grid: i64,
    bridge: i64,
    last: Option<(i64, f64)>,
}

impl GridSampler {
    pub(crate) fn new(grid: i64, bridge: i64) -> Self {
        Self { grid, bridge, last: None }
    }

    /// Takes the next rows, in time order, and passes values at points of `first <= point < end` to the sink.
    pub fn feed(&mut self, times: &[i64], values: &[f64], (first, end): (i64, i64), sink: &mut impl GridSink) {
        let mut at = 0;
        while at < times.len() {
            let (time, value) = (times[at], values[at]);
            if let Some(last) = self.last {
                self.between(last, (time, value), (first, end), sink);
            }
            if time.rem_euclid(self.grid) != 0 {
                self.last = Some((time, value));
                at += 1;
                continue;
            }
            let rows = self.even(&times[at..]);
            let point = time.div_euclid(self.grid);
            let skip = usize::try_from(first.saturating_sub(point)).unwrap_or(0).min(rows);
            let stop = usize::try_from(end.saturating_sub(point)).unwrap_or(0).min(rows);
            if skip < stop {
                sink.run(point + skip as i64, &values[at + skip..at + stop]);
            }
            at += rows;
            self.last = Some((times[at - 1], values[at - 1]));
        }
    }

    /// The number of leading rows that are one interval apart.
    fn even(&self, times: &[i64]) -> usize {
        // Usually all are, which is checked without a branch for each.
        let uneven = times.windows(2).fold(0, |uneven, pair| uneven | (pair[1].wrapping_sub(pair[0]) ^ self.grid));
        if uneven == 0 {
            return times.len();
        }
        1 + times.windows(2).take_while(|pair| pair[1].wrapping_sub(pair[0]) == self.grid).count()
    }

    /// The points strictly between two rows.
    fn between(&self, last: (i64, f64), next: (i64, f64), (first, end): (i64, i64), sink: &mut impl GridSink) {
        let apart = next.0.saturating_sub(last.0);
        if apart > self.bridge {
            return;
        }
        let from = (last.0.div_euclid(self.grid) + 1).max(first);
        let to = (next.0 - 1).div_euclid(self.grid).min(end.saturating_sub(1));
        for point in from..=to {
            let part = (point * self.grid - last.0) as f64 / apart as f64;
            sink.run(point, &[finite(last.1 + (next.1 - last.1) * part)]);
        }
    }
}

/// Replaces NaN and infinity by a gap.
#[inline]
pub(super) fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { f64::NAN }
}

/// Converts raw values to quantities in base units.
#[derive(Debug, Clone)]
pub(super) struct RawSamples {
    scale: Scale,
    unit: Conversion,
    /// Whether floats only need a check for NaN and infinity.
    plain: bool,
}

impl RawSamples {
    pub(crate) fn new(sensor: &SensorInfo, unit: Conversion) -> Self {
        let scale = Scale::new(sensor.scale);
        Self { scale, unit, plain: scale == Scale::ONE && unit.is_identity() }
    }

    /// Replaces `out` by the converted values of a chunk.
    pub fn convert(&self, chunk: &Chunk, out: &mut Vec<f64>) {
        out.clear();
        let quantity = |raw: f64| finite(self.unit.apply(self.scale.apply(raw)));
        match (&chunk.column.values, self.plain) {
            (ColumnValues::Float(values), true) => out.extend(values.iter().map(|value| finite(*value))),
            (ColumnValues::Float(values), false) => out.extend(values.iter().map(|value| quantity(*value))),
            (ColumnValues::Int(values), true) => out.extend(values.iter().map(|value| *value as f64)),
            (ColumnValues::Int(values), false) => out.extend(values.iter().map(|value| quantity(*value as f64))),
        }
        let gaps = &chunk.column.gaps;
        if !gaps.0.is_empty() {
            out.iter_mut().enumerate().filter(|(row, _)| gaps.is_gap(*row)).for_each(|(_, value)| *value = f64::NAN);
        }
    }

    /// Converts a difference of raw values.
    fn difference(&self, raw: f64) -> f64 {
        let (multiplier, divisor) = self.unit.ratio();
        finite(self.scale.apply(raw) * multiplier / divisor)
    }
}

/// A part of a series on a grid, from one point on.
#[derive(Debug, Clone, Default)]
pub(super) struct OperandTrack {
    /// The point of the first value.
    pub base: i64,
    /// Values, NaN for gaps and holes.
    pub values: Vec<f64>,
    /// Where there is a row.
    pub sampled: Vec<bool>,
}

impl OperandTrack {
    /// A hole of `len` points from `base` on.
    pub fn holes(base: i64, len: usize) -> Self {
        Self { base, values: vec![f64::NAN; len], sampled: vec![false; len] }
    }

    /// Removes and returns the first `len` points; missing ones are holes.
    pub fn take(&mut self, len: usize) -> OperandTrack {
        self.reach(len);
        let values = self.values.drain(..len).collect();
        let sampled = self.sampled.drain(..len).collect();
        let base = self.base;
        self.base += len as i64;
        OperandTrack { base, values, sampled }
    }

    fn reach(&mut self, len: usize) {
        if self.values.len() < len {
            self.values.resize(len, f64::NAN);
            self.sampled.resize(len, false);
        }
    }
}

impl GridSink for OperandTrack {
    fn run(&mut self, point: i64, values: &[f64]) {
        let Ok(at) = usize::try_from(point - self.base) else { return };
        self.reach(at + values.len());
        self.values[at..at + values.len()].copy_from_slice(values);
        self.sampled[at..at + values.len()].fill(true);
    }
}

/// The increase of a counter in each step of the grid, with resets and wraps handled, distributed evenly between two readings.
#[derive(Debug)]
pub(super) struct GridSteps<'a> {
    sensor: &'a SensorInfo,
    raw: &'a RawSamples,
    grid: i64,
    bridge: i64,
    /// The point at which the first step ends.
    base: i64,
    steps: Vec<f64>,
    /// The known time of each step, ns.
    known: Vec<i64>,
    sampled: Vec<bool>,
    last: Option<(i64, Option<Value>)>,
}

impl<'a> GridSteps<'a> {
    pub(crate) fn new(
        sensor: &'a SensorInfo,
        raw: &'a RawSamples,
        grid: i64,
        bridge: i64,
        base: i64,
        len: usize,
    ) -> Self {
        let (steps, known, sampled) = (vec![0.0; len], vec![0; len], vec![false; len]);
        Self { sensor, raw, grid, bridge, base, steps, known, sampled, last: None }
    }

    /// Takes the next rows.
    pub fn feed(&mut self, chunk: &Chunk) {
        for (at, time) in chunk.times.iter().enumerate() {
            let value = chunk.column.get(at).filter(|value| value.as_f64().is_finite());
            if let Some((before, old)) = self.last {
                self.segment((before, old), (*time, value));
            }
            if time.rem_euclid(self.grid) == 0 {
                self.mark(time.div_euclid(self.grid));
            }
            self.last = Some((*time, value));
        }
    }

    fn mark(&mut self, point: i64) {
        let at = usize::try_from(point - self.base).ok();
        if let Some(sampled) = at.and_then(|at| self.sampled.get_mut(at)) {
            *sampled = true;
        }
    }

    fn segment(&mut self, (from, old): (i64, Option<Value>), (to, new): (i64, Option<Value>)) {
        let apart = to.saturating_sub(from);
        if apart > self.bridge || apart <= 0 {
            return;
        }
        let last = self.base + self.steps.len() as i64 - 1;
        for point in (from.div_euclid(self.grid) + 1).max(self.base)..=(to - 1).div_euclid(self.grid).min(last) {
            self.mark(point);
        }
        let (Some(old), Some(new)) = (old, new) else { return };
        let Some(increase) = advance(old, new, self.sensor.wraps_at) else { return };
        // The step that ends at the point `p` covers the times after (p - 1) times the grid.
        let (first, end) = (from.div_euclid(self.grid) + 1, (to - 1).div_euclid(self.grid) + 1);
        for point in first.max(self.base)..=end.min(last) {
            let at = (point - self.base) as usize;
            let overlap = to.min(point * self.grid) - from.max((point - 1) * self.grid);
            self.steps[at] += if overlap == apart { increase } else { increase * (overlap as f64 / apart as f64) };
            self.known[at] += overlap;
        }
    }

    /// The steps; a step that is not completely known is a gap.
    pub fn finish(self) -> OperandTrack {
        let whole = |(step, known): (f64, i64)| if known == self.grid { self.raw.difference(step) } else { f64::NAN };
        let values = self.steps.iter().copied().zip(self.known.iter().copied()).map(whole).collect();
        OperandTrack { base: self.base, values, sampled: self.sampled }
    }
}
