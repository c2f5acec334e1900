//! The state that all handlers share, and its limits.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch as signal};
use wholegrain_cassandra::CassandraStore;
use wholegrain_query::Space;
use wholegrain_store::Store;

use super::maintenance_tasks::MaintenanceTasks;
use crate::ServerConfig;
use crate::access::Security;
use crate::admission::IdentityQuotas;
use crate::broker::Broker;
use crate::interop::Interop;
use crate::jobs::config::JobsConfig;
use crate::live_feed::LiveFeed;
use crate::metrics::Metrics;
use crate::prometheus::config::PrometheusConfig;
use crate::reload::Reloader;
use crate::token_permits::TokenPermits;

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

/// The most writes at a time. Others wait, up to a limit, and then get a 503.
pub(super) const WRITES_MAX: usize = 16;
/// The most writes of one token, including those that wait.
pub(super) const WRITES_PER_TOKEN_MAX: usize = 64;
/// The most memory for bodies of one token, as a number of largest bodies.
pub(super) const BODIES_PER_TOKEN_MAX: usize = 4;
/// Parts at a time: one is received while another is written.
pub(super) const IMPORTS_MAX: usize = 2;
/// Concurrent long lists of all tokens; then those of one token, waiting ones included.
pub(super) const LISTS_MAX: usize = 8;
pub(super) const LISTS_PER_TOKEN_MAX: usize = 6;
/// Responses assembled in memory at a time; others wait.
pub(super) const PROMETHEUS_IN_MEMORY_MAX: usize = 4;

/// The state that all requests share.
pub(crate) struct Api {
    pub store: Store,
    /// What adopts the sealed readings of the store, if they go to Cassandra.
    pub cassandra: Option<CassandraStore>,
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
    pub upkeep: MaintenanceTasks,
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
        (broker, cassandra): (Arc<Broker>, Option<CassandraStore>),
        live: LiveFeed,
        reloader: Arc<Reloader>,
        config: &ServerConfig,
        shutdown: signal::Receiver<bool>,
    ) -> Self {
        let store = broker.store.clone();
        let space = match &cassandra {
            Some(cassandra) => Space::over(store.clone(), Arc::new(cassandra.clone())),
            None => Space::new(store.clone()),
        };
        Self {
            store,
            cassandra,
            space,
            metrics: broker.metrics.clone(),
            live,
            security: broker.security.clone(),
            interop: broker.interop.clone(),
            broker,
            cors_origins: config.http.cors_origins.clone().into(),
            writes: TokenPermits::new("writes", WRITES_MAX, WRITES_PER_TOKEN_MAX),
            bodies: IdentityQuotas::new(config.interop.body_bytes_max.saturating_mul(BODIES_PER_TOKEN_MAX)),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            stats: TokenPermits::new("statistics of what is stored", 1, 1),
            backups: Arc::new(Semaphore::new(1)),
            upkeep: MaintenanceTasks::default(),
            queries: reloader.queries(),
            lists: TokenPermits::new("lists", LISTS_MAX, LISTS_PER_TOKEN_MAX),
            watches: reloader.watches(),
            prometheus: config.prometheus.clone(),
            jobs: config.jobs.clone(),
            prometheus_places: Arc::new(Semaphore::new(PROMETHEUS_IN_MEMORY_MAX)),
            reloader,
            shutdown,
        }
    }
}
