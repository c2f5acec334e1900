//! Values that move as those of a busy node's /proc do.
//!
//! Of 1,160 numbers of meminfo, vmstat, stat, diskstats, net/dev, interrupts, softirqs and net/snmp, read four times a second
//! for ten seconds on an almost idle machine, 88 % stood still, 8 % only rose (in 59 of 100 samples, with median steps of 0,
//! 3 and 13 at the quartiles) and 4 % went up and down. The mix here is that of a busier machine, and harder to compress:
//! of 25 sensors 17 stand still, 5 count, 2 are gauges, and one is a float.

use wholegrain_model::{SensorDef, ValueType};
use wholegrain_transport::payload::Rows;

/// The classes repeat after this number of sensors.
const PATTERN: &[u8; 25] = b"sssccsssgsssscsssfsscsgcs";
/// A constant sensor changes its value once in this number of batches.
const STILL_BATCHES: u64 = 100;
/// The step of floats: a power meter's eighth of a watt. Their sum stays exact.
pub const FLOAT_STEP: f64 = 0.125;

/// Successive values of a group's sensors.
pub struct Walk {
    sensors: usize,
    samples: usize,
    /// Sensor by sensor, each from the first sample to the last.
    values: Vec<u64>,
    random: u64,
    /// Sum of all integers so far.
    pub int_sum: i128,
    /// Sum of all floats so far, in [`FLOAT_STEP`]s.
    pub float_steps: i128,
}

/// The pattern of a sensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Still,
    Counter,
    Gauge,
    Float,
}

fn class(sensor: usize) -> Class {
    match PATTERN[sensor % PATTERN.len()] {
        b'c' => Class::Counter,
        b'g' => Class::Gauge,
        b'f' => Class::Float,
        _ => Class::Still,
    }
}

/// The definition of each sensor, as a schema wants them.
pub fn sensors(count: usize) -> Vec<SensorDef> {
    let define = |sensor: usize| {
        let name = format!("g{}/s{:05}", sensor / 250, sensor);
        match class(sensor) {
            Class::Counter => SensorDef::counter(name, "1", "Counts."),
            Class::Float => SensorDef::gauge(name, "W", "Goes up and down.").float(),
            Class::Still | Class::Gauge => SensorDef::gauge(name, "By", "Goes up and down.").scaled(1024.0),
        }
    };
    (0..count).map(define).collect()
}

/// The type of each sensor.
pub fn types(count: usize) -> Vec<ValueType> {
    let of = |sensor| if class(sensor) == Class::Float { ValueType::Float } else { ValueType::Int };
    (0..count).map(of).collect()
}

impl Walk {
    /// `samples` values of each of `sensors` in a batch.
    pub fn new(sensors: usize, samples: usize, seed: u64) -> Self {
        let mut walk = Self {
            sensors,
            samples,
            values: vec![0; sensors * samples],
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            int_sum: 0,
            float_steps: 0,
        };
        for sensor in 0..sensors {
            let first = match class(sensor) {
                Class::Float => (200.0 + (sensor % 100) as f64).to_bits(),
                _ => walk.draw() % (1 << (8 + sensor % 24)),
            };
            walk.values[(sensor + 1) * samples - 1] = first;
        }
        walk
    }

    /// xorshift64: a few instructions, good enough for steps.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Advances to the next batch.
    pub fn advance(&mut self) {
        let samples = self.samples;
        let (mut ints, mut floats) = (0i64, 0i64);
        for sensor in 0..self.sensors {
            let draw = self.draw();
            let row = &mut self.values[sensor * samples..(sensor + 1) * samples];
            let mut value = row[samples - 1];
            match class(sensor) {
                Class::Still => {
                    if draw.is_multiple_of(STILL_BATCHES) {
                        value = draw >> 40;
                    }
                    row.fill(value);
                    ints = ints.wrapping_add((value as i64).wrapping_mul(samples as i64));
                }
                Class::Counter => {
                    for (at, slot) in row.iter_mut().enumerate() {
                        let bits = draw.rotate_left(at as u32 * 7);
                        // In three of five samples something happened; how much depends on the sensor.
                        value += if bits % 5 < 3 { (bits >> 8) & ((4 << (sensor % 4)) - 1) } else { 0 };
                        *slot = value;
                        ints = ints.wrapping_add(value as i64);
                    }
                }
                Class::Gauge => {
                    for (at, slot) in row.iter_mut().enumerate() {
                        let step = (draw.rotate_left(at as u32 * 7) & 63) as i64 - 31;
                        value = (value as i64 + step * 4).max(0) as u64;
                        *slot = value;
                        ints = ints.wrapping_add(value as i64);
                    }
                }
                Class::Float => {
                    let base = 200.0 + (sensor % 100) as f64;
                    for (at, slot) in row.iter_mut().enumerate() {
                        let steps = (draw.rotate_left(at as u32 * 7) & 63) as i64;
                        *slot = (base + steps as f64 * FLOAT_STEP).to_bits();
                        floats += (base / FLOAT_STEP) as i64 + steps;
                    }
                }
            }
        }
        self.int_sum += i128::from(ints);
        self.float_steps += i128::from(floats);
    }
}

impl Rows for Walk {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        self.values[sensor * self.samples + sample]
    }

    fn is_gap(&self, _sensor: usize, _sample: usize) -> bool {
        false
    }

    fn may_have_gaps(&self, _sensor: usize) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_values() {
        let mut walk = Walk::new(60, 10, 7);
        let (mut ints, mut floats) = (0i128, 0.0);
        for _ in 0..20 {
            walk.advance();
            for (sensor, value_type) in types(60).iter().enumerate() {
                for sample in 0..10 {
                    let bits = walk.value(sensor, sample);
                    match value_type {
                        ValueType::Int => ints += i128::from(bits as i64),
                        ValueType::Float => floats += f64::from_bits(bits),
                    }
                }
            }
        }
        assert_eq!(ints, walk.int_sum);
        assert_eq!(floats, walk.float_steps as f64 * FLOAT_STEP);
    }

    #[test]
    fn counters_never_fall_and_most_sensors_stand_still() {
        let mut walk = Walk::new(2500, 10, 1);
        walk.advance();
        let still = (0..2500).filter(|&s| (1..10).all(|at| walk.value(s, at) == walk.value(s, 0))).count();
        assert!((1600..2000).contains(&still), "{still} of 2500 stand still");
        for sensor in (0..2500).filter(|&s| class(s) == Class::Counter) {
            assert!((1..10).all(|at| walk.value(sensor, at) >= walk.value(sensor, at - 1)));
        }
    }
}
