//! GPFS (IBM Storage Scale): counters of the node and of each file system, by the program `mmpmon`, which stays.
//!
//! - In: `[sources.gpfs]`, and the answers of `mmpmon -p` to `fs_io_s`, `io_s` and `rhist s`.
//! - Out: the group `gpfs`, with the sensors `gpfs/<counter>` of the node and `gpfs/<file system>/<counter>`.
//! - Never: a request that resets counters; a program with the agent's rights; one that is asked again after it was silent for the timeout.

mod format;
mod session;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};

use self::format::MmpmonAnswers;
use self::session::{MmpmonSession, SessionError};
use crate::exec::config::ProgramSettings;
use crate::keyed::KeyedText;
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;
use crate::trusted;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "gpfs",
    summary: "GPFS: counters of the node and of each file system, by mmpmon",
    configure,
    jobs: None,
};

const GROUP: &str = "gpfs";
/// The place of the program in IBM's packages.
const PROGRAM: &str = "/usr/lpp/mmfs/bin/mmpmon";
/// How long a discovery waits for the first answer.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The keys of the source's table besides those of the group.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GpfsKeys {
    command: Option<Vec<String>>,
    user: Option<String>,
    #[serde(default = "timeout_usual")]
    timeout: Interval,
    #[serde(default)]
    histograms: bool,
}

fn timeout_usual() -> Interval {
    Interval::from_s(5)
}

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys): (GroupOptions, GpfsKeys) = options::read(section)?;
    let is_configured = keys.command.is_some();
    let mut command = keys.command.unwrap_or_else(|| vec![PROGRAM.to_owned(), "-p".to_owned()]).into_iter();
    let program = PathBuf::from(command.next().unwrap_or_default());
    if !program.is_absolute() {
        let text = format!("command begins with the absolute path of mmpmon, such as [{PROGRAM:?}, \"-p\"]");
        return Err(section.error("command", text));
    }
    if let Some(user) = keys.user.as_ref().filter(|user| trusted::account(user).is_none()) {
        return Err(section.error("user", format!("there is no user {user:?} on this machine")));
    }
    let is_silent = !is_configured && !program.exists();
    let settings = ProgramSettings::of_command(program, command.collect(), keys.user);
    let session = Arc::new(Mutex::new(MmpmonSession::new(settings, keys.histograms)));
    let timeout = Duration::from_nanos(keys.timeout.ns());
    Ok(Box::new(GpfsSource { options, session, timeout, is_silent, unseen: Vec::new() }))
}

struct GpfsSource {
    options: GroupOptions,
    session: Arc<Mutex<MmpmonSession>>,
    timeout: Duration,
    /// The program is not on this machine, and the configuration does not name it.
    is_silent: bool,
    unseen: Vec<&'static str>,
}

impl Source for GpfsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        if self.is_silent {
            return Vec::new();
        }
        // A read holds the lock while it waits for the program.
        let Ok(mut session) = self.session.try_lock() else {
            self.unseen.push(GROUP);
            return Vec::new();
        };
        if session.last_answer().is_empty() {
            let _ = session.ask(self.timeout.min(DISCOVERY_TIMEOUT));
        }
        if let Some(failure) = session.failure() {
            report(format!("gpfs: {failure}"));
        }
        if session.last_answer().is_empty() {
            self.unseen.push(GROUP);
            return Vec::new();
        }
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let text = KeyedText::discover("mmpmon", session.last_answer(), Box::new(MmpmonAnswers), &mut plan);
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let reader = GpfsReader { session: self.session.clone(), timeout: self.timeout, text, has_failed: false };
        let timing = self.options.timing(&NO_OPTIONS);
        vec![GroupPlan { name: GROUP.to_owned(), sensors, reader: Box::new(reader), timing, blocking: true }]
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

struct GpfsReader {
    session: Arc<Mutex<MmpmonSession>>,
    timeout: Duration,
    text: KeyedText,
    /// The previous read failed, so that a discovery was requested to report why.
    has_failed: bool,
}

impl Reader for GpfsReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match session.ask(self.timeout) {
            Ok(()) => {
                self.has_failed = false;
                self.text.fill(session.last_answer(), row)
            }
            Err(error) => {
                let errno = match error {
                    SessionError::Pause | SessionError::NotStarted => libc::ECHILD,
                    SessionError::Ended => libc::EPIPE,
                    SessionError::Silent => libc::ETIMEDOUT,
                };
                let layout_changed = !std::mem::replace(&mut self.has_failed, true);
                Reading {
                    layout_changed,
                    problem: Some(ReadProblem::Os { what: "mmpmon", errno }),
                    ..Reading::COMPLETE
                }
            }
        }
    }
}
