//! The sensors known, sorted by path, the schemas that define them, and the properties of those without a schema. In memory; the catalogue keeps
//! it across restarts.

mod quiet;
mod slots;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use wholegrain_model::schema::put_varint;
use wholegrain_model::{Kind, Pattern, Schema, SchemaHash, SensorPath, Value, ValueType};

use crate::ranges::get_varint;
use crate::readings::{LooseSensor, Reading};
use crate::settings::{Held, Settings};

pub(crate) use quiet::Unheard;
use slots::Slots;

/// Sensors whose newest times the catalogue keeps in one entry.
pub(crate) const HEARD_SENSORS: u32 = 1024;
/// No index.
const NONE: u32 = u32::MAX;
/// No index yet.
const UNKNOWN: u32 = u32::MAX - 1;

/// A sensor's number within one store: counted from 0, never given to another path, nor to the same one after it was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorId(pub u32);

impl SensorId {
    /// From here on numbers are not the store's: they are of sensors that are computed, and mean something within one answer only.
    pub const COMPUTED: u32 = 1 << 31;

    /// Whether the sensor is computed from others.
    pub fn is_computed(self) -> bool {
        self.0 >= Self::COMPUTED
    }
}

/// A sensor as its latest schema defines it and people have set it, and what was last heard of it.
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
    /// Index into [`Sensors::held`], [`NONE`] when nothing is set, [`UNKNOWN`] when nobody has looked yet.
    held: AtomicU32,
}

impl Entry {
    fn new(path: Arc<str>) -> Self {
        Self { path, loose: NONE, places: Places::None, held: AtomicU32::new(UNKNOWN) }
    }
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
    entries: Slots<Entry>,
    schemas: Slots<Schema>,
    by_hash: HashMap<SchemaHash, u32>,
    /// A schema for each list of sensors below a prefix, by a hash of their names: agents that have the same ones share them in memory.
    by_names: HashMap<u64, Schema>,
    groups: HashMap<SchemaHash, GroupState>,
    loose: Vec<Loose>,
    /// Places in it that are free again.
    free_loose: Vec<u32>,
    properties: Vec<Properties>,
    by_properties: HashMap<Box<[u8]>, u32>,
    sources: Vec<Arc<str>>,
    by_source: HashMap<Arc<str>, u32>,
    /// Registrations without a schema taken in.
    loose_changes: u64,
    /// What people have set.
    settings: Arc<Settings>,
    /// Which settings hold together, each combination once: few, however many sensors there are.
    held: RwLock<Combinations>,
    settings_changes: u64,
}

#[derive(Default)]
struct Combinations {
    all: Vec<Held>,
    by_held: HashMap<Held, u32>,
}

impl Sensors {
    /// The schema of this hash.
    pub fn schema(&self, hash: &SchemaHash) -> Option<&Schema> {
        self.by_hash.get(hash).map(|&at| &self.schemas[at as usize])
    }

    /// Each schema's prefix with the agent of its newest batch, in the order of registration; schemas without any are left out.
    pub fn schema_agents(&self) -> Vec<(SensorPath, Arc<str>)> {
        let heard = |schema: &Schema| Some((schema.prefix().clone(), self.groups.get(&schema.hash())?.agent.clone()));
        self.schemas.iter().filter_map(|(_, schema)| heard(schema)).collect()
    }

    /// How many definitions of sensors there have been: when it rises, `sensors.csv` is out of date.
    pub fn definitions(&self) -> u64 {
        self.schemas.next() as u64 + self.loose_changes + self.settings_changes
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
        let path: Arc<str> = path.into();
        let id = SensorId(u32::try_from(self.entries.push(Entry::new(path.clone()))).unwrap_or(u32::MAX));
        self.by_path.insert(path, id);
        id
    }

    /// The index of these paths, in the order of their numbers; `next` is the number of the next.
    pub fn of_paths(paths: Vec<(u32, Arc<str>)>, next: u32) -> Self {
        let mut entries = Slots::default();
        for (id, path) in &paths {
            entries.skip_to(*id as usize);
            entries.push(Entry::new(path.clone()));
        }
        entries.skip_to(next as usize);
        let by_path = paths.into_iter().map(|(id, path)| (path, SensorId(id))).collect();
        Self { by_path, entries, ..Self::default() }
    }

    /// The number that the next new sensor gets: numbers are never given twice.
    pub fn next_number(&self) -> u32 {
        u32::try_from(self.entries.next()).unwrap_or(u32::MAX)
    }

    /// Whether a number is of a sensor that is known.
    pub fn has(&self, id: SensorId) -> bool {
        self.entries.get(id.0 as usize).is_some()
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
        let schema = self.share(schema);
        let hash = schema.hash();
        let at = self.schemas.push(schema) as u32;
        self.by_hash.insert(hash, at);
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
        self.entries.held()
    }

    pub fn schemas_len(&self) -> usize {
        self.schemas.held()
    }

    /// Notes a batch of a group.
    pub fn heard(&mut self, hash: SchemaHash, state: GroupState) {
        match self.groups.get_mut(&hash) {
            Some(known) if known.last_time > state.last_time => {}
            Some(known) => *known = state,
            None => drop(self.groups.insert(hash, state)),
        }
    }

    /// Takes over what another index heard last, and what people set.
    pub fn keep_groups(&mut self, other: &Sensors) {
        (self.settings, self.settings_changes) = (other.settings.clone(), other.settings_changes);
        other.groups.iter().for_each(|(hash, state)| self.heard(*hash, state.clone()));
        for (id, entry) in other.entries.iter() {
            let id = SensorId(id as u32);
            if let Some(known) = other.loose.get(entry.loose as usize)
                && known.last != Last::Never
                && self.has(id)
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
            let fresh = Loose { properties: NONE, source, last: Last::Never };
            entry.loose = match self.free_loose.pop() {
                Some(at) => {
                    self.loose[at as usize] = fresh;
                    at
                }
                None => {
                    self.loose.push(fresh);
                    self.loose.len() as u32 - 1
                }
            };
        }
        &mut self.loose[entry.loose as usize]
    }

    /// Notes readings that are durable.
    pub fn heard_readings(&mut self, source: &str, readings: &[Reading]) {
        let source = self.source(source);
        for reading in readings {
            if !self.has(reading.sensor) {
                continue;
            }
            let loose = self.loose_mut(reading.sensor, source);
            if loose.time() <= Some(reading.time) {
                (loose.last, loose.source) = (Last::Reading(reading.time, reading.value), source);
            }
        }
    }

    /// Notes that readings up to a time are in blocks; their values are there.
    pub fn heard_until(&mut self, source: &str, id: SensorId, time: i64) {
        if !self.has(id) {
            return;
        }
        let source = self.source(source);
        let loose = self.loose_mut(id, source);
        // Also at the same time: what is in memory may be the value that the import replaces.
        if loose.time() <= Some(time) {
            (loose.last, loose.source) = (Last::At(time), source);
        }
    }

    /// Lets go of the newest value without a schema: it is looked for in the files.
    pub fn forget_last(&mut self, id: SensorId) {
        let at = self.entries.get(id.0 as usize).map(|entry| entry.loose as usize);
        if let Some(loose) = at.and_then(|at| self.loose.get_mut(at))
            && let Last::Reading(time, _) = loose.last
        {
            loose.last = Last::At(time);
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
        self.heard_times_with(chunk, &HashMap::new())
    }

    /// The same as they will be when sensors have been heard of at these times too.
    pub fn heard_times_with(&self, chunk: u32, more: &HashMap<u32, i64>) -> Vec<u8> {
        let start = chunk as usize * HEARD_SENSORS as usize;
        let entries = (start..start + HEARD_SENSORS as usize).map(|at| self.entries.get(at));
        let (mut out, mut next, mut before) = (Vec::new(), 0, 0i64);
        for (offset, entry) in (0u64..).zip(entries) {
            let known = entry.and_then(|entry| self.loose.get(entry.loose as usize)).and_then(Loose::time);
            let told = u32::try_from(start as u64 + offset).ok().and_then(|id| more.get(&id).copied());
            let Some(time) = known.max(told) else { continue };
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
            let id = u32::try_from(next).ok().filter(|id| (*id as usize) < self.entries.next()).map(SensorId)?;
            // One that is not there has been forgotten since.
            if self.has(id) {
                let source = self.source("");
                self.loose_mut(id, source).last = Last::At(time);
            }
            next += 1;
        }
        Some(())
    }

    pub fn group(&self, hash: &SchemaHash) -> Option<&GroupState> {
        self.groups.get(hash)
    }

    /// Every sensor that one of the patterns chooses, sorted by path, each once.
    pub fn select(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        self.chosen(patterns, None).filter_map(|id| self.info(id)).collect()
    }

    /// The first `most` of them whose paths come after `after`.
    pub fn select_after(&self, patterns: &[Pattern], after: Option<&str>, most: usize) -> Vec<SensorInfo> {
        self.chosen(patterns, after).filter_map(|id| self.info(id)).take(most).collect()
    }

    /// The numbers of the sensors that one of the patterns chooses, sorted by path, each once.
    fn chosen<'a>(&'a self, patterns: &'a [Pattern], after: Option<&str>) -> impl Iterator<Item = SensorId> + 'a {
        let near = |pattern: &'a Pattern| {
            let prefix = pattern.literal_prefix();
            let from = match after.filter(|after| *after >= prefix.as_str()) {
                Some(after) => Bound::Excluded(after),
                None => Bound::Included(prefix.as_str()),
            };
            let near = self.by_path.range::<str, _>((from, Bound::Unbounded));
            let near = near.take_while(move |(path, _)| path.starts_with(&prefix));
            near.filter(move |(path, _)| pattern.matches(path)).peekable()
        };
        let mut near: Vec<_> = patterns.iter().map(near).collect();
        std::iter::from_fn(move || {
            let first = near.iter_mut().filter_map(|near| near.peek().copied()).min_by_key(|(path, _)| *path)?;
            for near in &mut near {
                near.next_if_eq(&first);
            }
            Some(*first.1)
        })
    }

    /// How many sensors the pattern chooses.
    pub fn count(&self, pattern: &Pattern) -> u64 {
        let prefix = pattern.literal_prefix();
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let near = self.by_path.range::<str, _>(from).take_while(|(path, _)| path.starts_with(&prefix));
        near.filter(|(path, _)| pattern.matches(path)).count() as u64
    }

    /// The first sensors, in the order of paths, that a pattern chooses.
    pub fn select_most(&self, pattern: &Pattern, most: usize) -> Vec<SensorInfo> {
        let prefix = pattern.literal_prefix();
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let below = self.by_path.range::<str, _>(from).take_while(|(path, _)| path.starts_with(&prefix));
        below.filter(|(path, _)| pattern.matches(path)).filter_map(|(_, id)| self.info(*id)).take(most).collect()
    }

    /// The number of the next sensor, and how many there are. The first rises with each new one; the second falls when some are forgotten.
    pub fn numbers(&self) -> (usize, usize) {
        (self.entries.next(), self.entries.held())
    }

    /// The paths of the sensors from this number on, in the order of numbers.
    pub fn paths_from(&self, number: usize) -> Vec<Arc<str>> {
        self.entries.iter().filter(|(at, _)| *at >= number).map(|(_, entry)| entry.path.clone()).collect()
    }

    /// The names of the levels below `place` (`/lab`, or empty for the root), each once, at most so many. What lies below them is leapt over.
    pub fn levels_below(&self, place: &str, most: usize) -> Vec<String> {
        let prefix = format!("{place}/");
        let mut levels: Vec<String> = Vec::new();
        let mut from = prefix.clone();
        while levels.len() < most {
            let next = self.by_path.range::<str, _>((Bound::Included(from.as_str()), Bound::Unbounded)).next();
            let Some(rest) = next.and_then(|(path, _)| path.strip_prefix(prefix.as_str())) else { break };
            let level = rest.split('/').next().unwrap_or_default();
            // `0` follows `/`; a sensor without anything below it is left by the least step.
            from = format!("{prefix}{level}{}", if level.len() < rest.len() { '0' } else { '\0' });
            if levels.last().is_none_or(|last| last != level) {
                levels.push(level.to_owned());
            }
        }
        levels
    }

    /// What is known of one sensor, as people have set it.
    pub fn info(&self, id: SensorId) -> Option<SensorInfo> {
        let mut info = self.sent(id)?;
        if let Some(held) = self.held(id) {
            self.settings.apply(&held, &mut info);
        }
        Some(info)
    }

    /// Puts other settings in force.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = Arc::new(settings);
        self.held = RwLock::default();
        self.entries.values_mut().for_each(|entry| *entry.held.get_mut() = UNKNOWN);
        self.settings_changes += 1;
    }

    pub fn settings(&self) -> Arc<Settings> {
        self.settings.clone()
    }

    pub fn settings_changes(&self) -> u64 {
        self.settings_changes
    }

    /// Which settings hold for a sensor. It is looked for once.
    pub fn held(&self, id: SensorId) -> Option<Held> {
        if self.settings.is_empty() {
            return None;
        }
        let entry = self.entries.get(id.0 as usize)?;
        match entry.held.load(Relaxed) {
            NONE => None,
            UNKNOWN => {
                let held = self.settings.held(&entry.path);
                entry.held.store(held.map_or(NONE, |held| self.combination(held)), Relaxed);
                held
            }
            at => self.held.read().unwrap_or_else(PoisonError::into_inner).all.get(at as usize).copied(),
        }
    }

    fn combination(&self, held: Held) -> u32 {
        let mut known = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let Combinations { all, by_held } = &mut *known;
        *by_held.entry(held).or_insert_with(|| {
            all.push(held);
            all.len() as u32 - 1
        })
    }

    /// What is known of one sensor, as whoever sends it says.
    pub fn sent(&self, id: SensorId) -> Option<SensorInfo> {
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
