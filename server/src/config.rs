//! Reads `server.toml`, applies defaults, and reports errors with file, line and the nearest key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wholegrain_model::config::{ConfigError, Document, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, SensorPath};
use wholegrain_store::StoreConfig;

use crate::access::audit::AuditConfig;
use crate::access::{self, AclLine, RawSecurity, SecurityConfig};
use crate::broker::auth;
use crate::broker::limits::LIMIT_TIME;
pub use crate::broker::limits::MqttLimits;
use crate::broker::limits::RawMqttLimits;
use crate::http::wrong_origin;
use crate::interop::InteropConfig;
use crate::interop::config::{RawInterop, RawReadings, RawRemote};
use crate::jobs::config::{JobsConfig, RawJobs};
use crate::prometheus::{PrometheusConfig, RawPrometheus};

/// Default of the oldest time, relative to the server's clock, that a reading may have before it is quarantined.
const PAST_MAX: Interval = Interval::from_s(30 * 86_400);
/// The same for times ahead of the clock.
const FUTURE_MAX: Interval = Interval::from_s(86_400);
/// Minimum, maximum and default of the time between group commits.
const COMMIT_EVERY: (Interval, Interval, Interval) =
    (Interval::from_ns(10_000), Interval::from_ms(100), Interval::from_ms(5));
/// Default of the time after which a sensor without stored readings and without new ones is removed.
const FORGET_AFTER: Interval = Interval::from_s(86_400);
pub const STORE_TIME_MIN: Interval = Interval::from_ms(100);
/// Default interval of the certificate check: 2 min.
pub const CERTIFICATES_EVERY: Interval = Interval::from_s(120);
/// Default address of MQTT over TLS: every address, IPv6 and IPv4.
pub const MQTT_TLS_LISTEN: &str = "[::]:8883";
/// Default address of HTTPS.
pub const HTTP_LISTEN: &str = "[::]:8443";

/// Connections reserved for administrators beyond `http.connections_max`.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

/// The smallest `queries_memory_max`, in bytes.
const QUERIES_MEMORY_MIN: u64 = 16 << 20;

/// A checked configuration; every path is absolute or relative to the working directory.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The configuration file and its text; a reload reads the file again.
    pub source: Option<(PathBuf, String)>,
    /// The data directory.
    pub data: PathBuf,
    /// The broker.
    pub mqtt: MqttConfig,
    /// The HTTP API.
    pub http: HttpConfig,
    /// The embedded store, below `data`.
    pub store: StoreConfig,
    /// Other protocols and formats.
    pub interop: InteropConfig,
    /// Answers to Prometheus.
    pub prometheus: PrometheusConfig,
    pub jobs: JobsConfig,
    /// Security files and limits.
    pub security: SecurityConfig,
    pub log: LogLevel,
    /// How often certificate files are checked for changes and expiry.
    pub certificates_every: Duration,
}

#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// `host:port` for MQTT without TLS; passwords and readings are sent in clear text.
    pub listen: Option<String>,
    /// `host:port` for MQTT over TLS.
    pub tls_listen: Option<String>,
    /// Certificate chain of the server, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authority whose client certificates are trusted, PEM.
    pub client_ca: Option<PathBuf>,
    /// Refuse TLS clients without a certificate, even if they have a password.
    pub require_client_cert: bool,
    /// Accept clients with neither certificate nor password; the client identifier is then their identity.
    pub anonymous: bool,
    /// Users and their password hashes.
    pub users: BTreeMap<String, String>,
    /// A file of more users; it is read at the start and when it changes.
    pub password_file: Option<PathBuf>,
    /// For agents that may publish outside their own subtree: the subtrees.
    pub prefixes: BTreeMap<String, Vec<SensorPath>>,
    /// Grants beyond the defaults.
    pub acl: Vec<AclLine>,
    /// Bounds.
    pub limits: MqttLimits,
}

#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// `host:port` for HTTPS; `None` when off.
    pub listen: Option<String>,
    /// Certificate chain of the server, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Hashes of bearer tokens.
    pub tokens_file: PathBuf,
    /// Maximum number of queries at a time; more are answered with 503.
    pub queries_max: usize,
    /// Maximum number of authenticated connections.
    pub connections_max: usize,
    /// Maximum number of connections for each token; administrators are exempt.
    pub connections_per_token_max: usize,
    /// Maximum number of unauthenticated connections.
    pub unauthenticated_max: usize,
    /// How long a connection may remain unauthenticated.
    pub unauthenticated_time_max: Duration,
    /// Maximum number of live streams for each token; administrators are exempt.
    pub watches_per_token_max: usize,
    /// Maximum number of queries for each token; administrators are exempt.
    pub queries_per_token_max: usize,
    /// Maximum memory of all queries together, in bytes; above it queries are answered with 503.
    pub queries_memory_max: u64,
    /// Origins allowed by CORS.
    pub cors_origins: Vec<String>,
}

impl HttpConfig {
    /// The limits on connections.
    pub(crate) fn bounds(&self) -> crate::admission::ConnectionBounds {
        crate::admission::ConnectionBounds {
            unproven_max: self.unauthenticated_max,
            proven_max: self.connections_max,
            identity_max: self.connections_per_token_max,
            privileged_max: ADMIN_CONNECTIONS_MAX,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what needs an administrator.
    Error,
    /// Also what is unusual.
    Warn,
    /// Also starts, stops and connections.
    #[default]
    Info,
    /// And every step.
    Debug,
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        })
    }
}

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];
        let known = all.iter().find(|level| level.to_string() == text);
        known.copied().ok_or_else(|| format!("{text:?} is not a log level; write error, warn, info or debug"))
    }
}

impl LogLevel {
    /// The level as `tracing` names it.
    pub fn filter(self) -> tracing::level_filters::LevelFilter {
        match self {
            LogLevel::Error => tracing::level_filters::LevelFilter::ERROR,
            LogLevel::Warn => tracing::level_filters::LevelFilter::WARN,
            LogLevel::Info => tracing::level_filters::LevelFilter::INFO,
            LogLevel::Debug => tracing::level_filters::LevelFilter::DEBUG,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("cannot read {what} {path}: {error}; {hint}", path = path.display())]
    Read {
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The file's content is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawRoot {
    data: Option<PathBuf>,
    log: LogLevel,
    certificates_every: Option<Interval>,
    mqtt: RawMqtt,
    http: RawHttp,
    store: RawStore,
    interop: RawInterop,
    remote: Vec<RawRemote>,
    prometheus: RawPrometheus,
    jobs: RawJobs,
    security: RawSecurity,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawMqtt {
    listen: Option<String>,
    tls_listen: Option<String>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    require_client_cert: Option<bool>,
    anonymous: bool,
    users: Vec<RawUser>,
    password_file: Option<PathBuf>,
    prefixes: BTreeMap<String, Vec<SensorPath>>,
    acl: Vec<AclLine>,
    readings: RawReadings,
    limits: RawMqttLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUser {
    name: String,
    password_hash: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHttp {
    listen: Option<String>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    tokens_file: Option<PathBuf>,
    queries_max: usize,
    connections_max: usize,
    connections_per_token_max: usize,
    unauthenticated_max: usize,
    unauthenticated_time: Interval,
    watches_per_token_max: usize,
    queries_per_token_max: usize,
    queries_memory_max: ByteSize,
    cors_origins: Vec<String>,
}

impl Default for RawHttp {
    fn default() -> Self {
        Self {
            listen: None,
            cert: None,
            key: None,
            tokens_file: None,
            queries_max: 16,
            connections_max: 1024,
            connections_per_token_max: 256,
            unauthenticated_max: 256,
            unauthenticated_time: Interval::from_s(10),
            watches_per_token_max: 32,
            queries_per_token_max: 8,
            queries_memory_max: ByteSize::mib(2048),
            cors_origins: Vec::new(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawStore {
    seal_after: Option<Interval>,
    seal_bytes: Option<ByteSize>,
    commit_every: Option<Interval>,
    live: Option<Interval>,
    past_max: Option<Interval>,
    future_max: Option<Interval>,
    retention_age: Option<Interval>,
    retention_bytes: Option<ByteSize>,
    derived_bytes: Option<ByteSize>,
    jobs_age: Option<Interval>,
    forget_after: Option<Interval>,
    tiers: Option<Vec<Interval>>,
    #[serde(default, deserialize_with = "crate::retention::rules")]
    retention: Vec<crate::retention::RawRetention>,
}

impl ServerConfig {
    /// Reads and checks a file. Relative paths are relative to the file's directory.
    pub fn load(path: &Path) -> Result<Self, ConfigFileError> {
        let text =
            read(path, "the server's configuration", "write one, or create an installation with `wholegrain init`")?;
        let base = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let config = Self::from_text(&path.display().to_string(), &text, base)?;
        Ok(Self { source: Some((path.to_owned(), text)), ..config })
    }

    /// Checks `text`; `file` is its name in messages, `base` the directory for relative paths.
    pub fn from_text(file: &str, text: &str, base: &Path) -> Result<Self, ConfigFileError> {
        let document = Document::new(file, text);
        let mut raw: RawRoot = document.parse()?;
        let root = document.root();
        let data = base.join(raw.data.unwrap_or_else(|| ".".into()));
        let readings = std::mem::take(&mut raw.mqtt.readings);
        let interop = crate::interop::config::check(readings, raw.interop, raw.remote, &root, base, &data)?;
        let http = http_config(raw.http, &root.child("http"), base)?;
        let mqtt = mqtt_config(raw.mqtt, &root.child("mqtt"), base)?;
        let security = raw.security.check(&root.child("security"), base, &data)?;
        let store = store_config(raw.store, &root.child("store"), data.join("store"))?;
        let prometheus = raw.prometheus.check(&root.child("prometheus"))?;
        let jobs = raw.jobs.check(&root.child("jobs"))?;
        if mqtt.listen.is_none() && mqtt.tls_listen.is_none() && http.listen.is_none() {
            return Err(root
                .error("mqtt", "everything is \"off\"; give mqtt.tls_listen, mqtt.listen or http.listen an address")
                .into());
        }
        let every = raw.certificates_every.unwrap_or(CERTIFICATES_EVERY);
        if !(LIMIT_TIME.0..=LIMIT_TIME.1).contains(&every) {
            let message = format!("is {every}; write {} to {}", LIMIT_TIME.0, LIMIT_TIME.1);
            return Err(root.error("certificates_every", message).into());
        }
        let certificates_every = every.duration();
        Ok(Self {
            source: None,
            data,
            mqtt,
            http,
            store,
            interop,
            prometheus,
            jobs,
            security,
            log: raw.log,
            certificates_every,
        })
    }
}

/// Paths of the files of users, tokens and revoked certificates and of the audit log. Commands that change these files use it: it loads even if the
/// rest of the configuration, or one of the files, is wrong.
#[derive(Debug, Clone)]
pub struct SecurityFiles {
    /// `mqtt.password_file`.
    pub passwords: Option<PathBuf>,
    /// `http.tokens_file`.
    pub tokens: PathBuf,
    /// `security.revoked_file`.
    pub revoked: PathBuf,
    /// The audit log.
    pub audit: AuditConfig,
}

impl SecurityFiles {
    /// Reads the paths from a server.toml.
    pub fn load(path: &Path) -> Result<Self, ConfigFileError> {
        let text = read(path, "the server's configuration", "name it with --server-config FILE")?;
        let base = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let document = Document::new(&path.display().to_string(), &text);
        let raw: RawRoot = document.parse()?;
        let data = base.join(raw.data.unwrap_or_else(|| ".".into()));
        let security = raw.security.check(&document.root().child("security"), base, &data)?;
        Ok(Self {
            passwords: raw.mqtt.password_file.map(|path| base.join(path)),
            tokens: base.join(raw.http.tokens_file.unwrap_or_else(|| "tokens".into())),
            revoked: security.revoked_file,
            audit: security.audit,
        })
    }
}

fn read(path: &Path, what: &'static str, hint: &'static str) -> Result<String, ConfigFileError> {
    std::fs::read_to_string(path).map_err(|error| ConfigFileError::Read { what, path: path.to_owned(), error, hint })
}

/// An address, its default, or `None` for `"off"`.
fn listen(
    section: &Section,
    key: &str,
    given: Option<String>,
    default: Option<&str>,
) -> Result<Option<String>, ConfigError> {
    let text = match given {
        Some(text) => text,
        None => return Ok(default.map(str::to_owned)),
    };
    if text == "off" {
        return Ok(None);
    }
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        let message = format!(
            "{text:?} is not an address; write host:port, such as \"[::]:8883\", \"127.0.0.1:8883\", or \"off\""
        );
        return Err(section.error(key, message));
    }
    Ok(Some(text))
}

fn mqtt_config(raw: RawMqtt, section: &Section, base: &Path) -> Result<MqttConfig, ConfigFileError> {
    let listen_plain = listen(section, "listen", raw.listen, None)?;
    let tls_listen = listen(section, "tls_listen", raw.tls_listen, Some(MQTT_TLS_LISTEN))?;
    let mut users = BTreeMap::new();
    for user in raw.users {
        auth::check_hash(&user.password_hash)
            .map_err(|e| section.error("users", format!("user {:?}: {e}", user.name)))?;
        if users.insert(user.name.clone(), user.password_hash).is_some() {
            return Err(section.error("users", format!("user {:?} is listed twice; keep one", user.name)).into());
        }
    }
    let password_file = raw.password_file.map(|file| base.join(file));
    if let Some(path) = &password_file {
        let text = read(path, "mqtt.password_file", "create it with `wholegrain auth user add`, or remove the key")?;
        auth::parse_password_file(&text)
            .map_err(|e| section.error("password_file", format!("{}: {e}", path.display())))?;
    }
    let has_users = !users.is_empty() || password_file.is_some();
    let client_ca = raw.client_ca.map(|path| base.join(path));
    let require_client_cert = raw.require_client_cert.unwrap_or(false);
    if require_client_cert && client_ca.is_none() {
        return Err(section
            .error("require_client_cert", "needs client_ca, the authority that signs the clients' certificates")
            .into());
    }
    if tls_listen.is_some() && client_ca.is_none() && !has_users && !raw.anonymous {
        let message = "no client could connect; set client_ca (certificates), users or password_file (passwords), or anonymous = true";
        return Err(section.error("tls_listen", message).into());
    }
    if listen_plain.is_some() && !has_users && !raw.anonymous {
        return Err(section
            .error("listen", "no client could connect without TLS; set users or password_file, or anonymous = true")
            .into());
    }
    access::check(&raw.acl, raw.anonymous, section)?;
    Ok(MqttConfig {
        listen: listen_plain,
        tls_listen,
        cert: base.join(raw.cert.unwrap_or_else(|| "server.pem".into())),
        key: base.join(raw.key.unwrap_or_else(|| "server.key".into())),
        client_ca,
        require_client_cert,
        anonymous: raw.anonymous,
        users,
        password_file,
        prefixes: raw.prefixes,
        acl: raw.acl,
        limits: raw.limits.check(&section.child("limits"))?,
    })
}

fn http_config(raw: RawHttp, section: &Section, base: &Path) -> Result<HttpConfig, ConfigError> {
    for (key, value) in [
        ("queries_max", raw.queries_max),
        ("connections_max", raw.connections_max),
        ("connections_per_token_max", raw.connections_per_token_max),
        ("unauthenticated_max", raw.unauthenticated_max),
        ("watches_per_token_max", raw.watches_per_token_max),
        ("queries_per_token_max", raw.queries_per_token_max),
    ] {
        if value == 0 {
            return Err(section.error(key, "is 0; write at least 1"));
        }
    }
    if raw.queries_memory_max.0 < QUERIES_MEMORY_MIN {
        return Err(section.error("queries_memory_max", "is below 16MiB, which small queries need"));
    }
    if let Some(wrong) = raw.cors_origins.iter().find_map(|origin| wrong_origin(origin)) {
        return Err(section.error("cors_origins", wrong));
    }
    if !(LIMIT_TIME.0..=LIMIT_TIME.1).contains(&raw.unauthenticated_time) {
        let message = format!("is {}; write {} to {}", raw.unauthenticated_time, LIMIT_TIME.0, LIMIT_TIME.1);
        return Err(section.error("unauthenticated_time", message));
    }
    Ok(HttpConfig {
        listen: listen(section, "listen", raw.listen, Some(HTTP_LISTEN))?,
        cert: base.join(raw.cert.unwrap_or_else(|| "server.pem".into())),
        key: base.join(raw.key.unwrap_or_else(|| "server.key".into())),
        tokens_file: base.join(raw.tokens_file.unwrap_or_else(|| "tokens".into())),
        queries_max: raw.queries_max,
        connections_max: raw.connections_max,
        connections_per_token_max: raw.connections_per_token_max,
        unauthenticated_max: raw.unauthenticated_max,
        unauthenticated_time_max: raw.unauthenticated_time.duration(),
        watches_per_token_max: raw.watches_per_token_max,
        queries_per_token_max: raw.queries_per_token_max,
        queries_memory_max: raw.queries_memory_max.0,
        cors_origins: raw.cors_origins,
    })
}

fn store_config(raw: RawStore, section: &Section, dir: PathBuf) -> Result<StoreConfig, ConfigError> {
    let mut config = StoreConfig { dir, ..StoreConfig::default() };
    for (key, value) in [
        ("seal_after", raw.seal_after),
        ("live", raw.live),
        ("past_max", raw.past_max),
        ("future_max", raw.future_max),
        ("retention_age", raw.retention_age),
        ("jobs_age", raw.jobs_age),
        ("forget_after", raw.forget_after),
    ] {
        if value.is_some_and(|v| v < STORE_TIME_MIN) {
            return Err(section.error(key, "is shorter than 100ms; write a length of time such as \"60s\" or \"30d\""));
        }
    }
    if let Some(value) = raw.seal_after {
        config.seal_after = value;
    }
    if let Some(value) = raw.seal_bytes {
        config.seal_bytes = value;
    }
    if let Some(value) = raw.live {
        config.live = value;
    }
    let commit_every = raw.commit_every.unwrap_or(COMMIT_EVERY.2);
    if !(COMMIT_EVERY.0..=COMMIT_EVERY.1).contains(&commit_every) {
        let message = format!("is {commit_every}; write {} to {}", COMMIT_EVERY.0, COMMIT_EVERY.1);
        return Err(section.error("commit_every", message));
    }
    config.commit_every = commit_every.duration();
    config.past_max = Some(raw.past_max.unwrap_or(PAST_MAX));
    config.future_max = Some(raw.future_max.unwrap_or(FUTURE_MAX));
    config.retention_age = raw.retention_age;
    config.jobs_age = raw.jobs_age;
    config.forget_after = Some(raw.forget_after.unwrap_or(FORGET_AFTER));
    config.retention_bytes = raw.retention_bytes;
    config.derived_bytes = raw.derived_bytes.unwrap_or(config.derived_bytes);
    crate::retention::apply(&mut config, raw.tiers, raw.retention, section)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CA: &str = "client_ca = \"../ca.pem\"\n";

    fn load(text: &str) -> Result<ServerConfig, ConfigFileError> {
        ServerConfig::from_text("server.toml", text, Path::new("/etc/wholegrain"))
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let error = load(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
    }

    #[test]
    fn defaults_are_safe_and_paths_count_from_the_file() {
        let config = load(&format!("[mqtt]\n{CA}")).unwrap();
        assert_eq!(config.mqtt.listen, None, "no cleartext unless asked for");
        assert_eq!(config.mqtt.tls_listen.as_deref(), Some(MQTT_TLS_LISTEN));
        assert_eq!(config.http.listen.as_deref(), Some(HTTP_LISTEN));
        assert_eq!(config.mqtt.client_ca, Some(PathBuf::from("/etc/wholegrain/../ca.pem")));
        assert_eq!(config.mqtt.cert, PathBuf::from("/etc/wholegrain/server.pem"));
        assert_eq!(config.store.dir, PathBuf::from("/etc/wholegrain/./store"));
        assert!(!config.mqtt.anonymous);
        assert_eq!(config.log, LogLevel::Info);
    }

    #[test]
    fn tiers_and_retention() {
        let text = format!(
            "[mqtt]\n{CA}[store]\ntiers = [\"10s\", \"1h\"]\n[[store.retention]]\npattern = \"/lrz/**/core/**\"\nraw = \"30d\"\n\
             tiers = {{ \"10s\" = \"90d\", \"1h\" = \"forever\" }}\n[[store.retention]]\npattern = \"/**\"\n"
        );
        let store = load(&text).unwrap().store;
        assert_eq!(store.tiers, [Interval::from_s(10), Interval::from_s(3600)]);
        assert_eq!(store.retention.len(), 2);
        assert_eq!(store.retention[0].raw, Some(Interval::from_s(30 * 86_400)));
        assert_eq!(store.retention[0].tiers.len(), 2);
        assert_eq!(store.retention[1].raw, None, "without raw: forever");
        assert_eq!(load(&format!("[mqtt]\n{CA}[store]\ntiers = []\n")).unwrap().store.tiers, []);
        let store = |text: &str| load(&format!("[mqtt]\n{CA}[store]\n{text}")).unwrap_err().to_string();
        let rule = |text: &str| store(&format!("[[store.retention]]\npattern = \"/**\"\n{text}\n"));
        for (found, expected) in [
            (store("tiers = [\"10s\", \"15s\"]\n"), "multiple of the one before"),
            (store("tiers = [\"1h\", \"10s\"]\n"), "multiple of the one before"),
            (rule("raw = \"0s\""), "is not a retention"),
            (rule("raw = \"long\""), "forever"),
            (rule("tiers = { \"7s\" = \"1d\" }"), "there is no tier 7s"),
            (store("[[store.retention]]\npattern = \"a//b\"\n"), "pattern"),
            (store("retention = \"3d\"\n"), "`retention_age`"),
        ] {
            assert!(found.contains(expected), "{found:?} does not say {expected:?}");
        }
    }

    #[test]
    fn the_packaged_example_is_valid() {
        let text = include_str!("../../packaging/server.toml");
        let config = ServerConfig::from_text("packaging/server.toml", text, Path::new("/etc/wholegrain")).unwrap();
        assert_eq!(config.data, PathBuf::from("/var/lib/wholegrain"));
        // Each key that the example shows commented out is valid too.
        let all: String = text.lines().map(|l| l.strip_prefix("#: ").unwrap_or(l)).flat_map(|l| [l, "\n"]).collect();
        ServerConfig::from_text("packaging/server.toml", &all, Path::new("/etc/wholegrain")).unwrap();
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        refused("[mqtt]\nlistenn = \"off\"", "server.toml:2:1: unknown key `listenn`; did you mean `listen`?");
        refused(
            "[mqtt.limits]\nconections_max = 5",
            "server.toml:2:1: unknown key `conections_max`; did you mean `connections_max`?",
        );
        refused("[mqtt]\ntls_listen = \"8883\"", "server.toml:2:1: \"8883\" is not an address; write host:port");
        refused("[mqtt]\ntls_listen = \":8883\"", "server.toml:2:1: \":8883\" is not an address");
        refused("[mqtt]\ntls_listen = \"h:99999\"", "server.toml:2:1: \"h:99999\" is not an address");
        refused("[mqtt]\nrequire_client_cert = true", "server.toml:2:1: needs client_ca");
        refused("[mqtt]\ntls_listen = \"[::]:1\"", "server.toml:2:1: no client could connect");
        refused(&format!("[mqtt]\nlisten = \"[::]:1\"\n{CA}"), "server.toml:2:1: no client could connect without TLS");
        refused(
            "[mqtt]\n[[mqtt.users]]\nname = \"n1\"\npassword_hash = \"secret\"",
            "server.toml:2:8: user \"n1\": not a password hash",
        );
        refused(&format!("[mqtt]\n{CA}[mqtt.limits]\ninflight_max = 0"), "server.toml:4:1: is 0; write 1 to 65535");
        refused(
            &format!("[mqtt]\n{CA}[mqtt.limits]\npacket_time_max = \"5ms\""),
            "server.toml:4:1: is 5ms; write 100ms to 1h",
        );
        refused("log = \"inof\"", "server.toml:1:7: unknown value `inof`; did you mean `info`?");
        refused(&format!("[mqtt]\n{CA}[store]\nlive = \"5ms\""), "server.toml:4:1: is shorter than 100ms");
        refused(&format!("[mqtt]\n{CA}[http]\nqueries_max = 0"), "server.toml:4:1: is 0; write at least 1");
        refused(
            &format!("[mqtt]\n{CA}tls_listen=\"off\"\n[http]\nlisten=\"off\""),
            "server.toml:1:2: everything is \"off\"",
        );
        refused("[mqtt]\npassword_file = \"/nonexistent/users\"", "cannot read mqtt.password_file /nonexistent/users");
        refused("[mqtt.prefixes]\nn1 = [\"lrz\"]", "server.toml:2:6: sensor name \"lrz\" must begin with `/`");
    }
}
