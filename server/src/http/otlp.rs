//! Metrics of OpenTelemetry over HTTP: `POST /v1/metrics` and `/api/v1/write/otlp`, in protobuf encoding.
//!
//! The response 200 is sent after fsync. If data points were refused, it says how many and why in `partial_success`; the others are stored. Errors
//! have a `google.rpc.Status` as their body. By the protocol a sender repeats a request after 429, 502, 503 and 504 only.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_model::Value;
use wholegrain_store::Reading;

use super::write_request::{PendingValues, RefusedItems, WriteSender, gunzip, receive, store};
use super::{Api, ApiError};
use crate::interop::Interop;
use crate::interop::names::{LineProtocol, SeriesNames, Tag};
use crate::interop::otlp::{self, OtlpPoint, OtlpRefusals, OtlpValue};
use crate::interop::resolution::SensorProperties;
use crate::prometheus::wire::{put_bytes, put_int};

const PROTOBUF: &str = "application/x-protobuf";

/// The result of a request.
struct OtlpResult {
    readings: Vec<Reading>,
    refusals: OtlpRefusals,
    points: u64,
}

/// `POST` of an `ExportMetricsServiceRequest`.
pub(super) async fn metrics(State(api): State<Arc<Api>>, request: Request) -> Response {
    match export(&api, request).await {
        Ok(outcome) => protobuf(StatusCode::OK, success(&outcome.refusals)),
        Err(error) => failure(error),
    }
}

fn protobuf(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static(PROTOBUF))], body).into_response()
}

/// Encodes an `ExportMetricsServiceResponse`, with `partial_success` if something was refused.
fn success(refusals: &OtlpRefusals) -> Vec<u8> {
    let (mut response, mut partial) = (Vec::new(), Vec::new());
    if !refusals.reasons.is_empty() {
        put_int(1, refusals.points.cast_signed(), &mut partial);
        put_bytes(2, refusals.reasons.join("; ").as_bytes(), &mut partial);
        put_bytes(1, &partial, &mut response);
    }
    response
}

/// Encodes an error as a `google.rpc.Status`, and keeps its status and headers.
fn failure(error: ApiError) -> Response {
    /// A code of `google.rpc.Code`: nothing of the request will ever be accepted.
    const INVALID_ARGUMENT: i64 = 3;
    const UNAVAILABLE: i64 = 14;
    let code = if error.status.is_server_error() { UNAVAILABLE } else { INVALID_ARGUMENT };
    let mut body = Vec::new();
    put_int(1, code, &mut body);
    put_bytes(2, error.message.as_bytes(), &mut body);
    let (mut response, like) = (protobuf(error.status, body), error.into_response());
    if let Some(after) = like.headers().get(header::RETRY_AFTER) {
        response.headers_mut().insert(header::RETRY_AFTER, after.clone());
    }
    response
}

async fn export(api: &Arc<Api>, request: Request) -> Result<OtlpResult, ApiError> {
    let is_gzip = check_headers(&request)?;
    let received = receive(api, request).await?;
    let (interop, sender, body) = (api.interop.clone(), received.sender.clone(), received.body.clone());
    let done = tokio::task::spawn_blocking(move || {
        let bytes = if is_gzip { gunzip(&body, interop.config.body_bytes_max)? } else { body.into() };
        read(&interop, &sender, &bytes)
    });
    let outcome = done.await.map_err(|error| ApiError::internal(format!("reading the metrics failed: {error}")))??;
    store(api, &received.sender.name, &outcome.readings).await?;
    api.metrics.otlp_points.add(outcome.points.saturating_sub(outcome.refusals.points));
    api.metrics.otlp_points_refused.add(outcome.refusals.points);
    Ok(outcome)
}

/// Whether the body is compressed; an error for another encoding.
fn check_headers(request: &Request) -> Result<bool, ApiError> {
    let text = |name| request.headers().get(name).map_or("", |value| value.to_str().unwrap_or("?"));
    let refuse = |message: String| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    let (kind, coding) = (text(header::CONTENT_TYPE), text(header::CONTENT_ENCODING));
    if kind.split(';').next().is_none_or(|kind| !kind.trim().eq_ignore_ascii_case(PROTOBUF)) {
        return refuse(format!(
            "content-type {kind:?} is not supported; send {PROTOBUF}: OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf"
        ));
    }
    match coding {
        "" | "identity" => Ok(false),
        "gzip" => Ok(true),
        other => refuse(format!("content-encoding {other:?} is not supported; send gzip or no compression")),
    }
}

fn read(interop: &Interop, sender: &WriteSender, bytes: &[u8]) -> Result<OtlpResult, ApiError> {
    let mut values = PendingValues::new(interop, LineProtocol::Otlp);
    let (mut points, mut fault) = (0, None);
    let mut take = |point: &OtlpPoint<'_>| {
        points += 1;
        let before = values.len();
        for value in &point.values {
            match sensor(point, value, &mut values) {
                Ok(sensor) => fault = fault.take().or(values.push(points, sensor, point.time_ns, value.value).err()),
                Err(why) => {
                    values.truncate(before);
                    return Err(why);
                }
            }
        }
        Ok(())
    };
    let mut refusals = otlp::read(bytes, &mut take)
        .map_err(|why| ApiError::bad_request(format!("the request cannot be read: {why}; nothing of it is stored")))?;
    if let Some(error) = fault {
        return Err(error);
    }
    let mut refused = RefusedItems::default();
    let readings = values.readings(sender, &mut refused)?;
    for (_, why) in &refused.named {
        refusals.add(0, why.clone());
    }
    refusals.points += refused.count as u64;
    Ok(OtlpResult { readings, refusals, points: points as u64 })
}

/// The sensor of one value of a data point.
fn sensor(point: &OtlpPoint<'_>, value: &OtlpValue<'_>, values: &mut PendingValues<'_>) -> Result<usize, String> {
    let with_tag: Vec<Tag<'_>>;
    let tags = match &value.tag {
        None => point.attributes,
        Some((key, text)) => {
            let tag = ((*key).into(), text.as_str().into());
            with_tag = point.attributes.iter().cloned().chain([tag]).collect();
            &with_tag
        }
    };
    let names = SeriesNames { measurement: point.metric, tags, shared: point.resource, field: value.field };
    values.sensor(&names, matches!(value.value, Value::Float(_)), || {
        let (unit, description) = (value.unit.to_owned(), point.description.to_owned());
        SensorProperties { unit, kind: value.kind, description, is_declared: true }.bounded()
    })
}
