//! Prometheus remote write, versions 1.0 and 2.0: `POST /api/v1/write/prometheus` and `/api/v1/write`.
//!
//! The response 204 is sent after fsync. A response 400 says which series are not stored; all others are. By the protocol a sender does not repeat
//! a request after 400, and repeats it after 5xx.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_store::Reading;

use super::write_request::{PendingValues, RefusedItems, WriteSender, is_stale, measured, receive, store, too_large};
use super::{Api, ApiError};
use crate::interop::Interop;
use crate::interop::metric_metadata::{MetricMetadata, properties};
use crate::interop::names::{LineProtocol, SeriesNames, identity};
use crate::interop::remote_write::{RemoteWriteVersion, WriteMessage, WrittenSeries};

const MS: i64 = 1_000_000;
const NO_HISTOGRAMS: &str = "native histograms are not stored; let Prometheus send classic ones";

/// The result of a request.
#[derive(Default)]
struct RemoteWriteResult {
    readings: Vec<Reading>,
    refused: RefusedItems,
    stale: u64,
    histograms: usize,
}

/// `POST` of a request of Prometheus.
pub(super) async fn write(State(api): State<Arc<Api>>, request: Request) -> Response {
    match answer(&api, request).await {
        Ok(outcome) => outcome.into_response(),
        Err(error) => error.into_response(),
    }
}

impl IntoResponse for RemoteWriteResult {
    fn into_response(self) -> Response {
        let mut response = if self.refused.count == 0 {
            StatusCode::NO_CONTENT.into_response()
        } else {
            let (number, why) = self.refused.named.first().map_or((0, ""), |(number, why)| (*number, why.as_str()));
            let message = format!(
                "partial write: {} series are refused, {} samples of the others are stored; series {number}: {why}",
                self.refused.count,
                self.readings.len()
            );
            let one = |(number, why): &(usize, String)| serde_json::json!({ "series": number, "error": why });
            let series: Vec<_> = self.refused.named.iter().map(one).collect();
            let body = serde_json::json!({ "error": message, "series": series });
            (StatusCode::BAD_REQUEST, Json(body)).into_response()
        };
        // Version 2.0 requires them; senders of 1.0 ignore them.
        for (name, count) in [
            ("x-prometheus-remote-write-samples-written", self.readings.len()),
            ("x-prometheus-remote-write-histograms-written", 0),
            ("x-prometheus-remote-write-exemplars-written", 0),
        ] {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(count));
        }
        response
    }
}

async fn answer(api: &Arc<Api>, request: Request) -> Result<RemoteWriteResult, ApiError> {
    let version = version(&request)?;
    let mut received = receive(api, request).await?;
    let interop = api.interop.clone();
    let done = tokio::task::spawn_blocking(move || {
        received.converted(|body| unpack(body, interop.config.body_bytes_max))?;
        let outcome = read(&interop, &received.sender, version, &received.body)?;
        Ok::<_, ApiError>((received, outcome))
    });
    let (received, outcome) =
        done.await.map_err(|error| ApiError::internal(format!("reading the series failed: {error}")))??;
    store(api, &received.sender.name, &outcome.readings).await?;
    api.metrics.remote_write_samples.add(outcome.readings.len() as u64);
    api.metrics.remote_write_stale.add(outcome.stale);
    api.metrics.remote_write_series_refused.add(outcome.refused.count as u64);
    api.metrics.remote_write_histograms.add(outcome.histograms as u64);
    if let Some((_, why)) = outcome.refused.named.first() {
        let what = format_args!("{} series of remote write", outcome.refused.count);
        api.interop.refusals.warn(&received.sender.name, what, why);
    }
    Ok(outcome)
}

/// The version of the request, by its headers.
fn version(request: &Request) -> Result<RemoteWriteVersion, ApiError> {
    let text = |name| request.headers().get(name).map_or("", |value| value.to_str().unwrap_or("?"));
    let refuse = |message: String| Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    let (kind, coding) = (text(header::CONTENT_TYPE), text(header::CONTENT_ENCODING));
    if coding != "snappy" {
        return refuse(format!("content-encoding {coding:?} is not supported; remote write requires snappy"));
    }
    RemoteWriteVersion::of(kind).map_or_else(
        || {
            refuse(format!(
                "content-type {kind:?} is not supported; send application/x-protobuf, with proto=prometheus.WriteRequest or \
                 proto=io.prometheus.write.v2.Request"
            ))
        },
        Ok,
    )
}

fn unpack(body: &[u8], bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let wrong = |error: snap::Error| ApiError::bad_request(format!("the body is not compressed with snappy: {error}"));
    if snap::raw::decompress_len(body).map_err(wrong)? > bytes_max {
        return Err(too_large(bytes_max));
    }
    snap::raw::Decoder::new().decompress_vec(body).map_err(wrong)
}

fn read(
    interop: &Interop,
    sender: &WriteSender,
    version: RemoteWriteVersion,
    bytes: &[u8],
) -> Result<RemoteWriteResult, ApiError> {
    let wrong =
        |why: &str| ApiError::bad_request(format!("the request cannot be read: {why}; nothing of it is stored"));
    let mut message = WriteMessage::parse(version, bytes).map_err(wrong)?;
    let families = std::mem::take(&mut message.families);
    if !families.is_empty() {
        interop.metadata.put(&sender.name, families);
    }
    let (mut outcome, mut values) =
        (RemoteWriteResult::default(), PendingValues::new(interop, LineProtocol::Prometheus));
    for (at, series) in message.series().enumerate() {
        let (number, series) = (at + 1, series.map_err(wrong)?);
        if series.histograms > 0 {
            outcome.histograms += series.histograms;
            outcome.refused.add(number, NO_HISTOGRAMS);
        }
        let mut samples = series.samples().peekable();
        if samples.peek().is_none() && series.names.is_ok() {
            continue;
        }
        match sensor(&series, &mut values, |name| interop.metadata.find(&sender.name, name)) {
            Ok(sensor) => {
                let mut out_of_range = None;
                for sample in samples {
                    let (ms, value) = sample.map_err(wrong)?;
                    let Some(time) = ms.checked_mul(MS) else {
                        out_of_range = out_of_range.or(Some(ms));
                        continue;
                    };
                    outcome.stale += u64::from(is_stale(value));
                    values.push(number, sensor, time, measured(value))?;
                }
                if let Some(ms) = out_of_range {
                    outcome.refused.add(number, format!("the time {ms} ms is out of range in ns"));
                }
            }
            Err(why) => outcome.refused.add(number, why),
        }
    }
    outcome.readings = values.readings(sender, &mut outcome.refused)?;
    Ok(outcome)
}

/// The sensor of a series. `known` finds metadata that the sender sent before.
fn sensor(
    series: &WrittenSeries<'_>,
    values: &mut PendingValues<'_>,
    known: impl Fn(&str) -> Option<MetricMetadata>,
) -> Result<usize, String> {
    let (name, labels) = series.names.as_ref().map_err(Clone::clone)?;
    let names = SeriesNames { measurement: name, tags: labels, shared: &[], field: "" };
    values.sensor(&names, Some(identity(labels, name)), true, || match &series.metadata {
        Some(declared) => properties(name, Some(declared)),
        None => properties(name, known(name).as_ref()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_bounded_before_it_is_unpacked() {
        let packed = snap::raw::Encoder::new().compress_vec(&vec![0; 1 << 20]).unwrap();
        assert!(packed.len() < 100_000);
        assert_eq!(unpack(&packed, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(unpack(&packed, (1 << 20) - 1).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        for wrong in [&b""[..], b"\xff\xff\xff\xff\xff\xff", &packed[..100]] {
            assert_eq!(unpack(wrong, 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST, "{wrong:?}");
        }
    }
}
