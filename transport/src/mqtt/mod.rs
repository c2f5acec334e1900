//! MQTT 3.1.1 and 5.0 as bytes: every packet, every property, no I/O.
//!
//! - In: bytes as a socket gave them ([`decode`]); packets to be sent ([`encode`]).
//! - Out: packets whose text and payload point into the received bytes; bytes.
//! - Never: a socket, a clock, session state. What the specification lets a receiver check in one packet is checked;
//!   what needs the connection's history (order of packets, quota, aliases in use) is the caller's.
//!
//! Specifications: OASIS MQTT Version 3.1.1 (2014) and MQTT Version 5.0 (2019); section numbers in comments are of 5.0.

mod decode;
mod encode;
mod properties;
mod reason;
mod topic;
mod types;

pub use decode::decode;
pub use encode::{PublishParts, encode, encode_publish};
pub use properties::{Properties, Property};
pub use reason::ReasonCode;
pub use topic::{Shared, shared, topic_matches, valid_filter, valid_topic};
pub use types::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketType, Publish, QoS, RetainHandling, SubAck, Subscribe,
    Subscription, Text, UnsubAck, Unsubscribe, Version, Will,
};

/// The largest remaining length that four bytes can say.
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;
/// The longest text or binary field, in bytes.
pub const FIELD_BYTES_MAX: usize = 65_535;
/// The most properties of one packet, or of its will. Two bytes can say one, which occupies more than thirty times as much memory.
pub const PROPERTIES_MAX: usize = 1024;
/// The most topic filters of one SUBSCRIBE or UNSUBSCRIBE, for the same reason.
pub const FILTERS_MAX: usize = 16_384;

/// The one broken rule of a packet that has a reason code of its own.
const TOPIC_ALIAS_ZERO: &str = "topic alias is 0";

/// Why bytes were refused as a packet, or a packet cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes break the specification.
    #[error("malformed MQTT {packet} packet: {reason}")]
    Malformed {
        /// The packet's type, or `fixed header`.
        packet: &'static str,
        reason: &'static str,
    },
    /// The packet can be read, but the specification forbids it.
    #[error("MQTT protocol error in {packet} packet: {reason}")]
    Protocol { packet: &'static str, reason: &'static str },
    /// Larger than the receiver takes.
    #[error("MQTT packet of {bytes} bytes, at most {max} taken; raise the limit or send smaller batches")]
    TooLarge {
        /// The whole packet's length.
        bytes: usize,
        max: usize,
    },
    /// More of something than is taken in one packet.
    #[error("MQTT {packet} packet with over {max} {what}; send them in several packets")]
    TooMany { packet: &'static str, what: &'static str, max: usize },
    /// CONNECT asks for a protocol that is neither MQTT 3.1.1 nor 5.0.
    #[error("MQTT protocol level {level} is not known; use 3.1.1 (level 4) or 5.0 (level 5)")]
    UnsupportedVersion {
        /// The level asked for.
        level: u8,
    },
    /// The first packet is not CONNECT.
    #[error("the first MQTT packet is {0}, not CONNECT")]
    ExpectedConnect(&'static str),
    /// A packet to be written breaks the specification.
    #[error("cannot write MQTT {packet} packet: {reason}")]
    Unencodable { packet: &'static str, reason: &'static str },
}

impl CodecError {
    /// What to tell the other side in DISCONNECT or CONNACK.
    pub fn reason_code(&self) -> ReasonCode {
        match self {
            CodecError::Malformed { .. } => ReasonCode::MALFORMED_PACKET,
            CodecError::Protocol { reason: TOPIC_ALIAS_ZERO, .. } => ReasonCode::TOPIC_ALIAS_INVALID,
            CodecError::TooLarge { .. } => ReasonCode::PACKET_TOO_LARGE,
            CodecError::TooMany { .. } => ReasonCode::QUOTA_EXCEEDED,
            CodecError::UnsupportedVersion { .. } => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
            CodecError::Protocol { .. } | CodecError::ExpectedConnect(_) => ReasonCode::PROTOCOL_ERROR,
            CodecError::Unencodable { .. } => ReasonCode::IMPLEMENTATION_ERROR,
        }
    }
}
