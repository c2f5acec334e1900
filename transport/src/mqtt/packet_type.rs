//! Packet types (2.1.2).

/// A packet's type: its number in the fixed header (2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// From the fixed header's upper four bits; `None` for 0, which is reserved, and above 15.
    pub fn from_number(number: u8) -> Option<Self> {
        use PacketType::*;
        const ALL: [PacketType; 15] = [
            Connect,
            ConnAck,
            Publish,
            PubAck,
            PubRec,
            PubRel,
            PubComp,
            Subscribe,
            SubAck,
            Unsubscribe,
            UnsubAck,
            PingReq,
            PingResp,
            Disconnect,
            Auth,
        ];
        ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }

    /// The specification's name, in capitals.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 15] = [
            "CONNECT",
            "CONNACK",
            "PUBLISH",
            "PUBACK",
            "PUBREC",
            "PUBREL",
            "PUBCOMP",
            "SUBSCRIBE",
            "SUBACK",
            "UNSUBSCRIBE",
            "UNSUBACK",
            "PINGREQ",
            "PINGRESP",
            "DISCONNECT",
            "AUTH",
        ];
        NAMES[self as usize - 1]
    }
}
