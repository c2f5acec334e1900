//! The MQTT broker: 3.1.1 and 5, over TCP and TLS.
//!
//! - In: connections. Out: batches and schemas in the store, acknowledgements, messages to subscribers.
//! - Never: an acknowledgement before the store says that it is durable; an agent under another's name.
//!
//! A connection is a task (`connection.rs`) around a [`pipeline::Pipeline`], which decides what becomes of publishes and
//! does no I/O. [`auth`] says who a client is, [`subscriptions`] who gets which message.
//!
//! What this broker does not do, and says so in CONNACK: QoS 2, sessions that outlive their connection, shared
//! subscriptions, subscription identifiers. Messages are delivered with QoS 0, so every subscription is granted QoS 0.

pub mod allowance;
pub mod auth;
mod connect;
mod connection;
pub mod log_limit;
pub mod mailbox;
pub mod pipeline;
pub mod subscriptions;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use wholegrain_model::{Schema, SchemaHash, SensorPath};
use wholegrain_store::Store;
use wholegrain_transport::mqtt::ReasonCode;

use crate::config::{Limits, MqttConfig};
use crate::metrics::Metrics;
use crate::pki;
use allowance::{Allowances, SCHEMA_BYTES_MIN};
use auth::Passwords;
use log_limit::LogLimit;
use pipeline::RegisterError;
use subscriptions::{ConnectionId, Subscriptions};

/// How long accepting rests after it failed, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all connections share.
pub struct Broker {
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) subscriptions: Subscriptions,
    limits: Limits,
    anonymous: bool,
    prefixes: BTreeMap<String, Vec<SensorPath>>,
    passwords: Arc<Passwords>,
    /// Bytes of new schemas.
    new_schemas: Allowances,
    sessions: Mutex<HashMap<SessionKey, Session>>,
    /// Rises when a schema became known, for batches of other connections that wait for it.
    schemas: watch::Sender<u64>,
    next_id: AtomicU64,
    /// Warnings.
    log: LogLimit,
    /// Who comes and goes.
    visits: LogLimit,
}

/// Identity and client identifier: nobody takes over the session of another identity.
type SessionKey = (String, String);

#[derive(Debug)]
struct Session {
    id: ConnectionId,
    taken_over: Arc<Notify>,
}

/// What a connection needs beside the broker.
#[derive(Debug, Clone)]
pub(crate) struct Lifetime {
    /// Turns true when the server goes down.
    pub shutdown: watch::Receiver<bool>,
    /// Held while the connection lives; when all are dropped, the last connection is gone.
    pub _alive: mpsc::Sender<()>,
}

/// Is ready once the server goes down.
pub(crate) async fn went_down(shutdown: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone, with the server.
    let _ = shutdown.wait_for(|down| *down).await;
}

impl Broker {
    /// Over a store, as configured.
    pub fn new(config: &MqttConfig, store: Store, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            subscriptions: Subscriptions::new(metrics.clone()),
            metrics,
            limits: config.limits,
            anonymous: config.anonymous,
            prefixes: config.prefixes.clone(),
            passwords: Passwords::new(config.users.clone()),
            new_schemas: Allowances::new(config.limits.schema_bytes_per_hour_max),
            sessions: Mutex::default(),
            schemas: watch::Sender::new(0),
            next_id: AtomicU64::new(1),
            log: LogLimit::default(),
            visits: LogLimit::new(log_limit::VISITS_MAX),
        }
    }

    /// Takes connections until the server goes down.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        mut lifetime: Lifetime,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = went_down(&mut lifetime.shutdown) => return,
            };
            match accepted {
                Ok((stream, peer)) if self.metrics.connections.get() < self.limits.connections_max as i64 => {
                    // Counted here and not in the task, so that the bound holds when many come at once.
                    self.metrics.connections.add(1);
                    tokio::spawn(self.clone().connection(stream, peer, tls.clone(), lifetime.clone()));
                }
                Ok((_, peer)) => {
                    self.metrics.connections_refused.inc();
                    self.log.warn(format_args!(
                        "mqtt {peer}: refused, {} connections are open already",
                        self.limits.connections_max
                    ));
                }
                Err(error) => {
                    self.log.warn(format_args!("mqtt: cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        tls: Option<TlsAcceptor>,
        lifetime: Lifetime,
    ) {
        let deadline = tokio::time::Instant::now() + self.limits.connect_time_max;
        // Acknowledgements are small and wanted at once.
        let _ = stream.set_nodelay(true);
        match tls {
            None => connection::run(self.clone(), stream, peer, None, deadline, lifetime).await,
            Some(acceptor) => match tokio::time::timeout_at(deadline, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let name =
                        stream.get_ref().1.peer_certificates().and_then(|chain| pki::common_name(chain.first()?));
                    connection::run(self.clone(), stream, peer, name, deadline, lifetime).await;
                }
                Ok(Err(error)) => self.refused(peer, format_args!("TLS handshake failed: {error}")),
                Err(_) => {
                    let seconds = self.limits.connect_time_max.as_secs_f32();
                    self.refused(peer, format_args!("no TLS handshake within {seconds} s"));
                }
            },
        }
        self.metrics.connections.add(-1);
    }

    fn refused(&self, peer: SocketAddr, why: std::fmt::Arguments<'_>) {
        self.metrics.connections_refused.inc();
        self.log.warn(format_args!("mqtt {peer}: {why}"));
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionKey, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a session; an older one of the same key is told to go.
    fn enter(&self, key: SessionKey) -> (ConnectionId, Arc<Notify>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let taken_over = Arc::new(Notify::new());
        if let Some(old) = self.sessions().insert(key, Session { id, taken_over: taken_over.clone() }) {
            self.metrics.takeovers.inc();
            old.taken_over.notify_one();
        }
        (id, taken_over)
    }

    /// Leaves a session unless it has been taken over.
    fn leave(&self, key: &SessionKey, id: ConnectionId) {
        let mut sessions = self.sessions();
        if sessions.get(key).is_some_and(|session| session.id == id) {
            sessions.remove(key);
        }
    }

    /// Checks a schema and makes it durable; blocks on the disk.
    fn register(&self, identity: &str, payload: &Bytes) -> Result<Schema, RegisterError> {
        let schema = Schema::decode(payload)
            .map_err(|error| RegisterError::Refused(ReasonCode::PAYLOAD_FORMAT_INVALID, error.to_string()))?;
        self.check_prefix(identity, schema.prefix())
            .map_err(|why| RegisterError::Refused(ReasonCode::NOT_AUTHORIZED, why))?;
        let new = self.store.schema(&schema.hash()).is_none();
        let amount = SCHEMA_BYTES_MIN.max(payload.len() as u64);
        if new && !self.new_schemas.take(identity, amount, Instant::now()) {
            self.metrics.schemas_over_allowance.inc();
            let why = format!(
                "agent {identity:?} announced over {} bytes of new schemas within an hour; does one of its groups change \
                 all the time? mqtt.limits.schema_bytes_per_hour_max is the bound",
                self.limits.schema_bytes_per_hour_max
            );
            return Err(RegisterError::Refused(ReasonCode::QUOTA_EXCEEDED, why));
        }
        self.store.register_schema(&schema).map_err(|error| {
            if new {
                self.new_schemas.give_back(identity, amount);
            }
            self.log.warn(format_args!("schema {} of {identity}: {error}; trying again", schema.hash()));
            RegisterError::Store(error)
        })?;
        self.schemas.send_modify(|generation| *generation += 1);
        Ok(schema)
    }

    /// Whether this client may publish batches of a schema: true, false when the schema is not known, or why not. The
    /// header of a batch says who sent it, but its schema says whose sensors it writes.
    fn check_batch_schema(&self, identity: &str, hash: &SchemaHash) -> Result<bool, String> {
        let Some(schema) = self.store.schema(hash) else { return Ok(false) };
        self.check_prefix(identity, schema.prefix()).map(|()| true)
    }

    fn check_prefix(&self, identity: &str, prefix: &SensorPath) -> Result<(), String> {
        if self.may_publish_below(identity, prefix) {
            return Ok(());
        }
        Err(format!(
            "agent {identity:?} may not publish below {prefix}: give it a prefix with {identity:?} as a level, or list it in the server's [mqtt.prefixes]"
        ))
    }

    fn may_publish_below(&self, identity: &str, prefix: &SensorPath) -> bool {
        match self.prefixes.get(identity) {
            Some(allowed) => allowed.iter().any(|subtree| prefix.is_within(subtree)),
            None => prefix.levels().any(|level| level == identity),
        }
    }
}
