//! The known devices of the kernel: their files, and the sensors with units.
//!
//! Sources: Documentation/hwmon/sysfs-interface.rst, Documentation/ABI/testing/sysfs-class-hwmon,
//! Documentation/driver-api/thermal/sysfs-api.rst, Documentation/admin-guide/pm/cpufreq.rst,
//! Documentation/power/powercap/powercap.rst, Documentation/ABI/stable/sysfs-class-infiniband,
//! Documentation/admin-guide/RAS.

use std::path::Path;

use wholegrain_model::name::sanitize_level;
use wholegrain_model::{Interval, SensorDef};

use super::number_file::{NumberFile, text};
use super::{hwmon, processor, rows};
use crate::glob::{self, PathMatch};

/// A known kind of devices: the name is that in the configuration and of the group.
pub struct Preset {
    pub name: &'static str,
    /// The existing files below /sys. With the second argument drives are not chips of `hwmon`, as the preset `nvme` has them.
    pub find: fn(&Path, bool) -> Vec<NumberFile>,
    /// Whether it is read without settings.
    pub is_on: bool,
    /// The interval without settings; `None` for the agent's default.
    pub interval: Option<Interval>,
    /// Whether a read may block. Chips are behind slow buses or firmware, drives and adapters answer commands, the frequency of a CPU comes from that
    /// CPU, and settings of network interfaces wait for changes of others. RAPL reads a register; EDAC, throttling and md read variables.
    pub blocking: bool,
}

impl std::fmt::Debug for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn preset(name: &'static str, find: fn(&Path, bool) -> Vec<NumberFile>) -> Preset {
    Preset { name, find, is_on: true, interval: None, blocking: false }
}

impl Preset {
    const fn every(self, seconds: u64) -> Self {
        Self { interval: Some(Interval::from_s(seconds)), ..self }
    }

    const fn off(self) -> Self {
        Self { is_on: false, ..self }
    }

    const fn blocking(self) -> Self {
        Self { blocking: true, ..self }
    }
}

/// The preset of drives, without which they are chips of `hwmon`.
pub const NVME: &str = "nvme";

/// All presets, in the order of lists.
pub static PRESETS: &[Preset] = &[
    preset("hwmon", hwmon::chips).blocking(),
    preset("thermal", |sys, _| thermal(sys)).blocking(),
    preset("cpufreq", |sys, _| cpufreq(sys)).blocking(),
    preset("powercap", |sys, _| powercap(sys)),
    preset("infiniband", |sys, _| fabric(sys, "infiniband", |device| !is_omnipath(device))).blocking(),
    preset("omnipath", |sys, _| fabric(sys, "omnipath", is_omnipath)).blocking(),
    preset("edac", |sys, _| rows::find(sys, rows::EDAC)),
    preset(NVME, |sys, _| hwmon::nvme(sys)).blocking(),
    preset("netclass", |sys, _| rows::find(sys, rows::NETCLASS)).every(10).blocking(),
    preset("bonding", |sys, _| rows::find(sys, rows::BONDING)).every(10).blocking(),
    preset("throttle", |sys, _| processor::throttle(sys)).every(10),
    preset("cooling", |sys, _| processor::cooling(sys)).every(10).blocking(),
    preset("md", |sys, _| rows::find(sys, rows::MD)).every(10),
    preset("watchdog", |sys, _| rows::find(sys, rows::WATCHDOG)).every(60).blocking(),
    preset("hwmon_limits", hwmon::limits).every(60).off().blocking(),
];

fn thermal(sys: &Path) -> Vec<NumberFile> {
    let zones = glob::find(sys, "class/thermal/thermal_zone*/temp").into_iter();
    zones
        .map(|PathMatch { path, captures }| {
            let kind = path.parent().and_then(|zone| text(&zone.join("type"))).unwrap_or_default();
            let name = match kind.as_str() {
                "" => format!("zone{}", captures[0]),
                kind => format!("zone{}_{kind}", captures[0]),
            };
            let description = format!("Temperature of the thermal zone {kind}.").replace(" .", ".");
            let sensor = SensorDef::gauge(format!("thermal/{}", sanitize_level(&name)), "Cel", &description);
            NumberFile::new(path, sensor.scaled(1e-3))
        })
        .collect()
}

fn cpufreq(sys: &Path) -> Vec<NumberFile> {
    let files = glob::find(sys, "devices/system/cpu/cpu*/cpufreq/scaling_cur_freq").into_iter();
    let cpus = files.filter(|found| found.captures[0].parse::<u32>().is_ok());
    cpus.map(|PathMatch { path, captures }| {
        let sensor = SensorDef::gauge(
            format!("cpu/{}/frequency", captures[0]),
            "Hz",
            "Clock frequency that the driver last reported.",
        );
        NumberFile::new(path, sensor.scaled(1e3))
    })
    .collect()
}

/// The counters of RAPL. `max_energy_range_uj` is the largest value of a counter, so it wraps at one more. The true modulus is larger by at most one
/// step of the hardware's counter (61 uJ or less).
fn powercap(sys: &Path) -> Vec<NumberFile> {
    let files = glob::find(sys, "class/powercap/*/energy_uj").into_iter();
    files
        .filter_map(|PathMatch { path, captures }| {
            let zone = &captures[0];
            let class = path.parent()?.parent()?;
            let control = zone.split(':').next()?;
            // `intel-rapl:0:1` is part of `intel-rapl:0`. The sensor's name has the names of both.
            let ends = zone.match_indices(':').map(|(at, _)| at).skip(1).chain([zone.len()]);
            let names = ends
                .map(|end| &zone[..end])
                .map(|zone| text(&class.join(zone).join("name")).unwrap_or_else(|| zone.to_owned()));
            let names: Vec<String> = names.map(|name| sanitize_level(&name)).collect();
            let folder = if control == "intel-rapl" { String::new() } else { format!("{}/", sanitize_level(control)) };
            let range = text(&path.with_file_name("max_energy_range_uj")).and_then(|text| text.parse::<u64>().ok());
            let description = format!("Energy used by {}.", names.join(" "));
            let sensor = SensorDef::counter(format!("powercap/{folder}{}/energy", names.join("/")), "J", &description);
            let wraps_at = range.and_then(|range| range.checked_add(1));
            Some(NumberFile::new(path, SensorDef { wraps_at, ..sensor.scaled(1e-6) }))
        })
        .collect()
}

/// Omni-Path adapters (driver hfi1) appear among the InfiniBand devices.
fn is_omnipath(device: &str) -> bool {
    device.starts_with("hfi1")
}

fn fabric(sys: &Path, preset: &str, is_of_preset: impl Fn(&str) -> bool) -> Vec<NumberFile> {
    let places = [
        ("class/infiniband/*/ports/*/counters/*", "{0}/{1}/{2}"),
        // Counters of 64 bits, before Linux 4.5.
        ("class/infiniband/*/ports/*/counters_ext/*", "{0}/{1}/ext/{2}"),
        ("class/infiniband/*/ports/*/hw_counters/*", "{0}/{1}/hw/{2}"),
        ("class/infiniband/*/hw_counters/*", "{0}/hw/{1}"),
    ];
    let mut all = Vec::new();
    for (pattern, template) in places {
        for PathMatch { path, captures } in glob::find(sys, pattern) {
            let counter = captures.last().map_or("", String::as_str);
            // The shortest time between two requests of the driver, in ms: a setting, not a counter.
            if !is_of_preset(&captures[0]) || counter == "lifespan" {
                continue;
            }
            let levels = captures.iter().enumerate().fold(template.to_owned(), |name, (index, capture)| {
                name.replace(&format!("{{{index}}}"), &sanitize_level(capture))
            });
            // A 4x InfiniBand link counts units of four bytes, one byte for each lane. The hfi1 driver gives its count of flits, which have
            // eight bytes (drivers/infiniband/hw/hfi1/mad.c, pma_get_ib_portcounters_ext).
            let data_bytes = if preset == "omnipath" { 8.0 } else { 4.0 };
            let sensor = port_counter(format!("{preset}/{levels}"), counter, data_bytes);
            all.push(NumberFile { may_be_text: true, ..NumberFile::new(path, sensor) });
        }
    }
    all
}

fn port_counter(name: String, counter: &str, data_bytes: f64) -> SensorDef {
    let (unit, scale, description) = match counter {
        "port_xmit_data" | "port_xmit_data_64" => ("By", data_bytes, "Bytes sent."),
        "port_rcv_data" | "port_rcv_data_64" => ("By", data_bytes, "Bytes received."),
        "port_xmit_packets" | "port_xmit_packets_64" => ("1", 1.0, "Packets sent."),
        "port_rcv_packets" | "port_rcv_packets_64" => ("1", 1.0, "Packets received."),
        "port_xmit_wait" => ("1", 1.0, "Clock ticks during which data waited and could not be sent."),
        "port_xmit_discards" => ("1", 1.0, "Packets not sent as the port was down or congested."),
        "port_rcv_errors" => ("1", 1.0, "Packets received with errors."),
        "symbol_error" => ("1", 1.0, "Minor errors on the link's lanes."),
        "link_downed" => ("1", 1.0, "Times that the link failed and did not recover by itself."),
        "link_error_recovery" => ("1", 1.0, "Times that the link failed and recovered by itself."),
        "VL15_dropped" => ("1", 1.0, "Management packets dropped for lack of buffers."),
        _ => ("1", 1.0, ""),
    };
    SensorDef::counter(name, unit, description).scaled(scale)
}
