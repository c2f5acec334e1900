//! The embedded store as a store of the checks: a put is an import.

use wholegrain_model::{Pattern, SensorPath};
use wholegrain_store::{Chunk, Deletion, ImportSeries, SchemalessSensor, SensorId, SensorInfo, Store, StoreError};

use super::{PutOutcome, WritableStore};

impl WritableStore for Store {
    fn define(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        self.register_sensors(source, sensors)
    }

    fn put(&self, source: &str, number: u64, chunks: &[(SensorId, Chunk)]) -> Result<PutOutcome, StoreError> {
        let series = chunks.iter().map(|(id, chunk)| {
            let unknown = || StoreError::Sensor(format!("no sensor has the number {}", id.0));
            let info = self.sensor(*id).ok_or_else(unknown)?;
            Ok(ImportSeries { sensor: schemaless(info)?, times: chunk.times.clone(), column: chunk.column.clone() })
        });
        let series = series.collect::<Result<Vec<_>, StoreError>>()?;
        let done = self.import(source, number, source, series)?;
        Ok(if done.duplicate { PutOutcome::Duplicate } else { PutOutcome::Stored })
    }

    fn delete(&self, patterns: &[Pattern], from: i64, to: i64) -> Result<(), StoreError> {
        Store::delete(self, &Deletion { patterns: patterns.to_vec(), from, to }).map(drop)
    }
}

/// The definition that registers a sensor again without changing its properties.
fn schemaless(info: SensorInfo) -> Result<SchemalessSensor, StoreError> {
    let path = SensorPath::new(&*info.path).map_err(|error| StoreError::Sensor(error.to_string()))?;
    let SensorInfo { unit, kind, value_type, scale, description, .. } = info;
    Ok(SchemalessSensor { path, unit, kind, value_type, scale, description })
}
