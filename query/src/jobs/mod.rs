//! Queries over jobs: where a job was, when, and which sensors are its own.
//!
//! - In: a job's records ([`JobScope::find`]); sensors and readings of any kind ([`Chunks`]).
//! - Out: the sensors that are the job's ([`JobScope::retain`]); the same readings, of each sensor only those of the job's time on its node
//!   ([`JobScope::restrict`]).
//! - Never: another job's sensors; a reading from before the job came to a node or after it left.
//!
//! `scope.rs` says which sensors are a job's, `during.rs` restricts readings, `statistics.rs` and `energy.rs` say what they come to.

mod during;
pub mod energy;
mod scope;
pub mod statistics;

pub use scope::{Cpus, JobNode, JobScope};

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use wholegrain_model::{Column, ColumnValues, Gaps, Kind, ValueType};
    use wholegrain_store::{Chunk, ChunkIter, Chunks, SensorId, SensorInfo, StoreError};

    /// Readings of whatever sensor, in chunks of seven.
    pub struct Fake(pub Vec<(i64, f64)>);

    impl Chunks for Fake {
        fn scan(&self, _: &SensorInfo, from: i64, to: i64) -> Result<ChunkIter, StoreError> {
            let inside: Vec<_> = self.0.iter().copied().filter(|(time, _)| (from..to).contains(time)).collect();
            let chunks = inside.chunks(7).map(|part| {
                let values = ColumnValues::Float(part.iter().map(|reading| reading.1).collect());
                Ok(Chunk {
                    times: part.iter().map(|reading| reading.0).collect(),
                    column: Column { values, gaps: Gaps::default() },
                })
            });
            Ok(Box::new(chunks.collect::<Vec<_>>().into_iter()))
        }
    }

    pub fn sensor(path: &str, unit: &str, kind: Kind) -> SensorInfo {
        SensorInfo {
            id: SensorId(0),
            path: Arc::from(path),
            unit: unit.into(),
            kind,
            value_type: ValueType::Float,
            scale: 1.0,
            wraps_at: None,
            description: String::new(),
            interval_ns: 1_000_000_000,
            last_time: None,
            agent: "n".into(),
        }
    }
}
