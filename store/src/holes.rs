//! Where readings are missing between two samples. `docs/sums.md` has the rule for users.

/// If two samples are further apart than this many intervals of their sensor, there is a hole between them. One or two missed ticks are bridged; an
/// outage is not.
pub const HOLE_INTERVALS: i64 = 3;
/// The bound for a sensor without a known interval, unless other samples decide: 5 minutes.
pub const LOOK_BACK_NS_UNKNOWN: i64 = 300_000_000_000;
/// Samples further apart than this have a hole between them, whatever the spacings next to them: 1 day …
pub const REACH_NS: i64 = 86_400_000_000_000;
/// … and for a sensor without an interval 100 days, so that readings once a month or once a quarter have sums.
pub const REACH_NS_UNKNOWN: i64 = 100 * REACH_NS;

/// The longest spacing of two samples without a hole, for a sensor with this interval (0: unknown), whatever the spacings next to it.
pub fn bound_of(interval_ns: u64) -> i64 {
    match i64::try_from(interval_ns).unwrap_or(i64::MAX) {
        0 => LOOK_BACK_NS_UNKNOWN,
        interval => interval.saturating_mul(HOLE_INTERVALS),
    }
}

/// The longest spacing that similar neighbours can bridge.
pub fn reach_of(interval_ns: u64) -> i64 {
    bound_of(interval_ns).max(if interval_ns == 0 { REACH_NS_UNKNOWN } else { REACH_NS })
}

/// Whether two spacings are similar: neither is longer than one and a half times the other.
pub fn alike(a: i64, b: i64) -> bool {
    a.saturating_mul(2) <= b.saturating_mul(3) && b.saturating_mul(2) <= a.saturating_mul(3)
}

/// Whether a spacing is one of three similar ones in a row. `before` are the times of the samples before it, the nearest first; `after` those from
/// its end on.
pub fn is_rate(spacing: i64, before: &[i64], after: &[i64]) -> bool {
    alike_beside(spacing, before) + alike_beside(spacing, after) >= SPACINGS
}

/// The same if not all samples next to it are known; `None` if unknown ones would decide.
pub fn is_rate_as_known(spacing: i64, before: &[i64], after: &[i64]) -> Option<bool> {
    let (back, ahead) = (alike_beside(spacing, before), alike_beside(spacing, after));
    let open = |times: &[i64], alike: usize| alike < SPACINGS && alike + 1 >= times.len();
    match back + ahead >= SPACINGS {
        true => Some(true),
        false if open(before, back) || open(after, ahead) => None,
        false => Some(false),
    }
}

/// Spacings on each side that decide.
const SPACINGS: usize = 2;

/// How many of the first spacings of these times are similar to `spacing`.
fn alike_beside(spacing: i64, times: &[i64]) -> usize {
    let alike = |pair: &&[i64]| alike(spacing, i64::try_from(pair[0].abs_diff(pair[1])).unwrap_or(i64::MAX));
    times.windows(2).take(SPACINGS).take_while(alike).count()
}
