//! What is published, and what of it goes to one subscriber.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use wholegrain_transport::mqtt::{Properties, Property, QoS, Text};

/// What one property counts beside its texts, in bytes.
const PROPERTY_BYTES: usize = 64;
/// What a message counts beside its texts and its payload, in bytes.
const MESSAGE_BYTES: usize = 128;

/// A publish on its way to subscribers, everything borrowed: nothing is copied before somebody wants it.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    /// Where.
    pub topic: &'a str,
    /// What.
    pub payload: &'a Bytes,
    /// How surely it was published.
    pub qos: QoS,
    /// Whether it is for later subscribers too.
    pub retain: bool,
    /// As they were published.
    pub properties: &'a Properties,
    /// When it came.
    pub at: Instant,
}

impl Publication<'_> {
    /// What it counts as a message, in bytes.
    pub fn size(&self) -> usize {
        let extra: usize = self.properties.0.iter().filter(|property| is_forwarded(property)).map(property_bytes).sum();
        MESSAGE_BYTES + self.topic.len() + self.payload.len() + extra
    }

    /// A message of its own, which points into no receive buffer except with its payload.
    pub fn to_message(&self) -> Message {
        let properties = forwarded(self.properties);
        Message {
            topic: Text::from(self.topic),
            payload: self.payload.clone(),
            qos: self.qos,
            retain: self.retain,
            size: self.size(),
            properties,
            expiry_s: self.properties.message_expiry_interval().copied(),
            at: self.at,
        }
    }
}

/// A message that waits for subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published.
    pub topic: Text,
    /// What.
    pub payload: Bytes,
    /// How surely it was published.
    pub qos: QoS,
    /// Whether it was published as a retained one.
    pub retain: bool,
    /// What the publisher says about it and subscribers hear, the expiry not among them.
    pub properties: Properties,
    /// How long it is worth something, in seconds from `at`.
    pub expiry_s: Option<u32>,
    /// When it came.
    pub at: Instant,
    size: usize,
}

impl Message {
    /// What it counts in a queue, in bytes. Shared between subscribers; each counts it whole.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The same with another payload.
    pub fn with_payload(&self, payload: Bytes) -> Self {
        Self { size: self.size - self.payload.len() + payload.len(), payload, ..self.clone() }
    }

    /// Seconds that are left of its expiry, 0 when it is over; `None` when it does not expire.
    pub fn left_s(&self, now: Instant) -> Option<u32> {
        let waited_s = now.saturating_duration_since(self.at).as_secs();
        self.expiry_s.map(|expiry_s| u64::from(expiry_s).saturating_sub(waited_s) as u32)
    }

    /// Whether nobody shall get it any more.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.left_s(now) == Some(0)
    }
}

/// A message for one subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What.
    pub message: Arc<Message>,
    /// How surely, at most.
    pub qos: QoS,
    /// The retain flag that the subscriber sees.
    pub retain: bool,
    /// Identifiers of the subscriptions that it is delivered for.
    pub ids: Box<[u32]>,
    /// The shared subscription that it came by, as `$share/group/filter`.
    pub group: Option<Arc<str>>,
}

/// The properties that subscribers hear, copied.
pub fn forwarded(properties: &Properties) -> Properties {
    let copy = |text: &Text| Text::from(text.as_str());
    let kept = properties.0.iter().filter_map(|property| match property {
        Property::PayloadFormatIndicator(flag) => Some(Property::PayloadFormatIndicator(*flag)),
        Property::ContentType(text) => Some(Property::ContentType(copy(text))),
        Property::ResponseTopic(text) => Some(Property::ResponseTopic(copy(text))),
        Property::CorrelationData(data) => Some(Property::CorrelationData(Bytes::copy_from_slice(data))),
        Property::UserProperty(name, value) => Some(Property::UserProperty(copy(name), copy(value))),
        _ => None,
    });
    if properties.is_empty() { Properties::new() } else { Properties(kept.collect()) }
}

fn is_forwarded(property: &Property) -> bool {
    matches!(
        property,
        Property::PayloadFormatIndicator(_)
            | Property::ContentType(_)
            | Property::ResponseTopic(_)
            | Property::CorrelationData(_)
            | Property::UserProperty(..)
    )
}

fn property_bytes(property: &Property) -> usize {
    PROPERTY_BYTES
        + match property {
            Property::ContentType(text) | Property::ResponseTopic(text) => text.len(),
            Property::CorrelationData(data) => data.len(),
            Property::UserProperty(name, value) => name.len() + value.len(),
            _ => 0,
        }
}
