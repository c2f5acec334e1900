//! Decides from the windows of a tier whether there is a hole between two values whose readings have been deleted. A window with one value, or
//! with a few close ones, shows how far apart the readings at its edges are.

use wholegrain_store::{ScanPart, TierWindows, WindowEdge, WindowLines};

use crate::holes::{is_rate, is_rate_as_known};

/// How many readings on each side of a spacing decide whether three successive spacings are similar.
const TIMES: usize = 3;

/// The times of a window's values, or of one reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadingSpan {
    first: i64,
    last: i64,
    count: i64,
    /// The time covered by lines between its own values, ns.
    covered: i64,
    gap_before: bool,
    gap_after: bool,
}

/// The spans of a part; none for windows that do not store them.
pub(crate) fn spans(part: &ScanPart) -> Vec<ReadingSpan> {
    let of_windows = |times: &[i64], counts: &[i64], lines: &Option<WindowLines>| {
        let Some(lines) = lines else { return Vec::new() };
        let span = |at: usize| ReadingSpan {
            first: times[at].saturating_add(lines.first_after[at]),
            last: times[at].saturating_add(lines.last_after[at]),
            count: counts[at],
            covered: lines.covered[at],
            gap_before: lines.edges[at].before == WindowEdge::Gap,
            gap_after: lines.edges[at].gap_after,
        };
        (0..times.len()).map(span).collect()
    };
    match part {
        ScanPart::Windows(TierWindows::Int(rows)) => of_windows(&rows.times, &rows.counts, &rows.lines),
        ScanPart::Windows(TierWindows::Float(rows)) => of_windows(&rows.times, &rows.counts, &rows.lines),
        ScanPart::Readings(chunk) => {
            let span = |time: &i64| ReadingSpan {
                first: *time,
                last: *time,
                count: 1,
                covered: 0,
                gap_before: false,
                gap_after: false,
            };
            chunk.times.iter().map(span).collect()
        }
    }
}

/// Whether two successive values further apart than the bound are joined; `None` if these windows, in order, cannot decide.
pub(crate) fn are_joined(spans: &[ReadingSpan], first: i64, second: i64) -> Option<bool> {
    let spacing = second.saturating_sub(first);
    let at = spans.windows(2).position(|pair| pair[0].last == first && pair[1].first == second)?;
    let (before, all_before) = times(spans[..=at].iter().rev().map(ReadingSpan::mirrored), spacing);
    let (after, all_after) = times(spans[at + 1..].iter().copied(), spacing);
    // Nearest first: descending times.
    let before: Vec<i64> = before.into_iter().map(|time| -time).collect();
    if all_before && all_after {
        Some(is_rate(spacing, &before, &after))
    } else {
        is_rate_as_known(spacing, &before, &after)
    }
}

/// The times of up to [`TIMES`] readings from the first span on, as far as they are known, and whether they are complete.
fn times(spans: impl Iterator<Item = ReadingSpan>, spacing: i64) -> (Vec<i64>, bool) {
    let mut times = Vec::with_capacity(TIMES + 1);
    let mut gap = false;
    for span in spans {
        if gap || (span.gap_before && !times.is_empty()) {
            return (times, false);
        }
        times.push(span.first);
        let length = span.last.saturating_sub(span.first);
        match span.count {
            1 => {}
            2 if span.covered == length => times.push(span.last),
            // The next reading is inside this window: its spacings are too short to be similar.
            _ if length.saturating_mul(3) < spacing.saturating_mul(2) => {
                times.push(span.last);
                return (times, true);
            }
            _ => return (times, false),
        }
        if times.len() >= TIMES {
            break;
        }
        gap = span.gap_after;
    }
    (times, !gap)
}

impl ReadingSpan {
    /// The span with time reversed.
    fn mirrored(&self) -> Self {
        Self { first: -self.last, last: -self.first, gap_before: self.gap_after, gap_after: self.gap_before, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of (first, last, count), whose values are all joined.
    #[track_caller]
    fn check(spans: &[(i64, i64, i64)], pair: (i64, i64), expected: Option<bool>) {
        let span = |(first, last, count): &(i64, i64, i64)| ReadingSpan {
            first: *first,
            last: *last,
            count: *count,
            covered: last - first,
            gap_before: false,
            gap_after: false,
        };
        let spans: Vec<ReadingSpan> = spans.iter().map(span).collect();
        assert_eq!(are_joined(&spans, pair.0, pair.1), expected);
    }

    #[test]
    fn windows_tell_whether_a_spacing_is_one_of_three_alike() {
        // Single values: both sides, one side, none.
        check(&[(0, 0, 1), (40, 40, 1), (80, 80, 1), (120, 120, 1)], (40, 80), Some(true));
        check(&[(0, 40, 2), (80, 120, 2)], (40, 80), Some(true));
        check(&[(40, 40, 1), (80, 120, 2), (160, 160, 1)], (40, 80), Some(true));
        check(&[(0, 0, 1), (40, 40, 1), (80, 80, 1)], (40, 80), Some(false));
        check(&[(0, 0, 1), (1, 1, 1), (40, 40, 1), (80, 80, 1), (81, 81, 1)], (40, 80), Some(false));
        // Of many values in a window only that all are closer, or nothing.
        check(&[(0, 20, 9), (60, 60, 1)], (20, 60), Some(false));
        check(&[(-100, 20, 9), (60, 60, 1)], (20, 60), None);
        check(&[(-100, 20, 9), (60, 65, 9)], (20, 60), None);
        check(&[(-100, 20, 9), (60, 60, 1), (100, 140, 2)], (20, 60), Some(true));
        // Not there.
        check(&[(0, 20, 9), (60, 60, 1)], (20, 61), None);
    }

    #[test]
    fn a_gap_is_a_reading_at_a_time_that_is_not_known() {
        let span = |time: i64, gap_after: bool| ReadingSpan {
            first: time,
            last: time,
            count: 1,
            covered: 0,
            gap_before: false,
            gap_after,
        };
        let spans = [span(0, true), span(40, false), span(80, false), span(120, false)];
        assert_eq!(are_joined(&spans, 40, 80), None);
        assert_eq!(
            are_joined(&[span(0, false), span(40, false), span(80, false), span(120, true)], 40, 80),
            Some(true)
        );
    }
}
