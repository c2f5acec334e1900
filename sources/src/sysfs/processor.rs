//! Throttling of processors, and cooling devices (Documentation/ABI/testing/sysfs-devices-system-cpu,
//! Documentation/driver-api/thermal/sysfs-api.rst).

use std::collections::HashSet;
use std::path::Path;

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;

use super::number_file::{NumberFile, text};
use crate::glob::{self, PathMatch};

/// The files of a CPU's throttling that all CPUs of a core or of a package share: the unit whose it is, the file, the sensor.
const THROTTLE: [(bool, &str, &str, &str, f64, &str); 4] = [
    (true, "core_throttle_count", "count", "1", 1.0, "Times that this core was throttled for its temperature."),
    (true, "core_throttle_total_time_ms", "time", "s", 1e-3, "Time that this core was throttled for its temperature."),
    (false, "package_throttle_count", "count", "1", 1.0, "Times that this package was throttled for its temperature."),
    (
        false,
        "package_throttle_total_time_ms",
        "time",
        "s",
        1e-3,
        "Time that this package was throttled for its temperature.",
    ),
];

/// The throttling of each package and core, `throttle/package0/count`, `throttle/package0/core3/count`. Each is read at one of its CPUs.
pub fn throttle(sys: &Path) -> Vec<NumberFile> {
    let mut known = HashSet::new();
    let mut all = Vec::new();
    for PathMatch { path, captures } in glob::find(sys, "devices/system/cpu/cpu*/thermal_throttle") {
        let Some(cpu) = path.parent().filter(|_| captures[0].parse::<u32>().is_ok()) else { continue };
        let id = |file: &str| text(&cpu.join("topology").join(file)).and_then(|id| id.parse::<i64>().ok());
        let (Some(package), Some(core)) = (id("physical_package_id"), id("core_id")) else { continue };
        for (is_core, file, name, unit, scale, description) in THROTTLE {
            let place = if is_core { format!("package{package}/core{core}") } else { format!("package{package}") };
            let name = format!("throttle/{place}/{name}");
            let path = path.join(file);
            if path.exists() && known.insert(name.clone()) {
                all.push(NumberFile::new(path, SensorDef::counter(name, unit, description).scaled(scale)));
            }
        }
    }
    all
}

/// The states of cooling devices, `cooling/<n>_<type>`. The description has the highest state.
pub fn cooling(sys: &Path) -> Vec<NumberFile> {
    let devices = glob::find(sys, "class/thermal/cooling_device*/cur_state").into_iter();
    devices
        .map(|PathMatch { path, captures }| {
            let kind = text(&path.with_file_name("type")).map(|kind| format!("_{kind}")).unwrap_or_default();
            let max = text(&path.with_file_name("max_state")).unwrap_or_else(|| "an unknown number".to_owned());
            let name = format!("cooling/{}", sanitize_level(&format!("{}{kind}", captures[0])));
            let description = format!("State of the cooling device: 0 cools least, {max} most.");
            NumberFile::new(path, SensorDef::gauge(name, "1", &description))
        })
        .collect()
}
