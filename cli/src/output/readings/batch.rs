//! The readings of a record batch.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema};
use wholegrain_model::Value;
use wholegrain_query::{UNIT_KEY, UNITS_KEY};

use crate::failure::Failure;

/// One reading of a response, in the unit shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrintedReading<'a> {
    pub sensor: &'a str,
    /// ns since the Unix epoch.
    pub time: i64,
    /// `None` is a gap.
    pub value: Option<Value>,
    pub unit: &'a str,
}

/// The units in a schema's metadata, by number of the sensor in the dictionary.
#[derive(Debug, Default)]
pub struct Units {
    one: String,
    each: Vec<String>,
}

impl Units {
    pub fn of(schema: &Schema) -> Self {
        let get = |key| schema.metadata().get(key).map(String::as_str).unwrap_or_default();
        Self { one: get(UNIT_KEY).to_owned(), each: get(UNITS_KEY).split('\n').map(str::to_owned).collect() }
    }

    fn get(&self, sensor: usize) -> &str {
        if self.one.is_empty() { self.each.get(sensor).map_or("", String::as_str) } else { &self.one }
    }
}

/// A batch with the columns sensor, time and value.
pub struct ReadingBatch<'a> {
    keys: &'a arrow_array::Int32Array,
    names: &'a arrow_array::StringArray,
    times: &'a [i64],
    values: &'a dyn Array,
    units: &'a Units,
}

impl<'a> ReadingBatch<'a> {
    pub fn new(batch: &'a RecordBatch, units: &'a Units) -> Result<Self, Failure> {
        let text = "the response does not have the columns sensor, time, value; is the server a newer one?";
        Self::find(batch, units).ok_or_else(|| Failure::Unreachable(text.to_owned()))
    }

    fn find(batch: &'a RecordBatch, units: &'a Units) -> Option<Self> {
        let [sensors, times, values] = batch.columns() else { return None };
        let sensors = sensors.as_dictionary_opt::<Int32Type>()?;
        let times = times.as_primitive_opt::<TimestampNanosecondType>()?.values();
        let is_known = matches!(values.data_type(), DataType::Int64 | DataType::Float64);
        let names = sensors.values().as_string_opt::<i32>()?;
        is_known.then_some(Self { keys: sensors.keys(), names, times, values: values.as_ref(), units })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// The names of all sensors of the response.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.names.iter().map(Option::unwrap_or_default)
    }

    /// The number of a row's sensor in the dictionary.
    pub fn sensor(&self, row: usize) -> usize {
        self.keys.value(row) as usize
    }

    /// The number of the sensor and the time of the last row.
    pub fn last(&self) -> Option<(usize, i64)> {
        let row = self.len().checked_sub(1)?;
        Some((self.sensor(row), self.times[row]))
    }

    pub fn get(&self, row: usize) -> PrintedReading<'a> {
        let sensor = self.sensor(row);
        let value = match self.values.data_type() {
            _ if self.values.is_null(row) => None,
            DataType::Int64 => Some(Value::Int(self.values.as_primitive::<Int64Type>().value(row))),
            _ => Some(Value::Float(self.values.as_primitive::<Float64Type>().value(row))),
        };
        PrintedReading { sensor: self.names.value(sensor), time: self.times[row], value, unit: self.units.get(sensor) }
    }
}
