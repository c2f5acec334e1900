//! Computes a sensor from one time on, slice by slice: in each slice every stage passes its due points to the stages above it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_store::StoreError;

use super::super::ast::Along;
use super::along::{TrailingState, first_needed};
use super::compute::StageColumns;
use super::grid::{GridSampler, GridSink, GridSteps, OperandTrack};
use super::group::GroupSums;
use super::measured::MeasuredReadings;
use super::plan::{EvalPlan, EvalStage, MeasuredOperand, OperandGroup, OperandSource, StageOperand};

/// The most points of one slice.
pub(super) const SLICE_POINTS_MAX: i64 = if cfg!(test) { 24 } else { 65_536 };
/// The approximate number of values in memory for one slice: 4 Mi, 32 MiB.
const SLICE_VALUES_MAX: i64 = 4 << 20;
/// The fewest points of a slice, whatever the number of columns.
const SLICE_POINTS_MIN: i64 = if cfg!(test) { 8 } else { 64 };
/// The members of an aggregate are added in this many parts, and then the parts. The number is constant, so that the result does not depend on the
/// number of threads.
const LANES: usize = 4;
/// The fewest members that are divided into parts.
const LANES_FROM: usize = if cfg!(test) { 3 } else { 16 };
/// The fewest values for which a thread is started.
const THREAD_VALUES_MIN: usize = if cfg!(test) { 16 } else { 1 << 17 };
/// Helper threads of all queries now; at most the number of cores minus one.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// The values of a computed operand at the points of the stage above it.
struct PieceEdge {
    sampler: GridSampler,
    track: OperandTrack,
    /// The function along time that is applied before the aggregate.
    along: Option<TrailingState>,
}

struct RunProgress {
    next: i64,
    states: Vec<TrailingState>,
    /// For each operand that is a stage.
    operands: Vec<Option<PieceEdge>>,
    /// For each group: the aggregate of members that are stages, and the state of each.
    groups: Vec<(GroupSums, Vec<Option<PieceEdge>>)>,
}

/// A reference of a stage.
#[derive(Clone, Copy)]
enum PieceSlot {
    Operand(usize),
    Member(usize, usize),
}

/// A computation in progress.
pub(super) struct StageRun {
    plan: Arc<EvalPlan>,
    measured: MeasuredReadings,
    stages: Vec<RunProgress>,
    /// For each stage, the references to it.
    above: Vec<Vec<(usize, PieceSlot)>>,
    /// Everything before this time has been computed.
    cursor: i64,
    /// The first point that is requested.
    wanted: i64,
    slice_ns: i64,
}

impl StageRun {
    /// Begins at the point `wanted` of the last stage.
    pub fn new(plan: Arc<EvalPlan>, measured: MeasuredReadings, wanted: i64) -> Self {
        let count = plan.stages.len();
        let mut needed = vec![i64::MAX; count];
        needed[count - 1] = wanted;
        for at in (0..count).rev() {
            let stage = &plan.stages[at];
            needed[at] = stage.first_needed(needed[at]);
            let first = needed[at].saturating_mul(stage.grid);
            for (below, bridge) in stage.below() {
                let from = first.saturating_sub(bridge).div_euclid(plan.stages[below].grid);
                needed[below] = needed[below].min(from);
            }
        }
        let mut above: Vec<Vec<(usize, PieceSlot)>> = vec![Vec::new(); count];
        for (at, stage) in plan.stages.iter().enumerate() {
            let operands = stage.operands.iter().enumerate().map(|(i, operand)| (operand, PieceSlot::Operand(i)));
            let members = stage.groups.iter().enumerate().flat_map(|(g, group)| {
                group.members.iter().enumerate().map(move |(m, member)| (member, PieceSlot::Member(g, m)))
            });
            for (operand, slot) in operands.chain(members) {
                if let OperandSource::Stage(below) = operand.source {
                    above[below].push((at, slot));
                }
            }
        }
        let stages: Vec<RunProgress> =
            plan.stages.iter().zip(&needed).map(|(stage, first)| RunProgress::new(stage, *first)).collect();
        let times = plan.stages.iter().zip(&needed).map(|(stage, first)| first.saturating_mul(stage.grid));
        let cursor = times.min().unwrap_or(0);
        Self { slice_ns: slice_ns(&plan), plan, measured, stages, above, cursor, wanted }
    }

    /// Everything before this time has been computed, nothing after it.
    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// Sets the length of the next slices.
    pub fn set_slice(&mut self, slice_ns: i64) {
        self.slice_ns = slice_ns.max(1);
    }

    /// Computes the next slice, at most up to the time `limit`. Returns the next points of the last stage in the declared unit; there may be none yet.
    pub fn slice(&mut self, limit: i64) -> Result<OperandTrack, StoreError> {
        self.cursor = self.cursor.saturating_add(self.slice_ns).min(limit).max(self.cursor);
        let plan = self.plan.clone();
        let count = plan.stages.len();
        // The point after the last due one, for each stage.
        let mut ends = vec![i64::MIN; count];
        ends[count - 1] = (self.cursor - 1).div_euclid(plan.root().grid) + 1;
        for at in (0..count).rev() {
            let stage = &plan.stages[at];
            let last = (ends[at] - 1).saturating_mul(stage.grid);
            for (below, bridge) in stage.below() {
                let end = (last.saturating_add(bridge) - 1).div_euclid(plan.stages[below].grid) + 2;
                ends[below] = ends[below].max(end);
            }
        }
        let mut track = OperandTrack::holes(self.stages[count - 1].next, 0);
        for (at, end) in ends.into_iter().enumerate() {
            let len = usize::try_from(end.saturating_sub(self.stages[at].next)).unwrap_or(0);
            if len == 0 {
                continue;
            }
            let found = self.stage(at, len)?;
            if at == count - 1 {
                track = found;
                break;
            }
            self.pass_on(at, &found);
        }
        let skip = usize::try_from(self.wanted - track.base).unwrap_or(0).min(track.values.len());
        drop(track.take(skip));
        let out = plan.root().out;
        if !out.is_identity() {
            track.values.iter_mut().for_each(|value| *value = super::grid::finite(out.apply(*value)));
        }
        Ok(track)
    }

    /// Whether everything before this time has been computed.
    pub fn is_done(&self, limit: i64) -> bool {
        self.cursor >= limit
    }

    /// Computes the next points of one stage.
    fn stage(&mut self, at: usize, len: usize) -> Result<OperandTrack, StoreError> {
        let plan = self.plan.clone();
        let stage = &plan.stages[at];
        let progress = &mut self.stages[at];
        let point = progress.next;
        progress.next += len as i64;
        let mut sampled = vec![false; len];
        let mut see = |part: &[bool]| sampled.iter_mut().zip(part).for_each(|(all, part)| *all |= part);
        let mut operands = Vec::with_capacity(stage.operands.len());
        for (operand, edge) in stage.operands.iter().zip(&mut progress.operands) {
            let track = match (&operand.source, edge) {
                (OperandSource::Measured(measured), _) => {
                    read(&self.measured, measured, operand.steps, stage.grid, point, len)?
                }
                (OperandSource::Stage(_), Some(edge)) => edge.track.take(len),
                (OperandSource::Stage(_), None) => OperandTrack::holes(point, len),
            };
            see(&track.sampled);
            operands.push(track.values);
        }
        let mut groups = Vec::with_capacity(stage.groups.len());
        for (group, (sums, edges)) in stage.groups.iter().zip(&mut progress.groups) {
            let mut all = add_up(&self.measured, stage, group, point, len)?;
            let mut below = sums.take(len);
            for (rank, edge) in edges.iter_mut().enumerate() {
                let Some(edge) = edge else { continue };
                let Some(state) = &mut edge.along else { continue };
                let mut track = edge.track.take(len);
                state.run(point, &mut track.values);
                below.rank = rank as u32;
                below.add_track(0, &track);
            }
            all.join(&below);
            let (values, part) = all.finish(stage.missing, group.members.len());
            see(part);
            groups.push(values);
        }
        let columns = StageColumns { point, len, operands, groups, states: &mut progress.states };
        Ok(OperandTrack { base: point, values: columns.values(&stage.code), sampled })
    }

    /// Passes the points of a stage to the stages above it.
    fn pass_on(&mut self, at: usize, track: &OperandTrack) {
        let grid = self.plan.stages[at].grid;
        let rows = || track.sampled.iter().enumerate().filter(|(_, sampled)| **sampled).map(|(row, _)| row);
        let times: Vec<i64> = rows().map(|row| (track.base + row as i64) * grid).collect();
        let values: Vec<f64> = rows().map(|row| track.values[row]).collect();
        for (above, slot) in self.above[at].clone() {
            let progress = &mut self.stages[above];
            let range = (progress.next, i64::MAX);
            match slot {
                PieceSlot::Operand(operand) => {
                    if let Some(edge) = &mut progress.operands[operand] {
                        edge.sampler.feed(&times, &values, range, &mut edge.track);
                    }
                }
                PieceSlot::Member(group, member) => {
                    let (sums, edges) = &mut progress.groups[group];
                    let Some(edge) = &mut edges[member] else { continue };
                    sums.rank = member as u32;
                    match edge.along {
                        Some(_) => edge.sampler.feed(&times, &values, range, &mut edge.track),
                        None => edge.sampler.feed(&times, &values, range, sums),
                    }
                }
            }
        }
    }
}

/// The length of a slice, which bounds the points of every stage.
pub(super) fn slice_ns(plan: &EvalPlan) -> i64 {
    let points = SLICE_VALUES_MAX / (plan.columns.max(1) as i64);
    let points = points.clamp(SLICE_POINTS_MIN, SLICE_POINTS_MAX);
    let shortest = plan.stages.iter().map(|stage| stage.grid).min().unwrap_or(1);
    shortest.saturating_mul(points)
}

impl RunProgress {
    fn new(stage: &EvalStage, first: i64) -> Self {
        let edge = |operand: &StageOperand, along: Option<Along>| match operand.source {
            OperandSource::Measured(_) => None,
            OperandSource::Stage(_) => Some(PieceEdge {
                sampler: GridSampler::new(stage.grid, operand.bridge),
                track: OperandTrack::holes(first, 0),
                along: along.map(|along| TrailingState::new(along, stage.grid)),
            }),
        };
        let group = |group: &OperandGroup| {
            let edges = group.members.iter().map(|member| edge(member, group.along)).collect();
            (GroupSums::new(group.agg, first, 0), edges)
        };
        Self {
            next: first,
            states: stage.along.iter().map(|along| TrailingState::new(*along, stage.grid)).collect(),
            operands: stage.operands.iter().map(|operand| edge(operand, None)).collect(),
            groups: stage.groups.iter().map(group).collect(),
        }
    }
}

/// Passes a measured sensor's values at the points from `point` on to the sink, one chunk at a time.
fn sample(
    readings: &MeasuredReadings,
    of: &MeasuredOperand,
    grid: i64,
    point: i64,
    len: usize,
    sink: &mut impl GridSink,
) -> Result<(), StoreError> {
    let end = point + len as i64;
    let (from, to) = ((point * grid).saturating_sub(of.bridge), ((end - 1) * grid).saturating_add(of.bridge));
    let mut sampler = GridSampler::new(grid, of.bridge);
    let mut values = Vec::new();
    for chunk in readings.scan(&of.info, from, to.saturating_add(1))? {
        let chunk = chunk?;
        of.raw.convert(&chunk, &mut values);
        sampler.feed(&chunk.times, &values, (point, end), sink);
    }
    Ok(())
}

/// A measured sensor's values or steps as a track.
fn read(
    readings: &MeasuredReadings,
    of: &MeasuredOperand,
    steps: bool,
    grid: i64,
    point: i64,
    len: usize,
) -> Result<OperandTrack, StoreError> {
    if !steps {
        let mut track = OperandTrack::holes(point, len);
        sample(readings, of, grid, point, len, &mut track)?;
        return Ok(track);
    }
    let mut steps = GridSteps::new(&of.info, &of.raw, grid, of.bridge, point, len);
    let from = ((point - 1) * grid).saturating_sub(of.bridge);
    let to = ((point + len as i64 - 1) * grid).saturating_add(of.bridge);
    for chunk in readings.scan(&of.info, from, to.saturating_add(1))? {
        steps.feed(&chunk?);
    }
    Ok(steps.finish())
}

/// Adds one measured member to an aggregate.
fn add_member(
    readings: &MeasuredReadings,
    grid: i64,
    along: Option<Along>,
    member: &StageOperand,
    sums: &mut GroupSums,
    len: usize,
) -> Result<(), StoreError> {
    let OperandSource::Measured(measured) = &member.source else { return Ok(()) };
    let point = sums.base;
    let Some(along) = along else { return sample(readings, measured, grid, point, len, sums) };
    if member.steps {
        let mut track = read(readings, measured, true, grid, point, len)?;
        if along == Along::Rate {
            let seconds = grid as f64 / 1e9;
            track.values.iter_mut().for_each(|value| *value /= seconds);
        }
        sums.add_track(0, &track);
        return Ok(());
    }
    // In parts, because the window can be long.
    let mut state = TrailingState::new(along, grid);
    let mut next = first_needed(along, grid, point);
    let end = point + len as i64;
    while next < end {
        let part = (end - next).min(SLICE_POINTS_MAX);
        let mut track = read(readings, measured, false, grid, next, part as usize)?;
        state.run(next, &mut track.values);
        let skip = usize::try_from(point - next).unwrap_or(0).min(part as usize);
        drop(track.take(skip));
        sums.add_track((track.base - point).max(0) as usize, &track);
        next += part;
    }
    Ok(())
}

/// Aggregates the measured members of a group, on several cores if there are many values.
fn add_up(
    readings: &MeasuredReadings,
    stage: &EvalStage,
    group: &OperandGroup,
    point: i64,
    len: usize,
) -> Result<GroupSums, StoreError> {
    let members: Vec<(usize, &StageOperand)> = group
        .members
        .iter()
        .enumerate()
        .filter(|(_, member)| matches!(member.source, OperandSource::Measured(_)))
        .collect();
    let lanes = if members.len() >= LANES_FROM { LANES } else { 1 };
    let parts: Vec<&[(usize, &StageOperand)]> = members.chunks(members.len().div_ceil(lanes).max(1)).collect();
    let failed = AtomicBool::new(false);
    let lane = |members: &[(usize, &StageOperand)]| -> Result<GroupSums, StoreError> {
        let mut sums = GroupSums::new(group.agg, point, len);
        for (rank, member) in members {
            if failed.load(Relaxed) {
                break;
            }
            sums.rank = *rank as u32;
            let added = add_member(readings, stage.grid, group.along, member, &mut sums, len);
            added.inspect_err(|_| failed.store(true, Relaxed))?;
        }
        Ok(sums)
    };
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<GroupSums, StoreError>)>> = Mutex::new(Vec::new());
    let work = || {
        while let Some((at, part)) = Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, parts.get(at)?))) {
            let sums = lane(part);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, sums));
        }
    };
    let helpers =
        if members.len().saturating_mul(len) >= THREAD_VALUES_MIN { parts.len().saturating_sub(1) } else { 0 };
    let helpers = Helpers::take(helpers);
    std::thread::scope(|scope| {
        for _ in 0..helpers.0 {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    let mut all = GroupSums::new(group.agg, point, len);
    for (_, sums) in done {
        all.join(&sums?);
    }
    Ok(all)
}

/// A number of helper threads, released on drop.
struct Helpers(usize);

impl Helpers {
    fn take(wanted: usize) -> Self {
        let most = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1;
        let mut taken = 0;
        let take = |now: usize| {
            taken = wanted.min(most.saturating_sub(now));
            Some(now + taken)
        };
        let _ = HELPERS.fetch_update(Relaxed, Relaxed, take);
        Self(taken)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.0, Relaxed);
    }
}
