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
    use std::sync::Arc;

    use wholegrain_model::{Column, ColumnValues, Gaps, Kind, ValueType};
    use wholegrain_store::{
        Chunk, ReadSnapshot, Scan, ScanRequest, SensorId, SensorInfo, SensorRange, SnapshotReader, StoreError,
    };

    /// The readings of every sensor, in chunks of seven.
    #[derive(Clone)]
    pub struct Fake(pub Vec<(i64, f64)>);

    impl ReadSnapshot for Fake {
        fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
            Ok(Arc::new(self.clone()))
        }
    }

    impl SnapshotReader for Fake {
        fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
            let ScanRequest { from, to, .. } = *request;
            let inside: Vec<_> = self.0.iter().copied().filter(|(time, _)| (from..to).contains(time)).collect();
            let chunks = inside.chunks(7).map(|part| {
                let values = ColumnValues::Float(part.iter().map(|reading| reading.1).collect());
                Ok(Chunk {
                    times: part.iter().map(|reading| reading.0).collect(),
                    column: Column { values, gaps: Gaps::default() },
                })
            });
            Ok(Scan::of_chunks(request, chunks.collect::<Vec<_>>().into_iter()))
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
