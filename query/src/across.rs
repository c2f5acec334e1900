//! Combines several sensors into one series, in slices of the range, so that memory holds a bounded number of rows. Within a slice a few threads
//! read blocks of sensors; their sums are merged in the order of the sensors.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use wholegrain_model::Timestamp;
use wholegrain_store::{Chunk, ReadSnapshot, SensorInfo, SnapshotReader};

use crate::columns::StopCheck;
use crate::columns::sums::SeriesSums;
use crate::error::QueryError;
use crate::plan::{QueryPlan, TimeRange};
use crate::query::{Across, Agg};
use crate::windows::Windows;

/// The approximate number of rows of a slice; few in tests, which gives many slices.
const SLICE_ROWS: i64 = if cfg!(test) { 16 } else { 1 << 16 };
/// The most rows of a slice; if it has more, a shorter slice is tried. A row takes up to 36 bytes, for each thread and each waiting block.
const SLICE_ROWS_MAX: usize = SLICE_ROWS as usize * 4;
/// The first length of a slice, in ns, if the sensors have no interval.
const SLICE_NS_UNKNOWN: i64 = 3_600_000_000_000;
/// The most sensors of a block, which one thread reads.
const BLOCK_SENSORS: usize = 64;
/// The least number of blocks that a group is divided into, if it has that many sensors.
const BLOCKS: usize = 16;
/// The most threads that read for one query.
const THREADS_MAX: usize = 4;

/// Sensors that are combined into one series.
#[derive(Debug)]
pub(crate) struct SensorGroup {
    pub name: String,
    /// Their indices among all sensors of the query, which are sorted by path.
    pub sensors: Arc<[u32]>,
}

/// Groups the sensors, which are sorted by path; the groups are sorted by name.
pub(crate) fn groups(sensors: &[SensorInfo], across: Across) -> Vec<SensorGroup> {
    let mut found: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (at, sensor) in (0u32..).zip(sensors) {
        let key = across.levels.map_or("", |levels| first_levels(&sensor.path, levels));
        found.entry(key).or_default().push(at);
    }
    let group = |(key, members): (&str, Vec<u32>)| {
        let paths = || members.iter().map(|at| &*sensors[*at as usize].path);
        let front = if across.levels.is_some() { key } else { common_front(paths()) };
        let back = common_back(paths().map(|path| &path[front.len()..]));
        let back = if back.is_empty() { "*" } else { back };
        SensorGroup { name: format!("{front}/{}({back})", across.agg), sensors: members.into() }
    };
    let mut groups: Vec<SensorGroup> = found.into_iter().map(group).collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups
}

/// The first levels of a path, never its last one.
fn first_levels(path: &str, levels: usize) -> &str {
    let mut ends = path.match_indices('/').map(|(at, _)| at).skip(1);
    ends.nth(levels - 1).or_else(|| path.rfind('/')).map_or("", |end| &path[..end])
}

/// The first levels that all paths share, never the last level of a path.
fn common_front<'a>(mut paths: impl Iterator<Item = &'a str>) -> &'a str {
    let Some(first) = paths.next() else { return "" };
    let mut front = &first[..first.rfind('/').unwrap_or(0)];
    for path in paths {
        while !(path.starts_with(front) && path[front.len()..].starts_with('/')) {
            front = &front[..front.rfind('/').unwrap_or(0)];
        }
    }
    front
}

/// The last levels that all paths share, without the `/` before them.
fn common_back<'a>(mut paths: impl Iterator<Item = &'a str>) -> &'a str {
    let Some(first) = paths.next() else { return "" };
    let mut back = first;
    for path in paths {
        while !(path.ends_with(back) && (back.is_empty() || back.starts_with('/'))) {
            back = back.get(1..).and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or("");
        }
    }
    back.strip_prefix('/').unwrap_or(back)
}

/// The unit of a group's values; an error if its sensors' units differ.
pub(crate) fn unit_of(
    group: &SensorGroup,
    sensors: &[SensorInfo],
    plan: &QueryPlan,
    requested: Option<&str>,
) -> Result<String, QueryError> {
    if plan.across.is_some_and(|across| across.agg == Agg::Count) {
        return Ok("1".to_owned());
    }
    if let Some(unit) = requested {
        return Ok(unit.to_owned());
    }
    let mut members = group.sensors.iter().map(|at| &sensors[*at as usize]);
    let Some(first) = members.next() else { return Ok("1".to_owned()) };
    let unit = plan.unit_of(first);
    let one = |unit: &str| if unit.is_empty() { "1".to_owned() } else { unit.to_owned() };
    for sensor in members {
        // Most units are equal; only different ones are compared in detail.
        if sensor.unit == first.unit && sensor.kind == first.kind {
            continue;
        }
        let other = plan.unit_of(sensor);
        if one(&other) != one(&unit) {
            return Err(QueryError::Invalid(format!(
                "across: {} is in {} and {} in {}; select sensors of one unit, or give the unit to which all are converted",
                first.path,
                one(&unit),
                sensor.path,
                one(&other),
            )));
        }
    }
    Ok(unit)
}

/// The source of the rows of a group.
type GroupInput = (Arc<dyn ReadSnapshot>, Arc<[SensorInfo]>, Arc<QueryPlan>);

/// The rows of one group, slice by slice.
pub(crate) struct GroupRows {
    of: GroupInput,
    members: Arc<[u32]>,
    name: String,
    stop: StopCheck,
    at: i64,
    length: i64,
    covered: Coverage,
    failed: bool,
}

/// Counts the sensors with values in the rows of a series.
#[derive(Debug, Default)]
struct Coverage {
    rows: u64,
    most: u32,
    /// Rows with fewer sensors than the most, the least number, and the time of the first such row.
    below: u64,
    least: u32,
    first: i64,
}

impl Coverage {
    fn add(&mut self, times: &[i64], counts: &[u32]) {
        for (time, count) in times.iter().zip(counts) {
            if self.rows == 0 {
                (self.most, self.least, self.first) = (*count, *count, *time);
            }
            if *count > self.most {
                (self.most, self.below) = (*count, self.rows);
            } else if *count < self.most {
                self.first = if self.below == 0 { *time } else { self.first };
                self.below += 1;
            }
            self.least = self.least.min(*count);
            self.rows += 1;
        }
    }
}

impl GroupRows {
    pub(crate) fn new(of: GroupInput, group: &SensorGroup, stop: &StopCheck) -> Self {
        let members = group.sensors.clone();
        let plan = &of.2;
        let intervals = members.iter().map(|at| of.1[*at as usize].interval_ns).filter(|interval| *interval > 0);
        let length = match plan.windows {
            Some(Windows::Whole(_)) => i64::MAX,
            Some(Windows::Every(every)) => every.saturating_mul(SLICE_ROWS),
            None => intervals
                .min()
                .map_or(SLICE_NS_UNKNOWN, |interval| i64::try_from(interval).unwrap_or(i64::MAX))
                .saturating_mul(SLICE_ROWS),
        };
        let at = plan.from;
        let (name, stop) = (group.name.clone(), stop.clone());
        Self { of, members, name, stop, at, length, covered: Coverage::default(), failed: false }
    }

    /// A note, if some rows have fewer sensors than others.
    pub fn coverage(&self) -> Option<String> {
        let Coverage { rows, most, below, least, first } = self.covered;
        let note = || {
            format!(
                "{}: {below} of {rows} rows have values of fewer than {most} sensors, the least {least}; the first at {}",
                self.name,
                Timestamp(first)
            )
        };
        (below > 0).then(note)
    }

    /// The end of the slice that begins at `at`. Slices consist of whole windows.
    fn slice_end(&self) -> i64 {
        let (plan, end) = (&self.of.2, self.at.saturating_add(self.length));
        let end = match plan.windows {
            Some(windows @ Windows::Every(_)) if end < plan.to => {
                let start = windows.start(end);
                if start > self.at { start } else { windows.end(self.at) }
            }
            _ => end,
        };
        end.min(plan.to)
    }

    fn next_slice(&mut self) -> Result<Option<Chunk>, QueryError> {
        while self.at < self.of.2.to {
            if (self.stop)() {
                return Err(QueryError::Cancelled);
            }
            let end = self.slice_end();
            let Some(sums) = self.sums(TimeRange { from: self.at, to: end })? else {
                self.length = (self.length.min(end.saturating_sub(self.at)) / 2).max(1);
                continue;
            };
            self.at = end;
            if (sums.len() as i64) < SLICE_ROWS / 4 {
                self.length = self.length.saturating_mul(2);
            }
            if let Some((chunk, counts)) = sums.finish(self.of.2.answers_exactly()) {
                self.covered.add(&chunk.times, &counts);
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// Aggregates the sensors' values in a slice; `None` if they have too many different times.
    fn sums(&self, range: TimeRange) -> Result<Option<SeriesSums>, QueryError> {
        let (snapshot, sensors, plan) = &self.of;
        let reader = snapshot.open(&mut plan.ranges(self.members.iter().map(|at| &sensors[*at as usize]), range))?;
        let block = (self.members.len() / BLOCKS).clamp(1, BLOCK_SENSORS);
        let blocks: Vec<&[u32]> = self.members.chunks(block).collect();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = processors.min(THREADS_MAX).min(blocks.len());
        let work = SliceReaders::new(self, reader, range, &blocks, threads * 2);
        if threads > 1 {
            std::thread::scope(|scope| {
                (1..threads).for_each(|_| drop(scope.spawn(|| work.run())));
                work.run();
            });
        } else {
            work.run();
        }
        work.finish()
    }

    fn new_sums(&self) -> SeriesSums {
        let plan = &self.of.2;
        SeriesSums::new(plan.across.map_or(Agg::Count, |across| across.agg), plan.exact)
    }

    /// Aggregates one block of sensors.
    fn block(
        &self,
        reader: &Arc<dyn SnapshotReader>,
        sensors: &[u32],
        range: TimeRange,
        stop: &StopCheck,
    ) -> Result<Option<SeriesSums>, QueryError> {
        let (_, infos, plan) = &self.of;
        let mut sums = self.new_sums();
        for at in sensors {
            if stop() {
                return Err(QueryError::Cancelled);
            }
            let mut cursor = 0;
            for chunk in plan.rows(reader, &infos[*at as usize], range, stop)? {
                sums.add(&chunk?, &mut cursor);
                if sums.len() > SLICE_ROWS_MAX && range.to.saturating_sub(range.from) > 1 {
                    return Ok(None);
                }
            }
        }
        Ok(Some(sums))
    }
}

impl Iterator for GroupRows {
    type Item = Result<Chunk, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let chunk = self.next_slice();
        self.failed = chunk.is_err();
        chunk.transpose()
    }
}

/// The blocks of one slice: each thread reads the next one, and sums are merged in order.
struct SliceReaders<'a> {
    rows: &'a GroupRows,
    reader: Arc<dyn SnapshotReader>,
    range: TimeRange,
    blocks: &'a [&'a [u32]],
    next: AtomicUsize,
    /// Set on too many rows or an error: threads read no more blocks.
    over: Arc<AtomicBool>,
    /// True once the query or this slice ends.
    stop: StopCheck,
    /// The most blocks that may be begun after the last merged one.
    ahead: usize,
    state: Mutex<SliceState>,
    turn: Condvar,
}

struct SliceState {
    all: SeriesSums,
    /// Blocks merged so far, and those that wait for an earlier one.
    done: usize,
    waiting: VecDeque<Option<SeriesSums>>,
    result: Result<bool, QueryError>,
}

impl<'a> SliceReaders<'a> {
    fn new(
        rows: &'a GroupRows,
        reader: Arc<dyn SnapshotReader>,
        range: TimeRange,
        blocks: &'a [&'a [u32]],
        ahead: usize,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (query, slice) = (rows.stop.clone(), over.clone());
        let stop: StopCheck = Arc::new(move || slice.load(Relaxed) || query());
        let state = SliceState { all: rows.new_sums(), done: 0, waiting: VecDeque::new(), result: Ok(true) };
        let (next, state, turn) = (AtomicUsize::new(0), Mutex::new(state), Condvar::new());
        Self { rows, reader, range, blocks, next, over, stop, ahead, state, turn }
    }

    fn run(&self) {
        /// Ends the other threads when one panics.
        struct EndOnPanic<'a, 'b>(&'a SliceReaders<'b>);
        impl Drop for EndOnPanic<'_, '_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.end(Err(QueryError::Cancelled));
                }
            }
        }
        let _ends = EndOnPanic(self);
        while !self.over.load(Relaxed) {
            let at = self.next.fetch_add(1, Relaxed);
            let Some(block) = self.blocks.get(at) else { return };
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            while at >= state.done + self.ahead && !self.over.load(Relaxed) {
                state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            match self.rows.block(&self.reader, block, self.range, &self.stop) {
                Ok(Some(sums)) => self.put(at, sums),
                Ok(None) => self.end(Ok(false)),
                Err(error) => self.end(Err(error)),
            }
        }
    }

    fn put(&self, at: usize, sums: SeriesSums) {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        let place = at - state.done;
        if state.waiting.len() <= place {
            state.waiting.resize_with(place + 1, || None);
        }
        state.waiting[place] = Some(sums);
        while let Some(Some(sums)) = state.waiting.front() {
            if state.done == 0 {
                state.all = sums.clone();
            } else {
                state.all.merge(sums);
            }
            state.waiting.pop_front();
            state.done += 1;
        }
        let too_many = state.all.len() > SLICE_ROWS_MAX && self.range.to.saturating_sub(self.range.from) > 1;
        drop(guard);
        self.turn.notify_all();
        if too_many {
            self.end(Ok(false));
        }
    }

    fn end(&self, result: Result<bool, QueryError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.over.swap(true, Relaxed) {
            state.result = result;
        }
        drop(state);
        self.turn.notify_all();
    }

    fn finish(self) -> Result<Option<SeriesSums>, QueryError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.result.map(|whole| whole.then_some(state.all))
    }
}
