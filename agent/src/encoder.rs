//! The encoder thread: from the groups' rings into batches, and on into the cache and the queue.
//!
//! It wakes on the wall clock, a moment after the multiples of its period, so that what was sampled on a multiple is under way
//! at once. The period is the send interval, or as much less as the fullest ring needs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use wholegrain_model::BatchHeader;
use wholegrain_transport::payload::{BatchEncoder, Rows, samples_max};

use crate::engine::Group;
use crate::engine::clock::{self, Wake};
use crate::engine::group::BATCH_SAMPLES_MAX;
use crate::engine::ring::View;
use crate::state::{Encoded, State};

/// The thread's stack: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// How long after a multiple of the period it wakes, at most: 5 ms, time for a read of every group.
const AFTER_TICK_NS_MAX: i64 = 5_000_000;

/// The other end of the encoder thread.
#[derive(Debug)]
pub struct EncoderThread {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    wake: Wake,
    stop: AtomicBool,
}

impl EncoderThread {
    /// Starts it.
    pub fn start(state: Arc<State>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("encoder".into()).stack_size(STACK_BYTES).spawn(move || {
            let mut encoder = Encoder::new(state);
            loop {
                let wake_state = theirs.wake.state();
                if theirs.stop.load(Ordering::Acquire) {
                    break;
                }
                let deadline = encoder.next_wake();
                theirs.wake.sleep_until(deadline, wake_state);
                encoder.pass(false);
            }
            encoder.pass(true);
        })?;
        Ok(Self { shared, thread })
    }

    /// Makes it look now: groups have changed.
    pub fn wake(&self) {
        self.shared.wake.wake();
    }

    /// Whether the thread has ended, which before [`EncoderThread::finish`] it never should.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Encodes what is left and ends. The samplers must have stopped.
    pub fn finish(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if self.thread.join().is_err() {
            tracing::error!("the encoder thread panicked; samples not yet encoded are lost");
        }
    }
}

/// What the thread works with.
pub struct Encoder {
    state: Arc<State>,
    batches: BatchEncoder,
    header: BatchHeader,
    payload: Vec<u8>,
    times: Vec<i64>,
    gap_words: Vec<u64>,
    out: Vec<Arc<Encoded>>,
}

/// Rows in a ring, with the gaps of all of them put together so that columns without a gap are known at a glance.
struct Glance<'a> {
    view: View<'a>,
    gap_words: &'a [u64],
}

impl Rows for Glance<'_> {
    #[inline]
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        self.view.value(sensor, sample)
    }

    #[inline]
    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.view.is_gap(sensor, sample)
    }

    #[inline]
    fn may_have_gaps(&self, sensor: usize) -> bool {
        self.gap_words[sensor / 64] >> (sensor % 64) & 1 == 1
    }
}

impl Encoder {
    /// An encoder over the groups of `state`.
    pub fn new(state: Arc<State>) -> Self {
        let header = BatchHeader {
            agent: state.name.clone(),
            boot: state.boot_ns,
            seq: 0,
            schema: wholegrain_model::SchemaHash([0; 16]),
            interval_ns: 0,
        };
        let (payload, times, gap_words, out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { state, batches: BatchEncoder::new(), header, payload, times, gap_words, out }
    }

    /// How often it has to look, ns.
    fn period(&self) -> i64 {
        let mut period = self.state.send_interval().ns();
        for group in self.state.registry.live() {
            period = period.min(group.batch_samples as u64 * group.ticking.interval.ns());
        }
        i64::try_from(period).unwrap_or(i64::MAX).max(1_000_000)
    }

    /// Monotonic time of the next look.
    fn next_wake(&self) -> i64 {
        let (period, now) = (self.period(), clock::now());
        let after = AFTER_TICK_NS_MAX.min(period / 4);
        let since = (now.real - after).rem_euclid(period);
        now.mono + period - since
    }

    /// Looks at every group once and encodes what is due; everything when `all`.
    pub fn pass(&mut self, all: bool) {
        let (state, period) = (self.state.clone(), self.period());
        let now = clock::mono();
        // In this order: a group that is in the first list had its predecessor put into the second before.
        let live = state.registry.live();
        let draining = state.registry.draining();
        for group in &draining {
            self.encode(group);
        }
        if draining.iter().any(|group| group.is_drained()) {
            state.registry.forget_drained();
        }
        let send_interval = state.send_interval().ns() as i64;
        for group in live {
            let pending = group.ring.head() - group.encoded.load(Ordering::Relaxed);
            if pending == 0 {
                continue;
            }
            // A group's batches go out in order: first what it was before it changed. Its successor has samples, so it is
            // sealed, unless another thread reads it, which hangs in its device; the successor does not wait for that.
            for before in draining.iter().filter(|before| before.name() == group.name()) {
                self.encode(before);
            }
            let more = (period as u64).div_ceil(group.ticking.interval.ns());
            let in_time = group.closed_mono.load(Ordering::Relaxed) + send_interval > now + period / 2;
            if all || !in_time || pending + more > group.batch_samples as u64 {
                self.encode(&group);
            }
        }
        if !self.out.is_empty() {
            state.outbox.push(&mut self.out);
        }
    }

    /// Everything that a group's ring has.
    fn encode(&mut self, group: &Group) {
        let batch_max = BATCH_SAMPLES_MAX.min(samples_max(group.schema.len())).min(group.ring.capacity());
        let mut first = group.encoded.load(Ordering::Relaxed);
        loop {
            let oldest = group.ring.tail();
            if first < oldest {
                self.count_lost(group, oldest - first);
                first = oldest;
            }
            let count = ((group.ring.head() - first) as usize).min(batch_max);
            if count == 0 {
                break;
            }
            match self.encode_rows(group, first, count) {
                Some(encoded) => first += encoded as u64,
                // The sampler has come round and writes where this would read.
                None => {
                    self.count_lost(group, 1);
                    first += 1;
                }
            }
            group.encoded.store(first, Ordering::Release);
        }
        group.encoded.store(first, Ordering::Release);
        group.closed_mono.store(clock::mono(), Ordering::Relaxed);
    }

    fn count_lost(&self, group: &Group, samples: u64) {
        group.stats.overruns.fetch_add(samples, Ordering::Relaxed);
        self.state.counters.overruns.fetch_add(samples, Ordering::Relaxed);
    }

    /// One batch of at most `count` samples of one interval; how many it took, `None` when the ring was overwritten meanwhile.
    fn encode_rows(&mut self, group: &Group, first: u64, count: usize) -> Option<usize> {
        let view = group.ring.view(first, count);
        if !view.is_whole() {
            return None;
        }
        let interval_ns = view.interval_ns(0);
        let count = (1..count).find(|&sample| view.interval_ns(sample) != interval_ns).unwrap_or(count);
        let view = group.ring.view(first, count);
        self.times.clear();
        self.times.extend((0..count).map(|sample| view.time(sample)));
        view.any_gaps(&mut self.gap_words);
        self.header.schema = group.schema.hash();
        self.header.interval_ns = interval_ns;
        self.header.seq += 1;
        self.payload.clear();
        let rows = Glance { view, gap_words: &self.gap_words };
        self.batches.encode(&self.header, &group.types, &self.times, &rows, &mut self.payload);
        if !view.is_whole() {
            self.header.seq -= 1;
            return None;
        }
        let encoded = Arc::new(Encoded {
            payload: Bytes::copy_from_slice(&self.payload),
            schema: group.schema.clone(),
            topic: group.topic.clone(),
            seq: self.header.seq,
            first: self.times.iter().copied().min().unwrap_or(0),
            last: self.times.iter().copied().max().unwrap_or(0),
            samples: count,
            made_mono: clock::mono(),
        });
        let counters = &self.state.counters;
        counters.batches.fetch_add(1, Ordering::Relaxed);
        counters.batch_bytes.fetch_add(encoded.payload.len() as u64, Ordering::Relaxed);
        self.state.cache.push(encoded.clone());
        self.out.push(encoded);
        Some(count)
    }
}
