//! Metrics of OpenTelemetry over HTTP: `POST /v1/metrics` and `/api/v1/write/otlp`, in protobuf or JSON encoding.
//!
//! The response 200 is sent after fsync. If data points were refused, it says how many and why in `partial_success`; the others are stored. Errors
//! have a `google.rpc.Status` as their body. A response has the encoding of its request. By the protocol a sender repeats a request after 429, 502, 503 and 504 only.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_store::Reading;

use super::write_request::{PendingValues, RefusedItems, WriteSender, gunzip, receive, store};
use super::{Api, ApiError};
use crate::interop::Interop;
use crate::interop::names::{self, LineProtocol, SeriesNames, Tag};
use crate::interop::otlp::{self, OtlpPoint, OtlpRefusals, OtlpValue};
use crate::interop::otlp_json;
use crate::interop::resolution::{SensorProperties, is_float};
use crate::prometheus::wire::{put_bytes, put_int};

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";

/// The encoding of a request and of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtlpEncoding {
    Protobuf,
    Json,
}

/// The result of a request.
struct OtlpResult {
    readings: Vec<Reading>,
    refusals: OtlpRefusals,
    points: u64,
}

/// `POST` of an `ExportMetricsServiceRequest`.
pub(super) async fn metrics(State(api): State<Arc<Api>>, request: Request) -> Response {
    let encoding = OtlpEncoding::of(&request);
    let answers_in = encoding.unwrap_or(OtlpEncoding::Protobuf);
    match export(&api, encoding, request).await {
        Ok(outcome) => answers_in.response(StatusCode::OK, answers_in.success(&outcome.refusals)),
        Err(error) => answers_in.failure(error),
    }
}

impl OtlpEncoding {
    /// By the media type; `None` for another one.
    fn of(request: &Request) -> Option<Self> {
        let kind = header_text(request, header::CONTENT_TYPE).split(';').next()?.trim();
        let is = |name| kind.eq_ignore_ascii_case(name);
        if is(PROTOBUF) { Some(Self::Protobuf) } else { is(JSON).then_some(Self::Json) }
    }

    fn response(self, status: StatusCode, body: Vec<u8>) -> Response {
        let kind = if self == Self::Json { JSON } else { PROTOBUF };
        (status, [(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
    }

    /// Encodes an `ExportMetricsServiceResponse`, with `partial_success` if something was refused.
    fn success(self, refusals: &OtlpRefusals) -> Vec<u8> {
        let (has_refused, reasons) = (!refusals.reasons.is_empty(), refusals.reasons.join("; "));
        match self {
            Self::Json if has_refused => {
                // Integers of 64 bits are texts in JSON.
                let partial =
                    serde_json::json!({ "rejectedDataPoints": refusals.points.to_string(), "errorMessage": reasons });
                serde_json::json!({ "partialSuccess": partial }).to_string().into_bytes()
            }
            Self::Json => b"{}".to_vec(),
            Self::Protobuf => {
                let (mut response, mut partial) = (Vec::new(), Vec::new());
                if has_refused {
                    put_int(1, refusals.points.cast_signed(), &mut partial);
                    put_bytes(2, reasons.as_bytes(), &mut partial);
                    put_bytes(1, &partial, &mut response);
                }
                response
            }
        }
    }

    /// Encodes an error as a `google.rpc.Status`, and keeps its status and headers.
    fn failure(self, error: ApiError) -> Response {
        /// A code of `google.rpc.Code`: nothing of the request will ever be accepted.
        const INVALID_ARGUMENT: i64 = 3;
        const UNAVAILABLE: i64 = 14;
        let code = if error.status.is_server_error() { UNAVAILABLE } else { INVALID_ARGUMENT };
        let body = match self {
            Self::Json => serde_json::json!({ "code": code, "message": error.message }).to_string().into_bytes(),
            Self::Protobuf => {
                let mut body = Vec::new();
                put_int(1, code, &mut body);
                put_bytes(2, error.message.as_bytes(), &mut body);
                body
            }
        };
        let (mut response, like) = (self.response(error.status, body), error.into_response());
        if let Some(after) = like.headers().get(header::RETRY_AFTER) {
            response.headers_mut().insert(header::RETRY_AFTER, after.clone());
        }
        response
    }
}

fn header_text(request: &Request, name: header::HeaderName) -> &str {
    request.headers().get(name).map_or("", |value| value.to_str().unwrap_or("?"))
}

async fn export(api: &Arc<Api>, encoding: Option<OtlpEncoding>, request: Request) -> Result<OtlpResult, ApiError> {
    let encoding = encoding.ok_or_else(|| {
        let kind = header_text(&request, header::CONTENT_TYPE);
        let message = format!(
            "content-type {kind:?} is not supported; send {PROTOBUF} (OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf) or {JSON}"
        );
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })?;
    let is_gzip = is_compressed(&request)?;
    let mut received = receive(api, request).await?;
    let interop = api.interop.clone();
    let done = tokio::task::spawn_blocking(move || {
        let bytes_max = interop.config.body_bytes_max;
        if is_gzip {
            received.converted(|body| gunzip(body, bytes_max))?;
        }
        if encoding == OtlpEncoding::Json {
            received.converted(|body| otlp_json::to_protobuf(body, bytes_max).map_err(|why| unreadable(&why)))?;
        }
        let outcome = read(&interop, &received.sender, &received.body)?;
        Ok::<_, ApiError>((received, outcome))
    });
    let (received, outcome) =
        done.await.map_err(|error| ApiError::internal(format!("reading the metrics failed: {error}")))??;
    store(api, &received.sender.name, &outcome.readings).await?;
    api.metrics.otlp_points.add(outcome.points.saturating_sub(outcome.refusals.points));
    api.metrics.otlp_points_refused.add(outcome.refusals.points);
    if let Some(why) = outcome.refusals.reasons.first() {
        let (refused, points) = (outcome.refusals.points, outcome.points);
        let what = format_args!("{refused} of {points} data points of OpenTelemetry");
        api.interop.refusals.warn(&received.sender.name, what, why);
    }
    Ok(outcome)
}

fn unreadable(why: &str) -> ApiError {
    ApiError::bad_request(format!("the request cannot be read: {why}; nothing of it is stored"))
}

/// Whether the body is compressed; an error for another encoding than gzip.
fn is_compressed(request: &Request) -> Result<bool, ApiError> {
    match header_text(request, header::CONTENT_ENCODING) {
        "" | "identity" => Ok(false),
        "gzip" => Ok(true),
        other => {
            let message = format!("content-encoding {other:?} is not supported; send gzip or no compression");
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

fn read(interop: &Interop, sender: &WriteSender, bytes: &[u8]) -> Result<OtlpResult, ApiError> {
    let mut values = PendingValues::new(interop, LineProtocol::Otlp);
    let (mut points, mut fault) = (0, None);
    let mut take = |point: &OtlpPoint<'_>| {
        // Nothing of the request will be stored.
        if fault.is_some() {
            return Ok(());
        }
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
    let mut refusals = otlp::read(bytes, &mut take).map_err(unreadable)?;
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
    let series = SeriesNames { measurement: point.metric, tags, shared: point.resource, field: value.field };
    let identity = names::identity(tags, (point.resource_identity, point.metric, value.field));
    values.sensor(&series, Some(identity), is_float(value.value), || {
        let (unit, description) = (value.unit.to_owned(), point.description.to_owned());
        SensorProperties { unit, kind: value.kind, description, is_declared: true }.bounded()
    })
}
