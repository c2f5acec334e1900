//! The HTTP API, version 1, over TLS.
//!
//! - Input: requests with a bearer token. Output: JSON, NDJSON, CSV, Arrow IPC, metrics; errors as `{"error": "…"}`.
//! - Never: a whole result in memory; a response without a token except on [`Permission::Open`] routes; work for a client that has disconnected.

mod admin;
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
mod names;
mod params;
mod prometheus;
mod properties;
mod query;
mod read;
mod rules;
mod serve;
mod sink;
mod status;
mod virtuals;
mod visibility;
mod watch;
mod watch_computed;
mod write;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode};
use axum::routing::{MethodRouter, get, post};
use tokio::sync::{Semaphore, watch as signal};
use wholegrain_query::Space;
use wholegrain_store::Store;

use crate::ServerConfig;
use crate::access::{Permission, Security};
use crate::admission::IdentityQuotas;
use crate::broker::Broker;
use crate::interop::Interop;
use crate::jobs::config::JobsConfig;
use crate::live_feed::LiveFeed;
use crate::metrics::Metrics;
use crate::prometheus::config::PrometheusConfig;
use crate::reload::Reloader;
use crate::token_permits::TokenPermits;

pub(crate) use error::ApiError;
pub(crate) use serve::{HttpFrontend, accept};

/// The number of sensors that match the patterns, so that a client knows if there was none.
pub const SENSORS_HEADER: &str = "x-wholegrain-sensors";

/// The resolution of the downsampled tier used where possible; absent if only readings are read.
pub const TIER_HEADER: &str = "x-wholegrain-tier";
/// The width of the windows, if the response has windows.
pub const EVERY_HEADER: &str = "x-wholegrain-every";

/// What is missing from a response; once for each warning.
pub const WARNING_HEADER: &str = "x-wholegrain-warning";
/// The cursor of the next page of a CSV list; absent on the last page.
pub const NEXT_HEADER: &str = "x-wholegrain-next";
/// What is left out on purpose, such as readings dropped by retention; once for each.
pub const NOTE_HEADER: &str = "x-wholegrain-note";
/// The most warnings in a response; the last one then counts the others.
pub const WARNINGS_MAX: usize = 8;

/// A route: path, required permissions, handlers.
pub(crate) type Route = (&'static str, RoutePermissions, MethodRouter<Arc<Api>>);

/// The permissions that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoutePermissions {
    pub read: Permission,
    pub change: Permission,
}

impl RoutePermissions {
    const fn new(read: Permission, change: Permission) -> Self {
        Self { read, change }
    }

    const fn all(permission: Permission) -> Self {
        Self::new(permission, permission)
    }

    pub fn of(self, method: &Method) -> Permission {
        if matches!(*method, Method::GET | Method::HEAD) { self.read } else { self.change }
    }
}

/// Every route.
pub(crate) fn routes() -> Vec<Route> {
    use Permission::{Manage, Open, Read, Status, Steer, Write};
    vec![
        ("/api/v1/sensors", RoutePermissions::all(Read), get(read::sensors)),
        ("/api/v1/names", RoutePermissions::all(Read), get(names::names)),
        ("/api/v1/newest", RoutePermissions::all(Read), get(read::newest)),
        ("/api/v1/query", RoutePermissions::all(Read), get(query::query)),
        ("/api/v1/watch", RoutePermissions::all(Read), get(watch::watch)),
        ("/api/v1/prometheus/read", RoutePermissions::all(Read), post(prometheus::read)),
        (
            "/api/v1/properties",
            RoutePermissions::new(Read, Manage),
            get(properties::show).put(properties::set).delete(properties::unset),
        ),
        ("/api/v1/properties/settings", RoutePermissions::all(Read), get(properties::settings)),
        ("/api/v1/properties/history", RoutePermissions::all(Read), get(properties::history)),
        ("/api/v1/jobs", RoutePermissions::all(Read), get(jobs::jobs)),
        ("/api/v1/jobs/{id}", RoutePermissions::all(Read), get(jobs::job)),
        ("/api/v1/jobs/{id}/statistics", RoutePermissions::all(Read), get(job_statistics::statistics)),
        ("/api/v1/jobs/{id}/energy", RoutePermissions::all(Read), get(job_energy::energy)),
        (
            "/api/v1/jobs/{id}/rules",
            RoutePermissions::new(Read, Steer),
            get(rules::show).post(rules::add).delete(rules::end).layer(DefaultBodyLimit::max(rules::BODY_BYTES_MAX)),
        ),
        (import::PATH, RoutePermissions::new(Status, Manage), get(import::show).post(import::import)),
        (
            "/api/v1/virtual",
            RoutePermissions::new(Read, Manage),
            get(virtuals::list)
                .put(virtuals::define)
                .post(virtuals::check)
                .delete(virtuals::remove)
                .layer(DefaultBodyLimit::max(virtuals::BODY_BYTES_MAX)),
        ),
        ("/api/v1/virtual/history", RoutePermissions::all(Status), get(virtuals::history)),
        ("/api/v1/write/influx", RoutePermissions::all(Write), post(write::influx)),
        ("/api/v2/write", RoutePermissions::all(Write), post(write::influx)),
        ("/write", RoutePermissions::all(Write), post(write::influx)),
        ("/api/v1/write/clustercockpit", RoutePermissions::all(Write), post(write::clustercockpit)),
        ("/api/write/", RoutePermissions::all(Write), post(write::clustercockpit)),
        (
            "/api/v1/data/retention",
            RoutePermissions::new(Status, Manage),
            get(data::retention).put(data::set_retention).delete(data::unset_retention),
        ),
        ("/api/v1/data/delete", RoutePermissions::all(Manage), post(data::delete)),
        ("/api/v1/data/stats", RoutePermissions::all(Status), get(data::stats)),
        ("/api/v1/data/lost", RoutePermissions::new(Status, Manage), get(losses::list).post(losses::acknowledge)),
        (
            "/api/v1/data/compact",
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            "/api/v1/data/verify",
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            "/api/v1/data/repair",
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            "/api/v1/data/backup",
            RoutePermissions::all(Manage),
            post(data::backup).layer(DefaultBodyLimit::max(data::HAVE_BYTES_MAX)),
        ),
        ("/api/v1/server/log", RoutePermissions::new(Status, Manage), get(admin::log).put(admin::set_log)),
        ("/api/v1/server/reload", RoutePermissions::all(Manage), post(admin::reload)),
        ("/healthz", RoutePermissions::all(Open), get(status::healthz)),
        // Where InfluxDB clients check that the server exists.
        ("/ping", RoutePermissions::all(Open), get(status::ping)),
        ("/health", RoutePermissions::all(Open), get(status::health)),
        ("/metrics", RoutePermissions::all(Status), get(status::metrics)),
        ("/openapi.json", RoutePermissions::all(Open), get(status::openapi)),
    ]
}

/// The state that all requests share.
pub(crate) struct Api {
    pub store: Store,
    /// Stored and computed sensors.
    pub space: Space,
    pub broker: Arc<Broker>,
    pub metrics: Arc<Metrics>,
    pub live: LiveFeed,
    pub security: Arc<Security>,
    pub interop: Arc<Interop>,
    /// Origins allowed by CORS.
    pub cors_origins: Arc<[String]>,
    /// Permits for writes, and each token's bytes of bodies being received.
    pub writes: TokenPermits,
    pub bodies: Arc<IdentityQuotas>,
    /// Permits for parts of imports.
    pub imports: Arc<Semaphore>,
    /// Permits for statistics of the store, and for a backup.
    pub stats: TokenPermits,
    pub backups: Arc<Semaphore>,
    pub upkeep: maintenance::MaintenanceTasks,
    pub queries: Arc<TokenPermits>,
    /// Permits for long lists of sensors.
    pub lists: TokenPermits,
    /// Live streams of each token.
    pub watches: Arc<IdentityQuotas>,
    pub prometheus: PrometheusConfig,
    pub jobs: JobsConfig,
    /// Permits for Prometheus responses that are assembled in memory.
    pub prometheus_places: Arc<Semaphore>,
    pub reloader: Arc<Reloader>,
    pub shutdown: signal::Receiver<bool>,
}

impl Api {
    /// Shares its parts with the broker.
    pub fn new(
        broker: Arc<Broker>,
        live: LiveFeed,
        reloader: Arc<Reloader>,
        config: &ServerConfig,
        shutdown: signal::Receiver<bool>,
    ) -> Self {
        Self {
            store: broker.store.clone(),
            space: Space::new(broker.store.clone()),
            metrics: broker.metrics.clone(),
            live,
            security: broker.security.clone(),
            interop: broker.interop.clone(),
            broker,
            cors_origins: config.http.cors_origins.clone().into(),
            writes: TokenPermits::new("writes", write::WRITES_MAX, write::WRITES_PER_TOKEN_MAX),
            bodies: IdentityQuotas::new(config.interop.body_bytes_max.saturating_mul(write::BODIES_PER_TOKEN_MAX)),
            imports: Arc::new(Semaphore::new(import::IMPORTS_MAX)),
            stats: TokenPermits::new("statistics of what is stored", 1, 1),
            backups: Arc::new(Semaphore::new(1)),
            upkeep: maintenance::MaintenanceTasks::default(),
            queries: reloader.queries(),
            lists: TokenPermits::new("lists", read::LISTS_MAX, read::LISTS_PER_TOKEN_MAX),
            watches: reloader.watches(),
            prometheus: config.prometheus.clone(),
            jobs: config.jobs.clone(),
            prometheus_places: Arc::new(Semaphore::new(prometheus::IN_MEMORY_MAX)),
            reloader,
            shutdown,
        }
    }
}

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

fn route(path: &str) -> Option<(&'static str, RoutePermissions)> {
    static TABLE: std::sync::LazyLock<Vec<(&'static str, RoutePermissions)>> =
        std::sync::LazyLock::new(|| routes().iter().map(|(path, wants, _)| (*path, *wants)).collect());
    TABLE.iter().find(|(known, _)| is_of(path, known)).copied()
}

/// Whether a path matches a route, in which `{…}` stands for one non-empty level.
fn is_of(path: &str, route: &str) -> bool {
    let (mut levels, mut wanted) = (path.split('/'), route.split('/'));
    loop {
        match (levels.next(), wanted.next()) {
            (None, None) => return true,
            (Some(level), Some(wanted)) if level == wanted => {}
            (Some(level), Some(wanted)) if wanted.starts_with('{') && !level.is_empty() => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    #[test]
    fn a_level_in_braces_stands_for_any() {
        for (path, expected) in [
            ("/api/v1/jobs", Some("/api/v1/jobs")),
            ("/api/v1/jobs/4711", Some("/api/v1/jobs/{id}")),
            ("/api/v1/jobs/a%2Fb", Some("/api/v1/jobs/{id}")),
            ("/api/v1/jobs/", None),
            ("/api/v1/jobs/1/2/3", None),
            ("/api/v1/sensors/x", None),
        ] {
            assert_eq!(route(path).map(|(route, _)| route), expected, "{path}");
        }
    }

    #[test]
    fn the_openapi_document_lists_exactly_the_routes() {
        let document: serde_json::Value = serde_json::from_str(status::OPENAPI).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let listed: std::collections::BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routed = routes().iter().map(|(path, ..)| *path).collect();
        assert_eq!(listed, routed);
        for (path, RoutePermissions { read: permission, .. }, _) in routes() {
            let operations = document["paths"][path].as_object().unwrap();
            for operation in ["get", "post", "put"].into_iter().filter_map(|method| operations.get(method)) {
                let responses = operation["responses"].as_object().unwrap();
                let good = ["200", "204"].iter().any(|status| responses.contains_key(*status));
                assert!(operation["summary"].is_string() && good, "{path}");
                let open = operation["security"].as_array().is_some_and(Vec::is_empty);
                assert_eq!(open, permission == Permission::Open, "{path}: security");
                for status in ["401", "403"] {
                    assert_eq!(responses.contains_key(status), permission != Permission::Open, "{path}: {status}");
                }
            }
        }
    }

    #[test]
    fn support_reads_every_route_and_changes_nothing() {
        let document: serde_json::Value = serde_json::from_str(status::OPENAPI).unwrap();
        for (path, wants, _) in routes() {
            let methods = document["paths"][path].as_object().unwrap();
            if methods.contains_key("get") {
                assert!(Role::Support.may(wants.read), "GET {path}");
            }
            // A question that comes with POST.
            let changes = ["put", "post", "delete"].iter().any(|method| methods.contains_key(*method));
            if changes && path != "/api/v1/prometheus/read" && wants.change != Permission::Open {
                assert!(!Role::Support.may(wants.change), "change {path}");
            }
        }
    }

    #[test]
    fn the_openapi_document_lists_exactly_the_parameters() {
        let document: serde_json::Value = serde_json::from_str(status::OPENAPI).unwrap();
        for (path, method, known) in [
            ("/api/v1/sensors", "get", params::SENSORS),
            ("/api/v1/names", "get", params::NAMES),
            ("/api/v1/newest", "get", params::NEWEST),
            ("/api/v1/query", "get", params::QUERY),
            ("/api/v1/watch", "get", params::WATCH),
            ("/api/v1/virtual", "get", virtuals::LIST),
            ("/api/v1/virtual", "delete", virtuals::REMOVE),
            ("/api/v1/virtual/history", "get", virtuals::HISTORY),
            ("/api/v1/jobs", "get", jobs::JOBS),
            ("/api/v1/jobs/{id}", "get", jobs::JOB),
            ("/api/v1/jobs/{id}/statistics", "get", job_statistics::STATISTICS),
            ("/api/v1/jobs/{id}/energy", "get", job_energy::ENERGY),
            (import::PATH, "get", import::SHOW),
            (import::PATH, "post", import::IMPORT),
            ("/api/v1/data/retention", "put", data::SET_RETENTION),
            ("/api/v1/data/retention", "delete", data::UNSET_RETENTION),
            ("/api/v1/data/delete", "post", data::DELETE),
            ("/api/v1/data/stats", "get", data::STATS),
            ("/api/v1/data/repair", "post", maintenance::REPAIR),
            ("/api/v1/server/log", "put", admin::LOG),
            ("/api/v1/properties", "get", properties::PROPERTIES),
            ("/api/v1/properties", "put", properties::SET),
            ("/api/v1/properties", "delete", properties::UNSET),
            ("/api/v1/properties/history", "get", properties::HISTORY),
        ] {
            let listed: Vec<&str> = document["paths"][path][method]["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|parameter| parameter["in"] != "path")
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
