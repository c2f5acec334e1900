//! A running group: the sampler writes it, every other thread reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

use wholegrain_model::{Interval, Schema, Value, ValueType};
use wholegrain_sources::ReadProblem;
use wholegrain_transport::payload::samples_max;
use wholegrain_transport::topics::Topic;

use super::accumulate::Accumulated;
use super::lag::LagHistogram;
use super::ring::Ring;
use super::schedule::TickSchedule;

/// The most samples of one batch.
pub const BATCH_SAMPLES_MAX: usize = 256;
/// The most samples that a ring collects for one batch: at 1 ms the encoder wakes about every 128 ms.
pub const RING_BATCH_SAMPLES_MAX: usize = 128;
/// The most memory of a ring for one batch; groups with very many sensors get smaller batches: 4 MiB.
pub const RING_BATCH_BYTES_MAX: usize = 4 << 20;
/// Events that may wait for the encoder; further ones are refused.
pub const EVENTS_MAX: usize = 256;

/// Counts and states of a group that survive a change of its interval or its layout.
#[derive(Debug, Default)]
pub struct GroupStats {
    pub samples: AtomicU64,
    /// Ticks without a read.
    pub missed: AtomicU64,
    /// Values that could not be read.
    pub gaps: AtomicU64,
    /// Samples overwritten in the ring before they were encoded.
    pub overruns: AtomicU64,
    /// How late reads began.
    pub lag: LagHistogram,
    /// The problem of the last read.
    pub problem: ProblemCell,
    /// The reader has requested a rediscovery of its source.
    pub layout_changed: AtomicBool,
}

/// Time and values of a sample that a group shows before it has one of its own.
pub type CarriedSample = (i64, Vec<Option<Value>>);

/// A group with one schema and one ring. A changed interval or layout makes a new group, and the old one is drained.
#[derive(Debug)]
pub struct Group {
    /// Unique within the process.
    pub id: u64,
    /// The source's name in the configuration.
    pub source: String,
    pub schema: Schema,
    pub types: Box<[ValueType]>,
    pub topic: Arc<str>,
    pub ticking: TickSchedule,
    /// Whether a thread for blocking reads reads it.
    pub blocking: bool,
    pub ring: Ring,
    /// The windows that its samples are folded into; `None`: every sample is sent.
    pub accumulated: Option<Arc<Accumulated>>,
    /// The newest sample of the group that it replaces, shown until it has one of its own.
    pub carried: Option<CarriedSample>,
    /// Samples that the ring's layout provides for one batch.
    pub batch_samples: usize,
    /// Counts, shared with the groups that replace it.
    pub stats: Arc<GroupStats>,
    /// The first sample of the ring that is not encoded. Only the encoder writes it.
    pub encoded: AtomicU64,
    /// Monotonic time of the last batch. Only the encoder writes it.
    pub closed_mono: AtomicI64,
    /// The sampler does not write into it any more.
    pub sealed: AtomicBool,
}

/// How many samples are collected for one batch.
pub fn batch_samples(sensors: usize, interval: Interval, send_interval: Interval) -> usize {
    let wanted = (send_interval.ns() / interval.ns().max(1)).max(1);
    let by_bytes = RING_BATCH_BYTES_MAX / Ring::row_bytes(sensors);
    (wanted as usize).min(RING_BATCH_SAMPLES_MAX).min(by_bytes.max(4)).min(samples_max(sensors)).max(1)
}

impl Group {
    pub fn new(
        source: &str,
        agent: &str,
        schema: Schema,
        ticking: TickSchedule,
        blocking: bool,
        send_interval: Interval,
        stats: Arc<GroupStats>,
    ) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let batch_samples = batch_samples(schema.len(), ticking.interval, send_interval);
        // Room for two and a half batches: the encoder may be late by one and a half before a sample is lost.
        let ring = Ring::new(schema.len(), batch_samples * 5 / 2 + 2);
        let topic = Topic::Batch { agent, group: schema.group() }.to_string().into();
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            source: source.to_owned(),
            types: schema.sensors().iter().map(|sensor| sensor.value_type).collect(),
            schema,
            topic,
            ticking,
            blocking,
            ring,
            accumulated: None,
            carried: None,
            batch_samples,
            stats,
            encoded: AtomicU64::new(0),
            closed_mono: AtomicI64::new(super::clock::mono()),
            sealed: AtomicBool::new(false),
        }
    }

    /// A group without a sampler: its samples are events, added by [`Group::push_event`].
    pub fn of_events(source: &str, agent: &str, schema: Schema) -> Self {
        let ticking = TickSchedule { interval: Interval::default(), offset: Interval::default(), synchronous: false };
        let (ring, sensors) = (Ring::new(schema.len(), EVENTS_MAX), schema.len());
        let batch_samples = (EVENTS_MAX / 2).min(samples_max(sensors)).max(1);
        Self {
            ring,
            batch_samples,
            ..Self::new(source, agent, schema, ticking, false, ticking.interval, Arc::default())
        }
    }

    /// Whether its samples are events.
    pub fn is_of_events(&self) -> bool {
        self.ticking.interval.ns() == 0
    }

    /// Adds an event. The caller is the only one that does so now. `false`, and counted as missed, if [`EVENTS_MAX`] wait for the encoder.
    pub fn push_event(&self, time: i64, values: &[u64], gaps: &[u64]) -> bool {
        let waiting = self.ring.head() - self.encoded.load(Ordering::Acquire);
        let fits = waiting < self.ring.capacity() as u64 && !self.sealed.load(Ordering::Acquire);
        if fits {
            self.ring.push(time, 0, values, gaps);
        }
        let count = if fits { &self.stats.samples } else { &self.stats.missed };
        count.fetch_add(1, Ordering::Relaxed);
        fits
    }

    pub fn name(&self) -> &str {
        self.schema.group()
    }

    /// The group with its samples folded into windows.
    pub fn accumulating(self, accumulated: Option<Arc<Accumulated>>) -> Self {
        Self { accumulated, ..self }
    }

    /// The group with a sample to show until it has one of its own.
    pub fn carrying(self, carried: Option<CarriedSample>) -> Self {
        Self { carried, ..self }
    }

    /// The schema of its batches: its own, or that of its windows.
    pub fn sent_schema(&self) -> &Schema {
        self.accumulated.as_ref().map_or(&self.schema, |accumulated| &accumulated.schema)
    }

    /// The group at another interval, with a ring laid out for it.
    pub fn retimed(&self, agent: &str, ticking: TickSchedule, send_interval: Interval) -> Self {
        let (stats, accumulated) = (self.stats.clone(), self.accumulated.clone());
        Self::new(&self.source, agent, self.schema.clone(), ticking, self.blocking, send_interval, stats)
            .accumulating(accumulated)
    }

    /// Whether all its samples are encoded and it gets no more.
    pub fn is_drained(&self) -> bool {
        // In this order: the sampler seals after its last push.
        self.sealed.load(Ordering::Acquire) && self.encoded.load(Ordering::Acquire) >= self.ring.head()
    }
}

/// The last read's problem, written by the sampler without a lock.
#[derive(Debug, Default)]
pub struct ProblemCell {
    sequence: AtomicU64,
    kind: AtomicU64,
    text: AtomicUsize,
    length: AtomicUsize,
    number: AtomicU64,
}

impl ProblemCell {
    /// Notes the result of a read. Whether it differs from the last one. Only the thread that samples the group may call it.
    pub fn set(&self, problem: Option<ReadProblem>) -> bool {
        let (kind, what, number) = match problem {
            None => (0, "", 0),
            Some(ReadProblem::Os { what, errno }) => (1, what, errno as u64),
            Some(ReadProblem::Garbage { what, line }) => (2, what, u64::from(line)),
            Some(ReadProblem::Message { text }) => (3, text, 0),
        };
        let same = self.kind.load(Ordering::Relaxed) == kind && self.number.load(Ordering::Relaxed) == number;
        if same && self.text.load(Ordering::Relaxed) == what.as_ptr() as usize {
            return false;
        }
        if same && kind == 0 {
            return false;
        }
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.kind.store(kind, Ordering::Relaxed);
        self.text.store(what.as_ptr().expose_provenance(), Ordering::Relaxed);
        self.length.store(what.len(), Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
        true
    }

    /// The problem of the last read; `None` if it was good.
    pub fn get(&self) -> Option<ReadProblem> {
        loop {
            let sequence = self.sequence.load(Ordering::Acquire);
            let kind = self.kind.load(Ordering::Relaxed);
            let (text, length) = (self.text.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
            let number = self.number.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if !sequence.is_multiple_of(2) || self.sequence.load(Ordering::Relaxed) != sequence {
                std::hint::spin_loop();
                continue;
            }
            if kind == 0 {
                return None;
            }
            // SAFETY: the unchanged sequence says that address and length were written together, by `set`, from one
            // `&'static str`.
            let what: &'static str = unsafe {
                let bytes = std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(text), length);
                std::str::from_utf8_unchecked(bytes)
            };
            return Some(match kind {
                1 => ReadProblem::Os { what, errno: number as i32 },
                2 => ReadProblem::Garbage { what, line: number as u32 },
                _ => ReadProblem::Message { text: what },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_kept_until_a_good_read() {
        let cell = ProblemCell::default();
        assert_eq!(cell.get(), None);
        for problem in [
            Some(ReadProblem::Os { what: "meminfo", errno: 2 }),
            Some(ReadProblem::Garbage { what: "stat", line: 7 }),
            Some(ReadProblem::Garbage { what: "stat", line: 8 }),
            Some(ReadProblem::Message { text: "the pump does not answer" }),
            None,
        ] {
            cell.set(problem);
            assert_eq!(cell.get(), problem);
        }
    }

    #[test]
    fn rings_hold_what_one_wake_up_of_the_encoder_takes() {
        let check = |sensors, interval_ms, send_ms, expected| {
            assert_eq!(batch_samples(sensors, Interval::from_ms(interval_ms), Interval::from_ms(send_ms)), expected);
        };
        check(285, 1, 1000, 128);
        check(285, 10, 1000, 100);
        check(285, 1000, 1000, 1);
        check(285, 3_600_000, 1000, 1);
        check(10_000, 100, 1000, 10);
        check(60_000, 1, 1000, 8);
    }
}
