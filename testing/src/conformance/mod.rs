//! Checks of the interface [`ReadStore`] for every store of readings.
//!
//! - Input: a [`Place`] where a store can be opened repeatedly.
//! - Output: for each of [`CHECKS`] nothing, or a description of the fault ([`run`] returns all of them).
//! - Never: a requirement that only one implementation can meet.
//!
//! `memory.rs` is the smallest store that passes; it can break a guarantee, so that a test can see each check fail.

pub mod cassandra;
mod checks;
mod embedded;
pub mod memory;

use wholegrain_model::{Column, ColumnValues, Gaps, Kind, Pattern, SensorPath, Value, ValueType};
use wholegrain_store::{
    CHUNK_ROWS_MAX, Chunk, ReadSnapshot, ReadStore, ScanRequest, SchemalessSensor, SensorId, SensorInfo, SensorRange,
    StoreError,
};

/// Where a store is kept; removed when dropped.
pub trait Place {
    /// Opens the store of this place, empty at first. The store opened before was dropped.
    fn open(&self) -> Box<dyn WritableStore>;
}

/// A store as the checks write to it. Sensors are numbered by the store: a number means the same sensor as long as the store has it. All calls may come
/// from any thread, at the same time.
pub trait WritableStore: ReadStore {
    /// Registers sensors, or gives them other properties; durable when it returns. `source` is the sender. Their numbers, in the order of `sensors`.
    fn define(&self, source: &str, sensors: &[SchemalessSensor]) -> Result<Vec<SensorId>, StoreError>;

    /// Stores chunks of readings, one for each sensor, all or nothing; durable when it returns, and in every snapshot taken later. Times rise strictly
    /// within a chunk. A new reading replaces one of the same sensor and time.
    ///
    /// `source` and `number` name the put: the same name again is [`PutOutcome::Duplicate`] and changes nothing, whatever its chunks are, also after
    /// readings of it were deleted and after the store was opened again. A caller without an answer can therefore repeat the call.
    fn put(&self, source: &str, number: u64, chunks: &[(SensorId, Chunk)]) -> Result<PutOutcome, StoreError>;

    /// Deletes the readings with `from <= time < to` of the sensors that match one of the patterns; durable when it returns, and in no snapshot taken
    /// later. The sensors stay and take new readings of those times.
    fn delete(&self, patterns: &[Pattern], from: i64, to: i64) -> Result<(), StoreError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    Stored,
    /// A put of this name was stored before; this one changes nothing.
    Duplicate,
}

/// What a check finds wrong.
pub type Finding = Result<(), String>;

/// The name of a check and its function, which gets its own place.
pub type Check = (&'static str, fn(&dyn Place) -> Finding);

pub const CHECKS: &[Check] = checks::ALL;

/// Runs every check on a new place; returns a line for each failed check.
pub fn run<P: Place>(new_place: impl Fn() -> P) -> Vec<String> {
    let found = CHECKS.iter().map(|(name, check)| (name, check(&new_place())));
    found.filter_map(|(name, found)| found.err().map(|what| format!("{name}: {what}"))).collect()
}

/// A reading as bits, so that every float equals itself: the time, whether it is a float, and its bits; `None` for a gap.
pub type ReadingBits = (i64, Option<(bool, u64)>);

fn row(time: i64, value: Option<Value>) -> ReadingBits {
    let bits = value.map(|value| match value {
        Value::Int(value) => (false, value.cast_unsigned()),
        Value::Float(value) => (true, value.to_bits()),
    });
    (time, bits)
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| format!("{text}: {error}"))
}

/// A sensor of integers or of floats.
fn sensor(path: &str, value_type: ValueType) -> Result<SchemalessSensor, String> {
    Ok(SchemalessSensor {
        path: SensorPath::new(path).map_err(|error| format!("{path}: {error}"))?,
        unit: "W".to_owned(),
        kind: Kind::Gauge,
        value_type,
        scale: 0.5,
        description: format!("what {path} is"),
    })
}

/// Registers sensors of integers.
fn define(store: &dyn WritableStore, paths: &[&str]) -> Result<Vec<SensorId>, String> {
    let sensors = paths.iter().map(|path| sensor(path, ValueType::Int)).collect::<Result<Vec<_>, _>>()?;
    let ids = store.define("conformance", &sensors).map_err(|error| format!("defining: {error}"))?;
    if ids.len() == paths.len() { Ok(ids) } else { Err(format!("{} numbers for {} sensors", ids.len(), paths.len())) }
}

/// A chunk of integers and gaps.
fn ints(rows: impl IntoIterator<Item = (i64, Option<i64>)>) -> Chunk {
    let (times, values): (Vec<i64>, Vec<Option<i64>>) = rows.into_iter().unzip();
    let column = ColumnValues::Int(values.iter().map(|value| value.unwrap_or_default()).collect());
    chunk(times, column, values.iter().map(Option::is_none))
}

/// A chunk of floats and gaps.
fn floats(rows: impl IntoIterator<Item = (i64, Option<f64>)>) -> Chunk {
    let (times, values): (Vec<i64>, Vec<Option<f64>>) = rows.into_iter().unzip();
    let column = ColumnValues::Float(values.iter().map(|value| value.unwrap_or_default()).collect());
    chunk(times, column, values.iter().map(Option::is_none))
}

fn chunk(times: Vec<i64>, values: ColumnValues, is_gap: impl Iterator<Item = bool>) -> Chunk {
    let mut gaps = Gaps::default();
    let length = times.len();
    is_gap.enumerate().filter(|(_, gap)| *gap).for_each(|(at, _)| gaps.set(at, length));
    Chunk { times, column: Column { values, gaps } }
}

/// The rows of a chunk.
fn rows_of(chunk: &Chunk) -> Vec<ReadingBits> {
    chunk.times.iter().enumerate().map(|(at, time)| row(*time, chunk.column.get(at))).collect()
}

/// The rows of a sensor in a snapshot. Checks every promise about chunks.
fn scan(snapshot: &dyn ReadSnapshot, sensor: &SensorInfo, from: i64, to: i64) -> Result<Vec<ReadingBits>, String> {
    let failed = |error: StoreError| format!("scanning {}: {error}", sensor.path);
    let mut rows: Vec<ReadingBits> = Vec::new();
    let mut ranges = std::iter::once(SensorRange { sensor, from, to });
    let reader = snapshot.open(&mut ranges).map_err(failed)?;
    for chunk in reader.scan(&ScanRequest::readings(sensor, from, to)).map_err(failed)?.chunks() {
        let chunk = chunk.map_err(failed)?;
        if chunk.times.is_empty() || chunk.times.len() > CHUNK_ROWS_MAX || chunk.times.len() != chunk.column.len() {
            return Err(format!("a chunk of {} times and {} values", chunk.times.len(), chunk.column.len()));
        }
        rows.extend(rows_of(&chunk));
    }
    if let Some(pair) = rows.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Err(format!("time {} comes after {}", pair[1].0, pair[0].0));
    }
    Ok(rows)
}

/// The only sensor with this path.
fn info(store: &dyn WritableStore, path: &str) -> Result<SensorInfo, String> {
    let mut found = store.sensors(&[pattern(path)?]);
    if found.len() == 1 { Ok(found.remove(0)) } else { Err(format!("{} sensors are {path}", found.len())) }
}

/// All readings of a path in a new snapshot.
fn all(store: &dyn WritableStore, path: &str) -> Result<Vec<ReadingBits>, String> {
    scan(store.snapshot().as_ref(), &info(store, path)?, i64::MIN, i64::MAX)
}

/// Compares two values; the error names both.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Finding {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| {
        let text = format!("{value:?}");
        text.char_indices().nth(300).map_or(text.clone(), |(at, _)| format!("{}…", &text[..at]))
    };
    Err(format!("{what}: {} in place of {}", short(&found), short(&expected)))
}
