//! The journal thread: writes all batches that wait with one write and one fsync, then shows and answers them.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;

use crate::StoreError;
use crate::disk::DiskFile;
use crate::live::{LiveBatch, Segment};
use crate::ranges::{BatchKey, Held};
use crate::segment::{HEADER_BYTES, RECORD_BYTES, header, put_record, segment_path};
use crate::sensors::GroupState;
use crate::stats::{add, sub};
use crate::store::{Appended, Done, Shared};

/// The most payload bytes of one group commit: more would only make the first of them wait.
const COMMIT_BYTES_MAX: usize = 8 << 20;
/// A segment is sealed when it holds so many readings, however few bytes they take: sealing decodes one group's at a time.
const SEGMENT_READINGS_MAX: u64 = 64 << 20;

/// A checked batch that waits.
pub(crate) struct Pending {
    pub batch: LiveBatch,
    pub done: Done,
}

/// What waits for the journal thread.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    pending: VecDeque<Pending>,
    rotations: Vec<SyncSender<()>>,
    closed: bool,
}

impl Queue {
    /// Puts a batch in line; when the queue is closed, gives back whom to tell.
    pub fn push(&self, pending: Pending) -> Result<(), Done> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(pending.done);
        }
        state.pending.push_back(pending);
        drop(state);
        self.changed.notify_one();
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
    fn take(&self, until: Option<Instant>) -> (Vec<Pending>, Vec<SyncSender<()>>, bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.pending.is_empty() && state.rotations.is_empty() && !state.closed {
            let wait = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match wait {
                Some(wait) if wait.is_zero() => break,
                Some(wait) => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(pending) = state.pending.pop_front() {
            bytes += pending.batch.payload.len();
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

/// The journal thread's own state.
pub(crate) struct Journal {
    shared: Arc<Shared>,
    /// Everything durable, in blocks and in the journal.
    held: Held,
    file: Option<OpenFile>,
    /// When the open segment got its first batch.
    since: Option<Instant>,
    arrivals: u64,
}

struct OpenFile {
    file: Arc<dyn DiskFile>,
    /// Bytes known to be durable.
    good: u64,
}

impl Journal {
    pub fn new(shared: Arc<Shared>, held: Held, arrivals: u64) -> Self {
        Self { shared, held, file: None, since: None, arrivals }
    }

    /// Runs until the queue is closed and empty.
    pub fn run(mut self) {
        loop {
            let until = self.since.map(|since| since + self.shared.config.seal_after.duration());
            let background = self.shared.config.background;
            let (group, rotations, over) = self.shared.queue.take(until.filter(|_| background));
            if !group.is_empty() {
                self.commit(group);
            }
            if !rotations.is_empty() || (background && self.is_due()) {
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
            || since.elapsed() >= self.shared.config.seal_after.duration()
    }

    /// Closes the open segment. The file of the next one is made when there is something to write.
    fn rotate(&mut self) {
        if self.shared.view().open.is_empty() {
            return;
        }
        self.file = None;
        self.since = None;
        self.shared.change_view(|view| {
            let next = Arc::new(Segment::new(view.open.number + 1));
            view.closed.push(std::mem::replace(&mut view.open, next));
        });
        self.shared.wake_sealer();
    }

    /// Writes one group and answers it.
    fn commit(&mut self, group: Vec<Pending>) {
        let bytes: usize = group.iter().map(|pending| pending.batch.payload.len()).sum();
        let mut keys = HashSet::new();
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for mut pending in group {
            let key = pending.batch.key();
            if self.held.contains(&key) || keys.contains(&key) {
                old.push((pending, Ok(Appended::Duplicate)));
            } else if self.held.is_full_for(&key) {
                let reason = format!("agent {} leaves too many holes in its numbers", key.agent);
                old.push((pending, Err(StoreError::Payload(reason))));
            } else {
                self.arrivals += 1;
                pending.batch.arrival = self.arrivals;
                keys.insert(key);
                new.push(pending);
            }
        }
        let result = if new.is_empty() { Ok(()) } else { self.write(&mut new, keys) };
        self.shared.counters.queue_bytes.fetch_sub(bytes as u64, Relaxed);
        let (new_result, counter) = match &result {
            Ok(()) => (Ok(Appended::Stored), &self.shared.counters.batches),
            Err(error) => (Err(error.clone()), &self.shared.counters.write_errors),
        };
        add(counter, new.len() as u64);
        for pending in new {
            answer(pending.done, new_result.clone());
        }
        for (pending, what) in old {
            // A duplicate within the group is durable only if the group is.
            let what = match (&result, what) {
                (Err(error), Ok(_)) if !self.held.contains(&pending.batch.key()) => Err(error.clone()),
                (_, what) => what,
            };
            let counter = if what.is_ok() { &self.shared.counters.duplicates } else { &self.shared.counters.rejected };
            add(counter, 1);
            answer(pending.done, what);
        }
    }

    fn write(&mut self, new: &mut [Pending], keys: HashSet<BatchKey>) -> Result<(), StoreError> {
        let size: usize = new.iter().map(|pending| pending.batch.payload.len() + RECORD_BYTES).sum();
        let mut buffer = Vec::with_capacity(size);
        let places: Vec<_> = new.iter().map(|pending| put_record(&pending.batch.payload, &mut buffer)).collect();
        let end = self.write_durably(&buffer)?;
        // From here on the batches lie in this buffer, not in whatever network buffer they came in.
        let buffer = Bytes::from(buffer);
        let batches: Vec<Arc<LiveBatch>> = (new.iter().zip(places))
            .map(|(pending, place)| Arc::new(LiveBatch { payload: buffer.slice(place), ..pending.batch.clone() }))
            .collect();
        for key in &keys {
            self.held.insert(key);
        }
        self.shared.view().open.add(&batches, end);
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.shared.newest.note(&batches, now);
        self.shared.heard(&batches);
        let counters = &self.shared.counters;
        add(&counters.readings, batches.iter().map(|batch| batch.readings()).sum());
        let payload_bytes = batches.iter().map(|batch| batch.payload.len() as u64).sum();
        add(&counters.payload_bytes, payload_bytes);
        add(&counters.live_bytes, payload_bytes);
        add(&counters.subscriber_lost, self.shared.subscribers.publish(&batches));
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
                tracing::error!(segment = %path.display(), %error, cut = cut.is_ok(), "journal write failed; nothing of it was acknowledged");
                self.file = None;
                if self.shared.view().open.is_empty() {
                    // Nothing in it is worth keeping: the next attempt makes the same file anew.
                    sub(&self.shared.counters.journal_bytes, HEADER_BYTES as u64);
                }
                self.rotate();
                Err(StoreError::io("writing", &path, error))
            }
        }
    }

    fn create(&self, number: u64) -> Result<OpenFile, StoreError> {
        let journal = &self.shared.paths.journal;
        let path = segment_path(journal, number);
        let io = |doing, path| move |error| StoreError::io(doing, path, error);
        let file = self.shared.disk.create(&path).map_err(io("creating", &path))?;
        file.write_at(0, &header(number)).map_err(io("writing", &path))?;
        file.sync().map_err(io("syncing", &path))?;
        self.shared.disk.sync_dir(journal).map_err(io("syncing", journal))?;
        add(&self.shared.counters.journal_bytes, HEADER_BYTES as u64);
        Ok(OpenFile { file, good: HEADER_BYTES as u64 })
    }
}

/// What was last heard of a batch's group.
pub(crate) fn group_state(batch: &LiveBatch) -> GroupState {
    GroupState { agent: batch.agent.clone(), interval_ns: batch.interval_ns, last_time: batch.last_time }
}

/// Calls back; a panic there must not end the journal.
fn answer(done: Done, result: Result<Appended, StoreError>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("a batch's sender panicked when it was answered");
    }
}
