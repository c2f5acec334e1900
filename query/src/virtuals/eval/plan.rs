//! Plans the evaluation of one sensor: a stage for it and each computed sensor below it, operands first.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use wholegrain_model::{Conversion, Kind, Unit};
use wholegrain_store::{CacheKey, SensorId, SensorInfo, StoreError};

use super::super::ast::{Along, Binary, Expr, ExprNode, Function, Reference, Unary};
use super::super::{MissingOperands, OPERANDS_MAX, SensorLookup, VirtualSensor};
use super::along::{WINDOW_POINTS_MAX, back_ns, first_needed, ns, window_points};
use super::grid::RawSamples;
use crate::holes;
use crate::holes::HOLE_INTERVALS;
use crate::query::Agg;

/// The interval of a computed sensor if no operand has one: 1 s.
pub const INTERVAL_NS_UNKNOWN: i64 = 1_000_000_000;
/// The most computed sensors below one, at any depth.
pub const STAGES_MAX: usize = 20_000;
/// The most operands of all of them together.
pub const EDGES_MAX: usize = 200_000;
/// The most points of all moving windows together: 4 Mi, about 100 MiB.
const WINDOWS_POINTS_MAX: i64 = 4 << 20;
/// The longest interpolation of a computed operand, in its intervals. The operand is computed this far ahead.
const BRIDGE_POINTS_MAX: i64 = 1024;
/// The longest cached pieces: 6 h and [`PIECE_POINTS_MAX`]. Long pieces need fewer files, short ones are complete sooner.
const PIECE_NS: i64 = if cfg!(test) { 60_000_000_000 } else { 6 * 3_600_000_000_000 };
pub(super) const PIECE_POINTS_MAX: i64 = 4096;

#[derive(Debug, Clone)]
pub(super) enum OperandSource {
    Measured(Box<MeasuredOperand>),
    /// The number of a stage.
    Stage(usize),
}

#[derive(Debug, Clone)]
pub(super) struct MeasuredOperand {
    pub info: SensorInfo,
    pub raw: RawSamples,
    pub bridge: i64,
}

/// A reference of a stage to one sensor.
#[derive(Debug, Clone)]
pub(super) struct StageOperand {
    pub source: OperandSource,
    /// Whether the expression uses the increases of the operand, with resets handled, instead of its values.
    pub steps: bool,
    pub bridge: i64,
}

/// A reference of a stage to an aggregate over sensors.
#[derive(Debug, Clone)]
pub(super) struct OperandGroup {
    pub agg: Agg,
    pub along: Option<Along>,
    /// In the order of their paths.
    pub members: Vec<StageOperand>,
}

/// A compiled expression. Numbers are indices into the stage's operands, groups and states.
#[derive(Debug, Clone)]
pub(super) enum StageCode {
    Constant(f64),
    Operand(usize),
    Group(usize),
    Divided(Box<StageCode>, f64),
    Unary(Unary, Box<StageCode>),
    Power(Box<StageCode>, i32),
    Binary(Binary, Box<StageCode>, Box<StageCode>),
    If(Box<[StageCode; 3]>),
    Call(Function, Vec<StageCode>),
    Along(usize, Along, Box<StageCode>),
}

impl StageCode {
    /// The first point that operands must have for the value at `point`.
    fn first_needed(&self, stage: &EvalStage, point: i64) -> i64 {
        let all = |parts: &mut dyn Iterator<Item = &StageCode>| {
            parts.map(|part| part.first_needed(stage, point)).min().unwrap_or(point)
        };
        match self {
            StageCode::Constant(_) | StageCode::Operand(_) => point,
            StageCode::Group(at) => {
                let group = &stage.groups[*at];
                // Measured operands are read again from further back for each slice.
                let below = group.members.iter().any(|member| matches!(member.source, OperandSource::Stage(_)));
                let along = group.along.filter(|_| below);
                along.map_or(point, |along| first_needed(along, stage.grid, point))
            }
            StageCode::Divided(of, _) | StageCode::Unary(_, of) | StageCode::Power(of, _) => {
                of.first_needed(stage, point)
            }
            StageCode::Binary(_, left, right) => all(&mut [left.as_ref(), right.as_ref()].into_iter()),
            StageCode::If(three) => all(&mut three.iter()),
            StageCode::Call(_, operands) => all(&mut operands.iter()),
            StageCode::Along(_, along, of) => of.first_needed(stage, first_needed(*along, stage.grid, point)),
        }
    }

    /// The number of columns in memory during its evaluation.
    fn columns(&self) -> usize {
        let in_turn = |parts: &mut dyn Iterator<Item = &StageCode>| {
            parts.enumerate().map(|(before, part)| before + part.columns()).max().unwrap_or(1)
        };
        match self {
            StageCode::Constant(_) => 0,
            StageCode::Operand(_) | StageCode::Group(_) => 1,
            StageCode::Divided(of, _)
            | StageCode::Unary(_, of)
            | StageCode::Power(of, _)
            | StageCode::Along(_, _, of) => of.columns().max(1),
            StageCode::Binary(_, left, right) => in_turn(&mut [left.as_ref(), right.as_ref()].into_iter()),
            StageCode::If(three) => in_turn(&mut three.iter()),
            StageCode::Call(_, operands) => in_turn(&mut operands.iter().take(3)),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct EvalStage {
    pub path: Arc<str>,
    /// Its times are whole multiples of this, ns.
    pub grid: i64,
    pub missing: MissingOperands,
    pub code: StageCode,
    pub operands: Vec<StageOperand>,
    pub groups: Vec<OperandGroup>,
    /// The functions along time, in the order of the states.
    pub along: Vec<Along>,
    /// From the base unit to the declared unit.
    pub out: Conversion,
}

impl EvalStage {
    /// The references to other stages, with their bridges.
    pub fn below(&self) -> impl Iterator<Item = (usize, i64)> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        self.operands.iter().chain(members).filter_map(|operand| match operand.source {
            OperandSource::Stage(number) => Some((number, operand.bridge)),
            OperandSource::Measured(_) => None,
        })
    }

    /// The first point that must be computed for the value at `point`.
    pub fn first_needed(&self, point: i64) -> i64 {
        self.code.first_needed(self, point)
    }

    /// The references to measured sensors.
    pub fn measured(&self) -> impl Iterator<Item = &MeasuredOperand> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        self.operands.iter().chain(members).filter_map(|operand| match &operand.source {
            OperandSource::Measured(measured) => Some(measured.as_ref()),
            OperandSource::Stage(_) => None,
        })
    }

    /// The longest distance back of the expression, without bridges.
    fn back_ns(&self) -> i64 {
        let groups = self.groups.iter().filter_map(|group| group.along.as_ref());
        let steps = if self.operands.iter().any(|operand| operand.steps) { self.grid } else { 0 };
        let all = self.along.iter().chain(groups).map(|along| back_ns(*along, self.grid));
        all.fold(steps, i64::saturating_add)
    }
}

#[derive(Debug)]
pub(super) struct EvalPlan {
    /// Operands first; the last one is the requested sensor.
    pub stages: Vec<EvalStage>,
    pub cache_key: CacheKey,
    /// The time of the newest reading of the operands, as far as known.
    pub newest: i64,
    /// The number of columns in memory at a time.
    pub columns: usize,
}

/// The interval of a computed sensor, ns: its definition's, or the shortest one of its operands.
pub fn interval_ns(defined: Option<wholegrain_model::Interval>, operands: impl Iterator<Item = u64>) -> u64 {
    let defined = defined.map(|interval| interval.ns()).filter(|ns| *ns > 0);
    let shortest = || operands.filter(|ns| *ns > 0).min();
    let found = defined.or_else(shortest).unwrap_or(INTERVAL_NS_UNKNOWN.cast_unsigned());
    // Bounded, so that times do not overflow.
    found.min(i64::MAX.cast_unsigned() / 1024)
}

fn refuse<T>(text: String) -> Result<T, StoreError> {
    Err(StoreError::Sensor(text))
}

/// A computed sensor and the sensors that each of its references selects.
struct ResolvedOperands {
    instance: Arc<VirtualSensor>,
    expr: Expr,
    selected: Vec<Vec<SensorInfo>>,
}

impl EvalPlan {
    pub(crate) fn new(resolve: &dyn SensorLookup, sensor: &SensorInfo) -> Result<Self, StoreError> {
        let (found, order) = discover(resolve, sensor)?;
        let number: HashMap<Arc<str>, usize> =
            order.iter().enumerate().map(|(number, at)| (found[*at].instance.info.path.clone(), number)).collect();
        let mut stages: Vec<EvalStage> = Vec::with_capacity(order.len());
        for at in order {
            let stage = PlanBuilder::of(&found[at], &number, &stages)?;
            stages.push(stage);
        }
        let window = |along: &Along, grid: i64| match along {
            Along::Moving(_, window) => window_points(ns(*window), grid),
            _ => 0,
        };
        let mut held = 0i64;
        for stage in &stages {
            let groups = stage.groups.iter().filter_map(|group| {
                let below =
                    group.members.iter().filter(|member| matches!(member.source, OperandSource::Stage(_))).count();
                Some((group.along?, below.max(1) as i64))
            });
            for (along, times) in stage.along.iter().map(|along| (*along, 1)).chain(groups) {
                let points = window(&along, stage.grid);
                held = held.saturating_add(points.saturating_mul(times));
                if points > WINDOW_POINTS_MAX || held > WINDOWS_POINTS_MAX {
                    return refuse(format!(
                        "{}: its moving windows have more than {WINDOW_POINTS_MAX} points each or {WINDOWS_POINTS_MAX} together; set a longer interval in the definition",
                        stage.path
                    ));
                }
            }
        }
        let cache_key = cache_key(&stages);
        let newest = stages.iter().flat_map(EvalStage::measured).filter_map(|measured| measured.info.last_time).max();
        // The stage being computed has all operands in memory, the others those that they pass on.
        let own = |stage: &EvalStage| stage.operands.len() + 6 * stage.groups.len() + stage.code.columns();
        let below: usize = stages.iter().map(|stage| stage.operands.len() + 3 * stage.groups.len()).sum();
        let columns = stages.iter().map(own).max().unwrap_or(1) + if stages.len() > 1 { below } else { 0 };
        Ok(Self { stages, cache_key, newest: newest.unwrap_or(i64::MIN), columns })
    }

    pub(crate) fn root(&self) -> &EvalStage {
        &self.stages[self.stages.len() - 1]
    }
}

/// Finds all computed sensors below one, and their order, operands first.
fn discover(
    resolve: &dyn SensorLookup,
    sensor: &SensorInfo,
) -> Result<(Vec<ResolvedOperands>, Vec<usize>), StoreError> {
    /// Visit a sensor, or append it to the order after its operands.
    enum PlanTask {
        Enter(SensorInfo),
        Leave(usize),
    }
    let (mut found, mut order): (Vec<ResolvedOperands>, Vec<usize>) = (Vec::new(), Vec::new());
    // The index of each sensor, and whether it is in the order.
    let mut known: HashMap<Arc<str>, (usize, bool)> = HashMap::new();
    let mut edges = 0;
    let mut tasks = vec![PlanTask::Enter(sensor.clone())];
    while let Some(task) = tasks.pop() {
        let sensor = match task {
            PlanTask::Leave(at) => {
                order.push(at);
                known.insert(found[at].instance.info.path.clone(), (at, true));
                continue;
            }
            PlanTask::Enter(sensor) => sensor,
        };
        match known.get(&sensor.path) {
            Some((_, true)) => continue,
            Some((_, false)) => {
                return refuse(format!("{} is computed from itself; change its definition", sensor.path));
            }
            None => {}
        }
        let Some(instance) = resolve.instance(&sensor) else {
            return refuse(format!("the definition of {} was removed during the query; repeat the query", sensor.path));
        };
        let expr = instance.expr().map_err(|error| StoreError::Sensor(format!("{}: {error}", sensor.path)))?;
        let mut references = Vec::new();
        super::super::each_reference(&expr, &mut |reference, _| references.push(reference));
        let mut selected = Vec::with_capacity(references.len());
        for reference in &references {
            let sensors = resolve.sensors(&reference.pattern);
            edges += sensors.len();
            if sensors.len() > OPERANDS_MAX || edges > EDGES_MAX || found.len() >= STAGES_MAX {
                return refuse(format!(
                    "{}: <{}> selects more than {OPERANDS_MAX} sensors, or the query needs more than {EDGES_MAX} operands or {STAGES_MAX} virtual sensors; narrow the reference, or define sums of parts",
                    sensor.path, reference.text
                ));
            }
            selected.push(sensors);
        }
        let at = found.len();
        known.insert(sensor.path.clone(), (at, false));
        tasks.push(PlanTask::Leave(at));
        let computed = selected.iter().flatten().filter(|sensor| sensor.id.is_computed());
        let computed: Vec<PlanTask> = computed.map(|sensor| PlanTask::Enter(sensor.clone())).collect();
        tasks.extend(computed.into_iter().rev());
        found.push(ResolvedOperands { instance, expr, selected });
    }
    Ok((found, order))
}

struct PlanBuilder<'a> {
    found: &'a ResolvedOperands,
    number: &'a HashMap<Arc<str>, usize>,
    stages: &'a [EvalStage],
    next_reference: usize,
    stage: EvalStage,
}

impl<'a> PlanBuilder<'a> {
    fn of(
        found: &'a ResolvedOperands,
        number: &'a HashMap<Arc<str>, usize>,
        stages: &'a [EvalStage],
    ) -> Result<EvalStage, StoreError> {
        let definition = &found.instance.definition.definition;
        let intervals = found.selected.iter().flatten().map(|sensor| {
            let stage = number.get(&sensor.path).filter(|_| sensor.id.is_computed()).and_then(|at| stages.get(*at));
            stage.map_or(sensor.interval_ns, |stage| stage.grid.cast_unsigned())
        });
        let grid = interval_ns(definition.interval, intervals).cast_signed().max(1);
        let base = Unit::parse(&found.instance.definition.unit.dimension().base_code()).unwrap_or(Unit::ONE);
        let out = base.to(&found.instance.definition.unit);
        let out = out.map_err(|error| StoreError::Sensor(format!("{}: {error}", found.instance.info.path)))?;
        let stage = EvalStage {
            path: found.instance.info.path.clone(),
            grid,
            missing: definition.missing,
            code: StageCode::Constant(f64::NAN),
            operands: Vec::new(),
            groups: Vec::new(),
            along: Vec::new(),
            out,
        };
        let mut builder = Self { found, number, stages, next_reference: 0, stage };
        let code = builder.code(&found.expr)?;
        Ok(EvalStage { code, ..builder.stage })
    }

    /// The sensors of the next reference of the expression.
    fn selected(&mut self) -> &'a [SensorInfo] {
        let found = self.found;
        self.next_reference += 1;
        found.selected.get(self.next_reference - 1).map_or(&[], Vec::as_slice)
    }

    fn operand(&self, sensor: &SensorInfo, steps: bool) -> Result<StageOperand, StoreError> {
        let bridge = self.found.instance.definition.definition.bridge.map(ns);
        if sensor.id.is_computed() {
            let number = self.number.get(&sensor.path).copied().unwrap_or(usize::MAX);
            let Some(stage) = self.stages.get(number) else {
                return refuse(format!("{} is computed from itself; change its definition", self.stage.path));
            };
            let bridge = bridge.unwrap_or(stage.grid.saturating_mul(HOLE_INTERVALS));
            let bridge = bridge.min(stage.grid.saturating_mul(BRIDGE_POINTS_MAX));
            return Ok(StageOperand { source: OperandSource::Stage(number), steps: false, bridge });
        }
        let unit = Unit::parse(&sensor.unit).map_err(|error| {
            StoreError::Sensor(format!("{}: the unit of {}: {error}", self.stage.path, sensor.path))
        })?;
        let bridge = bridge.unwrap_or_else(|| holes::bound_ns(sensor));
        let measured = MeasuredOperand { info: sensor.clone(), raw: RawSamples::new(sensor, unit.to_base()), bridge };
        Ok(StageOperand { source: OperandSource::Measured(Box::new(measured)), steps, bridge })
    }

    fn single(&mut self, _reference: &Reference, steps: bool) -> Result<StageCode, StoreError> {
        let Some(sensor) = self.selected().first() else { return Ok(StageCode::Constant(f64::NAN)) };
        let operand = self.operand(sensor, steps)?;
        self.stage.operands.push(operand);
        Ok(StageCode::Operand(self.stage.operands.len() - 1))
    }

    /// As deep as the tree is, which the parser bounds.
    fn code(&mut self, expr: &Expr) -> Result<StageCode, StoreError> {
        Ok(match &expr.node {
            ExprNode::Number { value, unit } => {
                let unit = Unit::parse(unit.as_deref().unwrap_or("1"));
                let unit = unit.map_err(|error| StoreError::Sensor(format!("{}: {error}", self.stage.path)))?;
                StageCode::Constant(unit.to_base().apply(*value))
            }
            ExprNode::Sensor(reference) => self.single(reference, false)?,
            ExprNode::Over { agg, along, .. } => {
                let steps = matches!(along, Some(Along::Rate | Along::Delta));
                let mut members = Vec::new();
                for sensor in self.selected() {
                    members.push(self.operand(sensor, steps && sensor.kind == Kind::Counter)?);
                }
                self.stage.groups.push(OperandGroup { agg: *agg, along: *along, members });
                StageCode::Group(self.stage.groups.len() - 1)
            }
            ExprNode::Unary(operator, of) => StageCode::Unary(*operator, Box::new(self.code(of)?)),
            ExprNode::Binary(Binary::Power, base, exponent) => {
                let ExprNode::Number { value, .. } = exponent.node else {
                    return refuse(format!("{}: an exponent must be a literal whole number", self.stage.path));
                };
                StageCode::Power(Box::new(self.code(base)?), value as i32)
            }
            ExprNode::Binary(operator, left, right) => {
                StageCode::Binary(*operator, Box::new(self.code(left)?), Box::new(self.code(right)?))
            }
            ExprNode::If(three) => {
                StageCode::If(Box::new([self.code(&three[0])?, self.code(&three[1])?, self.code(&three[2])?]))
            }
            ExprNode::Call(function, operands) => {
                StageCode::Call(*function, operands.iter().map(|operand| self.code(operand)).collect::<Result<_, _>>()?)
            }
            ExprNode::Along(along, of) => self.along(*along, of)?,
        })
    }

    fn along(&mut self, along: Along, of: &Expr) -> Result<StageCode, StoreError> {
        if let (ExprNode::Sensor(reference), Along::Rate | Along::Delta) = (&of.node, along) {
            let first = self.found.selected.get(self.next_reference).and_then(|selected| selected.first());
            if first.is_some_and(|sensor| sensor.kind == Kind::Counter && !sensor.id.is_computed()) {
                let steps = self.single(reference, true)?;
                let seconds = self.stage.grid as f64 / 1e9;
                return Ok(if along == Along::Rate { StageCode::Divided(Box::new(steps), seconds) } else { steps });
            }
        }
        let of = self.code(of)?;
        self.stage.along.push(along);
        Ok(StageCode::Along(self.stage.along.len() - 1, along, Box::new(of)))
    }
}

/// The cache key: everything that determines the values, and the readings that they depend on.
fn cache_key(stages: &[EvalStage]) -> CacheKey {
    let mut operands: Vec<SensorId> =
        stages.iter().flat_map(EvalStage::measured).map(|measured| measured.info.id).collect();
    operands.sort_unstable();
    operands.dedup();
    let hash = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, env!("CARGO_PKG_VERSION"), 2u32).hash(&mut hasher);
        stages.iter().for_each(|stage| hash_stage(stage, &mut hasher));
        hasher.finish()
    };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&hash(0).to_be_bytes());
    key[8..].copy_from_slice(&hash(1).to_be_bytes());
    // The reach of each stage back and ahead, including the stages below it.
    let mut reach: Vec<(i64, i64)> = Vec::with_capacity(stages.len());
    for stage in stages {
        let own = stage.back_ns();
        let mut widest = (own, 0);
        for measured in stage.measured() {
            widest = (widest.0.max(own.saturating_add(measured.bridge)), widest.1.max(measured.bridge));
        }
        for (below, bridge) in stage.below() {
            let more = bridge.saturating_add(stages[below].grid);
            let (back, ahead) = reach[below];
            widest.0 = widest.0.max(own.saturating_add(more).saturating_add(back));
            widest.1 = widest.1.max(more.saturating_add(ahead));
        }
        reach.push(widest);
    }
    let (back_ns, ahead_ns) = reach.last().copied().unwrap_or_default();
    let grid = stages.last().map_or(1, |stage| stage.grid);
    let piece_ns = grid * (PIECE_NS / grid).clamp(1, PIECE_POINTS_MAX);
    CacheKey { key, operands, piece_ns, back_ns, ahead_ns }
}

fn hash_stage(stage: &EvalStage, hasher: &mut DefaultHasher) {
    (&stage.path, stage.grid, format!("{:?} {:?} {:?} {:?}", stage.missing, stage.code, stage.along, stage.out))
        .hash(hasher);
    let mut one = |operand: &StageOperand| {
        (operand.steps, operand.bridge).hash(hasher);
        match &operand.source {
            OperandSource::Stage(number) => (1u8, *number).hash(hasher),
            OperandSource::Measured(measured) => {
                let info = &measured.info;
                let (kind, value_type) =
                    (info.kind == Kind::Counter, info.value_type == wholegrain_model::ValueType::Int);
                (2u8, info.id, &info.unit, info.scale.to_bits(), info.wraps_at, kind, value_type).hash(hasher);
            }
        }
    };
    stage.operands.iter().for_each(&mut one);
    for group in &stage.groups {
        one(&StageOperand {
            source: OperandSource::Stage(group.members.len()),
            steps: group.along.is_some(),
            bridge: group.agg as i64,
        });
        group.members.iter().for_each(&mut one);
    }
    let along: Vec<String> = stage.groups.iter().map(|group| format!("{:?}", group.along)).collect();
    along.hash(hasher);
}
