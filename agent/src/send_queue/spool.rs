//! The part of the send queue on disk: schemas before the batches that need them, draining at a bounded rate, and records that the server
//! acknowledged out of order.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use wholegrain_model::{Schema, SchemaHash};
use wholegrain_transport::payload::read_header;
use wholegrain_transport::spool::{Record, RecordId, Spool, SpoolError};
use wholegrain_transport::topics::Topic;

use crate::batch::EncodedBatch;
use crate::config::SpoolConfig;
use crate::log_limiter::LossLog;

/// The size of a spool's segment: an eighth of the spool, at most 8 MiB.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// The pause after a write to the disk failed: 1 s.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The most lost schemas that are remembered; batches of further ones are sent again and found unreadable again.
const LOST_SCHEMAS_MAX: usize = 64;

/// The size of a segment of a spool of `bytes_max` bytes.
pub fn segment_bytes(bytes_max: u64) -> u64 {
    (bytes_max / 8).min(SEGMENT_BYTES_MAX)
}

/// Limits the bytes that are drained in a second.
#[derive(Debug)]
pub struct DrainAllowance {
    /// `None`: without a limit.
    per_second: Option<f64>,
    bytes: f64,
    at: Instant,
}

impl DrainAllowance {
    pub fn new(per_second: Option<u64>, now: Instant) -> Self {
        Self { per_second: per_second.map(|bytes| bytes as f64), bytes: 0.0, at: now }
    }

    /// Whether the next record may be sent. At most one second's bytes are saved up, so that an idle time does not cause a burst.
    pub fn is_left(&mut self, now: Instant) -> bool {
        let Some(rate) = self.per_second else { return true };
        self.bytes = (self.bytes + now.saturating_duration_since(self.at).as_secs_f64() * rate).min(rate);
        self.at = now;
        self.bytes > 0.0
    }

    /// Counts sent bytes. After a record larger than the rest, the next one waits longer.
    pub fn spend(&mut self, bytes: usize) {
        if self.per_second.is_some() {
            self.bytes -= bytes as f64;
        }
    }
}

/// The part of the server's window that may be spooled batches: at least one.
pub fn share_of(window: usize, share: f64) -> usize {
    ((window as f64 * share) as usize).max(1)
}

/// The spool with its state.
pub struct SpoolQueue {
    pub spool: Spool,
    pub config: SpoolConfig,
    /// Schemas in the spool since `bytes_since` was 0.
    announced: HashSet<SchemaHash>,
    bytes_since: u64,
    /// Schema records of this process in the spool: dropping one is not a dropped batch.
    schemas: BTreeSet<RecordId>,
    /// Records returned by `next_record` and not confirmed.
    out: usize,
    /// A record that could not be sent because the server's window was full; it is the next one.
    stashed: Option<Record>,
    /// Records acknowledged before `next_record` returned them: batches that were copied here while they were in flight.
    acknowledged: BTreeSet<RecordId>,
    /// Schemas that neither this agent nor its spool nor the server has: their batches can never be read.
    lost: HashSet<SchemaHash>,
    /// Batches given up because their schema is lost.
    unreadable: u64,
    /// The server refused a record for now: `next_record` has to return it again.
    pub needs_rewind: bool,
    /// Records were skipped because the server refuses their schema for now.
    pub has_skipped: bool,
    pub dirty_since: Option<Instant>,
    pub refused_at: Option<Instant>,
    dropped_before: u64,
    loss_log: LossLog,
    pub allowance: DrainAllowance,
}

impl SpoolQueue {
    pub fn new(spool: Spool, config: SpoolConfig) -> Self {
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
            needs_rewind: false,
            has_skipped: false,
            dirty_since: None,
            refused_at: None,
            dropped_before: 0,
            loss_log: LossLog::default(),
            allowance,
        }
    }

    fn may_try(&self) -> bool {
        self.refused_at.is_none_or(|at| at.elapsed() >= RETRY_AFTER)
    }

    /// Puts a batch on the disk, its schema before the first that needs it.
    pub fn push(&mut self, agent: &str, batch: &EncodedBatch) -> Option<RecordId> {
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
                self.log_error(&error, "; batches stay in memory as long as the queue has room");
                None
            }
        }
    }

    fn try_push(&mut self, agent: &str, batch: &EncodedBatch) -> Result<RecordId, SpoolError> {
        // A full spool drops whole segments with the schemas in them, so that each segment needs its own.
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
    pub fn next_record(&mut self) -> Option<Record> {
        if self.stashed.is_some() {
            return self.stashed.take();
        }
        loop {
            let record = match self.spool.next() {
                Ok(record) => record?,
                Err(error) => {
                    self.log_error(&error, "");
                    return None;
                }
            };
            self.out += 1;
            // `next_record` will not return records that the spool has dropped meanwhile.
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

    /// Puts back a record that could not be sent.
    pub fn stash(&mut self, record: Record) {
        self.stashed = Some(record);
    }

    /// Lets `next_record` return all unconfirmed records again: the connection ended, or the server refused some of them.
    pub fn rewind(&mut self) {
        self.stashed = None;
        self.needs_rewind = false;
        self.has_skipped = false;
        self.out = 0;
        self.spool.rewind();
    }

    /// Searches the whole spool for a schema and remembers a failure. Only while nothing is in flight.
    pub fn find_schema(&mut self, hash: SchemaHash) -> Option<Schema> {
        let mut found = None;
        while let (None, Some(record)) = (&found, self.next_record()) {
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

    /// The server has acknowledged a record that `next_record` returned.
    pub fn confirm(&mut self, id: RecordId) {
        self.out = self.out.saturating_sub(1);
        self.schemas.remove(&id);
        if let Err(error) = self.spool.confirm(id) {
            self.log_error(&error, "");
        }
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// The server has acknowledged a record that `next_record` has not returned yet.
    pub fn acknowledge(&mut self, id: RecordId) {
        self.acknowledged.insert(id);
    }

    /// Batches lost since the last call: dropped by a full spool, or unreadable because their schema is lost. The spool counts dropped records; how
    /// many of them were schemas is known from its oldest record, which can be read only while none is unconfirmed. The count may therefore come
    /// later.
    pub fn take_dropped(&mut self) -> u64 {
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

    pub fn flush(&mut self) {
        self.dirty_since = None;
        if let Err(error) = self.spool.flush() {
            self.log_error(&error, "");
        }
    }

    fn log_error(&mut self, error: &SpoolError, consequence: &str) {
        if self.loss_log.due(1).is_some() {
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
            // Once each 50 ms for 100 s, as the sender does while it drains.
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
