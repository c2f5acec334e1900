//! Reason codes (2.4), and which packet may carry which.

use std::fmt;

use super::PacketType;

/// Success below 0x80, failure from 0x80 on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ReasonCode(pub u8);

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal, [$($packet:ident)*];)*) => {
        impl ReasonCode {
            $(#[doc = concat!($text, ".")] pub const $name: Self = Self($code);)*
        }

        fn describe(code: u8) -> Option<(&'static str, &'static [PacketType])> {
            match code {
                $($code => Some(($text, &[$(PacketType::$packet),*])),)*
                _ => None,
            }
        }
    };
}

reasons! {
    SUCCESS = 0x00, "success", [ConnAck PubAck PubRec PubRel PubComp SubAck UnsubAck Disconnect Auth];
    GRANTED_QOS_1 = 0x01, "granted QoS 1", [SubAck];
    GRANTED_QOS_2 = 0x02, "granted QoS 2", [SubAck];
    DISCONNECT_WITH_WILL = 0x04, "disconnect with will message", [Disconnect];
    NO_MATCHING_SUBSCRIBERS = 0x10, "no matching subscribers", [PubAck PubRec];
    NO_SUBSCRIPTION_EXISTED = 0x11, "no subscription existed", [UnsubAck];
    CONTINUE_AUTHENTICATION = 0x18, "continue authentication", [Auth];
    RE_AUTHENTICATE = 0x19, "re-authenticate", [Auth];
    UNSPECIFIED_ERROR = 0x80, "unspecified error", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    MALFORMED_PACKET = 0x81, "malformed packet", [ConnAck Disconnect];
    PROTOCOL_ERROR = 0x82, "protocol error", [ConnAck Disconnect];
    IMPLEMENTATION_ERROR = 0x83, "implementation specific error", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    UNSUPPORTED_PROTOCOL_VERSION = 0x84, "unsupported protocol version", [ConnAck];
    CLIENT_ID_NOT_VALID = 0x85, "client identifier not valid", [ConnAck];
    BAD_USER_OR_PASSWORD = 0x86, "bad user name or password", [ConnAck];
    NOT_AUTHORIZED = 0x87, "not authorized", [ConnAck PubAck PubRec SubAck UnsubAck Disconnect];
    SERVER_UNAVAILABLE = 0x88, "server unavailable", [ConnAck];
    SERVER_BUSY = 0x89, "server busy", [ConnAck Disconnect];
    BANNED = 0x8a, "banned", [ConnAck];
    SERVER_SHUTTING_DOWN = 0x8b, "server shutting down", [Disconnect];
    BAD_AUTHENTICATION_METHOD = 0x8c, "bad authentication method", [ConnAck Disconnect];
    KEEP_ALIVE_TIMEOUT = 0x8d, "keep alive timeout", [Disconnect];
    SESSION_TAKEN_OVER = 0x8e, "session taken over by another client of the same identifier", [Disconnect];
    TOPIC_FILTER_INVALID = 0x8f, "topic filter invalid", [SubAck UnsubAck Disconnect];
    TOPIC_NAME_INVALID = 0x90, "topic name invalid", [ConnAck PubAck PubRec Disconnect];
    PACKET_ID_IN_USE = 0x91, "packet identifier in use", [PubAck PubRec SubAck UnsubAck];
    PACKET_ID_NOT_FOUND = 0x92, "packet identifier not found", [PubRel PubComp];
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, "receive maximum exceeded", [Disconnect];
    TOPIC_ALIAS_INVALID = 0x94, "topic alias invalid", [Disconnect];
    PACKET_TOO_LARGE = 0x95, "packet too large", [ConnAck Disconnect];
    MESSAGE_RATE_TOO_HIGH = 0x96, "message rate too high", [Disconnect];
    QUOTA_EXCEEDED = 0x97, "quota exceeded", [ConnAck PubAck PubRec SubAck Disconnect];
    ADMINISTRATIVE_ACTION = 0x98, "administrative action", [Disconnect];
    PAYLOAD_FORMAT_INVALID = 0x99, "payload format invalid", [ConnAck PubAck PubRec Disconnect];
    RETAIN_NOT_SUPPORTED = 0x9a, "retain not supported", [ConnAck Disconnect];
    QOS_NOT_SUPPORTED = 0x9b, "QoS not supported", [ConnAck Disconnect];
    USE_ANOTHER_SERVER = 0x9c, "use another server", [ConnAck Disconnect];
    SERVER_MOVED = 0x9d, "server moved", [ConnAck Disconnect];
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9e, "shared subscriptions not supported", [SubAck Disconnect];
    CONNECTION_RATE_EXCEEDED = 0x9f, "connection rate exceeded", [ConnAck Disconnect];
    MAXIMUM_CONNECT_TIME = 0xa0, "maximum connect time", [Disconnect];
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xa1, "subscription identifiers not supported", [SubAck Disconnect];
    WILDCARDS_NOT_SUPPORTED = 0xa2, "wildcard subscriptions not supported", [SubAck Disconnect];
}

impl ReasonCode {
    /// Whether the code reports a failure.
    pub fn is_error(self) -> bool {
        self.0 >= 0x80
    }

    /// Whether a packet of this type may carry it.
    pub fn allowed_in(self, packet: PacketType) -> bool {
        describe(self.0).is_some_and(|(_, packets)| packets.contains(&packet))
    }

    /// The CONNACK return code of 3.1.1 with the same or the closest meaning.
    pub fn to_connack_v311(self) -> u8 {
        match self {
            Self::SUCCESS => 0,
            Self::UNSUPPORTED_PROTOCOL_VERSION => 1,
            Self::CLIENT_ID_NOT_VALID => 2,
            Self::BAD_USER_OR_PASSWORD => 4,
            Self::NOT_AUTHORIZED | Self::BANNED => 5,
            _ => 3,
        }
    }

    /// The reason of a 3.1.1 CONNACK's return code; `None` for the reserved codes.
    pub fn from_connack_v311(code: u8) -> Option<Self> {
        const CODES: [ReasonCode; 6] = [
            ReasonCode::SUCCESS,
            ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
            ReasonCode::CLIENT_ID_NOT_VALID,
            ReasonCode::SERVER_UNAVAILABLE,
            ReasonCode::BAD_USER_OR_PASSWORD,
            ReasonCode::NOT_AUTHORIZED,
        ];
        CODES.get(usize::from(code)).copied()
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match describe(self.0) {
            Some((text, _)) => f.write_str(text),
            None => write!(f, "reason 0x{:02x}", self.0),
        }
    }
}

impl fmt::Debug for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02x} {self}", self.0)
    }
}
