//! Computes the windows of all tiers from the readings of one sensor, in one pass: the finest from readings, each other from the one before.

use wholegrain_model::{Column, ColumnValues, Gaps, ValueType};

use crate::block::windows::{LineSpacings, TierWindows, WindowColumns, WindowEdge, WindowEdges, even_area, seconds};
use crate::holes;
use crate::time::floor;

/// What differs between integers and floats.
pub(crate) trait WindowNumber: Copy + Default {
    /// Whether it counts as a value.
    fn counts(self) -> bool;
    /// Whether `self` is less.
    fn less(self, other: Self) -> bool;
    /// Adds to a sum, whose rounding error is kept in `lost`; `false`, and nothing changed, if it overflows.
    fn add(sum: &mut Self, lost: &mut Self, value: Self) -> bool;
    /// The sum as it is stored.
    fn total(sum: Self, lost: Self) -> Self;
    /// The number converted to a float.
    fn float(self) -> f64;
    /// The sum of values without gaps, if it is exact and never overflows.
    fn sum_of(values: &[Self]) -> Option<Self>;
}

impl WindowNumber for i64 {
    fn counts(self) -> bool {
        true
    }
    fn less(self, other: Self) -> bool {
        self < other
    }
    fn add(sum: &mut Self, _lost: &mut Self, value: Self) -> bool {
        sum.checked_add(value).map(|total| *sum = total).is_some()
    }
    fn total(sum: Self, _lost: Self) -> Self {
        sum
    }
    fn float(self) -> f64 {
        self as f64
    }
    fn sum_of(values: &[Self]) -> Option<Self> {
        values.iter().try_fold(0i64, |sum, value| sum.checked_add(*value))
    }
}

impl WindowNumber for f64 {
    fn counts(self) -> bool {
        !self.is_nan()
    }
    fn less(self, other: Self) -> bool {
        self < other
    }
    /// Neumaier's variant of compensated summation, as queries over readings use it.
    fn add(sum: &mut Self, lost: &mut Self, value: Self) -> bool {
        let next = *sum + value;
        if next.is_finite() {
            *lost += if sum.abs() >= value.abs() { (*sum - next) + value } else { (value - next) + *sum };
        }
        *sum = next;
        true
    }
    fn total(sum: Self, lost: Self) -> Self {
        if sum.is_finite() { sum + lost } else { sum }
    }
    fn float(self) -> f64 {
        self
    }
    fn sum_of(_values: &[Self]) -> Option<Self> {
        None
    }
}

/// A window that is being filled.
#[derive(Debug, Clone, Copy)]
struct OpenWindow<T> {
    start: i64,
    count: i64,
    min: T,
    max: T,
    sum: T,
    lost: T,
    first: T,
    last: T,
    first_time: i64,
    last_time: i64,
    covered: i64,
    area: f64,
    edges: WindowEdges,
}

#[derive(Debug)]
struct TierLevel<T> {
    resolution: i64,
    open: Option<OpenWindow<T>>,
    rows: WindowColumns<T>,
}

/// The tiers of one sensor.
#[derive(Debug)]
pub(crate) struct WindowBuilder<T> {
    levels: Vec<TierLevel<T>>,
    bound_ns: i64,
    reach_ns: i64,
    /// The times of the latest readings, the latest first, and how many are known.
    times: [i64; 3],
    known: usize,
    /// Whether the latest is a gap.
    after_gap: bool,
    drawn: LineSpacings,
}

impl<T: WindowNumber> OpenWindow<T> {
    fn of(start: i64, time: i64, value: T, before: WindowEdge) -> Self {
        let mut open = Self {
            start,
            count: 1,
            min: value,
            max: value,
            sum: T::default(),
            lost: T::default(),
            first: value,
            last: value,
            first_time: time,
            last_time: time,
            covered: 0,
            area: 0.0,
            edges: WindowEdges { before, gap_after: false },
        };
        T::add(&mut open.sum, &mut open.lost, value);
        open
    }

    /// A window of several readings without gaps or holes; `None` if one is no value, or the sum overflows.
    fn of_all(start: i64, times: &[i64], values: &[T], before: WindowEdge, even: bool) -> Option<Self> {
        let (first, last) = (*values.first()?, *values.last()?);
        let (first_time, last_time) = (*times.first()?, *times.last()?);
        let (mut sum, mut lost) = (T::default(), T::default());
        match T::sum_of(values) {
            Some(total) => sum = total,
            None if !values.iter().all(|value| value.counts() && T::add(&mut sum, &mut lost, *value)) => return None,
            None => {}
        }
        let (mut min, mut max) = (first, first);
        for &value in values {
            if value.less(min) {
                min = value;
            }
            if max.less(value) {
                max = value;
            }
        }
        let count = i64::try_from(values.len()).ok()?;
        let covered = last_time - first_time;
        let mut area = even_area(count, T::total(sum, lost).float(), (first.float(), last.float()), covered);
        if !even || !area.is_finite() {
            let sides = values.windows(2).map(|pair| pair[0].float() / 2.0 + pair[1].float() / 2.0);
            area = sides.zip(times.windows(2)).map(|(mean, pair)| mean * seconds(pair[1] - pair[0])).sum();
        }
        let edges = WindowEdges { before, gap_after: false };
        Some(Self { start, count, min, max, sum, lost, first, last, first_time, last_time, covered, area, edges })
    }

    /// Adds a later part of the same window; `false`, and nothing changed, if the sum overflows.
    fn absorb(&mut self, part: &Self) -> bool {
        let (mut sum, mut lost) = (self.sum, self.lost);
        if !T::add(&mut sum, &mut lost, part.sum) || !T::add(&mut sum, &mut lost, part.lost) {
            return false;
        }
        (self.sum, self.lost) = (sum, lost);
        self.count += part.count;
        if part.min.less(self.min) {
            self.min = part.min;
        }
        if self.max.less(part.max) {
            self.max = part.max;
        }
        if part.edges.before == WindowEdge::Line {
            let between = part.first_time - self.last_time;
            self.covered += between;
            self.area += (self.last.float() / 2.0 + part.first.float() / 2.0) * seconds(between);
        }
        self.covered += part.covered;
        self.area += part.area;
        (self.last, self.last_time) = (part.last, part.last_time);
        self.edges.gap_after = part.edges.gap_after;
        true
    }
}

/// Whether the times are evenly spaced.
fn is_even(times: &[i64]) -> bool {
    let [first, second, ..] = times else { return true };
    times.windows(2).fold(0, |odd, pair| odd | ((pair[1] - pair[0]) ^ (second - first))) == 0
}

impl<T: WindowNumber> WindowBuilder<T> {
    pub(crate) fn new(resolutions: &[i64]) -> Self {
        let level =
            |resolution: &i64| TierLevel { resolution: *resolution, open: None, rows: WindowColumns::default() };
        let levels = resolutions.iter().map(level).collect();
        let (times, drawn) = ([0; 3], LineSpacings::default());
        Self { levels, bound_ns: 0, reach_ns: 0, times, known: 0, after_gap: false, drawn }
    }

    /// Begins a sensor with this interval.
    fn begin(&mut self, interval_ns: u64) {
        (self.bound_ns, self.reach_ns) = (holes::bound_of(interval_ns), holes::reach_of(interval_ns));
        (self.known, self.after_gap, self.drawn) = (0, false, LineSpacings::default());
    }

    /// After [`WindowBuilder::begin`]: states the time of the last value before the first reading, and whether a gap follows it.
    fn follow(&mut self, time: i64, gap: bool) {
        (self.times, self.known, self.after_gap) = ([time, 0, 0], 1, gap);
    }

    /// Adds the next readings of the sensor.
    fn push(&mut self, times: &[i64], values: &[T], gaps: &Gaps) {
        let Some(resolution) = self.levels.first().map(|level| level.resolution) else { return };
        let mut at = 0;
        while at < times.len() {
            let start = floor(times[at], resolution);
            let end = start.saturating_add(resolution);
            let mut next = at + 1;
            while next < times.len() && times[next] < end {
                next += 1;
            }
            let even = is_even(&times[at..next]);
            let whole = if gaps.0.is_empty() && self.is_bridged(times, (at, next), even) {
                let before = if self.is_first(at) { WindowEdge::Unknown } else { self.before(Some(true)) };
                OpenWindow::of_all(start, &times[at..next], &values[at..next], before, even)
            } else {
                None
            };
            match whole {
                Some(part) => {
                    self.after_gap = false;
                    self.take(0, part);
                }
                None => (at..next).for_each(|row| {
                    let value = Some(values[row]).filter(|value| !gaps.is_gap(row) && value.counts());
                    self.reading(start, times, row, value);
                }),
            }
            at = next;
        }
        let latest = times.iter().rev().chain(&self.times[..self.known]).copied();
        let mut newest = [0; 3];
        let known = newest.iter_mut().zip(latest).map(|(to, time)| *to = time).count();
        (self.times, self.known) = (newest, known);
    }

    /// Whether row `at` of the pushed readings is the first reading of the sensor.
    fn is_first(&self, at: usize) -> bool {
        at == 0 && self.known == 0
    }

    /// The edge before a value that has a reading before it; `joined` is `None` if unknown readings decide.
    fn before(&self, joined: Option<bool>) -> WindowEdge {
        match (self.after_gap, joined) {
            (true, _) => WindowEdge::Gap,
            (false, Some(true)) => WindowEdge::Line,
            (false, Some(false)) => WindowEdge::Hole,
            (false, None) => WindowEdge::Unknown,
        }
    }

    /// Whether no row of `from..to` is further than the bound from the row before it.
    fn is_bridged(&mut self, times: &[i64], (from, to): (usize, usize), even: bool) -> bool {
        let before =
            if from > 0 { Some(times[from - 1]) } else { self.times.first().copied().filter(|_| self.known > 0) };
        let (mut least, mut most) = before.map_or((i64::MAX, 0), |before| {
            let spacing = times[from].saturating_sub(before);
            (spacing, spacing)
        });
        let pairs = if even { (from + 2).min(to) } else { to };
        for pair in times[from..pairs].windows(2) {
            let spacing = pair[1] - pair[0];
            (least, most) = (least.min(spacing), most.max(spacing));
        }
        if most > self.bound_ns {
            return false;
        }
        // Three similar spacings in a row are bridged whatever the bound is.
        if most > self.drawn.longest && !(to - from > 3 && holes::alike(least, most)) {
            (from..to).for_each(|row| self.note_short(times, row));
        }
        true
    }

    /// Notes a spacing within the bound that its neighbours would not bridge.
    fn note_short(&mut self, times: &[i64], row: usize) {
        if self.is_first(row) {
            return;
        }
        let spacing = self.spacing(times, row);
        if spacing > self.drawn.longest && self.is_rate(times, row, spacing) != Some(true) {
            self.drawn.longest = spacing;
        }
    }

    /// The spacing from the reading before to that of the row.
    fn spacing(&self, times: &[i64], row: usize) -> i64 {
        times[row].saturating_sub(if row > 0 { times[row - 1] } else { self.times[0] })
    }

    /// Whether this spacing is one of three similar ones, as far as it is known.
    fn is_rate(&self, times: &[i64], row: usize, spacing: i64) -> Option<bool> {
        let earlier = times[..row].iter().rev().chain(&self.times[..self.known]).copied();
        let mut before = [0; 3];
        let known = before.iter_mut().zip(earlier).map(|(to, time)| *to = time).count();
        holes::is_rate_as_known(spacing, &before[..known], &times[row..times.len().min(row + 3)])
    }

    /// Whether a line joins a reading to the one before it, if both are values; `None` if unknown readings decide, or if it depends on whether the
    /// sensor has an interval.
    fn is_joined(&mut self, times: &[i64], row: usize) -> Option<bool> {
        let spacing = self.spacing(times, row);
        if spacing <= self.bound_ns {
            self.note_short(times, row);
            return Some(true);
        }
        self.drawn.beyond = true;
        let rate = self.is_rate(times, row, spacing)?;
        // Above the bound of a sensor with an interval it depends on whether the sensor has one.
        if rate && spacing > holes::REACH_NS {
            return None;
        }
        let joined = rate && spacing <= self.reach_ns;
        if !joined && (self.drawn.hole == 0 || spacing < self.drawn.hole) {
            self.drawn.hole = spacing;
        }
        Some(joined)
    }

    /// Adds one reading; `None` is a gap.
    fn reading(&mut self, start: i64, times: &[i64], row: usize, value: Option<T>) {
        let joined = if self.is_first(row) { None } else { self.is_joined(times, row) };
        match value {
            Some(value) => {
                let before = if self.is_first(row) { WindowEdge::Unknown } else { self.before(joined) };
                self.after_gap = false;
                self.take(0, OpenWindow::of(start, times[row], value, before));
            }
            None => {
                if let Some(open) = self.levels.first_mut().and_then(|level| level.open.as_mut()) {
                    open.edges.gap_after = true;
                }
                self.after_gap = true;
            }
        }
    }

    /// Adds a part of a window to a level. If it is unknown whether a line leads to it, it becomes a row of its own.
    fn take(&mut self, level: usize, part: OpenWindow<T>) {
        if let Some(open) = &mut self.levels[level].open {
            if open.start == part.start && part.edges.before != WindowEdge::Unknown && open.absorb(&part) {
                return;
            }
            self.close(level);
        }
        self.levels[level].open = Some(part);
    }

    /// Writes the window of a level and passes it on to the next level.
    fn close(&mut self, level: usize) {
        let Some(open) = self.levels[level].open.take() else { return };
        let rows = &mut self.levels[level].rows;
        rows.times.push(open.start);
        rows.counts.push(open.count);
        rows.mins.push(open.min);
        rows.maxs.push(open.max);
        rows.sums.push(T::total(open.sum, open.lost));
        rows.firsts.push(open.first);
        rows.lasts.push(open.last);
        let lines = rows.lines.get_or_insert_default();
        lines.first_after.push(open.first_time - open.start);
        lines.last_after.push(open.last_time - open.start);
        lines.covered.push(open.covered);
        lines.area.push(open.area);
        lines.edges.push(open.edges);
        if let Some(coarser) = self.levels.get(level + 1) {
            let start = floor(open.start, coarser.resolution);
            self.take(level + 1, OpenWindow { start, ..open });
        }
    }

    fn give_back(&mut self, level: usize, mut rows: WindowColumns<T>) {
        rows.clear();
        self.levels[level].rows = rows;
    }

    /// Ends the sensor; returns the rows of each level.
    fn finish(&mut self) -> Vec<WindowColumns<T>> {
        (0..self.levels.len()).for_each(|level| self.close(level));
        self.levels.iter_mut().map(|level| std::mem::take(&mut level.rows)).collect()
    }
}

/// A builder for integers or for floats.
#[derive(Debug)]
pub(crate) enum AnyWindowBuilder {
    Int(WindowBuilder<i64>),
    Float(WindowBuilder<f64>),
}

impl AnyWindowBuilder {
    pub(crate) fn new(value_type: ValueType, resolutions: &[i64]) -> Self {
        match value_type {
            ValueType::Int => AnyWindowBuilder::Int(WindowBuilder::new(resolutions)),
            ValueType::Float => AnyWindowBuilder::Float(WindowBuilder::new(resolutions)),
        }
    }

    /// A sensor with this interval begins.
    pub fn begin(&mut self, interval_ns: u64) {
        match self {
            AnyWindowBuilder::Int(builder) => builder.begin(interval_ns),
            AnyWindowBuilder::Float(builder) => builder.begin(interval_ns),
        }
    }

    pub(crate) fn follow(&mut self, time: i64, gap: bool) {
        match self {
            AnyWindowBuilder::Int(builder) => builder.follow(time, gap),
            AnyWindowBuilder::Float(builder) => builder.follow(time, gap),
        }
    }

    /// What the lines of its windows depend on.
    pub fn drawn(&self) -> LineSpacings {
        match self {
            AnyWindowBuilder::Int(builder) => builder.drawn,
            AnyWindowBuilder::Float(builder) => builder.drawn,
        }
    }

    /// Adds the next readings of the sensor; those of another type than the builder's are ignored.
    pub fn push(&mut self, times: &[i64], column: &Column) {
        match (self, &column.values) {
            (AnyWindowBuilder::Int(builder), ColumnValues::Int(values)) => builder.push(times, values, &column.gaps),
            (AnyWindowBuilder::Float(builder), ColumnValues::Float(values)) => {
                builder.push(times, values, &column.gaps)
            }
            _ => {}
        }
    }

    /// Returns the memory of [`AnyWindowBuilder::finish`].
    pub fn give_back(&mut self, windows: Vec<TierWindows>) {
        for (level, mut windows) in windows.into_iter().enumerate() {
            match (&mut *self, &mut windows) {
                (AnyWindowBuilder::Int(builder), TierWindows::Int(rows)) => {
                    builder.give_back(level, std::mem::take(rows))
                }
                (AnyWindowBuilder::Float(builder), TierWindows::Float(rows)) => {
                    builder.give_back(level, std::mem::take(rows))
                }
                _ => {}
            }
        }
    }

    /// The rows of each tier, finest first; then the next sensor can begin.
    pub fn finish(&mut self) -> Vec<TierWindows> {
        match self {
            AnyWindowBuilder::Int(builder) => builder.finish().into_iter().map(TierWindows::Int).collect(),
            AnyWindowBuilder::Float(builder) => builder.finish().into_iter().map(TierWindows::Float).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::Value;

    fn ints(times: &[i64], values: &[i64], gaps: &[usize]) -> Vec<TierWindows> {
        let mut builder = AnyWindowBuilder::new(ValueType::Int, &[10, 100]);
        builder.begin(0);
        let mut column = Column { values: ColumnValues::Int(values.to_vec()), gaps: Gaps::default() };
        gaps.iter().for_each(|gap| column.gaps.set(*gap, times.len()));
        builder.push(times, &column);
        builder.finish()
    }

    #[test]
    fn windows_of_every_tier() {
        let tiers = ints(&[-1, 0, 3, 9, 10, 95, 100], &[7, 5, 1, 3, 9, -4, 2], &[3]);
        let TierWindows::Int(fine) = &tiers[0] else { panic!("type") };
        assert_eq!(fine.times, [-10, 0, 10, 90, 100]);
        assert_eq!(fine.counts, [1, 2, 1, 1, 1]);
        assert_eq!((&fine.mins[1], &fine.maxs[1], &fine.sums[1]), (&1, &5, &6));
        assert_eq!((&fine.firsts[1], &fine.lasts[1]), (&5, &1), "the gap is no last value");
        let TierWindows::Int(coarse) = &tiers[1] else { panic!("type") };
        assert_eq!((&coarse.times[..], &coarse.counts[..]), (&[-100, 0, 100][..], &[1, 4, 1][..]));
        assert_eq!((coarse.mins[1], coarse.maxs[1], coarse.sums[1], coarse.lasts[1]), (-4, 9, 11, -4));
    }

    #[test]
    fn a_sum_that_does_not_fit_makes_two_rows_of_one_window() {
        let tiers = ints(&[0, 1, 2], &[i64::MAX, i64::MAX, -5], &[]);
        for tier in &tiers {
            let rows: Vec<_> = (0..tier.len()).map(|at| tier.get(at)).collect();
            let sum: i128 =
                rows.iter().map(|row| if let Value::Int(sum) = row.sum { i128::from(sum) } else { 0 }).sum();
            assert_eq!(sum, 2 * i128::from(i64::MAX) - 5);
            assert!(rows.len() > 1 && rows.iter().all(|row| row.time == 0));
            assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 3);
        }
    }

    #[test]
    fn nan_is_no_value_and_infinities_stay() {
        let mut builder = AnyWindowBuilder::new(ValueType::Float, &[10]);
        builder.begin(0);
        let values = vec![f64::NAN, 1e100, 1.0, -1e100, f64::INFINITY];
        let column = Column { values: ColumnValues::Float(values), gaps: Gaps::default() };
        builder.push(&[0, 1, 2, 3, 11], &column);
        let TierWindows::Float(rows) = &builder.finish()[0] else { panic!("type") };
        assert_eq!((rows.counts[0], rows.sums[0], rows.firsts[0]), (3, 1.0, 1e100));
        assert_eq!(rows.sums[1], f64::INFINITY);
        assert!(builder.finish()[0].is_empty(), "the next sensor begins with nothing");
    }

    /// Pairs of numbers are (time, value); without a value a gap. Resolutions 10 and 100, an interval of 1: readings up to 3 apart are joined.
    fn lines(readings: &[(i64, Option<i64>)]) -> (Vec<TierWindows>, LineSpacings) {
        let mut builder = AnyWindowBuilder::new(ValueType::Int, &[10, 100]);
        builder.begin(1);
        let values = readings.iter().map(|reading| reading.1.unwrap_or(0)).collect();
        let mut column = Column { values: ColumnValues::Int(values), gaps: Gaps::default() };
        let gaps = readings.iter().enumerate().filter(|(_, reading)| reading.1.is_none());
        gaps.for_each(|(at, _)| column.gaps.set(at, readings.len()));
        let times: Vec<i64> = readings.iter().map(|reading| reading.0).collect();
        builder.push(&times, &column);
        let drawn = builder.drawn();
        (builder.finish(), drawn)
    }

    #[track_caller]
    fn check_lines(windows: &TierWindows, expected: &[(i64, i64, i64, f64, WindowEdge, bool)]) {
        let TierWindows::Int(WindowColumns { lines: Some(lines), .. }) = windows else { panic!("no lines") };
        let row = |at: usize| {
            let WindowEdges { before, gap_after } = lines.edges[at];
            let area = (lines.area[at] * 2e9).round() / 2.0;
            (lines.first_after[at], lines.last_after[at], lines.covered[at], area, before, gap_after)
        };
        assert_eq!((0..windows.len()).map(row).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lines_within_windows_and_between_them() {
        use WindowEdge::{Gap, Hole, Line, Unknown};
        let values = |times: &[i64]| times.iter().map(|time| (*time, Some(*time))).collect::<Vec<_>>();
        // Evenly, then not, then over a hole.
        let (tiers, drawn) = lines(&values(&[1, 3, 5, 7, 9, 11, 12, 13, 15, 30, 31, 32]));
        check_lines(
            &tiers[0],
            &[(1, 9, 8, 40.0, Unknown, false), (1, 5, 4, 52.0, Line, false), (0, 2, 2, 62.0, Hole, false)],
        );
        check_lines(&tiers[1], &[(1, 32, 16, 40.0 + 20.0 + 52.0 + 62.0, Unknown, false)]);
        assert_eq!(drawn, LineSpacings { longest: 2, hole: 15, beyond: true });
        assert!(drawn.fits(3) && drawn.fits(14) && !drawn.fits(15) && !drawn.fits(1));
        // Three alike in a row are no holes, whatever the bound is.
        let (tiers, drawn) = lines(&values(&[0, 8, 16, 24, 32]));
        check_lines(&tiers[1], &[(0, 32, 32, 512.0, Unknown, false)]);
        assert_eq!((drawn.longest, drawn.hole), (0, 0));
        // A gap at the end, and one before the first value.
        let gap = |time: i64| (time, None);
        let (tiers, drawn) =
            lines(&[gap(0), (1, Some(4)), (2, Some(6)), gap(3), (4, Some(8)), (5, Some(8)), gap(6), (14, Some(1))]);
        check_lines(&tiers[0], &[(1, 5, 2, 13.0, Gap, true), (4, 4, 0, 0.0, Gap, false)]);
        assert!(drawn.fits(3));
        // Whether there would be a third is not known at the ends: rows of their own there.
        let (tiers, drawn) = lines(&values(&[0, 7, 8, 9, 16]));
        let ends = [(0, 0, 0, 0.0, Unknown, false), (7, 9, 2, 16.0, Unknown, false), (6, 6, 0, 0.0, Unknown, false)];
        check_lines(&tiers[0], &ends);
        check_lines(&tiers[1], &[ends[0], ends[1], (16, 16, 0, 0.0, Unknown, false)]);
        assert!(drawn == LineSpacings { longest: 1, beyond: true, ..LineSpacings::default() } && drawn.fits(3));
    }
}
