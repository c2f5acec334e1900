//! All sessions: who is here, who is away and kept, and when a will or an end is due. Time is an argument.
//!
//! Locks are taken in this order: the table of subscriptions, then this registry, then one session. Nothing is called
//! back with a lock held; what has to happen outside is handed out as [`Leftovers`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_transport::mqtt::{self, Properties, QoS};

use super::link::Link;
use super::message::{Delivery, forwarded};
use super::replay::{Replay, Replays, Turn};
use super::session::{Put, QueueBounds, Session};
use super::trie::LEVELS_MAX;
use crate::metrics::Metrics;

/// The most bytes of one session's filters: with the bound on sessions it says how much memory they can take. The longest
/// filter that MQTT can say still fits.
pub const FILTERS_BYTES_MAX: usize = 96 << 10;
/// The most levels that one session's filters may have on average when it has as many filters as it may. Each level takes memory, some 300
/// bytes, however short it is.
pub const FILTER_LEVELS_MEAN_MAX: usize = 16;

/// One identity may have one in so many of the sessions that are kept of clients that are away; at least [`KEPT_PER_CLIENT_MIN`].
pub const KEPT_PART: usize = 64;
/// See [`KEPT_PART`].
pub const KEPT_PER_CLIENT_MIN: usize = 16;
/// For one identity's sessions one in so many of the bytes may wait that may wait for all; at least what may wait for one session.
pub const QUEUED_PART: usize = 8;
/// A registry with so many times the room that it needs, and [`ROOM_MIN`] more, gives it back.
const ROOMY: usize = 8;
const ROOM_MIN: usize = 1024;
/// A message of at most so many bytes is taken for a session that has none, whatever waits for others: orders of the server are so small.
pub const SPARE_BYTES: usize = 16 << 10;

/// Identity and client identifier: nobody takes over the session of another identity.
pub type SessionKey = (String, String);

/// What is published for a client that vanished.
#[derive(Debug, Clone)]
pub struct Will {
    /// Where.
    pub topic: String,
    /// What.
    pub payload: Bytes,
    /// How surely.
    pub qos: QoS,
    /// Whether it is for later subscribers too.
    pub retain: bool,
    /// What subscribers hear of it, and its expiry.
    pub properties: Properties,
    /// How long the client may be gone before.
    pub delay: Duration,
    /// Whose it is.
    pub identity: String,
    /// Whether the client proved none.
    pub anonymous: bool,
}

impl Will {
    /// Of a CONNECT; copied, for the received one keeps its buffer alive.
    pub fn new(will: &mqtt::Will, identity: &str, anonymous: bool) -> Self {
        let mut properties = forwarded(&will.properties);
        if let Some(&seconds) = will.properties.message_expiry_interval() {
            properties = properties.with(mqtt::Property::MessageExpiryInterval(seconds));
        }
        Self {
            topic: will.topic.to_string(),
            payload: Bytes::copy_from_slice(&will.payload),
            qos: will.qos,
            retain: will.retain,
            properties,
            delay: Duration::from_secs(will.properties.will_delay_interval().copied().unwrap_or(0).into()),
            identity: identity.to_owned(),
            anonymous,
        }
    }
}

/// One client's session, shared by its connection, the subscriptions and the registry.
#[derive(Debug)]
pub struct Handle {
    /// Never used again in this process; 0 is nobody's.
    pub number: u64,
    /// Whose it is.
    pub key: SessionKey,
    held: Mutex<Held>,
}

/// What the sessions of one identity share.
#[derive(Debug, Default)]
struct Owner {
    /// Bytes that wait for them or are not acknowledged.
    queued_bytes: AtomicI64,
}

/// What a session is made of.
#[derive(Debug)]
pub struct Held {
    owner: Arc<Owner>,
    /// Its messages.
    pub session: Session,
    /// Retained messages that are still to be sent to it, if there are.
    replays: Option<Box<Replays>>,
    /// Its subscriptions' filters.
    filters: HashSet<Box<str>>,
    filter_bytes: usize,
    filter_levels: usize,
    /// Whether it is over: nothing may be subscribed for it any more.
    pub ended: bool,
    link: Option<Arc<Link>>,
    will: Option<Will>,
    /// How long it is kept after the connection.
    expiry: Duration,
    /// While the client is away: when its end is due, and under which time, the will's or the end's, it stands in the
    /// registry.
    away: Option<Away>,
}

#[derive(Debug, Clone, Copy)]
struct Away {
    ends_at: Instant,
    due: Instant,
}

impl Handle {
    /// A session that nobody had before, of an identity that has no other.
    #[cfg(test)]
    pub fn new(number: u64, key: SessionKey, bounds: QueueBounds) -> Self {
        Self::of(Arc::default(), number, key, bounds)
    }

    fn of(owner: Arc<Owner>, number: u64, key: SessionKey, bounds: QueueBounds) -> Self {
        let session = Session::new(bounds);
        let (link, will, away) = (None, None, None);
        let held = Held {
            owner,
            session,
            replays: None,
            filters: HashSet::new(),
            filter_bytes: 0,
            filter_levels: 0,
            ended: false,
            link,
            will,
            expiry: Duration::ZERO,
            away,
        };
        Self { number, key, held: Mutex::new(held) }
    }

    /// Its parts.
    pub fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its client is connected.
    pub fn is_here(&self) -> bool {
        self.lock().link.is_some()
    }

    /// Its parts if `link` is still its connection's.
    pub fn lock_for(&self, link: &Arc<Link>) -> Option<MutexGuard<'_, Held>> {
        let held = self.lock();
        held.link.as_ref().is_some_and(|own| Arc::ptr_eq(own, link)).then_some(held)
    }

    /// A message for it: never waits. `total_bytes_max` bounds what waits in all sessions together.
    pub fn deliver(&self, delivery: Delivery, total_bytes_max: usize, metrics: &Metrics) -> Put {
        let mut held = self.lock();
        if held.ended {
            return Put::Away;
        }
        let is_full = metrics.queued_bytes.get() >= total_bytes_max as i64
            || held.owner.queued_bytes.load(Relaxed) >= held.client_bytes_max(total_bytes_max);
        if is_full && (held.session.bytes() > 0 || delivery.message.size() > SPARE_BYTES) {
            return Put::Full;
        }
        let before = held.session.bytes();
        let put = held.session.deliver(delivery);
        held.count_bytes(before, metrics);
        if put == Put::Queued
            && let Some(link) = &held.link
        {
            link.ring();
        }
        put
    }

    /// Does something with the session and counts the bytes that it freed.
    pub fn with<T>(held: &mut Held, metrics: &Metrics, act: impl FnOnce(&mut Session) -> T) -> T {
        let before = held.session.bytes();
        let result = act(&mut held.session);
        held.count_bytes(before, metrics);
        result
    }
}

fn levels(filter: &str) -> usize {
    filter.split('/').count()
}

impl Held {
    /// What may wait for all sessions of its identity.
    fn client_bytes_max(&self, total_bytes_max: usize) -> i64 {
        (total_bytes_max / QUEUED_PART).max(self.session.bytes_max()) as i64
    }

    /// Counts what the session's bytes have changed by.
    fn count_bytes(&self, before: usize, metrics: &Metrics) {
        let change = self.session.bytes() as i64 - before as i64;
        if change != 0 {
            metrics.queued_bytes.add(change);
            self.owner.queued_bytes.fetch_add(change, Relaxed);
        }
    }

    /// Notes a subscription; false when there is no room for one more.
    pub fn add_filter(&mut self, filter: &str, filters_max: usize) -> bool {
        if self.filters.contains(filter) {
            return true;
        }
        let levels = levels(filter);
        let fits = self.filters.len() < filters_max
            && self.filter_bytes + filter.len() <= FILTERS_BYTES_MAX
            && self.filter_levels + levels <= LEVELS_MAX.max(filters_max.saturating_mul(FILTER_LEVELS_MEAN_MAX));
        if fits {
            self.filter_bytes += filter.len();
            self.filter_levels += levels;
            self.filters.insert(filter.into());
        }
        fits
    }

    /// Forgets a subscription; whether there was one.
    pub fn remove_filter(&mut self, filter: &str) -> bool {
        let was = self.filters.remove(filter);
        if was {
            self.filter_bytes -= filter.len();
            self.filter_levels -= levels(filter);
        }
        if let Some(replays) = &mut self.replays {
            replays.stop(filter);
        }
        was
    }

    /// Retained messages are to be sent.
    pub fn start_replay(&mut self, replay: Replay) {
        self.replays.get_or_insert_default().start(replay);
    }

    /// What is to be done next: retained messages first, unless so much waits that there will soon be no room.
    pub fn turn(&self) -> Turn {
        match &self.replays {
            Some(replays) if !self.session.is_crowded() => replays.turn(&self.session),
            _ => Turn::Queue,
        }
    }

    /// The same when nothing of what waits in the queue may be sent.
    pub fn turn_when_stuck(&self) -> Turn {
        match &self.replays {
            Some(replays) if self.session.is_crowded() => replays.turn(&self.session),
            _ => Turn::Queue,
        }
    }

    /// Those that are still to be sent, if there are any.
    pub fn replays(&mut self) -> Option<&mut Replays> {
        if self.replays.as_ref().is_some_and(|replays| replays.is_empty()) {
            self.replays = None;
        }
        self.replays.as_deref_mut()
    }
}

/// What is left to be done for a session, with no lock held.
#[derive(Debug)]
pub struct Leftovers {
    /// Whose.
    pub handle: Arc<Handle>,
    /// Subscriptions to be taken away.
    pub filters: Vec<Box<str>>,
    /// Messages for other members of shared subscriptions.
    pub shared: Vec<Delivery>,
    /// Shared subscriptions of which messages may be taken to other members, if there are.
    pub groups: Vec<Arc<str>>,
    /// To be published.
    pub will: Option<Will>,
}

/// A client that comes in.
#[derive(Debug)]
pub struct Entering {
    /// Whether it wants nothing of an old session.
    pub clean: bool,
    /// How long its session is to be kept after the connection.
    pub expiry: Duration,
    /// How many messages it takes unacknowledged.
    pub window: u16,
    /// What to publish when it vanishes.
    pub will: Option<Will>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy)]
pub struct Leaving {
    /// Whether the will is to be published.
    pub with_will: bool,
    /// How long the session is to be kept, if DISCONNECT said something new.
    pub expiry: Option<Duration>,
}

/// Bounds of the registry.
#[derive(Debug, Clone, Copy)]
pub struct SessionBounds {
    /// The most sessions that are kept of clients that are away.
    pub kept_max: usize,
    /// Of each session.
    pub queue: QueueBounds,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    inner: Mutex<Inner>,
    bounds: SessionBounds,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<SessionKey, Arc<Handle>>,
    /// Those that are away, by the time at which something is due.
    due: BTreeMap<(Instant, u64), Arc<Handle>>,
    /// Identities that have sessions.
    clients: HashMap<String, Client>,
    last_number: u64,
}

/// One identity's sessions.
#[derive(Debug, Default)]
struct Client {
    owner: Arc<Owner>,
    sessions: usize,
    /// Where those that are away stand in `due`.
    due: BTreeSet<(Instant, u64)>,
}

impl Inner {
    fn add(&mut self, handle: &Arc<Handle>) {
        self.by_key.insert(handle.key.clone(), handle.clone());
        self.clients.entry(handle.key.0.clone()).or_default().sessions += 1;
    }

    fn remove(&mut self, key: &SessionKey) -> Option<Arc<Handle>> {
        let handle = self.by_key.remove(key)?;
        // What a burst of sessions took is given back.
        if self.by_key.capacity() > ROOMY * self.by_key.len() + ROOM_MIN {
            self.by_key.shrink_to_fit();
            self.clients.shrink_to_fit();
        }
        if let Some(client) = self.clients.get_mut(&key.0) {
            client.sessions -= 1;
            if client.sessions == 0 {
                self.clients.remove(&key.0);
            }
        }
        Some(handle)
    }

    fn put_due(&mut self, due: Instant, handle: Arc<Handle>) {
        let place = (due, handle.number);
        if let Some(client) = self.clients.get_mut(&handle.key.0) {
            client.due.insert(place);
        }
        self.due.insert(place, handle);
    }

    fn take_due(&mut self, place: (Instant, u64)) -> Option<Arc<Handle>> {
        let handle = self.due.remove(&place)?;
        if let Some(client) = self.clients.get_mut(&handle.key.0) {
            client.due.remove(&place);
        }
        Some(handle)
    }

    /// The session that ends first where there are more than may be kept: of this identity, else of all.
    fn beyond(&self, identity: &str, kept_max: usize) -> Option<(Instant, u64)> {
        let own = self.clients.get(identity).filter(|client| client.due.len() > kept_per_client(kept_max));
        if let Some(client) = own {
            return client.due.first().copied();
        }
        self.due.first_key_value().filter(|_| self.due.len() > kept_max).map(|(place, _)| *place)
    }
}

fn kept_per_client(kept_max: usize) -> usize {
    (kept_max / KEPT_PART).max(KEPT_PER_CLIENT_MIN)
}

impl Sessions {
    /// None yet.
    pub fn new(bounds: SessionBounds, metrics: Arc<Metrics>) -> Self {
        Self { inner: Mutex::default(), bounds, metrics }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client connects: its session, whether it is an old one, and what is left of what it replaces. An older connection
    /// of the same key is told to go.
    pub fn enter(&self, key: SessionKey, link: &Arc<Link>, entering: Entering) -> (Arc<Handle>, bool, Vec<Leftovers>) {
        let mut inner = self.lock();
        let mut leftovers = Vec::new();
        let mut resumed = None;
        if let Some(old) = inner.by_key.get(&key).cloned() {
            let mut held = old.lock();
            if let Some(away) = held.away.take() {
                inner.take_due((away.due, old.number));
            }
            let was_here = held.link.take();
            if let Some(link) = &was_here {
                self.metrics.takeovers.inc();
                link.take_over();
                self.detach(&mut held);
            }
            let resumes = !entering.clean && !held.expiry.is_zero();
            // A will without a delay is due when its connection is closed; a delayed one when the session ends.
            let will = held.will.take().filter(|will| !resumes || (was_here.is_some() && will.delay.is_zero()));
            if resumes {
                if will.is_some() {
                    leftovers.push(Leftovers::of(&old, will));
                }
                drop(held);
                resumed = Some(old);
            } else {
                leftovers.push(self.end(&old, &mut held, will));
                drop(held);
                inner.remove(&key);
            }
        }
        let present = resumed.is_some();
        let handle = resumed.unwrap_or_else(|| {
            inner.last_number += 1;
            let owner = inner.clients.get(&key.0).map(|client| client.owner.clone());
            let known = owner.is_some();
            let owner = owner.unwrap_or_default();
            let handle = Arc::new(Handle::of(owner.clone(), inner.last_number, key, self.bounds.queue));
            inner.add(&handle);
            if !known && let Some(client) = inner.clients.get_mut(&handle.key.0) {
                client.owner = owner;
            }
            handle
        });
        let mut held = handle.lock();
        held.session.attach(entering.window);
        held.link = Some(link.clone());
        held.expiry = entering.expiry;
        held.will = entering.will;
        drop(held);
        self.gauges(&inner);
        (handle, present, leftovers)
    }

    /// Ends the sessions of identities, of clients that are here and of those that are away; wills are not published.
    pub fn end_of(&self, identities: &[String]) -> Vec<Leftovers> {
        let mut inner = self.lock();
        let concerned = inner.by_key.keys().filter(|(identity, _)| identities.contains(identity));
        let keys: Vec<SessionKey> = concerned.cloned().collect();
        let mut leftovers = Vec::new();
        for key in keys {
            let Some(handle) = inner.by_key.get(&key).cloned() else { continue };
            let mut held = handle.lock();
            if let Some(away) = held.away.take() {
                inner.take_due((away.due, handle.number));
            }
            inner.remove(&key);
            if let Some(link) = held.link.take() {
                link.end();
                self.detach(&mut held);
            }
            held.will = None;
            leftovers.push(self.end(&handle, &mut held, None));
        }
        self.gauges(&inner);
        leftovers
    }

    /// A connection is over; `None` when a newer one has the session.
    pub fn leave(&self, handle: &Arc<Handle>, link: &Arc<Link>, leaving: Leaving, now: Instant) -> Vec<Leftovers> {
        let mut inner = self.lock();
        let Some(mut held) = handle.lock_for(link) else { return Vec::new() };
        held.link = None;
        self.detach(&mut held);
        if let Some(expiry) = leaving.expiry {
            held.expiry = expiry;
        }
        if !leaving.with_will {
            held.will = None;
        }
        let mut leftovers = Vec::new();
        if held.expiry.is_zero() {
            let will = held.will.take();
            leftovers.push(self.end(handle, &mut held, will));
            drop(held);
            inner.remove(&handle.key);
        } else {
            let ends_at = now + held.expiry;
            let delay = held.will.as_ref().map(|will| will.delay.min(held.expiry));
            let will = if delay == Some(Duration::ZERO) { held.will.take() } else { None };
            let will_at = delay.filter(|delay| !delay.is_zero()).map(|delay| now + delay);
            let due = will_at.unwrap_or(ends_at);
            held.away = Some(Away { ends_at, due });
            let groups = held.session.groups();
            drop(held);
            leftovers.push(Leftovers { groups, ..Leftovers::of(handle, will) });
            inner.put_due(due, handle.clone());
            let beyond = inner.beyond(&handle.key.0, self.bounds.kept_max);
            if let Some(first) = beyond.and_then(|place| inner.take_due(place)) {
                self.metrics.sessions_dropped.inc();
                leftovers.push(self.end_away(&mut inner, &first));
            }
        }
        self.gauges(&inner);
        leftovers
    }

    /// Wills and ends that are due.
    pub fn due(&self, now: Instant) -> Vec<Leftovers> {
        let mut inner = self.lock();
        let mut leftovers = Vec::new();
        while let Some(place) = inner.due.first_key_value().map(|(place, _)| *place).filter(|place| place.0 <= now) {
            let Some(handle) = inner.take_due(place) else { break };
            let mut held = handle.lock();
            let Some(away) = held.away else { continue };
            if away.ends_at > now {
                let will = held.will.take();
                held.away = Some(Away { due: away.ends_at, ..away });
                drop(held);
                leftovers.push(Leftovers::of(&handle, will));
                inner.put_due(away.ends_at, handle);
            } else {
                drop(held);
                self.metrics.sessions_expired.inc();
                leftovers.push(self.end_away(&mut inner, &handle));
            }
        }
        self.gauges(&inner);
        leftovers
    }

    /// When [`Sessions::due`] is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        self.lock().due.first_key_value().map(|((due, _), _)| *due)
    }

    /// How many clients are here, and how many are away and kept.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.by_key.len() - inner.due.len(), inner.due.len())
    }

    fn end_away(&self, inner: &mut Inner, handle: &Arc<Handle>) -> Leftovers {
        let mut held = handle.lock();
        held.away = None;
        let will = held.will.take();
        let leftovers = self.end(handle, &mut held, will);
        drop(held);
        inner.remove(&handle.key);
        leftovers
    }

    fn detach(&self, held: &mut Held) {
        if let Some(replays) = held.replays() {
            replays.detach();
        }
        Handle::with(held, &self.metrics, Session::detach);
    }

    /// Ends a session.
    fn end(&self, handle: &Arc<Handle>, held: &mut Held, will: Option<Will>) -> Leftovers {
        held.ended = true;
        held.link = None;
        let filters = std::mem::take(&mut held.filters).into_iter().collect();
        (held.filter_bytes, held.filter_levels, held.replays) = (0, 0, None);
        let shared = Handle::with(held, &self.metrics, |session| session.take_shared(None));
        let before = held.session.bytes();
        held.session = Session::new(self.bounds.queue);
        held.count_bytes(before, &self.metrics);
        Leftovers { filters, shared, ..Leftovers::of(handle, will) }
    }

    fn gauges(&self, inner: &Inner) {
        self.metrics.sessions.set(inner.by_key.len() as i64);
        self.metrics.sessions_kept.set(inner.due.len() as i64);
    }
}

impl Leftovers {
    fn of(handle: &Arc<Handle>, will: Option<Will>) -> Self {
        Self { handle: handle.clone(), filters: Vec::new(), shared: Vec::new(), groups: Vec::new(), will }
    }
}

#[cfg(test)]
mod tests;
