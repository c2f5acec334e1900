//! Ethernet and RoCE: the statistics of drivers, and the state of links, by the ioctl of ethtool.
//!
//! - In: `[sources.ethtool]`, and the kernel's `SIOCETHTOOL` for each network device.
//! - Out: the group `ethtool`, with the sensors `ethtool/<device>/<counter>`.
//! - Never: a change of a device.

mod kernel;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::sanitize_level;
use wholegrain_model::pattern::{Filter, Pattern};

use self::kernel::{EthtoolSocket, LINK_SENSORS, StatBuffer};
use crate::glob;
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::{SensorPlan, Slot};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "ethtool",
    summary: "Ethernet and RoCE: statistics of drivers, state of links",
    configure,
    jobs: None,
};

const GROUP: &str = "ethtool";

/// The counters without settings: of the port, drops, errors, pauses and congestion. Drivers have up to thousands, most of them by queue.
const COUNTERS: [&str; 16] = [
    "*_phy",
    "*discard*",
    "*drop*",
    "*err*",
    "*crc*",
    "*pause*",
    "*_ecn*",
    "*_cnp*",
    "*cnp_*",
    "*out_of_*",
    "*missed*",
    "*timeout*",
    "*no_buf*",
    "*xoff*",
    "*xon*",
    "link_down_events*",
];

/// The keys of the source's table besides those of the group.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EthtoolKeys {
    devices: Filter,
    /// Whether devices without hardware have sensors, such as those of containers.
    virtual_devices: bool,
    counters: Filter,
    link: bool,
}

impl Default for EthtoolKeys {
    fn default() -> Self {
        let include = COUNTERS.iter().filter_map(|text| Pattern::new(*text).ok()).collect();
        let counters = Filter { include, exclude: Vec::new() };
        Self { devices: Filter::default(), virtual_devices: false, counters, link: true }
    }
}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys): (GroupOptions, EthtoolKeys) = options::read(section)?;
    Ok(Box::new(EthtoolSource { options, keys, sys: context.roots.sys.clone() }))
}

struct EthtoolSource {
    options: GroupOptions,
    keys: EthtoolKeys,
    sys: PathBuf,
}

impl EthtoolSource {
    fn devices(&self) -> Vec<String> {
        let folder = self.sys.join("class/net");
        let is_kept = |name: &String| {
            let has_hardware = || is_hardware(&folder.join(name));
            self.keys.devices.keeps(name) && (self.keys.virtual_devices || has_hardware())
        };
        glob::names(&folder).into_iter().filter(is_kept).collect()
    }
}

fn is_hardware(device: &Path) -> bool {
    device.join("device").exists()
}

impl Source for EthtoolSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let names = self.devices();
        if names.is_empty() {
            return Vec::new();
        }
        let socket = match EthtoolSocket::new() {
            Ok(socket) => socket,
            Err(error) => {
                report(format!("ethtool: cannot open a socket: {error}"));
                return Vec::new();
            }
        };
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let devices = names.iter().filter_map(|name| EthtoolDevice::plan(name, &socket, &self.keys, &mut plan));
        let devices = devices.collect();
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let reader = Box::new(EthtoolReader { socket, devices });
        let timing = self.options.timing(&NO_OPTIONS);
        // Drivers ask the firmware, and the kernel locks the configuration of the network.
        vec![GroupPlan { name: GROUP.to_owned(), sensors, reader, timing, blocking: true }]
    }
}

/// A device with the slots of its values.
struct EthtoolDevice {
    name: String,
    statistics: StatBuffer,
    slots: Vec<Slot>,
    link: [Slot; LINK_SENSORS.len()],
}

impl EthtoolDevice {
    fn plan(name: &str, socket: &EthtoolSocket, keys: &EthtoolKeys, plan: &mut SensorPlan<'_>) -> Option<Self> {
        let folder = sanitize_level(name);
        let counters = match socket.names(name) {
            Ok(counters) => counters,
            Err(libc::ENODEV) => return None,
            // A driver without statistics has a link.
            Err(_) => Vec::new(),
        };
        let slots: Vec<Slot> = counters.iter().map(|text| plan_counter(&folder, text, keys, plan)).collect();
        let mut link = [None; LINK_SENSORS.len()];
        if keys.link {
            for (slot, (quantity, unit, scale, text)) in link.iter_mut().zip(LINK_SENSORS) {
                let path = format!("ethtool/{folder}/link/{quantity}");
                *slot = plan.add_once(SensorDef::gauge(path, unit, text).scaled(scale));
            }
        }
        let is_sampled = slots.iter().chain(&link).any(Option::is_some);
        let statistics = StatBuffer::new(counters.len());
        is_sampled.then(|| Self { name: name.to_owned(), statistics, slots, link })
    }

    fn read(&mut self, socket: &EthtoolSocket, row: &mut Row<'_>) -> Reading {
        let mut reading = Reading::COMPLETE;
        if self.slots.iter().any(Option::is_some) {
            match socket.statistics(&self.name, &mut self.statistics) {
                Ok(Some(values)) => {
                    for (slot, value) in self.slots.iter().zip(values) {
                        if let Some(slot) = slot {
                            row.set_int(*slot as usize, *value as i64);
                        }
                    }
                }
                // Another number of counters, after a change of the device's queues.
                Ok(None) => reading.layout_changed = true,
                Err(errno) => {
                    reading.layout_changed = errno == libc::ENODEV;
                    reading.problem = Some(ReadProblem::Os { what: GROUP, errno });
                }
            }
        }
        if self.link.iter().any(Option::is_some) {
            for (slot, value) in self.link.iter().zip(socket.link(&self.name)) {
                if let Some((slot, value)) = slot.zip(value) {
                    row.set_int(slot as usize, value);
                }
            }
        }
        reading
    }
}

fn plan_counter(folder: &str, counter: &str, keys: &EthtoolKeys, plan: &mut SensorPlan<'_>) -> Slot {
    let level = sanitize_level(counter);
    if counter.is_empty() || !keys.counters.keeps(&level) {
        return None;
    }
    let is_bytes = level.contains("bytes") || level.contains("octets");
    let unit = if is_bytes { "By" } else { "1" };
    plan.add_once(SensorDef::counter(format!("ethtool/{folder}/{level}"), unit, ""))
}

struct EthtoolReader {
    socket: EthtoolSocket,
    devices: Vec<EthtoolDevice>,
}

impl Reader for EthtoolReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut result = Reading::COMPLETE;
        for device in &mut self.devices {
            let reading = device.read(&self.socket, row);
            result.layout_changed |= reading.layout_changed;
            result.problem = result.problem.or(reading.problem);
        }
        result
    }
}
