//! BACnet/IP devices: controllers and meters of buildings and cooling plants.
//!
//! - In: `[plugins.bacnet]` with templates and lists of devices; present values, status flags, names and units of objects.
//! - Out: one group for each device, with one sensor for each object.
//! - Never: a write to a device; a value of an object that is faulty or out of service; a device that delays another one.

mod device;
mod message;
mod objects;
mod reads;
mod settings;
mod tag;
mod units;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError};

use wholegrain_devices::{
    AnswerSlot, DeviceGroup, DeviceGroups, DeviceTransport, PolledDevice, PolledGroup, Poller, system_time,
};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::device::{BacnetDevice, ObjectNotes};
use crate::settings::BacnetPlan;

/// The source for the agent and for tests.
pub const SOURCE: SourceType =
    SourceType { name: "bacnet", summary: "objects of BACnet/IP devices", configure, jobs: None };

wholegrain_plugin::export!(SOURCE);

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let plan = settings::read(section, context)?;
    Ok(Box::new(BacnetSource { plan, running: None }))
}

/// A configured source. Its thread starts with the first discovery.
struct BacnetSource {
    plan: BacnetPlan,
    running: Option<RunningSource>,
}

struct RunningSource {
    _poller: Poller,
    groups: DeviceGroups,
    /// Of each device, in the order of the configuration.
    notes: Vec<ObjectNotes>,
}

impl BacnetSource {
    fn start(&self) -> std::io::Result<RunningSource> {
        let (config, settings) = &self.plan;
        let (mut groups, mut polled, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for (device, settings) in config.devices.iter().zip(settings) {
            let slot = Arc::new(AnswerSlot::default());
            let group = DeviceGroup { name: device.path.clone(), timing: device.timing, slot: slot.clone() };
            let own_notes = ObjectNotes::default();
            let protocol = BacnetDevice::new(
                settings.clone(),
                &device.path,
                slot.clone(),
                own_notes.clone(),
                process(&device.path),
            );
            polled.push(PolledDevice {
                path: device.path.clone(),
                host: device.host.clone(),
                port: device.port.unwrap_or(settings::PORT),
                // The port stays, as the device sends changes to it.
                transport: DeviceTransport::UdpKept,
                timeout_ns: device.timing.timeout.ns(),
                retries: device.timing.retries,
                groups: vec![PolledGroup { ticks: group.ticks(), slot }],
                protocol: Box::new(protocol),
            });
            groups.push(group);
            notes.push(own_notes);
        }
        let poller = Poller::start("bacnet", polled, config.in_flight)?;
        let mut groups = DeviceGroups::new(groups, config.first_answers);
        groups.show_polls("bacnet", poller.counts().clone());
        Ok(RunningSource { _poller: poller, groups, notes })
    }
}

/// The number of a device's subscriptions. It differs from that of an earlier run, whose notices may still come.
fn process(path: &str) -> u32 {
    let mut hasher = DefaultHasher::new();
    (path, system_time()).hash(&mut hasher);
    hasher.finish() as u32
}

impl Source for BacnetSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.running.is_none() {
            match self.start() {
                Ok(running) => self.running = Some(running),
                Err(error) => report(format!("the thread that polls the devices did not start: {error}")),
            }
        }
        let Some(running) = &mut self.running else { return Vec::new() };
        let plans = running.groups.discover(report);
        for (device, notes) in self.plan.0.devices.iter().zip(&running.notes) {
            let notes = notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            notes.into_iter().for_each(|text| report(format!("device {} ({}): {text}", device.path, device.host.text)));
        }
        plans
    }
}
