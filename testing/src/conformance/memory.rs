//! The smallest store that passes the checks: in memory, with one lock. It can break one guarantee, so that a test can see each check fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::{Column, ColumnValues, Gaps, Pattern, Value};
use wholegrain_store::{
    CHUNK_ROWS_MAX, Chunk, ReadSnapshot, ReadStore, Scan, ScanRequest, SchemalessSensor, SensorId, SensorInfo,
    SensorRange, SnapshotReader, StoreError,
};

use super::{Place, PutOutcome, WritableStore};

/// The guarantee that a store breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Unsorted,
    /// Numbers change when sensors are defined again.
    Renumbers,
    /// The first properties stay.
    OldProperties,
    GapsAreZero,
    /// Integers are converted to floats and back.
    ThroughFloats,
    /// A range includes its end.
    TakesTheEnd,
    /// The earlier of two readings of one time stays.
    EarlierWins,
    /// Puts are not remembered at all.
    NoNames,
    /// Puts are remembered by number only, without the source.
    NumbersAlone,
    /// The part of an invalid put before the error stays.
    Halves,
    /// A snapshot shows later changes.
    Moves,
    /// The last put is lost at a reopening.
    Forgets,
    AnyLength,
    /// The newest reading is the last one put.
    LastPut,
    /// A deletion includes its end.
    DeletesTheEnd,
    /// A deletion applies to every sensor whose path begins with the pattern.
    DeletesByPrefix,
    /// A deletion forgets the names of puts.
    DeletionForgetsNames,
}

impl Fault {
    pub const ALL: [Fault; 17] = [
        Fault::Unsorted,
        Fault::Renumbers,
        Fault::OldProperties,
        Fault::GapsAreZero,
        Fault::ThroughFloats,
        Fault::TakesTheEnd,
        Fault::EarlierWins,
        Fault::NoNames,
        Fault::NumbersAlone,
        Fault::Halves,
        Fault::Moves,
        Fault::Forgets,
        Fault::AnyLength,
        Fault::LastPut,
        Fault::DeletesTheEnd,
        Fault::DeletesByPrefix,
        Fault::DeletionForgetsNames,
    ];
}

type Readings = BTreeMap<i64, Option<Value>>;

#[derive(Debug, Clone, Default)]
struct Content {
    sensors: Vec<SchemalessSensor>,
    readings: BTreeMap<u32, Readings>,
    last_put: BTreeMap<u32, (i64, Option<Value>)>,
    names: BTreeSet<(String, u64)>,
}

/// An empty place in memory.
#[derive(Debug, Default)]
pub struct Memory {
    content: Arc<Mutex<Content>>,
    before: Arc<Mutex<Content>>,
    fault: Option<Fault>,
}

impl Memory {
    /// A place whose stores break this guarantee.
    pub fn broken(fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }
}

impl Place for Memory {
    fn open(&self) -> Box<dyn WritableStore> {
        if self.fault == Some(Fault::Forgets) {
            let before = lock(&self.before).clone();
            *lock(&self.content) = before;
        }
        Box::new(MemoryStore { content: self.content.clone(), before: self.before.clone(), fault: self.fault })
    }
}

struct MemoryStore {
    content: Arc<Mutex<Content>>,
    before: Arc<Mutex<Content>>,
    fault: Option<Fault>,
}

fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

fn refuse<T>(what: &str) -> Result<T, StoreError> {
    Err(StoreError::Sensor(what.to_owned()))
}

impl ReadStore for MemoryStore {
    fn sensors(&self, patterns: &[Pattern]) -> Vec<SensorInfo> {
        let content = lock(&self.content);
        let chosen = (0..).zip(&content.sensors);
        let chosen = chosen.filter(|(_, sensor)| patterns.iter().any(|pattern| pattern.matches(sensor.path.as_str())));
        let info = |(id, sensor): (u32, &SchemalessSensor)| SensorInfo {
            id: SensorId(id),
            path: sensor.path.as_str().into(),
            unit: sensor.unit.clone(),
            kind: sensor.kind,
            value_type: sensor.value_type,
            scale: sensor.scale,
            wraps_at: None,
            description: sensor.description.clone(),
            interval_ns: 0,
            last_time: content.readings.get(&id).and_then(|readings| Some(*readings.last_key_value()?.0)),
            agent: "".into(),
        };
        let mut chosen: Vec<SensorInfo> = chosen.map(info).collect();
        if !self.has(Fault::Unsorted) {
            chosen.sort_by(|a, b| a.path.cmp(&b.path));
        }
        chosen
    }

    fn newest(&self, ids: &[SensorId]) -> Vec<Option<(i64, Option<Value>)>> {
        let content = lock(&self.content);
        let last_put = |id: &SensorId| content.last_put.get(&id.0).copied();
        let latest = |id: &SensorId| content.readings.get(&id.0)?.last_key_value().map(|(time, value)| (*time, *value));
        ids.iter().map(|id| if self.has(Fault::LastPut) { last_put(id) } else { latest(id) }).collect()
    }

    fn snapshot(&self) -> Box<dyn ReadSnapshot> {
        let moves = self.has(Fault::Moves);
        let content = if moves { self.content.clone() } else { Arc::new(Mutex::new(lock(&self.content).clone())) };
        Box::new(MemorySnapshot { content, fault: self.fault })
    }
}

impl WritableStore for MemoryStore {
    fn define(&self, _source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError> {
        let content = &mut *lock(&self.content);
        let mut ids = Vec::new();
        for sensor in sensors {
            let known = content.sensors.iter().position(|known| known.path == sensor.path);
            let at = known.filter(|_| !self.has(Fault::Renumbers)).unwrap_or(content.sensors.len());
            match content.sensors.get_mut(at) {
                Some(_) if self.has(Fault::OldProperties) => {}
                Some(known) => *known = sensor.clone(),
                None => content.sensors.push(sensor.clone()),
            }
            ids.push(SensorId(at as u32));
        }
        Ok(ids)
    }

    fn put(&self, source: &str, number: u64, chunks: &[(SensorId, Chunk)]) -> Result<PutOutcome, StoreError> {
        let content = &mut *lock(&self.content);
        let source = if self.has(Fault::NumbersAlone) { "" } else { source };
        if content.names.contains(&(source.to_owned(), number)) && !self.has(Fault::NoNames) {
            return Ok(PutOutcome::Duplicate);
        }
        *lock(&self.before) = content.clone();
        let mut next = content.clone();
        for (id, chunk) in chunks {
            let checked = if chunks.iter().filter(|(other, _)| other == id).count() > 1 {
                refuse("a sensor twice")
            } else if id.0 as usize >= next.sensors.len() {
                refuse("no such sensor")
            } else if chunk.times.len() != chunk.column.len() || chunk.times.windows(2).any(|pair| pair[0] >= pair[1]) {
                refuse("no chunk")
            } else {
                Ok(())
            };
            if checked.is_err() {
                if self.has(Fault::Halves) {
                    *content = next;
                }
                return checked.map(|()| PutOutcome::Stored);
            }
            let readings = next.readings.entry(id.0).or_default();
            for (at, time) in chunk.times.iter().enumerate() {
                let value = match chunk.column.get(at) {
                    None if self.has(Fault::GapsAreZero) => Some(Value::Int(0)),
                    Some(Value::Int(int)) if self.has(Fault::ThroughFloats) => Some(Value::Int(int as f64 as i64)),
                    value => value,
                };
                if !(self.has(Fault::EarlierWins) && readings.contains_key(time)) {
                    readings.insert(*time, value);
                }
                next.last_put.insert(id.0, (*time, value));
            }
        }
        next.names.insert((source.to_owned(), number));
        *content = next;
        Ok(PutOutcome::Stored)
    }

    fn delete(&self, patterns: &[Pattern], from: i64, to: i64) -> Result<(), StoreError> {
        let content = &mut *lock(&self.content);
        let to = if self.has(Fault::DeletesTheEnd) { to.saturating_add(1) } else { to };
        for (id, sensor) in (0..).zip(&content.sensors) {
            let path = sensor.path.as_str();
            let begins = |pattern: &Pattern| self.has(Fault::DeletesByPrefix) && path.starts_with(pattern.as_str());
            if patterns.iter().any(|pattern| pattern.matches(path) || begins(pattern)) {
                let readings = content.readings.entry(id).or_default();
                readings.retain(|time, _| !(from..to).contains(time));
            }
        }
        if self.has(Fault::DeletionForgetsNames) {
            content.names.clear();
        }
        Ok(())
    }
}

#[derive(Clone)]
struct MemorySnapshot {
    content: Arc<Mutex<Content>>,
    fault: Option<Fault>,
}

impl ReadSnapshot for MemorySnapshot {
    fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(self.clone()))
    }
}

impl SnapshotReader for MemorySnapshot {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let ScanRequest { sensor, from, to, .. } = *request;
        let content = lock(&self.content);
        let to = if self.fault == Some(Fault::TakesTheEnd) { to.saturating_add(1) } else { to };
        let readings =
            content.readings.get(&sensor.id.0).filter(|_| from < to).map(|readings| readings.range(from..to));
        let rows: Vec<(i64, Option<Value>)> =
            readings.into_iter().flatten().map(|(time, value)| (*time, *value)).collect();
        let length = if self.fault == Some(Fault::AnyLength) { usize::MAX } else { CHUNK_ROWS_MAX };
        let mut chunks: Vec<Result<Chunk, StoreError>> = Vec::new();
        let mut rest = rows.as_slice();
        while !rest.is_empty() {
            let mut types = rest.iter().filter_map(|(_, value)| value.map(is_float));
            let first = types.next();
            let other = |(_, value): &(i64, Option<Value>)| value.is_some_and(|value| Some(is_float(value)) != first);
            let (chunk, later) = rest.split_at(rest.iter().position(other).unwrap_or(rest.len()).min(length));
            chunks.push(Ok(chunk_of(chunk)));
            rest = later;
        }
        Ok(Scan::of_chunks(request, chunks.into_iter()))
    }
}

fn is_float(value: Value) -> bool {
    matches!(value, Value::Float(_))
}

/// Converts rows of one type to a chunk.
fn chunk_of(rows: &[(i64, Option<Value>)]) -> Chunk {
    let floats = rows.iter().any(|(_, value)| matches!(value, Some(Value::Float(_))));
    let int = |value: Option<Value>| if let Some(Value::Int(int)) = value { int } else { 0 };
    let values = if floats {
        ColumnValues::Float(rows.iter().map(|(_, value)| value.map_or(0.0, Value::as_f64)).collect())
    } else {
        ColumnValues::Int(rows.iter().map(|(_, value)| int(*value)).collect())
    };
    let mut gaps = Gaps::default();
    rows.iter().enumerate().filter(|(_, row)| row.1.is_none()).for_each(|(at, _)| gaps.set(at, rows.len()));
    Chunk { times: rows.iter().map(|(time, _)| *time).collect(), column: Column { values, gaps } }
}
