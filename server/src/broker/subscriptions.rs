//! Who gets which message: subscriptions by filter, shared ones among them, and retained messages.
//!
//! A client gets a message once, however many of its filters match, with the highest of their QoS and all of their
//! identifiers (3.3.4); a shared subscription's message goes to one member of the group, in turn, those that are here and
//! have room before those that are away. Nothing here waits: for a client that does not keep up a message is dropped and
//! counted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use bytes::Bytes;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{self, Properties, QoS, RetainHandling};

use super::log_limit::{LogLimit, quoted};
use super::message::{Delivery, Message, Publication};
use super::retained::{RETAINED_BYTES_MAX, RETAINED_MAX, Retained, Schemas};
use super::session::Put;
use super::sessions::Handle;
use super::trie::{Slot, Trie};
use crate::metrics::Metrics;

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

impl Subscription {
    fn ids(&self) -> Box<[u32]> {
        if self.options.id == 0 { Box::default() } else { Box::new([self.options.id]) }
    }
}

/// The subscriptions of one filter.
#[derive(Debug, Default)]
struct Here {
    direct: Vec<Subscription>,
    groups: Vec<Group>,
}

/// Those of one shared subscription.
#[derive(Debug)]
struct Group {
    /// As it was subscribed to, `$share/name/filter`.
    name: Arc<str>,
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
    inner: RwLock<Inner>,
    generation: AtomicU64,
    schemas: Schemas,
    queue_total_bytes_max: usize,
    metrics: Arc<Metrics>,
    log: LogLimit,
}

#[derive(Debug, Default)]
struct Inner {
    filters: Trie<Here>,
    retained: Retained,
}

/// Puts a subscription among others; whether its session had none there.
fn put(list: &mut Vec<Subscription>, subscription: Subscription) -> bool {
    match list.iter_mut().find(|own| own.handle.number == subscription.handle.number) {
        Some(own) => {
            *own = subscription;
            false
        }
        None => {
            list.push(subscription);
            true
        }
    }
}

fn take(list: &mut Vec<Subscription>, number: u64) -> bool {
    let before = list.len();
    list.retain(|own| own.handle.number != number);
    list.len() < before
}

impl Subscriptions {
    /// None yet. `queue_total_bytes_max` bounds what waits for all clients together; of a retained schema `schemas` gives the bytes.
    pub fn new(queue_total_bytes_max: usize, schemas: Schemas, metrics: Arc<Metrics>) -> Self {
        let (inner, generation) = (RwLock::default(), AtomicU64::new(0));
        Self { inner, generation, schemas, queue_total_bytes_max, metrics, log: LogLimit::default() }
    }

    /// Changes with every subscription that comes, changes or goes.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Filters that can match topics of which the first level is `first_level`, each once, without `$share/name/`.
    pub fn filters_below(&self, first_level: &str) -> Vec<String> {
        let mut filters = Vec::new();
        self.read().filters.filters_below(first_level, &mut |filter, _| filters.push(filter.to_owned()));
        filters
    }

    /// Adds or renews one, and sends it the retained messages that it chooses, as `retained` says.
    pub fn subscribe(
        &self,
        filter: &str,
        handle: &Arc<Handle>,
        options: Options,
        retained: RetainHandling,
        now: Instant,
    ) {
        let subscription = Subscription { handle: handle.clone(), options };
        let shared = mqtt::shared(filter);
        let mut inner = self.write();
        let place = inner.filters.place(shared.map_or(filter, |shared| shared.filter));
        let new = if shared.is_some() {
            let at = place.groups.iter().position(|group| &*group.name == filter).unwrap_or_else(|| {
                place.groups.push(Group { name: filter.into(), members: Vec::new(), turn: AtomicUsize::new(0) });
                place.groups.len() - 1
            });
            put(&mut place.groups[at].members, subscription)
        } else {
            put(&mut place.direct, subscription)
        };
        drop(inner);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.metrics.subscriptions.add(i64::from(new));
        let wanted = retained == RetainHandling::Send || (new && retained == RetainHandling::SendIfNew);
        if wanted && shared.is_none() {
            self.deliver_retained(filter, handle, options, now);
        }
    }

    /// There may be many: chosen beside the publishes that go on, and delivered without holding anything up.
    fn deliver_retained(&self, filter: &str, handle: &Handle, options: Options, now: Instant) {
        let chosen = self.read().retained.matching(filter);
        let mut has_room = true;
        for kept in chosen.into_iter().filter(|kept| !kept.is_expired(now)) {
            // Where one schema has found no room no other is made.
            if kept.is_schema() && !has_room {
                self.dropped(kept.topic(), &handle.key.1);
                continue;
            }
            let is_schema = kept.is_schema();
            let Some(message) = kept.whole(&self.schemas) else { continue };
            let (qos, ids) = (
                message.qos.min(options.qos),
                if options.id == 0 { Box::default() } else { Box::new([options.id]) as Box<[u32]> },
            );
            let delivery = Delivery { message, qos, retain: true, ids, group: None };
            has_room &= self.deliver(handle, delivery, RETAINED_MAX) || !is_schema;
        }
    }

    /// Takes one away; whether it was there.
    pub fn unsubscribe(&self, number: u64, filter: &str) -> bool {
        let shared = mqtt::shared(filter);
        let plain = shared.map_or(filter, |shared| shared.filter);
        let was = self.write().filters.change(plain, |place| {
            if shared.is_none() {
                return take(&mut place.direct, number);
            }
            let Some(at) = place.groups.iter().position(|group| &*group.name == filter) else { return false };
            let was = take(&mut place.groups[at].members, number);
            if place.groups[at].members.is_empty() {
                place.groups.remove(at);
            }
            was
        });
        let was = was.unwrap_or(false);
        if was {
            self.generation.fetch_add(1, Ordering::AcqRel);
            self.metrics.subscriptions.add(-1);
        }
        was
    }

    /// Whether `identity` is connected and subscribed to what matches `topic`.
    pub fn is_heard(&self, topic: &str, identity: &str) -> bool {
        let mut heard = false;
        self.read().filters.matches(topic, &mut |here: &Here| {
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
    pub fn publish_message(&self, from: u64, publication: &Publication<'_>) {
        let inner = self.read();
        let mut found: Vec<&Here> = Vec::new();
        inner.filters.matches(publication.topic, &mut |here| found.push(here));
        if found.is_empty() {
            return;
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
                let (qos, ids) = (message.qos.min(options.qos), subscription.ids());
                let delivery = Delivery { message: message.clone(), qos, retain: retain(options), ids, group: None };
                self.deliver(handle, delivery, 0);
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
                self.deliver(&same[0].handle, Delivery { message: message.clone(), qos, retain, ids, group: None }, 0);
            }
        }
        for group in found.iter().flat_map(|here| &here.groups) {
            self.deliver_shared(group, &message, publication.retain, None);
        }
    }

    /// To one member, `except` not among them, in turn: one that is here and has room, else one that is kept.
    fn deliver_shared(&self, group: &Group, message: &Arc<Message>, retain: bool, except: Option<u64>) -> bool {
        let (count, start) = (group.members.len(), group.turn.fetch_add(1, Ordering::Relaxed));
        let mut full = false;
        for here in [true, false] {
            for step in 0..count {
                let member = &group.members[(start % count + step) % count];
                if except == Some(member.handle.number) || member.handle.lock().session.is_connected() != here {
                    continue;
                }
                let delivery = Delivery {
                    message: message.clone(),
                    qos: message.qos.min(member.options.qos),
                    retain: retain && member.options.retain_as_published,
                    ids: member.ids(),
                    group: Some(group.name.clone()),
                };
                match member.handle.deliver(delivery, 0, self.queue_total_bytes_max, &self.metrics) {
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
        let inner = self.read();
        let group = inner.filters.get(shared.filter).and_then(|here| here.groups.iter().find(|own| &*own.name == name));
        let passed =
            group.is_some_and(|group| self.deliver_shared(group, &delivery.message, delivery.retain, Some(except)));
        if !passed && group.is_none() {
            self.metrics.messages_dropped.inc();
        }
    }

    /// Whether a shared subscription has a member here beside `except`.
    pub fn has_other_member(&self, name: &str, except: u64) -> bool {
        let Some(shared) = mqtt::shared(name) else { return false };
        let inner = self.read();
        let group = inner.filters.get(shared.filter).and_then(|here| here.groups.iter().find(|own| &*own.name == name));
        group.is_some_and(|group| {
            let mut others = group.members.iter().filter(|own| own.handle.number != except);
            others.any(|own| own.handle.lock().session.is_connected())
        })
    }

    /// Keeps a topic's newest message, which is this schema's if there is one, for subscribers to come; an empty one takes it away.
    pub fn retain(&self, publication: &Publication<'_>, schema: Option<SchemaHash>) {
        let kept = self.write().retained.put(publication, schema);
        if !kept {
            self.metrics.retained_dropped.inc();
            self.log.warn(format_args!(
                "mqtt: retained message on \"{}\" not kept: {RETAINED_MAX} messages or {RETAINED_BYTES_MAX} bytes are kept already",
                quoted(publication.topic)
            ));
        }
    }

    /// Forgets retained messages that have expired.
    pub fn purge(&self, now: Instant) {
        if self.read().retained.has_expired(now) {
            let gone = self.write().retained.purge(now);
            self.metrics.messages_expired.add(gone as u64);
        }
    }

    /// How many retained messages are kept.
    pub fn retained(&self) -> usize {
        self.read().retained.count()
    }

    /// Whether there was room for it, or it is for nobody who is away.
    fn deliver(&self, handle: &Handle, delivery: Delivery, extra: usize) -> bool {
        // Cheap, and only looked at when there was no room.
        let message = delivery.message.clone();
        let full = handle.deliver(delivery, extra, self.queue_total_bytes_max, &self.metrics) == Put::Full;
        if full {
            self.dropped(&message.topic, &handle.key.1);
        }
        !full
    }

    fn dropped(&self, topic: &str, client: &str) {
        self.metrics.messages_dropped.inc();
        self.log.warn(format_args!(
            "mqtt: message on \"{}\" dropped for client \"{}\", which does not keep up: its queue is full",
            quoted(topic),
            quoted(client)
        ));
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
