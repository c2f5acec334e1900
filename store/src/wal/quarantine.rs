//! The quarantine: batches and readings with implausible times are stored durably, acknowledged and counted, but are not part of the readings. A
//! wrong clock must neither store readings where nobody looks for them nor make an agent send them for ever.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::disk::{Disk, DiskFile};
use crate::segment::{HEADER_BYTES, SyncedLength, header, put_record, segment_number, segment_path};
use crate::stats::{Counters, add, sub};
use crate::{StoreConfig, StoreError};

/// The next file is created when a file has this many bytes.
const FILE_BYTES: u64 = 16 << 20;
/// The most bytes of all files; above it the oldest file is dropped and counted.
pub const ASIDE_BYTES_MAX: u64 = 256 << 20;
/// The least time between two log messages.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// A batch, or the readings of one call, with implausible times.
pub(crate) struct ImplausibleBatch {
    pub source: Arc<str>,
    pub payload: Bytes,
    pub readings: u64,
    /// The first implausible time.
    pub time: i64,
    /// The server's clock when it arrived.
    pub now: i64,
}

/// The range of plausible times, both ends included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlausibleTimes {
    pub now: i64,
    first: i64,
    last: i64,
}

impl PlausibleTimes {
    /// The range as of now; without bounds the clock is not read.
    pub fn of(config: &StoreConfig) -> Self {
        if config.past_max.is_none() && config.future_max.is_none() {
            return Self { now: 0, first: i64::MIN, last: i64::MAX };
        }
        let now = config.clock.now();
        let ns = |interval: wholegrain_model::Interval| i64::try_from(interval.ns()).unwrap_or(i64::MAX);
        Self {
            now,
            first: config.past_max.map_or(i64::MIN, |past| now.saturating_sub(ns(past))),
            last: config.future_max.map_or(i64::MAX, |future| now.saturating_add(ns(future))),
        }
    }

    pub(crate) fn hold(&self, time: i64) -> bool {
        (self.first..=self.last).contains(&time)
    }
}

/// The files, written by the journal thread alone.
pub(crate) struct Quarantine {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// The oldest first, with their bytes; the last may be open.
    files: VecDeque<(u64, u64)>,
    next: u64,
    open: Option<Arc<dyn DiskFile>>,
    said: Option<Instant>,
    /// Readings quarantined since the last log message.
    unsaid: u64,
}

impl Quarantine {
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: PathBuf, counters: &Counters) -> Result<Self, StoreError> {
        let listed = disk.list(&dir).map_err(|error| StoreError::io("listing", &dir, error))?;
        let mut files = Vec::new();
        for entry in listed {
            let Some(number) = segment_number(&entry.path) else { continue };
            let size = disk.open(&entry.path, false).and_then(|file| file.size());
            files.push((number, size.map_err(|error| StoreError::io("opening", &entry.path, error))?));
        }
        files.sort_unstable();
        add(&counters.quarantine_bytes, files.iter().map(|file| file.1).sum());
        let next = files.last().map_or(1, |file| file.0 + 1);
        Ok(Self { disk: disk.clone(), dir, files: files.into(), next, open: None, said: None, unsaid: 0 })
    }

    /// Writes these records and syncs the file.
    pub fn write(&mut self, outside: &[&ImplausibleBatch], counters: &Counters) -> Result<(), StoreError> {
        let mut buffer = Vec::new();
        for one in outside {
            put_record(&one.payload, &mut buffer);
        }
        let result = self.append(&buffer, counters);
        if result.is_err() {
            // The end of the file is suspect: it is never written again, and the senders send the records again.
            self.open = None;
        }
        result?;
        let readings = outside.iter().map(|one| one.readings).sum();
        add(&counters.quarantined_readings, readings);
        self.say(outside, readings);
        self.drop_oldest(counters);
        Ok(())
    }

    fn append(&mut self, buffer: &[u8], counters: &Counters) -> Result<(), StoreError> {
        let number = self.files.back().filter(|_| self.open.is_some()).map_or(self.next, |file| file.0);
        let path = segment_path(&self.dir, number);
        let io = |doing| {
            let path = &path;
            move |error| StoreError::io(doing, path, error)
        };
        let (file, before) = match (&self.open, self.files.back()) {
            (Some(file), Some((_, bytes))) => (file.clone(), *bytes),
            _ => {
                let file = self.disk.create(&path).map_err(io("creating"))?;
                file.write_at(0, &header(number, SyncedLength::default())).map_err(io("writing"))?;
                (file, HEADER_BYTES as u64)
            }
        };
        file.write_at(before, buffer).and_then(|()| file.sync()).map_err(io("writing"))?;
        if self.open.is_none() {
            self.disk.sync_dir(&self.dir).map_err(|error| StoreError::io("syncing", &self.dir, error))?;
            self.files.push_back((number, before));
            self.next = number + 1;
            self.open = Some(file);
            add(&counters.quarantine_bytes, before);
        }
        add(&counters.quarantine_bytes, buffer.len() as u64);
        if let Some((_, bytes)) = self.files.back_mut() {
            *bytes += buffer.len() as u64;
            if *bytes >= FILE_BYTES {
                self.open = None;
            }
        }
        Ok(())
    }

    fn drop_oldest(&mut self, counters: &Counters) {
        while self.files.iter().map(|file| file.1).sum::<u64>() > ASIDE_BYTES_MAX && self.files.len() > 1 {
            let Some((number, bytes)) = self.files.pop_front() else { return };
            let path = segment_path(&self.dir, number);
            match self.disk.remove(&path) {
                Ok(()) => {
                    tracing::warn!(file = %path.display(), bytes, "the quarantine is full; its oldest file was dropped")
                }
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "cannot drop the oldest file of the quarantine")
                }
            }
            sub(&counters.quarantine_bytes, bytes);
            add(&counters.quarantine_dropped_bytes, bytes);
        }
    }

    /// Logs it with an example, at a limited rate.
    fn say(&mut self, outside: &[&ImplausibleBatch], readings: u64) {
        self.unsaid += readings;
        let (Some(first), true) = (outside.first(), self.said.is_none_or(|at| at.elapsed() >= SAY_EVERY)) else {
            return;
        };
        let off = Duration::from_nanos(first.time.abs_diff(first.now));
        let side = if first.time > first.now { "ahead of" } else { "behind" };
        tracing::warn!(
            source = %first.source, time_ns = first.time, readings = self.unsaid, dir = %self.dir.display(),
            "times are {} s {side} this machine's clock: quarantined, not stored; check the clocks of both, or raise store.past_max or store.future_max",
            off.as_secs()
        );
        (self.said, self.unsaid) = (Some(Instant::now()), 0);
    }
}
