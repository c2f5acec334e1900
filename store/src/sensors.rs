//! The sensors known, sorted by path, the schemas that define them, and the properties of those without a schema. In memory; the catalogue keeps
//! it across restarts.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use wholegrain_model::schema::put_varint;
use wholegrain_model::{Kind, Pattern, Schema, SchemaHash, SensorPath, Value, ValueType};

use crate::ranges::get_varint;
use crate::readings::{LooseSensor, Reading};

/// Sensors whose newest times the catalogue keeps in one entry.
pub(crate) const HEARD_SENSORS: u32 = 1024;
/// No index.
const NONE: u32 = u32::MAX;

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

/// What defines a sensor without a schema. Most have the same as others, so that one is kept for all of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Properties {
    pub unit: String,
    pub description: String,
    pub kind: Kind,
    pub value_type: ValueType,
    pub scale: f64,
}

impl Properties {
    pub fn of(sensor: &LooseSensor) -> Self {
        let LooseSensor { unit, kind, value_type, scale, description, .. } = sensor.clone();
        Self { unit, description, kind, value_type, scale }
    }

    /// As the catalogue keeps them: flags, scale, unit, description.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.unit.len() + self.description.len() + 12);
        out.push(u8::from(self.kind == Kind::Counter) | u8::from(self.value_type == ValueType::Float) << 1);
        out.extend_from_slice(&self.scale.to_le_bytes());
        put_varint(self.unit.len() as u64, &mut out);
        out.extend_from_slice(self.unit.as_bytes());
        out.extend_from_slice(self.description.as_bytes());
        out
    }

    /// Reads what [`Properties::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = *bytes.first()?;
        let scale = f64::from_le_bytes(bytes.get(1..9)?.try_into().ok()?);
        let mut at = 9;
        let length = usize::try_from(get_varint(bytes, &mut at)?).ok()?;
        let end = at.checked_add(length)?;
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).ok();
        Some(Self {
            unit: text(bytes.get(at..end)?)?,
            description: text(bytes.get(end..)?)?,
            kind: if flags & 1 != 0 { Kind::Counter } else { Kind::Gauge },
            value_type: if flags & 2 != 0 { ValueType::Float } else { ValueType::Int },
            scale,
        })
    }
}

/// The newest reading of a sensor that came without a schema, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    Never,
    /// Its value is on disk only.
    At(i64),
    Reading(i64, Value),
}

/// A sensor that readings came of, or may come, without a schema.
#[derive(Debug, Clone, Copy)]
struct Loose {
    /// Index into [`Sensors::properties`]; [`NONE`] when a schema's sensor was sent to without being registered.
    properties: u32,
    /// Index into [`Sensors::sources`].
    source: u32,
    last: Last,
}

impl Loose {
    fn time(&self) -> Option<i64> {
        match self.last {
            Last::Never => None,
            Last::At(time) | Last::Reading(time, _) => Some(time),
        }
    }
}

struct Entry {
    path: Arc<str>,
    /// Index into [`Sensors::loose`], or [`NONE`].
    loose: u32,
    places: Places,
}

/// Every schema's column that is a sensor; the one that defines its properties is last. Nearly always there is one.
#[derive(Default)]
enum Places {
    #[default]
    None,
    One(Place),
    Many(Vec<Place>),
}

impl Places {
    fn as_slice(&self) -> &[Place] {
        match self {
            Places::None => &[],
            Places::One(place) => std::slice::from_ref(place),
            Places::Many(places) => places,
        }
    }

    /// Makes `place` the last; a schema has a sensor once.
    fn define(&mut self, place: Place) {
        *self = match std::mem::take(self) {
            Places::None => Places::One(place),
            Places::One(other) if other.schema == place.schema => Places::One(place),
            Places::One(other) => Places::Many(vec![other, place]),
            Places::Many(mut places) => {
                places.retain(|other| other.schema != place.schema);
                places.push(place);
                Places::Many(places)
            }
        };
    }
}

/// The index.
#[derive(Default)]
pub(crate) struct Sensors {
    by_path: BTreeMap<Arc<str>, SensorId>,
    entries: Vec<Entry>,
    schemas: Vec<Schema>,
    by_hash: HashMap<SchemaHash, u32>,
    /// A schema for each list of sensors below a prefix, by a hash of their names: agents that have the same ones share them in memory.
    by_names: HashMap<u64, Schema>,
    groups: HashMap<SchemaHash, GroupState>,
    loose: Vec<Loose>,
    properties: Vec<Properties>,
    by_properties: HashMap<Box<[u8]>, u32>,
    sources: Vec<Arc<str>>,
    by_source: HashMap<Arc<str>, u32>,
    /// Registrations without a schema taken in.
    loose_changes: u64,
}

impl Sensors {
    /// The schema of this hash.
    pub fn schema(&self, hash: &SchemaHash) -> Option<&Schema> {
        self.by_hash.get(hash).map(|&at| &self.schemas[at as usize])
    }

    /// Each schema's prefix with the agent of its newest batch, in the order of registration; schemas without any are left out.
    pub fn schema_agents(&self) -> Vec<(SensorPath, Arc<str>)> {
        let heard = |schema: &Schema| Some((schema.prefix().clone(), self.groups.get(&schema.hash())?.agent.clone()));
        self.schemas.iter().filter_map(heard).collect()
    }

    /// How many definitions of sensors there have been: when it rises, `sensors.csv` is out of date.
    pub fn definitions(&self) -> u64 {
        self.schemas.len() as u64 + self.loose_changes
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
        let last = |i: usize| self.id(&schema.path(i)).and_then(|id| self.places(id).last().copied());
        (0..schema.len()).all(|i| last(i).is_some_and(|place| place.schema == at))
    }

    /// Numbers a path; paths must come in the order of their numbers.
    pub fn add_path(&mut self, path: &str) -> SensorId {
        let id = SensorId(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        let path: Arc<str> = path.into();
        self.by_path.insert(path.clone(), id);
        self.entries.push(Entry { path, loose: NONE, places: Places::None });
        id
    }

    /// The index of these paths, numbered from 0.
    pub fn of_paths(paths: Vec<Arc<str>>) -> Self {
        let by_path = paths.iter().cloned().zip((0..).map(SensorId)).collect();
        let entry = |path| Entry { path, loose: NONE, places: Places::None };
        Self { by_path, entries: paths.into_iter().map(entry).collect(), ..Self::default() }
    }

    /// Takes a schema whose sensors are all numbered and lets it define them.
    pub fn add_schema(&mut self, schema: &Schema) {
        let at = self.by_hash.get(&schema.hash()).copied().unwrap_or_else(|| self.keep(schema));
        for column in 0..schema.len() {
            let Some(id) = self.id(&schema.path(column)) else { continue };
            self.entries[id.0 as usize].places.define(Place { schema: at, column: column as u32 });
        }
    }

    /// The same schema, sharing its sensors with one that has the same.
    pub fn share(&mut self, schema: &Schema) -> Schema {
        let mut hasher = DefaultHasher::new();
        schema.sensors().iter().for_each(|sensor| sensor.name.hash(&mut hasher));
        let like = self.by_names.entry(hasher.finish()).or_insert_with(|| schema.clone());
        schema.sharing(like)
    }

    fn keep(&mut self, schema: &Schema) -> u32 {
        let at = self.schemas.len() as u32;
        let schema = self.share(schema);
        self.by_hash.insert(schema.hash(), at);
        self.schemas.push(schema);
        at
    }

    pub fn id(&self, path: &str) -> Option<SensorId> {
        self.by_path.get(path).copied()
    }

    pub fn path(&self, id: SensorId) -> Option<Arc<str>> {
        self.entries.get(id.0 as usize).map(|entry| entry.path.clone())
    }

    pub fn places(&self, id: SensorId) -> &[Place] {
        self.entries.get(id.0 as usize).map_or(&[], |entry| entry.places.as_slice())
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
        for (id, entry) in (0u32..).map(SensorId).zip(&other.entries) {
            if let Some(known) = other.loose.get(entry.loose as usize)
                && known.last != Last::Never
                && (id.0 as usize) < self.entries.len()
            {
                let source = self.source(&other.sources[known.source as usize]);
                let loose = self.loose_mut(id, source);
                if loose.time() <= known.time() {
                    (loose.last, loose.source) = (known.last, source);
                }
            }
        }
    }

    /// Whether registering these would change nothing.
    pub fn is_registered(&self, sensor: &LooseSensor, properties: &[u8]) -> bool {
        let entry = self.id(sensor.path.as_str()).map(|id| &self.entries[id.0 as usize]);
        let loose = entry.and_then(|entry| Some((entry, self.loose.get(entry.loose as usize)?)));
        let known = self.by_properties.get(properties).copied().unwrap_or(NONE);
        loose.is_some_and(|(entry, loose)| {
            loose.properties != NONE && (loose.properties == known || !entry.places.as_slice().is_empty())
        })
    }

    /// Takes a registration without a schema of a numbered sensor; where a schema has the sensor, that defines it.
    pub fn add_loose(&mut self, id: SensorId, source: &str, properties: Properties) {
        let encoded = properties.encode().into_boxed_slice();
        let index = *self.by_properties.entry(encoded).or_insert_with(|| {
            self.properties.push(properties);
            self.properties.len() as u32 - 1
        });
        let source = self.source(source);
        self.loose_mut(id, source).properties = index;
        self.loose_changes += 1;
    }

    fn source(&mut self, source: &str) -> u32 {
        if let Some(index) = self.by_source.get(source) {
            return *index;
        }
        let source: Arc<str> = source.into();
        self.sources.push(source.clone());
        let index = self.sources.len() as u32 - 1;
        self.by_source.insert(source, index);
        index
    }

    /// The state of a numbered sensor without a schema, made when there is none yet.
    fn loose_mut(&mut self, id: SensorId, source: u32) -> &mut Loose {
        let entry = &mut self.entries[id.0 as usize];
        if entry.loose == NONE {
            entry.loose = self.loose.len() as u32;
            self.loose.push(Loose { properties: NONE, source, last: Last::Never });
        }
        &mut self.loose[entry.loose as usize]
    }

    /// Notes readings that are durable.
    pub fn heard_readings(&mut self, source: &str, readings: &[Reading]) {
        let source = self.source(source);
        for reading in readings {
            if reading.sensor.0 as usize >= self.entries.len() {
                continue;
            }
            let loose = self.loose_mut(reading.sensor, source);
            if loose.time() <= Some(reading.time) {
                (loose.last, loose.source) = (Last::Reading(reading.time, reading.value), source);
            }
        }
    }

    /// The newest reading without a schema: its time, and its value when it is in memory.
    pub fn last_loose(&self, id: SensorId) -> Option<(i64, Option<Value>)> {
        match self.loose.get(self.entries.get(id.0 as usize)?.loose as usize)?.last {
            Last::Never => None,
            Last::At(time) => Some((time, None)),
            Last::Reading(time, value) => Some((time, Some(value))),
        }
    }

    /// The newest times of the sensors `chunk * HEARD_SENSORS` and so on, as the catalogue keeps them.
    pub fn heard_times(&self, chunk: u32) -> Vec<u8> {
        let start = chunk as usize * HEARD_SENSORS as usize;
        let entries = self.entries.iter().skip(start).take(HEARD_SENSORS as usize);
        let (mut out, mut next, mut before) = (Vec::new(), 0, 0i64);
        for (offset, entry) in (0u64..).zip(entries) {
            let Some(time) = self.loose.get(entry.loose as usize).and_then(Loose::time) else { continue };
            let difference = time.wrapping_sub(before);
            put_varint(offset - next, &mut out);
            put_varint(((difference << 1) ^ (difference >> 63)) as u64, &mut out);
            (next, before) = (offset + 1, time);
        }
        out
    }

    /// Takes what [`Sensors::heard_times`] wrote; `None` when it is something else.
    pub fn set_heard_times(&mut self, chunk: u32, bytes: &[u8]) -> Option<()> {
        let (mut at, mut time) = (0, 0i64);
        let mut next = u64::from(chunk) * u64::from(HEARD_SENSORS);
        while at < bytes.len() {
            next = next.checked_add(get_varint(bytes, &mut at)?)?;
            let zigzag = get_varint(bytes, &mut at)?;
            time = time.wrapping_add((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64));
            let id = u32::try_from(next).ok().filter(|id| (*id as usize) < self.entries.len())?;
            let source = self.source("");
            self.loose_mut(SensorId(id), source).last = Last::At(time);
            next += 1;
        }
        Some(())
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

    /// What is known of one sensor.
    pub fn info(&self, id: SensorId) -> Option<SensorInfo> {
        let entry = self.entries.get(id.0 as usize)?;
        let loose = self.loose.get(entry.loose as usize);
        let Some(place) = entry.places.as_slice().last() else { return self.loose_info(id, entry, loose?) };
        let def = &self.schemas[place.schema as usize].sensors()[place.column as usize];
        let states = entry
            .places
            .as_slice()
            .iter()
            .filter_map(|place| self.groups.get(&self.schemas[place.schema as usize].hash()));
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
            last_time: newest.map(|state| state.last_time).max(loose.and_then(Loose::time)),
            agent: newest.map_or_else(|| "".into(), |state| state.agent.clone()),
        })
    }

    fn loose_info(&self, id: SensorId, entry: &Entry, loose: &Loose) -> Option<SensorInfo> {
        let properties = self.properties.get(loose.properties as usize)?;
        Some(SensorInfo {
            id,
            path: entry.path.clone(),
            unit: properties.unit.clone(),
            kind: properties.kind,
            value_type: properties.value_type,
            scale: properties.scale,
            wraps_at: None,
            description: properties.description.clone(),
            interval_ns: 0,
            last_time: loose.time(),
            agent: self.sources[loose.source as usize].clone(),
        })
    }
}
