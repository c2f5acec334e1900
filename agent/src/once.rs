//! `--once`: reads every group once and prints the readings.

use std::fmt::Write;

use serde::Serialize;
use wholegrain_model::Value;

use crate::check::offered;
use crate::config::Config;
use crate::engine::clock;
use crate::readings::scaled;

/// A sensor with one reading.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SensorReading {
    pub path: String,
    /// The time of the read or of the device's answer, ns since the Unix epoch.
    #[serde(serialize_with = "rfc3339")]
    pub time: i64,
    /// In the sensor's unit; `None` for a gap.
    pub value: Option<Value>,
    pub unit: String,
}

fn rfc3339<S: serde::Serializer>(time: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&wholegrain_model::Timestamp(*time))
}

/// One reading of every sensor, and the problems.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OnceReport {
    pub readings: Vec<SensorReading>,
    pub notes: Vec<String>,
    /// Sources and plug-ins that cannot run.
    pub failures: Vec<String>,
}

/// Reads every group once.
pub fn once(config: &Config) -> OnceReport {
    let mut offer = offered(config);
    let mut readings = Vec::new();
    for index in 0..offer.groups.len() {
        let now = clock::real();
        let (sample, problem) = offer.read(index);
        let group = &offer.groups[index];
        let time = sample.taken_at.unwrap_or(now);
        for (index, sensor) in group.schema.sensors().iter().enumerate() {
            let value = (!sample.is_gap(index))
                .then(|| scaled(Value::from_bits(sample.values[index], sensor.value_type), sensor));
            readings.push(SensorReading { path: group.schema.path(index), time, value, unit: sensor.unit.clone() });
        }
        let note = problem.map(|problem| format!("{}: {problem}", group.schema.group()));
        offer.notes.extend(note);
    }
    OnceReport { readings, notes: offer.notes, failures: offer.failures }
}

/// The report for people: path, value, unit.
pub fn text(once: &OnceReport) -> String {
    let width = once.readings.iter().map(|shown| shown.path.len()).max().unwrap_or(0);
    let mut out = String::new();
    for shown in &once.readings {
        let value = match shown.value {
            Some(Value::Int(value)) => value.to_string(),
            Some(Value::Float(value)) => value.to_string(),
            None => "-".to_owned(),
        };
        let _ = writeln!(out, "{:<width$}  {value} {}", shown.path, shown.unit);
    }
    out
}
