//! Going through the journal at an opening: what is durable becomes live again, and what no fsync vouches for is written again.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use wholegrain_transport::payload::{read_header, read_times};

use crate::disk::{Disk, DiskFile, read_all};
use crate::live::{LiveBatch, Segment};
use crate::log::{IdMap, Log};
use crate::progress::Progress;
use crate::ranges::Held;
use crate::readings::{READINGS_MAGIC, Reading, decode};
use crate::segment::{HEADER_BYTES, Proof, SEGMENT_VERSION, proof_in, recover, segment_number, segment_path};
use crate::sensors::Sensors;
use crate::stats::{Counters, add};
use crate::store::Paths;
use crate::{OpenReport, StoreError};

/// Segments that are read at the same time. Reading is memory's speed; more threads would only take more of it at once.
const READERS: usize = 2;
/// The ending of a segment that a person put into the journal to be taken in: what was set aside, or a copy of what was damaged.
const READMIT: &str = "readmit";

/// Going through the journal.
pub(crate) struct Replay<'a> {
    pub disk: &'a dyn Disk,
    pub paths: &'a Paths,
    pub held: Held,
    pub arrivals: u64,
    pub counters: &'a Counters,
    pub report: &'a mut OpenReport,
}

/// What the journal held.
pub(crate) struct Replayed {
    /// Segments that are not sealed, the oldest first.
    pub closed: Vec<Arc<Segment>>,
    /// The number of the next.
    pub next: u64,
    /// What the next one's header may say of the last of these.
    pub last: Proof,
}

/// One segment as it was read, nothing decided yet.
struct Found {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: Bytes,
    /// Where what may count ends.
    end: usize,
    damaged: Vec<Range<usize>>,
    newer: Option<u32>,
    batches: Vec<LiveBatch>,
    /// How many readings without a schema there are, and of each sensor the newest with who sent it.
    readings: u64,
    newest: IdMap<(Reading, Arc<str>)>,
    log: Log,
    /// Bytes that were on stable storage and are not there any more.
    missing: u64,
    /// Whether a later segment says that all of this one is on stable storage.
    proven: bool,
}

impl Replay<'_> {
    /// Takes everything in that is not in blocks yet.
    pub fn journal(&mut self, sealed_through: u64, sensors: &mut Sensors) -> Result<Replayed, StoreError> {
        let numbers = self.numbers(sealed_through)?;
        let last = numbers.last().copied().unwrap_or(0);
        let (sealed, numbers): (Vec<u64>, Vec<u64>) = numbers.into_iter().partition(|number| *number <= sealed_through);
        for number in sealed {
            self.remove(&segment_path(&self.paths.journal, number))?;
        }
        let proofs = self.proofs(&numbers);
        let found = read_segments(self.disk, self.paths, &numbers, &proofs, sensors);
        let mut replayed = Replayed { closed: Vec::new(), next: last.max(sealed_through) + 1, last: Proof::default() };
        for (number, found) in numbers.into_iter().zip(found) {
            let mut found = found?;
            if let Some(version) = found.newer {
                let (path, known) = (found.path, u64::from(SEGMENT_VERSION));
                return Err(StoreError::NewerVersion { path, found: u64::from(version), known });
            }
            self.report.segments += 1;
            self.tell_damage(&found);
            let proven = found.proven || self.write_again(&found)?;
            for (reading, source) in std::mem::take(&mut found.newest).into_values() {
                sensors.heard_readings(&source, &[reading]);
            }
            let path = found.path.clone();
            let segment = self.take_in(number, found);
            if segment.is_empty() {
                self.remove(&path)?;
                continue;
            }
            let size = segment.size();
            add(&self.counters.live_bytes, size.payload_bytes);
            add(&self.counters.journal_bytes, size.file_bytes);
            replayed.last = if proven { Proof { number, bytes: size.file_bytes } } else { Proof::default() };
            replayed.closed.push(Arc::new(segment));
        }
        Ok(replayed)
    }

    /// The segments there are. What a person put there gets a number of its own.
    fn numbers(&mut self, sealed_through: u64) -> Result<Vec<u64>, StoreError> {
        let dir = &self.paths.journal;
        let listed = self.disk.list(dir).map_err(|error| StoreError::io("listing", dir, error))?;
        let mut numbers: Vec<u64> = listed.iter().filter_map(|entry| segment_number(&entry.path)).collect();
        numbers.sort_unstable();
        for entry in listed.iter().filter(|entry| entry.path.extension().is_some_and(|end| end == READMIT)) {
            let number = numbers.last().copied().unwrap_or(0).max(sealed_through) + 1;
            let path = segment_path(dir, number);
            let renamed = self.disk.rename(&entry.path, &path).and_then(|()| self.disk.sync_dir(dir));
            renamed.map_err(|error| StoreError::io("naming", &path, error))?;
            tracing::info!(from = %entry.path.display(), to = %path.display(), "taken into the journal");
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// What the segments say of those before them.
    fn proofs(&self, numbers: &[u64]) -> HashMap<u64, u64> {
        let head = |number: &u64| {
            let file = self.disk.open(&segment_path(&self.paths.journal, *number), false).ok()?;
            let mut head = [0; HEADER_BYTES];
            file.read_at(0, &mut head).ok()?;
            proof_in(&head).filter(|proof| proof.number < *number)
        };
        numbers.iter().filter_map(head).map(|proof| (proof.number, proof.bytes)).collect()
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.remove(path).map_err(|error| StoreError::io("removing", path, error))
    }

    fn tell_damage(&mut self, found: &Found) {
        if found.missing > 0 {
            self.report.damaged_bytes += found.missing;
            tracing::error!(segment = %found.path.display(), bytes = found.missing, "a journal segment has become shorter");
        }
        for damaged in &found.damaged {
            self.report.damaged_bytes += damaged.len() as u64;
            self.set_aside(&found.path, damaged.start, &found.bytes[damaged.clone()]);
        }
        if found.end < found.bytes.len() {
            self.report.torn_bytes += (found.bytes.len() - found.end) as u64;
            self.set_aside(&found.path, found.end, &found.bytes[found.end..]);
            // So that it is told once. Should it fail, it is told again.
            if let Err(error) = found.file.set_len(found.end as u64) {
                tracing::warn!(segment = %found.path.display(), %error, "cannot cut the torn end off");
            }
        }
    }

    /// A process that was killed between write and fsync, or after an fsync that failed, leaves records that only the page cache has; after a
    /// failure the system takes them for written. A sender that repeats one is told that it is stored, so that it has to be: written again as
    /// they are, and synced. Only the last segment can hold such: the next one is not made before. `false` when there was no room for it.
    fn write_again(&self, found: &Found) -> Result<bool, StoreError> {
        let io = |doing| move |error| StoreError::io(doing, &found.path, error);
        let written = match found.file.write_at(0, &found.bytes[..found.end]).map_err(io("writing")) {
            Err(error @ StoreError::DiskFull { .. }) => {
                tracing::warn!(%error, "cannot write a segment again in its place");
                false
            }
            result => result.map(|()| true)?,
        };
        found.file.sync().map_err(io("syncing"))?;
        Ok(written)
    }

    /// Batches that are there twice count once.
    fn take_in(&mut self, number: u64, found: Found) -> Segment {
        let mut batches = Vec::with_capacity(found.batches.len());
        for mut batch in found.batches {
            self.arrivals += 1;
            batch.arrival = self.arrivals;
            if self.held.insert(&batch.key()) {
                batches.push(Arc::new(batch));
            } else {
                self.report.duplicates += 1;
            }
        }
        self.report.batches += batches.len() as u64;
        self.report.readings += found.readings;
        let segment = Segment::replayed(number, found.log);
        segment.add(&batches, &[], found.end.max(HEADER_BYTES) as u64);
        segment
    }

    /// Keeps bytes that could not be read where a person can look at them.
    fn set_aside(&self, segment: &Path, offset: usize, bytes: &[u8]) {
        let stem = segment.file_stem().unwrap_or_default().to_string_lossy();
        let path = self.paths.damaged.join(format!("{stem}-{offset}.bin"));
        tracing::error!(segment = %segment.display(), offset, bytes = bytes.len(), kept = %path.display(), "journal bytes that are no record");
        let write = || {
            let file = self.disk.create(&path)?;
            file.write_at(0, bytes)?;
            file.sync()?;
            self.disk.sync_dir(&self.paths.damaged)
        };
        if let Err(error) = write() {
            tracing::error!(kept = %path.display(), %error, "cannot set damaged bytes aside");
        }
    }
}

/// Reads all segments, some at the same time, each in its place of the answer.
fn read_segments(
    disk: &dyn Disk,
    paths: &Paths,
    numbers: &[u64],
    proofs: &HashMap<u64, u64>,
    sensors: &Sensors,
) -> Vec<Result<Found, StoreError>> {
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<Option<Result<Found, StoreError>>>> = numbers.iter().map(|_| Mutex::new(None)).collect();
    let progress = Progress::new("segments of the journal read", numbers.len() as u64);
    let read = || {
        while let Some(number) = numbers.get(next.fetch_add(1, Relaxed)) {
            progress.at(next.load(Relaxed) as u64 - 1);
            let path = segment_path(&paths.journal, *number);
            let result = read_segment(disk, path, proofs.get(number).copied(), sensors);
            let at = numbers.partition_point(|other| other < number);
            *found[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        // The first segment alone needs no thread.
        for _ in 1..READERS.min(numbers.len()) {
            scope.spawn(read);
        }
        read();
    });
    let taken = found.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
    let missing = || Err(StoreError::io("reading", &paths.journal, io::Error::other("a reader ended early")));
    taken.map(|slot| slot.unwrap_or_else(missing)).collect()
}

fn read_segment(disk: &dyn Disk, path: PathBuf, proven: Option<u64>, sensors: &Sensors) -> Result<Found, StoreError> {
    let io = |doing| {
        let path = &path;
        move |error| StoreError::io(doing, path, error)
    };
    let file = disk.open(&path, true).map_err(io("opening"))?;
    let bytes = Bytes::from(read_all(file.as_ref()).map_err(io("reading"))?);
    // What comes after the bytes that are known to be durable is of an append that failed: nobody was told that it is stored.
    let length = proven.and_then(|length| usize::try_from(length).ok()).unwrap_or(bytes.len());
    let recovered = recover(&bytes[..length.min(bytes.len())]);
    let mut found = Found {
        path,
        file,
        end: recovered.end,
        damaged: recovered.damaged,
        newer: recovered.newer,
        batches: Vec::new(),
        readings: 0,
        newest: IdMap::default(),
        log: Log::default(),
        missing: length.saturating_sub(bytes.len()) as u64,
        proven: proven.is_some(),
        bytes,
    };
    if found.newer.is_none() {
        for place in recovered.payloads {
            if !found.take(place.clone(), sensors) {
                found.damaged.push(place);
            }
        }
        if found.proven && found.end < length {
            // It was whole once: not torn but damaged. The bytes stay where they are.
            found.damaged.push(found.end..length.min(found.bytes.len()));
            found.end = length.min(found.bytes.len());
        }
    }
    Ok(found)
}

impl Found {
    /// Takes one whole record; `false` when it is of no known sensor or schema.
    fn take(&mut self, place: Range<usize>, sensors: &Sensors) -> bool {
        let payload = self.bytes.slice(place);
        if !payload.starts_with(&READINGS_MAGIC) {
            let batch = live_batch(payload, sensors);
            let known = batch.is_some();
            self.batches.extend(batch);
            return known;
        }
        let known = |reading: &Reading| sensors.has(reading.sensor);
        let Some(record) = decode(&payload).filter(|record| record.readings.iter().all(known)) else { return false };
        self.log.add(&record.readings, 0);
        self.readings += record.readings.len() as u64;
        for reading in record.readings {
            let newest = self.newest.entry(reading.sensor.0).or_insert_with(|| (reading, record.source.clone()));
            if newest.0.time <= reading.time {
                newest.0 = reading;
                if newest.1 != record.source {
                    newest.1 = record.source.clone();
                }
            }
        }
        true
    }
}

/// A batch that was checked before it was written: its columns are not looked at again, the record's checksum says that they are the same.
fn live_batch(payload: Bytes, sensors: &Sensors) -> Option<LiveBatch> {
    let (header, _) = read_header(&payload).ok()?;
    let schema = sensors.schema(&header.schema)?;
    let (header, span, (first_time, last_time)) = read_times(&payload, schema).ok()?;
    Some(LiveBatch {
        schema: schema.clone(),
        agent: header.agent.into(),
        boot: header.boot,
        seq: header.seq,
        interval_ns: header.interval_ns,
        samples: span.samples,
        first_time,
        last_time,
        payload,
        arrival: 0,
    })
}
