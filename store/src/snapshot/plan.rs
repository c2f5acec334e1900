//! Plans which windows and which readings answer for a range. It is a pure function of numbers, so that it can be tested with numbers alone.
//!
//! Two blocks can have a reading of the same time only where their times overlap. Elsewhere each block's windows count as they are, and the parts
//! of one window in two blocks add up.

use crate::time::{ceil, floor};

/// The data of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceSpan {
    /// Times of its first and its last reading.
    pub first: i64,
    pub last: i64,
    /// Whether it has windows.
    pub tiered: bool,
    /// Its readings exist from this time on: a multiple of the resolution, or the beginning or the end of time.
    pub raw_from: i64,
}

/// One step of a plan, `lo <= time < hi`; steps follow each other in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlanStep {
    /// The windows of one source.
    Windows { source: usize, lo: i64, hi: i64 },
    /// The readings of one source.
    Readings { source: usize, lo: i64, hi: i64 },
    /// The readings of all sources, each time once.
    Merged { lo: i64, hi: i64 },
    /// The windows of sources whose readings are gone, where other sources overlap.
    OnlyWindows { sources: Vec<usize>, alone: bool, lo: i64, hi: i64 },
    /// A part of a window whose readings are gone.
    Missing { lo: i64, hi: i64 },
}

/// The steps for `from <= time < to` with windows of at most `resolution`.
pub(crate) fn plan(spans: &[SourceSpan], from: i64, to: i64, resolution: i64) -> Vec<PlanStep> {
    let mut order: Vec<usize> = (0..spans.len()).filter(|&at| spans[at].first < to && spans[at].last >= from).collect();
    order.sort_by_key(|&at| (spans[at].first, spans[at].last));
    let (from, to) = uncut(spans, from, to, resolution);
    let mut steps = Vec::new();
    let mut clean_from = from;
    for (lo, hi) in contested(spans, &order, (from, to), resolution) {
        clean(spans, &order, (clean_from, lo), &mut steps);
        contest(spans, &order, (lo, hi), resolution, &mut steps);
        clean_from = hi;
    }
    clean(spans, &order, (clean_from, to), &mut steps);
    steps
}

/// The range of these steps without missing parts at its ends.
pub(crate) fn without_missing(steps: &[PlanStep], from: i64, to: i64) -> (i64, i64) {
    let first = match steps.first() {
        Some(PlanStep::Missing { lo, hi }) if *lo <= from => *hi,
        _ => from,
    };
    let last = match steps.last() {
        Some(PlanStep::Missing { lo, hi }) if *hi >= to => *lo,
        _ => to,
    };
    (first, last.max(first))
}

/// Extends the range to its whole first and last window if there is nothing in the added parts: then these windows are whole.
fn uncut(spans: &[SourceSpan], from: i64, to: i64, resolution: i64) -> (i64, i64) {
    let (before, after) = (floor(from, resolution), ceil(to, resolution));
    let left_out = |lo: i64, hi: i64| spans.iter().any(|span| span.first < hi && span.last >= lo);
    (if left_out(before, from) { from } else { before }, if left_out(to, after) { to } else { after })
}

/// The parts where sources overlap, in whole windows, and the windows that the range cuts; disjoint and in order.
fn contested(spans: &[SourceSpan], order: &[usize], range: (i64, i64), resolution: i64) -> Vec<(i64, i64)> {
    let (from, to) = range;
    let mut found = Vec::new();
    let mut reached: Option<i64> = None;
    for &at in order {
        let SourceSpan { first, last, .. } = spans[at];
        if let Some(reached) = reached.filter(|reached| *reached >= first) {
            let end = floor(reached.min(last), resolution).saturating_add(resolution);
            found.push((floor(first, resolution).max(from), end.min(to)));
        }
        reached = Some(reached.map_or(last, |reached| reached.max(last)));
    }
    found.push((from, ceil(from, resolution).min(to)));
    found.push((floor(to, resolution).max(from), to));
    found.retain(|(lo, hi)| lo < hi);
    found.sort_unstable();
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (lo, hi) in found {
        match joined.last_mut() {
            Some(last) if lo <= last.1 => last.1 = last.1.max(hi),
            _ => joined.push((lo, hi)),
        }
    }
    joined
}

/// Adds the steps where no two sources overlap.
fn clean(spans: &[SourceSpan], order: &[usize], (lo, hi): (i64, i64), steps: &mut Vec<PlanStep>) {
    for &source in order {
        let span = &spans[source];
        if lo < hi && span.first < hi && span.last >= lo {
            steps.push(if span.tiered {
                PlanStep::Windows { source, lo, hi }
            } else {
                PlanStep::Readings { source, lo: lo.max(span.first), hi: hi.min(span.last.saturating_add(1)) }
            });
        }
    }
}

/// Adds the steps where sources overlap or the range cuts a window: readings, as far as they exist.
fn contest(spans: &[SourceSpan], order: &[usize], (lo, hi): (i64, i64), resolution: i64, steps: &mut Vec<PlanStep>) {
    let involved: Vec<usize> =
        order.iter().copied().filter(|&at| spans[at].first < hi && spans[at].last >= lo).collect();
    let mut tombstones: Vec<i64> = involved.iter().map(|&at| spans[at].raw_from).collect();
    tombstones.extend([ceil(lo, resolution), floor(hi, resolution), lo, hi]);
    tombstones.retain(|cut| (lo..=hi).contains(cut));
    tombstones.sort_unstable();
    tombstones.dedup();
    let mut merged: Option<(i64, i64)> = None;
    for piece in tombstones.windows(2) {
        let (lo, hi) = (piece[0], piece[1]);
        let here = involved.iter().copied().filter(|&at| spans[at].first < hi && spans[at].last >= lo);
        let here: Vec<usize> = here.collect();
        let gone: Vec<usize> = here.iter().copied().filter(|&at| spans[at].raw_from > lo).collect();
        if gone.is_empty() {
            merged = Some((merged.map_or(lo, |merged| merged.0), hi));
            continue;
        }
        steps.extend(merged.take().map(|(lo, hi)| PlanStep::Merged { lo, hi }));
        if lo == floor(lo, resolution) && hi == floor(hi, resolution) {
            steps.push(PlanStep::OnlyWindows { alone: here.len() == 1, sources: gone, lo, hi });
        } else {
            steps.push(PlanStep::Missing { lo, hi });
        }
    }
    steps.extend(merged.map(|(lo, hi)| PlanStep::Merged { lo, hi }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: i64, last: i64, tiered: bool) -> SourceSpan {
        SourceSpan { first, last, tiered, raw_from: i64::MIN }
    }

    #[track_caller]
    fn check(spans: &[SourceSpan], from: i64, to: i64, expected: &[PlanStep]) {
        assert_eq!(plan(spans, from, to, 10), expected);
    }

    #[test]
    fn blocks_one_after_the_other_give_their_windows() {
        let spans = [span(0, 44, true), span(45, 99, true), span(100, 105, false)];
        check(
            &spans,
            0,
            200,
            &[
                PlanStep::Windows { source: 0, lo: 0, hi: 200 },
                PlanStep::Windows { source: 1, lo: 0, hi: 200 },
                PlanStep::Readings { source: 2, lo: 100, hi: 106 },
            ],
        );
        check(&spans, 300, 400, &[]);
    }

    #[test]
    fn windows_cut_by_the_range_are_read() {
        let spans = [span(0, 99, true)];
        check(
            &spans,
            5,
            58,
            &[
                PlanStep::Merged { lo: 5, hi: 10 },
                PlanStep::Windows { source: 0, lo: 10, hi: 50 },
                PlanStep::Merged { lo: 50, hi: 58 },
            ],
        );
        check(&spans, 12, 18, &[PlanStep::Merged { lo: 12, hi: 18 }]);
    }

    #[test]
    fn a_window_is_not_cut_where_nothing_is_left_out() {
        let windows = |lo, hi| PlanStep::Windows { source: 0, lo, hi };
        check(&[span(5, 57, true)], 5, 58, &[windows(0, 60)]);
        check(&[span(5, 58, true)], 5, 58, &[windows(0, 50), PlanStep::Merged { lo: 50, hi: 58 }]);
        check(&[span(4, 57, true)], 5, 58, &[PlanStep::Merged { lo: 5, hi: 10 }, windows(10, 60)]);
        // What another source has there is left out too, whichever it is.
        let late = span(58, 58, false);
        check(&[span(5, 57, true), late], 5, 58, &[windows(0, 50), PlanStep::Merged { lo: 50, hi: 58 }]);
        // Windows whose readings are gone are whole, too.
        check(&[SourceSpan { raw_from: i64::MAX, ..span(5, 57, true) }], 5, 58, &[windows(0, 60)]);
        check(
            &[span(i64::MIN, i64::MAX, true)],
            i64::MIN,
            i64::MAX,
            &[windows(i64::MIN, i64::MAX - 7), PlanStep::Merged { lo: i64::MAX - 7, hi: i64::MAX }],
        );
    }

    #[test]
    fn where_blocks_overlap_readings_are_read_in_whole_windows() {
        let spans = [span(0, 99, true), span(33, 47, false)];
        check(
            &spans,
            0,
            100,
            &[
                PlanStep::Windows { source: 0, lo: 0, hi: 30 },
                PlanStep::Merged { lo: 30, hi: 50 },
                PlanStep::Windows { source: 0, lo: 50, hi: 100 },
            ],
        );
        // Three, one of which reaches over both others.
        let spans = [span(0, 99, true), span(10, 19, true), span(50, 59, true)];
        let merged = |lo, hi| PlanStep::Merged { lo, hi };
        let windows = |lo, hi| PlanStep::Windows { source: 0, lo, hi };
        check(&spans, 0, 100, &[windows(0, 10), merged(10, 20), windows(20, 50), merged(50, 60), windows(60, 100)]);
    }

    #[test]
    fn what_has_no_readings_any_more_gives_its_windows_or_nothing() {
        let gone = SourceSpan { raw_from: i64::MAX, ..span(0, 99, true) };
        check(&[gone], 0, 100, &[PlanStep::Windows { source: 0, lo: 0, hi: 100 }]);
        check(&[gone], 5, 20, &[PlanStep::Missing { lo: 5, hi: 10 }, PlanStep::Windows { source: 0, lo: 10, hi: 20 }]);
        let range = |from, to| without_missing(&plan(&[gone], from, to, 10), from, to);
        assert_eq!(
            [range(5, 20), range(10, 25), range(5, 25), range(10, 20)],
            [(10, 20), (10, 20), (10, 20), (10, 20)]
        );
        assert_eq!(range(12, 18), (18, 18));
        let late = span(30, 39, false);
        check(
            &[gone, late],
            0,
            100,
            &[
                PlanStep::Windows { source: 0, lo: 0, hi: 30 },
                PlanStep::OnlyWindows { sources: vec![0], alone: false, lo: 30, hi: 40 },
                PlanStep::Windows { source: 0, lo: 40, hi: 100 },
            ],
        );
        let half = SourceSpan { raw_from: 40, ..span(0, 99, true) };
        check(
            &[half, span(20, 59, false)],
            20,
            60,
            &[
                PlanStep::OnlyWindows { sources: vec![0], alone: false, lo: 20, hi: 40 },
                PlanStep::Merged { lo: 40, hi: 60 },
            ],
        );
    }
}
