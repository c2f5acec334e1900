//! Handles packets of a client.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_transport::mqtt::{
    self, Ack, Disconnect, Packet, Properties, Publish, QoS, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe,
    Version,
};
use wholegrain_transport::topics::{self, Topic};

use crate::access::audit::AuditEvent as Audited;

use super::super::fairness::{TOPIC_UNIT_BYTES, UNIT_BYTES};
use super::super::message::Publication;
use super::super::message::SubscriptionOptions;
use super::super::session::{AckMatch, Qos2Arrival};
use super::super::trie::LEVELS_MAX;
use super::{Connection, ConnectionEnd};
use crate::ingest::{CloseReason, IncomingPublish, PublishConnection, StoreEvent};
use crate::log_limit::quoted;

/// Payloads below this many bytes are copied out of the receive buffer.
const COPY_BYTES_MAX: usize = 64 << 10;

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
            self.publishes_paused_until = self.publishes_paused_until.max(until);
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
            self.publishes_paused_until = until;
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
        if !is_path && !self.broker.interop.config.devices.is_empty() {
            match self.take_device(incoming, now) {
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

    /// Whether to continue with a retained message. Without room it is refused, or, with QoS 0, which promises nothing, forwarded without being
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
        let Self { broker, pipeline, intake, effects, .. } = self;
        broker.ingest.take_event(event, pipeline, intake, effects);
        self.apply()
    }

    /// Carries out the effects of the pipeline.
    pub(super) fn apply(&mut self) -> ControlFlow<ConnectionEnd> {
        if self.effects.is_empty() {
            return ControlFlow::Continue(());
        }
        let (broker, mut effects) = (self.broker.clone(), std::mem::take(&mut self.effects));
        let done = effects.drain(..).try_for_each(|effect| broker.ingest.carry_out(effect, self));
        // The buffer is used again.
        effects.clear();
        self.effects = effects;
        done.map_or_else(|close| ControlFlow::Break(close.into()), ControlFlow::Continue)
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
            self.request_schemas(&needed);
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
