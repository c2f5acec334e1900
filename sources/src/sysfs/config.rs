//! The settings of `[sources.sysfs]`.

use std::collections::BTreeMap;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::{check_relative, sanitize_level};
use wholegrain_model::{Kind, SensorDef};

use super::presets::Preset;
use crate::options::{self, GroupOptions};

/// The keys of the source's table besides those of [`GroupOptions`].
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SysfsKeys {
    #[serde(default = "all_presets")]
    presets: Vec<Preset>,
    #[serde(default)]
    files: Vec<FilePattern>,
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

/// The checked settings of the source.
#[derive(Debug)]
pub struct SysfsConfig {
    /// The enabled presets, each once, with their own settings.
    pub presets: Vec<(Preset, GroupOptions)>,
    pub files: Vec<FilePattern>,
    /// The settings for all groups.
    pub common: GroupOptions,
}

impl SysfsConfig {
    /// Reads and checks the table of the source.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let (common, own): (GroupOptions, SysfsKeys) = options::read(section)?;
        let mut options = BTreeMap::from([
            (Preset::Hwmon, own.hwmon),
            (Preset::Thermal, own.thermal),
            (Preset::Cpufreq, own.cpufreq),
            (Preset::Powercap, own.powercap),
            (Preset::Infiniband, own.infiniband),
            (Preset::Omnipath, own.omnipath),
            (Preset::Edac, own.edac),
            (Preset::Nvme, own.nvme),
        ]);
        for (preset, options) in &options {
            options.check(&section.child(preset.name()))?;
        }
        options.retain(|preset, _| own.presets.contains(preset));
        Ok(Self { presets: options.into_iter().collect(), files: own.files, common })
    }
}

fn all_presets() -> Vec<Preset> {
    Preset::ALL.to_vec()
}

/// An entry of `[[sources.sysfs.files]]`: files with a number, by a pattern of their paths.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(try_from = "RawFilePattern")]
pub struct FilePattern {
    /// Path below /sys; `*` matches within a level.
    pub path: String,
    /// Template of sensor names.
    name: String,
    unit: String,
    kind: Kind,
    scale: f64,
    wraps_at: Option<u64>,
    description: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFilePattern {
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
    /// The sensor of a file, from the text that each `*` of its path matched.
    pub fn sensor(&self, captures: &[String]) -> SensorDef {
        SensorDef {
            kind: self.kind,
            wraps_at: self.wraps_at,
            ..SensorDef::gauge(filled_template(&self.name, captures), &self.unit, &self.description).scaled(self.scale)
        }
    }
}

/// Replaces `{1}`, `{2}`, … in a template.
fn filled_template(template: &str, captures: &[String]) -> String {
    let fill = |name: String, (index, capture): (usize, &String)| name.replace(&place(index), &sanitize_level(capture));
    captures.iter().enumerate().fold(template.to_owned(), fill)
}

fn place(index: usize) -> String {
    format!("{{{}}}", index + 1)
}

impl TryFrom<RawFilePattern> for FilePattern {
    type Error = String;

    fn try_from(raw: RawFilePattern) -> Result<Self, String> {
        let RawFilePattern { path, name, unit, kind, scale, wraps_at, description } = raw;
        if path.starts_with('/') || path.split('/').any(|level| matches!(level, "" | "." | "..")) {
            return Err(format!(
                "path {path:?} must be below /sys, such as `class/foo/*/bar`, without `..` and empty levels"
            ));
        }
        if !scale.is_finite() || scale == 0.0 {
            return Err(format!("scale is {scale}; expected a finite number that is not 0"));
        }
        let captures = path.matches('*').count();
        if let Some(missing) = (0..captures).map(place).find(|place| !name.contains(place)) {
            return Err(format!(
                "name {name:?} lacks `{missing}`, without which two files of {path:?} would have one name"
            ));
        }
        check_relative(&filled_template(&name, &vec!["x".to_owned(); captures])).map_err(|error| error.to_string())?;
        Ok(Self { path, name, unit, kind, scale, wraps_at, description })
    }
}
