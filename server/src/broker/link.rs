//! The line between a connection's task and everybody who has something for it: one bell, and what to do when it rings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use wholegrain_model::Schema;
use wholegrain_store::{Appended, StoreError};

use super::pipeline::RegisterError;
use crate::interop::run::{Named, Names};

/// What comes back from the store's threads.
#[derive(Debug)]
pub(super) enum Event {
    Appended(u64, Result<Appended, StoreError>),
    /// A batch of a schema that is not this client's, and why.
    Denied(u64, String),
    Registered(u64, Result<Schema, RegisterError>),
    Named(u64, Names, Result<Vec<Named>, StoreError>),
}

/// One connection's. The events are bounded by the publishes that it has in flight.
#[derive(Debug, Default)]
pub struct Link {
    bell: Notify,
    taken_over: AtomicBool,
    ended: AtomicBool,
    events: Mutex<Vec<Event>>,
}

impl Link {
    /// Wakes the task: there may be messages in the session.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// A newer connection has the session now.
    pub fn take_over(&self) {
        self.taken_over.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether a newer connection has the session.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over.load(Ordering::Acquire)
    }

    /// The session is over: its client counts no longer.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether the session was ended by [`Link::end`].
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn send(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.ring();
    }

    /// What came since the last time.
    pub(super) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the bell. Loses nothing when cancelled.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}
