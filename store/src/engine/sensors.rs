//! Registering and finding sensors.

use std::sync::Arc;

use wholegrain_model::{Pattern, Schema, SchemaHash, SensorPath, Value};

use super::Store;
use crate::error::StoreError;
use crate::sensors::SchemalessProperties;
use crate::sensors::info::{SensorId, SensorInfo};
use crate::sensors::reading::SchemalessSensor;

impl Store {
    /// Registers a schema, which then defines its sensors; durable when it returns. Registering a known schema again is cheap. Registrations of
    /// several threads at about the same time share a transaction.
    pub fn register_schema(&self, schema: &Schema) -> Result<(), StoreError> {
        self.engine().registration.register_schema(schema)
    }

    /// Registers several schemas in their order, with as few transactions as possible. Each has its own result.
    pub fn register_schemas(&self, schemas: &[Schema]) -> Vec<Result<(), StoreError>> {
        self.engine().registration.register_schemas(schemas)
    }

    /// Registers schemaless sensors and returns their numbers, in order; durable when it returns. A known path keeps its number. If a schema has
    /// the path, the schema defines the sensor; else the latest registration does. Blocks on the disk if something is new. `source` names the
    /// sender.
    pub fn register_sensors(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        self.engine().registration.register_sensors(source, sensors)
    }

    /// Whether [`Store::register_sensors`] would change nothing for this sensor.
    pub fn is_registered(&self, sensor: &SchemalessSensor) -> bool {
        let sensors = self.engine().sensors.read();
        let interval_ns = sensors.id(sensor.path.as_str()).map_or(0, |id| sensors.learned_interval(id));
        sensors.is_registered(sensor, &SchemalessProperties::of(sensor, interval_ns).encode())
    }

    /// The schema of this hash, if it is known.
    pub fn schema(&self, hash: &SchemaHash) -> Option<Schema> {
        self.engine().sensors.read().schema(hash).cloned()
    }

    /// How many of a schema's sensors are unknown.
    pub fn unknown_sensors(&self, schema: &Schema) -> usize {
        let sensors = self.engine().sensors.read();
        (0..schema.len()).filter(|&at| sensors.id(&schema.path(at)).is_none()).count()
    }

    /// The columns of all schemas with the sensor, in the order of registration; empty for a schemaless sensor.
    pub fn schema_columns(&self, id: SensorId) -> Vec<(Schema, usize)> {
        let sensors = self.engine().sensors.read();
        let places = sensors.places(id);
        places.iter().map(|place| (sensors.schema_at(place.schema).clone(), place.column as usize)).collect()
    }

    /// Whether the sensor was ever registered as a schemaless one, also if a schema defines it now.
    pub fn is_schemaless(&self, id: SensorId) -> bool {
        self.engine().sensors.read().is_schemaless(id)
    }

    /// The prefix of each schema and the agent of its newest batch, in the order of registration. Schemas without batches are left out.
    pub fn schema_agents(&self) -> Vec<(SensorPath, Arc<str>)> {
        self.engine().sensors.read().schema_agents()
    }

    /// Every sensor that matches one of the patterns, sorted by path, each once.
    pub fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.sensors_after(patterns, None, usize::MAX)
    }

    /// The first `most` of them with paths after `after`: a page of the list.
    pub fn sensors_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.sensors_after_until(patterns, after, most, &|| false)
    }

    /// The same, or fewer if `is_over` returns true; it is called now and then. Registrations can happen in between.
    pub fn sensors_after_until(
        &self,
        patterns: &[Pattern],
        after: Option<&str>,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<SensorInfo> {
        self.engine().sensors.select_after_until(patterns, after, most, is_over)
    }

    /// The first `most` sensors, by path, that match a pattern.
    pub fn sensors_most(&self, pattern: &Pattern, most: usize) -> Vec<SensorInfo> {
        self.engine().sensors.read().select_after(std::slice::from_ref(pattern), None, most)
    }

    /// The sensor with this path.
    pub fn sensor_id(&self, path: &str) -> Option<SensorId> {
        self.engine().sensors.read().id(path)
    }

    /// The properties of one sensor.
    pub fn sensor(&self, id: SensorId) -> Option<SensorInfo> {
        self.engine().sensors.read().info(id)
    }

    /// The number of the next new sensor, and how many sensors there are.
    pub fn sensor_numbers(&self) -> (usize, usize) {
        self.engine().sensors.read().numbers()
    }

    /// The paths of the sensors from this number on, in the order of numbers: those registered since [`Store::sensor_numbers`] returned this
    /// number.
    pub fn sensor_paths_from(&self, number: usize) -> Vec<Arc<str>> {
        self.engine().sensors.read().paths_from(number)
    }

    /// The names of the levels directly below a path (`/lab`, or empty for the root), at most `most`.
    pub fn levels_below(&self, place: &str, most: usize) -> Vec<String> {
        self.engine().sensors.read().levels_below(place, most)
    }

    /// How many sensors match a pattern now.
    pub fn count_sensors(&self, pattern: &Pattern) -> u64 {
        self.engine().sensors.read().count(pattern)
    }

    /// The scale in force for a path, if the sensor is known.
    pub fn scale(&self, path: &str) -> Option<f64> {
        self.engine().sensors.read().info_by_path(path).map(|info| info.scale)
    }

    /// The newest reading of each sensor: its time, and its value or `None` for a gap.
    pub fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        self.engine().newest_readings.of(ids)
    }
}
