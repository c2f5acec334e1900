//! The spool as the sender uses it: schemas before the batches that need them, draining at a bounded rate, and what the server
//! has acknowledged out of turn.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use wholegrain_model::{Schema, SchemaHash};
use wholegrain_transport::payload::read_header;
use wholegrain_transport::spool::{Record, RecordId, Spool, SpoolError};
use wholegrain_transport::topics::Topic;

use super::send_buffer::LogLimiter;
use crate::config::SpoolConfig;
use crate::state::EncodedBatch;

/// The size of a spool's segment: an eighth of the spool, at most 8 MiB.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// How long after the disk refused is it tried again: 1 s.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The most schemas that are known to be lost, so many; beyond it their batches are tried again and found out again.
const LOST_SCHEMAS_MAX: usize = 64;

/// The size of a segment of a spool of so many bytes.
pub fn segment_bytes(bytes_max: u64) -> u64 {
    (bytes_max / 8).min(SEGMENT_BYTES_MAX)
}

/// Bytes that may be drained: so many a second.
#[derive(Debug)]
pub(super) struct DrainAllowance {
    /// `None`: without a limit.
    per_second: Option<f64>,
    bytes: f64,
    at: Instant,
}

impl DrainAllowance {
    pub fn new(per_second: Option<u64>, now: Instant) -> Self {
        Self { per_second: per_second.map(|bytes| bytes as f64), bytes: 0.0, at: now }
    }

    /// Whether the next record may go. A second's worth is saved up at most, so that a long quiet time does not make a burst.
    pub fn is_left(&mut self, now: Instant) -> bool {
        let Some(rate) = self.per_second else { return true };
        self.bytes = (self.bytes + now.saturating_duration_since(self.at).as_secs_f64() * rate).min(rate);
        self.at = now;
        self.bytes > 0.0
    }

    /// So many bytes went: a record larger than what was left is made up for by waiting longer.
    pub fn spend(&mut self, bytes: usize) {
        if self.per_second.is_some() {
            self.bytes -= bytes as f64;
        }
    }
}

/// How many of the server's window of so many batches may be from the spool: never none.
pub(super) fn share_of(window: usize, share: f64) -> usize {
    ((window as f64 * share) as usize).max(1)
}

/// The spool and what is known about it.
pub struct SpoolQueue {
    pub(super) spool: Spool,
    pub(super) config: SpoolConfig,
    /// Schemas in the spool since `bytes_since` was 0.
    announced: HashSet<SchemaHash>,
    bytes_since: u64,
    /// Schemas in the spool, of this process: a dropped one is no dropped batch.
    schemas: BTreeSet<RecordId>,
    /// Records handed out and not confirmed.
    out: usize,
    /// Handed out by the spool, but the server's window was full.
    stashed: Option<Record>,
    /// Acknowledged before the spool has handed them out: live batches that were copied here while they were in flight.
    acknowledged: BTreeSet<RecordId>,
    /// Schemas that neither this agent nor its spool nor the server has: batches that need them can never be read.
    lost: HashSet<SchemaHash>,
    /// Batches given up because their schema is lost.
    unreadable: u64,
    /// Something handed out was refused and is to be handed out again.
    pub(super) again: bool,
    pub(super) dirty_since: Option<Instant>,
    pub(super) refused_at: Option<Instant>,
    dropped_before: u64,
    log_limiter: LogLimiter,
    pub(super) allowance: DrainAllowance,
}

impl SpoolQueue {
    pub(super) fn new(spool: Spool, config: SpoolConfig) -> Self {
        let allowance = DrainAllowance::new(config.drain_bytes_per_second.map(|rate| rate.0), Instant::now());
        Self {
            spool,
            config,
            announced: HashSet::new(),
            bytes_since: 0,
            schemas: BTreeSet::new(),
            out: 0,
            stashed: None,
            acknowledged: BTreeSet::new(),
            lost: HashSet::new(),
            unreadable: 0,
            again: false,
            dirty_since: None,
            refused_at: None,
            dropped_before: 0,
            log_limiter: LogLimiter::default(),
            allowance,
        }
    }

    fn may_try(&self) -> bool {
        self.refused_at.is_none_or(|at| at.elapsed() >= RETRY_AFTER)
    }

    /// Puts a batch on the disk, its schema before the first that needs it.
    pub(super) fn push(&mut self, agent: &str, batch: &EncodedBatch) -> Option<RecordId> {
        if !self.may_try() {
            return None;
        }
        match self.try_push(agent, batch) {
            Ok(id) => {
                self.refused_at = None;
                self.dirty_since.get_or_insert_with(Instant::now);
                Some(id)
            }
            Err(error) => {
                self.refused_at = Some(Instant::now());
                self.tell(&error, "; batches stay in memory as long as the queue holds them");
                None
            }
        }
    }

    fn try_push(&mut self, agent: &str, batch: &EncodedBatch) -> Result<RecordId, SpoolError> {
        // Whole segments are dropped when the spool is full, and the schemas in them: what is left must have its own.
        if self.bytes_since >= segment_bytes(self.config.bytes_max.0) {
            self.announced.clear();
            self.bytes_since = 0;
        }
        let hash = batch.schema.hash();
        if !self.announced.contains(&hash) {
            let topic = Topic::Schema { agent, group: batch.schema.group() }.to_string();
            let schema = batch.schema.encode();
            let id = self.spool.push(&topic, &schema)?;
            self.schemas.insert(id);
            self.bytes_since += schema.len() as u64;
            self.announced.insert(hash);
        }
        self.bytes_since += batch.payload.len() as u64;
        self.spool.push(&batch.topic, &batch.payload)
    }

    /// The next record to drain.
    pub(super) fn next(&mut self) -> Option<Record> {
        if self.stashed.is_some() {
            return self.stashed.take();
        }
        loop {
            let record = match self.spool.next() {
                Ok(record) => record?,
                Err(error) => {
                    self.tell(&error, "");
                    return None;
                }
            };
            self.out += 1;
            // What the spool dropped meanwhile will not come any more.
            self.acknowledged = self.acknowledged.split_off(&record.id);
            if self.acknowledged.remove(&record.id) {
                self.confirm(record.id);
            } else if self.is_unreadable(&record) {
                self.confirm(record.id);
                self.unreadable += 1;
            } else {
                return Some(record);
            }
        }
    }

    fn is_unreadable(&self, record: &Record) -> bool {
        !self.lost.is_empty()
            && matches!(Topic::parse(&record.topic), Some(Topic::Batch { .. }))
            && read_header(&record.payload).is_ok_and(|(header, _)| self.lost.contains(&header.schema))
    }

    /// A record that could not be sent now after all.
    pub(super) fn stash(&mut self, record: Record) {
        self.stashed = Some(record);
    }

    /// What was handed out and not confirmed is to be drained again: the connection ended, or the server refused some of it.
    pub(super) fn rewind(&mut self) {
        self.stashed = None;
        self.again = false;
        self.out = 0;
        self.spool.rewind();
    }

    /// Looks through the whole spool for a schema; that it has none is remembered. Only while nothing is in flight.
    pub(super) fn find_schema(&mut self, hash: SchemaHash) -> Option<Schema> {
        let mut found = None;
        while let (None, Some(record)) = (&found, self.next()) {
            if matches!(Topic::parse(&record.topic), Some(Topic::Schema { .. })) {
                found = Schema::decode(&record.payload).ok().filter(|schema| schema.hash() == hash);
            }
        }
        self.rewind();
        if found.is_none() && self.lost.len() < LOST_SCHEMAS_MAX {
            self.lost.insert(hash);
        }
        found
    }

    /// The server has a record that was handed out.
    pub(super) fn confirm(&mut self, id: RecordId) {
        self.out = self.out.saturating_sub(1);
        self.schemas.remove(&id);
        if let Err(error) = self.spool.confirm(id) {
            self.tell(&error, "");
        }
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// The server has a record that was not handed out yet.
    pub(super) fn acknowledge(&mut self, id: RecordId) {
        self.acknowledged.insert(id);
    }

    /// Batches lost since the last call: dropped by the spool for want of room, or because their schema is lost. The spool
    /// tells how many records it dropped, and its oldest one tells how many of them were schemas; that one can be looked at
    /// only while none is handed out, so that the count may come a little later.
    pub(super) fn take_dropped(&mut self) -> u64 {
        let (records, unreadable) = (self.spool.dropped().records, std::mem::take(&mut self.unreadable));
        if records == self.dropped_before || self.out > 0 {
            return unreadable;
        }
        let oldest = self.spool.next().ok().flatten().map(|record| record.id);
        self.spool.rewind();
        let left = oldest.map(|oldest| self.schemas.split_off(&oldest)).unwrap_or_default();
        let schemas = std::mem::replace(&mut self.schemas, left).len() as u64;
        let dropped = records - self.dropped_before;
        self.dropped_before = records;
        dropped.saturating_sub(schemas) + unreadable
    }

    pub(super) fn flush(&mut self) {
        self.dirty_since = None;
        if let Err(error) = self.spool.flush() {
            self.tell(&error, "");
        }
    }

    fn tell(&mut self, error: &SpoolError, consequence: &str) {
        if self.log_limiter.due(1).is_some() {
            tracing::warn!("spool: {error}{consequence}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_keeps_its_rate_over_any_time() {
        let start = Instant::now();
        for record in [100, 1_000, 25_000] {
            let mut allowance = DrainAllowance::new(Some(10_000), start);
            let mut sent = 0;
            // A look each 50 ms for 100 s, as the sender does while it drains.
            for look in 0..2_000u32 {
                while allowance.is_left(start + Duration::from_millis(50) * look) {
                    allowance.spend(record);
                    sent += record;
                }
            }
            assert!((990_000..=1_000_000 + record).contains(&sent), "records of {record}: {sent} bytes in 100 s");
        }
    }

    #[test]
    fn a_quiet_time_saves_up_a_second_at_most() {
        let start = Instant::now();
        let mut allowance = DrainAllowance::new(Some(10_000), start);
        let (mut sent, later) = (0, start + Duration::from_secs(3600));
        while allowance.is_left(later) {
            allowance.spend(1_000);
            sent += 1_000;
        }
        assert_eq!(sent, 10_000);
        assert!(DrainAllowance::new(None, start).is_left(start), "without a limit");
        assert!(!DrainAllowance::new(Some(1), start).is_left(start), "nothing is saved up at the start");
    }

    #[test]
    fn the_spool_has_its_share_of_the_window_and_always_one() {
        for (window, share, expected) in
            [(100, 0.5, 50), (100, 1.0, 100), (1, 0.5, 1), (3, 0.01, 1), (12, 0.25, 3), (7, 0.5, 3)]
        {
            assert_eq!(share_of(window, share), expected, "{window} {share}");
        }
    }
}
