//! Retained messages: the newest of each topic, for subscribers to come.
//!
//! Of an agent's schema only the hash is kept: the store has it, its sensors shared by all agents that have the same, and the bytes are made anew
//! for who asks. As messages the schemas of ten thousand agents took more memory than all the rest of their connections.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt;

use super::message::{Message, Publication};

/// The most retained messages.
pub const RETAINED_MAX: usize = 65_536;
/// The most bytes of retained messages, topics included; payloads of schemas, which are not kept here, are not.
pub const RETAINED_BYTES_MAX: usize = 256 << 20;

/// Gives the bytes of a schema as its agent sent them; `None` when it is known no longer.
type Encoded = dyn Fn(&SchemaHash) -> Option<Bytes> + Send + Sync;

/// Who has the schemas.
pub struct Schemas(pub Box<Encoded>);

impl fmt::Debug for Schemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schemas")
    }
}

/// One retained message.
#[derive(Debug, Clone)]
pub struct Kept {
    message: Arc<Message>,
    /// Its payload is this schema's, and empty here.
    schema: Option<SchemaHash>,
}

impl Kept {
    /// The whole message; `None` when its schema is known no longer.
    pub fn whole(self, schemas: &Schemas) -> Option<Arc<Message>> {
        let Some(hash) = self.schema else { return Some(self.message) };
        Some(Arc::new(self.message.with_payload(schemas.0(&hash)?)))
    }

    /// Whether its payload has to be made.
    pub fn is_schema(&self) -> bool {
        self.schema.is_some()
    }

    /// Whether nobody shall get it any more.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.message.is_expired(now)
    }

    /// Where it was published.
    pub fn topic(&self) -> &str {
        &self.message.topic
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Retained {
    by_topic: HashMap<Arc<str>, Kept>,
    bytes: usize,
}

impl Retained {
    /// Keeps a topic's newest message, which is this schema's if there is one; an empty one takes it away. False when there is no room for it.
    pub fn put(&mut self, publication: &Publication<'_>, schema: Option<SchemaHash>) -> bool {
        if let Some(old) = self.by_topic.remove(publication.topic) {
            self.bytes -= old.message.size();
        }
        if publication.payload.is_empty() {
            return true;
        }
        // A copy: the payload may be a slice of a receive buffer, which it would keep alive.
        let payload = if schema.is_some() { Bytes::new() } else { Bytes::copy_from_slice(publication.payload) };
        let message = Publication { payload: &payload, ..*publication }.to_message();
        if self.by_topic.len() >= RETAINED_MAX || self.bytes + message.size() > RETAINED_BYTES_MAX {
            return false;
        }
        self.bytes += message.size();
        self.by_topic.insert(publication.topic.into(), Kept { message: Arc::new(message), schema });
        true
    }

    /// Those whose topics a filter matches.
    pub fn matching(&self, filter: &str) -> Vec<Kept> {
        if filter.contains(['+', '#']) {
            let all = self.by_topic.values();
            all.filter(|kept| mqtt::topic_matches(filter, kept.topic())).cloned().collect()
        } else {
            self.by_topic.get(filter).cloned().into_iter().collect()
        }
    }

    /// Whether any has expired.
    pub fn has_expired(&self, now: Instant) -> bool {
        self.by_topic.values().any(|kept| kept.is_expired(now))
    }

    /// Forgets those that have expired; how many.
    pub fn purge(&mut self, now: Instant) -> usize {
        let (before, mut bytes) = (self.by_topic.len(), 0);
        self.by_topic.retain(|_, kept| {
            let gone = kept.is_expired(now);
            bytes += if gone { kept.message.size() } else { 0 };
            !gone
        });
        self.bytes -= bytes;
        before - self.by_topic.len()
    }

    /// Bytes of payloads that are in memory here.
    #[cfg(test)]
    pub fn payload_bytes(&self) -> usize {
        self.by_topic.values().map(|kept| kept.message.payload.len()).sum()
    }

    /// Whether the count of bytes is that of the messages.
    #[cfg(test)]
    pub fn is_counted_right(&self) -> bool {
        self.bytes == self.by_topic.values().map(|kept| kept.message.size()).sum::<usize>()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_topic.len()
    }
}
