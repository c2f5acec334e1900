//! Executes a plan over a snapshot.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::ops::Deref;
use std::sync::Arc;

use wholegrain_model::Timestamp;

use crate::block::find::SensorRows;
use crate::block::read::{Block, tolerate};
use crate::block::rows::RowReader;
use crate::block::tombstones::{self, remaining_windows};
use crate::block::windows::{TierSource, TierWindows, WindowColumns, WindowLines};
use crate::chunk::cut;
use crate::config::coarsest;
use crate::downsample::readings_from;
use crate::read_store::{Scan, ScanPart, ScanPartIter};
use crate::scan::{MergeInput, MergedChunks, split};
use crate::snapshot::Snapshot;
use crate::snapshot::plan::{PlanStep, SourceSpan, plan, without_missing};
use crate::{Chunk, SensorId, StoreError};

/// The readings of a source.
enum RawReadings {
    Block(Arc<Block>),
    /// Unsealed readings, with the rank of their input.
    Live(u64, Chunk),
    Dropped,
}

/// One block, or the unsealed readings.
pub(super) struct TierScanSource {
    raw: RawReadings,
    /// Its rows in the block, once they were looked up.
    rows: OnceCell<Option<SensorRows>>,
    /// The tier, and its rows.
    tier: Option<(Arc<Block>, SensorRows)>,
    /// Whether the caller asked for windows with the lines between their values ([`crate::Resolution::Lines`]).
    lined: bool,
    pub span: SourceSpan,
}

impl TierScanSource {
    /// The number of its block.
    pub fn block(&self) -> Option<u64> {
        match (&self.tier, &self.raw) {
            (Some((tier, _)), _) => tier.record.tier.map(|of| of.block),
            (None, RawReadings::Block(block)) => Some(block.record.id),
            (None, _) => None,
        }
    }

    /// Whether a tombstone affects the time whose readings exist.
    fn is_cut_from_readings_on(&self, path: &str) -> bool {
        let Some((tier, _)) = self.tier.as_ref().filter(|(tier, _)| !tier.record.tombstones.is_empty()) else {
            return false;
        };
        let resolution = tier.record.tier.map_or(1, |of| of.resolution_ns);
        let SourceSpan { first, last, raw_from, .. } = self.span;
        raw_from <= last && tombstones::touches(&tier.record.tombstones, path, first.max(raw_from), last, resolution)
    }

    fn of_readings(raw: RawReadings, first: i64, last: i64) -> Self {
        let span = SourceSpan { first, last, tiered: false, raw_from: i64::MIN };
        Self { raw, rows: OnceCell::new(), tier: None, lined: false, span }
    }
}

/// A tier that can answer for a block.
struct TierCandidate<'a> {
    block: u64,
    /// Windows before this are hidden; the least number if no requested window is.
    hidden: i64,
    resolution_ns: i64,
    tier: &'a Arc<Block>,
    /// Whether it covers all of the sensor's readings in the block.
    answers: bool,
}

/// Up to this many steps are executed at once: their results are small beside what is needed to execute them later.
const STEPS_AT_ONCE: usize = 3;

impl Snapshot {
    /// The resolutions of the store's tiers in ns, finest first.
    pub fn resolutions(&self) -> Vec<i64> {
        crate::config::resolutions(&self.source().config.tiers)
    }

    /// The parts of a sensor's windows of `every` ns (beginning at its multiples; `None`: one over the whole range): windows of a tier where a block is
    /// alone with its time, else readings. With `lines`, for means over time of readings up to that many ns apart: windows that know their lines, readings
    /// where there are no such windows, and other windows where there is nothing else. `None` when no tier fits.
    pub(crate) fn scan_parts(
        &self,
        id: SensorId,
        (from, to): (i64, i64),
        every: Option<i64>,
        lines: Option<i64>,
    ) -> Result<Option<Scan>, StoreError> {
        let Some(path) = self.source().sensors.read().path(id) else { return Ok(None) };
        if from >= to {
            return Ok(None);
        }
        let Some((resolution, mut sources)) = self.chosen(&path, (from, to), every)? else { return Ok(None) };
        if sources.iter().all(|source| source.tier.is_none()) {
            return Ok(None);
        }
        let raw_cut = self.policy.hidden_before(&path, self.retained_at);
        for (rank, chunk) in self.live_chunks(id, from.max(raw_cut), to) {
            let (first, last) = (chunk.times[0], chunk.times[chunk.times.len() - 1]);
            sources.push(TierScanSource::of_readings(RawReadings::Live(rank, chunk), first, last));
        }
        if let Some(bound_ns) = lines {
            sources = self.with_lines(sources, &path, bound_ns)?;
            if sources.iter().all(|source| source.tier.is_none()) {
                return Ok(None);
            }
        }
        let spans: Vec<SourceSpan> = sources.iter().map(|source| source.span).collect();
        let steps = plan(&spans, from, to, resolution);
        let range = without_missing(&steps, from, to);
        if steps.len() <= STEPS_AT_ONCE {
            let scan = TierScan { snapshot: self, path, raw_cut, sources };
            let parts = steps.into_iter().map(|step| scan.step(step)).collect::<Result<Vec<_>, StoreError>>()?;
            return Ok(Some(Scan {
                parts: Box::new(parts.into_iter().flatten()),
                range,
                resolution: Some(resolution),
            }));
        }
        let scan = TierScan { snapshot: Box::new(self.clone()), path, raw_cut, sources };
        let parts = steps.into_iter().flat_map(move |step| match scan.step(step) {
            Ok(parts) => parts,
            Err(error) => Box::new(std::iter::once(Err(error))),
        });
        Ok(Some(Scan { parts: Box::new(parts), range, resolution: Some(resolution) }))
    }

    /// Replaces windows whose lines are not those of readings up to `bound_ns` apart by readings.
    fn with_lines(
        &self,
        sources: Vec<TierScanSource>,
        path: &str,
        bound_ns: i64,
    ) -> Result<Vec<TierScanSource>, StoreError> {
        let spans: Vec<SourceSpan> = sources.iter().map(|source| source.span).collect();
        let stands_alone = |at: usize| {
            let touches = |other: &SourceSpan| other.first <= spans[at].last && other.last >= spans[at].first;
            spans.iter().filter(|span| touches(span)).count() == 1
        };
        let mut all = Vec::with_capacity(sources.len());
        for (at, source) in sources.into_iter().enumerate() {
            let drawn = match &source.tier {
                Some((tier, _)) => self.open(tier)?.and_then(|opened| opened.drawn(path)),
                None => None,
            };
            // If a neighbour decides whether there is a hole, it may be a reading of another block.
            match drawn.filter(|drawn| drawn.fits(bound_ns) && (!drawn.beyond || stands_alone(at))) {
                Some(_) => all.push(TierScanSource { lined: true, ..source }),
                None => all.extend(readings_and_windows(source)),
            }
        }
        Ok(all)
    }

    /// The blocks with readings or windows of the sensor.
    pub(super) fn sources(
        &self,
        path: &str,
        from: i64,
        to: i64,
        resolution: i64,
    ) -> Result<Vec<TierScanSource>, StoreError> {
        let raw_cut = self.policy.hidden_before(path, self.retained_at);
        let touches =
            |block: &Arc<Block>| block.record.first_time < to && block.record.last_time >= from && !block.is_damaged();
        let mut sources: Vec<TierScanSource> = Vec::new();
        // For each block the tier that hides least, of several the coarsest; all of them divide the resolution.
        let mut best: Vec<TierCandidate> = Vec::new();
        for tier in self.view.tiers.iter().filter(|tier| touches(tier)) {
            let Some(TierSource { block, resolution_ns }) = tier.record.tier else { continue };
            if resolution % resolution_ns != 0 {
                continue;
            }
            let hidden = self.policy.tier_hidden_before(path, self.retained_at, resolution_ns);
            let hidden = if hidden <= from.max(tier.record.first_time) { i64::MIN } else { hidden };
            best.push(TierCandidate { block, hidden, resolution_ns, tier, answers: false });
        }
        best.sort_by_key(|tier| (tier.block, tier.hidden, Reverse(tier.resolution_ns)));
        best.dedup_by_key(|tier| tier.block);
        for candidate in &mut best {
            let TierCandidate { block, hidden, resolution_ns, tier, .. } = *candidate;
            let raw = self.view.blocks.iter().find(|raw| raw.record.id == block && !raw.is_damaged());
            if hidden > i64::MIN && self.shows_more(raw, path, hidden.min(to), raw_cut)? {
                continue;
            }
            let source = self.tiered(path, tier, resolution_ns, raw, (from, to, raw_cut))?;
            let is_there = source.is_some();
            match source {
                // A deletion affects its windows: the readings are exact, as far as they exist.
                Some(source) if source.is_cut_from_readings_on(path) => {
                    sources.extend(readings_and_windows(source));
                }
                source => sources.extend(source),
            }
            candidate.answers = !tier.is_damaged() && (is_there || raw.is_none_or(|raw| !raw.record.trimmed));
        }
        for block in self.view.blocks.iter().filter(|block| touches(block)) {
            if best.iter().any(|tier| tier.answers && tier.block == block.record.id) {
                continue;
            }
            let Some(entry) = self.found_in(block, path)? else { continue };
            let (first, last) = (entry.first_time.max(raw_cut), entry.last_time);
            if first < to && last >= from && first <= last {
                let rows = OnceCell::from(Some(entry));
                sources.push(TierScanSource {
                    rows,
                    ..TierScanSource::of_readings(RawReadings::Block(block.clone()), first, last)
                });
            }
        }
        Ok(sources)
    }

    /// Whether the visible readings of a sensor in a block begin at or before `time`.
    fn shows_more(&self, raw: Option<&Arc<Block>>, path: &str, time: i64, raw_cut: i64) -> Result<bool, StoreError> {
        let Some(block) = raw else { return Ok(false) };
        Ok(self.found_in(block, path)?.is_some_and(|found| found.first_time.max(raw_cut) <= time))
    }

    /// A block with a tier.
    fn tiered(
        &self,
        path: &str,
        tier: &Arc<Block>,
        resolution_ns: i64,
        raw: Option<&Arc<Block>>,
        (from, to, raw_cut): (i64, i64, i64),
    ) -> Result<Option<TierScanSource>, StoreError> {
        let Some(entry) = self.found_in(tier, path)? else { return Ok(None) };
        let first = entry.first_time.max(self.policy.tier_hidden_before(path, self.retained_at, resolution_ns));
        let last = entry.last_time;
        if first >= to || last < from || first > last {
            return Ok(None);
        }
        let left = match raw.filter(|block| block.record.trimmed) {
            Some(block) => self.found_in(block, path)?.map(|found| found.first_time),
            None => None,
        };
        let coarsest = coarsest(&self.source().config.tiers, resolution_ns);
        let there_from = readings_from(raw.is_none_or(|block| block.record.trimmed), left, entry.first_time, coarsest);
        let raw_from = there_from.max(if raw_cut > first { raw_cut } else { i64::MIN });
        let raw = raw
            .filter(|_| there_from < i64::MAX)
            .map_or(RawReadings::Dropped, |block| RawReadings::Block(block.clone()));
        let span = SourceSpan { first, last, tiered: true, raw_from };
        let tier = Some((tier.clone(), entry));
        Ok(Some(TierScanSource { raw, rows: OnceCell::new(), tier, lined: false, span }))
    }
}

/// A source whose windows do not match its readings: its readings as far as they exist, and its windows before them.
fn readings_and_windows(source: TierScanSource) -> impl Iterator<Item = TierScanSource> {
    let TierScanSource { raw, rows, tier, lined, span } = source;
    let Some(tier) = tier else {
        return [Some(TierScanSource { raw, rows, tier: None, lined, span }), None].into_iter().flatten();
    };
    let SourceSpan { first, last, raw_from, .. } = span;
    let before = (first < raw_from).then(|| {
        let span = SourceSpan { first, last: last.min(raw_from.saturating_sub(1)), tiered: true, raw_from: i64::MAX };
        TierScanSource { raw: RawReadings::Dropped, rows: OnceCell::new(), tier: Some(tier), lined: false, span }
    });
    let readings = (raw_from <= last)
        .then(|| TierScanSource { rows, ..TierScanSource::of_readings(raw, first.max(raw_from), last) });
    [before, readings].into_iter().flatten()
}

/// A running scan of one sensor.
struct TierScan<S> {
    snapshot: S,
    path: Arc<str>,
    raw_cut: i64,
    sources: Vec<TierScanSource>,
}

impl<S: Deref<Target = Snapshot>> TierScan<S> {
    fn step(&self, step: PlanStep) -> Result<ScanPartIter, StoreError> {
        match step {
            PlanStep::Readings { source, lo, hi } => self.readings(&[source], lo, hi),
            PlanStep::Merged { lo, hi } => self.all_readings(lo, hi),
            PlanStep::Windows { source, lo, hi } => match self.windows(source, lo, hi, self.sources[source].lined)? {
                Some(windows) => Ok(one(windows)),
                // The tier is damaged: use the readings, if they exist.
                None if self.sources[source].span.raw_from <= lo => self.readings(&[source], lo, hi),
                None => {
                    self.missing(lo, hi);
                    Ok(Box::new(std::iter::empty()))
                }
            },
            PlanStep::OnlyWindows { sources, alone, lo, hi } => {
                let (from, to) = (Timestamp(lo), Timestamp(hi));
                if !alone {
                    self.snapshot.note(format!(
                        "readings of {from} to {to} arrived after retention had dropped the readings of their windows; those that the windows do not contain are left out"
                    ));
                }
                if sources.len() > 1 {
                    self.snapshot.note(format!(
                        "windows of {from} to {to} are those of readings that came at several times and are gone (retention); of windows that begin or end with the same reading the one with more \
                         readings counts, and another reading that came twice counts twice"
                    ));
                }
                let mut parts = Vec::new();
                for source in sources {
                    let lined = self.sources[source].lined;
                    parts.extend(self.windows(source, lo, hi, true)?.map(|windows| (lined, windows)));
                }
                Ok(Box::new(each_once(parts).into_iter().map(|windows| Ok(ScanPart::Windows(windows)))))
            }
            PlanStep::Missing { lo, hi } => {
                self.missing(lo, hi);
                Ok(Box::new(std::iter::empty()))
            }
        }
    }

    fn missing(&self, lo: i64, hi: i64) {
        self.snapshot.note(format!(
            "of {} to {} only whole windows are kept (retention), and the range cuts one; begin and end at multiples of the window's length",
            Timestamp(lo),
            Timestamp(hi)
        ));
    }

    /// The windows of one source that begin in the range; `None` if the tier is damaged.
    fn windows(&self, source: usize, lo: i64, hi: i64, lined: bool) -> Result<Option<TierWindows>, StoreError> {
        let source = &self.sources[source];
        let Some((tier, entry)) = &source.tier else { return Ok(None) };
        let Some(opened) = self.snapshot.open(tier)? else { return Ok(None) };
        let hi = hi.min(source.span.last.saturating_add(1));
        // A source that is partly hidden begins with a whole window.
        let hidden = if entry.first_time < source.span.first { source.span.first } else { lo };
        let read = || -> Result<TierWindows, StoreError> {
            let mut reader = RowReader::new(opened.clone(), Some(self.snapshot.source().files.cache().clone()));
            let end = entry.start + entry.rows;
            let mut row = reader.seek(entry.start, end, lo.max(hidden))?;
            let until = reader.seek(row, end, hi)?;
            let mut all: Option<TierWindows> = None;
            let resolution = tier.record.tier.map_or(1, |of| of.resolution_ns);
            for (from, to) in remaining_windows(&tier.record.tombstones, &self.path, i64::MIN, i64::MAX, resolution) {
                let until = if to < hi { reader.seek(row, until, to)? } else { until };
                row = if from > lo { reader.seek(row, until, from)? } else { row };
                let mut is_cut = from > lo;
                while row < until {
                    let more =
                        if lined { reader.read_lines(row, until - row) } else { reader.read_windows(row, until - row) };
                    let mut more = more?;
                    if std::mem::take(&mut is_cut) {
                        more.cut_before();
                    }
                    row += more.len() as u64;
                    match &mut all {
                        None => all = Some(more),
                        Some(all) => all.extend(&more),
                    }
                }
            }
            Ok(all.unwrap_or(TierWindows::Int(WindowColumns::default())))
        };
        tolerate(tier, read())
    }

    /// The readings of some sources, merged.
    fn readings(&self, sources: &[usize], lo: i64, hi: i64) -> Result<ScanPartIter, StoreError> {
        let lo = lo.max(self.raw_cut);
        let mut inputs = Vec::new();
        for source in sources.iter().map(|source| &self.sources[*source]) {
            match &source.raw {
                RawReadings::Block(block) => inputs.extend(self.block_input(source, block, lo, hi)?),
                RawReadings::Live(rank, chunk) => {
                    let chunk = cut(chunk.clone(), lo, hi);
                    if let Some(first_time) = chunk.times.first().copied() {
                        inputs.push(MergeInput { rank: *rank, first_time, source: split(chunk) });
                    }
                }
                RawReadings::Dropped => {}
            }
        }
        Ok(Box::new(MergedChunks::new(inputs).map(|chunk| chunk.map(ScanPart::Readings))))
    }

    fn block_input(
        &self,
        source: &TierScanSource,
        block: &Arc<Block>,
        lo: i64,
        hi: i64,
    ) -> Result<Option<MergeInput<'static>>, StoreError> {
        if block.record.last_time < lo || block.record.first_time >= hi || block.is_damaged() {
            return Ok(None);
        }
        let Some(opened) = self.snapshot.open(block)? else { return Ok(None) };
        let found = *source.rows.get_or_init(|| opened.find(&self.path));
        Ok(found.and_then(|found| self.snapshot.input_of((block, &opened), found, &self.path, (lo, hi))))
    }

    fn all_readings(&self, lo: i64, hi: i64) -> Result<ScanPartIter, StoreError> {
        let all: Vec<usize> = (0..self.sources.len()).collect();
        self.readings(&all, lo, hi)
    }
}

fn one(windows: TierWindows) -> ScanPartIter {
    Box::new((!windows.is_empty()).then_some(Ok(ScanPart::Windows(windows))).into_iter())
}

/// Merges windows of several sources in the order of their times, each row alone. Of rows of one window that begin or end with the same reading, as
/// after a repeated import, the one with most readings is used. Each source says whether its lines count.
fn each_once(parts: Vec<(bool, TierWindows)>) -> Vec<TierWindows> {
    let mut rows = Vec::new();
    for (source, (lined, part)) in parts.iter().enumerate() {
        rows.extend((0..part.len()).map(|at| ((source, at), *lined, part.row(at))));
    }
    rows.sort_by_key(|(place, _, row)| (row.get(0).time, Reverse(row.get(0).count), *place));
    let mut kept: Vec<((usize, usize), bool, TierWindows)> = Vec::with_capacity(rows.len());
    for (place, lined, row) in rows {
        let mut same_window = kept.iter().rev().take_while(|(.., other)| other.get(0).time == row.get(0).time);
        if same_window.all(|(other, _, kept)| other.0 == place.0 || !shares_an_end(kept, &row)) {
            kept.push((place, lined, row));
        }
    }
    kept.sort_by_key(|(place, _, row)| (row.get(0).time, *place));
    kept.into_iter().map(|(_, lined, row)| if lined { row } else { row.without_lines() }).collect()
}

/// Whether two rows of one window begin or end with readings of the same time.
fn shares_an_end(one: &TierWindows, other: &TierWindows) -> bool {
    let ends = |lines: &WindowLines| (lines.first_after[0], lines.last_after[0]);
    match (one.lines().map(ends), other.lines().map(ends)) {
        (Some(one), Some(other)) => one.0 == other.0 || one.1 == other.1,
        _ => false,
    }
}
