//! The queue from the encoder to the sender, bounded in bytes; beyond the bound the oldest batches are dropped and counted.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::counters::AgentCounters;
use crate::state::{EncodedBatch, lock};
use crate::waker::Waker;

/// Batches that wait for the sender to take them.
#[derive(Debug)]
pub struct Outbox {
    inner: Mutex<Inner>,
    waker: Waker,
    counters: Arc<AgentCounters>,
}

#[derive(Debug)]
struct Inner {
    queue: VecDeque<Arc<EncodedBatch>>,
    /// Of the queue here.
    bytes: u64,
    /// Of what the sender has taken and still holds.
    held: u64,
    /// `None`: nobody sends, so nothing is kept.
    bytes_max: Option<u64>,
}

impl Outbox {
    /// An empty one; `None` for an agent that sends nothing.
    pub fn new(bytes_max: Option<u64>, counters: Arc<AgentCounters>) -> std::io::Result<Self> {
        let inner = Inner { queue: VecDeque::new(), bytes: 0, held: 0, bytes_max };
        Ok(Self { inner: Mutex::new(inner), waker: Waker::new()?, counters })
    }

    /// What wakes the sender.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Another bound, or none that sends any more.
    pub fn set_bytes_max(&self, bytes_max: Option<u64>) {
        let mut inner = lock(&self.inner);
        inner.bytes_max = bytes_max;
        if bytes_max.is_none() {
            inner.queue.clear();
            inner.bytes = 0;
        }
    }

    /// Puts batches at the end and, when it is `time` to send, wakes the sender. The sender keeps what it holds below the bound itself; only when it is stuck is the oldest
    /// dropped here.
    pub fn push(&self, batches: &mut Vec<Arc<EncodedBatch>>, time: bool) {
        let mut inner = lock(&self.inner);
        let Some(bytes_max) = inner.bytes_max else {
            batches.clear();
            return;
        };
        for batch in batches.drain(..) {
            inner.bytes += batch.bytes();
            inner.queue.push_back(batch);
        }
        while inner.bytes + inner.held > bytes_max && inner.queue.len() > 1 {
            if let Some(oldest) = inner.queue.pop_front() {
                inner.bytes -= oldest.bytes();
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.counters.queue_bytes.store(inner.bytes + inner.held, Ordering::Relaxed);
        // Long before something would have to be dropped.
        let much = inner.bytes > bytes_max / 8;
        drop(inner);
        if time || much {
            self.waker.wake();
        }
    }

    /// Moves everything to the end of `into`; `held` is what the caller already holds, in bytes.
    pub fn take(&self, into: &mut VecDeque<Arc<EncodedBatch>>, held: u64) {
        let mut inner = lock(&self.inner);
        into.append(&mut inner.queue);
        inner.held = held + inner.bytes;
        inner.bytes = 0;
        self.counters.queue_bytes.store(inner.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn batch(seq: u64, bytes: usize) -> Arc<EncodedBatch> {
        let schema = wholegrain_model::Schema::new(
            wholegrain_model::SensorPath::new("/n").unwrap(),
            "g",
            vec![wholegrain_model::SensorDef::gauge("a", "1", "")],
        );
        Arc::new(EncodedBatch {
            payload: vec![0; bytes].into(),
            schema: schema.unwrap(),
            topic: "t".into(),
            seq,
            first: 0,
            last: 0,
            samples: 1,
            made_mono: 0,
        })
    }

    #[test]
    fn a_stuck_sender_costs_the_oldest_and_each_is_counted() {
        let counters = Arc::new(AgentCounters::default());
        let outbox = Outbox::new(Some(10_000), counters.clone()).unwrap();
        for seq in 1..=20 {
            outbox.push(&mut vec![batch(seq, 1_000)], true);
        }
        let mut taken = VecDeque::new();
        outbox.take(&mut taken, 0);
        assert_eq!(taken.iter().map(|batch| batch.seq).collect::<Vec<_>>(), (13..=20).collect::<Vec<_>>());
        assert_eq!(counters.dropped.load(Ordering::Relaxed), 12);
        outbox.push(&mut vec![batch(21, 1_000), batch(22, 1_000)], true);
        outbox.take(&mut taken, 9_000);
        assert_eq!(taken.back().unwrap().seq, 22, "what the sender holds counts, but the newest is always kept");
        assert_eq!(taken.len(), 9);
    }

    #[test]
    fn the_sender_is_woken_when_it_is_time_or_there_is_much() {
        let rings = |outbox: &Outbox| {
            let mut fd = libc::pollfd { fd: outbox.waker().fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which outlives the call.
            let count = unsafe { libc::poll(&mut fd, 1, 0) };
            outbox.waker().reset();
            count == 1
        };
        let outbox = Outbox::new(Some(10_000), Arc::default()).unwrap();
        outbox.push(&mut vec![batch(1, 100)], false);
        assert!(!rings(&outbox), "not yet");
        outbox.push(&mut vec![batch(2, 100)], true);
        assert!(rings(&outbox), "it is time");
        outbox.push(&mut vec![batch(3, 1_000)], false);
        assert!(rings(&outbox), "an eighth of the bound");
    }

    #[test]
    fn without_a_server_nothing_is_kept() {
        let outbox = Outbox::new(None, Arc::default()).unwrap();
        outbox.push(&mut vec![batch(1, 10)], true);
        let mut taken = VecDeque::new();
        outbox.take(&mut taken, 0);
        assert!(taken.is_empty());
    }
}
