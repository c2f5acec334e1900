//! One sensor's samples, one by one, each with whether the sample before it joins it: the one place that knows which readings sums leave out.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{Interval, Timestamp, Value};
use wholegrain_store::{Chunk, Chunks, ScanPart, SensorInfo};

use crate::QueryError;
use crate::beside;
use crate::holes::{self, Holes, Spacing};

/// The most sensors whose holes are told by name.
const TOLD_MAX: usize = 8;

/// So many times on either side of a spacing tell whether it is one of three alike.
const TIMES: usize = 3;

/// How many times further is looked for a neighbour each time.
const GROWTH: i64 = 8;

/// The most windows on either side of two values that are looked at.
const WINDOWS_MAX: i64 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub time: i64,
    /// `None` is a gap.
    pub value: Option<Value>,
    /// Whether there is a sample before it and no hole between the two.
    pub joined: bool,
}

/// The samples of a sensor beside those that are being read.
pub(crate) struct Beside<C> {
    chunks: C,
    sensor: SensorInfo,
}

impl<C: Deref> Beside<C>
where
    C::Target: Chunks,
{
    pub fn new(chunks: C, sensor: &SensorInfo) -> Self {
        Self { chunks, sensor: sensor.clone() }
    }

    /// From when on samples must be read so that the one before `time` is among them; `time` when there is none in reach.
    pub fn back(&self, time: i64) -> Result<i64, QueryError> {
        let (bound, reach) = (holes::bound_ns(&self.sensor), holes::reach_ns(&self.sensor));
        Ok(self.latest(time, 1, bound, reach)?.first().copied().unwrap_or(time))
    }

    /// Until when they must be read so that the one at `time` or after it is among them; `time` when there is none in reach.
    pub fn ahead(&self, time: i64) -> Result<i64, QueryError> {
        let (bound, reach) = (holes::bound_ns(&self.sensor), holes::reach_ns(&self.sensor));
        Ok(self.earliest(time, 1, bound, reach)?.first().map_or(time, |next| next.saturating_add(1)))
    }

    /// Two samples so far apart or closer have no hole between them.
    pub fn bound_ns(&self) -> i64 {
        holes::bound_ns(&self.sensor)
    }

    /// Two that are further apart always have.
    pub fn reach_ns(&self) -> i64 {
        holes::reach_ns(&self.sensor)
    }

    pub fn sensor(&self) -> &SensorInfo {
        &self.sensor
    }

    /// Of all tiers, finest first.
    pub fn resolutions(&self) -> Vec<i64> {
        self.chunks.resolutions()
    }

    pub fn path(&self) -> &Arc<str> {
        &self.sensor.path
    }

    /// The last sample before `time`, within reach.
    pub fn sample_before(&self, time: i64) -> Result<Option<(i64, Option<Value>)>, QueryError> {
        let (mut back, reach) = (self.bound_ns(), self.reach_ns());
        loop {
            let mut last = None;
            for chunk in self.chunks.scan_beside(&self.sensor, time.saturating_sub(back), time)? {
                let chunk = chunk?;
                last = chunk.times.last().map(|time| (*time, chunk.column.get(chunk.times.len() - 1))).or(last);
            }
            if last.is_some() || back >= reach {
                return Ok(last);
            }
            back = back.saturating_mul(GROWTH).min(reach);
        }
    }

    /// The last that the store has before `time`, windows of `resolution` where there are any; `time` is a multiple of it. Within the bound, or with
    /// `far` within reach.
    pub fn part_before(&self, time: i64, resolution: i64, far: bool) -> Result<Option<ScanPart>, QueryError> {
        let mut back = self.bound_ns();
        loop {
            let from = time.saturating_sub(whole(back, resolution));
            let scan = self.chunks.scan_lines(&self.sensor, from, time, Some(resolution), self.bound_ns())?;
            let last = scan.and_then(|scan| scan.parts.last()).transpose()?;
            if last.is_some() || !far || back >= self.reach_ns() {
                return Ok(last);
            }
            back = back.saturating_mul(GROWTH).min(self.reach_ns());
        }
    }

    /// The first at `time` or after it.
    pub fn part_from(&self, time: i64, resolution: i64, far: bool) -> Result<Option<ScanPart>, QueryError> {
        let mut ahead = self.bound_ns();
        loop {
            let to = time.saturating_add(whole(ahead, resolution));
            let scan = self.chunks.scan_lines(&self.sensor, time, to, Some(resolution), self.bound_ns())?;
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
            if let Some(chunk) = self.chunks.scan_beside(&self.sensor, time, time.saturating_add(ahead))?.next() {
                let chunk = chunk?;
                return Ok(chunk.times.first().map(|time| (*time, chunk.column.get(0))));
            }
            if ahead >= reach {
                return Ok(None);
            }
            ahead = ahead.saturating_mul(GROWTH).min(reach);
        }
    }

    /// Whether a spacing over the bound is one of three alike: `before` are the times of some samples before it, the nearest first, `after` of some from
    /// its end on; those that are missing are looked for.
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

    /// Whether two values at these times are joined, as the samples themselves tell; `None` where they are not there any more.
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

    /// The same as the finest windows tell that there are; `None` where they do not.
    pub fn are_joined_by_windows(&self, first: i64, second: i64) -> Result<Option<bool>, QueryError> {
        let spacing = second.saturating_sub(first);
        if spacing > self.reach_ns() {
            return Ok(Some(false));
        }
        let around = spacing.saturating_mul(4);
        for resolution in self.chunks.resolutions() {
            if around / resolution > WINDOWS_MAX {
                continue;
            }
            let from = first.saturating_sub(whole(around, resolution));
            let to = second.saturating_add(whole(around, resolution));
            let (from, to) =
                (from.saturating_sub(from.rem_euclid(resolution)), to.saturating_sub(to.rem_euclid(resolution)));
            let scan = self.chunks.scan_lines(&self.sensor, from, to, Some(resolution), self.bound_ns())?;
            let mut spans = Vec::new();
            for part in scan.into_iter().flat_map(|scan| scan.parts) {
                spans.extend(beside::spans(&part?));
            }
            if let Some(joined) = beside::are_joined(&spans, first, second) {
                return Ok(Some(joined));
            }
        }
        Ok(None)
    }

    /// The times of the latest samples before `time`, the nearest first: at least `enough` if there are so many within `most` ns. First `least` ns
    /// are looked at, and more when there are too few.
    fn latest(&self, time: i64, enough: usize, least: i64, most: i64) -> Result<Vec<i64>, QueryError> {
        let mut back = least.min(most).max(1);
        loop {
            let mut times: VecDeque<i64> = VecDeque::with_capacity(2 * enough);
            for chunk in self.chunks.scan_beside(&self.sensor, time.saturating_sub(back), time)? {
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
            for chunk in self.chunks.scan_beside(&self.sensor, time, time.saturating_add(ahead).saturating_add(1))? {
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

/// As many whole windows as so many ns need.
fn whole(ns: i64, resolution: i64) -> i64 {
    ((ns - 1) / resolution + 1).saturating_mul(resolution)
}

/// One sensor's samples from those of its chunks.
pub(crate) struct Samples<I, C> {
    chunks: I,
    chunk: Option<Chunk>,
    at: usize,
    /// Chunks that were read ahead.
    ahead: VecDeque<Chunk>,
    holes: Holes,
    beside: Beside<C>,
    left_out: Option<(Arc<LeftOut>, i64, i64)>,
}

impl<E, I, C> Samples<I, C>
where
    E: Into<QueryError>,
    I: Iterator<Item = Result<Chunk, E>>,
    C: Deref,
    C::Target: Chunks,
{
    pub fn new(chunks: I, beside: Beside<C>) -> Self {
        let holes = Holes::of(&beside.sensor);
        Self { chunks, chunk: None, at: 0, ahead: VecDeque::new(), holes, beside, left_out: None }
    }

    /// Tells of the holes that lie in `from <= time < to`.
    pub fn telling(mut self, left_out: Option<&Arc<LeftOut>>, (from, to): (i64, i64)) -> Self {
        self.left_out = left_out.map(|left_out| (left_out.clone(), from, to));
        self
    }

    /// Whether the sample at `time`, taken last, is joined to the one before though it is so far from it.
    #[cold]
    fn is_joined(&mut self, time: i64, spacing: i64) -> Result<bool, QueryError> {
        let mut after = vec![time];
        self.read_ahead(TIMES, &mut after)?;
        self.beside.is_rate(spacing, self.holes.before().to_vec(), after)
    }

    /// Adds the times of the next samples, until there are so many, as far as there are any among the chunks.
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

    fn sample(&mut self, time: i64, value: Option<Value>) -> Result<Sample, QueryError> {
        let joined = match self.holes.take(time) {
            Spacing::Short => true,
            Spacing::First => false,
            Spacing::Long(spacing) => self.is_joined(time, spacing)?,
            Spacing::Hole => false,
        };
        if !joined
            && let Some((left_out, from, to)) = &self.left_out
            && let Some(last) = self.holes.before().first()
            && time >= *from
            && last < to
        {
            left_out.add(&self.beside.sensor, *last, time);
        }
        Ok(Sample { time, value, joined })
    }
}

impl<E, I, C> Iterator for Samples<I, C>
where
    E: Into<QueryError>,
    I: Iterator<Item = Result<Chunk, E>>,
    C: Deref,
    C::Target: Chunks,
{
    type Item = Result<Sample, QueryError>;

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

/// A length to be read: as many digits as people look at.
fn rounded(ns: i64) -> i64 {
    let unit = [1_000_000_000, 1_000_000, 1_000].into_iter().find(|unit| ns / unit >= 100).unwrap_or(1);
    ns.saturating_add(unit / 2) / unit * unit
}

/// What holes sums have left out, for the notes of an answer.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    told: Vec<Told>,
    by_path: HashMap<Arc<str>, usize>,
    /// Holes of sensors that are not told of by name.
    more: u64,
}

#[derive(Debug)]
struct Told {
    path: Arc<str>,
    bound_ns: i64,
    count: u64,
    total_ns: i64,
    first: (i64, i64),
    /// Where the latest ends: it may be met again by the next part of a range.
    end: i64,
}

impl LeftOut {
    fn add(&self, sensor: &SensorInfo, from: i64, to: i64) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let long = to.saturating_sub(from);
        if let Some(at) = found.by_path.get(&sensor.path).copied() {
            let told = &mut found.told[at];
            if told.end < to {
                (told.count, told.end) = (told.count + 1, to);
                told.total_ns = told.total_ns.saturating_add(long);
            }
        } else if found.told.len() < TOLD_MAX {
            let (at, path, bound_ns) = (found.told.len(), sensor.path.clone(), holes::bound_ns(sensor));
            found.by_path.insert(path.clone(), at);
            found.told.push(Told { path, bound_ns, count: 1, total_ns: long, first: (from, to), end: to });
        } else {
            found.more += 1;
        }
    }

    /// A sentence for each sensor, and one for those that are too many to be named.
    pub fn notes(&self) -> Vec<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let length = |ns: i64| Interval::from_ns(ns.unsigned_abs());
        let one = |told: &Told| {
            let Told { path, bound_ns, count, total_ns, first: (from, to), .. } = told;
            let (from, to) = (Timestamp(*from), Timestamp(*to));
            let (bound, total) = (length(*bound_ns), length(rounded(*total_ns)));
            let time = if *count == 1 { "time" } else { "times" };
            format!(
                "{path}: {count} {time} two readings are more than {bound} apart, and nothing is counted between them ({total} in all, the first from {from} to {to}); `wholegrain config sensor set --interval` says how far apart its readings are"
            )
        };
        let mut notes: Vec<String> = found.told.iter().map(one).collect();
        if found.more > 0 {
            notes.push(format!("{} times readings of more sensors are too far apart to be counted", found.more));
        }
        notes
    }
}
