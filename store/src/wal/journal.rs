//! The journal thread: writes all queued batches with one write and one fsync, then shows them to readers and answers their senders.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::StoreError;
use crate::append::{AppendCallback, AppendOutcome};
use crate::computed::ResultFiles;
use crate::config::StoreConfig;
use crate::disk::{Disk, DiskFile};
use crate::files::FileSet;
use crate::head::live::{LiveBatch, LiveItem, LiveSegment, LiveSubscribers, NewestBatches};
use crate::head::overlap::Overlaps;
use crate::head::readings::{LiveReadings, READING_BYTES_MAX, encode};
use crate::paths::StorePaths;
use crate::ranges::{BatchKey, StoredBatches};
use crate::segment::synced::SyncedLengthFile;
use crate::segment::{HEADER_BYTES, RECORD_BYTES, SyncedLength, header, put_record, put_record_with, segment_path};
use crate::sensors::gate::ExpiryGate;
use crate::sensors::{GroupState, SensorIndex};
use crate::stats::{Counters, add, sub};
use crate::wal::quarantine::{ImplausibleBatch, Quarantine};
use crate::wal::queue::{AppendItem, AppendQueue, PendingAppend};
use crate::work::WorkSignal;

/// A segment is sealed when it holds this many readings, however few bytes they take: sealing decodes one group at a time.
const SEGMENT_READINGS_MAX: u64 = 64 << 20;

/// Queued readings of one sender are gathered into records of about this many.
const RECORD_READINGS: usize = 16_384;

/// Above this many batches a second, group commits are [`crate::StoreConfig::commit_every`] apart. One client that waits for each acknowledgement
/// stays below.
const BUSY_PER_S: f64 = 1000.0;
/// The same limit when the batches come from at least [`MANY_SENDERS`]: then they do not wait for one acknowledgement after the other.
const BUSY_PER_S_OF_MANY: f64 = 200.0;
const MANY_SENDERS: u32 = 16;
/// The rate is measured over this time.
const PACE_WINDOW: Duration = Duration::from_millis(100);
/// The least time between two log messages about failed writes.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The components that the journal thread uses.
pub(crate) struct JournalParts {
    pub config: Arc<StoreConfig>,
    pub paths: Arc<StorePaths>,
    pub disk: Arc<dyn Disk>,
    pub queue: Arc<AppendQueue>,
    pub files: Arc<FileSet>,
    pub sensors: Arc<SensorIndex>,
    pub gate: Arc<ExpiryGate>,
    pub synced: Arc<SyncedLengthFile>,
    pub newest: Arc<NewestBatches>,
    pub subscribers: Arc<LiveSubscribers>,
    pub results: Arc<ResultFiles>,
    pub counters: Arc<Counters>,
    pub work: Arc<WorkSignal>,
}

pub(crate) struct Journal {
    parts: JournalParts,
    /// All durable batches, in blocks and in the journal.
    held: StoredBatches,
    file: Option<OpenSegment>,
    /// When the first batch was written to the open segment.
    since: Option<Instant>,
    arrivals: u64,
    /// The synced length of the segment before the open one.
    previous: SyncedLength,
    quarantine: Quarantine,
    overlaps: Overlaps,
    /// When a failed write was last logged, and the number of failures since.
    reported: Option<(Instant, u64)>,
    pace: ArrivalRate,
}

/// The rate of batches. Only at a high rate does it pay to let batches wait for each other.
struct ArrivalRate {
    since: Instant,
    count: u32,
    /// A bit for each sender or several senders: 64 bits are enough to distinguish few from many.
    senders: u64,
    busy: bool,
}

impl ArrivalRate {
    fn new(since: Instant) -> Self {
        Self { since, count: 0, senders: 0, busy: false }
    }

    /// Notes a batch of this sender.
    fn note(&mut self, sender: &str) {
        let mut hasher = DefaultHasher::new();
        sender.hash(&mut hasher);
        self.senders |= 1 << (hasher.finish() % 64);
        self.count += 1;
    }

    /// Whether more than [`BUSY_PER_S`], or [`BUSY_PER_S_OF_MANY`], arrived recently.
    fn is_busy(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        if passed >= PACE_WINDOW {
            let many = self.senders.count_ones() >= MANY_SENDERS;
            let busy_per_s = if many { BUSY_PER_S_OF_MANY } else { BUSY_PER_S };
            self.busy = f64::from(self.count) > busy_per_s * passed.as_secs_f64();
            (self.since, self.count, self.senders) = (now, 0, 0);
        }
        self.busy
    }
}

struct OpenSegment {
    file: Arc<dyn DiskFile>,
    /// Bytes known to be durable.
    good: u64,
}

impl Journal {
    pub(crate) fn new(
        parts: JournalParts,
        held: StoredBatches,
        arrivals: u64,
        previous: SyncedLength,
        quarantine: Quarantine,
    ) -> Self {
        let pace = ArrivalRate::new(Instant::now());
        Self {
            parts,
            held,
            file: None,
            since: None,
            arrivals,
            previous,
            quarantine,
            reported: None,
            pace,
            overlaps: Overlaps::default(),
        }
    }

    /// Runs until the queue is closed and empty.
    pub fn run(mut self) {
        loop {
            let until = self.since.map(|since| since + self.parts.config.seal_after.duration());
            let background = self.parts.config.background;
            let (group, rotations, over) = self.parts.queue.take(until.filter(|_| background));
            if !group.is_empty() {
                let began = Instant::now();
                group.iter().for_each(|pending| self.pace.note(pending.sender()));
                self.commit(group);
                if self.pace.is_busy(began) {
                    // What arrives meanwhile shares the next fsync.
                    std::thread::sleep(self.parts.config.commit_every.saturating_sub(began.elapsed()));
                }
            }
            if !rotations.is_empty() || self.is_due() {
                self.rotate();
            }
            for done in rotations {
                let _ = done.send(());
            }
            if over {
                return;
            }
        }
    }

    fn is_due(&self) -> bool {
        let Some(since) = self.since else { return false };
        let size = self.parts.files.view().open.size();
        size.file_bytes >= self.parts.config.seal_bytes.0
            || size.readings >= SEGMENT_READINGS_MAX
            || self.parts.config.background && since.elapsed() >= self.parts.config.seal_after.duration()
    }

    /// Closes the open segment. The next file is created when there is something to write.
    fn rotate(&mut self) {
        let view = self.parts.files.view();
        if view.open.is_empty() {
            return;
        }
        self.previous = view.open.proof();
        self.file = None;
        self.since = None;
        self.parts.files.change_view(|view| {
            let next = Arc::new(LiveSegment::new(view.open.number + 1));
            view.closed.push(std::mem::replace(&mut view.open, next));
        });
        self.parts.work.wake();
    }

    /// Writes one group and answers its senders.
    fn commit(&mut self, group: Vec<PendingAppend>) {
        let bytes: u64 = group.iter().map(PendingAppend::bytes).sum();
        let group = self.quarantine(group);
        let gate = self.parts.gate.clone();
        // The sensors of the group are known, and do not expire before the group is in the segment.
        let no_expiry = gate.append();
        let (group, refused) = self.split_expired(group);
        let mut keys = HashSet::new();
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for pending in group {
            let AppendItem::Batch(batch) = &pending.item else {
                new.push(pending);
                continue;
            };
            let key = batch.key();
            if self.held.contains(&key) || keys.contains(&key) {
                old.push((pending, key, Ok(AppendOutcome::Duplicate)));
            } else if self.held.is_full_for(&key) {
                let reason = format!("agent {} leaves too many holes in its numbers", key.agent);
                old.push((pending, key, Err(StoreError::Payload(reason))));
            } else {
                keys.insert(key);
                new.push(pending);
            }
        }
        let something = |pending: &PendingAppend| !matches!(pending.item, AppendItem::Nothing);
        let result = if !new.iter().any(something) { Ok(()) } else { self.write(&mut new, keys) };
        drop(no_expiry);
        sub(&self.parts.counters.queue_bytes, bytes);
        for (pending, error) in refused {
            add(&self.parts.counters.rejected, 1);
            answer(pending.done, Err(error));
        }
        if result.is_err() {
            add(&self.parts.counters.write_errors, new.len() as u64);
        }
        for pending in new {
            let what = if pending.outside.is_some() { AppendOutcome::Quarantined } else { AppendOutcome::Stored };
            answer(pending.done, result.clone().map(|()| what));
        }
        for (pending, key, what) in old {
            // A duplicate within the group is durable only if the group is.
            let what = match (&result, what) {
                (Err(error), Ok(_)) if !self.held.contains(&key) => Err(error.clone()),
                (_, what) => what,
            };
            let counter = if what.is_ok() { &self.parts.counters.duplicates } else { &self.parts.counters.rejected };
            add(counter, 1);
            answer(pending.done, what);
        }
    }

    /// Separates what expired while it waited in the queue. Its sender is asked for its schema, as for one that was never announced.
    fn split_expired(&self, group: Vec<PendingAppend>) -> (Vec<PendingAppend>, Vec<(PendingAppend, StoreError)>) {
        let counters = &self.parts.counters;
        let failed = self.parts.gate.has_failed();
        if !failed && counters.sensors_expired.load(Relaxed) + counters.schemas_expired.load(Relaxed) == 0 {
            return (group, Vec::new());
        }
        let is_unresolved = self.parts.gate.is_unresolved();
        let sensors = self.parts.sensors.read();
        let fate = |pending: &PendingAppend| match &pending.item {
            AppendItem::Batch(_) | AppendItem::Readings(_) if is_unresolved => {
                let path = self.parts.paths.catalogue.clone();
                let reason = "the expiry of sensors failed, and it is not known yet whether it committed".to_owned();
                Some(StoreError::Catalogue { doing: "taking readings in", path, reason })
            }
            AppendItem::Batch(batch) if sensors.schema(&batch.schema.hash()).is_none() => {
                Some(StoreError::UnknownSchema(batch.schema.hash()))
            }
            AppendItem::Readings(readings) if readings.readings.iter().any(|reading| !sensors.has(reading.sensor)) => {
                Some(StoreError::Sensor("a sensor has expired meanwhile; register its path again".to_owned()))
            }
            _ => None,
        };
        let (mut known, mut refused) = (Vec::with_capacity(group.len()), Vec::new());
        for pending in group {
            match fate(&pending) {
                Some(error) => refused.push((pending, error)),
                None => known.push(pending),
            }
        }
        (known, refused)
    }

    /// Writes implausible data to the quarantine. If that fails, the senders get an error and nothing of their data is stored: they send it again.
    fn quarantine(&mut self, group: Vec<PendingAppend>) -> Vec<PendingAppend> {
        let outside: Vec<&ImplausibleBatch> = group.iter().filter_map(|pending| pending.outside.as_ref()).collect();
        if outside.is_empty() {
            return group;
        }
        let Err(error) = self.quarantine.write(&outside, &self.parts.counters) else { return group };
        tracing::error!(%error, "cannot quarantine data with implausible times; it was not acknowledged");
        let (failed, rest): (Vec<_>, Vec<_>) = group.into_iter().partition(|pending| pending.outside.is_some());
        add(&self.parts.counters.write_errors, failed.len() as u64);
        failed.into_iter().for_each(|pending| answer(pending.done, Err(error.clone())));
        rest
    }

    fn write(&mut self, new: &mut [PendingAppend], keys: HashSet<BatchKey>) -> Result<(), StoreError> {
        let mut group = GroupCommit::of(new, &mut self.arrivals);
        let end = self.write_durably(&group.buffer)?;
        // From here on the batches use this buffer instead of a network buffer.
        let buffer = Bytes::from(std::mem::take(&mut group.buffer));
        let batches: Vec<Arc<LiveBatch>> = (group.batches.into_iter())
            .map(|(batch, place)| Arc::new(LiveBatch { payload: buffer.slice(place), ..batch }))
            .collect();
        for key in &keys {
            self.held.insert(key);
        }
        let open = self.parts.files.view().open.clone();
        let before = open.size();
        open.add(&batches, &group.records, end);
        let after = open.size();
        // Before any acknowledgement: bytes within this length were on stable storage if they are missing later.
        self.parts.synced.note(&open.proof());
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.parts.newest.note(&batches, now);
        note_newest(&self.parts.sensors, &self.parts.results, &batches, &group.records);
        let counters = &self.parts.counters;
        add(&counters.batches, batches.len() as u64);
        add(&counters.readings, after.readings - before.readings);
        add(&counters.schemaless_readings, group.records.iter().map(|(_, record)| record.readings.len() as u64).sum());
        add(&counters.payload_bytes, batches.iter().map(|batch| batch.payload.len() as u64).sum());
        add(&counters.live_bytes, after.payload_bytes - before.payload_bytes);
        batches.iter().for_each(|batch| self.overlaps.note(batch, now));
        let items = batches.into_iter().map(LiveItem::Batch);
        let items = items.chain(group.records.into_iter().map(|(_, record)| LiveItem::Readings(record)));
        add(&counters.subscriber_lost, self.parts.subscribers.publish(items));
        Ok(())
    }

    /// Appends to the open file and syncs it; returns its length. After a failure the end of the file is suspect: it is truncated to what is
    /// durable and never written again. If the truncation fails too, the records there will be recognised as duplicates of what the senders send
    /// again.
    fn write_durably(&mut self, buffer: &[u8]) -> Result<u64, StoreError> {
        let number = self.parts.files.view().open.number;
        let path = segment_path(&self.parts.paths.journal, number);
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = self.create(number)?;
                self.file.insert(file)
            }
        };
        let before = file.good;
        let started = Instant::now();
        let result = file.file.write_at(before, buffer).and_then(|()| file.file.sync());
        add(&self.parts.counters.fsyncs, 1);
        add(&self.parts.counters.fsync_ns, u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        match result {
            Ok(()) => {
                file.good += buffer.len() as u64;
                add(&self.parts.counters.journal_bytes, buffer.len() as u64);
                Ok(file.good)
            }
            Err(error) => {
                let cut = file.file.set_len(before).and_then(|()| file.file.sync());
                self.tell(&path, &error, cut.is_ok());
                self.file = None;
                if self.parts.files.view().open.is_empty() {
                    // It holds no records: the next attempt creates the same file again.
                    sub(&self.parts.counters.journal_bytes, HEADER_BYTES as u64);
                }
                self.rotate();
                Err(StoreError::io("writing", &path, error))
            }
        }
    }

    /// Logs a failed write, at most once in [`TELL_EVERY`]: a full disk causes several a second.
    fn tell(&mut self, path: &Path, error: &io::Error, cut: bool) {
        if let Some((since, more)) = &mut self.reported
            && since.elapsed() < TELL_EVERY
        {
            *more += 1;
            return;
        }
        let before = self.reported.map_or(0, |(_, more)| more);
        tracing::error!(segment = %path.display(), %error, cut, before, "journal write failed; nothing of it was acknowledged");
        self.reported = Some((Instant::now(), 0));
    }

    fn create(&self, number: u64) -> Result<OpenSegment, StoreError> {
        let journal = &self.parts.paths.journal;
        let path = segment_path(journal, number);
        let io = |doing, path| move |error| StoreError::io(doing, path, error);
        let file = self.parts.disk.create(&path).map_err(io("creating", &path))?;
        file.write_at(0, &header(number, self.previous)).map_err(io("writing", &path))?;
        file.sync().map_err(io("syncing", &path))?;
        self.parts.disk.sync_dir(journal).map_err(io("syncing", journal))?;
        add(&self.parts.counters.journal_bytes, HEADER_BYTES as u64);
        Ok(OpenSegment { file, good: HEADER_BYTES as u64 })
    }
}

/// One group commit: its bytes and its content.
struct GroupCommit {
    buffer: Vec<u8>,
    batches: Vec<(LiveBatch, Range<usize>)>,
    /// With their numbers of arrival.
    records: Vec<(u64, Arc<LiveReadings>)>,
}

impl GroupCommit {
    /// Encodes the queued items in order; consecutive readings of one sender become one record.
    fn of(new: &mut [PendingAppend], arrivals: &mut u64) -> Self {
        let size = |pending: &PendingAppend| match &pending.item {
            AppendItem::Batch(batch) => batch.payload.len() + RECORD_BYTES,
            AppendItem::Readings(readings) => readings.readings.len() * READING_BYTES_MAX,
            AppendItem::Nothing => 0,
        };
        let mut group = Self {
            buffer: Vec::with_capacity(new.iter().map(size).sum::<usize>()),
            batches: Vec::new(),
            records: Vec::new(),
        };
        let mut gathered: Option<LiveReadings> = None;
        for pending in new {
            match &mut pending.item {
                AppendItem::Batch(batch) => {
                    group.close_record(gathered.take(), arrivals);
                    *arrivals += 1;
                    let place = put_record(&batch.payload, &mut group.buffer);
                    group.batches.push((LiveBatch { arrival: *arrivals, ..batch.clone() }, place));
                }
                AppendItem::Nothing => {}
                AppendItem::Readings(more) => match &mut gathered {
                    Some(record) if record.source == more.source && record.readings.len() < RECORD_READINGS => {
                        record.readings.append(&mut more.readings);
                    }
                    _ => {
                        let readings = std::mem::take(&mut more.readings);
                        let before = gathered.replace(LiveReadings { source: more.source.clone(), readings });
                        group.close_record(before, arrivals);
                    }
                },
            }
        }
        group.close_record(gathered, arrivals);
        group
    }

    fn close_record(&mut self, readings: Option<LiveReadings>, arrivals: &mut u64) {
        let Some(readings) = readings else { return };
        *arrivals += 1;
        put_record_with(&mut self.buffer, |out| encode(&readings, out));
        self.records.push((*arrivals, Arc::new(readings)));
    }
}

/// Notes the newest times of the groups and sensors, and tells the result cache what arrived.
pub(crate) fn note_newest(
    sensors: &SensorIndex,
    results: &ResultFiles,
    batches: &[Arc<LiveBatch>],
    records: &[(u64, Arc<LiveReadings>)],
) {
    let mut known = sensors.write();
    batches.iter().for_each(|batch| known.note_group(batch.schema.hash(), group_state(batch)));
    records.iter().for_each(|(_, record)| known.note_newest_times(&record.source, &record.readings));
    drop(known);
    results.note_arrivals(batches, records);
}

/// The state of a group after this batch.
fn group_state(batch: &LiveBatch) -> GroupState {
    GroupState { agent: batch.agent.clone(), interval_ns: batch.interval_ns, last_time: batch.last_time }
}

/// Calls back. A panic in the callback must not end the journal thread.
fn answer(done: AppendCallback, result: Result<AppendOutcome, StoreError>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("a batch's sender panicked when it was answered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_batches_are_many_do_they_wait_for_each_other() {
        let start = Instant::now();
        let mut pace = ArrivalRate::new(start);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut come = |count: usize, of: usize, ms: u64| {
            (0..count).for_each(|i| pace.note(&format!("n{}", i % of)));
            pace.is_busy(at(ms))
        };
        assert!(!come(1, 1, 0) && !come(90, 1, 100), "900 a second");
        assert!(!come(60, 1, 150) && come(60, 1, 200), "1,200 a second");
        assert!(come(1, 1, 250), "until the next count");
        assert!(!come(1, 1, 60_000), "after a pause nobody waits");
        assert!(!come(90, 8, 60_100), "900 a second of few");
        assert!(come(90, 90, 60_200), "900 a second of many");
        assert!(!come(19, 19, 60_300), "190 a second of many");
    }
}
