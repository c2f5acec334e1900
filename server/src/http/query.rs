//! `/api/v1/query`: runs on a blocking thread and streams; small results are returned directly.

mod at_once;

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;
use wholegrain_model::Interval;
use wholegrain_query::jobs::JobScope;
use wholegrain_query::{Query, QueryError, QueryResult, SENSORS_MAX};
use wholegrain_store::SensorInfo;

use super::clock::now;
use super::format::{ResponseFormat, RowWriter};
use super::params;
use super::read::SensorPages;
use super::sink::{BodySink, ResponseWriter, sink};
use super::visibility::only_user;
use super::{Api, ApiError, EVERY_HEADER, NOTE_HEADER, SENSORS_HEADER, TIER_HEADER, WARNING_HEADER, WARNINGS_MAX};
use crate::access::tokens::Bearer;

pub(super) async fn query(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (mut query, format, of_job) = params::query(&uri, now())?;
    let format = format.unwrap_or_else(|| ResponseFormat::accepted(&headers));
    let job = super::job_scope::find(&api, &bearer, of_job.as_ref()).await?;
    if let (Some(of_job), Some(job)) = (&of_job, &job) {
        super::job_scope::fit(of_job, job, &mut query)?;
    }
    let permit = api.queries.try_take(&bearer)?;
    let user = only_user(&bearer).map(str::to_owned);
    let tried = if job.is_none() { at_once::answer(&api, user.as_deref(), &query, format) } else { Err(None) };
    let sensors = match tried {
        Ok((head, bytes)) => {
            drop(permit);
            return Ok(respond(&head, format, Body::from(bytes)));
        }
        Err(sensors) => sensors,
    };
    let (sink, body) = sink();
    let (head, head_receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        api.metrics.queries_running.add(1);
        let client = sink.breaker();
        let pages = SensorPages::new(&api, user.as_deref(), job.as_ref(), &query.patterns);
        let choose = || pages.at_most(SENSORS_MAX, &|| client.is_abandoned()).into();
        work(&api, job.as_ref(), &query, || sensors.unwrap_or_else(choose), format, sink, head);
        api.metrics.queries_running.add(-1);
        drop(permit);
    });
    let head = head_receiver.await.map_err(|_| ApiError::internal("the query failed; the server's log says why"))??;
    Ok(respond(&head, format, body))
}

fn respond(head: &QueryHead, format: ResponseFormat, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(format.content_type())),
        (HeaderName::from_static(SENSORS_HEADER), HeaderValue::from(head.sensors)),
    ];
    let mut remarks = remark_headers(WARNING_HEADER, &head.warnings);
    remarks.extend(remark_headers(NOTE_HEADER, &head.notes));
    (headers, window_headers(head.tier, head.every), remarks, body).into_response()
}

/// What is known before the first row.
struct QueryHead {
    sensors: usize,
    tier: Option<Interval>,
    every: Option<Interval>,
    warnings: Vec<String>,
    /// What is left out on purpose.
    notes: Vec<String>,
}

impl QueryHead {
    fn of(result: &QueryResult) -> Self {
        let (warnings, notes) = (result.warnings.clone(), result.notes.clone());
        Self { sensors: result.sensors.len(), tier: result.tier, every: result.every, warnings, notes }
    }
}

fn window_headers(tier: Option<Interval>, every: Option<Interval>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, length) in [(TIER_HEADER, tier), (EVERY_HEADER, every)] {
        let value = length.and_then(|length| HeaderValue::try_from(length.to_string()).ok());
        value.into_iter().for_each(|value| drop(headers.insert(HeaderName::from_static(name), value)));
    }
    headers
}

fn remark_headers(name: &'static str, warnings: &[String]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |text: &str| {
        // A header is one line; bytes beyond ASCII are allowed (RFC 9110, 5.5).
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
            headers.append(HeaderName::from_static(name), value);
        }
    };
    let shown = if warnings.len() > WARNINGS_MAX { WARNINGS_MAX - 1 } else { warnings.len() };
    warnings[..shown].iter().for_each(|warning| add(warning));
    if shown < warnings.len() {
        add(&format!("and {} more; the server's log names them", warnings.len() - shown));
    }
    headers
}

fn work(
    api: &Arc<Api>,
    job: Option<&Arc<JobScope>>,
    query: &Query,
    sensors: impl FnOnce() -> Arc<[SensorInfo]>,
    format: ResponseFormat,
    sink: BodySink,
    head: oneshot::Sender<Result<QueryHead, QueryError>>,
) {
    let breaker = sink.breaker();
    let run = || {
        query.validate()?;
        let sensors = sensors();
        let snapshot = api.space.snapshot_for(&sensors);
        match job {
            Some(job) => wholegrain_query::run_in_job(snapshot, job, sensors, query),
            None => wholegrain_query::run_on(snapshot, sensors, query),
        }
    };
    let mut result = match run() {
        Ok(result) => result,
        Err(error) => return drop(head.send(Err(error))),
    };
    let known = QueryHead::of(&result);
    let mut reported = std::mem::take(&mut result.warnings);
    reported.append(&mut result.notes);
    stop_without_client(&mut result, &sink);
    if head.send(Ok(known)).is_err() {
        return api.metrics.queries_abandoned.inc();
    }
    let count = |rows| api.metrics.query_rows.add(rows);
    match answer(result, &reported, format, sink, count) {
        Ok(sink) => api.metrics.query_bytes.add(sink.bytes()),
        // The format's writer may have wrapped the broken pipe in an error of its own.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe || breaker.is_abandoned() => {
            api.metrics.queries_abandoned.inc()
        }
        Err(error) => {
            tracing::error!("query {:?}: {error}", query.patterns.iter().map(|p| p.as_str()).collect::<Vec<_>>());
            breaker.fail(error);
        }
    }
}

/// Stops the computation when the client disconnects, also while there are no rows to write.
fn stop_without_client(result: &mut QueryResult, sink: &BodySink) {
    let client = sink.breaker();
    result.batches.stop_when(move || client.is_abandoned());
}

/// Writes the rows, then the warnings that were unknown when the headers were sent.
fn answer<W: ResponseWriter>(
    mut result: QueryResult,
    reported: &[String],
    format: ResponseFormat,
    sink: W,
    mut count: impl FnMut(u64),
) -> io::Result<W> {
    let mut writer = RowWriter::new(format, &result.batches.schema(), sink)?;
    for batch in result.batches.by_ref() {
        if writer.sink().is_abandoned() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let batch = batch.map_err(io::Error::other)?;
        writer.batch(&batch)?;
        count(batch.num_rows() as u64);
    }
    let unreported = |texts: Vec<String>| -> Vec<String> {
        texts.into_iter().filter(|text| !reported.contains(text)).take(WARNINGS_MAX).collect()
    };
    let (warnings, notes) = (unreported(result.batches.warnings()), unreported(result.batches.notes()));
    writer.finish(&warnings, &notes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use wholegrain_model::{Column, ColumnValues, Gaps, Kind, Pattern, Timestamp, ValueType};
    use wholegrain_query::{Across, Agg};
    use wholegrain_store::{
        Chunk, ReadSnapshot, Scan, ScanRequest, SensorId, SensorInfo, SensorRange, SnapshotReader, StoreError,
    };

    use super::*;

    #[test]
    fn warnings_are_lines_and_few() {
        let shown = |count: usize| -> Vec<String> {
            let warnings: Vec<String> = (0..count).map(|i| format!("bl\u{f6}ck\n{i}")).collect();
            let headers = remark_headers(WARNING_HEADER, &warnings);
            let values = headers.get_all(WARNING_HEADER).iter();
            values.map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap()).collect()
        };
        assert!(shown(0).is_empty());
        assert_eq!(shown(8).len(), 8);
        let many = shown(11);
        assert_eq!(
            (many.len(), many[0].as_str(), many[7].as_str()),
            (8, "bl\u{f6}ck 0", "and 4 more; the server's log names them")
        );
    }

    /// Readings of each nanosecond of each sensor, without end where the range has none, made up as they are read.
    #[derive(Clone)]
    struct Endless(Arc<AtomicUsize>);

    impl ReadSnapshot for Endless {
        fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
            Ok(Arc::new(self.clone()))
        }
    }

    impl SnapshotReader for Endless {
        fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
            let read = self.0.clone();
            let chunk = move |time| {
                read.fetch_add(1, Relaxed);
                let times = vec![time];
                Ok(Chunk { times, column: Column { values: ColumnValues::Int(vec![1]), gaps: Gaps::default() } })
            };
            Ok(Scan::of_chunks(request, (request.from..request.to).map(chunk)))
        }
    }

    fn endless(name: &str) -> SensorInfo {
        SensorInfo {
            id: SensorId(0),
            path: name.into(),
            unit: "W".into(),
            kind: Kind::Gauge,
            value_type: ValueType::Int,
            scale: 1.0,
            wraps_at: None,
            description: String::new(),
            interval_ns: 1,
            last_time: None,
            agent: "".into(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_query_without_a_row_to_show_ends_when_its_client_goes() {
        for across in [None, Some(Across { agg: Agg::Sum, levels: None })] {
            let query = Query {
                patterns: vec![Pattern::new("/**").unwrap()],
                from: Timestamp(0),
                to: Timestamp(i64::MAX),
                every: None,
                points: None,
                agg: Some(Agg::Mean),
                op: None,
                across,
                unit: None,
                limit: None,
            };
            let read = Arc::new(AtomicUsize::new(0));
            let sensors = vec![endless("/a"), endless("/b")];
            let mut result = wholegrain_query::run_on(Box::new(Endless(read.clone())), sensors, &query).unwrap();
            let (sink, body) = sink();
            stop_without_client(&mut result, &sink);
            let worker = tokio::task::spawn_blocking(move || {
                answer(result, &[], ResponseFormat::Json, sink, drop).err().unwrap().to_string()
            });
            while read.load(Relaxed) < 1000 {
                tokio::task::yield_now().await;
            }
            assert!(!worker.is_finished());
            drop(body);
            let ended = tokio::time::timeout(std::time::Duration::from_secs(60), worker).await;
            assert_eq!(ended.expect("it goes on without its client").unwrap(), "broken pipe");
        }
    }
}
