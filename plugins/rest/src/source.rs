//! The source: its groups, and the threads that poll.

use std::sync::Arc;

use wholegrain_devices::{AnswerSlot, DeviceGroup, DeviceGroups, PolledGroup, PooledDevice, WorkerPool};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::layout::{LayoutBounds, PageLayout};
use crate::notes::RestNotes;
use crate::settings::{self, DevicePlan, RestPlan};
use crate::target::RestDevice;

/// The source for the agent and for tests.
pub const SOURCE: SourceType = SourceType {
    name: "rest",
    summary: "values of JSON, XML and CSV that devices show over HTTP and HTTPS",
    configure,
    jobs: None,
};

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let plan = settings::read(section, context)?;
    Ok(Box::new(RestSource { plan, running: None }))
}

/// A configured source. Its threads start with the first discovery.
struct RestSource {
    plan: RestPlan,
    running: Option<RunningPolls>,
}

struct RunningPolls {
    _pool: WorkerPool,
    groups: DeviceGroups,
    notes: Arc<RestNotes>,
}

impl RunningPolls {
    fn start(plan: &RestPlan) -> std::io::Result<Self> {
        let notes = Arc::<RestNotes>::default();
        let (mut devices, mut groups) = (Vec::new(), Vec::new());
        for DevicePlan { path, host, timing, client, urls } in &plan.devices {
            let mut polled = Vec::new();
            for url in urls {
                let slot = Arc::new(AnswerSlot::default());
                if url.spec.tables.is_empty() {
                    // The sensors are known before any answer.
                    let bounds = LayoutBounds { bytes_max: 0, new_max: 0 };
                    slot.set_sensors(PageLayout::default().learn(&url.spec, path, &url.name, &[], bounds).sensors);
                }
                let group = DeviceGroup { name: format!("{path}/{}", url.name), timing: url.timing, slot };
                polled.push(PolledGroup { ticks: group.ticks(), slot: group.slot.clone() });
                groups.push(group);
            }
            devices.push(PooledDevice {
                path: path.clone(),
                host: host.clone(),
                timeout: timing.timeout.duration(),
                groups: polled,
                protocol: Box::new(RestDevice::new(path, client.clone(), urls, notes.clone())),
            });
        }
        let pool = WorkerPool::start("rest", devices, plan.workers)?;
        let mut groups = DeviceGroups::new(groups, plan.first_answers);
        groups.show_polls("rest", pool.counts().clone());
        Ok(Self { _pool: pool, groups, notes })
    }
}

impl Source for RestSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.running.is_none() {
            match RunningPolls::start(&self.plan) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    report(format!("rest: cannot start its threads: {error}"));
                    return Vec::new();
                }
            }
        }
        let Some(running) = &mut self.running else { return Vec::new() };
        let plans = running.groups.discover(report);
        running.notes.report(report);
        plans
    }
}
