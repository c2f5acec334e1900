//! The HTTP API, version 1, over TLS.
//!
//! - In: GET requests with a bearer token. Out: JSON, NDJSON, CSV, Arrow IPC, metrics; errors as `{"error": "…"}`.
//! - Never: a whole result in memory, an answer without a token but for [`Access::Open`] routes, work for a client that left.

mod error;
mod format;
mod params;
mod query;
mod read;
mod serve;
mod sink;
mod status;
mod tokens;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tokio::sync::{Semaphore, watch as signal};
use wholegrain_store::Store;

use crate::config::HttpConfig;
use crate::live::Live;
use crate::metrics::Metrics;

pub(crate) use error::ApiError;
pub(crate) use serve::{Front, accept};
pub(crate) use tokens::Tokens;

/// How many sensors the patterns chose, so that a client knows when nothing matched.
pub const SENSORS_HEADER: &str = "x-wholegrain-sensors";

/// The resolution of the downsampled tier that answers wherever it can; absent when only readings are read.
pub const TIER_HEADER: &str = "x-wholegrain-tier";
/// The width of the windows of an answer that has some.
pub const EVERY_HEADER: &str = "x-wholegrain-every";

/// What is missing from an answer; once for each warning.
pub const WARNING_HEADER: &str = "x-wholegrain-warning";
/// The most warnings in one answer; the last of them then counts the others.
pub const WARNINGS_MAX: usize = 8;

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody.
    Open,
    /// Whoever shows a token.
    Token,
}

/// Every route: its path, who may call it, what answers.
pub(crate) fn routes() -> [(&'static str, Access, MethodRouter<Arc<Api>>); 7] {
    [
        ("/api/v1/sensors", Access::Token, get(read::sensors)),
        ("/api/v1/newest", Access::Token, get(read::newest)),
        ("/api/v1/query", Access::Token, get(query::query)),
        ("/api/v1/watch", Access::Token, get(watch::watch)),
        ("/healthz", Access::Open, get(status::healthz)),
        ("/metrics", Access::Token, get(status::metrics)),
        ("/openapi.json", Access::Open, get(status::openapi)),
    ]
}

/// What all requests share.
pub(crate) struct Api {
    pub store: Store,
    pub metrics: Arc<Metrics>,
    pub live: Live,
    pub tokens: Tokens,
    pub queries: Arc<Semaphore>,
    pub queries_max: usize,
    pub shutdown: signal::Receiver<bool>,
}

impl Api {
    pub fn new(
        config: &HttpConfig,
        store: Store,
        metrics: Arc<Metrics>,
        live: Live,
        shutdown: signal::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            store,
            metrics,
            live,
            tokens: Tokens::load(&config.tokens_file)?,
            queries: Arc::new(Semaphore::new(config.queries_max)),
            queries_max: config.queries_max,
            shutdown,
        })
    }
}

/// The routes with their access checks, error answers and counters.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for (path, _, method_router) in routes() {
        router = router.route(path, method_router);
    }
    router
        .fallback(|| async { ApiError::new(StatusCode::NOT_FOUND, "no such path; /openapi.json lists them") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "only GET is understood here")
        })
        .layer(axum::middleware::from_fn_with_state(api.clone(), guard))
        .with_state(api)
}

/// Checks the token and counts the request.
async fn guard(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let route = routes_by_path(path);
    let open = matches!(route, Some((_, Access::Open))) && matches!(*request.method(), Method::GET | Method::HEAD);
    let refused = if open { None } else { api.tokens.check(request.headers().get(header::AUTHORIZATION)).err() };
    let response = match refused {
        None => next.run(request).await,
        Some(error) => error.into_response(),
    };
    api.metrics.http_request(route.map_or("other", |(path, _)| path), response.status().as_u16());
    response
}

fn routes_by_path(path: &str) -> Option<(&'static str, Access)> {
    static TABLE: std::sync::LazyLock<Vec<(&'static str, Access)>> =
        std::sync::LazyLock::new(|| routes().iter().map(|(path, access, _)| (*path, *access)).collect());
    TABLE.iter().find(|(known, _)| *known == path).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_openapi_document_lists_exactly_the_routes() {
        let document: serde_json::Value = serde_json::from_str(status::OPENAPI).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let listed: std::collections::BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routed = routes().iter().map(|(path, ..)| *path).collect();
        assert_eq!(listed, routed);
        for (path, access, _) in routes() {
            let operation = &document["paths"][path]["get"];
            assert!(operation["summary"].is_string() && operation["responses"]["200"].is_object(), "{path}");
            let open = operation["security"].as_array().is_some_and(Vec::is_empty);
            assert_eq!(open, access == Access::Open, "{path}: security");
            assert_eq!(operation["responses"]["401"].is_object(), access == Access::Token, "{path}: 401");
        }
    }

    #[test]
    fn the_openapi_document_lists_exactly_the_parameters() {
        let document: serde_json::Value = serde_json::from_str(status::OPENAPI).unwrap();
        for (path, known) in [
            ("/api/v1/sensors", params::SENSORS),
            ("/api/v1/newest", params::NEWEST),
            ("/api/v1/query", params::QUERY),
            ("/api/v1/watch", params::WATCH),
        ] {
            let listed: Vec<&str> = document["paths"][path]["get"]["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .map(|parameter| {
                    let name = parameter["$ref"].as_str().map_or(&parameter["name"], |reference| {
                        &document["components"]["parameters"][reference.rsplit('/').next().unwrap()]["name"]
                    });
                    name.as_str().unwrap()
                })
                .collect();
            assert_eq!(listed, known, "{path}");
        }
    }
}
