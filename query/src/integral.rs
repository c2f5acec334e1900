//! The area under a gauge by the trapezoidal rule, in unit times seconds.

use wholegrain_model::Value;

use crate::columns::ResultRow;
use crate::error::QueryError;
use crate::float_sum::FloatSum;
use crate::line_segment::LineSegment;
use crate::samples::JoinedSample;
use crate::scale::Scale;
use crate::windows::Windows;

/// Converts samples to line segments; a hole has no segment.
pub(crate) struct LineSegments {
    scale: Scale,
    previous: Option<(i64, f64)>,
}

impl LineSegments {
    pub(crate) fn new(scale: Scale) -> Self {
        Self { scale, previous: None }
    }

    fn step(&mut self, sample: &JoinedSample) -> Option<LineSegment> {
        let JoinedSample { time, value, joined } = *sample;
        let value = value.map(|value| self.scale.apply(value.as_f64())).filter(|value| !value.is_nan());
        let previous = std::mem::replace(&mut self.previous, value.map(|value| (time, value)));
        let segment = LineSegment { start: previous?, end: (time, value?) };
        (joined && segment.start.0 < time).then_some(segment)
    }
}

/// The area from `from` to each sample. Samples before `from` only begin the line into the range.
pub(crate) struct CumulativeIntegral<I> {
    samples: I,
    segments: LineSegments,
    from: i64,
    total: FloatSum,
}

impl<I> CumulativeIntegral<I> {
    pub(crate) fn new(samples: I, segments: LineSegments, from: i64) -> Self {
        Self { samples, segments, from, total: FloatSum::default() }
    }
}

impl<I: Iterator<Item = Result<JoinedSample, QueryError>>> Iterator for CumulativeIntegral<I> {
    type Item = Result<ResultRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let sample = match self.samples.next()? {
                Ok(sample) => sample,
                Err(error) => return Some(Err(error)),
            };
            let (time, segment) = (sample.time, self.segments.step(&sample));
            if time < self.from {
                continue;
            }
            if let Some(segment) = segment {
                self.total.add(segment.area(segment.start.0.max(self.from), segment.end.0));
            }
            let has_value = self.segments.previous.is_some();
            let total = Some(self.total.total()).filter(|total| has_value && !total.is_nan());
            return Some(Ok(ResultRow { time, value: total.map(Value::Float) }));
        }
    }
}

/// The area within each window and the range. Samples on both sides of the range give the lines that cross its ends.
pub(crate) struct WindowIntegrals<I> {
    samples: I,
    segments: LineSegments,
    windows: Windows,
    range: (i64, i64),
    /// The rest of the segment being divided, and its begin.
    dividing: Option<(i64, LineSegment)>,
    /// The window's start and the area so far.
    open: Option<(i64, FloatSum)>,
}

impl<I> WindowIntegrals<I> {
    pub(crate) fn new(samples: I, segments: LineSegments, windows: Windows, range: (i64, i64)) -> Self {
        Self { samples, segments, windows, range, dividing: None, open: None }
    }

    /// Takes the next part of the segment being divided. Returns the row of the previous window if the part begins a new one.
    fn divide(&mut self, begin: i64, segment: LineSegment) -> Option<ResultRow> {
        let start = self.windows.start(begin);
        let segment_end = segment.end.0.min(self.range.1);
        let end = self.windows.end(begin).min(segment_end);
        let mut closed = None;
        if self.open.as_ref().is_none_or(|open| open.0 != start) {
            closed = self.open.replace((start, FloatSum::default()));
        }
        if let Some((_, area)) = &mut self.open {
            area.add(segment.area(begin, end));
        }
        self.dividing = (end < segment_end).then_some((end, segment));
        closed.map(row)
    }
}

fn row((time, area): (i64, FloatSum)) -> ResultRow {
    ResultRow { time, value: Some(area.total()).filter(|value| !value.is_nan()).map(Value::Float) }
}

impl<I: Iterator<Item = Result<JoinedSample, QueryError>>> Iterator for WindowIntegrals<I> {
    type Item = Result<ResultRow, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((begin, segment)) = self.dividing.take() {
                if let Some(row) = self.divide(begin, segment) {
                    return Some(Ok(row));
                }
                continue;
            }
            let sample = match self.samples.next() {
                Some(Ok(sample)) => sample,
                Some(Err(error)) => return Some(Err(error)),
                None => return self.open.take().map(|open| Ok(row(open))),
            };
            if let Some(segment) = self.segments.step(&sample) {
                let begin = segment.start.0.max(self.range.0);
                if begin < segment.end.0.min(self.range.1) {
                    self.dividing = Some((begin, segment));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    type Points = Vec<(i64, Option<f64>)>;

    /// Joined up to 30 s apart.
    fn samples(points: &[(i64, Option<f64>)]) -> Vec<Result<JoinedSample, QueryError>> {
        let joined = |at: usize| at > 0 && points[at].0 - points[at - 1].0 <= 30;
        let sample = |at: usize| JoinedSample {
            time: points[at].0 * S,
            value: points[at].1.map(Value::Float),
            joined: joined(at),
        };
        (0..points.len()).map(|at| Ok(sample(at))).collect()
    }

    fn segments() -> LineSegments {
        LineSegments::new(Scale::ONE)
    }

    fn shown(rows: impl Iterator<Item = Result<ResultRow, QueryError>>) -> Points {
        rows.map(|row| row.map(|row| (row.time / S, row.value.map(Value::as_f64))).unwrap()).collect()
    }

    fn cumulative(points: &[(i64, Option<f64>)], from: i64) -> Points {
        shown(CumulativeIntegral::new(samples(points).into_iter(), segments(), from * S))
    }

    fn windows(points: &[(i64, Option<f64>)], every: i64, from: i64, to: i64) -> Points {
        let windows = Windows::Every(every * S);
        shown(WindowIntegrals::new(samples(points).into_iter(), segments(), windows, (from * S, to * S)))
    }

    #[test]
    fn cumulative_areas() {
        let ramp = [(0, Some(0.0)), (10, Some(10.0)), (20, Some(20.0))];
        assert_eq!(cumulative(&ramp, 0), [(0, Some(0.0)), (10, Some(50.0)), (20, Some(200.0))]);
        // From 5 on the line into the range counts: (5 + 10) / 2 * 5.
        assert_eq!(cumulative(&ramp, 5), [(10, Some(37.5)), (20, Some(187.5))]);
        let holes = [(0, Some(1.0)), (10, Some(1.0)), (20, None), (30, Some(1.0)), (40, Some(1.0)), (400, Some(9.0))];
        let expected =
            [(0, Some(0.0)), (10, Some(10.0)), (20, None), (30, Some(10.0)), (40, Some(20.0)), (400, Some(20.0))];
        assert_eq!(cumulative(&holes, 0), expected);
    }

    #[test]
    fn windows_cut_the_lines_and_ranges_that_touch_add_up() {
        let ramp: Points = (0..10).map(|i| (i * 10, Some((i * 10) as f64))).collect();
        assert_eq!(windows(&ramp, 15, 0, 30), [(0, Some(112.5)), (15, Some(337.5))]);
        assert_eq!(windows(&ramp, 4, 0, 10), [(0, Some(8.0)), (4, Some(24.0)), (8, Some(18.0))]);
        let total = |points: Points| points.iter().filter_map(|p| p.1).sum::<f64>();
        assert_eq!(total(windows(&ramp, 7, 3, 41)) + total(windows(&ramp, 7, 41, 77)), (77.0 * 77.0 - 9.0) / 2.0);
        // Nothing from 10 to 60: no window there.
        assert_eq!(
            windows(&[(0, Some(1.0)), (10, Some(1.0)), (60, Some(1.0)), (70, Some(1.0))], 20, 0, 80),
            [(0, Some(10.0)), (60, Some(10.0))]
        );
        assert_eq!(windows(&[(5, Some(1.0))], 20, 0, 80), []);
    }

    #[test]
    fn infinities() {
        let points = [(0, Some(f64::INFINITY)), (10, Some(f64::NEG_INFINITY))];
        assert_eq!(windows(&points, 20, 0, 20), [(0, None)]);
        assert_eq!(cumulative(&[(0, Some(f64::NAN)), (10, Some(1.0))], 0), [(0, None), (10, Some(0.0))]);
    }
}
