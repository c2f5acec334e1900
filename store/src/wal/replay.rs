//! Replays the journal at an opening: durable records become live again, and records that no synced length covers are written again.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use wholegrain_transport::payload::{read_header, read_times};

use crate::disk::{Disk, DiskFile, read_all};
use crate::head::live::{LiveBatch, LiveSegment};
use crate::head::log::{IdMap, ReadingLog};
use crate::head::readings::decode;
use crate::losses::{AGENTS_MAX, LossRecord};
use crate::paths::StorePaths;
use crate::progress::ProgressLog;
use crate::ranges::StoredBatches;
use crate::registry::Registry;
use crate::segment::{
    HEADER_BYTES, READINGS_MAGIC, SEGMENT_VERSION, SegmentSummary, SyncedLength, is_header, proof_in, recover, remains,
    segment_number, segment_path,
};
use crate::sensors::Sensors;
use crate::sensors::reading::Reading;
use crate::stats::{Counters, add};
use crate::{OpenReport, StoreError};

/// Segments that are read at the same time. The speed of memory limits reading; more threads would only use more memory.
const READERS: usize = 2;
/// The extension of a segment that an administrator put into the journal: quarantined data, or a copy of damaged data.
const READMIT: &str = "readmit";

/// A replay of the journal.
pub(crate) struct Replay<'a> {
    pub disk: &'a dyn Disk,
    pub paths: &'a StorePaths,
    pub held: StoredBatches,
    pub arrivals: u64,
    pub counters: &'a Counters,
    pub report: &'a mut OpenReport,
    /// Receives the loss records.
    pub registry: &'a Registry,
    /// The time of the opening.
    pub now: i64,
}

/// The content of the journal.
pub(crate) struct ReplayReport {
    /// Segments that are not sealed, the oldest first.
    pub closed: Vec<Arc<LiveSegment>>,
    /// The number of the next segment.
    pub next: u64,
    /// The synced length of the last segment, for the header of the next one.
    pub last: SyncedLength,
}

/// One segment as it was read, before anything is decided.
struct ReplayedSegment {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    bytes: Bytes,
    /// Where the records end that may count.
    end: usize,
    damaged: Vec<Range<usize>>,
    newer: Option<u32>,
    batches: Vec<LiveBatch>,
    /// The number of readings of schemaless sensors, and each sensor's newest one with its sender.
    readings: u64,
    newest: IdMap<(Reading, Arc<str>)>,
    log: ReadingLog,
    /// The synced length, as far as it is known.
    must: SyncedLength,
    /// Whether a later segment states it: then nothing after it counts.
    proven: bool,
    /// Number and times of the readings, and how many of them are within the synced length.
    total: SegmentSummary,
    within: u64,
}

/// What is known about a segment before it is read.
#[derive(Clone, Copy)]
struct ExpectedSegment {
    proof: SyncedLength,
    /// Whether a later segment's header states it.
    later: bool,
}

impl Replay<'_> {
    /// Replays everything that is not in blocks yet.
    pub fn journal(&mut self, sealed_through: u64, sensors: &mut Sensors) -> Result<ReplayReport, StoreError> {
        let numbers = self.numbers(sealed_through)?;
        let last = numbers.last().copied().unwrap_or(0);
        let (sealed, numbers): (Vec<u64>, Vec<u64>) = numbers.into_iter().partition(|number| *number <= sealed_through);
        for number in sealed {
            self.remove(&segment_path(&self.paths.journal, number))?;
        }
        let vouched = self.vouched(&numbers);
        let found = read_segments(self.disk, self.paths, &numbers, &vouched, sensors);
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        // Before anything is truncated or removed, because it could not be found again.
        self.put_on_record(&numbers, &found, &vouched, sealed_through, sensors)?;
        let mut replayed =
            ReplayReport { closed: Vec::new(), next: last.max(sealed_through) + 1, last: SyncedLength::default() };
        for (number, found) in numbers.into_iter().zip(found) {
            let mut found = found;
            if let Some(version) = found.newer {
                let (path, known) = (found.path, u64::from(SEGMENT_VERSION));
                return Err(StoreError::NewerVersion { path, found: u64::from(version), known });
            }
            self.report.segments += 1;
            self.tell_damage(&found);
            let proven = found.proven || self.write_again(&found)?;
            for (reading, source) in std::mem::take(&mut found.newest).into_values() {
                sensors.note_newest_times(&source, &[reading]);
            }
            let (path, later) = (found.path.clone(), found.proven);
            let proof = SyncedLength { number, bytes: found.end as u64, holds: Some(found.total) };
            let segment = self.take_in(number, found);
            if segment.is_empty() && !later {
                self.remove(&path)?;
                continue;
            }
            let size = segment.size();
            add(&self.counters.live_bytes, size.payload_bytes);
            add(&self.counters.journal_bytes, size.file_bytes);
            replayed.last = if proven { proof } else { SyncedLength::default() };
            replayed.closed.push(Arc::new(segment));
        }
        Ok(replayed)
    }

    /// The numbers of the segments. A file that an administrator put there gets a number of its own.
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
            tracing::info!(from = %entry.path.display(), to = %path.display(), "added to the journal");
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// The synced lengths of the segments: from the header of each next one, and from the file beside them for the last one.
    fn vouched(&self, numbers: &[u64]) -> HashMap<u64, ExpectedSegment> {
        let head = |number: &u64| {
            let file = self.disk.open(&segment_path(&self.paths.journal, *number), false).ok()?;
            let mut head = vec![0; HEADER_BYTES.min(usize::try_from(file.size().ok()?).ok()?)];
            file.read_at(0, &mut head).ok()?;
            proof_in(&head, *number).filter(|proof| proof.number < *number)
        };
        let synced = crate::segment::synced::read(self.disk, &self.paths.journal)
            .map(|proof| ExpectedSegment { proof, later: false });
        let later = numbers.iter().filter_map(head).map(|proof| ExpectedSegment { proof, later: true });
        synced.into_iter().chain(later).map(|vouched| (vouched.proof.number, vouched)).collect()
    }

    /// Records the losses: what was on stable storage and is missing.
    fn put_on_record(
        &mut self,
        numbers: &[u64],
        found: &[ReplayedSegment],
        vouched: &HashMap<u64, ExpectedSegment>,
        sealed_through: u64,
        sensors: &Sensors,
    ) -> Result<(), StoreError> {
        let mut lost: Vec<LossRecord> =
            (numbers.iter().zip(found)).filter_map(|(number, found)| found.lost(*number, sensors, self.now)).collect();
        for ExpectedSegment { proof, .. } in vouched.values() {
            let gone = proof.number > sealed_through && !numbers.contains(&proof.number);
            if let Some(holds) = proof.holds.filter(|holds| gone && holds.readings > 0) {
                tracing::error!(segment = proof.number, bytes = proof.bytes, "a journal segment is missing");
                self.report.damaged_bytes += proof.bytes;
                lost.push(LossRecord {
                    id: format!("{:010}-0", proof.number),
                    segment: proof.number,
                    bytes: proof.bytes,
                    readings: Some(holds.readings),
                    from: holds.first,
                    to: holds.last,
                    agents: Vec::new(),
                    others: true,
                    found: self.now,
                    acknowledged: false,
                });
            }
        }
        lost.sort_by_key(|lost| lost.segment);
        match crate::losses::record(self.registry, lost, sealed_through, self.now) {
            Err(error @ StoreError::DiskFull { .. }) => {
                tracing::error!(%error, "the losses of the journal cannot be recorded");
                Ok(())
            }
            result => result,
        }
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.remove(path).map_err(|error| StoreError::io("removing", path, error))
    }

    fn tell_damage(&mut self, found: &ReplayedSegment) {
        let must = usize::try_from(found.must.bytes).unwrap_or(usize::MAX);
        let missing = must.saturating_sub(found.bytes.len());
        if missing > 0 {
            self.report.damaged_bytes += missing as u64;
            tracing::error!(segment = %found.path.display(), bytes = missing, "a journal segment has become shorter");
        }
        for damaged in &found.damaged {
            self.report.damaged_bytes += damaged.len() as u64;
            self.quarantine(&found.path, damaged.start, &found.bytes[damaged.clone()]);
        }
        if found.end < found.bytes.len() {
            // Bytes within the synced length are damaged, those after it torn.
            let damaged = must.clamp(found.end, found.bytes.len()) - found.end;
            self.report.damaged_bytes += damaged as u64;
            self.report.torn_bytes += (found.bytes.len() - found.end - damaged) as u64;
            self.quarantine(&found.path, found.end, &found.bytes[found.end..]);
            // So that it is reported once; if this fails it is reported again.
            if let Err(error) = found.file.set_len(found.end as u64) {
                tracing::warn!(segment = %found.path.display(), %error, "cannot cut the torn end off");
            }
        }
    }

    /// A process that was killed between write and fsync, or after an fsync that failed, leaves records that are only in the page cache; after a
    /// failure the system takes them for written. A sender that repeats one gets the answer that it is stored, so it must be stored: the records
    /// are written again and synced. Only the last segment can hold them, because the next one is created after a sync. `false` if there was no
    /// room.
    fn write_again(&self, found: &ReplayedSegment) -> Result<bool, StoreError> {
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

    /// Makes the records live. A batch that occurs twice counts once.
    fn take_in(&mut self, number: u64, found: ReplayedSegment) -> LiveSegment {
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
        let segment = LiveSegment::replayed(number, found.log);
        segment.add(&batches, &[], found.end.max(HEADER_BYTES) as u64);
        segment
    }

    /// Copies bytes that are no record to `damaged/`.
    fn quarantine(&self, segment: &Path, offset: usize, bytes: &[u8]) {
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
            tracing::error!(kept = %path.display(), %error, "cannot copy damaged bytes to damaged/");
        }
    }
}

/// Reads all segments, some at the same time, and returns them in order.
fn read_segments(
    disk: &dyn Disk,
    paths: &StorePaths,
    numbers: &[u64],
    vouched: &HashMap<u64, ExpectedSegment>,
    sensors: &Sensors,
) -> Vec<Result<ReplayedSegment, StoreError>> {
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<Option<Result<ReplayedSegment, StoreError>>>> =
        numbers.iter().map(|_| Mutex::new(None)).collect();
    let progress = ProgressLog::new("segments of the journal read", numbers.len() as u64);
    let read = || {
        while let Some(number) = numbers.get(next.fetch_add(1, Relaxed)) {
            progress.at(next.load(Relaxed) as u64 - 1);
            let path = segment_path(&paths.journal, *number);
            let result = read_segment(disk, path, vouched.get(number).copied(), sensors);
            let at = numbers.partition_point(|other| other < number);
            *found[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    };
    std::thread::scope(|scope| {
        // One segment needs no thread.
        for _ in 1..READERS.min(numbers.len()) {
            scope.spawn(read);
        }
        read();
    });
    let taken = found.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
    let missing = || Err(StoreError::io("reading", &paths.journal, io::Error::other("a reader ended early")));
    taken.map(|slot| slot.unwrap_or_else(missing)).collect()
}

fn read_segment(
    disk: &dyn Disk,
    path: PathBuf,
    vouched: Option<ExpectedSegment>,
    sensors: &Sensors,
) -> Result<ReplayedSegment, StoreError> {
    let io = |doing| {
        let path = &path;
        move |error| StoreError::io(doing, path, error)
    };
    let file = disk.open(&path, true).map_err(io("opening"))?;
    let bytes = Bytes::from(read_all(file.as_ref()).map_err(io("reading"))?);
    // Bytes after the synced length that a later header states are of a failed append and were never acknowledged.
    let must = vouched.map_or(SyncedLength::default(), |vouched| vouched.proof);
    let proven = vouched.is_some_and(|vouched| vouched.later);
    let length = usize::try_from(must.bytes).ok().filter(|_| proven).unwrap_or(bytes.len());
    let recovered = recover(&bytes[..length.min(bytes.len())]);
    let mut found = ReplayedSegment {
        path,
        file,
        end: recovered.end,
        damaged: recovered.damaged,
        newer: recovered.newer,
        batches: Vec::new(),
        readings: 0,
        newest: IdMap::default(),
        log: ReadingLog::default(),
        must,
        proven,
        total: SegmentSummary { readings: 0, first: i64::MAX, last: i64::MIN },
        within: 0,
        bytes,
    };
    if found.newer.is_none() {
        for place in recovered.payloads {
            let within = place.end as u64 <= must.bytes;
            match found.take(place.clone(), sensors) {
                Some(taken) => {
                    found.within += if within { taken.readings } else { 0 };
                    found.total.readings += taken.readings;
                    found.total.first = found.total.first.min(taken.first);
                    found.total.last = found.total.last.max(taken.last);
                }
                None => found.damaged.push(place),
            }
        }
        if found.proven && found.end < length {
            // It was whole once, so it is not torn but damaged. The bytes stay where they are.
            found.damaged.push(found.end..length.min(found.bytes.len()));
            found.end = length.min(found.bytes.len());
        }
    }
    Ok(found)
}

impl ReplayedSegment {
    /// Decodes one record; `None` if its schema or a sensor is unknown.
    fn take(&mut self, place: Range<usize>, sensors: &Sensors) -> Option<SegmentSummary> {
        let payload = self.bytes.slice(place);
        if !payload.starts_with(&READINGS_MAGIC) {
            let batch = live_batch(payload, sensors)?;
            let holds = SegmentSummary { readings: batch.readings(), first: batch.first_time, last: batch.last_time };
            self.batches.push(batch);
            return Some(holds);
        }
        let known = |reading: &Reading| sensors.has(reading.sensor);
        let record = decode(&payload).filter(|record| record.readings.iter().all(known))?;
        let times = || record.readings.iter().map(|reading| reading.time);
        let holds = SegmentSummary {
            readings: record.readings.len() as u64,
            first: times().min().unwrap_or(i64::MAX),
            last: times().max().unwrap_or(i64::MIN),
        };
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
        Some(holds)
    }

    /// What the segment has lost within the synced length, or before valid records.
    fn lost(&self, number: u64, sensors: &Sensors, now: i64) -> Option<LossRecord> {
        let must = usize::try_from(self.must.bytes).unwrap_or(usize::MAX);
        let mut damaged: Vec<Range<usize>> = self.damaged.clone();
        let known = damaged.last().map_or(self.end, |last| self.end.max(last.end));
        if known < must {
            damaged.push(known..must);
        }
        damaged.sort_by_key(|damaged| damaged.start);
        let missing = self.must.holds.map(|holds| holds.readings.saturating_sub(self.within));
        let behind = |damaged: &Range<usize>| damaged.end > must;
        // A header holds no readings; where none is missing, none is lost.
        damaged.retain(|damaged| if behind(damaged) { !is_header(damaged) } else { missing != Some(0) });
        damaged.retain(|damaged| missing.is_some() || !is_header(damaged));
        let first = damaged.first()?.start;
        let remains = self.remains(&damaged, sensors);
        let of_all = damaged.iter().any(behind) || missing.is_none();
        let readings = match missing {
            Some(missing) if !of_all => Some(missing),
            Some(missing) => {
                let more: Vec<_> = damaged.iter().filter(|damaged| behind(damaged)).cloned().collect();
                let more = self.remains(&more, sensors);
                more.whole.then_some(missing + more.holds.readings)
            }
            None => remains.whole.then_some(remains.holds.readings),
        };
        let spans = [self.must.holds, Some(self.total), Some(remains.holds)];
        let spans = || spans.into_iter().flatten().filter(|span| span.first <= span.last);
        let from = spans().map(|span| span.first).min().unwrap_or(now);
        // If the times are unknown, it arrived before now.
        let to = spans().map(|span| span.last).max().unwrap_or(now);
        let to = if of_all { to.max(now) } else { to };
        Some(LossRecord {
            id: format!("{number:010}-{first}"),
            segment: number,
            bytes: damaged.iter().map(|damaged| damaged.len() as u64).sum(),
            readings,
            from,
            to,
            others: !remains.whole || remains.agents.len() > AGENTS_MAX,
            agents: remains.agents.into_iter().take(AGENTS_MAX).collect(),
            found: now,
            acknowledged: false,
        })
    }

    /// Decodes what is readable in damaged bytes.
    fn remains(&self, damaged: &[Range<usize>], sensors: &Sensors) -> DamagedRemains {
        let holds = SegmentSummary { readings: 0, first: i64::MAX, last: i64::MIN };
        let mut found = DamagedRemains { agents: BTreeSet::new(), holds, whole: true };
        for damaged in damaged {
            let (payloads, whole) = remains(&self.bytes, damaged);
            found.whole &= whole;
            for payload in payloads {
                let payload = self.bytes.slice(payload);
                // The name can be damaged too: it must be the agent of the schema.
                let own = |batch: &LiveBatch| {
                    let hash = batch.schema.hash();
                    sensors.group(&hash).is_some_and(|group| group.agent == batch.agent)
                        || self.batches.iter().any(|other| other.agent == batch.agent && other.schema.hash() == hash)
                };
                let Some(batch) = live_batch(payload, sensors).filter(own) else {
                    found.whole = false;
                    continue;
                };
                found.holds.readings += batch.readings();
                found.holds.first = found.holds.first.min(batch.first_time);
                found.holds.last = found.holds.last.max(batch.last_time);
                found.agents.insert(batch.agent.to_string());
            }
        }
        found
    }
}

/// What is readable in damaged bytes.
struct DamagedRemains {
    agents: BTreeSet<String>,
    holds: SegmentSummary,
    /// Whether all bytes could be decoded.
    whole: bool,
}

/// A batch was checked before it was written, so its columns are not decoded here: the record's checksum proves that they are unchanged.
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
