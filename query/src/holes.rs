//! Where readings are missing between two samples.

use wholegrain_store::SensorInfo;

/// Two samples further apart than so many intervals of their sensor have a hole between them. One or two missed ticks are
/// bridged; an outage is not.
pub const HOLE_INTERVALS: i64 = 3;
/// How far apart samples may be, and how far back is looked, for a sensor that has no interval (events): 5 minutes.
pub const LOOK_BACK_NS_UNKNOWN: i64 = 300_000_000_000;

/// Decides about holes along one sensor's samples.
///
/// A sensor's interval can have been longer at the time than it is now. So a spacing over the bound is still no hole when
/// the spacing before it was about as long (at least two thirds of it): then that was the interval.
#[derive(Debug)]
pub struct Holes {
    bound_ns: i64,
    last_time: Option<i64>,
    last_spacing_ns: i64,
}

/// The longest spacing of two samples without a hole between them, and how far back the sample before a range is sought.
pub fn bound_ns(sensor: &SensorInfo) -> i64 {
    match i64::try_from(sensor.interval_ns).unwrap_or(i64::MAX) {
        0 => LOOK_BACK_NS_UNKNOWN,
        interval => interval.saturating_mul(HOLE_INTERVALS),
    }
}

impl Holes {
    /// For samples of which two so far apart or closer have no hole between them.
    pub fn new(bound_ns: i64) -> Self {
        Self { bound_ns, last_time: None, last_spacing_ns: 0 }
    }

    /// Takes the time of the next sample, gap or not; whether there is a hole between it and the sample before.
    pub fn step(&mut self, time: i64) -> bool {
        let Some(last) = self.last_time.replace(time) else { return true };
        let spacing = time.saturating_sub(last);
        let like_before = self.last_spacing_ns.saturating_add(self.last_spacing_ns / 2);
        self.last_spacing_ns = spacing;
        spacing > self.bound_ns && spacing > like_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bound: i64, times: &[i64], holes: &[i64]) {
        let mut state = Holes::new(bound);
        let found: Vec<i64> = times.iter().copied().filter(|time| state.step(*time)).collect();
        assert_eq!(found, holes);
    }

    #[test]
    fn outages_are_holes_and_slower_sampling_is_not() {
        check(30, &[0, 10, 20, 50, 60], &[0]);
        check(30, &[0, 10, 20, 51, 61], &[0, 51]);
        // Sampled every 100 in the past: only the first spacing is in doubt.
        check(30, &[0, 100, 200, 300, 310, 320], &[0, 100]);
        // One sample alone between two outages joins neither.
        check(30, &[0, 10, 1000, 3000, 3010], &[0, 1000, 3000]);
        check(30, &[i64::MIN, i64::MAX], &[i64::MIN, i64::MAX]);
    }
}
