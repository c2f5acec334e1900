//! Handles packets of a client.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_model::{JobRecord, SchemaHash};
use wholegrain_store::StoreError;
use wholegrain_transport::mqtt::{
    self, Ack, Disconnect, Packet, Properties, Publish, QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe,
    Version,
};
use wholegrain_transport::topics::{self, Topic};

use crate::access::audit::AuditEvent as Audited;

use super::super::fairness::{TOPIC_UNIT_BYTES, UNIT_BYTES};
use super::super::message::Publication;
use super::super::pipeline::{CloseReason, IncomingPublish, PublishEffect};
use super::super::session::{AckMatch, Qos2Arrival};
use super::super::signals::StoreEvent;
use super::super::subscriptions::SubscriptionOptions;
use super::super::trie::LEVELS_MAX;
use super::{Connection, ConnectionEnd};
use crate::log_limit::quoted;

/// Payloads below this many bytes are copied out of the receive buffer.
const COPY_BYTES_MAX: usize = 64 << 10;
/// The most schemas for which one connection remembers that it may publish their batches.
const OWN_SCHEMAS_MAX: usize = 4096;

fn closed(reason: ReasonCode, why: impl Into<String>) -> ControlFlow<ConnectionEnd> {
    ControlFlow::Break(CloseReason::new(reason, why).into())
}

/// Whether a message is for subscribers only. Earlier messages to the server, also of other clients, must be handled before it, so that a
/// subscription which another client made just before receives it. Tasks that are woken together do not run in that order by themselves.
fn is_ordinary(publish: &Publish) -> bool {
    !publish.topic.starts_with('/') && !publish.topic.starts_with(topics::ROOT)
}

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    pub(super) fn take_packet(&mut self, packet: Packet) -> ControlFlow<ConnectionEnd> {
        self.turn.spend(1);
        match packet {
            Packet::Publish(publish) if !self.gave_way && is_ordinary(&publish) => {
                self.held_back = Some(Box::new(publish));
                return ControlFlow::Continue(());
            }
            Packet::Publish(publish) => self.take_publish(publish)?,
            Packet::PubAck(ack) => {
                let answer = self.with_session(|session| session.puback(ack.packet_id));
                return self.check_answer(answer, "PUBACK", ack.packet_id);
            }
            Packet::PubRec(ack) => return self.take_pubrec(&ack),
            Packet::PubRel(ack) => return self.take_pubrel(ack.packet_id),
            Packet::PubComp(ack) => {
                let answer = self.with_session(|session| session.pubcomp(ack.packet_id));
                return self.check_answer(answer, "PUBCOMP", ack.packet_id);
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(unsubscribe),
            Packet::PingReq => {
                self.send(&Packet::PingResp);
                self.count_control(1);
            }
            Packet::Disconnect(disconnect) => return self.take_disconnect(&disconnect),
            other => {
                let why = format!("sent {}, which a client may not send here", other.packet_type().name());
                return closed(ReasonCode::PROTOCOL_ERROR, why);
            }
        }
        self.apply()
    }

    /// Counts control packets; above their rate nothing is read for a while.
    fn count_control(&mut self, packets: usize) {
        let until = self.turn.control(packets, Instant::now());
        if until.is_some() {
            self.throttled = self.throttled.max(until);
            self.broker.metrics.control_delays.inc();
        }
    }

    /// Processes the message that was held back for other tasks.
    pub(super) fn take_held_back(&mut self) -> ControlFlow<ConnectionEnd> {
        self.gave_way = true;
        let Some(publish) = self.held_back.take() else { return ControlFlow::Continue(()) };
        self.take_publish(*publish)?;
        self.apply()
    }

    fn take_disconnect(&self, disconnect: &Disconnect) -> ControlFlow<ConnectionEnd> {
        let seconds = disconnect.properties.session_expiry_interval();
        let expiry = seconds.map(|&seconds| Duration::from_secs(seconds.into()).min(self.limits.session_expiry_max));
        if self.ends_with_connection && expiry.is_some_and(|expiry| !expiry.is_zero()) {
            return closed(ReasonCode::PROTOCOL_ERROR, "sets a session expiry, but CONNECT had none");
        }
        let end =
            if disconnect.reason == ReasonCode::SUCCESS { ConnectionEnd::Normal } else { ConnectionEnd::WithWill };
        ControlFlow::Break(end(expiry))
    }

    /// Ignores an acknowledgement of an unknown packet: it may belong to a session that a restart of the server ended. It counts as a control
    /// packet.
    fn check_answer(&mut self, answer: Option<AckMatch>, packet: &str, packet_id: u16) -> ControlFlow<ConnectionEnd> {
        if answer == Some(AckMatch::Wrong) {
            return closed(ReasonCode::PROTOCOL_ERROR, format!("sent {packet} for {packet_id} out of order"));
        }
        if answer == Some(AckMatch::Unknown) {
            self.count_control(1);
        }
        ControlFlow::Continue(())
    }

    fn take_pubrec(&mut self, ack: &Ack) -> ControlFlow<ConnectionEnd> {
        let packet_id = ack.packet_id;
        let answer = self.with_session(|session| session.pubrec(packet_id, ack.reason));
        self.check_answer(answer, "PUBREC", packet_id)?;
        let reason = match answer {
            _ if ack.reason.is_error() => return ControlFlow::Continue(()),
            Some(AckMatch::Fits) => ReasonCode::SUCCESS,
            _ => ReasonCode::PACKET_ID_NOT_FOUND,
        };
        self.send(&Packet::PubRel(Ack { packet_id, reason, properties: Properties::new() }));
        ControlFlow::Continue(())
    }

    fn take_pubrel(&mut self, packet_id: u16) -> ControlFlow<ConnectionEnd> {
        let answer = self.with_session(|session| session.released(packet_id));
        self.check_answer(answer, "PUBREL", packet_id)?;
        let known = answer == Some(AckMatch::Fits);
        let reason = if known { ReasonCode::SUCCESS } else { ReasonCode::PACKET_ID_NOT_FOUND };
        self.send(&Packet::PubComp(Ack { packet_id, reason, properties: Properties::new() }));
        ControlFlow::Continue(())
    }

    fn take_publish(&mut self, publish: Publish) -> ControlFlow<ConnectionEnd> {
        let now = Instant::now();
        let Publish { topic, mut payload, qos, packet_id, retain, properties, .. } = publish;
        self.turn.spend(payload.len() / UNIT_BYTES);
        let until = self.rate.as_mut().and_then(|rate| rate.publish(topic.len() + payload.len(), now));
        if until.is_some() {
            self.throttled = until;
            self.broker.metrics.throttles.inc();
        }
        if properties.subscription_identifier().is_some() {
            return closed(ReasonCode::PROTOCOL_ERROR, "published with a subscription identifier");
        }
        let topic = match self.aliases_in.resolve(topic, properties.topic_alias().copied()) {
            Ok(topic) => topic,
            Err(close) => return ControlFlow::Break(close.into()),
        };
        self.turn.spend(topic.len() / TOPIC_UNIT_BYTES);
        let is_path = topic.starts_with('/');
        if payload.len() < COPY_BYTES_MAX && !is_path {
            // The store keeps payloads in memory for a while; each would keep its receive buffer alive.
            payload = Bytes::copy_from_slice(&payload);
        }
        let mut incoming = IncomingPublish { topic, payload, qos, packet_id, retain, properties };
        if let Some(packet_id) = packet_id {
            let arrival = match qos {
                QoS::ExactlyOnce => {
                    self.with_session(|session| session.arrived(packet_id)).unwrap_or(Qos2Arrival::UnderWay)
                }
                _ => Qos2Arrival::New,
            };
            match arrival {
                Qos2Arrival::New => self.check_receive_max(qos)?,
                Qos2Arrival::UnderWay => return ControlFlow::Continue(()),
                Qos2Arrival::Accepted => {
                    self.pipeline.repeat(incoming, now, &mut self.effects);
                    return ControlFlow::Continue(());
                }
                Qos2Arrival::TooMany => {
                    let why = "published more QoS 2 messages although thousands are not released";
                    return closed(ReasonCode::QUOTA_EXCEEDED, why);
                }
            }
        }
        if incoming.retain && !self.check_retained(&mut incoming, now) {
            return ControlFlow::Continue(());
        }
        if is_path {
            match self.take_reading(incoming, now) {
                Some(other) => incoming = other,
                None => return ControlFlow::Continue(()),
            }
        }
        // The pipeline checks native publishes by topic, header and schema.
        let is_native = incoming.topic.starts_with(topics::ROOT);
        let allowed = if is_native { Ok(()) } else { self.broker.may_publish(self.who(), &incoming.topic) };
        match allowed {
            Ok(()) => self.pipeline.publish(incoming, now, &mut self.effects),
            Err(why) => self.pipeline.deny(incoming, ReasonCode::NOT_AUTHORIZED, &why, now, &mut self.effects),
        }
        ControlFlow::Continue(())
    }

    /// Whether to go on with a retained message. Without room it is refused, or, with QoS 0, which promises nothing, forwarded without being
    /// retained.
    fn check_retained(&mut self, incoming: &mut IncomingPublish, now: Instant) -> bool {
        if incoming.topic.starts_with(topics::ROOT) {
            // Schemas have a limit of their own, and other native messages are not retained.
            return true;
        }
        let IncomingPublish { topic, payload, qos, retain, properties, .. } = &*incoming;
        let publication = Publication { topic, payload, qos: *qos, retain: *retain, properties, at: now };
        let Err(why) = self.broker.subscriptions.check_retained(self.identity(), &publication) else { return true };
        if incoming.qos == QoS::AtMostOnce {
            let (peer, identity, topic) = (self.peer, self.identity(), quoted(&incoming.topic));
            self.broker
                .log
                .warn(format_args!("mqtt {peer} {identity}: retained message on {topic} not retained: {why}"));
            incoming.retain = false;
            return true;
        }
        let incoming = incoming.clone().copied();
        self.pipeline.deny(incoming, ReasonCode::QUOTA_EXCEEDED, &why, now, &mut self.effects);
        false
    }

    /// An MQTT 5 client knows how many publishes may lack PUBACK or PUBCOMP (3.3.4).
    fn check_receive_max(&self, qos: QoS) -> ControlFlow<ConnectionEnd> {
        if self.version != Version::V5 {
            return ControlFlow::Continue(());
        }
        let unreleased = self.with_session(|session| session.unreleased()).unwrap_or(0);
        let max = usize::from(self.limits.inflight_max);
        // A QoS 2 message that has just arrived is already counted as unreleased.
        let others = unreleased - usize::from(qos == QoS::ExactlyOnce && unreleased > 0);
        if others + self.pipeline.len() >= max && others + self.pipeline.at_least_once() >= max {
            return closed(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, format!("has over {max} publishes in flight"));
        }
        ControlFlow::Continue(())
    }

    pub(super) fn take_event(&mut self, event: StoreEvent) -> ControlFlow<ConnectionEnd> {
        let now = Instant::now();
        match event {
            StoreEvent::Appended(ticket, result) => {
                match &result {
                    Ok(_) => self.broker.metrics.set_store_trouble(None),
                    Err(error @ (StoreError::DiskFull { .. } | StoreError::Io { .. })) => {
                        self.broker.metrics.set_store_trouble(Some(error.to_string()));
                        self.broker
                            .trouble
                            .warn(format_args!("batch of {}: {error}; it is kept and retried", self.identity()));
                    }
                    Err(_) => {}
                }
                self.pipeline.appended(ticket, result, now, &mut self.effects);
            }
            StoreEvent::Denied(ticket, code, why) => self.pipeline.denied(ticket, code, why, now, &mut self.effects),
            StoreEvent::Registered(ticket, result) => self.pipeline.registered(ticket, result, now, &mut self.effects),
            StoreEvent::Named(ticket, names, result) => {
                self.intake.answered(&names, result.is_ok());
                self.pipeline.named(ticket, result, now, &mut self.effects);
            }
        }
        self.apply()
    }

    pub(super) fn apply(&mut self) -> ControlFlow<ConnectionEnd> {
        let mut effects = std::mem::take(&mut self.effects);
        let mut end = ControlFlow::Continue(());
        for effect in effects.drain(..) {
            match effect {
                PublishEffect::Ack { packet_id, qos, reason, why } => self.acknowledge(packet_id, qos, reason, &why),
                PublishEffect::Register { ticket, payload } => self.register(ticket, payload),
                PublishEffect::Append { ticket, schema, payload } => self.append(ticket, schema, payload),
                PublishEffect::Forward { topic, payload, qos, packet_id, retain, properties, schema } => {
                    if let (QoS::ExactlyOnce, Some(packet_id)) = (qos, packet_id) {
                        self.with_session(|session| session.accepted(packet_id));
                    }
                    let (payload, properties, at) = (&payload, &properties, Instant::now());
                    let publication = Publication { topic: &topic, payload, qos, retain, properties, at };
                    let matched = self.broker.forward(self.handle.number, Some(self.identity()), &publication, schema);
                    self.turn.spend(matched);
                }
                PublishEffect::Answered { agent, payload } => self.broker.control.answered(&agent, &payload),
                PublishEffect::PutJob { ticket, record, bytes } => self.put_job(ticket, *record, bytes),
                PublishEffect::Need(hashes) => self.need(&hashes),
                PublishEffect::AppendReadings { ticket, readings } => self.append_readings(ticket, readings),
                PublishEffect::Name { ticket, names } => self.name(ticket, names),
                PublishEffect::Refused(why) => {
                    self.audit_refused(Audited::Publish, &why);
                    self.broker.log.warn(format_args!("mqtt {} {}: refused: {why}", self.peer, self.identity()))
                }
                PublishEffect::Close(close) => {
                    end = ControlFlow::Break(close.into());
                    break;
                }
            }
        }
        drop(effects);
        end
    }

    fn acknowledge(&mut self, packet_id: u16, qos: QoS, reason: ReasonCode, why: &str) {
        let why = if self.wants_words { why } else { "" };
        if qos != QoS::ExactlyOnce {
            return self.send_with_words(why, |properties| Packet::PubAck(Ack { packet_id, reason, properties }));
        }
        self.with_session(
            |session| {
                if reason.is_error() { session.refused(packet_id) } else { session.accepted(packet_id) }
            },
        );
        self.send_with_words(why, |properties| Packet::PubRec(Ack { packet_id, reason, properties }));
    }

    /// Sends a batch to the store if this client may write the sensors of its schema.
    fn append(&mut self, ticket: u64, schema: SchemaHash, payload: Bytes) {
        let link = self.link.clone();
        if !self.own_schemas.contains(&schema) {
            match self.broker.check_batch_schema(self.identity(), &schema) {
                Ok(true) => {
                    if self.own_schemas.len() >= OWN_SCHEMAS_MAX {
                        self.own_schemas.clear();
                    }
                    self.own_schemas.insert(schema);
                }
                // The store is not asked: another client might have announced the schema by then.
                Ok(false) => return link.send(StoreEvent::Appended(ticket, Err(StoreError::UnknownSchema(schema)))),
                Err(why) => return link.send(StoreEvent::Denied(ticket, ReasonCode::NOT_AUTHORIZED, why)),
            }
        }
        // The connection may be over when the answer arrives.
        let done = Box::new(move |result| link.send(StoreEvent::Appended(ticket, result)));
        self.broker.store.append(payload, done);
    }

    /// Sends a job record to the store if this client may publish below its prefix: the job's sensors are below it, and the record names their
    /// owner.
    fn put_job(&mut self, ticket: u64, mut record: JobRecord, bytes: usize) {
        let link = self.link.clone();
        match self.broker.check_job(self.identity(), &mut record, bytes) {
            Ok(()) => {
                let done = Box::new(move |result| link.send(StoreEvent::Appended(ticket, result)));
                self.broker.store.put_jobs(vec![record], done);
            }
            Err((code, why)) => link.send(StoreEvent::Denied(ticket, code, why)),
        }
    }

    fn register(&self, ticket: u64, payload: Bytes) {
        let (broker, link, identity) = (self.broker.clone(), self.link.clone(), self.identity().to_owned());
        tokio::task::spawn_blocking(move || {
            let result = broker.register(&identity, &payload);
            link.send(StoreEvent::Registered(ticket, result));
        });
    }

    /// Requests schemas from the agent through the subscriber of its name.
    fn need(&self, hashes: &[SchemaHash]) {
        let topic = Topic::Need { agent: self.identity() }.to_string();
        let payload: Bytes = hashes.iter().flat_map(|hash| hash.0).collect();
        self.broker.metrics.needs.inc();
        let (qos, properties, at) = (QoS::AtLeastOnce, &Properties::new(), Instant::now());
        // From no session: the agent must receive it whatever its subscription options are.
        let publication = Publication { topic: &topic, payload: &payload, qos, retain: false, properties, at };
        self.broker.subscriptions.publish_message(0, &publication);
    }

    fn subscribe(&mut self, subscribe: Subscribe) {
        self.turn.spend(subscribe.filters.len());
        self.count_control(subscribe.filters.len());
        let needs = Topic::Need { agent: self.identity() }.to_string();
        let id = subscribe.properties.subscription_identifier().copied().unwrap_or(0);
        let (mut reasons, mut hears_needs) = (Vec::with_capacity(subscribe.filters.len()), false);
        let filters_max = self.limits.subscriptions_max;
        for (index, wanted) in subscribe.filters.iter().enumerate() {
            let filter = wanted.filter.as_str();
            let options = SubscriptionOptions {
                qos: wanted.qos,
                no_local: wanted.no_local,
                retain_as_published: wanted.retain_as_published,
                id,
            };
            // One packet may name a filter a million times.
            let reason = if index >= filters_max {
                ReasonCode::QUOTA_EXCEEDED
            } else if filter.split('/').count() > LEVELS_MAX {
                ReasonCode::TOPIC_FILTER_INVALID
            } else if let Err(why) = self.broker.may_subscribe(self.who(), filter) {
                self.broker.metrics.subscriptions_refused.inc();
                self.audit_refused(Audited::Subscribe, &why);
                self.broker.log.warn(format_args!("mqtt {} {}: refused: {why}", self.peer, self.identity()));
                ReasonCode::NOT_AUTHORIZED
            } else if !self.broker.subscribe(&self.handle, &self.link, filter, options, wanted.retain_handling) {
                ReasonCode::QUOTA_EXCEEDED
            } else {
                hears_needs |= mqtt::topic_matches(filter, &needs);
                ReasonCode(wanted.qos as u8)
            };
            // MQTT 3.1.1 has one code for every refusal.
            let old = self.version == Version::V311 && reason.is_error();
            reasons.push(if old { ReasonCode::UNSPECIFIED_ERROR } else { reason });
        }
        self.send(&Packet::SubAck(SubAck { packet_id: subscribe.packet_id, reasons, properties: Properties::new() }));
        let needed = self.pipeline.needed();
        if hears_needs && !needed.is_empty() {
            self.need(&needed);
        }
    }

    fn unsubscribe(&mut self, unsubscribe: Unsubscribe) {
        self.turn.spend(unsubscribe.filters.len());
        self.count_control(unsubscribe.filters.len());
        let mut reasons = Vec::new();
        for filter in &unsubscribe.filters {
            let was = self.broker.unsubscribe(&self.handle, &self.link, filter);
            if self.version == Version::V5 {
                reasons.push(if was { ReasonCode::SUCCESS } else { ReasonCode::NO_SUBSCRIPTION_EXISTED });
            }
        }
        let (packet_id, properties) = (unsubscribe.packet_id, Properties::new());
        self.send(&Packet::UnsubAck(UnsubAck { packet_id, reasons, properties }));
    }
}
