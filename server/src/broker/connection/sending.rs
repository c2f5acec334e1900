//! Sends messages and packets to a client.

use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_transport::mqtt::{
    self, Ack, Disconnect, Packet, Properties, Property, PublishParts, QoS, ReasonCode, Text, Version,
};

use super::super::aliases::TopicNaming;
use super::super::fairness::UNIT_BYTES;
use super::super::message::Delivery;
use super::super::message::SubscriptionOptions;
use super::super::replay::SendStep;
use super::super::retained::RetainedMessage;
use super::super::session::{OutgoingPacket, Session};
use super::super::sessions::SessionHandle;
use super::super::wire::flush_and_close;
use super::handshake::reason_string;
use super::{Connection, OUT_BYTES_MAX};

/// The most work of one lookup of retained messages: a few hundred microseconds, then others have their turn.
const LOOK_UP_WORK: usize = 1024;

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Writes the session's messages that may be sent now. Returns whether more can be done at once.
    pub(super) fn send_messages(&mut self) -> bool {
        let mut has_looked = false;
        while self.wire.output.len() < OUT_BYTES_MAX {
            if self.turn.is_over() {
                return true;
            }
            let now = Instant::now();
            let Some(mut session) = self.handle.lock_for(&self.link) else { return false };
            let (mut step, mut next) = (session.next_step(), None);
            if let SendStep::Queue = step {
                next = SessionHandle::with(&mut session, &self.broker.metrics, |session| session.next(now));
                self.broker.metrics.messages_expired.add(session.session.take_expired());
                if next.is_none() {
                    step = session.next_step_when_blocked();
                }
            }
            drop(session);
            match (next, step) {
                (Some(OutgoingPacket::PubRel(packet_id)), _) => self.send(&Packet::PubRel(Ack::success(packet_id))),
                (Some(OutgoingPacket::Publish { delivery, packet_id, dup }), _) => {
                    self.send_message(&delivery, packet_id, dup, now);
                }
                (None, SendStep::Send(kept, options, qos)) => self.send_retained(kept, options, qos, now),
                (None, SendStep::LookUp(..)) if self.lookups_paused_until.is_some_and(|until| now < until) => {
                    return false;
                }
                (None, SendStep::LookUp(..)) if has_looked => return true,
                (None, SendStep::LookUp(filter, after)) => {
                    has_looked = true;
                    self.look_up(&filter, after.as_ref(), now);
                }
                (None, SendStep::Wait | SendStep::Queue) => return false,
            }
        }
        false
    }

    /// Sends the first retained message of the first replay.
    fn send_retained(&mut self, kept: RetainedMessage, options: SubscriptionOptions, qos: QoS, now: Instant) {
        // The schema is requested from the store without a lock.
        let whole = kept.whole(self.broker.subscriptions.schemas());
        let Some(mut held) = self.handle.lock_for(&self.link) else { return };
        if let Some(replays) = held.replays() {
            replays.sent();
        }
        let Some(message) = whole else { return };
        let delivery = Delivery { message, qos, retain: true, ids: options.ids(), group: None };
        let out = SessionHandle::with(&mut held, &self.broker.metrics, |session| session.send_retained(delivery));
        drop(held);
        if let Some(OutgoingPacket::Publish { delivery, packet_id, dup }) = out {
            self.send_message(&delivery, packet_id, dup, now);
        }
    }

    /// Looks up the next retained messages of the first replay.
    fn look_up(&mut self, filter: &str, after: Option<&Text>, now: Instant) {
        let scanned = self.broker.subscriptions.retained_for(filter, after, LOOK_UP_WORK);
        // Filters that match hardly anything must not occupy a whole processor.
        self.lookups_paused_until = self.lookup_rate.record_lookup(&scanned, &self.broker.lookup_rate, now);
        if let Some(mut held) = self.handle.lock_for(&self.link)
            && let Some(replays) = held.replays()
        {
            replays.found(scanned, now);
        }
    }

    fn send_message(&mut self, delivery: &Delivery, packet_id: Option<u16>, dup: bool, now: Instant) {
        let message = &delivery.message;
        self.turn.spend(1 + message.payload.len() / UNIT_BYTES);
        let naming = self.aliases_out.name(&message.topic);
        let mut own = None;
        if self.version == Version::V5
            && (message.expiry_s.is_some() || !delivery.ids.is_empty() || naming != TopicNaming::Plain)
        {
            let mut properties = message.properties.clone();
            properties.0.extend(message.left_s(now).map(Property::MessageExpiryInterval));
            properties.0.extend(delivery.ids.iter().map(|&id| Property::SubscriptionIdentifier(id)));
            if let TopicNaming::Given(alias) | TopicNaming::Known(alias) = naming {
                properties.0.push(Property::TopicAlias(alias));
            }
            own = Some(properties);
        }
        let parts = PublishParts {
            dup,
            qos: delivery.qos,
            retain: delivery.retain,
            topic: if matches!(naming, TopicNaming::Known(_)) { "" } else { &message.topic },
            packet_id,
            payload: &message.payload,
            properties: own.as_ref().unwrap_or(&message.properties),
        };
        let before = self.wire.output.len();
        let encoded = mqtt::encode_publish(&parts, self.version, &mut self.wire.output);
        if encoded.is_err() || self.wire.output.len() - before > self.packet_bytes_max {
            // The message may exceed the maximum packet size of an MQTT 5 client.
            self.wire.output.truncate(before);
            self.broker.metrics.messages_too_large.inc();
            self.broker.log.warn(format_args!(
                "mqtt {} {}: dropped a message of {} bytes: {}",
                self.peer,
                self.identity(),
                message.payload.len(),
                encoded.map_or_else(
                    |error| error.to_string(),
                    |()| "it exceeds the client's maximum packet size".to_owned()
                )
            ));
            if let Some(packet_id) = packet_id {
                self.with_session(|session| session.too_large(packet_id));
            }
            return;
        }
        if let TopicNaming::Given(alias) = naming {
            self.aliases_out.given(&message.topic, alias);
        }
        self.broker.metrics.messages_sent.inc();
        if dup {
            self.broker.metrics.messages_redelivered.inc();
        }
    }

    /// Runs `act` on the session; `None` if a newer connection has it.
    pub(super) fn with_session<T>(&self, act: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let mut held = self.handle.lock_for(&self.link)?;
        Some(SessionHandle::with(&mut held, &self.broker.metrics, act))
    }

    pub(super) fn send(&mut self, packet: &Packet) {
        let before = self.wire.output.len();
        if let Err(error) = mqtt::encode(packet, self.version, &mut self.wire.output) {
            self.wire.output.truncate(before);
            self.broker.log.warn(format_args!("mqtt {}: {error}", self.peer));
        }
    }

    /// Sends a packet with a reason string, or without if it would exceed the client's maximum packet size.
    pub(super) fn send_with_words(&mut self, why: &str, make: impl Fn(Properties) -> Packet) {
        let before = self.wire.output.len();
        self.send(&make(if self.version == Version::V5 { reason_string(why) } else { Properties::new() }));
        if self.wire.output.len() - before > self.packet_bytes_max {
            self.wire.output.truncate(before);
            self.send(&make(Properties::new()));
        }
    }

    /// Sends DISCONNECT with a reason, then closes.
    pub(super) async fn disconnect(&mut self, reason: ReasonCode, why: &str) {
        if self.version == Version::V5 && reason.allowed_in(mqtt::PacketType::Disconnect) {
            self.send_with_words(why, |properties| Packet::Disconnect(Disconnect { reason, properties }));
        }
        flush_and_close(&mut self.wire).await;
    }
}
