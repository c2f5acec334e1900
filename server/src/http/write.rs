//! Line protocols over HTTP.
//!
//! `POST /api/v1/write/influx`, `/api/v2/write` and `/write` accept the line protocol of InfluxDB; `POST /api/v1/write/clustercockpit` and
//! `/api/write/` the metric messages of ClusterCockpit. Bodies may be compressed with gzip. The response 204 (200 for ClusterCockpit, as its
//! collector expects) is sent after fsync. A response 400 lists invalid lines with their numbers; the other lines of the request are stored.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_model::Value;
use wholegrain_store::Reading;

use super::write_request::{PendingValues, RefusedItems, WriteSender, gunzip, receive, store};
use super::{Api, ApiError};
use crate::interop::influx_lines::{FieldValue, InfluxLine, InfluxLines};
use crate::interop::names::{LineProtocol, SeriesNames, Tag};
use crate::interop::resolution::{SensorProperties, is_float};
use crate::interop::{Interop, now_ns, text};

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
    /// Tags of all lines: the parameter `cluster` of ClusterCockpit.
    shared: Vec<Tag<'static>>,
    gzip: bool,
}

/// The result of a body.
#[derive(Default)]
struct WriteResult {
    readings: Vec<Reading>,
    refused: RefusedItems,
    text_fields: u64,
}

async fn answer(api: &Arc<Api>, request: Request, protocol: LineProtocol) -> Response {
    match write(api, request, protocol).await {
        Ok(outcome) if outcome.refused.count == 0 => match protocol {
            LineProtocol::Clustercockpit => StatusCode::OK.into_response(),
            _ => StatusCode::NO_CONTENT.into_response(),
        },
        Ok(outcome) => refusal(&outcome),
        Err(error) => error.into_response(),
    }
}

/// Uses the messages of InfluxDB 1 and 2, whose clients drop the invalid lines and continue.
fn refusal(outcome: &WriteResult) -> Response {
    let (line, why) = outcome.refused.named.first().map_or((0, ""), |(line, why)| (*line, why.as_str()));
    let stored = outcome.readings.len();
    let message = format!(
        "partial write: unable to parse or name {} lines, {stored} readings of the others are stored; line {line}: {why} dropped={}",
        outcome.refused.count, outcome.refused.count
    );
    let lines: Vec<_> =
        outcome.refused.named.iter().map(|(line, why)| serde_json::json!({ "line": line, "error": why })).collect();
    let body = serde_json::json!({ "code": "invalid", "message": message, "error": message, "lines": lines });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

async fn write(api: &Arc<Api>, request: Request, protocol: LineProtocol) -> Result<WriteResult, ApiError> {
    let terms = terms(&request, protocol)?;
    let mut received = receive(api, request).await?;
    let interop = api.interop.clone();
    let done = tokio::task::spawn_blocking(move || {
        if terms.gzip {
            received.converted(|body| gunzip(body, interop.config.body_bytes_max))?;
        }
        let outcome = read_lines(&interop, &received.sender, &received.body, &terms)?;
        Ok::<_, ApiError>((received, outcome))
    });
    let (received, outcome) =
        done.await.map_err(|error| ApiError::internal(format!("reading the lines failed: {error}")))??;
    store(api, &received.sender.name, &outcome.readings).await?;
    api.metrics.line_readings.add(outcome.readings.len() as u64);
    api.metrics.lines_refused.add(outcome.refused.count as u64);
    api.metrics.line_texts.add(outcome.text_fields);
    Ok(outcome)
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
    let shared = parameter("cluster").map(|cluster| (Cow::Borrowed("cluster"), Cow::Owned(cluster)));
    Ok(WriteParams { protocol, unit_ns, shared: shared.into_iter().collect(), gzip })
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

fn read_lines(
    interop: &Interop,
    sender: &WriteSender,
    body: &[u8],
    terms: &WriteParams,
) -> Result<WriteResult, ApiError> {
    let Ok(body) = std::str::from_utf8(body) else {
        return Err(ApiError::bad_request("unable to parse: the body is not UTF-8"));
    };
    let mut outcome = WriteResult::default();
    let mut values = PendingValues::new(interop, terms.protocol);
    let arrived = now_ns();
    for (number, line) in InfluxLines::new(body) {
        let before = values.len();
        let fields = line.map_err(str::to_owned).and_then(|line| {
            let time = time_ns(line.timestamp, terms.unit_ns, arrived)?;
            fields_of(&line, terms, &mut values, &mut outcome.text_fields).map(|fields| (time, fields))
        });
        match fields {
            Ok((time, fields)) => {
                for (sensor, value) in fields {
                    values.push(number, sensor, time, value)?;
                }
            }
            Err(why) => {
                values.truncate(before);
                outcome.refused.add(number, why);
            }
        }
    }
    outcome.readings = values.readings(sender, &mut outcome.refused)?;
    Ok(outcome)
}

/// The sensors and values of a line, without its text fields.
fn fields_of(
    line: &InfluxLine<'_>,
    terms: &WriteParams,
    values: &mut PendingValues<'_>,
    text_fields: &mut u64,
) -> Result<Vec<(usize, Value)>, String> {
    let is_clustercockpit = terms.protocol == LineProtocol::Clustercockpit;
    let mut found = Vec::with_capacity(line.fields.len());
    for (key, value) in &line.fields {
        let value = match value {
            FieldValue::Int(value) => Value::Int(*value),
            FieldValue::Unsigned(value) => {
                Value::Int(i64::try_from(*value).map_err(|_| format!("{value}u is beyond 9223372036854775807"))?)
            }
            FieldValue::Float(value) => Value::Float(*value),
            FieldValue::Bool(value) => Value::Int((*value).into()),
            FieldValue::Text => {
                *text_fields += 1;
                continue;
            }
        };
        if is_clustercockpit && key != VALUE {
            return Err(format!("the field {key:?} is not supported; ClusterCockpit metrics have only `value`"));
        }
        let names = SeriesNames { measurement: &line.measurement, tags: &line.tags, shared: &terms.shared, field: key };
        let sensor = values.sensor(&names, None, is_float(value), || {
            // ClusterCockpit sends the unit as a tag.
            let unit = line.tag("unit").filter(|_| is_clustercockpit).unwrap_or_default().to_owned();
            SensorProperties { unit, ..SensorProperties::default() }.bounded()
        })?;
        found.push((sensor, value));
    }
    Ok(found)
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
}
