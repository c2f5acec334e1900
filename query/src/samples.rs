//! The samples of one sensor, each with whether it is joined to the one before. Only this module decides which readings sums leave out.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{Interval, Timestamp, Value};
use wholegrain_store::{Chunk, Resolution, Scan, ScanPart, ScanRequest, SensorInfo, SnapshotReader, StoreError};

use crate::error::QueryError;
use crate::holes::{self, HoleDetector, Spacing};
use crate::reading_spans;

/// The most sensors whose holes notes list by name.
const NAMED_MAX: usize = 8;

/// How many samples on each side of a spacing are needed to decide whether three successive spacings are alike.
const TIMES: usize = 3;

/// The search for a neighbour extends its range by this factor each time.
const GROWTH: i64 = 8;

/// The most windows that are read on each side of two values.
const WINDOWS_MAX: i64 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct JoinedSample {
    pub time: i64,
    /// `None` is a gap.
    pub value: Option<Value>,
    /// Whether there is a previous sample and no hole between the two.
    pub joined: bool,
}

/// Finds samples of a sensor before and after a scanned range.
pub(crate) struct NeighbourSamples<C> {
    reader: C,
    sensor: SensorInfo,
    /// Nothing outside of these times is read.
    limits: (i64, i64),
    /// The resolutions of the tiers, finest first.
    resolutions: Arc<[i64]>,
}

impl<C: Deref> NeighbourSamples<C>
where
    C::Target: SnapshotReader,
{
    pub(crate) fn new(reader: C, sensor: &SensorInfo) -> Self {
        Self { reader, sensor: sensor.clone(), limits: (i64::MIN, i64::MAX), resolutions: Arc::default() }
    }

    pub(crate) fn within(self, limits: (i64, i64)) -> Self {
        Self { limits, ..self }
    }

    pub(crate) fn with_resolutions(self, resolutions: &Arc<[i64]>) -> Self {
        Self { resolutions: resolutions.clone(), ..self }
    }

    fn scan(&self, from: i64, to: i64, resolution: Resolution) -> Result<Scan, StoreError> {
        let (from, to) = (from.max(self.limits.0), to.min(self.limits.1));
        let request = ScanRequest::neighbours(&self.sensor, from, to).at(resolution);
        if from < to { self.reader.scan(&request) } else { Ok(Scan::empty(&request)) }
    }

    /// Samples next to the range.
    fn chunks(
        &self,
        from: i64,
        to: i64,
    ) -> Result<impl Iterator<Item = Result<Chunk, StoreError>> + Send + use<C>, StoreError> {
        Ok(self.scan(from, to, Resolution::Readings)?.chunks())
    }

    /// The parts next to the range if a tier has windows of it.
    fn windows(&self, from: i64, to: i64, resolution: i64) -> Result<Option<Scan>, StoreError> {
        let lines = Resolution::Lines { every: Some(resolution), max_gap_ns: self.bound_ns() };
        Ok(Some(self.scan(from, to, lines)?).filter(|scan| scan.resolution.is_some()))
    }

    /// Where a scan must begin to include the last sample before `time`; `time` if there is none in reach.
    pub fn back(&self, time: i64) -> Result<i64, QueryError> {
        let (bound, reach) = (holes::bound_ns(&self.sensor), holes::reach_ns(&self.sensor));
        Ok(self.latest(time, 1, bound, reach)?.first().copied().unwrap_or(time))
    }

    /// Where a scan must end to include the first sample at or after `time`; `time` if there is none in reach.
    pub fn ahead(&self, time: i64) -> Result<i64, QueryError> {
        let (bound, reach) = (holes::bound_ns(&self.sensor), holes::reach_ns(&self.sensor));
        Ok(self.earliest(time, 1, bound, reach)?.first().map_or(time, |next| next.saturating_add(1)))
    }

    /// Samples at most this far apart have no hole between them.
    pub fn bound_ns(&self) -> i64 {
        holes::bound_ns(&self.sensor)
    }

    /// Samples further apart than this always have a hole between them.
    pub fn reach_ns(&self) -> i64 {
        holes::reach_ns(&self.sensor)
    }

    pub(crate) fn sensor(&self) -> &SensorInfo {
        &self.sensor
    }

    /// The resolutions of the windows among the samples, ns.
    pub fn resolutions(&self) -> &[i64] {
        &self.resolutions
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.sensor.path
    }

    /// The last sample before `time`, within reach.
    pub fn sample_before(&self, time: i64) -> Result<Option<(i64, Option<Value>)>, QueryError> {
        let (mut back, reach) = (self.bound_ns(), self.reach_ns());
        loop {
            let mut last = None;
            for chunk in self.chunks(time.saturating_sub(back), time)? {
                let chunk = chunk?;
                last = chunk.times.last().map(|time| (*time, chunk.column.get(chunk.times.len() - 1))).or(last);
            }
            if last.is_some() || back >= reach {
                return Ok(last);
            }
            back = back.saturating_mul(GROWTH).min(reach);
        }
    }

    /// The last part before `time`, which is a multiple of `resolution`: windows of that tier where there are any, else readings. Looks back as far as
    /// the bound, with `far` as far as the reach.
    pub fn part_before(&self, time: i64, resolution: i64, far: bool) -> Result<Option<ScanPart>, QueryError> {
        let mut back = self.bound_ns();
        loop {
            let from = time.saturating_sub(whole(back, resolution));
            let scan = self.windows(from, time, resolution)?;
            let last = scan.and_then(|scan| scan.parts.last()).transpose()?;
            if last.is_some() || !far || back >= self.reach_ns() {
                return Ok(last);
            }
            back = back.saturating_mul(GROWTH).min(self.reach_ns());
        }
    }

    /// The first part at `time` or after it, as [`Self::part_before`].
    pub fn part_from(&self, time: i64, resolution: i64, far: bool) -> Result<Option<ScanPart>, QueryError> {
        let mut ahead = self.bound_ns();
        loop {
            let to = time.saturating_add(whole(ahead, resolution));
            let scan = self.windows(time, to, resolution)?;
            let first = scan.and_then(|mut scan| scan.parts.next()).transpose()?;
            if first.is_some() || !far || ahead >= self.reach_ns() {
                return Ok(first);
            }
            ahead = ahead.saturating_mul(GROWTH).min(self.reach_ns());
        }
    }

    /// The first sample at `time` or after it, within reach.
    pub fn sample_from(&self, time: i64) -> Result<Option<(i64, Option<Value>)>, QueryError> {
        let (mut ahead, reach) = (self.bound_ns(), self.reach_ns());
        loop {
            if let Some(chunk) = self.chunks(time, time.saturating_add(ahead))?.next() {
                let chunk = chunk?;
                return Ok(chunk.times.first().map(|time| (*time, chunk.column.get(0))));
            }
            if ahead >= reach {
                return Ok(None);
            }
            ahead = ahead.saturating_mul(GROWTH).min(reach);
        }
    }

    /// Whether a spacing over the bound is one of three alike. `before` has times of samples before it, nearest first, `after` times from its end
    /// on; reads what is missing.
    pub fn is_rate(&self, spacing: i64, mut before: Vec<i64>, mut after: Vec<i64>) -> Result<bool, QueryError> {
        let (least, within) = (self.bound_ns(), spacing.saturating_mul(4));
        if let Some(first) = before.last().copied().filter(|_| before.len() < TIMES) {
            before.extend(self.latest(first, TIMES - before.len(), least, within)?);
        }
        if let Some(last) = after.last().copied().filter(|_| after.len() < TIMES) {
            after.extend(self.earliest(last.saturating_add(1), TIMES - after.len(), least, within)?);
        }
        Ok(holes::is_rate(spacing, &before, &after))
    }

    /// Whether two values at these times are joined, decided from samples; `None` if the samples have been deleted.
    pub fn are_joined(&self, first: i64, second: i64) -> Result<Option<bool>, QueryError> {
        let spacing = second.saturating_sub(first);
        if spacing > self.reach_ns() {
            return Ok(Some(false));
        }
        let before = self.latest(second, TIMES, spacing, spacing.saturating_mul(4))?;
        if before.first().is_some_and(|last| *last > first) {
            return Ok(Some(false));
        }
        let next = self.earliest(second, 1, 1, 1)?;
        if before.first() != Some(&first) || next.first() != Some(&second) {
            return Ok(None);
        }
        Ok(Some(spacing <= self.bound_ns() || self.is_rate(spacing, before, next)?))
    }

    /// As [`Self::are_joined`], decided from the finest tier that can; `None` if none can.
    pub fn are_joined_by_windows(&self, first: i64, second: i64) -> Result<Option<bool>, QueryError> {
        let spacing = second.saturating_sub(first);
        if spacing > self.reach_ns() {
            return Ok(Some(false));
        }
        let around = spacing.saturating_mul(4);
        for resolution in self.resolutions.iter().copied() {
            if around / resolution > WINDOWS_MAX {
                continue;
            }
            let from = first.saturating_sub(whole(around, resolution));
            let to = second.saturating_add(whole(around, resolution));
            let (from, to) =
                (from.saturating_sub(from.rem_euclid(resolution)), to.saturating_sub(to.rem_euclid(resolution)));
            let scan = self.windows(from, to, resolution)?;
            let mut spans = Vec::new();
            for part in scan.into_iter().flat_map(|scan| scan.parts) {
                spans.extend(reading_spans::spans(&part?));
            }
            if let Some(joined) = reading_spans::are_joined(&spans, first, second) {
                return Ok(Some(joined));
            }
        }
        Ok(None)
    }

    /// The times of the last samples before `time`, nearest first: at least `enough`, if there are that many within `most` ns. Reads `least` ns
    /// first, and more if they hold too few.
    fn latest(&self, time: i64, enough: usize, least: i64, most: i64) -> Result<Vec<i64>, QueryError> {
        let mut back = least.min(most).max(1);
        loop {
            let mut times: VecDeque<i64> = VecDeque::with_capacity(2 * enough);
            for chunk in self.chunks(time.saturating_sub(back), time)? {
                let chunk = chunk?;
                times.extend(&chunk.times[chunk.times.len().saturating_sub(enough)..]);
                times.drain(..times.len().saturating_sub(enough));
            }
            if times.len() >= enough || back >= most {
                return Ok(times.into_iter().rev().collect());
            }
            back = back.saturating_mul(GROWTH).min(most);
        }
    }

    /// The times of the earliest samples from `time` on, at most `enough`, within `most` ns.
    fn earliest(&self, time: i64, enough: usize, least: i64, most: i64) -> Result<Vec<i64>, QueryError> {
        let mut ahead = least.min(most).max(1);
        loop {
            let mut times = Vec::with_capacity(enough);
            for chunk in self.chunks(time, time.saturating_add(ahead).saturating_add(1))? {
                times.extend(chunk?.times.into_iter().take(enough - times.len()));
                if times.len() >= enough {
                    break;
                }
            }
            if times.len() >= enough || ahead >= most {
                return Ok(times);
            }
            ahead = ahead.saturating_mul(GROWTH).min(most);
        }
    }
}

/// Rounds `ns` up to whole windows.
fn whole(ns: i64, resolution: i64) -> i64 {
    ((ns - 1) / resolution + 1).saturating_mul(resolution)
}

/// The samples of one sensor's chunks, one by one.
pub(crate) struct JoinedSamples<I, C> {
    chunks: I,
    chunk: Option<Chunk>,
    at: usize,
    /// Chunks that have been read ahead.
    ahead: VecDeque<Chunk>,
    holes: HoleDetector,
    beside: NeighbourSamples<C>,
    skipped: Option<(Arc<SkippedHoles>, i64, i64)>,
}

impl<E, I, C> JoinedSamples<I, C>
where
    E: Into<QueryError>,
    I: Iterator<Item = Result<Chunk, E>>,
    C: Deref,
    C::Target: SnapshotReader,
{
    pub(crate) fn new(chunks: I, beside: NeighbourSamples<C>) -> Self {
        let holes = HoleDetector::of(&beside.sensor);
        Self { chunks, chunk: None, at: 0, ahead: VecDeque::new(), holes, beside, skipped: None }
    }

    /// Records the holes in `from <= time < to`.
    pub fn with_skipped_holes(mut self, skipped: Option<&Arc<SkippedHoles>>, (from, to): (i64, i64)) -> Self {
        self.skipped = skipped.map(|skipped| (skipped.clone(), from, to));
        self
    }

    /// Whether the last sample, at `time`, is joined to the previous one in spite of its distance.
    #[cold]
    fn is_joined(&mut self, time: i64, spacing: i64) -> Result<bool, QueryError> {
        let mut after = vec![time];
        self.read_ahead(TIMES, &mut after)?;
        self.beside.is_rate(spacing, self.holes.before().to_vec(), after)
    }

    /// Reads ahead until `times` has `wanted` entries or the chunks end.
    fn read_ahead(&mut self, wanted: usize, times: &mut Vec<i64>) -> Result<(), QueryError> {
        let here = self.chunk.iter().flat_map(|chunk| &chunk.times[self.at..]);
        times.extend(here.chain(self.ahead.iter().flat_map(|chunk| &chunk.times)).take(wanted - times.len()));
        while times.len() < wanted {
            let Some(chunk) = self.chunks.next() else { break };
            let chunk = chunk.map_err(Into::into)?;
            times.extend(chunk.times.iter().take(wanted - times.len()));
            self.ahead.push_back(chunk);
        }
        Ok(())
    }

    fn sample(&mut self, time: i64, value: Option<Value>) -> Result<JoinedSample, QueryError> {
        let joined = match self.holes.take(time) {
            Spacing::Short => true,
            Spacing::First => false,
            Spacing::Long(spacing) => self.is_joined(time, spacing)?,
            Spacing::Hole => false,
        };
        if !joined
            && let Some((skipped, from, to)) = &self.skipped
            && let Some(last) = self.holes.before().first()
            && time >= *from
            && last < to
        {
            skipped.add(&self.beside.sensor, *last, time);
        }
        Ok(JoinedSample { time, value, joined })
    }
}

impl<E, I, C> Iterator for JoinedSamples<I, C>
where
    E: Into<QueryError>,
    I: Iterator<Item = Result<Chunk, E>>,
    C: Deref,
    C::Target: SnapshotReader,
{
    type Item = Result<JoinedSample, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = &self.chunk
                && let Some(time) = chunk.times.get(self.at)
            {
                let (time, value) = (*time, chunk.column.get(self.at));
                self.at += 1;
                return Some(self.sample(time, value));
            }
            let next = match self.ahead.pop_front() {
                Some(chunk) => chunk,
                None => match self.chunks.next()? {
                    Ok(chunk) => chunk,
                    Err(error) => return Some(Err(error.into())),
                },
            };
            (self.chunk, self.at) = (Some(next), 0);
        }
    }
}

/// Rounds a length of time for messages.
fn rounded(ns: i64) -> i64 {
    let unit = [1_000_000_000, 1_000_000, 1_000].into_iter().find(|unit| ns / unit >= 100).unwrap_or(1);
    ns.saturating_add(unit / 2) / unit * unit
}

/// The holes that sums have skipped, for the notes of a result.
#[derive(Debug, Default)]
pub(crate) struct SkippedHoles {
    found: Mutex<HoleCounts>,
}

#[derive(Debug, Default)]
struct HoleCounts {
    named: Vec<SensorHoles>,
    by_path: HashMap<Arc<str>, usize>,
    /// Holes of further sensors.
    more: u64,
}

#[derive(Debug)]
struct SensorHoles {
    path: Arc<str>,
    bound_ns: i64,
    count: u64,
    total_ns: i64,
    first: (i64, i64),
    /// The end of the latest hole: the next part of a range may meet it again.
    end: i64,
}

impl SkippedHoles {
    fn add(&self, sensor: &SensorInfo, from: i64, to: i64) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let long = to.saturating_sub(from);
        if let Some(at) = found.by_path.get(&sensor.path).copied() {
            let named = &mut found.named[at];
            if named.end < to {
                (named.count, named.end) = (named.count + 1, to);
                named.total_ns = named.total_ns.saturating_add(long);
            }
        } else if found.named.len() < NAMED_MAX {
            let (at, path, bound_ns) = (found.named.len(), sensor.path.clone(), holes::bound_ns(sensor));
            found.by_path.insert(path.clone(), at);
            found.named.push(SensorHoles { path, bound_ns, count: 1, total_ns: long, first: (from, to), end: to });
        } else {
            found.more += 1;
        }
    }

    /// One sentence for each named sensor, and one for all others.
    pub fn notes(&self) -> Vec<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let length = |ns: i64| Interval::from_ns(ns.unsigned_abs());
        let one = |named: &SensorHoles| {
            let SensorHoles { path, bound_ns, count, total_ns, first: (from, to), .. } = named;
            let (from, to) = (Timestamp(*from), Timestamp(*to));
            let (bound, total) = (length(*bound_ns), length(rounded(*total_ns)));
            let time = if *count == 1 { "time" } else { "times" };
            format!(
                "{path}: {count} {time} two readings are more than {bound} apart, and nothing is counted between them ({total} in all, the first from {from} to {to}); `wholegrain config sensor set --interval` says how far apart its readings are"
            )
        };
        let mut notes: Vec<String> = found.named.iter().map(one).collect();
        if found.more > 0 {
            notes.push(format!("{} times readings of more sensors are too far apart to be counted", found.more));
        }
        notes
    }
}
