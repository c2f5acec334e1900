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
#[cfg(test)]
mod openapi;
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
use wholegrain_api::paths;
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
        (paths::SENSORS, RoutePermissions::all(Read), get(read::sensors)),
        (paths::NAMES, RoutePermissions::all(Read), get(names::names)),
        (paths::NEWEST, RoutePermissions::all(Read), get(read::newest)),
        (paths::QUERY, RoutePermissions::all(Read), get(query::query)),
        (paths::WATCH, RoutePermissions::all(Read), get(watch::watch)),
        (paths::PROMETHEUS_READ, RoutePermissions::all(Read), post(prometheus::read)),
        (
            paths::PROPERTIES,
            RoutePermissions::new(Read, Manage),
            get(properties::show).put(properties::set).delete(properties::unset),
        ),
        (paths::PROPERTY_SETTINGS, RoutePermissions::all(Read), get(properties::settings)),
        (paths::PROPERTY_HISTORY, RoutePermissions::all(Read), get(properties::history)),
        (paths::JOBS, RoutePermissions::all(Read), get(jobs::jobs)),
        (paths::JOB, RoutePermissions::all(Read), get(jobs::job)),
        (paths::JOB_STATISTICS, RoutePermissions::all(Read), get(job_statistics::statistics)),
        (paths::JOB_ENERGY, RoutePermissions::all(Read), get(job_energy::energy)),
        (
            paths::JOB_RULES,
            RoutePermissions::new(Read, Steer),
            get(rules::show).post(rules::add).delete(rules::end).layer(DefaultBodyLimit::max(rules::BODY_BYTES_MAX)),
        ),
        (paths::IMPORT, RoutePermissions::new(Status, Manage), get(import::show).post(import::import)),
        (
            paths::VIRTUAL,
            RoutePermissions::new(Read, Manage),
            get(virtuals::list)
                .put(virtuals::define)
                .post(virtuals::check)
                .delete(virtuals::remove)
                .layer(DefaultBodyLimit::max(virtuals::BODY_BYTES_MAX)),
        ),
        (paths::VIRTUAL_HISTORY, RoutePermissions::all(Status), get(virtuals::history)),
        (paths::WRITE_INFLUX, RoutePermissions::all(Write), post(write::influx)),
        ("/api/v2/write", RoutePermissions::all(Write), post(write::influx)),
        ("/write", RoutePermissions::all(Write), post(write::influx)),
        (paths::WRITE_CLUSTERCOCKPIT, RoutePermissions::all(Write), post(write::clustercockpit)),
        ("/api/write/", RoutePermissions::all(Write), post(write::clustercockpit)),
        (
            paths::RETENTION,
            RoutePermissions::new(Status, Manage),
            get(data::retention).put(data::set_retention).delete(data::unset_retention),
        ),
        (paths::DELETE, RoutePermissions::all(Manage), post(data::delete)),
        (paths::STATISTICS, RoutePermissions::all(Status), get(data::stats)),
        (paths::LOST, RoutePermissions::new(Status, Manage), get(losses::list).post(losses::acknowledge)),
        (
            paths::COMPACT,
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            paths::VERIFY,
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            paths::REPAIR,
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            paths::BACKUP,
            RoutePermissions::all(Manage),
            post(data::backup).layer(DefaultBodyLimit::max(data::HAVE_BYTES_MAX)),
        ),
        (paths::LOG, RoutePermissions::new(Status, Manage), get(admin::log).put(admin::set_log)),
        (paths::RELOAD, RoutePermissions::all(Manage), post(admin::reload)),
        (paths::HEALTHZ, RoutePermissions::all(Open), get(status::healthz)),
        // Where InfluxDB clients check that the server exists.
        ("/ping", RoutePermissions::all(Open), get(status::ping)),
        ("/health", RoutePermissions::all(Open), get(status::health)),
        (paths::METRICS, RoutePermissions::all(Status), get(status::metrics)),
        (paths::OPENAPI, RoutePermissions::all(Open), get(status::openapi)),
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
}
