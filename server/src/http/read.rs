//! `/api/v1/sensors` and `/api/v1/newest`: long lists, streamed.

use std::io::{self, Write};
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use wholegrain_model::{Kind, Pattern, Timestamp, Value, ValueType};
use wholegrain_query::Scale;
use wholegrain_store::{SensorInfo, Store};

use super::format::{json_text, json_value, scaled};
use super::jobs::only_user;
use super::params::{self, Params};
use super::sink::{Sink, sink};
use super::{Api, ApiError, SENSORS_HEADER};
use crate::access::tokens::Bearer;

/// Lists sensors, all without a pattern.
pub(super) async fn sensors(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let mut patterns = Params::of(&uri, params::SENSORS)?.patterns()?;
    if patterns.is_empty() {
        patterns.push(Pattern::new("/**").map_err(|error| ApiError::internal(error.to_string()))?);
    }
    let sensors = select(&api, &bearer, patterns).await?;
    Ok(list("sensors", sensors.len(), move |sink| {
        sensors.iter().try_fold(true, |first, info| sensor(info, first, sink)).map(|_| ())
    }))
}

/// Gives the newest reading of each sensor that has one.
pub(super) async fn newest(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let patterns = Params::of(&uri, params::NEWEST)?.some_patterns()?;
    let sensors = select(&api, &bearer, patterns).await?;
    Ok(list("readings", sensors.len(), move |sink| {
        let ids: Vec<_> = sensors.iter().map(|info| info.id).collect();
        let mut first = true;
        for (info, newest) in sensors.iter().zip(api.store.newest(&ids)) {
            if let Some((time, value)) = newest {
                reading(info, time, value, first, sink)?;
                first = false;
            }
        }
        Ok(())
    }))
}

async fn select(api: &Arc<Api>, bearer: &Bearer, patterns: Vec<Pattern>) -> Result<Vec<SensorInfo>, ApiError> {
    let (api, user) = (api.clone(), only_user(bearer).map(str::to_owned));
    let chosen = tokio::task::spawn_blocking(move || seen_sensors(&api.store, &patterns, user.as_deref())).await;
    chosen.map_err(|error| ApiError::internal(format!("choosing the sensors failed: {error}")))
}

/// The sensors that the patterns choose and the bearer may see: users see none of other people's jobs.
pub(super) fn seen_sensors(store: &Store, patterns: &[Pattern], only_user: Option<&str>) -> Vec<SensorInfo> {
    let mut sensors = store.sensors(patterns);
    if let Some(user) = only_user {
        store.retain_seen(user, &mut sensors);
    }
    sensors
}

/// `{"<name>":[…]}` whose content `write` gives on a blocking thread.
fn list(
    name: &'static str,
    count: usize,
    write: impl FnOnce(&mut Sink) -> io::Result<()> + Send + 'static,
) -> Response {
    let (mut sink, body) = sink();
    tokio::task::spawn_blocking(move || {
        let written = write!(sink, "{{\"{name}\":[")
            .and_then(|()| write(&mut sink))
            .and_then(|()| sink.write_all(b"]}\n"))
            .and_then(|()| sink.flush());
        if let Err(error) = written {
            // Only a client that has gone makes this fail; the answer is cut off in any case.
            sink.breaker().fail(error);
        }
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (HeaderName::from_static(SENSORS_HEADER), HeaderValue::from(count)),
    ];
    (headers, body).into_response()
}

#[derive(serde::Serialize)]
struct Sensor<'a> {
    path: &'a str,
    unit: &'a str,
    kind: Kind,
    #[serde(rename = "type")]
    value_type: ValueType,
    scale: f64,
    interval_ns: u64,
    last_time: Option<String>,
    description: &'a str,
    agent: &'a str,
}

/// Writes one; gives back false for the next one's `first`.
fn sensor(info: &SensorInfo, first: bool, sink: &mut Sink) -> io::Result<bool> {
    sink.write_all(if first { b"" } else { b",\n" })?;
    let sensor = Sensor {
        path: &info.path,
        unit: &info.unit,
        kind: info.kind,
        value_type: info.value_type,
        scale: info.scale,
        interval_ns: info.interval_ns,
        last_time: info.last_time.map(|time| Timestamp(time).to_string()),
        description: &info.description,
        agent: &info.agent,
    };
    serde_json::to_writer(&mut *sink, &sensor)?;
    sink.relay()?;
    Ok(false)
}

fn reading(info: &SensorInfo, time: i64, value: Option<Value>, first: bool, sink: &mut Sink) -> io::Result<()> {
    sink.write_all(if first { b"" } else { b",\n" })?;
    write!(sink, "{{\"path\":{},\"time\":\"{}\",\"value\":", json_text(&info.path), Timestamp(time))?;
    json_value(value.map(|value| scaled(value, Scale::new(info.scale))), sink)?;
    write!(sink, ",\"unit\":{}}}", json_text(&info.unit))?;
    sink.relay()
}
