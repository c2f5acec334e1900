//! What is sent to a client.

use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_transport::mqtt::{
    self, Ack, Disconnect, Packet, Properties, Property, PublishParts, ReasonCode, Version,
};

use super::super::aliases::Naming;
use super::super::message::Delivery;
use super::super::session::{Out, Session};
use super::super::sessions::Handle;
use super::super::wire::farewell;
use super::greet::reason_string;
use super::{Connection, OUT_BYTES_MAX};

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Writes what the session has for the client and may be sent now.
    pub(super) fn send_messages(&mut self) {
        while self.wire.output.len() < OUT_BYTES_MAX {
            let now = Instant::now();
            let Some(mut held) = self.handle.lock_for(&self.link) else { return };
            let next = Handle::with(&mut held, &self.broker.metrics, |session| session.next(now));
            let expired = held.session.take_expired();
            drop(held);
            self.broker.metrics.messages_expired.add(expired);
            match next {
                None => return,
                Some(Out::PubRel(packet_id)) => self.send(&Packet::PubRel(Ack::success(packet_id))),
                Some(Out::Publish { delivery, packet_id, dup }) => self.send_message(&delivery, packet_id, dup, now),
            }
        }
    }

    fn send_message(&mut self, delivery: &Delivery, packet_id: Option<u16>, dup: bool, now: Instant) {
        let message = &delivery.message;
        let naming = self.aliases_out.name(&message.topic);
        let mut own = None;
        if self.version == Version::V5
            && (message.expiry_s.is_some() || !delivery.ids.is_empty() || naming != Naming::Plain)
        {
            let mut properties = message.properties.clone();
            properties.0.extend(message.left_s(now).map(Property::MessageExpiryInterval));
            properties.0.extend(delivery.ids.iter().map(|&id| Property::SubscriptionIdentifier(id)));
            if let Naming::Given(alias) | Naming::Known(alias) = naming {
                properties.0.push(Property::TopicAlias(alias));
            }
            own = Some(properties);
        }
        let parts = PublishParts {
            dup,
            qos: delivery.qos,
            retain: delivery.retain,
            topic: if matches!(naming, Naming::Known(_)) { "" } else { &message.topic },
            packet_id,
            payload: &message.payload,
            properties: own.as_ref().unwrap_or(&message.properties),
        };
        let before = self.wire.output.len();
        let encoded = mqtt::encode_publish(&parts, self.version, &mut self.wire.output);
        if encoded.is_err() || self.wire.output.len() - before > self.packet_bytes_max {
            // A client of MQTT 5 may have said that this is too large for it.
            self.wire.output.truncate(before);
            self.broker.metrics.messages_too_large.inc();
            self.broker.log.warn(format_args!(
                "mqtt {} {}: a message of {} bytes was dropped: {}",
                self.peer,
                self.identity(),
                message.payload.len(),
                encoded.map_or_else(|error| error.to_string(), |()| "larger than this client takes".to_owned())
            ));
            if let Some(packet_id) = packet_id {
                self.with_session(|session| session.too_large(packet_id));
            }
            return;
        }
        if let Naming::Given(alias) = naming {
            self.aliases_out.given(&message.topic, alias);
        }
        self.broker.metrics.messages_sent.inc();
        if dup {
            self.broker.metrics.messages_redelivered.inc();
        }
    }

    /// Does something with the session; `None` when a newer connection has it.
    pub(super) fn with_session<T>(&self, act: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let mut held = self.handle.lock_for(&self.link)?;
        Some(Handle::with(&mut held, &self.broker.metrics, act))
    }

    pub(super) fn send(&mut self, packet: &Packet) {
        let before = self.wire.output.len();
        if let Err(error) = mqtt::encode(packet, self.version, &mut self.wire.output) {
            self.wire.output.truncate(before);
            self.broker.log.warn(format_args!("mqtt {}: {error}", self.peer));
        }
    }

    /// Sends a packet that says why in words, or, when that is more than the client takes, without.
    pub(super) fn send_with_words(&mut self, why: &str, make: impl Fn(Properties) -> Packet) {
        let before = self.wire.output.len();
        self.send(&make(if self.version == Version::V5 { reason_string(why) } else { Properties::new() }));
        if self.wire.output.len() - before > self.packet_bytes_max {
            self.wire.output.truncate(before);
            self.send(&make(Properties::new()));
        }
    }

    /// DISCONNECT with a reason, and the end.
    pub(super) async fn goodbye(&mut self, reason: ReasonCode, why: &str) {
        if self.version == Version::V5 && reason.allowed_in(mqtt::PacketType::Disconnect) {
            self.send_with_words(why, |properties| Packet::Disconnect(Disconnect { reason, properties }));
        }
        farewell(&mut self.wire).await;
    }
}
