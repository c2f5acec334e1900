//! The state of the connection: messages in flight, received events, pings.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::link::{Link, Transfer};
use super::url::Url;
use super::{ClientConfig, ClientError, Event, RECEIVE_MAX_V311, SEND_BUFFER_BYTES_MAX};
use crate::mqtt::{
    self, Ack, CodecError, ConnAck, Connect, Disconnect, Packet, Properties, Property, Publish, PublishParts, QoS,
    ReasonCode, Subscribe, Subscription, Version,
};

/// The most messages in flight, whatever the server takes: packet identifiers have 16 bits, and some must be free.
const IN_FLIGHT_MAX: u16 = 32_768;
/// The most subscriptions without SUBACK.
const SUBSCRIBING_MAX: u16 = 1024;
/// The most events that wait for the caller; beyond it no bytes are read.
const EVENTS_MAX: usize = 1024;

/// A connection to a server, with a clean session.
pub struct Client {
    link: Link,
    version: Version,
    inbox: BytesMut,
    outbox: BytesMut,
    events: VecDeque<Event>,
    /// Packet identifiers of QoS 1 messages without PUBACK.
    in_flight: HashSet<u16>,
    /// Packet identifiers of SUBSCRIBE without SUBACK.
    subscribing: HashSet<u16>,
    last_id: u16,
    receive_max: u16,
    /// The largest packet that the server accepts.
    send_bytes_max: usize,
    packet_bytes_max: usize,
    keep_alive: Duration,
    answer_timeout: Option<Duration>,
    send_timeout: Duration,
    last_sent: Instant,
    last_received: Instant,
    ping_sent: Option<Instant>,
    /// Since when at least one QoS 1 message is in flight, if any is.
    in_flight_since: Instant,
    /// Since when the network takes none of the buffered bytes.
    stalled: Option<Instant>,
    /// The error that ended the connection, kept until the events before it are returned.
    failure: Option<ClientError>,
}

impl Client {
    /// Connects with a clean session and waits for CONNACK.
    pub fn connect(config: &ClientConfig) -> Result<Client, ClientError> {
        let refused = |problem: String| ClientError::Config { url: config.url.clone(), problem };
        let url = Url::parse(&config.url).map_err(refused)?;
        if config.password.is_some() && config.user.is_none() {
            return Err(refused("there is a password without a user; configure both".into()));
        }
        let deadline = Instant::now() + config.connect_timeout;
        let link = Link::connect(config, &url, deadline)?;
        let now = Instant::now();
        let mut client = Client {
            link,
            version: config.version,
            inbox: BytesMut::new(),
            outbox: BytesMut::new(),
            events: VecDeque::new(),
            in_flight: HashSet::new(),
            subscribing: HashSet::new(),
            last_id: 0,
            receive_max: RECEIVE_MAX_V311,
            send_bytes_max: mqtt::REMAINING_LENGTH_MAX,
            packet_bytes_max: config.packet_bytes_max,
            keep_alive: Duration::from_secs(u64::from(keep_alive_s(config.keep_alive))),
            answer_timeout: config.answer_timeout,
            send_timeout: config.send_timeout,
            last_sent: now,
            last_received: now,
            in_flight_since: now,
            ping_sent: None,
            stalled: None,
            failure: None,
        };
        client.put(&connect_packet(config)).map_err(|error| refused(error.to_string()))?;
        let connack = client.shake_hands(config, deadline)?;
        client.take_connack(config, &connack)?;
        Ok(client)
    }

    fn shake_hands(&mut self, config: &ClientConfig, deadline: Instant) -> Result<ConnAck, ClientError> {
        let failed = |problem: String| ClientError::Connect { url: config.url.clone(), problem };
        loop {
            // Received bytes first: the server may have refused and closed before it took all bytes.
            let transfer = self.link.fill(&mut self.inbox).map_err(|error| failed(explain(&error)))?;
            let packet = mqtt::decode(&mut self.inbox, Some(self.version), self.packet_bytes_max);
            match packet.map_err(|error| failed(format!("{error}; is it an MQTT server?")))? {
                Some(Packet::ConnAck(connack)) => return Ok(connack),
                Some(other) => {
                    return Err(failed(format!("it answered {} instead of CONNACK", other.packet_type().name())));
                }
                None if transfer == Transfer::Bytes => continue,
                None if transfer == Transfer::End => {
                    return Err(failed(format!("it closed the connection without an answer{CLOSED_HINT}")));
                }
                None => {}
            }
            self.link.drain(&mut self.outbox).map_err(|error| failed(explain(&error)))?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(format!(
                    "it did not answer within {:?}; is it an MQTT server?",
                    config.connect_timeout
                )));
            }
            let write = self.link.wants_write(&self.outbox);
            self.link.wait(left, write, None).map_err(|error| failed(error.to_string()))?;
        }
    }

    fn take_connack(&mut self, config: &ClientConfig, connack: &ConnAck) -> Result<(), ClientError> {
        let properties = &connack.properties;
        if connack.reason != ReasonCode::SUCCESS {
            let text = properties.reason_string().map(|text| text.to_string()).unwrap_or_default();
            return Err(ClientError::Refused { url: config.url.clone(), reason: connack.reason, text });
        }
        if properties.maximum_qos() == Some(&false) {
            let (reason, text) = (ReasonCode::QOS_NOT_SUPPORTED, "it takes no QoS 1; use another server".to_owned());
            return Err(ClientError::Refused { url: config.url.clone(), reason, text });
        }
        if self.version == Version::V5 {
            self.receive_max = properties.receive_maximum().copied().unwrap_or(u16::MAX).min(IN_FLIGHT_MAX);
        }
        if let Some(&bytes) = properties.maximum_packet_size() {
            self.send_bytes_max = bytes as usize;
        }
        if let Some(&seconds) = properties.server_keep_alive() {
            self.keep_alive = Duration::from_secs(u64::from(seconds));
        }
        self.last_received = Instant::now();
        self.last_sent = self.last_received;
        Ok(())
    }

    /// Appends a message to the send buffer, see [`Client::flush`]. Returns the packet identifier, 0 for QoS 0. Waits for the network only if more
    /// than [`SEND_BUFFER_BYTES_MAX`] is buffered. After [`ClientError::WindowFull`] and [`ClientError::TooLarge`] the connection is usable, and
    /// nothing was sent.
    pub fn publish(&mut self, topic: &str, payload: &[u8], qos1: bool, retain: bool) -> Result<u16, ClientError> {
        if qos1 && self.in_flight.len() >= usize::from(self.receive_max) {
            return Err(ClientError::WindowFull(self.receive_max));
        }
        // Fixed header, topic's length, packet identifier and no properties take at most ten bytes.
        let bytes = payload.len() + topic.len() + 10;
        if bytes > self.send_bytes_max {
            return Err(ClientError::TooLarge { bytes, max: self.send_bytes_max });
        }
        if self.outbox.len() > SEND_BUFFER_BYTES_MAX {
            self.make_room()?;
        }
        let packet_id = if qos1 { self.new_id() } else { 0 };
        let parts = PublishParts {
            dup: false,
            qos: if qos1 { QoS::AtLeastOnce } else { QoS::AtMostOnce },
            retain,
            topic,
            packet_id: qos1.then_some(packet_id),
            payload,
            properties: &Properties::new(),
        };
        mqtt::encode_publish(&parts, self.version, &mut self.outbox).map_err(|error| self.codec(error))?;
        if qos1 {
            if self.in_flight.is_empty() {
                self.in_flight_since = Instant::now();
            }
            self.in_flight.insert(packet_id);
        }
        Ok(packet_id)
    }

    /// Subscribes with QoS 1; returns the packet identifier, which [`Event::Subscribed`] repeats.
    pub fn subscribe(&mut self, filter: &str) -> Result<u16, ClientError> {
        if self.subscribing.len() >= usize::from(SUBSCRIBING_MAX) {
            return Err(ClientError::WindowFull(SUBSCRIBING_MAX));
        }
        let packet_id = self.new_id();
        let filters = vec![Subscription::new(filter, QoS::AtLeastOnce)];
        self.put(&Packet::Subscribe(Subscribe { packet_id, filters, properties: Properties::new() }))?;
        self.subscribing.insert(packet_id);
        Ok(packet_id)
    }

    /// Writes the send buffer to the socket, with one call for all messages since the last one. [`Client::poll`] does so too.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        match self.link.drain(&mut self.outbox) {
            Ok(progress) => {
                let now = Instant::now();
                if progress {
                    self.last_sent = now;
                    self.stalled = None;
                }
                if !self.link.wants_write(&self.outbox) {
                    self.stalled = None;
                } else if now - *self.stalled.get_or_insert(now) > self.send_timeout {
                    let (peer, after) = (self.link.peer, self.send_timeout);
                    return Err(ClientError::Timeout { peer, what: "take what was sent", after });
                }
                Ok(())
            }
            Err(error) => Err(self.io(error)),
        }
    }

    /// Waits for an event until the timeout; sends buffered bytes and pings meanwhile.
    pub fn poll(&mut self, wait: Duration) -> Result<Option<Event>, ClientError> {
        self.poll_until(wait, None)
    }

    /// As [`Client::poll`]; also returns `None` when `wake` (an eventfd or a pipe, which the caller reads) becomes readable.
    pub fn poll_or_wake(&mut self, wait: Duration, wake: BorrowedFd<'_>) -> Result<Option<Event>, ClientError> {
        self.poll_until(wait, Some(wake))
    }

    fn poll_until(&mut self, wait: Duration, wake: Option<BorrowedFd<'_>>) -> Result<Option<Event>, ClientError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let deadline = Instant::now() + wait;
        loop {
            self.pump();
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            let now = Instant::now();
            let Some(alarm) = self.keep_alive(now)? else { continue };
            if now >= deadline {
                return Ok(None);
            }
            let write = self.link.wants_write(&self.outbox);
            let mut until = deadline.min(alarm);
            if let Some(stalled) = self.stalled {
                until = until.min(stalled + self.send_timeout + Duration::from_millis(1));
            }
            match self.link.wait(until.saturating_duration_since(now), write, wake) {
                Ok(true) => return Ok(None),
                Ok(false) => {}
                Err(error) => return Err(self.io(error)),
            }
        }
    }

    /// Waits until the send buffer is half empty; events are kept for later.
    fn make_room(&mut self) -> Result<(), ClientError> {
        loop {
            self.pump();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.outbox.len() <= SEND_BUFFER_BYTES_MAX / 2 {
                return Ok(());
            }
            let step = self.send_timeout.min(Duration::from_secs(1));
            if let Err(error) = self.link.wait(step, true, None) {
                return Err(self.io(error));
            }
        }
    }

    /// Sends and receives without waiting.
    fn pump(&mut self) {
        if self.failure.is_some() {
            return;
        }
        // Receiving comes first: the bytes may need a response, or have the reason why the connection ended.
        if let Err(error) = self.receive().and_then(|()| self.flush()) {
            self.failure = Some(error);
        }
    }

    fn receive(&mut self) -> Result<(), ClientError> {
        while self.events.len() < EVENTS_MAX {
            let transfer = match self.link.fill(&mut self.inbox) {
                Ok(transfer) => transfer,
                Err(error) => return Err(self.io(error)),
            };
            if transfer == Transfer::Bytes {
                self.last_received = Instant::now();
            }
            loop {
                match mqtt::decode(&mut self.inbox, Some(self.version), self.packet_bytes_max) {
                    Ok(Some(packet)) => self.take(packet)?,
                    Ok(None) => break,
                    Err(error) => return Err(self.codec(error)),
                }
            }
            match transfer {
                Transfer::Bytes => {}
                Transfer::WouldBlock => return Ok(()),
                Transfer::End => {
                    let problem = "without saying why".to_owned();
                    return Err(ClientError::Closed { peer: self.link.peer, problem });
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, packet: Packet) -> Result<(), ClientError> {
        match packet {
            Packet::Publish(publish) => return self.take_message(publish),
            Packet::PubAck(Ack { packet_id, reason, .. }) => {
                if self.in_flight.remove(&packet_id) {
                    self.events.push_back(Event::Acked { packet_id, reason });
                } else {
                    tracing::debug!(packet_id, "PUBACK for a message that is not in flight");
                }
            }
            Packet::SubAck(suback) => {
                let (packet_id, reason) = (suback.packet_id, suback.reasons.first().copied().unwrap_or_default());
                if self.subscribing.remove(&packet_id) {
                    self.events.push_back(Event::Subscribed { packet_id, reason });
                }
            }
            Packet::PingResp => self.ping_sent = None,
            Packet::Disconnect(disconnect) => {
                let mut problem = disconnect.reason.to_string();
                let properties = &disconnect.properties;
                for text in [properties.reason_string(), properties.server_reference()].into_iter().flatten() {
                    problem.push_str(": ");
                    problem.push_str(text);
                }
                return Err(ClientError::Closed { peer: self.link.peer, problem });
            }
            other => {
                let packet = other.packet_type().name();
                return Err(self.codec(CodecError::Protocol { packet, reason: "a server does not send it here" }));
            }
        }
        Ok(())
    }

    fn take_message(&mut self, publish: Publish) -> Result<(), ClientError> {
        let refuse = |reason| CodecError::Protocol { packet: "PUBLISH", reason };
        if publish.properties.topic_alias().is_some() {
            return Err(self.codec(refuse("a topic alias that was not allowed")));
        }
        match (publish.qos, publish.packet_id) {
            (QoS::AtMostOnce, _) => {}
            (QoS::AtLeastOnce, Some(packet_id)) => self.put(&Packet::PubAck(Ack::success(packet_id)))?,
            _ => return Err(self.codec(refuse("QoS 2 on a subscription of QoS 1"))),
        }
        let Publish { topic, payload, retain, .. } = publish;
        self.events.push_back(Event::Message { topic, payload, retain });
        Ok(())
    }

    /// Pings if nothing was sent or received for the keep-alive interval, or if messages are unanswered. Returns the time of the next check; `None`
    /// for at once.
    fn keep_alive(&mut self, now: Instant) -> Result<Option<Instant>, ClientError> {
        let keep_alive = Some(self.keep_alive).filter(|interval| !interval.is_zero());
        let answer = self.answer_timeout.map(|timeout| timeout * 2 / 3);
        if let (Some(sent), Some(after)) = (self.ping_sent, keep_alive.into_iter().chain(answer).min()) {
            // Any received packet shows that the server is alive: it may handle others before the ping.
            let limit = sent.max(self.last_received) + after;
            if now > limit {
                return Err(ClientError::Timeout { peer: self.link.peer, what: "answer a ping", after });
            }
            return Ok(Some(limit + Duration::from_millis(1)));
        }
        let silent = keep_alive.map(|interval| self.last_sent.min(self.last_received) + interval * 3 / 4);
        let unanswered = self
            .answer_timeout
            .filter(|_| !self.in_flight.is_empty())
            .map(|timeout| self.in_flight_since.max(self.last_received) + timeout / 3);
        let Some(due) = silent.into_iter().chain(unanswered).min() else {
            // Practically never.
            return Ok(Some(now + Duration::from_secs(3600)));
        };
        if now < due {
            return Ok(Some(due));
        }
        self.put(&Packet::PingReq)?;
        self.ping_sent = Some(now);
        Ok(None)
    }

    /// Changes [`ClientConfig::answer_timeout`] of this connection.
    pub fn set_answer_timeout(&mut self, timeout: Option<Duration>) {
        self.answer_timeout = timeout;
    }

    /// The most unacknowledged QoS 1 messages in flight: the server's Receive Maximum, at most 32,768, or [`RECEIVE_MAX_V311`].
    pub fn receive_max(&self) -> u16 {
        self.receive_max
    }

    /// The number of unacknowledged messages.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Buffered bytes that the system has not taken.
    pub fn unsent_bytes(&self) -> usize {
        self.outbox.len()
    }

    /// The address of the server.
    pub fn peer(&self) -> SocketAddr {
        self.link.peer
    }

    /// Sends buffered bytes and DISCONNECT, and closes. Waits at most for the send timeout.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        self.put(&Packet::Disconnect(Disconnect::default()))?;
        loop {
            self.flush()?;
            if !self.link.wants_write(&self.outbox) {
                self.link.close();
                return Ok(());
            }
            if let Err(error) = self.link.wait(self.send_timeout, true, None) {
                return Err(self.io(error));
            }
        }
    }

    fn put(&mut self, packet: &Packet) -> Result<(), ClientError> {
        mqtt::encode(packet, self.version, &mut self.outbox).map_err(|error| self.codec(error))
    }

    /// The next free packet identifier. One always exists: see [`IN_FLIGHT_MAX`] and [`SUBSCRIBING_MAX`].
    fn new_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.in_flight.contains(&self.last_id) && !self.subscribing.contains(&self.last_id) {
                return self.last_id;
            }
        }
    }

    fn io(&self, error: io::Error) -> ClientError {
        ClientError::Io { peer: self.link.peer, error }
    }

    fn codec(&self, error: CodecError) -> ClientError {
        ClientError::Codec { peer: self.link.peer, error }
    }
}

fn keep_alive_s(keep_alive: Duration) -> u16 {
    let seconds = keep_alive.as_secs() + u64::from(keep_alive.subsec_nanos() > 0);
    seconds.min(u64::from(u16::MAX)) as u16
}

fn connect_packet(config: &ClientConfig) -> Packet {
    let mut connect = Connect::new(config.version, config.client_id.as_str(), keep_alive_s(config.keep_alive));
    connect.user = config.user.as_deref().map(Into::into);
    connect.password = config.password.as_ref().map(|password| Bytes::copy_from_slice(password.as_bytes()));
    if config.version == Version::V5 {
        let bytes = u32::try_from(config.packet_bytes_max).unwrap_or(u32::MAX);
        connect.properties = Properties::new().with(Property::MaximumPacketSize(bytes.max(1)));
    }
    Packet::Connect(Box::new(connect))
}

/// A hint for a server that closes the connection without a response.
const CLOSED_HINT: &str =
    "; does it speak this version of MQTT, and TLS or not as configured? Does it want a client certificate?";

/// A failure with a hint for the usual causes.
fn explain(error: &io::Error) -> String {
    let text = error.to_string();
    let hint = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "; give the authority that issued the server's certificate, and a host name that the certificate has"
        }
        Some(rustls::Error::AlertReceived(_)) => {
            "; the server refused this side: does it want a client certificate, of which authority?"
        }
        Some(rustls::Error::InvalidMessage(_)) => "; the server does not seem to speak TLS on this port",
        _ if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => CLOSED_HINT,
        _ => "",
    };
    format!("{text}{hint}")
}
