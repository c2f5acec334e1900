//! `[mqtt.readings]`, `[[mqtt.device]]`, `[interop]`, `[[interop.template]]` and `[[remote]]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, SensorPath};
use wholegrain_transport::mqtt::{self, Version};

use super::devices::config::{self as devices, RawDevice};
use super::devices::template::DeviceTemplate;
use super::names::{LineProtocol, NameTemplate, TEMPLATES_MAX, defaults};

pub const REMOTES_MAX: usize = 64;
pub const FILTERS_MAX: usize = 64;

/// Settings of all inputs other than Wholegrain agents.
#[derive(Debug, Clone)]
pub struct InteropConfig {
    /// Whether publishes on sensor paths are stored as readings.
    pub readings: bool,
    /// Topic filters of those publishes.
    pub topics: Vec<String>,
    /// The most new schemaless sensors that one sender may register in an hour.
    pub sensors_per_hour_max: u64,
    /// The file with the names that DCDB pushers announced.
    pub names_file: PathBuf,
    /// The largest body of a write over HTTP after decompression, in bytes.
    pub body_bytes_max: usize,
    /// Templates that turn names of line protocols into paths; the first that fits is used.
    pub templates: Vec<NameTemplate>,
    /// Devices whose publishes are readings; the first that fits a topic is used.
    pub devices: Vec<DeviceTemplate>,
    /// Brokers that this server connects to as a client.
    pub remotes: Vec<RemoteConfig>,
}

#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// The name in log messages.
    pub name: String,
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub version: Version,
    /// The client identifier; the broker keeps the session under it.
    pub client_id: String,
    pub user: Option<String>,
    /// A file with the password on its first line.
    pub password_file: Option<PathBuf>,
    /// The CA that signed the broker's certificate, PEM.
    pub ca: Option<PathBuf>,
    /// Client certificate and key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub subscribe: Vec<String>,
    /// The prefixes of all paths that the broker may deliver.
    pub trust: Vec<SensorPath>,
    /// The longest time without a packet.
    pub keep_alive: Duration,
    /// How long the broker keeps the session while the server is disconnected.
    pub session_expiry: Duration,
    /// The most unacknowledged messages.
    pub inflight_max: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawReadings {
    enabled: bool,
    topics: Vec<String>,
    sensors_per_hour_max: u64,
}

impl Default for RawReadings {
    fn default() -> Self {
        Self { enabled: true, topics: vec!["/#".to_owned()], sensors_per_hour_max: 100_000 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawInterop {
    body_bytes_max: ByteSize,
    template: Vec<RawTemplate>,
}

impl Default for RawInterop {
    fn default() -> Self {
        Self { body_bytes_max: ByteSize::mib(32), template: Vec::new() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTemplate {
    #[serde(default = "any")]
    measurement: String,
    path: String,
    #[serde(default)]
    protocol: Option<LineProtocol>,
}

fn any() -> String {
    "*".to_owned()
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
enum RawVersion {
    #[serde(rename = "3.1.1")]
    V311,
    #[default]
    #[serde(rename = "5")]
    V5,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRemote {
    url: String,
    client_id: String,
    #[serde(default)]
    version: RawVersion,
    user: Option<String>,
    password_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    subscribe: Option<Vec<String>>,
    trust: Vec<SensorPath>,
    keep_alive: Option<Interval>,
    session_expiry: Option<Interval>,
    inflight_max: Option<u16>,
}

/// The default subscriptions. Schemas are not in a shared subscription, because their messages are retained, and shared subscriptions do not deliver
/// retained messages.
fn subscribe() -> Vec<String> {
    [
        "wholegrain/v1/schema/#",
        "$share/wholegrain/wholegrain/v1/batch/#",
        "$share/wholegrain/wholegrain/v1/job/#",
        "$share/wholegrain//#",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Checks all sections; `root` locates errors in the file.
pub(crate) fn check(
    readings: RawReadings,
    devices: Vec<RawDevice>,
    interop: RawInterop,
    remotes: Vec<RawRemote>,
    root: &Section,
    base: &Path,
    data: &Path,
) -> Result<InteropConfig, ConfigError> {
    let section = root.child("mqtt").child("readings");
    if let Some(wrong) = readings.topics.iter().find(|filter| !filter.starts_with('/') || !mqtt::valid_filter(filter)) {
        return Err(
            section.error("topics", format!("{wrong:?} is not a topic filter that begins with `/`, such as \"/#\""))
        );
    }
    if readings.sensors_per_hour_max == 0 {
        return Err(section.error("sensors_per_hour_max", "is 0; set at least 1, or enabled = false"));
    }
    let section = root.child("interop");
    if !(1024..=1 << 30).contains(&interop.body_bytes_max.0) {
        return Err(section.error("body_bytes_max", format!("is {}; set 1KiB to 1GiB", interop.body_bytes_max.0)));
    }
    if interop.template.len() > TEMPLATES_MAX {
        return Err(section.error(
            "template",
            format!("appears {} times; at most {TEMPLATES_MAX} are allowed", interop.template.len()),
        ));
    }
    let mut templates = Vec::new();
    for raw in interop.template {
        let template = NameTemplate::new(&raw.measurement, &raw.path).map_err(|why| section.error("template", why))?;
        templates.push(template.only_for(raw.protocol));
    }
    templates.extend(defaults());
    if remotes.len() > REMOTES_MAX {
        return Err(root.error("remote", format!("appears {} times; at most {REMOTES_MAX} are allowed", remotes.len())));
    }
    let remotes = remotes.into_iter().map(|raw| remote(raw, root, base)).collect::<Result<Vec<_>, _>>()?;
    Ok(InteropConfig {
        readings: readings.enabled,
        topics: readings.topics,
        sensors_per_hour_max: readings.sensors_per_hour_max,
        names_file: data.join("dcdb-names.jsonl"),
        body_bytes_max: interop.body_bytes_max.0 as usize,
        templates,
        devices: devices::check(devices, &root.child("mqtt"))?,
        remotes,
    })
}

fn remote(raw: RawRemote, root: &Section, base: &Path) -> Result<RemoteConfig, ConfigError> {
    let refuse = |why: String| Err(root.error("remote", format!("remote {:?}: {why}", raw.url)));
    let address = match wholegrain_transport::client::Address::parse(&raw.url) {
        Ok(address) => address,
        Err(why) => return refuse(why),
    };
    if raw.client_id.is_empty() {
        return refuse("client_id is empty; the broker keeps the session under it".to_owned());
    }
    if address.tls && raw.ca.is_none() {
        return refuse("mqtts needs ca, the certificate of the CA that signed the broker's certificate".to_owned());
    }
    let subscribe = raw.subscribe.unwrap_or_else(subscribe);
    if subscribe.is_empty() || subscribe.len() > FILTERS_MAX {
        return refuse(format!("subscribe has {} filters; set 1 to {FILTERS_MAX}", subscribe.len()));
    }
    if let Some(wrong) = subscribe.iter().find(|filter| !mqtt::valid_filter(filter)) {
        return refuse(format!("{wrong:?} is not a topic filter"));
    }
    if raw.trust.is_empty() {
        return refuse(
            "trust is empty; list the prefixes of the paths that the broker may deliver, such as \"/site\"".to_owned(),
        );
    }
    if raw.password_file.is_some() && raw.user.is_none() {
        return refuse("password_file is set without user; set both".to_owned());
    }
    let identity = match (raw.cert, raw.key) {
        (Some(cert), Some(key)) => Some((base.join(cert), base.join(key))),
        (None, None) => None,
        _ => return refuse("set cert and key together".to_owned()),
    };
    let inflight_max = raw.inflight_max.unwrap_or(1000);
    if inflight_max == 0 {
        return refuse("inflight_max is 0; set at least 1".to_owned());
    }
    Ok(RemoteConfig {
        name: format!("{}@{}:{}", raw.client_id, address.host, address.port),
        tls: address.tls,
        host: address.host,
        port: address.port,
        version: match raw.version {
            RawVersion::V311 => Version::V311,
            RawVersion::V5 => Version::V5,
        },
        client_id: raw.client_id,
        user: raw.user,
        password_file: raw.password_file.map(|path| base.join(path)),
        ca: raw.ca.map(|path| base.join(path)),
        identity,
        subscribe,
        trust: raw.trust,
        keep_alive: raw.keep_alive.map_or(Duration::from_secs(30), Interval::duration),
        session_expiry: raw.session_expiry.map_or(Duration::from_secs(86_400), Interval::duration),
        inflight_max,
    })
}

#[cfg(test)]
mod tests {
    use crate::ServerConfig;

    fn load(text: &str) -> Result<ServerConfig, String> {
        let text = format!("{text}\n[http]\nlisten = \"127.0.0.1:0\"\n");
        ServerConfig::from_text("server.toml", &text, std::path::Path::new("/etc")).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_and_mistakes() {
        let mqtt = "[mqtt]\ntls_listen = \"off\"\n";
        let config = load(mqtt).unwrap().interop;
        assert!(
            config.readings && config.topics == ["/#"] && config.remotes.is_empty() && !config.templates.is_empty()
        );
        let remote = |more: &str| load(&format!("{mqtt}[[remote]]\nclient_id = \"s1\"\ntrust = [\"/site\"]\n{more}"));
        let config = remote("url = \"mqtt://h\"").unwrap().interop.remotes.remove(0);
        assert_eq!((config.host.as_str(), config.port, config.tls, config.subscribe.len()), ("h", 1883, false, 4));
        for (result, part) in [
            (load(&format!("{mqtt}[mqtt.readings]\ntopics = [\"a/#\"]")), "not a topic filter that begins with `/`"),
            (load(&format!("{mqtt}[mqtt.readings]\nsensors_per_hour_max = 0")), "is 0; set at least 1"),
            (load(&format!("{mqtt}[interop]\nbody_bytes_max = \"1B\"")), "1KiB to 1GiB"),
            (load(&format!("{mqtt}[[interop.template]]\npath = \"/{{x}}\"")), "{x} is not a placeholder"),
            (load(&format!("{mqtt}[[interop.template]]\npath = \"/a\"\nprotocol = \"x\"")), "unknown value `x`"),
            (remote("url = \"http://h\""), "write mqtt://"),
            (remote("url = \"mqtts://h\""), "mqtts needs ca"),
            (remote("url = \"mqtt://h\"\nsubscribe = [\"a/#/b\"]"), "is not a topic filter"),
            (remote("url = \"mqtt://h\"\nsubscribe = []"), "0 filters"),
            (remote("url = \"mqtt://h\"\npassword_file = \"p\""), "without user"),
            (remote("url = \"mqtt://h\"\ncert = \"c\""), "set cert and key together"),
            (remote("url = \"mqtt://h\"\ninflight_max = 0"), "inflight_max is 0"),
            (load(&format!("{mqtt}[[remote]]\nclient_id = \"s\"\nurl = \"mqtt://h\"\ntrust = []")), "trust is empty"),
        ] {
            let error = result.unwrap_err();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
