//! What the agent answers, the same over Unix sockets and HTTPS. All answers are JSON; an error is `{"error": "…"}` and says what
//! to do.
//!
//! - In: HTTP/1.1 requests, and on the users' socket lines (`lines`).
//! - Out: the newest values straight from the groups' rings, the past from the cache, states and counts; orders to the manager.
//! - Never: more connections than each door has places, or one that is silent, or slow, and stays; somebody without a token, or a user, who
//!   keeps others or the administrator out; anything of a job for a user whose job it is not.
//!
//! Doors: the administrator's socket (`[api] socket`), the users' (`[jobs] socket`), HTTPS. `unix` and `https` find out who
//! asks, `permit` says what they may.

pub mod http;
mod https;
mod jobs;
pub mod lines;
mod permits;
mod routes;
mod scope;
mod timeouts;
mod tokens;
mod unauthenticated;
mod unix;
mod view;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::permits::ConnectionPermits;
use self::timeouts::TimedConnection;
use self::unauthenticated::{ClientAdmission, UNAUTHENTICATED_TIMEOUT, UnauthenticatedClients};
use self::unix::SocketKind;
use crate::config::{ApiConfig, Config};
use crate::engine::clock;
use crate::jobs::CallerIdentity;
use crate::jobs::rules::RateLimit;
use crate::manager::ManagerHandle;
use crate::state::{AgentState, lock};

/// The most connections at a time to the administrator's socket.
pub const CONNECTIONS_MAX: usize = 16;
/// The most connections over HTTPS of callers who have shown a token; of one of them half.
pub const HTTPS_CONNECTIONS_MAX: usize = 32;
/// Of those so many that only administrators get.
pub const HTTPS_RESERVED: usize = 4;
/// The most connections over HTTPS of callers who have not; of one machine half of them.
pub const STRANGERS_MAX: usize = 32;
/// The most connections to the users' socket; of one user half of them, and fewer when there are others.
pub const USERS_CONNECTIONS_MAX: usize = 256;
/// The stack of a connection's thread: TLS and JSON take much of it. 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// Requests of one connection before it is closed.
const REQUESTS_MAX: usize = 1000;
/// How long a request may take to come, however often a byte of it does: 20 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer may take to be taken: 60 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a connection that could not be accepted: 10 ms.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Requests of one user that are answered within a minute, over all their connections: what the agent does for them takes
/// processor time that is not accounted to their jobs. The line protocol is for those who want more.
pub const REQUESTS_PER_MINUTE: u32 = 600;
/// Refusals of one caller, and of all, that the log tells of within a minute.
const REFUSALS_PER_MINUTE: (u32, u32) = (10, 60);

/// What every connection needs.
pub(crate) struct ApiService {
    state: Arc<AgentState>,
    manager_handle: ManagerHandle,
    admins: Arc<ConnectionPermits>,
    users: Arc<ConnectionPermits>,
    https: Arc<ConnectionPermits>,
    strangers: Arc<UnauthenticatedClients>,
    refusals: Mutex<RateLimit>,
    requests: Mutex<RateLimit>,
    stop: AtomicBool,
    lines: lines::LineService,
}

pub struct ApiServer {
    service: Arc<ApiService>,
    sockets: Vec<PathBuf>,
    /// Where HTTPS listens, with the port that the system chose when 0 was asked for.
    pub https: Option<std::net::SocketAddr>,
}

#[derive(Debug, Clone)]
pub struct Listeners {
    api: ApiConfig,
    users: Option<PathBuf>,
}

impl Listeners {
    /// Where the configuration says.
    pub fn of(config: &Config) -> Self {
        Self { api: config.api.clone(), users: config.jobs.as_ref().and_then(|jobs| jobs.socket.clone()) }
    }
}

impl ApiServer {
    /// Listens where the configuration says.
    pub fn start(
        listeners: &Listeners,
        state: &Arc<AgentState>,
        manager_handle: &ManagerHandle,
    ) -> anyhow::Result<Self> {
        let (each, all) = REFUSALS_PER_MINUTE;
        let service = Arc::new(ApiService {
            state: state.clone(),
            manager_handle: manager_handle.clone(),
            admins: ConnectionPermits::new(CONNECTIONS_MAX),
            users: ConnectionPermits::new(USERS_CONNECTIONS_MAX),
            https: ConnectionPermits::reserving(HTTPS_CONNECTIONS_MAX, HTTPS_RESERVED),
            strangers: UnauthenticatedClients::new(),
            refusals: Mutex::new(RateLimit::per_minute(each, all)),
            requests: Mutex::new(RateLimit::per_minute(REQUESTS_PER_MINUTE, u32::MAX)),
            stop: AtomicBool::new(false),
            lines: lines::LineService::default(),
        });
        let mut api = Self { service, sockets: Vec::new(), https: None };
        for (path, kind) in [(&listeners.api.socket, SocketKind::Admin), (&listeners.users, SocketKind::Users)] {
            let Some(path) = path else { continue };
            unix::start(path, kind, api.service.clone())?;
            api.sockets.push(path.clone());
        }
        if let Some(config) = &listeners.api.https {
            api.https = Some(https::start(config, api.service.clone())?);
        }
        Ok(api)
    }

    /// Takes no more requests. Open connections end with their next request or the process.
    pub fn stop(self) {
        self.service.stop.store(true, Ordering::Release);
        self.service.lines.stop();
        for path in &self.sockets {
            // The file would make the next caller wait for nobody.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl ApiService {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// There was no place for a connection, or no more.
    fn refused(&self, whose: &dyn std::fmt::Display) {
        self.state.counters.api_refused.fetch_add(1, Ordering::Relaxed);
        self.forbidden("connections", &format!("a connection of {whose}"), "all places are taken; see api_refused");
    }

    /// Somebody may not what they asked for. The log tells of so many a minute, and how many there were besides.
    fn forbidden(&self, key: &str, who: &str, why: &str) {
        let mut refusals = lock(&self.refusals);
        if refusals.take(key, clock::real()) {
            let more = match refusals.take_excess() {
                0 => String::new(),
                count => format!(" ({count} refusals before were not logged)"),
            };
            tracing::warn!("refused {who}: {why}{more}");
        }
    }
}

enum ApiCaller {
    /// The file system or the kernel has said.
    Known(CallerIdentity),
    /// Each request shows a token.
    Stranger {
        peer: String,
        tokens: Arc<https::AcceptedTokens>,
        /// Whether they have shown one.
        guest: RefCell<ClientAdmission>,
    },
}

impl ApiCaller {
    /// Whether it is known who it is.
    fn is_known(&self) -> bool {
        match self {
            ApiCaller::Known(_) => true,
            ApiCaller::Stranger { guest, .. } => guest.borrow().is_known(),
        }
    }
}

/// Runs a connection on a thread of its own.
fn spawn(service: &Arc<ApiService>, run: impl FnOnce(&ApiService) + Send + 'static) {
    let service = service.clone();
    let spawned = std::thread::Builder::new().name("api".into()).stack_size(STACK_BYTES).spawn(move || run(&service));
    if let Err(error) = spawned {
        tracing::warn!("API: cannot start a thread for a connection: {error}");
    }
}

/// Answers requests until the peer goes, is silent for too long or has asked often enough.
fn serve(stream: &mut impl TimedConnection, service: &ApiService, caller: &ApiCaller) {
    let mut buffer = Vec::new();
    for number in 1..=REQUESTS_MAX {
        stream.within(if caller.is_known() { REQUEST_TIMEOUT } else { UNAUTHENTICATED_TIMEOUT });
        let read = http::read(stream, &mut buffer);
        stream.within(ANSWER_TIMEOUT);
        match read {
            Ok(mut request) => {
                request.keep = request.keep && number < REQUESTS_MAX && !service.is_stopped();
                // A client without a valid token counts as unauthenticated again.
                if routes::answer(stream, service, caller, &request).is_err() || !request.keep || !caller.is_known() {
                    return;
                }
            }
            Err(http::RequestError::Refused(status, why)) => {
                let _ = http::answer(stream, status, &view::error(&why), false);
                return;
            }
            Err(http::RequestError::Disconnected) => return,
        }
    }
}

/// Compares in a time that does not tell how much is equal.
fn same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |all, (x, y)| all | (x ^ y));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        assert!(same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!same(other, b"abc"));
        }
    }
}
