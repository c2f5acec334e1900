//! Signals to a connection's task: a waker, flags, and events of the store.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use crate::ingest::StoreEvent;

/// The signals of one connection. Its publishes in flight bound the events.
#[derive(Debug, Default)]
pub struct ConnectionSignals {
    /// Set by a wake-up, cleared by the task.
    is_woken: AtomicBool,
    /// Only the connection's task waits.
    waker: AtomicWaker,
    replaced: AtomicBool,
    ended: AtomicBool,
    events: Mutex<Vec<StoreEvent>>,
}

impl ConnectionSignals {
    /// Wakes the task: the session may have messages.
    pub fn wake(&self) {
        // If the flag is set, the task has been woken already.
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// A newer connection has the session now.
    pub fn mark_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
        self.wake();
    }

    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// The session is over: its client is no longer authorized.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether [`ConnectionSignals::end`] was called.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn send(&self, event: StoreEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        self.wake();
    }

    /// The events since the last call.
    pub(super) fn take_events(&self) -> Vec<StoreEvent> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a wake-up. Safe to cancel.
    pub(super) async fn wait(&self) {
        poll_fn(|context| self.poll_wait(context)).await;
    }

    fn poll_wait(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // It may have been set in between.
        if self.is_woken.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use wholegrain_store::AppendOutcome;

    use super::*;

    /// How long the test may wait for one ring.
    const DEADLINE: Duration = Duration::from_secs(20);

    #[test]
    fn events_arrive_in_the_order_of_sending() {
        let (link, count) = (Arc::new(ConnectionSignals::default()), 50_000);
        let sender = link.clone();
        let sending = std::thread::spawn(move || {
            for ticket in 0..count {
                sender.send(StoreEvent::Appended(ticket, Ok(AppendOutcome::Stored)));
                // So that the other side often goes to sleep just then.
                std::thread::yield_now();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut next = 0;
            while next < count {
                tokio::time::timeout(DEADLINE, link.wait()).await.expect("a wake-up for the event");
                for event in link.take_events() {
                    assert!(
                        matches!(event, StoreEvent::Appended(ticket, Ok(_)) if ticket == next),
                        "{event:?} after {next}"
                    );
                    next += 1;
                }
            }
        });
        sending.join().unwrap();
    }

    #[test]
    fn a_cancelled_wait_loses_no_wake_up() {
        let (link, mut context) = (ConnectionSignals::default(), Context::from_waker(std::task::Waker::noop()));
        assert!(link.poll_wait(&mut context).is_pending());
        link.wake();
        link.wake();
        assert!(link.poll_wait(&mut context).is_ready(), "rung while nobody waited any more");
        assert!(link.poll_wait(&mut context).is_pending(), "two rings are one");
        link.end();
        assert!(link.poll_wait(&mut context).is_ready() && link.is_ended());
    }
}
