//! The settings of `[sources.sysfs]`.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::check_relative;
use wholegrain_model::{Kind, SensorDef};

use super::number_file::{filled_template, place};
use super::presets::{PRESETS, Preset};
use crate::options::{self, GROUPS_ALL, GROUPS_DEFAULT, GroupOptions};

/// The names of the presets in the settings.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| PRESETS.iter().map(|preset| preset.name).collect());
/// What a list of presets may contain.
static WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| NAMES.iter().copied().chain([GROUPS_DEFAULT, GROUPS_ALL]).collect());

/// An entry of the key `presets`.
#[derive(Debug)]
struct PresetName(&'static str);

impl<'de> Deserialize<'de> for PresetName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        options::group_name(deserializer, &WORDS).map(Self)
    }
}

/// The keys of the source's table besides those of [`GroupOptions`] and the presets' tables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SysfsKeys {
    #[serde(default = "default_presets")]
    presets: Vec<PresetName>,
    #[serde(default)]
    files: Vec<FilePattern>,
}

/// The checked settings of the source.
#[derive(Debug)]
pub struct SysfsConfig {
    /// The enabled presets, each once, with their own settings.
    pub presets: Vec<(&'static Preset, GroupOptions)>,
    pub files: Vec<FilePattern>,
    /// The settings for all groups.
    pub common: GroupOptions,
}

impl SysfsConfig {
    /// Reads and checks the table of the source.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let (common, mut tables, own): (_, _, SysfsKeys) = options::read_groups(section, &NAMES)?;
        let list: Vec<&str> = own.presets.iter().map(|name| name.0).collect();
        let presets = PRESETS.iter().filter(|preset| options::selects(&list, preset.name, preset.is_on));
        let presets = presets.map(|preset| (preset, tables.remove(preset.name).unwrap_or_default())).collect();
        Ok(Self { presets, files: own.files, common })
    }
}

fn default_presets() -> Vec<PresetName> {
    vec![PresetName(GROUPS_DEFAULT)]
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
