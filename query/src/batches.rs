//! Builds Arrow record batches from the rows of a query.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int64Builder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use wholegrain_model::{Column, ColumnValues};
use wholegrain_store::{Chunk, ReadSnapshot, SensorInfo, SnapshotReader};

use crate::across::{GroupRows, SensorGroup};
use crate::columns::{RowChunkIter, StopCheck};
use crate::error::QueryError;
use crate::plan::QueryPlan;

/// The most rows of one record batch.
pub const BATCH_ROWS_MAX: usize = 8192;
/// Key of the schema's metadata with the unit of every value, if all sensors share it.
pub const UNIT_KEY: &str = "wholegrain.unit";
/// Key of the schema's metadata with the units if they differ: one line for each sensor, in the order of the dictionary.
pub const UNITS_KEY: &str = "wholegrain.units";
/// Key of the schema's metadata of an import or an export with the kinds (gauge, counter): one line for each sensor, in the order of the dictionary.
pub const KINDS_KEY: &str = "wholegrain.kinds";

/// The columns of a result with floats: `sensor` (dictionary of paths), `time` (ns, UTC), `value` (Float64; null is a gap).
pub fn schema() -> SchemaRef {
    Arc::new(schema_with(DataType::Float64))
}

/// The columns of a result with integers.
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

/// The record batches of a query, built as they are pulled. Each has at most [`BATCH_ROWS_MAX`] rows, possibly of several series; all
/// have the same dictionary. An error ends them.
pub struct Batches {
    snapshot: Arc<dyn ReadSnapshot>,
    reader: Arc<dyn SnapshotReader>,
    sensors: Arc<[SensorInfo]>,
    plan: Arc<QueryPlan>,
    /// With `across`: the groups of sensors that become series.
    groups: Option<Vec<SensorGroup>>,
    schema: SchemaRef,
    names: ArrayRef,
    stop: StopCheck,
    /// The next series to begin; `rows` and `chunk` hold the rest of the current one.
    next_series: usize,
    rows: Option<RowSource>,
    chunk: Option<(Chunk, usize)>,
    rows_left: u64,
    coverage: Vec<String>,
}

enum RowSource {
    Sensor(RowChunkIter),
    Group(Box<GroupRows>),
}

impl Batches {
    pub(crate) fn new(
        (snapshot, reader): (Arc<dyn ReadSnapshot>, Arc<dyn SnapshotReader>),
        sensors: Arc<[SensorInfo]>,
        groups: Option<Vec<SensorGroup>>,
        units: &[String],
        plan: QueryPlan,
    ) -> Self {
        let names: ArrayRef = Arc::new(match &groups {
            None => StringArray::from_iter_values(sensors.iter().map(|sensor| &sensor.path)),
            Some(groups) => StringArray::from_iter_values(groups.iter().map(|group| &group.name)),
        });
        let base = schema_with(if plan.answers_exactly() { DataType::Int64 } else { DataType::Float64 });
        let schema = Arc::new(base.with_metadata(unit_metadata(units)));
        let rows_left = plan.limit;
        Self {
            snapshot,
            reader,
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

    /// Ends the query with [`QueryError::Cancelled`] once `stop` returns true. It is called often, also during computations that yield
    /// no row yet. Call this before the first batch.
    pub fn stop_when(&mut self, stop: impl Fn() -> bool + Send + Sync + 'static) {
        self.stop = Arc::new(stop);
    }

    /// The batches' schema, with the units in its metadata ([`UNIT_KEY`], [`UNITS_KEY`]).
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Sentences about data that is missing from the rows read so far.
    pub fn warnings(&self) -> Vec<String> {
        self.plan.warnings(self.snapshot.as_ref())
    }

    /// Sentences about the rows read so far: data deleted by retention, holes that operations did not cross, and series with rows that lack values of
    /// some sensors.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.plan.notes(self.snapshot.as_ref());
        notes.extend(self.plan.skipped_holes.notes());
        notes.extend(self.plan.conversion_loss.notes());
        notes.extend(self.plan.approximate_means.notes());
        notes.extend(self.coverage.iter().take(COVERAGE_NOTES_MAX).cloned());
        if let Some(more) = self.coverage.len().checked_sub(COVERAGE_NOTES_MAX).filter(|more| *more > 0) {
            notes.push(format!("{more} more series have rows that lack values of some sensors"));
        }
        notes
    }

    /// Begins the next series; `false` if there is none.
    fn begin(&mut self) -> Result<bool, QueryError> {
        let at = self.next_series;
        self.rows = Some(match &self.groups {
            Some(groups) => {
                let Some(group) = groups.get(at) else { return Ok(false) };
                let of = (self.snapshot.clone(), self.sensors.clone(), self.plan.clone());
                RowSource::Group(Box::new(GroupRows::new(of, group, &self.stop)))
            }
            None => {
                let Some(sensor) = self.sensors.get(at) else { return Ok(false) };
                if (self.stop)() {
                    return Err(QueryError::Cancelled);
                }
                let range = self.plan.range();
                RowSource::Sensor(self.plan.rows(&self.reader, sensor, range, &self.stop)?)
            }
        });
        self.next_series += 1;
        Ok(true)
    }

    /// Fills `chunk` with rows; `false` at the end.
    fn load(&mut self) -> Result<bool, QueryError> {
        while self.chunk.is_none() {
            let chunk = match &mut self.rows {
                Some(RowSource::Sensor(rows)) => rows.next().transpose()?,
                Some(RowSource::Group(rows)) => rows.next().transpose()?,
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
                    if let Some(RowSource::Group(rows)) = self.rows.take() {
                        self.coverage.extend(rows.coverage());
                    }
                }
            }
        }
        Ok(true)
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, QueryError> {
        let most = usize::try_from(self.rows_left).unwrap_or(usize::MAX).min(BATCH_ROWS_MAX);
        let mut out = BatchColumns::new(self.plan.answers_exactly(), most);
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
        let BatchColumns { keys, times, values, valid } = out;
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

/// The most notes about series that lack values of some sensors.
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
    // A unit has no control characters: a line break separates units.
    HashMap::from([(UNITS_KEY.to_owned(), units.join("\n"))])
}

/// The columns of the batch being built.
struct BatchColumns {
    keys: Vec<i32>,
    times: Vec<i64>,
    values: ColumnValues,
    valid: Vec<bool>,
}

impl BatchColumns {
    fn new(exact: bool, rows: usize) -> Self {
        let values = if exact {
            ColumnValues::Int(Vec::with_capacity(rows))
        } else {
            ColumnValues::Float(Vec::with_capacity(rows))
        };
        Self { keys: Vec::with_capacity(rows), times: Vec::with_capacity(rows), values, valid: Vec::new() }
    }

    /// Appends the rows `at..at + rows` of a chunk; a chunk of the other type becomes gaps.
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
            (ColumnValues::Int(to), ColumnValues::Float(_)) => {
                to.resize(before + rows, 0);
                false
            }
            (ColumnValues::Float(to), ColumnValues::Int(_)) => {
                to.resize(before + rows, 0.0);
                false
            }
        };
        // Without gaps `valid` stays empty.
        if !same || !gaps.0.is_empty() {
            self.valid.resize(before, true);
            self.valid.extend((at..at + rows).map(|row| same && !gaps.is_gap(row)));
        } else if !self.valid.is_empty() {
            self.valid.resize(before + rows, true);
        }
    }
}
