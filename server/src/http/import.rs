//! `/api/v1/import`: imports past readings, part by part, directly into blocks.
//!
//! - Input: Arrow IPC streams of sensor, time and value. Output: a response after the part is durable; the list of an import's parts.
//! - Never: an incomplete part; a body above [`BODY_BYTES_MAX`] in memory, or more than [`IMPORTS_MAX`] bodies.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, DataType, SchemaRef, TimeUnit};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, Uri};
use wholegrain_api::{ImportState, ImportedPart};
use wholegrain_model::{Column, ColumnValues, Gaps, Kind, SensorPath, ValueType};
use wholegrain_query::{KINDS_KEY, UNIT_KEY, UNITS_KEY};
use wholegrain_store::{IMPORT_ROWS_MAX, ImportSeries, SchemalessSensor, StoreError};

use super::api::IMPORTS_MAX;
use super::params::QueryParams;
use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::audit::{AuditEntry, AuditEvent, AuditOutcome};
use crate::access::bearer_name;
use crate::access::tokens::Bearer;

pub(super) const SHOW: &[&str] = &["id"];
pub(super) const IMPORT: &[&str] = &["id", "part"];
/// The largest body: a part of [`IMPORT_ROWS_MAX`] readings has 84 MB.
const BODY_BYTES_MAX: usize = 128 << 20;
/// How long a client may take to send a body.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);
const SENSORS_MAX: usize = 1 << 20;

/// Lists the parts of an import.
pub(super) async fn show(State(api): State<Arc<Api>>, uri: Uri) -> Result<Json<ImportState>, ApiError> {
    let id = id(&QueryParams::of(&uri, SHOW)?)?;
    let (store, asked) = (api.store.clone(), id.clone());
    let state = blocking(move || store.import_state(&asked)).await?.map_err(refusal)?;
    Ok(Json(ImportState { id, readings: state.readings, parts: state.parts }))
}

pub(super) async fn import(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    request: Request,
) -> Result<Json<ImportedPart>, ApiError> {
    let params = QueryParams::of(request.uri(), IMPORT)?;
    let id = id(&params)?;
    let part = params.read("part", str::parse::<u64>)?;
    let part = part.ok_or_else(|| ApiError::bad_request("which part? add ?part= and its number"))?;
    let busy = || {
        let message = format!("{IMPORTS_MAX} parts of imports are being stored already; try again");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let place = api.imports.clone().try_acquire_owned().map_err(|_| busy())?;
    let body = body(request).await?;
    let (store, source, wanted) = (api.store.clone(), bearer.name.to_string(), id.clone());
    // The permit is kept until the part is written, even if the client disconnects.
    let stored = blocking(move || {
        let _place = place;
        let series = read(body).map_err(|why| ApiError::bad_request(format!("part {part}: {why}")))?;
        let first = store.import_state(&wanted).map_err(refusal)?.parts.is_empty();
        let (sensors, path) = (series.len(), series.first().map(|one| one.sensor.path.to_string()));
        let imported = store.import(&wanted, part, &source, series).map_err(refusal)?;
        Ok::<_, ApiError>((imported, sensors, path.filter(|_| first && !imported.duplicate)))
    });
    let (imported, sensors, began_with) = stored.await??;
    if let Some(path) = began_with {
        let what = format!(
            "import {id} begins: part {part}, {} readings of {sensors} sensors such as {path}",
            imported.readings
        );
        let from = peer.map_or_else(String::new, |Extension(peer)| peer.0.to_string());
        api.security.audit.always(AuditEntry::new(
            AuditEvent::Manage,
            AuditOutcome::Ok,
            &bearer_name(&bearer),
            from,
            &what,
        ));
    }
    Ok(Json(ImportedPart {
        duplicate: imported.duplicate,
        readings: imported.readings,
        past_retention: imported.past_retention,
        sensors: sensors as u64,
    }))
}

fn id(params: &QueryParams) -> Result<String, ApiError> {
    let id = params.read("id", |text| Ok::<_, &str>(text.to_owned()))?;
    id.ok_or_else(|| ApiError::bad_request("which import? add ?id= and its id"))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("importing failed: {error}")))
}

fn refusal(error: StoreError) -> ApiError {
    match error {
        StoreError::Payload(_) | StoreError::Sensor(_) => ApiError::bad_request(error.to_string()),
        error => {
            tracing::error!("import: {error}");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("the part is not stored: {error}; send it again"))
        }
    }
}

async fn body(request: Request) -> Result<Bytes, ApiError> {
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX);
    match tokio::time::timeout(BODY_TIME_MAX, body).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => {
            let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
            while let Some(error) = source {
                if error.to_string().contains("length limit") {
                    let message = format!("the part has over {BODY_BYTES_MAX} bytes; make smaller ones");
                    return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
                }
                source = error.source();
            }
            Err(ApiError::bad_request(format!("the body broke off: {error}")))
        }
        Err(_) => {
            let message = format!("the body was not there within {} s", BODY_TIME_MAX.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

/// Reads the readings of a body by sensor.
fn read(body: Bytes) -> Result<Vec<ImportSeries>, String> {
    let broken = |error: ArrowError| format!("the body is no Arrow IPC stream: {error}");
    let (mut all, mut rows) = (Vec::new(), 0);
    let mut cursor = Cursor::new(body);
    while (cursor.position() as usize) < cursor.get_ref().len() {
        let stream = StreamReader::try_new(&mut cursor, None).map_err(broken)?;
        let mut parts = ImportedSensors::new(&stream.schema())?;
        for batch in stream {
            let batch = batch.map_err(broken)?;
            rows += batch.num_rows();
            if rows > IMPORT_ROWS_MAX {
                return Err(format!("it has over {IMPORT_ROWS_MAX} readings; make smaller parts"));
            }
            parts.take(&batch)?;
        }
        all.extend(parts.finish()?);
    }
    Ok(all)
}

struct ImportedSensors {
    unit: String,
    units: Vec<String>,
    kinds: Vec<String>,
    value_type: ValueType,
    slots: HashMap<String, usize>,
    sensors: Vec<ImportedSensor>,
    /// The slots of the previous batch's dictionary, which most batches share.
    dictionary: Option<(ArrayRef, Vec<usize>)>,
}

struct ImportedSensor {
    path: String,
    /// Its row in the metadata.
    line: usize,
    times: Vec<i64>,
    values: ColumnValues,
    gaps: Vec<usize>,
}

/// Marks a sensor without a slot.
const NONE: usize = usize::MAX;
const COLUMNS: &str = "expected the columns sensor (text or a dictionary of it), time (timestamp in ns) and value (Int64 or Float64), in this order";

impl ImportedSensors {
    fn new(schema: &SchemaRef) -> Result<Self, String> {
        let fields = schema.fields().iter();
        let columns: Vec<(&str, &DataType)> = fields.map(|field| (field.name().as_str(), field.data_type())).collect();
        let [("sensor", sensor), ("time", DataType::Timestamp(TimeUnit::Nanosecond, _)), ("value", value)] =
            columns[..]
        else {
            return Err(COLUMNS.to_owned());
        };
        let is_text = |kind: &DataType| *kind == DataType::Utf8;
        let keyed = |key: &DataType, value: &DataType| *key == DataType::Int32 && is_text(value);
        let known = match sensor {
            DataType::Dictionary(key, value) => keyed(key, value),
            other => is_text(other),
        };
        let value_type = match value {
            DataType::Int64 if known => ValueType::Int,
            DataType::Float64 if known => ValueType::Float,
            _ => return Err(COLUMNS.to_owned()),
        };
        let get = |key: &str| schema.metadata().get(key).map(String::as_str).unwrap_or_default();
        let lines = |key: &str| get(key).split('\n').map(str::to_owned).collect();
        Ok(Self {
            unit: get(UNIT_KEY).to_owned(),
            units: lines(UNITS_KEY),
            kinds: lines(KINDS_KEY),
            value_type,
            slots: HashMap::new(),
            sensors: Vec::new(),
            dictionary: None,
        })
    }

    /// The slot of a path; `line` is its row in the metadata if it is new.
    fn slot(&mut self, path: &str, line: usize) -> Result<usize, String> {
        if let Some(slot) = self.slots.get(path) {
            return Ok(*slot);
        }
        let slot = self.sensors.len();
        if slot >= SENSORS_MAX {
            return Err(format!("it has over {SENSORS_MAX} sensors; make smaller parts"));
        }
        self.slots.insert(path.to_owned(), slot);
        let values = match self.value_type {
            ValueType::Int => ColumnValues::Int(Vec::new()),
            ValueType::Float => ColumnValues::Float(Vec::new()),
        };
        self.sensors.push(ImportedSensor { path: path.to_owned(), line, times: Vec::new(), values, gaps: Vec::new() });
        Ok(slot)
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<(), String> {
        let (sensors, times) = (batch.column(0), batch.column(1));
        if sensors.null_count() > 0 || times.null_count() > 0 {
            return Err("a reading without a sensor or without a time".to_owned());
        }
        let times = times.as_primitive::<TimestampNanosecondType>().values();
        let rows = self.rows(sensors)?;
        let mut start = 0;
        for run in rows.chunk_by(|a, b| a == b) {
            let end = start + run.len();
            let one = &mut self.sensors[run[0]];
            one.times.extend_from_slice(&times[start..end]);
            one.append(batch.column(2), start, end);
            start = end;
        }
        Ok(())
    }

    /// The slot of each row.
    fn rows(&mut self, sensors: &ArrayRef) -> Result<Vec<usize>, String> {
        let Some(keyed) = sensors.as_dictionary_opt::<Int32Type>() else {
            let paths = sensors.as_string::<i32>().iter();
            return paths.map(|path| self.slot(path.unwrap_or_default(), self.sensors.len())).collect();
        };
        let names = keyed.values();
        let mut slots = match self.dictionary.take() {
            Some((known, slots)) if known.to_data().ptr_eq(&names.to_data()) => slots,
            _ => vec![NONE; names.len()],
        };
        let texts: &StringArray = names.as_string();
        let mut rows = Vec::with_capacity(keyed.len());
        for key in keyed.keys().values() {
            let key = usize::try_from(*key).ok().filter(|key| *key < texts.len() && texts.is_valid(*key));
            let key = key.ok_or("a reading whose sensor is not in the dictionary")?;
            if slots[key] == NONE {
                slots[key] = self.slot(texts.value(key), key)?;
            }
            rows.push(slots[key]);
        }
        self.dictionary = Some((names.clone(), slots));
        Ok(rows)
    }

    fn finish(self) -> Result<Vec<ImportSeries>, String> {
        let Self { unit, units, kinds, value_type, sensors, .. } = self;
        let series = |one: ImportedSensor| {
            let path = SensorPath::new(&one.path).map_err(|error| format!("{:?} is no sensor: {error}", one.path))?;
            let kind = match kinds.get(one.line).map_or("", String::as_str) {
                "" | "gauge" => Kind::Gauge,
                "counter" => Kind::Counter,
                other => return Err(format!("{path}: the kind {other:?} is none of gauge, counter")),
            };
            let unit = if unit.is_empty() { units.get(one.line).cloned().unwrap_or_default() } else { unit.clone() };
            let mut gaps = Gaps::default();
            one.gaps.iter().for_each(|at| gaps.set(*at, one.times.len()));
            let sensor = SchemalessSensor { path, unit, kind, value_type, scale: 1.0, description: String::new() };
            Ok(ImportSeries::in_order(sensor, one.times, Column { values: one.values, gaps }))
        };
        sensors.into_iter().map(series).collect()
    }
}

impl ImportedSensor {
    /// Appends the values of some rows.
    fn append(&mut self, values: &ArrayRef, start: usize, end: usize) {
        let before = self.times.len() - (end - start);
        match &mut self.values {
            ColumnValues::Int(into) => into.extend_from_slice(&values.as_primitive::<Int64Type>().values()[start..end]),
            ColumnValues::Float(into) => {
                into.extend_from_slice(&values.as_primitive::<Float64Type>().values()[start..end])
            }
        }
        if values.null_count() == 0 {
            return;
        }
        for row in (start..end).filter(|row| values.is_null(*row)) {
            let at = before + row - start;
            self.gaps.push(at);
            match &mut self.values {
                ColumnValues::Int(values) => values[at] = 0,
                ColumnValues::Float(values) => values[at] = 0.0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{DictionaryArray, Float64Array, Int32Array, Int64Array, TimestampNanosecondArray};
    use arrow_ipc::writer::StreamWriter;
    use arrow_schema::{Field, Schema};
    use wholegrain_model::Value;

    /// A stream of readings: index of the sensor, time, value.
    fn stream(names: &[&str], metadata: &[(&str, &str)], rows: &[(i32, i64)], values: ArrayRef) -> Vec<u8> {
        let names: ArrayRef = Arc::new(StringArray::from(names.to_vec()));
        let keys: Int32Array = rows.iter().map(|row| Some(row.0)).collect();
        let sensors: ArrayRef = Arc::new(DictionaryArray::new(keys, names));
        let times: TimestampNanosecondArray = rows.iter().map(|row| Some(row.1)).collect();
        let times: ArrayRef = Arc::new(times.with_timezone("UTC"));
        let field = |name: &str, array: &ArrayRef| Field::new(name, array.data_type().clone(), name == "value");
        let fields = vec![field("sensor", &sensors), field("time", &times), field("value", &values)];
        let metadata: HashMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let schema = Arc::new(Schema::new(fields).with_metadata(metadata));
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        writer.write(&RecordBatch::try_new(schema, vec![sensors, times, values]).unwrap()).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    fn floats() -> Vec<u8> {
        let values = Float64Array::from(vec![Some(1.0), None, Some(3.0), Some(4.0)]);
        let rows = [(1, 5), (1, 6), (0, 5), (1, 5)];
        let metadata = [(UNITS_KEY, "W\nCel"), (KINDS_KEY, "counter\ngauge")];
        stream(&["/b", "/a"], &metadata, &rows, Arc::new(values))
    }

    #[test]
    fn streams_of_both_types_follow_each_other() {
        let mut body = floats();
        body.extend(stream(&["/c"], &[(UNIT_KEY, "By")], &[(0, 1)], Arc::new(Int64Array::from(vec![i64::MAX]))));
        let series = read(body.into()).unwrap();
        let imported = |at: usize| {
            let SchemalessSensor { path, unit, kind, .. } = &series[at].sensor;
            (path.as_str(), unit.as_str(), *kind, series[at].times.clone())
        };
        assert_eq!(imported(0), ("/a", "Cel", Kind::Gauge, vec![5, 6]));
        assert_eq!(imported(1), ("/b", "W", Kind::Counter, vec![5]));
        assert_eq!(imported(2), ("/c", "By", Kind::Gauge, vec![1]));
        let column = &series[0].column;
        assert_eq!((column.get(0), column.get(1)), (Some(Value::Float(4.0)), None), "the later of equal times counts");
        assert_eq!(series[2].column.get(0), Some(Value::Int(i64::MAX)));
    }

    #[test]
    fn errors_name_what_is_wrong_with_a_part() {
        for (body, part) in [
            (b"hello".to_vec(), "no Arrow IPC stream"),
            (stream(&["a"], &[], &[(0, 1)], Arc::new(Int64Array::from(vec![1]))), "\"a\" is no sensor"),
            (stream(&["/a"], &[(KINDS_KEY, "x")], &[(0, 1)], Arc::new(Int64Array::from(vec![1]))), "kind"),
            (stream(&["/a"], &[], &[(0, 1)], Arc::new(Int32Array::from(vec![1]))), "expected the columns"),
            (floats()[..200].to_vec(), "no Arrow IPC stream"),
        ] {
            let why = read(body.into()).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        assert!(read(Bytes::new()).unwrap().is_empty());
    }
}
