//! One client's task: bytes in and out, deadlines, and the effects of its [`Pipeline`].
//!
//! `greet.rs` is from the first byte to CONNACK, `packets.rs` what the client sends and what becomes of it, `sending.rs`
//! what is sent to it. What outlives the connection is in its session ([`super::sessions`]).

mod greet;
mod packets;
mod readings;
mod sending;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{self, Connect, Packet, Publish, ReasonCode, Version};

use crate::access::Who;
use crate::access::audit::{Event as Audited, Outcome};
use crate::config::Limits;
use crate::interop::intake::Intake;

use super::aliases;
use super::connect::Admitted;
use super::fairness::Turn;
use super::link::Link;
use super::pipeline::{Close, Effect, Pipeline, Terms};
use super::rate::{Looking, Rate};
use super::sessions::{Entering, Handle, Leaving, Will};
use super::wire::{Wire, farewell, read_some, write_now, write_some};
use super::{Broker, went_down};
pub(super) use greet::run;

/// Bytes waiting to be written beyond which no further messages are taken from the session and nothing more is read.
const OUT_BYTES_MAX: usize = 1 << 20;
/// How long a server that goes down waits for the store's answers to one client's batches.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);

/// The largest packet other than PUBLISH, in bytes.
const CONTROL_BYTES_MAX: usize = 1 << 20;
/// The packet type of PUBLISH, in the upper half of a packet's first byte.
const PUBLISH: u8 = 3;

/// How many times the tasks that are ready have their turn before an ordinary message is taken: what came with the same wake-up, and what
/// another thread has just begun with.
const GIVE_WAY_TURNS: usize = 3;

/// Why a connection is over.
enum End {
    /// The client said goodbye, and how long its session is to be kept if it said that.
    Normal(Option<Duration>),
    /// The client said goodbye and wants its will published.
    WithWill(Option<Duration>),
    /// It just went away.
    Gone(&'static str),
    /// We end it.
    Closed(Close),
    /// The server goes down.
    Shutdown,
}

impl From<Close> for End {
    fn from(close: Close) -> Self {
        End::Closed(close)
    }
}

struct Connection<S> {
    broker: Arc<Broker>,
    wire: Wire<S>,
    peer: SocketAddr,
    /// Whether the client proved no identity.
    anonymous: bool,
    handle: Arc<Handle>,
    link: Arc<Link>,
    version: Version,
    packet_bytes_max: usize,
    silence_max: Duration,
    /// Whether a reason in words may stand in acknowledgements (MQTT 5, request problem information).
    wants_words: bool,
    /// Whether the session ends with the connection unless DISCONNECT, which then may not, says otherwise.
    ends_with_connection: bool,
    pipeline: Pipeline,
    intake: Intake,
    effects: Vec<Effect>,
    heard: Instant,
    /// Whether the client was read from last.
    reading: bool,
    /// Since when the client has read nothing of what waits for it.
    stuck: Option<Instant>,
    /// Since when a packet is arriving.
    arriving: Option<Instant>,
    /// Its bound on publishing, if it has one, and until when nothing is read because it was exceeded.
    rate: Option<Box<Rate>>,
    throttled: Option<Instant>,
    /// How much it may do before others have their turn, and its part of its identity's control packets.
    turn: Turn,
    /// Its looks for retained messages, and until when none is made because they found hardly any.
    looking: Looking,
    resting: Option<Instant>,
    /// An ordinary message for which the tasks that are ready go first.
    held_back: Option<Box<Publish>>,
    /// Whether they had their turn since this client was read from.
    gave_way: bool,
    aliases_in: aliases::Inbound,
    aliases_out: aliases::Outbound,
    /// Schemas that batches of this client may be of.
    own_schemas: HashSet<SchemaHash>,
    /// As they were announced to this client; a reload changes those of later ones.
    limits: &'static Limits,
}

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    fn new(
        broker: Arc<Broker>,
        wire: Wire<S>,
        peer: SocketAddr,
        mut admitted: Admitted,
        connect: Box<Connect>,
    ) -> Self {
        let (limits, now, link) = (broker.limits.now(), Instant::now(), Arc::new(Link::default()));
        let entering = Entering {
            clean: admitted.clean_start,
            expiry: admitted.session_expiry,
            window: admitted.window,
            will: connect.will.as_ref().map(|will| Will::new(will, &admitted.identity, admitted.anonymous)),
        };
        let key = (admitted.identity.clone(), admitted.client_id);
        let (handle, present, leftovers) = broker.sessions.enter(key, &link, entering);
        leftovers.into_iter().for_each(|leftovers| broker.settle(leftovers));
        let anonymous = admitted.anonymous.then(|| peer.ip());
        let per_s_max = limits.control_packets_per_s_max;
        let turn = broker.fairness.enter(&admitted.identity, anonymous, per_s_max, now);
        let terms = Terms {
            identity: admitted.identity,
            reasons: admitted.version == Version::V5,
            relay: false,
            inflight_max: limits.inflight_max.into(),
            inflight_bytes_max: limits.inflight_bytes_max,
            inflight_total_bytes_max: limits.inflight_total_bytes_max,
            schema_wait_max: limits.schema_wait_max,
        };
        let pipeline = Pipeline::new(terms, broker.metrics.clone());
        let mut connection = Self {
            broker,
            limits,
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
            intake: Intake::default(),
            effects: Vec::new(),
            heard: now,
            reading: true,
            stuck: None,
            arriving: None,
            rate: Rate::new(limits.publishes_per_s_max, limits.publish_bytes_per_s_max, now).map(Box::new),
            throttled: None,
            turn,
            looking: Looking::new(now),
            resting: None,
            held_back: None,
            gave_way: false,
            aliases_in: aliases::Inbound::new(limits.topic_aliases_max),
            aliases_out: aliases::Outbound::new(admitted.topic_alias_max),
            own_schemas: HashSet::new(),
        };
        admitted.answer.session_present = present;
        // Only now, when it can be taken over, does the client hear that it is in.
        connection.send(&Packet::ConnAck(admitted.answer));
        connection
    }

    fn identity(&self) -> &str {
        self.pipeline.identity()
    }

    fn who(&self) -> Who<'_> {
        Who { name: self.identity(), anonymous: self.anonymous }
    }

    fn audit_refused(&self, what: Audited, why: &str) {
        self.broker.security.audit.bounded(what, Outcome::Refused, self.identity(), self.peer, why);
    }

    async fn serve(mut self: Box<Self>, mut shutdown: watch::Receiver<bool>) {
        let mut schemas = self.broker.schemas.subscribe();
        let timer = tokio::time::sleep(self.silence_max);
        // Made once: a wait that begins anew with each step costs more than the step.
        let down = went_down(&mut shutdown);
        tokio::pin!(timer, down);
        let end = loop {
            if let ControlFlow::Break(end) = self.step(down.as_mut(), &mut schemas, timer.as_mut()).await {
                break end;
            }
        };
        // On the heap, for it is needed once.
        Box::pin(self.finish(end)).await;
    }

    /// Waits for one thing and does it.
    async fn step(
        &mut self,
        down: Pin<&mut impl Future<Output = ()>>,
        schemas: &mut watch::Receiver<u64>,
        mut timer: Pin<&mut tokio::time::Sleep>,
    ) -> ControlFlow<End> {
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
        // Whose turn is over goes on with its next one, and reads nothing before that.
        let has_more = self.send_messages() || self.turn.is_over();
        // Sockets nearly always have room: only who finds none waits for it, among other things.
        if self.wire.wants_write() {
            let Wire { write, output, unflushed, .. } = &mut self.wire;
            if let Some(result) = write_now(write, output, unflushed).await {
                self.wrote(result)?;
            }
        }
        let may_read = self.may_read() && !self.turn.is_over();
        if may_read && !self.reading {
            // The client's silence counts from when we listen again.
            self.heard = Instant::now();
        }
        self.reading = may_read;
        let writing = self.wire.wants_write();
        let deadline = self.deadline(may_read).into();
        // A timer that rings too early is cheaper than one that is set anew for each packet.
        if deadline < timer.deadline() || timer.is_elapsed() {
            timer.as_mut().reset(deadline);
        }
        let Wire { read, write, input, output, unflushed } = &mut self.wire;
        tokio::select! {
            () = self.link.rung() => self.rung(),
            result = read_some(read, input), if may_read => match result {
                Ok(0) => ControlFlow::Break(End::Gone("closed by the client")),
                Ok(count) => {
                    (self.heard, self.gave_way) = (Instant::now(), false);
                    self.broker.metrics.received_bytes.add(count as u64);
                    ControlFlow::Continue(())
                }
                Err(_) => ControlFlow::Break(End::Gone("broken")),
            },
            result = write_some(write, output, unflushed), if writing => self.wrote(result),
            Ok(()) = schemas.changed(), if self.pipeline.has_parked() => {
                let store = self.broker.store.clone();
                self.pipeline.schemas_changed(|hash| store.schema(hash).is_some(), Instant::now(), &mut self.effects);
                self.apply()
            }
            // Others first: looking up retained messages may take many turns.
            () = tokio::task::yield_now(), if has_more => ControlFlow::Continue(()),
            () = down => ControlFlow::Break(End::Shutdown),
            () = timer => self.time_passed(may_read),
        }
    }

    fn wrote(&mut self, result: std::io::Result<usize>) -> ControlFlow<End> {
        let Ok(count) = result else { return ControlFlow::Break(End::Gone("broken")) };
        self.stuck = None;
        self.broker.metrics.sent_bytes.add(count as u64);
        ControlFlow::Continue(())
    }

    /// Somebody has something for us; messages are fetched before every wait anyway.
    fn rung(&mut self) -> ControlFlow<End> {
        if self.link.is_ended() {
            let close = Close::new(ReasonCode::NOT_AUTHORIZED, "what proved its identity was changed or revoked");
            return ControlFlow::Break(close.into());
        }
        if self.link.is_taken_over() {
            let close = Close::new(ReasonCode::SESSION_TAKEN_OVER, "taken over by a newer connection");
            return ControlFlow::Break(close.into());
        }
        for event in self.link.take_events() {
            self.take_event(event)?;
        }
        ControlFlow::Continue(())
    }

    fn may_read(&self) -> bool {
        self.throttled.is_none() && self.pipeline.can_read() && self.wire.output.len() < OUT_BYTES_MAX
    }

    /// Whether the next packet of what was read may be taken. Readings that are gathered go to the store together, at most what one read gives.
    fn takes_packets(&self) -> bool {
        self.may_read() && (!self.turn.is_over() || self.pipeline.is_gathering())
    }

    /// The largest that the next packet may be: a small one of many filters takes much memory once it is decoded.
    fn next_bytes_max(&self) -> usize {
        let is_publish = self.wire.input.first().is_some_and(|first| first >> 4 == PUBLISH);
        if is_publish { self.limits.packet_bytes_max } else { self.limits.packet_bytes_max.min(CONTROL_BYTES_MAX) }
    }

    fn deadline(&mut self, may_read: bool) -> Instant {
        let now = Instant::now();
        if self.wire.wants_write() {
            self.stuck.get_or_insert(now);
        }
        // While we do not read, the client's silence is of our own making.
        let silence = if may_read { self.heard } else { now } + self.silence_max;
        let stuck = self.stuck.map(|since| since + self.limits.write_time_max);
        let arriving = self.arriving.map(|since| since + self.limits.packet_time_max);
        let paused = self.throttled.into_iter().chain(self.resting);
        let others = stuck.into_iter().chain(arriving).chain(paused).chain(self.pipeline.deadline());
        others.fold(silence, Instant::min)
    }

    fn time_passed(&mut self, may_read: bool) -> ControlFlow<End> {
        let now = Instant::now();
        if self.stuck.is_some_and(|since| now >= since + self.limits.write_time_max) {
            self.broker.metrics.timeouts.inc();
            return ControlFlow::Break(End::Gone("not read by the client"));
        }
        if may_read && now >= self.heard + self.silence_max {
            self.broker.metrics.timeouts.inc();
            let why = format!("silent for {} s", self.silence_max.as_secs_f32());
            return ControlFlow::Break(Close::new(ReasonCode::KEEP_ALIVE_TIMEOUT, why).into());
        }
        let packet_time_max = self.limits.packet_time_max;
        if self.arriving.is_some_and(|since| now >= since + packet_time_max) {
            self.broker.metrics.timeouts.inc();
            let why = format!("a packet was not there whole after {} s", packet_time_max.as_secs_f32());
            return ControlFlow::Break(Close::new(ReasonCode::KEEP_ALIVE_TIMEOUT, why).into());
        }
        for pause in [&mut self.throttled, &mut self.resting] {
            *pause = pause.filter(|until| now < *until);
        }
        self.pipeline.tick(now, &mut self.effects);
        self.apply()
    }

    /// Decodes what was read, as far as may be read now.
    fn take_packets(&mut self) -> ControlFlow<End> {
        self.refresh_intake();
        while self.takes_packets() && self.held_back.is_none() {
            let bytes_max = self.next_bytes_max();
            match mqtt::decode(&mut self.wire.input, Some(self.version), bytes_max) {
                Ok(Some(packet)) => {
                    self.arriving = None;
                    self.take_packet(packet)?
                }
                Ok(None) => break,
                Err(error) => return ControlFlow::Break(Close::new(error.reason_code(), error.to_string()).into()),
            }
        }
        self.close_run()?;
        self.wire.tidy();
        // Bytes that trickle in are no silence; without this they would hold a connection and its buffer for ever.
        if self.wire.input.is_empty() || !self.takes_packets() {
            self.arriving = None;
        } else {
            self.arriving.get_or_insert_with(Instant::now);
        }
        ControlFlow::Continue(())
    }

    /// The last words, the session's end or rest, and the log line.
    async fn finish(mut self: Box<Self>, end: End) {
        let (peer, identity) = (self.peer, self.identity().to_owned());
        let (mut with_will, mut expiry) = (true, None);
        if !matches!(end, End::Shutdown) {
            self.finish_naming().await;
        }
        match end {
            End::Normal(new) => {
                (with_will, expiry) = (false, new);
                self.broker.visits.info(format_args!("mqtt {peer}: {identity} has left"));
            }
            End::WithWill(new) => {
                expiry = new;
                self.broker.visits.info(format_args!("mqtt {peer}: {identity} has left and leaves its will"));
            }
            End::Gone(how) => {
                self.broker.visits.info(format_args!("mqtt {peer}: {identity} is gone: connection {how}"))
            }
            End::Closed(close) => {
                if !matches!(close.reason, ReasonCode::SESSION_TAKEN_OVER | ReasonCode::KEEP_ALIVE_TIMEOUT) {
                    self.broker.metrics.protocol_errors.inc();
                }
                self.broker.log.warn(format_args!("mqtt {peer}: {identity} is disconnected: {}", close.why));
                self.leave(with_will, expiry);
                return self.goodbye(close.reason, &close.why).await;
            }
            End::Shutdown => {
                self.drain().await;
                self.leave(with_will, expiry);
                return self.goodbye(ReasonCode::SERVER_SHUTTING_DOWN, "").await;
            }
        }
        self.leave(with_will, expiry);
        farewell(&mut self.wire).await;
    }

    fn leave(&self, with_will: bool, expiry: Option<Duration>) {
        let leaving = Leaving { with_will, expiry };
        let leftovers = self.broker.sessions.leave(&self.handle, &self.link, leaving, Instant::now());
        self.broker.sessions_changed.notify_one();
        leftovers.into_iter().for_each(|leftovers| self.broker.settle(leftovers));
    }

    /// Acknowledges what the store still answers, and gives it nothing more.
    async fn drain(&mut self) {
        self.pipeline.stop();
        let deadline = tokio::time::Instant::now() + DRAIN_TIME_MAX;
        while self.pipeline.awaits_store() {
            if tokio::time::timeout_at(deadline, self.link.rung()).await.is_err() || self.rung().is_break() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// What the task of a connection may take, in bytes, and what the connection beside it.
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
