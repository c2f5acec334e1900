//! The API, the same over Unix sockets and HTTPS. Responses are JSON; an error is `{"error": "…"}` and says what to do.
//!
//! - In: HTTP/1.1 requests, and on the users' socket the line protocol (`lines`).
//! - Out: newest values from the groups' rings, earlier ones from the cache, states and counts; commands to the manager.
//! - Never: more connections than a listener has permits, or an idle or slow one that stays; a caller without a token, or a user, who locks others or
//!   the administrator out; data of a job for another user.
//!
//! Listeners: the administrator's socket (`[api] socket`), the users' socket (`[jobs] socket`), HTTPS. `unix` and `https` identify the caller,
//! `scope` checks permissions.

mod caller;
mod connection;
mod context;
mod failure;
pub mod http;
mod https;
mod jobs;
mod limits;
pub mod lines;
mod permits;
mod routes;
mod scope;
mod service;
mod timeouts;
mod tokens;
mod unauthenticated;
mod unix;
mod view;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::context::ApiContext;
pub use self::limits::{
    CONNECTIONS_MAX, HTTPS_CONNECTIONS_MAX, HTTPS_RESERVED, REQUESTS_PER_MINUTE, UNAUTHENTICATED_MAX,
    USERS_CONNECTIONS_MAX,
};
use self::service::ApiService;
use self::unix::SocketKind;
use crate::config::{ApiConfig, Config};
use crate::manager::ManagerHandle;

pub struct ApiServer {
    service: Arc<ApiService>,
    sockets: Vec<PathBuf>,
    /// The address of HTTPS, with the port that the system chose for port 0.
    pub https: Option<std::net::SocketAddr>,
}

#[derive(Debug, Clone)]
pub struct Listeners {
    api: ApiConfig,
    users: Option<PathBuf>,
}

impl Listeners {
    pub fn of(config: &Config) -> Self {
        Self { api: config.api.clone(), users: config.jobs.as_ref().and_then(|jobs| jobs.socket.clone()) }
    }
}

impl ApiServer {
    /// Starts the listeners of the configuration.
    pub fn start(listeners: &Listeners, context: ApiContext, manager_handle: &ManagerHandle) -> anyhow::Result<Self> {
        let service = Arc::new(ApiService::new(context, manager_handle.clone()));
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

    /// Takes no more requests. Open connections end with their next request or with the process.
    pub fn stop(self) {
        self.service.stop();
        for path in &self.sockets {
            // With the file, the next caller would wait for a listener that does not exist.
            let _ = std::fs::remove_file(path);
        }
    }
}
