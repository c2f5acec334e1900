//! The MQTT broker: 3.1.1 and 5, over TCP and TLS.
//!
//! - In: connections. Out: batches and schemas in the store, acknowledgements, messages to subscribers.
//! - Never: an acknowledgement before the store says that it is durable; an agent under another's name.
//!
//! A connection is a task (`connection.rs`) around a [`pipeline::Pipeline`], which decides what becomes of publishes and
//! does no I/O. [`auth`] says who a client is, [`subscriptions`] who gets which message.
//!
//! What outlives a connection is its session: [`session`] is the state machine of one, without I/O, [`sessions`] keeps
//! them, `keeper.rs` is the task that ends them and publishes wills in time.
//!
//! What this broker does not do: sessions live in memory and do not survive a restart of the server, which then says in
//! CONNACK that it has none; nor do retained messages but schemas, which agents announce again. No extended authentication
//! (AUTH), no response information, no redirection to another server. Messages of QoS 0 do not wait for a client that is
//! away. Clients of MQTT 3.1 (protocol level 3) are refused.

mod aliases;
pub mod allowance;
pub mod auth;
mod connect;
mod connection;
mod fairness;
mod keeper;
pub mod limits;
pub mod link;
pub mod log_limit;
pub mod message;
pub mod pipeline;
mod rate;
pub mod replay;
pub mod retained;
pub mod session;
pub mod sessions;
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

use crate::access::{LOOK_EVERY, Security, Who};
use crate::adjust::Adjustable;
use crate::admission::{Gate, Place, Progress};
use crate::certificates::Tls;
use crate::config::{Limits, MqttConfig};
use crate::control::Control;
use crate::interop::{self, Interop};
use crate::metrics::Metrics;
use crate::pki;
use allowance::{Allowances, SCHEMA_BYTES_MIN};
use fairness::Fairness;
use link::Link;
use log_limit::LogLimit;
use message::Publication;
use pipeline::RegisterError;
use rate::AllLooking;
use retained::Schemas;
use session::QueueBounds;
use sessions::{Handle, SessionBounds, Sessions};
use subscriptions::{Options, Subscriptions};
use wire::Wire;

/// How long accepting rests after it failed, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all connections share.
pub struct Broker {
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) subscriptions: Subscriptions,
    limits: Adjustable<Limits>,
    anonymous: Adjustable<bool>,
    pub(crate) security: Arc<Security>,
    pub(crate) interop: Arc<Interop>,
    /// Looks for retained messages that find hardly any.
    looking: AllLooking,
    /// What each identity may take of the broker's time.
    fairness: Fairness,
    /// Bytes of new schemas.
    new_schemas: Allowances,
    /// New sensors in schemas.
    new_sensors: Allowances,
    /// Bytes of records of jobs.
    job_bytes: Allowances,
    /// Orders to agents.
    pub(crate) control: Control,
    sessions: Sessions,
    /// How many connections there may be, and whose.
    gate: Arc<Gate>,
    /// A session was left: something may be due earlier than before.
    sessions_changed: Notify,
    /// Rises when a schema became known, for batches of other connections that wait for it.
    schemas: watch::Sender<u64>,
    next_id: AtomicU64,
    /// When this process began, in milliseconds since 1970.
    started_ms: u128,
    started: Instant,
    /// Warnings.
    log: LogLimit,
    /// Who comes and goes.
    visits: LogLimit,
    /// A store that cannot write.
    trouble: LogLimit,
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
        let schemas = Schemas(Box::new(move |hash| known.schema(hash).map(|schema| schema.encode().into())));
        Self {
            store,
            subscriptions: Subscriptions::new(limits.queue_total_bytes_max, limits.retained, schemas, metrics.clone()),
            sessions: Sessions::new(bounds, metrics.clone()),
            gate: Gate::new("mqtt", limits.connections()),
            sessions_changed: Notify::new(),
            control: Control::default(),
            metrics,
            limits: Adjustable::new(limits),
            anonymous: Adjustable::new(config.anonymous),
            security,
            interop,
            looking: AllLooking::new(available_parallelism().unwrap_or(NonZeroUsize::MIN), Instant::now()),
            fairness: Fairness::default(),
            new_schemas: Allowances::new(config.limits.schema_bytes_per_hour_max),
            new_sensors: Allowances::new(config.limits.schema_sensors_per_hour_max),
            job_bytes: Allowances::new(config.limits.job_bytes_per_hour_max),
            schemas: watch::Sender::new(0),
            next_id: AtomicU64::new(1),
            started_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis()),
            started: Instant::now(),
            log: LogLimit::default(),
            visits: LogLimit::new(log_limit::VISITS_MAX),
            trouble: LogLimit::new(log_limit::TROUBLE_MAX),
        }
    }

    /// Puts another configuration in force: whether clients may come that prove nothing, and the limits of those that come from
    /// now on. Users and rules are [`Security`]'s matter, addresses and certificates the listeners'.
    pub(crate) fn reload(&self, config: &MqttConfig) {
        self.limits.replace(config.limits);
        self.subscriptions.set_room(config.limits.retained);
        self.gate.set_bounds(config.limits.connections());
        self.anonymous.replace(config.anonymous);
        self.new_schemas.set_per_hour(config.limits.schema_bytes_per_hour_max);
        self.new_sensors.set_per_hour(config.limits.schema_sensors_per_hour_max);
        self.job_bytes.set_per_hour(config.limits.job_bytes_per_hour_max);
    }

    /// Takes connections until the server goes down.
    pub(crate) async fn accept(self: Arc<Self>, listener: TcpListener, tls: Option<Tls>, mut lifetime: Lifetime) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = went_down(&mut lifetime.shutdown) => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    match Progress::of(&stream).and_then(|progress| self.gate.enter(peer.ip(), progress)) {
                        // Counted here and not in the task, so that the bound holds when many come at once.
                        Some(place) => {
                            self.metrics.connections.add(1);
                            let task = self.clone().connection(stream, (peer, place), tls.clone(), lifetime.clone());
                            tokio::spawn(task);
                        }
                        // The gate says so in the log.
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

    /// The gate, for its metrics.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        (peer, place): (SocketAddr, Place),
        tls: Option<Tls>,
        lifetime: Lifetime,
    ) {
        let (deadline, place) = (Instant::now() + self.limits.connect_time_max, Box::new(place));
        // Acknowledgements are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let is_heard = Box::pin(place.heard(&stream, deadline)).await;
        match tls {
            _ if !is_heard => {
                self.refused(peer, format_args!("nothing came of it in time, or others wanted its place"))
            }
            None => connection::run(self.clone(), Wire::new(stream), (peer, place), None, deadline, lifetime).await,
            Some(acceptor) => {
                // On the heap, and gone when it is done: what it needs is not kept by ten thousand connections.
                let handshake = Box::pin(self.handshake(stream, peer, acceptor, (&place, deadline)));
                if let Some((wire, name)) = handshake.await {
                    connection::run(self.clone(), wire, (peer, place), name, deadline, lifetime).await;
                }
            }
        }
        self.metrics.connections.add(-1);
    }

    /// TLS, and the name that the client's certificate shows; `None` when nothing came of it, which has been said.
    async fn handshake(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        acceptor: Tls,
        (place, deadline): (&Place, Instant),
    ) -> Option<(Wire<TlsStream<TcpStream>>, Option<String>)> {
        let handshake = async {
            let stream = acceptor.accept(stream).await?;
            place.advance(Progress::Encrypted);
            Ok::<_, std::io::Error>(stream)
        };
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = place.over(deadline) => {
                self.refused(peer, format_args!("no TLS handshake in time, or others wanted its place"));
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
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| pki::shown(chain.first()?));
        if let Some(pki::Shown { name, serial }) = &shown
            && self.security.is_revoked(peer, name, serial)
        {
            let name = log_limit::quoted(name);
            self.refused(peer, format_args!("the certificate {serial} of \"{name}\" is revoked"));
            return None;
        }
        Some((Wire::new(stream), shown.map(|shown| shown.name)))
    }

    fn refused(&self, peer: SocketAddr, why: std::fmt::Arguments<'_>) {
        self.metrics.connections_refused.inc();
        self.log.warn(format_args!("mqtt {peer}: {why}"));
    }

    /// Takes over changed users, tokens and revoked certificates until the server goes down, and ends the connections of those
    /// who count no longer.
    pub(crate) async fn watch_security(self: Arc<Self>, mut lifetime: Lifetime) {
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

    /// Ends the sessions of these identities; who still counts comes back by itself.
    pub(crate) fn end_connections(&self, identities: &[String]) {
        if identities.is_empty() {
            return;
        }
        let ended = self.sessions.end_of(identities);
        self.metrics.clients_ended.add(ended.len() as u64);
        ended.into_iter().for_each(|leftovers| self.settle(leftovers));
    }

    /// Whether a client may publish on a topic; of native topics the schema is looked at beside.
    pub(crate) fn may_publish<'a>(&self, who: impl Into<Who<'a>>, topic: &str) -> Result<(), String> {
        self.security.access.may_publish(who, topic)
    }

    /// Whether a client may subscribe to a filter, shared or not.
    pub(crate) fn may_subscribe<'a>(&self, who: impl Into<Who<'a>>, filter: &str) -> Result<(), String> {
        self.security.access.may_subscribe(who, filter)
    }

    /// Passes a message of session `from` on to subscribers, and keeps it for those to come if it is retained: as `schema`, if it is one that the
    /// store has. `owner` is the client that it counts for, `None` for the server itself. How many subscriptions it matched.
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
        // Before it is passed on: a subscription with a greater number gets it there, and no second time as a retained one.
        let number = self.subscriptions.next_number();
        let matched = self.subscriptions.publish_message(from, publication);
        self.subscriptions.retain(owner, publication, schema, number);
        matched
    }

    /// Subscribes for the session of a connection; false when it has as many as it may.
    fn subscribe(
        &self,
        handle: &Arc<Handle>,
        link: &Arc<Link>,
        filter: &str,
        options: Options,
        retained: RetainHandling,
    ) -> bool {
        let Some(mut held) = handle.lock_for(link) else { return true };
        let fits = held.add_filter(filter, self.limits.subscriptions_max);
        // The table of subscriptions locks sessions, never the other way round.
        drop(held);
        if !fits {
            return false;
        }
        let replay = self.subscriptions.subscribe(filter, handle, options, retained);
        let mut held = handle.lock();
        if held.ended {
            drop(held);
            // Ended between the two: nobody else takes this subscription away.
            self.subscriptions.unsubscribe(handle.number, filter);
        } else if let Some(replay) = replay {
            held.start_replay(replay);
        }
        true
    }

    /// Unsubscribes; whether there was such a subscription.
    fn unsubscribe(&self, handle: &Handle, link: &Arc<Link>, filter: &str) -> bool {
        let was = handle.lock_for(link).is_some_and(|mut held| held.remove_filter(filter));
        if was {
            self.subscriptions.unsubscribe(handle.number, filter);
            if wholegrain_transport::mqtt::shared(filter).is_some() {
                let shared =
                    Handle::with(&mut handle.lock(), &self.metrics, |session| session.take_shared(Some(filter)));
                shared.into_iter().for_each(|delivery| self.subscriptions.pass_on(delivery, handle.number));
            }
        }
        was
    }

    /// Makes a schema durable that a trusted broker delivered; blocks on the disk.
    pub(crate) fn register_trusted(&self, schema: &Schema) -> Result<(), wholegrain_store::StoreError> {
        self.store.register_schema(schema)?;
        self.schemas.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// Tells when a schema became known.
    pub(crate) fn schemas(&self) -> watch::Receiver<u64> {
        self.schemas.subscribe()
    }

    /// The bounds.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Warnings at a bounded rate.
    pub(crate) fn log(&self) -> &LogLimit {
        &self.log
    }

    /// Checks a schema and makes it durable; blocks on the disk.
    fn register(&self, identity: &str, payload: &Bytes) -> Result<Schema, RegisterError> {
        // A schema that is known is not made of the payload once more: its names would be in memory twice until it is let go.
        let known = self.store.schema(&SchemaHash::of(payload));
        let new = known.is_none();
        let schema = known
            .map_or_else(|| Schema::decode(payload), Ok)
            .map_err(|error| RegisterError::Refused(ReasonCode::PAYLOAD_FORMAT_INVALID, error.to_string()))?;
        let denied = |why| RegisterError::Refused(ReasonCode::NOT_AUTHORIZED, why);
        let access = &self.security.access;
        access.may_publish_below(identity, schema.prefix()).map_err(denied)?;
        access.may_write(identity, &schema).map_err(denied)?;
        let taken = if new { self.take_allowance(identity, &schema, payload.len())? } else { (0, 0) };
        // Again, and now it is this agent's prefix: between the two questions somebody else may have come.
        access.claim(identity, schema.prefix()).map_err(denied)?;
        self.store.register_schema(&schema).map_err(|error| {
            self.new_schemas.give_back(identity, taken.0);
            self.new_sensors.give_back(identity, taken.1);
            self.log.warn(format_args!("schema {} of {identity}: {error}; trying again", schema.hash()));
            RegisterError::Store(error)
        })?;
        self.schemas.send_modify(|generation| *generation += 1);
        Ok(schema)
    }

    /// Takes a new schema's bytes and new sensors out of what its agent may announce in an hour; what was taken, or why it is too much.
    fn take_allowance(&self, identity: &str, schema: &Schema, bytes: usize) -> Result<(u64, u64), RegisterError> {
        let (now, limits) = (Instant::now(), &self.limits);
        let (bytes, sensors) = (SCHEMA_BYTES_MIN.max(bytes as u64), self.store.unknown_sensors(schema) as u64);
        let why = if !self.new_schemas.take(identity, bytes, now) {
            format!(
                "over {} bytes of new schemas within an hour; does one of its groups change all the time? \
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
        Err(RegisterError::Refused(ReasonCode::QUOTA_EXCEEDED, format!("agent {identity:?} announced {why}")))
    }

    /// Takes totals that cannot be out of a job's record; counted, and said in the log.
    pub(crate) fn check_totals(&self, identity: &str, record: &mut JobRecord) {
        let taken = record.take_impossible_totals(interop::now_ns());
        if let Some(first) = taken.first() {
            self.metrics.job_totals_impossible.add(taken.len() as u64);
            let first = log_limit::quoted(first);
            self.log.warn(format_args!(
                "mqtt {identity}: {} totals of job {:?} are left out, {first} among them: no node can come to so much in the job's time",
                taken.len(),
                log_limit::quoted(&record.job)
            ));
        }
    }

    /// Whether this client may publish a job's record of so many bytes; or why not. Totals that cannot be are taken out of it.
    fn check_job(&self, identity: &str, record: &mut JobRecord, bytes: usize) -> Result<(), (ReasonCode, String)> {
        // What is no path is refused by the store, which says so.
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
            "agent {identity:?} sent over {} bytes of records of jobs within an hour; mqtt.limits.job_bytes_per_hour_max is the bound",
            self.limits.job_bytes_per_hour_max
        );
        Err((ReasonCode::QUOTA_EXCEEDED, why))
    }

    /// Whether this client may publish batches of a schema: true, false when the schema is not known, or why not. The
    /// header of a batch says who sent it, but its schema says whose sensors it writes.
    fn check_batch_schema(&self, identity: &str, hash: &SchemaHash) -> Result<bool, String> {
        let Some(schema) = self.store.schema(hash) else { return Ok(false) };
        self.security.access.claim(identity, schema.prefix())?;
        self.security.access.may_write(identity, &schema).map(|()| true)
    }
}
