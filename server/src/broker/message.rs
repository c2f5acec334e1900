//! Published messages, and their deliveries to subscribers.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use wholegrain_transport::mqtt::{Properties, Property, QoS, Text};

/// The fixed size that one property counts, in bytes.
const PROPERTY_BYTES: usize = 64;
/// The fixed size that one message counts, in bytes.
const MESSAGE_BYTES: usize = 128;

/// A publish on its way to subscribers. It borrows everything: nothing is copied unless a subscriber needs it.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    pub topic: &'a str,
    pub payload: &'a Bytes,
    pub qos: QoS,
    /// Whether it is retained for later subscribers.
    pub retain: bool,
    pub properties: &'a Properties,
    pub at: Instant,
}

impl Publication<'_> {
    /// Its size as a message, in bytes.
    pub fn size(&self) -> usize {
        let extra: usize = self.properties.0.iter().filter(|property| is_forwarded(property)).map(property_bytes).sum();
        MESSAGE_BYTES + self.topic.len() + self.payload.len() + extra
    }

    /// An owned message; only its payload may point into a receive buffer.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: Text,
    pub payload: Bytes,
    pub qos: QoS,
    pub retain: bool,
    /// The properties that subscribers receive, without the expiry.
    pub properties: Properties,
    /// Expiry interval, in seconds from `at`.
    pub expiry_s: Option<u32>,
    pub at: Instant,
    size: usize,
}

impl Message {
    /// Its size in a queue, in bytes. Subscribers share a message, but each counts the whole size.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The same message with another payload.
    pub fn with_payload(&self, payload: Bytes) -> Self {
        Self { size: self.size - self.payload.len() + payload.len(), payload, ..self.clone() }
    }

    /// Seconds until expiry, 0 if expired; `None` if it does not expire.
    pub fn left_s(&self, now: Instant) -> Option<u32> {
        let waited_s = now.saturating_duration_since(self.at).as_secs();
        self.expiry_s.map(|expiry_s| u64::from(expiry_s).saturating_sub(waited_s) as u32)
    }

    /// Whether its expiry interval is over.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.left_s(now) == Some(0)
    }
}

/// A message for one subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub message: Arc<Message>,
    /// The maximum QoS of the delivery.
    pub qos: QoS,
    /// The retain flag that the subscriber sees.
    pub retain: bool,
    /// Identifiers of the matching subscriptions.
    pub ids: Box<[u32]>,
    /// The shared subscription that matched, as `$share/group/filter`.
    pub group: Option<Arc<str>>,
}

/// A copy of the properties that subscribers receive.
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

/// The options of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    /// Excludes the client's own publishes (MQTT 5).
    pub no_local: bool,
    /// Keeps retain flags as published (MQTT 5).
    pub retain_as_published: bool,
    /// 0 for none (MQTT 5).
    pub id: u32,
}

impl SubscriptionOptions {
    /// The identifier, if there is one.
    pub fn ids(&self) -> Box<[u32]> {
        if self.id == 0 { Box::default() } else { Box::new([self.id]) }
    }
}
