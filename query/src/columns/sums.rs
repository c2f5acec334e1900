//! Aggregates several series: at each time, the values of all of them.

use wholegrain_model::{Column, ColumnValues, Gaps, Value};
use wholegrain_store::Chunk;

use super::{ChunkBuilder, without_gaps};
use crate::float_sum::FloatSum;
use crate::query::Agg;

/// The aggregate of each time so far. The caller bounds the number of times.
#[derive(Debug, Clone)]
pub(crate) struct SeriesSums {
    agg: Agg,
    /// The times of all rows, gaps included, ascending.
    times: Vec<i64>,
    /// Numbers of series with a value, by time.
    counts: Vec<u32>,
    totals: SumTotals,
}

#[derive(Debug, Clone)]
enum SumTotals {
    None,
    Ints(Vec<i128>),
    Floats(Vec<FloatSum>),
    BestInts(Vec<i64>),
    BestFloats(Vec<f64>),
}

impl SeriesSums {
    /// Sums of integers if `exact`, else of floats. First and last are not defined over series and count as [`Agg::Count`].
    pub fn new(agg: Agg, exact: bool) -> Self {
        let totals = match (agg, exact) {
            (Agg::Count | Agg::First | Agg::Last | Agg::SampleMean, _) => SumTotals::None,
            (Agg::Mean | Agg::Sum, true) => SumTotals::Ints(Vec::new()),
            (Agg::Mean | Agg::Sum, false) => SumTotals::Floats(Vec::new()),
            (Agg::Min | Agg::Max, true) => SumTotals::BestInts(Vec::new()),
            (Agg::Min | Agg::Max, false) => SumTotals::BestFloats(Vec::new()),
        };
        Self { agg, times: Vec::new(), counts: Vec::new(), totals }
    }

    /// The number of times.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Adds rows of one series. `cursor` begins at 0 for each series; pass the same one with each chunk.
    pub fn add(&mut self, chunk: &Chunk, cursor: &mut usize) {
        let Some(place) = self.place(&chunk.times, cursor) else { return };
        let Column { values, gaps } = &chunk.column;
        let agg = self.agg;
        match (&mut self.totals, values) {
            (SumTotals::None, values) => {
                let counts = &mut self.counts;
                place.each(values, gaps, |at, _: Value| counts[at] += 1);
            }
            (SumTotals::Ints(totals), ColumnValues::Int(values)) => {
                place.each_of(values, gaps, &mut self.counts, totals, |total, value| *total += i128::from(*value));
            }
            (SumTotals::Floats(totals), ColumnValues::Float(values)) => {
                place.each_of(values, gaps, &mut self.counts, totals, |total, value| total.add(*value));
            }
            (SumTotals::BestInts(totals), ColumnValues::Int(values)) => {
                place.each_of(values, gaps, &mut self.counts, totals, |total, value| {
                    *total = if agg == Agg::Min { (*total).min(*value) } else { (*total).max(*value) };
                });
            }
            (SumTotals::BestFloats(totals), ColumnValues::Float(values)) => {
                place.each_of(values, gaps, &mut self.counts, totals, |total, value| {
                    if is_better(agg, value, total) || total.is_nan() {
                        *total = *value;
                    }
                });
            }
            // All series have the type of the result.
            _ => {}
        }
    }

    /// Adds the sums of other series. Merge in the order of the series: then sums of floats do not depend on the threads.
    pub fn merge(&mut self, other: &SeriesSums) {
        let mut cursor = 0;
        let Some(place) = self.place(&other.times, &mut cursor) else { return };
        for row in 0..other.times.len() {
            let at = place.at(row);
            let empty = self.counts[at] == 0;
            self.counts[at] += other.counts[row];
            if other.counts[row] == 0 {
                continue;
            }
            match (&mut self.totals, &other.totals) {
                (SumTotals::Ints(to), SumTotals::Ints(from)) => to[at] += from[row],
                (SumTotals::Floats(to), SumTotals::Floats(from)) => {
                    to[at].add(from[row].sum);
                    to[at].lost += from[row].lost;
                }
                (SumTotals::BestInts(to), SumTotals::BestInts(from))
                    if empty || is_better(self.agg, &from[row], &to[at]) =>
                {
                    to[at] = from[row];
                }
                (SumTotals::BestFloats(to), SumTotals::BestFloats(from))
                    if empty || is_better(self.agg, &from[row], &to[at]) =>
                {
                    to[at] = from[row];
                }
                _ => {}
            }
        }
    }

    /// The rows, null where no series has a value, with the number of series that have one.
    pub fn finish(self, exact: bool) -> Option<(Chunk, Vec<u32>)> {
        let mut out = ChunkBuilder::new(exact);
        let float = |value: f64| (!value.is_nan()).then_some(Value::Float(value));
        for (row, (&time, &count)) in self.times.iter().zip(&self.counts).enumerate() {
            let of = |total: f64| float(if self.agg == Agg::Mean { total / f64::from(count) } else { total });
            let value = match &self.totals {
                SumTotals::None if exact => Some(Value::Int(i64::from(count))),
                SumTotals::None => Some(Value::Float(f64::from(count))),
                _ if count == 0 => None,
                SumTotals::Ints(totals) => of(totals[row] as f64),
                SumTotals::Floats(totals) => of(totals[row].total()),
                SumTotals::BestInts(totals) => Some(Value::Int(totals[row])),
                SumTotals::BestFloats(totals) => float(totals[row]),
            };
            out.push(time, value);
        }
        out.take().map(|chunk| (chunk, self.counts))
    }

    /// The positions of rows with these times; inserts new times.
    fn place(&mut self, times: &[i64], cursor: &mut usize) -> Option<InsertPosition> {
        let (first, last) = (*times.first()?, *times.last()?);
        let end = self.times.len();
        if self.times.last().is_none_or(|known| *known < first) {
            self.times.extend_from_slice(times);
            self.resize();
            *cursor = self.times.len();
            return Some(InsertPosition::Run(end));
        }
        let mut at = (*cursor).min(end);
        if self.times.get(at) != Some(&first) {
            at = self.times.partition_point(|time| *time < first);
        }
        *cursor = at + times.len();
        if self.times.get(at..at + times.len()) == Some(times) {
            return Some(InsertPosition::Run(at));
        }
        let until = self.times.partition_point(|time| *time <= last);
        let (places, all) = unite(&self.times[at..until], times, at);
        if all.len() > until - at {
            self.insert(at, until, &all);
        }
        *cursor = places.last().map_or(at, |place| *place as usize + 1);
        Some(InsertPosition::Each(places))
    }

    /// Replaces the times `from..to` by `all`, which include them.
    fn insert(&mut self, from: usize, to: usize, all: &[i64]) {
        let mut kept = self.times[from..to].iter().peekable();
        let mut sources: Vec<Option<usize>> = Vec::with_capacity(all.len());
        let mut next = from;
        for time in all {
            let known = kept.next_if_eq(&time).is_some();
            sources.push(known.then_some(next));
            next += usize::from(known);
        }
        self.times.splice(from..to, all.iter().copied());
        spread(&mut self.counts, from, to, &sources, 0);
        match &mut self.totals {
            SumTotals::None => {}
            SumTotals::Ints(totals) => spread(totals, from, to, &sources, 0),
            SumTotals::Floats(totals) => spread(totals, from, to, &sources, FloatSum::default()),
            SumTotals::BestInts(totals) => spread(totals, from, to, &sources, worst(self.agg)),
            SumTotals::BestFloats(totals) => spread(totals, from, to, &sources, f64::NAN),
        }
    }

    fn resize(&mut self) {
        let len = self.times.len();
        self.counts.resize(len, 0);
        match &mut self.totals {
            SumTotals::None => {}
            SumTotals::Ints(totals) => totals.resize(len, 0),
            SumTotals::Floats(totals) => totals.resize(len, FloatSum::default()),
            SumTotals::BestInts(totals) => totals.resize(len, worst(self.agg)),
            SumTotals::BestFloats(totals) => totals.resize(len, f64::NAN),
        }
    }
}

/// Whether a value replaces another as minimum or maximum.
fn is_better<T: PartialOrd>(agg: Agg, new: &T, old: &T) -> bool {
    if agg == Agg::Min { new < old } else { new > old }
}

/// The integer that loses against every other.
fn worst(agg: Agg) -> i64 {
    if agg == Agg::Min { i64::MAX } else { i64::MIN }
}

/// Both lists of rising times as one, and where in it (from `base` on) those of the second are.
fn unite(known: &[i64], times: &[i64], base: usize) -> (Vec<u32>, Vec<i64>) {
    let mut all = Vec::with_capacity(known.len() + times.len());
    let mut places = Vec::with_capacity(times.len());
    let mut known = known.iter().copied().peekable();
    for time in times {
        while let Some(before) = known.next_if(|known| known < time) {
            all.push(before);
        }
        known.next_if_eq(time);
        places.push((base + all.len()) as u32);
        all.push(*time);
    }
    all.extend(known);
    (places, all)
}

/// Replaces the values `from..to`: each by the value at its source, or `fresh`.
fn spread<T: Copy>(values: &mut Vec<T>, from: usize, to: usize, sources: &[Option<usize>], fresh: T) {
    let new: Vec<T> = sources.iter().map(|source| source.map_or(fresh, |at| values[at])).collect();
    values.splice(from..to, new);
}

/// The positions of the rows of a chunk.
enum InsertPosition {
    /// Consecutive from here on.
    Run(usize),
    /// One position for each row.
    Each(Vec<u32>),
}

impl InsertPosition {
    fn at(&self, row: usize) -> usize {
        match self {
            InsertPosition::Run(from) => from + row,
            InsertPosition::Each(places) => places[row] as usize,
        }
    }

    /// Calls `take` with each value except gaps and NaN.
    fn each(&self, values: &ColumnValues, gaps: &Gaps, mut take: impl FnMut(usize, Value)) {
        let rows = match values {
            ColumnValues::Int(values) => values.len(),
            ColumnValues::Float(values) => values.len(),
        };
        without_gaps(gaps, 0, rows, |from, to| match values {
            ColumnValues::Int(values) => (from..to).for_each(|row| take(self.at(row), Value::Int(values[row]))),
            ColumnValues::Float(values) => {
                let numbers = (from..to).filter(|row| !values[*row].is_nan());
                numbers.for_each(|row| take(self.at(row), Value::Float(values[row])));
            }
        });
    }

    /// Adds each value to its total, except gaps and NaN.
    fn each_of<T, V: PartialEq>(
        &self,
        values: &[V],
        gaps: &Gaps,
        counts: &mut [u32],
        totals: &mut [T],
        take: impl Fn(&mut T, &V),
    ) {
        // Only NaN differs from itself.
        #[expect(clippy::eq_op, reason = "finds NaN in floats; always true for integers")]
        let is_number = |value: &V| value == value;
        without_gaps(gaps, 0, values.len(), |from, to| match self {
            InsertPosition::Run(at) => {
                let rows = at + from..at + to;
                let totals = counts[rows.clone()].iter_mut().zip(&mut totals[rows]);
                for ((count, total), value) in totals.zip(&values[from..to]) {
                    if is_number(value) {
                        take(total, value);
                        *count += 1;
                    }
                }
            }
            InsertPosition::Each(places) => {
                for (place, value) in places[from..to].iter().zip(&values[from..to]) {
                    if is_number(value) {
                        take(&mut totals[*place as usize], value);
                        counts[*place as usize] += 1;
                    }
                }
            }
        });
    }
}
