//! The journal thread: writes all batches that wait with one write and one fsync, then shows and answers them.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::StoreError;
use crate::append::{AppendCallback, AppendOutcome};
use crate::disk::DiskFile;
use crate::live::{LiveBatch, LiveItem, LiveSegment};
use crate::overlap::Overlaps;
use crate::quarantine::{ImplausibleBatch, PlausibleTimes, Quarantine};
use crate::ranges::{BatchKey, StoredBatches};
use crate::readings::{LiveReadings, READING_BYTES_MAX, Reading, encode};
use crate::segment::{HEADER_BYTES, RECORD_BYTES, SyncedLength, header, put_record, put_record_with, segment_path};
use crate::sensors::GroupState;
use crate::stats::{add, sub};
use crate::store::Shared;

/// The most payload bytes of one group commit: more would only make the first of them wait.
const COMMIT_BYTES_MAX: usize = 8 << 20;
/// A segment is sealed when it holds so many readings, however few bytes they take: sealing decodes one group's at a time.
const SEGMENT_READINGS_MAX: u64 = 64 << 20;

/// Readings of one sender that wait are gathered into records of about so many.
const RECORD_READINGS: usize = 16_384;

/// What can be appended, checked.
pub(crate) enum AppendItem {
    Batch(LiveBatch),
    Readings(LiveReadings),
    /// All of it is out of bounds.
    Nothing,
}

/// Something checked that waits.
pub(crate) struct PendingAppend {
    pub item: AppendItem,
    /// The part of it that goes to the quarantine.
    pub outside: Option<ImplausibleBatch>,
    pub done: AppendCallback,
}

impl PendingAppend {
    /// The sender; empty for data that is quarantined as a whole.
    fn sender(&self) -> &str {
        match &self.item {
            AppendItem::Batch(batch) => &batch.agent,
            AppendItem::Readings(readings) => &readings.source,
            AppendItem::Nothing => "",
        }
    }

    /// Appends a batch. If one of its times is implausible, the whole batch is quarantined.
    pub fn batch(batch: LiveBatch, bounds: PlausibleTimes, done: AppendCallback) -> Self {
        let Some(time) = [batch.first_time, batch.last_time].into_iter().find(|time| !bounds.hold(*time)) else {
            return Self { item: AppendItem::Batch(batch), outside: None, done };
        };
        let readings = batch.readings();
        let outside = ImplausibleBatch { source: batch.agent, payload: batch.payload, readings, time, now: bounds.now };
        Self { item: AppendItem::Nothing, outside: Some(outside), done }
    }

    /// Appends readings; those with implausible times are quarantined.
    pub fn readings(mut readings: LiveReadings, bounds: PlausibleTimes, done: AppendCallback) -> Self {
        let Some(first) = readings.readings.iter().find(|reading| !bounds.hold(reading.time)) else {
            return Self { item: AppendItem::Readings(readings), outside: None, done };
        };
        let time = first.time;
        let (inside, outside) = readings.readings.into_iter().partition(|reading| bounds.hold(reading.time));
        readings.readings = outside;
        let mut payload = Vec::new();
        encode(&readings, &mut payload);
        let outside = ImplausibleBatch {
            source: readings.source.clone(),
            payload: payload.into(),
            readings: readings.readings.len() as u64,
            time,
            now: bounds.now,
        };
        readings.readings = inside;
        let item = if readings.readings.is_empty() { AppendItem::Nothing } else { AppendItem::Readings(readings) };
        Self { item, outside: Some(outside), done }
    }

    /// What it counts for while it waits.
    pub fn bytes(&self) -> u64 {
        let inside = match &self.item {
            AppendItem::Batch(batch) => batch.payload.len(),
            AppendItem::Readings(readings) => readings.readings.len() * size_of::<Reading>(),
            AppendItem::Nothing => 0,
        };
        (inside + self.outside.as_ref().map_or(0, |outside| outside.payload.len())) as u64
    }
}

/// What waits for the journal thread.
#[derive(Default)]
pub(crate) struct AppendQueue {
    state: Mutex<AppendQueueContent>,
    changed: Condvar,
}

#[derive(Default)]
struct AppendQueueContent {
    pending: VecDeque<PendingAppend>,
    rotations: Vec<SyncSender<()>>,
    closed: bool,
    /// Whether the journal thread sleeps: waking it is a system call.
    asleep: bool,
}

impl AppendQueue {
    /// Puts a batch in line; when the queue is closed, gives back whom to tell.
    pub fn push(&self, pending: PendingAppend) -> Result<(), AppendCallback> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(pending.done);
        }
        state.pending.push_back(pending);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Has the open segment closed behind everything that waits now; `done` hears of it. `false` when the queue is closed.
    pub fn rotate(&self, done: SyncSender<()>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return false;
        }
        state.rotations.push(done);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Takes nothing more; what waits is still written.
    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }

    /// Waits for work: batches, rotations wanted (only when no batch is left in line), and whether it is over.
    fn take(&self, until: Option<Instant>) -> (Vec<PendingAppend>, Vec<SyncSender<()>>, bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.pending.is_empty() && state.rotations.is_empty() && !state.closed {
            let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
            state.asleep = true;
            state = match wait {
                Some(wait) if wait.is_zero() => break,
                Some(wait) => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(pending) = state.pending.pop_front() {
            bytes += pending.bytes() as usize;
            group.push(pending);
            if bytes >= COMMIT_BYTES_MAX {
                break;
            }
        }
        let rotations = if state.pending.is_empty() { std::mem::take(&mut state.rotations) } else { Vec::new() };
        let over = state.closed && group.is_empty() && state.pending.is_empty();
        (group, rotations, over)
    }
}

/// Batches a second beyond which group commits are [`crate::StoreConfig::commit_every`] apart. One client that waits for each
/// acknowledgement stays about here.
const BUSY_PER_S: f64 = 1000.0;
/// The same when they come from at least so many senders, none of which can then be waiting for one acknowledgement after the other.
const BUSY_PER_S_OF_MANY: f64 = 200.0;
const MANY_SENDERS: u32 = 16;
/// Over how long they are counted.
const PACE_WINDOW: Duration = Duration::from_millis(100);
/// How often failed writes are logged at most.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The journal thread's own state.
pub(crate) struct Journal {
    shared: Arc<Shared>,
    /// Everything durable, in blocks and in the journal.
    held: StoredBatches,
    file: Option<OpenSegment>,
    /// When the open segment got its first batch.
    since: Option<Instant>,
    arrivals: u64,
    /// The segment before the open one, as far as it is on stable storage.
    previous: SyncedLength,
    quarantine: Quarantine,
    overlaps: Overlaps,
    /// When a failed write was last logged, and how many have failed since.
    reported: Option<(Instant, u64)>,
    pace: ArrivalRate,
}

/// How many batches come: only where they are many does it pay to let them wait for each other.
struct ArrivalRate {
    since: Instant,
    count: u32,
    /// A bit for each sender, or for several that share one: 64 are enough to tell few from many.
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

    /// Whether more than [`BUSY_PER_S`], or [`BUSY_PER_S_OF_MANY`], came lately.
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
        shared: Arc<Shared>,
        held: StoredBatches,
        arrivals: u64,
        previous: SyncedLength,
        quarantine: Quarantine,
    ) -> Self {
        let pace = ArrivalRate::new(Instant::now());
        Self {
            shared,
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
            let until = self.since.map(|since| since + self.shared.config.seal_after.duration());
            let background = self.shared.config.background;
            let (group, rotations, over) = self.shared.queue.take(until.filter(|_| background));
            if !group.is_empty() {
                let began = Instant::now();
                group.iter().for_each(|pending| self.pace.note(pending.sender()));
                self.commit(group);
                if self.pace.is_busy(began) {
                    // What comes meanwhile shares the next fsync.
                    std::thread::sleep(self.shared.config.commit_every.saturating_sub(began.elapsed()));
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
        let size = self.shared.view().open.size();
        size.file_bytes >= self.shared.config.seal_bytes.0
            || size.readings >= SEGMENT_READINGS_MAX
            || self.shared.config.background && since.elapsed() >= self.shared.config.seal_after.duration()
    }

    /// Closes the open segment. The file of the next one is made when there is something to write.
    fn rotate(&mut self) {
        let view = self.shared.view();
        if view.open.is_empty() {
            return;
        }
        self.previous = view.open.proof();
        self.file = None;
        self.since = None;
        self.shared.change_view(|view| {
            let next = Arc::new(LiveSegment::new(view.open.number + 1));
            view.closed.push(std::mem::replace(&mut view.open, next));
        });
        self.shared.wake_sealer();
    }

    /// Writes one group and answers it.
    fn commit(&mut self, group: Vec<PendingAppend>) {
        let bytes: u64 = group.iter().map(PendingAppend::bytes).sum();
        let group = self.quarantine(group);
        let shared = self.shared.clone();
        // What is taken in here is known, and is not forgotten before it can be seen in the segment.
        let not_forgotten = shared.expiring.read().unwrap_or_else(PoisonError::into_inner);
        let (group, refused) = self.part_forgotten(group);
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
        drop(not_forgotten);
        sub(&self.shared.counters.queue_bytes, bytes);
        for (pending, error) in refused {
            add(&self.shared.counters.rejected, 1);
            answer(pending.done, Err(error));
        }
        if result.is_err() {
            add(&self.shared.counters.write_errors, new.len() as u64);
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
            let counter = if what.is_ok() { &self.shared.counters.duplicates } else { &self.shared.counters.rejected };
            add(counter, 1);
            answer(pending.done, what);
        }
    }

    /// Parts off what became unknown while it waited in the queue: a batch's sender is to be asked for its schema, as for one that was never
    /// announced.
    fn part_forgotten(&self, group: Vec<PendingAppend>) -> (Vec<PendingAppend>, Vec<(PendingAppend, StoreError)>) {
        let counters = &self.shared.counters;
        let failed = self.shared.expiry_failed.load(Relaxed);
        if !failed && counters.sensors_forgotten.load(Relaxed) + counters.schemas_forgotten.load(Relaxed) == 0 {
            return (group, Vec::new());
        }
        let expiry_unresolved = self.shared.expiry_unresolved.load(Relaxed);
        let sensors = self.shared.sensors();
        let fate = |pending: &PendingAppend| match &pending.item {
            AppendItem::Batch(_) | AppendItem::Readings(_) if expiry_unresolved => {
                let path = self.shared.paths.catalogue.clone();
                let reason = "forgetting sensors failed, and whether it came true is not known yet".to_owned();
                Some(StoreError::Catalogue { doing: "taking readings in", path, reason })
            }
            AppendItem::Batch(batch) if sensors.schema(&batch.schema.hash()).is_none() => {
                Some(StoreError::UnknownSchema(batch.schema.hash()))
            }
            AppendItem::Readings(readings) if readings.readings.iter().any(|reading| !sensors.has(reading.sensor)) => {
                Some(StoreError::Sensor("a sensor has been forgotten meanwhile; register its path again".to_owned()))
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
        let Err(error) = self.quarantine.write(&outside, &self.shared.counters) else { return group };
        tracing::error!(%error, "cannot quarantine data with implausible times; it was not acknowledged");
        let (failed, rest): (Vec<_>, Vec<_>) = group.into_iter().partition(|pending| pending.outside.is_some());
        add(&self.shared.counters.write_errors, failed.len() as u64);
        failed.into_iter().for_each(|pending| answer(pending.done, Err(error.clone())));
        rest
    }

    fn write(&mut self, new: &mut [PendingAppend], keys: HashSet<BatchKey>) -> Result<(), StoreError> {
        let mut group = GroupCommit::of(new, &mut self.arrivals);
        let end = self.write_durably(&group.buffer)?;
        // From here on the batches lie in this buffer, not in whatever network buffer they came in.
        let buffer = Bytes::from(std::mem::take(&mut group.buffer));
        let batches: Vec<Arc<LiveBatch>> = (group.batches.into_iter())
            .map(|(batch, place)| Arc::new(LiveBatch { payload: buffer.slice(place), ..batch }))
            .collect();
        for key in &keys {
            self.held.insert(key);
        }
        let open = self.shared.view().open.clone();
        let before = open.size();
        open.add(&batches, &group.records, end);
        let after = open.size();
        // Before any acknowledgement: bytes within this length were certainly on stable storage if they are missing later.
        self.shared.synced.note(&open.proof());
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.shared.newest.note(&batches, now);
        self.shared.heard(&batches, &group.records);
        let counters = &self.shared.counters;
        add(&counters.batches, batches.len() as u64);
        add(&counters.readings, after.readings - before.readings);
        add(&counters.schemaless_readings, group.records.iter().map(|(_, record)| record.readings.len() as u64).sum());
        add(&counters.payload_bytes, batches.iter().map(|batch| batch.payload.len() as u64).sum());
        add(&counters.live_bytes, after.payload_bytes - before.payload_bytes);
        batches.iter().for_each(|batch| self.overlaps.note(batch, now));
        let items = batches.into_iter().map(LiveItem::Batch);
        let items = items.chain(group.records.into_iter().map(|(_, record)| LiveItem::Readings(record)));
        add(&counters.subscriber_lost, self.shared.subscribers.publish(items));
        Ok(())
    }

    /// Appends to the open file and syncs it; returns its length. After a failure the file's end is suspect: it is cut back to
    /// what is durable and never written again. Should the cut fail too, the records there are repeats of what the sender sends
    /// again, and recognised as such.
    fn write_durably(&mut self, buffer: &[u8]) -> Result<u64, StoreError> {
        let number = self.shared.view().open.number;
        let path = segment_path(&self.shared.paths.journal, number);
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
        add(&self.shared.counters.fsyncs, 1);
        add(&self.shared.counters.fsync_ns, u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        match result {
            Ok(()) => {
                file.good += buffer.len() as u64;
                add(&self.shared.counters.journal_bytes, buffer.len() as u64);
                Ok(file.good)
            }
            Err(error) => {
                let cut = file.file.set_len(before).and_then(|()| file.file.sync());
                self.tell(&path, &error, cut.is_ok());
                self.file = None;
                if self.shared.view().open.is_empty() {
                    // Nothing in it is worth keeping: the next attempt creates the same file again.
                    sub(&self.shared.counters.journal_bytes, HEADER_BYTES as u64);
                }
                self.rotate();
                Err(StoreError::io("writing", &path, error))
            }
        }
    }

    /// Logs a failed write, at most one in [`TELL_EVERY`]: while a disk is full there are several a second.
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
        let journal = &self.shared.paths.journal;
        let path = segment_path(journal, number);
        let io = |doing, path| move |error| StoreError::io(doing, path, error);
        let file = self.shared.disk.create(&path).map_err(io("creating", &path))?;
        file.write_at(0, &header(number, self.previous)).map_err(io("writing", &path))?;
        file.sync().map_err(io("syncing", &path))?;
        self.shared.disk.sync_dir(journal).map_err(io("syncing", journal))?;
        add(&self.shared.counters.journal_bytes, HEADER_BYTES as u64);
        Ok(OpenSegment { file, good: HEADER_BYTES as u64 })
    }
}

/// One group commit: its bytes, and what is in them.
struct GroupCommit {
    buffer: Vec<u8>,
    batches: Vec<(LiveBatch, Range<usize>)>,
    /// With their numbers in the order of arrival.
    records: Vec<(u64, Arc<LiveReadings>)>,
}

impl GroupCommit {
    /// Takes what waits, in its order; readings of one sender that follow each other become one record.
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

/// What was last heard of a batch's group.
pub(crate) fn group_state(batch: &LiveBatch) -> GroupState {
    GroupState { agent: batch.agent.clone(), interval_ns: batch.interval_ns, last_time: batch.last_time }
}

/// Calls back; a panic there must not end the journal.
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
