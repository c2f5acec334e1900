//! Hardware monitoring chips, and NVMe drives, which have the same files for their temperatures.

use std::path::Path;

use wholegrain_model::name::sanitize_level;
use wholegrain_model::{Kind, SensorDef};

use super::number_file::{NumberFile, text};
use crate::glob;

/// A quantity. The names of its files begin with `letters`; `name` is for descriptions.
struct Quantity {
    letters: &'static str,
    unit: &'static str,
    scale: f64,
    kind: Kind,
    name: &'static str,
}

const fn gauge(letters: &'static str, unit: &'static str, scale: f64, name: &'static str) -> Quantity {
    Quantity { letters, unit, scale, kind: Kind::Gauge, name }
}

/// Documentation/hwmon/sysfs-interface.rst: temperatures in m°C, voltages in mV, currents in mA, power in uW, energy in uJ,
/// fans in revolutions a minute, humidity in thousandths of a percent, frequencies in Hz (Documentation/gpu/amdgpu/thermal.rst).
const QUANTITIES: [Quantity; 8] = [
    gauge("temp", "Cel", 1e-3, "Temperature"),
    gauge("fan", "/min", 1.0, "Fan speed"),
    gauge("in", "V", 1e-3, "Voltage"),
    gauge("curr", "A", 1e-3, "Current"),
    gauge("power", "W", 1e-6, "Power"),
    Quantity { letters: "energy", unit: "J", scale: 1e-6, kind: Kind::Counter, name: "Energy used" },
    gauge("humidity", "%", 1e-3, "Relative humidity"),
    gauge("freq", "Hz", 1.0, "Clock frequency"),
];

/// The attributes of an item that are values; the others are limits, alarms and settings.
const VALUES: [&str; 2] = ["input", "average"];
/// Attributes with a limit, in the unit of the item. Alarms and faults are 0 or 1.
const LIMITS: [&str; 10] =
    ["min", "max", "crit", "lcrit", "emergency", "cap", "cap_min", "cap_max", "rated_min", "rated_max"];

/// The values of all chips, `hwmon/<chip>/<item>`; without those of NVMe drives if `without_nvme`.
pub fn chips(sys: &Path, without_nvme: bool) -> Vec<NumberFile> {
    of_chips(sys, without_nvme, |folder, prefix, all| {
        items(folder, prefix, |_| true, all);
        fan_drives(folder, prefix, all);
    })
}

/// The limits, alarms and faults of all chips, `hwmon/<chip>/<item>_<attribute>`.
pub fn limits(sys: &Path, without_nvme: bool) -> Vec<NumberFile> {
    of_chips(sys, without_nvme, limits_of)
}

fn of_chips(sys: &Path, without_nvme: bool, add: impl Fn(&Path, &str, &mut Vec<NumberFile>)) -> Vec<NumberFile> {
    let mut all = Vec::new();
    for found in glob::find(sys, "class/hwmon/hwmon*") {
        // Drivers from before Linux 3.x have their files one level lower.
        let device = found.path.join("device");
        let is_here = found.path.join("name").exists() || !device.join("name").exists();
        let folder = if is_here { &found.path } else { &device };
        let name = text(&folder.join("name"));
        if without_nvme && name.as_deref() == Some("nvme") {
            continue;
        }
        add(folder, &format!("hwmon/{}", chip_name(name.as_deref(), &device, &found.captures[0])), &mut all);
    }
    all
}

/// The temperatures of NVMe drives, `nvme/<controller>/<item>`.
pub fn nvme(sys: &Path) -> Vec<NumberFile> {
    let mut all = Vec::new();
    for controller in glob::find(sys, "class/nvme/nvme*") {
        let prefix = format!("nvme/nvme{}", sanitize_level(&controller.captures[0]));
        // The chip's parent is the controller; before Linux 5.17 it was the PCI device below.
        let places = ["hwmon*/temp1_input", "hwmon/hwmon*/temp1_input", "device/hwmon/hwmon*/temp1_input"];
        let chip = places.iter().find_map(|place| glob::find(&controller.path, place).into_iter().next());
        if let Some(folder) = chip.as_ref().and_then(|chip| chip.path.parent()) {
            items(folder, &prefix, |quantity| quantity == "temp", &mut all);
        }
    }
    all
}

/// A name of a chip that does not change with a restart and differs between chips of one kind. The number in `hwmon3` depends on the order in which
/// drivers are loaded. So the name is that of the device (`coretemp.0`), after the name of the driver unless the device's begins with it. A chip
/// without a device and without a name has only its number.
fn chip_name(name: Option<&str>, device: &Path, number: &str) -> String {
    let target = std::fs::canonicalize(device).ok();
    let device = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    sanitize_level(&match (name, device) {
        (Some(name), Some(device)) if device.starts_with(name) => device,
        (Some(name), Some(device)) => format!("{name}-{device}"),
        (Some(name), None) => name.to_owned(),
        (None, Some(device)) => device,
        (None, None) => format!("hwmon{number}"),
    })
}

/// The quantity of an item such as `temp12`.
fn quantity_of(item: &str) -> Option<&'static Quantity> {
    let letters = item.trim_end_matches(|c: char| c.is_ascii_digit());
    QUANTITIES.iter().find(|quantity| quantity.letters == letters && letters != item)
}

/// The sensor of an attribute: its level is the item, the attribute unless it is the value, and the label.
fn sensor_of(folder: &Path, prefix: &str, quantity: &Quantity, item: &str, attribute: &str) -> SensorDef {
    let label = text(&folder.join(format!("{item}_label")));
    let (shown, what) = match attribute {
        "input" => (item.to_owned(), String::new()),
        "average" => (format!("{item}_average"), ", mean of the chip's own interval".to_owned()),
        attribute => (format!("{item}_{attribute}"), format!(", {}", attribute.replace('_', " "))),
    };
    let (level, description) = match &label {
        Some(label) => (format!("{shown}_{label}"), format!("{}{what}: {label}.", quantity.name)),
        None => (shown, format!("{}{what}.", quantity.name)),
    };
    let path = format!("{prefix}/{}", sanitize_level(&level));
    let is_flag = attribute.ends_with("alarm") || attribute == "fault";
    if is_flag {
        return SensorDef::gauge(path, "1", &description);
    }
    let kind = if VALUES.contains(&attribute) { quantity.kind } else { Kind::Gauge };
    SensorDef { kind, ..SensorDef::gauge(path, quantity.unit, &description).scaled(quantity.scale) }
}

fn limits_of(folder: &Path, prefix: &str, all: &mut Vec<NumberFile>) {
    for file in glob::names(folder) {
        let Some((item, attribute)) = file.split_once('_') else { continue };
        let path = folder.join(&file);
        if let Some(quantity) = quantity_of(item) {
            let is_flag = attribute.ends_with("alarm") || attribute == "fault";
            if is_flag || LIMITS.contains(&attribute) {
                all.push(NumberFile::new(path, sensor_of(folder, prefix, quantity, item, attribute)));
            }
        } else if item.starts_with("intrusion") && attribute == "alarm" {
            let name = format!("{prefix}/{}", sanitize_level(&file));
            all.push(NumberFile::new(path, SensorDef::gauge(name, "1", "Whether the case was opened.")));
        }
    }
}

/// How hard fans are driven: `pwm1` from 0 to 255.
fn fan_drives(folder: &Path, prefix: &str, all: &mut Vec<NumberFile>) {
    for file in glob::names(folder) {
        let is_drive =
            file.strip_prefix("pwm").is_some_and(|number| !number.is_empty() && number.parse::<u32>().is_ok());
        if is_drive {
            let sensor = SensorDef::gauge(format!("{prefix}/{file}"), "%", "Share of full power of a fan.");
            all.push(NumberFile::new(folder.join(&file), sensor.scaled(100.0 / 255.0)));
        }
    }
}

fn items(folder: &Path, prefix: &str, is_sampled: impl Fn(&str) -> bool, all: &mut Vec<NumberFile>) {
    for file in glob::names(folder) {
        let Some((item, attribute)) = file.split_once('_').filter(|(_, attribute)| VALUES.contains(attribute)) else {
            continue;
        };
        let Some(quantity) = quantity_of(item).filter(|quantity| is_sampled(quantity.letters)) else { continue };
        // Some power meters give a mean only, which is their value.
        let is_only = attribute == "average" && !folder.join(format!("{item}_input")).exists();
        let attribute = if is_only { "input" } else { attribute };
        all.push(NumberFile::new(folder.join(&file), sensor_of(folder, prefix, quantity, item, attribute)));
    }
}
