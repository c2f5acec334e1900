//! Retained messages: the newest of each topic, for subscribers to come.
//!
//! They are sorted by topic, and a filter is answered by jumps in that order (`scan.rs`): what it does not match is passed over
//! subtree by subtree. The work of one answer is a number that the caller bounds; it goes on later behind the topic where it stopped.
//!
//! Each client has a part of the room ([`Room`]), so that none can fill it for the others. The schemas of agents are outside of it:
//! they have a bound of their own ([`SCHEMAS_PER_CLIENT_MAX`]), beyond which an agent's oldest announcement is forgotten. Only the
//! hash of a schema is kept: the store has it, its sensors shared by all agents that have the same, and the bytes are made anew
//! for who asks. As messages the schemas of ten thousand agents took more memory than all the rest of their connections.

mod scan;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{QoS, Text};

use super::message::{Message, Publication};
pub use scan::Scanned;

/// The most announcements of schemas that are kept of one client. Agents announce one a group, and each job brings groups of its own.
pub const SCHEMAS_PER_CLIENT_MAX: usize = 1024;
/// The most that are kept of all clients together.
pub const SCHEMAS_MAX: usize = 1 << 20;
/// The most expired messages that are forgotten in one go.
const PURGED_AT_ONCE_MAX: usize = 1024;

/// A table with so many times the room that it needs gives it back.
const ROOMY: usize = 8;

/// Gives the bytes of a schema as its agent sent them; `None` when it is known no longer.
type Encoded = dyn Fn(&SchemaHash) -> Option<Bytes> + Send + Sync;

/// Who has the schemas.
pub struct Schemas(pub Box<Encoded>);

impl fmt::Debug for Schemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schemas")
    }
}

/// Bounds of what is kept, schemas not counted. Bytes are those of topics, payloads and properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The most messages of all clients.
    pub messages_max: usize,
    /// The most bytes of all clients.
    pub bytes_max: usize,
    /// The most messages of one client.
    pub client_messages_max: usize,
    /// The most bytes of one client.
    pub client_bytes_max: usize,
}

/// Why a message is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// Its client has as much as one may have.
    Client,
    /// All clients together have as much as they may have.
    All,
    /// All announcements of schemas together are as many as may be.
    Schemas,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => {
                "this client has as many retained messages, or bytes of them, as one may have \
                 (mqtt.limits.retained_client_messages_max, retained_client_bytes_max)"
            }
            Self::All => {
                "all clients together have as many retained messages, or bytes of them, as are kept \
                 (mqtt.limits.retained_messages_max, retained_bytes_max)"
            }
            Self::Schemas => "as many announcements of schemas are kept as may be",
        })
    }
}

/// One retained message.
#[derive(Debug, Clone)]
pub struct Kept {
    message: Arc<Message>,
    /// Its payload is this schema's, and empty here.
    schema: Option<SchemaHash>,
    /// Whose it is; `None` for the server's own, which count nowhere.
    owner: Option<Arc<str>>,
    number: u64,
}

impl Kept {
    /// The whole message; `None` when its schema is known no longer.
    pub fn whole(self, schemas: &Schemas) -> Option<Arc<Message>> {
        let Some(hash) = self.schema else { return Some(self.message) };
        Some(Arc::new(self.message.with_payload(schemas.0(&hash)?)))
    }

    /// Whether nobody shall get it any more.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.message.is_expired(now)
    }

    /// Where it was published.
    pub fn topic(&self) -> &Text {
        &self.message.topic
    }

    /// How surely it was published.
    pub fn qos(&self) -> QoS {
        self.message.qos
    }

    /// Its place among all publishes.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn expires_at(&self) -> Option<Instant> {
        let after = Duration::from_secs(self.message.expiry_s?.into());
        self.message.at.checked_add(after)
    }
}

/// What one client has.
#[derive(Debug, Default)]
struct Usage {
    messages: usize,
    bytes: usize,
    /// Topics of its schemas by their place among all publishes.
    schemas: BTreeMap<u64, Text>,
}

impl Usage {
    fn is_empty(&self) -> bool {
        self.messages == 0 && self.schemas.is_empty()
    }
}

/// All of them.
#[derive(Debug)]
pub struct Retained {
    room: Room,
    by_topic: BTreeMap<Text, Kept>,
    owners: HashMap<Arc<str>, Usage>,
    messages: usize,
    bytes: usize,
    schemas: usize,
    expiring: BTreeSet<(Instant, Text)>,
}

impl Retained {
    /// None yet.
    pub fn new(room: Room) -> Self {
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

    /// Other bounds. What is kept stays.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// Whether a message of `owner` that counts `size` bytes would be kept on `topic`.
    pub fn check(&self, owner: &str, topic: &str, size: usize) -> Result<(), NoRoom> {
        let old = self.by_topic.get(topic.as_bytes()).filter(|kept| kept.schema.is_none());
        let count = |is_counted: bool, old: &Kept| if is_counted { (1, old.message.size()) } else { (0, 0) };
        let usage = self.owners.get(owner);
        let has = usage.map_or((0, 0), |usage| (usage.messages, usage.bytes));
        let own = old.map_or((0, 0), |old| count(old.owner.as_deref() == Some(owner), old));
        if has.0 - own.0 >= self.room.client_messages_max || has.1 - own.1 + size > self.room.client_bytes_max {
            return Err(NoRoom::Client);
        }
        let own = old.map_or((0, 0), |old| count(old.owner.is_some(), old));
        if self.messages - own.0 >= self.room.messages_max || self.bytes - own.1 + size > self.room.bytes_max {
            return Err(NoRoom::All);
        }
        Ok(())
    }

    /// Keeps a topic's newest message, which is this schema's if there is one; an empty one takes it away. `number` is its place among
    /// all publishes. The old one stays where there is no room for the new one.
    pub fn put(
        &mut self,
        owner: Option<&str>,
        publication: &Publication<'_>,
        schema: Option<SchemaHash>,
        number: u64,
    ) -> Result<Put, NoRoom> {
        if publication.payload.is_empty() {
            self.remove(publication.topic);
            return Ok(Put::default());
        }
        // A copy: the payload may be a slice of a receive buffer, which it would keep alive.
        let payload = if schema.is_some() { Bytes::new() } else { Bytes::copy_from_slice(publication.payload) };
        let message = Publication { payload: &payload, ..*publication }.to_message();
        let mut put = Put::default();
        match (owner, schema) {
            (Some(owner), None) => self.check(owner, publication.topic, message.size())?,
            (Some(owner), Some(_)) => put.forgotten = self.make_room_for_schema(owner, publication.topic)?,
            (None, _) => {}
        }
        self.remove(publication.topic);
        let owner =
            owner.map(|owner| self.owners.get_key_value(owner).map_or_else(|| owner.into(), |(key, _)| key.clone()));
        let topic = message.topic.clone();
        let kept = Kept { message: Arc::new(message), schema, owner, number };
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

    /// Forgets the client's oldest announcement when it has as many as one may have, or all have.
    fn make_room_for_schema(&mut self, owner: &str, topic: &str) -> Result<bool, NoRoom> {
        let usage = self.owners.get(owner);
        let replaces = self.by_topic.get(topic.as_bytes()).is_some_and(|kept| kept.schema.is_some());
        let has = usage.map_or(0, |usage| usage.schemas.len());
        if replaces || (has < SCHEMAS_PER_CLIENT_MAX && self.schemas < SCHEMAS_MAX) {
            return Ok(false);
        }
        let oldest = usage.and_then(|usage| usage.schemas.first_key_value()).map(|(_, topic)| topic.clone());
        self.remove(&oldest.ok_or(NoRoom::Schemas)?);
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
            // What a burst of clients took is given back.
            if self.owners.capacity() > ROOMY * self.owners.len() + ROOMY {
                self.owners.shrink_to_fit();
            }
        }
        true
    }

    /// Those whose topics `filter` matches, in their order and behind `after`, with at most so much work.
    pub fn matching(&self, filter: &str, after: Option<&Text>, work_max: usize) -> Scanned {
        scan::scan(&self.by_topic, filter, after, work_max)
    }

    /// Whether any has expired.
    pub fn has_expired(&self, now: Instant) -> bool {
        self.expiring.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Forgets some of those that have expired; how many.
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

    /// How many there are, schemas and the server's own among them.
    pub fn count(&self) -> usize {
        self.by_topic.len()
    }
}

/// What else became of a message that is kept.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The client's oldest announcement of a schema was forgotten for it.
    pub forgotten: bool,
}

#[cfg(test)]
mod tests;
