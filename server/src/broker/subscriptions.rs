//! Who gets which message: filters without wildcards by name, those with wildcards one by one, and retained messages.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use wholegrain_transport::mqtt::{self, RetainHandling};

use super::mailbox::Mailbox;
use crate::metrics::Metrics;

/// The most retained messages.
pub const RETAINED_MAX: usize = 65_536;
/// The most bytes of retained messages, topics included.
pub const RETAINED_BYTES_MAX: usize = 256 << 20;

/// A message on its way to subscribers. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published.
    pub topic: Arc<str>,
    /// What.
    pub payload: Bytes,
    /// Whether it is a retained one, sent because of a new subscription.
    pub retain: bool,
}

/// A connection's number, never used again in this process.
pub type ConnectionId = u64;

/// Whom a subscription's messages go to, and which.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// The subscribing connection.
    pub id: ConnectionId,
    /// Its bounded mailbox.
    pub mailbox: Mailbox,
    /// Not what the connection itself publishes (MQTT 5).
    pub no_local: bool,
    /// Retain flags as they were published (MQTT 5).
    pub retain_as_published: bool,
}

/// All subscriptions of all connections.
#[derive(Debug)]
pub struct Subscriptions {
    inner: RwLock<Inner>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Inner {
    exact: HashMap<String, BTreeMap<ConnectionId, Subscriber>>,
    wild: BTreeMap<(String, ConnectionId), Subscriber>,
    retained: HashMap<Arc<str>, Bytes>,
    retained_bytes: usize,
}

fn has_wildcard(filter: &str) -> bool {
    filter.contains(['+', '#'])
}

impl Subscriptions {
    /// None yet.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { inner: RwLock::default(), metrics }
    }

    /// Adds or renews one, and sends it the retained messages that it chooses, as `retained` says.
    pub fn subscribe(&self, filter: &str, subscriber: Subscriber, retained: RetainHandling) {
        let (id, mailbox) = (subscriber.id, subscriber.mailbox.clone());
        let mut inner = self.write();
        let new = if has_wildcard(filter) {
            inner.wild.insert((filter.to_owned(), id), subscriber).is_none()
        } else {
            inner.exact.entry(filter.to_owned()).or_default().insert(id, subscriber).is_none()
        };
        drop(inner);
        self.metrics.subscriptions.add(i64::from(new));
        let wanted = retained == RetainHandling::Send || (new && retained == RetainHandling::SendIfNew);
        if !wanted {
            return;
        }
        // There may be many: chosen beside the publishes that go on, and delivered without holding anything up.
        let inner = self.read();
        let chosen: Vec<Message> = if has_wildcard(filter) {
            inner.retained.iter().filter(|(topic, _)| mqtt::topic_matches(filter, topic)).map(as_retained).collect()
        } else {
            inner.retained.get_key_value(filter).map(as_retained).into_iter().collect()
        };
        drop(inner);
        for message in chosen {
            self.deliver(&mailbox, message);
        }
    }

    /// Takes one away; whether it was there.
    pub fn unsubscribe(&self, id: ConnectionId, filter: &str) -> bool {
        let mut inner = self.write();
        let was = if has_wildcard(filter) {
            inner.wild.remove(&(filter.to_owned(), id)).is_some()
        } else if let Some(senders) = inner.exact.get_mut(filter) {
            let was = senders.remove(&id).is_some();
            if senders.is_empty() {
                inner.exact.remove(filter);
            }
            was
        } else {
            false
        };
        self.metrics.subscriptions.add(-i64::from(was));
        was
    }

    /// Sends a message of connection `from` to each connection that wants it, once. Never waits: who does not keep up
    /// loses it, counted. `retain` is the flag that it was published with.
    pub fn publish(&self, from: ConnectionId, topic: &str, payload: &Bytes, retain: bool) {
        let inner = self.read();
        let exact = inner.exact.get(topic);
        if exact.is_none() && inner.wild.is_empty() {
            return;
        }
        let message = Message { topic: topic.into(), payload: payload.clone(), retain };
        let wild = inner
            .wild
            .iter()
            .filter(|((filter, _), _)| mqtt::topic_matches(filter, topic))
            .map(|(_, subscriber)| subscriber);
        let mut done = HashSet::new();
        for subscriber in exact.into_iter().flat_map(BTreeMap::values).chain(wild) {
            let own = subscriber.no_local && subscriber.id == from;
            if !own && done.insert(subscriber.id) {
                self.deliver(
                    &subscriber.mailbox,
                    Message { retain: retain && subscriber.retain_as_published, ..message.clone() },
                );
            }
        }
    }

    /// Keeps a topic's newest message for subscribers to come; an empty one takes it away.
    pub fn retain(&self, topic: &str, payload: &Bytes) {
        let mut inner = self.write();
        if let Some(old) = inner.retained.remove(topic) {
            inner.retained_bytes -= topic.len() + old.len();
        }
        if payload.is_empty() {
            return;
        }
        let bytes = topic.len() + payload.len();
        if inner.retained.len() >= RETAINED_MAX || inner.retained_bytes + bytes > RETAINED_BYTES_MAX {
            self.metrics.retained_dropped.inc();
            return;
        }
        inner.retained_bytes += bytes;
        // A copy: the payload is a slice of a receive buffer, which it would keep alive.
        inner.retained.insert(topic.into(), Bytes::copy_from_slice(payload));
    }

    fn deliver(&self, mailbox: &Mailbox, message: Message) {
        if !mailbox.put(message) {
            self.metrics.messages_dropped.inc();
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn as_retained((topic, payload): (&Arc<str>, &Bytes)) -> Message {
    Message { topic: topic.clone(), payload: payload.clone(), retain: true }
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::{Inbox, mailbox};
    use super::*;

    fn topics(inbox: &mut Inbox) -> Vec<(String, bool)> {
        std::iter::from_fn(|| inbox.take_now()).map(|m| (m.topic.to_string(), m.retain)).collect()
    }

    fn subscriber(id: ConnectionId, mailbox: &Mailbox) -> Subscriber {
        Subscriber { id, mailbox: mailbox.clone(), no_local: false, retain_as_published: false }
    }

    fn all() -> (Subscriptions, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::default());
        (Subscriptions::new(metrics.clone()), metrics)
    }

    #[test]
    fn each_connection_gets_a_message_once() {
        let (all, metrics) = all();
        let (tx, mut rx) = mailbox(10, 1000);
        for filter in ["a/b", "a/+", "a/#", "a/#"] {
            all.subscribe(filter, subscriber(1, &tx), RetainHandling::Send);
        }
        assert_eq!(metrics.subscriptions.get(), 3);
        all.publish(9, "a/b", &Bytes::from_static(b"x"), true);
        all.publish(9, "a/b/c", &Bytes::from_static(b"x"), true);
        all.publish(9, "b", &Bytes::from_static(b"x"), true);
        assert_eq!(topics(&mut rx), [("a/b".to_owned(), false), ("a/b/c".to_owned(), false)]);
        assert!(
            all.unsubscribe(1, "a/#")
                && all.unsubscribe(1, "a/b")
                && !all.unsubscribe(1, "a/b")
                && !all.unsubscribe(2, "a/+")
        );
        all.publish(9, "a/b/c", &Bytes::new(), true);
        all.publish(9, "a/b", &Bytes::new(), true);
        assert_eq!(topics(&mut rx), [("a/b".to_owned(), false)]);
        assert_eq!(metrics.subscriptions.get(), 1);
    }

    #[test]
    fn retained_messages_go_to_new_subscribers_and_can_be_taken_away() {
        let (all, _) = all();
        all.retain("s/a", &Bytes::from_static(b"1"));
        all.retain("s/a", &Bytes::from_static(b"2"));
        all.retain("s/b", &Bytes::from_static(b"3"));
        all.retain("s/b", &Bytes::new());
        let (tx, mut rx) = mailbox(10, 1000);
        all.subscribe("s/#", subscriber(1, &tx), RetainHandling::Send);
        let message = rx.take_now().unwrap();
        assert_eq!((&*message.topic, &message.payload[..], message.retain), ("s/a", &b"2"[..], true));
        assert!(rx.take_now().is_none());
        assert_eq!(all.write().retained_bytes, 4);
    }

    #[test]
    fn the_options_of_mqtt_5_hold() {
        let (all, _) = all();
        all.retain("t", &Bytes::from_static(b"1"));
        let (tx, mut rx) = mailbox(10, 1000);
        let one = Subscriber { no_local: true, retain_as_published: true, ..subscriber(1, &tx) };
        all.subscribe("t", one.clone(), RetainHandling::DoNotSend);
        all.subscribe("t", one.clone(), RetainHandling::SendIfNew);
        assert_eq!(topics(&mut rx), []);
        all.subscribe("t", one, RetainHandling::Send);
        all.publish(1, "t", &Bytes::new(), true);
        all.publish(2, "t", &Bytes::new(), true);
        all.publish(2, "t", &Bytes::new(), false);
        let t = "t".to_owned();
        assert_eq!(topics(&mut rx), [(t.clone(), true), (t.clone(), true), (t, false)]);
    }

    #[test]
    fn a_slow_subscriber_loses_messages_and_they_are_counted() {
        let (all, metrics) = all();
        let (tx, mut rx) = mailbox(2, 1000);
        all.subscribe("t", subscriber(1, &tx), RetainHandling::Send);
        for _ in 0..5 {
            all.publish(9, "t", &Bytes::new(), true);
        }
        assert_eq!((topics(&mut rx).len(), metrics.messages_dropped.get()), (2, 3));
    }
}
