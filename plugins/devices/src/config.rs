//! The table of a plug-in with many devices: common settings, templates, and lists of devices.
//!
//! ```toml
//! [plugins.snmp]                        # the settings of all devices
//! interval = "10s"
//! [plugins.snmp.template.pdu]           # a template; `extends` names another one
//! path = "{rack}/{host}"
//! [[plugins.snmp.device]]               # a list of devices
//! hosts = ["pdu[01-40].mgmt"]
//! template = "pdu"
//! credentials = "pdus"
//! parameters = { rack = "r7" }
//! ```
//!
//! The keys of a protocol stand beside these keys in a template or a list of devices, and are parsed as the protocol's own type.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section, unknown};
use wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN;
use wholegrain_model::name::{check_relative, sanitize_level};
use wholegrain_sources::ConfigureContext;

use crate::credentials::Credentials;
use crate::hosts::{self, DeviceHost, HOSTS_MAX};
use crate::parameters::{Parameters, has_parameters, substitute, substitute_value};

/// The shortest and the longest wait of the first discovery without `first_answers`.
const FIRST_ANSWERS_MIN: Interval = Interval::from_s(3);
const FIRST_ANSWERS_MAX: Interval = Interval::from_s(5);
/// The longest chain of templates that extend each other.
const EXTENDS_MAX: usize = 16;
/// The keys of [`SharedKeys`] in the plug-in's table.
const SHARED: [&str; 12] = [
    "template",
    "device",
    "interval",
    "offset",
    "timeout",
    "retries",
    "stale_after",
    "port",
    "credentials",
    "credentials_dir",
    "in_flight",
    "first_answers",
];
/// Keys of files of credentials that are written into the table by mistake.
const SECRETS: [&str; 7] = ["community", "user", "password", "token", "auth_password", "privacy_password", "kg"];
/// The keys of [`DeviceKeys`] in a template or a list of devices.
const DEVICE: [&str; 12] = [
    "hosts",
    "template",
    "extends",
    "path",
    "parameters",
    "interval",
    "offset",
    "timeout",
    "retries",
    "stale_after",
    "port",
    "credentials",
];

/// The keys of the plug-in's table that all protocols have.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedKeys {
    /// The templates, which [`read_templates`] reads.
    #[serde(default, rename = "template")]
    _templates: serde::de::IgnoredAny,
    /// The lists of devices, which [`DeviceReader`] reads.
    #[serde(default, rename = "device")]
    _devices: serde::de::IgnoredAny,
    interval: Option<Interval>,
    offset: Option<Interval>,
    timeout: Option<Interval>,
    retries: Option<u32>,
    stale_after: Option<Interval>,
    port: Option<u16>,
    credentials: Option<String>,
    credentials_dir: Option<PathBuf>,
    in_flight: Option<usize>,
    first_answers: Option<Interval>,
}

/// The keys of a template or a list of devices that all protocols have.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceKeys {
    #[serde(default)]
    hosts: Vec<String>,
    template: Option<String>,
    extends: Option<String>,
    path: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    interval: Option<Interval>,
    offset: Option<Interval>,
    timeout: Option<Interval>,
    retries: Option<u32>,
    stale_after: Option<Interval>,
    port: Option<u16>,
    credentials: Option<String>,
}

impl DeviceKeys {
    /// These keys, and those of `base` that are absent here.
    fn over(mut self, base: &DeviceKeys) -> Self {
        for (name, value) in &base.parameters {
            self.parameters.entry(name.clone()).or_insert_with(|| value.clone());
        }
        self.path = self.path.or_else(|| base.path.clone());
        self.interval = self.interval.or(base.interval);
        self.offset = self.offset.or(base.offset);
        self.timeout = self.timeout.or(base.timeout);
        self.retries = self.retries.or(base.retries);
        self.stale_after = self.stale_after.or(base.stale_after);
        self.port = self.port.or(base.port);
        self.credentials = self.credentials.or_else(|| base.credentials.clone());
        self
    }
}

/// When and how a device is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollTiming {
    /// Between two polls. A group of the protocol can have its own.
    pub interval: Interval,
    /// Added to the wall-clock multiples of the interval.
    pub offset: Interval,
    /// How long an answer to one request is awaited; at most [`TIMEOUT_MAX`].
    pub timeout: Interval,
    /// How often a request is sent again.
    pub retries: u32,
    /// The age from which on the newest answer counts no more; `None` means three intervals.
    pub stale_after: Option<Interval>,
}

/// The longest timeout of one request: 60 s.
pub const TIMEOUT_MAX: Interval = Interval::from_s(60);
/// The most times that a request is repeated.
pub const RETRIES_MAX: u32 = 10;
/// The most polls at a time that a configuration can ask for.
pub const IN_FLIGHT_MAX: usize = 10_000;

impl Default for PollTiming {
    fn default() -> Self {
        Self {
            interval: Interval::from_s(10),
            offset: Interval::default(),
            timeout: Interval::from_s(1),
            retries: 2,
            stale_after: None,
        }
    }
}

/// One device of the configuration.
#[derive(Debug, Clone)]
pub struct DeviceConfig<P> {
    pub host: DeviceHost,
    /// The port of the host's text or of the key `port`.
    pub port: Option<u16>,
    /// The device's path below the agent's prefix: valid, and of no other device.
    pub path: String,
    pub timing: PollTiming,
    /// Shared by all devices that name the same file.
    pub credentials: Option<Arc<Credentials>>,
    /// The protocol's keys of the templates and of the list, with parameters replaced. Shared where they are equal.
    pub protocol: Arc<P>,
    /// The list of the configuration that has this device, for messages about it.
    pub section: Section,
}

/// The checked table of a plug-in: `S` are its own keys, `P` the protocol's keys of its devices.
#[derive(Debug)]
pub struct DevicesConfig<S, P> {
    pub own: S,
    pub devices: Vec<DeviceConfig<P>>,
    /// The most polls at a time.
    pub in_flight: usize,
    /// How long the first discovery waits for answers.
    pub first_answers: Interval,
}

/// A template or a list of devices, as it is written.
#[derive(Clone)]
struct Layer {
    keys: DeviceKeys,
    protocol: toml::Table,
}

impl Layer {
    /// Reads and checks the table `section`: unknown keys and wrong types are errors at their line.
    fn read<P: DeserializeOwned>(section: &Section) -> Result<Self, ConfigError> {
        let (keys, _): (DeviceKeys, P) =
            section.parse_split(&DEVICE).map_err(|error| explain_secret(section, error))?;
        let mut protocol: toml::Table = section.parse()?;
        protocol.retain(|key, _| !DEVICE.contains(&key));
        Ok(Self { keys, protocol })
    }

    fn over(self, base: Layer) -> Self {
        let mut protocol = base.protocol;
        merge(&mut protocol, self.protocol);
        Self { keys: self.keys.over(&base.keys), protocol }
    }
}

/// Puts `over` on `base`: tables are merged key by key, elements with the same `name` replace each other, all else is replaced.
fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => merge(base, over),
            (Some(toml::Value::Array(base)), toml::Value::Array(over))
                if base.iter().chain(&over).all(|value| name_of(value).is_some()) =>
            {
                base.retain(|value| over.iter().all(|other| name_of(other) != name_of(value)));
                base.extend(over);
            }
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

fn name_of(value: &toml::Value) -> Option<&str> {
    value.as_table()?.get("name")?.as_str()
}

/// Reads the table of a plug-in. Its own keys have the type `S`, those of a device `P`, both with `#[serde(deny_unknown_fields)]`. All fields of
/// `P` are optional, as a template can have any of them; the caller checks the result, with [`Section::error`] of the device.
pub fn read<S, P>(section: &Section, context: &ConfigureContext) -> Result<DevicesConfig<S, P>, ConfigError>
where
    S: DeserializeOwned,
    P: DeserializeOwned,
{
    read_with(section, context, PollTiming::default())
}

/// As [`read`], with the timing that applies where the configuration has no keys for it.
pub fn read_with<S, P>(
    section: &Section,
    context: &ConfigureContext,
    usual: PollTiming,
) -> Result<DevicesConfig<S, P>, ConfigError>
where
    S: DeserializeOwned,
    P: DeserializeOwned,
{
    let (shared, own): (SharedKeys, S) =
        section.parse_split(&SHARED).map_err(|error| explain_secret(section, error))?;
    check_timing(section, &timing(&shared, &DeviceKeys::default(), usual))?;
    let in_flight = shared.in_flight.unwrap_or(256);
    if in_flight == 0 || in_flight > IN_FLIGHT_MAX {
        let message = format!("in_flight is {in_flight}; expected 1 to {IN_FLIGHT_MAX}");
        return Err(section.error("in_flight", message));
    }
    let base = timing(&shared, &DeviceKeys::default(), usual);
    let tries_ns = base.timeout.ns().saturating_mul(u64::from(base.retries) + 1);
    // A second after the last try, the verdict on a silent device is known.
    let until_verdict = Interval::from_ns(tries_ns.saturating_add(Interval::from_s(1).ns()));
    let first_answers = shared.first_answers.unwrap_or(until_verdict.clamp(FIRST_ANSWERS_MIN, FIRST_ANSWERS_MAX));
    if first_answers > TIMEOUT_MAX {
        return Err(section.error("first_answers", format!("first_answers is more than {TIMEOUT_MAX}")));
    }
    let folder = context.resolve(shared.credentials_dir.as_deref().unwrap_or("credentials".as_ref()));
    let mut reader = DeviceReader {
        shared: &shared,
        usual,
        folder,
        templates: read_templates::<P>(section)?,
        credentials: HashMap::new(),
        paths: HashMap::new(),
        devices: Vec::new(),
    };
    for device in section.elements("device")? {
        reader.read(&device)?;
    }
    Ok(DevicesConfig { own, devices: reader.devices, in_flight, first_answers })
}

/// Says where secrets belong, if the error is about one in the table.
fn explain_secret(section: &Section, error: ConfigError) -> ConfigError {
    match SECRETS.iter().find(|key| error.message.starts_with(&format!("unknown key `{key}`"))) {
        Some(key) => section.error(
            key,
            format!("`{key}` is a secret: write credentials = \"NAME\" here, and `{key} = \"…\"` in the file credentials/NAME"),
        ),
        None => error,
    }
}

/// All templates, each complete with what it inherits.
fn read_templates<P: DeserializeOwned>(section: &Section) -> Result<HashMap<String, Layer>, ConfigError> {
    let all = section.child("template");
    let names = all.keys()?;
    let mut written = HashMap::new();
    for name in &names {
        let table = all.child(name);
        let layer = Layer::read::<P>(&table)?;
        for (key, is_given) in [("hosts", !layer.keys.hosts.is_empty()), ("template", layer.keys.template.is_some())] {
            if is_given {
                let message = format!("a template has no {key}; [[…device]] has it, and `extends` names a template");
                return Err(table.error(key, message));
            }
        }
        written.insert(name.as_str(), layer);
    }
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut complete = HashMap::new();
    for name in &names {
        let mut layer = written[name.as_str()].clone();
        let mut parent = layer.keys.extends.clone();
        for step in 0.. {
            let Some(of) = parent else { break };
            let Some(base) = written.get(of.as_str()) else {
                return Err(all.child(name).error("extends", unknown("template", &of, &known)));
            };
            if step == EXTENDS_MAX {
                let message = format!("template {name} extends itself, or more than {EXTENDS_MAX} others in a row");
                return Err(all.child(name).error("extends", message));
            }
            parent = base.keys.extends.clone();
            layer = layer.over(base.clone());
        }
        complete.insert(name.clone(), layer);
    }
    Ok(complete)
}

fn timing(shared: &SharedKeys, keys: &DeviceKeys, default: PollTiming) -> PollTiming {
    PollTiming {
        interval: keys.interval.or(shared.interval).unwrap_or(default.interval),
        offset: keys.offset.or(shared.offset).unwrap_or(default.offset),
        timeout: keys.timeout.or(shared.timeout).unwrap_or(default.timeout),
        retries: keys.retries.or(shared.retries).unwrap_or(default.retries),
        stale_after: keys.stale_after.or(shared.stale_after).or(default.stale_after),
    }
}

/// Refuses times that make no sense together. `section` is the table of the keys.
pub fn check_timing(section: &Section, timing: &PollTiming) -> Result<(), ConfigError> {
    let PollTiming { interval, offset, timeout, retries, stale_after } = *timing;
    let shortest = Interval::from_ns(SAMPLING_INTERVAL_NS_MIN);
    let (key, message) = if interval < shortest {
        ("interval", format!("interval {interval} is shorter than {shortest}, the shortest interval"))
    } else if offset >= interval {
        ("offset", format!("offset {offset} is not below the interval {interval}"))
    } else if timeout > TIMEOUT_MAX || timeout < shortest {
        ("timeout", format!("timeout {timeout}; expected {shortest} to {TIMEOUT_MAX}"))
    } else if retries > RETRIES_MAX {
        ("retries", format!("retries is {retries}; at most {RETRIES_MAX} are allowed"))
    } else if stale_after.is_some_and(|age| age < interval) {
        (
            "stale_after",
            format!("stale_after is shorter than the interval {interval}: every second value would be a gap"),
        )
    } else {
        return Ok(());
    };
    Err(section.error(key, message))
}

/// Reads the lists of devices one after the other.
struct DeviceReader<'a, P> {
    shared: &'a SharedKeys,
    /// The timing without keys.
    usual: PollTiming,
    folder: PathBuf,
    templates: HashMap<String, Layer>,
    credentials: HashMap<String, Arc<Credentials>>,
    /// The host of each path.
    paths: HashMap<String, String>,
    devices: Vec<DeviceConfig<P>>,
}

impl<P: DeserializeOwned> DeviceReader<'_, P> {
    fn layer(&self, section: &Section) -> Result<Layer, ConfigError> {
        let mut layer = Layer::read::<P>(section)?;
        if layer.keys.extends.is_some() {
            return Err(section.error("extends", "a list of devices has no `extends`; `template` names its template"));
        }
        if let Some(name) = layer.keys.template.clone() {
            let Some(base) = self.templates.get(&name) else {
                let known: Vec<&str> = self.templates.keys().map(String::as_str).collect();
                return Err(section.error("template", unknown("template", &name, &known)));
            };
            layer = layer.over(base.clone());
        }
        Ok(layer)
    }

    fn credentials(
        &mut self,
        section: &Section,
        name: Option<&String>,
    ) -> Result<Option<Arc<Credentials>>, ConfigError> {
        let Some(name) = name else { return Ok(None) };
        if let Some(read) = self.credentials.get(name) {
            return Ok(Some(read.clone()));
        }
        let read =
            Credentials::read(&self.folder, name).map_err(|error| section.error("credentials", error.to_string()))?;
        let read = Arc::new(read);
        self.credentials.insert(name.clone(), read.clone());
        Ok(Some(read))
    }

    fn read(&mut self, section: &Section) -> Result<(), ConfigError> {
        let Layer { keys, protocol } = self.layer(section)?;
        if keys.hosts.is_empty() {
            return Err(section.error("hosts", "hosts is missing; write hosts = [\"pdu[01-40]\"]"));
        }
        let timing = timing(self.shared, &keys, self.usual);
        check_timing(section, &timing)?;
        let credentials = self.credentials(section, keys.credentials.as_ref().or(self.shared.credentials.as_ref()))?;
        let path = keys.path.as_deref().unwrap_or("{host}");
        let protocol = toml::Value::Table(protocol);
        let (is_common, mut common): (bool, Option<Arc<P>>) = (!has_parameters(&protocol), None);
        for text in &keys.hosts {
            let hosts = hosts::expand(text, HOSTS_MAX - self.devices.len())
                .map_err(|error| section.error("hosts", error.to_string()))?;
            for host in hosts {
                let parameters = parameters(&host, &keys.parameters);
                let path = substitute(path, &parameters).map_err(|error| section.error("path", error))?;
                check_relative(&path).map_err(|error| section.error("path", error.to_string()))?;
                if let Some(other) = self.paths.insert(path.clone(), host.text.clone()) {
                    let (key, message) = if other == host.text {
                        let advice = "with two groups of settings, give each list its own `path`";
                        ("hosts", format!("{other} is listed twice; {advice}"))
                    } else {
                        ("path", format!("{} and {other} have the same path {path}; use {{host}} in `path`", host.text))
                    };
                    return Err(section.error(key, message));
                }
                let protocol = match &common {
                    Some(common) => common.clone(),
                    None => parse(&protocol, &parameters).map_err(|error| section.error("template", error))?,
                };
                if is_common {
                    common = Some(protocol.clone());
                }
                let port = host.port.or(keys.port).or(self.shared.port);
                let (credentials, section) = (credentials.clone(), section.clone());
                self.devices.push(DeviceConfig { host, port, path, timing, credentials, protocol, section });
            }
        }
        Ok(())
    }
}

/// The parameters of a host: `host`, `short` (to the first dot), `1`, `2`, … (the ranges), and those of the configuration.
fn parameters(host: &DeviceHost, given: &Parameters) -> Parameters {
    let mut parameters = given.clone();
    let is_address = host.name.parse::<std::net::IpAddr>().is_ok();
    let short = if is_address { &host.text } else { host.name.split('.').next().unwrap_or_default() };
    parameters.insert("host".to_owned(), sanitize_level(&host.text));
    parameters.insert("short".to_owned(), sanitize_level(short));
    for (number, capture) in host.captures.iter().enumerate() {
        parameters.insert((number + 1).to_string(), capture.clone());
    }
    parameters
}

fn parse<P: DeserializeOwned>(protocol: &toml::Value, parameters: &Parameters) -> Result<Arc<P>, String> {
    let mut protocol = protocol.clone();
    substitute_value(&mut protocol, parameters)?;
    protocol.try_into().map(Arc::new).map_err(|error: toml::de::Error| error.message().to_owned())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
