//! Errors of decoding and encoding packets, and their reason codes.

use super::reason::ReasonCode;

/// The only violation with its own reason code.
pub(super) const TOPIC_ALIAS_ZERO: &str = "topic alias is 0";

/// Why bytes were refused as a packet, or a packet cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes violate the specification.
    #[error("malformed MQTT {packet} packet: {reason}")]
    Malformed {
        /// The packet's type, or `fixed header`.
        packet: &'static str,
        reason: &'static str,
    },
    /// The packet can be read, but the specification forbids it.
    #[error("MQTT protocol error in {packet} packet: {reason}")]
    Protocol { packet: &'static str, reason: &'static str },
    /// Larger than the receiver accepts.
    #[error("MQTT packet of {bytes} bytes, at most {max} taken; raise the limit or send smaller batches")]
    TooLarge {
        /// The whole packet's length.
        bytes: usize,
        max: usize,
    },
    /// More elements than one packet may have.
    #[error("MQTT {packet} packet with over {max} {what}; send them in several packets")]
    TooMany { packet: &'static str, what: &'static str, max: usize },
    /// CONNECT requests a protocol that is neither MQTT 3.1.1 nor 5.0.
    #[error("MQTT protocol level {level} is not known; use 3.1.1 (level 4) or 5.0 (level 5)")]
    UnsupportedVersion {
        /// The requested protocol level.
        level: u8,
    },
    /// The first packet is not CONNECT.
    #[error("the first MQTT packet is {0}, not CONNECT")]
    ExpectedConnect(&'static str),
    /// A packet for encoding violates the specification.
    #[error("cannot write MQTT {packet} packet: {reason}")]
    Unencodable { packet: &'static str, reason: &'static str },
}

impl CodecError {
    /// The reason code for DISCONNECT or CONNACK.
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
