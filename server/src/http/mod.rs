//! The HTTP API, version 1, over TLS.
//!
//! - Input: requests with a bearer token. Output: JSON, NDJSON, CSV, Arrow IPC, metrics; errors as `{"error": "…"}`.
//! - Never: a whole result in memory; a response without a token except on [`Permission::Open`] routes; work for a client that has disconnected.

mod admin;
mod api;
mod clock;
mod compression;
mod cors;
mod data;
mod error;
mod format;
mod guard;
mod import;
mod job_energy;
mod job_scope;
mod job_statistics;
mod jobs;
mod losses;
mod maintenance;
mod maintenance_tasks;
mod names;
#[cfg(test)]
mod openapi;
mod otlp;
mod params;
mod permission;
mod prometheus;
mod properties;
mod query;
mod read;
mod remote_write;
mod routes;
mod rules;
mod serve;
mod sink;
mod status;
mod virtuals;
mod visibility;
mod watch;
mod watch_computed;
mod write;
mod write_request;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;

pub(crate) use api::Api;
pub use api::{EVERY_HEADER, NEXT_HEADER, NOTE_HEADER, SENSORS_HEADER, TIER_HEADER, WARNING_HEADER, WARNINGS_MAX};
pub(crate) use error::ApiError;
pub(crate) use routes::routes;
pub(crate) use serve::{HttpFrontend, accept};

/// The routes with access checks, error responses and counters.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for (path, _, method_router) in routes() {
        router = router.route(path, method_router);
    }
    router
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "no such path; /openapi.json lists them") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path does not take that method; /openapi.json lists what it takes",
            )
        })
        .layer(axum::middleware::map_response(error::in_json))
        .layer(axum::middleware::from_fn_with_state(api.clone(), guard::guard))
        .layer(axum::middleware::from_fn_with_state(api.cors_origins.clone(), cors::cors))
        .layer(compression::layer())
        .with_state(api)
}
