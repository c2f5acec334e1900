//! Aggregates readings and windows of tiers: one value for each window that has values.

use wholegrain_model::Column;
use wholegrain_store::{ScanPart, TierWindows};

use super::fold::ValueFold;
use super::{ChunkBuilder, FoldedWindows, WindowFold};
use crate::error::QueryError;
use crate::query::Agg;
use crate::scale::Scale;
use crate::windows::Windows;

/// How windows are aggregated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowAggregation {
    pub windows: Windows,
    pub agg: Agg,
    pub scale: Scale,
    pub exact: bool,
}

/// Aggregates the parts of one sensor.
pub(crate) struct WindowAggregator {
    aggregation: WindowAggregation,
    open: Option<OpenWindow>,
    out: ChunkBuilder,
}

struct OpenWindow {
    start: i64,
    end: i64,
    fold: ValueFold,
}

enum WindowInput<'a> {
    Readings(&'a Column),
    Windows(&'a TierWindows),
}

impl WindowAggregator {
    pub(crate) fn of<I>(parts: I, aggregation: WindowAggregation) -> FoldedWindows<I, Self> {
        FoldedWindows::new(parts, Self { aggregation, open: None, out: ChunkBuilder::new(aggregation.exact) })
    }

    fn rows(&mut self, times: &[i64], from: &WindowInput) {
        let mut at = 0;
        while let Some(time) = times.get(at) {
            let open = self.window_of(*time);
            let end = at + run(&times[at..], open.end);
            match from {
                WindowInput::Readings(column) => open.fold.readings(column, at, end),
                WindowInput::Windows(windows) => open.fold.windows(windows, at, end),
            }
            at = end;
        }
    }

    /// The window that contains `time`; closes the previous one.
    fn window_of(&mut self, time: i64) -> &mut OpenWindow {
        let WindowAggregation { windows, agg, scale, .. } = self.aggregation;
        let mut at = None;
        if let Some(open) = &self.open {
            // At `i64::MAX` a window includes its end.
            if time >= open.end && open.start != windows.start(time) {
                at = windows.next(open.end, time);
                self.close();
            }
        }
        self.open.get_or_insert_with(|| {
            let (start, end) = at.unwrap_or_else(|| (windows.start(time), windows.end(time)));
            OpenWindow { start, end, fold: ValueFold::new(agg, scale) }
        })
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take().filter(|open| !open.fold.is_empty()) {
            self.out.push(open.start, open.fold.finish(self.aggregation.scale, self.aggregation.exact));
        }
    }
}

/// The number of leading `times` before `end`, at least one.
pub(super) fn run(times: &[i64], end: i64) -> usize {
    let (Some(first), Some(second)) = (times.first(), times.get(1)) else { return times.len() };
    if *second >= end {
        return 1;
    }
    // Usually they are evenly spaced.
    let step = second.saturating_sub(*first).max(1);
    let guess = usize::try_from(end.saturating_sub(*first).saturating_sub(1) / step).unwrap_or(usize::MAX);
    let guess = guess.saturating_add(1).min(times.len());
    if times[guess - 1] < end {
        if times.get(guess).is_none_or(|next| *next >= end) {
            return guess;
        }
        return guess + times[guess..].partition_point(|time| *time < end);
    }
    times[..guess].partition_point(|time| *time < end).max(1)
}

impl WindowFold<ScanPart> for WindowAggregator {
    fn take(&mut self, part: ScanPart) -> Result<(), QueryError> {
        match part {
            ScanPart::Readings(chunk) => self.rows(&chunk.times, &WindowInput::Readings(&chunk.column)),
            ScanPart::Windows(windows) => self.rows(windows.times(), &WindowInput::Windows(&windows)),
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), QueryError> {
        self.close();
        Ok(())
    }

    fn out(&mut self) -> &mut ChunkBuilder {
        &mut self.out
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::Value;
    use wholegrain_store::Chunk;

    use super::*;

    type Rows = Vec<(i64, Option<Value>)>;

    /// Rows in chunks of `pieces` rows, integers and floats separately.
    fn parts(rows: &[(i64, Option<Value>)], pieces: usize) -> Vec<Result<ScanPart, QueryError>> {
        let is_float = |row: &(i64, Option<Value>)| matches!(row.1, Some(Value::Float(_)));
        let runs = rows.chunk_by(|a, b| is_float(a) == is_float(b));
        let chunk = |rows: &[(i64, Option<Value>)]| {
            let mut chunk = ChunkBuilder::new(!is_float(&rows[0]));
            rows.iter().for_each(|(time, value)| chunk.push(*time, *value));
            Ok(ScanPart::Readings(chunk.take().unwrap()))
        };
        runs.flat_map(|run| run.chunks(pieces)).map(chunk).collect()
    }

    #[track_caller]
    fn check(windows: Windows, agg: Agg, scale: f64, exact: bool, input: &Rows, expected: &Rows) {
        for pieces in [1, 2, 100] {
            let aggregation = WindowAggregation { windows, agg, scale: Scale::new(scale), exact };
            let found = WindowAggregator::of(parts(input, pieces).into_iter(), aggregation).map(Result::unwrap);
            let rows = |chunk: Chunk| -> Rows {
                (0..chunk.times.len()).map(|row| (chunk.times[row], chunk.column.get(row))).collect()
            };
            let found: Rows = found.flat_map(rows).collect();
            assert_eq!(found, *expected, "{agg}");
        }
    }

    fn int(v: i64) -> Option<Value> {
        Some(Value::Int(v))
    }

    fn float(v: f64) -> Option<Value> {
        Some(Value::Float(v))
    }

    #[test]
    fn every_aggregate() {
        let input =
            vec![(1, int(3)), (2, None), (3, int(1)), (9, int(8)), (30, int(2)), (31, float(f64::NAN)), (40, None)];
        let every = Windows::Every(10);
        check(every, Agg::Mean, 1.0, false, &input, &vec![(0, float(4.0)), (30, float(2.0))]);
        check(every, Agg::Sum, 2.0, false, &input, &vec![(0, float(24.0)), (30, float(4.0))]);
        check(every, Agg::Min, 1.0, true, &input, &vec![(0, int(1)), (30, int(2))]);
        check(every, Agg::Max, 1.0, true, &input, &vec![(0, int(8)), (30, int(2))]);
        check(every, Agg::Min, -1.0, true, &input, &vec![(0, int(-8)), (30, int(-2))]);
        check(every, Agg::Max, -1.0, true, &input, &vec![(0, int(-1)), (30, int(-2))]);
        check(every, Agg::Count, 7.0, true, &input, &vec![(0, int(3)), (30, int(1))]);
        check(every, Agg::First, 1.0, true, &input, &vec![(0, int(3)), (30, int(2))]);
        check(every, Agg::Last, 1.0, true, &input, &vec![(0, int(8)), (30, int(2))]);
        check(Windows::Whole(1), Agg::Sum, 1.0, false, &input, &vec![(1, float(14.0))]);
        check(every, Agg::Sum, 1.0, false, &vec![(1, None)], &vec![]);
    }

    #[test]
    fn integers_do_not_overflow_and_infinities_stay() {
        let max = int(i64::MAX);
        let whole = Windows::Whole(0);
        check(whole, Agg::Mean, 1.0, false, &vec![(0, max), (1, max)], &vec![(0, float(i64::MAX as f64))]);
        check(whole, Agg::Max, 2.0, true, &vec![(0, max)], &vec![(0, None)]);
        let (up, down) = (float(f64::INFINITY), float(f64::NEG_INFINITY));
        check(whole, Agg::Sum, 1.0, false, &vec![(0, up), (1, float(1.0))], &vec![(0, up)]);
        check(whole, Agg::Mean, 1.0, false, &vec![(0, up), (1, down)], &vec![(0, None)]);
        check(whole, Agg::Min, 1.0, false, &vec![(0, up), (1, down)], &vec![(0, down)]);
        check(whole, Agg::Last, 1.0, false, &vec![(0, up), (1, float(f64::NAN))], &vec![(0, up)]);
        check(whole, Agg::Min, 1.0, false, &vec![(0, int(5)), (1, float(4.5)), (2, int(4))], &vec![(0, float(4.0))]);
    }

    #[test]
    fn runs_end_where_the_window_does() {
        let even: Vec<i64> = (0..100).collect();
        let odd: Vec<i64> = (0..100).map(|i: i64| i * i).collect();
        let falling: Vec<i64> = (0..100).map(|i: i64| 10_000 - (100 - i) * (100 - i)).collect();
        for times in [even, odd, falling, vec![i64::MIN, -1, 0, i64::MAX]] {
            for at in 0..times.len() {
                for end in [times[at].saturating_add(1), times[at].saturating_add(7), 50, 5_000, 10_000, i64::MAX] {
                    let expected = times[at..].iter().take_while(|time| **time < end).count().max(1);
                    assert_eq!(run(&times[at..], end), expected, "{at} {end}");
                }
            }
        }
    }
}
