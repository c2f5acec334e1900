//! `/api/v1/query`: runs on a blocking thread and streams.

use std::io;
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;
use wholegrain_model::{Interval, Timestamp};
use wholegrain_query::{Query, QueryError, QueryResult};

use super::format::{Format, Writer};
use super::jobs::only_user;
use super::params;
use super::read::seen_sensors;
use super::sink::{Sink, sink};
use super::{Api, ApiError, EVERY_HEADER, SENSORS_HEADER, TIER_HEADER, WARNING_HEADER, WARNINGS_MAX};
use crate::access::tokens::Bearer;

/// The time now, ns since the Unix epoch.
pub(super) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// Answers a range query.
pub(super) async fn query(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let (query, format) = params::query(&uri, now())?;
    let Some(permit) = api.queries.try_take() else {
        let message = format!("{} queries are running already; try again shortly", api.queries.most());
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let (sink, body) = sink();
    let (head, head_receiver) = oneshot::channel();
    let user = only_user(&bearer).map(str::to_owned);
    tokio::task::spawn_blocking(move || {
        api.metrics.queries_running.add(1);
        work(&api, user.as_deref(), &query, format, sink, head);
        api.metrics.queries_running.add(-1);
        drop(permit);
    });
    let head = head_receiver.await.map_err(|_| ApiError::internal("the query failed; the server's log says why"))??;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(format.content_type())),
        (HeaderName::from_static(SENSORS_HEADER), HeaderValue::from(head.sensors)),
    ];
    Ok((headers, window_headers(head.tier, head.every), warning_headers(&head.warnings), body).into_response())
}

/// What is known of an answer before its first row.
struct Head {
    sensors: usize,
    tier: Option<Interval>,
    every: Option<Interval>,
    warnings: Vec<String>,
}

fn window_headers(tier: Option<Interval>, every: Option<Interval>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, length) in [(TIER_HEADER, tier), (EVERY_HEADER, every)] {
        let value = length.and_then(|length| HeaderValue::try_from(length.to_string()).ok());
        value.into_iter().for_each(|value| drop(headers.insert(HeaderName::from_static(name), value)));
    }
    headers
}

fn warning_headers(warnings: &[String]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |text: &str| {
        // A header is one line; bytes beyond ASCII may stand in it (RFC 9110, 5.5).
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) {
            headers.append(HeaderName::from_static(WARNING_HEADER), value);
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
    api: &Api,
    only_user: Option<&str>,
    query: &Query,
    format: Format,
    sink: Sink,
    head: oneshot::Sender<Result<Head, QueryError>>,
) {
    let breaker = sink.breaker();
    let run = || {
        query.validate()?;
        let sensors = seen_sensors(&api.store, &query.patterns, only_user);
        wholegrain_query::run_on(Box::new(api.store.snapshot()), sensors, query)
    };
    let mut result = match run() {
        Ok(result) => result,
        Err(error) => return drop(head.send(Err(error))),
    };
    let told = std::mem::take(&mut result.warnings);
    let known = Head { sensors: result.sensors.len(), tier: result.tier, every: result.every, warnings: told.clone() };
    if head.send(Ok(known)).is_err() {
        return api.metrics.queries_abandoned.inc();
    }
    match answer(api, result, &told, format, sink) {
        Ok(()) => {}
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

/// Writes the rows, and after them the warnings that the head could not tell because the reading met what they are about.
fn answer(api: &Api, mut result: QueryResult, told: &[String], format: Format, sink: Sink) -> io::Result<()> {
    let mut writer = Writer::new(format, &result.batches.schema(), sink)?;
    for batch in result.batches.by_ref() {
        if writer.sink().is_abandoned() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let batch = batch.map_err(io::Error::other)?;
        writer.batch(&batch)?;
        api.metrics.query_rows.add(batch.num_rows() as u64);
    }
    let untold = |texts: Vec<String>| -> Vec<String> {
        texts.into_iter().filter(|text| !told.contains(text)).take(WARNINGS_MAX).collect()
    };
    let (warnings, notes) = (untold(result.batches.warnings()), untold(result.batches.notes()));
    api.metrics.query_bytes.add(writer.finish(&warnings, &notes)?.bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_lines_and_few() {
        let shown = |count: usize| -> Vec<String> {
            let warnings: Vec<String> = (0..count).map(|i| format!("bl\u{f6}ck\n{i}")).collect();
            let headers = warning_headers(&warnings);
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
}
