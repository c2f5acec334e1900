//! One client's session: what waits for it, what it has not acknowledged, and which of its own QoS 2 messages are under
//! way. Events in, packets out; no I/O and no clock.
//!
//! A session outlives its connection when the client wants that. It lives in memory: it does not survive a restart of the
//! server, which then says in CONNACK that it has none.
//!
//! - Out: messages of QoS 1 and 2 in their order, at most a window of them unacknowledged; those of QoS 0 beside them. On
//!   a new connection what was unacknowledged is sent again first, marked as duplicate; never on a timer (4.4).
//! - In: the packet identifiers of QoS 2 messages that were taken and not yet released, so that none is taken twice.
//! - QoS 0 messages do not wait for a client that is away.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use wholegrain_transport::mqtt::{QoS, ReasonCode};

use super::message::Delivery;

/// The most QoS 2 messages of one client that it has not released. Bounds what 3.1.1 clients, which know no receive
/// maximum, may leave behind.
pub const UNRELEASED_MAX: usize = 16_384;

/// Bounds of what waits for one client.
#[derive(Debug, Clone, Copy)]
pub struct QueueBounds {
    /// The most messages that wait to be sent.
    pub messages_max: usize,
    /// The most bytes of these and of those not yet acknowledged.
    pub bytes_max: usize,
}

/// What became of a message for this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It waits.
    Queued,
    /// The client is away and it is not one to be kept.
    Away,
    /// There is no room.
    Full,
}

/// A packet to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Out {
    /// PUBLISH.
    Publish {
        /// What.
        delivery: Delivery,
        /// Its packet identifier; `None` for QoS 0.
        packet_id: Option<u16>,
        /// Whether it may have been sent before.
        dup: bool,
    },
    /// PUBREL.
    PubRel(u16),
}

/// How an acknowledgement fits what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It ends, or carries on, an exchange.
    Fits,
    /// Nothing is under way with this packet identifier.
    Unknown,
    /// It is not what may come at this point of the exchange.
    Wrong,
}

/// What a QoS 2 PUBLISH of the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// New: to be taken.
    New,
    /// Here before, and still on its way to the store: to be ignored.
    UnderWay,
    /// Here before and taken: to be acknowledged again.
    Taken,
    /// More than [`UNRELEASED_MAX`] are not released.
    TooMany,
}

#[derive(Debug)]
struct Flight {
    packet_id: u16,
    /// `None` once PUBREC came and only PUBREL, PUBCOMP are left.
    delivery: Option<Delivery>,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    bounds: QueueBounds,
    connected: bool,
    /// What waits with QoS 0, and what waits with 1 or 2; each with its place in the common order.
    unsure: VecDeque<(u64, Delivery)>,
    sure: VecDeque<(u64, Delivery)>,
    place: u64,
    bytes: usize,
    flights: VecDeque<Flight>,
    /// How many of the flights, from the front, were sent on this connection.
    sent: usize,
    /// How many more may be unacknowledged.
    quota: u16,
    window: u16,
    last_id: u16,
    /// The client's own QoS 2 messages that are not released, and whether each was taken.
    received: BTreeMap<u16, bool>,
    expired: u64,
}

impl Session {
    /// Of a client that was not here before.
    pub fn new(bounds: QueueBounds) -> Self {
        Self {
            bounds,
            connected: false,
            unsure: VecDeque::new(),
            sure: VecDeque::new(),
            place: 0,
            bytes: 0,
            flights: VecDeque::new(),
            sent: 0,
            quota: 0,
            window: 0,
            last_id: 0,
            received: BTreeMap::new(),
            expired: 0,
        }
    }

    /// The client is here; at most `window` messages may be unacknowledged. What was sent before is sent again.
    pub fn attach(&mut self, window: u16) {
        self.connected = true;
        self.window = window;
        self.quota = window;
        self.sent = 0;
    }

    /// The client is gone.
    pub fn detach(&mut self) {
        self.connected = false;
        let gone: usize = self.unsure.drain(..).map(|(_, delivery)| delivery.message.size()).sum();
        self.bytes -= gone;
        self.unsure = VecDeque::new();
        // What was not yet taken is not known to be stored; when the client sends it again it is new.
        self.received.retain(|_, taken| *taken);
    }

    /// Whether the client is here.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// The most bytes that may.
    pub fn bytes_max(&self) -> usize {
        self.bounds.bytes_max
    }

    /// Bytes that wait or are unacknowledged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many messages wait or are unacknowledged.
    pub fn len(&self) -> usize {
        self.unsure.len() + self.sure.len() + self.flights.len()
    }

    /// Whether nothing waits and nothing is unacknowledged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages expired before they could be sent, since this was asked last.
    pub fn take_expired(&mut self) -> u64 {
        std::mem::take(&mut self.expired)
    }

    /// A message for the client.
    pub fn deliver(&mut self, delivery: Delivery) -> Put {
        if !self.connected && delivery.qos == QoS::AtMostOnce {
            return Put::Away;
        }
        let size = delivery.message.size();
        let waiting = self.unsure.len() + self.sure.len();
        if waiting >= self.bounds.messages_max || self.bytes + size > self.bounds.bytes_max {
            return Put::Full;
        }
        self.bytes += size;
        self.place += 1;
        let queue = if delivery.qos == QoS::AtMostOnce { &mut self.unsure } else { &mut self.sure };
        queue.push_back((self.place, delivery));
        Put::Queued
    }

    /// Whether so much waits that there will soon be no room: then it goes before retained messages.
    pub fn is_crowded(&self) -> bool {
        let waiting = self.unsure.len() + self.sure.len();
        waiting > self.bounds.messages_max / 2 || self.bytes > self.bounds.bytes_max / 2
    }

    /// Whether something is still to be sent again that an earlier connection left unacknowledged.
    pub fn sends_again(&self) -> bool {
        self.sent < self.flights.len()
    }

    /// Whether a retained message may be sent now, which waits nowhere: not before what is sent again.
    pub fn takes_retained(&self, qos: QoS) -> bool {
        self.connected && !self.sends_again() && (qos == QoS::AtMostOnce || self.quota > 0)
    }

    /// Sends a retained message; `None` when [`Session::takes_retained`] says no.
    pub fn send_retained(&mut self, delivery: Delivery) -> Option<Out> {
        if !self.takes_retained(delivery.qos) {
            return None;
        }
        if delivery.qos == QoS::AtMostOnce {
            return Some(Out::Publish { delivery, packet_id: None, dup: false });
        }
        self.bytes += delivery.message.size();
        Some(self.take_off(delivery))
    }

    /// Sends a message of QoS 1 or 2 for the first time.
    fn take_off(&mut self, delivery: Delivery) -> Out {
        let packet_id = self.free_id();
        self.quota -= 1;
        self.sent += 1;
        self.flights.push_back(Flight { packet_id, delivery: Some(delivery.clone()) });
        Out::Publish { delivery, packet_id: Some(packet_id), dup: false }
    }

    /// The next packet that may be sent now.
    pub fn next(&mut self, now: Instant) -> Option<Out> {
        if !self.connected {
            return None;
        }
        if let Some(flight) = self.flights.get(self.sent) {
            match &flight.delivery {
                None => {
                    self.sent += 1;
                    // Never held back, but its PUBCOMP will give room, which it must have taken.
                    self.quota = self.quota.saturating_sub(1);
                    return Some(Out::PubRel(flight.packet_id));
                }
                Some(delivery) if self.quota > 0 => {
                    self.sent += 1;
                    self.quota -= 1;
                    let (delivery, packet_id) = (delivery.clone(), Some(flight.packet_id));
                    return Some(Out::Publish { delivery, packet_id, dup: true });
                }
                Some(_) => return self.next_unsure(now),
            }
        }
        loop {
            let sure = self.sure.front().filter(|_| self.quota > 0).map(|(place, _)| *place);
            let unsure = self.unsure.front().map(|(place, _)| *place);
            match (sure, unsure) {
                (None, _) => return self.next_unsure(now),
                // All of it may have expired.
                (Some(sure), Some(unsure)) if unsure < sure => match self.next_unsure(now) {
                    None => {}
                    out => return out,
                },
                _ => {}
            }
            let (_, delivery) = self.sure.pop_front()?;
            if delivery.message.is_expired(now) {
                self.bytes -= delivery.message.size();
                self.expired += 1;
                continue;
            }
            return Some(self.take_off(delivery));
        }
    }

    fn next_unsure(&mut self, now: Instant) -> Option<Out> {
        while let Some((_, delivery)) = self.unsure.pop_front() {
            self.bytes -= delivery.message.size();
            if !delivery.message.is_expired(now) {
                return Some(Out::Publish { delivery, packet_id: None, dup: false });
            }
            self.expired += 1;
        }
        None
    }

    /// A packet identifier that is not under way. There is one, for the window is smaller than their number.
    fn free_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.flights.iter().any(|flight| flight.packet_id == self.last_id) {
                return self.last_id;
            }
        }
    }

    fn position(&self, packet_id: u16) -> Option<usize> {
        self.flights.iter().position(|flight| flight.packet_id == packet_id)
    }

    /// Ends the exchange at this place.
    fn end(&mut self, at: usize) {
        if let Some(delivery) = self.flights.remove(at).and_then(|flight| flight.delivery) {
            self.bytes -= delivery.message.size();
        }
        if at < self.sent {
            self.sent -= 1;
            self.quota = self.quota.saturating_add(1).min(self.window);
        }
        self.tidy();
    }

    /// Gives room back that a burst took.
    fn tidy(&mut self) {
        if self.flights.is_empty() && self.sure.is_empty() && self.flights.capacity() + self.sure.capacity() > 16 {
            self.flights = VecDeque::new();
            self.sure = VecDeque::new();
        }
        if self.unsure.is_empty() && self.unsure.capacity() > 16 {
            self.unsure = VecDeque::new();
        }
    }

    fn qos_at(&self, at: usize) -> Option<QoS> {
        self.flights[at].delivery.as_ref().map(|delivery| delivery.qos)
    }

    /// PUBACK came.
    pub fn puback(&mut self, packet_id: u16) -> Answer {
        match self.position(packet_id) {
            None => Answer::Unknown,
            Some(at) if self.qos_at(at) == Some(QoS::AtLeastOnce) => {
                self.end(at);
                Answer::Fits
            }
            Some(_) => Answer::Wrong,
        }
    }

    /// PUBREC came. PUBREL is to be sent unless the client refused the message with it.
    pub fn pubrec(&mut self, packet_id: u16, reason: ReasonCode) -> Answer {
        let Some(at) = self.position(packet_id) else { return Answer::Unknown };
        if self.qos_at(at) == Some(QoS::AtLeastOnce) {
            return Answer::Wrong;
        }
        if reason.is_error() {
            self.end(at);
        } else if let Some(delivery) = self.flights[at].delivery.take() {
            self.bytes -= delivery.message.size();
        }
        Answer::Fits
    }

    /// PUBCOMP came.
    pub fn pubcomp(&mut self, packet_id: u16) -> Answer {
        match self.position(packet_id) {
            None => Answer::Unknown,
            Some(at) if self.flights[at].delivery.is_none() => {
                self.end(at);
                Answer::Fits
            }
            Some(_) => Answer::Wrong,
        }
    }

    /// A message given out by [`Session::next`] is larger than the client takes: as if it had acknowledged it (3.1.2.11.4).
    pub fn too_large(&mut self, packet_id: u16) {
        if let Some(at) = self.position(packet_id) {
            self.end(at);
        }
    }

    /// A QoS 2 PUBLISH of the client came.
    pub fn arrived(&mut self, packet_id: u16) -> Arrival {
        match self.received.get(&packet_id) {
            Some(true) => Arrival::Taken,
            Some(false) => Arrival::UnderWay,
            None if self.received.len() >= UNRELEASED_MAX => Arrival::TooMany,
            None => {
                self.received.insert(packet_id, false);
                Arrival::New
            }
        }
    }

    /// A QoS 2 message of the client is stored or passed on: from now on it must not be taken again.
    pub fn taken(&mut self, packet_id: u16) {
        if let Some(taken) = self.received.get_mut(&packet_id) {
            *taken = true;
        }
    }

    /// A QoS 2 message of the client was refused, which ends the exchange (4.3.3).
    pub fn refused(&mut self, packet_id: u16) {
        self.received.remove(&packet_id);
    }

    /// PUBREL came.
    pub fn released(&mut self, packet_id: u16) -> Answer {
        match self.received.get(&packet_id) {
            None => Answer::Unknown,
            Some(false) => Answer::Wrong,
            Some(true) => {
                self.received.remove(&packet_id);
                Answer::Fits
            }
        }
    }

    /// How many QoS 2 messages of the client are not released.
    pub fn unreleased(&self) -> usize {
        self.received.len()
    }

    /// The shared subscriptions that something came by which another member could get.
    pub fn groups(&self) -> Vec<Arc<str>> {
        let mut groups: Vec<Arc<str>> = Vec::new();
        let waiting = self.sure.iter().map(|(_, delivery)| delivery);
        let flying = self.flights.iter().filter_map(|flight| flight.delivery.as_ref()).filter(|d| movable(d));
        for group in waiting.chain(flying).filter_map(|delivery| delivery.group.as_ref()) {
            if !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        groups
    }

    /// Takes out what came by shared subscriptions, by this one or by any, and another member may get: what waits, and
    /// what is unacknowledged with QoS 1. A QoS 2 message that was sent is this client's for good (4.8.2).
    pub fn take_shared(&mut self, group: Option<&str>) -> Vec<Delivery> {
        let is_one =
            |delivery: &Delivery| delivery.group.as_deref().is_some_and(|own| group.is_none_or(|group| own == group));
        let mut out = Vec::new();
        let mut at = 0;
        while at < self.flights.len() {
            match &self.flights[at].delivery {
                Some(delivery) if movable(delivery) && is_one(delivery) => {
                    out.push(delivery.clone());
                    self.end(at);
                }
                _ => at += 1,
            }
        }
        let waiting = std::mem::take(&mut self.sure);
        for (place, delivery) in waiting {
            if is_one(&delivery) {
                self.bytes -= delivery.message.size();
                out.push(delivery);
            } else {
                self.sure.push_back((place, delivery));
            }
        }
        out
    }
}

/// Whether an unacknowledged message may go to another member of its shared subscription.
fn movable(delivery: &Delivery) -> bool {
    delivery.qos == QoS::AtLeastOnce
}

#[cfg(test)]
mod tests;
