//! `/api/v1/server/…`: changes by administrators at run time.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use wholegrain_model::{Interval, LogLevel};

use super::clock::now;
use super::params::QueryParams;
use super::{Api, ApiError};
use crate::log::FOR;

pub(super) const LOG: &[&str] = &["level", "for"];

pub(super) async fn log(State(api): State<Arc<Api>>) -> Response {
    Json(api.reloader.log().state()).into_response()
}

pub(super) async fn set_log(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, LOG)?;
    let level = params
        .read("level", |text| text.parse::<LogLevel>())?
        .ok_or_else(|| ApiError::bad_request("which level? add ?level= and error, warn, info, debug or trace"))?;
    let within = params.read("for", Interval::parse)?;
    if let Some(within) = within.filter(|within| !(FOR.0..=FOR.1).contains(within)) {
        let message = format!("parameter `for` is {within}; expected {} to {}", FOR.0, FOR.1);
        return Err(ApiError::bad_request(message));
    }
    let within = within.map(Interval::duration);
    let log = api.reloader.log();
    log.set(level, within, (Instant::now(), now()));
    if let Some(within) = within {
        let reloader = api.reloader.clone();
        tokio::spawn(async move {
            tokio::time::sleep(within).await;
            reloader.log().look(Instant::now());
        });
    }
    Ok(Json(log.state()).into_response())
}

pub(super) async fn reload(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let reloader = api.reloader.clone();
    let done = tokio::task::spawn_blocking(move || reloader.reload()).await;
    let done = done.map_err(|error| ApiError::internal(format!("reloading failed: {error}")))?;
    done.map(|done| Json(done).into_response())
        .map_err(|error| ApiError::bad_request(format!("{error}; the configuration in force stays")))
}
