//! AMD GPUs by the files of their kernel driver.
//!
//! - In: `[sources.amdgpu]` and `class/drm/card*/device` below `roots.sys`: `gpu_metrics`, `gpu_busy_percent`, `mem_info_*`, the hardware monitor.
//! - Out: the group `amdgpu`, with the sensors `gpu/renderD<n>/<quantity>` of each card.
//! - Never: a library; a number of a table whose revision is unknown.

mod metrics;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};

use crate::file;
use crate::graphics_cards::{self, CardGroup, GraphicsCard};
use crate::options::{self, GroupOptions};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "amdgpu",
    summary: "AMD GPUs: use, memory, clocks, power and energy, temperatures, limits, links to other cards, memory errors",
    configure,
    jobs: None,
};

const VENDOR: &str = "0x1002";

/// The source has no keys of its own.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, NoKeys {}) = options::read(section)?;
    Ok(Box::new(AmdgpuSource { options, sys: context.roots.sys.clone(), known: KnownTables::new() }))
}

/// The tables of earlier discoveries by file: the last one, and the numbers that had a value once. A card that sleeps keeps its sensors.
type KnownTables = HashMap<PathBuf, (Vec<u8>, HashSet<usize>)>;

struct AmdgpuSource {
    options: GroupOptions,
    sys: PathBuf,
    known: KnownTables,
}

impl Source for AmdgpuSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut group = CardGroup::new(SOURCE.name, &self.options, report);
        for card in graphics_cards::cards(&self.sys, VENDOR) {
            add_table(&mut group, &card, &mut self.known);
            add_files(&mut group, &card);
            add_hwmon(&mut group, &card);
        }
        group.into_group().into_iter().collect()
    }
}

/// The driver's table, whose numbers were read at the same time. It comes first, so that it wins where files have the same quantity.
fn add_table(group: &mut CardGroup<'_>, card: &GraphicsCard, known: &mut KnownTables) {
    let path = card.folder.join("device/gpu_metrics");
    match file::read_file(&path) {
        Ok(table) => {
            let entry = known.entry(path.clone()).or_default();
            if metrics::header(&entry.0) != metrics::header(&table) {
                entry.1.clear();
            }
            entry.0 = table;
        }
        Err(error) if file::is_absent(&error) => _ = known.remove(&path),
        Err(error) => group.report(format!("amdgpu: cannot read {}: {error}", path.display())),
    }
    let Some((table, had)) = known.get_mut(&path) else { return };
    let (Some(header), Some(layout)) = (metrics::header(table), metrics::layout(table)) else {
        let revision = metrics::revision(table);
        group.report(format!("amdgpu: {} is left out: {revision} is unknown here", path.display()));
        return;
    };
    let mut slots = vec![(header, 0)];
    for number in layout.numbers {
        let packed = number.packed();
        if metrics::value(table, packed).is_some() {
            had.insert(packed);
        }
        if had.contains(&packed)
            && let Some(slot) = group.sensor(card, number.sensor)
        {
            slots.push((packed, slot));
        }
    }
    group.table(&path, metrics::fill, slots);
}

/// Documentation/gpu/amdgpu/driver-misc.rst and thermal.rst: "GPU sysfs Power State Interfaces", "Memory Usage Information", "PCIe Accounting".
fn add_files(group: &mut CardGroup<'_>, card: &GraphicsCard) {
    let memory = |name: &str, text: &str| SensorDef::gauge(name, "By", text);
    let files = [
        ("gpu_busy_percent", SensorDef::gauge("utilization/gpu", "%", "Part of the time in which the GPU was busy.")),
        ("mem_busy_percent", SensorDef::gauge("utilization/memory", "%", "Part of the time in which memory was busy.")),
        ("mem_info_vram_total", memory("memory/total", "Memory of the card.")),
        ("mem_info_vram_used", memory("memory/used", "Memory of the card that is allocated.")),
        ("mem_info_vis_vram_total", memory("memory/visible_total", "Memory of the card that the host can map.")),
        ("mem_info_vis_vram_used", memory("memory/visible_used", "Memory of the card that the host has mapped.")),
        ("mem_info_gtt_total", memory("memory/host_total", "Memory of the host that the card can map.")),
        ("mem_info_gtt_used", memory("memory/host_used", "Memory of the host that the card has mapped.")),
        ("pcie_replay_count", SensorDef::counter("pcie/replays", "1", "Packets sent again over PCIe.")),
        (
            "mem_info_preempt_used",
            memory("memory/preemption_used", "Memory of the host that the driver uses to switch between programs."),
        ),
    ];
    for (name, sensor) in files {
        group.number(card, &card.folder.join("device").join(name), sensor);
    }
}

/// Documentation/gpu/amdgpu/thermal.rst: "HWMON Interfaces". Only what the table lacks.
fn add_hwmon(group: &mut CardGroup<'_>, card: &GraphicsCard) {
    let Some(folder) = graphics_cards::hwmon(card) else { return };
    let celsius = |name: &str| {
        SensorDef::gauge(format!("temperature/{name}"), "Cel", &format!("Temperature: {name}.")).scaled(1e-3)
    };
    let power = || SensorDef::gauge("power", "W", "Power of card and memory.").scaled(1e-6);
    let hertz = |name: &str| SensorDef::gauge(format!("clocks/{name}"), "Hz", "Present clock frequency.");
    let files = [
        ("power1_average", power()),
        ("power1_input", power()),
        ("power1_cap", SensorDef::gauge("power_limit", "W", "The limit of the power.").scaled(1e-6)),
        ("temp1_input", celsius("edge")),
        ("temp2_input", celsius("hotspot")),
        ("temp3_input", celsius("memory")),
        ("fan1_input", SensorDef::gauge("fan/speed", "/min", "Speed of the fan.")),
        ("freq1_input", hertz("graphics")),
        ("freq2_input", hertz("memory")),
        ("in0_input", SensorDef::gauge("voltage/graphics", "V", "Voltage of the graphics engine.").scaled(1e-3)),
    ];
    for (name, sensor) in files {
        group.number(card, &folder.join(name), sensor);
    }
}
