//! The width of windows for a requested number of points.

use wholegrain_model::{Interval, Timestamp};

use crate::query::Query;

/// The largest number of windows that [`Query::points`] may request.
pub const POINTS_MAX: u64 = 1_000_000;

const MS: i64 = 1_000_000;
const S: i64 = 1_000 * MS;
const MIN: i64 = 60 * S;
const H: i64 = 60 * MIN;
const DAY: i64 = 24 * H;

/// Usual lengths of time, ns. Longer ones are whole weeks.
#[rustfmt::skip]
const LENGTHS: [i64; 32] = [
    MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS,
    S, 2 * S, 5 * S, 10 * S, 20 * S, 30 * S,
    MIN, 2 * MIN, 5 * MIN, 10 * MIN, 15 * MIN, 20 * MIN, 30 * MIN,
    H, 2 * H, 3 * H, 4 * H, 6 * H, 8 * H, 12 * H, DAY, 2 * DAY, 7 * DAY,
];

/// The width of windows of which at most `points`, plus one for the edges, cover `range` ns: a multiple of the coarsest of `resolutions` that is
/// not longer, so that its tier can answer.
pub(crate) fn width(range: i64, points: u64, resolutions: &[i64]) -> i64 {
    let points = i64::try_from(points.max(1)).unwrap_or(i64::MAX);
    let least = (range / points + i64::from(range % points != 0)).max(1);
    let week = 7 * DAY;
    let weeks = || (least / week + i64::from(least % week != 0)).saturating_mul(week);
    let width = LENGTHS.into_iter().find(|length| *length >= least).unwrap_or_else(weeks);
    let Some(tier) = resolutions.iter().copied().rev().find(|resolution| *resolution <= width) else { return width };
    let rest = width % tier;
    if rest == 0 { width } else { width.saturating_add(tier - rest) }
}

/// Replaces `points` by `every` and extends the range to whole windows.
pub(crate) fn resolve(query: &Query, resolutions: &[i64]) -> Query {
    let Some(points) = query.points else { return query.clone() };
    let range = query.to.0.saturating_sub(query.from.0);
    let width = width(range, points, resolutions);
    let from = query.from.0.saturating_sub(query.from.0.rem_euclid(width));
    let over = query.to.0.rem_euclid(width);
    let to = if over == 0 { query.to.0 } else { query.to.0.saturating_add(width - over) };
    Query {
        from: Timestamp(from),
        to: Timestamp(to),
        every: Some(Interval::from_ns(width.cast_unsigned())),
        points: None,
        ..query.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths() {
        let tiers = [10 * S, 5 * MIN, H];
        for (range, points, expected) in [
            (10 * MIN, 600, S),
            (H, 400, 10 * S),
            (DAY, 1000, 2 * MIN),
            (30 * DAY, 1000, H),
            (365 * DAY, 1000, 12 * H),
            (3650 * DAY, 300, 14 * DAY),
            (0, 5, MS),
        ] {
            let found = width(range, points, &tiers);
            assert_eq!(found, expected, "{range} {points}");
            assert!(range / found <= points as i64);
        }
        assert!(width(i64::MAX, 1, &tiers) > 0);
        assert_eq!(width(DAY, 5000, &[15 * S]), 30 * S, "a multiple of the tier, though not the nicest length");
        assert_eq!(width(H, 100, &[]), MIN);
    }

    #[test]
    fn the_range_becomes_whole_windows() {
        let pattern = wholegrain_model::Pattern::new("/**").unwrap();
        let query = Query {
            patterns: vec![pattern],
            from: Timestamp(-5 * S),
            to: Timestamp(101 * S),
            points: Some(11),
            ..Query::default()
        };
        let resolved = resolve(&query, &[10 * S]);
        assert_eq!((resolved.from.0, resolved.to.0), (-10 * S, 110 * S));
        assert_eq!((resolved.every, resolved.points), (Some(Interval::from_s(10)), None));
    }
}
