//! The source: its groups, and the thread that polls.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_devices::config::{self, check_timing};
use wholegrain_devices::{
    AnswerSlot, DeviceConfig, DeviceGroup, DeviceGroups, DeviceTransport, DevicesConfig, PollTiming, PolledDevice,
    PolledGroup, Poller,
};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::config::{Identities, SnmpKeys, groups};
use crate::exchange::{SharedGroup, SnmpAgent};
use crate::session::SnmpIdentity;
use crate::spec::GroupSpec;

/// The source of this plug-in.
pub const SOURCE: SourceType = SourceType {
    name: "snmp",
    summary: "devices that speak SNMP: power distribution, switches, cooling, servers",
    configure,
    jobs: None,
};

/// The port of SNMP agents.
const PORT: u16 = 161;
/// What silence can mean, for notes.
const SILENCE: &str =
    ": check the address, the port, and for SNMP 1 and 2c the community, as agents do not answer a wrong one";
/// The default of `max_repetitions`.
const REPETITIONS: u32 = 20;
/// The most rows that a GETBULK may ask for.
const REPETITIONS_MAX: u32 = 1000;

/// The plug-in has no keys besides those that all sources of devices have, and those of an agent as a default are in templates.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoOwnKeys {}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let config: DevicesConfig<NoOwnKeys, SnmpKeys> = config::read(section, context)?;
    let mut shared: HashMap<*const SnmpKeys, Arc<[SharedGroup]>> = HashMap::new();
    let mut identities = Identities::default();
    let mut agents = Vec::new();
    for device in config.devices {
        let key = Arc::as_ptr(&device.protocol);
        let groups = match shared.get(&key) {
            Some(groups) => groups.clone(),
            None => {
                let specs = groups(&device.protocol).map_err(|(key, message)| device.section.error(key, message))?;
                let groups: Arc<[SharedGroup]> =
                    specs.into_iter().map(|spec| SharedGroup::new(Arc::new(spec))).collect();
                groups.iter().try_for_each(|group| check_timing(&device.section, &timing(&device, &group.spec)))?;
                shared.insert(key, groups.clone());
                groups
            }
        };
        let repetitions = device.protocol.max_repetitions.unwrap_or(REPETITIONS);
        if repetitions == 0 || repetitions > REPETITIONS_MAX {
            let message = format!("max_repetitions is {repetitions}; expected 1 to {REPETITIONS_MAX}");
            return Err(device.section.error("max_repetitions", message));
        }
        let identity = identities.of(&device)?;
        agents.push(ConfiguredAgent { device, groups, repetitions, identity });
    }
    let mut slots = DeviceGroups::new(Vec::new(), config.first_answers).with_silence(SILENCE);
    for agent in &agents {
        slots.extend(agent.groups.iter().map(|group| DeviceGroup {
            name: format!("{}/{}", agent.device.path, group.spec.name),
            timing: timing(&agent.device, &group.spec),
            slot: Arc::new(AnswerSlot::default()),
        }));
    }
    Ok(Box::new(SnmpSource { agents, in_flight: config.in_flight, groups: slots, poller: None }))
}

/// The timing of a group of a device.
fn timing(device: &DeviceConfig<SnmpKeys>, group: &GroupSpec) -> PollTiming {
    PollTiming {
        interval: group.interval.unwrap_or(device.timing.interval),
        offset: group.offset.unwrap_or(device.timing.offset),
        ..device.timing
    }
}

struct ConfiguredAgent {
    device: DeviceConfig<SnmpKeys>,
    groups: Arc<[SharedGroup]>,
    repetitions: u32,
    identity: SnmpIdentity,
}

struct SnmpSource {
    /// Until the thread starts, which has them from then on.
    agents: Vec<ConfiguredAgent>,
    in_flight: usize,
    groups: DeviceGroups,
    poller: Option<Poller>,
}

impl SnmpSource {
    /// Starts the thread at the first discovery: a source that is only configured opens no socket.
    fn start(&mut self) -> std::io::Result<()> {
        let mut slots = self.groups.groups().iter();
        let mut devices = Vec::new();
        for agent in &self.agents {
            let device = &agent.device;
            let protocol = SnmpAgent::new(&device.path, agent.identity.clone(), &agent.groups, agent.repetitions);
            let groups = slots.by_ref().take(agent.groups.len());
            devices.push(PolledDevice {
                path: device.path.clone(),
                host: device.host.clone(),
                port: device.port.unwrap_or(PORT),
                transport: DeviceTransport::Udp,
                timeout_ns: device.timing.timeout.ns(),
                retries: device.timing.retries,
                groups: groups.map(|group| PolledGroup { ticks: group.ticks(), slot: group.slot.clone() }).collect(),
                protocol: Box::new(protocol),
            });
        }
        let poller = Poller::start("snmp", devices, self.in_flight)?;
        poller.counts().explain_silence(SILENCE);
        self.groups.show_polls("snmp", poller.counts().clone());
        self.poller = Some(poller);
        self.agents = Vec::new();
        Ok(())
    }
}

impl Source for SnmpSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.poller.is_none()
            && let Err(error) = self.start()
        {
            report(format!("snmp: cannot start to poll: {error}"));
            return Vec::new();
        }
        self.groups.discover(report)
    }
}
