//! The audit log: who did what, when, from where and with what outcome, one JSON object a line; never a secret.
//!
//! Lines are written by a thread of their own: nobody waits for the disk. A file that has grown to its bound is set aside as
//! `.1`, `.2` and so on, and the oldest is dropped. What clients can cause is bounded; what is left out is counted, in the
//! next line of its kind and in the metrics.

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

use super::files;
use crate::broker::log_limit::{LogLimit, quoted};
use crate::metrics::Metrics;

/// Lines that wait to be written.
const QUEUE_LINES_MAX: usize = 1024;
/// Within this time one identity's successes of one kind make one line.
pub const SUCCESS_EVERY: Duration = Duration::from_secs(3600);
/// The most identities of which that is remembered.
const REMEMBERED_MAX: usize = 65_536;
/// Lines of refusals, and of failed logins, in each window of [`LogLimit`].
const LINES_MAX: u32 = 20;

/// Where the audit log is and how large it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file; `None` when there shall be none.
    pub path: Option<PathBuf>,
    /// A file that is so large is set aside.
    pub bytes_max: u64,
    /// How many are kept, the newest included.
    pub files_max: usize,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An MQTT client showed who it is.
    MqttLogin,
    /// An HTTP client showed a token.
    HttpLogin,
    /// A publish to where the client may not.
    Publish,
    /// A subscription to what the client may not hear.
    Subscribe,
    /// A request that the token's role does not allow.
    HttpRequest,
    /// A request that changes the server.
    Manage,
    /// A change of what is sampled of a job.
    JobRule,
    /// A user was added.
    UserAdd,
    /// A user was removed.
    UserRemove,
    /// A user got another password.
    UserPassword,
    /// A token was made.
    TokenCreate,
    /// A token was revoked.
    TokenRevoke,
    /// A certificate was made.
    CertificateIssue,
    /// A certificate was revoked.
    CertificateRevoke,
    /// The server took over changed files or a changed configuration.
    Reload,
    /// The server began to serve.
    Start,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As wanted.
    Ok,
    /// What was shown is wrong.
    Failed,
    /// It is not allowed.
    Refused,
}

/// One line.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// When, RFC 3339.
    pub time: String,
    /// What happened.
    pub event: Event,
    /// How it ended.
    pub outcome: Outcome,
    /// Who: an identity, a token's name and id, a user of this machine.
    pub who: String,
    /// From where: an address, or `local`.
    pub from: String,
    /// To what, and why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// Lines of this kind that were left out before this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Line {
    /// Now. What a client sent is cut and escaped.
    pub fn new(event: Event, outcome: Outcome, who: &str, from: impl ToString, what: &str) -> Self {
        let ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let time = Timestamp(i64::try_from(ns).unwrap_or(i64::MAX)).to_string();
        Self { time, event, outcome, who: quoted(who), from: from.to_string(), what: what.to_owned(), left_out: 0 }
    }
}

/// The log of a server. Without a file it does nothing.
#[derive(Debug)]
pub struct Audit {
    queue: Option<SyncSender<Line>>,
    metrics: Arc<Metrics>,
    limits: [LogLimit; 3],
    /// When each identity's last success of a kind was written.
    successes: Mutex<HashMap<(Event, String), Instant>>,
}

impl Audit {
    /// Opens the file and starts the thread, which ends when this is dropped.
    pub fn start(config: &AuditConfig, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let queue = match &config.path {
            None => None,
            Some(path) => {
                // Now, so that a file that cannot be written is noticed at the start.
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

    /// Writes a line whatever happens: for what only administrators cause.
    pub fn always(&self, line: Line) {
        let Some(queue) = &self.queue else { return };
        match queue.try_send(line) {
            Ok(()) => self.metrics.audit_lines.inc(),
            Err(_) => self.metrics.audit_dropped.inc(),
        }
    }

    /// Writes a line of what any client can cause, unless there were too many of them just now.
    pub fn bounded(&self, event: Event, outcome: Outcome, who: &str, from: impl ToString, what: &str) {
        if self.queue.is_none() {
            return;
        }
        let limit = match (event, outcome) {
            (Event::MqttLogin, _) => 0,
            (Event::HttpLogin | Event::HttpRequest, _) => 1,
            _ => 2,
        };
        match self.limits[limit].admit(Instant::now()) {
            Some(left_out) => self.always(Line { left_out, ..Line::new(event, outcome, who, from, what) }),
            None => self.metrics.audit_dropped.inc(),
        }
    }

    /// Writes a success, once within [`SUCCESS_EVERY`] for each identity.
    pub fn success(&self, event: Event, who: &str, from: impl ToString, what: &str) {
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
        self.always(Line::new(event, Outcome::Ok, who, from, what));
    }
}

fn write_all(config: &AuditConfig, lines: &Receiver<Line>, metrics: &Metrics) {
    let Some(path) = &config.path else { return };
    let log = LogLimit::default();
    while let Ok(line) = lines.recv() {
        if let Err(error) = append(path, config, &line) {
            metrics.audit_dropped.inc();
            log.warn(format_args!("cannot write the audit log {}: {error}; lines are lost", path.display()));
        }
    }
}

/// Adds one line to the log at `path`, setting files aside before as `config` says. Also for commands beside the server: a
/// line is one write.
pub fn append(path: &Path, config: &AuditConfig, line: &Line) -> std::io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(std::io::Error::other)?;
    text.push('\n');
    if fs::metadata(path).is_ok_and(|meta| meta.size() > 0 && meta.size() + text.len() as u64 > config.bytes_max) {
        set_aside(path, config.files_max)?;
    }
    files::open_to_append(path)?.write_all(text.as_bytes())
}

/// `path` becomes `path.1`, and so on; of `files_max` files the oldest goes.
fn set_aside(path: &Path, files_max: usize) -> std::io::Result<()> {
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
            let line = Line::new(Event::TokenCreate, Outcome::Ok, "uid 0", "local", &format!("token {i}"));
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
    fn what_clients_cause_is_bounded_and_what_is_left_out_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let metrics = Arc::new(Metrics::default());
        let audit = Audit::start(&config(&path, 1 << 20), metrics.clone()).unwrap();
        for i in 0..1000 {
            audit.bounded(Event::Publish, Outcome::Refused, "n1\n{", "10.0.0.1:5", &format!("topic {i}"));
            audit.success(Event::MqttLogin, "n1", "10.0.0.1:5", "certificate");
        }
        audit.success(Event::MqttLogin, "n2", "10.0.0.1:5", "certificate");
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
