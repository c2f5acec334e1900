//! The windows that a tier file holds.

use crate::tiers::build::seconds;
use serde::Deserialize;
use serde::Serialize;
use wholegrain_model::Value;

/// Directory of the tiers, below the store's.
pub(crate) const TIERS_DIR: &str = "tiers/";

/// What makes a file a tier, in its catalogue record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TierSource {
    /// Length of its windows.
    pub resolution_ns: i64,
    /// The block that it was made from; that one may be gone since.
    pub block: u64,
}

/// One window of one sensor. Raw values, not scaled; gaps and NaN are not in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierWindow {
    /// Start of the window, ns since the Unix epoch: a multiple of the tier's resolution.
    pub time: i64,
    /// How many values, at least one.
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
    /// How the values lie in time; `None` where the file does not say.
    pub lines: Option<WindowLines>,
}

/// The straight lines between neighbouring values of windows, as `docs/sums.md` draws them: columns of the length of [`WindowColumns`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WindowLines {
    /// From the window's start to its first value, ns.
    pub first_after: Vec<i64>,
    /// From the window's start to its last value, ns.
    pub last_after: Vec<i64>,
    /// The time that the lines between the window's own values cover, ns.
    pub covered: Vec<i64>,
    /// The area below them, in raw value times seconds.
    pub area: Vec<f64>,
    /// What is before the first value and after the last: [`WindowEdges`].
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
    /// As a file has it: what is before the first value, and 4 for a gap after the last.
    pub(crate) fn code(self) -> i64 {
        let before = match self.before {
            WindowEdge::Unknown => 0,
            WindowEdge::Line => 1,
            WindowEdge::Gap => 2,
            WindowEdge::Hole => 3,
        };
        before + if self.gap_after { 4 } else { 0 }
    }

    /// The same back; `None` where a file holds something else.
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

/// What lies next to the values of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowEdges {
    /// Before the first value.
    pub before: WindowEdge,
    /// Whether the reading after the last value is a gap.
    pub gap_after: bool,
}

/// What lies between the value before a window and its first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WindowEdge {
    /// The file does not say: it begins here, or what was there has been deleted.
    #[default]
    Unknown,
    /// A line, from the last value of the row before it.
    Line,
    Gap,
    Hole,
}

impl<T: Copy> WindowColumns<T> {
    /// Takes everything out and keeps the memory.
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

    /// What lay before the first of them has been left out.
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
}

/// What the lines of one sensor's windows depend on, in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LineSpacings {
    /// The longest spacing that was bridged only because it is within the bound, ns; 0 when there is none.
    pub longest: i64,
    /// The shortest that was not bridged, ns; 0 when there is none.
    pub hole: i64,
    /// Whether there are spacings over the bound: their neighbours decided about them.
    pub beyond: bool,
    /// Whether readings that are not in the file decide about one of them, and it is taken for a hole: in files of earlier releases. Others have a row
    /// that begins behind it, with [`WindowEdge::Unknown`].
    pub undecided: bool,
}

impl LineSpacings {
    /// Whether the lines are the same where readings up to `bound_ns` apart are bridged.
    pub fn fits(&self, bound_ns: i64) -> bool {
        !self.undecided && self.longest <= bound_ns && (self.hole == 0 || self.hole > bound_ns)
    }

    /// Of both of two parts of a sensor's readings.
    pub fn with(&self, other: LineSpacings) -> LineSpacings {
        LineSpacings {
            longest: self.longest.max(other.longest),
            hole: if self.hole == 0 || other.hole == 0 { self.hole.max(other.hole) } else { self.hole.min(other.hole) },
            beyond: self.beyond || other.beyond,
            undecided: self.undecided || other.undecided,
        }
    }
}

/// The area below values that are evenly spaced over so many ns, in raw value times seconds.
pub(crate) fn even_area(count: i64, sum: f64, (first, last): (f64, f64), covered: i64) -> f64 {
    if count < 2 { 0.0 } else { (sum - (first / 2.0 + last / 2.0)) * (seconds(covered) / (count - 1) as f64) }
}
