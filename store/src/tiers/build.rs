//! From the readings of one sensor to the windows of every tier, in one pass: the finest from readings, each other from the one before.

use wholegrain_model::{Column, ColumnValues, Gaps, ValueType};

use super::{Rows, Windows, floor};

/// What integers and floats do differently.
pub(crate) trait Number: Copy + Default {
    /// Whether it is a value at all.
    fn counts(self) -> bool;
    /// Whether `self` is less.
    fn less(self, other: Self) -> bool;
    /// Adds to a sum that keeps in `lost` what it rounds away; `false`, and nothing changed, when it does not fit.
    fn add(sum: &mut Self, lost: &mut Self, value: Self) -> bool;
    /// The sum as it is stored.
    fn total(sum: Self, lost: Self) -> Self;
    /// The sum of values without gaps, when it is exact and fits all the way.
    fn sum_of(values: &[Self]) -> Option<Self>;
}

impl Number for i64 {
    fn counts(self) -> bool {
        true
    }
    fn less(self, other: Self) -> bool {
        self < other
    }
    fn add(sum: &mut Self, _lost: &mut Self, value: Self) -> bool {
        sum.checked_add(value).map(|total| *sum = total).is_some()
    }
    fn total(sum: Self, _lost: Self) -> Self {
        sum
    }
    fn sum_of(values: &[Self]) -> Option<Self> {
        values.iter().try_fold(0i64, |sum, value| sum.checked_add(*value))
    }
}

impl Number for f64 {
    fn counts(self) -> bool {
        !self.is_nan()
    }
    fn less(self, other: Self) -> bool {
        self < other
    }
    /// Neumaier's variant of compensated summation, as queries over readings use it.
    fn add(sum: &mut Self, lost: &mut Self, value: Self) -> bool {
        let next = *sum + value;
        if next.is_finite() {
            *lost += if sum.abs() >= value.abs() { (*sum - next) + value } else { (value - next) + *sum };
        }
        *sum = next;
        true
    }
    fn total(sum: Self, lost: Self) -> Self {
        if sum.is_finite() { sum + lost } else { sum }
    }
    fn sum_of(_values: &[Self]) -> Option<Self> {
        None
    }
}

/// A window being filled.
#[derive(Debug, Clone, Copy)]
struct Open<T> {
    start: i64,
    count: i64,
    min: T,
    max: T,
    sum: T,
    lost: T,
    first: T,
    last: T,
}

#[derive(Debug)]
struct Level<T> {
    resolution: i64,
    open: Option<Open<T>>,
    rows: Rows<T>,
}

/// The tiers of one sensor.
#[derive(Debug)]
pub(crate) struct Builder<T> {
    levels: Vec<Level<T>>,
}

impl<T: Number> Open<T> {
    fn of(start: i64, value: T) -> Self {
        let mut open = Self {
            start,
            count: 1,
            min: value,
            max: value,
            sum: T::default(),
            lost: T::default(),
            first: value,
            last: value,
        };
        T::add(&mut open.sum, &mut open.lost, value);
        open
    }

    /// Takes a later part of the same window; `false`, and nothing changed, when the sum would not fit.
    fn absorb(&mut self, part: &Self) -> bool {
        let (mut sum, mut lost) = (self.sum, self.lost);
        if !T::add(&mut sum, &mut lost, part.sum) || !T::add(&mut sum, &mut lost, part.lost) {
            return false;
        }
        (self.sum, self.lost) = (sum, lost);
        self.count += part.count;
        if part.min.less(self.min) {
            self.min = part.min;
        }
        if self.max.less(part.max) {
            self.max = part.max;
        }
        self.last = part.last;
        true
    }
}

impl<T: Number> Builder<T> {
    pub fn new(resolutions: &[i64]) -> Self {
        let level = |resolution: &i64| Level { resolution: *resolution, open: None, rows: Rows::default() };
        Self { levels: resolutions.iter().map(level).collect() }
    }

    /// The next readings of the sensor.
    fn push(&mut self, times: &[i64], values: &[T], gaps: &Gaps) {
        let Some(resolution) = self.levels.first().map(|level| level.resolution) else { return };
        let mut at = 0;
        while at < times.len() {
            let start = floor(times[at], resolution);
            let end = start.saturating_add(resolution);
            let mut next = at + 1;
            while next < times.len() && times[next] < end {
                next += 1;
            }
            let whole = if gaps.0.is_empty() { summary(start, &values[at..next]) } else { None };
            match whole {
                Some(part) => self.take(0, part),
                None => (at..next)
                    .filter(|&row| !gaps.is_gap(row) && values[row].counts())
                    .for_each(|row| self.take(0, Open::of(start, values[row]))),
            }
            at = next;
        }
    }

    /// Adds a part of a window to a level.
    fn take(&mut self, level: usize, part: Open<T>) {
        if let Some(open) = &mut self.levels[level].open {
            if open.start == part.start && open.absorb(&part) {
                return;
            }
            self.close(level);
        }
        self.levels[level].open = Some(part);
    }

    /// Writes a level's window and hands it on to the next.
    fn close(&mut self, level: usize) {
        let Some(open) = self.levels[level].open.take() else { return };
        let rows = &mut self.levels[level].rows;
        rows.times.push(open.start);
        rows.counts.push(open.count);
        rows.mins.push(open.min);
        rows.maxs.push(open.max);
        rows.sums.push(T::total(open.sum, open.lost));
        rows.firsts.push(open.first);
        rows.lasts.push(open.last);
        if let Some(coarser) = self.levels.get(level + 1) {
            let start = floor(open.start, coarser.resolution);
            self.take(level + 1, Open { start, ..open });
        }
    }

    fn give_back(&mut self, level: usize, mut rows: Rows<T>) {
        rows.clear();
        self.levels[level].rows = rows;
    }

    /// Ends the sensor: the rows of each level.
    fn finish(&mut self) -> Vec<Rows<T>> {
        (0..self.levels.len()).for_each(|level| self.close(level));
        self.levels.iter_mut().map(|level| std::mem::take(&mut level.rows)).collect()
    }
}

/// Of integers without gaps, at once.
fn summary<T: Number>(start: i64, values: &[T]) -> Option<Open<T>> {
    let (first, last) = (*values.first()?, *values.last()?);
    let sum = T::sum_of(values)?;
    let (mut min, mut max) = (first, first);
    for &value in values {
        if value.less(min) {
            min = value;
        }
        if max.less(value) {
            max = value;
        }
    }
    let count = i64::try_from(values.len()).ok()?;
    Some(Open { start, count, min, max, sum, lost: T::default(), first, last })
}

/// Either.
#[derive(Debug)]
pub(crate) enum AnyBuilder {
    Int(Builder<i64>),
    Float(Builder<f64>),
}

impl AnyBuilder {
    pub fn new(value_type: ValueType, resolutions: &[i64]) -> Self {
        match value_type {
            ValueType::Int => AnyBuilder::Int(Builder::new(resolutions)),
            ValueType::Float => AnyBuilder::Float(Builder::new(resolutions)),
        }
    }

    /// The next readings of the sensor; those of another type than the builder's are not taken.
    pub fn push(&mut self, times: &[i64], column: &Column) {
        match (self, &column.values) {
            (AnyBuilder::Int(builder), ColumnValues::Int(values)) => builder.push(times, values, &column.gaps),
            (AnyBuilder::Float(builder), ColumnValues::Float(values)) => builder.push(times, values, &column.gaps),
            _ => {}
        }
    }

    /// Gives back what [`AnyBuilder::finish`] gave, for the memory.
    pub fn give_back(&mut self, windows: Vec<Windows>) {
        for (level, mut windows) in windows.into_iter().enumerate() {
            match (&mut *self, &mut windows) {
                (AnyBuilder::Int(builder), Windows::Int(rows)) => builder.give_back(level, std::mem::take(rows)),
                (AnyBuilder::Float(builder), Windows::Float(rows)) => builder.give_back(level, std::mem::take(rows)),
                _ => {}
            }
        }
    }

    /// The rows of each tier, finest first; the next sensor may begin.
    pub fn finish(&mut self) -> Vec<Windows> {
        match self {
            AnyBuilder::Int(builder) => builder.finish().into_iter().map(Windows::Int).collect(),
            AnyBuilder::Float(builder) => builder.finish().into_iter().map(Windows::Float).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::Value;

    fn ints(times: &[i64], values: &[i64], gaps: &[usize]) -> Vec<Windows> {
        let mut builder = AnyBuilder::new(ValueType::Int, &[10, 100]);
        let mut column = Column { values: ColumnValues::Int(values.to_vec()), gaps: Gaps::default() };
        gaps.iter().for_each(|gap| column.gaps.set(*gap, times.len()));
        builder.push(times, &column);
        builder.finish()
    }

    #[test]
    fn windows_of_every_tier() {
        let tiers = ints(&[-1, 0, 3, 9, 10, 95, 100], &[7, 5, 1, 3, 9, -4, 2], &[3]);
        let Windows::Int(fine) = &tiers[0] else { panic!("type") };
        assert_eq!(fine.times, [-10, 0, 10, 90, 100]);
        assert_eq!(fine.counts, [1, 2, 1, 1, 1]);
        assert_eq!((&fine.mins[1], &fine.maxs[1], &fine.sums[1]), (&1, &5, &6));
        assert_eq!((&fine.firsts[1], &fine.lasts[1]), (&5, &1), "the gap is no last value");
        let Windows::Int(coarse) = &tiers[1] else { panic!("type") };
        assert_eq!((&coarse.times[..], &coarse.counts[..]), (&[-100, 0, 100][..], &[1, 4, 1][..]));
        assert_eq!((coarse.mins[1], coarse.maxs[1], coarse.sums[1], coarse.lasts[1]), (-4, 9, 11, -4));
    }

    #[test]
    fn a_sum_that_does_not_fit_makes_two_rows_of_one_window() {
        let tiers = ints(&[0, 1, 2], &[i64::MAX, i64::MAX, -5], &[]);
        for tier in &tiers {
            let rows: Vec<_> = (0..tier.len()).map(|at| tier.get(at)).collect();
            let sum: i128 =
                rows.iter().map(|row| if let Value::Int(sum) = row.sum { i128::from(sum) } else { 0 }).sum();
            assert_eq!(sum, 2 * i128::from(i64::MAX) - 5);
            assert!(rows.len() > 1 && rows.iter().all(|row| row.time == 0));
            assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 3);
        }
    }

    #[test]
    fn nan_is_no_value_and_infinities_stay() {
        let mut builder = AnyBuilder::new(ValueType::Float, &[10]);
        let values = vec![f64::NAN, 1e100, 1.0, -1e100, f64::INFINITY];
        let column = Column { values: ColumnValues::Float(values), gaps: Gaps::default() };
        builder.push(&[0, 1, 2, 3, 11], &column);
        let Windows::Float(rows) = &builder.finish()[0] else { panic!("type") };
        assert_eq!((rows.counts[0], rows.sums[0], rows.firsts[0]), (3, 1.0, 1e100));
        assert_eq!(rows.sums[1], f64::INFINITY);
        assert!(builder.finish()[0].is_empty(), "the next sensor begins with nothing");
    }
}
