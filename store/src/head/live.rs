//! Batches and readings that are durable in the journal and not in blocks yet, and the newest batch of every group.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_model::{Schema, SchemaHash};

use crate::SensorId;
use crate::head::log::{ClosedLog, ROW_BYTES, ReadingLog, SensorReadings};
use crate::head::readings::LiveReadings;
use crate::ranges::BatchKey;
use crate::segment::{SegmentSize, SegmentSummary, SyncedLength};

/// A durable batch of one group.
#[derive(Debug, Clone)]
pub struct LiveBatch {
    pub schema: Schema,
    /// The native payload; `wholegrain_transport::payload` decodes it.
    pub payload: Bytes,
    pub agent: Arc<str>,
    /// Start of the agent's process, ns since the Unix epoch.
    pub boot: u64,
    pub seq: u64,
    /// The configured interval, ns.
    pub interval_ns: u64,
    pub samples: usize,
    /// The smallest time, ns since the Unix epoch.
    pub first_time: i64,
    pub last_time: i64,
    /// Its number of arrival since the store was opened.
    pub(crate) arrival: u64,
}

impl LiveBatch {
    pub(crate) fn key(&self) -> BatchKey {
        BatchKey { agent: self.agent.clone(), boot: self.boot, seq: self.seq }
    }

    /// Number of readings, including gaps.
    pub(crate) fn readings(&self) -> u64 {
        (self.samples * self.schema.len()) as u64
    }
}

/// The content of one journal segment. It grows while the segment is open, and is constant from then until it is sealed.
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
    /// First and last time of the content.
    span: Option<(i64, i64)>,
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

    /// A replayed segment with the readings of schemaless sensors; batches are added afterwards.
    pub fn replayed(number: u64, log: ReadingLog) -> Self {
        let rows = log.rows() as u64;
        let mut content =
            LiveSegmentContent { payload_bytes: rows * ROW_BYTES, readings: rows, ..LiveSegmentContent::default() };
        log.all().times().for_each(|(_, time)| content.widen(time, time));
        content.log = log;
        Self { number, content: RwLock::new(content) }
    }

    /// Makes batches, and readings with their numbers of arrival, visible to readers at once. Both are in the order of arrival.
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

    /// Whether there are readings of a schemaless sensor.
    pub fn has_readings(&self, id: SensorId) -> bool {
        self.content.read().unwrap_or_else(PoisonError::into_inner).log.has(id)
    }

    /// The readings of a schemaless sensor that arrived up to `watermark`.
    pub fn readings(&self, id: SensorId, watermark: u64) -> Option<SensorReadings> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).log.chain(id, watermark)
    }

    /// All readings of schemaless sensors.
    pub fn all_readings(&self) -> ClosedLog {
        self.content.read().unwrap_or_else(PoisonError::into_inner).log.all()
    }

    /// The number of the last arrival that readers see.
    pub fn last_arrival(&self) -> u64 {
        self.content.read().unwrap_or_else(PoisonError::into_inner).last_arrival
    }

    /// First and last time of the content, if there is any.
    pub fn span(&self) -> Option<(i64, i64)> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).span
    }

    pub(crate) fn size(&self) -> SegmentSize {
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        SegmentSize { payload_bytes: content.payload_bytes, file_bytes: content.file_bytes, readings: content.readings }
    }

    /// The synced length of its file, and a summary of its content.
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

    /// All batches, by schema, each in the order of arrival.
    pub fn groups(&self) -> Vec<Vec<Arc<LiveBatch>>> {
        self.content.read().unwrap_or_else(PoisonError::into_inner).groups.values().cloned().collect()
    }
}

/// The batch with the newest sample of each group that is not silent.
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

    pub(crate) fn remove(&self, schema: &SchemaHash) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(schema);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Removes groups that have been silent for `age`.
    pub fn remove_silent(&self, age: Duration, now: Instant) {
        let mut newest = self.0.write().unwrap_or_else(PoisonError::into_inner);
        newest.retain(|_, (_, at)| now.saturating_duration_since(*at) < age);
    }
}

/// The subscribers to everything that becomes durable.
#[derive(Debug, Default)]
pub(crate) struct LiveSubscribers(Mutex<Vec<SyncSender<Arc<[LiveItem]>>>>);

impl LiveSubscribers {
    pub(crate) fn subscribe(&self, bound: usize) -> Receiver<Arc<[LiveItem]>> {
        let (sender, receiver) = sync_channel(bound.max(1));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    /// Sends what became durable together to all subscribers without waiting, as one message, so that a receiver is woken once. Returns how many
    /// items were lost to slow receivers.
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

/// An item for subscribers.
#[derive(Debug, Clone)]
pub enum LiveItem {
    Batch(Arc<LiveBatch>),
    /// Readings of schemaless sensors.
    Readings(Arc<LiveReadings>),
}
