//! The encoder thread: from the groups' rings into batches, and on into the cache and the queue.
//!
//! It wakes on the wall clock, a moment after the multiples of its period, so that what was sampled on a multiple is under way
//! at once. The period is the send interval, or as much less as the fullest ring needs.

mod fold;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use wholegrain_model::{BatchHeader, Schema};
use wholegrain_transport::payload::{BatchEncoder, Rows, samples_max};

use crate::engine::Group;
use crate::engine::clock::{self, Wake};
use crate::engine::group::BATCH_SAMPLES_MAX;
use crate::engine::ring::{RingView, RowCopy};
use crate::state::{AgentState, EncodedBatch};

use self::fold::Fold;

/// The thread's stack: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// How long after a multiple of the period it wakes, at most: 5 ms, time for a read of every group.
const AFTER_TICK_NS_MAX: i64 = 5_000_000;

/// The other end of the encoder thread.
#[derive(Debug)]
pub struct EncoderThread {
    shared: Arc<EncoderShared>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct EncoderShared {
    wake: Arc<Wake>,
    stop: AtomicBool,
}

impl EncoderThread {
    pub fn start(state: Arc<AgentState>) -> io::Result<Self> {
        let shared = Arc::new(EncoderShared { wake: state.encoder_wake.clone(), stop: AtomicBool::new(false) });
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
    state: Arc<AgentState>,
    batches: BatchEncoder,
    header: BatchHeader,
    payload: Vec<u8>,
    times: Vec<i64>,
    gap_words: Vec<u64>,
    change_words: Vec<u64>,
    out: Vec<Arc<EncodedBatch>>,
    /// Open windows, by the group's name: a group that takes another's place goes on with them.
    folds: HashMap<String, Fold>,
    row: RowCopy,
    /// When the sender was last woken, on the monotonic clock.
    sent_mono: i64,
}

/// Rows in a ring, with the gaps and the changes of all of them put together so that columns without a gap, and without a change, are
/// known at a glance.
struct RingRows<'a> {
    view: RingView<'a>,
    gap_words: &'a [u64],
    change_words: &'a [u64],
}

impl Rows for RingRows<'_> {
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

    #[inline]
    fn is_constant(&self, sensor: usize) -> bool {
        (self.gap_words[sensor / 64] | self.change_words[sensor / 64]) >> (sensor % 64) & 1 == 0
    }
}

impl Encoder {
    /// An encoder over the groups of `state`.
    pub fn new(state: Arc<AgentState>) -> Self {
        let header = BatchHeader {
            agent: state.name.clone(),
            boot: state.boot_ns,
            seq: 0,
            schema: wholegrain_model::SchemaHash([0; 16]),
            interval_ns: 0,
        };
        let (payload, times, out) = (Vec::new(), Vec::new(), Vec::new());
        let (gap_words, change_words) = (Vec::new(), Vec::new());
        let (batches, folds, row) = (BatchEncoder::new(), HashMap::new(), RowCopy::default());
        Self {
            state,
            batches,
            header,
            payload,
            times,
            gap_words,
            change_words,
            out,
            folds,
            row,
            sent_mono: i64::MIN / 2,
        }
    }

    /// How often it has to look, ns.
    fn period(&self) -> i64 {
        let mut period = self.state.send_interval().ns();
        for group in self.state.registry.live().iter().filter(|group| !group.is_of_events()) {
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
            for group in state.registry.forget_drained() {
                self.end_fold(&group);
            }
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
            let more = if group.is_of_events() { 0 } else { (period as u64).div_ceil(group.ticking.interval.ns()) };
            let in_time = group.closed_mono.load(Ordering::Relaxed) + send_interval > now + period / 2;
            if all || !in_time || pending + more > group.batch_samples as u64 {
                self.encode(&group);
            }
        }
        if all {
            self.end_folds();
        } else {
            self.send_folds(now + period / 2 - send_interval);
        }
        // Rings are emptied as often as the fullest needs; what came of it goes out together.
        let time = all || self.sent_mono + send_interval <= now + period / 2;
        if !self.out.is_empty() {
            state.outbox.push(&mut self.out, time);
            if time {
                self.sent_mono = now;
            }
        }
        if time
            && state.counters.attention.swap(false, Ordering::AcqRel)
            && let Some(waker) = state.manager_waker.get()
        {
            waker.wake();
        }
    }

    /// Everything that a group's ring has.
    fn encode(&mut self, group: &Group) {
        if group.accumulated.is_some() {
            return self.fold(group);
        }
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
        view.any_changes(&mut self.change_words);
        let rows = RingRows { view, gap_words: &self.gap_words, change_words: &self.change_words };
        self.header.schema = group.schema.hash();
        self.header.interval_ns = interval_ns;
        self.header.seq += 1;
        self.payload.clear();
        self.batches.encode(&self.header, &group.types, &self.times, &rows, &mut self.payload);
        if !view.is_whole() {
            self.header.seq -= 1;
            return None;
        }
        self.put_out(&group.schema, &group.topic);
        Some(count)
    }

    /// The batch just encoded goes into the cache and to the sender.
    fn put_out(&mut self, schema: &Schema, topic: &Arc<str>) {
        let encoded = Arc::new(EncodedBatch {
            payload: Bytes::copy_from_slice(&self.payload),
            schema: schema.clone(),
            topic: topic.clone(),
            seq: self.header.seq,
            first: self.times.iter().copied().min().unwrap_or(0),
            last: self.times.iter().copied().max().unwrap_or(0),
            samples: self.times.len(),
            made_mono: clock::mono(),
        });
        let counters = &self.state.counters;
        counters.batches.fetch_add(1, Ordering::Relaxed);
        counters.batch_bytes.fetch_add(encoded.payload.len() as u64, Ordering::Relaxed);
        self.state.cache.push(encoded.clone());
        self.out.push(encoded);
    }

    /// Everything that the ring of an accumulating group has, into its windows.
    fn fold(&mut self, group: &Group) {
        let now = clock::mono();
        let mut first = group.encoded.load(Ordering::Relaxed);
        let Some(mut fold) = self.fold_of(group, now) else {
            // A thread that hung in its device, while another took its place, has written once more.
            self.count_lost(group, group.ring.head() - first);
            group.encoded.store(group.ring.head(), Ordering::Release);
            return;
        };
        let rows_max = BATCH_SAMPLES_MAX.min(samples_max(fold.plan.types.len()));
        loop {
            let oldest = group.ring.tail();
            if first < oldest {
                self.count_lost(group, oldest - first);
                first = oldest;
            }
            if first >= group.ring.head() {
                break;
            }
            if group.ring.copy(first, &mut self.row) {
                fold.take(&self.row);
            } else {
                self.count_lost(group, 1);
            }
            first += 1;
            if fold.closed.times.len() >= rows_max {
                self.send_windows(&mut fold);
            }
        }
        group.encoded.store(first, Ordering::Release);
        group.closed_mono.store(now, Ordering::Relaxed);
        self.folds.insert(group.name().to_owned(), fold);
    }

    /// The windows of a group, or those that it adopts from the group it replaces.
    fn fold_of(&mut self, group: &Group, now: i64) -> Option<Fold> {
        let Some(mut fold) = self.folds.remove(group.name()) else { return Fold::new(group, now) };
        if fold.group == group.id {
            return Some(fold);
        }
        if fold.group > group.id {
            self.folds.insert(group.name().to_owned(), fold);
            return None;
        }
        let next = fold.hand_over(group, now);
        self.send_windows(&mut fold);
        next
    }

    /// A batch of the windows that are closed.
    fn send_windows(&mut self, fold: &mut Fold) {
        if fold.closed.times.is_empty() {
            return;
        }
        self.header.schema = fold.plan.schema.hash();
        self.header.interval_ns = fold.plan.window_ns as u64;
        self.header.seq += 1;
        self.payload.clear();
        self.batches.encode(&self.header, &fold.plan.types, &fold.closed.times, &fold.closed, &mut self.payload);
        std::mem::swap(&mut self.times, &mut fold.closed.times);
        self.put_out(&fold.plan.schema, &fold.topic);
        fold.closed.clear();
        fold.sent_mono = clock::mono();
    }

    /// Batches of the windows that were closed, of groups whose last batch was not after `before`.
    fn send_folds(&mut self, before: i64) {
        if self.folds.values().any(|fold| fold.sent_mono <= before && !fold.closed.times.is_empty()) {
            let mut folds = std::mem::take(&mut self.folds);
            folds.values_mut().filter(|fold| fold.sent_mono <= before).for_each(|fold| self.send_windows(fold));
            self.folds = folds;
        }
    }

    /// The last window of a group that is no more, unless another has taken its place, which goes on with it.
    fn end_fold(&mut self, group: &Group) {
        if group.accumulated.is_none() || self.state.registry.find(group.name()).is_some() {
            return;
        }
        if let Some(mut fold) = self.folds.remove(group.name()) {
            fold.close();
            self.send_windows(&mut fold);
        }
    }

    /// The end of all.
    fn end_folds(&mut self) {
        for (_, mut fold) in std::mem::take(&mut self.folds) {
            fold.close();
            self.send_windows(&mut fold);
        }
    }
}
