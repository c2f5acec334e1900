//! Functions along time on a grid. A state takes the points in order. Its result at a point depends exactly on the points within its reach, not on the
//! point where it began.

use super::super::ast::Along;
use crate::line_segment::NS_PER_S;
use crate::query::Agg;

/// The most points of one moving window.
pub(super) const WINDOW_POINTS_MAX: i64 = 1 << 20;

/// The number of points in a window that ends at a point.
pub(super) fn window_points(window_ns: i64, grid: i64) -> i64 {
    (window_ns / grid + i64::from(window_ns % grid != 0)).max(1)
}

/// The first point that the value at `point` depends on.
pub(super) fn first_needed(along: Along, grid: i64, point: i64) -> i64 {
    match along {
        Along::Rate | Along::Delta => point - 1,
        Along::Moving(_, window) => point - (window_points(ns(window), grid) - 1),
        Along::Integral(period) => {
            let (time, period) = (point * grid, ns(period).max(1));
            (time - time.rem_euclid(period)).div_euclid(grid)
        }
    }
}

/// The longest distance back, ns.
pub(super) fn back_ns(along: Along, grid: i64) -> i64 {
    match along {
        Along::Rate | Along::Delta => grid,
        Along::Moving(_, window) => ns(window).saturating_add(grid),
        Along::Integral(period) => ns(period).saturating_add(grid),
    }
}

pub(super) fn ns(interval: wholegrain_model::Interval) -> i64 {
    i64::try_from(interval.ns()).unwrap_or(i64::MAX / 4)
}

#[derive(Debug, Clone)]
pub(super) struct TrailingState {
    grid: i64,
    /// The point after the last one taken.
    next: Option<i64>,
    before: f64,
    kind: TrailingKind,
}

#[derive(Debug, Clone)]
enum TrailingKind {
    /// Differences, divided by this many seconds.
    Difference(f64),
    Integral {
        period: i64,
        total: f64,
    },
    Moving(Box<TrailingWindow>),
}

impl TrailingState {
    pub(crate) fn new(along: Along, grid: i64) -> Self {
        let kind = match along {
            Along::Rate => TrailingKind::Difference(grid as f64 / NS_PER_S),
            Along::Delta => TrailingKind::Difference(1.0),
            Along::Integral(period) => TrailingKind::Integral { period: ns(period).max(1), total: 0.0 },
            Along::Moving(agg, window) => {
                TrailingKind::Moving(Box::new(TrailingWindow::new(agg, window_points(ns(window), grid))))
            }
        };
        Self { grid, next: None, before: f64::NAN, kind }
    }

    /// Replaces the values from `point` on by the results. Points between two calls have no value.
    pub fn run(&mut self, point: i64, values: &mut [f64]) {
        if self.next.replace(point + values.len() as i64) != Some(point) {
            self.before = f64::NAN;
        }
        for (at, value) in values.iter_mut().enumerate() {
            let new = *value;
            *value = super::grid::finite(match &mut self.kind {
                TrailingKind::Difference(seconds) => (new - self.before) / *seconds,
                TrailingKind::Integral { period, total } => {
                    let time = (point + at as i64) * self.grid;
                    step(total, *period, self.grid, time, self.before, new)
                }
                TrailingKind::Moving(window) => window.step(point + at as i64, new),
            });
            self.before = new;
        }
    }
}

/// One step of an integral; a gap if the operand is a gap.
fn step(total: &mut f64, period: i64, grid: i64, time: i64, before: f64, new: f64) -> f64 {
    let since = time.rem_euclid(period);
    if since < grid {
        // The period began after the previous point: the line counts from the begin on.
        let part = since as f64 / grid as f64;
        let at_start = new + (before - new) * part;
        *total = 0.0;
        if since > 0 && !at_start.is_nan() {
            *total = (at_start + new) / 2.0 * (since as f64 / NS_PER_S);
        }
    } else if !before.is_nan() && !new.is_nan() {
        *total += (before / 2.0 + new / 2.0) * (grid as f64 / NS_PER_S);
    }
    if new.is_nan() { f64::NAN } else { *total }
}

/// The aggregate of a part of a window.
#[derive(Debug, Clone, Copy)]
struct SumPart {
    value: f64,
    count: u32,
}

const NOTHING: SumPart = SumPart { value: 0.0, count: 0 };

/// An aggregate over the last points, in constant time for each point and without accumulating errors. Points form blocks of the window's length, at
/// multiples of it, so that each window is the end of one block and the begin of the next.
#[derive(Debug, Clone)]
struct TrailingWindow {
    agg: Agg,
    points: i64,
    /// The number of the block being filled.
    block: Option<i64>,
    values: Vec<f64>,
    /// The aggregate of `values`.
    begun: SumPart,
    /// The aggregates of the previous block from each of its points to its end.
    ends: Vec<SumPart>,
}

impl TrailingWindow {
    fn new(agg: Agg, points: i64) -> Self {
        Self { agg, points, block: None, values: Vec::new(), begun: NOTHING, ends: Vec::new() }
    }

    fn join(&self, left: SumPart, right: SumPart) -> SumPart {
        if left.count == 0 || right.count == 0 {
            return if left.count == 0 { right } else { left };
        }
        let value = match self.agg {
            Agg::Sum | Agg::Mean | Agg::SampleMean | Agg::Count => left.value + right.value,
            Agg::Min => left.value.min(right.value),
            Agg::Max => left.value.max(right.value),
            Agg::First => left.value,
            Agg::Last => right.value,
        };
        SumPart { value, count: left.count + right.count }
    }

    /// Begins a block. Keeps the previous one if it directly precedes it.
    fn turn(&mut self, block: i64) {
        self.ends.clear();
        if self.block.is_some_and(|before| before + 1 == block) {
            let mut end = NOTHING;
            self.ends.resize(self.values.len(), NOTHING);
            for at in (0..self.values.len()).rev() {
                end = self.join(part(self.values[at]), end);
                self.ends[at] = end;
            }
        }
        self.block = Some(block);
        self.values.clear();
        self.begun = NOTHING;
    }

    fn step(&mut self, point: i64, value: f64) -> f64 {
        let (block, place) = (point.div_euclid(self.points), point.rem_euclid(self.points) as usize);
        if self.block != Some(block) {
            self.turn(block);
        }
        // Skipped points have no value.
        self.values.resize(place, f64::NAN);
        self.values.push(value);
        self.begun = self.join(self.begun, part(value));
        if value.is_nan() {
            return f64::NAN;
        }
        let end = self.ends.get(place + 1).copied().unwrap_or(NOTHING);
        let whole = self.join(end, self.begun);
        match self.agg {
            Agg::Mean | Agg::SampleMean => whole.value / f64::from(whole.count),
            Agg::Count => f64::from(whole.count),
            _ => whole.value,
        }
    }
}

fn part(value: f64) -> SumPart {
    if value.is_nan() { NOTHING } else { SumPart { value, count: 1 } }
}
