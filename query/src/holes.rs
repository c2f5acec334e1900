//! Detects missing readings between two samples. `docs/sums.md` has the rule for users.

use wholegrain_store::SensorInfo;

pub use wholegrain_store::holes::{HOLE_INTERVALS, LOOK_BACK_NS_UNKNOWN};
use wholegrain_store::holes::{REACH_NS, bound_of, reach_of};
pub(crate) use wholegrain_store::holes::{is_rate, is_rate_as_known};

/// Detects holes along the samples of one sensor.
///
/// The interval of a sensor may have been longer in the past. So a spacing over the bound is not a hole if it is one of three similar spacings in a
/// row: they were the interval. The choice of the three depends on the samples only, not on the range of a query, so that sums over parts of a
/// range add up to the sum over the whole.
#[derive(Debug)]
pub struct HoleDetector {
    bound_ns: i64,
    reach_ns: i64,
    /// Times of the latest samples, latest first; the first `known` are valid.
    times: [i64; 4],
    known: usize,
}

/// The time since the previous sample, compared with the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// There is no previous sample.
    First,
    Short,
    /// Over the bound, ns: the neighbouring spacings decide.
    Long(i64),
    /// Beyond the reach: always a hole.
    Hole,
}

/// The longest spacing that is never a hole, ns.
pub fn bound_ns(sensor: &SensorInfo) -> i64 {
    bound_of(sensor.interval_ns)
}

/// The longest spacing that can be without a hole, ns; neighbours of a range are searched this far.
pub(crate) fn reach_ns(sensor: &SensorInfo) -> i64 {
    reach_of(sensor.interval_ns)
}

impl HoleDetector {
    /// Two samples at most `bound_ns` apart have no hole between them.
    pub fn new(bound_ns: i64) -> Self {
        Self { bound_ns, reach_ns: bound_ns.max(REACH_NS), times: [0; 4], known: 0 }
    }

    /// Uses the bounds of a sensor.
    pub(crate) fn of(sensor: &SensorInfo) -> Self {
        Self { reach_ns: reach_ns(sensor), ..Self::new(bound_ns(sensor)) }
    }

    /// Takes the time of the next sample, gap or not.
    #[inline]
    pub(crate) fn take(&mut self, time: i64) -> Spacing {
        let [last, ..] = self.times;
        let spacing = time.saturating_sub(last);
        let found = match self.known {
            0 => Spacing::First,
            _ if spacing <= self.bound_ns => Spacing::Short,
            _ if spacing <= self.reach_ns => Spacing::Long(spacing),
            _ => Spacing::Hole,
        };
        self.times = [time, last, self.times[1], self.times[2]];
        self.known = (self.known + 1).min(self.times.len());
        found
    }

    /// Takes the times of samples without holes between them.
    pub(crate) fn pass(&mut self, times: &[i64]) {
        let many = self.times.len();
        if times.len() < many {
            for time in times {
                self.take(*time);
            }
            return;
        }
        let (last, known) = (times.iter().rev(), many);
        self.times.iter_mut().zip(last).for_each(|(to, time)| *to = *time);
        self.known = known;
    }

    /// The times of up to three samples before the last one, nearest first.
    pub(crate) fn before(&self) -> &[i64] {
        &self.times[1..self.known.max(1)]
    }

    /// Takes the time of the next sample. Returns whether there is a hole before it, judged from earlier samples only.
    pub fn step(&mut self, time: i64) -> bool {
        let before = (self.times, self.known);
        match self.take(time) {
            Spacing::First | Spacing::Hole => true,
            Spacing::Short => false,
            Spacing::Long(spacing) => !is_rate(spacing, &before.0[..before.1], &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bound: i64, times: &[i64], holes: &[i64]) {
        let mut state = HoleDetector::new(bound);
        let found: Vec<i64> = times.iter().copied().filter(|time| state.step(*time)).collect();
        assert_eq!(found, holes);
    }

    #[test]
    fn outages_are_holes_and_slower_sampling_is_not() {
        check(30, &[0, 10, 20, 50, 60], &[0]);
        check(30, &[0, 10, 20, 51, 61], &[0, 51]);
        // Sampled every 100 in the past: the first samples do not show it yet.
        check(30, &[0, 100, 200, 300, 400, 310, 320], &[0, 100, 200]);
        // A single sample between two outages joins neither, also if the outages have the same length.
        check(30, &[0, 10, 1000, 3000, 3010], &[0, 1000, 3000]);
        check(30, &[0, 10, 1000, 2000, 2010], &[0, 1000, 2000]);
        check(30, &[i64::MIN, i64::MAX], &[i64::MIN, i64::MAX]);
    }

    #[test]
    fn three_spacings_alike_are_an_interval() {
        assert!(is_rate(100, &[0, -100, -200], &[]));
        assert!(is_rate(100, &[0, -100], &[100, 200]));
        assert!(is_rate(100, &[0, -5], &[100, 167, 317]));
        assert!(!is_rate(100, &[0, -100], &[100, 166]));
        assert!(!is_rate(100, &[0, -100, -251], &[100, 300]));
        assert!(!is_rate(100, &[0], &[100, 200]));
        // Spacings beyond a different one do not count.
        assert!(!is_rate(100, &[0, -10, -110], &[100, 200]));
        // The longest spacing can be compared.
        assert!(!is_rate(i64::MAX, &[i64::MIN, i64::MAX, i64::MAX - 1], &[]));
    }
}
