//! Downsampled tiers: for each window of 10 s, 5 min and 1 h the least, the greatest, the sum, the number, the first and the last of a
//! sensor's values, so that an answer over a year need not read every second.
//!
//! - In: the readings of a block as it is merged, or of a block that no merge changes any more.
//! - Out: Parquet files under `tiers/`, each the companion of one block; at query time [`ScanPart`]s: windows where a block is alone
//!   with its time, and readings where blocks overlap.
//! - Never: a window that counts a reading twice, or one that a reader takes for whole while half of it is gone.

pub(crate) mod build;
mod choose;
pub(crate) mod lines;
pub(crate) mod missing;
pub(crate) mod plan;
pub(crate) mod rewrite;
pub(crate) mod scan;
pub(crate) mod write;

use serde::{Deserialize, Serialize};
use wholegrain_model::{Interval, Value};

use crate::Chunk;

/// The most tiers of a store.
pub const TIERS_MAX: usize = 8;
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
    fn extend(&mut self, from: &WindowLines, start: usize, end: usize) {
        self.first_after.extend_from_slice(&from.first_after[start..end]);
        self.last_after.extend_from_slice(&from.last_after[start..end]);
        self.covered.extend_from_slice(&from.covered[start..end]);
        self.area.extend_from_slice(&from.area[start..end]);
        self.edges.extend_from_slice(&from.edges[start..end]);
    }

    fn part(&self, start: usize, end: usize) -> Self {
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

/// A part of the answer to [`crate::Snapshot::scan_windows`]; parts come in time order.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, and both hold thousands of rows elsewhere")]
pub enum ScanPart {
    Readings(Chunk),
    /// Windows of which all readings are within the range, though the first may begin before it.
    Windows(TierWindows),
}

/// The resolutions of a configuration in ns, finest first.
pub(crate) fn resolutions(tiers: &[Interval]) -> Vec<i64> {
    tiers.iter().map(|tier| i64::try_from(tier.ns()).unwrap_or(i64::MAX)).collect()
}

/// The coarsest of them, or `resolution` where that is coarser: on edges of its windows retention cuts.
pub(crate) fn coarsest(tiers: &[Interval], resolution: i64) -> i64 {
    resolutions(tiers).last().copied().unwrap_or(resolution).max(resolution)
}

/// Checks that tiers nest: each a multiple of the one before. The text says what is wrong.
pub fn check_tiers(tiers: &[Interval]) -> Result<(), String> {
    if tiers.len() > TIERS_MAX {
        return Err(format!("has {} resolutions, at most {TIERS_MAX} are kept", tiers.len()));
    }
    if tiers.iter().any(|tier| tier.ns() == 0) {
        return Err("has a resolution of 0; write lengths of time such as \"10s\"".into());
    }
    for pair in tiers.windows(2) {
        if pair[1] <= pair[0] || !pair[1].ns().is_multiple_of(pair[0].ns()) {
            return Err(format!(
                "has {} after {}: each must be a multiple of the one before, such as \"10s\", \"5min\", \"1h\"",
                pair[1], pair[0]
            ));
        }
    }
    Ok(())
}

/// From which time on all readings of a sensor that its windows were made from are in their block, except deleted ones. `trimmed`: retention took
/// readings out of the block; `in_block` and `in_tier`: the times of the sensor's first reading in each. Retention takes a sensor's readings up to an edge
/// of the `coarsest` windows, of each sensor another one.
pub(crate) fn readings_from(trimmed: bool, in_block: Option<i64>, in_tier: i64, coarsest: i64) -> i64 {
    match in_block {
        _ if !trimmed => i64::MIN,
        None => i64::MAX,
        Some(first) if first > in_tier => floor(first, coarsest),
        Some(_) => i64::MIN,
    }
}

/// The start of the window of `resolution` that `time` falls into.
pub(crate) fn floor(time: i64, resolution: i64) -> i64 {
    time.saturating_sub(time.rem_euclid(resolution))
}

/// The start of the first window that does not begin before `time`.
pub(crate) fn ceil(time: i64, resolution: i64) -> i64 {
    let start = floor(time, resolution);
    if start == time { time } else { start.saturating_add(resolution) }
}
