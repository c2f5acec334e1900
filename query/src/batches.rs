//! Rows into Arrow record batches.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int64Builder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use wholegrain_model::{Column, ColumnValues, Value};
use wholegrain_store::{Chunk, Chunks, SensorInfo};

use crate::QueryError;
use crate::across::{Group, GroupRows};
use crate::columns::{Rows, Stop};
use crate::plan::Plan;

/// The most rows of one record batch.
pub const BATCH_ROWS_MAX: usize = 8192;
/// Key of the schema's metadata with the unit of every value, when all sensors share it.
pub const UNIT_KEY: &str = "wholegrain.unit";
/// Key of the schema's metadata with the units when they differ: one line a sensor, in the order of the dictionary.
pub const UNITS_KEY: &str = "wholegrain.units";
/// Key of the schema's metadata of an import or an export with the kinds (gauge, counter): one line a sensor, in the order of the dictionary.
pub const KINDS_KEY: &str = "wholegrain.kinds";

/// One reading of the answer, or before that a sample; `None` is a gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) time: i64,
    pub(crate) value: Option<Value>,
}

/// The columns of an answer with floats: `sensor` (dictionary of paths), `time` (ns, UTC), `value` (Float64; null is a gap).
pub fn schema() -> SchemaRef {
    Arc::new(schema_with(DataType::Float64))
}

/// The columns of an answer whose values are all integers.
pub fn schema_int() -> SchemaRef {
    Arc::new(schema_with(DataType::Int64))
}

fn schema_with(value: DataType) -> Schema {
    let sensor = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    Schema::new(vec![
        Field::new("sensor", sensor, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
        Field::new("value", value, true),
    ])
}

/// An answer's batches, made as they are pulled: each of at most [`BATCH_ROWS_MAX`] rows, possibly of several series, all
/// with one dictionary. After an error there are no more.
pub struct Batches {
    chunks: Arc<dyn Chunks>,
    sensors: Arc<[SensorInfo]>,
    plan: Arc<Plan>,
    /// The series when they are made of several sensors each.
    groups: Option<Vec<Group>>,
    schema: SchemaRef,
    names: ArrayRef,
    stop: Stop,
    /// The next series to begin, and what is left of the one before it.
    next_series: usize,
    rows: Option<Source>,
    chunk: Option<(Chunk, usize)>,
    rows_left: u64,
    coverage: Vec<String>,
}

/// Where the rows of one series come from.
enum Source {
    Sensor(Rows),
    Group(Box<GroupRows>),
}

impl Batches {
    pub(crate) fn new(
        chunks: Arc<dyn Chunks>,
        sensors: Arc<[SensorInfo]>,
        groups: Option<Vec<Group>>,
        units: &[String],
        plan: Plan,
    ) -> Self {
        let names: ArrayRef = Arc::new(match &groups {
            None => StringArray::from_iter_values(sensors.iter().map(|sensor| &sensor.path)),
            Some(groups) => StringArray::from_iter_values(groups.iter().map(|group| &group.name)),
        });
        let base = schema_with(if plan.answers_exactly() { DataType::Int64 } else { DataType::Float64 });
        let schema = Arc::new(base.with_metadata(unit_metadata(units)));
        let rows_left = plan.limit;
        Self {
            chunks,
            sensors,
            plan: Arc::new(plan),
            groups,
            schema,
            names,
            stop: Arc::new(|| false),
            next_series: 0,
            rows: None,
            chunk: None,
            rows_left,
            coverage: Vec::new(),
        }
    }

    /// Asks `stop` again and again, also while a long computation has no row to show yet; when it says true, the answer ends with
    /// [`QueryError::Cancelled`]. To be called before the first batch.
    pub fn stop_when(&mut self, stop: impl Fn() -> bool + Send + Sync + 'static) {
        self.stop = Arc::new(stop);
    }

    /// The batches' schema, with the units in its metadata ([`UNIT_KEY`], [`UNITS_KEY`]).
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// How many series have been answered completely, for showing progress.
    pub fn sensors_done(&self) -> usize {
        self.next_series - usize::from(self.rows.is_some())
    }

    /// What is missing from the answer, as far as it has been read.
    pub fn warnings(&self) -> Vec<String> {
        self.chunks.warnings(self.plan.from, self.plan.to)
    }

    /// What is left out of the answer on purpose because retention has dropped it, where operations did not look across a hole, and which series over several sensors do not hold a value
    /// of each everywhere, as far as it has been read.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.chunks.notes();
        notes.extend(self.plan.left_out.notes());
        notes.extend(self.plan.unshown.notes());
        notes.extend(self.plan.untold.notes());
        notes.extend(self.coverage.iter().take(COVERAGE_NOTES_MAX).cloned());
        if let Some(more) = self.coverage.len().checked_sub(COVERAGE_NOTES_MAX).filter(|more| *more > 0) {
            notes.push(format!("{more} more series do not hold a value of each of their sensors everywhere"));
        }
        notes
    }

    /// Begins the next series; `false` when there is none.
    fn begin(&mut self) -> Result<bool, QueryError> {
        let at = self.next_series;
        self.rows = Some(match &self.groups {
            Some(groups) => {
                let Some(group) = groups.get(at) else { return Ok(false) };
                let of = (self.chunks.clone(), self.sensors.clone(), self.plan.clone());
                Source::Group(Box::new(GroupRows::new(of, group, &self.stop)))
            }
            None => {
                let Some(sensor) = self.sensors.get(at) else { return Ok(false) };
                if (self.stop)() {
                    return Err(QueryError::Cancelled);
                }
                let range = self.plan.range();
                Source::Sensor(self.plan.rows(&self.chunks, sensor, range, &self.stop)?)
            }
        });
        self.next_series += 1;
        Ok(true)
    }

    /// Has rows in `chunk`; `false` when there are no more.
    fn load(&mut self) -> Result<bool, QueryError> {
        while self.chunk.is_none() {
            let chunk = match &mut self.rows {
                Some(Source::Sensor(rows)) => rows.next().transpose()?,
                Some(Source::Group(rows)) => rows.next().transpose()?,
                None => {
                    if !self.begin()? {
                        return Ok(false);
                    }
                    continue;
                }
            };
            match chunk {
                Some(chunk) => self.chunk = (!chunk.times.is_empty()).then_some((chunk, 0)),
                None => {
                    if let Some(Source::Group(rows)) = self.rows.take() {
                        self.coverage.extend(rows.coverage());
                    }
                }
            }
        }
        Ok(true)
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, QueryError> {
        let most = usize::try_from(self.rows_left).unwrap_or(usize::MAX).min(BATCH_ROWS_MAX);
        let mut out = Columns::new(self.plan.answers_exactly(), most);
        while out.times.len() < most && self.load()? {
            let Some((chunk, at)) = self.chunk.take() else { break };
            let rows = (chunk.times.len() - at).min(most - out.times.len());
            // Fits: the number of sensors is bounded by SENSORS_MAX.
            out.append((self.next_series - 1) as i32, &chunk, at, rows);
            if at + rows < chunk.times.len() {
                self.chunk = Some((chunk, at + rows));
            }
        }
        self.rows_left -= out.times.len() as u64;
        if out.times.is_empty() {
            return Ok(None);
        }
        let Columns { keys, times, values, valid } = out;
        let sensors = DictionaryArray::<Int32Type>::try_new(Int32Array::from(keys), self.names.clone())?;
        let times = TimestampNanosecondArray::from(times).with_timezone("UTC");
        let values: ArrayRef = match values {
            ColumnValues::Int(values) if valid.is_empty() => Arc::new(Int64Array::from(values)),
            ColumnValues::Float(values) if valid.is_empty() => Arc::new(Float64Array::from(values)),
            ColumnValues::Int(values) => {
                let mut column = Int64Builder::with_capacity(values.len());
                column.append_values(&values, &valid);
                Arc::new(column.finish())
            }
            ColumnValues::Float(values) => {
                let mut column = Float64Builder::with_capacity(values.len());
                column.append_values(&values, &valid);
                Arc::new(column.finish())
            }
        };
        let columns: Vec<ArrayRef> = vec![Arc::new(sensors), Arc::new(times), values];
        Ok(Some(RecordBatch::try_new(self.schema.clone(), columns)?))
    }
}

/// The most notes about series that do not hold a value of each of their sensors everywhere.
const COVERAGE_NOTES_MAX: usize = 8;

impl Iterator for Batches {
    type Item = Result<RecordBatch, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch();
        if batch.is_err() {
            self.rows_left = 0;
        }
        batch.transpose()
    }
}

fn unit_metadata(units: &[String]) -> HashMap<String, String> {
    let Some(first) = units.first() else { return HashMap::new() };
    if units.iter().all(|unit| unit == first) {
        return HashMap::from([(UNIT_KEY.to_owned(), first.clone())]);
    }
    // A unit holds no control characters, so a line break separates.
    HashMap::from([(UNITS_KEY.to_owned(), units.join("\n"))])
}

/// The columns of a batch being made.
struct Columns {
    keys: Vec<i32>,
    times: Vec<i64>,
    values: ColumnValues,
    valid: Vec<bool>,
}

impl Columns {
    fn new(exact: bool, rows: usize) -> Self {
        let values = if exact {
            ColumnValues::Int(Vec::with_capacity(rows))
        } else {
            ColumnValues::Float(Vec::with_capacity(rows))
        };
        Self { keys: Vec::with_capacity(rows), times: Vec::with_capacity(rows), values, valid: Vec::new() }
    }

    /// Rows `at..at + rows` of a chunk of the answer's type; rows of the other type would be gaps.
    fn append(&mut self, key: i32, chunk: &Chunk, at: usize, rows: usize) {
        let Column { values, gaps } = &chunk.column;
        let before = self.times.len();
        self.keys.resize(before + rows, key);
        self.times.extend_from_slice(&chunk.times[at..at + rows]);
        let same = match (&mut self.values, values) {
            (ColumnValues::Int(to), ColumnValues::Int(from)) => {
                to.extend_from_slice(&from[at..at + rows]);
                true
            }
            (ColumnValues::Float(to), ColumnValues::Float(from)) => {
                to.extend_from_slice(&from[at..at + rows]);
                true
            }
            (ColumnValues::Int(to), _) => {
                to.resize(before + rows, 0);
                false
            }
            (ColumnValues::Float(to), _) => {
                to.resize(before + rows, 0.0);
                false
            }
        };
        let gaps = (!same || !gaps.0.is_empty()).then_some(gaps);
        match gaps {
            // Not needed as long as there is no gap.
            None if self.valid.is_empty() => {}
            None => self.valid.resize(before + rows, true),
            Some(gaps) => {
                self.valid.resize(before, true);
                self.valid.extend((at..at + rows).map(|row| same && !gaps.is_gap(row)));
            }
        }
    }
}
