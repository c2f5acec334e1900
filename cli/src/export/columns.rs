//! The writers of the files, and the columns of files with a row for each reading.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrow_array::{
    ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use clap::ValueEnum;
use wholegrain_model::text::csv_field;
use wholegrain_model::{Timestamp, Value};

use super::pivot::Pivot;
use super::rows::{ExportRows, PROPERTIES_KEY, Properties, VALUE_INT};
use super::select::Selection;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::readings::{ParquetRows, value_exact};

/// The format of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// CSV with one line per reading: sensor,time,value,unit
    Csv,
    /// CSV with one column per sensor
    CsvWide,
    Parquet,
    /// An Arrow IPC file
    Arrow,
    /// CSV of LDMS's store_csv: one line per sample of a producer
    Ldms,
}

impl ExportFormat {
    /// The extension of the files.
    pub fn ending(self) -> &'static str {
        match self {
            ExportFormat::Csv | ExportFormat::CsvWide | ExportFormat::Ldms => "csv",
            ExportFormat::Parquet => "parquet",
            ExportFormat::Arrow => "arrow",
        }
    }
}

/// Counts the bytes that are written to a file.
pub struct ByteCounter {
    output: Output,
    bytes: Arc<AtomicU64>,
}

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.bytes.fetch_add(written as u64, Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

enum FileWriterKind {
    Text(ByteCounter),
    Parquet(Box<ParquetRows<ByteCounter>>, Tables),
    Arrow(Box<FileWriter<ByteCounter>>, Tables),
}

/// A file that is being written.
pub struct Writer {
    name: String,
    kind: FileWriterKind,
    bytes: Arc<AtomicU64>,
}

impl Writer {
    pub fn begin(
        path: &Path,
        format: ExportFormat,
        selection: &Selection,
        pivot: Option<&Pivot>,
    ) -> Result<Self, Failure> {
        let output = Output::open(Some(path))?;
        let (name, bytes) = (output.name(), Arc::<AtomicU64>::default());
        let mut counted = ByteCounter { output, bytes: bytes.clone() };
        let kind = match format {
            ExportFormat::Csv | ExportFormat::CsvWide | ExportFormat::Ldms => {
                let head = pivot.map_or_else(|| "sensor,time,value,unit\n".to_owned(), |pivot| pivot.head(selection));
                counted.write_all(head.as_bytes()).map_err(Failure::writing(&name))?;
                FileWriterKind::Text(counted)
            }
            ExportFormat::Parquet => {
                let tables = Tables::new(selection);
                let writer = ParquetRows::new(tables.schema.clone(), counted, name.clone())?;
                FileWriterKind::Parquet(Box::new(writer), tables)
            }
            ExportFormat::Arrow => {
                let tables = Tables::new(selection);
                let writer = FileWriter::try_new(counted, &tables.schema).map_err(|error| failed(&name, error))?;
                FileWriterKind::Arrow(Box::new(writer), tables)
            }
        };
        Ok(Self { name, kind, bytes })
    }

    /// The number of bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn write(
        &mut self,
        rows: &ExportRows,
        selection: &Selection,
        pivot: Option<&mut Pivot>,
    ) -> Result<(), Failure> {
        let name = &self.name;
        match (&mut self.kind, pivot) {
            (FileWriterKind::Text(out), Some(pivot)) => pivot.write(rows, out).map_err(Failure::writing(name)),
            (FileWriterKind::Text(out), None) => csv(rows, selection, out).map_err(Failure::writing(name)),
            (FileWriterKind::Parquet(writer, tables), _) => {
                writer.write(&tables.batch(rows).map_err(|error| failed(name, error))?)
            }
            (FileWriterKind::Arrow(writer, tables), _) => {
                let batch = tables.batch(rows).map_err(|error| failed(name, error))?;
                writer.write(&batch).map_err(|error| failed(name, error))
            }
        }
    }

    /// Finishes the file, which then has its final name. Returns its size in bytes.
    pub fn finish(self) -> Result<u64, Failure> {
        let Self { name, kind, bytes } = self;
        let counted = match kind {
            FileWriterKind::Text(out) => out,
            FileWriterKind::Parquet(writer, _) => writer.finish()?,
            FileWriterKind::Arrow(writer, _) => writer.into_inner().map_err(|error| failed(&name, error))?,
        };
        counted.output.finish()?;
        Ok(bytes.load(Relaxed))
    }
}

fn failed(name: &str, error: ArrowError) -> Failure {
    match error {
        ArrowError::IoError(_, error) => Failure::writing(name)(error),
        error => Failure::Failed(format!("cannot write {name}: {error}")),
    }
}

fn csv(rows: &ExportRows, selection: &Selection, out: &mut impl Write) -> io::Result<()> {
    for ((sensor, time), value) in rows.sensors.iter().zip(&rows.times).zip(&rows.values) {
        let sensor = &selection.sensors[*sensor];
        writeln!(out, "{},{},{},{}", sensor.path, Timestamp(*time), value_exact(*value), csv_field(&sensor.unit))?;
    }
    Ok(())
}

/// Rows as record batches of one schema and one dictionary.
struct Tables {
    schema: SchemaRef,
    names: ArrayRef,
    /// Whether sensors have integers, and whether sensors have floats.
    has: (bool, bool),
}

impl Tables {
    fn new(selection: &Selection) -> Self {
        let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let only_ints = selection.has == (true, false);
        let mut fields = vec![
            Field::new("sensor", text, false),
            Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
            Field::new("value", if only_ints { DataType::Int64 } else { DataType::Float64 }, true),
        ];
        if selection.has == (true, true) {
            fields.push(Field::new(VALUE_INT, DataType::Int64, true));
        }
        let of = |sensor: &wholegrain_api::Sensor<'_>| {
            (sensor.path.to_string(), (sensor.unit.to_string(), sensor.kind.name().to_owned()))
        };
        let properties: Properties = selection.sensors.iter().map(of).collect();
        let properties = serde_json::to_string(&properties).unwrap_or_default();
        let schema = Schema::new(fields).with_metadata(HashMap::from([(PROPERTIES_KEY.to_owned(), properties)]));
        let names = StringArray::from_iter_values(selection.sensors.iter().map(|sensor| &*sensor.path));
        Self { schema: Arc::new(schema), names: Arc::new(names), has: selection.has }
    }

    fn batch(&self, rows: &ExportRows) -> Result<RecordBatch, ArrowError> {
        let keys = Int32Array::from_iter_values(rows.sensors.iter().map(|sensor| *sensor as i32));
        let sensors: ArrayRef = Arc::new(DictionaryArray::try_new(keys, self.names.clone())?);
        let times = TimestampNanosecondArray::from_iter_values(rows.times.iter().copied()).with_timezone("UTC");
        let int = |value: &Option<Value>| match value {
            Some(Value::Int(value)) => Some(*value),
            _ => None,
        };
        let float = |value: &Option<Value>| match value {
            Some(Value::Int(value)) => Some(*value as f64),
            Some(Value::Float(value)) => Some(*value),
            None => None,
        };
        let ints = || Arc::new(rows.values.iter().map(int).collect::<Int64Array>()) as ArrayRef;
        let floats = || Arc::new(rows.values.iter().map(float).collect::<Float64Array>()) as ArrayRef;
        let mut columns = vec![sensors, Arc::new(times) as ArrayRef];
        match self.has {
            (true, false) => columns.push(ints()),
            (true, true) => columns.extend([floats(), ints()]),
            _ => columns.push(floats()),
        }
        RecordBatch::try_new(self.schema.clone(), columns)
    }
}
