//! Time-weighted means of gauges: the area below the lines between readings, divided by the covered time. `docs/sums.md` has the rule.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{ColumnValues, Timestamp, Value};
use wholegrain_store::{Chunk, ScanPart, SnapshotReader, TierWindows, WindowColumns as TierRows, WindowEdge};

use super::aggregate::run;
use super::fold::sum;
use super::{ChunkBuilder, FoldedWindows, WindowFold};
use crate::error::QueryError;
use crate::float_sum::FloatSum;
use crate::holes::{HoleDetector, Spacing};
use crate::line_segment::{LineSegment, NS_PER_S};
use crate::samples::NeighbourSamples;
use crate::scale::Scale;
use crate::windows::Windows;

/// Computes the time-weighted means of one sensor's windows.
pub(crate) struct TimeWeightedMeans<C> {
    beside: NeighbourSamples<C>,
    bound_ns: i64,
    holes: HoleDetector,
    windows: Windows,
    range: (i64, i64),
    /// The resolution of the tier that may answer, ns.
    resolution: Option<i64>,
    scale: Scale,
    /// The begin of the next line, if one can begin.
    previous: Option<LineEnd>,
    /// Whether the reading before the range has been searched.
    begun: bool,
    open: Option<OpenMeanWindow>,
    out: ChunkBuilder,
    approximate: Arc<ApproximateMeans>,
}

/// A value at which a line can begin.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LineEnd {
    time: i64,
    value: f64,
    /// Whether a gap follows, according to a tier window.
    gap_after: bool,
}

/// A window being filled.
struct OpenMeanWindow {
    start: i64,
    end: i64,
    count: u64,
    /// The sum of the values outside of slices and covered tier windows: of all values if nothing is covered.
    single: FloatSum,
    area: FloatSum,
    covered: u64,
    /// Sum and number of the values of tier windows that store no areas.
    other: (FloatSum, u64),
}

struct TierRow {
    count: u64,
    sum: f64,
    first: (i64, f64),
    last: (i64, f64),
    covered: i64,
    area: f64,
    before: WindowEdge,
    gap_after: bool,
    /// Whether the previous row of its file has been taken.
    follows: bool,
}

impl<C: Deref> TimeWeightedMeans<C>
where
    C::Target: SnapshotReader,
{
    /// `parts` lie within `range`.
    pub fn of<I>(
        parts: I,
        beside: NeighbourSamples<C>,
        (windows, scale): (Windows, Scale),
        range: (i64, i64),
        resolution: Option<i64>,
        approximate: Arc<ApproximateMeans>,
    ) -> FoldedWindows<I, Self> {
        let (bound_ns, holes) = (beside.bound_ns(), HoleDetector::of(beside.sensor()));
        let (previous, begun, open, out) = (None, false, None, ChunkBuilder::new(false));
        let means = Self {
            beside,
            bound_ns,
            holes,
            windows,
            range,
            resolution,
            scale,
            previous,
            begun,
            open,
            out,
            approximate,
        };
        FoldedWindows::new(parts, means)
    }

    /// Before the first value: finds the reading before the range.
    #[inline]
    fn begin(&mut self) -> Result<(), QueryError> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        self.look_back()
    }

    fn look_back(&mut self) -> Result<(), QueryError> {
        let from = self.range.0;
        let is_edge = self.resolution.is_some_and(|resolution| from % resolution == 0);
        let mut found = if is_edge { self.window_before(from, false)? } else { None };
        if found.is_none() {
            found = self.beside.sample_before(from)?.map(|(time, value)| (time, end(time, value)));
        }
        if found.is_none() {
            // The readings have been deleted or never existed: then a window that the range cuts is empty.
            found = self.window_before(from, true)?;
        }
        if found.is_none() {
            found = self.coarser(from, |resolution| self.last_before(from, resolution, true))?;
        }
        if let Some((time, previous)) = found {
            self.holes.take(time);
            self.previous = previous;
        }
        Ok(())
    }

    /// The last reading before `time`, and its value if a line can begin there. If the tier window that contains `time` has readings after it, the
    /// last one before that window.
    fn window_before(&self, time: i64, far: bool) -> Result<Option<(i64, Option<LineEnd>)>, QueryError> {
        let Some(resolution) = self.resolution else { return Ok(None) };
        let (start, end) = whole_window(time, resolution);
        if start < end
            && let Some(found) = self.last_before(end, resolution, far)?.filter(|(last, _)| *last < time)
        {
            return Ok(Some(found));
        }
        self.last_before(start, resolution, far)
    }

    /// As [`Self::window_before`], for a multiple of the resolution.
    fn last_before(&self, time: i64, resolution: i64, far: bool) -> Result<Option<(i64, Option<LineEnd>)>, QueryError> {
        Ok(self.beside.part_before(time, resolution, far)?.map(|part| match &part {
            ScanPart::Readings(chunk) => {
                let at = chunk.times.len() - 1;
                (chunk.times[at], end(chunk.times[at], chunk.column.get(at)))
            }
            ScanPart::Windows(TierWindows::Int(rows)) => last_of(rows, |value| value as f64),
            ScanPart::Windows(TierWindows::Float(rows)) => last_of(rows, |value| value),
        }))
    }

    /// The result of `find` with a coarser tier than the usual one that has a window edge at `time`: a sensor may have nothing else left.
    #[cold]
    fn coarser<T>(
        &self,
        time: i64,
        find: impl Fn(i64) -> Result<Option<T>, QueryError>,
    ) -> Result<Option<T>, QueryError> {
        let Some(usual) = self.resolution else { return Ok(None) };
        let is_edge = |resolution: &i64| *resolution > usual && time % *resolution == 0;
        let found = self.beside.resolutions().iter().copied().filter(is_edge).map(find);
        found.filter_map(Result::transpose).next().transpose()
    }

    /// The value right after the range, if a line leads to it.
    fn look_ahead(&mut self) -> Result<Option<(i64, f64)>, QueryError> {
        let to = self.range.1;
        let is_edge = self.resolution.is_some_and(|resolution| to % resolution == 0);
        let mut found = if is_edge { self.window_from(to, false)? } else { None };
        if found.is_none() {
            let sample = self.beside.sample_from(to)?;
            let value = |(time, value): (i64, Option<Value>)| {
                end(time, value).map(|end| ((time, end.value), WindowEdge::Unknown))
            };
            found = sample.map(value);
        }
        if found.is_none() {
            found = self.window_from(to, true)?;
        }
        if found.is_none() {
            found = self.coarser(to, |resolution| self.first_from(to, resolution, true))?;
        }
        match found.flatten() {
            Some((next, before)) => Ok(self.is_joined(next.0, before)?.then_some(next)),
            None => Ok(None),
        }
    }

    /// The first value from `time` on, and the edge before it; the inner `None` is a gap. If the tier window that contains `time` has values before
    /// it, the first value after that window.
    #[expect(clippy::type_complexity, reason = "only used in this file")]
    fn window_from(&self, time: i64, far: bool) -> Result<Option<Option<((i64, f64), WindowEdge)>>, QueryError> {
        let Some(resolution) = self.resolution else { return Ok(None) };
        let (start, end) = whole_window(time, resolution);
        let is_after = |found: &Option<((i64, f64), WindowEdge)>| found.is_some_and(|((first, _), _)| first >= time);
        if start < end
            && let Some(found) = self.first_from(start, resolution, far)?.filter(is_after)
        {
            return Ok(Some(found));
        }
        self.first_from(end, resolution, far)
    }

    /// As [`Self::window_from`], for a multiple of the resolution.
    #[expect(clippy::type_complexity, reason = "only used in this file")]
    fn first_from(
        &self,
        from: i64,
        resolution: i64,
        far: bool,
    ) -> Result<Option<Option<((i64, f64), WindowEdge)>>, QueryError> {
        Ok(self.beside.part_from(from, resolution, far)?.map(|part| match &part {
            ScanPart::Readings(chunk) => {
                let time = chunk.times[0];
                end(time, chunk.column.get(0)).map(|end| ((time, end.value), WindowEdge::Unknown))
            }
            ScanPart::Windows(TierWindows::Int(rows)) => first_of(rows, |value| value as f64),
            ScanPart::Windows(TierWindows::Float(rows)) => first_of(rows, |value| value),
        }))
    }

    fn readings(&mut self, chunk: &Chunk) -> Result<(), QueryError> {
        let times = &chunk.times;
        let mut at = 0;
        while let Some(time) = times.get(at) {
            let window_end = match &self.open {
                Some(open) if *time < open.end => open.end,
                _ => self.windows.end(*time),
            };
            let to = at + run(&times[at..], window_end);
            self.reading(chunk, at)?;
            if !self.slice(chunk, at, to) {
                (at + 1..to).try_for_each(|row| self.reading(chunk, row))?;
            }
            at = to;
        }
        Ok(())
    }

    fn reading(&mut self, chunk: &Chunk, row: usize) -> Result<(), QueryError> {
        let (time, value) =
            (chunk.times[row], chunk.column.get(row).map(Value::as_f64).filter(|value| !value.is_nan()));
        let Some(value) = value else {
            self.holes.take(time);
            (self.previous, self.begun) = (None, true);
            return Ok(());
        };
        self.begin()?;
        let joined = match self.holes.take(time) {
            Spacing::Short => true,
            Spacing::First | Spacing::Hole => false,
            Spacing::Long(spacing) => {
                self.previous.is_some() && self.is_rate(time, spacing, &chunk.times[row + 1..])?
            }
        };
        let joined = joined && self.previous.is_some_and(|previous| !previous.gap_after);
        let open = self.line((time, value), joined);
        open.count += 1;
        open.single.add(value);
        self.previous = Some(LineEnd { time, value, gap_after: false });
        Ok(())
    }

    /// Whether a spacing over the bound is one of three similar ones.
    #[cold]
    fn is_rate(&self, time: i64, spacing: i64, rest: &[i64]) -> Result<bool, QueryError> {
        let after = std::iter::once(time).chain(rest.iter().copied().take(2)).collect();
        self.beside.is_rate(spacing, self.holes.before().to_vec(), after)
    }

    /// Adds the line from the previous value to this one, if they are joined, to the windows of both. Returns the window of this one.
    fn line(&mut self, to: (i64, f64), joined: bool) -> &mut OpenMeanWindow {
        let time = to.0;
        let from = self.previous.filter(|_| joined);
        let segment = from.map(|from| LineSegment { start: (from.time, from.value), end: to });
        let stays = |open: &OpenMeanWindow| time < open.end || open.start == self.windows.start(time);
        let stays = self.open.as_ref().is_some_and(stays);
        if let (Some(open), Some(segment)) = (&mut self.open, &segment) {
            open.add(segment, segment.start.0, if stays { time } else { open.end });
        }
        if !stays {
            self.close();
        }
        let windows = self.windows;
        let open = self.open.get_or_insert_with(|| OpenMeanWindow::new(windows.start(time), windows.end(time)));
        if let Some(segment) = segment.filter(|_| !stays) {
            open.add(&segment, segment.start.0.max(open.start).max(self.range.0), time);
        }
        open
    }

    /// Takes the readings after `from`, which was the last one taken, up to `to` at once; all are in the open window. Returns `false`, and takes
    /// nothing, if they must be taken one by one.
    fn slice(&mut self, chunk: &Chunk, from: usize, to: usize) -> bool {
        let times = &chunk.times[from..to];
        let [first, second, ..] = times else { return false };
        let gaps = &chunk.column.gaps;
        if !gaps.0.is_empty() && (from..to).any(|row| gaps.is_gap(row)) {
            return false;
        }
        let (Some(open), Some(previous)) = (&mut self.open, &mut self.previous) else { return false };
        let spacing = second - first;
        let pairs = || times.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        let is_even = pairs().fold(0, |odd, other| odd | (other ^ spacing)) == 0;
        let longest = if is_even { spacing } else { pairs().fold(0, |longest, other| longest.max(other)) };
        if longest > self.bound_ns {
            return false;
        }
        let (area, last) = match &chunk.column.values {
            ColumnValues::Int(values) => {
                let values = &values[from..to];
                let last = values[values.len() - 1] as f64;
                let area = if is_even {
                    let sum = sum(values);
                    let sum = i64::try_from(sum).map_or_else(|_| sum as f64, |sum| sum as f64);
                    even(sum, previous.value, last, spacing)
                } else {
                    uneven(times, values, |value| *value as f64)
                };
                (area, last)
            }
            ColumnValues::Float(values) => {
                let values = &values[from..to];
                let last = values[values.len() - 1];
                let area = if is_even {
                    let mut sum = FloatSum::default();
                    values.iter().for_each(|value| sum.add(*value));
                    even(sum.total(), previous.value, last, spacing)
                } else {
                    uneven(times, values, |value| *value)
                };
                (area, last)
            }
        };
        // NaN and infinities, also intermediate ones, are handled one by one.
        if !area.is_finite() {
            return false;
        }
        open.area.add(area);
        open.count += times.len() as u64 - 1;
        let time = times[times.len() - 1];
        open.covered += time.abs_diff(*first);
        *previous = LineEnd { time, value: last, gap_after: false };
        self.holes.pass(&times[1..]);
        true
    }

    fn tier_rows<T: Copy>(&mut self, rows: &TierRows<T>, value: impl Fn(T) -> f64) -> Result<(), QueryError> {
        for at in 0..rows.times.len() {
            let (time, count) = (rows.times[at], rows.counts[at].cast_unsigned());
            let Some(lines) = &rows.lines else {
                self.without_lines(time, count, value(rows.sums[at]));
                continue;
            };
            self.begin()?;
            self.tier_row(&TierRow {
                count,
                sum: value(rows.sums[at]),
                first: (time.saturating_add(lines.first_after[at]), value(rows.firsts[at])),
                last: (time.saturating_add(lines.last_after[at]), value(rows.lasts[at])),
                covered: lines.covered[at],
                area: lines.area[at],
                before: lines.edges[at].before,
                gap_after: lines.edges[at].gap_after,
                follows: at > 0,
            })?;
        }
        Ok(())
    }

    fn tier_row(&mut self, row: &TierRow) -> Result<(), QueryError> {
        let joined = match (row.before, row.follows) {
            (WindowEdge::Line, true) => true,
            (WindowEdge::Gap | WindowEdge::Hole, true) => false,
            (before, _) => self.is_joined(row.first.0, before)?,
        };
        let open = self.line(row.first, joined);
        open.count += row.count;
        if row.covered > 0 {
            open.area.add(row.area);
            open.covered += row.covered.unsigned_abs();
        } else {
            open.single.add(row.sum);
        }
        if row.count > 2 {
            // The times in between are unknown.
            self.holes = HoleDetector::of(self.beside.sensor());
        } else if row.count == 2 {
            self.holes.take(row.first.0);
        }
        self.holes.take(row.last.0);
        self.previous = Some(LineEnd { time: row.last.0, value: row.last.1, gap_after: row.gap_after });
        Ok(())
    }

    /// Whether a line joins the previous value to the one at `time`. `before` is the edge that the tier stores, whose earlier value may be another one.
    fn is_joined(&self, time: i64, before: WindowEdge) -> Result<bool, QueryError> {
        let Some(previous) = self.previous else { return Ok(false) };
        let spacing = time.saturating_sub(previous.time);
        let gap = previous.gap_after || before == WindowEdge::Gap;
        if !gap && spacing <= self.bound_ns {
            return Ok(true);
        }
        if let Some(joined) = self.beside.are_joined(previous.time, time)? {
            return Ok(joined);
        }
        // The readings are gone.
        if !gap && before == WindowEdge::Unknown {
            if let Some(joined) = self.beside.are_joined_by_windows(previous.time, time)? {
                return Ok(joined);
            }
            self.approximate.unknown(self.beside.path(), (previous.time, time));
        }
        Ok(!gap && before == WindowEdge::Line)
    }

    /// A tier window without areas: its values have equal weights, and the window is weighted by its length.
    fn without_lines(&mut self, time: i64, count: u64, sum: f64) {
        (self.previous, self.begun) = (None, true);
        self.holes = HoleDetector::of(self.beside.sensor());
        let time = time.max(self.range.0);
        self.approximate.unweighted(self.beside.path(), time);
        let open = self.line((time, 0.0), false);
        open.count += count;
        open.other.0.add(sum);
        open.other.1 += count;
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take().filter(|open| open.count > 0) {
            let mean = self.scale.apply(open.mean());
            self.out.push(open.start, (!mean.is_nan()).then_some(Value::Float(mean)));
        }
    }
}

impl OpenMeanWindow {
    fn new(start: i64, end: i64) -> Self {
        let (single, area) = (FloatSum::default(), FloatSum::default());
        Self { start, end, count: 0, single, area, covered: 0, other: (FloatSum::default(), 0) }
    }

    /// The part of a line from `from` to `to`.
    #[inline]
    fn add(&mut self, segment: &LineSegment, from: i64, to: i64) {
        if from < to {
            self.area.add(segment.area(from, to));
            self.covered += to.abs_diff(from);
        }
    }

    fn mean(&self) -> f64 {
        let (sum, count) = &self.other;
        let own = self.count - count;
        let lines = match (own, self.covered) {
            (1, _) | (_, 0) => self.single.total() / own as f64,
            (_, covered) => self.area.total() / (covered as f64 / NS_PER_S),
        };
        if *count == 0 {
            return lines;
        }
        let others = sum.total() / *count as f64;
        if own == 0 {
            return others;
        }
        let share = own as f64 / self.count as f64;
        lines * share + others * (1.0 - share)
    }
}

fn end(time: i64, value: Option<Value>) -> Option<LineEnd> {
    let value = value.map(Value::as_f64).filter(|value| !value.is_nan())?;
    Some(LineEnd { time, value, gap_after: false })
}

/// Start and end of the window that contains `time`; both are `time` on an edge.
fn whole_window(time: i64, resolution: i64) -> (i64, i64) {
    match time.rem_euclid(resolution) {
        0 => (time, time),
        rest => (time.saturating_sub(rest), time.saturating_add(resolution - rest)),
    }
}

/// The last value of windows, and its time.
fn last_of<T: Copy>(rows: &TierRows<T>, value: impl Fn(T) -> f64) -> (i64, Option<LineEnd>) {
    let at = rows.times.len() - 1;
    let Some(lines) = &rows.lines else { return (rows.times[at], None) };
    let time = rows.times[at].saturating_add(lines.last_after[at]);
    (time, Some(LineEnd { time, value: value(rows.lasts[at]), gap_after: lines.edges[at].gap_after }))
}

/// The first value of windows, and the edge before it, if known.
fn first_of<T: Copy>(rows: &TierRows<T>, value: impl Fn(T) -> f64) -> Option<((i64, f64), WindowEdge)> {
    let lines = rows.lines.as_ref()?;
    Some(((rows.times[0].saturating_add(lines.first_after[0]), value(rows.firsts[0])), lines.edges[0].before))
}

/// The area below evenly spaced values.
fn even(sum: f64, first: f64, last: f64, spacing: i64) -> f64 {
    (sum - (first / 2.0 + last / 2.0)) * (spacing as f64 / NS_PER_S)
}

/// The area below values at any times.
fn uneven<T>(times: &[i64], values: &[T], float: impl Fn(&T) -> f64) -> f64 {
    let mut area = FloatSum::default();
    let mut before = (times[0], float(&values[0]));
    for (time, value) in times[1..].iter().zip(&values[1..]) {
        let value = float(value);
        area.add((before.1 / 2.0 + value / 2.0) * ((time - before.0) as f64));
        before = (*time, value);
    }
    area.total() / NS_PER_S
}

impl<C: Deref> WindowFold<ScanPart> for TimeWeightedMeans<C>
where
    C::Target: SnapshotReader,
{
    fn take(&mut self, part: ScanPart) -> Result<(), QueryError> {
        match part {
            ScanPart::Readings(chunk) => self.readings(&chunk),
            ScanPart::Windows(TierWindows::Int(rows)) => self.tier_rows(&rows, |value| value as f64),
            ScanPart::Windows(TierWindows::Float(rows)) => self.tier_rows(&rows, |value| value),
        }
    }

    fn end(&mut self) -> Result<(), QueryError> {
        // A window with one value has that value, whatever follows.
        let is_many = self.open.as_ref().is_some_and(|open| open.count > 1);
        if let Some(previous) = self.previous.filter(|_| is_many)
            && self.range.1.saturating_sub(previous.time) <= self.beside.reach_ns()
            && let Some(next) = self.look_ahead()?
            && let Some(open) = &mut self.open
        {
            let segment = LineSegment { start: (previous.time, previous.value), end: next };
            open.add(&segment, previous.time, next.0.min(open.end).min(self.range.1));
        }
        self.close();
        Ok(())
    }

    fn out(&mut self) -> &mut ChunkBuilder {
        &mut self.out
    }
}

/// Counts means that can only be approximated because readings have been deleted.
#[derive(Debug, Default)]
pub(crate) struct ApproximateMeans {
    /// Windows whose values were weighted equally.
    unweighted: Mutex<Option<ApproximateCounts>>,
    /// Pairs of values for which it is unknown whether there is a hole between them.
    unknown: Mutex<Option<ApproximateCounts>>,
}

#[derive(Debug)]
struct ApproximateCounts {
    path: Arc<str>,
    from: i64,
    to: i64,
    count: u64,
    others: bool,
}

impl ApproximateMeans {
    fn unweighted(&self, path: &Arc<str>, time: i64) {
        add(&self.unweighted, path, (time, time));
    }

    fn unknown(&self, path: &Arc<str>, times: (i64, i64)) {
        add(&self.unknown, path, times);
    }

    /// One sentence for each kind.
    pub fn notes(&self) -> Vec<String> {
        let note = |found: &Mutex<Option<ApproximateCounts>>, what: &dyn Fn(&ApproximateCounts, &str) -> String| {
            let found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().map(|found| {
                let others = if found.others { " and other sensors" } else { "" };
                what(
                    found,
                    &format!("{}{others}: between {} and {}", found.path, Timestamp(found.from), Timestamp(found.to)),
                )
            })
        };
        let unweighted = note(&self.unweighted, &|_, whose| {
            format!(
                "{whose} retention has kept only windows that do not store how long their values held, or store it for another interval of the sensor; the mean there gives all values the same weight"
            )
        });
        let unknown = note(&self.unknown, &|found, whose| {
            let times = if found.count == 1 { "time" } else { "times" };
            format!(
                "{whose} two values are {} {times} further apart than the sensor's readings usually are, and retention has deleted the readings next to them; the mean omits the time between them",
                found.count
            )
        });
        unweighted.into_iter().chain(unknown).collect()
    }
}

fn add(found: &Mutex<Option<ApproximateCounts>>, path: &Arc<str>, (from, to): (i64, i64)) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *found {
        None => *found = Some(ApproximateCounts { path: path.clone(), from, to, count: 1, others: false }),
        Some(found) => {
            found.others |= found.path != *path;
            found.count += 1;
            (found.from, found.to) = (found.from.min(from), found.to.max(to));
        }
    }
}
