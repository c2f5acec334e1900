//! Selects the samples that a query needs.
//!
//! A Prometheus that evaluates `x` every minute uses only the last sample before each minute; one that evaluates `rate(x[5m])` every hour uses only
//! the five minutes before each. Its hints give step and range, not the times of evaluation. These are known if both ends of the range agree: the
//! first evaluation is at `start` plus the look-back, the last one at `end`, and both are multiples of the step. Then all evaluations are multiples
//! of the step, also those of a subquery, whose own step is the hint. Grafana sends such queries. For other queries all samples are returned.
//!
//! Downsampled tiers are not used: a range of Prometheus includes its end and, before version 3, its beginning. A window of a tier includes only its
//! beginning and so has other readings.

use super::wire::{ReadHints, ReadQuery};

/// The evaluation times of a query: multiples of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededTimes {
    /// The time between evaluations, ms; 0 for a single one at `end_ms`.
    step_ms: i64,
    /// The look-back of each evaluation, ms.
    reach_ms: i64,
    /// The time of the last evaluation.
    end_ms: i64,
    /// Whether each evaluation uses only the last sample.
    pub last_only: bool,
}

impl NeededTimes {
    /// The times that a query needs; `None` if it needs all samples.
    pub fn of(query: &ReadQuery, lookback_ms: i64) -> Option<Self> {
        let ReadHints { step_ms, start_ms, end_ms, range_ms, .. } = *query.hints.as_ref()?;
        let last_only = range_ms == 0;
        let reach_ms = if last_only { lookback_ms } else { range_ms };
        let first_ms = start_ms.checked_add(reach_ms)?;
        // Since version 3 the look-back excludes its beginning, and `start` is a millisecond later.
        let is_at = |first: i64| match step_ms {
            0 => first == end_ms,
            _ => step_ms > 0 && first.rem_euclid(step_ms) == 0 && end_ms.rem_euclid(step_ms) == 0,
        };
        if range_ms < 0 || !(is_at(first_ms) || is_at(first_ms.saturating_sub(1))) {
            return None;
        }
        let is_worth_it = last_only || step_ms > reach_ms;
        is_worth_it.then_some(Self { step_ms, reach_ms, end_ms, last_only })
    }

    /// The first evaluation at or after a time.
    pub fn mark(&self, time_ms: i64) -> i64 {
        match self.step_ms {
            0 => self.end_ms,
            step => time_ms.saturating_add((step - time_ms.rem_euclid(step)) % step),
        }
    }

    /// Whether the first evaluation after a sample uses it; later ones use it only if no other sample follows.
    pub fn reaches(&self, time_ms: i64) -> bool {
        let mark = self.mark(time_ms);
        mark > self.end_ms || time_ms >= mark.saturating_sub(self.reach_ms)
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;

    fn query(hints: ReadHints) -> ReadQuery {
        ReadQuery { start_ms: hints.start_ms, end_ms: hints.end_ms, matchers: vec![], hints: Some(hints) }
    }

    #[test]
    fn only_where_the_evaluations_are_known() {
        let lookback = 300_000;
        let hints = |start_ms, end_ms, step_ms, range_ms| ReadHints {
            start_ms,
            end_ms,
            step_ms,
            range_ms,
            func: String::new(),
        };
        for (hints, expected) in [
            (hints(60_000 - lookback, 600_000, 60_000, 0), Some(true)),
            (hints(60_001 - lookback, 600_000, 60_000, 0), Some(true)),
            (hints(60_002 - lookback, 600_000, 60_000, 0), None),
            (hints(60_000 - lookback, 600_001, 60_000, 0), None),
            (hints(90_000 - lookback, 600_000, 60_000, 0), None),
            (hints(600_000 - lookback, 600_000, 0, 0), Some(true)),
            (hints(500_000 - lookback, 600_000, 0, 0), None),
            (hints(3_600_000 - 60_000, 7_200_000, 3_600_000, 60_000), Some(false)),
            (hints(60_000 - 300_000, 7_200_000, 60_000, 300_000), None),
            (hints(i64::MAX, 0, 60_000, 5), None),
            (hints(0, 0, -1, 0), None),
        ] {
            let needed = NeededTimes::of(&query(hints.clone()), lookback);
            assert_eq!(needed.map(|needed| needed.last_only), expected, "{hints:?}");
        }
        assert_eq!(NeededTimes::of(&ReadQuery::default(), lookback), None);
    }

    /// Compares with the definition: evaluations give the same results from the selected samples as from all.
    #[test]
    fn evaluations_see_the_same() {
        let mut random = Random::seeded_or(7);
        let mut below = |bound: u64| random.below(bound);
        for _ in 0..500 {
            let (step, lookback) = (1 + below(20) as i64, 1 + below(30) as i64);
            let range = if below(2) == 0 { 0 } else { 1 + below(30) as i64 };
            let (first, count) = (below(10) as i64 * step, below(10) as i64);
            let (reach, end) = (if range == 0 { lookback } else { range }, first + count * step);
            let hints =
                ReadHints { step_ms: step, start_ms: first - reach, end_ms: end, range_ms: range, func: String::new() };
            let Some(needed) = NeededTimes::of(&query(hints), lookback) else { continue };
            let all: Vec<i64> = (first - reach..=end).filter(|_| below(3) > 0).collect();
            let mut left: Vec<i64> = all.iter().copied().filter(|time| needed.reaches(*time)).collect();
            if needed.last_only {
                left.dedup_by(|later, earlier| {
                    let same = needed.mark(*later) == needed.mark(*earlier);
                    *earlier = if same { *later } else { *earlier };
                    same
                });
            }
            for at in (0..=count).map(|n| first + n * step) {
                let sees = |samples: &[i64]| -> Vec<i64> {
                    let seen = samples.iter().copied().filter(|time| (at - reach..=at).contains(time));
                    if range == 0 { seen.max().into_iter().collect() } else { seen.collect() }
                };
                assert_eq!(sees(&left), sees(&all), "at {at}, {needed:?}, {all:?}");
            }
        }
    }
}
