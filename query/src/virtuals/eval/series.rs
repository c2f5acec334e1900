//! The chunks of one computed sensor: pieces from the result cache; the rest is computed in slices as chunks are pulled.

use std::sync::Arc;

use wholegrain_model::{Column, ColumnValues, Gaps};
use wholegrain_store::{CachedResults, Chunk, StoreError};

use super::grid::OperandTrack;
use super::measured::MeasuredReadings;
use super::piece::{ChunkAssembly, decode, encode};
use super::plan::EvalPlan;
use super::run::{StageRun, slice_ns};

/// Pieces that end less than this before the newest reading are not cached: late readings would invalidate them.
const STABLE_NS: i64 = 120_000_000_000;
/// The first slice after a hole is a full one divided by this: there may be only one reading before the next hole.
const SLICE_PART: i64 = 64;
/// Slices with rows grow by this factor; so does the range of the search for the next reading.
const GROWTH: i64 = 4;
/// A piece is computed completely for the cache only if the query needs at least its length divided by this.
const REQUESTED_PART: i64 = 4;

pub(super) struct ComputedSeries {
    measured: MeasuredReadings,
    plan: Arc<EvalPlan>,
    cache: Option<CachedResults>,
    /// The ranges that can have readings.
    spans: Vec<(i64, i64)>,
    from: i64,
    to: i64,
    /// Everything before this time is done.
    cursor: i64,
    /// Rows before this time have been returned.
    returned: i64,
    run: Option<StageRun>,
    assembly: Option<ChunkAssembly>,
    /// The last piece that the cache did not have.
    missed: Option<i64>,
    /// The length of the next slice.
    slice_ns: i64,
    /// Whether the last slice had no rows.
    empty: bool,
    failed: bool,
}

impl ComputedSeries {
    pub(crate) fn new(
        measured: MeasuredReadings,
        plan: Arc<EvalPlan>,
        cache: Option<CachedResults>,
        from: i64,
        to: i64,
    ) -> Self {
        // Times slightly before or after do not overflow.
        let (least, most) = (-(1i64 << 62), 1i64 << 62);
        let (from, to) = (from.clamp(least, most), to.clamp(least, most));
        let margin = plan.cache_key.ahead_ns;
        let spans = measured.snapshot.spans(from.saturating_sub(margin), to.saturating_add(margin));
        let slice_ns = slice_ns(&plan);
        Self {
            measured,
            plan,
            cache,
            spans,
            from,
            to,
            cursor: from,
            returned: from,
            run: None,
            assembly: None,
            missed: None,
            slice_ns,
            empty: false,
            failed: false,
        }
    }

    /// Advances to the next range that can have rows; `false` at the end.
    fn skip_holes(&mut self) -> Result<bool, StoreError> {
        let margin = self.plan.cache_key.ahead_ns;
        let done = self.spans.iter().take_while(|span| span.1.saturating_add(margin) < self.cursor).count();
        self.spans.drain(..done);
        let Some(next) = self.spans.first().map(|span| span.0.saturating_sub(margin)) else {
            self.finish_piece();
            return Ok(false);
        };
        self.jump(next);
        if std::mem::take(&mut self.empty) {
            // The range of a file, or of other sensors, can include years without readings of the operands.
            let Some(next) = self.next_reading()? else {
                self.finish_piece();
                return Ok(false);
            };
            self.jump(next.saturating_sub(margin));
        }
        Ok(self.cursor < self.to)
    }

    /// Advances to `next`, before which there are no rows, unless that saves nothing.
    fn jump(&mut self, next: i64) {
        let whole = slice_ns(&self.plan);
        let same_piece = self.piece_of(next) == self.piece_of(self.cursor);
        if next <= self.cursor || self.run.is_some() && (same_piece || next - self.cursor <= whole.min(self.slice_ns)) {
            return;
        }
        // A new run may have to begin before the current one.
        let begins = self.new_run(next).cursor();
        if self.run.as_ref().is_some_and(|run| begins < run.cursor()) {
            return;
        }
        self.finish_piece();
        self.cursor = next;
        self.run = None;
        self.slice_ns = (whole / SLICE_PART).max(self.plan.root().grid);
    }

    /// The time of the operands' next reading that can affect rows from the cursor on.
    fn next_reading(&self) -> Result<Option<i64>, StoreError> {
        let last = self.times_of(self.piece_of(self.to - 1)).1.saturating_add(self.plan.cache_key.ahead_ns);
        let (mut from, mut wide) = (self.cursor, slice_ns(&self.plan));
        while from <= last {
            let mut to = from.saturating_add(wide).min(last.saturating_add(1));
            let mut found = None;
            for measured in self.plan.stages.iter().flat_map(super::plan::EvalStage::measured) {
                let chunk = self.measured.scan(&measured.info, from, to)?.next().transpose()?;
                if let Some(time) = chunk.and_then(|chunk| chunk.times.first().copied()) {
                    (found, to) = (Some(time), time);
                }
                if to <= from {
                    break;
                }
            }
            if found.is_some() {
                return Ok(found);
            }
            (from, wide) = (to, wide.saturating_mul(GROWTH));
        }
        Ok(None)
    }

    /// A run from a time on, or from the begin of its piece if that will be cached.
    fn new_run(&self, time: i64) -> StageRun {
        let piece = self.piece_of(time);
        let begin = if self.should_cache(piece) { self.times_of(piece).0 } else { time };
        let point = (begin - 1).div_euclid(self.plan.root().grid) + 1;
        StageRun::new(self.plan.clone(), self.measured.clone(), point)
    }

    /// Caches the piece being assembled; it has no further rows.
    fn finish_piece(&mut self) {
        let Some((cache, mut assembly)) = self.cache.clone().zip(self.assembly.take()) else { return };
        let points = (self.plan.cache_key.piece_ns / self.plan.root().grid) as usize;
        assembly.values.resize(points, f64::NAN);
        assembly.sampled.resize(points, false);
        self.store(&cache, &assembly);
    }

    fn piece_of(&self, time: i64) -> i64 {
        time.div_euclid(self.plan.cache_key.piece_ns)
    }

    /// The range of a piece, end exclusive.
    fn times_of(&self, piece: i64) -> (i64, i64) {
        let start = piece.saturating_mul(self.plan.cache_key.piece_ns);
        (start, start.saturating_add(self.plan.cache_key.piece_ns))
    }

    /// Whether to compute and cache the whole piece.
    fn should_cache(&self, piece: i64) -> bool {
        let (start, end) = self.times_of(piece);
        let requested = end.min(self.to).saturating_sub(start.max(self.from));
        let is_stable = end.saturating_add(self.plan.cache_key.ahead_ns).saturating_add(STABLE_NS) <= self.plan.newest;
        self.cache.is_some() && is_stable && requested.saturating_mul(REQUESTED_PART) >= end - start
    }

    /// The piece at the cursor, if it is cached.
    fn take_cached(&mut self) -> Option<OperandTrack> {
        let piece = self.piece_of(self.cursor);
        if self.missed == Some(piece) {
            return None;
        }
        let grid = self.plan.root().grid;
        let (start, end) = self.times_of(piece);
        let found = self.cache.as_ref().and_then(|cache| cache.get(piece));
        let track = found.and_then(|bytes| decode(&bytes, start / grid, (end - start) / grid));
        if track.is_none() {
            self.missed = Some(piece);
            return None;
        }
        self.run = None;
        self.assembly = None;
        self.cursor = end;
        track
    }

    /// The end of the computation from here: of the range, of its last piece, or the next cached piece.
    fn limit(&self) -> i64 {
        let last = self.piece_of(self.to - 1);
        let end = if self.should_cache(last) { self.times_of(last).1 } else { self.to };
        let Some(cache) = &self.cache else { return end };
        let slice_end = self.cursor.saturating_add(slice_ns(&self.plan)).min(end);
        let next = self.piece_of(self.cursor) + 1..=self.piece_of(slice_end);
        let known = next.into_iter().find(|piece| cache.has(*piece));
        known.map_or(end, |piece| self.times_of(piece).0.min(end))
    }

    fn compute(&mut self) -> Result<OperandTrack, StoreError> {
        let grid = self.plan.root().grid;
        if self.run.is_none() {
            self.run = Some(self.new_run(self.cursor));
        }
        let limit = self.limit();
        let Some(run) = &mut self.run else { return Ok(OperandTrack::default()) };
        run.set_slice(self.slice_ns);
        let track = run.slice(limit)?;
        self.empty = !track.sampled.contains(&true);
        if !self.empty {
            self.slice_ns = self.slice_ns.saturating_mul(GROWTH).min(slice_ns(&self.plan));
        }
        // No point is due before the next one.
        let done = (track.base + track.values.len() as i64).saturating_mul(grid);
        self.cursor = self.cursor.max(done.min(limit));
        if run.is_done(limit) {
            self.cursor = limit;
            self.run = None;
        }
        self.assemble(&track);
        Ok(track)
    }

    /// Assembles pieces and caches complete ones.
    fn assemble(&mut self, track: &OperandTrack) {
        let Some(cache) = self.cache.clone() else { return };
        let grid = self.plan.root().grid;
        let points = self.plan.cache_key.piece_ns / grid;
        let mut at = 0;
        while at < track.values.len() {
            let point = track.base + at as i64;
            let (piece, place) = (point.div_euclid(points), point.rem_euclid(points) as usize);
            let rows = (points as usize - place).min(track.values.len() - at);
            let assembly =
                self.assembly.take().filter(|assembly| assembly.number == piece && assembly.values.len() == place);
            let new = || (place == 0).then(|| ChunkAssembly { number: piece, values: Vec::new(), sampled: Vec::new() });
            if let Some(mut assembly) = assembly.or_else(new) {
                assembly.values.extend_from_slice(&track.values[at..at + rows]);
                assembly.sampled.extend_from_slice(&track.sampled[at..at + rows]);
                if assembly.values.len() == points as usize {
                    self.store(&cache, &assembly);
                } else {
                    self.assembly = Some(assembly);
                }
            }
            at += rows;
        }
    }

    /// Caches a piece unless late readings can still change it.
    fn store(&self, cache: &CachedResults, piece: &ChunkAssembly) {
        let cache_key = cache.cache_key();
        let (start, end) = self.times_of(piece.number);
        let is_stable = end.saturating_add(cache_key.ahead_ns).saturating_add(STABLE_NS) <= self.plan.newest;
        let (first, last) = (start.saturating_sub(cache_key.back_ns), end.saturating_add(cache_key.ahead_ns));
        // A piece is not cached while data is missing that may return, nor without rows, which are computed quickly.
        if is_stable && piece.sampled.contains(&true) && self.measured.snapshot.warnings(first, last).is_empty() {
            cache.put(piece.number, &encode(&piece.values, &piece.sampled));
        }
    }

    /// The rows of the range that have not been returned yet. A piece that is computed completely can repeat some.
    fn chunk(&mut self, track: &OperandTrack) -> Option<Chunk> {
        let grid = self.plan.root().grid;
        let in_range = |point: i64| (self.returned..self.to).contains(&(point * grid));
        let rows = (0..track.values.len()).filter(|at| track.sampled[*at] && in_range(track.base + *at as i64));
        let rows: Vec<usize> = rows.collect();
        if rows.is_empty() {
            return None;
        }
        let times: Vec<i64> = rows.iter().map(|at| (track.base + *at as i64) * grid).collect();
        self.returned = times.last().map_or(self.returned, |last| last + 1);
        let mut gaps = Gaps::default();
        let mut values = Vec::with_capacity(rows.len());
        for (row, at) in rows.iter().enumerate() {
            let value = track.values[*at];
            if value.is_nan() {
                gaps.set(row, rows.len());
            }
            values.push(if value.is_nan() { 0.0 } else { value });
        }
        Some(Chunk { times, column: Column { values: ColumnValues::Float(values), gaps } })
    }
}

impl Iterator for ComputedSeries {
    type Item = Result<Chunk, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.failed && self.cursor < self.to {
            let track = match self.skip_holes() {
                Ok(false) => return None,
                Ok(true) => self.take_cached().map_or_else(|| self.compute(), Ok),
                Err(error) => Err(error),
            };
            match track {
                Ok(track) => {
                    if let Some(chunk) = self.chunk(&track) {
                        return Some(Ok(chunk));
                    }
                }
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
