//! State that all connections of the API share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::context::ApiContext;
use super::limits::{
    CONNECTIONS_MAX, HTTPS_CONNECTIONS_MAX, HTTPS_RESERVED, REFUSALS_PER_MINUTE, REQUESTS_PER_MINUTE, STACK_BYTES,
    USERS_CONNECTIONS_MAX,
};
use super::lines::LineService;
use super::permits::ConnectionPermits;
use super::unauthenticated::UnauthenticatedClients;
use crate::engine::clock;
use crate::manager::ManagerHandle;
use crate::rate_limit::RateLimit;
use crate::sync::lock;

pub(super) struct ApiService {
    pub context: Arc<ApiContext>,
    pub manager_handle: ManagerHandle,
    pub admins: Arc<ConnectionPermits>,
    pub users: Arc<ConnectionPermits>,
    pub https: Arc<ConnectionPermits>,
    pub unauthenticated: Arc<UnauthenticatedClients>,
    pub requests: Mutex<RateLimit>,
    pub lines: LineService,
    refusals: Mutex<RateLimit>,
    stop: AtomicBool,
}

impl ApiService {
    pub fn new(context: ApiContext, manager_handle: ManagerHandle) -> Self {
        let (each, all) = REFUSALS_PER_MINUTE;
        let context = Arc::new(context);
        Self {
            lines: LineService::new(context.clone()),
            context,
            manager_handle,
            admins: ConnectionPermits::new(CONNECTIONS_MAX),
            users: ConnectionPermits::new(USERS_CONNECTIONS_MAX),
            https: ConnectionPermits::reserving(HTTPS_CONNECTIONS_MAX, HTTPS_RESERVED),
            unauthenticated: UnauthenticatedClients::new(),
            refusals: Mutex::new(RateLimit::per_minute(each, all)),
            requests: Mutex::new(RateLimit::per_minute(REQUESTS_PER_MINUTE, u32::MAX)),
            stop: AtomicBool::new(false),
        }
    }

    /// Takes no more requests.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.lines.stop();
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Counts and logs a refused connection.
    pub fn refused(&self, whose: &dyn std::fmt::Display) {
        self.context.counters.api_refused.fetch_add(1, Ordering::Relaxed);
        self.forbidden("connections", &format!("a connection of {whose}"), "all permits are taken; see api_refused");
    }

    /// Logs a refusal, rate-limited, with the number of those that were not logged.
    pub fn forbidden(&self, key: &str, who: &str, why: &str) {
        if let Some(more) = lock(&self.refusals).note_refusal(key, clock::real()) {
            tracing::warn!("refused {who}: {why}{more}");
        }
    }
}

/// Runs a connection on a thread of its own.
pub(super) fn spawn(service: &Arc<ApiService>, run: impl FnOnce(&ApiService) + Send + 'static) {
    let service = service.clone();
    let spawned = std::thread::Builder::new().name("api".into()).stack_size(STACK_BYTES).spawn(move || run(&service));
    if let Err(error) = spawned {
        tracing::warn!("API: cannot start a thread for a connection: {error}");
    }
}
