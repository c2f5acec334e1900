//! A running mmpmon: requests to its standard input, answers from its output, restarts with backoff.

use std::time::{Duration, Instant};

use crate::exec::child::{ProgramState, RunningProgram};
use crate::exec::config::ProgramSettings;

/// The first pause after a failure. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The most bytes of an answer: 1 MiB. A file system has 300 bytes, a histogram 40 kB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The last answer to each request: that of `io_s`, which has one line.
const LAST_LINE: &[u8] = b"_io_s_ ";

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionError {
    /// The program is not started again before the end of a pause.
    Pause,
    NotStarted,
    Ended,
    /// It did not answer in time and was killed.
    Silent,
}

/// The program, and what it answered last.
pub struct MmpmonSession {
    settings: ProgramSettings,
    histograms: bool,
    running: Option<RunningProgram>,
    /// The pause after the next failure.
    pause: Duration,
    /// When the program may be started again.
    start_at: Option<Instant>,
    answer: Vec<u8>,
    failure: Option<String>,
}

impl MmpmonSession {
    /// A program that is not started yet. With `histograms` it is asked to keep and give them.
    pub fn new(settings: ProgramSettings, histograms: bool) -> Self {
        Self {
            settings,
            histograms,
            running: None,
            pause: PAUSE_MIN,
            start_at: None,
            answer: Vec::new(),
            failure: None,
        }
    }

    /// The last complete answer; empty before the first one.
    pub fn last_answer(&self) -> &[u8] {
        &self.answer
    }

    /// What is wrong with the program, for the administrator.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Asks for all counters and waits for the answer. Starts the program if it does not run.
    pub fn ask(&mut self, timeout: Duration) -> Result<(), SessionError> {
        let until = Instant::now() + timeout;
        let mut program = match self.running.take() {
            Some(program) => program,
            None => self.start()?,
        };
        let requests: &[u8] = if self.histograms { b"fs_io_s\nrhist s\nio_s\n" } else { b"fs_io_s\nio_s\n" };
        program.output.clear();
        if program.request(requests).is_err() {
            // What it said before its end.
            program.wait(until.saturating_duration_since(Instant::now()));
            program.pump(ANSWER_BYTES_MAX);
            return self.fail(program, SessionError::Ended, "it ended");
        }
        loop {
            let state = program.pump(ANSWER_BYTES_MAX);
            if let Some(end) = end_of_answer(&program.output) {
                self.answer.clear();
                self.answer.extend_from_slice(&program.output[..end]);
                self.running = Some(program);
                (self.pause, self.failure) = (PAUSE_MIN, None);
                return Ok(());
            }
            let failure = match state {
                ProgramState::Running => None,
                ProgramState::Ended => Some("it ended".to_owned()),
                ProgramState::Failed(status) => Some(format!("it ended with status {status}")),
                ProgramState::TooLong => Some(format!("its answer has more than {ANSWER_BYTES_MAX} bytes")),
            };
            if let Some(failure) = failure {
                return self.fail(program, SessionError::Ended, &failure);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.fail(program, SessionError::Silent, "it does not answer");
            }
            program.wait(left);
        }
    }

    fn start(&mut self) -> Result<RunningProgram, SessionError> {
        if self.start_at.is_some_and(|at| Instant::now() < at) {
            return Err(SessionError::Pause);
        }
        match RunningProgram::start_with_input(&self.settings) {
            Ok(mut program) => {
                if self.histograms {
                    // An error shows in the first request.
                    let _ = program.request(b"rhist on\n");
                }
                Ok(program)
            }
            Err(error) => {
                self.plan_pause(error);
                Err(SessionError::NotStarted)
            }
        }
    }

    /// Ends the program and plans the pause.
    fn fail(&mut self, mut program: RunningProgram, error: SessionError, text: &str) -> Result<(), SessionError> {
        let detail = program.first_error().map_or(String::new(), |line| format!(": {line}"));
        program.kill();
        self.plan_pause(format!("{}: {text}{detail}", self.settings.program.display()));
        Err(error)
    }

    fn plan_pause(&mut self, failure: String) {
        self.failure = Some(failure);
        self.start_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// The length of an answer that is complete.
fn end_of_answer(output: &[u8]) -> Option<usize> {
    let mut start = 0;
    while let Some(length) = memchr::memchr(b'\n', &output[start..]) {
        let end = start + length + 1;
        if output[start..end].starts_with(LAST_LINE) {
            return Some(end);
        }
        start = end;
    }
    None
}
