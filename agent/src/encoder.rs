//! The encoder thread: encodes the groups' rings into batches for the cache and the send queue.
//!
//! It wakes shortly after the wall-clock multiples of its period, so that samples of a multiple are sent at once. The period is the send interval, or
//! less if the fullest ring needs that.

mod fold;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use wholegrain_model::{BatchHeader, Schema};
use wholegrain_transport::payload::{BatchEncoder, Rows, samples_max};

use crate::batch::{EncodedBatch, SendInterval};
use crate::cache::BatchCache;
use crate::counters::AgentCounters;
use crate::engine::Group;
use crate::engine::clock::{self, Wake};
use crate::engine::group::BATCH_SAMPLES_MAX;
use crate::engine::ring::{RingView, RowCopy};
use crate::identity::AgentIdentity;
use crate::registry::GroupRegistry;
use crate::send_queue::IncomingBatches;
use crate::waker::Waker;

use self::fold::Fold;

/// The thread's stack: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// The longest time after a multiple of the period at which it wakes: 5 ms, enough to read every group.
const AFTER_TICK_NS_MAX: i64 = 5_000_000;

/// What an encoder is constructed with.
#[derive(Debug, Clone)]
pub struct EncoderContext {
    pub identity: Arc<AgentIdentity>,
    pub registry: Arc<GroupRegistry>,
    pub counters: Arc<AgentCounters>,
    pub cache: Arc<BatchCache>,
    pub queue: Arc<IncomingBatches>,
    pub send_interval: Arc<SendInterval>,
    /// Ends the sleep of the thread.
    pub wake: Arc<Wake>,
    /// Wakes the manager when a sampler needs attention.
    pub manager_waker: Arc<Waker>,
}

/// Controls the encoder thread.
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
    pub fn start(context: EncoderContext) -> io::Result<Self> {
        let shared = Arc::new(EncoderShared { wake: context.wake.clone(), stop: AtomicBool::new(false) });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("encoder".into()).stack_size(STACK_BYTES).spawn(move || {
            let mut encoder = Encoder::new(context);
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

    /// Wakes the thread: groups have changed.
    pub fn wake(&self) {
        self.shared.wake.wake();
    }

    /// Whether the thread has ended; before [`EncoderThread::finish`] that is an error.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Encodes the rest and ends. The samplers must have stopped.
    pub fn finish(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if self.thread.join().is_err() {
            tracing::error!("the encoder thread panicked; samples not yet encoded are lost");
        }
    }
}

pub struct Encoder {
    context: EncoderContext,
    batches: BatchEncoder,
    header: BatchHeader,
    payload: Vec<u8>,
    times: Vec<i64>,
    gap_words: Vec<u64>,
    change_words: Vec<u64>,
    out: Vec<Arc<EncodedBatch>>,
    /// Open windows by the group's name: a group that replaces another one continues them.
    folds: HashMap<String, Fold>,
    row: RowCopy,
    /// Monotonic time of the last wake-up of the sender.
    sent_mono: i64,
}

/// Samples in a ring, with the union of their gaps and changes, so that columns without a gap or a change are recognized at once.
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
    pub fn new(context: EncoderContext) -> Self {
        let header = BatchHeader {
            agent: context.identity.name.clone(),
            boot: context.identity.boot_ns,
            seq: 0,
            schema: wholegrain_model::SchemaHash([0; 16]),
            interval_ns: 0,
        };
        let (payload, times, out) = (Vec::new(), Vec::new(), Vec::new());
        let (gap_words, change_words) = (Vec::new(), Vec::new());
        let (batches, folds, row) = (BatchEncoder::new(), HashMap::new(), RowCopy::default());
        Self {
            context,
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

    /// The time between two passes, ns.
    fn period(&self) -> i64 {
        let mut period = self.context.send_interval.get().ns();
        for group in self.context.registry.live().iter().filter(|group| !group.is_of_events()) {
            period = period.min(group.batch_samples as u64 * group.ticking.interval.ns());
        }
        i64::try_from(period).unwrap_or(i64::MAX).max(1_000_000)
    }

    /// Monotonic time of the next pass.
    fn next_wake(&self) -> i64 {
        let (period, now) = (self.period(), clock::now());
        let after = AFTER_TICK_NS_MAX.min(period / 4);
        let since = (now.real - after).rem_euclid(period);
        now.mono + period - since
    }

    /// Checks every group once and encodes those that are due; all of them if `all`.
    pub fn pass(&mut self, all: bool) {
        let period = self.period();
        let now = clock::mono();
        // In this order: the predecessor of a group in the first list was put into the second list before.
        let live = self.context.registry.live();
        let draining = self.context.registry.draining();
        for group in &draining {
            self.encode(group);
        }
        if draining.iter().any(|group| group.is_drained()) {
            for group in self.context.registry.remove_drained() {
                self.end_fold(&group);
            }
        }
        let send_interval = self.context.send_interval.get().ns() as i64;
        for group in live {
            let pending = group.ring.head() - group.encoded.load(Ordering::Relaxed);
            if pending == 0 {
                continue;
            }
            // Batches of a group are sent in order: first those of its predecessor. The predecessor is sealed, because the group has samples, unless
            // it was read by another thread that hangs in its device; the group does not wait for that.
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
        // Rings are emptied as often as the fullest one needs; the batches are sent together.
        let time = all || self.sent_mono + send_interval <= now + period / 2;
        if !self.out.is_empty() {
            self.context.queue.push(&mut self.out, time);
            if time {
                self.sent_mono = now;
            }
        }
        if time && self.context.counters.attention.swap(false, Ordering::AcqRel) {
            self.context.manager_waker.wake();
        }
    }

    /// Encodes all samples of a group's ring.
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
                // The sampler has overwritten the sample meanwhile.
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
        self.context.counters.overruns.fetch_add(samples, Ordering::Relaxed);
    }

    /// Encodes one batch of at most `count` samples with one interval. Returns its number of samples; `None` if the ring was overwritten meanwhile.
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

    /// Puts the batch just encoded into the cache and the queue.
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
        let counters = &self.context.counters;
        counters.batches.fetch_add(1, Ordering::Relaxed);
        counters.batch_bytes.fetch_add(encoded.payload.len() as u64, Ordering::Relaxed);
        self.context.cache.push(encoded.clone());
        self.out.push(encoded);
    }

    /// Folds all samples in the ring of an accumulating group into its windows.
    fn fold(&mut self, group: &Group) {
        let now = clock::mono();
        let mut first = group.encoded.load(Ordering::Relaxed);
        let Some(mut fold) = self.fold_of(group, now) else {
            // A thread that hung in its device while another one replaced it has written once more.
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

    /// The windows of a group, or those of the group that it replaces.
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

    /// Encodes the closed windows.
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

    /// Encodes the closed windows of groups whose last batch was not after `before`.
    fn send_folds(&mut self, before: i64) {
        if self.folds.values().any(|fold| fold.sent_mono <= before && !fold.closed.times.is_empty()) {
            let mut folds = std::mem::take(&mut self.folds);
            folds.values_mut().filter(|fold| fold.sent_mono <= before).for_each(|fold| self.send_windows(fold));
            self.folds = folds;
        }
    }

    /// Encodes the last window of a removed group, unless another group continues it.
    fn end_fold(&mut self, group: &Group) {
        if group.accumulated.is_none() || self.context.registry.find(group.name()).is_some() {
            return;
        }
        if let Some(mut fold) = self.folds.remove(group.name()) {
            fold.close();
            self.send_windows(&mut fold);
        }
    }

    /// Closes and encodes all windows.
    fn end_folds(&mut self) {
        for (_, mut fold) in std::mem::take(&mut self.folds) {
            fold.close();
            self.send_windows(&mut fold);
        }
    }
}
