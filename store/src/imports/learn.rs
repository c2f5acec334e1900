//! The interval of a sensor, learned from the times of its readings.

/// This many of a hundred spacings are not longer than the interval: outages are rare, and irregular readings have some long spacings.
const COVERED_PERCENT: usize = 90;
/// The fewest spacings from which an interval is learned.
const SPACINGS_MIN: usize = 2;
/// Longer intervals are not learned, ns: readings that far apart are joined only by their own spacings.
const INTERVAL_NS_MAX: u64 = 86_400_000_000_000;
/// Significant digits, so that sensors of one rate get one interval.
const DIGITS: u32 = 3;

/// The interval of rising times, in ns: nine tenths of the spacings are not longer. 0 if there are too few, or if it is longer than a day.
pub(super) fn interval_ns(times: &[i64]) -> u64 {
    let mut spacings: Vec<u64> = times.windows(2).map(|pair| pair[1].abs_diff(pair[0])).collect();
    if spacings.len() < SPACINGS_MIN {
        return 0;
    }
    let at = (spacings.len() - 1) * COVERED_PERCENT / 100;
    let interval_ns = rounded(*spacings.select_nth_unstable(at).1);
    if interval_ns <= INTERVAL_NS_MAX { interval_ns } else { 0 }
}

/// To the nearest number of a few digits.
fn rounded(ns: u64) -> u64 {
    let Some(unit) = ns.checked_ilog10().and_then(|digits| 10u64.checked_pow((digits + 1).saturating_sub(DIGITS)))
    else {
        return ns;
    };
    ns.saturating_add(unit / 2) / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_tenths_of_the_spacings_are_not_longer() {
        const S: i64 = 1_000_000_000;
        let times = |spacings: &[i64]| -> Vec<i64> {
            let mut time = 7;
            std::iter::once(7)
                .chain(spacings.iter().map(|spacing| {
                    time += spacing;
                    time
                }))
                .collect()
        };
        let check = |spacings: &[i64], expected: i64| assert_eq!(interval_ns(&times(spacings)), expected as u64);
        check(&[], 0);
        check(&[3600 * S], 0);
        check(&[3600 * S, 3600 * S], 3600 * S);
        // One outage is none of its rate.
        check(&[3600 * S, 90_000 * S], 3600 * S);
        check(&[10 * S, 10 * S, 10 * S, 500 * S, 10 * S, 10 * S, 10 * S, 10 * S, 10 * S, 10 * S, 10 * S], 10 * S);
        // Irregular: 1 to 20 minutes.
        let irregular: Vec<i64> = (1..=20).map(|at| at * 60 * S).collect();
        check(&irregular, 18 * 60 * S);
        // Jitter does not make intervals of their own.
        check(&[59_999 * S / 1000, 60_003 * S / 1000, 60_001 * S / 1000], 60 * S);
        check(&[86_400 * S; 5], 86_400 * S);
        check(&[5; 5], 5);
        assert_eq!(interval_ns(&[i64::MIN, 0, i64::MAX]), 0);
        check(&[31_536_000 * S; 4], 0);
    }
}
