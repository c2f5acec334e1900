//! One client's task: bytes in and out, deadlines, and the effects of its [`Pipeline`].

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, watch};
use wholegrain_model::{Schema, SchemaHash};
use wholegrain_store::{Appended, StoreError};
use wholegrain_transport::mqtt::{
    self, Ack, ConnAck, Connect, Disconnect, Packet, Properties, Property, Publish, QoS, ReasonCode, SubAck, Subscribe,
    Text, UnsubAck, Unsubscribe, Version, Will,
};
use wholegrain_transport::topics::Topic;

use crate::access::Who;
use crate::access::audit::{Event as Audited, Outcome};

use super::connect::{Admitted, CONNECT_BYTES_MAX};
use super::log_limit::quoted;
use super::mailbox::{Inbox, Mailbox, mailbox};
use super::pipeline::{Close, Effect, Incoming, Pipeline, RegisterError, Terms};
use super::subscriptions::{ConnectionId, Message, Subscriber};
use super::wire::{Wire, farewell, read_some, write_some};
use super::{Broker, Lifetime, SessionKey, went_down};

/// Payloads below this many bytes are copied out of the receive buffer.
const COPY_BYTES_MAX: usize = 64 << 10;
/// Bytes waiting to be written beyond which no further messages are taken from the mailbox and nothing more is read.
const OUT_BYTES_MAX: usize = 1 << 20;
/// How long a client may read nothing of what waits for it.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a server that goes down waits for the store's answers to one client's batches.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);

/// The most schemas of which one connection remembers that it may publish batches of them.
const OWN_SCHEMAS_MAX: usize = 4096;
/// The most bytes of a reason in words.
const WORDS_BYTES_MAX: usize = 512;

/// What comes back from the store's threads.
enum Event {
    Appended(u64, Result<Appended, StoreError>),
    /// A batch of a schema that is not this client's, and why.
    Denied(u64, String),
    Registered(u64, Result<Schema, RegisterError>),
}

/// Why a connection is over.
enum End {
    /// The client said goodbye.
    Normal,
    /// The client said goodbye and wants its will published, or it just went away.
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

/// Serves a client from CONNECT to the end.
pub(super) async fn run<S>(
    broker: Arc<Broker>,
    stream: S,
    peer: SocketAddr,
    certificate: Option<String>,
    deadline: tokio::time::Instant,
    lifetime: Lifetime,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut wire = Wire::new(stream);
    let greeted = tokio::time::timeout_at(deadline, greet(&broker, &mut wire, peer, certificate.as_deref())).await;
    let (connect, admitted) = match greeted {
        Ok(Ok(both)) => both,
        Ok(Err(close)) => return broker.refused(peer, format_args!("{}", close.why)),
        Err(_) => return broker.refused(peer, format_args!("no CONNECT in time")),
    };
    broker.metrics.connections_accepted.inc();
    let (identity, client) = (&admitted.identity, &admitted.client_id);
    broker.visits.info(format_args!(
        "mqtt {peer}: {identity} is here (client \"{}\", {:?}, proved by {})",
        quoted(client),
        admitted.version,
        admitted.by
    ));
    let key = (admitted.identity.clone(), admitted.client_id.clone());
    Connection::new(broker, wire, peer, admitted, key, connect.will).serve(lifetime.shutdown).await;
}

/// Reads CONNECT, decides and answers.
async fn greet<S>(
    broker: &Arc<Broker>,
    wire: &mut Wire<S>,
    peer: SocketAddr,
    certificate: Option<&str>,
) -> Result<(Connect, Admitted), Close>
where
    S: AsyncRead + AsyncWrite,
{
    let bytes_max = CONNECT_BYTES_MAX.min(broker.limits.packet_bytes_max);
    let connect = loop {
        match mqtt::decode(&mut wire.input, None, bytes_max) {
            Ok(Some(Packet::Connect(connect))) => break *connect,
            Ok(Some(_)) => return Err(Close::new(ReasonCode::PROTOCOL_ERROR, "the first packet is not CONNECT")),
            Ok(None) => {}
            Err(error) => {
                if matches!(error, mqtt::CodecError::UnsupportedVersion { .. }) {
                    say_no(wire, Version::V311, error.reason_code(), "").await;
                }
                return Err(Close::new(error.reason_code(), error.to_string()));
            }
        }
        match read_some(&mut wire.read, &mut wire.input, &mut wire.read_bytes).await {
            Ok(0) => return Err(Close::new(ReasonCode::UNSPECIFIED_ERROR, "went away before CONNECT")),
            Ok(count) => broker.metrics.received_bytes.add(count as u64),
            Err(error) => return Err(Close::new(ReasonCode::UNSPECIFIED_ERROR, format!("before CONNECT: {error}"))),
        }
    };
    let number = broker.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    match broker.admit(&connect, peer, certificate, number).await {
        Ok(admitted) => Ok((connect, admitted)),
        Err(close) => {
            say_no(wire, connect.version, close.reason, &close.why).await;
            Err(Close { why: format!("client \"{}\" {}", quoted(&connect.client_id), close.why), ..close })
        }
    }
}

async fn say_no<S: AsyncRead + AsyncWrite>(wire: &mut Wire<S>, version: Version, reason: ReasonCode, why: &str) {
    let properties = if version == Version::V5 { reason_string(why) } else { Properties::new() };
    let answer = ConnAck { session_present: false, reason, properties };
    if mqtt::encode(&Packet::ConnAck(answer), version, &mut wire.output).is_ok() {
        farewell(wire).await;
    }
}

/// At most [`WORDS_BYTES_MAX`] of a reason in words.
fn reason_string(why: &str) -> Properties {
    if why.is_empty() {
        return Properties::new();
    }
    let end = (0..=why.len().min(WORDS_BYTES_MAX)).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
    Properties::new().with(Property::ReasonString(Text::from(&why[..end])))
}

struct Connection<S> {
    broker: Arc<Broker>,
    wire: Wire<S>,
    peer: SocketAddr,
    id: ConnectionId,
    key: SessionKey,
    /// Whether it proved no identity.
    anonymous: bool,
    version: Version,
    packet_bytes_max: usize,
    silence_max: Duration,
    /// Whether a reason in words may stand where it is not an acknowledgement (MQTT 5, request problem information).
    wants_words: bool,
    will: Option<Will>,
    pipeline: Pipeline,
    effects: Vec<Effect>,
    filters: HashSet<String>,
    events: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    mailbox: (Mailbox, Inbox),
    taken_over: Arc<Notify>,
    heard: Instant,
    /// Whether the client was read from last.
    reading: bool,
    /// Since when the client has read nothing of what waits for it.
    stuck: Option<Instant>,
    /// Since when a packet is arriving.
    arriving: Option<Instant>,
    /// Schemas that batches of this client may be of.
    own_schemas: HashSet<SchemaHash>,
}

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    fn new(
        broker: Arc<Broker>,
        wire: Wire<S>,
        peer: SocketAddr,
        admitted: Admitted,
        key: SessionKey,
        will: Option<Will>,
    ) -> Self {
        let (id, taken_over) = broker.enter(key.clone());
        let limits = broker.limits;
        let terms = Terms {
            identity: admitted.identity,
            reasons: admitted.version == Version::V5,
            inflight_max: limits.inflight_max.into(),
            inflight_bytes_max: limits.inflight_bytes_max,
            inflight_total_bytes_max: limits.inflight_total_bytes_max,
            schema_wait_max: limits.schema_wait_max,
        };
        let pipeline = Pipeline::new(terms, broker.metrics.clone());
        let mut connection = Self {
            broker,
            wire,
            peer,
            id,
            key,
            anonymous: admitted.anonymous,
            version: admitted.version,
            packet_bytes_max: admitted.packet_bytes_max,
            silence_max: admitted.silence_max,
            wants_words: admitted.wants_words,
            will,
            pipeline,
            effects: Vec::new(),
            filters: HashSet::new(),
            events: mpsc::unbounded_channel(),
            mailbox: mailbox(limits.queue_messages_max, limits.queue_bytes_max),
            taken_over,
            heard: Instant::now(),
            reading: true,
            stuck: None,
            arriving: None,
            own_schemas: HashSet::new(),
        };
        // Only now, when it can be taken over, does the client hear that it is in.
        connection.send(&Packet::ConnAck(admitted.answer));
        connection
    }

    async fn serve(mut self, mut shutdown: watch::Receiver<bool>) {
        let mut schemas = self.broker.schemas.subscribe();
        let end = loop {
            if let ControlFlow::Break(end) = self.step(&mut shutdown, &mut schemas).await {
                break end;
            }
        };
        for filter in std::mem::take(&mut self.filters) {
            self.broker.subscriptions.unsubscribe(self.id, &filter);
        }
        self.finish(end).await;
        self.broker.leave(&self.key, self.id);
    }

    /// Waits for one thing and does it.
    async fn step(
        &mut self,
        shutdown: &mut watch::Receiver<bool>,
        schemas: &mut watch::Receiver<u64>,
    ) -> ControlFlow<End> {
        self.take_packets()?;
        let may_read = self.may_read();
        if may_read && !self.reading {
            // The client's silence counts from when we listen again.
            self.heard = Instant::now();
        }
        self.reading = may_read;
        let writing = self.wire.wants_write();
        let deadline = self.deadline(may_read);
        let Wire { read, write, input, output, unflushed, read_bytes } = &mut self.wire;
        tokio::select! {
            Some(event) = self.events.1.recv() => self.take_event(event),
            result = read_some(read, input, read_bytes), if may_read => match result {
                Ok(0) => ControlFlow::Break(End::Gone("closed by the client")),
                Ok(count) => {
                    self.heard = Instant::now();
                    self.broker.metrics.received_bytes.add(count as u64);
                    ControlFlow::Continue(())
                }
                Err(_) => ControlFlow::Break(End::Gone("broken")),
            },
            result = write_some(write, output, unflushed), if writing => match result {
                Ok(count) => {
                    self.stuck = None;
                    self.broker.metrics.sent_bytes.add(count as u64);
                    ControlFlow::Continue(())
                }
                Err(_) => ControlFlow::Break(End::Gone("broken")),
            },
            Some(message) = self.mailbox.1.take(), if output.len() < OUT_BYTES_MAX => {
                self.send_message(message);
                ControlFlow::Continue(())
            }
            Ok(()) = schemas.changed(), if self.pipeline.has_parked() => {
                let store = self.broker.store.clone();
                self.pipeline.schemas_changed(|hash| store.schema(hash).is_some(), Instant::now(), &mut self.effects);
                self.apply()
            }
            () = self.taken_over.notified() => {
                ControlFlow::Break(Close::new(ReasonCode::SESSION_TAKEN_OVER, "taken over by a newer connection").into())
            }
            () = went_down(shutdown) => ControlFlow::Break(End::Shutdown),
            () = tokio::time::sleep_until(deadline.into()) => self.time_passed(may_read),
        }
    }

    fn may_read(&self) -> bool {
        self.pipeline.can_read() && self.wire.output.len() < OUT_BYTES_MAX
    }

    fn deadline(&mut self, may_read: bool) -> Instant {
        let now = Instant::now();
        if self.wire.wants_write() {
            self.stuck.get_or_insert(now);
        }
        // While we do not read, the client's silence is of our own making.
        let silence = if may_read { self.heard } else { now } + self.silence_max;
        let stuck = self.stuck.map(|since| since + WRITE_TIME_MAX);
        let arriving = self.arriving.map(|since| since + self.broker.limits.packet_time_max);
        stuck.into_iter().chain(arriving).chain(self.pipeline.deadline()).fold(silence, Instant::min)
    }

    fn time_passed(&mut self, may_read: bool) -> ControlFlow<End> {
        let now = Instant::now();
        if self.stuck.is_some_and(|since| now >= since + WRITE_TIME_MAX) {
            self.broker.metrics.timeouts.inc();
            return ControlFlow::Break(End::Gone("not read by the client"));
        }
        if may_read && now >= self.heard + self.silence_max {
            self.broker.metrics.timeouts.inc();
            let why = format!("silent for {} s", self.silence_max.as_secs_f32());
            return ControlFlow::Break(Close::new(ReasonCode::KEEP_ALIVE_TIMEOUT, why).into());
        }
        let packet_time_max = self.broker.limits.packet_time_max;
        if self.arriving.is_some_and(|since| now >= since + packet_time_max) {
            self.broker.metrics.timeouts.inc();
            let why = format!("a packet was not there whole after {} s", packet_time_max.as_secs_f32());
            return ControlFlow::Break(Close::new(ReasonCode::KEEP_ALIVE_TIMEOUT, why).into());
        }
        self.pipeline.tick(now, &mut self.effects);
        self.apply()
    }

    /// Decodes what was read, as far as may be read now.
    fn take_packets(&mut self) -> ControlFlow<End> {
        while self.may_read() {
            match mqtt::decode(&mut self.wire.input, Some(self.version), self.broker.limits.packet_bytes_max) {
                Ok(Some(packet)) => {
                    self.arriving = None;
                    self.take_packet(packet)?
                }
                Ok(None) => break,
                Err(error) => return ControlFlow::Break(Close::new(error.reason_code(), error.to_string()).into()),
            }
        }
        // Bytes that trickle in are no silence; without this they would hold a connection and its buffer for ever.
        if self.wire.input.is_empty() || !self.may_read() {
            self.arriving = None;
        } else {
            self.arriving.get_or_insert_with(Instant::now);
        }
        ControlFlow::Continue(())
    }

    fn take_packet(&mut self, packet: Packet) -> ControlFlow<End> {
        match packet {
            Packet::Publish(publish) => self.take_publish(publish),
            Packet::Subscribe(subscribe) => self.subscribe(subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(unsubscribe),
            Packet::PingReq => self.send(&Packet::PingResp),
            Packet::Disconnect(disconnect) if disconnect.reason == ReasonCode::SUCCESS => {
                return ControlFlow::Break(End::Normal);
            }
            Packet::Disconnect(_) => return ControlFlow::Break(End::Gone("left with its will")),
            other => {
                let why = format!("sent {}, which a client may not send here", other.packet_type().name());
                return ControlFlow::Break(Close::new(ReasonCode::PROTOCOL_ERROR, why).into());
            }
        }
        self.apply()
    }

    fn take_publish(&mut self, publish: Publish) {
        let close = |reason, why: &str| Effect::Close(Close::new(reason, why));
        if publish.qos == QoS::ExactlyOnce {
            return self
                .effects
                .push(close(ReasonCode::QOS_NOT_SUPPORTED, "published with QoS 2; QoS 1 is the most that is taken"));
        }
        if publish.properties.topic_alias().is_some() {
            return self.effects.push(close(ReasonCode::TOPIC_ALIAS_INVALID, "used a topic alias; none was offered"));
        }
        let Publish { topic, mut payload, packet_id, retain, .. } = publish;
        if payload.len() < COPY_BYTES_MAX {
            // The store keeps payloads in memory for a while; each would keep alive the receive buffer that it points into.
            payload = Bytes::copy_from_slice(&payload);
        }
        let denied = self.broker.may_publish(self.who(), &topic).err();
        self.pipeline.publish(
            Incoming { topic, payload, packet_id, retain, denied },
            Instant::now(),
            &mut self.effects,
        );
    }

    fn take_event(&mut self, event: Event) -> ControlFlow<End> {
        let now = Instant::now();
        match event {
            Event::Appended(ticket, result) => {
                match &result {
                    Ok(_) => self.broker.metrics.set_store_trouble(None),
                    Err(error @ (StoreError::DiskFull { .. } | StoreError::Io { .. })) => {
                        self.broker.metrics.set_store_trouble(Some(error.to_string()));
                        self.broker
                            .log
                            .warn(format_args!("batch of {}: {error}; it is held and tried again", self.key.0));
                    }
                    Err(_) => {}
                }
                self.pipeline.appended(ticket, result, now, &mut self.effects);
            }
            Event::Denied(ticket, why) => self.pipeline.denied(ticket, why, now, &mut self.effects),
            Event::Registered(ticket, result) => self.pipeline.registered(ticket, result, now, &mut self.effects),
        }
        self.apply()
    }

    fn apply(&mut self) -> ControlFlow<End> {
        let mut effects = std::mem::take(&mut self.effects);
        let mut end = ControlFlow::Continue(());
        for effect in effects.drain(..) {
            match effect {
                Effect::Ack { packet_id, reason, why } => {
                    let properties = self.words(&why);
                    self.send(&Packet::PubAck(Ack { packet_id, reason, properties }));
                }
                Effect::Register { ticket, payload } => self.register(ticket, payload),
                Effect::Append { ticket, schema, payload } => self.append(ticket, schema, payload),
                Effect::Forward { topic, payload, retain } => {
                    self.broker.subscriptions.publish(self.id, &topic, &payload, retain);
                    if retain {
                        self.broker.subscriptions.retain(&topic, &payload);
                    }
                }
                Effect::Need(hashes) => self.need(&hashes),
                Effect::Refused(why) => {
                    self.broker.security.audit.bounded(
                        Audited::Publish,
                        Outcome::Refused,
                        &self.key.0,
                        self.peer,
                        &why,
                    );
                    self.broker.log.warn(format_args!("mqtt {} {}: refused: {why}", self.peer, self.key.0))
                }
                Effect::Close(close) => {
                    end = ControlFlow::Break(close.into());
                    break;
                }
            }
        }
        drop(effects);
        end
    }

    /// Hands a batch to the store if its schema is of sensors that this client may write.
    fn append(&mut self, ticket: u64, schema: SchemaHash, payload: Bytes) {
        let events = self.events.0.clone();
        let answer = |event| drop(events.send(event));
        if !self.own_schemas.contains(&schema) {
            match self.broker.check_batch_schema(&self.key.0, &schema) {
                Ok(true) => {
                    if self.own_schemas.len() >= OWN_SCHEMAS_MAX {
                        self.own_schemas.clear();
                    }
                    self.own_schemas.insert(schema);
                }
                // Not asked of the store: by then somebody else might have announced it.
                Ok(false) => return answer(Event::Appended(ticket, Err(StoreError::UnknownSchema(schema)))),
                Err(why) => return answer(Event::Denied(ticket, why)),
            }
        }
        // The connection may be gone when the answer comes.
        let done = Box::new(move |result| drop(events.send(Event::Appended(ticket, result))));
        self.broker.store.append(payload, done);
    }

    fn register(&self, ticket: u64, payload: Bytes) {
        let (broker, events, identity) = (self.broker.clone(), self.events.0.clone(), self.key.0.clone());
        tokio::task::spawn_blocking(move || {
            let result = broker.register(&identity, &payload);
            let _ = events.send(Event::Registered(ticket, result));
        });
    }

    /// Asks the agent for schemas, through whoever listens under its name.
    fn need(&self, hashes: &[SchemaHash]) {
        let topic = Topic::Need { agent: &self.key.0 }.to_string();
        let payload: Bytes = hashes.iter().flat_map(|hash| hash.0).collect();
        self.broker.metrics.needs.inc();
        // From nobody: the agent has to hear it whatever its subscription's options are.
        self.broker.subscriptions.publish(0, &topic, &payload, false);
    }

    fn subscribe(&mut self, subscribe: Subscribe) {
        let needs = Topic::Need { agent: &self.key.0 }.to_string();
        let (mut reasons, mut hears_needs) = (Vec::with_capacity(subscribe.filters.len()), false);
        let identified = subscribe.properties.subscription_identifier().is_some();
        let filters_max = self.broker.limits.subscriptions_max;
        for (index, wanted) in subscribe.filters.into_iter().enumerate() {
            let filter = wanted.filter.as_str();
            // One packet may name a filter a million times, and each time costs a look at all retained messages.
            let full = index >= filters_max || (self.filters.len() >= filters_max && !self.filters.contains(filter));
            reasons.push(match () {
                () if identified => ReasonCode::SUBSCRIPTION_IDS_NOT_SUPPORTED,
                () if mqtt::shared(filter).is_some() => ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                () if full => ReasonCode::QUOTA_EXCEEDED,
                () if !self.may_subscribe(filter) => ReasonCode::NOT_AUTHORIZED,
                () => ReasonCode::SUCCESS,
            });
            if reasons.last().is_some_and(|reason| reason.is_error()) {
                continue;
            }
            let subscriber = Subscriber {
                id: self.id,
                mailbox: self.mailbox.0.clone(),
                no_local: wanted.no_local,
                retain_as_published: wanted.retain_as_published,
            };
            hears_needs |= mqtt::topic_matches(filter, &needs);
            self.broker.subscriptions.subscribe(filter, subscriber, wanted.retain_handling);
            self.filters.insert(filter.to_owned());
        }
        if self.version == Version::V311 {
            // 3.1.1 knows one code for every refusal.
            reasons
                .iter_mut()
                .filter(|reason| reason.is_error())
                .for_each(|reason| *reason = ReasonCode::UNSPECIFIED_ERROR);
        }
        self.send(&Packet::SubAck(SubAck { packet_id: subscribe.packet_id, reasons, properties: Properties::new() }));
        let needed = self.pipeline.needed();
        if hears_needs && !needed.is_empty() {
            self.need(&needed);
        }
    }

    /// Whether this client may hear all that `filter` chooses; a no is counted and logged.
    fn may_subscribe(&self, filter: &str) -> bool {
        let Err(why) = self.broker.may_subscribe(self.who(), filter) else { return true };
        self.broker.metrics.subscriptions_refused.inc();
        self.broker.security.audit.bounded(Audited::Subscribe, Outcome::Refused, &self.key.0, self.peer, &why);
        self.broker.log.warn(format_args!("mqtt {} {}: refused: {why}", self.peer, self.key.0));
        false
    }

    fn who(&self) -> Who<'_> {
        Who { name: &self.key.0, anonymous: self.anonymous }
    }

    fn unsubscribe(&mut self, unsubscribe: Unsubscribe) {
        let mut reasons = Vec::new();
        for filter in &unsubscribe.filters {
            let was = self.filters.remove(filter.as_str());
            self.broker.subscriptions.unsubscribe(self.id, filter);
            if self.version == Version::V5 {
                reasons.push(if was { ReasonCode::SUCCESS } else { ReasonCode::NO_SUBSCRIPTION_EXISTED });
            }
        }
        self.send(&Packet::UnsubAck(UnsubAck {
            packet_id: unsubscribe.packet_id,
            reasons,
            properties: Properties::new(),
        }));
    }

    fn send_message(&mut self, message: Message) {
        let before = self.wire.output.len();
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: message.retain,
            topic: Text::from(&*message.topic),
            packet_id: None,
            payload: message.payload,
            properties: Properties::new(),
        }));
        // A client of MQTT 5 may have said that this is too large for it.
        if self.wire.output.len() - before > self.packet_bytes_max {
            self.wire.output.truncate(before);
            return self.broker.metrics.messages_dropped.inc();
        }
        self.broker.metrics.messages_sent.inc();
    }

    fn send(&mut self, packet: &Packet) {
        let before = self.wire.output.len();
        if let Err(error) = mqtt::encode(packet, self.version, &mut self.wire.output) {
            self.wire.output.truncate(before);
            self.broker.log.warn(format_args!("mqtt {}: {error}", self.peer));
        }
    }

    /// The last words, the will and the log line.
    async fn finish(&mut self, end: End) {
        let (peer, identity) = (self.peer, self.key.0.clone());
        match end {
            End::Normal => {
                self.will = None;
                self.broker.visits.info(format_args!("mqtt {peer}: {identity} has left"));
            }
            End::Gone(how) => {
                self.broker.visits.info(format_args!("mqtt {peer}: {identity} is gone: connection {how}"))
            }
            End::Closed(close) => {
                if !matches!(close.reason, ReasonCode::SESSION_TAKEN_OVER | ReasonCode::KEEP_ALIVE_TIMEOUT) {
                    self.broker.metrics.protocol_errors.inc();
                }
                self.broker.log.warn(format_args!("mqtt {peer}: {identity} is disconnected: {}", close.why));
                self.goodbye(close.reason, &close.why).await;
            }
            End::Shutdown => {
                self.drain().await;
                self.goodbye(ReasonCode::SERVER_SHUTTING_DOWN, "").await;
            }
        }
        if let Some(Will { topic, payload, retain, .. }) = self.will.take() {
            self.publish_will(&topic, &payload, retain);
        }
    }

    /// A will goes to subscribers only: what is to be stored must be acknowledged to somebody.
    fn publish_will(&self, topic: &str, payload: &Bytes, retain: bool) {
        if topic.starts_with(wholegrain_transport::topics::ROOT) || topic.starts_with('$') {
            return self.broker.log.warn(format_args!(
                "mqtt {}: will on {} not published: not a topic for wills",
                self.peer,
                quoted(topic)
            ));
        }
        if let Err(why) = self.broker.may_publish(self.who(), topic) {
            return self.broker.log.warn(format_args!("mqtt {} {}: will refused: {why}", self.peer, self.key.0));
        }
        self.broker.subscriptions.publish(self.id, topic, payload, retain);
        if retain {
            self.broker.subscriptions.retain(topic, payload);
        }
    }

    /// Acknowledges what the store still answers, and gives it nothing more.
    async fn drain(&mut self) {
        self.pipeline.stop();
        let deadline = tokio::time::Instant::now() + DRAIN_TIME_MAX;
        while self.pipeline.awaits_store() {
            let Ok(Some(event)) = tokio::time::timeout_at(deadline, self.events.1.recv()).await else { return };
            if self.take_event(event).is_break() {
                return;
            }
        }
    }

    /// A reason in words for MQTT 5; none for an empty text.
    fn words(&self, why: &str) -> Properties {
        if self.version == Version::V5 { reason_string(why) } else { Properties::new() }
    }

    async fn goodbye(&mut self, reason: ReasonCode, why: &str) {
        if self.version == Version::V5 && reason.allowed_in(mqtt::PacketType::Disconnect) {
            let properties = if self.wants_words { self.words(why) } else { Properties::new() };
            self.send(&Packet::Disconnect(Disconnect { reason, properties }));
        }
        farewell(&mut self.wire).await;
    }
}
