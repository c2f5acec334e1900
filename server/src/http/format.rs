//! Writes record batches and single readings as text and as Arrow IPC.

use std::io::{self, Write};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, SchemaRef};
use axum::http::{HeaderMap, header};
use wholegrain_model::text::csv_field;
use wholegrain_model::{Timestamp, Value, config};
use wholegrain_query::Scale;

use super::sink::{BodySink, ResponseWriter};

/// The format of a query's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ResponseFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// `sensor,time,value` with a header line.
    Csv,
    Arrow,
}

/// The media types that a request accepts, in its order, without their weights.
pub(super) fn accepted(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|one| one.split(';').next().unwrap_or_default().trim())
}

impl ResponseFormat {
    /// The first supported media type that a request accepts; the default if it names none.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let known = accepted(headers).find_map(|kind| match kind {
            "text/csv" => Some(ResponseFormat::Csv),
            "application/vnd.apache.arrow.stream" => Some(ResponseFormat::Arrow),
            "application/x-ndjson" | "application/json" | "*/*" => Some(ResponseFormat::Json),
            _ => None,
        });
        known.unwrap_or_default()
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            ResponseFormat::Json => "application/x-ndjson",
            ResponseFormat::Csv => "text/csv; charset=utf-8",
            ResponseFormat::Arrow => "application/vnd.apache.arrow.stream",
        }
    }
}

impl std::str::FromStr for ResponseFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(ResponseFormat::Json),
            "csv" => Ok(ResponseFormat::Csv),
            "arrow" => Ok(ResponseFormat::Arrow),
            other => Err(config::unknown("format", other, &["json", "csv", "arrow"])),
        }
    }
}

/// Writes batches in one format.
pub(super) enum RowWriter<W: ResponseWriter = BodySink> {
    Lines { sink: W, csv: bool },
    Arrow(Box<StreamWriter<W>>),
}

impl<W: ResponseWriter> RowWriter<W> {
    /// Starts a response with batches of this schema.
    pub fn new(format: ResponseFormat, schema: &SchemaRef, mut sink: W) -> io::Result<Self> {
        match format {
            ResponseFormat::Json => Ok(RowWriter::Lines { sink, csv: false }),
            ResponseFormat::Csv => {
                sink.write_all(b"sensor,time,value\n")?;
                Ok(RowWriter::Lines { sink, csv: true })
            }
            ResponseFormat::Arrow => {
                Ok(RowWriter::Arrow(Box::new(StreamWriter::try_new(sink, schema).map_err(io::Error::other)?)))
            }
        }
    }

    /// Writes one batch of (`sensor`, `time`, `value`).
    pub fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        match self {
            RowWriter::Lines { sink, csv } => lines(batch, *csv, sink),
            RowWriter::Arrow(writer) => {
                writer.write(batch).map_err(io::Error::other)?;
                writer.get_mut().relay()
            }
        }
    }

    /// Ends the response and reports what was found to be missing while it was written: as lines `{"warning": "…"}` (damage) and `{"note": "…"}`
    /// (retention) after the rows of NDJSON, and the same after the end of an Arrow stream, where its readers stop. CSV has no place for them: if
    /// damaged readings are missing, the response is broken off, so that the client does not take it for complete.
    pub fn finish(self, warnings: &[String], notes: &[String]) -> io::Result<W> {
        let mut sink = match self {
            RowWriter::Lines { csv: true, .. } if !warnings.is_empty() => {
                return Err(io::Error::other(format!("readings are missing: {}", warnings.join("; "))));
            }
            RowWriter::Lines { mut sink, csv: true } => {
                sink.flush()?;
                return Ok(sink);
            }
            RowWriter::Lines { sink, .. } => sink,
            RowWriter::Arrow(writer) => writer.into_inner().map_err(io::Error::other)?,
        };
        for note in notes {
            writeln!(sink, "{{\"note\":{}}}", json_text(note))?;
        }
        for warning in warnings {
            writeln!(sink, "{{\"warning\":{}}}", json_text(warning))?;
        }
        sink.flush()?;
        Ok(sink)
    }

    pub fn sink(&self) -> &W {
        match self {
            RowWriter::Lines { sink, .. } => sink,
            RowWriter::Arrow(writer) => writer.get_ref(),
        }
    }
}

fn lines(batch: &RecordBatch, csv: bool, sink: &mut impl ResponseWriter) -> io::Result<()> {
    let unexpected = || io::Error::other("the query gave other columns than sensor, time, value");
    let [sensor, time, value] = batch.columns() else { return Err(unexpected()) };
    let sensor = sensor.as_dictionary_opt::<Int32Type>().ok_or_else(unexpected)?;
    let names = sensor.values().as_string_opt::<i32>().ok_or_else(unexpected)?;
    let names: SensorNameColumn = SensorNameColumn { names, csv, shown: (usize::MAX, String::new()) };
    let times = time.as_primitive_opt::<TimestampNanosecondType>().ok_or_else(unexpected)?.values();
    let keys = sensor.keys().values();
    match value.data_type() {
        DataType::Int64 => {
            let values = value.as_primitive::<Int64Type>();
            rows(keys, times, names, csv, sink, |row| (!values.is_null(row)).then(|| Value::Int(values.value(row))))
        }
        DataType::Float64 => {
            let values = value.as_primitive::<Float64Type>();
            rows(keys, times, names, csv, sink, |row| (!values.is_null(row)).then(|| Value::Float(values.value(row))))
        }
        _ => Err(unexpected()),
    }
}

/// The sensor's encoded name; rows of one sensor are adjacent.
struct SensorNameColumn<'a> {
    names: &'a arrow_array::StringArray,
    csv: bool,
    shown: (usize, String),
}

impl SensorNameColumn<'_> {
    fn get(&mut self, key: usize) -> &str {
        if self.shown.0 != key {
            let name = self.names.value(key);
            self.shown = (key, if self.csv { csv_field(name) } else { json_text(name) });
        }
        &self.shown.1
    }
}

fn rows(
    keys: &[i32],
    times: &[i64],
    mut names: SensorNameColumn<'_>,
    csv: bool,
    sink: &mut impl ResponseWriter,
    value: impl Fn(usize) -> Option<Value>,
) -> io::Result<()> {
    for (row, (&key, &time)) in keys.iter().zip(times).enumerate() {
        let name = names.get(usize::try_from(key).unwrap_or_default());
        if csv {
            write!(sink, "{name},{},", Timestamp(time))?;
            csv_value(value(row), sink)?;
            sink.write_all(b"\n")?;
        } else {
            reading(name, time, value(row), sink)?;
        }
        sink.relay()?;
    }
    Ok(())
}

/// Writes one line of NDJSON; `name` is encoded already.
pub(super) fn reading(name: &str, time: i64, value: Option<Value>, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{{\"sensor\":{name},\"time\":\"{}\",\"value\":", Timestamp(time))?;
    json_value(value, out)?;
    out.write_all(b"}\n")
}

/// A value in JSON: `null` for a gap, and for values that JSON cannot express.
pub(super) fn json_value(value: Option<Value>, out: &mut impl Write) -> io::Result<()> {
    match value {
        Some(Value::Int(value)) => write!(out, "{value}"),
        // The shortest text that reads back as the same float.
        Some(Value::Float(value)) if value.is_finite() => write!(out, "{value:?}"),
        _ => out.write_all(b"null"),
    }
}

fn csv_value(value: Option<Value>, out: &mut impl Write) -> io::Result<()> {
    match value {
        Some(Value::Int(value)) => write!(out, "{value}"),
        Some(Value::Float(value)) => write!(out, "{value:?}"),
        None => Ok(()),
    }
}

/// `text` as a quoted JSON string.
pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A raw value in its sensor's unit: an integer if that loses nothing.
pub(super) fn scaled(value: Value, scale: Scale) -> Value {
    match value {
        Value::Int(_) => scale.apply_exact(value).map_or_else(|| Value::Float(scale.apply(value.as_f64())), Value::Int),
        Value::Float(value) => Value::Float(scale.apply(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_exactly() {
        let json = |value| {
            let mut out = Vec::new();
            json_value(value, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(json(Some(Value::Int(i64::MIN))), "-9223372036854775808");
        assert_eq!(json(Some(Value::Float(0.1))), "0.1");
        assert_eq!(json(Some(Value::Float(1e300))), "1e300");
        assert_eq!(json(Some(Value::Float(f64::NAN))), "null");
        assert_eq!(json(Some(Value::Float(f64::NEG_INFINITY))), "null");
        assert_eq!(json(None), "null");
        let mut line = Vec::new();
        reading(&json_text("/n/é"), 1_500_000_000_123_000_000, Some(Value::Int(5)), &mut line).unwrap();
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"sensor\":\"/n/é\",\"time\":\"2017-07-14T02:40:00.123Z\",\"value\":5}\n"
        );
    }

    #[test]
    fn scaling_keeps_integers_where_it_can() {
        assert_eq!(scaled(Value::Int(3), Scale::new(1024.0)), Value::Int(3072));
        assert_eq!(scaled(Value::Int(3), Scale::new(0.1)), Value::Float(0.3));
        assert_eq!(scaled(Value::Int(i64::MAX), Scale::new(2.0)), Value::Float(i64::MAX as f64 * 2.0));
        assert_eq!(scaled(Value::Float(2.0), Scale::ONE), Value::Float(2.0));
    }
}
