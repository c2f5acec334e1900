//! The source: its groups, the thread that polls controllers on the network, and the one that polls this machine's own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wholegrain_devices::{
    AnswerSlot, DeviceConfig, DeviceGroup, DeviceGroups, DeviceTransport, DevicesConfig, PollTiming, PolledDevice,
    PolledGroup, Poller, PooledDevice, WorkerPool, config,
};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::bmc::{BmcGroup, BmcPolls};
use crate::config::{GroupsConfig, IpmiKeys, IpmiOwnKeys, device_groups, identity, is_kept, local_groups};
use crate::inband::InbandBmc;
use crate::lan::{LanBmc, SessionUse};
use crate::session::LanIdentity;

/// The source of this plug-in.
pub const SOURCE: SourceType = SourceType {
    name: "ipmi",
    summary: "management controllers that speak IPMI: sensors, power, event log",
    configure,
    jobs: None,
};

/// The port of RMCP.
const PORT: u16 = 623;
/// A controller is slow, and has other work: 30 s apart, 2 s for an answer.
const TIMING_USUAL: PollTiming = PollTiming {
    interval: Interval::from_s(30),
    offset: Interval::from_s(0),
    timeout: Interval::from_s(2),
    retries: 2,
    stale_after: None,
};
/// How long a poll of this machine's controller may take: 50 s.
const LOCAL_POLL: Duration = Duration::from_secs(50);

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let config: DevicesConfig<IpmiOwnKeys, IpmiKeys> = config::read_with(section, context, TIMING_USUAL)?;
    let mut source = IpmiSource {
        lan: DeviceGroups::new(Vec::new(), config.first_answers),
        local: DeviceGroups::new(Vec::new(), config.first_answers),
        in_flight: config.in_flight,
        poller: None,
        pool: None,
        waiting: Waiting::default(),
    };
    // Devices of one list share one identity.
    let mut identities: HashMap<(*const IpmiKeys, Option<String>), Arc<LanIdentity>> = HashMap::new();
    for device in config.devices {
        let groups = device_groups(&device)?;
        let name = device.credentials.as_ref().map(|credentials| credentials.name().to_owned());
        let key = (Arc::as_ptr(&device.protocol), name);
        let identity = match identities.get(&key) {
            Some(identity) => identity.clone(),
            None => {
                let new = Arc::new(identity(&device)?);
                identities.insert(key, new.clone());
                new
            }
        };
        let sessions = SessionUse { is_kept: is_kept(&device, &groups)?, retries: device.timing.retries };
        add_controller(&mut source.lan, &device.path, &groups);
        source.waiting.lan.push(LanController { device, groups, identity, sessions });
    }
    if let Some(local) = config.own.local {
        let groups = local_groups(&section.child("local"), &local)?;
        add_controller(&mut source.local, &local.path, &groups);
        source.waiting.local = Some((local.device, local.path, groups));
    }
    Ok(Box::new(source))
}

struct LanController {
    device: DeviceConfig<IpmiKeys>,
    groups: GroupsConfig,
    identity: Arc<LanIdentity>,
    sessions: SessionUse,
}

/// Controllers until their threads start, which have them from then on.
#[derive(Default)]
struct Waiting {
    lan: Vec<LanController>,
    local: Option<(PathBuf, String, GroupsConfig)>,
}

/// Adds the slots of a controller's groups.
fn add_controller(slots: &mut DeviceGroups, path: &str, groups: &GroupsConfig) {
    let name = |group: BmcGroup| BmcGroup::NAMES.iter().find(|(_, of)| *of == group).map_or("", |(name, _)| name);
    slots.extend(groups.groups.iter().map(|(group, timing)| DeviceGroup {
        name: format!("{path}/{}", name(*group)),
        timing: *timing,
        slot: Arc::new(AnswerSlot::default()),
    }));
}

struct IpmiSource {
    lan: DeviceGroups,
    local: DeviceGroups,
    in_flight: usize,
    poller: Option<Poller>,
    pool: Option<WorkerPool>,
    waiting: Waiting,
}

fn polled(group: &DeviceGroup) -> PolledGroup {
    PolledGroup { ticks: group.ticks(), slot: group.slot.clone() }
}

impl IpmiSource {
    /// Starts the threads at the first discovery: a source that is only configured opens no socket.
    fn start(&mut self) -> std::io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut slots = self.lan.groups().iter();
        let mut devices = Vec::new();
        for LanController { device, groups, identity, sessions } in waiting.lan {
            let bmc = BmcPolls::new(&device.path, &groups.kinds(), groups.filter.clone());
            let transport = if sessions.is_kept { DeviceTransport::UdpKept } else { DeviceTransport::Udp };
            devices.push(PolledDevice {
                path: device.path,
                host: device.host,
                port: device.port.unwrap_or(PORT),
                transport,
                timeout_ns: device.timing.timeout.ns(),
                retries: device.timing.retries,
                groups: slots.by_ref().take(groups.groups.len()).map(polled).collect(),
                protocol: Box::new(LanBmc::new(identity, sessions, bmc)),
            });
        }
        if !devices.is_empty() || waiting.local.is_none() {
            let poller = Poller::start("ipmi", devices, self.in_flight)?;
            self.lan.show_polls("ipmi", poller.counts().clone());
            self.poller = Some(poller);
        }
        if let Some((file, path, groups)) = waiting.local {
            let bmc = BmcPolls::new(&path, &groups.kinds(), groups.filter.clone());
            // In messages: a missing file is one of modules that are not loaded.
            let host = format!("{}, of the kernel modules ipmi_devintf and ipmi_si", file.display());
            let protocol = Box::new(InbandBmc::new(&file, bmc));
            let groups = self.local.groups().iter().map(polled).collect();
            let device = PooledDevice { path, host, timeout: LOCAL_POLL, groups, protocol };
            let pool = WorkerPool::start("ipmi-local", vec![device], 1)?;
            self.local.show_polls("ipmi/local", pool.counts().clone());
            self.pool = Some(pool);
        }
        Ok(())
    }
}

impl Source for IpmiSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.poller.is_none()
            && self.pool.is_none()
            && let Err(error) = self.start()
        {
            report(format!("ipmi: cannot start to poll: {error}"));
            return Vec::new();
        }
        let mut plans = Vec::new();
        if self.poller.is_some() {
            plans = self.lan.discover(report);
        }
        if self.pool.is_some() {
            plans.extend(self.local.discover(report));
        }
        plans
    }
}
