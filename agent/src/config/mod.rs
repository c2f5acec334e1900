//! The agent's configuration: TOML. An error names file, line and the nearest valid key.

mod api;
mod mqtt;
mod raw;
mod secret;
mod server_url;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wholegrain_model::batch::AGENT_BYTES_MAX;
use wholegrain_model::config::{ConfigError, Document, Section, unknown};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::{Interval, LogLevel, SensorPath, name};
use wholegrain_sources::job::JobSource;
use wholegrain_sources::{ConfigureContext, Roots, SOURCES, Source, SourceType};

pub use api::{ApiConfig, HttpsConfig};
pub use mqtt::{MqttConfig, SendMode, SpoolConfig};
pub use server_url::{SERVERS_MAX, ServerUrl};

use crate::cache::CacheConfig;
use crate::engine::cpu_placement::SamplerCpu;
use crate::jobs::JobsConfig;
use crate::plugins::PluginsConfig;
use crate::selfstat;

/// The shortest time between two rediscoveries of all sources: 1 s.
pub const RESCAN_NS_MIN: u64 = 1_000_000_000;

/// Why a configuration was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the configuration {file}: {error}; name it with --config")]
    Read { file: PathBuf, error: std::io::Error },
    /// The file has an error.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The settings of one `[sources.<name>]` table.
#[derive(Clone)]
pub struct SourceConfig {
    pub name: &'static str,
    /// The table as written, to detect changes.
    pub table: toml::Table,
    kind: SourceType,
    section: Section,
    config_dir: PathBuf,
}

impl std::fmt::Debug for SourceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceConfig").field("name", &self.name).field("table", &self.table).finish_non_exhaustive()
    }
}

impl SourceConfig {
    /// One line about the source.
    pub fn summary(&self) -> &'static str {
        self.kind.summary
    }

    /// Builds the source. The table was checked when the configuration was read.
    pub fn build(&self, roots: &Roots) -> Result<Box<dyn Source>, ConfigError> {
        (self.kind.configure)(&self.section, &self.context(roots))
    }

    /// Builds its job scope, if it has one.
    pub fn build_jobs(&self, roots: &Roots) -> Option<Result<Box<dyn JobSource>, ConfigError>> {
        self.kind.jobs.map(|configure| configure(&self.section, &self.context(roots)))
    }

    fn context(&self, roots: &Roots) -> ConfigureContext {
        ConfigureContext { roots: roots.clone(), config_dir: self.config_dir.clone() }
    }
}

/// The whole configuration, checked.
#[derive(Debug, Clone)]
pub struct Config {
    pub file: PathBuf,
    /// The agent's name: one level.
    pub name: String,
    /// The path above all its sensors.
    pub prefix: SensorPath,
    pub roots: Roots,
    /// The interval of groups that name none.
    pub interval: Interval,
    /// How often all sources are discovered again.
    pub rescan: Interval,
    /// The CPU of the sampler thread.
    pub sampler_cpu: SamplerCpu,
    pub log_level: LogLevel,
    pub cache: CacheConfig,
    /// The server; `None` to sample and cache only.
    pub mqtt: Option<Arc<MqttConfig>>,
    pub spool: Option<SpoolConfig>,
    pub api: ApiConfig,
    /// `None`: jobs are not monitored.
    pub jobs: Option<JobsConfig>,
    /// The sources besides the agent's own.
    pub sources: Vec<SourceConfig>,
    /// The sources that are loaded at run time.
    pub plugins: PluginsConfig,
    pub own: selfstat::SelfMetricsConfig,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        let text = fs::read_to_string(file).map_err(|error| LoadError::Read { file: file.to_owned(), error })?;
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self::parse(file, &text, dir)?)
    }

    /// Checks a text; relative paths in it are below `dir`.
    pub fn parse(file: &Path, text: &str, dir: &Path) -> Result<Self, ConfigError> {
        let document = Document::new(&file.to_string_lossy(), text);
        let raw: raw::RawConfig = document.parse()?;
        let root = document.root();
        let (name, prefix) = names(&root, &raw)?;
        check_interval(&root.child("defaults"), "interval", raw.defaults.interval)?;
        if raw.rescan.ns() < RESCAN_NS_MIN {
            return Err(root.error("rescan", format!("rescan is {}; 1s is the shortest", raw.rescan)));
        }
        let roots =
            Roots { proc: dir.join(raw.roots.proc), sys: dir.join(raw.roots.sys), cgroup: dir.join(raw.roots.cgroup) };
        let mqtt = match raw.mqtt {
            Some(mqtt) => Some(Arc::new(mqtt::check(&root.child("mqtt"), mqtt, dir)?)),
            None => None,
        };
        let spool = match raw.spool {
            Some(spool) => Some(mqtt::check_spool(&root.child("spool"), spool, dir)?),
            None => None,
        };
        if raw.cache.duration.ns() == 0 || raw.cache.bytes_max.0 == 0 {
            return Err(root.child("cache").error("duration", "the cache's duration and bytes_max must not be 0"));
        }
        let api = api::check(&root.child("api"), raw.api, dir)?;
        let jobs = match raw.jobs {
            Some(_) => Some(JobsConfig::read(&root.child("jobs"), dir)?),
            None => None,
        };
        let plugins = PluginsConfig::read(&root.child("plugins"), &roots, dir)?;
        let (sources, own) = sources(&root.child("sources"), text, &roots, dir)?;
        Ok(Self {
            file: file.to_owned(),
            name,
            prefix,
            roots,
            interval: raw.defaults.interval,
            rescan: raw.rescan,
            sampler_cpu: raw.sampler.cpu,
            log_level: raw.log_level,
            cache: raw.cache,
            mqtt,
            spool,
            api,
            jobs,
            sources,
            plugins,
            own,
        })
    }

    /// Settings that differ in another configuration and need a restart.
    pub fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let jobs_socket = |config: &Config| config.jobs.as_ref().and_then(|jobs| jobs.socket.clone());
        let jobs_dir = |config: &Config| config.jobs.as_ref().and_then(|jobs| jobs.dir.clone());
        let changes = [
            ("name", self.name != new.name),
            ("prefix", self.prefix != new.prefix),
            ("roots", self.roots != new.roots),
            ("mqtt", self.mqtt.is_some() != new.mqtt.is_some()),
            ("spool", self.spool != new.spool),
            ("api", self.api != new.api),
            ("jobs.socket", jobs_socket(self) != jobs_socket(new)),
            ("jobs.dir", self.jobs.is_some() && new.jobs.is_some() && jobs_dir(self) != jobs_dir(new)),
        ];
        changes.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }

    /// Keeps the settings that hold for the life of the process from the configuration in force, so that each reload reports those that need a
    /// restart.
    pub fn keep(&mut self, old: &Config) {
        (self.name, self.prefix) = (old.name.clone(), old.prefix.clone());
        (self.roots, self.spool, self.api) = (old.roots.clone(), old.spool.clone(), old.api.clone());
        if self.mqtt.is_some() != old.mqtt.is_some() {
            self.mqtt.clone_from(&old.mqtt);
        }
        if let Some(jobs) = &mut self.jobs {
            jobs.socket = old.jobs.as_ref().and_then(|old| old.socket.clone());
            if let Some(old) = &old.jobs {
                jobs.dir.clone_from(&old.dir);
            }
        }
    }

    /// How long samples are collected into a batch.
    pub fn send_interval(&self) -> Interval {
        self.mqtt.as_ref().map_or(raw::SEND_INTERVAL, |mqtt| mqtt.send_interval)
    }
}

fn names(root: &Section, raw: &raw::RawConfig) -> Result<(String, SensorPath), ConfigError> {
    let agent = match &raw.name {
        Some(name) => name.clone(),
        None => wholegrain_transport::host_name(),
    };
    if agent.contains('/') || agent.len() > AGENT_BYTES_MAX || name::check_relative(&agent).is_err() {
        let why = match name::check_relative(&agent) {
            Err(error) => error.to_string(),
            Ok(()) => format!(
                "a name is one level of at most {AGENT_BYTES_MAX} bytes; a place in the hierarchy goes into `prefix`"
            ),
        };
        return Err(root.error("name", format!("name = {agent:?}: {why}")));
    }
    let prefix = match &raw.prefix {
        Some(prefix) => SensorPath::new(prefix.clone()).map_err(|error| root.error("prefix", error.to_string()))?,
        None => SensorPath::new(format!("/{agent}")).map_err(|error| root.error("name", error.to_string()))?,
    };
    Ok((agent, prefix))
}

fn check_interval(section: &Section, key: &str, interval: Interval) -> Result<(), ConfigError> {
    if interval.ns() < SAMPLING_INTERVAL_NS_MIN {
        return Err(section.error(key, format!("{key} is {interval}; 1ms is the shortest that is sampled")));
    }
    Ok(())
}

/// The `[sources.*]` tables in the order of [`SOURCES`], each checked by its source.
fn sources(
    section: &Section,
    text: &str,
    roots: &Roots,
    dir: &Path,
) -> Result<(Vec<SourceConfig>, selfstat::SelfMetricsConfig), ConfigError> {
    let whole: toml::Table = text.parse().map_err(|error: toml::de::Error| section.error("", error.message()))?;
    let names = section.keys()?;
    let known: Vec<&str> = SOURCES.iter().map(|source| source.name).chain([selfstat::NAME]).collect();
    for name in &names {
        if !known.contains(&name.as_str()) {
            return Err(section.error(name, unknown("source", name, &known)));
        }
        let table = whole.get("sources").and_then(|sources| sources.get(name));
        if table.is_some_and(|table| !table.is_table()) {
            return Err(section.error(name, format!("a source is a table; write [sources.{name}]")));
        }
    }
    let mut list = Vec::new();
    for kind in SOURCES {
        if names.iter().any(|name| name == kind.name) {
            let table = whole.get("sources").and_then(|sources| sources.get(kind.name)).and_then(toml::Value::as_table);
            let config = SourceConfig {
                name: kind.name,
                table: table.cloned().unwrap_or_default(),
                kind: *kind,
                section: section.child(kind.name),
                config_dir: dir.to_owned(),
            };
            config.build(roots)?;
            config.build_jobs(roots).transpose()?;
            list.push(config);
        }
    }
    let own_section = section.child(selfstat::NAME);
    let own: selfstat::SelfMetricsConfig = own_section.parse()?;
    if let Some(interval) = own.interval {
        check_interval(&own_section, "interval", interval)?;
    }
    Ok((list, own))
}
