//! The samples of one sensor, and whether each is joined to the previous one. Only this module decides which spacings are holes.

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

/// How many samples on each side of a spacing decide whether three successive spacings are similar.
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
    /// The range that may be read.
    limits: (i64, i64),
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

    /// The parts next to the range, if a tier has windows there.
    fn windows(&self, from: i64, to: i64, resolution: i64) -> Result<Option<Scan>, StoreError> {
        let lines = Resolution::Lines { every: Some(resolution), max_gap_ns: self.bound_ns() };
        Ok(Some(self.scan(from, to, lines)?).filter(|scan| scan.resolution.is_some()))
    }

    /// The begin of a scan that includes the last sample before `time`; `time` if there is none in reach.
    pub fn back(&self, time: i64) -> Result<i64, QueryError> {
        Ok(self.latest(time, 1, self.bound_ns(), self.reach_ns())?.first().copied().unwrap_or(time))
    }

    /// The end of a scan that includes the first sample at or after `time`; `time` if there is none in reach.
    pub fn ahead(&self, time: i64) -> Result<i64, QueryError> {
        let next = self.earliest(time, 1, self.bound_ns(), self.reach_ns())?;
        Ok(next.first().map_or(time, |next| next.saturating_add(1)))
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

    /// The resolutions of the tiers, finest first, ns.
    pub fn resolutions(&self) -> &[i64] {
        &self.resolutions
    }

    pub(crate) fn path(&self) -> &Arc<str> {
        &self.sensor.path
    }

    /// The last sample before `time`, within reach.
    pub fn sample_before(&self, time: i64) -> Result<Option<(i64, Option<Value>)>, QueryError> {
        let search = |back| {
            let mut last = None;
            for chunk in self.chunks(time.saturating_sub(back), time)? {
                let chunk = chunk?;
                last = chunk.times.last().map(|time| (*time, chunk.column.get(chunk.times.len() - 1))).or(last);
            }
            Ok(last)
        };
        search_growing(self.bound_ns(), self.reach_ns(), search, Option::is_some)
    }

    /// The last part before `time`, which is a multiple of `resolution`: windows of that tier if there are any, else readings. Looks back up to
    /// the bound, with `far` up to the reach.
    pub fn part_before(&self, time: i64, resolution: i64, far: bool) -> Result<Option<ScanPart>, QueryError> {
        let search = |back| {
            let scan = self.windows(time.saturating_sub(whole(back, resolution)), time, resolution)?;
            Ok(scan.and_then(|scan| scan.parts.last()).transpose()?)
        };
        let most = if far { self.reach_ns() } else { self.bound_ns() };
        search_growing(self.bound_ns(), most, search, Option::is_some)
    }

    /// The first part from `time` on, as [`Self::part_before`].
    pub fn part_from(&self, time: i64, resolution: i64, far: bool) -> Result<Option<ScanPart>, QueryError> {
        let search = |ahead| {
            let scan = self.windows(time, time.saturating_add(whole(ahead, resolution)), resolution)?;
            Ok(scan.and_then(|mut scan| scan.parts.next()).transpose()?)
        };
        let most = if far { self.reach_ns() } else { self.bound_ns() };
        search_growing(self.bound_ns(), most, search, Option::is_some)
    }

    /// The first sample from `time` on, within reach.
    pub fn sample_from(&self, time: i64) -> Result<Option<(i64, Option<Value>)>, QueryError> {
        let search = |ahead| {
            let chunk = self.chunks(time, time.saturating_add(ahead))?.next().transpose()?;
            Ok(chunk.and_then(|chunk| chunk.times.first().map(|time| (*time, chunk.column.get(0)))))
        };
        search_growing(self.bound_ns(), self.reach_ns(), search, Option::is_some)
    }

    /// Whether a spacing over the bound is one of three similar ones. `before` has times of samples before it, nearest first, `after` times from its
    /// end on; missing times are read.
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

    /// The times of the last samples before `time`, nearest first: `enough` of them, if there are that many within `most` ns. Reads `least` ns
    /// first, then more.
    fn latest(&self, time: i64, enough: usize, least: i64, most: i64) -> Result<Vec<i64>, QueryError> {
        let search = |back| {
            let mut times: VecDeque<i64> = VecDeque::with_capacity(2 * enough);
            for chunk in self.chunks(time.saturating_sub(back), time)? {
                let chunk = chunk?;
                times.extend(&chunk.times[chunk.times.len().saturating_sub(enough)..]);
                times.drain(..times.len().saturating_sub(enough));
            }
            Ok(times)
        };
        let times = search_growing(least, most, search, |times| times.len() >= enough)?;
        Ok(times.into_iter().rev().collect())
    }

    /// The times of the earliest samples from `time` on, at most `enough`, within `most` ns.
    fn earliest(&self, time: i64, enough: usize, least: i64, most: i64) -> Result<Vec<i64>, QueryError> {
        let search = |ahead: i64| {
            let mut times = Vec::with_capacity(enough);
            for chunk in self.chunks(time, time.saturating_add(ahead).saturating_add(1))? {
                times.extend(chunk?.times.into_iter().take(enough - times.len()));
                if times.len() >= enough {
                    break;
                }
            }
            Ok(times)
        };
        search_growing(least, most, search, |times| times.len() >= enough)
    }
}

/// Searches `least` ns, then [`GROWTH`] times as far up to `most` ns, until the result is enough.
fn search_growing<T>(
    least: i64,
    most: i64,
    search: impl Fn(i64) -> Result<T, QueryError>,
    is_enough: impl Fn(&T) -> bool,
) -> Result<T, QueryError> {
    let mut distance = least.min(most).max(1);
    loop {
        let found = search(distance)?;
        if distance >= most || is_enough(&found) {
            return Ok(found);
        }
        distance = distance.saturating_mul(GROWTH).min(most);
    }
}

/// Rounds `ns` up to whole windows.
fn whole(ns: i64, resolution: i64) -> i64 {
    ((ns - 1) / resolution + 1).saturating_mul(resolution)
}

/// Iterates over the samples of one sensor's chunks.
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

    /// Whether the last sample, at `time`, is joined to the previous one although the spacing is over the bound.
    #[cold]
    fn is_joined(&mut self, time: i64, spacing: i64) -> Result<bool, QueryError> {
        let mut after = vec![time];
        self.read_ahead(TIMES, &mut after)?;
        self.beside.is_rate(spacing, self.holes.before().to_vec(), after)
    }

    /// Reads ahead until `times` has `enough` entries or the chunks end.
    fn read_ahead(&mut self, enough: usize, times: &mut Vec<i64>) -> Result<(), QueryError> {
        let here = self.chunk.iter().flat_map(|chunk| &chunk.times[self.at..]);
        times.extend(here.chain(self.ahead.iter().flat_map(|chunk| &chunk.times)).take(enough - times.len()));
        while times.len() < enough {
            let Some(chunk) = self.chunks.next() else { break };
            let chunk = chunk.map_err(Into::into)?;
            times.extend(chunk.times.iter().take(enough - times.len()));
            self.ahead.push_back(chunk);
        }
        Ok(())
    }

    fn sample(&mut self, time: i64, value: Option<Value>) -> Result<JoinedSample, QueryError> {
        let joined = match self.holes.take(time) {
            Spacing::Short => true,
            Spacing::Long(spacing) => self.is_joined(time, spacing)?,
            Spacing::First | Spacing::Hole => false,
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
                "{path}: {count} {time} two readings are more than {bound} apart; the time between them is not counted ({total} in all, the first from {from} to {to}). If its readings are this far apart, set its interval with `wholegrain config sensor set --interval`"
            )
        };
        let mut notes: Vec<String> = found.named.iter().map(one).collect();
        if found.more > 0 {
            notes.push(format!(
                "{} times readings of further sensors are too far apart; the time between them is not counted",
                found.more
            ));
        }
        notes
    }
}
