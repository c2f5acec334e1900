//! The newest reading of each sensor.

use std::collections::HashMap;
use std::sync::Arc;

use wholegrain_model::Value;
use wholegrain_transport::payload::{for_each_column, last_row};

use crate::SensorId;
use crate::head::live::{LiveBatch, NewestBatches};
use crate::sensors::SensorIndex;
use crate::snapshot::SnapshotSource;

pub(crate) struct NewestReadings {
    pub sensors: Arc<SensorIndex>,
    pub batches: Arc<NewestBatches>,
    pub snapshots: Arc<SnapshotSource>,
}

impl NewestReadings {
    /// Time, and value or `None` for a gap, of each sensor's newest reading.
    pub fn of(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        let mut rows: HashMap<u32, Option<SampleRow>> = HashMap::new();
        let mut snapshot = None;
        let mut one = |id: SensorId| {
            let mut best: Option<(i64, Option<Value>)> = None;
            let mut last_time = None;
            {
                let sensors = self.sensors.read();
                if let Some((time, value)) = sensors.last_schemaless(id) {
                    last_time = Some(time);
                    best = value.map(|value| (time, Some(value)));
                }
                for place in sensors.places(id).iter() {
                    let hash = sensors.schema_at(place.schema).hash();
                    last_time = last_time.max(sensors.group(&hash).map(|state| state.last_time));
                    let row = rows.entry(place.schema).or_insert_with(|| newest_row(&*self.batches.get(&hash)?));
                    if let Some((time, values)) = row
                        && best.is_none_or(|(known, _)| *time >= known)
                    {
                        best = Some((*time, values.get(place.column as usize).copied().flatten()));
                    }
                }
            }
            // A silent group, or one that sends old batches after a restart: something newer is on disk.
            if last_time > best.map(|(time, _)| time) {
                let snapshot = snapshot.get_or_insert_with(|| self.snapshots.snapshot());
                let stored = snapshot.newest_since(id, last_time.unwrap_or(i64::MIN));
                best = stored.into_iter().chain(best).max_by_key(|(time, _)| *time);
            }
            best
        };
        ids.iter().map(|id| one(*id)).collect()
    }
}

/// The time of a sample, and a value or gap for each sensor of its schema.
type SampleRow = (i64, Vec<Option<Value>>);

/// The sample with the largest time.
fn newest_row(batch: &LiveBatch) -> Option<SampleRow> {
    let (time, values) = last_row(&batch.payload, &batch.schema).ok()?;
    if time == batch.last_time {
        return Some((time, values));
    }
    let mut row = Vec::with_capacity(batch.schema.len());
    let mut columns = Vec::with_capacity(batch.schema.len());
    let times = for_each_column(&batch.payload, &batch.schema, |_, column| columns.push(column.clone())).ok()?;
    let at = times.iter().rposition(|time| *time == batch.last_time)?;
    row.extend(columns.iter().map(|column| column.get(at)));
    Some((batch.last_time, row))
}
