//! Retained messages: the newest of each topic, for later subscribers.
//!
//! They are sorted by topic. A filter is answered by a skip scan (`scan.rs`), which jumps over subtrees that cannot match. The caller limits the
//! work of one call; the next call continues after the topic where it stopped.
//!
//! Each client has a quota ([`RetainedBounds`]), so that none can use all the room. Schemas of agents have a separate limit
//! ([`SCHEMAS_PER_CLIENT_MAX`]), above which an agent's oldest announcement is removed. Only the hash of a schema is retained: the store has the
//! schema, shared by all agents with the same sensors, and encodes it again on request. As messages, the schemas of ten thousand agents took more
//! memory than the rest of their connections.

mod scan;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{QoS, Text};

use super::config::RetainedBounds;
use super::message::{Message, Publication};
pub use scan::ScanResult;

/// The most schema announcements of one client. Agents announce one for each group, and each job adds groups.
pub const SCHEMAS_PER_CLIENT_MAX: usize = 1024;
/// The most schema announcements of all clients.
pub const SCHEMAS_MAX: usize = 1 << 20;
/// The most expired messages that are removed at a time.
const PURGED_AT_ONCE_MAX: usize = 1024;

/// A table with this many times the capacity that it needs shrinks.
const ROOMY: usize = 8;

/// Returns the bytes of a schema as its agent sent them; `None` if it is unknown.
type SchemaLookup = dyn Fn(&SchemaHash) -> Option<Bytes> + Send + Sync;

/// The provider of schema payloads.
pub struct SchemaPayloads(pub Box<SchemaLookup>);

impl fmt::Debug for SchemaPayloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schemas")
    }
}

/// Why a message is not retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainError {
    /// The client's quota is used up.
    Client,
    /// The limit of all clients is reached.
    All,
    /// The limit of schema announcements is reached.
    Schemas,
}

impl fmt::Display for RetainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => {
                "this client has reached its limit of retained messages or bytes \
                 (mqtt.limits.retained_client_messages_max, retained_client_bytes_max)"
            }
            Self::All => {
                "all clients together have reached the limit of retained messages or bytes \
                 (mqtt.limits.retained_messages_max, retained_bytes_max)"
            }
            Self::Schemas => "the limit of schema announcements is reached",
        })
    }
}

#[derive(Debug, Clone)]
pub struct RetainedMessage {
    message: Arc<Message>,
    /// The hash of the schema that is its payload, which is empty here.
    schema: Option<SchemaHash>,
    /// The client whose quota it counts for; `None` for the server, which has none.
    owner: Option<Arc<str>>,
    number: u64,
}

impl RetainedMessage {
    /// The message with its payload; `None` if its schema is unknown.
    pub fn whole(self, schemas: &SchemaPayloads) -> Option<Arc<Message>> {
        let Some(hash) = self.schema else { return Some(self.message) };
        Some(Arc::new(self.message.with_payload(schemas.0(&hash)?)))
    }

    /// Whether its expiry interval is over.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.message.is_expired(now)
    }

    pub fn topic(&self) -> &Text {
        &self.message.topic
    }

    pub fn qos(&self) -> QoS {
        self.message.qos
    }

    /// Its sequence number among all publishes.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn expires_at(&self) -> Option<Instant> {
        let after = Duration::from_secs(self.message.expiry_s?.into());
        self.message.at.checked_add(after)
    }
}

/// One client's use of its quota.
#[derive(Debug, Default)]
struct RetainedUsage {
    messages: usize,
    bytes: usize,
    /// Topics of its schemas by sequence number of the publish.
    schemas: BTreeMap<u64, Text>,
}

impl RetainedUsage {
    fn is_empty(&self) -> bool {
        self.messages == 0 && self.schemas.is_empty()
    }
}

#[derive(Debug)]
pub struct RetainedMessages {
    room: RetainedBounds,
    by_topic: BTreeMap<Text, RetainedMessage>,
    owners: HashMap<Arc<str>, RetainedUsage>,
    messages: usize,
    bytes: usize,
    schemas: usize,
    expiring: BTreeSet<(Instant, Text)>,
}

impl RetainedMessages {
    pub fn new(room: RetainedBounds) -> Self {
        Self {
            room,
            by_topic: BTreeMap::new(),
            owners: HashMap::new(),
            messages: 0,
            bytes: 0,
            schemas: 0,
            expiring: BTreeSet::new(),
        }
    }

    /// Changes the limits. Retained messages stay.
    pub fn set_room(&mut self, room: RetainedBounds) {
        self.room = room;
    }

    /// Whether a message of `owner` with `size` bytes would be retained on `topic`.
    pub fn check(&self, owner: &str, topic: &str, size: usize) -> Result<(), RetainError> {
        let old = self.by_topic.get(topic.as_bytes()).filter(|kept| kept.schema.is_none());
        let count = |is_counted: bool, old: &RetainedMessage| if is_counted { (1, old.message.size()) } else { (0, 0) };
        let usage = self.owners.get(owner);
        let has = usage.map_or((0, 0), |usage| (usage.messages, usage.bytes));
        let own = old.map_or((0, 0), |old| count(old.owner.as_deref() == Some(owner), old));
        if has.0 - own.0 >= self.room.client_messages_max || has.1 - own.1 + size > self.room.client_bytes_max {
            return Err(RetainError::Client);
        }
        let own = old.map_or((0, 0), |old| count(old.owner.is_some(), old));
        if self.messages - own.0 >= self.room.messages_max || self.bytes - own.1 + size > self.room.bytes_max {
            return Err(RetainError::All);
        }
        Ok(())
    }

    /// Retains a topic's newest message, by reference to `schema` if given; an empty one removes it. `number` is its sequence number among all
    /// publishes. Without room the old message stays.
    pub fn put(
        &mut self,
        owner: Option<&str>,
        publication: &Publication<'_>,
        schema: Option<SchemaHash>,
        number: u64,
    ) -> Result<RetainOutcome, RetainError> {
        if publication.payload.is_empty() {
            self.remove(publication.topic);
            return Ok(RetainOutcome::default());
        }
        // Copied: the payload may be a slice of a receive buffer, which it would keep alive.
        let payload = if schema.is_some() { Bytes::new() } else { Bytes::copy_from_slice(publication.payload) };
        let message = Publication { payload: &payload, ..*publication }.to_message();
        let mut put = RetainOutcome::default();
        match (owner, schema) {
            (Some(owner), None) => self.check(owner, publication.topic, message.size())?,
            (Some(owner), Some(_)) => put.removed = self.make_room_for_schema(owner, publication.topic)?,
            (None, _) => {}
        }
        self.remove(publication.topic);
        let owner =
            owner.map(|owner| self.owners.get_key_value(owner).map_or_else(|| owner.into(), |(key, _)| key.clone()));
        let topic = message.topic.clone();
        let kept = RetainedMessage { message: Arc::new(message), schema, owner, number };
        if let Some(owner) = &kept.owner {
            let usage = self.owners.entry(owner.clone()).or_default();
            if schema.is_some() {
                usage.schemas.insert(number, topic.clone());
                self.schemas += 1;
            } else {
                (usage.messages, usage.bytes) = (usage.messages + 1, usage.bytes + kept.message.size());
                (self.messages, self.bytes) = (self.messages + 1, self.bytes + kept.message.size());
            }
        }
        self.expiring.extend(kept.expires_at().map(|at| (at, topic.clone())));
        self.by_topic.insert(topic, kept);
        Ok(put)
    }

    /// Removes the client's oldest announcement if the client has the maximum number.
    fn make_room_for_schema(&mut self, owner: &str, topic: &str) -> Result<bool, RetainError> {
        let usage = self.owners.get(owner);
        let replaces = self.by_topic.get(topic.as_bytes()).is_some_and(|kept| kept.schema.is_some());
        let has = usage.map_or(0, |usage| usage.schemas.len());
        if replaces || (has < SCHEMAS_PER_CLIENT_MAX && self.schemas < SCHEMAS_MAX) {
            return Ok(false);
        }
        let oldest = usage.and_then(|usage| usage.schemas.first_key_value()).map(|(_, topic)| topic.clone());
        self.remove(&oldest.ok_or(RetainError::Schemas)?);
        Ok(true)
    }

    fn remove(&mut self, topic: &str) -> bool {
        let Some(old) = self.by_topic.remove(topic.as_bytes()) else { return false };
        if let Some(at) = old.expires_at() {
            self.expiring.remove(&(at, old.message.topic.clone()));
        }
        let Some(owner) = &old.owner else { return true };
        let Some(usage) = self.owners.get_mut(owner) else { return true };
        if old.schema.is_some() {
            usage.schemas.remove(&old.number);
            self.schemas -= 1;
        } else {
            (usage.messages, usage.bytes) = (usage.messages - 1, usage.bytes - old.message.size());
            (self.messages, self.bytes) = (self.messages - 1, self.bytes - old.message.size());
        }
        if usage.is_empty() {
            self.owners.remove(owner);
            // Returns the memory of a burst of clients.
            if self.owners.capacity() > ROOMY * self.owners.len() + ROOMY {
                self.owners.shrink_to_fit();
            }
        }
        true
    }

    /// Messages whose topics match `filter`, in order and after `after`, with at most `work_max` work.
    pub fn matching(&self, filter: &str, after: Option<&Text>, work_max: usize) -> ScanResult {
        scan::scan(&self.by_topic, filter, after, work_max)
    }

    pub fn has_expired(&self, now: Instant) -> bool {
        self.expiring.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Removes some expired messages; returns how many.
    pub fn purge(&mut self, now: Instant) -> usize {
        let mut gone = 0;
        while gone < PURGED_AT_ONCE_MAX
            && let Some((_, topic)) = self.expiring.first().filter(|(at, _)| *at <= now).cloned()
        {
            self.remove(&topic);
            gone += 1;
        }
        gone
    }

    /// The number of retained messages, including schemas and the server's own.
    pub fn count(&self) -> usize {
        self.by_topic.len()
    }
}

/// The outcome of retaining a message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RetainOutcome {
    /// The client's oldest schema announcement was removed.
    pub removed: bool,
}

#[cfg(test)]
mod tests;
