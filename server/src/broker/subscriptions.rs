//! Who gets which message: subscriptions by filter, shared ones among them, and retained messages.
//!
//! A client gets a message once, however many of its filters match, with the highest of their QoS and all of their
//! identifiers (3.3.4); a shared subscription's message goes to one member of the group, in turn, those that are here and
//! have room before those that are away. Nothing here waits: for a client that does not keep up a message is dropped and
//! counted.
//!
//! Retained messages are not delivered here: a client's task takes them, as fast as it can write ([`super::replay`]).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use bytes::Bytes;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{self, Properties, QoS, RetainHandling, Text};

use super::log_limit::{LogLimit, quoted};
use super::message::{Delivery, Message, Publication};
use super::replay::Replay;
use super::retained::{NoRoom, Retained, Room, Scanned, Schemas};
use super::session::Put;
use super::sessions::Handle;
use super::trie::{Slot, Trie};
use crate::access::TEXT_ROOT;
use crate::metrics::Metrics;

/// How many members of a shared subscription are tried for one message. With more of them that are away or full it is dropped though
/// another might take it: a message must not cost a look at thousands of sessions.
const SHARED_TRIES_MAX: usize = 256;

/// What a client wants of the messages that a filter matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The highest QoS.
    pub qos: QoS,
    /// Not what the client itself publishes (MQTT 5).
    pub no_local: bool,
    /// Retain flags as they were published (MQTT 5).
    pub retain_as_published: bool,
    /// Identifier, 0 for none (MQTT 5).
    pub id: u32,
}

#[derive(Debug)]
struct Subscription {
    handle: Arc<Handle>,
    options: Options,
}

impl Options {
    /// The identifier, if there is one.
    pub fn ids(&self) -> Box<[u32]> {
        if self.id == 0 { Box::default() } else { Box::new([self.id]) }
    }
}

/// The subscriptions of one filter.
#[derive(Debug, Default)]
struct Here {
    /// By the session's number, which is greater in a newer session: one that comes is nearly always put at the end.
    direct: Vec<Subscription>,
    /// By name.
    groups: Vec<Group>,
}

impl Here {
    fn group(&self, name: &str) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| (*group.name).cmp(name))
    }
}

/// Those of one shared subscription.
#[derive(Debug)]
struct Group {
    /// As it was subscribed to, `$share/name/filter`.
    name: Arc<str>,
    /// By the session's number.
    members: Vec<Subscription>,
    turn: AtomicUsize,
}

impl Slot for Here {
    fn is_empty(&self) -> bool {
        self.direct.is_empty() && self.groups.is_empty()
    }
}

/// All subscriptions of all sessions.
#[derive(Debug)]
pub struct Subscriptions {
    filters: RwLock<Trie<Here>>,
    retained: RwLock<Retained>,
    /// Counts publishes and subscriptions, so that what came before and what after is known.
    number: AtomicU64,
    /// Rises when a filter comes or goes that can match readings as text.
    text_generation: AtomicU64,
    /// How many subscriptions can match topics that begin with `/`.
    path_filters: AtomicUsize,
    schemas: Schemas,
    queue_total_bytes_max: usize,
    metrics: Arc<Metrics>,
    log: LogLimit,
}

/// Puts a subscription among others; whether its session had none there.
fn put(list: &mut Vec<Subscription>, subscription: Subscription) -> bool {
    match place(list, subscription.handle.number) {
        Ok(at) => {
            list[at] = subscription;
            false
        }
        Err(at) => {
            list.insert(at, subscription);
            true
        }
    }
}

fn take(list: &mut Vec<Subscription>, number: u64) -> bool {
    let at = place(list, number);
    at.is_ok_and(|at| {
        list.remove(at);
        true
    })
}

fn place(list: &[Subscription], number: u64) -> Result<usize, usize> {
    list.binary_search_by_key(&number, |own| own.handle.number)
}

/// Whether a filter can match topics of which the first level is `level`, which does not begin with `$`.
fn begins_with(filter: &str, level: &str) -> bool {
    let first = filter.split('/').next();
    first == Some("+") || first == Some("#") || first == Some(level)
}

impl Subscriptions {
    /// None yet. `queue_total_bytes_max` bounds what waits for all clients together, `room` what is retained; of a retained schema `schemas` gives
    /// the bytes.
    pub fn new(queue_total_bytes_max: usize, room: Room, schemas: Schemas, metrics: Arc<Metrics>) -> Self {
        Self {
            filters: RwLock::default(),
            retained: RwLock::new(Retained::new(room)),
            number: AtomicU64::new(0),
            text_generation: AtomicU64::new(0),
            path_filters: AtomicUsize::new(0),
            schemas,
            queue_total_bytes_max,
            metrics,
            log: LogLimit::default(),
        }
    }

    /// Other bounds of what is retained; what is kept stays.
    pub fn set_room(&self, room: Room) {
        self.retained_mut().set_room(room);
    }

    /// Changes with every subscription to readings as text that comes, changes or goes.
    pub fn text_generation(&self) -> u64 {
        self.text_generation.load(Ordering::Acquire)
    }

    /// Whether anybody may hear topics that begin with `/`.
    pub fn wants_paths(&self) -> bool {
        self.path_filters.load(Ordering::Acquire) > 0
    }

    /// Filters that can match topics of which the first level is `first_level`, each once, without `$share/name/`.
    pub fn filters_below(&self, first_level: &str) -> Vec<String> {
        let mut filters = Vec::new();
        self.filters().filters_below(first_level, &mut |filter, _| filters.push(filter.to_owned()));
        filters
    }

    /// Notes that a subscription came, changed or went.
    fn changed(&self, plain: &str, count: i64) {
        if begins_with(plain, TEXT_ROOT.trim_end_matches('/')) {
            self.text_generation.fetch_add(1, Ordering::AcqRel);
        }
        if begins_with(plain, "") {
            // Wraps around for -1, as it shall.
            self.path_filters.fetch_add(count as usize, Ordering::AcqRel);
        }
        self.metrics.subscriptions.add(count);
    }

    /// Adds or renews one. What is to be sent of the retained messages that it chooses, as `retained` says.
    pub fn subscribe(
        &self,
        filter: &str,
        handle: &Arc<Handle>,
        options: Options,
        retained: RetainHandling,
    ) -> Option<Replay> {
        let subscription = Subscription { handle: handle.clone(), options };
        let shared = mqtt::shared(filter);
        let plain = shared.map_or(filter, |shared| shared.filter);
        let mut filters = self.filters_mut();
        let here = filters.place(plain);
        let new = if shared.is_some() {
            let at = here.group(filter).unwrap_or_else(|at| {
                let group = Group { name: filter.into(), members: Vec::new(), turn: AtomicUsize::new(0) };
                here.groups.insert(at, group);
                at
            });
            put(&mut here.groups[at].members, subscription)
        } else {
            put(&mut here.direct, subscription)
        };
        drop(filters);
        self.changed(plain, i64::from(new));
        let wanted = retained == RetainHandling::Send || (new && retained == RetainHandling::SendIfNew);
        // What is published from now on reaches the subscription itself.
        (wanted && shared.is_none()).then(|| Replay::new(filter, options, self.next_number()))
    }

    /// The place of a publish among all publishes and subscriptions.
    pub fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::AcqRel)
    }

    /// Retained messages that a replay still has to send, with at most so much work.
    pub fn retained_for(&self, filter: &str, after: Option<&Text>, work_max: usize) -> Scanned {
        let scanned = self.retained().matching(filter, after, work_max);
        self.metrics.retained_work.add(scanned.work as u64);
        scanned
    }

    /// Who has the schemas.
    pub fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    /// Takes one away; whether it was there.
    pub fn unsubscribe(&self, number: u64, filter: &str) -> bool {
        let shared = mqtt::shared(filter);
        let plain = shared.map_or(filter, |shared| shared.filter);
        let was = self.filters_mut().change(plain, |here| {
            if shared.is_none() {
                return take(&mut here.direct, number);
            }
            let Ok(at) = here.group(filter) else { return false };
            let was = take(&mut here.groups[at].members, number);
            if here.groups[at].members.is_empty() {
                here.groups.remove(at);
            }
            was
        });
        let was = was.unwrap_or(false);
        if was {
            self.changed(plain, -1);
        }
        was
    }

    /// Whether `identity` is connected and subscribed to what matches `topic`.
    pub fn is_heard(&self, topic: &str, identity: &str) -> bool {
        let mut heard = false;
        self.filters().matches(topic, &mut |here: &Here| {
            heard |= here.direct.iter().any(|own| &*own.handle.key.0 == identity && own.handle.is_here());
        });
        heard
    }

    /// Sends a message of the server's own, QoS 0, to each client that wants it. `from` is the session that it is of, 0 for
    /// nobody's.
    pub fn publish(&self, from: u64, topic: &str, payload: &Bytes, retain: bool) {
        let (qos, properties, at) = (QoS::AtMostOnce, &Properties::new(), Instant::now());
        self.publish_message(from, &Publication { topic, payload, qos, retain, properties, at });
    }

    /// Sends a message to each client that wants it, once, and to one of each shared subscription.
    pub fn publish_message(&self, from: u64, publication: &Publication<'_>) -> usize {
        let filters = self.filters();
        let mut found: Vec<&Here> = Vec::new();
        filters.matches(publication.topic, &mut |here| found.push(here));
        if found.is_empty() {
            return 0;
        }
        let message = Arc::new(publication.to_message());
        let retain = |options: &Options| publication.retain && options.retain_as_published;
        if let [here] = found[..] {
            // The usual case: no session twice.
            for subscription in &here.direct {
                let Subscription { handle, options } = subscription;
                if options.no_local && handle.number == from {
                    continue;
                }
                let (qos, ids) = (message.qos.min(options.qos), options.ids());
                let delivery = Delivery { message: message.clone(), qos, retain: retain(options), ids, group: None };
                self.deliver(handle, delivery);
            }
        } else {
            let mut all: Vec<&Subscription> = found.iter().flat_map(|here| &here.direct).collect();
            all.retain(|own| !(own.options.no_local && own.handle.number == from));
            all.sort_by_key(|own| own.handle.number);
            for same in all.chunk_by(|a, b| a.handle.number == b.handle.number) {
                let highest = same.iter().map(|own| own.options.qos).max().unwrap_or(QoS::AtMostOnce);
                let ids = same.iter().map(|own| own.options.id).filter(|&id| id != 0).collect();
                let retain = same.iter().any(|own| retain(&own.options));
                let qos = message.qos.min(highest);
                self.deliver(&same[0].handle, Delivery { message: message.clone(), qos, retain, ids, group: None });
            }
        }
        for group in found.iter().flat_map(|here| &here.groups) {
            self.deliver_shared(group, &message, publication.retain, None);
        }
        found.iter().map(|here| here.direct.len() + here.groups.len()).sum()
    }

    /// To one member, `except` not among them, in turn: one that is here and has room, else one that is kept.
    fn deliver_shared(&self, group: &Group, message: &Arc<Message>, retain: bool, except: Option<u64>) -> bool {
        let (count, start) = (group.members.len(), group.turn.fetch_add(1, Ordering::Relaxed));
        let mut full = false;
        for here in [true, false] {
            for step in 0..count.min(SHARED_TRIES_MAX) {
                let member = &group.members[(start % count + step) % count];
                if except == Some(member.handle.number) || member.handle.lock().session.is_connected() != here {
                    continue;
                }
                let delivery = Delivery {
                    message: message.clone(),
                    qos: message.qos.min(member.options.qos),
                    retain: retain && member.options.retain_as_published,
                    ids: member.options.ids(),
                    group: Some(group.name.clone()),
                };
                match member.handle.deliver(delivery, self.queue_total_bytes_max, &self.metrics) {
                    Put::Queued => return true,
                    Put::Full => full = true,
                    Put::Away => {}
                }
            }
        }
        if full {
            self.dropped(&message.topic, "every member of a shared subscription");
        }
        false
    }

    /// Gives a message that came to a member of a shared subscription to another member. Dropped and counted when there is
    /// none that takes it.
    pub fn pass_on(&self, delivery: Delivery, except: u64) {
        let Some((name, shared)) = delivery.group.as_deref().and_then(|name| Some((name, mqtt::shared(name)?))) else {
            return;
        };
        let filters = self.filters();
        let here = filters.get(shared.filter);
        let group = here.and_then(|here| here.group(name).ok().map(|at| &here.groups[at]));
        let passed =
            group.is_some_and(|group| self.deliver_shared(group, &delivery.message, delivery.retain, Some(except)));
        if !passed && group.is_none() {
            self.metrics.messages_dropped.inc();
        }
    }

    /// Whether a shared subscription has a member here beside `except`.
    pub fn has_other_member(&self, name: &str, except: u64) -> bool {
        let Some(shared) = mqtt::shared(name) else { return false };
        let filters = self.filters();
        let here = filters.get(shared.filter);
        let group = here.and_then(|here| here.group(name).ok().map(|at| &here.groups[at]));
        group.is_some_and(|group| {
            let mut others = group.members.iter().filter(|own| own.handle.number != except);
            others.any(|own| own.handle.lock().session.is_connected())
        })
    }

    /// Whether a retained message of this client would be kept; else why not, in words.
    pub fn check_retained(&self, owner: &str, publication: &Publication<'_>) -> Result<(), String> {
        if publication.payload.is_empty() {
            return Ok(());
        }
        self.retained().check(owner, publication.topic, publication.size()).map_err(|why| {
            self.metrics.retained_refused.inc();
            why.to_string()
        })
    }

    /// Keeps a topic's newest message, which is this schema's if there is one, for subscribers to come; an empty one takes it away. `owner` is the
    /// client, `None` for the server itself; `number` its place among all publishes.
    pub fn retain(&self, owner: Option<&str>, publication: &Publication<'_>, schema: Option<SchemaHash>, number: u64) {
        let put = self.retained_mut().put(owner, publication, schema, number);
        match put {
            Ok(put) => self.metrics.retained_schemas_forgotten.add(put.forgotten.into()),
            Err(why) => self.not_retained(publication.topic, owner.unwrap_or_default(), why),
        }
    }

    fn not_retained(&self, topic: &str, owner: &str, why: NoRoom) {
        self.metrics.retained_dropped.inc();
        let (topic, owner) = (quoted(topic), quoted(owner));
        self.log.warn(format_args!("mqtt: retained message of {owner} on \"{topic}\" not kept: {why}"));
    }

    /// Forgets retained messages that have expired.
    pub fn purge(&self, now: Instant) {
        while self.retained().has_expired(now) {
            let gone = self.retained_mut().purge(now);
            self.metrics.messages_expired.add(gone as u64);
        }
    }

    /// How many retained messages are kept.
    pub fn retained_count(&self) -> usize {
        self.retained().count()
    }

    fn deliver(&self, handle: &Handle, delivery: Delivery) {
        // Cheap, and only looked at when there was no room.
        let message = delivery.message.clone();
        if handle.deliver(delivery, self.queue_total_bytes_max, &self.metrics) == Put::Full {
            self.dropped(&message.topic, &handle.key.1);
        }
    }

    fn dropped(&self, topic: &str, client: &str) {
        self.metrics.messages_dropped.inc();
        self.log.warn(format_args!(
            "mqtt: message on \"{}\" dropped for client \"{}\", which does not keep up: its queue is full",
            quoted(topic),
            quoted(client)
        ));
    }

    fn filters(&self) -> RwLockReadGuard<'_, Trie<Here>> {
        self.filters.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn filters_mut(&self) -> RwLockWriteGuard<'_, Trie<Here>> {
        self.filters.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn retained(&self) -> RwLockReadGuard<'_, Retained> {
        self.retained.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn retained_mut(&self) -> RwLockWriteGuard<'_, Retained> {
        self.retained.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
