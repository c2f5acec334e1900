//! `[sources.exec]` and a table for each program.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::IgnoredAny;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::{check_relative, sanitize_level};
use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_model::size::ByteSize;

use crate::options::{self, GroupOptions};
use crate::trusted;

/// The most programs of one configuration.
const PROGRAMS_MAX: usize = 64;
/// The largest value that `output_bytes_max` can have.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// How a program prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunMode {
    /// It is started for each sample, prints and ends.
    #[default]
    Once,
    /// It stays and prints; the newest value of each name counts.
    Stream,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramKeys {
    command: Vec<String>,
    #[serde(default)]
    mode: RunMode,
    deadline: Option<Interval>,
    user: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default = "output_bytes_usual")]
    output_bytes_max: String,
    #[serde(default = "sensors_usual")]
    sensors_max: usize,
    prefix: Option<String>,
}

fn output_bytes_usual() -> String {
    "64KiB".to_owned()
}

fn sensors_usual() -> usize {
    1_000
}

/// The checked settings of one program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProgramSettings {
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub mode: RunMode,
    /// Once: the longest run. Stream: the longest silence.
    pub deadline: Interval,
    pub user: Option<String>,
    pub env: BTreeMap<String, String>,
    pub output_bytes_max: usize,
    pub sensors_max: usize,
    pub prefix: String,
    pub options: GroupOptions,
}

/// The settings of the source and of its programs.
pub(super) fn read(section: &Section) -> Result<(GroupOptions, Vec<ProgramSettings>), ConfigError> {
    let (options, programs): (GroupOptions, BTreeMap<String, IgnoredAny>) = options::read(section)?;
    if programs.len() > PROGRAMS_MAX {
        return Err(section.error("", format!("{} programs; at most {PROGRAMS_MAX} are run", programs.len())));
    }
    let programs = programs.keys().map(|name| ProgramSettings::read(name, section, &section.child(name)));
    Ok((options, programs.collect::<Result<_, _>>()?))
}

impl ProgramSettings {
    /// A program that another source runs. `deadline` and `output_bytes_max` are for that source to apply.
    pub(crate) fn of_command(program: PathBuf, arguments: Vec<String>, user: Option<String>) -> Self {
        Self {
            name: String::new(),
            program,
            arguments,
            mode: RunMode::Once,
            deadline: Interval::from_s(5),
            user,
            env: BTreeMap::new(),
            output_bytes_max: 1 << 20,
            sensors_max: SENSORS_MAX,
            prefix: String::new(),
            options: GroupOptions::default(),
        }
    }

    fn read(name: &str, source: &Section, section: &Section) -> Result<Self, ConfigError> {
        if check_relative(name).is_err() || name.contains('/') {
            let example = sanitize_level(name);
            return Err(source.error(name, format!("{name:?} is no level of a path; write {example:?}")));
        }
        let (options, keys): (GroupOptions, ProgramKeys) = options::read(section)?;
        let mut command = keys.command.into_iter();
        let program = PathBuf::from(command.next().unwrap_or_default());
        if !program.is_absolute() {
            let text = "command begins with the absolute path of a program, such as [\"/usr/bin/true\"]";
            return Err(section.error("command", text));
        }
        if keys.sensors_max == 0 || keys.sensors_max > SENSORS_MAX {
            let text = format!("sensors_max is {}; expected 1 to {SENSORS_MAX}", keys.sensors_max);
            return Err(section.error("sensors_max", text));
        }
        let size = ByteSize::parse(&keys.output_bytes_max);
        let ByteSize(bytes) = size.map_err(|error| section.error("output_bytes_max", error.to_string()))?;
        if bytes == 0 || bytes > OUTPUT_BYTES_MAX {
            let most = ByteSize(OUTPUT_BYTES_MAX);
            let text = format!("output_bytes_max is {bytes} bytes; expected 1B to {most}");
            return Err(section.error("output_bytes_max", text));
        }
        if let Some(user) = keys.user.as_ref().filter(|user| trusted::account(user).is_none()) {
            return Err(section.error("user", format!("there is no user {user:?} on this machine")));
        }
        if let Some(name) = keys.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return Err(section.error("env", format!("{name:?} is no name of a variable")));
        }
        let prefix = keys.prefix.unwrap_or_else(|| format!("exec/{name}"));
        check_relative(&prefix).map_err(|error| section.error("prefix", error.to_string()))?;
        let usual = if keys.mode == RunMode::Once { Interval::from_s(5) } else { Interval::from_s(60) };
        Ok(Self {
            name: name.to_owned(),
            program,
            arguments: command.collect(),
            mode: keys.mode,
            deadline: keys.deadline.unwrap_or(usual),
            user: keys.user,
            env: keys.env,
            output_bytes_max: bytes as usize,
            sensors_max: keys.sensors_max,
            prefix,
            options,
        })
    }
}
