//! Distributes messages: subscriptions by filter, shared subscriptions, and retained messages.
//!
//! A client gets a message once, however many of its filters match, with the highest of their QoS and all of their identifiers (3.3.4). A message of
//! a shared subscription goes to one member in turn, first to connected members with room. Nothing here waits: if a client does not keep up, the
//! message is dropped and counted.
//!
//! Retained messages are not delivered here: a client's task takes them as fast as it can write ([`super::replay`]).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use bytes::Bytes;
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{self, Properties, QoS, RetainHandling, Text};

use super::config::RetainedBounds;
use super::message::{Delivery, Message, Publication, SubscriptionOptions};
use super::replay::RetainedReplay;
use super::retained::{RetainError, RetainedMessages, ScanResult, SchemaPayloads};
use super::session::QueueOutcome;
use super::sessions::SessionHandle;
use super::trie::{FilterTrie, TrieSlot};
use crate::control::AgentMessages;
use crate::log_limit::{LogLimit, quoted};
use crate::metrics::Metrics;
use crate::text_topics;

/// How many members of a shared subscription are tried for one message. With more members that are disconnected or full, it is dropped although
/// another might accept it: a message must not cost a look at thousands of sessions.
const SHARED_TRIES_MAX: usize = 256;

#[derive(Debug)]
struct Subscription {
    handle: Arc<SessionHandle>,
    options: SubscriptionOptions,
}

/// The subscriptions of one filter.
#[derive(Debug, Default)]
struct FilterSubscriptions {
    /// By session number. Newer sessions have greater numbers, so that additions are nearly always at the end.
    direct: Vec<Subscription>,
    groups: Vec<SharedSubscription>,
}

impl FilterSubscriptions {
    fn group(&self, name: &str) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| (*group.name).cmp(name))
    }
}

#[derive(Debug)]
struct SharedSubscription {
    /// The filter as subscribed: `$share/name/filter`.
    name: Arc<str>,
    members: Vec<Subscription>,
    next_member: AtomicUsize,
}

impl TrieSlot for FilterSubscriptions {
    fn is_empty(&self) -> bool {
        self.direct.is_empty() && self.groups.is_empty()
    }
}

/// All subscriptions of all sessions.
#[derive(Debug)]
pub struct Subscriptions {
    filters: RwLock<FilterTrie<FilterSubscriptions>>,
    retained: RwLock<RetainedMessages>,
    /// Numbers publishes and subscriptions, so that their order is known.
    number: AtomicU64,
    /// Incremented when a filter that can match readings as text is added or removed.
    text_generation: AtomicU64,
    /// The number of subscriptions that can match topics with a leading `/`.
    path_filters: AtomicUsize,
    schemas: SchemaPayloads,
    queue_total_bytes_max: usize,
    metrics: Arc<Metrics>,
    log: LogLimit,
}

/// Adds a subscription to a list; returns whether its session had none there.
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

/// Whether a filter can match topics whose first level is `level`, which does not begin with `$`.
fn begins_with(filter: &str, level: &str) -> bool {
    let first = filter.split('/').next();
    first == Some("+") || first == Some("#") || first == Some(level)
}

impl Subscriptions {
    /// `queue_total_bytes_max` limits the queued bytes of all clients, `room` the retained messages; `schemas` provides the payloads of retained
    /// schemas.
    pub fn new(
        queue_total_bytes_max: usize,
        room: RetainedBounds,
        schemas: SchemaPayloads,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            filters: RwLock::default(),
            retained: RwLock::new(RetainedMessages::new(room)),
            number: AtomicU64::new(0),
            text_generation: AtomicU64::new(0),
            path_filters: AtomicUsize::new(0),
            schemas,
            queue_total_bytes_max,
            metrics,
            log: LogLimit::default(),
        }
    }

    /// Changes the limits of retained messages; existing ones stay.
    pub fn set_room(&self, room: RetainedBounds) {
        self.retained_mut().set_room(room);
    }

    /// Changes with every subscription to readings as text that is added, changed or removed.
    pub fn text_generation(&self) -> u64 {
        self.text_generation.load(Ordering::Acquire)
    }

    /// Whether any subscription can match topics with a leading `/`.
    pub fn wants_paths(&self) -> bool {
        self.path_filters.load(Ordering::Acquire) > 0
    }

    /// Filters that can match topics whose first level is `first_level`, each once, without `$share/name/`.
    pub fn filters_below(&self, first_level: &str) -> Vec<String> {
        let mut filters = Vec::new();
        self.filters().filters_below(first_level, &mut |filter, _| filters.push(filter.to_owned()));
        filters
    }

    /// Records that a subscription was added, changed or removed.
    fn changed(&self, plain: &str, count: i64) {
        if begins_with(plain, text_topics::ROOT) {
            self.text_generation.fetch_add(1, Ordering::AcqRel);
        }
        if begins_with(plain, "") {
            // Wraps around for -1, as intended.
            self.path_filters.fetch_add(count as usize, Ordering::AcqRel);
        }
        self.metrics.subscriptions.add(count);
    }

    /// Adds or renews a subscription. Returns the replay of retained messages that `retained` asks for.
    pub fn subscribe(
        &self,
        filter: &str,
        handle: &Arc<SessionHandle>,
        options: SubscriptionOptions,
        retained: RetainHandling,
    ) -> Option<RetainedReplay> {
        let subscription = Subscription { handle: handle.clone(), options };
        let shared = mqtt::shared(filter);
        let plain = shared.map_or(filter, |shared| shared.filter);
        let mut filters = self.filters_mut();
        let here = filters.place(plain);
        let new = if shared.is_some() {
            let at = here.group(filter).unwrap_or_else(|at| {
                let group =
                    SharedSubscription { name: filter.into(), members: Vec::new(), next_member: AtomicUsize::new(0) };
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
        // Later publishes reach the subscription itself.
        (wanted && shared.is_none()).then(|| RetainedReplay::new(filter, options, self.next_number()))
    }

    /// The next sequence number of publishes and subscriptions.
    pub fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::AcqRel)
    }

    /// Retained messages that a replay still has to send, with at most `work` work.
    pub fn retained_for(&self, filter: &str, after: Option<&Text>, work_max: usize) -> ScanResult {
        let scanned = self.retained().matching(filter, after, work_max);
        self.metrics.retained_work.add(scanned.work as u64);
        scanned
    }

    /// The provider of schema payloads.
    pub fn schemas(&self) -> &SchemaPayloads {
        &self.schemas
    }

    /// Removes a subscription; returns whether there was one.
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

    /// Whether `identity` is connected and has a subscription that matches `topic`.
    pub fn is_heard(&self, topic: &str, identity: &str) -> bool {
        let mut heard = false;
        self.filters().matches(topic, &mut |here: &FilterSubscriptions| {
            heard |= here.direct.iter().any(|own| &*own.handle.key.0 == identity && own.handle.is_here());
        });
        heard
    }

    /// Sends a message of the server with QoS 0 to each matching client. `from` is the session it belongs to, 0 for none.
    pub fn publish(&self, from: u64, topic: &str, payload: &Bytes, retain: bool) {
        let (qos, properties, at) = (QoS::AtMostOnce, &Properties::new(), Instant::now());
        self.publish_message(from, &Publication { topic, payload, qos, retain, properties, at });
    }

    /// Sends a message once to each matching client, and to one member of each shared subscription.
    pub fn publish_message(&self, from: u64, publication: &Publication<'_>) -> usize {
        let filters = self.filters();
        let mut found: Vec<&FilterSubscriptions> = Vec::new();
        filters.matches(publication.topic, &mut |here| found.push(here));
        if found.is_empty() {
            return 0;
        }
        let message = Arc::new(publication.to_message());
        let retain = |options: &SubscriptionOptions| publication.retain && options.retain_as_published;
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

    /// Sends to one member in turn, except `except`: a connected one with room, else a disconnected one.
    fn deliver_shared(
        &self,
        group: &SharedSubscription,
        message: &Arc<Message>,
        retain: bool,
        except: Option<u64>,
    ) -> bool {
        let (count, start) = (group.members.len(), group.next_member.fetch_add(1, Ordering::Relaxed));
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
                    QueueOutcome::Queued => return true,
                    QueueOutcome::Full => full = true,
                    QueueOutcome::Away => {}
                }
            }
        }
        if full {
            self.dropped(&message.topic, "every member of a shared subscription");
        }
        false
    }

    /// Sends a message of a shared subscription to another member. Dropped and counted if none accepts it.
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

    /// Whether a shared subscription has a connected member other than `except`.
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

    /// Whether a retained message of this client would be stored; if not, why.
    pub fn check_retained(&self, owner: &str, publication: &Publication<'_>) -> Result<(), String> {
        if publication.payload.is_empty() {
            return Ok(());
        }
        self.retained().check(owner, publication.topic, publication.size()).map_err(|why| {
            self.metrics.retained_refused.inc();
            why.to_string()
        })
    }

    /// Retains a topic's newest message for later subscribers, by reference to `schema` if given; an empty one removes it. `owner` is the client,
    /// `None` for the server; `number` its sequence number.
    pub fn retain(&self, owner: Option<&str>, publication: &Publication<'_>, schema: Option<SchemaHash>, number: u64) {
        let put = self.retained_mut().put(owner, publication, schema, number);
        match put {
            Ok(put) => self.metrics.retained_schemas_dropped.add(put.removed.into()),
            Err(why) => self.not_retained(publication.topic, owner.unwrap_or_default(), why),
        }
    }

    fn not_retained(&self, topic: &str, owner: &str, why: RetainError) {
        self.metrics.retained_dropped.inc();
        let (topic, owner) = (quoted(topic), quoted(owner));
        self.log.warn(format_args!("mqtt: cannot retain the message of {owner} on \"{topic}\": {why}"));
    }

    /// Removes expired retained messages.
    pub fn purge(&self, now: Instant) {
        while self.retained().has_expired(now) {
            let gone = self.retained_mut().purge(now);
            self.metrics.messages_expired.add(gone as u64);
        }
    }

    pub fn retained_count(&self) -> usize {
        self.retained().count()
    }

    fn deliver(&self, handle: &SessionHandle, delivery: Delivery) {
        // Cheap, and needed only if there was no room.
        let message = delivery.message.clone();
        if handle.deliver(delivery, self.queue_total_bytes_max, &self.metrics) == QueueOutcome::Full {
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

    fn filters(&self) -> RwLockReadGuard<'_, FilterTrie<FilterSubscriptions>> {
        self.filters.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn filters_mut(&self) -> RwLockWriteGuard<'_, FilterTrie<FilterSubscriptions>> {
        self.filters.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn retained(&self) -> RwLockReadGuard<'_, RetainedMessages> {
        self.retained.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn retained_mut(&self) -> RwLockWriteGuard<'_, RetainedMessages> {
        self.retained.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentMessages for Subscriptions {
    fn is_subscribed(&self, topic: &str, agent: &str) -> bool {
        self.is_heard(topic, agent)
    }

    fn send(&self, topic: &str, payload: Bytes) {
        self.publish(0, topic, &payload, false);
    }
}

#[cfg(test)]
mod tests;
