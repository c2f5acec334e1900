//! The sums of a group's counts on one CPU, from the kernel's raw counts and times. No I/O.
//!
//! When there are more events than the hardware has counters, they take turns. With each read the kernel gives the time in which the group
//! was enabled (`time_enabled`) and the time in which the hardware counted it (`time_running`); see perf_event_open(2). Each step of a count
//! is scaled by these two times and added to the sum. So the sum never falls. Scaling the whole count would make it fall when the fraction
//! of the time changes.

/// Times of a group, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// The group was enabled; for a group of a job, processes of the job were on the CPU.
    pub enabled: u64,
    /// The hardware counted the group.
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

    /// The sum of both times.
    pub fn plus(self, other: Times) -> Times {
        Times { enabled: self.enabled.wrapping_add(other.enabled), running: self.running.wrapping_add(other.running) }
    }

    /// Whether the group was enabled and never counted.
    pub fn was_not_counted(self) -> bool {
        self.enabled > 0 && self.running == 0
    }
}

/// A count decreased, as after a reset of the counters by another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountDecreased;

/// The sums of one group on one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterSums {
    /// The kernel's times at the last read.
    read: Times,
    /// The kernel's times when the counts were last added to the sums. Differs from `read` while the group waits for the hardware.
    counted: Times,
    counts: Vec<u64>,
    /// The sum of each event.
    pub totals: Vec<u128>,
    /// The sum of the times.
    pub times: Times,
}

impl CounterSums {
    /// For this number of events, with zero sums.
    pub fn new(events: usize) -> Self {
        Self { counts: vec![0; events], totals: vec![0; events], ..Self::default() }
    }

    /// The same sums, for counters that restart.
    pub fn restarted(self) -> Self {
        let events = self.totals.len();
        Self { totals: self.totals, times: self.times, ..Self::new(events) }
    }

    /// Adds the sums of `other`.
    pub fn add(&mut self, other: &CounterSums) {
        for (total, more) in self.totals.iter_mut().zip(&other.totals) {
            *total = total.wrapping_add(*more);
        }
        self.times = self.times.plus(other.times);
    }

    /// Adds a read: the kernel's times, and its counts of some of the events. When a count decreased, the sums do not change, and later reads
    /// count from these values.
    #[inline]
    pub fn update(
        &mut self,
        now: Times,
        counts: impl Iterator<Item = (usize, u64)> + Clone,
    ) -> Result<(), CountDecreased> {
        let step = now.since(self.counted);
        let has_decreased = now.enabled < self.read.enabled
            || now.running < self.read.running
            || counts.clone().any(|(event, count)| count.wrapping_sub(self.counts[event]) > i64::MAX as u64);
        if has_decreased {
            (self.read, self.counted) = (now, now);
            counts.for_each(|(event, count)| self.counts[event] = count);
            return Err(CountDecreased);
        }
        self.times = self.times.plus(now.since(self.read));
        self.read = now;
        // The scaling of the next counted step makes up for the time in which the group waited.
        if step.was_not_counted() {
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

/// Scales a count from the time in which it was counted to the whole time.
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

    fn update(sums: &mut CounterSums, enabled: u64, running: u64, counts: &[u64]) -> Result<Vec<u128>, CountDecreased> {
        sums.update(Times { enabled, running }, counts.iter().copied().enumerate()).map(|()| sums.totals.clone())
    }

    #[test]
    fn always_on_the_hardware_is_the_kernels_count() {
        let mut sums = CounterSums::new(2);
        assert_eq!(update(&mut sums, 10, 10, &[5, 7]).unwrap(), [5, 7]);
        assert_eq!(update(&mut sums, 10, 10, &[5, 7]).unwrap(), [5, 7], "nothing ran");
        assert_eq!(update(&mut sums, 30, 30, &[6, 700]).unwrap(), [6, 700]);
        assert_eq!(sums.times, Times { enabled: 30, running: 30 });
    }

    #[test]
    fn a_falling_fraction_does_not_make_the_sum_fall() {
        let mut sums = CounterSums::new(1);
        assert_eq!(update(&mut sums, 100, 10, &[1000]).unwrap(), [10_000], "a tenth of the time");
        // One scaling of the whole would give 1100 * 200 / 110 = 2000, which is less than before.
        assert_eq!(update(&mut sums, 200, 110, &[1100]).unwrap(), [10_100]);
        assert_eq!(update(&mut sums, 300, 160, &[1200]).unwrap(), [10_300]);
    }

    #[test]
    fn time_off_the_hardware_is_added_afterwards() {
        let mut sums = CounterSums::new(1);
        update(&mut sums, 100, 100, &[100]).unwrap();
        assert_eq!(update(&mut sums, 200, 100, &[100]).unwrap(), [100], "nothing invented");
        assert_eq!(update(&mut sums, 300, 100, &[100]).unwrap(), [100]);
        assert_eq!(update(&mut sums, 400, 200, &[200]).unwrap(), [400], "one third of the time was counted");
        assert_eq!(sums.times, Times { enabled: 400, running: 200 });
    }

    #[test]
    fn wraps_continue_and_decreases_restart() {
        let mut sums = CounterSums::new(1);
        assert_eq!(update(&mut sums, 1, 1, &[0x7000_0000_0000_0000]).unwrap(), [0x7000_0000_0000_0000]);
        assert_eq!(update(&mut sums, 2, 2, &[0xe000_0000_0000_0000]).unwrap(), [0xe000_0000_0000_0000]);
        let over = update(&mut sums, 3, 3, &[5]).unwrap();
        assert_eq!(over, [(1 << 64) + 5], "the kernel's 64 bits were full");
        assert_eq!(update(&mut sums, 4, 4, &[4]), Err(CountDecreased));
        assert_eq!(update(&mut sums, 5, 5, &[14]).unwrap(), [(1 << 64) + 15], "from there on");
        assert_eq!(update(&mut sums, 4, 4, &[20]), Err(CountDecreased), "its time fell");
    }

    #[test]
    fn sums_never_fall_and_are_near_the_truth() {
        let mut random = Random::seeded();
        for _ in 0..200 {
            let (mut sums, mut kernel, mut truth, mut last) = (CounterSums::new(1), [0u64; 3], 0u64, 0u128);
            for _ in 0..200 {
                // A constant load of 3 each ns. The fraction of the time changes with each step, and is often 0 or 1.
                let enabled = random.below(1_000_000);
                let running = match random.index(4) {
                    0 => 0,
                    1 => enabled,
                    _ => random.below(enabled + 1),
                };
                kernel = [kernel[0] + enabled, kernel[1] + running, kernel[2] + 3 * running];
                truth += 3 * enabled;
                let total = update(&mut sums, kernel[0], kernel[1], &[kernel[2]]).unwrap()[0];
                assert!(total >= last, "{total} after {last}");
                last = total;
                let waiting = u128::from(sums.read.enabled - sums.counted.enabled) * 3;
                assert!(total.abs_diff(u128::from(truth) - waiting) <= 200, "{total} of {truth}, {waiting} to come");
            }
        }
    }
}
