//! How a command ends: the exit codes, and the messages that go with them.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// The exit codes as `--help` and the manual pages show them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  answered
  1  nothing matched: no sensor, no job, or no reading in the range
  2  usage: the command line or the request is wrong, or is refused
  3  cannot reach the server or the agent, or the response broke off
  4  another failure: a file, the disk, a program that was started";

/// Why a command did not end with 0. The text says what was done, to what, and what to do.
#[derive(Debug)]
pub enum Failure {
    /// Nothing matched: exit code 1.
    NothingMatched(String),
    /// A wrong or refused request: exit code 2.
    Usage(String),
    /// No response: exit code 3.
    Unreachable(String),
    /// Another failure: exit code 4.
    Failed(String),
    /// The reader of the output has closed it (`| head`): no message, exit code 0.
    ReaderGone,
}

impl Failure {
    /// The exit code and the message for standard error.
    pub fn report(&self) -> (u8, Option<&str>) {
        match self {
            Failure::NothingMatched(text) => (1, Some(text)),
            Failure::Usage(text) => (2, Some(text)),
            Failure::Unreachable(text) => (3, Some(text)),
            Failure::Failed(text) => (4, Some(text)),
            Failure::ReaderGone => (0, None),
        }
    }

    pub fn usage(error: impl Display) -> Self {
        Failure::Usage(error.to_string())
    }

    pub fn failed(error: impl Display) -> Self {
        Failure::Failed(error.to_string())
    }

    /// For an error while reading a file.
    pub fn reading(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
        move |error| Failure::Failed(format!("cannot read {}: {error}", path.display()))
    }

    /// For an error while writing the output to `what`.
    pub fn writing(what: &str) -> impl Fn(io::Error) -> Failure + '_ {
        move |error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Failed(format!("cannot write {what}: {error}")),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Failed(format!("{error:#}"))
    }
}
