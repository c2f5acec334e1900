//! One group of a controller: requests its documents, and puts their values in the order of the sensors.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use wholegrain_device_http::{JsonTree, TreeRoom};
use wholegrain_devices::{AnswerSlot, DeviceProblem, NewNames, PollTiming, system_time};
use wholegrain_model::SensorDef;

use crate::connection::RedfishConnection;
use crate::discovery::{Fetch, MEMBERS_MAX, PAGES_MAX, ResourceContent, ResourcePlan};
use crate::links::{check_link, resource_level};
use crate::measures::{DocumentKind, Measure, MeasureOptions, measures};
use crate::registry::GroupValues;
use crate::reports::{DefinitionTable, ReportQueue};
use crate::settings::ReadLimits;

/// A sensor that so many discoveries in a row lack is removed.
const FORGET_AFTER: u32 = 3;
/// How many names of sensors a controller may have that it did not have before, and as many more in each hour: `sensors_max`, which is of one group, times
/// 4, but at least 8,000.
const NEW_NAMES_GROUPS: usize = 4;
const NEW_NAMES_MIN: usize = 8_000;
/// New sensors are learned at most once in this time: 1 min.
const LEARN_PAUSE: Duration = Duration::from_secs(60);
/// The first pause of a resource that does not answer in time, while the others do: 10 s. It doubles to 10 min.
const SILENT_PAUSE_MIN: Duration = Duration::from_secs(10);
const SILENT_PAUSE_MAX: Duration = Duration::from_secs(600);

/// The budget for names of sensors that a controller did not have before.
pub fn new_names(sensors_max: usize) -> NewNames {
    NewNames::new((sensors_max * NEW_NAMES_GROUPS).max(NEW_NAMES_MIN))
}

/// What a read of a resource needs.
pub struct ReadContext<'a> {
    pub connection: &'a RedfishConnection,
    pub definitions: &'a DefinitionTable,
    pub limits: &'a ReadLimits,
    /// The controller's path below the agent's prefix.
    pub path: &'a str,
    pub deadline: Instant,
    /// The names that the controller may have that it did not have before.
    pub names: &'a Mutex<NewNames>,
    /// The requests that are left for the poll.
    pub requests: Cell<usize>,
}

impl ReadContext<'_> {
    /// Whether the poll can go on: there is time, and a request is left.
    pub fn has_left(&self) -> bool {
        self.requests.get() > 0 && Instant::now() < self.deadline
    }

    fn get(&self, url: &str, body: &mut Vec<u8>) -> Result<JsonTree, DeviceProblem> {
        self.requests.set(self.requests.get().saturating_sub(1));
        self.connection.get(url, self.deadline, body)
    }
}

/// What a read has found besides values.
#[derive(Debug, Default)]
pub struct ReadOutcome {
    /// The sensors are others than before.
    pub is_changed: bool,
    /// A part of the resource has gone, or the members are not in the answer: the service should be walked again.
    pub is_outdated: bool,
    /// The service does not expand collections though it says so.
    pub cannot_expand: bool,
    pub note: Option<String>,
}

/// Resources that are read together.
pub struct RedfishResource {
    pub plan: ResourcePlan,
    pub timing: PollTiming,
    pub values: GroupValues,
    sensors: Vec<LearnedSensor>,
    indices: HashMap<String, usize>,
    learned: Option<Instant>,
    /// Whether the service was walked since the sensors were learned.
    is_walked: bool,
    silent: Option<(Instant, Duration)>,
    left_out: usize,
    answer: Vec<Option<u64>>,
}

struct LearnedSensor {
    name: String,
    sensor: SensorDef,
    missed: u32,
}

impl RedfishResource {
    /// A resource that was not read yet.
    pub fn new(
        plan: ResourcePlan,
        timing: PollTiming,
        path: &str,
        limits: &ReadLimits,
        names: &Arc<Mutex<NewNames>>,
    ) -> Self {
        let values = match plan.content {
            ResourceContent::Measures(_) => GroupValues::Answers(Arc::new(AnswerSlot::default())),
            ResourceContent::Report => {
                let prefix = format!("{path}/{}", plan.prefix);
                GroupValues::Report(Arc::new(ReportQueue::new(prefix, limits.sensors_max, names.clone())))
            }
        };
        Self {
            plan,
            timing,
            values,
            sensors: Vec::new(),
            indices: HashMap::new(),
            learned: None,
            is_walked: true,
            silent: None,
            left_out: 0,
            answer: Vec::new(),
        }
    }

    /// The service was walked again, and has the resource under this plan.
    pub fn renew(&mut self, plan: ResourcePlan) {
        self.plan = plan;
        self.is_walked = true;
    }

    /// Whether a resource that does not answer in time is left alone now.
    pub fn is_paused(&self, now: Instant) -> bool {
        self.silent.is_some_and(|(until, _)| now < until)
    }

    /// Notes why there are no values.
    pub fn fail(&mut self, problem: DeviceProblem) {
        match &self.values {
            GroupValues::Answers(slot) => slot.fail(problem),
            GroupValues::Report(queue) => queue.fail(problem),
        }
        if problem == DeviceProblem::Silent {
            let pause = self.silent.map_or(SILENT_PAUSE_MIN, |(_, pause)| (pause * 2).min(SILENT_PAUSE_MAX));
            self.silent = Some((Instant::now() + pause, pause));
        }
    }

    /// Requests the documents and publishes their values.
    pub fn read(&mut self, context: &ReadContext, body: &mut Vec<u8>) -> Result<ReadOutcome, DeviceProblem> {
        let mut outcome = ReadOutcome::default();
        let FetchedDocuments { list: documents, .. } = &match &self.plan.fetch {
            Fetch::Each(list) => each(context, list, body, &mut outcome)?,
            Fetch::Expanded { url } => expanded(context, url, body, &mut outcome)?,
        };
        self.silent = None;
        let now_ns = system_time();
        match (self.plan.content, &self.values) {
            (ResourceContent::Measures(kind), GroupValues::Answers(slot)) => {
                let slot = slot.clone();
                self.publish(kind, &slot, documents, context, now_ns, &mut outcome);
            }
            (_, GroupValues::Report(queue)) => {
                let queue = queue.clone();
                for (_, document) in documents {
                    outcome.is_changed |= queue.take(document, context.definitions, now_ns)?;
                }
                let counts = queue.counts();
                if counts.implausible > 0 {
                    let group = &self.plan.group;
                    outcome.note = Some(format!(
                        "{}/{group}: values with times that cannot be are left out; set the service's clock",
                        context.path
                    ));
                }
            }
            _ => {}
        }
        Ok(outcome)
    }

    fn publish(
        &mut self,
        kind: DocumentKind,
        slot: &AnswerSlot,
        documents: &[(String, Value)],
        context: &ReadContext,
        now_ns: i64,
        outcome: &mut ReadOutcome,
    ) {
        let options = MeasureOptions { thresholds: context.limits.thresholds, health: context.limits.health };
        let mut list = measures(kind, documents, options);
        let prefix = &self.plan.prefix;
        list.retain(|measure| context.limits.sensors.keeps(&format!("{prefix}/{}", measure.name)));
        let is_known = |measure: &Measure| measure.is_absent || self.indices.contains_key(&measure.name);
        let now = Instant::now();
        let may_learn = self.left_out == 0 && self.learned.is_none_or(|at| now >= at + LEARN_PAUSE);
        if self.is_walked || (may_learn && !list.iter().all(is_known)) {
            self.learn(&list, context, now, outcome);
            outcome.is_changed |= slot.set_sensors(self.sensors.iter().map(|known| known.sensor.clone()).collect());
        }
        self.answer.clear();
        self.answer.resize(self.sensors.len(), None);
        for measure in &list {
            if let Some(index) = self.indices.get(&measure.name) {
                self.answer[*index] = measure.bits();
            }
        }
        slot.publish(now_ns, &self.answer);
    }

    fn learn(&mut self, list: &[Measure], context: &ReadContext, now: Instant, outcome: &mut ReadOutcome) {
        let prefix = format!("{}/{}", context.path, self.plan.prefix);
        let found: HashMap<&str, &Measure> =
            list.iter().rev().map(|measure| (measure.name.as_str(), measure)).collect();
        for known in &mut self.sensors {
            match found.get(known.name.as_str()) {
                Some(measure) => {
                    known.missed = 0;
                    if !measure.is_absent {
                        known.sensor = measure.sensor(&prefix);
                    }
                }
                None => known.missed += u32::from(self.is_walked),
            }
        }
        self.sensors.retain(|known| known.missed < FORGET_AFTER);
        self.left_out = 0;
        let mut names: std::collections::HashSet<String> =
            self.sensors.iter().map(|known| known.name.clone()).collect();
        let mut new_names = context.names.lock().unwrap_or_else(PoisonError::into_inner);
        for measure in list.iter().filter(|measure| !measure.is_absent) {
            if names.contains(&measure.name) {
                continue;
            }
            let sensor = measure.sensor(&prefix);
            if self.sensors.len() == context.limits.sensors_max
                || wholegrain_model::name::check_relative(&sensor.name).is_err()
                || new_names.take(1, now) == 0
            {
                self.left_out += 1;
                continue;
            }
            names.insert(measure.name.clone());
            self.sensors.push(LearnedSensor { name: measure.name.clone(), sensor, missed: 0 });
        }
        self.indices = self.sensors.iter().enumerate().map(|(index, known)| (known.name.clone(), index)).collect();
        if self.left_out > 0 {
            let group = &self.plan.group;
            outcome.note = Some(format!(
                "{}/{group}: {} sensors are left out: more than sensors_max, names that are too long, or more new names in an hour than its budget",
                context.path, self.left_out
            ));
        }
        (self.learned, self.is_walked) = (Some(now), false);
    }
}

/// Documents with their names, and the room that they take among the answers of all devices.
#[derive(Default)]
struct FetchedDocuments {
    list: Vec<(String, Value)>,
    rooms: Vec<TreeRoom>,
}

/// Requests documents one by one. One that has gone is left out and makes the plan outdated; if all have, that is the problem.
fn each(
    context: &ReadContext,
    list: &[(String, String)],
    body: &mut Vec<u8>,
    outcome: &mut ReadOutcome,
) -> Result<FetchedDocuments, DeviceProblem> {
    let (mut documents, mut first) = (FetchedDocuments::default(), None);
    for (name, url) in list {
        if !context.has_left() {
            first.get_or_insert(DeviceProblem::Silent);
            break;
        }
        match context.get(url, body) {
            Ok(document) => {
                let (document, room) = document.into_parts();
                documents.list.push((name.clone(), document));
                documents.rooms.push(room);
            }
            Err(problem @ (DeviceProblem::Refused(_) | DeviceProblem::Garbage(_))) => {
                outcome.is_outdated |= problem == crate::connection::MISSING;
                first.get_or_insert(problem);
            }
            Err(problem) => return Err(problem),
        }
    }
    match first {
        Some(problem) if documents.list.is_empty() => Err(problem),
        _ => Ok(documents),
    }
}

/// Requests a collection with its members, page by page.
fn expanded(
    context: &ReadContext,
    url: &str,
    body: &mut Vec<u8>,
    outcome: &mut ReadOutcome,
) -> Result<FetchedDocuments, DeviceProblem> {
    let (mut documents, mut pages) = (FetchedDocuments::default(), vec![url.to_owned()]);
    while let Some(page) = pages.last() {
        let answer = context.get(page, body);
        let mut answer = match answer {
            Err(DeviceProblem::Refused(_)) if pages.len() == 1 => {
                outcome.cannot_expand = true;
                return Ok(documents);
            }
            answer => answer?,
        };
        let next =
            answer["Members@odata.nextLink"].as_str().and_then(|link| check_link(link, context.connection.base()));
        let next = next
            .map(str::to_owned)
            .filter(|next| pages.len() < PAGES_MAX && context.has_left() && !pages.contains(next));
        let Some(Value::Array(members)) = answer.get_mut("Members").map(Value::take) else {
            return Err(DeviceProblem::Garbage("a collection without members"));
        };
        documents.rooms.push(answer.into_parts().1);
        for member in members.into_iter().take(MEMBERS_MAX - documents.list.len().min(MEMBERS_MAX)) {
            // A reference has its address alone.
            if member.as_object().is_none_or(|fields| fields.len() < 2) {
                outcome.cannot_expand = true;
                return Ok(FetchedDocuments::default());
            }
            if let Some(name) = member["@odata.id"].as_str().or_else(|| member["Id"].as_str()).map(resource_level) {
                documents.list.push((name, member));
            }
        }
        match next {
            Some(next) => pages.push(next),
            None => break,
        }
    }
    Ok(documents)
}
