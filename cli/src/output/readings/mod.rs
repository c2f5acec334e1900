//! ReadingBatch on their way out: out of record batches or live lines, into a table, CSV, JSON or Parquet.

mod lines;
mod parquet;
mod table;

use std::io::{self, Write};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use wholegrain_model::Value;
use wholegrain_query::{UNIT_KEY, UNITS_KEY};

pub use lines::value_exact;
pub use parquet::ParquetRows;
pub use table::TableRows;

use crate::output::style::Style;

/// How readings are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReadingFormat {
    /// Aligned columns with units, for people
    Table,
    /// One line a reading: sensor,time,value,unit; a gap is an empty value
    Csv,
    /// One JSON object a line; gaps, NaN and infinities are null
    Json,
    /// A Parquet file, compressed with zstd
    Parquet,
}

/// One reading of an answer, in the unit shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrintedReading<'a> {
    pub sensor: &'a str,
    /// ns since the Unix epoch.
    pub time: i64,
    /// `None` is a gap.
    pub value: Option<Value>,
    pub unit: &'a str,
}

/// Writes readings as text.
pub enum TextRows {
    Table(TableRows),
    /// With a head line, once.
    Csv {
        /// Whether the head is written.
        begun: bool,
    },
    /// One object a line.
    Json,
}

impl TextRows {
    /// For a format; Parquet is no text and is written as a table here, which no caller asks for.
    pub fn new(format: ReadingFormat, style: Style) -> Self {
        match format {
            ReadingFormat::Csv => TextRows::Csv { begun: false },
            ReadingFormat::Json => TextRows::Json,
            ReadingFormat::Table | ReadingFormat::Parquet => TextRows::Table(TableRows::new(style)),
        }
    }

    /// Tells which sensors may come, so that a table is wide enough from the start.
    pub fn expect<'a>(&mut self, sensors: impl Iterator<Item = &'a str>) {
        if let TextRows::Table(table) = self {
            table.expect(sensors);
        }
    }

    /// Writes or holds back one reading.
    pub fn write(&mut self, reading: &PrintedReading<'_>, out: &mut impl Write) -> io::Result<()> {
        match self {
            TextRows::Table(table) => table.write(reading, out),
            TextRows::Csv { .. } => {
                self.begin(out)?;
                lines::csv(reading, out)
            }
            TextRows::Json => lines::json(reading, out),
        }
    }

    /// Writes what was held back to choose widths; live output calls it whenever nothing more is there.
    pub fn write_held(&mut self, out: &mut impl Write) -> io::Result<()> {
        if let TextRows::Table(table) = self { table.write_held(out) } else { Ok(()) }
    }

    /// Writes the head of a CSV that had no rows too.
    pub fn begin(&mut self, out: &mut impl Write) -> io::Result<()> {
        if let TextRows::Csv { begun } = self
            && !std::mem::replace(begun, true)
        {
            writeln!(out, "sensor,time,value,unit")?;
        }
        Ok(())
    }
}

/// The units in a schema's metadata, by number of the sensor in the dictionary.
#[derive(Debug)]
pub struct Units {
    one: String,
    each: Vec<String>,
}

impl Units {
    /// Reads them; none when the server does not say.
    pub fn of(schema: &SchemaRef) -> Self {
        let get = |key| schema.metadata().get(key).map(String::as_str).unwrap_or_default();
        Self { one: get(UNIT_KEY).to_owned(), each: get(UNITS_KEY).split('\n').map(str::to_owned).collect() }
    }

    fn get(&self, sensor: usize) -> &str {
        if self.one.is_empty() { self.each.get(sensor).map_or("", String::as_str) } else { &self.one }
    }
}

/// A batch whose columns have been found to be what an answer has.
pub struct ReadingBatch<'a> {
    keys: &'a arrow_array::Int32Array,
    names: &'a arrow_array::StringArray,
    times: &'a [i64],
    values: &'a dyn Array,
    units: &'a Units,
}

impl<'a> ReadingBatch<'a> {
    /// Looks at a batch; `None` when it is not sensor, time, value.
    pub fn new(batch: &'a RecordBatch, units: &'a Units) -> Option<Self> {
        let [sensors, times, values] = batch.columns() else { return None };
        let sensors = sensors.as_dictionary_opt::<Int32Type>()?;
        let times = times.as_primitive_opt::<TimestampNanosecondType>()?.values();
        let known = matches!(values.data_type(), DataType::Int64 | DataType::Float64);
        let names = sensors.values().as_string_opt::<i32>()?;
        known.then_some(Self { keys: sensors.keys(), names, times, values: values.as_ref(), units })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// The names of all sensors of the answer.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.names.iter().flatten()
    }

    /// Number of the sensor in the dictionary, and the time, of the last row.
    pub fn last(&self) -> Option<(usize, i64)> {
        let row = self.len().checked_sub(1)?;
        Some((self.keys.value(row) as usize, self.times[row]))
    }

    pub fn get(&self, row: usize) -> PrintedReading<'a> {
        let key = self.keys.value(row) as usize;
        let value = match self.values.data_type() {
            _ if self.values.is_null(row) => None,
            DataType::Int64 => Some(Value::Int(self.values.as_primitive::<Int64Type>().value(row))),
            _ => Some(Value::Float(self.values.as_primitive::<Float64Type>().value(row))),
        };
        PrintedReading { sensor: self.names.value(key), time: self.times[row], value, unit: self.units.get(key) }
    }
}
