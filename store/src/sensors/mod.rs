//! The index of the sensors, sorted by path, of the schemas that define them, and of the properties of schemaless sensors. It is in memory; the
//! catalogue stores its content.

pub(crate) mod expirable;
pub(crate) mod file;
pub(crate) mod gate;
pub(crate) mod info;
mod matching;
mod paths;
pub(crate) mod plan;
pub(crate) mod reading;
mod select;
mod slots;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use wholegrain_model::schema::put_varint;
use wholegrain_model::{Kind, Pattern, Schema, SchemaHash, SensorPath, Value, ValueType};

use crate::ranges::{get_varint, unzigzag, zigzag};
use crate::sensors::info::{SensorId, SensorInfo};
use crate::sensors::reading::{Reading, SchemalessSensor};
use crate::settings::{AppliedSettings, Settings};
use paths::{PathIndex, order_of};
use slots::Slots;

/// The number of sensors whose newest times share an entry of the catalogue.
pub(crate) const NEWEST_TIMES_SENSORS: u32 = 1024;
/// Stands for a missing index.
const NONE: u32 = u32::MAX;
/// Stands for an index that is not looked up yet.
const UNKNOWN: u32 = u32::MAX - 1;

/// The newest state of a group with one schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupState {
    pub agent: Arc<str>,
    pub interval_ns: u64,
    pub last_time: i64,
}

/// A column of a schema that is the sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchemaColumn {
    pub schema: u32,
    pub column: u32,
}

/// The definition of a schemaless sensor. Sensors with equal definitions share one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SchemalessProperties {
    pub unit: String,
    pub description: String,
    pub kind: Kind,
    pub value_type: ValueType,
    pub scale: f64,
    /// Learned from imported readings, ns; 0 if unknown.
    pub interval_ns: u64,
}

impl SchemalessProperties {
    pub(crate) fn of(sensor: &SchemalessSensor, interval_ns: u64) -> Self {
        let SchemalessSensor { unit, kind, value_type, scale, description, .. } = sensor.clone();
        Self { unit, description, kind, value_type, scale, interval_ns }
    }

    /// Encodes them for the catalogue: flags, scale, interval if there is one, unit, description.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.unit.len() + self.description.len() + 12);
        let has_interval = self.interval_ns > 0;
        let (counter, float) = (self.kind == Kind::Counter, self.value_type == ValueType::Float);
        out.push(u8::from(counter) | u8::from(float) << 1 | u8::from(has_interval) << 2);
        out.extend_from_slice(&self.scale.to_le_bytes());
        if has_interval {
            put_varint(self.interval_ns, &mut out);
        }
        put_varint(self.unit.len() as u64, &mut out);
        out.extend_from_slice(self.unit.as_bytes());
        out.extend_from_slice(self.description.as_bytes());
        out
    }

    /// Reads what [`SchemalessProperties::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = *bytes.first()?;
        let scale = f64::from_le_bytes(bytes.get(1..9)?.try_into().ok()?);
        let mut at = 9;
        let interval_ns = if flags & 4 != 0 { get_varint(bytes, &mut at)? } else { 0 };
        let length = usize::try_from(get_varint(bytes, &mut at)?).ok()?;
        let end = at.checked_add(length)?;
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).ok();
        Some(Self {
            unit: text(bytes.get(at..end)?)?,
            description: text(bytes.get(end..)?)?,
            kind: if flags & 1 != 0 { Kind::Counter } else { Kind::Gauge },
            value_type: if flags & 2 != 0 { ValueType::Float } else { ValueType::Int },
            scale,
            interval_ns,
        })
    }
}

/// The newest reading of a schemaless sensor, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
enum NewestReading {
    Never,
    /// The value is only on disk.
    At(i64),
    Reading(i64, Value),
}

/// The state of a schemaless sensor.
#[derive(Debug, Clone, Copy)]
struct SchemalessEntry {
    /// Index into [`Sensors::properties`]; [`NONE`] if a schema defines the sensor.
    properties: u32,
    source: u32,
    last: NewestReading,
}

impl SchemalessEntry {
    fn time(&self) -> Option<i64> {
        match self.last {
            NewestReading::Never => None,
            NewestReading::At(time) | NewestReading::Reading(time, _) => Some(time),
        }
    }
}

/// A sensor outside of families, or one with more state than its family has.
struct SensorEntry {
    path: Arc<str>,
    /// Index into [`Sensors::schemaless`], or [`NONE`].
    schemaless: u32,
    places: SchemaColumns,
    /// Index into [`Sensors::held`], [`NONE`] if no setting matches, [`UNKNOWN`] if it is not looked up yet.
    held: AtomicU32,
}

impl SensorEntry {
    fn new(path: Arc<str>) -> Self {
        Self { path, schemaless: NONE, places: SchemaColumns::None, held: AtomicU32::new(UNKNOWN) }
    }
}

/// The columns of all schemas with the sensor; the last one defines its properties. Nearly always there is one.
#[derive(Default)]
enum SchemaColumns {
    #[default]
    None,
    One(SchemaColumn),
    Many(Vec<SchemaColumn>),
}

impl SchemaColumns {
    fn as_slice(&self) -> &[SchemaColumn] {
        match self {
            SchemaColumns::None => &[],
            SchemaColumns::One(place) => std::slice::from_ref(place),
            SchemaColumns::Many(places) => places,
        }
    }

    /// Adds a column as the last one; a schema has a sensor once.
    fn define(&mut self, place: SchemaColumn) {
        *self = match std::mem::take(self) {
            SchemaColumns::None => SchemaColumns::One(place),
            SchemaColumns::One(other) if other.schema == place.schema => SchemaColumns::One(place),
            SchemaColumns::One(other) => SchemaColumns::Many(vec![other, place]),
            SchemaColumns::Many(mut places) => {
                places.retain(|other| other.schema != place.schema);
                places.push(place);
                SchemaColumns::Many(places)
            }
        };
    }
}

/// The columns of a sensor: its own list, or the column in its family.
pub(crate) enum ColumnsOfSensor<'a> {
    Listed(&'a [SchemaColumn]),
    Family([SchemaColumn; 1]),
}

impl Deref for ColumnsOfSensor<'_> {
    type Target = [SchemaColumn];

    fn deref(&self) -> &[SchemaColumn] {
        match self {
            Self::Listed(places) => places,
            Self::Family(place) => place,
        }
    }
}

/// A list of sensors that agents share in memory.
struct SensorList {
    schema: Schema,
    /// The columns in the order of their names.
    order: Arc<[u32]>,
    /// The name that [`Schema::encode_sensors`] gives it.
    name: SchemaHash,
}

impl SensorList {
    fn of(schema: &Schema) -> Self {
        Self { schema: schema.clone(), order: order_of(schema), name: schema.encode_sensors().0 }
    }
}

/// The index of all sensors and schemas.
#[derive(Default)]
pub(crate) struct Sensors {
    paths: PathIndex,
    /// Of sensors in families only those with more state.
    entries: Slots<SensorEntry>,
    /// The number of the next sensor, and the number of sensors.
    next: u32,
    count: usize,
    schemas: Slots<Schema>,
    /// Schemas whose sensors form a family: their index and the family's first number.
    firsts: HashMap<u32, u32>,
    by_hash: HashMap<SchemaHash, u32>,
    /// The lists of sensors by a hash of their names. Agents with the same sensors share one.
    by_names: HashMap<u64, SensorList>,
    /// The hash by the address of a shared list, so that it is computed once for each list.
    by_address: HashMap<usize, u64>,
    groups: HashMap<SchemaHash, GroupState>,
    schemaless: Vec<SchemalessEntry>,
    /// Free places in it.
    free_schemaless: Vec<u32>,
    properties: Vec<SchemalessProperties>,
    by_properties: HashMap<Box<[u8]>, u32>,
    sources: Vec<Arc<str>>,
    by_source: HashMap<Arc<str>, u32>,
    /// Registrations of schemaless sensors so far.
    schemaless_changes: u64,
    /// The settings of users.
    settings: Arc<Settings>,
    /// The combinations of settings that apply to sensors, each once: few, however many sensors there are.
    held: RwLock<Combinations>,
    settings_changes: u64,
}

/// The index, shared by the store's threads.
#[derive(Default)]
pub(crate) struct SensorIndex(RwLock<Sensors>);

impl SensorIndex {
    pub(crate) fn new(sensors: Sensors) -> Self {
        Self(RwLock::new(sensors))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Sensors> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Sensors> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first `most` sensors that match one of the patterns, with paths after `after`; fewer if `is_over` returns true. Registrations can happen
    /// in between.
    pub fn select_after_until(
        &self,
        patterns: &[Pattern],
        after: Option<&str>,
        most: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Vec<SensorInfo> {
        let (mut found, mut next) = self.read().select_part(patterns, after, most);
        while let Some(after) = next.filter(|_| !is_over()) {
            let (part, further) = self.read().select_part(patterns, Some(&after), most - found.len());
            found.extend(part);
            next = further;
        }
        found
    }

    /// The interval of the sensor with this path, ns; 0 if it is not known.
    pub fn interval_ns(&self, path: &str) -> u64 {
        let sensors = self.read();
        sensors.id(path).and_then(|id| sensors.info(id)).map_or(0, |info| info.interval_ns)
    }
}

#[derive(Default)]
struct Combinations {
    all: Vec<AppliedSettings>,
    by_held: HashMap<AppliedSettings, u32>,
}

impl Sensors {
    /// The schema of this hash.
    pub fn schema(&self, hash: &SchemaHash) -> Option<&Schema> {
        self.by_hash.get(hash).map(|&at| &self.schemas[at as usize])
    }

    /// The prefix of each schema and the agent of its newest batch, in the order of registration; schemas without batches are left out.
    pub fn schema_agents(&self) -> Vec<(SensorPath, Arc<str>)> {
        let newest = |schema: &Schema| Some((schema.prefix().clone(), self.groups.get(&schema.hash())?.agent.clone()));
        self.schemas.iter().filter_map(|(_, schema)| newest(schema)).collect()
    }

    /// The number of definitions so far. When it rises, `sensors.csv` is out of date.
    pub fn definitions(&self) -> u64 {
        self.schemas.next() as u64 + self.schemaless_changes + self.settings_changes
    }

    pub(crate) fn schema_at(&self, at: u32) -> &Schema {
        &self.schemas[at as usize]
    }

    /// Whether `schema` is registered and defines each of its sensors, so that registering it would change nothing.
    pub fn is_current(&self, schema: &Schema) -> bool {
        let Some(&at) = self.by_hash.get(&schema.hash()) else { return false };
        let first = self.firsts.get(&at);
        let id = |i: usize| match first {
            Some(first) => Some(SensorId(first + i as u32)),
            None => self.id(&schema.path(i)),
        };
        let last = |i: usize| id(i).and_then(|id| self.places(id).last().copied());
        (0..schema.len()).all(|i| last(i).is_some_and(|place| place.schema == at))
    }

    /// Gives a path the next number.
    pub fn add_path(&mut self, path: &str) -> SensorId {
        let id = SensorId(self.next);
        self.take_path(path.into(), id);
        id
    }

    fn take_path(&mut self, path: Arc<str>, id: SensorId) {
        self.entries.insert(id.0 as usize, SensorEntry::new(path.clone()));
        self.paths.insert(path, id);
        self.next = self.next.max(id.0.saturating_add(1));
        self.count += 1;
    }

    /// The index of these paths, in the order of their numbers; `next` is the number of the next.
    pub fn of_paths(paths: Vec<(u32, Arc<str>)>, next: u32) -> Self {
        let mut entries = Slots::default();
        for (id, path) in &paths {
            entries.insert(*id as usize, SensorEntry::new(path.clone()));
        }
        let next = next.max(paths.last().map_or(0, |(id, _)| id.saturating_add(1)));
        let count = paths.len();
        let paths = PathIndex::of(paths.into_iter().map(|(id, path)| (path, id)));
        Self { paths, entries, next, count, ..Self::default() }
    }

    /// Whether a schema's sensors can have the numbers from `first` on: neither they nor the numbers are in use.
    pub fn may_number(&self, schema: &Schema, first: u32) -> bool {
        let end = first.saturating_add(schema.len() as u32);
        let taken = self.paths.families_from(first).next().is_some_and(|family| family.first < end)
            || (first..end).any(|id| self.entries.get(id as usize).is_some());
        let list = self.list(schema);
        let free = list.is_some_and(|list| self.paths.is_free(schema, &list.order));
        !taken && (free || (0..schema.len()).all(|i| self.id(&schema.path(i)).is_none()))
    }

    /// Adds a schema with unknown sensors; the first one gets this number. [`Sensors::add_schema`] then lets it define them.
    pub fn add_family(&mut self, schema: &Schema, first: u32) {
        let at = self.by_hash.get(&schema.hash()).copied().unwrap_or_else(|| self.keep(schema));
        let schema = self.schemas[at as usize].clone();
        let order = self.list(&schema).map_or_else(|| order_of(&schema), |list| list.order.clone());
        self.count += schema.len();
        self.next = self.next.max(first.saturating_add(schema.len() as u32));
        self.firsts.insert(at, first);
        self.paths.insert_family(first, schema, at, order);
    }

    /// The number of the next new sensor: numbers are never given twice.
    pub fn next_number(&self) -> u32 {
        self.next
    }

    /// Whether a sensor with this number exists.
    pub fn has(&self, id: SensorId) -> bool {
        self.entries.get(id.0 as usize).is_some() || self.paths.family(id).is_some()
    }

    /// Adds a schema, whose sensors all have numbers, and lets it define them.
    pub fn add_schema(&mut self, schema: &Schema) {
        let at = self.by_hash.get(&schema.hash()).copied().unwrap_or_else(|| self.keep(schema));
        let first = self.firsts.get(&at).copied();
        for column in 0..schema.len() as u32 {
            let id = match first {
                // A sensor without an entry is defined by its family.
                Some(first) if self.entries.get((first + column) as usize).is_none() => continue,
                Some(first) => SensorId(first + column),
                None => match self.id(&schema.path(column as usize)) {
                    Some(id) => id,
                    None => continue,
                },
            };
            if let Some(entry) = self.entry(id) {
                entry.places.define(SchemaColumn { schema: at, column });
            }
        }
    }

    /// The entry of a sensor, created if it does not exist.
    fn entry(&mut self, id: SensorId) -> Option<&mut SensorEntry> {
        if self.entries.get(id.0 as usize).is_none() {
            let (family, column) = self.paths.family(id)?;
            let mut entry = SensorEntry::new(family.schema.path(column as usize).into());
            entry.places = SchemaColumns::One(SchemaColumn { schema: family.at, column });
            self.entries.insert(id.0 as usize, entry);
        }
        self.entries.get_mut(id.0 as usize)
    }

    /// The same schema, with shared lists of sensors.
    pub fn share(&mut self, schema: &Schema) -> Schema {
        let key = self.names_key(schema);
        let list = self.by_names.entry(key).or_insert_with(|| SensorList::of(schema));
        self.by_address.insert(list.schema.sensors().as_ptr() as usize, key);
        schema.sharing(&list.schema)
    }

    fn names_key(&self, schema: &Schema) -> u64 {
        let known = self.by_address.get(&(schema.sensors().as_ptr() as usize));
        known.copied().unwrap_or_else(|| names_hash(schema))
    }

    /// The list that a schema shares.
    fn list(&self, schema: &Schema) -> Option<&SensorList> {
        let list = self.by_names.get(&self.names_key(schema))?;
        let (ours, theirs) = (schema.sensors(), list.schema.sensors());
        (std::ptr::eq(ours, theirs) || ours == theirs).then_some(list)
    }

    fn keep(&mut self, schema: &Schema) -> u32 {
        let schema = self.share(schema);
        let hash = schema.hash();
        let at = self.schemas.push(schema) as u32;
        self.by_hash.insert(hash, at);
        at
    }

    pub(crate) fn id(&self, path: &str) -> Option<SensorId> {
        self.paths.id(path)
    }

    pub(crate) fn path(&self, id: SensorId) -> Option<Arc<str>> {
        match self.entries.get(id.0 as usize) {
            Some(entry) => Some(entry.path.clone()),
            None => self.paths.family(id).map(|(family, column)| family.schema.path(column as usize).into()),
        }
    }

    pub(crate) fn places(&self, id: SensorId) -> ColumnsOfSensor<'_> {
        match (self.entries.get(id.0 as usize), self.paths.family(id)) {
            (Some(entry), _) => ColumnsOfSensor::Listed(entry.places.as_slice()),
            (None, Some((family, column))) => ColumnsOfSensor::Family([SchemaColumn { schema: family.at, column }]),
            (None, None) => ColumnsOfSensor::Listed(&[]),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn schemas_len(&self) -> usize {
        self.schemas.held()
    }

    /// Notes a batch of a group.
    pub fn note_group(&mut self, hash: SchemaHash, state: GroupState) {
        match self.groups.get_mut(&hash) {
            Some(known) if known.last_time > state.last_time => {}
            Some(known) => *known = state,
            None => drop(self.groups.insert(hash, state)),
        }
    }

    /// Adopts the newest times and the settings of another index.
    pub fn keep_groups(&mut self, other: &Sensors) {
        (self.settings, self.settings_changes) = (other.settings.clone(), other.settings_changes);
        other.groups.iter().for_each(|(hash, state)| self.note_group(*hash, state.clone()));
        for (id, entry) in other.entries.iter() {
            let id = SensorId(id as u32);
            if let Some(known) = other.schemaless.get(entry.schemaless as usize)
                && known.last != NewestReading::Never
                && self.has(id)
            {
                let source = self.source(&other.sources[known.source as usize]);
                if let Some(schemaless) =
                    self.schemaless_mut(id, source).filter(|schemaless| schemaless.time() <= known.time())
                {
                    (schemaless.last, schemaless.source) = (known.last, source);
                }
            }
        }
    }

    /// Whether registering these sensors would change nothing.
    pub fn is_registered(&self, sensor: &SchemalessSensor, properties: &[u8]) -> bool {
        let entry = self.id(sensor.path.as_str()).and_then(|id| self.entries.get(id.0 as usize));
        let schemaless = entry.and_then(|entry| Some((entry, self.schemaless.get(entry.schemaless as usize)?)));
        let known = self.by_properties.get(properties).copied().unwrap_or(NONE);
        schemaless.is_some_and(|(entry, schemaless)| {
            schemaless.properties != NONE && (schemaless.properties == known || !entry.places.as_slice().is_empty())
        })
    }

    /// The learned interval of a schemaless sensor, ns; 0 if unknown.
    pub fn learned_interval(&self, id: SensorId) -> u64 {
        let schemaless =
            self.entries.get(id.0 as usize).and_then(|entry| self.schemaless.get(entry.schemaless as usize));
        let properties = schemaless.and_then(|schemaless| self.properties.get(schemaless.properties as usize));
        properties.map_or(0, |properties| properties.interval_ns)
    }

    /// Adds a registration of a schemaless sensor that has a number. A schema with the sensor takes precedence.
    pub fn add_schemaless(&mut self, id: SensorId, source: &str, properties: SchemalessProperties) {
        let encoded = properties.encode().into_boxed_slice();
        let index = *self.by_properties.entry(encoded).or_insert_with(|| {
            self.properties.push(properties);
            self.properties.len() as u32 - 1
        });
        let source = self.source(source);
        if let Some(schemaless) = self.schemaless_mut(id, source) {
            schemaless.properties = index;
        }
        self.schemaless_changes += 1;
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

    /// The state of a schemaless sensor, created if it does not exist; `None` if the number is unknown.
    fn schemaless_mut(&mut self, id: SensorId, source: u32) -> Option<&mut SchemalessEntry> {
        let at = self.entry(id)?.schemaless;
        if at != NONE {
            return self.schemaless.get_mut(at as usize);
        }
        let fresh = SchemalessEntry { properties: NONE, source, last: NewestReading::Never };
        let at = match self.free_schemaless.pop() {
            Some(at) => {
                self.schemaless[at as usize] = fresh;
                at
            }
            None => {
                self.schemaless.push(fresh);
                self.schemaless.len() as u32 - 1
            }
        };
        self.entry(id)?.schemaless = at;
        self.schemaless.get_mut(at as usize)
    }

    /// Notes the newest times of durable readings.
    pub fn note_newest_times(&mut self, source: &str, readings: &[Reading]) {
        let source = self.source(source);
        for reading in readings {
            let schemaless = self.schemaless_mut(reading.sensor, source);
            if let Some(schemaless) = schemaless.filter(|schemaless| schemaless.time() <= Some(reading.time)) {
                (schemaless.last, schemaless.source) = (NewestReading::Reading(reading.time, reading.value), source);
            }
        }
    }

    /// Notes that readings up to a time are in blocks, with their values.
    pub fn newest_until(&mut self, source: &str, id: SensorId, time: i64) {
        if !self.has(id) {
            return;
        }
        let source = self.source(source);
        // Also at an equal time: the value in memory may be the one that the import replaces.
        if let Some(schemaless) = self.schemaless_mut(id, source).filter(|schemaless| schemaless.time() <= Some(time)) {
            (schemaless.last, schemaless.source) = (NewestReading::At(time), source);
        }
    }

    /// Removes the newest value of a schemaless sensor from memory: it is read from the files.
    pub fn remove_last_value(&mut self, id: SensorId) {
        let at = self.entries.get(id.0 as usize).map(|entry| entry.schemaless as usize);
        if let Some(schemaless) = at.and_then(|at| self.schemaless.get_mut(at))
            && let NewestReading::Reading(time, _) = schemaless.last
        {
            schemaless.last = NewestReading::At(time);
        }
    }

    /// The newest reading of a schemaless sensor: its time, and its value if it is in memory.
    pub fn last_schemaless(&self, id: SensorId) -> Option<(i64, Option<Value>)> {
        match self.schemaless.get(self.entries.get(id.0 as usize)?.schemaless as usize)?.last {
            NewestReading::Never => None,
            NewestReading::At(time) => Some((time, None)),
            NewestReading::Reading(time, value) => Some((time, Some(value))),
        }
    }

    /// Whether it was ever registered as a schemaless sensor.
    pub fn is_schemaless(&self, id: SensorId) -> bool {
        let entry = self.entries.get(id.0 as usize);
        entry.is_some_and(|entry| self.schemaless.get(entry.schemaless as usize).is_some())
    }

    /// Encodes the newest times of the sensors from `chunk * NEWEST_TIMES_SENSORS` on for the catalogue.
    pub fn newest_times(&self, chunk: u32) -> Vec<u8> {
        self.newest_times_with(chunk, &HashMap::new())
    }

    /// The same with these times added.
    pub fn newest_times_with(&self, chunk: u32, more: &HashMap<u32, i64>) -> Vec<u8> {
        let start = chunk as usize * NEWEST_TIMES_SENSORS as usize;
        let entries = (start..start + NEWEST_TIMES_SENSORS as usize).map(|at| self.entries.get(at));
        let (mut out, mut next, mut before) = (Vec::new(), 0, 0i64);
        for (offset, entry) in (0u64..).zip(entries) {
            let known =
                entry.and_then(|entry| self.schemaless.get(entry.schemaless as usize)).and_then(SchemalessEntry::time);
            let reported = u32::try_from(start as u64 + offset).ok().and_then(|id| more.get(&id).copied());
            let Some(time) = known.max(reported) else { continue };
            put_varint(offset - next, &mut out);
            put_varint(zigzag(time.wrapping_sub(before)), &mut out);
            (next, before) = (offset + 1, time);
        }
        out
    }

    /// Decodes what [`Sensors::newest_times`] encoded; `None` if it is invalid.
    pub fn set_newest_times(&mut self, chunk: u32, bytes: &[u8]) -> Option<()> {
        let (mut at, mut time) = (0, 0i64);
        let mut next = u64::from(chunk) * u64::from(NEWEST_TIMES_SENSORS);
        while at < bytes.len() {
            next = next.checked_add(get_varint(bytes, &mut at)?)?;
            time = time.wrapping_add(unzigzag(get_varint(bytes, &mut at)?));
            let id = u32::try_from(next).ok().filter(|id| *id < self.next).map(SensorId)?;
            // A sensor that does not exist has expired.
            if self.has(id) {
                let source = self.source("");
                if let Some(schemaless) = self.schemaless_mut(id, source) {
                    schemaless.last = NewestReading::At(time);
                }
            }
            next += 1;
        }
        Some(())
    }

    pub(crate) fn group(&self, hash: &SchemaHash) -> Option<&GroupState> {
        self.groups.get(hash)
    }
}

/// A hash of a list of sensors.
fn names_hash(schema: &Schema) -> u64 {
    let mut hasher = DefaultHasher::new();
    schema.sensors().iter().for_each(|sensor| sensor.name.hash(&mut hasher));
    hasher.finish()
}
