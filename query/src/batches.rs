//! Rows into Arrow record batches.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int64Builder};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray, TimestampNanosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use wholegrain_model::Value;
use wholegrain_store::SensorInfo;

use crate::QueryError;
use crate::plan::Plan;
use crate::samples::Chunks;

/// The most rows of one record batch.
pub const BATCH_ROWS_MAX: usize = 8192;
/// Key of the schema's metadata with the unit of every value, when all sensors share it.
pub const UNIT_KEY: &str = "wholegrain.unit";
/// Key of the schema's metadata with the units when they differ: one line a sensor, in the order of the dictionary.
pub const UNITS_KEY: &str = "wholegrain.units";

/// One reading of the answer, or before that a sample; `None` is a gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) time: i64,
    pub(crate) value: Option<Value>,
}

/// The rows of one sensor.
pub(crate) type RowIter = Box<dyn Iterator<Item = Result<Row, QueryError>> + Send>;

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

/// An answer's batches, made as they are pulled: each of at most [`BATCH_ROWS_MAX`] rows, possibly of several sensors, all
/// with one dictionary. After an error there are no more.
pub struct Batches {
    chunks: Box<dyn Chunks>,
    sensors: Vec<SensorInfo>,
    plan: Plan,
    schema: SchemaRef,
    names: ArrayRef,
    /// The next sensor to begin, and the rows of the one before it.
    next_sensor: usize,
    rows: Option<RowIter>,
    rows_left: u64,
}

impl Batches {
    pub(crate) fn new(chunks: Box<dyn Chunks>, sensors: Vec<SensorInfo>, units: &[String], plan: Plan) -> Self {
        let names: ArrayRef = Arc::new(StringArray::from_iter_values(sensors.iter().map(|sensor| &sensor.path)));
        let base = schema_with(if plan.exact { DataType::Int64 } else { DataType::Float64 });
        let schema = Arc::new(base.with_metadata(unit_metadata(units)));
        let rows_left = plan.limit;
        Self { chunks, sensors, plan, schema, names, next_sensor: 0, rows: None, rows_left }
    }

    /// The batches' schema, with the units in its metadata ([`UNIT_KEY`], [`UNITS_KEY`]).
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// How many sensors have been answered completely, for showing progress.
    pub fn sensors_done(&self) -> usize {
        self.next_sensor - usize::from(self.rows.is_some())
    }

    /// What is missing from the answer, as far as it has been read.
    pub fn warnings(&self) -> Vec<String> {
        self.chunks.warnings(self.plan.from, self.plan.to)
    }

    /// What is left out of the answer on purpose because retention has dropped it, as far as it has been read.
    pub fn notes(&self) -> Vec<String> {
        self.chunks.notes()
    }

    /// The next row with the number of its sensor.
    fn next_row(&mut self) -> Result<Option<(i32, Row)>, QueryError> {
        if self.rows_left == 0 {
            return Ok(None);
        }
        loop {
            if let Some(row) = self.rows.as_mut().and_then(Iterator::next) {
                self.rows_left -= 1;
                // Fits: the number of sensors is bounded by SENSORS_MAX.
                return Ok(Some(((self.next_sensor - 1) as i32, row?)));
            }
            self.rows = None;
            let Some(sensor) = self.sensors.get(self.next_sensor) else { return Ok(None) };
            self.rows = Some(self.plan.rows(self.chunks.as_ref(), sensor)?);
            self.next_sensor += 1;
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, QueryError> {
        let mut keys = Vec::with_capacity(BATCH_ROWS_MAX);
        let mut times = Vec::with_capacity(BATCH_ROWS_MAX);
        let mut values = Values::new(self.plan.exact);
        while keys.len() < BATCH_ROWS_MAX {
            let Some((key, row)) = self.next_row()? else { break };
            keys.push(key);
            times.push(row.time);
            values.push(row.value);
        }
        if keys.is_empty() {
            return Ok(None);
        }
        let sensors = DictionaryArray::<Int32Type>::try_new(Int32Array::from(keys), self.names.clone())?;
        let times = TimestampNanosecondArray::from(times).with_timezone("UTC");
        let columns: Vec<ArrayRef> = vec![Arc::new(sensors), Arc::new(times), values.finish()];
        Ok(Some(RecordBatch::try_new(self.schema.clone(), columns)?))
    }
}

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

/// The column of values being made.
enum Values {
    Int(Int64Builder),
    Float(Float64Builder),
}

impl Values {
    fn new(exact: bool) -> Self {
        if exact {
            Values::Int(Int64Builder::with_capacity(BATCH_ROWS_MAX))
        } else {
            Values::Float(Float64Builder::with_capacity(BATCH_ROWS_MAX))
        }
    }

    fn push(&mut self, value: Option<Value>) {
        match (self, value) {
            (Values::Int(builder), Some(Value::Int(value))) => builder.append_value(value),
            (Values::Int(builder), _) => builder.append_null(),
            (Values::Float(builder), value) => builder.append_option(value.map(Value::as_f64)),
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Values::Int(mut builder) => Arc::new(builder.finish()),
            Values::Float(mut builder) => Arc::new(builder.finish()),
        }
    }
}
