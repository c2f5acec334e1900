//! Metric reports: values that the service measured earlier, each with its own time (DSP2051, MetricReport).
//!
//! A report can have many times at once. They wait in a bounded queue, and each read of the group takes the oldest: a sample has the time that the
//! service gave its values. Values whose times differ by at most 1 s are one sample.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use wholegrain_devices::{DeviceProblem, NewNames, WallTime};
use wholegrain_model::name::sanitize_level;
use wholegrain_model::schema::UNIT_BYTES_MAX;
use wholegrain_model::time::Timestamp;
use wholegrain_model::unit::Unit;
use wholegrain_model::{Kind, SensorDef};
use wholegrain_sources::{Reader, Reading, Row};

use crate::links::resource_level;
use crate::measures::quantity;

/// The most samples of a report that wait to be read.
const SAMPLES_MAX: usize = 256;
/// The most values of one report.
const VALUES_MAX: usize = 20_000;
/// Values whose times differ by no more are one sample: 1 s.
const SAME_NS: i64 = 1_000_000_000;
/// How far a report's time may be ahead of this machine's: 1 h.
const AHEAD_NS_MAX: i64 = 3_600_000_000_000;
/// How old a value may be: 7 days.
const AGE_NS_MAX: i64 = 7 * 86_400_000_000_000;

/// Units and kinds of metrics, by their identifiers.
pub type DefinitionTable = HashMap<String, MetricDefinition>;

/// What a `MetricDefinition` says of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricDefinition {
    unit: Option<String>,
    kind: Kind,
    name: Option<String>,
}

impl MetricDefinition {
    /// Reads the resource. A unit that is no UCUM code is none.
    pub fn of(document: &Value) -> Self {
        let unit = document["Units"].as_str().filter(|unit| unit.len() <= UNIT_BYTES_MAX && Unit::parse(unit).is_ok());
        let is_counter = document["MetricType"].as_str() == Some("Counter");
        let name = document["Name"].as_str().map(|name| name.chars().filter(|c| !c.is_control()).take(100).collect());
        Self {
            unit: unit.filter(|unit| !unit.is_empty()).map(str::to_owned),
            kind: if is_counter { Kind::Counter } else { Kind::Gauge },
            name,
        }
    }
}

/// The samples of one report that wait to be read.
pub struct ReportQueue {
    /// What precedes the sensors' names.
    prefix: String,
    sensors_max: usize,
    /// The names that the controller may have that it did not have before.
    names: Arc<Mutex<NewNames>>,
    state: Mutex<ReportState>,
}

#[derive(Default)]
struct ReportState {
    /// Rises with each change of the sensors.
    layout: u64,
    sensors: Vec<SensorDef>,
    /// The sensor of each metric, and the time of its newest value.
    metrics: HashMap<String, (usize, i64)>,
    samples: VecDeque<ReportSample>,
    /// The time of the sample that was read last: times of a group increase.
    read_ns: i64,
    /// When a report came last, on the clock of this machine.
    received_ns: i64,
    problem: Option<DeviceProblem>,
    counts: ReportCounts,
}

struct ReportSample {
    time_ns: i64,
    values: Vec<Option<u64>>,
}

/// Values that were not taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportCounts {
    /// Older than a sample that was read already, or beyond the queue's end.
    pub late: u64,
    /// With a time that cannot be: the service's clock is wrong.
    pub implausible: u64,
}

/// One value of a report.
struct ReportValue<'a> {
    metric: String,
    id: &'a str,
    property: &'a str,
    time_ns: i64,
    value: f64,
}

impl ReportQueue {
    /// A queue without sensors. `prefix` precedes their names.
    pub fn new(prefix: String, sensors_max: usize, names: Arc<Mutex<NewNames>>) -> Self {
        Self { prefix, sensors_max, names, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ReportState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was not taken so far.
    pub fn counts(&self) -> ReportCounts {
        self.lock().counts
    }

    /// Notes why there is no newer report.
    pub fn fail(&self, problem: DeviceProblem) {
        self.lock().problem = Some(problem);
    }

    /// Takes a report that came at `now_ns`. Whether it has sensors that were unknown.
    pub fn take(&self, document: &Value, definitions: &DefinitionTable, now_ns: i64) -> Result<bool, DeviceProblem> {
        let Some(list) = document["MetricValues"].as_array() else {
            return Err(DeviceProblem::Garbage("no metric report"));
        };
        let mut state = self.lock();
        (state.received_ns, state.problem) = (now_ns, None);
        let reported = time(document.get("Timestamp")).unwrap_or(now_ns);
        let mut values = Vec::new();
        for entry in list.iter().take(VALUES_MAX) {
            let text = |key: &str| entry[key].as_str().unwrap_or_default();
            let Some(value) = number(&entry["MetricValue"]) else { continue };
            let time_ns = time(entry.get("Timestamp")).unwrap_or(reported);
            if time_ns > now_ns.saturating_add(AHEAD_NS_MAX) || time_ns < now_ns.saturating_sub(AGE_NS_MAX) {
                state.counts.implausible += 1;
                continue;
            }
            let (id, property) = (text("MetricId"), text("MetricProperty"));
            values.push(ReportValue { metric: metric_name(id, property), id, property, time_ns, value });
        }
        let is_new = {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            state.learn((&self.prefix, self.sensors_max), &mut names, &values, definitions)
        };
        values.sort_by_key(|value| value.time_ns);
        state.add(&values);
        Ok(is_new)
    }

    /// The sensors and a reader for them, once they are known.
    pub fn reader(self: &Arc<Self>, stale_ns: u64, now: WallTime) -> Option<(Vec<SensorDef>, ReportReader)> {
        let state = self.lock();
        let stale_ns = i64::try_from(stale_ns).unwrap_or(i64::MAX);
        let reader = ReportReader { queue: self.clone(), layout: state.layout, stale_ns, now };
        (state.layout > 0).then(|| (state.sensors.clone(), reader))
    }
}

impl ReportState {
    fn learn(
        &mut self,
        (prefix, sensors_max): (&str, usize),
        names: &mut NewNames,
        values: &[ReportValue],
        definitions: &DefinitionTable,
    ) -> bool {
        let before = self.sensors.len();
        for value in values {
            if self.metrics.contains_key(&value.metric) || self.sensors.len() == sensors_max {
                continue;
            }
            if names.take(1, Instant::now()) == 0 {
                break;
            }
            let definition = definitions.get(value.id);
            let last = value.property.rsplit(['/', '#']).next().unwrap_or_default();
            let of_name = quantity(last).or_else(|| quantity(value.id));
            let unit = definition.and_then(|definition| definition.unit.clone());
            let unit = unit.or_else(|| of_name.as_ref().map(|(_, unit, _)| (*unit).to_owned()));
            let kind = definition.map_or(Kind::Gauge, |definition| definition.kind);
            let text = definition.and_then(|definition| definition.name.clone());
            let text = text.unwrap_or_else(|| value.property.chars().filter(|c| !c.is_control()).take(200).collect());
            let name = format!("{prefix}/{}", value.metric);
            let sensor = SensorDef::gauge(name, unit.as_deref().unwrap_or("1"), &text).float();
            self.metrics.insert(value.metric.clone(), (self.sensors.len(), i64::MIN));
            self.sensors.push(SensorDef { kind, ..sensor });
        }
        let is_new = self.sensors.len() > before;
        if is_new {
            self.layout += 1;
            for sample in &mut self.samples {
                sample.values.resize(self.sensors.len(), None);
            }
        }
        is_new
    }

    /// Puts values in the order of their times into samples. Each value is taken once.
    fn add(&mut self, values: &[ReportValue]) {
        for value in values {
            let Some((index, newest)) = self.metrics.get_mut(&value.metric) else { continue };
            if value.time_ns <= *newest {
                continue;
            }
            *newest = value.time_ns;
            let (index, bits) = (*index, value.value.to_bits());
            if value.time_ns <= self.read_ns {
                self.counts.late += 1;
                continue;
            }
            let near = |sample: &&mut ReportSample| {
                (value.time_ns - sample.time_ns).abs() <= SAME_NS && sample.values[index].is_none()
            };
            if let Some(sample) = self.samples.iter_mut().rev().find(near) {
                sample.values[index] = Some(bits);
                continue;
            }
            let mut sample = ReportSample { time_ns: value.time_ns, values: vec![None; self.sensors.len()] };
            sample.values[index] = Some(bits);
            let at = self.samples.partition_point(|other| other.time_ns < value.time_ns);
            if self.samples.get(at).is_some_and(|other| other.time_ns == value.time_ns) {
                continue;
            }
            self.samples.insert(at, sample);
            if self.samples.len() > SAMPLES_MAX {
                let oldest = self.samples.pop_front();
                let lost = oldest.map_or(0, |sample| sample.values.iter().flatten().count());
                self.counts.late += lost as u64;
            }
        }
    }
}

/// Takes the oldest sample of a report.
pub struct ReportReader {
    queue: Arc<ReportQueue>,
    layout: u64,
    stale_ns: i64,
    now: WallTime,
}

impl Reader for ReportReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut state = self.queue.lock();
        if state.layout != self.layout || state.sensors.len() != row.len() {
            return Reading { layout_changed: true, ..Reading::COMPLETE };
        }
        let problem = state.problem.map(DeviceProblem::read_problem);
        let Some(sample) = state.samples.pop_front() else {
            let is_stale = (self.now)().saturating_sub(state.received_ns) > self.stale_ns;
            return Reading { unchanged: !is_stale, problem, ..Reading::COMPLETE };
        };
        for (index, bits) in sample.values.iter().enumerate() {
            if let Some(bits) = bits {
                row.set_int(index, *bits as i64);
            }
        }
        state.read_ns = sample.time_ns;
        Reading { taken_at: Some(sample.time_ns), problem, ..Reading::COMPLETE }
    }
}

/// The name of a metric: its identifier and, if it has one, the property that it is taken from without what all have in common.
fn metric_name(id: &str, property: &str) -> String {
    let property = property.strip_prefix("/redfish/v1/").unwrap_or(property);
    let place = sanitize_level(&property.replace(['/', '#'], "_").replace("__", "_"));
    match (id.is_empty(), property.is_empty()) {
        (true, true) => "unnamed".to_owned(),
        (true, false) => place,
        (false, true) => sanitize_level(id),
        (false, false) => format!("{}/{place}", sanitize_level(id)),
    }
}

fn number(value: &Value) -> Option<f64> {
    // The schema says text; some services send numbers.
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    number.is_finite().then_some(number)
}

fn time(value: Option<&Value>) -> Option<i64> {
    let text = value?.as_str()?;
    // Only the whole form with date and time: a relative time would be one of this machine.
    let is_full = text.len() >= 19 && text.as_bytes().first().is_some_and(u8::is_ascii_digit);
    Timestamp::parse(text, Timestamp(0)).ok().filter(|_| is_full).map(|time| time.0)
}

/// The queue of each report of a controller, by the report's name, for its polls and its events.
#[derive(Default)]
pub struct ReportQueues(Mutex<ReportTable>);

#[derive(Default)]
struct ReportTable {
    queues: HashMap<String, Arc<ReportQueue>>,
    definitions: Arc<DefinitionTable>,
}

impl ReportQueues {
    fn lock(&self) -> MutexGuard<'_, ReportTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the queues and the definitions after a discovery.
    pub fn set(&self, queues: HashMap<String, Arc<ReportQueue>>, definitions: DefinitionTable) {
        *self.lock() = ReportTable { queues, definitions: Arc::new(definitions) };
    }

    /// The definitions of metrics.
    pub fn definitions(&self) -> Arc<DefinitionTable> {
        self.lock().definitions.clone()
    }

    /// Takes a report that came as an event. Whether it has sensors that were unknown; `None` if the report is not polled.
    pub fn take_event(&self, document: &Value, now_ns: i64) -> Option<bool> {
        let name = document["@odata.id"].as_str().or_else(|| document["Id"].as_str()).map(resource_level)?;
        let (queue, definitions) = {
            let table = self.lock();
            (table.queues.get(&name)?.clone(), table.definitions.clone())
        };
        queue.take(document, &definitions, now_ns).ok()
    }
}
