//! `/api/v1/prometheus/read`: Prometheus remote read; see [`crate::prometheus`].

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use wholegrain_store::{ReadSnapshot, ReadStore, ScanRequest, SensorInfo, SensorRange, SnapshotReader, StoreError};

use super::clock::now;
use super::read::{SensorPages, run_until_abandoned};
use super::sink::{BodySink, sink};
use super::visibility::only_user;
use super::{Api, ApiError};
use crate::access::tokens::Bearer;
use crate::prometheus::hints::NeededTimes;
use crate::prometheus::labels::{Labels, labels};
use crate::prometheus::matchers::{LabelMatchers, patterns};
use crate::prometheus::samples::SeriesSamples;
use crate::prometheus::wire::{self, ReadEncoding, ReadQuery, ReadRequest};
use crate::prometheus::xor;

/// The largest request in bytes, compressed and uncompressed.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// How long a client may take to send a request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// The header of the protocol's version.
const VERSION_HEADER: &str = "x-prometheus-remote-read-version";
/// The function hint if series are listed without samples.
const SERIES: &str = "series";
const MS: i64 = 1_000_000;

/// Answers a read request.
pub(super) async fn read(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    request: Request,
) -> Result<Response, ApiError> {
    let request = parse(body(request).await?)?;
    let reading = RemoteRead { api: api.clone(), user: only_user(&bearer).map(str::to_owned), gone: Arc::default() };
    let permit = api.queries.try_take(&bearer)?;
    if request.accepted.first() == Some(&ReadEncoding::XorChunks) {
        let (sink, body) = sink();
        let asked = request.clone();
        let choose = move |is_gone: &dyn Fn() -> bool| (reading.choose_all(&asked, is_gone), reading, permit);
        let (chosen, reading, permit) = run_until_abandoned(&api.metrics, choose).await?;
        let chosen = chosen?;
        tokio::task::spawn_blocking(move || {
            reading.api.metrics.queries_running.add(1);
            reading.stream(&request, &chosen, sink);
            reading.api.metrics.queries_running.add(-1);
            drop(permit);
        });
        let kind = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse";
        return Ok(([(header::CONTENT_TYPE, kind)], body).into_response());
    }
    // Dropped with this future when the client disconnects.
    let leaving = ClientDropGuard(reading.gone.clone());
    let place = api.prometheus_places.clone().acquire_owned().await.map_err(|error| failed(&error))?;
    let answer = tokio::task::spawn_blocking(move || {
        reading.api.metrics.queries_running.add(1);
        let answer = reading.samples(&request);
        reading.api.metrics.queries_running.add(-1);
        drop((permit, place));
        answer
    });
    let answer = answer.await.map_err(|error| failed(&error))??;
    drop(leaving);
    api.metrics.query_bytes.add(answer.len() as u64);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf")),
        (header::CONTENT_ENCODING, HeaderValue::from_static("snappy")),
        (HeaderName::from_static(VERSION_HEADER), HeaderValue::from_static("0.1.0")),
    ];
    Ok((headers, answer).into_response())
}

fn failed(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::internal(format!("the read failed: {error}"))
}

async fn body(request: Request) -> Result<Bytes, ApiError> {
    let body = axum::body::to_bytes(request.into_body(), REQUEST_BYTES_MAX);
    match tokio::time::timeout(REQUEST_TIME_MAX, body).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => Err(ApiError::bad_request(format!(
            "the request did not come whole, or is over {REQUEST_BYTES_MAX} bytes: {error}"
        ))),
        Err(_) => {
            let message = format!("the request was not there after {} s", REQUEST_TIME_MAX.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

fn parse(body: Bytes) -> Result<ReadRequest, ApiError> {
    const WANTED: &str = "expected a prometheus.ReadRequest compressed with snappy";
    let wrong =
        |why: &dyn std::fmt::Display| ApiError::bad_request(format!("the request cannot be read: {why}; {WANTED}"));
    let length = snap::raw::decompress_len(&body).map_err(|error| wrong(&error))?;
    if length > REQUEST_BYTES_MAX {
        return Err(wrong(&format!("it has {length} bytes unpacked, at most {REQUEST_BYTES_MAX} are taken")));
    }
    let bytes = snap::raw::Decoder::new().decompress_vec(&body).map_err(|error| wrong(&error))?;
    ReadRequest::parse(&bytes).map_err(|why| wrong(&why))
}

/// Marks the client as disconnected when dropped.
struct ClientDropGuard(Arc<AtomicBool>);

impl Drop for ClientDropGuard {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

type LabelledSensor = (Labels, SensorInfo);

/// A read request in progress.
#[derive(Clone)]
struct RemoteRead {
    api: Arc<Api>,
    user: Option<String>,
    gone: Arc<AtomicBool>,
}

impl RemoteRead {
    /// The series of one query, sorted by labels; incomplete if the client disconnects.
    fn choose(&self, query: &ReadQuery, is_gone: &dyn Fn() -> bool) -> Result<Vec<LabelledSensor>, ApiError> {
        let config = &self.api.prometheus;
        let matchers = LabelMatchers::new(&query.matchers).map_err(ApiError::bad_request)?;
        let trailing = config.mappings.iter().map(|mapping| mapping.trailing()).max().unwrap_or(0);
        let patterns = patterns(&query.matchers, trailing, !config.mappings.is_empty());
        let mut chosen = Vec::new();
        let mut count = 0;
        SensorPages::new(&self.api, self.user.as_deref(), None, &patterns).each(is_gone, |sensor| {
            let labels = labels(&config.mappings, &sensor);
            if matchers.match_labels(&labels) {
                count += 1;
                if count <= config.series_max {
                    chosen.push((labels, sensor));
                }
            }
        });
        if count > config.series_max {
            return Err(ApiError::bad_request(format!(
                "the matchers choose {count} series, at most {} are taken (prometheus.series_max); narrow them by the metric's name, node=\"…\" or sensor=~\"/site/rack/.*\"",
                config.series_max
            )));
        }
        chosen.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(chosen)
    }

    fn choose_all(
        &self,
        request: &ReadRequest,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<LabelledSensor>>, ApiError> {
        request.queries.iter().map(|query| self.choose(query, is_gone)).collect()
    }

    /// Passes the samples of one series to `take`, which returns whether more are needed.
    fn series(
        &self,
        reader: &dyn SnapshotReader,
        query: &ReadQuery,
        sensor: &SensorInfo,
        mut take: impl FnMut(i64, f64),
        mut more: impl FnMut() -> bool,
    ) -> Result<(), StoreError> {
        if query.hints.as_ref().is_some_and(|hints| hints.func == SERIES) {
            return Ok(());
        }
        let lookback_ms = (self.api.prometheus.lookback.ns() / MS.cast_unsigned()).cast_signed();
        let mut samples = SeriesSamples::new(sensor, NeededTimes::of(query, lookback_ms));
        let (from, to) = range_of(query);
        if from >= to {
            return Ok(());
        }
        for chunk in reader.scan(&ScanRequest::readings(sensor, from, to))?.chunks() {
            samples.chunk(&chunk?, &mut take);
            if self.gone.load(Relaxed) || !more() {
                return Ok(());
            }
        }
        samples.finish(to, now().0, &mut take);
        Ok(())
    }

    /// The whole response as one compressed message.
    fn samples(&self, request: &ReadRequest) -> Result<Vec<u8>, ApiError> {
        let most = self.api.prometheus.samples_max;
        let (snapshot, mut count) = (self.api.space.snapshot(), 0);
        let mut response = Vec::new();
        for query in &request.queries {
            let chosen = self.choose(query, &|| self.gone.load(Relaxed))?;
            let reader = open(snapshot.as_ref(), query, &chosen).map_err(|error| unreadable(&error))?;
            let at = begin(&mut response);
            let mut series = Vec::new();
            for (labels, sensor) in &chosen {
                series.clear();
                wire::put_labels(labels, &mut series);
                let counted = std::cell::Cell::new(count);
                let take = |ms, value| {
                    counted.set(counted.get() + 1);
                    wire::put_sample(ms, value, &mut series);
                };
                let read = self.series(reader.as_ref(), query, sensor, take, || counted.get() <= most);
                read.map_err(|error| unreadable(&error))?;
                let is_listed = counted.get() > count || query.hints.as_ref().is_some_and(|hints| hints.func == SERIES);
                count = counted.get();
                if count > most {
                    return Err(ApiError::bad_request(format!(
                        "the answer has over {most} samples (prometheus.samples_max); ask for a shorter range or fewer series, or a step of which both ends of the range are multiples"
                    )));
                }
                if self.gone.load(Relaxed) {
                    self.api.metrics.queries_abandoned.inc();
                    return Ok(Vec::new());
                }
                if is_listed {
                    wire::put_bytes(1, &series, &mut response);
                }
            }
            end(at, &mut response);
        }
        self.api.metrics.query_rows.add(count as u64);
        snap::raw::Encoder::new().compress_vec(&response).map_err(|error| failed(&error))
    }

    /// Streams the response frame by frame.
    fn stream(&self, request: &ReadRequest, chosen: &[Vec<LabelledSensor>], mut sink: BodySink) {
        let breaker = sink.breaker();
        let snapshot = self.api.space.snapshot();
        let mut write = || -> io::Result<()> {
            for (number, (query, chosen)) in request.queries.iter().zip(chosen).enumerate() {
                let reader = open(snapshot.as_ref(), query, chosen).map_err(io::Error::other)?;
                for (labels, sensor) in chosen {
                    self.stream_series(reader.as_ref(), (number, query), (labels, sensor), &mut sink)?;
                }
            }
            sink.flush()
        };
        match write() {
            Ok(()) => self.api.metrics.query_bytes.add(sink.bytes()),
            Err(_) if breaker.is_abandoned() => self.api.metrics.queries_abandoned.inc(),
            Err(error) => {
                tracing::error!("prometheus: {error}");
                breaker.fail(error);
            }
        }
    }

    fn stream_series(
        &self,
        reader: &dyn SnapshotReader,
        (number, query): (usize, &ReadQuery),
        (labels, sensor): (&Labels, &SensorInfo),
        sink: &mut BodySink,
    ) -> io::Result<()> {
        let series = std::cell::RefCell::new(xor::XorSeries::new(number, labels));
        let mut rows = 0;
        let mut written = Ok(());
        let take = |ms, value| {
            rows += 1;
            series.borrow_mut().push(ms, value);
        };
        let read = self.series(reader, query, sensor, take, || {
            written = relay(&mut series.borrow_mut(), sink);
            written.is_ok()
        });
        written?;
        read.map_err(io::Error::other)?;
        self.api.metrics.query_rows.add(rows);
        let mut series = series.into_inner();
        match &query.hints {
            Some(hints) if hints.func == SERIES => series.finish_empty(),
            _ => series.finish(),
        }
        relay(&mut series, sink)
    }
}

fn relay(series: &mut xor::XorSeries, sink: &mut BodySink) -> io::Result<()> {
    sink.write_all(&series.frames)?;
    series.frames.clear();
    sink.relay()
}

/// The range of a query in ns, end exclusive.
fn range_of(query: &ReadQuery) -> (i64, i64) {
    (query.start_ms.saturating_mul(MS), query.end_ms.saturating_add(1).saturating_mul(MS))
}

fn open(
    snapshot: &dyn ReadSnapshot,
    query: &ReadQuery,
    chosen: &[LabelledSensor],
) -> Result<Arc<dyn SnapshotReader>, StoreError> {
    let (from, to) = range_of(query);
    snapshot.open(&mut chosen.iter().map(|(_, sensor)| SensorRange { sensor, from, to }))
}

fn unreadable(error: &StoreError) -> ApiError {
    tracing::error!("prometheus: {error}");
    ApiError::internal(format!("reading the store failed: {error}"))
}

/// The most bytes of a field's key and length.
const HEAD_BYTES: usize = 11;

/// Reserves space for a field's key and length; returns its position.
fn begin(response: &mut Vec<u8>) -> usize {
    let at = response.len();
    response.extend_from_slice(&[0; HEAD_BYTES]);
    at
}

/// Writes the key (1) and the length of the field that [`begin`] started.
fn end(at: usize, response: &mut Vec<u8>) {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    wire::put_varint(1 << 3 | 2, &mut head);
    wire::put_varint((response.len() - at - HEAD_BYTES) as u64, &mut head);
    response.splice(at..at + HEAD_BYTES, head);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_framed_in_place() {
        for length in [0, 1, 127, 128, 100_000] {
            let mut response = b"before".to_vec();
            let at = begin(&mut response);
            response.resize(response.len() + length, 7);
            end(at, &mut response);
            let mut expected = b"before".to_vec();
            wire::put_bytes(1, &vec![7; length], &mut expected);
            assert_eq!(response, expected, "{length}");
        }
    }

    #[test]
    fn a_request_that_is_none_is_refused() {
        let large = snap::raw::Encoder::new().compress_vec(&vec![0; REQUEST_BYTES_MAX + 1]).unwrap();
        for body in [&b""[..], b"not snappy", &[0xff; 20], &large] {
            let error = parse(Bytes::copy_from_slice(body)).unwrap_err();
            assert!(error.message.contains("compressed with snappy"), "{}", error.message);
        }
    }
}
