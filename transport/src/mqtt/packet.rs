//! The control packets of MQTT 3.1.1 and 5.0.

use std::fmt;

use bytes::Bytes;

use super::{PacketType, Properties, ReasonCode, Text};

/// The protocol's version, which CONNECT fixes for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1, protocol level 4.
    V311,
    /// MQTT 5.0, protocol level 5.
    V5,
}

/// The quality of service of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// 0: at most once.
    AtMostOnce = 0,
    /// 1: at least once.
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl QoS {
    /// From its number; `None` for 3 and above.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            2 => Some(QoS::ExactlyOnce),
            _ => None,
        }
    }
}

/// A control packet of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    Connect(Box<Connect>),
    ConnAck(ConnAck),
    Publish(Publish),
    PubAck(Ack),
    PubRec(Ack),
    PubRel(Ack),
    PubComp(Ack),
    Subscribe(Subscribe),
    SubAck(SubAck),
    Unsubscribe(Unsubscribe),
    UnsubAck(UnsubAck),
    /// Requests a PINGRESP from the server.
    PingReq,
    /// The server's response to a PINGREQ.
    PingResp,
    Disconnect(Disconnect),
    Auth(Auth),
}

impl Packet {
    /// The type in the packet's fixed header.
    pub fn packet_type(&self) -> PacketType {
        match self {
            Packet::Connect(_) => PacketType::Connect,
            Packet::ConnAck(_) => PacketType::ConnAck,
            Packet::Publish(_) => PacketType::Publish,
            Packet::PubAck(_) => PacketType::PubAck,
            Packet::PubRec(_) => PacketType::PubRec,
            Packet::PubRel(_) => PacketType::PubRel,
            Packet::PubComp(_) => PacketType::PubComp,
            Packet::Subscribe(_) => PacketType::Subscribe,
            Packet::SubAck(_) => PacketType::SubAck,
            Packet::Unsubscribe(_) => PacketType::Unsubscribe,
            Packet::UnsubAck(_) => PacketType::UnsubAck,
            Packet::PingReq => PacketType::PingReq,
            Packet::PingResp => PacketType::PingResp,
            Packet::Disconnect(_) => PacketType::Disconnect,
            Packet::Auth(_) => PacketType::Auth,
        }
    }
}

/// CONNECT: a client opens a session (3.1).
#[derive(Clone, PartialEq, Eq)]
pub struct Connect {
    /// The version of the whole connection.
    pub version: Version,
    /// Begin without an existing session (3.1.1: clean session).
    pub clean_start: bool,
    /// The keep-alive interval of the client, s; 0 for none.
    pub keep_alive_s: u16,
    /// The client's name; if empty, the server assigns one.
    pub client_id: Text,
    /// Published by the server when the connection ends without DISCONNECT.
    pub will: Option<Will>,
    pub user: Option<Text>,
    pub password: Option<Bytes>,
    pub properties: Properties,
}

impl Connect {
    /// A clean start without will, user and password.
    pub fn new(version: Version, client_id: impl Into<Text>, keep_alive_s: u16) -> Self {
        Self {
            version,
            clean_start: true,
            keep_alive_s,
            client_id: client_id.into(),
            will: None,
            user: None,
            password: None,
            properties: Properties::default(),
        }
    }
}

impl fmt::Debug for Connect {
    /// Omits the password and the properties: secrets must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("version", &self.version)
            .field("clean_start", &self.clean_start)
            .field("keep_alive_s", &self.keep_alive_s)
            .field("client_id", &self.client_id)
            .field("will", &self.will)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .finish_non_exhaustive()
    }
}

/// The message that the server publishes when a client's connection ends without DISCONNECT (3.1.2.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Will {
    pub topic: Text,
    pub payload: Bytes,
    pub qos: QoS,
    /// Whether the server retains the message for later subscribers.
    pub retain: bool,
    pub properties: Properties,
}

/// CONNACK: the server accepts or refuses a client (3.2). A 3.1.1 return code is given as the reason code of the same meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnAck {
    /// Whether the server resumes an existing session.
    pub session_present: bool,
    /// Success, or the reason of the refusal.
    pub reason: ReasonCode,
    pub properties: Properties,
}

/// PUBLISH: a message (3.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    pub dup: bool,
    pub qos: QoS,
    /// To the server: retain this message. From the server: this message was retained.
    pub retain: bool,
    /// Empty only with a topic alias (5.0).
    pub topic: Text,
    /// Present exactly when `qos` is above 0; never 0.
    pub packet_id: Option<u16>,
    /// Shares the received bytes.
    pub payload: Bytes,
    pub properties: Properties,
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP: a step in the delivery of a message (3.4 to 3.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Of the PUBLISH; never 0.
    pub packet_id: u16,
    /// Always success in 3.1.1.
    pub reason: ReasonCode,
    pub properties: Properties,
}

impl Ack {
    /// An acknowledgement that reports success.
    pub fn success(packet_id: u16) -> Self {
        Self { packet_id, reason: ReasonCode::SUCCESS, properties: Properties::default() }
    }
}

/// SUBSCRIBE (3.8): a client requests messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    pub packet_id: u16,
    pub filters: Vec<Subscription>,
    pub properties: Properties,
}

/// One filter of a SUBSCRIBE with its options (3.8.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// A valid topic filter.
    pub filter: Text,
    /// The highest quality of service requested.
    pub qos: QoS,
    /// Do not send messages that this client published (5.0).
    pub no_local: bool,
    /// Send retain flags as they were published (5.0).
    pub retain_as_published: bool,
    /// When retained messages are sent (5.0).
    pub retain_handling: RetainHandling,
}

impl Subscription {
    /// The options of 3.1.1.
    pub fn new(filter: impl Into<Text>, qos: QoS) -> Self {
        let retain_handling = RetainHandling::Send;
        Self { filter: filter.into(), qos, no_local: false, retain_as_published: false, retain_handling }
    }
}

/// When retained messages are sent to a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RetainHandling {
    Send = 0,
    /// 1: when subscribing, if the subscription is new.
    SendIfNew = 1,
    /// 2: not when subscribing.
    DoNotSend = 2,
}

/// SUBACK (3.9): one reason code for each filter of the SUBSCRIBE. A refusal of 3.1.1 is `UNSPECIFIED_ERROR` (0x80).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubAck {
    /// Of the SUBSCRIBE; never 0.
    pub packet_id: u16,
    pub reasons: Vec<ReasonCode>,
    pub properties: Properties,
}

/// UNSUBSCRIBE (3.10): a client ends subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribe {
    pub packet_id: u16,
    /// At least one valid topic filter.
    pub filters: Vec<Text>,
    pub properties: Properties,
}

/// UNSUBACK (3.11): the server has ended the subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsubAck {
    /// Of the UNSUBSCRIBE; never 0.
    pub packet_id: u16,
    /// One for each filter; none in 3.1.1.
    pub reasons: Vec<ReasonCode>,
    pub properties: Properties,
}

/// DISCONNECT (3.14): either side ends the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disconnect {
    /// Always success (normal disconnection) in 3.1.1.
    pub reason: ReasonCode,
    pub properties: Properties,
}

/// AUTH (3.15): extended authentication of 5.0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// Success, continue or re-authenticate.
    pub reason: ReasonCode,
    /// The authentication method and its data.
    pub properties: Properties,
}
