//! Reads `server.toml`, applies defaults, and reports errors with file, line and the nearest key.

mod cassandra;
mod http;
mod retention;
mod store;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use wholegrain_model::config::Document;
use wholegrain_model::{Interval, LogLevel};
use wholegrain_store::StoreConfig;

use crate::access::{AccessConfig, AuditConfig, RawSecurity, SecurityConfig, SecuritySettings};
use crate::broker::config::RawMqtt;
pub use crate::broker::config::{MQTT_TLS_LISTEN, MqttConfig, MqttLimits};
use crate::interop::InteropConfig;
use crate::interop::config::{RawInterop, RawRemote};
use crate::jobs::config::{JobsConfig, RawJobs};
use crate::prometheus::config::{PrometheusConfig, RawPrometheus};
pub use crate::settings::ConfigFileError;
use crate::settings::{ChangeMode, LIMIT_TIME, Settings, read, settings};
pub use cassandra::CassandraSettings;
use http::RawHttp;
pub use http::{HTTP_LISTEN, HttpConfig};
use store::RawStore;

/// Default interval of the certificate check: 2 min.
pub const CERTIFICATES_EVERY: Interval = Interval::from_s(120);
/// A checked configuration; every path is absolute or relative to the working directory.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The configuration file and its text; a reload reads the file again.
    pub source: Option<(PathBuf, String)>,
    pub data: PathBuf,
    pub mqtt: MqttConfig,
    pub http: HttpConfig,
    /// The embedded store, below `data`.
    pub store: StoreConfig,
    /// Where sealed readings go, if not into the embedded store.
    pub cassandra: Option<CassandraSettings>,
    /// Other protocols and formats.
    pub interop: InteropConfig,
    pub prometheus: PrometheusConfig,
    pub jobs: JobsConfig,
    /// Security files and limits.
    pub security: SecurityConfig,
    pub log: LogLevel,
    /// How often certificate files are checked for changes and expiry.
    pub certificates_every: Duration,
}

settings! {
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    struct RawRoot {
        data: Option<PathBuf> = restart,
        log: LogLevel = reload,
        certificates_every: Option<Interval> = reload,
        mqtt: RawMqtt = section,
        http: RawHttp = section,
        store: RawStore = restart,
        interop: RawInterop = restart,
        remote: Vec<RawRemote> = restart,
        prometheus: RawPrometheus = restart,
        jobs: RawJobs = restart,
        security: RawSecurity = section,
    }
}

/// The names of all settings, and whether a reload applies a change.
pub(crate) fn setting_names() -> Vec<(String, ChangeMode)> {
    let mut names = Vec::new();
    RawRoot::add_names("", &mut names);
    names
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
        let devices = std::mem::take(&mut raw.mqtt.device);
        let interop = crate::interop::config::check(readings, devices, raw.interop, raw.remote, &root, base, &data)?;
        let http = raw.http.check(&root.child("http"), base)?;
        let mqtt = raw.mqtt.check(&root.child("mqtt"), base)?;
        let security = raw.security.check(&root.child("security"), base, &data)?;
        let cassandra = raw.store.check_cassandra(&root.child("store"), base)?;
        let store = raw.store.check(&root.child("store"), data.join("store"))?;
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
            cassandra,
            interop,
            prometheus,
            jobs,
            security,
            log: raw.log,
            certificates_every,
        })
    }

    /// The settings of authentication and authorization, from several sections.
    pub fn security_settings(&self) -> SecuritySettings {
        let MqttConfig { anonymous, prefixes, acl, users, password_file, .. } = &self.mqtt;
        SecuritySettings {
            access: AccessConfig { anonymous: *anonymous, prefixes: prefixes.clone(), acl: acl.clone() },
            users: users.clone(),
            password_file: password_file.clone(),
            tokens_file: self.http.listen.as_ref().map(|_| self.http.tokens_file.clone()),
            security: self.security.clone(),
        }
    }
}

/// Paths of the files of users, tokens and revoked certificates and of the audit log. Commands that change these files use it: it loads even if the
/// rest of the configuration, or one of the files, is wrong.
#[derive(Debug, Clone)]
pub struct SecurityFiles {
    pub passwords: Option<PathBuf>,
    pub tokens: PathBuf,
    pub revoked: PathBuf,
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
        assert_eq!(config.mqtt.listen, None, "TLS only by default");
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
        // So is the store in Cassandra, which excludes some of these keys.
        let cassandra: String =
            text.lines().filter_map(|line| line.strip_prefix("#   ")).flat_map(|line| [line, "\n"]).collect();
        let of_cassandra = format!("[http]\nlisten = \"off\"\n[mqtt]\n{CA}[store]\n{cassandra}");
        let config = ServerConfig::from_text("server.toml", &of_cassandra, Path::new("/etc/wholegrain")).unwrap();
        let settings = config.cassandra.unwrap();
        assert_eq!((&*settings.keyspace, config.store.hands_over), ("wholegrain", true));
        assert_eq!(settings.options.replication, [("dc1".to_owned(), 3)]);
    }

    #[test]
    fn mistakes_of_a_store_in_cassandra() {
        let store = |rest: &str| format!("[mqtt]\n{CA}[store]\nkind = \"cassandra\"\n{rest}");
        refused(&store(""), "server.toml:1:1: names no node of Cassandra; write contact_points");
        refused(&store("retention_bytes = \"1GiB\""), "server.toml:5:1: bounds an embedded store");
        refused(
            &store("[store.cassandra]\ncontact_points = [\"h\"]\nkeyspace = \"Hall\""),
            "server.toml:7:1: keyspace = \"Hall\"",
        );
        refused(
            &store("[store.cassandra]\ncontact_points = [\"h\"]\nuser = \"u\""),
            "server.toml:7:1: needs password_file",
        );
        refused(
            &format!("[mqtt]\n{CA}[store]\n[store.cassandra]\ncontact_points = [\"h\"]"),
            "server.toml:4:8: is of a store in Cassandra; write kind = \"cassandra\"",
        );
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
