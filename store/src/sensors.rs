//! The sensors known, sorted by path, and the schemas that define them. In memory; the catalogue keeps it across restarts.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::{Kind, Pattern, Schema, SchemaHash, ValueType};

/// A sensor's number within one store: dense from 0, never given to another path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorId(pub u32);

/// A sensor as its latest schema defines it, and what was last heard of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorInfo {
    /// Its number in this store.
    pub id: SensorId,
    /// Its whole path.
    pub path: Arc<str>,
    /// Unit of the scaled value, UCUM code.
    pub unit: String,
    /// Gauge or counter.
    pub kind: Kind,
    /// Type of the raw values.
    pub value_type: ValueType,
    /// Raw value times scale is the quantity in `unit`.
    pub scale: f64,
    /// For a counter that wraps: its modulus in raw values.
    pub wraps_at: Option<u64>,
    /// What it is.
    pub description: String,
    /// The interval of its latest batch, ns; 0 when none came yet, or for events without a rate.
    pub interval_ns: u64,
    /// Time of the newest sample of its group, ns since the Unix epoch; `None` before the first.
    pub last_time: Option<i64>,
    /// The agent that sent its latest batch; empty before the first.
    pub agent: Arc<str>,
}

/// What was last heard of a group under one schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupState {
    pub agent: Arc<str>,
    pub interval_ns: u64,
    pub last_time: i64,
}

/// One column of one schema that a sensor was or is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index into [`Sensors::schema_at`].
    pub schema: u32,
    pub column: u32,
}

struct Entry {
    path: Arc<str>,
    /// Every schema's column that is this sensor; the one that defines its properties is last.
    places: Vec<Place>,
}

/// The index.
#[derive(Default)]
pub(crate) struct Sensors {
    by_path: BTreeMap<Arc<str>, SensorId>,
    entries: Vec<Entry>,
    schemas: Vec<Schema>,
    by_hash: HashMap<SchemaHash, u32>,
    groups: HashMap<SchemaHash, GroupState>,
}

impl Sensors {
    /// The schema of this hash.
    pub fn schema(&self, hash: &SchemaHash) -> Option<&Schema> {
        self.by_hash.get(hash).map(|&at| &self.schemas[at as usize])
    }

    /// The number of schemas.
    pub fn schema_count(&self) -> u64 {
        self.schemas.len() as u64
    }

    pub fn schema_at(&self, at: u32) -> &Schema {
        &self.schemas[at as usize]
    }

    /// Sensors of `schema` that have no number yet, in the schema's order.
    pub fn unnumbered(&self, schema: &Schema) -> Vec<String> {
        (0..schema.len()).map(|i| schema.path(i)).filter(|path| !self.by_path.contains_key(path.as_str())).collect()
    }

    /// Whether `schema` is known and defines each of its sensors, so that registering it would change nothing.
    pub fn is_current(&self, schema: &Schema) -> bool {
        let Some(&at) = self.by_hash.get(&schema.hash()) else { return false };
        let last =
            |i: usize| self.id(&schema.path(i)).and_then(|id| self.entries[id.0 as usize].places.last().copied());
        (0..schema.len()).all(|i| last(i).is_some_and(|place| place.schema == at))
    }

    /// Numbers a path; paths must come in the order of their numbers.
    pub fn add_path(&mut self, path: &str) -> SensorId {
        let id = SensorId(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        let path: Arc<str> = path.into();
        self.by_path.insert(path.clone(), id);
        self.entries.push(Entry { path, places: Vec::new() });
        id
    }

    /// Takes a schema whose sensors are all numbered and lets it define them.
    pub fn add_schema(&mut self, schema: &Schema) {
        let at = *self.by_hash.entry(schema.hash()).or_insert_with(|| {
            self.schemas.push(schema.clone());
            self.schemas.len() as u32 - 1
        });
        for column in 0..schema.len() {
            let Some(id) = self.id(&schema.path(column)) else { continue };
            let places = &mut self.entries[id.0 as usize].places;
            places.retain(|place| place.schema != at);
            places.push(Place { schema: at, column: column as u32 });
        }
    }

    pub fn id(&self, path: &str) -> Option<SensorId> {
        self.by_path.get(path).copied()
    }

    pub fn path(&self, id: SensorId) -> Option<Arc<str>> {
        self.entries.get(id.0 as usize).map(|entry| entry.path.clone())
    }

    pub fn places(&self, id: SensorId) -> &[Place] {
        self.entries.get(id.0 as usize).map_or(&[], |entry| &entry.places)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn schemas_len(&self) -> usize {
        self.schemas.len()
    }

    /// Notes a batch of a group.
    pub fn heard(&mut self, hash: SchemaHash, state: GroupState) {
        match self.groups.get_mut(&hash) {
            Some(known) if known.last_time > state.last_time => {}
            Some(known) => *known = state,
            None => drop(self.groups.insert(hash, state)),
        }
    }

    /// Takes over what another index heard last.
    pub fn keep_groups(&mut self, other: &Sensors) {
        other.groups.iter().for_each(|(hash, state)| self.heard(*hash, state.clone()));
    }

    pub fn group(&self, hash: &SchemaHash) -> Option<&GroupState> {
        self.groups.get(hash)
    }

    /// Every sensor that one of the patterns chooses, sorted by path, each once.
    pub fn select(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        let mut chosen: BTreeMap<&str, SensorId> = BTreeMap::new();
        for pattern in patterns {
            let prefix = pattern.literal_prefix();
            let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
            for (path, id) in self.by_path.range::<str, _>(from).take_while(|(path, _)| path.starts_with(&prefix)) {
                if pattern.matches(path) {
                    chosen.insert(path, *id);
                }
            }
        }
        chosen.into_values().filter_map(|id| self.info(id)).collect()
    }

    fn info(&self, id: SensorId) -> Option<SensorInfo> {
        let entry = self.entries.get(id.0 as usize)?;
        let place = entry.places.last()?;
        let def = &self.schemas[place.schema as usize].sensors()[place.column as usize];
        let states =
            entry.places.iter().filter_map(|place| self.groups.get(&self.schemas[place.schema as usize].hash()));
        let newest = states.max_by_key(|state| state.last_time);
        Some(SensorInfo {
            id,
            path: entry.path.clone(),
            unit: def.unit.clone(),
            kind: def.kind,
            value_type: def.value_type,
            scale: def.scale,
            wraps_at: def.wraps_at,
            description: def.description.clone(),
            interval_ns: newest.map_or(0, |state| state.interval_ns),
            last_time: newest.map(|state| state.last_time),
            agent: newest.map_or_else(|| "".into(), |state| state.agent.clone()),
        })
    }
}
