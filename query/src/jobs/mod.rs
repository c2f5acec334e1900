//! Queries over jobs: the nodes and times of a job, and its sensors.
//!
//! - In: a job's records ([`JobScope::find`]); sensors, and a snapshot of readings.
//! - Out: the job's sensors ([`JobScope::retain`]), and its time on the node of each ([`JobScope::place`]).
//! - Never: another job's sensors; a reading from before the job began on a node or after it ended.
//!
//! `scope.rs` selects a job's sensors; `statistics.rs` and `energy.rs` read them.

pub mod energy;
pub(crate) mod scope;
pub mod statistics;

pub use scope::{Cpus, JobNode, JobScope};

#[cfg(test)]
pub(crate) mod tests {
    use wholegrain_model::{Kind, Value, ValueType};
    use wholegrain_store::SensorInfo;

    use crate::reference::{self, Readings};

    /// The readings of [`sensor`], in chunks of seven.
    pub fn readings(readings: impl IntoIterator<Item = (i64, f64)>) -> Readings {
        let samples = readings.into_iter().map(|(time, value)| (time, Some(Value::Float(value)))).collect();
        Readings { samples: vec![samples], chunk_samples: 7 }
    }

    pub fn sensor(path: &str, unit: &str, kind: Kind) -> SensorInfo {
        let sensor = reference::sensor(0, path, kind, ValueType::Float);
        SensorInfo { unit: unit.into(), interval_ns: 1_000_000_000, ..sensor }
    }
}
