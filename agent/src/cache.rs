//! The past in memory: encoded batches, bounded by time and by bytes, the oldest out first; and the questions asked of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use wholegrain_model::{Pattern, Schema, SensorDef, Value};
use wholegrain_transport::payload::{decode_column, last_row};

use crate::config::CacheConfig;
use crate::engine::ring::RowCopy;
use crate::engine::{Group, clock};
use crate::state::{AgentState, EncodedBatch, lock};

/// Encoded batches of all groups, the oldest first.
#[derive(Debug)]
pub struct BatchCache {
    inner: Mutex<CacheState>,
}

#[derive(Debug)]
struct CacheState {
    batches: VecDeque<Arc<EncodedBatch>>,
    bytes: u64,
    config: CacheConfig,
}

impl CacheState {
    fn shrink(&mut self, now_mono: i64) {
        while let Some(oldest) = self.batches.front() {
            let age = u64::try_from(now_mono - oldest.made_mono).unwrap_or(0);
            if self.bytes <= self.config.bytes_max.0 && age <= self.config.duration.ns() {
                break;
            }
            self.bytes -= oldest.bytes();
            self.batches.pop_front();
        }
    }
}

impl BatchCache {
    pub fn new(config: CacheConfig) -> Self {
        Self { inner: Mutex::new(CacheState { batches: VecDeque::new(), bytes: 0, config }) }
    }

    pub fn configure(&self, config: CacheConfig) {
        let mut inner = lock(&self.inner);
        inner.config = config;
        inner.shrink(clock::mono());
    }

    pub fn push(&self, batch: Arc<EncodedBatch>) {
        let mut inner = lock(&self.inner);
        let now = batch.made_mono;
        inner.bytes += batch.bytes();
        inner.batches.push_back(batch);
        inner.shrink(now);
    }

    /// The number of batches and their bytes.
    pub fn size(&self) -> (usize, u64) {
        let inner = lock(&self.inner);
        (inner.batches.len(), inner.bytes)
    }

    /// The batches of one schema that overlap the time asked for, the oldest first.
    fn of(&self, schema: &Schema, from: i64, to: i64) -> Vec<Arc<EncodedBatch>> {
        let inner = lock(&self.inner);
        let within =
            |batch: &&Arc<EncodedBatch>| batch.schema.hash() == schema.hash() && batch.last >= from && batch.first < to;
        inner.batches.iter().filter(within).cloned().collect()
    }

    /// The newest batch of a schema.
    fn newest(&self, schema: &Schema) -> Option<Arc<EncodedBatch>> {
        lock(&self.inner).batches.iter().rev().find(|batch| batch.schema.hash() == schema.hash()).cloned()
    }

    /// One batch of each schema there is of these groups' names: groups that have changed have more than one.
    fn schemas(&self) -> Vec<Schema> {
        let mut schemas: Vec<Schema> = Vec::new();
        for batch in &lock(&self.inner).batches {
            if !schemas.contains(&batch.schema) {
                schemas.push(batch.schema.clone());
            }
        }
        schemas
    }
}

/// A raw value in its sensor's unit: integers with a whole scale stay integers as long as they fit.
pub fn scaled(value: Value, sensor: &SensorDef) -> Value {
    let whole = sensor.scale.fract() == 0.0 && sensor.scale.abs() < (1u64 << 53) as f64;
    let exact = match value {
        Value::Int(raw) if whole => raw.checked_mul(sensor.scale as i64),
        _ => None,
    };
    exact.map_or_else(|| Value::Float(value.as_f64() * sensor.scale), Value::Int)
}

/// Whether any of the patterns chooses the path; no pattern chooses everything.
pub(crate) fn chosen(patterns: &[Pattern], path: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(path))
}

/// A sensor that patterns chose.
#[derive(Debug, Clone)]
pub struct SensorMatch {
    pub group: Arc<Group>,
    /// Its place in the schema.
    pub index: usize,
    pub path: String,
}

impl SensorMatch {
    pub fn sensor(&self) -> &SensorDef {
        &self.group.schema.sensors()[self.index]
    }
}

/// The running sensors that patterns choose, in the order of their paths.
pub fn choose(state: &AgentState, patterns: &[Pattern]) -> Vec<SensorMatch> {
    choose_by(state, |path| chosen(patterns, path))
}

/// The running sensors whose path satisfies `wanted`, ordered by path.
pub(crate) fn choose_by(state: &AgentState, wanted: impl Fn(&str) -> bool) -> Vec<SensorMatch> {
    let mut list = Vec::new();
    for group in state.registry.live() {
        for index in 0..group.schema.len() {
            let path = group.schema.path(index);
            if wanted(&path) {
                list.push(SensorMatch { group: group.clone(), index, path });
            }
        }
    }
    list.sort_by(|a, b| a.path.cmp(&b.path));
    list
}

/// The newest sample of a group: from its ring, or after a change of its interval or its sensors from the group before it or
/// the cache.
pub fn newest_row(state: &AgentState, group: &Group) -> Option<(i64, Vec<Option<Value>>)> {
    let mut copy = RowCopy::default();
    if group.ring.newest(&mut copy) {
        let value = |index| copy.get(index).map(|bits| Value::from_bits(bits, group.types[index]));
        return Some((copy.time, (0..group.types.len()).map(value).collect()));
    }
    if let Some(carried) = &group.carried {
        return Some(carried.clone());
    }
    let batch = state.cache.newest(&group.schema)?;
    last_row(&batch.payload, &group.schema).ok()
}

/// One sensor's readings over a time: `(time, value)`, scaled, `None` for a gap.
pub type SensorReadings = Vec<(i64, Option<Value>)>;

/// What is in memory of a sensor in `from <= time < to`, in the order of time. Rings are looked at before the cache: what the
/// encoder moves in between is then seen twice, not never, and is made one again here.
fn readings(state: &AgentState, schema: &Schema, index: usize, from: i64, to: i64) -> SensorReadings {
    let sensor = &schema.sensors()[index];
    let mut out: SensorReadings = Vec::new();
    let rings = state.registry.draining().into_iter().chain(state.registry.live());
    let mut copy = RowCopy::default();
    for group in rings.filter(|group| group.schema == *schema) {
        for row in group.ring.tail()..group.ring.head() {
            if group.ring.copy(row, &mut copy) && (from..to).contains(&copy.time) {
                let value = copy.get(index).map(|bits| scaled(Value::from_bits(bits, sensor.value_type), sensor));
                out.push((copy.time, value));
            }
        }
    }
    for batch in state.cache.of(schema, from, to) {
        if let Ok((times, column)) = decode_column(&batch.payload, schema, index) {
            let all = times.into_iter().enumerate();
            let within = all.filter(|(_, time)| (from..to).contains(time));
            out.extend(within.map(|(at, time)| (time, column.get(at).map(|value| scaled(value, sensor)))));
        }
    }
    out.sort_by_key(|(time, _)| *time);
    out.dedup_by_key(|(time, _)| *time);
    out
}

/// Hands the readings of each chosen sensor in `from <= time < to` to `each`, one sensor after another in the order of their
/// paths, so that only one sensor's past is unpacked at a time. Sensors that have gone are there too, while the cache has them.
pub fn history<E>(
    state: &AgentState,
    patterns: &[Pattern],
    from: i64,
    to: i64,
    each: impl FnMut(&str, &SensorDef, &SensorReadings) -> Result<(), E>,
) -> Result<(), E> {
    history_by(state, |path| chosen(patterns, path).then_some(from), to, each)
}

/// The same of the sensors for whose path `since` says from when on.
pub(crate) fn history_by<E>(
    state: &AgentState,
    since: impl Fn(&str) -> Option<i64>,
    to: i64,
    mut each: impl FnMut(&str, &SensorDef, &SensorReadings) -> Result<(), E>,
) -> Result<(), E> {
    let mut schemas: Vec<Schema> = state.registry.live().iter().map(|group| group.schema.clone()).collect();
    for schema in state.cache.schemas() {
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
            all.append(&mut readings(state, schema, *index, from, to));
        }
        if same.len() > 1 {
            all.sort_by_key(|(time, _)| *time);
            all.dedup_by_key(|(time, _)| *time);
        }
        let (path, schema, index) = &same[0];
        each(path, &schema.sensors()[*index], &all)?;
    }
    Ok(())
}

/// What a window of readings comes to, gaps left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowAverage {
    pub count: usize,
    pub gaps: usize,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

/// The average of readings; `None` when there is not one value.
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
