//! Management controllers (BMC) that speak Redfish, DMTF's DSP0266, over HTTPS.
//!
//! - In: `[plugins.redfish]` with templates and lists of controllers; resources, metric reports and events of their services.
//! - Out: a group for each resource with readings, one for each metric report, one for the events of each controller, one about the polls.
//! - Never: a link to another host; a walk or an answer without a bound; a second login with credentials that were refused a moment ago.

mod connection;
mod device;
mod discovery;
mod events;
mod links;
mod measures;
mod pace;
mod registry;
mod reports;
mod resource;
mod settings;
mod status;
mod subsystem;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_devices::{
    DeviceGroup, DeviceGroups, PolledGroup, PooledDevice, WORKER_STACK_BYTES, WorkerPool, system_time,
};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType, Timing};

use crate::connection::RedfishConnection;
use crate::device::RedfishController;
use crate::events::{EventFollower, EventTarget, STREAMS_LIMIT, event_group};
use crate::pace::PaceBudget;
use crate::registry::{GroupRegistry, GroupValues};
use crate::reports::ReportQueues;
use crate::settings::RedfishPlan;
use crate::status::status_group;

/// The source for the agent and for tests.
pub const SOURCE: SourceType = SourceType {
    name: "redfish",
    summary: "management controllers that speak Redfish: temperatures, fans, power, health, telemetry, events",
    configure,
    jobs: None,
};

wholegrain_plugin::export!(SOURCE);

/// A report's samples are read at this interval, as one report can have many: 1 s.
const REPORT_INTERVAL: Interval = Interval::from_s(1);
/// How many intervals the newest answer counts, unless `stale_after` says otherwise.
const STALE_INTERVALS: u64 = 3;
/// How long the deletion of all sessions may take at the end: 5 s.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(5);
/// The threads that delete sessions at the end.
const LOGOUT_THREADS: usize = 16;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let plan = settings::read(section, context)?;
    Ok(Box::new(RedfishSource { plan, running: None }))
}

/// A configured source. Its threads start with the first discovery.
struct RedfishSource {
    plan: RedfishPlan,
    running: Option<RunningControllers>,
}

struct RunningControllers {
    pool: Option<WorkerPool>,
    /// The slots of the pool, which have no sensors: for the first answers, and for the names of those that gave none.
    polled: DeviceGroups,
    registry: Arc<GroupRegistry>,
    connections: Arc<[Arc<RedfishConnection>]>,
    events: Vec<(String, Timing, Arc<EventTarget>)>,
    warnings: Vec<String>,
}

impl RunningControllers {
    fn start(plan: &RedfishPlan) -> std::io::Result<Self> {
        let registry = Arc::new(GroupRegistry::new(plan.devices.len()));
        let (mut devices, mut groups, mut events) = (Vec::new(), Vec::new(), Vec::new());
        let mut warnings = plan.warnings.clone();
        let pace = Arc::new(Mutex::new(PaceBudget::new(STREAMS_LIMIT)));
        for (number, controller) in plan.devices.iter().enumerate() {
            let reports = Arc::<ReportQueues>::default();
            let target = controller.has_events.then(Arc::<EventTarget>::default);
            if let Some(target) = &target {
                let follower = EventFollower {
                    path: controller.path.clone(),
                    connection: controller.connection.clone(),
                    target: target.clone(),
                    reports: reports.clone(),
                    registry: registry.clone(),
                    pace: pace.clone(),
                };
                // The polls go on without the events of this one.
                if let Err(error) = follower.start() {
                    warnings.push(format!(
                        "{}: no events, as no thread can be made for them ({error}); raise memory_bytes_max",
                        controller.path
                    ));
                }
                let timing = controller.subsystems.first().map_or_else(Timing::default, |(_, timing)| Timing {
                    interval: Some(timing.interval),
                    offset: timing.offset,
                    synchronous: true,
                });
                events.push((controller.path.clone(), timing, target.clone()));
            }
            let mut polled = Vec::new();
            for (subsystem, timing) in &controller.subsystems {
                let name = format!("{} ({subsystem:?})", controller.path);
                let group = DeviceGroup { name, timing: *timing, slot: Arc::default() };
                polled.push(PolledGroup { ticks: group.ticks(), slot: group.slot.clone() });
                groups.push(group);
            }
            devices.push(PooledDevice {
                path: controller.path.clone(),
                host: controller.host.clone(),
                timeout: controller.poll_timeout.duration(),
                groups: polled,
                protocol: Box::new(RedfishController::new(number, controller, registry.clone(), reports, target)),
            });
        }
        let pool = WorkerPool::start("redfish", devices, plan.workers)?;
        Ok(Self {
            pool: Some(pool),
            polled: DeviceGroups::new(groups, plan.first_answers),
            registry,
            connections: plan.devices.iter().map(|controller| controller.connection.clone()).collect(),
            events,
            warnings,
        })
    }

    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.polled.discover(report);
        self.warnings.iter().cloned().for_each(&mut *report);
        self.registry.report(report);
        let version = self.registry.version();
        let (mut answers, mut plans) = (Vec::new(), Vec::new());
        for group in self.registry.groups() {
            let timing = group.timing;
            match group.values {
                // One without sensors was not read yet.
                GroupValues::Answers(slot) if slot.has_sensors() => {
                    answers.push(DeviceGroup { name: group.name, timing, slot });
                }
                GroupValues::Answers(_) => {}
                GroupValues::Report(queue) => {
                    let stale = timing.stale_after.map_or(timing.interval.ns() * STALE_INTERVALS, Interval::ns);
                    let Some((sensors, reader)) = queue.reader(stale, system_time) else { continue };
                    let timing = Timing { interval: Some(REPORT_INTERVAL), ..Timing::default() };
                    plans.push(GroupPlan {
                        name: group.name,
                        sensors,
                        reader: Box::new(reader),
                        timing,
                        blocking: true,
                    });
                }
            }
        }
        plans.extend(DeviceGroups::new(answers, Interval::default()).discover(report));
        for (path, timing, target) in &self.events {
            plans.push(event_group(path, *timing, target.clone()));
        }
        if let Some(pool) = &self.pool {
            pool.counts().report(report);
            plans.push(status_group(pool.counts().clone(), self.registry.clone(), self.connections.clone(), version));
        }
        plans
    }
}

impl Drop for RunningControllers {
    /// Ends the polls and deletes the sessions, so that none is left on a controller.
    fn drop(&mut self) {
        self.pool = None;
        self.events.iter().for_each(|(_, _, target)| target.end());
        let open =
            self.connections.iter().filter(|connection| connection.end_later()).cloned().collect::<VecDeque<_>>();
        let threads = LOGOUT_THREADS.min(open.len());
        let (open, deadline) = (Arc::new(Mutex::new(open)), Instant::now() + LOGOUT_TIMEOUT);
        let logout = move || {
            while let Some(connection) = open.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                connection.end();
                if Instant::now() >= deadline {
                    return;
                }
            }
        };
        let threads: Vec<_> = (0..threads)
            .filter_map(|_| {
                let builder = std::thread::Builder::new().name("redfish-end".to_owned());
                builder.stack_size(WORKER_STACK_BYTES).spawn(logout.clone()).ok()
            })
            .collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Source for RedfishSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.running.is_none() {
            match RunningControllers::start(&self.plan) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    report(format!("redfish: cannot start its threads: {error}"));
                    return Vec::new();
                }
            }
        }
        self.running.as_mut().map(|running| running.discover(report)).unwrap_or_default()
    }
}
