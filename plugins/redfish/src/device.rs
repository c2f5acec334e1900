//! One controller for the pool: walks the service when that is due, and reads the resources of a subsystem.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wholegrain_devices::{AnswerSlot, BlockingProtocol, DeviceProblem, NewNames, PollTiming, system_time};

use crate::connection::{NO_SESSION, RedfishConnection};
use crate::discovery::{DiscoveredService, ServiceWalk};
use crate::events::EventTarget;
use crate::registry::{GroupRegistry, GroupValues, RegisteredGroup};
use crate::reports::ReportQueues;
use crate::resource::{ReadContext, RedfishResource, new_names};
use crate::settings::{ControllerPlan, ReadLimits};
use crate::subsystem::Subsystem;

/// The shortest time between two walks because something has gone: 1 min.
const WALK_PAUSE: Duration = Duration::from_secs(60);
/// A walk that found nothing, or in which requests failed, is made again after this time: 5 min. A service that restarts shows little.
const WALK_AGAIN: Duration = Duration::from_secs(300);
/// The first pause after a walk that found other groups than the one before: 1 s. It doubles to 5 min, and ends with a walk that found the same.
const CHANGED_PAUSE_MIN: Duration = Duration::from_secs(1);
/// A group that so many walks in a row lack is removed. Until then it has gaps: a service that restarts shows little for some minutes.
const FORGET_AFTER: u32 = 3;

/// The state of one controller.
pub struct RedfishController {
    number: usize,
    path: String,
    limits: Arc<ReadLimits>,
    subsystems: Vec<(Subsystem, PollTiming)>,
    connection: Arc<RedfishConnection>,
    registry: Arc<GroupRegistry>,
    reports: Arc<ReportQueues>,
    events: Option<Arc<EventTarget>>,
    walk: Option<ServiceWalk>,
    /// When the last walk ended, and when the next one is due.
    walked: Option<Instant>,
    next_walk: Option<Instant>,
    /// The least time from the last walk to the next one, as the groups change.
    changed_pause: Duration,
    names: Arc<Mutex<NewNames>>,
    has_expand: bool,
    resources: Vec<FollowedResource>,
    body: Vec<u8>,
}

struct FollowedResource {
    resource: RedfishResource,
    /// Walks in a row that lacked it.
    missed: u32,
}

impl RedfishController {
    /// A controller that was not polled yet. `number` is its place in the registry.
    pub fn new(
        number: usize,
        plan: &ControllerPlan,
        registry: Arc<GroupRegistry>,
        reports: Arc<ReportQueues>,
        events: Option<Arc<EventTarget>>,
    ) -> Self {
        Self {
            number,
            path: plan.path.clone(),
            limits: plan.limits.clone(),
            subsystems: plan.subsystems.clone(),
            connection: plan.connection.clone(),
            registry,
            reports,
            events,
            walk: None,
            walked: None,
            next_walk: None,
            changed_pause: Duration::ZERO,
            names: Arc::new(Mutex::new(new_names(plan.limits.sensors_max))),
            has_expand: true,
            resources: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Walks the service, or goes on with it. Whether the walk has ended.
    fn walk(&mut self, deadline: Instant) -> Result<bool, DeviceProblem> {
        let (limits, has_events) = (self.limits.clone(), self.events.is_some());
        let has_expand = self.has_expand;
        let subsystems = || self.subsystems.iter().map(|(subsystem, _)| *subsystem).collect();
        let walk = self.walk.get_or_insert_with(|| {
            let walk = ServiceWalk::new(limits, subsystems(), has_events);
            if has_expand { walk } else { walk.without_expand() }
        });
        let service = walk.advance(&self.connection, deadline, &mut self.body);
        let now = Instant::now();
        let Some(service) = service.inspect_err(|_| self.next_walk = Some(now + WALK_PAUSE))? else {
            self.next_walk = Some(now);
            return Ok(false);
        };
        self.walk = None;
        let is_partial = service.failed > 0 || service.resources.is_empty();
        let pause = self.limits.rediscover.duration();
        let pause = if is_partial { pause.min(WALK_AGAIN) } else { pause };
        let is_first = self.walked.is_none();
        let is_changed = self.adopt(service);
        self.changed_pause = if is_changed && !is_first {
            (self.changed_pause * 2).clamp(CHANGED_PAUSE_MIN, WALK_AGAIN)
        } else {
            Duration::ZERO
        };
        (self.walked, self.next_walk) = (Some(now), Some(now + pause.max(self.changed_pause)));
        Ok(true)
    }

    /// Takes what a walk has found. What is known keeps its group. Whether there are groups that were unknown.
    fn adopt(&mut self, service: DiscoveredService) -> bool {
        let mut is_changed = false;
        for note in &service.notes {
            self.registry.note(format!("device {}: {note}", self.path));
        }
        // A walk with failed requests does not know what there is.
        if service.resources.is_empty() && service.failed == 0 {
            self.registry
                .note(format!("device {}: it has no resource with readings of the chosen subsystems", self.path));
        }
        for followed in &mut self.resources {
            followed.missed += 1;
        }
        for plan in service.resources {
            let Some((_, timing)) = self.subsystems.iter().find(|(subsystem, _)| *subsystem == plan.subsystem) else {
                continue;
            };
            let known = self.resources.iter_mut().find(|known| known.resource.plan.group == plan.group);
            match known {
                Some(known) => {
                    known.missed = 0;
                    known.resource.renew(plan);
                }
                None => {
                    let resource = RedfishResource::new(plan, *timing, &self.path, &self.limits, &self.names);
                    is_changed = true;
                    self.resources.push(FollowedResource { resource, missed: 0 });
                }
            }
        }
        let is_too_many = self.resources.len() > self.limits.resources_max;
        let most = if is_too_many { 1 } else { FORGET_AFTER };
        self.resources.retain(|followed| followed.missed < most);
        let mut queues = HashMap::new();
        let groups = self.resources.iter().map(|followed| {
            let resource = &followed.resource;
            if let GroupValues::Report(queue) = &resource.values {
                let name = resource.plan.prefix.rsplit('/').next().unwrap_or_default();
                queues.insert(name.to_owned(), queue.clone());
            }
            let name = format!("{}/{}", self.path, resource.plan.group);
            RegisteredGroup { name, timing: resource.timing, values: resource.values.clone() }
        });
        let groups = groups.collect();
        self.reports.set(queues, service.definitions);
        self.registry.set(self.number, groups);
        if let Some(events) = &self.events {
            events.set_stream(service.event_stream);
        }
        is_changed
    }

    /// Reads the resources of a subsystem. One that fails harms no other; the problem is that of the whole poll if none answers.
    fn read(&mut self, subsystem: Subsystem, deadline: Instant) -> Result<(), DeviceProblem> {
        let definitions = self.reports.definitions();
        let (mut answered, mut problem, mut is_outdated, mut cannot_expand) = (0, None, false, false);
        let context = ReadContext {
            connection: &self.connection,
            definitions: &definitions,
            limits: &self.limits,
            path: &self.path,
            deadline,
            names: &self.names,
            requests: Cell::new(self.limits.resources_max),
        };
        for followed in &mut self.resources {
            let resource = &mut followed.resource;
            let now = Instant::now();
            if resource.plan.subsystem != subsystem || resource.is_paused(now) {
                continue;
            }
            if !context.has_left() {
                let bound = if now < deadline { "resources_max requests" } else { "poll_timeout" };
                let note = format!("device {}: a poll does not reach all resources within {bound}", self.path);
                self.registry.note(note);
                break;
            }
            match resource.read(&context, &mut self.body) {
                Ok(outcome) => {
                    answered += 1;
                    is_outdated |= outcome.is_outdated || outcome.cannot_expand;
                    cannot_expand |= outcome.cannot_expand;
                    if outcome.is_changed {
                        self.registry.changed();
                    }
                    if let Some(note) = outcome.note {
                        self.registry.note(note);
                    }
                }
                Err(found) => {
                    resource.fail(found);
                    is_outdated |= found == crate::connection::MISSING;
                    problem.get_or_insert(found);
                    match found {
                        DeviceProblem::Refused(_) | DeviceProblem::Garbage(_) if found != NO_SESSION => {
                            let group = &resource.plan.group;
                            self.registry.note(format!("device {}: {group}: {found}", self.path));
                        }
                        DeviceProblem::Silent if answered > 0 => {}
                        _ => break,
                    }
                }
            }
        }
        if cannot_expand && self.has_expand {
            self.has_expand = false;
            self.registry.note(format!(
                "device {}: it does not expand collections as it says; members are requested one by one",
                self.path
            ));
        }
        if is_outdated {
            let now = Instant::now();
            let at = if cannot_expand {
                now
            } else {
                self.walked.map_or(now, |walked| (walked + WALK_PAUSE.max(self.changed_pause)).max(now))
            };
            self.next_walk = Some(self.next_walk.map_or(at, |next| next.min(at)));
        }
        match problem {
            Some(problem) if answered == 0 => Err(problem),
            _ => Ok(()),
        }
    }

    /// The whole service does not answer: its groups say why.
    fn fail_all(&mut self, problem: DeviceProblem) {
        for followed in &mut self.resources {
            match &followed.resource.values {
                GroupValues::Answers(slot) => slot.fail(problem),
                GroupValues::Report(queue) => queue.fail(problem),
            }
        }
    }

    fn poll_subsystem(&mut self, subsystem: Subsystem, deadline: Instant) -> Result<(), DeviceProblem> {
        if self.walked.is_none() && !self.walk(deadline)? {
            return Ok(());
        }
        let result = self.read(subsystem, deadline);
        let is_of_resource =
            |problem: &DeviceProblem| matches!(problem, DeviceProblem::Refused(_) | DeviceProblem::Garbage(_));
        let is_due = self.next_walk.is_none_or(|at| Instant::now() >= at);
        if is_due && result.as_ref().err().is_none_or(is_of_resource) {
            match self.walk(deadline) {
                Ok(_) => {}
                Err(DeviceProblem::Credentials) => return Err(DeviceProblem::Credentials),
                // The resources that are known are read on.
                Err(problem) => {
                    let note = format!("device {}: the search for resources: {problem}; it goes on later", self.path);
                    self.registry.note(note);
                }
            }
        }
        result
    }
}

impl BlockingProtocol for RedfishController {
    fn poll(&mut self, group: usize, slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem> {
        let Some((subsystem, _)) = self.subsystems.get(group).copied() else { return Ok(()) };
        let result = self.poll_subsystem(subsystem, deadline);
        match result {
            Ok(()) if self.walked.is_some() => {
                // The slot of the pool has no sensors: those of the resources have their own slots.
                slot.set_sensors(Vec::new());
                slot.publish(system_time(), &[]);
            }
            Ok(()) | Err(DeviceProblem::Refused(_) | DeviceProblem::Garbage(_)) => {}
            Err(problem) => self.fail_all(problem),
        }
        result
    }
}
