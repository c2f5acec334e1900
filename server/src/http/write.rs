//! Line protocols over HTTP.
//!
//! `POST /api/v1/write/influx`, `/api/v2/write` and `/write` accept the line protocol of InfluxDB; `POST /api/v1/write/clustercockpit` and
//! `/api/write/` the metric messages of ClusterCockpit. Bodies may be compressed with gzip. The response 204 (200 for ClusterCockpit, as its
//! collector expects) is sent after fsync. A response 400 lists invalid lines with their numbers; the other lines of the request are stored.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use wholegrain_model::Value;
use wholegrain_store::{READINGS_MAX, Reading, StoreError};

use super::{Api, ApiError};
use crate::access::Role;
use crate::access::tokens::Bearer;
use crate::admission::QuotaPermit;
use crate::interop::influx_lines::{FieldValue, InfluxLines};
use crate::interop::names::{self, LineProtocol, RequestTags};
use crate::interop::resolution::SensorRequest;
use crate::interop::{Interop, now_ns, text};

/// How long a client may take to send a body.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);
const PLACE_TIME_MAX: Duration = Duration::from_secs(5);
/// The most invalid lines that a response lists.
const NAMED_LINES_MAX: usize = 100;
/// The most fields of one request.
const FIELDS_MAX: usize = 4 << 20;
/// Waits between attempts while the store has no room, before the client gets an error.
const BUSY_WAITS: [Duration; 4] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(160), Duration::from_millis(640)];
const VALUE: &str = "value";

/// `POST` of the InfluxDB line protocol.
pub(crate) async fn influx(State(api): State<Arc<Api>>, request: Request) -> Response {
    answer(&api, request, LineProtocol::Influx).await
}

/// `POST` of ClusterCockpit metric messages.
pub(crate) async fn clustercockpit(State(api): State<Arc<Api>>, request: Request) -> Response {
    answer(&api, request, LineProtocol::Clustercockpit).await
}

/// Parameters of a request.
struct WriteParams {
    protocol: LineProtocol,
    /// The unit of timestamps in ns; `None` if the size of each timestamp gives it.
    unit_ns: Option<i64>,
    extra: RequestTags,
    gzip: bool,
}

/// The result of a body.
#[derive(Default)]
struct WriteResult {
    readings: Vec<Reading>,
    wrong: Vec<(usize, String)>,
    wrong_count: usize,
    text_fields: u64,
}

impl WriteResult {
    fn wrong(&mut self, line: usize, why: impl Into<String>) {
        self.wrong_count += 1;
        if self.wrong.len() < NAMED_LINES_MAX {
            self.wrong.push((line, why.into()));
        }
    }
}

async fn answer(api: &Arc<Api>, request: Request, protocol: LineProtocol) -> Response {
    match write(api, request, protocol).await {
        Ok(outcome) if outcome.wrong_count == 0 => match protocol {
            LineProtocol::Influx => StatusCode::NO_CONTENT.into_response(),
            LineProtocol::Clustercockpit => StatusCode::OK.into_response(),
        },
        Ok(outcome) => refusal(&outcome),
        Err(error) => error.into_response(),
    }
}

/// Uses the messages of InfluxDB 1 and 2, whose clients drop the invalid lines and continue.
fn refusal(outcome: &WriteResult) -> Response {
    let (line, why) = outcome.wrong.first().map_or((0, ""), |(line, why)| (*line, why.as_str()));
    let stored = outcome.readings.len();
    let message = format!(
        "partial write: unable to parse or name {} lines, {stored} readings of the others are stored; line {line}: {why} dropped={}",
        outcome.wrong_count, outcome.wrong_count
    );
    let lines: Vec<_> =
        outcome.wrong.iter().map(|(line, why)| serde_json::json!({ "line": line, "error": why })).collect();
    let body = serde_json::json!({ "code": "invalid", "message": message, "error": message, "lines": lines });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

async fn write(api: &Arc<Api>, request: Request, protocol: LineProtocol) -> Result<WriteResult, ApiError> {
    let terms = terms(&request, protocol)?;
    let source = source(&request);
    let bearer = request.extensions().get::<Bearer>().cloned();
    let bearer = bearer.ok_or_else(|| ApiError::internal("the request has no token"))?;
    let role = bearer.role;
    // A slow client takes no permit, only memory for the received part.
    let (body, _held) = body(api, request, &bearer).await?;
    let _place = api.writes.take(&bearer, PLACE_TIME_MAX).await?;
    let (interop, from, security) = (api.interop.clone(), source.clone(), api.security.clone());
    let done = tokio::task::spawn_blocking(move || {
        let body = unpack(body, terms.gzip, interop.config.body_bytes_max)?;
        // An administrator may write to all paths; others where an MQTT client with the token's name may publish.
        let may = |path: &str| match role {
            Role::Admin => Ok(()),
            _ => security.access.may_publish(&from, path),
        };
        read_lines(&interop, &from, &body, &terms, &may)
    });
    let outcome = done.await.map_err(|error| ApiError::internal(format!("reading the lines failed: {error}")))??;
    for chunk in outcome.readings.chunks(READINGS_MAX) {
        store(api, &source, chunk).await?;
    }
    api.metrics.line_readings.add(outcome.readings.len() as u64);
    api.metrics.lines_refused.add(outcome.wrong_count as u64);
    api.metrics.line_texts.add(outcome.text_fields);
    Ok(outcome)
}

/// The name of the sender.
fn source(request: &Request) -> String {
    request.extensions().get::<Bearer>().map_or_else(|| "http".to_owned(), |bearer| bearer.name.to_string())
}

/// Appends readings, and retries for a short time if the store has no room.
async fn store(api: &Arc<Api>, source: &str, readings: &[Reading]) -> Result<(), ApiError> {
    let mut waits = BUSY_WAITS.iter();
    loop {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The request may be cancelled before the answer arrives.
        let done = Box::new(move |result| drop(sender.send(result)));
        api.store.append_readings(source, readings.to_vec(), done);
        let error = match receiver.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => StoreError::Closed,
        };
        match (error, waits.next()) {
            (StoreError::Busy, Some(wait)) => tokio::time::sleep(*wait).await,
            (error @ (StoreError::Payload(_) | StoreError::Sensor(_)), _) => {
                return Err(ApiError::internal(error.to_string()));
            }
            (error, _) => {
                let message = format!("the readings are not stored: {error}; send them again");
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        }
    }
}

fn terms(request: &Request, protocol: LineProtocol) -> Result<WriteParams, ApiError> {
    let query = request.uri().query().unwrap_or_default();
    let parameter = |name: &str| {
        let value = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?.1;
        Some(percent_decoded(value)).filter(|value| !value.is_empty())
    };
    let unit_ns = match parameter("precision").as_deref() {
        None if protocol == LineProtocol::Influx => Some(1),
        None => None,
        Some("n" | "ns") => Some(1),
        Some("u" | "us" | "µ") => Some(1_000),
        Some("ms") => Some(1_000_000),
        Some("s") => Some(1_000_000_000),
        Some("m") => Some(60_000_000_000),
        Some("h") => Some(3_600_000_000_000),
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "precision {other:?} is unknown; use ns, n, us, u, ms, s, m or h"
            )));
        }
    };
    let gzip = match request.headers().get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?")) {
        None | Some("" | "identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(other) => {
            let message = format!("content-encoding {other:?} is not supported; send gzip or no compression");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    };
    Ok(WriteParams { protocol, unit_ns, extra: RequestTags { cluster: parameter("cluster") }, gzip })
}

/// Decodes `%41` to `A` and `+` to a space; keeps invalid sequences.
fn percent_decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match byte {
            b'+' => out.push(b' '),
            b'%' => match tail.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()) {
                Some(decoded) => {
                    out.push(decoded);
                    rest = &tail[2..];
                }
                None => out.push(b'%'),
            },
            other => out.push(*other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn too_large(bytes_max: usize) -> ApiError {
    let message =
        format!("the body has over {bytes_max} bytes; send less in one request, or raise interop.body_bytes_max");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Reads the body; the permit counts its memory for the token.
async fn body(api: &Api, request: Request, bearer: &Bearer) -> Result<(Bytes, QuotaPermit), ApiError> {
    let bytes_max = api.interop.config.body_bytes_max;
    let many = || {
        let message =
            "other writes of this token use all memory that it may use; send smaller requests, or one after the other";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let mut held = api.bodies.take(&bearer.id).ok_or_else(many)?;
    let read = async {
        let (mut chunks, mut body) = (request.into_body().into_data_stream(), BytesMut::new());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| ApiError::bad_request(format!("the body is incomplete: {error}")))?;
            if body.len() + chunk.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            if !held.grow(chunk.len()) {
                return Err(many());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    };
    match tokio::time::timeout(BODY_TIME_MAX, read).await {
        Ok(body) => body.map(|body| (body, held)),
        Err(_) => {
            let message = format!("the body did not arrive within {} s", BODY_TIME_MAX.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

fn unpack(body: Bytes, gzip: bool, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    if !gzip {
        return Ok(body.into());
    }
    let mut unpacked = Vec::new();
    let read = flate2::read::MultiGzDecoder::new(&*body).take(bytes_max as u64 + 1).read_to_end(&mut unpacked);
    read.map_err(|error| ApiError::bad_request(format!("the body is not gzip: {error}")))?;
    if unpacked.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(unpacked) }
}

/// A field whose sensor is not resolved yet.
struct PendingField {
    line: usize,
    sensor: usize,
    time: i64,
    value: Value,
}

fn read_lines(
    interop: &Interop,
    source: &str,
    body: &[u8],
    terms: &WriteParams,
    may: &dyn Fn(&str) -> Result<(), String>,
) -> Result<WriteResult, ApiError> {
    let Ok(body) = std::str::from_utf8(body) else {
        return Err(ApiError::bad_request("unable to parse: the body is not UTF-8"));
    };
    let (mut outcome, mut fields) = (WriteResult::default(), Vec::new());
    let mut sensors: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    let mut wanted: Vec<SensorRequest> = Vec::new();
    let arrived = now_ns();
    for (number, line) in InfluxLines::new(body) {
        let before = fields.len();
        let added = line.map_err(str::to_owned).and_then(|line| {
            let time = time_ns(line.timestamp, terms.unit_ns, arrived)?;
            for (key, value) in &line.fields {
                let value = match value {
                    FieldValue::Int(value) => Value::Int(*value),
                    FieldValue::Unsigned(value) => Value::Int(
                        i64::try_from(*value).map_err(|_| format!("{value}u is beyond 9223372036854775807"))?,
                    ),
                    FieldValue::Float(value) => Value::Float(*value),
                    FieldValue::Bool(value) => Value::Int((*value).into()),
                    FieldValue::Text => {
                        outcome.text_fields += 1;
                        continue;
                    }
                };
                if terms.protocol == LineProtocol::Clustercockpit && key != VALUE {
                    return Err(format!(
                        "the field {key:?} is not supported; ClusterCockpit metrics have only `value`"
                    ));
                }
                let path = names::path(&interop.config.templates, terms.protocol, &line, &terms.extra, key)
                    .map_err(|error| error.to_string())?;
                let sensor = *sensors.entry(path.as_str().to_owned()).or_insert_with(|| {
                    // ClusterCockpit sends the unit as a tag.
                    let unit = line.tag("unit").filter(|_| terms.protocol == LineProtocol::Clustercockpit);
                    let unit = unit.filter(|unit| unit.len() <= wholegrain_model::schema::UNIT_BYTES_MAX);
                    let unit = unit.filter(|unit| !unit.contains(char::is_control)).unwrap_or_default().to_owned();
                    let float = matches!(value, Value::Float(_));
                    wanted.push(SensorRequest { topic: path.as_str().to_owned(), float, unit });
                    wanted.len() - 1
                });
                fields.push(PendingField { line: number, sensor, time, value });
            }
            Ok(())
        });
        if let Err(why) = added {
            fields.truncate(before);
            outcome.wrong(number, why);
        }
        if fields.len() > FIELDS_MAX {
            return Err(too_large(interop.config.body_bytes_max));
        }
    }
    let retry = |error: StoreError| {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("cannot register sensors: {error}; send it again"))
    };
    let named = interop.resolve(source, &wanted, may).map_err(retry)?;
    let mut refused_line = 0;
    for field in fields {
        match &named[field.sensor] {
            Ok(known) => {
                outcome.readings.push(Reading { sensor: known.id, time: field.time, value: known.fit(field.value) });
            }
            Err((_, why)) if refused_line != field.line => {
                refused_line = field.line;
                outcome.wrong(field.line, why.as_str());
            }
            Err(_) => {}
        }
    }
    Ok(outcome)
}

fn time_ns(timestamp: Option<i64>, unit_ns: Option<i64>, arrived: i64) -> Result<i64, String> {
    let Some(timestamp) = timestamp else { return Ok(arrived) };
    let unit = unit_ns.unwrap_or_else(|| text::unit_ns(timestamp));
    timestamp.checked_mul(unit).ok_or_else(|| format!("the timestamp {timestamp} is out of range in ns"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_parameters() {
        assert_eq!(time_ns(None, Some(1), 7), Ok(7));
        assert_eq!(time_ns(Some(5), Some(1_000_000_000), 7), Ok(5_000_000_000));
        assert_eq!(time_ns(Some(1_769_860_800), None, 7), Ok(1_769_860_800_000_000_000));
        assert_eq!(time_ns(Some(1_769_860_800_000), None, 7), Ok(1_769_860_800_000_000_000));
        assert!(time_ns(Some(i64::MAX), Some(1000), 7).is_err());
        assert_eq!(percent_decoded("a%20b+c%zz%4"), "a b c%zz%4");
    }

    #[test]
    fn a_packed_body_is_bounded_by_what_it_unpacks_to() {
        use std::io::Write;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&vec![b'x'; 1 << 20]).unwrap();
        let packed = Bytes::from(packed.finish().unwrap());
        assert!(packed.len() < 2000);
        assert_eq!(unpack(packed.clone(), true, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(unpack(packed.clone(), true, (1 << 20) - 1).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(unpack(packed.slice(..100), true, 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}
