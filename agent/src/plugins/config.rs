//! The settings of `[plugins]`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section, TableText, unknown};
use wholegrain_model::size::ByteSize;
use wholegrain_sources::{ConfigureContext, Roots, SOURCES};

use super::capability;
use crate::selfstat;

/// The most plug-ins of an agent.
const PLUGINS_MAX: usize = 256;
/// Where packages put plug-ins.
const DIR: &str = "/usr/lib/wholegrain/plugins";
/// The key of `[plugins]` that is not a plug-in.
const DIR_KEY: &str = "dir";
/// The keys of a plug-in's table that are the agent's.
const KEYS: [&str; 8] = [
    "library",
    "isolate",
    "deadline",
    "discover_deadline",
    "memory_bytes_max",
    "cpu_percent_max",
    "processes_max",
    "capabilities",
];
/// The deadlines that can be set: 10 ms to 10 min.
const DEADLINES: (Interval, Interval) = (Interval::from_ms(10), Interval::from_s(600));
/// The least memory of a plug-in: 16 MiB.
const MEMORY_BYTES_MIN: ByteSize = ByteSize::mib(16);
/// The most processes that a plug-in may be allowed.
const PROCESSES_MAX: u32 = 1024;

/// The keys of the agent in the table of a plug-in.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginKeys {
    library: Option<PathBuf>,
    #[serde(default = "yes")]
    isolate: bool,
    #[serde(default = "deadline")]
    deadline: Interval,
    #[serde(default = "discover_deadline")]
    discover_deadline: Interval,
    #[serde(default = "memory_bytes_max")]
    memory_bytes_max: ByteSize,
    #[serde(default = "cpu_percent_max")]
    cpu_percent_max: u32,
    #[serde(default)]
    processes_max: u32,
    #[serde(default)]
    capabilities: Vec<String>,
}

fn yes() -> bool {
    true
}

fn deadline() -> Interval {
    Interval::from_s(5)
}

fn discover_deadline() -> Interval {
    Interval::from_s(30)
}

fn memory_bytes_max() -> ByteSize {
    ByteSize::mib(256)
}

fn cpu_percent_max() -> u32 {
    100
}

/// The table of one plug-in, checked.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    pub name: String,
    pub library: PathBuf,
    /// Whether it runs in a process of its own.
    pub isolate: bool,
    /// How long a read may take.
    pub deadline: Interval,
    /// How long its start and a discovery may take.
    pub discover_deadline: Interval,
    pub memory_bytes_max: ByteSize,
    /// Of one CPU, over 10 s.
    pub cpu_percent_max: u32,
    /// Processes that it may have besides its first.
    pub processes_max: u32,
    /// The bits of the capabilities that it keeps.
    pub capabilities: u64,
    /// The plug-in's own keys.
    pub own: TableText,
    /// The name of the configuration file.
    pub file: String,
    pub context: ConfigureContext,
    section: Section,
    /// `[plugins]`, which has the line of the table's name.
    parent: Section,
}

impl PartialEq for PluginConfig {
    /// Whether the plug-in would run in the same way. Its place in the file does not matter.
    fn eq(&self, other: &Self) -> bool {
        let agents = |config: &Self| {
            (
                (config.name.clone(), config.library.clone(), config.isolate),
                (config.deadline, config.discover_deadline, config.memory_bytes_max.0, config.cpu_percent_max),
                (config.processes_max, config.capabilities, config.own.text.clone()),
            )
        };
        agents(self) == agents(other)
    }
}

impl PluginConfig {
    /// A message about the configuration, with file and line. `line` is of the plug-in's own keys, 0 for the plug-in's table.
    pub fn message(&self, line: usize, message: &str) -> String {
        if line == 0 {
            let has_library = self.section.keys().is_ok_and(|keys| keys.iter().any(|key| key == "library"));
            let error = if has_library {
                self.section.error("library", message)
            } else {
                self.parent.error(&self.name, message)
            };
            return error.to_string();
        }
        self.section.error_in_line(self.own.line(line), message).to_string()
    }

    fn read(parent: &Section, name: &str, dir: &Path, context: &ConfigureContext) -> Result<Self, ConfigError> {
        let section = &parent.child(name);
        let (keys, _): (PluginKeys, toml::Table) = section.parse_split(&KEYS)?;
        for (key, is) in [("deadline", keys.deadline), ("discover_deadline", keys.discover_deadline)] {
            if !(DEADLINES.0..=DEADLINES.1).contains(&is) {
                return Err(section.error(key, format!("{key} is {is}; expected {} to {}", DEADLINES.0, DEADLINES.1)));
            }
        }
        if keys.memory_bytes_max.0 < MEMORY_BYTES_MIN.0 {
            let (key, is) = ("memory_bytes_max", keys.memory_bytes_max);
            return Err(section.error(key, format!("{key} is {is}; at least {MEMORY_BYTES_MIN}")));
        }
        if keys.cpu_percent_max == 0 {
            return Err(section.error("cpu_percent_max", "cpu_percent_max is 0; at least 1, and 100 is one CPU"));
        }
        if keys.processes_max > PROCESSES_MAX {
            return Err(section.error("processes_max", format!("processes_max is over {PROCESSES_MAX}")));
        }
        let mut capabilities = 0;
        for name in &keys.capabilities {
            let bit = capability::bit(name).ok_or_else(|| {
                section.error("capabilities", format!("{name:?} is not a capability; write names such as CAP_NET_RAW"))
            })?;
            capabilities |= bit;
        }
        let library = keys.library.unwrap_or_else(|| format!("{name}.so").into());
        Ok(Self {
            name: name.to_owned(),
            library: dir.join(library),
            isolate: keys.isolate,
            deadline: keys.deadline,
            discover_deadline: keys.discover_deadline,
            memory_bytes_max: keys.memory_bytes_max,
            cpu_percent_max: keys.cpu_percent_max,
            processes_max: keys.processes_max,
            capabilities,
            own: section.text_without(&KEYS)?,
            file: section.error("", "").file,
            context: context.clone(),
            section: section.clone(),
            parent: parent.clone(),
        })
    }
}

/// All plug-ins, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PluginsConfig {
    pub plugins: Vec<PluginConfig>,
}

impl PluginsConfig {
    /// Reads `[plugins]`; relative paths are below `config_dir`. No file of a plug-in is opened.
    pub fn read(section: &Section, roots: &Roots, config_dir: &Path) -> Result<Self, ConfigError> {
        // A plug-in's process has another working directory, so that relative paths would lead elsewhere there.
        let config_dir = &std::path::absolute(config_dir.join(".")).unwrap_or_else(|_| config_dir.to_owned());
        let mut names = section.keys()?;
        let mut dir = config_dir.join(DIR);
        if let Some(at) = names.iter().position(|name| name == DIR_KEY) {
            #[derive(Deserialize)]
            #[serde(deny_unknown_fields)]
            struct DirKey {
                dir: PathBuf,
            }
            let (key, _): (DirKey, toml::Table) = section.parse_split(&[DIR_KEY])?;
            dir = config_dir.join(key.dir);
            names.remove(at);
        }
        names.sort();
        if names.len() > PLUGINS_MAX {
            return Err(section.error(&names[PLUGINS_MAX], format!("more than {PLUGINS_MAX} plug-ins")));
        }
        let context = ConfigureContext { roots: roots.clone(), config_dir: config_dir.to_owned() };
        let mut plugins = Vec::new();
        for name in names {
            if SOURCES.iter().any(|source| source.name == name) || name == selfstat::NAME {
                return Err(section.error(&name, format!("{name} is the name of a source of the agent; use another")));
            }
            let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
            if name.is_empty() || name.len() > 64 || !name.chars().all(is_good) {
                return Err(section.error(
                    &name,
                    format!("the plug-in's name {name:?} must be 1 to 64 of the characters a-z, 0-9, _ and -"),
                ));
            }
            if section.child(&name).keys().is_err() {
                let hint = format!("{}; a plug-in is a table, [plugins.{name}]", unknown("key", &name, &[DIR_KEY]));
                return Err(section.error(&name, hint));
            }
            plugins.push(PluginConfig::read(section, &name, &dir, &context)?);
        }
        Ok(Self { plugins })
    }

    /// The plug-in of this name.
    pub fn find(&self, name: &str) -> Option<&PluginConfig> {
        self.plugins.iter().find(|plugin| plugin.name == name)
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::config::Document;

    use super::*;

    fn read(text: &str) -> Result<PluginsConfig, ConfigError> {
        let section = Document::new("agent.toml", text).root().child("plugins");
        PluginsConfig::read(&section, &Roots::default(), Path::new("/etc/w"))
    }

    #[test]
    fn defaults_and_keys() {
        let config = read("[plugins]\ndir = \"p\"\n[plugins.pdu]\nhosts = [\"a\"]\n[plugins.mine]\nlibrary = \"/opt/x.so\"\nisolate = false\ncapabilities = [\"CAP_NET_RAW\"]\n").unwrap();
        let [mine, pdu] = &config.plugins[..] else { panic!("{config:?}") };
        assert_eq!(pdu.library, Path::new("/etc/w/p/pdu.so"));
        assert_eq!(
            (pdu.isolate, pdu.deadline, pdu.own.text.as_str()),
            (true, Interval::from_s(5), "hosts = [\"a\"]\n")
        );
        assert_eq!((mine.library.to_str(), mine.isolate, mine.capabilities), (Some("/opt/x.so"), false, 1 << 13));
        assert_eq!(pdu.message(1, "no"), "agent.toml:4:1: no");
        assert!(config.find("pdu").is_some() && read("").unwrap().plugins.is_empty());
        // Another place in the file is not a change.
        assert_eq!(read("[plugins.a]\nx = 1\n").unwrap(), read("\n\n[plugins]\n[plugins.a]\nx = 1\n").unwrap());
        assert_ne!(read("[plugins.a]\nx = 1\n").unwrap(), read("[plugins.a]\nx = 2\n").unwrap());
    }

    #[test]
    fn paths_do_not_depend_on_the_working_directory() {
        for folder in ["", ".", "conf"] {
            let section = Document::new("agent.toml", "[plugins.a]\n").root().child("plugins");
            let config = PluginsConfig::read(&section, &Roots::default(), Path::new(folder)).unwrap();
            let expected = std::env::current_dir().unwrap().join(folder);
            assert_eq!(config.plugins[0].context.config_dir, expected.components().collect::<PathBuf>(), "{folder:?}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            ("[plugins]\ndirr = \"x\"\n", "agent.toml:2:1: unknown key `dirr`; did you mean `dir`?"),
            ("[plugins]\nzzz = 1\n", "agent.toml:2:1: unknown key `zzz`; expected one of `dir`; a plug-in is a table"),
            ("[plugins.procfs]\n", "agent.toml:1:10: procfs is the name of a source of the agent"),
            ("[plugins.\"a b\"]\n", "agent.toml:1:10: the plug-in's name \"a b\" must be"),
            ("[plugins.a]\nx = 1\ndeadline = \"0s\"\n", "agent.toml:3:1: deadline is 0s; expected 10ms to 10min"),
            ("[plugins.a]\nmemory_bytes_max = \"1KiB\"\n", "agent.toml:2:1: memory_bytes_max is 1KiB; at least 16MiB"),
            ("[plugins.a]\ncpu_percent_max = 0\n", "agent.toml:2:1: cpu_percent_max is 0"),
            ("[plugins.a]\ncapabilities = [\"NET\"]\n", "agent.toml:2:1: \"NET\" is not a capability"),
            ("[plugins.a]\nisolate = 1\n", "agent.toml:2:11: invalid type: integer `1`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
        }
    }
}
