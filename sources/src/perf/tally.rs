//! What a group's counts on one CPU come to, from the kernel's raw counts and times. No I/O.
//!
//! More events than the hardware has counters take turns on it: of each read the kernel says how long the group was wanted
//! (`time_enabled`) and how long it was on the hardware (`time_running`), as perf_event_open(2) has it. What was counted is
//! scaled up by the two, step by step, so that the sum never falls when the part of the time changes, which one scaling of the
//! whole does.

/// Times of a group, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// How long it was wanted: of a job's group, how long its processes were on the CPU.
    pub enabled: u64,
    /// How long it was counted.
    pub running: u64,
}

impl Times {
    /// The times since `earlier`.
    pub fn since(self, earlier: Times) -> Times {
        Times {
            enabled: self.enabled.wrapping_sub(earlier.enabled),
            running: self.running.wrapping_sub(earlier.running),
        }
    }

    /// The sum.
    pub fn plus(self, other: Times) -> Times {
        Times { enabled: self.enabled.wrapping_add(other.enabled), running: self.running.wrapping_add(other.running) }
    }

    /// Whether it was wanted and never counted.
    pub fn is_unseen(self) -> bool {
        self.enabled > 0 && self.running == 0
    }
}

/// The counts fell, which a counter's do not: they were begun anew by somebody else, or the kernel is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fell;

/// The sums of one group on one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// The kernel's own at the last read.
    read: Times,
    /// The kernel's own when the counts were last added to the sums; equal to `read` but while the group waits for the hardware.
    counted: Times,
    counts: Vec<u64>,
    /// The sums, for each event.
    pub totals: Vec<u128>,
    /// The sums of the times.
    pub times: Times,
}

impl Tally {
    /// Of so many events, with nothing counted yet.
    pub fn new(events: usize) -> Self {
        Self { counts: vec![0; events], totals: vec![0; events], ..Self::default() }
    }

    /// The same sums, for counters that begin anew.
    pub fn begun_anew(self) -> Self {
        let events = self.totals.len();
        Self { totals: self.totals, times: self.times, ..Self::new(events) }
    }

    /// Adds another's sums.
    pub fn add(&mut self, other: &Tally) {
        for (total, more) in self.totals.iter_mut().zip(&other.totals) {
            *total = total.wrapping_add(*more);
        }
        self.times = self.times.plus(other.times);
    }

    /// Takes a read: the kernel's times, and its counts of some of the events. Without a change when the counts fell, but for
    /// beginning anew from them.
    #[inline]
    pub fn take(&mut self, now: Times, counts: impl Iterator<Item = (usize, u64)> + Clone) -> Result<(), Fell> {
        let step = now.since(self.counted);
        let fell = now.enabled < self.read.enabled
            || now.running < self.read.running
            || counts.clone().any(|(event, count)| count.wrapping_sub(self.counts[event]) > i64::MAX as u64);
        if fell {
            (self.read, self.counted) = (now, now);
            counts.for_each(|(event, count)| self.counts[event] = count);
            return Err(Fell);
        }
        self.times = self.times.plus(now.since(self.read));
        self.read = now;
        // What the group missed while it waited is made up for when it was counted again, and not a moment earlier.
        if step.is_unseen() {
            return Ok(());
        }
        self.counted = now;
        for (event, count) in counts {
            let delta = count.wrapping_sub(self.counts[event]);
            self.counts[event] = count;
            self.totals[event] = self.totals[event].wrapping_add(scaled(delta, step));
        }
        Ok(())
    }
}

/// A count in the part of the time that it was counted, for all of the time.
#[inline]
fn scaled(delta: u64, step: Times) -> u128 {
    if step.running >= step.enabled || step.running == 0 {
        return u128::from(delta);
    }
    let (enabled, running) = (u128::from(step.enabled), u128::from(step.running));
    (u128::from(delta) * enabled + running / 2) / running
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn take(tally: &mut Tally, enabled: u64, running: u64, counts: &[u64]) -> Result<Vec<u128>, Fell> {
        tally.take(Times { enabled, running }, counts.iter().copied().enumerate()).map(|()| tally.totals.clone())
    }

    #[test]
    fn always_on_the_hardware_is_the_kernels_count() {
        let mut tally = Tally::new(2);
        assert_eq!(take(&mut tally, 10, 10, &[5, 7]).unwrap(), [5, 7]);
        assert_eq!(take(&mut tally, 10, 10, &[5, 7]).unwrap(), [5, 7], "nothing ran");
        assert_eq!(take(&mut tally, 30, 30, &[6, 700]).unwrap(), [6, 700]);
        assert_eq!(tally.times, Times { enabled: 30, running: 30 });
    }

    #[test]
    fn a_falling_fraction_does_not_make_the_sum_fall() {
        let mut tally = Tally::new(1);
        assert_eq!(take(&mut tally, 100, 10, &[1000]).unwrap(), [10_000], "a tenth of the time");
        // One scaling of the whole would give 1100 * 200 / 110 = 2000, which is less than before.
        assert_eq!(take(&mut tally, 200, 110, &[1100]).unwrap(), [10_100]);
        assert_eq!(take(&mut tally, 300, 160, &[1200]).unwrap(), [10_300]);
    }

    #[test]
    fn time_off_the_hardware_is_made_up_for_afterwards() {
        let mut tally = Tally::new(1);
        take(&mut tally, 100, 100, &[100]).unwrap();
        assert_eq!(take(&mut tally, 200, 100, &[100]).unwrap(), [100], "nothing invented");
        assert_eq!(take(&mut tally, 300, 100, &[100]).unwrap(), [100]);
        assert_eq!(take(&mut tally, 400, 200, &[200]).unwrap(), [400], "one of three parts was seen");
        assert_eq!(tally.times, Times { enabled: 400, running: 200 });
    }

    #[test]
    fn wraps_go_on_and_falls_begin_anew() {
        let mut tally = Tally::new(1);
        assert_eq!(take(&mut tally, 1, 1, &[0x7000_0000_0000_0000]).unwrap(), [0x7000_0000_0000_0000]);
        assert_eq!(take(&mut tally, 2, 2, &[0xe000_0000_0000_0000]).unwrap(), [0xe000_0000_0000_0000]);
        let over = take(&mut tally, 3, 3, &[5]).unwrap();
        assert_eq!(over, [(1 << 64) + 5], "the kernel's 64 bits were full");
        assert_eq!(take(&mut tally, 4, 4, &[4]), Err(Fell));
        assert_eq!(take(&mut tally, 5, 5, &[14]).unwrap(), [(1 << 64) + 15], "from there on");
        assert_eq!(take(&mut tally, 4, 4, &[20]), Err(Fell), "its time fell");
    }

    #[test]
    fn sums_never_fall_and_are_near_the_truth() {
        let mut random = Random::new();
        for _ in 0..200 {
            let (mut tally, mut kernel, mut truth, mut last) = (Tally::new(1), [0u64; 3], 0u64, 0u128);
            for _ in 0..200 {
                // An even load of 3 a ns; the part of the time is a new one in each step, often none or all.
                let enabled = random.below(1_000_000) as u64;
                let running = match random.below(4) {
                    0 => 0,
                    1 => enabled,
                    _ => random.below(enabled as usize + 1) as u64,
                };
                kernel = [kernel[0] + enabled, kernel[1] + running, kernel[2] + 3 * running];
                truth += 3 * enabled;
                let total = take(&mut tally, kernel[0], kernel[1], &[kernel[2]]).unwrap()[0];
                assert!(total >= last, "{total} after {last}");
                last = total;
                let waiting = u128::from(tally.read.enabled - tally.counted.enabled) * 3;
                assert!(total.abs_diff(u128::from(truth) - waiting) <= 200, "{total} of {truth}, {waiting} to come");
            }
        }
    }
}
