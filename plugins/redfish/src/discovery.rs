//! Finds the resources of a service that have readings: a walk from the service root over links, one request at a time.
//!
//! The walk has a fixed shape (root, collection, member, part), so that no chain of links is longer than it. Pages of a collection, members and requests
//! are bounded, no resource is requested or read twice, and links to other hosts are refused. It goes on where it stopped, as a slow service needs longer for it
//! than a poll may take.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use wholegrain_devices::DeviceProblem;

use crate::connection::RedfishConnection;
use crate::links::{check_link, reference, resource_level};
use crate::measures::DocumentKind;
use crate::reports::{DefinitionTable, MetricDefinition};
use crate::settings::{ModelPreference, ReadLimits};
use crate::subsystem::Subsystem;

/// The most pages of a collection.
pub const PAGES_MAX: usize = 100;
/// The most members of a collection.
pub const MEMBERS_MAX: usize = 1_000;
/// The query that asks for the members of a collection in one answer (DSP0266, section 7.3.2).
const EXPAND: &str = "?$expand=.($levels=1)";
const EXPAND_PLAIN: &str = "?$expand=.";

/// How the documents of a resource are requested.
#[derive(Debug, Clone, PartialEq)]
pub enum Fetch {
    /// One request for each document, with the name that each has.
    Each(Vec<(String, String)>),
    /// A collection whose members are in its answer.
    Expanded { url: String },
}

/// What becomes of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceContent {
    Measures(DocumentKind),
    Report,
}

/// Resources that become one group.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourcePlan {
    /// The group below the controller's path.
    pub group: String,
    /// What precedes the names of its sensors, below the controller's path.
    pub prefix: String,
    pub subsystem: Subsystem,
    pub content: ResourceContent,
    pub fetch: Fetch,
}

/// What a walk found.
#[derive(Debug, Default)]
pub struct DiscoveredService {
    pub resources: Vec<ResourcePlan>,
    pub definitions: DefinitionTable,
    pub event_stream: Option<String>,
    /// Sentences for the administrator.
    pub notes: Vec<String>,
    /// Requests that brought no resource.
    pub failed: usize,
}

/// What kind of members a collection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberKind {
    Chassis,
    System,
    Manager,
    Fan,
    Supply,
    Sensor,
    Report,
    Definition,
}

#[derive(Debug, Clone)]
enum WalkStep {
    Root,
    Collection { of: MemberKind, prefix: String, first: String, page: usize, members: Vec<(String, String)> },
    Chassis { name: String },
    ThermalSubsystem { prefix: String },
    PowerSubsystem { prefix: String },
    Supply { prefix: String, name: String },
    Telemetry,
    Definition,
    EventService,
}

/// A walk that has begun.
pub struct ServiceWalk {
    limits: Arc<ReadLimits>,
    subsystems: Vec<Subsystem>,
    has_events: bool,
    queue: VecDeque<(String, WalkStep)>,
    visited: HashSet<String>,
    /// Addresses that did not answer in time once: they are asked a second time, after all others.
    silent: HashSet<String>,
    requests: usize,
    expand: Option<&'static str>,
    /// Members of `PowerSupplies` of each chassis: the names and addresses of their metrics.
    supplies: HashMap<String, Vec<(String, String)>>,
    refused_links: usize,
    result: DiscoveredService,
}

impl ServiceWalk {
    /// A walk that begins with the service root.
    pub fn new(limits: Arc<ReadLimits>, subsystems: Vec<Subsystem>, has_events: bool) -> Self {
        Self {
            limits,
            subsystems,
            has_events,
            queue: VecDeque::from([("/redfish/v1/".to_owned(), WalkStep::Root)]),
            visited: HashSet::from(["/redfish/v1".to_owned()]),
            silent: HashSet::new(),
            requests: 0,
            expand: None,
            supplies: HashMap::new(),
            refused_links: 0,
            result: DiscoveredService::default(),
        }
    }

    /// Asks for collections member by member, also if the service says that it expands them.
    pub fn without_expand(mut self) -> Self {
        self.expand = Some("");
        self
    }

    /// Goes on until the walk or the time ends. The result, once the walk has ended.
    pub fn advance(
        &mut self,
        connection: &RedfishConnection,
        deadline: Instant,
        body: &mut Vec<u8>,
    ) -> Result<Option<DiscoveredService>, DeviceProblem> {
        while let Some((url, step)) = self.queue.pop_front() {
            if Instant::now() >= deadline {
                self.queue.push_front((url, step));
                return Ok(None);
            }
            if self.requests >= self.limits.resources_max {
                let left = self.queue.len() + 1;
                self.note(format!(
                    "more than resources_max = {} resources: {left} and what they link to are left out",
                    self.limits.resources_max
                ));
                self.abandon(connection, step);
                while let Some((_, step)) = self.queue.pop_front() {
                    self.abandon(connection, step);
                }
                break;
            }
            self.requests += 1;
            let is_root = matches!(step, WalkStep::Root);
            let answer =
                if is_root { connection.get_root(deadline, body) } else { connection.get(&url, deadline, body) };
            match answer {
                Ok(document) => self.take(connection, &url, step, &document),
                Err(problem) if is_root => {
                    self.requests -= 1;
                    self.queue.push_front((url, step));
                    return Err(problem);
                }
                // Not the resource: there is no session to request it with.
                Err(problem) if !connection.is_ready() => {
                    self.requests -= 1;
                    self.queue.push_front((url, step));
                    return Err(problem);
                }
                Err(DeviceProblem::Silent) if self.silent.insert(url.clone()) => {
                    self.queue.push_back((url, step));
                    return Err(DeviceProblem::Silent);
                }
                Err(problem @ (DeviceProblem::Refused(_) | DeviceProblem::Garbage(_) | DeviceProblem::Silent)) => {
                    self.result.failed += 1;
                    self.note(format!("{url}: {problem}; it is left out"));
                    self.abandon(connection, step);
                    // The poll ends, so that it holds its thread no longer.
                    if problem == DeviceProblem::Silent {
                        return Err(problem);
                    }
                }
                Err(problem) => {
                    self.requests -= 1;
                    self.queue.push_front((url, step));
                    return Err(problem);
                }
            }
        }
        let mut result = std::mem::take(&mut self.result);
        for (prefix, members) in std::mem::take(&mut self.supplies) {
            let group = format!("{prefix}/supplies");
            add(&mut result, group, prefix, Subsystem::Power, DocumentKind::Supplies, Fetch::Each(members));
        }
        if self.refused_links > 0 {
            result
                .notes
                .push(format!("{} links lead to no resource of the service and are not followed", self.refused_links));
        }
        result.resources.sort_by(|a, b| a.group.cmp(&b.group));
        let mut double = Vec::new();
        result.resources.dedup_by(|second, first| {
            let is_double = second.group == first.group;
            if is_double {
                double.push(format!("two resources would be the group {}: one of them is left out", second.group));
            }
            is_double
        });
        result.notes.extend(double);
        bound(&mut result, self.limits.resources_max);
        Ok(Some(result))
    }

    fn note(&mut self, text: String) {
        self.result.notes.push(text);
    }

    fn reads(&self, subsystem: Subsystem) -> bool {
        self.subsystems.contains(&subsystem)
    }

    /// Adds a link to the walk, unless it was walked already.
    fn push(&mut self, connection: &RedfishConnection, link: Option<&str>, step: WalkStep) {
        let Some(link) = link else { return };
        match self.link(connection, link) {
            Some(url) if self.visited.insert(resource_key(&url).to_owned()) => self.queue.push_back((url, step)),
            _ => {}
        }
    }

    fn link(&mut self, connection: &RedfishConnection, link: &str) -> Option<String> {
        let path = check_link(link, connection.base()).map(str::to_owned);
        self.refused_links += usize::from(path.is_none());
        path
    }

    /// A collection: as a whole if the service expands it, else its members.
    fn push_collection(&mut self, connection: &RedfishConnection, link: Option<&str>, of: MemberKind, prefix: &str) {
        let Some(url) = link.and_then(|link| self.link(connection, link)) else { return };
        let kind = match of {
            MemberKind::Fan => Some((DocumentKind::Fans, Subsystem::Thermal, "fans")),
            MemberKind::Sensor => Some((DocumentKind::Sensors, Subsystem::Sensors, "sensors")),
            _ => None,
        };
        if let (Some((kind, subsystem, name)), Some(query)) = (kind, self.expand.filter(|query| !query.is_empty()))
            && !url.contains('?')
        {
            let fetch = Fetch::Expanded { url: format!("{}{query}", url.trim_end_matches('/')) };
            add(&mut self.result, format!("{prefix}/{name}"), prefix.to_owned(), subsystem, kind, fetch);
            return;
        }
        let step =
            WalkStep::Collection { of, prefix: prefix.to_owned(), first: url.clone(), page: 1, members: Vec::new() };
        self.push(connection, Some(&url), step);
    }

    fn take(&mut self, connection: &RedfishConnection, url: &str, step: WalkStep, document: &Value) {
        match step {
            WalkStep::Root => self.root(connection, document),
            WalkStep::Collection { of, prefix, first, page, mut members } => {
                let list = document["Members"].as_array().map_or(&[][..], Vec::as_slice);
                for member in list {
                    let path = member["@odata.id"].as_str().and_then(|link| self.link(connection, link));
                    let Some(path) = path else { continue };
                    if members.len() == MEMBERS_MAX {
                        self.note(format!("{first} has more than {MEMBERS_MAX} members: the others are left out"));
                        break;
                    }
                    if members.iter().all(|(_, other)| *other != path) {
                        members.push((resource_level(&path), path));
                    }
                }
                let next = document["Members@odata.nextLink"].as_str().and_then(|link| self.link(connection, link));
                match next {
                    Some(next) if page == PAGES_MAX => {
                        self.note(format!(
                            "{first} has more than {PAGES_MAX} pages; {next} and the later ones are left out"
                        ));
                    }
                    Some(next) if !self.visited.insert(next.clone()) => {
                        self.note(format!("{first} has a page that links back to {next}: its pages end there"));
                    }
                    Some(next) => {
                        let step = WalkStep::Collection { of, prefix, first, page: page + 1, members };
                        self.queue.push_front((next, step));
                        return;
                    }
                    None => {}
                }
                self.members(connection, of, &prefix, members);
            }
            WalkStep::Chassis { name } => self.chassis(connection, url, &name, document),
            WalkStep::ThermalSubsystem { prefix } => {
                if let Some(url) = reference(document, "ThermalMetrics").and_then(|link| self.link(connection, link)) {
                    let group = format!("{prefix}/thermal_metrics");
                    self.single(group, prefix.clone(), Subsystem::Thermal, DocumentKind::ThermalMetrics, url);
                }
                self.push_collection(connection, reference(document, "Fans"), MemberKind::Fan, &prefix);
            }
            WalkStep::PowerSubsystem { prefix } => {
                self.push_collection(connection, reference(document, "PowerSupplies"), MemberKind::Supply, &prefix);
            }
            WalkStep::Supply { prefix, name } => {
                if let Some(url) = reference(document, "Metrics").and_then(|link| self.link(connection, link)) {
                    self.supplies.entry(prefix).or_default().push((name, url));
                }
            }
            WalkStep::Telemetry => {
                self.push_collection(connection, reference(document, "MetricDefinitions"), MemberKind::Definition, "");
                self.push_collection(connection, reference(document, "MetricReports"), MemberKind::Report, "report");
            }
            WalkStep::Definition => self.definition(url, document),
            WalkStep::EventService => {
                let stream = document["ServerSentEventUri"].as_str();
                self.result.event_stream = stream.and_then(|link| self.link(connection, link));
                if self.result.event_stream.is_none() {
                    self.note(
                        "its event service has no stream (ServerSentEventUri): events are not counted".to_owned(),
                    );
                }
            }
        }
    }

    /// Keeps what a step has gathered before its request failed.
    fn abandon(&mut self, connection: &RedfishConnection, step: WalkStep) {
        if let WalkStep::Collection { of, prefix, members, .. } = step {
            self.members(connection, of, &prefix, members);
        }
    }

    fn root(&mut self, connection: &RedfishConnection, document: &Value) {
        let sessions = document.pointer("/Links/Sessions/@odata.id").and_then(Value::as_str);
        if let Some(sessions) = sessions.and_then(|link| self.link(connection, link)) {
            connection.set_sessions(sessions);
        }
        if self.expand.is_none() {
            let query = &document["ProtocolFeaturesSupported"]["ExpandQuery"];
            let is = |key: &str| query[key].as_bool() == Some(true);
            self.expand = match (is("NoLinks"), is("Levels")) {
                (true, true) => Some(EXPAND),
                (true, false) => Some(EXPAND_PLAIN),
                _ => None,
            };
        }
        let of_chassis =
            [Subsystem::Thermal, Subsystem::Power, Subsystem::Environment, Subsystem::Sensors, Subsystem::State];
        if of_chassis.iter().any(|subsystem| self.reads(*subsystem)) {
            self.push_collection(connection, reference(document, "Chassis"), MemberKind::Chassis, "chassis");
        }
        if self.reads(Subsystem::State) {
            self.push_collection(connection, reference(document, "Systems"), MemberKind::System, "system");
            self.push_collection(connection, reference(document, "Managers"), MemberKind::Manager, "manager");
        }
        if self.reads(Subsystem::Telemetry) {
            match reference(document, "TelemetryService") {
                Some(link) => self.push(connection, Some(link), WalkStep::Telemetry),
                None => self.note("it has no telemetry service".to_owned()),
            }
        }
        if self.has_events {
            match reference(document, "EventService") {
                Some(link) => self.push(connection, Some(link), WalkStep::EventService),
                None => self.note("it has no event service: events are not counted".to_owned()),
            }
        }
    }

    fn members(
        &mut self,
        connection: &RedfishConnection,
        of: MemberKind,
        prefix: &str,
        members: Vec<(String, String)>,
    ) {
        match of {
            MemberKind::Fan | MemberKind::Sensor => self.leaves(of, prefix, members),
            MemberKind::System | MemberKind::Manager => {
                for (name, url) in members {
                    let (group, prefix) = (format!("{prefix}/{name}/state"), format!("{prefix}/{name}"));
                    self.single(group, prefix, Subsystem::State, DocumentKind::State, url);
                }
            }
            MemberKind::Report => {
                for (name, url) in members {
                    let name = format!("{prefix}/{name}");
                    let content = ResourceContent::Report;
                    let fetch = Fetch::Each(vec![(String::new(), url)]);
                    let (group, prefix, subsystem) = (name.clone(), name, Subsystem::Telemetry);
                    self.result.resources.push(ResourcePlan { group, prefix, subsystem, content, fetch });
                }
            }
            MemberKind::Chassis | MemberKind::Supply | MemberKind::Definition => {
                for (name, url) in members {
                    let step = match of {
                        MemberKind::Chassis => WalkStep::Chassis { name },
                        MemberKind::Supply => WalkStep::Supply { prefix: prefix.to_owned(), name },
                        _ => WalkStep::Definition,
                    };
                    self.push(connection, Some(&url), step);
                }
            }
        }
    }

    fn leaves(&mut self, of: MemberKind, prefix: &str, members: Vec<(String, String)>) {
        let (kind, subsystem, name) = match of {
            MemberKind::Fan => (DocumentKind::Fans, Subsystem::Thermal, "fans"),
            _ => (DocumentKind::Sensors, Subsystem::Sensors, "sensors"),
        };
        if !members.is_empty() {
            let group = format!("{prefix}/{name}");
            add(&mut self.result, group, prefix.to_owned(), subsystem, kind, Fetch::Each(members));
        }
    }

    fn single(&mut self, group: String, prefix: String, subsystem: Subsystem, kind: DocumentKind, url: String) {
        add(&mut self.result, group, prefix, subsystem, kind, Fetch::Each(vec![(String::new(), url)]));
    }

    fn chassis(&mut self, connection: &RedfishConnection, url: &str, name: &str, document: &Value) {
        let prefix = format!("chassis/{name}");
        if self.reads(Subsystem::State) {
            let group = format!("{prefix}/state");
            self.single(group, prefix.clone(), Subsystem::State, DocumentKind::State, url.to_owned());
        }
        let prefers_new = self.limits.prefer == ModelPreference::Subsystems;
        let old_or_new = |old: &str, new: &str| {
            let (old, new) = (reference(document, old), reference(document, new));
            if prefers_new && new.is_some() {
                (None, new)
            } else if old.is_some() {
                (old, None)
            } else {
                (None, new)
            }
        };
        let thermal = old_or_new("Thermal", "ThermalSubsystem");
        let power = old_or_new("Power", "PowerSubsystem");
        for (subsystem, (old, new), kind) in
            [(Subsystem::Thermal, thermal, DocumentKind::Thermal), (Subsystem::Power, power, DocumentKind::Power)]
        {
            if !self.reads(subsystem) {
                continue;
            }
            if let Some(url) = old.and_then(|link| self.link(connection, link)) {
                let group = if kind == DocumentKind::Thermal { "thermal" } else { "power" };
                self.single(format!("{prefix}/{group}"), prefix.clone(), subsystem, kind, url);
            }
            let prefix = prefix.clone();
            let step = match kind {
                DocumentKind::Thermal => WalkStep::ThermalSubsystem { prefix },
                _ => WalkStep::PowerSubsystem { prefix },
            };
            self.push(connection, new, step);
        }
        let environment = reference(document, "EnvironmentMetrics").filter(|_| self.reads(Subsystem::Environment));
        if let Some(url) = environment.and_then(|link| self.link(connection, link)) {
            let group = format!("{prefix}/environment");
            self.single(group, prefix.clone(), Subsystem::Environment, DocumentKind::Environment, url);
        }
        // Most services show the same readings as sensors a second time, each with a request of its own.
        let is_only = [thermal, power].iter().all(|(old, new)| old.is_none() && new.is_none());
        if self.reads(Subsystem::Sensors) && (is_only || self.limits.all_sensors) {
            self.push_collection(connection, reference(document, "Sensors"), MemberKind::Sensor, &prefix);
        }
    }

    fn definition(&mut self, url: &str, document: &Value) {
        let id = document["Id"].as_str().map_or_else(|| resource_level(url), str::to_owned);
        self.result.definitions.insert(id, MetricDefinition::of(document));
    }
}

/// The path of a resource without a query: what stays the same however it is linked to. Pages of a collection differ in their queries.
fn resource_key(url: &str) -> &str {
    url.split('?').next().unwrap_or_default().trim_end_matches('/')
}

/// Leaves a resource that several groups would read to the first of them, and what is beyond `resources_max` out.
fn bound(result: &mut DiscoveredService, resources_max: usize) {
    let (mut read, mut left_out) = (HashSet::new(), 0);
    for plan in &mut result.resources {
        let content = plan.content;
        let mut is_new = |url: &str| read.len() < resources_max && read.insert((resource_key(url).to_owned(), content));
        match &mut plan.fetch {
            Fetch::Each(list) => {
                let before = list.len();
                list.retain(|(_, url)| is_new(url));
                left_out += before - list.len();
            }
            Fetch::Expanded { url } if !is_new(url) => {
                left_out += 1;
                plan.fetch = Fetch::Each(Vec::new());
            }
            Fetch::Expanded { .. } => {}
        }
    }
    result.resources.retain(|plan| plan.fetch != Fetch::Each(Vec::new()));
    if left_out > 0 {
        result.notes.push(format!(
            "{left_out} resources are linked to twice, or more than resources_max = {resources_max}: they are not read"
        ));
    }
}

fn add(
    result: &mut DiscoveredService,
    group: String,
    prefix: String,
    subsystem: Subsystem,
    kind: DocumentKind,
    fetch: Fetch,
) {
    let content = ResourceContent::Measures(kind);
    result.resources.push(ResourcePlan { group, prefix, subsystem, content, fetch });
}
