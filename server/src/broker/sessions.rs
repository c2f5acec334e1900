//! The registry of sessions: connected and disconnected clients, and when a will or the end of a session is due. Time is an argument.
//!
//! Lock order: subscriptions, then this registry, then one session. Nothing is called with a lock held; work that must happen outside is returned as
//! [`SessionCleanup`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_transport::mqtt::{self, Properties, QoS};

use super::message::{Delivery, forwarded};
use super::replay::{RetainedReplay, RetainedReplays, SendStep};
use super::session::{QueueBounds, QueueOutcome, Session};
use super::signals::ConnectionSignals;
use super::trie::LEVELS_MAX;
use crate::metrics::Metrics;

/// The most bytes of one session's filters: with the limit on sessions it bounds their memory. The longest filter that MQTT allows fits.
pub const FILTERS_BYTES_MAX: usize = 96 << 10;
/// The most levels that one session's filters may have on average when it has the maximum number of filters. Each level takes some 300 bytes,
/// however short it is.
pub const FILTER_LEVELS_MEAN_MAX: usize = 16;

/// One identity may have this fraction (1/n) of the kept sessions of disconnected clients; at least [`KEPT_PER_CLIENT_MIN`].
pub const KEPT_PART: usize = 64;
pub const KEPT_PER_CLIENT_MIN: usize = 16;
/// The sessions of one identity may queue this fraction (1/n) of the bytes of all; at least the limit of one session.
pub const QUEUED_PART: usize = 8;
/// A registry with this many times the capacity that it needs, plus [`ROOM_MIN`], shrinks.
const ROOMY: usize = 8;
const ROOM_MIN: usize = 1024;
/// A message up to this size is queued for a session with an empty queue, whatever other sessions hold: commands of the server are this small.
pub const SPARE_BYTES: usize = 16 << 10;

/// Identity and client identifier: no client can resume the session of another identity.
pub type SessionKey = (String, String);

/// The will of a client (MQTT: last will).
#[derive(Debug, Clone)]
pub struct Will {
    pub topic: String,
    pub payload: Bytes,
    pub qos: QoS,
    /// Whether it is retained for later subscribers.
    pub retain: bool,
    /// The properties that subscribers receive, and its expiry.
    pub properties: Properties,
    /// How long the client may be disconnected before the will is published.
    pub delay: Duration,
    pub identity: String,
    /// Whether the client is unauthenticated.
    pub anonymous: bool,
}

impl Will {
    /// The will of a CONNECT; copied, because the received one keeps its buffer alive.
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
pub struct SessionHandle {
    /// Unique in this process; 0 is no session.
    pub number: u64,
    pub key: SessionKey,
    held: Mutex<SessionState>,
}

/// Counters that the sessions of one identity share.
#[derive(Debug, Default)]
struct SessionOwner {
    /// Bytes queued or unacknowledged.
    queued_bytes: AtomicI64,
}

/// The state of a session, behind the lock of its handle.
#[derive(Debug)]
pub struct SessionState {
    owner: Arc<SessionOwner>,
    pub session: Session,
    /// Retained messages that are still to be sent to it.
    replays: Option<Box<RetainedReplays>>,
    filters: HashSet<Box<str>>,
    filter_bytes: usize,
    filter_levels: usize,
    /// Whether it is over: no subscription may be added.
    pub ended: bool,
    link: Option<Arc<ConnectionSignals>>,
    will: Option<Will>,
    /// How long it is kept after the connection.
    expiry: Duration,
    /// While the client is disconnected: when the session ends, and its key in the registry's order of deadlines.
    disconnected: Option<Disconnected>,
}

#[derive(Debug, Clone, Copy)]
struct Disconnected {
    ends_at: Instant,
    due: Instant,
}

impl SessionHandle {
    /// A new session of an identity without others.
    #[cfg(test)]
    pub fn new(number: u64, key: SessionKey, bounds: QueueBounds) -> Self {
        Self::of(Arc::default(), number, key, bounds)
    }

    fn of(owner: Arc<SessionOwner>, number: u64, key: SessionKey, bounds: QueueBounds) -> Self {
        let session = Session::new(bounds);
        let (link, will, disconnected) = (None, None, None);
        let held = SessionState {
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
            disconnected,
        };
        Self { number, key, held: Mutex::new(held) }
    }

    /// Its parts.
    pub fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its client is connected.
    pub fn is_here(&self) -> bool {
        self.lock().link.is_some()
    }

    /// The locked state, if `link` is still the session's connection.
    pub fn lock_for(&self, link: &Arc<ConnectionSignals>) -> Option<MutexGuard<'_, SessionState>> {
        let held = self.lock();
        held.link.as_ref().is_some_and(|own| Arc::ptr_eq(own, link)).then_some(held)
    }

    /// Queues a message without waiting. `total_bytes_max` limits the bytes queued in all sessions.
    pub fn deliver(&self, delivery: Delivery, total_bytes_max: usize, metrics: &Metrics) -> QueueOutcome {
        let mut held = self.lock();
        if held.ended {
            return QueueOutcome::Away;
        }
        let is_full = metrics.queued_bytes.get() >= total_bytes_max as i64
            || held.owner.queued_bytes.load(Relaxed) >= held.client_bytes_max(total_bytes_max);
        if is_full && (held.session.bytes() > 0 || delivery.message.size() > SPARE_BYTES) {
            return QueueOutcome::Full;
        }
        let before = held.session.bytes();
        let put = held.session.deliver(delivery);
        held.count_bytes(before, metrics);
        if put == QueueOutcome::Queued
            && let Some(link) = &held.link
        {
            link.wake();
        }
        put
    }

    /// Runs `act` on the session and counts the bytes that it freed.
    pub fn with<T>(held: &mut SessionState, metrics: &Metrics, act: impl FnOnce(&mut Session) -> T) -> T {
        let before = held.session.bytes();
        let result = act(&mut held.session);
        held.count_bytes(before, metrics);
        result
    }
}

fn levels(filter: &str) -> usize {
    filter.split('/').count()
}

impl SessionState {
    /// The bytes that the sessions of its identity may queue.
    fn client_bytes_max(&self, total_bytes_max: usize) -> i64 {
        (total_bytes_max / QUEUED_PART).max(self.session.bytes_max()) as i64
    }

    /// Counts the change of the session's bytes.
    fn count_bytes(&self, before: usize, metrics: &Metrics) {
        let change = self.session.bytes() as i64 - before as i64;
        if change != 0 {
            metrics.queued_bytes.add(change);
            self.owner.queued_bytes.fetch_add(change, Relaxed);
        }
    }

    /// Records a subscription; false if there is no room.
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

    /// Removes a subscription; returns whether there was one.
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

    /// Starts a replay of retained messages.
    pub fn start_replay(&mut self, replay: RetainedReplay) {
        self.replays.get_or_insert_default().start(replay);
    }

    /// The next step: retained messages first, unless the queue is crowded.
    pub fn next_step(&self) -> SendStep {
        match &self.replays {
            Some(replays) if !self.session.is_crowded() => replays.next_step(&self.session),
            _ => SendStep::Queue,
        }
    }

    /// The next step if nothing in the queue may be sent.
    pub fn next_step_when_blocked(&self) -> SendStep {
        match &self.replays {
            Some(replays) if self.session.is_crowded() => replays.next_step(&self.session),
            _ => SendStep::Queue,
        }
    }

    pub fn replays(&mut self) -> Option<&mut RetainedReplays> {
        if self.replays.as_ref().is_some_and(|replays| replays.is_empty()) {
            self.replays = None;
        }
        self.replays.as_deref_mut()
    }
}

/// Work that is left for a session, to be done without locks.
#[derive(Debug)]
pub struct SessionCleanup {
    pub handle: Arc<SessionHandle>,
    /// Subscriptions to be removed.
    pub filters: Vec<Box<str>>,
    /// Messages for other members of shared subscriptions.
    pub shared: Vec<Delivery>,
    /// Shared subscriptions whose messages may go to other members.
    pub groups: Vec<Arc<str>>,
    /// To be published.
    pub will: Option<Will>,
}

/// The session options of a connecting client.
#[derive(Debug)]
pub struct ConnectOptions {
    /// Whether an old session is discarded.
    pub clean: bool,
    /// How long the session is kept after the connection.
    pub expiry: Duration,
    /// The client's receive maximum.
    pub window: u16,
    /// Published if the client disconnects abnormally.
    pub will: Option<Will>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy)]
pub struct DisconnectOptions {
    /// Whether the will is published.
    pub with_will: bool,
    /// The session expiry from DISCONNECT, if given.
    pub expiry: Option<Duration>,
}

/// Limits of the registry.
#[derive(Debug, Clone, Copy)]
pub struct SessionBounds {
    /// Sessions of disconnected clients.
    pub kept_max: usize,
    /// Of each session.
    pub queue: QueueBounds,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    inner: Mutex<SessionRegistry>,
    bounds: SessionBounds,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct SessionRegistry {
    by_key: HashMap<SessionKey, Arc<SessionHandle>>,
    /// Disconnected sessions by their next deadline.
    due: BTreeMap<(Instant, u64), Arc<SessionHandle>>,
    /// Identities that have sessions.
    clients: HashMap<String, OwnerSessions>,
    last_number: u64,
}

/// One identity's sessions.
#[derive(Debug, Default)]
struct OwnerSessions {
    owner: Arc<SessionOwner>,
    sessions: usize,
    /// Keys in `due` of the disconnected sessions.
    due: BTreeSet<(Instant, u64)>,
}

impl SessionRegistry {
    fn add(&mut self, handle: &Arc<SessionHandle>) {
        self.by_key.insert(handle.key.clone(), handle.clone());
        self.clients.entry(handle.key.0.clone()).or_default().sessions += 1;
    }

    fn remove(&mut self, key: &SessionKey) -> Option<Arc<SessionHandle>> {
        let handle = self.by_key.remove(key)?;
        // Returns the memory of a burst of sessions.
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

    fn put_due(&mut self, due: Instant, handle: Arc<SessionHandle>) {
        let place = (due, handle.number);
        if let Some(client) = self.clients.get_mut(&handle.key.0) {
            client.due.insert(place);
        }
        self.due.insert(place, handle);
    }

    fn take_due(&mut self, place: (Instant, u64)) -> Option<Arc<SessionHandle>> {
        let handle = self.due.remove(&place)?;
        if let Some(client) = self.clients.get_mut(&handle.key.0) {
            client.due.remove(&place);
        }
        Some(handle)
    }

    /// The session to end if there are more than allowed: the one that ends first, of this identity or of all.
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

    fn lock(&self) -> MutexGuard<'_, SessionRegistry> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client connects: returns its session, whether it was resumed, and the cleanup of what it replaces. Closes an older connection of the same
    /// key.
    pub fn enter(
        &self,
        key: SessionKey,
        link: &Arc<ConnectionSignals>,
        entering: ConnectOptions,
    ) -> (Arc<SessionHandle>, bool, Vec<SessionCleanup>) {
        let mut inner = self.lock();
        let mut leftovers = Vec::new();
        let mut resumed = None;
        if let Some(old) = inner.by_key.get(&key).cloned() {
            let mut held = old.lock();
            if let Some(disconnected) = held.disconnected.take() {
                inner.take_due((disconnected.due, old.number));
            }
            let was_here = held.link.take();
            if let Some(link) = &was_here {
                self.metrics.takeovers.inc();
                link.mark_replaced();
                self.detach(&mut held);
            }
            let resumes = !entering.clean && !held.expiry.is_zero();
            // A will without delay is due when its connection closes; a delayed one when the session ends.
            let will = held.will.take().filter(|will| !resumes || (was_here.is_some() && will.delay.is_zero()));
            if resumes {
                if will.is_some() {
                    leftovers.push(SessionCleanup::of(&old, will));
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
            let handle = Arc::new(SessionHandle::of(owner.clone(), inner.last_number, key, self.bounds.queue));
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

    /// Ends the sessions of identities, connected or not; wills are not published.
    pub fn end_of(&self, identities: &[String]) -> Vec<SessionCleanup> {
        let mut inner = self.lock();
        let concerned = inner.by_key.keys().filter(|(identity, _)| identities.contains(identity));
        let keys: Vec<SessionKey> = concerned.cloned().collect();
        let mut leftovers = Vec::new();
        for key in keys {
            let Some(handle) = inner.by_key.get(&key).cloned() else { continue };
            let mut held = handle.lock();
            if let Some(disconnected) = held.disconnected.take() {
                inner.take_due((disconnected.due, handle.number));
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

    /// A connection is over; `None` if a newer one has the session.
    pub fn leave(
        &self,
        handle: &Arc<SessionHandle>,
        link: &Arc<ConnectionSignals>,
        leaving: DisconnectOptions,
        now: Instant,
    ) -> Vec<SessionCleanup> {
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
            held.disconnected = Some(Disconnected { ends_at, due });
            let groups = held.session.groups();
            drop(held);
            leftovers.push(SessionCleanup { groups, ..SessionCleanup::of(handle, will) });
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
    pub fn due(&self, now: Instant) -> Vec<SessionCleanup> {
        let mut inner = self.lock();
        let mut leftovers = Vec::new();
        while let Some(place) = inner.due.first_key_value().map(|(place, _)| *place).filter(|place| place.0 <= now) {
            let Some(handle) = inner.take_due(place) else { break };
            let mut held = handle.lock();
            let Some(disconnected) = held.disconnected else { continue };
            if disconnected.ends_at > now {
                let will = held.will.take();
                held.disconnected = Some(Disconnected { due: disconnected.ends_at, ..disconnected });
                drop(held);
                leftovers.push(SessionCleanup::of(&handle, will));
                inner.put_due(disconnected.ends_at, handle);
            } else {
                drop(held);
                self.metrics.sessions_expired.inc();
                leftovers.push(self.end_away(&mut inner, &handle));
            }
        }
        self.gauges(&inner);
        leftovers
    }

    /// When [`Sessions::due`] must be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.lock().due.first_key_value().map(|((due, _), _)| *due)
    }

    /// The number of connected clients, and of kept sessions of disconnected ones.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.by_key.len() - inner.due.len(), inner.due.len())
    }

    fn end_away(&self, inner: &mut SessionRegistry, handle: &Arc<SessionHandle>) -> SessionCleanup {
        let mut held = handle.lock();
        held.disconnected = None;
        let will = held.will.take();
        let leftovers = self.end(handle, &mut held, will);
        drop(held);
        inner.remove(&handle.key);
        leftovers
    }

    fn detach(&self, held: &mut SessionState) {
        if let Some(replays) = held.replays() {
            replays.detach();
        }
        SessionHandle::with(held, &self.metrics, Session::detach);
    }

    /// Ends a session.
    fn end(&self, handle: &Arc<SessionHandle>, held: &mut SessionState, will: Option<Will>) -> SessionCleanup {
        held.ended = true;
        held.link = None;
        let filters = std::mem::take(&mut held.filters).into_iter().collect();
        (held.filter_bytes, held.filter_levels, held.replays) = (0, 0, None);
        let shared = SessionHandle::with(held, &self.metrics, |session| session.take_shared(None));
        let before = held.session.bytes();
        held.session = Session::new(self.bounds.queue);
        held.count_bytes(before, &self.metrics);
        SessionCleanup { filters, shared, ..SessionCleanup::of(handle, will) }
    }

    fn gauges(&self, inner: &SessionRegistry) {
        self.metrics.sessions.set(inner.by_key.len() as i64);
        self.metrics.sessions_kept.set(inner.due.len() as i64);
    }
}

impl SessionCleanup {
    fn of(handle: &Arc<SessionHandle>, will: Option<Will>) -> Self {
        Self { handle: handle.clone(), filters: Vec::new(), shared: Vec::new(), groups: Vec::new(), will }
    }
}

#[cfg(test)]
mod tests;
