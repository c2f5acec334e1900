//! Converts readings to samples of Prometheus: milliseconds, floats, and stale markers where a value ends.

use wholegrain_query::{HoleDetector, Scale, hole_bound_ns};
use wholegrain_store::{Chunk, SensorInfo};

use super::hints::NeededTimes;

/// The bits of the NaN that ends a series (Prometheus: `model/value`).
const STALE_BITS: u64 = 0x7ff0_0000_0000_0002;
/// The bits of any other NaN.
const NAN_BITS: u64 = 0x7ff8_0000_0000_0001;
/// If the last reading of a sensor is older than this, 60 s, the sensor has ended; later readings are not merely delayed.
const ON_ITS_WAY_NS: i64 = 60_000_000_000;
const MS: i64 = 1_000_000;

pub fn stale() -> f64 {
    f64::from_bits(STALE_BITS)
}

/// Converts the readings of one sensor, chunk by chunk, and omits samples that the query does not need.
pub struct SeriesSamples {
    scale: Scale,
    holes: HoleDetector,
    /// The longest time between two readings without a hole; `None` for a sensor without an interval, whose values are valid until the next.
    bound_ns: Option<i64>,
    last: Option<i64>,
    needed: Option<NeededTimes>,
    pending: Option<(i64, f64)>,
}

impl SeriesSamples {
    pub fn new(sensor: &SensorInfo, needed: Option<NeededTimes>) -> Self {
        let bound_ns = hole_bound_ns(sensor);
        Self {
            scale: Scale::new(sensor.scale),
            holes: HoleDetector::new(bound_ns),
            bound_ns: (sensor.interval_ns > 0).then_some(bound_ns),
            last: None,
            needed,
            pending: None,
        }
    }

    /// Converts the next chunk and passes samples to `take`, in order of time.
    pub fn chunk(&mut self, chunk: &Chunk, take: &mut impl FnMut(i64, f64)) {
        for (at, &time) in chunk.times.iter().enumerate() {
            if self.holes.step(time)
                && let (Some(last), Some(bound)) = (self.last, self.bound_ns)
            {
                self.push(last.saturating_add(bound).min(time - 1), stale(), take);
            }
            let value = chunk.column.get(at).map(|value| self.scale.apply(value.as_f64()));
            let value = value.map_or_else(stale, |value| if value.is_nan() { f64::from_bits(NAN_BITS) } else { value });
            self.push(time, value, take);
            self.last = Some(time);
        }
    }

    /// Ends the series at `to`, which is excluded.
    pub fn finish(mut self, to: i64, now: i64, take: &mut impl FnMut(i64, f64)) {
        if let (Some(last), Some(bound)) = (self.last, self.bound_ns) {
            let end = last.saturating_add(bound);
            if end < to && now.saturating_sub(last) > ON_ITS_WAY_NS && self.holes.step(to.min(now)) {
                self.push(end, stale(), take);
            }
        }
        self.flush(take);
    }

    fn push(&mut self, time: i64, value: f64, take: &mut impl FnMut(i64, f64)) {
        let ms = time.div_euclid(MS);
        if let Some((before, _)) = self.pending {
            let same_mark = |needed: &NeededTimes| needed.last_only && needed.mark(before) == needed.mark(ms);
            // The last of several readings in one millisecond is used: times of Prometheus are no finer.
            if before != ms && !self.needed.as_ref().is_some_and(same_mark) {
                self.flush(take);
            }
        }
        self.pending = Some((ms, value));
    }

    fn flush(&mut self, take: &mut impl FnMut(i64, f64)) {
        if let Some((ms, value)) = self.pending.take()
            && self.needed.is_none_or(|needed| needed.reaches(ms))
        {
            take(ms, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{Column, ColumnValues, Gaps};

    use super::super::labels::tests::sensor;
    use super::*;

    const S: i64 = 1000 * MS;

    fn chunk(readings: &[(i64, Option<i64>)]) -> Chunk {
        let mut gaps = Gaps::default();
        readings.iter().enumerate().filter(|(_, one)| one.1.is_none()).for_each(|(at, _)| gaps.set(at, readings.len()));
        let values = ColumnValues::Int(readings.iter().map(|one| one.1.unwrap_or(0)).collect());
        Chunk { times: readings.iter().map(|one| one.0).collect(), column: Column { values, gaps } }
    }

    fn samples(readings: &[(i64, Option<i64>)], to: i64, now: i64) -> Vec<(i64, String)> {
        let mut found = Vec::new();
        let mut take = |ms, value: f64| {
            let shown = if value.to_bits() == STALE_BITS { "stale".to_owned() } else { value.to_string() };
            found.push((ms, shown));
        };
        let mut samples = SeriesSamples::new(&SensorInfo { scale: 0.1, ..sensor("/n1/x", "n1") }, None);
        for part in readings.chunks(2) {
            samples.chunk(&chunk(part), &mut take);
        }
        samples.finish(to, now, &mut take);
        found
    }

    #[test]
    fn gaps_and_holes_end_a_value() {
        let all = [(0, Some(1)), (S, Some(2)), (2 * S, None), (3 * S, Some(3)), (9 * S, Some(4)), (10 * S, Some(5))];
        let shown = |samples: Vec<(i64, String)>| -> Vec<String> {
            samples.iter().map(|(ms, value)| format!("{ms}={value}")).collect()
        };
        assert_eq!(
            shown(samples(&all, 11 * S, 11 * S)),
            ["0=0.1", "1000=0.2", "2000=stale", "3000=0.3", "6000=stale", "9000=0.4", "10000=0.5"]
        );
        // The series has ended; a sensor whose readings may be delayed has not.
        assert_eq!(shown(samples(&all[4..], 60 * S, 90 * S)), ["9000=0.4", "10000=0.5", "13000=stale"]);
        assert_eq!(shown(samples(&all[4..], 60 * S, 60 * S)).len(), 2);
        assert_eq!(shown(samples(&all[4..], 12 * S, 90 * S)).len(), 2);
    }

    #[test]
    fn a_millisecond_has_one_sample() {
        let fast: Vec<_> = (0..8).map(|at| (at * 400_000, Some(at))).collect();
        let times: Vec<i64> = samples(&fast, S, S).iter().map(|sample| sample.0).collect();
        assert_eq!(times, [0, 1, 2]);
        assert_eq!(samples(&fast, S, S)[0].1, "0.2");
    }
}
