//! A slow reference implementation: computes each value at each time from its definition. The evaluator must agree.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use wholegrain_model::{Interval, Kind, Pattern, Unit, Value, ValueType};
use wholegrain_store::{
    ReadSnapshot, Scan, ScanRequest, SensorId, SensorInfo, SensorRange, SnapshotReader, StoreError,
};
use wholegrain_testkit::{Random, seed};

use super::super::ast::{Along, Binary, Expr, ExprNode, Function, Unary};
use super::super::{CheckedDefinition, Definition, MissingOperands, SensorLookup, VirtualSensor, parse};
use super::{ComputedSnapshot, interval_ns};
use crate::{Agg, HOLE_INTERVALS, LOOK_BACK_NS_UNKNOWN, Scale, reference};

pub(super) const MS: i64 = 1_000_000;
pub(super) const S: i64 = 1_000 * MS;

type Rows = Vec<(i64, Option<Value>)>;

/// Measured sensors with readings, and virtual sensors.
#[derive(Default)]
pub(super) struct World {
    pub measured: Vec<(SensorInfo, Rows)>,
    pub computed: Vec<Arc<VirtualSensor>>,
    /// The most rows of a chunk.
    pub chunk: usize,
}

pub(super) fn gauge(id: u32, path: &str, unit: &str, interval_ns: i64) -> SensorInfo {
    let sensor = reference::sensor(id, path, Kind::Gauge, ValueType::Float);
    SensorInfo { unit: unit.to_owned(), interval_ns: interval_ns as u64, ..sensor }
}

impl World {
    /// Adds a virtual sensor with the interval that the evaluator derives.
    pub fn define(&mut self, definition: Definition) {
        let expr = parse(&definition.expression, &definition.path).unwrap();
        let unit = Unit::parse(&definition.unit).unwrap();
        let id = SensorId::COMPUTED + self.computed.len() as u32;
        let info = gauge(id, &definition.path, &definition.unit, 0);
        let checked = CheckedDefinition { expr, unit, number: 1, definition };
        let mut instance = VirtualSensor { info, definition: Arc::new(checked) };
        let expr = instance.expr().unwrap();
        let mut intervals = Vec::new();
        super::super::each_reference(&expr, &mut |reference, _| {
            intervals.extend(SensorLookup::sensors(self, &reference.pattern).iter().map(|sensor| sensor.interval_ns));
        });
        instance.info.interval_ns = interval_ns(instance.definition.definition.interval, intervals.into_iter());
        self.computed.push(Arc::new(instance));
    }

    pub(crate) fn info(&self, path: &str) -> SensorInfo {
        SensorLookup::sensors(self, &Pattern::new(path).unwrap())[0].clone()
    }
}

impl SensorLookup for World {
    fn sensors(&self, pattern: &Pattern) -> Vec<SensorInfo> {
        let measured = self.measured.iter().map(|(info, _)| info);
        let all = measured.chain(self.computed.iter().map(|instance| &instance.info));
        let mut found: Vec<SensorInfo> = all.filter(|info| pattern.matches(&info.path)).cloned().collect();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    fn instance(&self, sensor: &SensorInfo) -> Option<Arc<VirtualSensor>> {
        self.computed.iter().find(|instance| instance.info.path == sensor.path).cloned()
    }
}

/// The readings of a world, with the number of rows read.
#[derive(Clone)]
pub(super) struct Readings(pub Arc<World>, pub Arc<Mutex<u64>>);

impl ReadSnapshot for Readings {
    fn open(&self, _: &mut dyn Iterator<Item = SensorRange<'_>>) -> Result<Arc<dyn SnapshotReader>, StoreError> {
        Ok(Arc::new(self.clone()))
    }
}

impl SnapshotReader for Readings {
    fn scan(&self, request: &ScanRequest<'_>) -> Result<Scan, StoreError> {
        let ScanRequest { sensor, from, to, .. } = *request;
        let Some((_, rows)) = self.0.measured.iter().find(|(info, _)| info.id == sensor.id) else {
            return Err(StoreError::Sensor(format!("{} is scanned and is not measured", sensor.path)));
        };
        let rows: Rows = rows.iter().filter(|row| (from..to).contains(&row.0)).copied().collect();
        let (size, read) = (self.0.chunk.max(1), self.1.clone());
        let value_type = sensor.value_type;
        let starts: Vec<usize> = (0..rows.len()).step_by(size).collect();
        let chunk = move |start| {
            let rows = &rows[start..rows.len().min(start + size)];
            *read.lock().unwrap() += rows.len() as u64;
            Ok(reference::chunk(rows, value_type))
        };
        Ok(Scan::of_chunks(request, starts.into_iter().map(chunk)))
    }
}

/// `None`: no row. `Some(None)`: a gap.
type Sample = Option<Option<f64>>;
/// The values by sensor or expression, and time.
type Memo<T> = RefCell<HashMap<(usize, i64), T>>;

pub(super) struct Reference<'a> {
    world: &'a World,
    exprs: RefCell<HashMap<String, Arc<Expr>>>,
    rows: RefCell<HashMap<(String, i64), Sample>>,
    values: Memo<Option<f64>>,
}

fn fine(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn floor(time: i64, step: i64) -> i64 {
    time - time.rem_euclid(step)
}

fn line(from: (i64, f64), to: (i64, f64), at: i64) -> f64 {
    from.1 + (to.1 - from.1) * ((at - from.0) as f64 / (to.0 - from.0) as f64)
}

/// Aggregates values in the order of their sensors or times.
fn aggregate(agg: Agg, values: &[f64]) -> Option<f64> {
    if agg == Agg::Count {
        return Some(values.len() as f64);
    }
    let (first, last) = (*values.first()?, *values.last()?);
    fine(match agg {
        Agg::Mean | Agg::SampleMean => values.iter().sum::<f64>() / values.len() as f64,
        Agg::Sum => values.iter().sum(),
        Agg::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
        Agg::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Agg::First => first,
        Agg::Last | Agg::Count => last,
    })
}

impl<'a> Reference<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self { world, exprs: RefCell::default(), rows: RefCell::default(), values: Memo::default() }
    }

    fn expr(&self, instance: &VirtualSensor) -> Arc<Expr> {
        let mut exprs = self.exprs.borrow_mut();
        exprs.entry(instance.info.path.to_string()).or_insert_with(|| Arc::new(instance.expr().unwrap())).clone()
    }

    /// The rows of a computed sensor in the declared unit.
    pub fn series(&self, path: &str, from: i64, to: i64) -> Vec<(i64, Option<f64>)> {
        let instance = self.world.instance(&self.world.info(path)).unwrap();
        let unit = &instance.definition.unit;
        let out = Unit::parse(&unit.dimension().base_code()).unwrap().to(unit).unwrap();
        let grid = instance.info.interval_ns as i64;
        let times = (from.div_euclid(grid)..=to.div_euclid(grid)).map(|point| point * grid);
        let times = times.filter(|time| (from..to).contains(time));
        let row = |time| Some((time, self.row(&instance, time)?.and_then(|value| fine(out.apply(value)))));
        times.filter_map(row).collect()
    }

    /// A computed sensor at a time of its grid, in base units.
    fn row(&self, instance: &VirtualSensor, time: i64) -> Sample {
        let key = (instance.info.path.to_string(), time);
        if let Some(known) = self.rows.borrow().get(&key) {
            return *known;
        }
        let expr = self.expr(instance);
        let mut sampled = false;
        super::super::each_reference(&expr, &mut |reference, _| {
            for sensor in SensorLookup::sensors(self.world, &reference.pattern) {
                sampled |= self.operand(instance, &sensor, time).is_some();
            }
        });
        let found = sampled.then(|| self.value(instance, &expr, time));
        self.rows.borrow_mut().insert(key, found);
        found
    }

    fn bridge(&self, instance: &VirtualSensor, sensor: &SensorInfo) -> i64 {
        let given = instance.definition.definition.bridge.map(|bridge| bridge.ns() as i64);
        given.unwrap_or(match sensor.interval_ns as i64 {
            0 => LOOK_BACK_NS_UNKNOWN,
            interval => interval * HOLE_INTERVALS,
        })
    }

    /// The value of an operand at any time.
    fn operand(&self, instance: &VirtualSensor, sensor: &SensorInfo, time: i64) -> Sample {
        let bridge = self.bridge(instance, sensor);
        let (before, after) = if sensor.id.is_computed() {
            let of = self.world.instance(sensor).unwrap();
            let grid = of.info.interval_ns as i64;
            let row = |time: i64| Some((time, self.row(&of, time)?));
            let count = bridge / grid + 1;
            let before = (0..=count).map(|back| floor(time, grid) - back * grid).find_map(row);
            let after = (0..=count).map(|ahead| floor(time + grid - 1, grid) + ahead * grid).find_map(row);
            (before, after)
        } else {
            let (_, rows) = self.world.measured.iter().find(|(info, _)| info.id == sensor.id).unwrap();
            let unit = Unit::parse(&sensor.unit).unwrap().to_base();
            let quantity = |row: &(i64, Option<Value>)| {
                let value = row.1.and_then(|value| fine(unit.apply(Scale::new(sensor.scale).apply(value.as_f64()))));
                (row.0, value)
            };
            let at = rows.partition_point(|row| row.0 < time);
            let exact = rows.get(at).filter(|row| row.0 == time);
            let before = exact.or_else(|| rows.get(at.checked_sub(1)?)).map(quantity);
            (before, rows.get(at).map(quantity))
        };
        let ((first, old), (next, new)) = match (before, after) {
            (Some(before), _) if before.0 == time => return Some(before.1),
            (Some(before), Some(after)) => (before, after),
            _ => return None,
        };
        if next - first > bridge {
            return None;
        }
        Some(old.zip(new).and_then(|(old, new)| fine(line((first, old), (next, new), time))))
    }

    /// The increase of a counter in the step that ends at `time`, in base units.
    fn step(&self, instance: &VirtualSensor, sensor: &SensorInfo, time: i64) -> Option<f64> {
        let (_, rows) = self.world.measured.iter().find(|(info, _)| info.id == sensor.id).unwrap();
        let (bridge, start) = (self.bridge(instance, sensor), time - instance.info.interval_ns as i64);
        let (mut gone, mut known) = (0.0, 0);
        for pair in rows.windows(2) {
            let ((from, old), (to, new)) = (pair[0], pair[1]);
            let overlap = to.min(time) - from.max(start);
            if overlap <= 0 || to - from > bridge {
                continue;
            }
            let (old, new) = (fine(old?.as_f64())?, fine(new?.as_f64())?);
            let went = if new >= old {
                new - old
            } else if new < 0.0 {
                return None;
            } else {
                match sensor.wraps_at {
                    Some(modulus) if old < modulus as f64 && (new + modulus as f64 - old) * 2.0 <= modulus as f64 => {
                        new + modulus as f64 - old
                    }
                    _ => new,
                }
            };
            gone += went * (overlap as f64 / (to - from) as f64);
            known += overlap;
        }
        let factor = Unit::parse(&sensor.unit).unwrap().to_base().factor();
        (known == time - start).then(|| Scale::new(sensor.scale).apply(gone) * factor).and_then(fine)
    }

    fn value(&self, instance: &VirtualSensor, expr: &Expr, time: i64) -> Option<f64> {
        let key = (std::ptr::from_ref(expr) as usize, time);
        if let Some(known) = self.values.borrow().get(&key) {
            return *known;
        }
        let found = self.compute(instance, expr, time).and_then(fine);
        self.values.borrow_mut().insert(key, found);
        found
    }

    fn compute(&self, instance: &VirtualSensor, expr: &Expr, time: i64) -> Option<f64> {
        let of = |expr: &Expr| self.value(instance, expr, time);
        match &expr.node {
            ExprNode::Number { value, unit } => {
                Some(Unit::parse(unit.as_deref().unwrap_or("")).unwrap().to_base().apply(*value))
            }
            ExprNode::Sensor(reference) => {
                let sensors = SensorLookup::sensors(self.world, &reference.pattern);
                self.operand(instance, sensors.first()?, time).flatten()
            }
            ExprNode::Over { agg, along, reference } => {
                let sensors = SensorLookup::sensors(self.world, &reference.pattern);
                let value = |sensor: &SensorInfo| match along {
                    None => self.operand(instance, sensor, time).flatten(),
                    Some(along) => self.along(instance, *along, Some(sensor), time, &|time| {
                        self.operand(instance, sensor, time).flatten()
                    }),
                };
                let values: Vec<f64> = sensors.iter().filter_map(value).collect();
                // Where none of them is sampled there is nothing to count.
                if !sensors.iter().any(|sensor| self.operand(instance, sensor, time).is_some()) {
                    return None;
                }
                let missing = instance.definition.definition.missing;
                if *agg != Agg::Count && missing == MissingOperands::Gap && values.len() < sensors.len() {
                    return None;
                }
                aggregate(*agg, &values)
            }
            ExprNode::Unary(Unary::Minus, operand) => Some(-of(operand)?),
            ExprNode::Unary(Unary::Not, operand) => Some(f64::from(u8::from(of(operand)? == 0.0))),
            ExprNode::Binary(operator, left, right) => binary(*operator, of(left)?, of(right)?),
            ExprNode::If(three) => of(if of(&three[0])? == 0.0 { &three[2] } else { &three[1] }),
            ExprNode::Call(function, operands) => {
                let values: Option<Vec<f64>> = operands.iter().map(of).collect();
                let values = values?;
                fine(match function {
                    Function::Abs => values[0].abs(),
                    Function::Sqrt => values[0].sqrt(),
                    Function::Exp => values[0].exp(),
                    Function::Ln => values[0].ln(),
                    Function::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
                    Function::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    Function::Clamp => values[0].max(values[1]).min(values[2]),
                })
            }
            ExprNode::Along(along, operand) => {
                let sensors = match &operand.node {
                    ExprNode::Sensor(reference) => SensorLookup::sensors(self.world, &reference.pattern),
                    _ => Vec::new(),
                };
                let value = |time| self.value(instance, operand, time);
                self.along(instance, *along, sensors.first(), time, &value)
            }
        }
    }

    fn along(
        &self,
        instance: &VirtualSensor,
        along: Along,
        sensor: Option<&SensorInfo>,
        time: i64,
        of: &dyn Fn(i64) -> Option<f64>,
    ) -> Option<f64> {
        let grid = instance.info.interval_ns as i64;
        let counter = sensor.filter(|sensor| sensor.kind == Kind::Counter && !sensor.id.is_computed());
        let difference = || match counter {
            Some(sensor) => self.step(instance, sensor, time),
            None => Some(of(time)? - of(time - grid)?),
        };
        match along {
            Along::Delta => difference(),
            Along::Rate => Some(difference()? / (grid as f64 / 1e9)),
            Along::Moving(agg, window) => {
                of(time)?;
                let window = window.ns() as i64;
                let times = (0..).map(|back| time - back * grid).take_while(|at| *at > time - window);
                let mut times: Vec<i64> = times.collect();
                times.reverse();
                aggregate(agg, &times.into_iter().filter_map(of).collect::<Vec<f64>>())
            }
            Along::Integral(period) => {
                of(time)?;
                let start = floor(time, period.ns() as i64);
                let mut total = 0.0;
                let mut at = floor(start, grid);
                while at < time {
                    if let (Some(left), Some(right)) = (of(at), of(at + grid)) {
                        let from = at.max(start);
                        let begin = line((at, left), (at + grid, right), from);
                        total += (begin + right) / 2.0 * ((at + grid - from) as f64 / 1e9);
                    }
                    at += grid;
                }
                Some(total)
            }
        }
    }
}

fn binary(operator: Binary, a: f64, b: f64) -> Option<f64> {
    let truth = |is: bool| f64::from(u8::from(is));
    fine(match operator {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::Power if a.is_nan() => f64::NAN,
        Binary::Power => a.powi(b as i32),
        Binary::Less => truth(a < b),
        Binary::LessOrEqual => truth(a <= b),
        Binary::Greater => truth(a > b),
        Binary::GreaterOrEqual => truth(a >= b),
        Binary::Equal => truth(a == b),
        Binary::NotEqual => truth(a != b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
    })
}

/// The rows of a chunked scan.
pub(super) fn rows(scan: Scan) -> Result<Vec<(i64, Option<f64>)>, StoreError> {
    let mut rows = Vec::new();
    for chunk in scan.chunks() {
        let chunk = chunk?;
        assert_eq!(chunk.times.len(), chunk.column.len());
        assert!(!chunk.times.is_empty(), "an empty chunk");
        rows.extend(chunk.times.iter().enumerate().map(|(at, time)| (*time, chunk.column.get(at).map(Value::as_f64))));
    }
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "times rise");
    Ok(rows)
}

pub(super) fn definition(path: &str, expression: &str, unit: &str) -> Definition {
    Definition {
        path: path.to_owned(),
        expression: expression.to_owned(),
        unit: unit.to_owned(),
        ..Definition::default()
    }
}

pub(super) fn scan(world: &Arc<World>, path: &str, from: i64, to: i64) -> Result<Vec<(i64, Option<f64>)>, StoreError> {
    let readings = Readings(world.clone(), Arc::default());
    let computed = ComputedSnapshot::new(Box::new(readings), world.clone(), None);
    let reader = computed.open(&mut std::iter::empty())?;
    rows(reader.scan(&ScanRequest::readings(&world.info(path), from, to))?)
}

#[track_caller]
pub(super) fn assert_alike(found: &[(i64, Option<f64>)], expected: &[(i64, Option<f64>)], what: &str) {
    type Row = (i64, Option<f64>);
    let alike = |(a, b): (&Row, &Row)| {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-7 * (1.0 + a.abs().max(b.abs()));
        a.0 == b.0
            && match (a.1, b.1) {
                (Some(a), Some(b)) => near(a, b),
                (a, b) => a.is_none() && b.is_none(),
            }
    };
    if let Some(at) =
        (0..found.len().max(expected.len())).find(|at| !found.get(*at).zip(expected.get(*at)).is_some_and(alike))
    {
        let part =
            |rows: &[(i64, Option<f64>)]| rows[at.saturating_sub(2).min(rows.len())..rows.len().min(at + 3)].to_vec();
        panic!("{what}: at row {at}: found {:?}, expected {:?}", part(found), part(expected));
    }
}

/// The readings of a random sensor over about `len` seconds.
fn random_rows(random: &mut Random, info: &SensorInfo, interval: i64, len: i64) -> Rows {
    let offset = if random.chance(50) { 0 } else { random.below(interval as u64) as i64 };
    let mut time = floor(1_000 * S, interval) + offset + random.below(10) as i64 * interval;
    let mut value = random.below(1000) as i64;
    let mut rows = Vec::new();
    while time < (1_000 + len) * S {
        value = match info.kind {
            Kind::Counter if random.chance(5) => random.below(20) as i64,
            Kind::Counter => value + random.below(300) as i64,
            Kind::Gauge => random.below(2_000) as i64 - 700,
        };
        if info.wraps_at.is_some_and(|modulus| value as u64 >= modulus) {
            value -= info.wraps_at.unwrap() as i64;
        }
        let raw = match info.value_type {
            ValueType::Int => Value::Int(value),
            ValueType::Float if random.chance(2) => Value::Float(random.pick(&[f64::NAN, f64::INFINITY])),
            ValueType::Float => Value::Float(value as f64 / 8.0),
        };
        rows.push((time, (!random.chance(6)).then_some(raw)));
        time += match random.below(30) {
            0 => interval * (2 + random.below(6) as i64),
            1 => interval + random.below(interval as u64) as i64,
            2 if random.chance(25) => interval * 400,
            2 => interval * 40,
            _ => interval,
        };
        if random.chance(5) {
            time = floor(time, interval) + offset;
        }
        if rows.last().is_some_and(|last| last.0 >= time) {
            time = rows[rows.len() - 1].0 + interval;
        }
    }
    rows
}

/// A random expression over the given names.
fn random_text(random: &mut Random, names: &[String], depth: u64) -> String {
    let name = random.pick(names);
    if depth == 0 || random.chance(15) {
        return if random.chance(15) { random.pick(&["1.37", "0.5", "7.25"]).to_owned() } else { format!("<{name}>") };
    }
    let window = random.pick(&["5s", "7s", "30s", "2500ms", "1min"]);
    match random.below(16) {
        0..4 => {
            let operator = random.pick(&["+", "-", "*"]);
            format!("({} {operator} {})", random_text(random, names, depth - 1), random_text(random, names, depth - 1))
        }
        4 => format!("{} / <{name}>", random_text(random, names, depth - 1)),
        5 => format!("{} / (abs(<{name}>) + 1.37)", random_text(random, names, depth - 1)),
        6 => {
            let condition = format!("<{name}> {} 13.7312", random.pick(&["<", ">", "<=", ">=", "==", "!="]));
            let (then, otherwise) = (random_text(random, names, depth - 1), random_text(random, names, depth - 1));
            format!("if({condition}, {then}, {otherwise})")
        }
        7 => format!("clamp({}, -20.5, 90.25)", random_text(random, names, depth - 1)),
        8 => format!("{}(<{name}>, {})", random.pick(&["min", "max"]), random_text(random, names, depth - 1)),
        9 => {
            let function = random.pick(&["sum", "mean", "min", "max", "count"]);
            let pattern = random.pick(&["/m/*", "/m/a*", "/c/*"]);
            let over = random.pick(&["", "rate", "delta"]);
            if over.is_empty() {
                format!("{function}(<{pattern}>)")
            } else {
                format!("{function}({over}(<{pattern}>))")
            }
        }
        10 => format!("rate({})", random_text(random, names, depth - 1)),
        11 => format!("delta({})", random_text(random, names, depth - 1)),
        12 => format!("integral({}, {window})", random_text(random, names, depth - 1)),
        13 => {
            let moving = random.pick(&["moving_average", "moving_min", "moving_max", "moving_sum"]);
            format!("{moving}({}, {window})", random_text(random, names, depth - 1))
        }
        14 => format!("(<{name}> > 5.1234 and not (<{name}> > 50.4321)) * {}", random_text(random, names, depth - 1)),
        _ => format!("-({})", random_text(random, names, depth - 1)),
    }
}

fn random_world(random: &mut Random) -> World {
    let mut world = World { chunk: 1 + random.below(40) as usize, ..World::default() };
    let len = 60 + random.below(120) as i64;
    let paths = ["/m/a1", "/m/a2", "/m/b", "/m/c", "/c/n1", "/c/n2", "/c/n3"];
    for (id, path) in paths.iter().enumerate() {
        let interval = random.pick(&[500 * MS, S, S, S, 2 * S, 5 * S, 0]);
        let mut info = gauge(id as u32, path, random.pick(&["W", "kW", "1", "Cel", "%"]), interval);
        info.value_type = random.pick(&[ValueType::Int, ValueType::Float]);
        info.scale = random.pick(&[1.0, 1.0, 0.1, 2.0]);
        if path.starts_with("/c/") {
            info.kind = Kind::Counter;
            info.unit = random.pick(&["By", "kBy", "1"]).to_owned();
            info.wraps_at = random.chance(40).then_some(4_000);
        }
        let rows = random_rows(random, &info, if interval == 0 { 1_500 * MS } else { interval }, len);
        world.measured.push((info, rows));
    }
    let mut names: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    for number in 0..4 {
        let path = format!("/v/{number}");
        let mut definition = definition(&path, &random_text(random, &names, 3), "1");
        definition.unit = random.pick(&["1", "kW", "%", "Cel"]).to_owned();
        definition.interval = random.pick(&[None, None, Some(Interval::from_ms(2500)), Some(Interval::from_s(3))]);
        definition.bridge = random.pick(&[None, None, Some(Interval::from_ms(1)), Some(Interval::from_s(60))]);
        definition.missing = random.pick(&[MissingOperands::Gap, MissingOperands::Skip]);
        world.define(definition);
        names.push(path);
    }
    world
}

const ROUNDS: u64 = 80;

#[test]
fn every_value_follows_from_the_definition() {
    let first = seed();
    let mut values = 0;
    for seed in first..first + ROUNDS {
        let mut random = Random::new(seed);
        let world = Arc::new(random_world(&mut random));
        let reference = Reference::new(&world);
        for instance in &world.computed {
            let (path, definition) = (&instance.info.path, &instance.definition.definition);
            let what = format!("WHOLEGRAIN_SEED={seed}: {path} = {definition:?}");
            let (from, to) = match random.below(3) {
                0 => (900 * S, 1_300 * S),
                _ => {
                    let from = 950 * S + random.below(200 * S as u64) as i64;
                    (from, from + random.below(150 * S as u64) as i64)
                }
            };
            let expected = reference.series(path, from, to);
            values += expected.iter().filter(|row| row.1.is_some()).count();
            assert_alike(&scan(&world, path, from, to).expect(&what), &expected, &what);
        }
    }
    println!("{values} values compared");
    assert!(values > 1_000, "only {values} values were there to compare");
}

#[test]
fn a_gap_to_the_power_of_zero_is_a_gap() {
    let mut world = World { chunk: 4, ..World::default() };
    let rows = (0..10).map(|at| ((1_000 + at) * S, (at != 4).then_some(Value::Float(at as f64)))).collect();
    world.measured.push((gauge(0, "/m/a", "1", S), rows));
    world.define(definition("/v/p", "</m/a>^0", "1"));
    let found = scan(&Arc::new(world), "/v/p", 1_000 * S, 1_010 * S).unwrap();
    let expected: Vec<_> = (0..10).map(|at| ((1_000 + at) * S, (at != 4).then_some(1.0))).collect();
    assert_alike(&found, &expected, "/v/p");
}

#[test]
fn every_aggregate_over_sensors_and_time_is_right() {
    let first = seed();
    for seed in first..first + 20 {
        let mut random = Random::new(seed);
        let mut world = random_world(&mut random);
        for (at, agg) in ["sum", "mean", "min", "max", "count"].into_iter().enumerate() {
            for (number, of) in ["<X>", "rate(<X>)", "delta(<X>)", "integral(<X>, 20s)", "moving_average(<X>, 7s)"]
                .into_iter()
                .enumerate()
            {
                let of = of.replace('X', random.pick(&["/m/*", "/c/*", "/v/*", "/m/*1"]));
                let mut definition = definition(&format!("/w/{at}{number}"), &format!("{agg}({of})"), "1");
                definition.missing = random.pick(&[MissingOperands::Gap, MissingOperands::Skip]);
                definition.interval = random.pick(&[None, Some(Interval::from_s(2))]);
                if parse(&definition.expression, &definition.path).is_ok() {
                    world.define(definition);
                }
            }
        }
        let world = Arc::new(world);
        let reference = Reference::new(&world);
        for instance in world.computed.iter().filter(|instance| instance.info.path.starts_with("/w/")) {
            let what = format!("WHOLEGRAIN_SEED={seed}: {:?}", instance.definition.definition);
            let expected = reference.series(&instance.info.path, 990 * S, 1_200 * S);
            let found = scan(&world, &instance.info.path, 990 * S, 1_200 * S).expect(&what);
            assert_alike(&found, &expected, &what);
        }
    }
}
