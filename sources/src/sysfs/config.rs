//! `[sources.sysfs]`: the source's keys.

use std::collections::BTreeMap;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::{check_relative, sanitize_level};
use wholegrain_model::pattern::Filter;
use wholegrain_model::{Interval, Kind, SensorDef};

use super::presets::Preset;
use crate::options::GroupOptions;

/// The table as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "all_presets")]
    presets: Vec<Preset>,
    #[serde(default)]
    files: Vec<FilePattern>,
    interval: Option<Interval>,
    offset: Option<Interval>,
    synchronous: Option<bool>,
    #[serde(default)]
    metrics: Filter,
    #[serde(default)]
    hwmon: GroupOptions,
    #[serde(default)]
    thermal: GroupOptions,
    #[serde(default)]
    cpufreq: GroupOptions,
    #[serde(default)]
    powercap: GroupOptions,
    #[serde(default)]
    infiniband: GroupOptions,
    #[serde(default)]
    omnipath: GroupOptions,
    #[serde(default)]
    edac: GroupOptions,
    #[serde(default)]
    nvme: GroupOptions,
}

/// The configuration, checked.
#[derive(Debug)]
pub struct Config {
    /// The presets that are on, each once, with its own keys.
    pub presets: Vec<(Preset, GroupOptions)>,
    /// Files by pattern.
    pub files: Vec<FilePattern>,
    /// The keys for all groups.
    pub common: GroupOptions,
}

impl Config {
    /// Reads and checks the source's table.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let table: Table = section.parse()?;
        let common = GroupOptions {
            interval: table.interval,
            offset: table.offset,
            synchronous: table.synchronous,
            metrics: table.metrics,
        };
        common.check(section)?;
        let mut options = BTreeMap::from([
            (Preset::Hwmon, table.hwmon),
            (Preset::Thermal, table.thermal),
            (Preset::Cpufreq, table.cpufreq),
            (Preset::Powercap, table.powercap),
            (Preset::Infiniband, table.infiniband),
            (Preset::Omnipath, table.omnipath),
            (Preset::Edac, table.edac),
            (Preset::Nvme, table.nvme),
        ]);
        for (preset, options) in &options {
            options.check(&section.child(preset.name()))?;
        }
        options.retain(|preset, _| table.presets.contains(preset));
        Ok(Self { presets: options.into_iter().collect(), files: table.files, common })
    }
}

fn all_presets() -> Vec<Preset> {
    Preset::ALL.to_vec()
}

/// One of `[[sources.sysfs.files]]`: numeric files by the pattern of their paths.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(try_from = "FileTable")]
pub struct FilePattern {
    /// Below /sys, levels with `*`.
    pub path: String,
    /// The template of the sensors' names.
    name: String,
    unit: String,
    kind: Kind,
    scale: f64,
    wraps_at: Option<u64>,
    description: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTable {
    path: String,
    name: String,
    #[serde(default = "unit_one")]
    unit: String,
    #[serde(default = "gauge")]
    kind: Kind,
    #[serde(default = "scale_one")]
    scale: f64,
    wraps_at: Option<u64>,
    #[serde(default)]
    description: String,
}

fn unit_one() -> String {
    "1".to_owned()
}

fn gauge() -> Kind {
    Kind::Gauge
}

fn scale_one() -> f64 {
    1.0
}

impl FilePattern {
    /// The sensor of a file, from what the stars of its path stood for.
    pub fn sensor(&self, stars: &[String]) -> SensorDef {
        SensorDef {
            kind: self.kind,
            wraps_at: self.wraps_at,
            ..SensorDef::gauge(filled_in(&self.name, stars), &self.unit, &self.description).scaled(self.scale)
        }
    }
}

/// A template with `{1}`, `{2}`, … replaced.
fn filled_in(template: &str, stars: &[String]) -> String {
    let fill = |name: String, (index, star): (usize, &String)| name.replace(&place(index), &sanitize_level(star));
    stars.iter().enumerate().fold(template.to_owned(), fill)
}

fn place(index: usize) -> String {
    format!("{{{}}}", index + 1)
}

impl TryFrom<FileTable> for FilePattern {
    type Error = String;

    fn try_from(table: FileTable) -> Result<Self, String> {
        let FileTable { path, name, unit, kind, scale, wraps_at, description } = table;
        if path.starts_with('/') || path.split('/').any(|level| matches!(level, "" | "." | "..")) {
            return Err(format!(
                "path {path:?} must be below /sys, such as `class/foo/*/bar`, without `..` and empty levels"
            ));
        }
        if !scale.is_finite() || scale == 0.0 {
            return Err(format!("scale is {scale}; a finite number that is not 0 is wanted"));
        }
        let stars = path.matches('*').count();
        if let Some(missing) = (0..stars).map(place).find(|place| !name.contains(place)) {
            return Err(format!(
                "name {name:?} lacks `{missing}`, without which two files of {path:?} would have one name"
            ));
        }
        check_relative(&filled_in(&name, &vec!["x".to_owned(); stars])).map_err(|error| error.to_string())?;
        Ok(Self { path, name, unit, kind, scale, wraps_at, description })
    }
}
