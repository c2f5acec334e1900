//! Properties of MQTT 5.0 (2.2.2).

use bytes::Bytes;

use super::Text;
use super::error::TOPIC_ALIAS_ZERO;
use super::topic::valid_topic;

/// The encoding of a property's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Flag,
    U16,
    U32,
    VarInt,
    Text,
    Binary,
    Pair,
}

/// The packets in which a property is allowed, as bits.
pub(super) mod place {
    pub(in crate::mqtt) const CONNECT: u16 = 1;
    pub(in crate::mqtt) const WILL: u16 = 1 << 1;
    pub(in crate::mqtt) const CONNACK: u16 = 1 << 2;
    pub(in crate::mqtt) const PUBLISH: u16 = 1 << 3;
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK allow the same.
    pub(in crate::mqtt) const ACK: u16 = 1 << 4;
    pub(in crate::mqtt) const SUBSCRIBE: u16 = 1 << 5;
    pub(in crate::mqtt) const UNSUBSCRIBE: u16 = 1 << 6;
    pub(in crate::mqtt) const DISCONNECT: u16 = 1 << 7;
    pub(in crate::mqtt) const AUTH: u16 = 1 << 8;
    pub(in crate::mqtt) const ANY: u16 = u16::MAX;
}

macro_rules! value_type {
    (Flag) => {
        bool
    };
    (U16) => {
        u16
    };
    (U32) => {
        u32
    };
    (VarInt) => {
        u32
    };
    (Text) => {
        Text
    };
    (Binary) => {
        Bytes
    };
}

macro_rules! properties {
    ($($id:literal $name:ident $get:ident: $form:ident in $($place:ident)|+, $doc:literal;)*) => {
        /// A property of a packet, with its value.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Property {
            $(#[doc = $doc] $name(value_type!($form)),)*
            /// A name and a value of the application; may occur more than once.
            UserProperty(Text, Text),
        }

        impl Property {
            /// The identifier on the wire.
            pub fn id(&self) -> u8 {
                match self {
                    $(Property::$name(_) => $id,)*
                    Property::UserProperty(..) => 0x26,
                }
            }
        }

        /// The form of the property `id`, and the packets that allow it.
        pub(super) fn describe(id: u8) -> Option<(Form, u16)> {
            match id {
                $($id => Some((Form::$form, $(place::$place)|+)),)*
                0x26 => Some((Form::Pair, place::ANY)),
                _ => None,
            }
        }

        impl Properties {
            $(#[doc = $doc]
            /// `None` if the packet does not have the property.
            pub fn $get(&self) -> Option<&value_type!($form)> {
                self.0.iter().find_map(|property| match property {
                    Property::$name(value) => Some(value),
                    _ => None,
                })
            })*
        }

        /// The property `id` with a decoded value; `None` if the value has another form.
        pub(super) fn make(id: u8, value: Value) -> Option<Property> {
            match (id, value) {
                $(($id, Value::$form(value)) => Some(Property::$name(value)),)*
                (0x26, Value::Pair(name, value)) => Some(Property::UserProperty(name, value)),
                _ => None,
            }
        }

        /// The value for encoding.
        pub(super) fn value(property: &Property) -> Value {
            match property {
                $(Property::$name(value) => Value::$form(value.clone()),)*
                Property::UserProperty(name, value) => Value::Pair(name.clone(), value.clone()),
            }
        }
    };
}

/// A value of one of the forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Flag(bool),
    U16(u16),
    U32(u32),
    VarInt(u32),
    Text(Text),
    Binary(Bytes),
    Pair(Text, Text),
}

properties! {
    0x01 PayloadFormatIndicator payload_format_indicator: Flag in WILL | PUBLISH, "Whether the payload is UTF-8 text.";
    0x02 MessageExpiryInterval message_expiry_interval: U32 in WILL | PUBLISH, "Lifetime of the message, s.";
    0x03 ContentType content_type: Text in WILL | PUBLISH, "What the payload is.";
    0x08 ResponseTopic response_topic: Text in WILL | PUBLISH, "Topic for a response.";
    0x09 CorrelationData correlation_data: Binary in WILL | PUBLISH, "Identifies the request of a response.";
    0x0b SubscriptionIdentifier subscription_identifier: VarInt in PUBLISH | SUBSCRIBE, "Number of the subscription, not 0; in PUBLISH possibly more than one.";
    0x11 SessionExpiryInterval session_expiry_interval: U32 in CONNECT | CONNACK | DISCONNECT, "Lifetime of the session after the connection, s.";
    0x12 AssignedClientIdentifier assigned_client_identifier: Text in CONNACK, "The name that the server gave the client.";
    0x13 ServerKeepAlive server_keep_alive: U16 in CONNACK, "The keep-alive that counts instead of the client's, s.";
    0x15 AuthenticationMethod authentication_method: Text in CONNECT | CONNACK | AUTH, "Method of extended authentication.";
    0x16 AuthenticationData authentication_data: Binary in CONNECT | CONNACK | AUTH, "Its data; only beside a method.";
    0x17 RequestProblemInformation request_problem_information: Flag in CONNECT, "Whether reasons in words are welcome.";
    0x18 WillDelayInterval will_delay_interval: U32 in WILL, "How long the will waits, s.";
    0x19 RequestResponseInformation request_response_information: Flag in CONNECT, "Whether response information is requested.";
    0x1a ResponseInformation response_information: Text in CONNACK, "What to build response topics from.";
    0x1c ServerReference server_reference: Text in CONNACK | DISCONNECT, "Another server to use.";
    0x1f ReasonString reason_string: Text in CONNACK | ACK | DISCONNECT | AUTH, "The reason in words.";
    0x21 ReceiveMaximum receive_maximum: U16 in CONNECT | CONNACK, "How many unacknowledged messages the sender of this takes; not 0.";
    0x22 TopicAliasMaximum topic_alias_maximum: U16 in CONNECT | CONNACK, "The highest topic alias that the sender of this takes.";
    0x23 TopicAlias topic_alias: U16 in PUBLISH, "A number in place of the topic; not 0.";
    0x24 MaximumQoS maximum_qos: Flag in CONNACK, "The highest quality of service that the server takes, when it is below 2.";
    0x25 RetainAvailable retain_available: Flag in CONNACK, "Whether the server keeps retained messages.";
    0x27 MaximumPacketSize maximum_packet_size: U32 in CONNECT | CONNACK, "The largest packet that the sender of this takes, bytes; not 0.";
    0x28 WildcardSubscriptionAvailable wildcard_subscription_available: Flag in CONNACK, "Whether the server knows wildcards.";
    0x29 SubscriptionIdentifierAvailable subscription_identifier_available: Flag in CONNACK, "Whether the server knows subscription identifiers.";
    0x2a SharedSubscriptionAvailable shared_subscription_available: Flag in CONNACK, "Whether the server knows shared subscriptions.";
}

/// The properties of a packet, in their order. An empty list takes no memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties(pub Vec<Property>);

impl Properties {
    /// A list without properties.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The list with another property.
    pub fn with(mut self, property: Property) -> Self {
        self.0.push(property);
        self
    }
}

/// Why a property's value, or its combination with others, is forbidden. Decoder and encoder use the same check.
pub(super) fn check(properties: &[Property], at: u16) -> Result<(), &'static str> {
    let mut seen = 0u64;
    for property in properties {
        let id = property.id();
        match describe(id) {
            Some((_, places)) if places & at != 0 => {}
            _ => return Err("property that this packet does not take"),
        }
        let repeats = id == 0x26 || id == 0x0b && at == place::PUBLISH;
        if seen >> id & 1 == 1 && !repeats {
            return Err("property given twice");
        }
        seen |= 1 << id;
        match property {
            Property::SubscriptionIdentifier(0) => return Err("subscription identifier is 0"),
            Property::ReceiveMaximum(0) => return Err("receive maximum is 0"),
            Property::TopicAlias(0) => return Err(TOPIC_ALIAS_ZERO),
            Property::MaximumPacketSize(0) => return Err("maximum packet size is 0"),
            Property::ResponseTopic(topic) if !valid_topic(topic) => {
                return Err("response topic is not a topic");
            }
            _ => {}
        }
    }
    if seen >> 0x16 & 1 == 1 && seen >> 0x15 & 1 == 0 {
        return Err("authentication data without a method");
    }
    Ok(())
}
