//! Carries out a plan over a snapshot.

use std::cell::OnceCell;
use std::ops::Deref;
use std::sync::Arc;

use wholegrain_model::Timestamp;

use super::plan::{Span, Step, plan};
use super::{Part, Rows, Windows, floor};
use crate::block::find::Found;
use crate::block::read::Block;
use crate::block::rows::RowReader;
use crate::delete::cuts::{self, kept_windows};
use crate::scan::{Input, Merged};
use crate::snapshot::{Snapshot, cut, split, tolerate};
use crate::{Chunk, SensorId, StoreError};

/// The parts of one sensor's answer, in time order.
pub type PartIter = Box<dyn Iterator<Item = Result<Part, StoreError>> + Send>;

/// Where a source's readings are.
enum Raw {
    Block(Arc<Block>),
    /// Not sealed, with the rank of its input.
    Live(u64, Chunk),
    Gone,
}

/// One block, or what is not sealed.
pub(super) struct Source {
    raw: Raw,
    /// Where its readings are in its block, once that was asked.
    rows: OnceCell<Option<Found>>,
    /// The tier, and where its windows are in it.
    tier: Option<(Arc<Block>, Found)>,
    /// Whether the caller asked for windows with the lines between their values (`scan_lines`).
    lined: bool,
    pub span: Span,
}

impl Source {
    /// The number of the block that it is of.
    pub fn block(&self) -> Option<u64> {
        match (&self.tier, &self.raw) {
            (Some((tier, _)), _) => tier.record.tier.map(|of| of.block),
            (None, Raw::Block(block)) => Some(block.record.id),
            (None, _) => None,
        }
    }

    fn of_readings(raw: Raw, first: i64, last: i64) -> Self {
        let span = Span { first, last, tiered: false, raw_from: i64::MIN };
        Self { raw, rows: OnceCell::new(), tier: None, lined: false, span }
    }
}

/// Steps that are carried out before the first part is asked for, because what they need is small beside what is needed to do it later.
const STEPS_AT_ONCE: usize = 3;

impl Snapshot {
    /// The resolutions that the store keeps, in ns, finest first.
    pub fn resolutions(&self) -> Vec<i64> {
        super::resolutions(&self.shared.config.tiers)
    }

    /// What a sensor's windows of `every` ns (beginning at its multiples; `None`: one over the whole range) are made of: windows of a tier
    /// where a block is alone with its time, and else readings. `None` when no tier fits: [`Snapshot::scan`] has the readings.
    pub fn scan_windows(
        &self,
        id: SensorId,
        from: i64,
        to: i64,
        every: Option<i64>,
    ) -> Result<Option<PartIter>, StoreError> {
        self.scan_parts(id, (from, to), every, None)
    }

    /// The same for means over time of readings up to `bound_ns` apart: windows that know their lines, readings where there are no such windows, and other
    /// windows where there is nothing else.
    pub fn scan_lines(
        &self,
        id: SensorId,
        from: i64,
        to: i64,
        every: Option<i64>,
        bound_ns: i64,
    ) -> Result<Option<PartIter>, StoreError> {
        self.scan_parts(id, (from, to), every, Some(bound_ns))
    }

    fn scan_parts(
        &self,
        id: SensorId,
        (from, to): (i64, i64),
        every: Option<i64>,
        lines: Option<i64>,
    ) -> Result<Option<PartIter>, StoreError> {
        let Some(path) = self.shared.sensors().path(id) else { return Ok(None) };
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
            sources.push(Source::of_readings(Raw::Live(rank, chunk), first, last));
        }
        if let Some(bound_ns) = lines {
            sources = self.with_lines(sources, &path, bound_ns)?;
            if sources.iter().all(|source| source.tier.is_none()) {
                return Ok(None);
            }
        }
        let spans: Vec<Span> = sources.iter().map(|source| source.span).collect();
        let steps = plan(&spans, from, to, resolution);
        if steps.len() <= STEPS_AT_ONCE {
            let scan = Scan { snapshot: self, path, raw_cut, sources };
            let parts = steps.into_iter().map(|step| scan.step(step)).collect::<Result<Vec<_>, StoreError>>()?;
            return Ok(Some(Box::new(parts.into_iter().flatten())));
        }
        let scan = Scan { snapshot: Box::new(self.clone()), path, raw_cut, sources };
        let parts = steps.into_iter().flat_map(move |step| match scan.step(step) {
            Ok(parts) => parts,
            Err(error) => Box::new(std::iter::once(Err(error))),
        });
        Ok(Some(Box::new(parts)))
    }

    /// The sources with the lines of their windows; readings in place of windows whose lines are not those that readings up to `bound_ns` apart have.
    fn with_lines(&self, sources: Vec<Source>, path: &str, bound_ns: i64) -> Result<Vec<Source>, StoreError> {
        let spans: Vec<Span> = sources.iter().map(|source| source.span).collect();
        let stands_alone = |at: usize| {
            let touches = |other: &Span| other.first <= spans[at].last && other.last >= spans[at].first;
            spans.iter().filter(|span| touches(span)).count() == 1
        };
        let mut all = Vec::with_capacity(sources.len());
        for (at, source) in sources.into_iter().enumerate() {
            let drawn = match &source.tier {
                Some((tier, _)) => self.open(tier)?.and_then(|opened| opened.drawn(path)),
                None => None,
            };
            // Where a neighbour decides whether there is a hole, another block's reading could be that neighbour.
            match drawn.filter(|drawn| drawn.fits(bound_ns) && (!drawn.beyond || stands_alone(at))) {
                Some(_) => all.push(Source { lined: true, ..source }),
                None => all.extend(without_lines(source)),
            }
        }
        Ok(all)
    }

    /// The blocks that have readings or windows of the sensor.
    pub(super) fn sources(&self, path: &str, from: i64, to: i64, resolution: i64) -> Result<Vec<Source>, StoreError> {
        let raw_cut = self.policy.hidden_before(path, self.retained_at);
        let touches =
            |block: &Arc<Block>| block.record.first_time < to && block.record.last_time >= from && !block.is_damaged();
        let mut sources: Vec<Source> = Vec::new();
        // The coarsest tier of each block that fits; all of them divide the resolution.
        let mut best: Vec<(u64, i64, &Arc<Block>)> = Vec::new();
        for tier in self.view.tiers.iter().filter(|tier| touches(tier)) {
            let Some(of) = tier.record.tier.filter(|of| resolution % of.resolution_ns == 0) else { continue };
            let (first, last) = (tier.record.first_time, tier.record.last_time);
            if cuts::touches(&tier.record.cuts, path, first, last, of.resolution_ns) {
                // Something of its windows has been deleted: the readings are exact, where they are all there.
                let whole = |raw: &Arc<Block>| raw.record.id == of.block && !raw.record.trimmed && !raw.is_damaged();
                if self.view.blocks.iter().any(whole) {
                    continue;
                }
            }
            if self.policy.tier_hidden_before(path, self.retained_at, of.resolution_ns)
                <= from.max(tier.record.first_time)
            {
                best.push((of.block, of.resolution_ns, tier));
            } else if !self.view.blocks.iter().any(|block| block.record.id == of.block) {
                // Nothing else has these windows: as far as they are shown.
                best.push((of.block, of.resolution_ns, tier));
            }
        }
        best.sort_by_key(|(block, resolution_ns, _)| (*block, std::cmp::Reverse(*resolution_ns)));
        best.dedup_by_key(|(block, ..)| *block);
        for (block, resolution_ns, tier) in &best {
            let raw = self.view.blocks.iter().find(|raw| raw.record.id == *block && !raw.is_damaged());
            if let Some(source) = self.tiered(path, tier, *resolution_ns, raw, (from, to, raw_cut))? {
                sources.push(source);
            }
        }
        for block in self.view.blocks.iter().filter(|block| touches(block)) {
            if best.iter().any(|(of, _, tier)| *of == block.record.id && !tier.is_damaged()) {
                continue;
            }
            let Some(entry) = self.found_in(block, path)? else { continue };
            let (first, last) = (entry.first_time.max(raw_cut), entry.last_time);
            if first < to && last >= from && first <= last {
                let rows = OnceCell::from(Some(entry));
                sources.push(Source { rows, ..Source::of_readings(Raw::Block(block.clone()), first, last) });
            }
        }
        Ok(sources)
    }

    /// A block with a tier.
    fn tiered(
        &self,
        path: &str,
        tier: &Arc<Block>,
        resolution_ns: i64,
        raw: Option<&Arc<Block>>,
        (from, to, raw_cut): (i64, i64, i64),
    ) -> Result<Option<Source>, StoreError> {
        let Some(entry) = self.found_in(tier, path)? else { return Ok(None) };
        let first = entry.first_time.max(self.policy.tier_hidden_before(path, self.retained_at, resolution_ns));
        let last = entry.last_time;
        if first >= to || last < from || first > last {
            return Ok(None);
        }
        let mut raw_from = i64::MIN;
        if raw_cut > first {
            raw_from = raw_cut;
        }
        let raw = match raw {
            None => Raw::Gone,
            Some(block) if !block.record.trimmed => Raw::Block(block.clone()),
            Some(block) => {
                match self.found_in(block, path)? {
                    // Retention cuts on edges of the coarsest windows.
                    Some(left) if left.first_time > entry.first_time => {
                        let coarsest = self.resolutions().last().copied().unwrap_or(resolution_ns).max(resolution_ns);
                        raw_from = raw_from.max(floor(left.first_time, coarsest));
                        Raw::Block(block.clone())
                    }
                    Some(_) => Raw::Block(block.clone()),
                    None => Raw::Gone,
                }
            }
        };
        if matches!(raw, Raw::Gone) {
            raw_from = i64::MAX;
        }
        let span = Span { first, last, tiered: true, raw_from };
        let tier = Some((tier.clone(), entry));
        Ok(Some(Source { raw, rows: OnceCell::new(), tier, lined: false, span }))
    }
}

/// A source whose windows do not know their lines: its readings as far as they are there, and its windows before them.
fn without_lines(source: Source) -> impl Iterator<Item = Source> {
    let Source { raw, rows, tier, lined, span } = source;
    let Some(tier) = tier else {
        return [Some(Source { raw, rows, tier: None, lined, span }), None].into_iter().flatten();
    };
    let Span { first, last, raw_from, .. } = span;
    let before = (first < raw_from).then(|| {
        let span = Span { first, last: last.min(raw_from.saturating_sub(1)), tiered: true, raw_from: i64::MAX };
        Source { raw: Raw::Gone, rows: OnceCell::new(), tier: Some(tier), lined: false, span }
    });
    let readings = (raw_from <= last).then(|| Source { rows, ..Source::of_readings(raw, first.max(raw_from), last) });
    [before, readings].into_iter().flatten()
}

/// One sensor's answer on its way.
struct Scan<S> {
    snapshot: S,
    path: Arc<str>,
    raw_cut: i64,
    sources: Vec<Source>,
}

impl<S: Deref<Target = Snapshot>> Scan<S> {
    fn step(&self, step: Step) -> Result<PartIter, StoreError> {
        match step {
            Step::Readings { source, lo, hi } => self.readings(&[source], lo, hi),
            Step::Merged { lo, hi } => self.all_readings(lo, hi),
            Step::Windows { source, lo, hi } => match self.windows(source, lo, hi)? {
                Some(windows) => Ok(one(windows)),
                // The tier is damaged: its readings, where they are there.
                None if self.sources[source].span.raw_from <= lo => self.readings(&[source], lo, hi),
                None => {
                    self.missing(lo, hi);
                    Ok(Box::new(std::iter::empty()))
                }
            },
            Step::Gone { sources, alone, lo, hi } => {
                if !alone || sources.len() > 1 {
                    self.snapshot.note(format!(
                        "readings of {} to {} came late to windows whose readings are gone (retention); those of them that the windows do not hold are left out",
                        Timestamp(lo),
                        Timestamp(hi)
                    ));
                }
                let mut parts = Vec::new();
                for source in sources {
                    parts.extend(self.windows(source, lo, hi)?);
                }
                Ok(Box::new(in_order(parts).into_iter().map(|windows| Ok(Part::Windows(windows)))))
            }
            Step::Missing { lo, hi } => {
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

    /// The windows of one source that begin in the range; `None` when the tier is damaged.
    fn windows(&self, source: usize, lo: i64, hi: i64) -> Result<Option<Windows>, StoreError> {
        let source = &self.sources[source];
        let lined = source.lined;
        let Some((tier, entry)) = &source.tier else { return Ok(None) };
        let Some(opened) = self.snapshot.open(tier)? else { return Ok(None) };
        let shared = &self.snapshot.shared;
        let hi = hi.min(source.span.last.saturating_add(1));
        // A source that is shown from the middle on begins with a whole window.
        let hidden = if entry.first_time < source.span.first { source.span.first } else { lo };
        let read = || -> Result<Windows, StoreError> {
            let mut reader = RowReader::new(opened.clone(), Some(shared.cache.clone()));
            let end = entry.start + entry.rows;
            let mut row = reader.seek(entry.start, end, lo.max(hidden))?;
            let until = reader.seek(row, end, hi)?;
            let mut all: Option<Windows> = None;
            let resolution = tier.record.tier.map_or(1, |of| of.resolution_ns);
            for (from, to) in kept_windows(&tier.record.cuts, &self.path, i64::MIN, i64::MAX, resolution) {
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
            Ok(all.unwrap_or(Windows::Int(Rows::default())))
        };
        tolerate(tier, read())
    }

    /// The readings of some sources, merged.
    fn readings(&self, sources: &[usize], lo: i64, hi: i64) -> Result<PartIter, StoreError> {
        let lo = lo.max(self.raw_cut);
        let mut inputs = Vec::new();
        for source in sources.iter().map(|source| &self.sources[*source]) {
            match &source.raw {
                Raw::Block(block) => inputs.extend(self.block_input(source, block, lo, hi)?),
                Raw::Live(rank, chunk) => {
                    let chunk = cut(chunk.clone(), lo, hi);
                    if let Some(first_time) = chunk.times.first().copied() {
                        inputs.push(Input { rank: *rank, first_time, source: split(chunk) });
                    }
                }
                Raw::Gone => {}
            }
        }
        Ok(Box::new(Merged::new(inputs).map(|chunk| chunk.map(Part::Readings))))
    }

    fn block_input(
        &self,
        source: &Source,
        block: &Arc<Block>,
        lo: i64,
        hi: i64,
    ) -> Result<Option<Input<'static>>, StoreError> {
        if block.record.last_time < lo || block.record.first_time >= hi || block.is_damaged() {
            return Ok(None);
        }
        let Some(opened) = self.snapshot.open(block)? else { return Ok(None) };
        let found = *source.rows.get_or_init(|| opened.find(&self.path));
        Ok(found.and_then(|found| self.snapshot.input_of((block, &opened), found, &self.path, (lo, hi))))
    }

    fn all_readings(&self, lo: i64, hi: i64) -> Result<PartIter, StoreError> {
        let all: Vec<usize> = (0..self.sources.len()).collect();
        self.readings(&all, lo, hi)
    }
}

fn one(windows: Windows) -> PartIter {
    Box::new((!windows.is_empty()).then_some(Ok(Part::Windows(windows))).into_iter())
}

/// Windows of several sources in the order of their times, each row alone.
fn in_order(parts: Vec<Windows>) -> Vec<Windows> {
    let mut rows: Vec<Windows> = parts.iter().flat_map(|part| (0..part.len()).map(|at| part.row(at))).collect();
    rows.sort_by_key(|row| row.get(0).time);
    rows
}

impl Windows {
    fn extend(&mut self, more: &Windows) {
        match (self, more) {
            (Windows::Int(rows), Windows::Int(more)) => rows.extend(more, 0, more.times.len()),
            (Windows::Float(rows), Windows::Float(more)) => rows.extend(more, 0, more.times.len()),
            _ => {}
        }
    }

    fn row(&self, at: usize) -> Windows {
        match self {
            Windows::Int(from) => {
                let mut rows = Rows::default();
                rows.extend(from, at, at + 1);
                Windows::Int(rows)
            }
            Windows::Float(from) => {
                let mut rows = Rows::default();
                rows.extend(from, at, at + 1);
                Windows::Float(rows)
            }
        }
    }
}

impl<T: Copy> Rows<T> {
    pub(super) fn extend(&mut self, from: &Rows<T>, start: usize, end: usize) {
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
