//! The audit log: who changed which settings when, from what to what; and who was refused. One JSON object for each line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::super::{CallerIdentity, JobsAction, JobsCommand};
use super::admission::SettingChange;
use super::refusal::JobsRefusal;
use super::rule::{RawRule, Rule, shown};
use crate::rate_limit::RateLimit;

/// The file in the jobs' directory; older files are `audit.1.jsonl` and so on.
const FILE: &str = "audit.jsonl";
/// The size at which a new file is started: 1 MiB.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most files, including the present one.
pub const FILES_MAX: u32 = 8;
/// Logged refusals in a minute, of one caller and of all; further ones are counted.
pub const REFUSALS_PER_MINUTE: (u32, u32) = (20, 120);
/// The longest text of a refused command in the log, in bytes.
const ACTION_BYTES_MAX: usize = 1024;

#[derive(Debug, Serialize)]
pub struct AuditLine<'a> {
    pub time: String,
    pub who: &'a str,
    pub role: super::super::Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<&'a str>,
    /// `add`, `remove`, `end`, `refused` or `failed`.
    pub verb: &'a str,
    #[serde(rename = "rule", serialize_with = "rule", skip_serializing_if = "Option::is_none")]
    pub rule: Option<&'a Rule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<SettingChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'a str>,
    /// Refusals before this line that are not in the log.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_written: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn rule<S: serde::Serializer>(rule: &Option<&Rule>, serializer: S) -> Result<S::Ok, S::Error> {
    rule.map(Rule::view).serialize(serializer)
}

impl<'a> AuditLine<'a> {
    /// A line without an action.
    pub fn of(who: &'a CallerIdentity, now: i64) -> Self {
        Self {
            time: shown(now),
            who: &who.name,
            role: who.role,
            uid: who.uid,
            user: who.user.as_deref(),
            verb: "",
            rule: None,
            action: None,
            changes: Vec::new(),
            why: None,
            not_written: 0,
        }
    }
}

/// The log. Without a directory, lines go to the agent's log only.
#[derive(Debug)]
pub struct AuditLog {
    path: Option<PathBuf>,
    refusals: RateLimit,
}

impl AuditLog {
    pub fn new(dir: Option<&Path>) -> Self {
        let (each, all) = REFUSALS_PER_MINUTE;
        Self { path: dir.map(|dir| dir.join(FILE)), refusals: RateLimit::per_minute(each, all) }
    }

    /// Writes a line. A change is made only if this succeeds.
    pub fn write(&self, line: &AuditLine) -> Result<(), JobsRefusal> {
        let Some(path) = &self.path else { return Ok(()) };
        append(path, line).map_err(|error| {
            JobsRefusal::Failed(format!("cannot write the audit log {}: {error}; nothing is changed", path.display()))
        })
    }

    pub fn refused(&mut self, command: &JobsCommand, why: &str, now: i64) {
        let who = &command.who;
        if !self.refusals.take(&who.key(), now) {
            return;
        }
        let line = AuditLine {
            verb: "refused",
            action: Some(action_text(&command.action)),
            why: Some(why),
            not_written: self.refusals.take_excess(),
            ..AuditLine::of(who, now)
        };
        tracing::warn!("refused {}: {}: {why}", who.name, line.action.as_deref().unwrap_or_default());
        self.write_or_warn(&line);
    }

    /// Logs a change that could not be saved and is undone.
    pub fn failed(&self, who: &CallerIdentity, id: u64, error: &JobsRefusal, now: i64) {
        let why = format!("rule {id}: {error}");
        self.write_or_warn(&AuditLine { verb: "failed", why: Some(&why), ..AuditLine::of(who, now) });
    }

    /// Writes a line about what is done already.
    pub fn write_or_warn(&self, line: &AuditLine) {
        if let Err(error) = self.write(line) {
            tracing::warn!("{error}");
        }
    }
}

fn action_text(action: &JobsAction) -> String {
    let json = |raw: &RawRule| serde_json::to_string(raw).unwrap_or_default();
    let mut text = match action {
        JobsAction::Add(raw) => format!("add {}", json(raw)),
        JobsAction::Try(raw) => format!("try {}", json(raw)),
        JobsAction::Remove(id) => format!("remove {id}"),
        JobsAction::End(job) => format!("end {job}"),
    };
    if text.len() > ACTION_BYTES_MAX {
        let end = (0..=ACTION_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn append(path: &Path, line: &AuditLine) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    if fs::metadata(path).is_ok_and(|file| file.len() + bytes.len() as u64 > FILE_BYTES_MAX) {
        rotate(path)?;
    }
    let mut file = open(path)?;
    file.write_all(&bytes)?;
    file.sync_data()
}

fn open(path: &Path) -> io::Result<File> {
    let options = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options
    };
    match options().open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            options().open(path)
        }
        other => other,
    }
}

/// Renames `audit.jsonl` to `audit.1.jsonl`, that to `audit.2.jsonl`, and removes the oldest.
fn rotate(path: &Path) -> io::Result<()> {
    let older = |number: u32| path.with_file_name(format!("audit.{number}.jsonl"));
    for number in (1..FILES_MAX - 1).rev() {
        match fs::rename(older(number), older(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, older(1))
}
