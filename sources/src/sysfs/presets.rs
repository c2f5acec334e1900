//! The known devices of the kernel: their files, and the sensors with units.
//!
//! Sources: Documentation/hwmon/sysfs-interface.rst, Documentation/ABI/testing/sysfs-class-hwmon,
//! Documentation/driver-api/thermal/sysfs-api.rst, Documentation/admin-guide/pm/cpufreq.rst,
//! Documentation/power/powercap/powercap.rst, Documentation/ABI/stable/sysfs-class-infiniband,
//! Documentation/admin-guide/RAS.

use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::hwmon;
use crate::glob::{self, PathMatch};

/// The longest text of a device in a description, in characters.
const LABEL_CHARACTERS_MAX: usize = 100;

/// The known kinds of devices. Each is a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Chips that measure temperature, voltage, current, power, fans.
    Hwmon,
    Thermal,
    /// The clock frequency of each CPU.
    Cpufreq,
    /// Energy counters of the processor (RAPL).
    Powercap,
    /// Port counters of InfiniBand and RoCE adapters.
    Infiniband,
    /// Port counters of Omni-Path adapters.
    Omnipath,
    Edac,
    /// Temperatures of NVMe drives.
    Nvme,
}

/// A file with a number, and its sensor.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberFile {
    pub path: PathBuf,
    pub sensor: SensorDef,
    /// Whether the file may hold text, so that discovery must read it.
    pub may_be_text: bool,
}

impl NumberFile {
    /// A file that holds a number whenever it exists.
    pub fn new(path: PathBuf, sensor: SensorDef) -> Self {
        Self { path, sensor, may_be_text: false }
    }
}

impl Preset {
    /// All presets, in the order of lists.
    pub const ALL: [Self; 8] = [
        Self::Hwmon,
        Self::Thermal,
        Self::Cpufreq,
        Self::Powercap,
        Self::Infiniband,
        Self::Omnipath,
        Self::Edac,
        Self::Nvme,
    ];

    /// The name of the preset in the configuration, and of its group.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hwmon => "hwmon",
            Self::Thermal => "thermal",
            Self::Cpufreq => "cpufreq",
            Self::Powercap => "powercap",
            Self::Infiniband => "infiniband",
            Self::Omnipath => "omnipath",
            Self::Edac => "edac",
            Self::Nvme => "nvme",
        }
    }

    /// Whether a read may block. Chips are behind slow buses or firmware, drives and adapters answer commands, and the frequency of a CPU comes from
    /// that CPU. RAPL reads a register, and EDAC a variable.
    pub const fn blocking(self) -> bool {
        !matches!(self, Self::Powercap | Self::Edac)
    }

    /// The existing files. With `with_nvme` drives belong to [`Preset::Nvme`] and not to the chips.
    pub fn find(self, sys: &Path, with_nvme: bool) -> Vec<NumberFile> {
        match self {
            Self::Hwmon => hwmon::chips(sys, with_nvme),
            Self::Thermal => thermal(sys),
            Self::Cpufreq => cpufreq(sys),
            Self::Powercap => powercap(sys),
            Self::Infiniband => fabric(sys, self, |device| !is_omnipath(device)),
            Self::Omnipath => fabric(sys, self, is_omnipath),
            Self::Edac => edac(sys),
            Self::Nvme => hwmon::nvme(sys),
        }
    }
}

/// The content of a short text file, such as the name of a device, without white space around it; `None` for an empty or missing file.
pub fn text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let text: String = String::from_utf8_lossy(&bytes).trim().chars().take(LABEL_CHARACTERS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

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

fn fabric(sys: &Path, preset: Preset, is_of_preset: impl Fn(&str) -> bool) -> Vec<NumberFile> {
    let places = [
        ("class/infiniband/*/ports/*/counters/*", "{0}/{1}/{2}"),
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
            let data_bytes = if preset == Preset::Omnipath { 8.0 } else { 4.0 };
            let sensor = port_counter(format!("{}/{levels}", preset.name()), counter, data_bytes);
            all.push(NumberFile { may_be_text: true, ..NumberFile::new(path, sensor) });
        }
    }
    all
}

fn port_counter(name: String, counter: &str, data_bytes: f64) -> SensorDef {
    let (unit, scale, description) = match counter {
        "port_xmit_data" => ("By", data_bytes, "Bytes sent."),
        "port_rcv_data" => ("By", data_bytes, "Bytes received."),
        "port_xmit_packets" => ("1", 1.0, "Packets sent."),
        "port_rcv_packets" => ("1", 1.0, "Packets received."),
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

fn edac(sys: &Path) -> Vec<NumberFile> {
    let places = [
        ("mc*/ce_count", "mc{0}/ce_count", "Memory errors corrected."),
        ("mc*/ue_count", "mc{0}/ue_count", "Memory errors that could not be corrected."),
        ("mc*/ce_noinfo_count", "mc{0}/ce_noinfo_count", "Memory errors corrected, module unknown."),
        ("mc*/ue_noinfo_count", "mc{0}/ue_noinfo_count", "Memory errors that could not be corrected, module unknown."),
        ("mc*/dimm*/dimm_ce_count", "mc{0}/dimm{1}/ce_count", "Memory errors corrected in this module."),
        (
            "mc*/dimm*/dimm_ue_count",
            "mc{0}/dimm{1}/ue_count",
            "Memory errors that could not be corrected in this module.",
        ),
        ("mc*/rank*/dimm_ce_count", "mc{0}/rank{1}/ce_count", "Memory errors corrected in this rank."),
        (
            "mc*/rank*/dimm_ue_count",
            "mc{0}/rank{1}/ue_count",
            "Memory errors that could not be corrected in this rank.",
        ),
    ];
    let mut all = Vec::new();
    for (pattern, template, description) in places {
        for PathMatch { path, captures } in glob::find(sys, &format!("devices/system/edac/mc/{pattern}")) {
            let name = captures.iter().enumerate().fold(template.to_owned(), |name, (index, capture)| {
                name.replace(&format!("{{{index}}}"), &sanitize_level(capture))
            });
            all.push(NumberFile::new(path, SensorDef::counter(format!("edac/{name}"), "1", description)));
        }
    }
    all
}
