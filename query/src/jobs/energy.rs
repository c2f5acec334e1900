//! The energy of a job, from sensors of its nodes or the facility.
//!
//! Power (gauges in W) is integrated by the trapezoidal rule, energy (counters in J) by its differences; both are cut at the job's edges and at every
//! time at which the job's share changes. Holes add nothing; the result has the covered time.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wholegrain_model::{Conversion, Kind, Pattern, Unit, Value};
use wholegrain_store::{ReadSnapshot, ScanRequest, SensorInfo, SensorRange};

use crate::error::QueryError;
use crate::float_sum::FloatSum;
use crate::jobs::JobScope;
use crate::ops::DifferenceOp;
use crate::query::Op;
use crate::samples::{JoinedSample, JoinedSamples, NeighbourSamples};
use crate::scale::Scale;

/// Joules of a kilowatt-hour.
pub const J_PER_KWH: f64 = 3_600_000.0;

/// Separates the patterns of a meter.
const PLUS: &str = " + ";

/// The part of a shared node's energy that belongs to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnergyShare {
    /// The job's part of the allocated cores at each time.
    #[default]
    Cores,
    /// The job's part of the CPU time of all jobs on the node during the job.
    CpuTime,
    All,
}

impl EnergyShare {
    /// All of them with their names.
    pub const ALL: [(&'static str, EnergyShare); 3] =
        [("cores", EnergyShare::Cores), ("cpu_time", EnergyShare::CpuTime), ("all", EnergyShare::All)];

    /// The rule as a sentence, for the result.
    pub fn rule(self) -> &'static str {
        match self {
            EnergyShare::Cores => {
                "a job that is alone on a node has all energy of the node; with other jobs it has, at each moment, its part of the cores that are allocated to jobs there"
            }
            EnergyShare::CpuTime => {
                "a job that is alone on a node has all energy of the node; with other jobs it has its part of the CPU time that jobs used there during the job"
            }
            EnergyShare::All => "a job has all energy of its nodes during the job, also with other jobs there",
        }
    }
}

impl std::str::FromStr for EnergyShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, share)| *share).ok_or_else(|| format!("{text:?} is not a share; write cores, cpu_time or all"))
    }
}

/// The sensors that together measure a node: patterns below the node's prefix, joined by ` + `.
#[derive(Debug, Clone, PartialEq)]
pub struct EnergyMeter {
    text: String,
    parts: Vec<Pattern>,
}

impl EnergyMeter {
    /// Parses a meter such as `power` or `powercap/package-*/energy + powercap/package-*/dram/energy`.
    pub fn new(text: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let part = part.trim();
            let part = part.strip_prefix('/').unwrap_or(part);
            Pattern::new(format!("/{part}")).map_err(|error| error.to_string())
        };
        Ok(Self { text: text.to_owned(), parts: text.split(PLUS).map(part).collect::<Result<_, _>>()? })
    }

    /// The number of patterns in a text, without parsing them.
    pub fn count_parts(text: &str) -> usize {
        text.split(PLUS).count()
    }

    /// The text as it was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Patterns over whole paths that select at least the meter's sensors.
    pub fn patterns(&self) -> Vec<Pattern> {
        self.parts.iter().filter_map(|part| Pattern::new(format!("/**{part}")).ok()).collect()
    }

    /// Whether the meter includes a sensor, given by its path below the node's prefix.
    pub fn has(&self, below: &str) -> bool {
        !below.starts_with("job/") && self.parts.iter().any(|part| part.matches(below))
    }
}

/// A sensor that measures power or energy, with the conversion to W or J.
#[derive(Debug, Clone)]
pub struct EnergySource {
    sensor: SensorInfo,
    to: Conversion,
}

impl EnergySource {
    /// Checks that the sensor measures power or energy.
    pub fn new(sensor: SensorInfo) -> Result<Self, String> {
        let base = if sensor.kind == Kind::Gauge { "W" } else { "J" };
        let convert = |from: &str| Unit::parse(from)?.to(&Unit::parse(base)?);
        match convert(&sensor.unit) {
            Ok(conversion) => Ok(Self { to: conversion, sensor }),
            Err(_) => Err(format!(
                "{} is a {:?} in {:?}; expected a gauge of power (W) or a counter of energy (J)",
                sensor.path, sensor.kind, sensor.unit
            )),
        }
    }

    /// The path of the sensor.
    pub fn path(&self) -> &Arc<str> {
        &self.sensor.path
    }
}

/// The job's weight over time: its part of the measured energy.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareWeights {
    /// Times with the weight from then on, ascending; the first is the begin.
    steps: Vec<(i64, f64)>,
    end: i64,
}

impl ShareWeights {
    /// One weight from `from` to `to`.
    pub fn constant(from: i64, to: i64, weight: f64) -> Self {
        Self { steps: vec![(from, weight)], end: to.max(from) }
    }

    /// The weight of a job with `own` cores beside other jobs, each given by begin, end and cores.
    pub fn of_cores((from, to): (i64, i64), own: u64, others: &[(i64, i64, u64)]) -> Self {
        let mut changes: Vec<(i64, i128)> = Vec::with_capacity(others.len() * 2);
        let mut beside = 0;
        for &(begin, end, cores) in others {
            if begin >= to || end <= from {
                continue;
            }
            match begin > from {
                true => changes.push((begin, i128::from(cores))),
                false => beside += i128::from(cores),
            }
            if end < to {
                changes.push((end, -i128::from(cores)));
            }
        }
        changes.sort_unstable();
        let weight = |beside: i128| if own == 0 { 0.0 } else { own as f64 / (i128::from(own) + beside) as f64 };
        let mut steps = vec![(from, weight(beside))];
        for (time, change) in changes {
            beside += change;
            match steps.last_mut() {
                Some(last) if last.0 == time => last.1 = weight(beside),
                _ => steps.push((time, weight(beside))),
            }
        }
        Self { steps, end: to.max(from) }
    }

    /// The sum of several weights: for a sensor that measures several nodes.
    pub fn sum(all: &[ShareWeights]) -> Self {
        let mut changes: Vec<(i64, f64)> = Vec::new();
        for one in all {
            let mut before = 0.0;
            for &(time, weight) in &one.steps {
                changes.push((time, weight - before));
                before = weight;
            }
            changes.push((one.end, -before));
        }
        changes.sort_by_key(|change| change.0);
        let (mut steps, mut total): (Vec<(i64, f64)>, FloatSum) = (Vec::new(), FloatSum::default());
        for (time, change) in changes {
            total.add(change);
            match steps.last_mut() {
                Some(last) if last.0 == time => last.1 = total.total(),
                _ => steps.push((time, total.total())),
            }
        }
        let end = steps.last().map_or(0, |last| last.0);
        if steps.is_empty() {
            steps.push((0, 0.0));
        }
        Self { steps, end }
    }

    /// Multiplies every weight by `factor`.
    pub fn scaled(mut self, factor: f64) -> Self {
        self.steps.iter_mut().for_each(|step| step.1 *= factor);
        self
    }

    /// The length of the time, ns.
    pub fn time_ns(&self) -> i64 {
        self.end - self.steps[0].0
    }

    /// The mean weight over the time.
    pub fn mean(&self) -> f64 {
        let ends = self.steps.iter().skip(1).map(|step| step.0).chain([self.end]);
        let area: f64 = self.steps.iter().zip(ends).map(|(step, end)| step.1 * (end - step.0) as f64).sum();
        if self.time_ns() > 0 { area / self.time_ns() as f64 } else { self.steps[0].1 }
    }
}

/// The energy that one sensor measured for a job.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MeasuredEnergy {
    pub joules: f64,
    /// The covered time, ns.
    pub covered_ns: i64,
}

/// The energy that one sensor measured in the time of `weights`, weighted by them.
pub fn measure(
    snapshot: &dyn ReadSnapshot,
    source: &EnergySource,
    weights: &ShareWeights,
) -> Result<MeasuredEnergy, QueryError> {
    let EnergySource { sensor, to: unit } = source;
    let (from, to) = (weights.steps[0].0, weights.end);
    if from >= to {
        return Ok(MeasuredEnergy::default());
    }
    let reader = snapshot.open(&mut std::iter::once(SensorRange { sensor, from, to }))?;
    // Adds raw values; the sum is scaled and converted once.
    let mut deltas = DifferenceOp::new(Op::Delta, sensor.kind, sensor.wraps_at, Scale::ONE);
    let (mut previous, mut step) = (None::<(i64, f64)>, 0);
    let (mut joules, mut covered_ns) = (FloatSum::default(), 0);
    let beside = NeighbourSamples::new(reader.as_ref(), sensor);
    let scan = reader.scan(&ScanRequest::readings(sensor, beside.back(from)?, beside.ahead(to)?))?;
    for sample in JoinedSamples::new(scan.chunks(), beside) {
        let sample = sample?;
        let (JoinedSample { time, value, joined }, delta) = (sample, deltas.step(&sample));
        let value = value.map(Value::as_f64).filter(|value| !value.is_nan());
        let before = std::mem::replace(&mut previous, value.map(|value| (time, value)));
        let (Some((begin, first)), Some(last), true) = (before, value, joined) else { continue };
        if sensor.kind == Kind::Counter && delta.is_none() {
            continue;
        }
        let (mut at, end) = (begin.max(from), time.min(to));
        while at < end {
            while weights.steps.get(step + 1).is_some_and(|next| next.0 <= at) {
                step += 1;
            }
            let until = weights.steps.get(step + 1).map_or(end, |next| next.0.min(end));
            let height = |at: i64| first + (last - first) * seconds(at - begin) / seconds(time - begin);
            let part = match delta.filter(|_| sensor.kind == Kind::Counter) {
                None => (height(at) + height(until)) / 2.0 * seconds(until - at),
                Some(delta) if (at, until) == (begin, time) => delta,
                // A counter is assumed to rise evenly between readings.
                Some(delta) => delta * (seconds(until - at) / seconds(time - begin)),
            };
            joules.add(part * weights.steps[step].1);
            covered_ns += until - at;
            at = until;
        }
    }
    let (scale, total) = (Scale::new(sensor.scale), joules.total());
    let joules = scale.then(*unit).map_or_else(|| unit.apply(scale.apply(total)), |both| both.apply(total));
    Ok(MeasuredEnergy { joules, covered_ns })
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// The increase of a counter from `from` to `to`, as far as it has readings; `None` without readings.
pub fn rise(snapshot: &dyn ReadSnapshot, sensor: &SensorInfo, from: i64, to: i64) -> Result<Option<f64>, QueryError> {
    let reader = snapshot.open(&mut std::iter::once(SensorRange { sensor, from, to }))?;
    let mut deltas = DifferenceOp::new(Op::Delta, Kind::Counter, sensor.wraps_at, Scale::new(sensor.scale));
    let mut sum: Option<FloatSum> = None;
    let beside = NeighbourSamples::new(reader.as_ref(), sensor);
    let scan = reader.scan(&ScanRequest::readings(sensor, beside.back(from)?, to))?;
    for sample in JoinedSamples::new(scan.chunks(), beside) {
        let sample = sample?;
        if let Some(delta) = deltas.step(&sample).filter(|_| sample.time >= from) {
            sum.get_or_insert_default().add(delta);
        }
    }
    Ok(sum.map(|sum| sum.total()))
}

/// The sensors that measure each of a job's nodes, in the order of [`JobScope::places`], with the index of their meter: the first one that has sensors
/// on that node. Sensors of a meter that measure something else are added to `problems`, at most `problems_max`.
pub fn sources(
    job: &JobScope,
    meters: &[EnergyMeter],
    mut sensors: impl FnMut(&[Pattern]) -> Vec<SensorInfo>,
    problems: &mut Vec<String>,
    problems_max: usize,
) -> Vec<(Option<usize>, Vec<EnergySource>)> {
    let mut all: Vec<(Option<usize>, Vec<EnergySource>)> = vec![(None, Vec::new()); job.places().len()];
    for (number, meter) in meters.iter().enumerate() {
        if all.iter().all(|(found, _)| found.is_some()) {
            break;
        }
        for sensor in sensors(&meter.patterns()) {
            let Some((place, below)) = job.place_index(&sensor.path) else { continue };
            if !meter.has(below) || all[place].0.is_some_and(|found| found != number) {
                continue;
            }
            match EnergySource::new(sensor) {
                Ok(source) => {
                    all[place].0 = Some(number);
                    all[place].1.push(source);
                }
                Err(problem) if problems.len() < problems_max => problems.push(problem),
                Err(_) => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::{readings, sensor};

    const S: i64 = 1_000_000_000;

    #[test]
    fn cores_share_as_jobs_come_and_go() {
        let weights =
            ShareWeights::of_cores((0, 100), 4, &[(-10, 20, 4), (10, 30, 8), (90, 200, 4), (200, 300, 1), (-5, 0, 9)]);
        assert_eq!(weights.steps, [(0, 0.5), (10, 0.25), (20, 4.0 / 12.0), (30, 1.0), (90, 0.5)]);
        assert_eq!((weights.end, weights.time_ns()), (100, 100));
        let mean = (0.5 * 10.0 + 0.25 * 10.0 + 10.0 / 3.0 + 60.0 + 5.0) / 100.0;
        assert!((weights.mean() - mean).abs() < 1e-12);
        let sum = ShareWeights::sum(&[ShareWeights::constant(0, 10, 0.5), ShareWeights::constant(5, 20, 0.25)]);
        assert_eq!((sum.steps, sum.end), (vec![(0, 0.5), (5, 0.75), (10, 0.25), (20, 0.0)], 20));
    }

    #[test]
    fn power_and_energy_measure_the_same() {
        // 100 W, then 200 W from 50 s on; nothing from 60 to 80 s.
        let watts = |at: i64| if at < 50 { 100.0 } else { 200.0 };
        let times = || (0..100).filter(|at| !(60..80).contains(at));
        let power: Vec<(i64, f64)> = times().map(|at| (at * S, watts(at))).collect();
        let energy: Vec<(i64, f64)> = times().map(|at| (at * S, (0..at).map(watts).sum::<f64>())).collect();
        let gauge = EnergySource::new(sensor("/n/power", "W", Kind::Gauge)).unwrap();
        let counter = EnergySource::new(sensor("/n/energy", "kJ", Kind::Counter)).unwrap();
        let weights = ShareWeights::of_cores((10 * S + S / 2, 90 * S), 1, &[(20 * S, 30 * S, 1)]);
        let found = measure(&readings(power), &gauge, &weights).unwrap();
        // 9.5 s alone, 10 s halved, 20 s alone, to 59 s with the step between 49 and 50 s; 80 to 90 s.
        let exact = 100.0 * 9.5 + 50.0 * 10.0 + 100.0 * 19.0 + 150.0 + 200.0 * 9.0 + 200.0 * 10.0;
        assert_eq!((found.joules, found.covered_ns), (exact, 58 * S + S / 2));
        let found = measure(&readings(energy), &counter, &weights).unwrap();
        assert_eq!((found.joules, found.covered_ns), ((exact - 50.0) * 1000.0, 58 * S + S / 2));
        let empty = measure(&readings([]), &gauge, &weights).unwrap();
        assert_eq!(empty, MeasuredEnergy::default());
    }

    #[test]
    fn energy_is_rounded_once() {
        let counter = EnergySource::new(sensor("/n/energy", "uJ", Kind::Counter)).unwrap();
        let energy = (0..8).map(|at| (at * S, at as f64 * 34_346_052_323.857_142)).map(|(at, uj)| (at, uj.round()));
        let found = measure(&readings(energy), &counter, &ShareWeights::constant(0, 7 * S, 1.0)).unwrap();
        assert_eq!(found.joules, 240_422.366_267);
    }

    #[test]
    fn meters_and_sources() {
        let meter = EnergyMeter::new("power").unwrap();
        assert!(meter.has("power") && !meter.has("gpu/0/power") && !meter.has("job/7/power"));
        assert!(meter.patterns()[0].matches("/lrz/n1/power"));
        let both = EnergyMeter::new("powercap/package-*/energy + powercap/package-*/dram/energy").unwrap();
        assert!(both.has("powercap/package-1/energy") && both.has("powercap/package-0/dram/energy"));
        assert!(!both.has("powercap/package-0/core/energy"));
        assert!(EnergyMeter::new("a//b").is_err());
        for (unit, kind, good) in [
            ("mW", Kind::Gauge, true),
            ("kW.h", Kind::Counter, true),
            ("W", Kind::Counter, false),
            ("Cel", Kind::Gauge, false),
            ("", Kind::Gauge, false),
        ] {
            assert_eq!(EnergySource::new(sensor("/n/x", unit, kind)).is_ok(), good, "{unit}");
        }
        assert_eq!(EnergySource::new(sensor("/n/x", "kW.h", Kind::Counter)).unwrap().to.factor(), J_PER_KWH);
    }
}
