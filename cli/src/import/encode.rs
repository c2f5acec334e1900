//! The readings of a part in the form of a request: a stream of integers and one of floats.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use serde::Serialize;
use wholegrain_api::UtcTime;
use wholegrain_query::{KINDS_KEY, UNITS_KEY};

use super::cells::Cell;
use super::names::TargetSensor;

/// The most rows in a message of a stream.
const MESSAGE_ROWS: usize = 1 << 16;

/// The sensors of a part, each with its unit in the file.
#[derive(Debug, Default)]
pub struct Sensors {
    pub targets: Vec<(TargetSensor, String)>,
    pub by_path: HashMap<String, usize>,
}

impl Sensors {
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// The unit in the sensor's first line of the file.
    pub fn file_unit(&self, sensor: usize) -> &str {
        self.targets.get(sensor).map_or("", |(_, unit)| unit)
    }
}

/// The cells of one column: integers, or floats from the first float on.
#[derive(Debug, Default)]
pub struct Column {
    ints: Vec<i64>,
    floats: Vec<f64>,
    is_float: bool,
    /// The rows without a value, and whether the cell has a word for it.
    missing: Vec<(usize, bool)>,
}

impl Column {
    pub fn push(&mut self, cell: Cell) {
        let row = if self.is_float { self.floats.len() } else { self.ints.len() };
        let value = match cell {
            Cell::Empty | Cell::Gap => {
                self.missing.push((row, cell == Cell::Gap));
                Cell::Int(0)
            }
            value => value,
        };
        match value {
            Cell::Float(value) => {
                if !self.is_float {
                    self.is_float = true;
                    self.floats = std::mem::take(&mut self.ints).into_iter().map(|value| value as f64).collect();
                }
                self.floats.push(value);
            }
            Cell::Int(value) if self.is_float => self.floats.push(value as f64),
            Cell::Int(value) => self.ints.push(value),
            Cell::Empty | Cell::Gap => {}
        }
    }
}

/// Rows of one type.
#[derive(Debug, Default)]
struct ColumnRows<T> {
    keys: Vec<i32>,
    times: Vec<i64>,
    values: Vec<T>,
    /// Whether each row has a value; empty if all have one.
    present: Vec<bool>,
}

impl<T> ColumnRows<T> {
    fn push(&mut self, key: i32, time: i64, value: T, is_gap: bool) {
        if is_gap && self.present.is_empty() {
            self.present.resize(self.keys.len(), true);
        }
        if is_gap || !self.present.is_empty() {
            self.present.push(!is_gap);
        }
        self.keys.push(key);
        self.times.push(time);
        self.values.push(value);
    }
}

impl<T: Copy> ColumnRows<T> {
    fn column(&mut self, key: i32, times: &[i64], values: &[T], missing: &[(usize, bool)], keep_empty: bool) {
        if missing.is_empty() && self.present.is_empty() {
            self.keys.resize(self.keys.len() + times.len(), key);
            self.times.extend_from_slice(times);
            self.values.extend_from_slice(values);
            return;
        }
        let mut missing = missing.iter().peekable();
        for (row, (time, value)) in times.iter().zip(values).enumerate() {
            match missing.next_if(|(at, _)| *at == row) {
                Some((_, has_word)) if keep_empty || *has_word => self.push(key, *time, *value, true),
                Some(_) => {}
                None => self.push(key, *time, *value, false),
            }
        }
    }
}

/// A reading of the preview.
#[derive(Debug, Serialize)]
pub struct FirstReading {
    pub sensor: String,
    pub time: UtcTime,
    pub value: String,
    pub unit: String,
}

/// The readings of a part.
#[derive(Debug, Default)]
pub struct Batch {
    pub sensors: Sensors,
    ints: ColumnRows<i64>,
    floats: ColumnRows<f64>,
}

impl Batch {
    pub fn new(sensors: Sensors) -> Self {
        Self { sensors, ..Self::default() }
    }

    /// Appends the readings of one sensor.
    pub fn column(&mut self, sensor: usize, times: &[i64], column: &Column, keep_empty: bool) {
        let key = sensor as i32;
        if column.is_float {
            self.floats.column(key, times, &column.floats, &column.missing, keep_empty);
        } else {
            self.ints.column(key, times, &column.ints, &column.missing, keep_empty);
        }
    }

    /// Appends readings one by one. The readings of a sensor become floats if one of them is.
    pub fn rows(&mut self, rows: &[(usize, i64, Cell)], keep_empty: bool) {
        let mut is_float = vec![false; self.sensors.len()];
        for (sensor, _, cell) in rows {
            if matches!(cell, Cell::Float(_)) {
                is_float[*sensor] = true;
            }
        }
        for (sensor, time, cell) in rows {
            let key = *sensor as i32;
            let is_gap = match cell {
                Cell::Empty if !keep_empty => continue,
                Cell::Empty | Cell::Gap => true,
                _ => false,
            };
            match cell {
                Cell::Float(value) => self.floats.push(key, *time, *value, is_gap),
                Cell::Int(value) if is_float[*sensor] => self.floats.push(key, *time, *value as f64, is_gap),
                Cell::Int(value) => self.ints.push(key, *time, *value, is_gap),
                _ if is_float[*sensor] => self.floats.push(key, *time, 0.0, is_gap),
                _ => self.ints.push(key, *time, 0, is_gap),
            }
        }
    }

    pub fn readings(&self) -> u64 {
        (self.ints.keys.len() + self.floats.keys.len()) as u64
    }

    /// The first and the last time.
    pub fn range(&self) -> Option<(i64, i64)> {
        let times = || self.ints.times.iter().chain(&self.floats.times);
        Some((*times().min()?, *times().max()?))
    }

    /// The first readings by time.
    pub fn first(&self, count: usize) -> Vec<FirstReading> {
        let mut rows: Vec<(i64, i32, String)> = Vec::new();
        let text = |present: &[bool], at: usize, value: String| {
            if present.get(at) == Some(&false) { "-".to_owned() } else { value }
        };
        // The readings are in the order of columns, not of times.
        let earliest = |keys: &[i32], times: &[i64]| {
            let mut order: Vec<usize> = (0..keys.len()).collect();
            order.sort_by_key(|at| (times[*at], keys[*at]));
            order.truncate(count);
            order
        };
        for at in earliest(&self.ints.keys, &self.ints.times) {
            let value = text(&self.ints.present, at, self.ints.values[at].to_string());
            rows.push((self.ints.times[at], self.ints.keys[at], value));
        }
        for at in earliest(&self.floats.keys, &self.floats.times) {
            let value = text(&self.floats.present, at, crate::output::values::float(self.floats.values[at]));
            rows.push((self.floats.times[at], self.floats.keys[at], value));
        }
        rows.sort();
        rows.truncate(count);
        let reading = |(time, key, value): (i64, i32, String)| {
            let (target, _) = self.sensors.targets.get(key as usize)?;
            Some(FirstReading { sensor: target.path.clone(), time: UtcTime(time), value, unit: target.unit.clone() })
        };
        rows.into_iter().filter_map(reading).collect()
    }

    /// The body of the request.
    pub fn encode(self) -> Result<Vec<u8>, ArrowError> {
        let mut out = Vec::new();
        let targets: Vec<&TargetSensor> = self.sensors.targets.iter().map(|(target, _)| target).collect();
        let metadata = HashMap::from([
            (UNITS_KEY.to_owned(), targets.iter().map(|target| target.unit.as_str()).collect::<Vec<_>>().join("\n")),
            (KINDS_KEY.to_owned(), targets.iter().map(|target| target.kind.name()).collect::<Vec<_>>().join("\n")),
        ]);
        let names: ArrayRef =
            Arc::new(StringArray::from_iter_values(targets.iter().map(|target| target.path.as_str())));
        let ColumnRows { keys, times, values, present } = self.ints;
        let values =
            (!keys.is_empty()).then(|| Int64Array::new(values.into(), (!present.is_empty()).then(|| present.into())));
        if let Some(values) = values {
            write(&mut out, &names, &metadata, keys, times, Arc::new(values))?;
        }
        let ColumnRows { keys, times, values, present } = self.floats;
        let values =
            (!keys.is_empty()).then(|| Float64Array::new(values.into(), (!present.is_empty()).then(|| present.into())));
        if let Some(values) = values {
            write(&mut out, &names, &metadata, keys, times, Arc::new(values))?;
        }
        Ok(out)
    }
}

fn write(
    out: &mut Vec<u8>,
    names: &ArrayRef,
    metadata: &HashMap<String, String>,
    keys: Vec<i32>,
    times: Vec<i64>,
    values: ArrayRef,
) -> Result<(), ArrowError> {
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let fields = vec![
        Field::new("sensor", text, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
        Field::new("value", values.data_type().clone(), true),
    ];
    let schema = Arc::new(Schema::new(fields).with_metadata(metadata.clone()));
    let sensors: ArrayRef = Arc::new(DictionaryArray::try_new(Int32Array::from(keys), names.clone())?);
    let times: ArrayRef = Arc::new(TimestampNanosecondArray::from(times).with_timezone("UTC"));
    let batch = RecordBatch::try_new(schema.clone(), vec![sensors, times, values])?;
    let mut writer = StreamWriter::try_new(&mut *out, &schema)?;
    for start in (0..batch.num_rows()).step_by(MESSAGE_ROWS) {
        writer.write(&batch.slice(start, MESSAGE_ROWS.min(batch.num_rows() - start)))?;
    }
    writer.finish()
}
