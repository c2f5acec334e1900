//! The windows of a tier file.

use serde::{Deserialize, Serialize};
use wholegrain_model::Value;

/// Directory of the tiers, below the store's.
pub(crate) const TIERS_DIR: &str = "tiers/";

/// The source of a tier, in its catalogue record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TierSource {
    /// Length of its windows.
    pub resolution_ns: i64,
    /// The block that it was made from; it may be gone.
    pub block: u64,
}

/// One window of one sensor. Raw values, not scaled; gaps and NaN are not in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierWindow {
    /// Start of the window, ns since the Unix epoch: a multiple of the tier's resolution.
    pub time: i64,
    /// Number of values, at least one.
    pub count: u64,
    pub min: Value,
    pub max: Value,
    /// Their sum: exact for integers, rounded once for floats.
    pub sum: Value,
    pub first: Value,
    pub last: Value,
}

/// Consecutive windows of one sensor. One window may come in several rows (of two blocks, or where a sum would not have fitted); together
/// they are the window.
#[derive(Debug, Clone, PartialEq)]
pub enum TierWindows {
    Int(WindowColumns<i64>),
    Float(WindowColumns<f64>),
}

/// Columns of windows, of equal length.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WindowColumns<T> {
    /// Starts of the windows.
    pub times: Vec<i64>,
    pub counts: Vec<i64>,
    pub mins: Vec<T>,
    pub maxs: Vec<T>,
    pub sums: Vec<T>,
    pub firsts: Vec<T>,
    pub lasts: Vec<T>,
    /// The lines between the values; `None` if the file does not contain them.
    pub lines: Option<WindowLines>,
}

/// The straight lines between neighbouring values of windows (`docs/sums.md`): columns of the length of [`WindowColumns`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WindowLines {
    /// From the window's start to its first value, ns.
    pub first_after: Vec<i64>,
    /// From the window's start to its last value, ns.
    pub last_after: Vec<i64>,
    /// The time covered by the lines between the window's own values, ns.
    pub covered: Vec<i64>,
    /// The area below these lines, in raw value times seconds.
    pub area: Vec<f64>,
    /// The edges of the windows.
    pub edges: Vec<WindowEdges>,
}

impl WindowLines {
    pub(crate) fn extend(&mut self, from: &WindowLines, start: usize, end: usize) {
        self.first_after.extend_from_slice(&from.first_after[start..end]);
        self.last_after.extend_from_slice(&from.last_after[start..end]);
        self.covered.extend_from_slice(&from.covered[start..end]);
        self.area.extend_from_slice(&from.area[start..end]);
        self.edges.extend_from_slice(&from.edges[start..end]);
    }

    pub(crate) fn part(&self, start: usize, end: usize) -> Self {
        let mut part = Self::default();
        part.extend(self, start, end);
        part
    }
}

impl WindowEdges {
    /// The code in a file: 0 to 3 for what is before the first value, plus 4 for a gap after the last.
    pub(crate) fn code(self) -> i64 {
        let before = match self.before {
            WindowEdge::Unknown => 0,
            WindowEdge::Line => 1,
            WindowEdge::Gap => 2,
            WindowEdge::Hole => 3,
        };
        before + if self.gap_after { 4 } else { 0 }
    }

    /// Decodes a code; `None` if it is invalid.
    pub(crate) fn of(code: i64) -> Option<Self> {
        let before = match code & 3 {
            0 => WindowEdge::Unknown,
            1 => WindowEdge::Line,
            2 => WindowEdge::Gap,
            _ => WindowEdge::Hole,
        };
        (0..8).contains(&code).then_some(Self { before, gap_after: code >= 4 })
    }
}

/// What is next to the values of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowEdges {
    /// Before the first value.
    pub before: WindowEdge,
    /// Whether a gap follows the last value.
    pub gap_after: bool,
}

/// What is between the value before a window and its first value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WindowEdge {
    /// Unknown: the file begins here, or the reading before was deleted.
    #[default]
    Unknown,
    /// A line from the last value of the previous row.
    Line,
    Gap,
    Hole,
}

impl<T: Copy> WindowColumns<T> {
    /// Removes all rows and keeps the memory.
    pub(crate) fn clear(&mut self) {
        let Self { times, counts, mins, maxs, sums, firsts, lasts, lines } = self;
        [times, counts].into_iter().for_each(Vec::clear);
        [mins, maxs, sums, firsts, lasts].into_iter().for_each(Vec::clear);
        if let Some(WindowLines { first_after, last_after, covered, area, edges }) = lines {
            [first_after, last_after, covered].into_iter().for_each(Vec::clear);
            area.clear();
            edges.clear();
        }
    }

    fn window(&self, at: usize, value: impl Fn(T) -> Value) -> TierWindow {
        TierWindow {
            time: self.times[at],
            count: self.counts[at].cast_unsigned(),
            min: value(self.mins[at]),
            max: value(self.maxs[at]),
            sum: value(self.sums[at]),
            first: value(self.firsts[at]),
            last: value(self.lasts[at]),
        }
    }
}

impl TierWindows {
    /// The number of rows.
    pub fn len(&self) -> usize {
        match self {
            TierWindows::Int(rows) => rows.times.len(),
            TierWindows::Float(rows) => rows.times.len(),
        }
    }

    /// Starts of the windows.
    pub fn times(&self) -> &[i64] {
        match self {
            TierWindows::Int(rows) => &rows.times,
            TierWindows::Float(rows) => &rows.times,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that rows before the first one were left out.
    pub(crate) fn cut_before(&mut self) {
        let lines = match self {
            TierWindows::Int(rows) => &mut rows.lines,
            TierWindows::Float(rows) => &mut rows.lines,
        };
        if let Some(first) = lines.as_mut().and_then(|lines| lines.edges.first_mut()) {
            first.before = WindowEdge::Unknown;
        }
    }

    /// The window in row `at`.
    pub fn get(&self, at: usize) -> TierWindow {
        match self {
            TierWindows::Int(rows) => rows.window(at, Value::Int),
            TierWindows::Float(rows) => rows.window(at, Value::Float),
        }
    }

    pub(crate) fn extend(&mut self, more: &TierWindows) {
        match (self, more) {
            (TierWindows::Int(rows), TierWindows::Int(more)) => rows.extend(more, 0, more.times.len()),
            (TierWindows::Float(rows), TierWindows::Float(more)) => rows.extend(more, 0, more.times.len()),
            _ => {}
        }
    }

    pub(crate) fn lines(&self) -> Option<&WindowLines> {
        match self {
            TierWindows::Int(rows) => rows.lines.as_ref(),
            TierWindows::Float(rows) => rows.lines.as_ref(),
        }
    }

    pub(crate) fn without_lines(mut self) -> TierWindows {
        match &mut self {
            TierWindows::Int(rows) => rows.lines = None,
            TierWindows::Float(rows) => rows.lines = None,
        }
        self
    }

    pub(crate) fn row(&self, at: usize) -> TierWindows {
        match self {
            TierWindows::Int(from) => {
                let mut rows = WindowColumns::default();
                rows.extend(from, at, at + 1);
                TierWindows::Int(rows)
            }
            TierWindows::Float(from) => {
                let mut rows = WindowColumns::default();
                rows.extend(from, at, at + 1);
                TierWindows::Float(rows)
            }
        }
    }
}

impl<T: Copy> WindowColumns<T> {
    pub(crate) fn extend(&mut self, from: &WindowColumns<T>, start: usize, end: usize) {
        self.times.extend_from_slice(&from.times[start..end]);
        self.counts.extend_from_slice(&from.counts[start..end]);
        self.mins.extend_from_slice(&from.mins[start..end]);
        self.maxs.extend_from_slice(&from.maxs[start..end]);
        self.sums.extend_from_slice(&from.sums[start..end]);
        self.firsts.extend_from_slice(&from.firsts[start..end]);
        self.lasts.extend_from_slice(&from.lasts[start..end]);
        match (&mut self.lines, &from.lines) {
            (Some(lines), Some(from)) => lines.extend(from, start, end),
            (lines, from) => {
                *lines = from.as_ref().filter(|_| self.times.len() == end - start).map(|from| from.part(start, end))
            }
        }
    }
}

/// What the lines of one sensor's windows in one file depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LineSpacings {
    /// The longest spacing, ns, that a line bridges only because it is within the bound; 0 if there is none.
    pub longest: i64,
    /// The shortest spacing, ns, without a line; 0 if there is none.
    pub hole: i64,
    /// Whether there are spacings over the bound, which their neighbours decided.
    pub beyond: bool,
}

impl LineSpacings {
    /// Whether the lines are right if readings up to `bound_ns` apart are bridged.
    pub fn fits(&self, bound_ns: i64) -> bool {
        self.longest <= bound_ns && (self.hole == 0 || self.hole > bound_ns)
    }

    /// Joins the values of two parts of a sensor's readings.
    pub fn with(&self, other: LineSpacings) -> LineSpacings {
        LineSpacings {
            longest: self.longest.max(other.longest),
            hole: if self.hole == 0 || other.hole == 0 { self.hole.max(other.hole) } else { self.hole.min(other.hole) },
            beyond: self.beyond || other.beyond,
        }
    }
}

/// The area below values that are evenly spaced over this many ns, in raw value times seconds.
pub(crate) fn even_area(count: i64, sum: f64, (first, last): (f64, f64), covered: i64) -> f64 {
    if count < 2 { 0.0 } else { (sum - (first / 2.0 + last / 2.0)) * (seconds(covered) / (count - 1) as f64) }
}

const NS_PER_S: f64 = 1e9;

pub(crate) fn seconds(ns: i64) -> f64 {
    ns as f64 / NS_PER_S
}
