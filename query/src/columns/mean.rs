//! Means of gauges over time: the area below the lines between readings, over the time that these cover. `docs/sums.md` has the rule.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_model::{ColumnValues, Timestamp, Value};
use wholegrain_store::{Before, Chunk, Chunks, Part, Rows as TierRows, Windows as TierWindows};

use super::aggregate::run;
use super::fold::{FloatSum, sum};
use super::{Builder, Folded, Folding};
use crate::QueryError;
use crate::holes::{Holes, Spacing};
use crate::integral::Segment;
use crate::samples::Beside;
use crate::scale::Scale;
use crate::windows::Windows;

const NS_PER_S: f64 = 1e9;

/// The means of one sensor's windows.
pub(crate) struct Means<C> {
    beside: Beside<C>,
    bound_ns: i64,
    holes: Holes,
    windows: Windows,
    range: (i64, i64),
    scale: Scale,
    /// Where the next line can begin.
    previous: Option<End>,
    /// Whether the reading before the range has been looked for.
    begun: bool,
    open: Option<Open>,
    out: Builder,
    unweighted: Arc<Unweighted>,
}

/// A value that a line can begin at.
#[derive(Debug, Clone, Copy, PartialEq)]
struct End {
    time: i64,
    value: f64,
    /// Windows say that a gap follows.
    gap_after: bool,
}

/// A window being filled.
struct Open {
    start: i64,
    end: i64,
    /// How many values.
    count: u64,
    /// Of those that no line begins or ends at within a slice or a tier's window: all of them where nothing is covered.
    single: FloatSum,
    area: FloatSum,
    /// ns.
    covered: i128,
    /// What tiers' windows come to that do not know their lines: the sum and the number of their values.
    other: (FloatSum, u64),
}

/// A tier's window.
struct TierRow {
    count: u64,
    sum: f64,
    first: (i64, f64),
    last: (i64, f64),
    covered: i64,
    area: f64,
    before: Before,
    gap_after: bool,
    /// Whether the row before it in its file was taken before it.
    follows: bool,
}

impl<C: Deref> Means<C>
where
    C::Target: Chunks,
{
    /// The means of the windows that these parts have readings of, all of them within `range`.
    pub fn of<I>(
        parts: I,
        beside: Beside<C>,
        windows: Windows,
        range: (i64, i64),
        scale: Scale,
        unweighted: Arc<Unweighted>,
    ) -> Folded<I, Self> {
        let (bound_ns, holes) = (beside.bound_ns(), Holes::of(beside.sensor()));
        let (previous, open, out) = (None, None, Builder::new(false));
        let begun = false;
        Folded::new(
            parts,
            Self { beside, bound_ns, holes, windows, range, scale, previous, begun, open, out, unweighted },
        )
    }

    /// Before the first value: the reading before the range.
    #[inline]
    fn begin(&mut self) -> Result<(), QueryError> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        if let Some((time, value)) = self.beside.sample_before(self.range.0)? {
            self.holes.take(time);
            self.previous = end(time, value);
        }
        Ok(())
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

    /// One reading.
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
        self.previous = Some(End { time, value, gap_after: false });
        Ok(())
    }

    /// Whether a spacing over the bound is one of three alike.
    #[cold]
    fn is_rate(&self, time: i64, spacing: i64, rest: &[i64]) -> Result<bool, QueryError> {
        let after = std::iter::once(time).chain(rest.iter().copied().take(2)).collect();
        self.beside.is_rate(spacing, self.holes.before().to_vec(), after)
    }

    /// The line from the previous value to this one, if they are joined, in the windows of both; the window of the latter.
    fn line(&mut self, to: (i64, f64), joined: bool) -> &mut Open {
        let time = to.0;
        let from = self.previous.filter(|_| joined);
        let segment = from.map(|from| Segment { start: (from.time, from.value), end: to });
        let stays = |open: &Open| time < open.end || open.start == self.windows.start(time);
        let stays = self.open.as_ref().is_some_and(stays);
        if let (Some(open), Some(segment)) = (&mut self.open, &segment) {
            open.add(segment, segment.start.0, if stays { time } else { open.end });
        }
        if !stays {
            self.close();
        }
        let windows = self.windows;
        let open = self.open.get_or_insert_with(|| Open::new(windows.start(time), windows.end(time)));
        if let Some(segment) = segment.filter(|_| !stays) {
            open.add(&segment, segment.start.0.max(open.start).max(self.range.0), time);
        }
        open
    }

    /// The readings after `from`, which was the last one taken, up to `to`, all in the open window, at once; `false` where they must be taken one by one.
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
                    even(sum(values) as f64, previous.value, last, spacing)
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
        // NaN is no value, and what is infinite, or was for a moment, is looked at closely.
        if !area.is_finite() {
            return false;
        }
        open.area.add(area);
        open.count += times.len() as u64 - 1;
        let time = times[times.len() - 1];
        open.covered += i128::from(time) - i128::from(*first);
        *previous = End { time, value: last, gap_after: false };
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
            (Before::Line, true) => true,
            (Before::Gap | Before::Hole, true) => false,
            (before, _) => self.is_joined(row, before == Before::Gap)?,
        };
        let open = self.line(row.first, joined);
        open.count += row.count;
        if row.covered > 0 {
            open.area.add(row.area);
            open.covered += i128::from(row.covered);
        } else {
            open.single.add(row.sum);
        }
        if row.count > 2 {
            // Those in between are not known.
            self.holes = Holes::of(self.beside.sensor());
        } else if row.count == 2 {
            self.holes.take(row.first.0);
        }
        self.holes.take(row.last.0);
        self.previous = Some(End { time: row.last.0, value: row.last.1, gap_after: row.gap_after });
        Ok(())
    }

    /// Whether a line leads to a tier's window from what was taken before it, which is not of the same file.
    fn is_joined(&mut self, row: &TierRow, gap_before: bool) -> Result<bool, QueryError> {
        let Some(previous) = self.previous else { return Ok(false) };
        let spacing = row.first.0.saturating_sub(previous.time);
        let gap = previous.gap_after || gap_before;
        if !gap && spacing <= self.bound_ns {
            return Ok(true);
        }
        let told = self.beside.are_joined(previous.time, row.first.0)?;
        Ok(told.unwrap_or(!gap && row.before == Before::Line))
    }

    /// A window that does not know its lines: its values weigh the same, and it as much as it is long.
    fn without_lines(&mut self, time: i64, count: u64, sum: f64) {
        (self.previous, self.begun) = (None, true);
        self.holes = Holes::of(self.beside.sensor());
        let time = time.max(self.range.0);
        self.unweighted.add(self.beside.path(), time);
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

impl Open {
    fn new(start: i64, end: i64) -> Self {
        let (single, area) = (FloatSum::default(), FloatSum::default());
        Self { start, end, count: 0, single, area, covered: 0, other: (FloatSum::default(), 0) }
    }

    /// The part of a line from `from` to `to`.
    #[inline]
    fn add(&mut self, segment: &Segment, from: i64, to: i64) {
        if from < to {
            self.area.add(segment.area(from, to));
            self.covered += i128::from(to) - i128::from(from);
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

fn end(time: i64, value: Option<Value>) -> Option<End> {
    let value = value.map(Value::as_f64).filter(|value| !value.is_nan())?;
    Some(End { time, value, gap_after: false })
}

/// The area below values that are evenly spaced.
fn even(sum: f64, first: f64, last: f64, spacing: i64) -> f64 {
    (sum - (first / 2.0 + last / 2.0)) * (spacing as f64 / NS_PER_S)
}

/// The area below any values.
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

impl<C: Deref> Folding<Part> for Means<C>
where
    C::Target: Chunks,
{
    fn take(&mut self, part: Part) -> Result<(), QueryError> {
        match part {
            Part::Readings(chunk) => self.readings(&chunk),
            Part::Windows(TierWindows::Int(rows)) => self.tier_rows(&rows, |value| value as f64),
            Part::Windows(TierWindows::Float(rows)) => self.tier_rows(&rows, |value| value),
        }
    }

    fn end(&mut self) -> Result<(), QueryError> {
        // A window with one value has that value, whatever comes after it.
        let is_many = self.open.as_ref().is_some_and(|open| open.count > 1);
        if let Some(previous) = self.previous.filter(|_| is_many)
            && self.range.1.saturating_sub(previous.time) <= self.beside.reach_ns()
            && let Some((time, Some(value))) = self.beside.sample_from(self.range.1)?
            && let Some(next) = end(time, Some(value))
        {
            let joined = match self.holes.take(time) {
                _ if previous.gap_after => self.beside.are_joined(previous.time, time)?.unwrap_or(false),
                Spacing::Short => true,
                Spacing::First | Spacing::Hole => false,
                Spacing::Long(spacing) => self.is_rate(time, spacing, &[])?,
            };
            if let Some(open) = self.open.as_mut().filter(|_| joined) {
                let segment = Segment { start: (previous.time, previous.value), end: (next.time, next.value) };
                open.add(&segment, previous.time, time.min(open.end).min(self.range.1));
            }
        }
        self.close();
        Ok(())
    }

    fn out(&mut self) -> &mut Builder {
        &mut self.out
    }
}

/// Windows whose means weigh all values the same, because nothing else is kept of them.
#[derive(Debug, Default)]
pub(crate) struct Unweighted {
    found: Mutex<Option<Found>>,
}

#[derive(Debug)]
struct Found {
    path: Arc<str>,
    from: i64,
    to: i64,
    others: bool,
}

impl Unweighted {
    fn add(&self, path: &Arc<str>, time: i64) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *found {
            None => *found = Some(Found { path: path.clone(), from: time, to: time, others: false }),
            Some(found) => {
                found.others |= found.path != *path;
                (found.from, found.to) = (found.from.min(time), found.to.max(time));
            }
        }
    }

    /// A sentence about all of them.
    pub fn note(&self) -> Option<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let Found { path, from, to, others } = found.as_ref()?;
        let whose = if *others { format!("{path} and others") } else { path.to_string() };
        Some(format!(
            "{whose}: between {} and {} only windows are kept (retention) that do not say how long their values held; the mean there is that of the values, each weighing the same",
            Timestamp(*from),
            Timestamp(*to)
        ))
    }
}
