//! Batches between the encoder and the sender.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::batch::EncodedBatch;
use crate::counters::AgentCounters;
use crate::sync::lock;
use crate::waker::Waker;

/// The encoder's end of the send queue: batches that the sender has not taken yet. Held for moments only, whatever the sender does.
#[derive(Debug)]
pub struct IncomingBatches {
    state: Mutex<IncomingState>,
    sender_waker: Arc<Waker>,
    counters: Arc<AgentCounters>,
}

#[derive(Debug)]
struct IncomingState {
    batches: VecDeque<Arc<EncodedBatch>>,
    bytes: u64,
    /// Bytes that the sender has taken and still holds.
    sender_bytes: u64,
    /// `None` without a server: batches are discarded.
    bytes_max: Option<u64>,
}

impl IncomingBatches {
    pub fn new(bytes_max: Option<u64>, counters: Arc<AgentCounters>, sender_waker: Arc<Waker>) -> Self {
        let state = IncomingState { batches: VecDeque::new(), bytes: 0, sender_bytes: 0, bytes_max };
        Self { state: Mutex::new(state), sender_waker, counters }
    }

    /// Sets the bound of the whole send queue in memory.
    pub fn set_bytes_max(&self, bytes_max: Option<u64>) {
        let mut state = lock(&self.state);
        state.bytes_max = bytes_max;
        if bytes_max.is_none() {
            state.batches.clear();
            state.bytes = 0;
        }
    }

    /// Appends batches, and wakes the sender if `is_due` or if much waits. The sender keeps its own part within the bound; the oldest batch is
    /// dropped here only if the sender is stuck.
    pub fn push(&self, batches: &mut Vec<Arc<EncodedBatch>>, is_due: bool) {
        let mut state = lock(&self.state);
        let Some(bytes_max) = state.bytes_max else {
            batches.clear();
            return;
        };
        for batch in batches.drain(..) {
            state.bytes += batch.bytes();
            state.batches.push_back(batch);
        }
        while state.bytes + state.sender_bytes > bytes_max && state.batches.len() > 1 {
            if let Some(oldest) = state.batches.pop_front() {
                state.bytes -= oldest.bytes();
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.counters.queue_bytes.store(state.bytes + state.sender_bytes, Ordering::Relaxed);
        // Long before a batch would have to be dropped.
        let is_much = state.bytes > bytes_max / 8;
        drop(state);
        if is_due || is_much {
            self.sender_waker.wake();
        }
    }

    /// Moves all batches to the end of `into`; `sender_bytes` are those that the sender holds already.
    pub fn take(&self, into: &mut VecDeque<Arc<EncodedBatch>>, sender_bytes: u64) {
        let mut state = lock(&self.state);
        into.append(&mut state.batches);
        state.sender_bytes = sender_bytes + state.bytes;
        state.bytes = 0;
        self.counters.queue_bytes.store(state.sender_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn waker() -> Arc<Waker> {
        Arc::new(Waker::new().unwrap())
    }

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
        let incoming = IncomingBatches::new(Some(10_000), counters.clone(), waker());
        for seq in 1..=20 {
            incoming.push(&mut vec![batch(seq, 1_000)], true);
        }
        let mut taken = VecDeque::new();
        incoming.take(&mut taken, 0);
        assert_eq!(taken.iter().map(|batch| batch.seq).collect::<Vec<_>>(), (13..=20).collect::<Vec<_>>());
        assert_eq!(counters.dropped.load(Ordering::Relaxed), 12);
        incoming.push(&mut vec![batch(21, 1_000), batch(22, 1_000)], true);
        incoming.take(&mut taken, 9_000);
        assert_eq!(taken.back().unwrap().seq, 22, "the sender's bytes count, but the newest batch is always kept");
        assert_eq!(taken.len(), 9);
    }

    #[test]
    fn the_sender_is_woken_when_it_is_time_or_there_is_much() {
        let is_woken = |waker: &Waker| {
            let mut fd = libc::pollfd { fd: waker.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, which outlives the call.
            let count = unsafe { libc::poll(&mut fd, 1, 0) };
            waker.reset();
            count == 1
        };
        let (waker, counters) = (waker(), Arc::default());
        let incoming = IncomingBatches::new(Some(10_000), counters, waker.clone());
        incoming.push(&mut vec![batch(1, 100)], false);
        assert!(!is_woken(&waker), "not yet");
        incoming.push(&mut vec![batch(2, 100)], true);
        assert!(is_woken(&waker), "it is time");
        incoming.push(&mut vec![batch(3, 1_000)], false);
        assert!(is_woken(&waker), "an eighth of the bound");
    }

    #[test]
    fn without_a_server_nothing_is_kept() {
        let incoming = IncomingBatches::new(None, Arc::default(), waker());
        incoming.push(&mut vec![batch(1, 10)], true);
        let mut taken = VecDeque::new();
        incoming.take(&mut taken, 0);
        assert!(taken.is_empty());
    }
}
