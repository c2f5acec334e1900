//! The audit log: who did what, when, from where and with which outcome, one JSON object a line; never a secret.
//!
//! A thread of its own writes the lines: nobody waits for the disk. A file that reaches its maximum size is rotated to `.1`, `.2` and so on, and the
//! oldest is dropped. Lines that clients can cause are rate-limited; the next line of the same kind and the metrics count those left out.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use wholegrain_model::Timestamp;

use super::config::AuditConfig;
use super::files;
use crate::log_limit::{LogLimit, quoted};
use crate::metrics::Metrics;

/// Lines that wait to be written.
const QUEUE_LINES_MAX: usize = 1024;
/// Successes of one kind by one identity within this time make one line.
pub const SUCCESS_EVERY: Duration = Duration::from_secs(3600);
/// The most identities whose last success is remembered.
const REMEMBERED_MAX: usize = 65_536;
/// Lines of refusals, and of failed logins, in each window of [`LogLimit`].
const LINES_MAX: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditEvent {
    /// An MQTT client authenticated.
    MqttLogin,
    /// An HTTP client showed a token.
    HttpLogin,
    /// A publish to a topic that is not allowed.
    Publish,
    /// A subscription that is not allowed.
    Subscribe,
    /// A request that the token's role does not allow.
    HttpRequest,
    /// A request that changes the server.
    Manage,
    /// A change of the sampling of a job.
    JobRule,
    UserAdd,
    UserRemove,
    UserPassword,
    TokenCreate,
    TokenRevoke,
    CertificateIssue,
    CertificateRevoke,
    /// The server reloaded files or the configuration.
    Reload,
    Start,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    Ok,
    Failed,
    Refused,
}

#[derive(Debug, Clone, Serialize)]
pub struct AuditEntry {
    /// A time in RFC 3339 notation.
    pub time: String,
    pub event: AuditEvent,
    pub outcome: AuditOutcome,
    /// An identity, a token's name and id, or a user of this machine.
    pub who: String,
    /// An address, or `local`.
    pub from: String,
    /// The object, and the reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Lines of this kind that were left out before this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl AuditEntry {
    /// An entry of now. Text from clients is truncated and escaped.
    pub fn new(event: AuditEvent, outcome: AuditOutcome, who: &str, from: impl ToString, what: &str) -> Self {
        let ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let time = Timestamp(i64::try_from(ns).unwrap_or(i64::MAX)).to_string();
        Self { time, event, outcome, who: quoted(who), from: from.to_string(), what: what.to_owned(), left_out: 0 }
    }
}

/// The server's audit log. Without a file it does nothing.
#[derive(Debug)]
pub struct Audit {
    queue: Option<SyncSender<AuditEntry>>,
    metrics: Arc<Metrics>,
    limits: [LogLimit; 3],
    /// When the last success of each identity and kind was written.
    successes: Mutex<HashMap<(AuditEvent, String), Instant>>,
}

impl Audit {
    /// Opens the file and starts the thread, which ends when this is dropped.
    pub fn start(config: &AuditConfig, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let queue = match &config.path {
            None => None,
            Some(path) => {
                // Opened here so that an unwritable file is an error at the start.
                drop(files::open_to_append(path)?);
                let (sender, lines) = sync_channel(QUEUE_LINES_MAX);
                let (config, counted) = (config.clone(), metrics.clone());
                std::thread::Builder::new()
                    .name("audit".to_owned())
                    .spawn(move || write_all(&config, &lines, &counted))?;
                Some(sender)
            }
        };
        let limits = std::array::from_fn(|_| LogLimit::new(LINES_MAX));
        Ok(Self { queue, metrics, limits, successes: Mutex::default() })
    }

    /// Writes an entry without a rate limit: for events that only administrators cause.
    pub fn always(&self, line: AuditEntry) {
        let Some(queue) = &self.queue else { return };
        match queue.try_send(line) {
            Ok(()) => self.metrics.audit_lines.inc(),
            Err(_) => self.metrics.audit_dropped.inc(),
        }
    }

    /// Writes an entry that any client can cause, within the rate limit.
    pub fn bounded(&self, event: AuditEvent, outcome: AuditOutcome, who: &str, from: impl ToString, what: &str) {
        if self.queue.is_none() {
            return;
        }
        let limit = match (event, outcome) {
            (AuditEvent::MqttLogin, _) => 0,
            (AuditEvent::HttpLogin | AuditEvent::HttpRequest, _) => 1,
            _ => 2,
        };
        match self.limits[limit].admit(Instant::now()) {
            Some(left_out) => self.always(AuditEntry { left_out, ..AuditEntry::new(event, outcome, who, from, what) }),
            None => self.metrics.audit_dropped.inc(),
        }
    }

    /// Writes a success, once within [`SUCCESS_EVERY`] for each identity.
    pub fn success(&self, event: AuditEvent, who: &str, from: impl ToString, what: &str) {
        if self.queue.is_none() {
            return;
        }
        let now = Instant::now();
        let mut successes = self.successes.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (event, who.to_owned());
        if successes.get(&key).is_some_and(|last| now.saturating_duration_since(*last) < SUCCESS_EVERY) {
            return;
        }
        if successes.len() >= REMEMBERED_MAX {
            successes.retain(|_, last| now.saturating_duration_since(*last) < SUCCESS_EVERY);
            if successes.len() >= REMEMBERED_MAX {
                successes.clear();
            }
        }
        successes.insert(key, now);
        drop(successes);
        self.always(AuditEntry::new(event, AuditOutcome::Ok, who, from, what));
    }
}

fn write_all(config: &AuditConfig, lines: &Receiver<AuditEntry>, metrics: &Metrics) {
    let Some(path) = &config.path else { return };
    let log = LogLimit::default();
    while let Ok(line) = lines.recv() {
        if let Err(error) = append(path, config, &line) {
            metrics.audit_dropped.inc();
            log.warn(format_args!("cannot write the audit log {}: {error}; entries are lost", path.display()));
        }
    }
}

/// Appends one line to the log at `path` and rotates it first if `config` requires it. Commands beside the server use it too: a line is one write.
pub fn append(path: &Path, config: &AuditConfig, line: &AuditEntry) -> std::io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(std::io::Error::other)?;
    text.push('\n');
    if fs::metadata(path).is_ok_and(|meta| meta.size() > 0 && meta.size() + text.len() as u64 > config.bytes_max) {
        rotate(path, config.files_max)?;
    }
    files::open_to_append(path)?.write_all(text.as_bytes())
}

/// Renames `path` to `path.1` and so on; the oldest of `files_max` files is removed.
fn rotate(path: &Path, files_max: usize) -> std::io::Result<()> {
    let numbered = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let oldest = files_max.saturating_sub(1);
    if oldest == 0 {
        return fs::remove_file(path);
    }
    for number in (1..oldest).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, numbered(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(path: &Path, bytes_max: u64) -> AuditConfig {
        AuditConfig { path: Some(path.to_owned()), bytes_max, files_max: 3 }
    }

    #[test]
    fn files_are_private_and_bounded_in_size_and_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        for i in 0..100 {
            let line =
                AuditEntry::new(AuditEvent::TokenCreate, AuditOutcome::Ok, "uid 0", "local", &format!("token {i}"));
            append(&path, &config(&path, 1000), &line).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
        for name in names {
            let meta = fs::metadata(dir.path().join(name)).unwrap();
            assert!(meta.len() <= 1000 && meta.permissions().mode() & 0o777 == 0o600, "{meta:?}");
        }
        let last = fs::read_to_string(&path).unwrap();
        let last: serde_json::Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&last["event"], &last["outcome"], &last["what"]),
            (&"token_create".into(), &"ok".into(), &"token 99".into())
        );
    }

    #[test]
    fn entries_of_clients_are_rate_limited_and_omissions_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let metrics = Arc::new(Metrics::default());
        let audit = Audit::start(&config(&path, 1 << 20), metrics.clone()).unwrap();
        for i in 0..1000 {
            audit.bounded(AuditEvent::Publish, AuditOutcome::Refused, "n1\n{", "10.0.0.1:5", &format!("topic {i}"));
            audit.success(AuditEvent::MqttLogin, "n1", "10.0.0.1:5", "certificate");
        }
        audit.success(AuditEvent::MqttLogin, "n2", "10.0.0.1:5", "certificate");
        let expected = u64::from(LINES_MAX) + 2;
        assert_eq!((metrics.audit_lines.get(), metrics.audit_dropped.get()), (expected, 1000 - u64::from(LINES_MAX)));
        let deadline = Instant::now() + Duration::from_secs(30);
        let lines = loop {
            let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
            if lines.len() as u64 >= expected {
                break lines;
            }
            assert!(Instant::now() < deadline, "{lines:?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        for line in &lines {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(line["time"].as_str().unwrap().ends_with('Z') && line["from"] == "10.0.0.1:5", "{line}");
        }
    }
}
