//! Readings in memory: the newest from the groups' rings, earlier ones from the cache.

use std::sync::Arc;

use wholegrain_model::{Pattern, Schema, SensorDef, Value};
use wholegrain_transport::payload::{decode_column, last_row};

use crate::cache::BatchCache;
use crate::engine::Group;
use crate::engine::ring::RowCopy;
use crate::registry::GroupRegistry;

/// A raw value in its sensor's unit: integers with an integer scale stay integers as long as they fit.
pub fn scaled(value: Value, sensor: &SensorDef) -> Value {
    let whole = sensor.scale.fract() == 0.0 && sensor.scale.abs() < (1u64 << 53) as f64;
    let exact = match value {
        Value::Int(raw) if whole => raw.checked_mul(sensor.scale as i64),
        _ => None,
    };
    exact.map_or_else(|| Value::Float(value.as_f64() * sensor.scale), Value::Int)
}

/// Whether any of the patterns matches the path; an empty list matches every path.
pub(crate) fn matches_any(patterns: &[Pattern], path: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(path))
}

/// A sensor that a query selected.
#[derive(Debug, Clone)]
pub struct SensorMatch {
    pub group: Arc<Group>,
    /// Its index in the schema.
    pub index: usize,
    pub path: String,
}

impl SensorMatch {
    pub fn sensor(&self) -> &SensorDef {
        &self.group.schema.sensors()[self.index]
    }
}

/// One sensor's readings, ordered by time: `(time, value)`, scaled, `None` for a gap.
pub type SensorReadings = Vec<(i64, Option<Value>)>;

/// Reads rings and cache together.
#[derive(Debug, Clone)]
pub struct RecentReadings {
    registry: Arc<GroupRegistry>,
    cache: Arc<BatchCache>,
}

impl RecentReadings {
    pub fn new(registry: Arc<GroupRegistry>, cache: Arc<BatchCache>) -> Self {
        Self { registry, cache }
    }

    /// The running sensors whose path satisfies `is_selected`, ordered by path.
    pub(crate) fn select(&self, is_selected: impl Fn(&str) -> bool) -> Vec<SensorMatch> {
        let mut list = Vec::new();
        for group in self.registry.live() {
            for index in 0..group.schema.len() {
                let path = group.schema.path(index);
                if is_selected(&path) {
                    list.push(SensorMatch { group: group.clone(), index, path });
                }
            }
        }
        list.sort_by(|a, b| a.path.cmp(&b.path));
        list
    }

    /// The newest sample of a group. A group that has none yet, because its interval or its sensors changed, gives that of its predecessor or
    /// the newest in the cache.
    pub fn newest_row(&self, group: &Group) -> Option<(i64, Vec<Option<Value>>)> {
        let mut copy = RowCopy::default();
        if group.ring.newest(&mut copy) {
            let value = |index| copy.get(index).map(|bits| Value::from_bits(bits, group.types[index]));
            return Some((copy.time, (0..group.types.len()).map(value).collect()));
        }
        if let Some(carried) = &group.carried {
            return Some(carried.clone());
        }
        let batch = self.cache.newest(&group.schema)?;
        last_row(&batch.payload, &group.schema).ok()
    }

    /// The readings of a sensor in `from <= time < to`, ordered by time. Rings are read before the cache: a sample that the encoder moves meanwhile
    /// is found twice rather than not at all, and the duplicate is removed.
    fn of_sensor(&self, schema: &Schema, index: usize, from: i64, to: i64) -> SensorReadings {
        let sensor = &schema.sensors()[index];
        let mut out: SensorReadings = Vec::new();
        let groups = self.registry.draining().into_iter().chain(self.registry.live());
        let mut copy = RowCopy::default();
        for group in groups.filter(|group| group.schema == *schema) {
            for row in group.ring.tail()..group.ring.head() {
                if group.ring.copy(row, &mut copy) && (from..to).contains(&copy.time) {
                    let value = copy.get(index).map(|bits| scaled(Value::from_bits(bits, sensor.value_type), sensor));
                    out.push((copy.time, value));
                }
            }
        }
        for batch in self.cache.overlapping(schema, from, to) {
            if let Ok((times, column)) = decode_column(&batch.payload, schema, index) {
                let within = times.into_iter().enumerate().filter(|(_, time)| (from..to).contains(time));
                out.extend(within.map(|(at, time)| (time, column.get(at).map(|value| scaled(value, sensor)))));
            }
        }
        sort_and_deduplicate(&mut out);
        out
    }

    /// Calls `each` with the readings of each sensor from `since(path)` on and before `to`, ordered by path; `None` leaves the sensor out. One sensor
    /// is decoded at a time. Removed sensors are included while the cache has readings of them.
    pub fn history<E>(
        &self,
        since: impl Fn(&str) -> Option<i64>,
        to: i64,
        mut each: impl FnMut(&str, &SensorDef, &SensorReadings) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut schemas: Vec<Schema> = self.registry.live().iter().map(|group| group.schema.clone()).collect();
        for schema in self.cache.schemas() {
            if !schemas.contains(&schema) {
                schemas.push(schema);
            }
        }
        let mut list: Vec<(String, &Schema, usize)> = schemas
            .iter()
            .flat_map(|schema| (0..schema.len()).map(move |index| (schema.path(index), schema, index)))
            .filter(|(path, _, _)| since(path).is_some())
            .collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        for same in list.chunk_by(|a, b| a.0 == b.0) {
            let Some(from) = since(&same[0].0) else { continue };
            let mut all = SensorReadings::new();
            for (_, schema, index) in same {
                all.append(&mut self.of_sensor(schema, *index, from, to));
            }
            if same.len() > 1 {
                sort_and_deduplicate(&mut all);
            }
            let (path, schema, index) = &same[0];
            each(path, &schema.sensors()[*index], &all)?;
        }
        Ok(())
    }
}

fn sort_and_deduplicate(readings: &mut SensorReadings) {
    readings.sort_by_key(|(time, _)| *time);
    readings.dedup_by_key(|(time, _)| *time);
}

/// Aggregates of readings; gaps do not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowAverage {
    pub count: usize,
    pub gaps: usize,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

/// The aggregates; `None` if there are only gaps.
pub fn average(readings: &SensorReadings) -> Option<WindowAverage> {
    let values: Vec<f64> = readings.iter().filter_map(|(_, value)| value.map(Value::as_f64)).collect();
    let count = values.len();
    (count > 0).then(|| WindowAverage {
        count,
        gaps: readings.len() - count,
        mean: values.iter().sum::<f64>() / count as f64,
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    })
}
