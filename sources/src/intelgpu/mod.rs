//! Intel GPUs by the files of their kernel drivers, i915 and xe.
//!
//! - In: `[sources.intelgpu]` and `class/drm/card*` below `roots.sys`.
//! - Out: the group `intelgpu`, with the sensors `gpu/renderD<n>/<quantity>` of each card.
//! - Never: a library; a write, such as the one that opens performance counters.

use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::sanitize_level;

use crate::file;
use crate::glob;
use crate::graphics_cards::{self, CardGroup, GraphicsCard};
use crate::options::{self, GroupOptions};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "intelgpu",
    summary: "Intel GPUs (i915, xe): clocks, idle time, limits of clocks, energy, power limits, temperatures, fans",
    configure,
    jobs: None,
};

const VENDOR: &str = "0x8086";

/// The source has no keys of its own.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, NoKeys {}) = options::read(section)?;
    Ok(Box::new(IntelgpuSource { options, sys: context.roots.sys.clone() }))
}

struct IntelgpuSource {
    options: GroupOptions,
    sys: PathBuf,
}

impl Source for IntelgpuSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut group = CardGroup::new(SOURCE.name, &self.options, report);
        for card in graphics_cards::cards(&self.sys, VENDOR) {
            add_i915(&mut group, &card);
            add_xe(&mut group, &card);
            add_hwmon(&mut group, &card);
        }
        group.into_group().into_iter().collect()
    }
}

fn megahertz(engine: &str, name: &str, description: &str) -> SensorDef {
    SensorDef::gauge(format!("{engine}/{name}"), "Hz", description).scaled(1e6)
}

fn idle(engine: &str) -> SensorDef {
    SensorDef::counter(format!("{engine}/idle_time"), "s", "Time in which the engine was switched off (RC6).")
        .scaled(1e-3)
}

const PRESENT: &str = "Clock frequency at present; 0 while the engine is switched off.";
const REQUESTED: &str = "Clock frequency that the driver requests.";
const LIMIT: &str = "Highest clock frequency that is allowed.";
const HIGHEST: &str = "Highest clock frequency of the hardware.";

/// Documentation/ABI/testing/sysfs-driver-intel-i915 and drivers/gpu/drm/i915/gt/intel_gt_sysfs_pm.c: one folder for each tile, `gt/gt<n>`. Older
/// kernels have one tile, whose files are in the card's folder.
fn add_i915(group: &mut CardGroup<'_>, card: &GraphicsCard) {
    let tiles = glob::find(&card.folder, "gt/gt*");
    for tile in &tiles {
        let engine = format!("gt{}", tile.captures[0]);
        for (file, name, description) in [
            ("rps_act_freq_mhz", "clock", PRESENT),
            ("rps_cur_freq_mhz", "clock_requested", REQUESTED),
            ("rps_max_freq_mhz", "clock_limit", LIMIT),
            ("rps_RP0_freq_mhz", "clock_max", HIGHEST),
        ] {
            group.number(card, &tile.path.join(file), megahertz(&engine, name, description));
        }
        group.number(card, &tile.path.join("rc6_residency_ms"), idle(&engine));
        add_reasons(group, card, &engine, &tile.path, "throttle_reason_");
    }
    if tiles.is_empty() {
        for (file, name, description) in [
            ("gt_act_freq_mhz", "clock", PRESENT),
            ("gt_cur_freq_mhz", "clock_requested", REQUESTED),
            ("gt_max_freq_mhz", "clock_limit", LIMIT),
            ("gt_RP0_freq_mhz", "clock_max", HIGHEST),
        ] {
            group.number(card, &card.folder.join(file), megahertz("gt0", name, description));
        }
        group.number(card, &card.folder.join("power/rc6_residency_ms"), idle("gt0"));
    }
}

/// Documentation/gpu/xe/xe_gt_freq.rst and the comments of drivers/gpu/drm/xe/xe_gt_freq.c, xe_gt_idle.c, xe_gt_throttle.c.
fn add_xe(group: &mut CardGroup<'_>, card: &GraphicsCard) {
    for gt in glob::find(&card.folder, "device/tile*/gt*") {
        // The numbers of engines count over all tiles.
        let engine = format!("gt{}", gt.captures[1]);
        for (file, name, description) in [
            ("freq0/act_freq", "clock", PRESENT),
            ("freq0/cur_freq", "clock_requested", REQUESTED),
            ("freq0/max_freq", "clock_limit", LIMIT),
            ("freq0/rp0_freq", "clock_max", HIGHEST),
        ] {
            group.number(card, &gt.path.join(file), megahertz(&engine, name, description));
        }
        group.number(card, &gt.path.join("gtidle/idle_residency_ms"), idle(&engine));
        add_reasons(group, card, &engine, &gt.path.join("freq0/throttle"), "reason_");
    }
}

/// The reasons why clocks are limited: a file with 0 or 1 for each.
fn add_reasons(group: &mut CardGroup<'_>, card: &GraphicsCard, engine: &str, folder: &Path, prefix: &str) {
    for name in glob::names(folder) {
        let Some(reason) = name.strip_prefix(prefix) else { continue };
        let description = "1: the clock is limited for this reason.";
        let sensor = SensorDef::gauge(format!("{engine}/throttle/{}", sanitize_level(reason)), "1", description);
        group.number(card, &folder.join(&name), sensor);
    }
}

/// Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and sysfs-driver-intel-xe-hwmon. Channels have labels; the first one is the card.
fn add_hwmon(group: &mut CardGroup<'_>, card: &GraphicsCard) {
    let Some(folder) = graphics_cards::hwmon(card) else { return };
    let label = |item: &str| {
        let text = file::read_file(&folder.join(format!("{item}_label"))).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    for name in glob::names(&folder) {
        let Some((item, quantity)) = name.split_once('_') else { continue };
        let kind = item.trim_end_matches(|c: char| c.is_ascii_digit());
        let level = match label(item) {
            text if text.is_empty() && item.ends_with('1') => "card".to_owned(),
            text if text.is_empty() => item.to_owned(),
            text => sanitize_level(&text),
        };
        let gauge = |folder: &str, unit: &str, scale: f64, text: &str| {
            SensorDef::gauge(format!("{folder}/{level}"), unit, &format!("{text}: {level}.")).scaled(scale)
        };
        let sensor = match (kind, quantity) {
            ("energy", "input") => {
                SensorDef::counter(format!("energy/{level}"), "J", &format!("Energy used: {level}.")).scaled(1e-6)
            }
            ("power", "input") => gauge("power", "W", 1e-6, "Power"),
            ("power", "max" | "cap") => gauge("power_limit", "W", 1e-6, "Limit of the power"),
            ("temp", "input") => gauge("temperature", "Cel", 1e-3, "Temperature"),
            ("in", "input") => gauge("voltage", "V", 1e-3, "Voltage"),
            ("fan", "input") => gauge("fan", "/min", 1.0, "Speed of the fan"),
            _ => continue,
        };
        group.number(card, &folder.join(&name), sensor);
    }
}
