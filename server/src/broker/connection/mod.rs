//! The task of one client: I/O, deadlines, and the effects of its [`PublishPipeline`].
//!
//! `handshake.rs` goes from the first byte to CONNACK, `packets.rs` handles packets of the client, `sending.rs` sends messages to it. What outlives
//! the connection is in its session ([`super::sessions`]).

mod handshake;
mod packets;
mod publishing;
mod readings;
mod sending;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use wholegrain_transport::mqtt::{self, Connect, Packet, Publish, ReasonCode, Version};

use crate::access::Identity;
use crate::access::audit::{AuditEvent as Audited, AuditOutcome};
use crate::ingest::{ClientTerms, CloseReason, PermittedSchemas, PublishEffect, PublishPipeline, ReadingPublishes};
use crate::lifetime::wait_for_shutdown;

use super::Broker;
use super::aliases;
use super::config::MqttLimits;
use super::connect::AdmittedClient;
use super::fairness::ConnectionTurn;
use super::rate::{PublishRate, RetainedLookupRate};
use super::rights::ClientRights;
use super::sessions::{ConnectOptions, DisconnectOptions, SessionHandle, Will};
use super::signals::ConnectionSignals;
use super::wire::{PacketStream, flush_and_close, read_some, write_now, write_some};
pub(super) use handshake::run;

/// With more bytes waiting to be written, no further messages are taken from the session and nothing more is read.
const OUT_BYTES_MAX: usize = 1 << 20;
/// How long a server that shuts down waits for the store's answers to one client's batches.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);

/// The largest packet other than PUBLISH, in bytes.
const CONTROL_BYTES_MAX: usize = 1 << 20;
/// The packet type of PUBLISH, in the upper half of a packet's first byte.
const PUBLISH: u8 = 3;

/// How many times ready tasks run before an ordinary message is processed: those woken at the same time, and those that another thread has just
/// started.
const GIVE_WAY_TURNS: usize = 3;

/// Why a connection is over.
enum ConnectionEnd {
    /// The client sent DISCONNECT, with the new session expiry if given.
    Normal(Option<Duration>),
    /// The client sent DISCONNECT and asks for its will to be published.
    WithWill(Option<Duration>),
    Broken(&'static str),
    Closed(CloseReason),
    /// The server shuts down.
    Shutdown,
}

impl From<CloseReason> for ConnectionEnd {
    fn from(close: CloseReason) -> Self {
        ConnectionEnd::Closed(close)
    }
}

struct Connection<S> {
    broker: Arc<Broker>,
    wire: PacketStream<S>,
    peer: SocketAddr,
    /// Whether the client is unauthenticated.
    anonymous: bool,
    handle: Arc<SessionHandle>,
    link: Arc<ConnectionSignals>,
    version: Version,
    packet_bytes_max: usize,
    silence_max: Duration,
    /// Whether acknowledgements may have a reason string (MQTT 5, request problem information).
    wants_words: bool,
    /// Whether the session ends with the connection, in which case DISCONNECT may not set an expiry.
    ends_with_connection: bool,
    pipeline: PublishPipeline,
    intake: ReadingPublishes,
    effects: Vec<PublishEffect>,
    last_received: Instant,
    /// Whether the last event was a read.
    reading: bool,
    /// Since when the client has read nothing of the waiting output.
    write_blocked_since: Option<Instant>,
    /// Since when a packet is incomplete.
    packet_incomplete_since: Option<Instant>,
    /// Its rate limit of publishes, if any, and until when nothing is read because it was exceeded.
    rate: Option<Box<PublishRate>>,
    publishes_paused_until: Option<Instant>,
    /// Its turn, and its part of the identity's control packets.
    turn: ConnectionTurn,
    /// Its rate limit of lookups of retained messages, and until when there are none.
    lookup_rate: RetainedLookupRate,
    lookups_paused_until: Option<Instant>,
    /// An ordinary message that waits until ready tasks have run.
    held_back: Option<Box<Publish>>,
    /// Whether they have run since the last read.
    gave_way: bool,
    aliases_in: aliases::InboundAliases,
    aliases_out: aliases::OutboundAliases,
    permitted_schemas: PermittedSchemas,
    rights: Arc<ClientRights>,
    /// The limits as announced to this client; a reload changes those of later ones.
    limits: Arc<MqttLimits>,
}

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    fn new(
        broker: Arc<Broker>,
        wire: PacketStream<S>,
        peer: SocketAddr,
        mut admitted: AdmittedClient,
        connect: Box<Connect>,
    ) -> Self {
        let (limits, now, link) = (broker.limits(), Instant::now(), Arc::new(ConnectionSignals::default()));
        let entering = ConnectOptions {
            clean: admitted.clean_start,
            expiry: admitted.session_expiry,
            window: admitted.window,
            will: connect.will.as_ref().map(|will| Will::new(will, &admitted.identity, admitted.anonymous)),
        };
        let key = (admitted.identity.clone(), admitted.client_id);
        let (handle, present, leftovers) = broker.sessions.enter(key, &link, entering);
        leftovers.into_iter().for_each(|leftovers| broker.finish_session(leftovers));
        let anonymous = admitted.anonymous.then(|| peer.ip());
        let per_s_max = limits.control_packets_per_s_max;
        let turn = broker.fairness.enter(&admitted.identity, anonymous, per_s_max, now);
        let terms = ClientTerms {
            identity: admitted.identity,
            reasons: admitted.version == Version::V5,
            relay: false,
            inflight_max: limits.inflight_max.into(),
            inflight_bytes_max: limits.inflight_bytes_max,
            inflight_total_bytes_max: limits.inflight_total_bytes_max,
            schema_wait_max: limits.schema_wait_max,
        };
        let pipeline = PublishPipeline::new(terms, broker.metrics.clone());
        let rights = ClientRights::new(broker.clone(), pipeline.identity_shared(), admitted.anonymous);
        let mut connection = Self {
            broker,
            limits: limits.clone(),
            wire,
            peer,
            anonymous: admitted.anonymous,
            handle,
            link,
            version: admitted.version,
            packet_bytes_max: admitted.packet_bytes_max,
            silence_max: admitted.silence_max,
            wants_words: admitted.wants_words,
            ends_with_connection: admitted.session_expiry.is_zero(),
            pipeline,
            intake: ReadingPublishes::default(),
            effects: Vec::new(),
            last_received: now,
            reading: true,
            write_blocked_since: None,
            packet_incomplete_since: None,
            rate: PublishRate::new(limits.publishes_per_s_max, limits.publish_bytes_per_s_max, now).map(Box::new),
            publishes_paused_until: None,
            turn,
            lookup_rate: RetainedLookupRate::new(now),
            lookups_paused_until: None,
            held_back: None,
            gave_way: false,
            aliases_in: aliases::InboundAliases::new(limits.topic_aliases_max),
            aliases_out: aliases::OutboundAliases::new(admitted.topic_alias_max),
            permitted_schemas: PermittedSchemas::default(),
            rights,
        };
        admitted.answer.session_present = present;
        // CONNACK is sent only now, when a newer connection can replace this one.
        connection.send(&Packet::ConnAck(admitted.answer));
        connection
    }

    fn identity(&self) -> &str {
        self.pipeline.identity()
    }

    fn who(&self) -> Identity<'_> {
        Identity { name: self.identity(), anonymous: self.anonymous }
    }

    fn audit_refused(&self, what: Audited, why: &str) {
        self.broker.security.audit.bounded(what, AuditOutcome::Refused, self.identity(), self.peer, why);
    }

    async fn serve(mut self: Box<Self>, mut shutdown: watch::Receiver<bool>) {
        let mut schemas = self.broker.schemas.subscribe();
        let timer = tokio::time::sleep(self.silence_max);
        // Created once: a new wait in each step would cost more than the step.
        let down = wait_for_shutdown(&mut shutdown);
        tokio::pin!(timer, down);
        let end = loop {
            if let ControlFlow::Break(end) = self.step(down.as_mut(), &mut schemas, timer.as_mut()).await {
                break end;
            }
        };
        // On the heap, because it is needed once.
        Box::pin(self.finish(end)).await;
    }

    /// Waits for one event and handles it.
    async fn step(
        &mut self,
        down: Pin<&mut impl Future<Output = ()>>,
        schemas: &mut watch::Receiver<u64>,
        mut timer: Pin<&mut tokio::time::Sleep>,
    ) -> ControlFlow<ConnectionEnd> {
        if self.turn.is_over() {
            self.broker.metrics.turns.inc();
            self.turn.next().await;
        }
        self.take_packets()?;
        if self.held_back.is_some() {
            for _ in 0..GIVE_WAY_TURNS {
                tokio::task::yield_now().await;
            }
            self.take_held_back()?;
            self.take_packets()?;
        }
        // A connection whose turn is over continues with its next one and reads nothing before that.
        let has_more = self.send_messages() || self.turn.is_over();
        // Sockets nearly always have room: waiting for it among other events is the exception.
        if self.wire.wants_write() {
            let PacketStream { write, output, unflushed, .. } = &mut self.wire;
            if let Some(result) = write_now(write, output, unflushed).await {
                self.wrote(result)?;
            }
        }
        let may_read = self.may_read() && !self.turn.is_over();
        if may_read && !self.reading {
            // The client's silence counts from when we read again.
            self.last_received = Instant::now();
        }
        self.reading = may_read;
        let writing = self.wire.wants_write();
        let deadline = self.deadline(may_read).into();
        // A timer that fires too early is cheaper than setting it for each packet.
        if deadline < timer.deadline() || timer.is_elapsed() {
            timer.as_mut().reset(deadline);
        }
        let PacketStream { read, write, input, output, unflushed } = &mut self.wire;
        tokio::select! {
            () = self.link.wait() => self.handle_signals(),
            result = read_some(read, input), if may_read => match result {
                Ok(0) => ControlFlow::Break(ConnectionEnd::Broken("closed by the client")),
                Ok(count) => {
                    (self.last_received, self.gave_way) = (Instant::now(), false);
                    self.broker.metrics.received_bytes.add(count as u64);
                    ControlFlow::Continue(())
                }
                Err(_) => ControlFlow::Break(ConnectionEnd::Broken("broken")),
            },
            result = write_some(write, output, unflushed), if writing => self.wrote(result),
            Ok(()) = schemas.changed(), if self.pipeline.has_parked() => {
                let store = self.broker.store.clone();
                self.pipeline.schemas_changed(|hash| store.schema(hash).is_some(), Instant::now(), &mut self.effects);
                self.apply()
            }
            // Others run first: lookups of retained messages may take many turns.
            () = tokio::task::yield_now(), if has_more => ControlFlow::Continue(()),
            () = down => ControlFlow::Break(ConnectionEnd::Shutdown),
            () = timer => self.time_passed(may_read),
        }
    }

    fn wrote(&mut self, result: std::io::Result<usize>) -> ControlFlow<ConnectionEnd> {
        let Ok(count) = result else { return ControlFlow::Break(ConnectionEnd::Broken("broken")) };
        self.write_blocked_since = None;
        self.broker.metrics.sent_bytes.add(count as u64);
        ControlFlow::Continue(())
    }

    /// Handles events and flags; messages are fetched before every wait anyway.
    fn handle_signals(&mut self) -> ControlFlow<ConnectionEnd> {
        if self.link.is_ended() {
            let close = CloseReason::new(ReasonCode::NOT_AUTHORIZED, "its credentials were changed or revoked");
            return ControlFlow::Break(close.into());
        }
        if self.link.is_replaced() {
            let close = CloseReason::new(ReasonCode::SESSION_TAKEN_OVER, "replaced by a newer connection");
            return ControlFlow::Break(close.into());
        }
        for event in self.link.take_events() {
            self.take_event(event)?;
        }
        ControlFlow::Continue(())
    }

    fn may_read(&self) -> bool {
        self.publishes_paused_until.is_none() && self.pipeline.can_read() && self.wire.output.len() < OUT_BYTES_MAX
    }

    /// Whether the next packet of the input may be processed. Gathered readings, at most those of one read, go to the store together.
    fn takes_packets(&self) -> bool {
        self.may_read() && (!self.turn.is_over() || self.pipeline.is_gathering())
    }

    /// The largest size allowed for the next packet: a small packet with many filters takes much memory once decoded.
    fn next_bytes_max(&self) -> usize {
        let is_publish = self.wire.input.first().is_some_and(|first| first >> 4 == PUBLISH);
        if is_publish { self.limits.packet_bytes_max } else { self.limits.packet_bytes_max.min(CONTROL_BYTES_MAX) }
    }

    fn deadline(&mut self, may_read: bool) -> Instant {
        let now = Instant::now();
        if self.wire.wants_write() {
            self.write_blocked_since.get_or_insert(now);
        }
        // While the server does not read, the client's silence does not count.
        let silence = if may_read { self.last_received } else { now } + self.silence_max;
        let stuck = self.write_blocked_since.map(|since| since + self.limits.write_time_max);
        let arriving = self.packet_incomplete_since.map(|since| since + self.limits.packet_time_max);
        let paused = self.publishes_paused_until.into_iter().chain(self.lookups_paused_until);
        let others = stuck.into_iter().chain(arriving).chain(paused).chain(self.pipeline.deadline());
        others.fold(silence, Instant::min)
    }

    fn time_passed(&mut self, may_read: bool) -> ControlFlow<ConnectionEnd> {
        let now = Instant::now();
        if self.write_blocked_since.is_some_and(|since| now >= since + self.limits.write_time_max) {
            self.broker.metrics.timeouts.inc();
            return ControlFlow::Break(ConnectionEnd::Broken("not read by the client"));
        }
        if may_read && now >= self.last_received + self.silence_max {
            self.broker.metrics.timeouts.inc();
            let why = format!("silent for {} s", self.silence_max.as_secs_f32());
            return ControlFlow::Break(CloseReason::new(ReasonCode::KEEP_ALIVE_TIMEOUT, why).into());
        }
        let packet_time_max = self.limits.packet_time_max;
        if self.packet_incomplete_since.is_some_and(|since| now >= since + packet_time_max) {
            self.broker.metrics.timeouts.inc();
            let why = format!("a packet was incomplete after {} s", packet_time_max.as_secs_f32());
            return ControlFlow::Break(CloseReason::new(ReasonCode::KEEP_ALIVE_TIMEOUT, why).into());
        }
        for pause in [&mut self.publishes_paused_until, &mut self.lookups_paused_until] {
            *pause = pause.filter(|until| now < *until);
        }
        self.pipeline.tick(now, &mut self.effects);
        self.apply()
    }

    /// Decodes the input as far as it may be read now.
    fn take_packets(&mut self) -> ControlFlow<ConnectionEnd> {
        self.refresh_intake();
        while self.takes_packets() && self.held_back.is_none() {
            let bytes_max = self.next_bytes_max();
            match mqtt::decode(&mut self.wire.input, Some(self.version), bytes_max) {
                Ok(Some(packet)) => {
                    self.packet_incomplete_since = None;
                    self.take_packet(packet)?
                }
                Ok(None) => break,
                Err(error) => {
                    return ControlFlow::Break(CloseReason::new(error.reason_code(), error.to_string()).into());
                }
            }
        }
        self.close_run()?;
        self.wire.tidy();
        // Bytes that trickle in are not silence; without this they would hold a connection and its buffer forever.
        if self.wire.input.is_empty() || !self.takes_packets() {
            self.packet_incomplete_since = None;
        } else {
            self.packet_incomplete_since.get_or_insert_with(Instant::now);
        }
        ControlFlow::Continue(())
    }

    /// The last packet, the end or rest of the session, and the log line.
    async fn finish(mut self: Box<Self>, end: ConnectionEnd) {
        let (peer, identity) = (self.peer, self.identity().to_owned());
        let (mut with_will, mut expiry) = (true, None);
        if !matches!(end, ConnectionEnd::Shutdown) {
            self.finish_naming().await;
        }
        self.end_devices();
        match end {
            ConnectionEnd::Normal(new) => {
                (with_will, expiry) = (false, new);
                self.broker.connection_log.info(format_args!("mqtt {peer}: {identity} disconnected"));
            }
            ConnectionEnd::WithWill(new) => {
                expiry = new;
                self.broker.connection_log.info(format_args!("mqtt {peer}: {identity} disconnected with its will"));
            }
            ConnectionEnd::Broken(how) => {
                self.broker.connection_log.info(format_args!("mqtt {peer}: {identity} disconnected: connection {how}"))
            }
            ConnectionEnd::Closed(close) => {
                if !matches!(close.reason, ReasonCode::SESSION_TAKEN_OVER | ReasonCode::KEEP_ALIVE_TIMEOUT) {
                    self.broker.metrics.protocol_errors.inc();
                }
                self.broker.log.warn(format_args!("mqtt {peer}: closed the connection of {identity}: {}", close.why));
                self.leave(with_will, expiry);
                return self.disconnect(close.reason, &close.why).await;
            }
            ConnectionEnd::Shutdown => {
                self.drain().await;
                self.leave(with_will, expiry);
                return self.disconnect(ReasonCode::SERVER_SHUTTING_DOWN, "").await;
            }
        }
        self.leave(with_will, expiry);
        flush_and_close(&mut self.wire).await;
    }

    fn leave(&self, with_will: bool, expiry: Option<Duration>) {
        let leaving = DisconnectOptions { with_will, expiry };
        let leftovers = self.broker.sessions.leave(&self.handle, &self.link, leaving, Instant::now());
        self.broker.sessions_changed.notify_one();
        leftovers.into_iter().for_each(|leftovers| self.broker.finish_session(leftovers));
    }

    /// Acknowledges publishes that the store still confirms; sends it no more.
    async fn drain(&mut self) {
        self.pipeline.stop();
        let deadline = tokio::time::Instant::now() + DRAIN_TIME_MAX;
        while self.pipeline.awaits_store() {
            if tokio::time::timeout_at(deadline, self.link.wait()).await.is_err() || self.handle_signals().is_break() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// Upper bounds of the size of a connection's task, and of the connection on the heap, in bytes.
    const TASK_BYTES_MAX: usize = 2 << 10;
    const CONNECTION_BYTES_MAX: usize = 1 << 10;

    fn future_bytes<A, B, C, D, E, F>(_: impl Fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// There are ten thousand of them, and a value that a future hands on to another is in it twice.
    #[test]
    fn a_connection_takes_little_memory() {
        let (task, connection) = (future_bytes(Broker::connection), size_of::<Connection<TcpStream>>());
        println!("a connection's task {task} bytes, beside it {connection}");
        assert!(task <= TASK_BYTES_MAX && connection <= CONNECTION_BYTES_MAX, "{task} and {connection} bytes");
    }
}
