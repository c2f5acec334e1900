//! What the agent answers, the same over a Unix socket and HTTPS. All answers are JSON; an error is `{"error": "…"}` and says what
//! to do.
//!
//! - In: HTTP/1.1 requests.
//! - Out: the newest values straight from the groups' rings, the past from the cache, states and counts; orders to the manager.
//! - Never: more than [`CONNECTIONS_MAX`] connections, or one that is silent and stays.

pub mod http;
mod https;
mod routes;
mod unix;
mod view;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::config::ApiConfig;
use crate::manager::Desk;
use crate::state::State;

/// The most connections at a time, of both kinds together.
pub const CONNECTIONS_MAX: usize = 16;
/// The stack of a connection's thread: TLS and JSON take much of it. 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// Requests of one connection before it is closed.
const REQUESTS_MAX: usize = 1000;

/// What every connection needs.
pub(crate) struct Service {
    state: Arc<State>,
    desk: Desk,
    open: AtomicUsize,
    stop: AtomicBool,
}

/// The listening sockets.
pub struct Api {
    service: Arc<Service>,
    socket: Option<PathBuf>,
    /// Where HTTPS listens, with the port that the system chose when 0 was asked for.
    pub https: Option<std::net::SocketAddr>,
}

impl Api {
    /// Listens where the configuration says.
    pub fn start(config: &ApiConfig, state: &Arc<State>, desk: &Desk) -> anyhow::Result<Self> {
        let service = Arc::new(Service {
            state: state.clone(),
            desk: desk.clone(),
            open: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        if let Some(path) = &config.socket {
            unix::start(path, service.clone())?;
        }
        let https = match &config.https {
            Some(https) => Some(https::start(https, service.clone())?),
            None => None,
        };
        Ok(Self { service, socket: config.socket.clone(), https })
    }

    /// Takes no more requests. Open connections end with their next request or the process.
    pub fn stop(self) {
        self.service.stop.store(true, Ordering::Release);
        if let Some(path) = &self.socket {
            // The file would make the next caller wait for nobody.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A place among the connections; given back when dropped.
struct Place(Arc<Service>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Service {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// A place for one connection more, if there is one.
    fn place(self: &Arc<Self>) -> Option<Place> {
        if self.open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.open.fetch_sub(1, Ordering::AcqRel);
            self.state.counters.api_refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Place(self.clone()))
    }
}

/// Who asks: what the log says of a change.
#[derive(Debug, Clone)]
struct Caller {
    name: String,
    /// The token wanted; `None` where the file system has already checked.
    token: Option<Arc<str>>,
}

/// Runs a connection on a thread of its own.
fn spawn(service: &Arc<Service>, run: impl FnOnce(&Service) + Send + 'static) {
    let Some(place) = service.place() else { return };
    let spawned = std::thread::Builder::new().name("api".into()).stack_size(STACK_BYTES).spawn(move || {
        run(&place.0);
    });
    if let Err(error) = spawned {
        tracing::warn!("API: cannot start a thread for a connection: {error}");
    }
}

/// Answers requests until the peer goes, is silent for too long or has asked often enough.
fn serve(stream: &mut (impl Read + Write), service: &Service, caller: &Caller) {
    let mut buffer = Vec::new();
    for number in 1..=REQUESTS_MAX {
        match http::read(stream, &mut buffer) {
            Ok(mut request) => {
                request.keep = request.keep && number < REQUESTS_MAX && !service.is_stopped();
                if routes::answer(stream, service, caller, &request).is_err() || !request.keep {
                    return;
                }
            }
            Err(http::Bad::Refused(status, why)) => {
                let _ = http::answer(stream, status, &view::error(&why), false);
                return;
            }
            Err(http::Bad::Gone) => return,
        }
    }
}
