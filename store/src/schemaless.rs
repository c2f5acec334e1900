//! The store's front for sensors without a schema: their registration, and their readings one at a time.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use wholegrain_model::Pattern;

use crate::append::{AppendCallback, AppendOutcome};
use crate::journal::PendingAppend;
use crate::publish::reconcile;
use crate::quarantine::PlausibleTimes;
use crate::readings::{LiveReadings, READINGS_MAX, Reading, SchemalessSensor, check_source};
use crate::sensors::SchemalessProperties;
use crate::stats::{add, sub};
use crate::{SensorId, SensorInfo, Store, StoreError};

impl Store {
    /// Numbers for sensors without a schema, in their order; durable when it returns. A known path keeps its number. Where a schema has the path,
    /// the schema defines the sensor; else the latest registration does. Blocks on the disk when something is new. `source` is who sends them.
    pub fn register_sensors(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        self.register_with(source, sensors, |_| 0)
    }

    /// The same with intervals that were learned, ns, 0 for none; of the one known before and a new one the shorter stays, so that coarse
    /// readings of the past close no holes between fine ones.
    pub(crate) fn register_with(
        &self,
        source: &str,
        sensors: &[SchemalessSensor],
        learned: impl Fn(usize) -> u64,
    ) -> Result<Vec<SensorId>, StoreError> {
        check_source(source)?;
        sensors.iter().try_for_each(SchemalessSensor::check)?;
        let shared = self.shared();
        if shared.closing.load(Relaxed) {
            return Err(StoreError::Closed);
        }
        let encoded: Vec<Vec<u8>> = {
            let known = shared.sensors();
            let learned_before =
                |sensor: &SchemalessSensor| known.id(sensor.path.as_str()).map(|id| known.learned_interval(id));
            let interval = |at: usize, sensor| match (learned(at), learned_before(sensor).unwrap_or(0)) {
                (0, one) | (one, 0) => one,
                (new, before) => new.min(before),
            };
            let one = |(at, sensor)| SchemalessProperties::of(sensor, interval(at, sensor)).encode();
            sensors.iter().enumerate().map(one).collect()
        };
        let numbers = || {
            let known = shared.sensors();
            let id = |sensor: &SchemalessSensor| known.id(sensor.path.as_str());
            let registered = |(sensor, encoded): (&SchemalessSensor, &Vec<u8>)| known.is_registered(sensor, encoded);
            let all = sensors.iter().zip(&encoded).all(registered);
            all.then(|| sensors.iter().filter_map(id).collect::<Vec<_>>())
        };
        if let Some(ids) = numbers() {
            return Ok(ids);
        }
        let _ledger = reconcile(shared)?;
        let mut rows: Vec<(u32, Option<&str>, Vec<u8>)> = Vec::new();
        let mut ids = Vec::with_capacity(sensors.len());
        {
            let known = shared.sensors();
            let mut fresh: HashMap<&str, u32> = HashMap::new();
            let mut next = known.next_number();
            for (sensor, encoded) in sensors.iter().zip(encoded) {
                let path = sensor.path.as_str();
                let old = known.id(path).map(|id| id.0).or_else(|| fresh.get(path).copied());
                let id = old.unwrap_or(next);
                if old.is_none() {
                    fresh.insert(path, id);
                    next = next
                        .checked_add(1)
                        .filter(|next| *next < SensorId::COMPUTED)
                        .ok_or_else(|| StoreError::Sensor("too many sensors".to_owned()))?;
                }
                if old.is_none() || !known.is_registered(sensor, &encoded) {
                    rows.push((id, old.is_none().then_some(path), encoded));
                }
                ids.push(SensorId(id));
            }
        }
        shared.catalogue.add_schemaless(source, &rows)?;
        let mut known = shared.sensors.write().unwrap_or_else(PoisonError::into_inner);
        for (id, path, encoded) in &rows {
            if let Some(path) = path {
                known.add_path(path);
            }
            if let Some(properties) = SchemalessProperties::decode(encoded) {
                known.add_schemaless(SensorId(*id), source, properties);
            }
        }
        Ok(ids)
    }

    /// The number of a path, if it is known.
    pub fn sensor_id(&self, path: &str) -> Option<SensorId> {
        self.shared().sensors().id(path)
    }

    /// What is known of one sensor.
    pub fn sensor(&self, id: SensorId) -> Option<SensorInfo> {
        self.shared().sensors().info(id)
    }

    /// The first sensors, in the order of paths, that a pattern chooses, at most so many.
    pub fn sensors_most(&self, pattern: &Pattern, most: usize) -> Vec<SensorInfo> {
        self.shared().sensors().select_most(pattern, most)
    }

    /// The number of the next sensor, which rises with each new one, and how many there are.
    pub fn sensor_numbers(&self) -> (usize, usize) {
        self.shared().sensors().numbers()
    }

    /// The paths of the sensors from this number on, in the order of numbers: those that are new since there were so many.
    pub fn sensor_paths_from(&self, number: usize) -> Vec<Arc<str>> {
        self.shared().sensors().paths_from(number)
    }

    /// The names of the levels below a place (`/lab`, or empty for the root), at most so many.
    pub fn levels_below(&self, place: &str, most: usize) -> Vec<String> {
        self.shared().sensors().levels_below(place, most)
    }

    /// Queues readings. `done` is called once: at once when they are refused or there is no room, else from the journal thread when they are
    /// durable or could not be made so. A reading is known by its sensor and time: sent again it is there once, and the later value counts.
    pub fn append_readings(&self, source: &str, readings: Vec<Reading>, done: AppendCallback) {
        let shared = self.shared();
        let counters = &shared.counters;
        if let Err(error) = self.check_readings(source, &readings) {
            add(&counters.rejected, 1);
            return done(Err(error));
        }
        if shared.closing.load(Relaxed) {
            return done(Err(StoreError::Closed));
        }
        if readings.is_empty() {
            return done(Ok(AppendOutcome::Stored));
        }
        if !self.append_room() {
            add(&counters.busy, 1);
            return done(Err(StoreError::Busy));
        }
        let pending = PendingAppend::readings(
            LiveReadings { source: source.into(), readings },
            PlausibleTimes::of(&shared.config),
            done,
        );
        let bytes = pending.bytes();
        add(&counters.queue_bytes, bytes);
        if let Err(done) = shared.queue.push(pending) {
            sub(&counters.queue_bytes, bytes);
            done(Err(StoreError::Closed));
        }
    }

    fn check_readings(&self, source: &str, readings: &[Reading]) -> Result<(), StoreError> {
        check_source(source)?;
        if readings.len() > READINGS_MAX {
            let reason = format!("{} readings at once, at most {READINGS_MAX} are allowed", readings.len());
            return Err(StoreError::Payload(reason));
        }
        let known = self.shared().sensors();
        match readings.iter().find(|reading| !known.has(reading.sensor)) {
            None => Ok(()),
            Some(reading) => Err(StoreError::Sensor(format!(
                "no sensor has the number {}; register its path first",
                reading.sensor.0
            ))),
        }
    }
}
