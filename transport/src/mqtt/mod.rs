//! MQTT 3.1.1 and 5.0 as bytes: every packet, every property, no I/O.
//!
//! - In: bytes of a socket ([`decode`]); packets to be sent ([`encode`]).
//! - Out: packets whose text and payload point into the received bytes; bytes.
//! - Never: a socket, a clock, session state. The decoder checks every rule of the specification that concerns a single packet; the caller checks
//!   the rules that need the connection's history (order of packets, quota, aliases in use).
//!
//! Specifications: OASIS MQTT Version 3.1.1 (2014) and MQTT Version 5.0 (2019); section numbers in comments are of 5.0.

mod decode;
mod encode;
mod error;
mod limits;
mod packet;
mod packet_type;
mod properties;
mod reason;
mod text;
mod topic;

pub use decode::decode;
pub use encode::{PublishParts, encode, encode_publish};
pub use error::CodecError;
pub use limits::{FIELD_BYTES_MAX, FILTERS_MAX, PROPERTIES_MAX, REMAINING_LENGTH_MAX};
pub use packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, Publish, QoS, RetainHandling, SubAck, Subscribe, Subscription,
    UnsubAck, Unsubscribe, Version, Will,
};
pub use packet_type::PacketType;
pub use properties::{Properties, Property};
pub use reason::ReasonCode;
pub use text::Text;
pub use topic::{Shared, shared, topic_matches, valid_filter, valid_topic};
