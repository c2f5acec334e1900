//! Modbus devices: meters, cooling units and controllers, over TCP and over serial lines.
//!
//! - In: `[plugins.modbus]` with templates and lists of devices; registers and bits that devices answer.
//! - Out: one group for each device, with one sensor for each register of the configuration.
//! - Never: a write to a device; a value that no answer to its own request had; a device that delays a device on another line.

mod block;
mod frame;
mod line;
mod poller;
mod serial;
mod settings;
mod value;

use std::sync::Arc;

use wholegrain_devices::{AnswerSlot, DeviceGroup, DeviceGroups};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::poller::LinePoller;
use crate::settings::ModbusPlan;

/// The source for the agent and for tests.
pub const SOURCE: SourceType = SourceType {
    name: "modbus",
    summary: "registers of Modbus devices, over TCP and serial lines",
    configure,
    jobs: None,
};

wholegrain_plugin::export!(SOURCE);

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let plan = settings::read(section, context)?;
    Ok(Box::new(ModbusSource { plan, running: None }))
}

/// A configured source. Its thread starts with the first discovery.
struct ModbusSource {
    plan: ModbusPlan,
    running: Option<(LinePoller, DeviceGroups)>,
}

impl ModbusSource {
    fn start(&self) -> std::io::Result<(LinePoller, DeviceGroups)> {
        let group = |device: &settings::DevicePlan| DeviceGroup {
            name: device.path.clone(),
            timing: device.timing,
            slot: Arc::new(AnswerSlot::with_sensors(device.sensors.clone())),
        };
        let groups: Vec<DeviceGroup> = self.plan.devices.iter().map(group).collect();
        let poller = LinePoller::start(&self.plan, &groups)?;
        let mut groups = DeviceGroups::new(groups, self.plan.first_answers);
        groups.show_polls("modbus", poller.counts().clone());
        Ok((poller, groups))
    }
}

impl Source for ModbusSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.running.is_none() {
            match self.start() {
                Ok(running) => self.running = Some(running),
                Err(error) => report(format!("the thread that polls the devices did not start: {error}")),
            }
        }
        let Some((poller, groups)) = &mut self.running else { return Vec::new() };
        let plans = groups.discover(report);
        for (device, refusals) in self.plan.devices.iter().zip(poller.refusals()) {
            refusals.into_iter().for_each(|text| report(format!("device {} ({}): {text}", device.path, device.host)));
        }
        plans
    }
}
