//! Reloads the configuration and certificates while the server runs.
//!
//! - Input: SIGHUP, a request of the API, the clock. Output: settings in force, a log line that lists them, metrics of certificates.
//! - Never: a connection closed by a reload; a part of a configuration: a file with an error changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use wholegrain_api::ReloadResult;
use wholegrain_model::config::Document;

use crate::access::Security;
use crate::admission::{ConnectionAdmission, IdentityQuotas};
use crate::broker::Broker;
use crate::certificates::{CertificateFile, EXPIRY_WARNING_S, ReloadableTls, TlsCheck};
use crate::config::{ServerConfig, setting_names};
use crate::log::LogControl;
use crate::memory::QueryMemory;
use crate::metrics::MetricsText;
use crate::settings::ChangeMode;
use crate::token_permits::TokenPermits;

/// How often the server warns of a certificate that expires soon, in seconds.
const WARN_EVERY_S: i64 = 86_400;

/// The parts of the server that a reload changes.
pub(crate) struct ReloadTargets {
    pub broker: Arc<Broker>,
    pub mqtt_tls: Option<ReloadableTls>,
    pub http_tls: Option<ReloadableTls>,
    pub http_admission: Arc<ConnectionAdmission>,
}

/// Reads, checks and applies the configuration.
pub(crate) struct Reloader {
    parts: ReloadTargets,
    queries: Arc<TokenPermits>,
    watches: Arc<IdentityQuotas>,
    memory: Arc<QueryMemory>,
    log: LogControl,
    file: Option<PathBuf>,
    /// The file's settings when the server started; those that need a restart are compared with them.
    started: BTreeMap<String, Value>,
    state: Mutex<ReloadState>,
}

struct ReloadState {
    config: ServerConfig,
    said: BTreeMap<String, Value>,
    /// When the server last warned of each certificate, seconds since the Unix epoch.
    warned: BTreeMap<PathBuf, i64>,
}

impl Reloader {
    pub fn new(config: &ServerConfig, parts: ReloadTargets) -> Self {
        let said = config.source.as_ref().map(|(_, text)| leaves(text)).unwrap_or_default();
        let memory = QueryMemory::new(config.http.queries_memory_max);
        Self {
            parts,
            queries: Arc::new(
                TokenPermits::new("queries", config.http.queries_max, config.http.queries_per_token_max)
                    .within(memory.clone()),
            ),
            memory,
            watches: IdentityQuotas::new(config.http.watches_per_token_max),
            log: LogControl::new(config.log),
            file: config.source.as_ref().map(|(file, _)| file.clone()),
            started: said.clone(),
            state: Mutex::new(ReloadState { config: config.clone(), said, warned: BTreeMap::new() }),
        }
    }

    /// Permits for queries; their number is a setting.
    pub fn queries(&self) -> Arc<TokenPermits> {
        self.queries.clone()
    }

    /// Quotas of live streams for each token; the quota is a setting.
    pub fn watches(&self) -> Arc<IdentityQuotas> {
        self.watches.clone()
    }

    /// Admission of HTTPS connections.
    pub fn http_admission(&self) -> &ConnectionAdmission {
        &self.parts.http_admission
    }

    pub fn log(&self) -> &LogControl {
        &self.log
    }

    /// Reads everything again. Blocks on the disk; call it on a thread of the runtime. An error names the file and, if known, the line; nothing has
    /// changed then.
    pub fn reload(&self) -> Result<ReloadResult, String> {
        let result = self.try_reload();
        match &result {
            Ok(ReloadResult { changed, needs_restart }) => {
                match changed.as_slice() {
                    [] => tracing::info!("reloaded the configuration: nothing has changed"),
                    _ => tracing::info!("reloaded: {}", changed.join(", ")),
                }
                if !needs_restart.is_empty() {
                    tracing::warn!("restart the server to apply these settings: {}", needs_restart.join(", "));
                }
            }
            Err(error) => tracing::error!("cannot reload the configuration, nothing has changed: {error}"),
        }
        result
    }

    fn try_reload(&self) -> Result<ReloadResult, String> {
        let Some(file) = &self.file else {
            return Err("this server was started without a configuration file; there is nothing to reload".into());
        };
        let mut state = self.state();
        // First read and check everything …
        let config = ServerConfig::load(file).map_err(|error| error.to_string())?;
        Security::check(&config.security_settings()).map_err(|error| error.to_string())?;
        let mut tls = Vec::new();
        for (current, files) in
            [(&self.parts.mqtt_tls, config.mqtt.tls_files()), (&self.parts.http_tls, config.http.tls_files())]
        {
            if let Some(current) = current {
                let fingerprint = files.fingerprint();
                tls.push((current, fingerprint, files.load().map_err(|error| error.to_string())?, files));
            }
        }
        // … then nothing below can fail.
        let said = config.source.as_ref().map(|(_, text)| leaves(text)).unwrap_or_default();
        let mut done = ReloadResult {
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
        // A file became invalid after the check: its previous content stays in force, and it is read again within a second.
        match self.parts.broker.security.reload(&config.security_settings()) {
            Ok(gone) => self.parts.broker.end_connections(&gone),
            Err(error) => tracing::error!("{error}; the previous content stays in force"),
        }
        self.queries.set(config.http.queries_max, config.http.queries_per_token_max);
        self.memory.set(config.http.queries_memory_max);
        self.watches.set(config.http.watches_per_token_max);
        self.parts.http_admission.set_bounds(config.http.bounds());
        (state.config, state.said) = (config, said);
        drop(state);
        self.warn_of_expiry();
        Ok(done)
    }

    /// The interval of certificate checks.
    pub fn certificates_every(&self) -> Duration {
        self.state().config.certificates_every
    }

    /// Reloads changed certificates and warns of those that expire soon. Blocks on the disk.
    pub fn look_at_certificates(&self) {
        for tls in [&self.parts.mqtt_tls, &self.parts.http_tls].into_iter().flatten() {
            let files = tls.files();
            match tls.look() {
                TlsCheck::Same => {}
                TlsCheck::Changed => {
                    tracing::info!("TLS of [{}] changed: {}", files.section, described(&files.cert));
                }
                TlsCheck::Wrong(error) => tracing::error!(
                    "cannot use the changed TLS files of [{}]; the previous ones stay in force: {error}",
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
                        "certificate {shown} has expired {} days ago; clients refuse it; renew it with `wholegrain ca renew`",
                        -days
                    );
                } else {
                    tracing::warn!(
                        "certificate {shown} expires in {days} days; renew it with `wholegrain ca renew`; the server reloads it by itself"
                    );
                }
            }
        }
    }

    /// The certificates in use and their purposes. A file that is used twice is listed twice.
    fn certificates(&self) -> Vec<(&'static str, CertificateFile)> {
        let mut found = Vec::new();
        for (tls, purpose) in [(&self.parts.mqtt_tls, "mqtt"), (&self.parts.http_tls, "http")] {
            let Some(tls) = tls else { continue };
            let files = tls.files();
            found.extend(CertificateFile::read(&files.cert).ok().map(|certificate| (purpose, certificate)));
            if let Some((ca, _)) = &files.client_ca {
                found.extend(CertificateFile::read(ca).ok().map(|certificate| ("client_ca", certificate)));
            }
        }
        found
    }

    /// Writes the metrics of certificate expiry.
    pub fn render(&self, text: &mut MetricsText) {
        const NAME: &str = "certificate_expiry_timestamp_seconds";
        text.head(NAME, "End of the certificate's validity, in seconds since the Unix epoch.", "gauge");
        for (purpose, certificate) in self.certificates() {
            let file = certificate.file.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
            text.line(NAME, &format!("{{use=\"{purpose}\",file=\"{file}\"}}"), certificate.not_after);
        }
    }

    fn state(&self) -> MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn described(cert: &std::path::Path) -> String {
    match CertificateFile::read(cert) {
        Ok(certificate) => format!(
            "certificate {} number {}, valid for another {} days",
            cert.display(),
            certificate.serial,
            certificate.days_left(now_s())
        ),
        Err(error) => error,
    }
}

/// Every setting of a valid file by its dotted name; a list is one value.
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

/// The names of settings that differ or are in one map only.
fn differences(a: &BTreeMap<String, Value>, b: &BTreeMap<String, Value>) -> impl Iterator<Item = String> {
    let names: BTreeSet<String> = a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).cloned().collect();
    names.into_iter()
}

/// Whether a reload applies a change of this setting, or of a value within it.
fn is_reloaded(key: &str) -> bool {
    setting_names().into_iter().any(|(name, mode)| {
        mode == ChangeMode::Reload
            && key.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
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
        let reloaded = setting_names().into_iter().filter(|(_, mode)| *mode == ChangeMode::Reload);
        for (key, _) in reloaded {
            assert!(known.keys().any(|name| *name == key || name.starts_with(&format!("{key}."))), "{key}");
        }
    }
}
