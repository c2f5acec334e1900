//! Synthetic sensors of known shape, for tests and measurements.
//!
//! - In: `[sources.tester]`.
//! - Out: any number of sensors in any number of groups. The seed and the number of the sample determine each value.
//! - Never: a clock or random numbers of the system. The same configuration gives the same values in every run.

use std::f64::consts::TAU;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_model::{Kind, SensorDef};

use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::reader::{Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "tester",
    summary: "synthetic sensors of a configured shape, for tests and measurements",
    configure,
    jobs: None,
};

/// The longest period, in samples. A table holds the values of a period.
const PERIOD_SAMPLES_MAX: usize = 65_536;
/// The most groups of one configuration.
const GROUPS_MAX: usize = 1024;

/// The values of a sensor over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shape {
    Constant,
    /// From `value` up by `amplitude` over a period, then from `value` again.
    Ramp,
    /// A sine of `amplitude` around `value`.
    Sine,
    /// Any integer from `value - amplitude` to `value + amplitude`.
    Noise,
    /// From `value`, `amplitude` more with each sample.
    Counter,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TesterConfig {
    sensors: usize,
    groups: usize,
    shape: Shape,
    value: i64,
    amplitude: i64,
    period: usize,
    seed: u64,
    float: bool,
}

impl Default for TesterConfig {
    fn default() -> Self {
        Self {
            sensors: 100,
            groups: 1,
            shape: Shape::Noise,
            value: 0,
            amplitude: 1000,
            period: 60,
            seed: 1,
            float: false,
        }
    }
}

impl TesterConfig {
    fn check(&self, section: &Section) -> Result<(), ConfigError> {
        let bounds = [
            ("groups", self.groups, 1, GROUPS_MAX),
            ("sensors", self.sensors, self.groups, self.groups.saturating_mul(SENSORS_MAX)),
            ("period", self.period, 1, PERIOD_SAMPLES_MAX),
        ];
        for (key, is, least, most) in bounds {
            if is < least || is > most {
                return Err(section.error(key, format!("{key} is {is}; expected {least} to {most}")));
            }
        }
        Ok(())
    }
}

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, config): (GroupOptions, TesterConfig) = options::read_timing(section)?;
    config.check(section)?;
    Ok(Box::new(TesterSource { config, options }))
}

struct TesterSource {
    config: TesterConfig,
    options: GroupOptions,
}

impl Source for TesterSource {
    fn discover(&mut self, _report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        (0..self.config.groups).map(|group| self.group(group)).collect()
    }
}

impl TesterSource {
    fn group(&self, group: usize) -> GroupPlan {
        let config = &self.config;
        let (first, end) = (group * config.sensors / config.groups, (group + 1) * config.sensors / config.groups);
        let kind = if config.shape == Shape::Counter { Kind::Counter } else { Kind::Gauge };
        let sensor = |index: usize| {
            let sensor = SensorDef { kind, ..SensorDef::gauge(format!("tester/{index}"), "1", "Synthetic.") };
            if config.float { sensor.float() } else { sensor }
        };
        GroupPlan {
            name: if config.groups == 1 { "tester".to_owned() } else { format!("tester/{group}") },
            sensors: (first..end).map(sensor).collect(),
            reader: Box::new(TesterReader::new(config, first)),
            timing: self.options.timing(&NO_OPTIONS),
            blocking: false,
        }
    }
}

/// Generates the samples of one group.
struct TesterReader {
    shape: Shape,
    value: i64,
    amplitude: i64,
    seed: u64,
    float: bool,
    /// The number of the group's first sensor.
    first: u64,
    /// The number of the next sample.
    sample: u64,
    /// The values of one period, for shapes that have one.
    table: Vec<u64>,
}

impl TesterReader {
    fn new(config: &TesterConfig, first: usize) -> Self {
        let TesterConfig { shape, value, amplitude, seed, float, period, .. } = *config;
        let at = |step: usize| {
            let part = step as f64 / period as f64;
            let height = if shape == Shape::Sine { (part * TAU).sin() } else { part };
            let height = height * amplitude as f64;
            if float { (value as f64 + height).to_bits() } else { value.wrapping_add(height.round() as i64) as u64 }
        };
        let table = if matches!(shape, Shape::Ramp | Shape::Sine) { (0..period).map(at).collect() } else { Vec::new() };
        Self { shape, value, amplitude, seed, float, first: first as u64, sample: 0, table }
    }

    fn fill(&self, row: &mut Row<'_>) {
        let Self { value, amplitude, float, first, sample, .. } = *self;
        let bits = |int: i64| if float { (int as f64).to_bits() } else { int as u64 };
        match self.shape {
            Shape::Constant => row.set_all(|_| bits(value)),
            Shape::Counter => {
                let start = value.wrapping_add(amplitude.wrapping_mul(sample as i64));
                row.set_all(|index| bits(start.wrapping_add((first as i64).wrapping_add(index as i64))));
            }
            Shape::Ramp | Shape::Sine => {
                // Each sensor is a sample ahead of the one before it.
                let mut step = (sample.wrapping_add(first) % self.table.len() as u64) as usize;
                row.set_all(|_| {
                    let now = self.table[step];
                    step = if step + 1 == self.table.len() { 0 } else { step + 1 };
                    now
                });
            }
            Shape::Noise => {
                let start = mixed(self.seed ^ mixed(sample));
                let range = (amplitude.unsigned_abs().saturating_mul(2)).saturating_add(1);
                row.set_all(|index| {
                    let random = mixed(start.wrapping_add(first + index as u64));
                    // The upper half of a product spreads the random number over the range without a division.
                    let part = ((u128::from(random) * u128::from(range)) >> 64) as i64;
                    bits(value.wrapping_sub(amplitude.wrapping_abs()).wrapping_add(part))
                });
            }
        }
    }
}

impl Reader for TesterReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        self.fill(row);
        self.sample = self.sample.wrapping_add(1);
        Reading::default()
    }
}

/// A pseudorandom number from any number: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::config::Document;
    use wholegrain_model::{Interval, ValueType};

    fn source(keys: &str) -> Result<Box<dyn Source>, ConfigError> {
        let document = Document::new("agent.toml", &format!("[sources.tester]\n{keys}\n"));
        configure(&document.root().child("sources").child("tester"), &ConfigureContext::default())
    }

    /// The first `samples` samples of the first group.
    fn samples(keys: &str, samples: usize) -> Vec<Vec<i64>> {
        let mut group = source(keys).unwrap().discover(&mut |_| {}).remove(0);
        let count = group.sensors.len();
        let mut read = || {
            let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
            let mut row = Row::new(&mut values, &mut gaps);
            assert_eq!(group.reader.read(&mut row), Reading::default());
            (0..count).map(|index| row.int(index).expect("no gap")).collect()
        };
        (0..samples).map(|_| read()).collect()
    }

    #[test]
    fn shapes() {
        assert_eq!(samples("sensors = 2\nshape = \"constant\"\nvalue = 7", 2), [[7, 7], [7, 7]]);
        assert_eq!(
            samples("sensors = 2\nshape = \"counter\"\nvalue = 7\namplitude = 10", 3),
            [[7, 8], [17, 18], [27, 28]]
        );
        let ramp = "sensors = 2\nshape = \"ramp\"\nvalue = 1\namplitude = 40\nperiod = 4";
        assert_eq!(samples(ramp, 5), [[1, 11], [11, 21], [21, 31], [31, 1], [1, 11]]);
        let sine = "sensors = 1\nshape = \"sine\"\nvalue = 5\namplitude = 100\nperiod = 4";
        assert_eq!(samples(sine, 5), [[5], [105], [5], [-95], [5]]);
    }

    #[test]
    fn noise_follows_from_the_seed() {
        let keys = "sensors = 200\nshape = \"noise\"\nvalue = 50\namplitude = 3\n";
        let one = samples(&format!("{keys}seed = 1"), 5);
        assert_eq!(one, samples(&format!("{keys}seed = 1"), 5));
        assert_ne!(one, samples(&format!("{keys}seed = 2"), 5));
        assert_ne!(one[0], one[1]);
        let mut values: Vec<i64> = one.concat();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values, [47, 48, 49, 50, 51, 52, 53]);
    }

    #[test]
    fn floats() {
        let keys = "sensors = 1\nshape = \"sine\"\nperiod = 8\namplitude = 1\nfloat = true";
        let group = source(keys).unwrap().discover(&mut |_| {}).remove(0);
        assert_eq!(group.sensors[0].value_type, ValueType::Float);
        let value = f64::from_bits(samples(keys, 2)[1][0] as u64);
        assert!((value - 0.5_f64.sqrt()).abs() < 1e-12, "{value}");
    }

    #[test]
    fn sensors_are_spread_over_the_groups() {
        let groups = source("sensors = 10\ngroups = 3\ninterval = \"100ms\"").unwrap().discover(&mut |_| {});
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["tester/0", "tester/1", "tester/2"]);
        let sensors: Vec<String> =
            groups.iter().flat_map(|group| &group.sensors).map(|sensor| sensor.name.clone()).collect();
        assert_eq!(sensors, (0..10).map(|index| format!("tester/{index}")).collect::<Vec<_>>());
        assert!(groups.iter().all(|group| group.timing.interval == Some(Interval::from_ms(100))));
    }

    #[test]
    fn mistakes() {
        for (keys, expected) in [
            ("sensor = 5", "agent.toml:2:1: unknown key `sensor`; did you mean `sensors`?"),
            ("shape = \"sinus\"", "agent.toml:2:9: unknown value `sinus`; did you mean `sine`?"),
            ("sensors = 0", "agent.toml:2:1: sensors is 0; expected 1 to 65536"),
            ("groups = 0", "agent.toml:2:1: groups is 0; expected 1 to 1024"),
            ("sensors = 2\ngroups = 3", "agent.toml:2:1: sensors is 2; expected 3 to 196608"),
            ("period = 0", "agent.toml:2:1: period is 0; expected 1 to 65536"),
            ("interval = \"10us\"", "agent.toml:2:1: interval 10us is shorter than 1ms"),
            ("interval = \"1s\"\noffset = \"1s\"", "agent.toml:3:1: offset 1s is not below the interval 1s"),
        ] {
            let error = source(keys).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with(expected), "{keys:?}: {error:?} does not begin with {expected:?}");
        }
    }
}
