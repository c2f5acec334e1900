//! What is durable in the journal and not yet in blocks, in memory as it came, and the newest batch of every group.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::{Schema, SchemaHash};

use crate::SensorId;
use crate::log::{ClosedLog, ROW_BYTES, ReadingLog, SensorReadings};
use crate::ranges::BatchKey;
use crate::readings::LiveReadings;
use crate::segment::{SegmentSummary, SyncedLength};

/// A durable batch, as it came.
#[derive(Debug, Clone)]
pub struct LiveBatch {
    pub schema: Schema,
    /// The native payload; `wholegrain_transport::payload` decodes it.
    pub payload: Bytes,
    /// The agent that sent it.
    pub agent: Arc<str>,
    /// Start of the agent's process, ns since the Unix epoch.
    pub boot: u64,
    /// Its number within (agent, boot).
    pub seq: u64,
    /// The interval that was asked for, ns.
    pub interval_ns: u64,
    /// The number of samples.
    pub samples: usize,
    /// The smallest time in it, ns since the Unix epoch.
    pub first_time: i64,
    /// The largest time in it.
    pub last_time: i64,
    /// Number in the order of arrival since the store was opened.
    pub(crate) arrival: u64,
}

impl LiveBatch {
    pub(crate) fn key(&self) -> BatchKey {
        BatchKey { agent: self.agent.clone(), boot: self.boot, seq: self.seq }
    }

    /// Readings in it, gaps counted too.
    pub(crate) fn readings(&self) -> u64 {
        (self.samples * self.schema.len()) as u64
    }
}

/// One journal segment's batches. Grows while it is the open one, then stays as it is until it is sealed.
#[derive(Debug)]
pub(crate) struct LiveSegment {
    pub number: u64,
    content: RwLock<LiveSegmentContent>,
}

#[derive(Debug, Default)]
struct LiveSegmentContent {
    groups: HashMap<SchemaHash, Vec<Arc<LiveBatch>>>,
    /// Readings without a schema.
    log: ReadingLog,
    last_arrival: u64,
    payload_bytes: u64,
    file_bytes: u64,
    readings: u64,
    /// First and last time of what is in it.
    span: Option<(i64, i64)>,
}

/// How much a segment holds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SegmentSize {
    pub payload_bytes: u64,
    pub file_bytes: u64,
    pub readings: u64,
}

impl LiveSegmentContent {
    fn widen(&mut self, first: i64, last: i64) {
        let span = self.span.get_or_insert((first, last));
        *span = (span.0.min(first), span.1.max(last));
    }
}

impl LiveSegment {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, content: RwLock::default() }
    }

    /// One whose readings without a schema were in the journal.
    pub fn replayed(number: u64, log: ReadingLog) -> Self {
        let rows = log.rows() as u64;
        let mut content =
            LiveSegmentContent { payload_bytes: rows * ROW_BYTES, readings: rows, ..LiveSegmentContent::default() };
        log.all().times().for_each(|(_, time)| content.widen(time, time));
        content.log = log;
        Self { number, content: RwLock::new(content) }
    }

    /// Shows batches, and readings with their numbers in the order of arrival, to readers, all at once. Each are in that order.
    pub fn add(&self, batches: &[Arc<LiveBatch>], readings: &[(u64, Arc<LiveReadings>)], file_bytes: u64) {
        let mut content = self.content.write().unwrap_or_else(PoisonError::into_inner);
        content.file_bytes = file_bytes;
        for batch in batches {
            content.last_arrival = content.last_arrival.max(batch.arrival);
            content.payload_bytes += batch.payload.len() as u64;
            content.readings += batch.readings();
            content.widen(batch.first_time, batch.last_time);
            content.groups.entry(batch.schema.hash()).or_default().push(batch.clone());
        }
        for (arrival, record) in readings {
            let count = record.readings.len() as u64;
            content.log.add(&record.readings, *arrival);
            record.readings.iter().for_each(|reading| content.widen(reading.time, reading.time));
            content.last_arrival = content.last_arrival.max(*arrival);
            content.payload_bytes += count * ROW_BYTES;
            content.readings += count;
        }
    }

    /// Whether a sensor has readings without a schema.
    pub fn has_readings(&self, id: SensorId) -> bool {
        self.content.read().unwrap_or_else(PoisonError::into_inner).log.has(id)
    }

    /// A sensor's readings without a schema that arrived up to `watermark`.
    pub fn readings(&self, id: SensorId, watermark: u64) -> Option<SensorReadings> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).log.chain(id, watermark)
    }

    /// All readings without a schema.
    pub fn all_readings(&self) -> ClosedLog {
        self.content.read().unwrap_or_else(PoisonError::into_inner).log.all()
    }

    /// The number of the last batch that readers see.
    pub fn last_arrival(&self) -> u64 {
        self.content.read().unwrap_or_else(PoisonError::into_inner).last_arrival
    }

    /// First and last time of what is in it, if anything is.
    pub fn span(&self) -> Option<(i64, i64)> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).span
    }

    pub(crate) fn size(&self) -> SegmentSize {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        SegmentSize { payload_bytes: content.payload_bytes, file_bytes: content.file_bytes, readings: content.readings }
    }

    /// What can be said of it: how long its file is on stable storage, and what is in it.
    pub fn proof(&self) -> SyncedLength {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        let holds = content.span.map(|(first, last)| SegmentSummary { readings: content.readings, first, last });
        SyncedLength { number: self.number, bytes: content.file_bytes, holds }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        content.groups.is_empty() && content.log.is_empty()
    }

    /// Batches of one schema that arrived up to `watermark` and touch `from <= time < to`.
    pub fn batches(&self, schema: &SchemaHash, watermark: u64, from: i64, to: i64) -> Vec<Arc<LiveBatch>> {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        let batches = content.groups.get(schema).map_or(&[][..], Vec::as_slice);
        let wanted =
            |batch: &&Arc<LiveBatch>| batch.arrival <= watermark && batch.last_time >= from && batch.first_time < to;
        batches.iter().filter(wanted).cloned().collect()
    }

    /// Whether there are batches of one schema.
    pub fn has(&self, schema: &SchemaHash) -> bool {
        self.content.read().unwrap_or_else(PoisonError::into_inner).groups.contains_key(schema)
    }

    /// Everything, by schema, each in the order of arrival.
    pub fn groups(&self) -> Vec<Vec<Arc<LiveBatch>>> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).groups.values().cloned().collect()
    }
}

/// The batch with the newest sample of each group, for as long as the group is not silent for too long.
#[derive(Debug, Default)]
pub(crate) struct NewestBatches(RwLock<HashMap<SchemaHash, (Arc<LiveBatch>, Instant)>>);

impl NewestBatches {
    pub(crate) fn note(&self, batches: &[Arc<LiveBatch>], now: Instant) {
        let mut newest = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for batch in batches {
            match newest.get_mut(&batch.schema.hash()) {
                Some((known, at)) if known.last_time > batch.last_time => *at = now,
                Some(entry) => *entry = (batch.clone(), now),
                None => drop(newest.insert(batch.schema.hash(), (batch.clone(), now))),
            }
        }
    }

    pub(crate) fn get(&self, schema: &SchemaHash) -> Option<Arc<LiveBatch>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(schema).map(|(batch, _)| batch.clone())
    }

    /// Lets go of one group.
    pub fn remove(&self, schema: &SchemaHash) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(schema);
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Lets go of groups that have been silent for `age`.
    pub fn forget(&self, age: Duration, now: Instant) {
        let mut newest = self.0.write().unwrap_or_else(PoisonError::into_inner);
        newest.retain(|_, (_, at)| now.saturating_duration_since(*at) < age);
    }
}

/// Who wants everything as it becomes durable.
#[derive(Debug, Default)]
pub(crate) struct LiveSubscribers(Mutex<Vec<SyncSender<Arc<[LiveItem]>>>>);

impl LiveSubscribers {
    pub(crate) fn subscribe(&self, bound: usize) -> Receiver<Arc<[LiveItem]>> {
        let (sender, receiver) = sync_channel(bound.max(1));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    /// Gives what became durable together to everyone without waiting, in one: a receiver is woken once for all of it. Returns how many items
    /// were lost to somebody slow.
    pub fn publish(&self, items: impl Iterator<Item = LiveItem>) -> u64 {
        let mut subscribers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if subscribers.is_empty() {
            return 0;
        }
        let items: Arc<[LiveItem]> = items.collect();
        let mut lost = 0;
        subscribers.retain(|sender| match sender.try_send(items.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                lost += items.len() as u64;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        });
        lost
    }

    /// Ends the streams of all subscribers.
    pub fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What subscribers get as it becomes durable.
#[derive(Debug, Clone)]
pub enum LiveItem {
    /// A batch of an agent.
    Batch(Arc<LiveBatch>),
    /// Readings of sensors without a schema.
    Readings(Arc<LiveReadings>),
}
