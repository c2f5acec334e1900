//! The line between a connection's task and everybody who has something for it: one bell, and what to do when it rings.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use wholegrain_model::Schema;
use wholegrain_store::{AppendOutcome, StoreError};
use wholegrain_transport::mqtt::ReasonCode;

use super::pipeline::RegisterError;
use crate::interop::run::{Named, Names};

/// What comes back from the store's threads.
#[derive(Debug)]
pub(super) enum Event {
    Appended(u64, Result<AppendOutcome, StoreError>),
    /// A batch of a schema that is not this client's, or a job's record that it may not send, and why.
    Denied(u64, ReasonCode, String),
    Registered(u64, Result<Schema, RegisterError>),
    Named(u64, Names, Result<Vec<Named>, StoreError>),
}

/// One connection's. The events are bounded by the publishes that it has in flight.
#[derive(Debug, Default)]
pub struct Link {
    /// Rung, and not yet heard.
    bell: AtomicBool,
    /// The task, which alone waits for it.
    waker: AtomicWaker,
    taken_over: AtomicBool,
    ended: AtomicBool,
    events: Mutex<Vec<Event>>,
}

impl Link {
    /// Wakes the task: there may be messages in the session.
    pub fn ring(&self) {
        // Who rang before and was not heard yet wakes it.
        if !self.bell.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
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
        poll_fn(|context| self.poll_rung(context)).await;
    }

    fn poll_rung(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.bell.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // It may have rung in between.
        if self.bell.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// How long the test may wait for one ring.
    const DEADLINE: Duration = Duration::from_secs(20);

    #[test]
    fn whatever_is_sent_is_heard_of_in_its_order() {
        let (link, count) = (Arc::new(Link::default()), 50_000);
        let sender = link.clone();
        let sending = std::thread::spawn(move || {
            for ticket in 0..count {
                sender.send(Event::Appended(ticket, Ok(AppendOutcome::Stored)));
                // So that the other side often goes to sleep just then.
                std::thread::yield_now();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut next = 0;
            while next < count {
                tokio::time::timeout(DEADLINE, link.rung()).await.expect("a ring for what was sent");
                for event in link.take_events() {
                    assert!(
                        matches!(event, Event::Appended(ticket, Ok(_)) if ticket == next),
                        "{event:?} after {next}"
                    );
                    next += 1;
                }
            }
        });
        sending.join().unwrap();
    }

    #[test]
    fn a_wait_that_is_given_up_loses_no_ring() {
        let (link, mut context) = (Link::default(), Context::from_waker(std::task::Waker::noop()));
        assert!(link.poll_rung(&mut context).is_pending());
        link.ring();
        link.ring();
        assert!(link.poll_rung(&mut context).is_ready(), "rung while nobody waited any more");
        assert!(link.poll_rung(&mut context).is_pending(), "two rings are one");
        link.end();
        assert!(link.poll_rung(&mut context).is_ready() && link.is_ended());
    }
}
