//! One client's session: queued and unacknowledged messages, and the client's own QoS 2 messages in progress. Events in, packets out; no I/O and no
//! clock.
//!
//! A session outlives its connection if the client asks for that. It is in memory only: after a restart CONNACK says that there is no session.
//!
//! - Out: messages of QoS 1 and 2 in order, at most a window of them unacknowledged; QoS 0 beside them. On a new connection unacknowledged messages
//!   are sent again first, marked as duplicates; never on a timer (4.4).
//! - In: packet identifiers of accepted QoS 2 messages that are not yet released, so that none is accepted twice.
//! - QoS 0 messages are not queued for a disconnected client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use wholegrain_transport::mqtt::{QoS, ReasonCode};

use super::message::Delivery;

/// The most unreleased QoS 2 messages of one client. Limits MQTT 3.1.1 clients, which have no receive maximum.
pub const UNRELEASED_MAX: usize = 16_384;

/// Limits of one client's queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueBounds {
    pub messages_max: usize,
    /// Bytes of queued and unacknowledged messages.
    pub bytes_max: usize,
}

/// The result of queueing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOutcome {
    Queued,
    /// The client is disconnected and the message has QoS 0.
    Away,
    /// The queue is full.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutgoingPacket {
    Publish {
        delivery: Delivery,
        /// `None` for QoS 0.
        packet_id: Option<u16>,
        /// The DUP flag: it may have been sent before.
        dup: bool,
    },
    PubRel(u16),
}

/// How an acknowledgement matches the messages sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMatch {
    /// It ends or continues an exchange.
    Fits,
    /// No exchange has this packet identifier.
    Unknown,
    /// It is not allowed at this point of the exchange.
    Wrong,
}

/// The state of a QoS 2 PUBLISH of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos2Arrival {
    /// New: to be processed.
    New,
    /// Received before and not yet stored: to be ignored.
    UnderWay,
    /// Received and accepted before: to be acknowledged again.
    Accepted,
    /// More than [`UNRELEASED_MAX`] are not released.
    TooMany,
}

#[derive(Debug)]
struct InFlightMessage {
    packet_id: u16,
    /// `None` after PUBREC: only PUBREL and PUBCOMP are left.
    delivery: Option<Delivery>,
}

#[derive(Debug)]
pub struct Session {
    bounds: QueueBounds,
    connected: bool,
    /// Queued messages of QoS 0, and of QoS 1 and 2; each with its position in the common order.
    qos0: VecDeque<(u64, Delivery)>,
    queued: VecDeque<(u64, Delivery)>,
    place: u64,
    bytes: usize,
    in_flight: VecDeque<InFlightMessage>,
    /// How many of the in-flight messages, from the front, were sent on this connection.
    sent: usize,
    /// How many more may be unacknowledged.
    quota: u16,
    window: u16,
    last_id: u16,
    /// The client's unreleased QoS 2 messages, and whether each was accepted.
    received: BTreeMap<u16, bool>,
    expired: u64,
}

impl Session {
    /// A session of a new client.
    pub fn new(bounds: QueueBounds) -> Self {
        Self {
            bounds,
            connected: false,
            qos0: VecDeque::new(),
            queued: VecDeque::new(),
            place: 0,
            bytes: 0,
            in_flight: VecDeque::new(),
            sent: 0,
            quota: 0,
            window: 0,
            last_id: 0,
            received: BTreeMap::new(),
            expired: 0,
        }
    }

    /// The client connected; at most `window` messages may be unacknowledged. Unacknowledged messages are sent again.
    pub fn attach(&mut self, window: u16) {
        self.connected = true;
        self.window = window;
        self.quota = window;
        self.sent = 0;
    }

    pub fn detach(&mut self) {
        self.connected = false;
        let gone: usize = self.qos0.drain(..).map(|(_, delivery)| delivery.message.size()).sum();
        self.bytes -= gone;
        self.qos0 = VecDeque::new();
        // Messages not yet accepted may not be stored; if the client sends them again, they are new.
        self.received.retain(|_, accepted| *accepted);
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// The limit of queued and unacknowledged bytes.
    pub fn bytes_max(&self) -> usize {
        self.bounds.bytes_max
    }

    /// Bytes queued or unacknowledged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of queued and unacknowledged messages.
    pub fn len(&self) -> usize {
        self.qos0.len() + self.queued.len() + self.in_flight.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of messages that expired before they could be sent, since the last call.
    pub fn take_expired(&mut self) -> u64 {
        std::mem::take(&mut self.expired)
    }

    pub fn deliver(&mut self, delivery: Delivery) -> QueueOutcome {
        if !self.connected && delivery.qos == QoS::AtMostOnce {
            return QueueOutcome::Away;
        }
        let size = delivery.message.size();
        let waiting = self.qos0.len() + self.queued.len();
        if waiting >= self.bounds.messages_max || self.bytes + size > self.bounds.bytes_max {
            return QueueOutcome::Full;
        }
        self.bytes += size;
        self.place += 1;
        let queue = if delivery.qos == QoS::AtMostOnce { &mut self.qos0 } else { &mut self.queued };
        queue.push_back((self.place, delivery));
        QueueOutcome::Queued
    }

    /// Whether the queue is at least half full: then it precedes retained messages.
    pub fn is_crowded(&self) -> bool {
        let waiting = self.qos0.len() + self.queued.len();
        waiting > self.bounds.messages_max / 2 || self.bytes > self.bounds.bytes_max / 2
    }

    /// Whether messages that an earlier connection left unacknowledged must still be sent again.
    pub fn sends_again(&self) -> bool {
        self.sent < self.in_flight.len()
    }

    /// Whether a retained message, which is not queued, may be sent now: not before messages that are sent again.
    pub fn takes_retained(&self, qos: QoS) -> bool {
        self.connected && !self.sends_again() && (qos == QoS::AtMostOnce || self.quota > 0)
    }

    /// Sends a retained message; `None` unless [`Session::takes_retained`].
    pub fn send_retained(&mut self, delivery: Delivery) -> Option<OutgoingPacket> {
        if !self.takes_retained(delivery.qos) {
            return None;
        }
        if delivery.qos == QoS::AtMostOnce {
            return Some(OutgoingPacket::Publish { delivery, packet_id: None, dup: false });
        }
        self.bytes += delivery.message.size();
        Some(self.send_first(delivery))
    }

    /// Sends a message of QoS 1 or 2 for the first time.
    fn send_first(&mut self, delivery: Delivery) -> OutgoingPacket {
        let packet_id = self.free_id();
        self.quota -= 1;
        self.sent += 1;
        self.in_flight.push_back(InFlightMessage { packet_id, delivery: Some(delivery.clone()) });
        OutgoingPacket::Publish { delivery, packet_id: Some(packet_id), dup: false }
    }

    /// The next packet that may be sent now.
    pub fn next(&mut self, now: Instant) -> Option<OutgoingPacket> {
        if !self.connected {
            return None;
        }
        if let Some(flight) = self.in_flight.get(self.sent) {
            match &flight.delivery {
                None => {
                    self.sent += 1;
                    // PUBREL is never delayed, but its PUBCOMP returns quota, so it must take some.
                    self.quota = self.quota.saturating_sub(1);
                    return Some(OutgoingPacket::PubRel(flight.packet_id));
                }
                Some(delivery) if self.quota > 0 => {
                    self.sent += 1;
                    self.quota -= 1;
                    let (delivery, packet_id) = (delivery.clone(), Some(flight.packet_id));
                    return Some(OutgoingPacket::Publish { delivery, packet_id, dup: true });
                }
                Some(_) => return self.next_qos0(now),
            }
        }
        loop {
            let sure = self.queued.front().filter(|_| self.quota > 0).map(|(place, _)| *place);
            let qos0 = self.qos0.front().map(|(place, _)| *place);
            match (sure, qos0) {
                (None, _) => return self.next_qos0(now),
                // All of them may have expired.
                (Some(sure), Some(qos0)) if qos0 < sure => match self.next_qos0(now) {
                    None => {}
                    out => return out,
                },
                _ => {}
            }
            let (_, delivery) = self.queued.pop_front()?;
            if delivery.message.is_expired(now) {
                self.bytes -= delivery.message.size();
                self.expired += 1;
                continue;
            }
            return Some(self.send_first(delivery));
        }
    }

    fn next_qos0(&mut self, now: Instant) -> Option<OutgoingPacket> {
        while let Some((_, delivery)) = self.qos0.pop_front() {
            self.bytes -= delivery.message.size();
            if !delivery.message.is_expired(now) {
                return Some(OutgoingPacket::Publish { delivery, packet_id: None, dup: false });
            }
            self.expired += 1;
        }
        None
    }

    /// An unused packet identifier. There is one, because the window is smaller than their number.
    fn free_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.in_flight.iter().any(|flight| flight.packet_id == self.last_id) {
                return self.last_id;
            }
        }
    }

    fn position(&self, packet_id: u16) -> Option<usize> {
        self.in_flight.iter().position(|flight| flight.packet_id == packet_id)
    }

    /// Ends the exchange at this index.
    fn end(&mut self, at: usize) {
        if let Some(delivery) = self.in_flight.remove(at).and_then(|flight| flight.delivery) {
            self.bytes -= delivery.message.size();
        }
        if at < self.sent {
            self.sent -= 1;
            self.quota = self.quota.saturating_add(1).min(self.window);
        }
        self.tidy();
    }

    /// Returns the memory of a burst.
    fn tidy(&mut self) {
        if self.in_flight.is_empty()
            && self.queued.is_empty()
            && self.in_flight.capacity() + self.queued.capacity() > 16
        {
            self.in_flight = VecDeque::new();
            self.queued = VecDeque::new();
        }
        if self.qos0.is_empty() && self.qos0.capacity() > 16 {
            self.qos0 = VecDeque::new();
        }
    }

    fn qos_at(&self, at: usize) -> Option<QoS> {
        self.in_flight[at].delivery.as_ref().map(|delivery| delivery.qos)
    }

    pub fn puback(&mut self, packet_id: u16) -> AckMatch {
        match self.position(packet_id) {
            None => AckMatch::Unknown,
            Some(at) if self.qos_at(at) == Some(QoS::AtLeastOnce) => {
                self.end(at);
                AckMatch::Fits
            }
            Some(_) => AckMatch::Wrong,
        }
    }

    /// PUBREC arrived. PUBREL follows unless the client refused the message.
    pub fn pubrec(&mut self, packet_id: u16, reason: ReasonCode) -> AckMatch {
        let Some(at) = self.position(packet_id) else { return AckMatch::Unknown };
        if self.qos_at(at) == Some(QoS::AtLeastOnce) {
            return AckMatch::Wrong;
        }
        if reason.is_error() {
            self.end(at);
        } else if let Some(delivery) = self.in_flight[at].delivery.take() {
            self.bytes -= delivery.message.size();
        }
        AckMatch::Fits
    }

    pub fn pubcomp(&mut self, packet_id: u16) -> AckMatch {
        match self.position(packet_id) {
            None => AckMatch::Unknown,
            Some(at) if self.in_flight[at].delivery.is_none() => {
                self.end(at);
                AckMatch::Fits
            }
            Some(_) => AckMatch::Wrong,
        }
    }

    /// A packet from [`Session::next`] exceeds the client's maximum packet size: it counts as acknowledged (3.1.2.11.4).
    pub fn too_large(&mut self, packet_id: u16) {
        if let Some(at) = self.position(packet_id) {
            self.end(at);
        }
    }

    /// A QoS 2 PUBLISH of the client arrived.
    pub fn arrived(&mut self, packet_id: u16) -> Qos2Arrival {
        match self.received.get(&packet_id) {
            Some(true) => Qos2Arrival::Accepted,
            Some(false) => Qos2Arrival::UnderWay,
            None if self.received.len() >= UNRELEASED_MAX => Qos2Arrival::TooMany,
            None => {
                self.received.insert(packet_id, false);
                Qos2Arrival::New
            }
        }
    }

    /// A QoS 2 message of the client is stored or forwarded: it must not be accepted again.
    pub fn accepted(&mut self, packet_id: u16) {
        if let Some(accepted) = self.received.get_mut(&packet_id) {
            *accepted = true;
        }
    }

    /// A QoS 2 message of the client was refused, which ends the exchange (4.3.3).
    pub fn refused(&mut self, packet_id: u16) {
        self.received.remove(&packet_id);
    }

    pub fn released(&mut self, packet_id: u16) -> AckMatch {
        match self.received.get(&packet_id) {
            None => AckMatch::Unknown,
            Some(false) => AckMatch::Wrong,
            Some(true) => {
                self.received.remove(&packet_id);
                AckMatch::Fits
            }
        }
    }

    pub fn unreleased(&self) -> usize {
        self.received.len()
    }

    /// The shared subscriptions with messages that another member could get.
    pub fn groups(&self) -> Vec<Arc<str>> {
        let mut groups: Vec<Arc<str>> = Vec::new();
        let waiting = self.queued.iter().map(|(_, delivery)| delivery);
        let flying =
            self.in_flight.iter().filter_map(|flight| flight.delivery.as_ref()).filter(|d| may_change_member(d));
        for group in waiting.chain(flying).filter_map(|delivery| delivery.group.as_ref()) {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        groups
    }

    /// Removes messages of one or all shared subscriptions that another member may get: queued ones, and unacknowledged ones of QoS 1. A QoS 2
    /// message that was sent stays with this client (4.8.2).
    pub fn take_shared(&mut self, group: Option<&str>) -> Vec<Delivery> {
        let is_one =
            |delivery: &Delivery| delivery.group.as_deref().is_some_and(|own| group.is_none_or(|group| own == group));
        let mut out = Vec::new();
        let mut at = 0;
        while at < self.in_flight.len() {
            match &self.in_flight[at].delivery {
                Some(delivery) if may_change_member(delivery) && is_one(delivery) => {
                    out.push(delivery.clone());
                    self.end(at);
                }
                _ => at += 1,
            }
        }
        let waiting = std::mem::take(&mut self.queued);
        for (place, delivery) in waiting {
            if is_one(&delivery) {
                self.bytes -= delivery.message.size();
                out.push(delivery);
            } else {
                self.queued.push_back((place, delivery));
            }
        }
        out
    }
}

/// Whether an unacknowledged message may go to another member of its shared subscription.
fn may_change_member(delivery: &Delivery) -> bool {
    delivery.qos == QoS::AtLeastOnce
}

#[cfg(test)]
mod tests;
