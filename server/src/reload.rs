//! Reading the configuration and the certificates again while the server runs.
//!
//! - In: SIGHUP, a request of the API, the clock. Out: settings in force, a log line that says which, metrics of certificates.
//! - Never: a connection that ends of it; half a configuration: a file with an error changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use wholegrain_model::config::Document;

use crate::access::Security;
use crate::admission::{Gate, Shares};
use crate::broker::Broker;
use crate::certificates::{Certificate, EXPIRY_WARNING_S, Look, Tls, TlsFiles};
use crate::config::ServerConfig;
use crate::http::TokenPlaces;
use crate::log::LogControl;
use crate::memory::QueryMemory;
use crate::metrics::Text;

/// Settings that come into force at a reload: these keys and all below them. Every other one needs a restart.
const RELOADED: &[&str] = &[
    "log",
    "certificates_every",
    "mqtt.cert",
    "mqtt.key",
    "mqtt.client_ca",
    "mqtt.require_client_cert",
    "mqtt.anonymous",
    "mqtt.users",
    "mqtt.password_file",
    "mqtt.prefixes",
    "mqtt.acl",
    "mqtt.limits",
    "http.cert",
    "http.key",
    "http.tokens_file",
    "http.queries_max",
    "http.queries_per_token_max",
    "http.queries_memory_max",
    "http.connections_max",
    "http.connections_per_token_max",
    "http.unauthenticated_max",
    "http.watches_per_token_max",
    "security.login_failures_free",
    "security.login_source_failures_free",
    "security.login_delay",
    "security.login_delay_max",
    "security.revoked_file",
];

/// But for these of them, whose bounds were given away at the start.
const RESTARTED: &[&str] = &[
    "mqtt.limits.queue_messages_max",
    "mqtt.limits.queue_bytes_max",
    "mqtt.limits.queue_total_bytes_max",
    "mqtt.limits.sessions_kept_max",
];

/// How often a certificate that ends soon is warned of: once a day.
const WARN_EVERY_S: i64 = 86_400;

/// What a reload did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Reloaded {
    /// Settings that were changed, and files of certificates that were.
    pub changed: Vec<String>,
    /// Settings of the file that differ from those in force until the server is started anew.
    pub needs_restart: Vec<String>,
}

/// The parts of the server that a reload changes.
pub(crate) struct Parts {
    pub broker: Arc<Broker>,
    pub mqtt_tls: Option<Tls>,
    pub http_tls: Option<Tls>,
    pub http_gate: Arc<Gate>,
}

/// Reads again, checks, and puts in force.
pub(crate) struct Reloader {
    parts: Parts,
    queries: Arc<TokenPlaces>,
    watches: Arc<Shares>,
    memory: Arc<QueryMemory>,
    log: LogControl,
    file: Option<PathBuf>,
    /// What the file said when the server started: what needs a restart is compared with it.
    started: BTreeMap<String, Value>,
    state: Mutex<State>,
}

struct State {
    config: ServerConfig,
    said: BTreeMap<String, Value>,
    /// When each certificate was last warned of, seconds since the Unix epoch.
    warned: BTreeMap<PathBuf, i64>,
}

impl Reloader {
    /// For a server that runs with `config`.
    pub fn new(config: &ServerConfig, parts: Parts) -> Self {
        let said = config.source.as_ref().map(|(_, text)| leaves(text)).unwrap_or_default();
        let memory = QueryMemory::new(config.http.queries_memory_max);
        Self {
            parts,
            queries: Arc::new(
                TokenPlaces::new("queries", config.http.queries_max, config.http.queries_per_token_max)
                    .within(memory.clone()),
            ),
            memory,
            watches: Shares::new(config.http.watches_per_token_max),
            log: LogControl::new(config.log),
            file: config.source.as_ref().map(|(file, _)| file.clone()),
            started: said.clone(),
            state: Mutex::new(State { config: config.clone(), said, warned: BTreeMap::new() }),
        }
    }

    /// The places for queries, whose number is a setting.
    pub fn queries(&self) -> Arc<TokenPlaces> {
        self.queries.clone()
    }

    /// How many live streams each token may have, which is a setting too.
    pub fn watches(&self) -> Arc<Shares> {
        self.watches.clone()
    }

    /// Who may connect over HTTPS.
    pub fn http_gate(&self) -> &Gate {
        &self.parts.http_gate
    }

    /// The level of the log.
    pub fn log(&self) -> &LogControl {
        &self.log
    }

    /// Reads everything again. Blocks on the disk; called on a thread of the runtime. An error names the file, and the line
    /// where there is one; then nothing has changed.
    pub fn reload(&self) -> Result<Reloaded, String> {
        let result = self.try_reload();
        match &result {
            Ok(Reloaded { changed, needs_restart }) => {
                match changed.as_slice() {
                    [] => tracing::info!("reloaded: nothing has changed"),
                    _ => tracing::info!("reloaded: {}", changed.join(", ")),
                }
                if !needs_restart.is_empty() {
                    tracing::warn!("not in force until the server is started anew: {}", needs_restart.join(", "));
                }
            }
            Err(error) => tracing::error!("not reloaded, everything stays as it is: {error}"),
        }
        result
    }

    fn try_reload(&self) -> Result<Reloaded, String> {
        let Some(file) = &self.file else {
            return Err("this server was started without a configuration file; there is nothing to read again".into());
        };
        let mut state = self.state();
        // First everything is read and checked …
        let config = ServerConfig::load(file).map_err(|error| error.to_string())?;
        Security::check(&config).map_err(|error| error.to_string())?;
        let mut tls = Vec::new();
        for (current, files) in [
            (&self.parts.mqtt_tls, TlsFiles::of_mqtt(&config.mqtt)),
            (&self.parts.http_tls, TlsFiles::of_http(&config.http)),
        ] {
            if let Some(current) = current {
                let fingerprint = files.fingerprint();
                tls.push((current, fingerprint, files.load().map_err(|error| error.to_string())?, files));
            }
        }
        // … then nothing below can fail.
        let said = config.source.as_ref().map(|(_, text)| leaves(text)).unwrap_or_default();
        let mut done = Reloaded {
            changed: differences(&state.said, &said).filter(|key| is_reloaded(key)).collect(),
            needs_restart: differences(&self.started, &said).filter(|key| !is_reloaded(key)).collect(),
        };
        for (current, fingerprint, new, files) in tls {
            let (section, cert) = (files.section, files.cert.clone());
            if current.replace(files, fingerprint, new) {
                done.changed.push(format!("TLS of [{section}] with {}", described(&cert)));
            }
        }
        self.log.configure(config.log);
        self.parts.broker.reload(&config.mqtt);
        // A file that went wrong since it was checked: what was read before counts, and it is looked at again in a second.
        match self.parts.broker.security.reload(&config) {
            Ok(gone) => self.parts.broker.end_connections(&gone),
            Err(error) => tracing::error!("{error}; those read before still count"),
        }
        self.queries.set(config.http.queries_max, config.http.queries_per_token_max);
        self.memory.set(config.http.queries_memory_max);
        self.watches.set(config.http.watches_per_token_max);
        self.parts.http_gate.set_bounds(config.http.bounds());
        (state.config, state.said) = (config, said);
        drop(state);
        self.warn_of_expiry();
        Ok(done)
    }

    /// How long to wait between two looks at the certificates.
    pub fn certificates_every(&self) -> Duration {
        self.state().config.certificates_every
    }

    /// Takes up certificates that changed, and warns of those that end soon. Blocks on the disk.
    pub fn look_at_certificates(&self) {
        for tls in [&self.parts.mqtt_tls, &self.parts.http_tls].into_iter().flatten() {
            let files = tls.files();
            match tls.look() {
                Look::Same => {}
                Look::Changed => {
                    tracing::info!("TLS of [{}] changed: {}", files.section, described(&files.cert));
                }
                Look::Wrong(error) => tracing::error!(
                    "the files of the TLS of [{}] have changed, but cannot be used; those before stay in force: {error}",
                    files.section
                ),
            }
        }
        self.warn_of_expiry();
    }

    fn warn_of_expiry(&self) {
        let now = now_s();
        for (_, certificate) in self.certificates() {
            let days = certificate.days_left(now);
            let shown = certificate.file.display();
            let mut state = self.state();
            if certificate.not_after - now > EXPIRY_WARNING_S {
                state.warned.remove(&certificate.file);
                continue;
            }
            let due = state.warned.get(&certificate.file).is_none_or(|at| now - at >= WARN_EVERY_S);
            if due {
                state.warned.insert(certificate.file.clone(), now);
                if now > certificate.not_after {
                    tracing::error!(
                        "certificate {shown} has expired {} days ago; clients refuse it: make a new one",
                        -days
                    );
                } else {
                    tracing::warn!(
                        "certificate {shown} expires in {days} days; make a new one, it comes into force by itself"
                    );
                }
            }
        }
    }

    /// The certificates in use: what for, and what they say. One file that is used twice is there twice.
    fn certificates(&self) -> Vec<(&'static str, Certificate)> {
        let mut found = Vec::new();
        for (tls, purpose) in [(&self.parts.mqtt_tls, "mqtt"), (&self.parts.http_tls, "http")] {
            let Some(tls) = tls else { continue };
            let files = tls.files();
            found.extend(Certificate::read(&files.cert).ok().map(|certificate| (purpose, certificate)));
            if let Some((ca, _)) = &files.client_ca {
                found.extend(Certificate::read(ca).ok().map(|certificate| ("client_ca", certificate)));
            }
        }
        found
    }

    /// When the certificates end.
    pub fn render(&self, text: &mut Text) {
        const NAME: &str = "certificate_expiry_timestamp_seconds";
        text.head(NAME, "When the certificate in a file ends, in seconds since the Unix epoch.", "gauge");
        for (purpose, certificate) in self.certificates() {
            let file = certificate.file.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
            text.line(NAME, &format!("{{use=\"{purpose}\",file=\"{file}\"}}"), certificate.not_after);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn described(cert: &std::path::Path) -> String {
    match Certificate::read(cert) {
        Ok(certificate) => format!(
            "certificate {} number {}, valid for another {} days",
            cert.display(),
            certificate.serial,
            certificate.days_left(now_s())
        ),
        Err(error) => error,
    }
}

/// Every setting of a file that was read before, by its dotted name; lists are one value.
fn leaves(text: &str) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    if let Ok(value) = Document::new("", text).parse::<Value>() {
        collect("", value, &mut leaves);
    }
    leaves
}

fn collect(name: &str, value: Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) => table.into_iter().for_each(|(key, value)| {
            collect(&if name.is_empty() { key } else { format!("{name}.{key}") }, value, leaves);
        }),
        value => drop(leaves.insert(name.to_owned(), value)),
    }
}

/// The names of what is in one only, or differs.
fn differences(a: &BTreeMap<String, Value>, b: &BTreeMap<String, Value>) -> impl Iterator<Item = String> {
    let names: BTreeSet<String> = a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).cloned().collect();
    names.into_iter()
}

fn is_reloaded(key: &str) -> bool {
    !RESTARTED.contains(&key)
        && RELOADED
            .iter()
            .any(|known| key.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_compared_by_name() {
        let before = leaves(
            "log = \"info\"\n[mqtt]\nlisten = \"h:1\"\n[mqtt.limits]\ninflight_max = 3\n[[mqtt.users]]\nname = \"a\"",
        );
        let after = leaves(
            "[mqtt]\nlisten = \"h:1\"\n[mqtt.limits]\ninflight_max = 4\n[[mqtt.users]]\nname = \"b\"\n[store]\nlive=\"1s\"",
        );
        let found: Vec<String> = differences(&before, &after).collect();
        assert_eq!(found, ["log", "mqtt.limits.inflight_max", "mqtt.users", "store.live"]);
        let reloaded: Vec<bool> = found.iter().map(|key| is_reloaded(key)).collect();
        assert_eq!(reloaded, [true, true, true, false]);
        assert!(!is_reloaded("logs") && !is_reloaded("mqtt") && is_reloaded("mqtt.prefixes.n1"));
        assert!(!is_reloaded("mqtt.limits.queue_bytes_max"));
        assert_eq!(differences(&after, &after).count(), 0);
    }

    #[test]
    fn every_reloaded_setting_is_documented() {
        let text = include_str!("../../packaging/server.toml");
        let all: String = text.lines().map(|l| l.strip_prefix("#: ").unwrap_or(l)).flat_map(|l| [l, "\n"]).collect();
        let known = leaves(&all);
        for key in RELOADED.iter().chain(RESTARTED) {
            assert!(known.keys().any(|name| name == key || name.starts_with(&format!("{key}."))), "{key}");
        }
    }
}
