//! The send queue: batches that the server has not acknowledged, bounded in bytes.
//!
//! It has three parts, because three threads and the disk have different rights to wait: the encoder must never wait for the sender or the disk, so
//! it appends to [`IncomingBatches`] under a short lock. The sender's thread owns [`SendQueue`], which takes
//! those batches and moves them to the [`SpoolQueue`] on disk by age and size.

mod incoming;
pub mod spool;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wholegrain_model::{Schema, SchemaHash};
use wholegrain_transport::mqtt::ReasonCode;
use wholegrain_transport::spool::{RecordId, Spool};

pub use self::incoming::IncomingBatches;
use self::spool::{RETRY_AFTER, SpoolQueue};
use crate::batch::EncodedBatch;
use crate::config::SpoolConfig;
use crate::counters::AgentCounters;
use crate::engine::clock;
use crate::log_limiter::LossLog;
use crate::refusal::is_final;
use crate::registry::GroupRegistry;

/// Schemas of removed groups that are kept for a server that asks for them.
const OLD_SCHEMAS_MAX: usize = 64;

/// What a send queue is constructed with.
#[derive(Clone)]
pub struct SendQueueContext {
    pub agent: String,
    pub incoming: Arc<IncomingBatches>,
    pub registry: Arc<GroupRegistry>,
    pub counters: Arc<AgentCounters>,
}

/// The sender's part of the queue: batches in memory, the oldest first, and the spool behind them.
pub struct SendQueue {
    context: SendQueueContext,
    pending: VecDeque<Arc<EncodedBatch>>,
    /// Batches that may be sent, but whose schema the server refuses for now, by sequence number. Their bytes count as pending.
    held: VecDeque<Arc<EncodedBatch>>,
    pending_bytes: u64,
    /// Bytes of the batches in flight that are in memory only. The link holds the batches.
    flight_bytes: u64,
    /// How many of the pending batches may be sent.
    released: usize,
    schemas: VecDeque<Schema>,
    pub disk: Option<SpoolQueue>,
    drop_log: LossLog,
    refusal_log: LossLog,
    schema_log: LossLog,
}

impl SendQueue {
    /// A queue with nothing in memory and an open spool.
    pub fn new(context: SendQueueContext, spool: Option<(Spool, SpoolConfig)>) -> Self {
        let disk = spool.map(|(spool, config)| SpoolQueue::new(spool, config));
        let mut queue = Self {
            context,
            pending: VecDeque::new(),
            held: VecDeque::new(),
            pending_bytes: 0,
            flight_bytes: 0,
            released: 0,
            schemas: VecDeque::new(),
            disk,
            drop_log: LossLog::default(),
            refusal_log: LossLog::default(),
            schema_log: LossLog::default(),
        };
        queue.publish_sizes();
        queue
    }

    /// Whether every batch in memory has been sent.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether a batch waits for the send window.
    pub fn has_unreleased(&self) -> bool {
        self.pending.len() > self.released
    }

    /// Takes the batches that the encoder has made.
    pub fn collect(&mut self) {
        let before = self.pending.len();
        self.context.incoming.take(&mut self.pending, self.pending_bytes + self.flight_bytes);
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
        let live = self.context.registry.live();
        let running = live.iter().map(|group| group.sent_schema());
        running.chain(&self.schemas).find(|schema| schema.hash() == hash).cloned()
    }

    /// Lets all batches in memory be sent.
    pub fn release_all(&mut self) {
        self.released = self.pending.len();
    }

    /// Lets batches be sent that were encoded until `until` on the monotonic clock.
    pub fn release(&mut self, until: i64) {
        self.released = self.released.max(self.pending.partition_point(|batch| batch.made_mono <= until));
    }

    /// The oldest batch that may be sent.
    pub fn front(&self) -> Option<&Arc<EncodedBatch>> {
        if self.released > 0 { self.pending.front() } else { None }
    }

    /// Lets the oldest batch wait until [`SendQueue::release_held`].
    pub fn hold_front(&mut self) {
        if let Some(batch) = self.pending.pop_front() {
            self.released = self.released.saturating_sub(1);
            let at = self.held.partition_point(|other| other.seq < batch.seq);
            self.held.insert(at, batch);
        }
    }

    /// Returns held batches to their places, except those that `is_held` names.
    pub fn release_held(&mut self, is_held: impl Fn(&EncodedBatch) -> bool) {
        if self.held.iter().all(|batch| is_held(batch)) {
            return;
        }
        for batch in std::mem::take(&mut self.held) {
            if is_held(&batch) {
                self.held.push_back(batch);
            } else {
                self.released += 1;
                let at = self.pending.partition_point(|other| other.seq < batch.seq);
                self.pending.insert(at, batch);
            }
        }
    }

    /// The oldest batch in memory, held or not.
    fn oldest(&self) -> Option<&Arc<EncodedBatch>> {
        self.pending.front().into_iter().chain(self.held.front()).min_by_key(|batch| batch.seq)
    }

    /// Removes the oldest batch in memory.
    fn pop_oldest(&mut self) {
        let Some(seq) = self.oldest().map(|batch| batch.seq) else { return };
        let batch = if self.held.front().is_some_and(|batch| batch.seq == seq) {
            self.held.pop_front()
        } else {
            self.released = self.released.saturating_sub(1);
            self.pending.pop_front()
        };
        self.pending_bytes -= batch.map_or(0, |batch| batch.bytes());
    }

    /// Takes the oldest batch: it is in flight now.
    pub fn take_front(&mut self) -> Option<Arc<EncodedBatch>> {
        let batch = self.pending.pop_front()?;
        self.released = self.released.saturating_sub(1);
        self.pending_bytes -= batch.bytes();
        self.flight_bytes += batch.bytes();
        Some(batch)
    }

    /// Forgets a batch in flight that was acknowledged, refused or copied to the disk.
    pub fn remove_in_flight(&mut self, batch: &EncodedBatch) {
        self.flight_bytes -= batch.bytes();
    }

    /// Returns a batch in flight to its place, because the connection ended or the server refused it for now.
    pub fn put_back(&mut self, batch: Arc<EncodedBatch>) {
        self.flight_bytes -= batch.bytes();
        self.pending_bytes += batch.bytes();
        self.released += 1;
        let at = self.pending.partition_point(|other| other.seq < batch.seq);
        self.pending.insert(at, batch);
    }

    /// Copies a batch to the disk.
    pub fn copy_to_disk(&mut self, batch: &EncodedBatch) -> Option<RecordId> {
        let id = self.disk.as_mut()?.push(&self.context.agent, batch)?;
        self.context.counters.spooled.fetch_add(1, Ordering::Relaxed);
        Some(id)
    }

    /// The age at which a batch goes to the disk; `None` without a spool.
    pub fn age_max(&self, send_period: Duration) -> Option<Duration> {
        self.disk.as_ref().map(|disk| disk.config.after.duration() + send_period)
    }

    /// The bytes beyond which the oldest batches are spooled or dropped. With a spool this is below the queue's own bound, so that the encoder drops
    /// nothing while the sender works.
    fn bytes_max(&self, queue_bytes_max: u64) -> u64 {
        if self.disk.is_some() { queue_bytes_max / 4 * 3 } else { queue_bytes_max }
    }

    /// Whether the memory is over its bound.
    pub fn is_over(&self, queue_bytes_max: u64) -> bool {
        self.pending_bytes + self.flight_bytes > self.bytes_max(queue_bytes_max)
    }

    /// Spools batches that are too old or too many; drops batches that are too many if there is no spool or the disk fails.
    pub fn keep_bounds(&mut self, queue_bytes_max: u64, send_period: Duration) {
        let age_max = self.age_max(send_period);
        let now = clock::mono();
        let mut dropped = 0;
        while let Some(oldest) = self.oldest().cloned() {
            let too_much = self.is_over(queue_bytes_max);
            let too_old = age_max.is_some_and(|age_max| now - oldest.made_mono > age_max.as_nanos() as i64);
            if !too_much && !too_old {
                break;
            }
            let stored = self.copy_to_disk(&oldest).is_some();
            if !stored && (!too_much || self.pending.len() + self.held.len() == 1) {
                break;
            }
            self.pop_oldest();
            dropped += u64::from(!stored);
        }
        self.count_dropped(dropped);
        self.publish_sizes();
    }

    /// Counts and logs a message that the server refused, for good or for now.
    pub fn count_refused(&mut self, what: &str, reason: ReasonCode) {
        let given_up = is_final(reason);
        let counters = &self.context.counters;
        let counter = if given_up { &counters.refused } else { &counters.deferred };
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

    /// Counts and logs a message that is larger than the server allows.
    pub fn count_too_large(&mut self, what: &str, bytes: usize, max: usize) {
        self.context.counters.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.refusal_log.due(1) {
            tracing::error!(
                "the server takes {max} bytes; {count} messages, the last for {what} with {bytes} bytes, are given up"
            );
        }
    }

    /// Logs that the server asked for a schema that is lost.
    pub fn log_lost_schema(&mut self, hash: SchemaHash) {
        if let Some(count) = self.schema_log.due(1) {
            tracing::warn!("the server asked for {count} schemas that this agent no longer has, the last {hash}");
        }
    }

    fn count_dropped(&mut self, mut dropped: u64) {
        dropped += self.disk.as_mut().map_or(0, SpoolQueue::take_dropped);
        self.context.counters.dropped.fetch_add(dropped, Ordering::Relaxed);
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
        self.context.counters.spool_bytes.store(spool, Ordering::Relaxed);
        self.context.counters.queue_bytes.store(self.pending_bytes + self.flight_bytes, Ordering::Relaxed);
    }

    /// Syncs the spool if it is due.
    pub fn flush_if_due(&mut self) {
        if let Some(disk) = &mut self.disk
            && disk.dirty_since.is_some_and(|since| since.elapsed() >= disk.config.flush_every.duration())
        {
            disk.flush();
        }
    }

    /// The time until a batch has to be spooled or the spool synced.
    pub fn due_in(&self, send_period: Duration) -> Option<Duration> {
        let disk = self.disk.as_ref()?;
        let flush = disk.dirty_since.map(|since| disk.config.flush_every.duration().saturating_sub(since.elapsed()));
        let age = self.oldest().and_then(|oldest| {
            let age = Duration::from_nanos(u64::try_from(clock::mono() - oldest.made_mono).unwrap_or(0));
            let refused = disk.refused_at.map_or(Duration::ZERO, |at| RETRY_AFTER.saturating_sub(at.elapsed()));
            Some((self.age_max(send_period)?.saturating_sub(age)).max(refused))
        });
        [flush, age].into_iter().flatten().min()
    }

    /// Spools everything in memory, at the end.
    pub fn spool_all(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.refused_at = None;
        }
        self.release_held(|_| false);
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
