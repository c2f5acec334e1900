//! Finds schemas and sensors that can expire, and removes them from the index.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wholegrain_model::SchemaHash;

use super::{NONE, NewestReading, SchemaColumn, SchemaColumns, Sensors};
use crate::SensorId;

/// The data that is not sealed.
pub(crate) trait UnsealedData {
    /// Whether there are batches of a schema.
    fn has_batches(&self, hash: &SchemaHash) -> bool;

    /// Whether there are readings of a schemaless sensor.
    fn has_readings(&self, id: SensorId) -> bool;
}

/// Silent sensors, which expire if none of their readings is stored, and the schemas that expire with them.
#[derive(Debug, Default)]
pub(crate) struct ExpiryCandidates {
    /// Sensors with their paths and the time of their newest reading.
    pub sensors: Vec<(SensorId, Arc<str>, i64)>,
    /// Schemas without unsealed batches.
    schemas: HashSet<u32>,
}

impl SchemaColumns {
    /// Removes a schema's column.
    fn remove(&mut self, schema: u32) {
        *self = match std::mem::take(self) {
            SchemaColumns::One(place) if place.schema == schema => SchemaColumns::None,
            SchemaColumns::Many(mut places) => {
                places.retain(|place| place.schema != schema);
                match places[..] {
                    [] => SchemaColumns::None,
                    [place] => SchemaColumns::One(place),
                    _ => SchemaColumns::Many(places),
                }
            }
            other => other,
        };
    }
}

impl Sensors {
    /// Sensors and schemas not seen since `cutoff` and without unsealed data. `last_seen` remembers since when schemas and sensors without any data
    /// have been found here.
    pub fn quiet(
        &self,
        (cutoff, now): (i64, i64),
        live: &dyn UnsealedData,
        last_seen: &mut SilentSince,
    ) -> ExpiryCandidates {
        let mut quiet = ExpiryCandidates::default();
        let before = std::mem::take(last_seen);
        for (at, schema) in self.schemas.iter() {
            let hash = schema.hash();
            let is_quiet = match self.groups.get(&hash) {
                Some(state) => state.last_time < cutoff,
                None => {
                    let since = before.schemas.get(&hash).copied().unwrap_or(now);
                    last_seen.schemas.insert(hash, since);
                    since < cutoff
                }
            };
            if is_quiet && !live.has_batches(&hash) {
                quiet.schemas.insert(at as u32);
            }
        }
        for (id, entry) in self.entries.iter() {
            let id = SensorId(id as u32);
            let places = entry.places.as_slice();
            if !places.iter().all(|place| quiet.schemas.contains(&place.schema)) {
                continue;
            }
            let mut last = i64::MIN;
            if let Some(schemaless) = self.schemaless.get(entry.schemaless as usize) {
                last = match schemaless.time() {
                    Some(time) => time,
                    None if places.is_empty() => {
                        let since = before.sensors.get(&id.0).copied().unwrap_or(now);
                        last_seen.sensors.insert(id.0, since);
                        since
                    }
                    None => last,
                };
            }
            let newest = |place: &SchemaColumn| {
                self.groups.get(&self.schema_at(place.schema).hash()).map(|state| state.last_time)
            };
            last = places.iter().filter_map(newest).max().unwrap_or(i64::MIN).max(last);
            if last < cutoff && !live.has_readings(id) {
                quiet.sensors.push((id, entry.path.clone(), last));
            }
        }
        for family in self.paths.families_from(0).filter(|family| quiet.schemas.contains(&family.at)) {
            let last = self.groups.get(&family.schema.hash()).map_or(i64::MIN, |state| state.last_time);
            for column in 0..family.len() {
                let id = SensorId(family.first + column);
                // Sensors with an entry were handled above.
                if self.entries.get(id.0 as usize).is_none() && last < cutoff && !live.has_readings(id) {
                    quiet.sensors.push((id, family.schema.path(column as usize).into(), last));
                }
            }
        }
        quiet
    }

    /// The candidates that expire if `empty` sensors have no stored readings: a schema expires if each sensor that it defines does, and a sensor if
    /// all its schemas do.
    pub fn expirable(&self, quiet: &ExpiryCandidates, empty: &HashSet<SensorId>) -> (Vec<SensorId>, Vec<SchemaHash>) {
        let mut going = quiet.schemas.clone();
        let goes = |going: &HashSet<u32>, id: SensorId| {
            empty.contains(&id) && self.places(id).iter().all(|place| going.contains(&place.schema))
        };
        loop {
            let stays = |at: &u32| {
                let Some(schema) = self.schemas.get(*at as usize) else { return true };
                (0..schema.len()).filter_map(|column| self.id(&schema.path(column))).any(|id| {
                    let defines = self.places(id).last().is_some_and(|place| place.schema == *at);
                    defines && !goes(&going, id)
                })
            };
            let staying: Vec<u32> = going.iter().filter(|at| stays(at)).copied().collect();
            if staying.is_empty() {
                break;
            }
            staying.iter().for_each(|at| {
                going.remove(at);
            });
        }
        let sensors = empty.iter().copied().filter(|id| goes(&going, *id)).collect();
        (sensors, going.into_iter().map(|at| self.schema_at(at).hash()).collect())
    }

    /// Sensors that stay when these sensors and schemas go, and are numbered with one of the schemas: their numbers and paths must be stored
    /// separately.
    pub fn left_by(&self, sensors: &[SensorId], schemas: &[SchemaHash]) -> Vec<(u32, Arc<str>)> {
        let going: HashSet<u32> = sensors.iter().map(|id| id.0).collect();
        let firsts = schemas.iter().filter_map(|hash| self.firsts.get(self.by_hash.get(hash)?));
        let families = firsts.filter_map(|first| self.paths.family(SensorId(*first)));
        let numbers = families.flat_map(|(family, _)| family.first..family.first + family.len());
        numbers.filter(|id| !going.contains(id)).filter_map(|id| Some((id, self.path(SensorId(id))?))).collect()
    }

    /// Removes sensors and schemas.
    pub fn remove(&mut self, sensors: &[SensorId], schemas: &[SchemaHash]) {
        self.count -= sensors.iter().filter(|id| self.has(**id)).count();
        let left = self.left_by(sensors, schemas);
        for (id, _) in &left {
            // Created while its family still knows its place.
            let _ = self.entry(SensorId(*id));
        }
        for hash in schemas {
            self.groups.remove(hash);
            let Some(at) = self.by_hash.remove(hash) else { continue };
            let Some(schema) = self.schemas.remove(at as usize) else { continue };
            let first = self.firsts.remove(&at);
            for column in 0..schema.len() {
                let id = match first {
                    Some(first) => Some(SensorId(first + column as u32)),
                    None => self.id(&schema.path(column)),
                };
                if let Some(entry) = id.and_then(|id| self.entries.get_mut(id.0 as usize)) {
                    entry.places.remove(at);
                }
            }
            if let Some(first) = first {
                self.paths.remove_family(first);
            }
        }
        for (id, path) in left {
            self.paths.insert(path, SensorId(id));
        }
        for id in sensors {
            let Some(entry) = self.entries.remove(id.0 as usize) else { continue };
            self.paths.remove(&entry.path, *id);
            if entry.schemaless != NONE {
                self.schemaless[entry.schemaless as usize].last = NewestReading::Never;
                self.free_schemaless.push(entry.schemaless);
            }
        }
        if !schemas.is_empty() {
            // Lists that others share must not be kept alive by a removed schema.
            (self.by_names, self.by_address) = Default::default();
            let left: Vec<_> = self.schemas.iter().map(|(_, schema)| schema.clone()).collect();
            left.iter().for_each(|schema| drop(self.share(schema)));
            self.firsts.shrink_to_fit();
            self.groups.shrink_to_fit();
            self.by_hash.shrink_to_fit();
        }
    }
}

/// Since when (ns since the Unix epoch) schemas and schemaless sensors are known to have sent nothing.
#[derive(Debug, Default)]
pub(crate) struct SilentSince {
    schemas: HashMap<SchemaHash, i64>,
    sensors: HashMap<u32, i64>,
}
