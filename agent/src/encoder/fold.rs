//! Folds samples into windows: minimum, maximum, mean, last value, count and quantiles. Pure: samples in, rows of windows out.
//!
//! Windows are aligned to multiples of their length on the wall clock and carry their start. Of a counter the rates between successive values are
//! folded, each in the window of its later value; a reset counter counts from 0. Gaps are not counted, and no rate spans one, because another file
//! may have counted before it. A window in which a counter continues after a gap has no last value if the window before has one, so that nobody
//! computes a rate across the gap from window to window. A window without samples is not stored; a shortened one has a smaller count.

use std::collections::HashMap;
use std::sync::Arc;

use wholegrain_model::{Kind, Schema, Value, ValueType};
use wholegrain_transport::payload::Rows;

use crate::engine::accumulate::{FOLDED, Folded, QUANTILE_VALUES_MAX};
use crate::engine::ring::RowCopy;
use crate::engine::{Accumulated, Group};

const NS_PER_S: f64 = 1e9;

/// Rows of windows that are encoded together.
#[derive(Debug, Default)]
pub struct WindowRows {
    pub times: Vec<i64>,
    sensors: usize,
    values: Vec<u64>,
    gaps: Vec<u64>,
}

impl WindowRows {
    fn begin(&mut self, start: i64) -> WindowRow<'_> {
        let words = self.sensors.div_ceil(64);
        self.times.push(start);
        let (value, gap) = (self.values.len(), self.gaps.len());
        self.values.resize(value + self.sensors, 0);
        self.gaps.resize(gap + words, u64::MAX);
        WindowRow { values: &mut self.values[value..], gaps: &mut self.gaps[gap..] }
    }

    pub fn clear(&mut self) {
        self.times.clear();
        self.values.clear();
        self.gaps.clear();
    }
}

impl Rows for WindowRows {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        self.values[sample * self.sensors + sensor]
    }

    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.gaps[sample * self.sensors.div_ceil(64) + sensor / 64] >> (sensor % 64) & 1 == 1
    }
}

struct WindowRow<'a> {
    values: &'a mut [u64],
    gaps: &'a mut [u64],
}

impl WindowRow<'_> {
    fn set(&mut self, index: usize, bits: u64) {
        self.values[index] = bits;
        self.gaps[index / 64] &= !(1 << (index % 64));
    }

    fn set_float(&mut self, index: usize, value: f64) {
        self.set(index, value.to_bits());
    }
}

/// One sensor's open window.
#[derive(Debug, Clone)]
struct WindowSeries {
    min: f64,
    max: f64,
    /// Of a gauge the sum of its values, of a counter its increase; and the divisor of the mean: values, or seconds.
    sum: f64,
    weight: f64,
    count: u64,
    last: u64,
    /// A counter's previous value and its time; carried from window to window.
    before: Option<(i64, u64)>,
    /// A counter with a value has had a gap since; carried from window to window.
    interrupted: bool,
    /// The counter continued after a gap in this window.
    resumed: bool,
    /// Folded values, of which some are kept for the quantiles.
    folded: u32,
    kept: Vec<f64>,
}

impl WindowSeries {
    fn new(plan: &Accumulated) -> Self {
        let kept = if plan.quantiles.is_empty() {
            Vec::new()
        } else {
            Vec::with_capacity(QUANTILE_VALUES_MAX.min(plan.values()))
        };
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        let (before, interrupted, resumed) = (None, false, false);
        Self { min, max, sum: 0.0, weight: 0.0, count: 0, last: 0, before, interrupted, resumed, folded: 0, kept }
    }

    fn begin(&mut self) {
        self.kept.clear();
        // A window without a value has no last one anyway.
        let interrupted = self.interrupted && self.count > 0;
        let (kept, before) = (std::mem::take(&mut self.kept), self.before);
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        let resumed = false;
        *self =
            Self { min, max, sum: 0.0, weight: 0.0, count: 0, last: 0, before, interrupted, resumed, folded: 0, kept };
    }

    #[inline]
    fn gap(&mut self) {
        self.interrupted |= self.before.take().is_some();
    }

    #[inline]
    fn take(&mut self, time: i64, bits: u64, sensor: &Folded, plan: &Accumulated) {
        let value = Value::from_bits(bits, sensor.value_type);
        if sensor.value_type == ValueType::Float && value.as_f64().is_nan() {
            return;
        }
        self.count += 1;
        self.last = bits;
        if sensor.kind == Kind::Gauge {
            let value = value.as_f64() * sensor.scale;
            self.sum += value;
            self.weight += 1.0;
            return self.fold(value, plan);
        }
        self.resumed |= std::mem::take(&mut self.interrupted);
        let Some((at, before)) = self.before.replace((time, bits)) else { return };
        let seconds = time.saturating_sub(at) as f64 / NS_PER_S;
        // The clock was stepped back: the duration is not known.
        if seconds <= 0.0 {
            return;
        }
        if let Some(went) = advance(Value::from_bits(before, sensor.value_type), value, sensor.wraps_at) {
            let went = went * sensor.scale;
            self.sum += went;
            self.weight += seconds;
            self.fold(went / seconds, plan);
        }
    }

    #[inline]
    fn fold(&mut self, value: f64, plan: &Accumulated) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        if !plan.quantiles.is_empty()
            && self.folded.is_multiple_of(plan.stride)
            && self.kept.len() < QUANTILE_VALUES_MAX
        {
            self.kept.push(value);
        }
        self.folded += 1;
    }

    /// Writes the results at index `at` and the following ones.
    fn put(&mut self, at: usize, quantiles: &[f64], row: &mut WindowRow<'_>) {
        row.set(at + 4, self.count);
        if self.count > 0 && !self.resumed {
            row.set(at + 3, self.last);
        }
        if self.folded == 0 {
            return;
        }
        row.set_float(at, self.min);
        row.set_float(at + 1, self.max);
        row.set_float(at + 2, self.sum / self.weight);
        for (index, quantile) in quantiles.iter().enumerate() {
            row.set_float(at + FOLDED + index, quantile_of(&mut self.kept, *quantile));
        }
    }
}

/// The quantile of at least one value, interpolated between the two nearest ones (Hyndman and Fan's type 7).
fn quantile_of(values: &mut [f64], quantile: f64) -> f64 {
    let at = (values.len() - 1) as f64 * quantile;
    let below = at.floor() as usize;
    let (_, low, above) = values.select_nth_unstable_by(below.min(values.len() - 1), f64::total_cmp);
    let low = *low;
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    low + (high - low) * at.fract()
}

/// The increase of a counter: over its modulus if that is at most half of it, else from 0 after a reset, as queries have it. `None` for a negative
/// value.
fn advance(before: Value, now: Value, wraps_at: Option<u64>) -> Option<f64> {
    match (before, now) {
        (Value::Int(before), Value::Int(now)) => {
            let went = i128::from(now) - i128::from(before);
            let modulus = wraps_at.map(i128::from).filter(|modulus| i128::from(before) < *modulus);
            match (went, modulus) {
                (0.., _) => Some(went as f64),
                _ if now < 0 => None,
                (_, Some(modulus)) if (went + modulus) * 2 <= modulus => Some((went + modulus) as f64),
                _ => Some(now as f64),
            }
        }
        (before, now) => {
            let (before, now) = (before.as_f64(), now.as_f64());
            let modulus = wraps_at.map(|modulus| modulus as f64).filter(|modulus| before < *modulus);
            match modulus {
                _ if now >= before => Some(now - before),
                _ if now < 0.0 => None,
                Some(modulus) if (now - before + modulus) * 2.0 <= modulus => Some(now - before + modulus),
                _ => Some(now),
            }
        }
    }
}

/// The open window of a group, and the closed ones that are not encoded.
#[derive(Debug)]
pub struct Fold {
    /// The group's id; groups that replace it have higher ones.
    pub group: u64,
    pub plan: Arc<Accumulated>,
    pub topic: Arc<str>,
    pub closed: WindowRows,
    /// Monotonic time of its last batch, or of its begin.
    pub sent_mono: i64,
    schema: Schema,
    open: Option<i64>,
    series: Vec<WindowSeries>,
}

impl Fold {
    /// For a new group; `None` if its samples are sent unfolded.
    pub fn new(group: &Group, now_mono: i64) -> Option<Self> {
        let plan = group.accumulated.clone()?;
        Some(Self {
            group: group.id,
            topic: group.topic.clone(),
            closed: WindowRows { sensors: plan.types.len(), ..WindowRows::default() },
            sent_mono: now_mono,
            schema: group.schema.clone(),
            open: None,
            series: vec![WindowSeries::new(&plan); plan.sensors.len()],
            plan,
        })
    }

    /// Folds a sample; one of another window closes the open window.
    pub fn take(&mut self, row: &RowCopy) {
        let start = row.time.div_euclid(self.plan.window_ns).saturating_mul(self.plan.window_ns);
        if self.open.is_some_and(|open| open != start) {
            self.close();
        }
        self.open = Some(start);
        let plan = &*self.plan;
        for (index, (series, sensor)) in self.series.iter_mut().zip(&plan.sensors).enumerate() {
            if row.gaps[index / 64] >> (index % 64) & 1 == 0 {
                series.take(row.time, row.values[index], sensor, plan);
            } else {
                series.gap();
            }
        }
    }

    /// Closes the open window.
    pub fn close(&mut self) {
        let Some(start) = self.open.take() else { return };
        let mut row = self.closed.begin(start);
        for (index, series) in self.series.iter_mut().enumerate() {
            series.put(index * self.plan.width(), &self.plan.quantiles, &mut row);
            series.begin();
        }
    }

    /// Continues as the group that replaces this one: the open window of each sensor that both have continues. The closed windows stay here, with the
    /// open window of the sensors that left.
    pub fn hand_over(&mut self, group: &Group, now_mono: i64) -> Option<Self> {
        let mut next = Self::new(group, now_mono)?;
        if (next.plan.window_ns, &next.plan.quantiles) != (self.plan.window_ns, &self.plan.quantiles) {
            self.close();
            return Some(next);
        }
        let own = self.schema.sensors().iter().enumerate();
        let places: HashMap<&str, usize> = own.map(|(index, sensor)| (sensor.name.as_str(), index)).collect();
        let mut left = vec![true; self.series.len()];
        for (sensor, series) in group.schema.sensors().iter().zip(&mut next.series) {
            if let Some(&index) = places.get(sensor.name.as_str())
                && self.schema.sensors()[index] == *sensor
            {
                left[index] = false;
                std::mem::swap(series, &mut self.series[index]);
            }
        }
        next.open = self.open;
        if let Some(start) = self.open.take()
            && left.iter().zip(&self.series).any(|(left, series)| *left && series.count > 0)
        {
            let mut row = self.closed.begin(start);
            for (index, series) in self.series.iter_mut().enumerate().filter(|(index, _)| left[*index]) {
                series.put(index * self.plan.width(), &self.plan.quantiles, &mut row);
            }
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests;
