//! The MQTT broker: versions 3.1.1 and 5, over TCP and TLS.
//!
//! - Input: connections. Output: batches and schemas in the store, acknowledgements, messages to subscribers.
//! - Never: an acknowledgement before the store has made the data durable; an agent under another's name.
//!
//! A connection is a task (`connection/`) around a [`pipeline::PublishPipeline`], which decides on publishes and does no I/O. [`subscriptions`]
//! distributes messages; [`crate::access`] authenticates and authorizes clients.
//!
//! A session outlives its connection: [`session`] is the state machine of one, without I/O, [`sessions`] the registry, `housekeeping.rs` the task
//! that ends sessions and publishes wills in time.
//!
//! Limitations: sessions are in memory and do not survive a restart, after which CONNACK says so; the same holds for retained messages except
//! schemas, which agents announce again. There is no extended authentication (AUTH), no response information and no server redirection. QoS 0
//! messages are not queued for disconnected clients. MQTT 3.1 (protocol level 3) is refused.

mod aliases;
pub mod config;
mod connect;
mod connection;
mod fairness;
mod housekeeping;
pub mod message;
pub mod pipeline;
mod rate;
pub mod replay;
pub mod retained;
pub mod session;
pub mod sessions;
pub mod signals;
pub mod subscriptions;
mod trie;
mod wire;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::available_parallelism;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::server::TlsStream;
use wholegrain_model::{JobRecord, Schema, SchemaHash, SensorPath};
use wholegrain_store::Store;
use wholegrain_transport::mqtt::{ReasonCode, RetainHandling};

use crate::access::{Identity, LOOK_EVERY, Security};
use crate::admission::hourly_quotas::{HourlyQuotas, SCHEMA_BYTES_MIN};
use crate::admission::{ConnectionAdmission, ConnectionPermit, HandshakeProgress};
use crate::certificates::ReloadableTls;
use crate::control::AgentControl;
use crate::interop::{self, Interop};
use crate::live_setting::LiveSetting;
use crate::log_limit::{self, LogLimit};
use crate::metrics::Metrics;
use crate::pki;
use config::{MqttConfig, MqttLimits};
use fairness::Fairness;
use message::Publication;
use pipeline::SchemaRegisterError;
use rate::TotalLookupRate;
use retained::SchemaPayloads;
use session::QueueBounds;
use sessions::{SessionBounds, SessionHandle, Sessions};
use signals::ConnectionSignals;
use subscriptions::{SubscriptionOptions, Subscriptions};
use wire::PacketStream;

/// The pause after a failed accept, for instance when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state that all connections share.
pub struct Broker {
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) subscriptions: Subscriptions,
    limits: LiveSetting<MqttLimits>,
    anonymous: LiveSetting<bool>,
    pub(crate) security: Arc<Security>,
    pub(crate) interop: Arc<Interop>,
    /// Rate limit of lookups of retained messages that find little.
    looking: TotalLookupRate,
    /// Each identity's use of the broker's time.
    fairness: Fairness,
    new_schemas: HourlyQuotas,
    /// New sensors in schemas.
    new_sensors: HourlyQuotas,
    /// Bytes of job records.
    job_bytes: HourlyQuotas,
    /// Orders to agents.
    pub(crate) control: AgentControl,
    sessions: Sessions,
    admission: Arc<ConnectionAdmission>,
    /// A client disconnected: the next deadline may be earlier.
    sessions_changed: Notify,
    /// Incremented when a schema becomes known, for batches of other connections that wait for it.
    schemas: watch::Sender<u64>,
    next_id: AtomicU64,
    /// Start of this process, milliseconds since the Unix epoch.
    started_ms: u128,
    started: Instant,
    /// Warnings.
    log: LogLimit,
    /// Lines about clients that connect and disconnect.
    visits: LogLimit,
    /// Lines about a store that cannot write.
    trouble: LogLimit,
}

/// Signals of the server's shutdown.
#[derive(Debug, Clone)]
pub(crate) struct ServerLifetime {
    /// Becomes true at shutdown.
    pub shutdown: watch::Receiver<bool>,
    /// Held by each connection; when all are dropped, no connection is left.
    pub _alive: mpsc::Sender<()>,
}

/// Completes when the server shuts down.
pub(crate) async fn went_down(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, at shutdown.
    let _ = shutdown.wait_for(|down| *down).await;
}

impl Broker {
    pub(crate) fn new(
        config: &MqttConfig,
        security: Arc<Security>,
        interop: Arc<Interop>,
        store: Store,
        metrics: Arc<Metrics>,
    ) -> Self {
        let limits = config.limits;
        let queue = QueueBounds { messages_max: limits.queue_messages_max, bytes_max: limits.queue_bytes_max };
        let bounds = SessionBounds { kept_max: limits.sessions_kept_max, queue };
        let known = store.clone();
        let schemas = SchemaPayloads(Box::new(move |hash| known.schema(hash).map(|schema| schema.encode().into())));
        Self {
            store,
            subscriptions: Subscriptions::new(limits.queue_total_bytes_max, limits.retained, schemas, metrics.clone()),
            sessions: Sessions::new(bounds, metrics.clone()),
            admission: ConnectionAdmission::new("mqtt", limits.connections()),
            sessions_changed: Notify::new(),
            control: AgentControl::default(),
            metrics,
            limits: LiveSetting::new(limits),
            anonymous: LiveSetting::new(config.anonymous),
            security,
            interop,
            looking: TotalLookupRate::new(available_parallelism().unwrap_or(NonZeroUsize::MIN), Instant::now()),
            fairness: Fairness::default(),
            new_schemas: HourlyQuotas::new(config.limits.schema_bytes_per_hour_max),
            new_sensors: HourlyQuotas::new(config.limits.schema_sensors_per_hour_max),
            job_bytes: HourlyQuotas::new(config.limits.job_bytes_per_hour_max),
            schemas: watch::Sender::new(0),
            next_id: AtomicU64::new(1),
            started_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis()),
            started: Instant::now(),
            log: LogLimit::default(),
            visits: LogLimit::new(log_limit::VISITS_MAX),
            trouble: LogLimit::new(log_limit::TROUBLE_MAX),
        }
    }

    /// Applies a changed configuration: whether anonymous clients are accepted, and the limits of new connections. [`Security`] handles users and
    /// rules, the listeners addresses and certificates.
    pub(crate) fn reload(&self, config: &MqttConfig) {
        self.limits.replace(config.limits);
        self.subscriptions.set_room(config.limits.retained);
        self.admission.set_bounds(config.limits.connections());
        self.anonymous.replace(config.anonymous);
        self.new_schemas.set_per_hour(config.limits.schema_bytes_per_hour_max);
        self.new_sensors.set_per_hour(config.limits.schema_sensors_per_hour_max);
        self.job_bytes.set_per_hour(config.limits.job_bytes_per_hour_max);
    }

    /// Accepts connections until the server shuts down.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<ReloadableTls>,
        mut lifetime: ServerLifetime,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = went_down(&mut lifetime.shutdown) => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    match HandshakeProgress::of(&stream).and_then(|progress| self.admission.enter(peer.ip(), progress))
                    {
                        // Counted here and not in the task, so that the limit holds if many connections arrive at once.
                        Some(place) => {
                            self.metrics.connections.add(1);
                            let task = self.clone().connection(stream, (peer, place), tls.clone(), lifetime.clone());
                            tokio::spawn(task);
                        }
                        // The admission logs the refusal.
                        None => self.metrics.connections_refused.inc(),
                    }
                }
                Err(error) => {
                    self.log.warn(format_args!("mqtt: cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The admission, for its metrics.
    pub(crate) fn admission(&self) -> &ConnectionAdmission {
        &self.admission
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        (peer, place): (SocketAddr, ConnectionPermit),
        tls: Option<ReloadableTls>,
        lifetime: ServerLifetime,
    ) {
        let (deadline, place) = (Instant::now() + self.limits.connect_time_max, Box::new(place));
        // Acknowledgements are small and must not be delayed.
        let _ = stream.set_nodelay(true);
        let is_heard = Box::pin(place.heard(&stream, deadline)).await;
        match tls {
            _ if !is_heard => {
                self.refused(peer, format_args!("it did not authenticate in time, or made room for others"))
            }
            None => {
                connection::run(self.clone(), PacketStream::new(stream), (peer, place), None, deadline, lifetime).await
            }
            Some(acceptor) => {
                // On the heap and dropped when done, so that ten thousand connections do not keep its memory.
                let handshake = Box::pin(self.handshake(stream, peer, acceptor, (&place, deadline)));
                if let Some((wire, name)) = handshake.await {
                    connection::run(self.clone(), wire, (peer, place), name, deadline, lifetime).await;
                }
            }
        }
        self.metrics.connections.add(-1);
    }

    /// TLS, and the name in the client's certificate; `None` if it failed, which has been logged.
    async fn handshake(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        acceptor: ReloadableTls,
        (place, deadline): (&ConnectionPermit, Instant),
    ) -> Option<(PacketStream<TlsStream<TcpStream>>, Option<String>)> {
        let handshake = async {
            let stream = acceptor.accept(stream).await?;
            place.advance(HandshakeProgress::Encrypted);
            Ok::<_, std::io::Error>(stream)
        };
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = place.over(deadline) => {
                self.refused(peer, format_args!("no TLS handshake in time, or it made room for others"));
                return None;
            }
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                self.refused(peer, format_args!("TLS handshake failed: {error}"));
                return None;
            }
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| pki::peer_certificate(chain.first()?));
        if let Some(pki::PeerCertificate { name, serial }) = &shown
            && self.security.is_revoked(peer, name, serial)
        {
            let name = log_limit::quoted(name);
            self.refused(peer, format_args!("the certificate {serial} of \"{name}\" is revoked"));
            return None;
        }
        Some((PacketStream::new(stream), shown.map(|shown| shown.name)))
    }

    fn refused(&self, peer: SocketAddr, why: std::fmt::Arguments<'_>) {
        self.metrics.connections_refused.inc();
        self.log.warn(format_args!("mqtt {peer}: {why}"));
    }

    /// Reloads changed users, tokens and revoked certificates until the server shuts down, and ends the connections of identities that are no longer
    /// valid.
    pub(crate) async fn watch_security(self: Arc<Self>, mut lifetime: ServerLifetime) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = went_down(&mut lifetime.shutdown) => return,
            }
            let security = self.security.clone();
            let gone = tokio::task::spawn_blocking(move || security.look()).await.unwrap_or_default();
            self.end_connections(&gone);
        }
    }

    /// Ends the sessions of these identities; those still valid reconnect.
    pub(crate) fn end_connections(&self, identities: &[String]) {
        if identities.is_empty() {
            return;
        }
        let ended = self.sessions.end_of(identities);
        self.metrics.clients_ended.add(ended.len() as u64);
        ended.into_iter().for_each(|leftovers| self.finish_session(leftovers));
    }

    /// Whether a client may publish on a topic; for native topics the schema is checked too.
    pub(crate) fn may_publish<'a>(&self, who: impl Into<Identity<'a>>, topic: &str) -> Result<(), String> {
        self.security.access.may_publish(who, topic)
    }

    /// Whether a client may subscribe to a filter, shared or not.
    pub(crate) fn may_subscribe<'a>(&self, who: impl Into<Identity<'a>>, filter: &str) -> Result<(), String> {
        self.security.access.may_subscribe(who, filter)
    }

    /// Sends a message of session `from` to subscribers, and retains it if requested: by reference to `schema` if the payload is one. `owner` is the
    /// client whose quota it counts for, `None` for the server. Returns the number of matching subscriptions.
    pub(crate) fn forward(
        &self,
        from: u64,
        owner: Option<&str>,
        publication: &Publication<'_>,
        schema: Option<SchemaHash>,
    ) -> usize {
        if !publication.retain {
            return self.subscriptions.publish_message(from, publication);
        }
        // Drawn before the distribution: a subscription with a greater number receives the message there, and not again as a retained one.
        let number = self.subscriptions.next_number();
        let matched = self.subscriptions.publish_message(from, publication);
        self.subscriptions.retain(owner, publication, schema, number);
        matched
    }

    /// Subscribes for a connection's session; false if it has the maximum number of subscriptions.
    fn subscribe(
        &self,
        handle: &Arc<SessionHandle>,
        link: &Arc<ConnectionSignals>,
        filter: &str,
        options: SubscriptionOptions,
        retained: RetainHandling,
    ) -> bool {
        let Some(mut held) = handle.lock_for(link) else { return true };
        let fits = held.add_filter(filter, self.limits.subscriptions_max);
        // Lock order: subscriptions before sessions.
        drop(held);
        if !fits {
            return false;
        }
        let replay = self.subscriptions.subscribe(filter, handle, options, retained);
        let mut held = handle.lock();
        if held.ended {
            drop(held);
            // The session ended in between: nobody else would remove this subscription.
            self.subscriptions.unsubscribe(handle.number, filter);
        } else if let Some(replay) = replay {
            held.start_replay(replay);
        }
        true
    }

    /// Removes a subscription; returns whether there was one.
    fn unsubscribe(&self, handle: &SessionHandle, link: &Arc<ConnectionSignals>, filter: &str) -> bool {
        let was = handle.lock_for(link).is_some_and(|mut held| held.remove_filter(filter));
        if was {
            self.subscriptions.unsubscribe(handle.number, filter);
            if wholegrain_transport::mqtt::shared(filter).is_some() {
                let shared =
                    SessionHandle::with(&mut handle.lock(), &self.metrics, |session| session.take_shared(Some(filter)));
                shared.into_iter().for_each(|delivery| self.subscriptions.pass_on(delivery, handle.number));
            }
        }
        was
    }

    /// Stores a schema from a trusted remote broker; blocks on the disk.
    pub(crate) fn register_trusted(&self, schema: &Schema) -> Result<(), wholegrain_store::StoreError> {
        self.store.register_schema(schema)?;
        self.schemas.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// Changes when a schema becomes known.
    pub(crate) fn schemas(&self) -> watch::Receiver<u64> {
        self.schemas.subscribe()
    }

    /// The bounds.
    pub(crate) fn limits(&self) -> &MqttLimits {
        &self.limits
    }

    /// Rate-limited warnings.
    pub(crate) fn log(&self) -> &LogLimit {
        &self.log
    }

    /// Checks and stores a schema; blocks on the disk.
    fn register(&self, identity: &str, payload: &Bytes) -> Result<Schema, SchemaRegisterError> {
        // A known schema is not decoded again: its names would be in memory twice for a while.
        let known = self.store.schema(&SchemaHash::of(payload));
        let new = known.is_none();
        let schema = known
            .map_or_else(|| Schema::decode(payload), Ok)
            .map_err(|error| SchemaRegisterError::Refused(ReasonCode::PAYLOAD_FORMAT_INVALID, error.to_string()))?;
        let denied = |why| SchemaRegisterError::Refused(ReasonCode::NOT_AUTHORIZED, why);
        let access = &self.security.access;
        access.may_publish_below(identity, schema.prefix()).map_err(denied)?;
        access.may_write(identity, &schema).map_err(denied)?;
        let taken = if new { self.take_allowance(identity, &schema, payload.len())? } else { (0, 0) };
        // Checked again while the prefix is claimed: another agent may have claimed it in between.
        access.claim(identity, schema.prefix()).map_err(denied)?;
        self.store.register_schema(&schema).map_err(|error| {
            self.new_schemas.give_back(identity, taken.0);
            self.new_sensors.give_back(identity, taken.1);
            self.log.warn(format_args!("schema {} of {identity}: {error}; retrying", schema.hash()));
            SchemaRegisterError::Store(error)
        })?;
        self.schemas.send_modify(|generation| *generation += 1);
        Ok(schema)
    }

    /// Takes a new schema's bytes and new sensors from its agent's hourly quotas; returns what was taken, or why it is too much.
    fn take_allowance(&self, identity: &str, schema: &Schema, bytes: usize) -> Result<(u64, u64), SchemaRegisterError> {
        let (now, limits) = (Instant::now(), &self.limits);
        let (bytes, sensors) = (SCHEMA_BYTES_MIN.max(bytes as u64), self.store.unknown_sensors(schema) as u64);
        let why = if !self.new_schemas.take(identity, bytes, now) {
            format!(
                "over {} bytes of new schemas within an hour; does one of its groups change constantly? \
                 mqtt.limits.schema_bytes_per_hour_max is the bound",
                limits.schema_bytes_per_hour_max
            )
        } else if !self.new_sensors.take(identity, sensors, now) {
            self.new_schemas.give_back(identity, bytes);
            self.metrics.schema_sensors_over_allowance.add(sensors);
            format!(
                "over {} new sensors within an hour, the last {sensors} of them below {}; \
                 mqtt.limits.schema_sensors_per_hour_max is the bound",
                limits.schema_sensors_per_hour_max,
                schema.prefix()
            )
        } else {
            return Ok((bytes, sensors));
        };
        self.metrics.schemas_over_allowance.inc();
        Err(SchemaRegisterError::Refused(ReasonCode::QUOTA_EXCEEDED, format!("agent {identity:?} announced {why}")))
    }

    /// Removes implausible totals from a job record, counts and logs them.
    pub(crate) fn check_totals(&self, identity: &str, record: &mut JobRecord) {
        let taken = record.take_impossible_totals(interop::now_ns());
        if let Some(first) = taken.first() {
            self.metrics.job_totals_impossible.add(taken.len() as u64);
            let first = log_limit::quoted(first);
            self.log.warn(format_args!(
                "mqtt {identity}: {} totals of job {:?} are left out, such as {first}: no node can reach them in the job's time",
                taken.len(),
                log_limit::quoted(&record.job)
            ));
        }
    }

    /// Whether this client may publish a job record of this size; if not, why. Removes implausible totals.
    fn check_job(&self, identity: &str, record: &mut JobRecord, bytes: usize) -> Result<(), (ReasonCode, String)> {
        // The store refuses an invalid path with its own message.
        if let Ok(prefix) = SensorPath::new(record.prefix.as_str()) {
            let denied = |why| (ReasonCode::NOT_AUTHORIZED, why);
            self.security.access.may_publish_below(identity, &prefix).map_err(denied)?;
        }
        if self.job_bytes.take(identity, bytes as u64, Instant::now()) {
            self.check_totals(identity, record);
            return Ok(());
        }
        self.metrics.job_records_over_allowance.inc();
        let why = format!(
            "agent {identity:?} sent over {} bytes of job records within an hour; mqtt.limits.job_bytes_per_hour_max sets the limit",
            self.limits.job_bytes_per_hour_max
        );
        Err((ReasonCode::QUOTA_EXCEEDED, why))
    }

    /// Whether this client may publish batches of a schema: true, false if the schema is unknown, or the reason. A batch's header names its sender,
    /// but its schema says which sensors it writes.
    fn check_batch_schema(&self, identity: &str, hash: &SchemaHash) -> Result<bool, String> {
        let Some(schema) = self.store.schema(hash) else { return Ok(false) };
        self.security.access.claim(identity, schema.prefix())?;
        self.security.access.may_write(identity, &schema).map(|()| true)
    }
}
