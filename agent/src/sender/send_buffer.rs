//! The sender's buffer: batches in memory, the oldest first, and the spool behind them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wholegrain_model::{Schema, SchemaHash};
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::spool::{RecordId, Spool};

use super::disk::{RETRY_AFTER, SpoolQueue};
use super::refusal::is_final;
use crate::config::SpoolConfig;
use crate::engine::clock;
use crate::state::{AgentState, EncodedBatch};

/// How often the same problem is logged: 10 s.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Schemas of groups that are no more, kept for a server that asks: so many.
const OLD_SCHEMAS_MAX: usize = 64;

/// Batches that the server has not acknowledged.
pub struct SendBuffer {
    state: Arc<AgentState>,
    pending: VecDeque<Arc<EncodedBatch>>,
    pending_bytes: u64,
    /// Batches in flight that are in memory only; the link keeps them, here are their bytes.
    pub(super) flight_bytes: u64,
    /// How many of the pending may go.
    released: usize,
    schemas: VecDeque<Schema>,
    pub(super) disk: Option<SpoolQueue>,
    drop_log: LogLimiter,
    refusal_log: LogLimiter,
    schema_log: LogLimiter,
}

/// Limits how often the same problem is logged, and counts what it suppresses.
#[derive(Debug, Default)]
pub struct LogLimiter {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimiter {
    /// Adds `more`; returns the sum to log now, if it is time.
    pub(super) fn due(&mut self, more: u64) -> Option<u64> {
        self.suppressed += more;
        if self.suppressed == 0 || self.last.is_some_and(|last| last.elapsed() < TELL_EVERY) {
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl SendBuffer {
    /// Starts with an empty memory and the spool as it is.
    pub fn new(state: Arc<AgentState>, spool: Option<(Spool, SpoolConfig)>) -> Self {
        let disk = spool.map(|(spool, config)| SpoolQueue::new(spool, config));
        let mut buffer = Self {
            state,
            pending: VecDeque::new(),
            pending_bytes: 0,
            flight_bytes: 0,
            released: 0,
            schemas: VecDeque::new(),
            disk,
            drop_log: LogLimiter::default(),
            refusal_log: LogLimiter::default(),
            schema_log: LogLimiter::default(),
        };
        buffer.publish_sizes();
        buffer
    }

    /// Whether nothing is in memory that was not sent.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether something waits for its time.
    pub fn has_unreleased(&self) -> bool {
        self.pending.len() > self.released
    }

    /// Takes what the encoder has made.
    pub fn collect(&mut self) {
        let before = self.pending.len();
        self.state.outbox.take(&mut self.pending, self.pending_bytes + self.flight_bytes);
        for index in before..self.pending.len() {
            let batch = self.pending[index].clone();
            self.pending_bytes += batch.bytes();
            self.remember(&batch.schema);
        }
    }

    /// Keeps a schema for a server that asks.
    pub fn remember(&mut self, schema: &Schema) {
        if self.schemas.iter().any(|known| known == schema) {
            return;
        }
        if self.schemas.len() == OLD_SCHEMAS_MAX {
            self.schemas.pop_front();
        }
        self.schemas.push_back(schema.clone());
    }

    /// The schema of this hash, if this agent has or had it.
    pub fn schema(&self, hash: SchemaHash) -> Option<Schema> {
        let live = self.state.registry.live();
        let running = live.iter().map(|group| group.sent_schema());
        running.chain(&self.schemas).find(|schema| schema.hash() == hash).cloned()
    }

    /// Everything in memory may go.
    pub fn release_all(&mut self) {
        self.released = self.pending.len();
    }

    /// What was made until then, on the monotonic clock, may go.
    pub fn release(&mut self, until: i64) {
        self.released = self.released.max(self.pending.partition_point(|batch| batch.made_mono <= until));
    }

    /// The oldest batch that may go.
    pub fn front(&self) -> Option<&Arc<EncodedBatch>> {
        if self.released > 0 { self.pending.front() } else { None }
    }

    /// Takes it: it is in flight now.
    pub fn take_front(&mut self) -> Option<Arc<EncodedBatch>> {
        let batch = self.pending.pop_front()?;
        self.released = self.released.saturating_sub(1);
        self.pending_bytes -= batch.bytes();
        self.flight_bytes += batch.bytes();
        Some(batch)
    }

    /// A batch in flight is no longer in memory: acknowledged, refused or copied to the disk.
    pub fn remove_in_flight(&mut self, batch: &EncodedBatch) {
        self.flight_bytes -= batch.bytes();
    }

    /// A batch in flight comes back to its place, because the connection ended or the server refused it for now.
    pub fn put_back(&mut self, batch: Arc<EncodedBatch>) {
        self.flight_bytes -= batch.bytes();
        self.pending_bytes += batch.bytes();
        self.released += 1;
        let at = self.pending.partition_point(|other| other.seq < batch.seq);
        self.pending.insert(at, batch);
    }

    /// Puts a copy of a batch that is in flight on the disk.
    pub fn copy_to_disk(&mut self, batch: &EncodedBatch) -> Option<RecordId> {
        let id = self.disk.as_mut()?.push(&self.state.name, batch)?;
        self.state.counters.spooled.fetch_add(1, Ordering::Relaxed);
        Some(id)
    }

    /// How old a batch is that must go to the disk; `None` without one.
    pub fn age_max(&self, send_period: Duration) -> Option<Duration> {
        self.disk.as_ref().map(|disk| disk.config.after.duration() + send_period)
    }

    /// The bytes beyond which the oldest go to the disk or are dropped: with a disk earlier than the queue's own bound, so that
    /// the encoder never has to drop for a sender that is at work.
    fn bytes_max(&self, queue_bytes_max: u64) -> u64 {
        if self.disk.is_some() { queue_bytes_max / 4 * 3 } else { queue_bytes_max }
    }

    /// Whether the memory is over its bound.
    pub fn is_over(&self, queue_bytes_max: u64) -> bool {
        self.pending_bytes + self.flight_bytes > self.bytes_max(queue_bytes_max)
    }

    /// Moves what is too old, or too much, to the disk; drops what is too much when there is none or it refuses.
    pub fn keep_bounds(&mut self, queue_bytes_max: u64, send_period: Duration) {
        let age_max = self.age_max(send_period);
        let now = clock::mono();
        let mut dropped = 0;
        while let Some(oldest) = self.pending.front().cloned() {
            let too_much = self.is_over(queue_bytes_max);
            let too_old = age_max.is_some_and(|age_max| now - oldest.made_mono > age_max.as_nanos() as i64);
            if !too_much && !too_old {
                break;
            }
            let stored = self.copy_to_disk(&oldest).is_some();
            if !stored && (!too_much || self.pending.len() == 1) {
                break;
            }
            self.pending.pop_front();
            self.pending_bytes -= oldest.bytes();
            self.released = self.released.saturating_sub(1);
            dropped += u64::from(!stored);
        }
        self.count_dropped(dropped);
        self.publish_sizes();
    }

    /// A message that the server refused: given up, or put off when the reason may pass.
    pub fn count_refused(&mut self, what: &str, reason: ReasonCode) {
        let given_up = is_final(reason);
        let counters = &self.state.counters;
        let counter = if given_up { &counters.refused } else { &counters.put_off };
        counter.fetch_add(1, Ordering::Relaxed);
        let Some(count) = self.refusal_log.due(1) else { return };
        if given_up {
            tracing::error!("the server refused {count} messages, the last for {what}: {reason}; it is given up");
        } else {
            tracing::warn!(
                "the server refused {count} messages, the last for {what}: {reason}; it is kept and sent again; see the server's \
                 log, and what this agent may publish there"
            );
        }
    }

    /// A message that is larger than what the server takes.
    pub fn count_too_large(&mut self, what: &str, bytes: usize, max: usize) {
        self.state.counters.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.refusal_log.due(1) {
            tracing::error!(
                "the server takes {max} bytes; {count} messages, the last for {what} with {bytes} bytes, are given up"
            );
        }
    }

    /// The server asks for a schema that nobody has.
    pub fn tell_lost(&mut self, hash: SchemaHash) {
        if let Some(count) = self.schema_log.due(1) {
            tracing::warn!(
                "the server asked for {count} schemas that this agent does not have any more, the last {hash}"
            );
        }
    }

    fn count_dropped(&mut self, mut dropped: u64) {
        dropped += self.disk.as_mut().map_or(0, SpoolQueue::take_dropped);
        self.state.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
        if let Some(count) = self.drop_log.due(dropped) {
            let why = if self.disk.is_some() {
                "queue and spool are full"
            } else {
                "the queue is full and there is no [spool]"
            };
            tracing::warn!("dropped {count} of the oldest batches: {why}; raise queue_bytes_max or [spool] bytes_max");
        }
    }

    fn publish_sizes(&mut self) {
        let spool = self.disk.as_ref().map_or(0, |disk| if disk.spool.is_empty() { 0 } else { disk.spool.bytes() });
        self.state.counters.spool_bytes.store(spool, Ordering::Relaxed);
        self.state.counters.queue_bytes.store(self.pending_bytes + self.flight_bytes, Ordering::Relaxed);
    }

    /// Makes the disk hold what it was given, if it is time.
    pub fn flush_if_due(&mut self) {
        if let Some(disk) = &mut self.disk
            && disk.dirty_since.is_some_and(|since| since.elapsed() >= disk.config.flush_every.duration())
        {
            disk.flush();
        }
    }

    /// How long until something here is due.
    pub fn due_in(&self, send_period: Duration) -> Option<Duration> {
        let disk = self.disk.as_ref()?;
        let flush = disk.dirty_since.map(|since| disk.config.flush_every.duration().saturating_sub(since.elapsed()));
        let age = self.pending.front().and_then(|oldest| {
            let age = Duration::from_nanos(u64::try_from(clock::mono() - oldest.made_mono).unwrap_or(0));
            let refused = disk.refused_at.map_or(Duration::ZERO, |at| RETRY_AFTER.saturating_sub(at.elapsed()));
            Some((self.age_max(send_period)?.saturating_sub(age)).max(refused))
        });
        [flush, age].into_iter().flatten().min()
    }

    /// The end: everything in memory to the disk.
    pub fn put_all_away(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.refused_at = None;
        }
        let mut lost = 0;
        while let Some(batch) = self.pending.pop_front() {
            lost += u64::from(self.copy_to_disk(&batch).is_none());
        }
        self.count_dropped(lost);
        if lost > 0 {
            tracing::warn!("{lost} batches could neither be sent nor spooled before the end; they are lost");
        }
        if let Some(disk) = &mut self.disk {
            disk.flush();
        }
    }
}
