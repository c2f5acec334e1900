//! How a group's samples are folded into windows: the sensors of the windows, and what folding needs to know of each sensor. The encoder folds.

use wholegrain_model::{Interval, Kind, Schema, SchemaError, SensorDef, ValueType};

/// The sensors of a window for each sensor, beside quantiles: `min`, `max`, `mean`, `last`, `count`.
pub const FOLDED: usize = 5;
/// The most values of a window that quantiles are computed from: 4096. Of windows with more, every second (third, …) value is taken.
pub const QUANTILE_VALUES_MAX: usize = 4096;

/// A sensor of the samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Folded {
    /// For a counter, the rates between its values are folded.
    pub kind: Kind,
    /// The type of its values.
    pub value_type: ValueType,
    /// Raw value times scale is the value in the sensor's unit.
    pub scale: f64,
    /// For a counter that wraps: its modulus.
    pub wraps_at: Option<u64>,
}

/// How a group's samples are folded, and the schema of the windows.
#[derive(Debug)]
pub struct Accumulated {
    /// Windows are aligned to multiples of this on the wall clock, in ns.
    pub window_ns: i64,
    /// Between 0 and 1.
    pub quantiles: Box<[f64]>,
    /// The sensors of the samples.
    pub sensors: Box<[Folded]>,
    /// The sensors of the windows: [`FOLDED`] and the quantiles for each sensor of the samples.
    pub schema: Schema,
    pub types: Box<[ValueType]>,
    /// One of this many values is kept for the quantiles.
    pub stride: u32,
    values: usize,
}

/// The last level of a quantile's name: `p50`, `p99`, `p99.9`.
fn quantile_name(quantile: f64) -> String {
    let text = format!("{:.6}", quantile * 100.0);
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

impl Accumulated {
    /// For samples of `schema` at each `interval`.
    pub fn new(schema: &Schema, interval: Interval, window: Interval, quantiles: &[f64]) -> Result<Self, SchemaError> {
        let mut sensors = Vec::with_capacity(schema.len() * (FOLDED + quantiles.len()));
        for sensor in schema.sensors() {
            windows_of(sensor, window, quantiles, &mut sensors);
        }
        let types = sensors.iter().map(|sensor: &SensorDef| sensor.value_type).collect();
        let folded = |sensor: &SensorDef| Folded {
            kind: sensor.kind,
            value_type: sensor.value_type,
            scale: sensor.scale,
            wraps_at: sensor.wraps_at,
        };
        let window_ns = window.ns().max(interval.ns()).max(1);
        let values = window_ns.div_ceil(interval.ns().max(1));
        Ok(Self {
            window_ns: i64::try_from(window_ns).unwrap_or(i64::MAX),
            quantiles: quantiles.into(),
            sensors: schema.sensors().iter().map(folded).collect(),
            types,
            schema: Schema::new(schema.prefix().clone(), schema.group(), sensors)?,
            values: usize::try_from(values).unwrap_or(usize::MAX).min(QUANTILE_VALUES_MAX) + 1,
            stride: u32::try_from(values.div_ceil(QUANTILE_VALUES_MAX as u64)).unwrap_or(u32::MAX).max(1),
        })
    }

    /// The same with the other's schema if the sensors are equal, so that the schema is in memory once.
    pub fn sharing(mut self, other: &Self) -> Self {
        self.schema = self.schema.sharing(&other.schema);
        self
    }

    /// The most values of a window that are kept for the quantiles.
    pub fn values(&self) -> usize {
        self.values
    }

    /// The number of window sensors for each sensor of the samples.
    pub fn width(&self) -> usize {
        FOLDED + self.quantiles.len()
    }
}

fn windows_of(sensor: &SensorDef, window: Interval, quantiles: &[f64], out: &mut Vec<SensorDef>) {
    let (name, counter) = (&sensor.name, sensor.kind == Kind::Counter);
    let unit = if counter { format!("{}/s", sensor.unit) } else { sensor.unit.clone() };
    let of = if counter { "rate" } else { "value" };
    // Without the sensor's name, which may be as long as a description.
    let mut float = |last: &str, what: &str| {
        let text = format!("{what} {of} in each {window}.");
        out.push(SensorDef::gauge(format!("{name}/{last}"), &unit, &text).float());
    };
    float("min", "Least");
    float("max", "Greatest");
    float("mean", "Mean");
    let (last, count) = (format!("{name}/last"), format!("{name}/count"));
    out.push(SensorDef { name: last, description: format!("Last value in each {window}."), ..sensor.clone() });
    out.push(SensorDef::gauge(count, "1", &format!("Values in each {window}.")));
    for quantile in quantiles {
        let level = quantile_name(*quantile);
        let text = format!("The {of} that a part of {quantile} of those in each {window} does not exceed.");
        out.push(SensorDef::gauge(format!("{name}/{level}"), &unit, &text).float());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::SensorPath;

    #[test]
    fn sensors_of_windows() {
        let sensors =
            vec![SensorDef::gauge("m", "By", "").scaled(1024.0), SensorDef::counter("cpu/usage", "s", "").scaled(1e-9)];
        let schema = Schema::new(SensorPath::new("/n/job/1").unwrap(), "job/1/1ms", sensors).unwrap();
        let (ms, s) = (Interval::from_ms(1), Interval::from_s(10));
        let made = Accumulated::new(&schema, ms, s, &[0.5, 0.999]).unwrap();
        let shown: Vec<String> = (0..made.schema.len())
            .map(|index| {
                let sensor = &made.schema.sensors()[index];
                format!("{} {} {:?} {:?} {}", sensor.name, sensor.unit, sensor.kind, sensor.value_type, sensor.scale)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "m/min By Gauge Float 1",
                "m/max By Gauge Float 1",
                "m/mean By Gauge Float 1",
                "m/last By Gauge Int 1024",
                "m/count 1 Gauge Int 1",
                "m/p50 By Gauge Float 1",
                "m/p99.9 By Gauge Float 1",
                "cpu/usage/min s/s Gauge Float 1",
                "cpu/usage/max s/s Gauge Float 1",
                "cpu/usage/mean s/s Gauge Float 1",
                "cpu/usage/last s Counter Int 0.000000001",
                "cpu/usage/count 1 Gauge Int 1",
                "cpu/usage/p50 s/s Gauge Float 1",
                "cpu/usage/p99.9 s/s Gauge Float 1",
            ]
        );
        assert_eq!((made.window_ns, made.stride, made.width()), (10_000_000_000, 3, 7), "10,000 values, at most 4096");
        assert_eq!(Accumulated::new(&schema, s, ms, &[]).unwrap().window_ns, 10_000_000_000, "not below the interval");
    }

    #[test]
    fn quantiles_have_short_names() {
        for (quantile, expected) in
            [(0.0, "p0"), (0.07, "p7"), (0.5, "p50"), (0.999, "p99.9"), (1.0, "p100"), (0.000_1, "p0.01")]
        {
            assert_eq!(quantile_name(quantile), expected);
        }
    }
}
