//! `[sources.textfile]`

use std::path::PathBuf;

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_model::size::ByteSize;

use crate::exposition::{MetricRule, PathTemplate, SensorNaming};
use crate::options::{self, GroupOptions};
use crate::source::ConfigureContext;
use crate::trusted::{self, TrustedOwners};

/// The largest value that `files_max` can have.
const FILES_MAX: usize = 1000;
/// The largest value that `file_bytes_max` can have.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TextfileKeys {
    dir: PathBuf,
    owner: Option<String>,
    #[serde(default = "max_age_usual")]
    max_age: Interval,
    #[serde(default = "file_bytes_usual")]
    file_bytes_max: String,
    #[serde(default = "files_usual")]
    files_max: usize,
    #[serde(default = "sensors_usual")]
    sensors_max: usize,
    #[serde(default = "prefix_usual")]
    prefix: String,
    #[serde(default)]
    path: PathTemplate,
    #[serde(default)]
    rules: Vec<MetricRule>,
    #[serde(default)]
    integers: bool,
}

fn max_age_usual() -> Interval {
    Interval::from_s(3600)
}

fn file_bytes_usual() -> String {
    "1MiB".to_owned()
}

fn files_usual() -> usize {
    100
}

fn sensors_usual() -> usize {
    10_000
}

fn prefix_usual() -> String {
    "textfile/{file}".to_owned()
}

/// The checked settings of the folder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FolderSettings {
    pub dir: PathBuf,
    owner: Option<String>,
    pub max_age: Interval,
    pub file_bytes_max: u64,
    pub files_max: usize,
    pub sensors_max: usize,
    pub prefix: String,
    pub naming: SensorNaming,
    pub options: GroupOptions,
}

impl FolderSettings {
    /// Reads the table of the configuration.
    pub fn read(section: &Section, context: &ConfigureContext) -> Result<Self, ConfigError> {
        let (options, keys): (GroupOptions, TextfileKeys) = options::read(section)?;
        for (key, is, most) in
            [("files_max", keys.files_max, FILES_MAX), ("sensors_max", keys.sensors_max, SENSORS_MAX)]
        {
            if is == 0 || is > most {
                return Err(section.error(key, format!("{key} is {is}; expected 1 to {most}")));
            }
        }
        let size = ByteSize::parse(&keys.file_bytes_max);
        let ByteSize(bytes) = size.map_err(|error| section.error("file_bytes_max", error.to_string()))?;
        if bytes == 0 || bytes > FILE_BYTES_MAX {
            let most = ByteSize(FILE_BYTES_MAX);
            return Err(section.error("file_bytes_max", format!("file_bytes_max is {bytes}; expected 1 to {most}")));
        }
        if let Err(error) = wholegrain_model::name::check_relative(&keys.prefix.replace("{file}", "x")) {
            return Err(section.error("prefix", error.to_string()));
        }
        let naming =
            SensorNaming { path: keys.path, rules: keys.rules, prefix: String::new(), integers: keys.integers };
        if let Some(mistake) = naming.mistake() {
            return Err(section.error("rules", mistake));
        }
        if let Some(owner) = &keys.owner
            && trusted::account(owner).is_none()
        {
            return Err(section.error("owner", format!("there is no user {owner:?} on this machine")));
        }
        Ok(Self {
            dir: context.resolve(&keys.dir),
            owner: keys.owner,
            max_age: keys.max_age,
            file_bytes_max: bytes,
            files_max: keys.files_max,
            sensors_max: keys.sensors_max,
            prefix: keys.prefix,
            naming,
            options,
        })
    }

    /// Who may own the folder and its files.
    pub fn owners(&self) -> TrustedOwners {
        TrustedOwners { more: self.owner.as_deref().and_then(trusted::account).map(|account| account.uid) }
    }
}
