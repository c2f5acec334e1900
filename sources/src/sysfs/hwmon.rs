//! Hardware monitoring chips, and NVMe drives, which have the same files for their temperatures.

use std::path::Path;

use wholegrain_model::name::sanitize_level;
use wholegrain_model::{Kind, SensorDef};

use super::presets::{NumberFile, text};
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
/// fans in revolutions a minute, humidity in thousandths of a percent.
const QUANTITIES: [Quantity; 7] = [
    gauge("temp", "Cel", 1e-3, "Temperature"),
    gauge("fan", "/min", 1.0, "Fan speed"),
    gauge("in", "V", 1e-3, "Voltage"),
    gauge("curr", "A", 1e-3, "Current"),
    gauge("power", "W", 1e-6, "Power"),
    Quantity { letters: "energy", unit: "J", scale: 1e-6, kind: Kind::Counter, name: "Energy used" },
    gauge("humidity", "%", 1e-3, "Relative humidity"),
];

/// The sensors of all chips, `hwmon/<chip>/<item>`; without those of NVMe drives if `without_nvme`.
pub fn chips(sys: &Path, without_nvme: bool) -> Vec<NumberFile> {
    let mut all = Vec::new();
    for found in glob::find(sys, "class/hwmon/hwmon*") {
        // Drivers from before Linux 3.x have their files one level lower.
        let device = found.path.join("device");
        let folder = if found.path.join("name").exists() { &found.path } else { &device };
        let name = text(&folder.join("name")).unwrap_or_else(|| "unnamed".to_owned());
        if without_nvme && name == "nvme" {
            continue;
        }
        items(folder, &format!("hwmon/{}", chip_name(&name, &device)), |_| true, &mut all);
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
/// drivers are loaded. So the name is that of the device (`coretemp.0`), after the name of the driver unless the device's begins with it.
fn chip_name(name: &str, device: &Path) -> String {
    let target = std::fs::canonicalize(device).ok();
    let device = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    sanitize_level(&match device {
        Some(device) if device.starts_with(name) => device,
        Some(device) => format!("{name}-{device}"),
        None => name.to_owned(),
    })
}

fn items(folder: &Path, prefix: &str, is_sampled: impl Fn(&str) -> bool, all: &mut Vec<NumberFile>) {
    for file in glob::names(folder) {
        let Some((item, attribute)) = file.split_once('_') else { continue };
        let letters = item.trim_end_matches(|c: char| c.is_ascii_digit());
        let Some(quantity) = QUANTITIES.iter().find(|quantity| quantity.letters == letters && letters != item) else {
            continue;
        };
        // Some power meters give a mean only.
        let is_mean = letters == "power" && attribute == "average" && !folder.join(format!("{item}_input")).exists();
        if !(attribute == "input" || is_mean) || !is_sampled(letters) {
            continue;
        }
        let label = text(&folder.join(format!("{item}_label")));
        let (level, description) = match &label {
            Some(label) => (format!("{item}_{label}"), format!("{}: {label}.", quantity.name)),
            None => (item.to_owned(), format!("{}.", quantity.name)),
        };
        let sensor = SensorDef::gauge(format!("{prefix}/{}", sanitize_level(&level)), quantity.unit, &description);
        all.push(NumberFile::new(
            folder.join(&file),
            SensorDef { kind: quantity.kind, ..sensor.scaled(quantity.scale) },
        ));
    }
}
