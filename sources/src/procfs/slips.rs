//! Times of /proc/stat that fall by a little although nothing started again: `idle` and `iowait` (Documentation/filesystems/proc.rst, section 1.7:
//! "the value of iowait field in /proc/stat will decrease in certain conditions").
//!
//! A counter that falls counts from 0 in queries: a fall by one tick would be hours of waiting. So a value that fell a little is a gap.

use wholegrain_model::SensorDef;

use crate::reader::{Reader, Reading, Row};

/// The largest fall that is no restart: 3 s, as node_exporter has it. A CPU that was taken away and comes back begins at 0.
const SLIP_S: u32 = 3;

/// A reader whose times can fall.
pub struct SlippingTimes<R> {
    inner: R,
    /// The slots of these times, each with its value in the last sample, or [`NONE`].
    times: Vec<(usize, i64)>,
    slip_max: i64,
}

/// The last value of a time that had none: no difference to it is a small fall.
const NONE: i64 = i64::MIN;

impl<R> SlippingTimes<R> {
    /// Checks the times among the sensors, which count `ticks_hz` ticks in a second.
    pub fn new(inner: R, sensors: &[SensorDef], ticks_hz: u32) -> Self {
        let can_slip = |sensor: &SensorDef| matches!(sensor.name.rsplit_once('/'), Some((cpu, "idle" | "iowait")) if cpu.starts_with("cpu"));
        let times = sensors.iter().enumerate().filter(|(_, sensor)| can_slip(sensor)).map(|(slot, _)| (slot, NONE));
        Self { inner, times: times.collect(), slip_max: i64::from(SLIP_S) * i64::from(ticks_hz) }
    }
}

impl<R: Reader> Reader for SlippingTimes<R> {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let reading = self.inner.read(row);
        for (slot, last) in &mut self.times {
            let now = row.int(*slot).unwrap_or(NONE);
            if (1..=self.slip_max).contains(&last.wrapping_sub(now)) {
                row.set_gap(*slot);
            }
            *last = now;
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Recorded(Vec<[i64; 3]>);

    impl Reader for Recorded {
        fn read(&mut self, row: &mut Row<'_>) -> Reading {
            let values = self.0.remove(0);
            values
                .into_iter()
                .enumerate()
                .filter(|(_, value)| *value >= 0)
                .for_each(|(at, value)| row.set_int(at, value));
            Reading::COMPLETE
        }
    }

    #[test]
    fn a_small_decrease_is_a_gap_and_a_restart_is_none() {
        let counter = |name: &str| SensorDef::counter(name.to_owned(), "s", "");
        let sensors = [counter("cpu/iowait"), counter("cpu/3/idle"), counter("cpu/3/user")];
        let rows = vec![[1338, 500, 10], [1337, 499, 9], [1340, 498, 11], [-1, 198, 12], [1339, 197, 13], [0, 600, 14]];
        let mut reader = SlippingTimes::new(Recorded(rows), &sensors, 100);
        let mut read = || {
            let (mut values, mut gaps) = ([0; 3], [0; 1]);
            let mut row = Row::new(&mut values, &mut gaps);
            reader.read(&mut row);
            [0, 1, 2].map(|slot| row.int(slot))
        };
        assert_eq!(read(), [Some(1338), Some(500), Some(10)]);
        assert_eq!(read(), [None, None, Some(9)], "only idle and iowait slip");
        assert_eq!(read(), [Some(1340), None, Some(11)]);
        assert_eq!(read(), [None, None, Some(12)], "a fall of 3 s");
        assert_eq!(read(), [Some(1339), None, Some(13)], "nothing is compared across a gap");
        assert_eq!(read(), [Some(0), Some(600), Some(14)], "a restart");
    }
}
