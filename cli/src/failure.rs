//! How a command ends: the exit codes, and the messages that go with them.

use std::io;

/// Everything asked was answered.
pub const ANSWERED: u8 = 0;
/// No sensor or no reading matched.
pub const NOTHING_MATCHED: u8 = 1;
/// The command line or the request makes no sense, or the server refuses it.
pub const USAGE: u8 = 2;
/// The server or the agent cannot be reached, or it broke off.
pub const UNREACHABLE: u8 = 3;
/// Something else failed: a file, the disk, a program that was started.
pub const FAILED: u8 = 4;

/// The exit codes as `--help` and the manual pages show them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  answered
  1  nothing matched: no sensor, or no reading in the range
  2  usage: the command line or the request makes no sense, or is refused
  3  cannot reach the server or the agent, or the answer broke off
  4  something else failed: a file, the disk, a program that was started";

/// Why a command did not end with 0. The text says what was being done, to what, and what to do.
#[derive(Debug)]
pub enum Failure {
    /// Nothing matched: exit code 1.
    NothingMatched(String),
    /// A wrong request: exit code 2.
    Usage(String),
    /// No response: exit code 3.
    Unreachable(String),
    /// Another failure: exit code 4.
    Failed(String),
    /// Whoever read our output has stopped (`| head`): no message, exit code 0.
    ReaderGone,
}

impl Failure {
    /// The exit code and the message for standard error.
    pub fn report(&self) -> (u8, Option<&str>) {
        match self {
            Failure::NothingMatched(text) => (NOTHING_MATCHED, Some(text)),
            Failure::Usage(text) => (USAGE, Some(text)),
            Failure::Unreachable(text) => (UNREACHABLE, Some(text)),
            Failure::Failed(text) => (FAILED, Some(text)),
            Failure::ReaderGone => (ANSWERED, None),
        }
    }

    /// For an error while writing the answer to `what`.
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
