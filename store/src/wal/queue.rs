//! The queue of the journal thread.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::append::AppendCallback;
use crate::head::live::LiveBatch;
use crate::head::readings::{LiveReadings, encode};
use crate::sensors::reading::Reading;
use crate::wal::quarantine::{ImplausibleBatch, PlausibleTimes};

/// The most payload bytes of one group commit: more would make the first of them wait.
const COMMIT_BYTES_MAX: usize = 8 << 20;

/// Checked data to append.
pub(crate) enum AppendItem {
    Batch(LiveBatch),
    Readings(LiveReadings),
    /// Nothing is left: all times are implausible.
    Nothing,
}

pub(crate) struct PendingAppend {
    pub item: AppendItem,
    /// The part of it that goes to the quarantine.
    pub outside: Option<ImplausibleBatch>,
    pub done: AppendCallback,
}

impl PendingAppend {
    /// The sender; empty for data that is quarantined as a whole.
    pub fn sender(&self) -> &str {
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

    /// Its bytes in the queue.
    pub fn bytes(&self) -> u64 {
        let inside = match &self.item {
            AppendItem::Batch(batch) => batch.payload.len(),
            AppendItem::Readings(readings) => readings.readings.len() * size_of::<Reading>(),
            AppendItem::Nothing => 0,
        };
        (inside + self.outside.as_ref().map_or(0, |outside| outside.payload.len())) as u64
    }
}

/// Appends and requests that wait for the journal thread.
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
    /// Queues an append; if the queue is closed, returns its callback.
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

    /// Requests that the open segment is closed after everything queued now; `done` is sent to when it is. `false` if the queue is closed.
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

    /// Refuses further appends; the queued ones are still written.
    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }

    /// Waits for work: the next group, the rotations requested (only if no append is queued any more), and whether the queue is closed and empty.
    pub fn take(&self, until: Option<Instant>) -> (Vec<PendingAppend>, Vec<SyncSender<()>>, bool) {
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
