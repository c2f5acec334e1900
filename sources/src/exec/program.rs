//! One program: its runs, what is known of its sensors, and the reader of its values.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wholegrain_model::SensorDef;

use super::child::{ProgramState, RunningProgram};
use super::config::{ProgramSettings, RunMode};
use crate::exposition::{Dialect, SensorNaming, SeriesCatalogue, SeriesTable};
use crate::options::{self, GroupOptions};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::source::Timing;

/// The first pause after a failed run: 1 s. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause after failed runs: 1 min.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest wait for output before the end of the program is checked: 50 ms.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// The same once its output is closed: 1 ms.
const END_CHECK_EVERY: Duration = Duration::from_millis(1);
/// What is wrong with a number for a sensor with integers.
const NO_INTEGER: &str = "the program's output (type=int takes integers that fit into 64 bits with sign)";
/// A name that is missing in so many discoveries is forgotten.
const FORGET_AFTER: u32 = 10;

/// A configured program. Its two locks are taken in the order of the fields, and the second one for short times only.
pub(super) struct Program {
    settings: ProgramSettings,
    source: GroupOptions,
    /// Held while a read waits for the program: the agent's manager only tries it.
    runs: Mutex<ProgramRuns>,
    learned: Mutex<LearnedProgram>,
}

#[derive(Default)]
struct ProgramRuns {
    running: Option<RunningProgram>,
    /// A killed program that the kernel has not ended yet; no other is started before.
    stuck: Option<RunningProgram>,
    /// A run that has ended and no reader has taken.
    answer: Option<ProgramAnswer>,
    /// When the run in progress began, in ns since the epoch.
    began_ns: i64,
    last_start: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
}

struct ProgramAnswer {
    text: Vec<u8>,
    began: Instant,
    began_ns: i64,
}

struct LearnedProgram {
    catalogue: SeriesCatalogue,
    /// Output with names that are to be learned.
    text: Option<Vec<u8>>,
    is_known: bool,
    /// What the administrator has to know about the last failure.
    fault: Option<String>,
    /// The runs fail, and a discovery was requested to report it.
    is_failing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// A failure: what the agent shows for the group, and the details for its log.
type RunFault = (&'static str, String);

impl ProgramRuns {
    /// Starts the program unless it runs or has to pause.
    fn start(&mut self, settings: &ProgramSettings) -> Result<(), RunFault> {
        if self.running.is_some() {
            return Ok(());
        }
        if let Some(stuck) = &mut self.stuck {
            if !stuck.kill() {
                return Err(("the killed program has not ended", "the kernel cannot end it".to_owned()));
            }
            self.stuck = None;
        }
        let now = Instant::now();
        if self.not_before.is_some_and(|not_before| now < not_before) {
            return Err(("the program failed, and its next run has to wait", String::new()));
        }
        (self.last_start, self.began_ns) = (Some(now), now_ns());
        match RunningProgram::start(settings) {
            Ok(running) => {
                self.running = Some(running);
                Ok(())
            }
            Err(error) => Err(self.failed("the program cannot be started", error)),
        }
    }

    /// Notes a failure and plans the pause.
    fn failed(&mut self, what: &'static str, details: String) -> RunFault {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(10)).min(PAUSE_MAX);
        self.failures += 1;
        self.not_before = Some(Instant::now() + pause);
        (what, details)
    }

    fn kill(&mut self) {
        if let Some(mut running) = self.running.take()
            && !running.kill()
        {
            self.stuck = Some(running);
        }
    }

    /// Takes what the program printed. `Ok(false)` while it runs. In a stream the end is a failure, too.
    fn look(&mut self, settings: &ProgramSettings) -> Result<bool, RunFault> {
        let Some(running) = &mut self.running else { return Ok(self.answer.is_some()) };
        let state = running.pump(settings.output_bytes_max);
        let error = running.first_error().map_or(String::new(), |line| format!("; it said {line:?}"));
        let is_once = settings.mode == RunMode::Once;
        let since = if is_once { running.started } else { running.active };
        let is_late = since.elapsed() > settings.deadline.duration();
        let (what, details) = match state {
            ProgramState::Ended if is_once => {
                let (text, began) = (std::mem::take(&mut running.output), running.started);
                self.answer = Some(ProgramAnswer { text, began, began_ns: self.began_ns });
                self.running = None;
                (self.failures, self.not_before) = (0, None);
                return Ok(true);
            }
            ProgramState::Running if !is_late => return Ok(false),
            ProgramState::Running if is_once => {
                ("the program was killed at its deadline", format!("killed after {}{error}", settings.deadline))
            }
            ProgramState::Running => {
                ("the program was silent and was killed", format!("silent for {}, killed{error}", settings.deadline))
            }
            ProgramState::TooLong => {
                let max = settings.output_bytes_max;
                ("the program printed too much and was killed", format!("printed more than {max} bytes, killed{error}"))
            }
            ProgramState::Ended => ("the program has ended", format!("ended, although it is a stream{error}")),
            ProgramState::Failed(status) if status < 0 => {
                ("the program was ended by a signal", format!("ended by signal {}{error}", -status))
            }
            ProgramState::Failed(status) => ("the program failed", format!("ended with status {status}{error}")),
        };
        self.kill();
        Err(self.failed(what, details))
    }

    /// The complete lines that a stream has printed since the last call.
    fn take_lines(&mut self) -> Vec<u8> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let end = running.output.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let rest = running.output.split_off(end);
        std::mem::replace(&mut running.output, rest)
    }
}

impl Program {
    /// A program that is not started yet, with the settings of all programs.
    pub fn new(settings: ProgramSettings, source: GroupOptions) -> Self {
        let naming = SensorNaming { prefix: settings.prefix.clone(), ..SensorNaming::default() };
        let catalogue = SeriesCatalogue::new(naming, settings.sensors_max, FORGET_AFTER);
        let learned = LearnedProgram { catalogue, text: None, is_known: false, fault: None, is_failing: false };
        Self { settings, source, runs: Mutex::default(), learned: Mutex::new(learned) }
    }

    /// The name in the configuration.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// When the program is run.
    pub fn timing(&self) -> Timing {
        self.settings.options.timing(&self.source)
    }

    /// Starts the program if its sensors are not known. `true` if nothing has to be waited for.
    pub fn begin_discovery(&self) -> bool {
        if lock(&self.learned).is_known {
            return true;
        }
        let Some(mut runs) = self.try_runs() else { return false };
        match runs.start(&self.settings) {
            Ok(()) => false,
            Err(fault) => {
                self.note(fault);
                true
            }
        }
    }

    /// Whether its output is there, or it has failed.
    pub fn is_discovered(&self) -> bool {
        let Some(mut runs) = self.try_runs() else { return false };
        match runs.look(&self.settings) {
            Ok(true) => {
                let text = runs.answer.as_ref().map(|answer| answer.text.clone());
                lock(&self.learned).text = text;
                true
            }
            Ok(false) if self.settings.mode == RunMode::Stream => {
                // The lines stay for the first read.
                let output = runs.running.as_ref().map_or(&[][..], |running| &running.output);
                let end = output.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                lock(&self.learned).text = (end > 0).then(|| output[..end].to_vec());
                end > 0
            }
            Ok(false) => false,
            Err(fault) => {
                self.note(fault);
                true
            }
        }
    }

    /// The lock of the runs, unless a read waits for the program.
    fn try_runs(&self) -> Option<MutexGuard<'_, ProgramRuns>> {
        match self.runs.try_lock() {
            Ok(runs) => Some(runs),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn note(&self, (_, details): RunFault) {
        if !details.is_empty() {
            lock(&self.learned).fault = Some(details);
        }
    }

    /// The sensors and a table for a reader; `None` while none are known. Learns from the output that was kept for it.
    pub fn learn(&self, report: &mut dyn FnMut(String)) -> Option<(Vec<SensorDef>, SeriesTable)> {
        let mut learned = lock(&self.learned);
        let name = self.name();
        if let Some(fault) = learned.fault.take() {
            report(format!("exec: {name}: {fault}"));
        }
        let text = learned.text.take();
        if text.is_none() && !learned.is_known {
            return None;
        }
        let keeps = |sensor: &SensorDef| options::keeps(&self.source, &self.settings.options, sensor);
        let mut notes = |note: String| report(format!("exec: {name}: {note}"));
        // Without new output nothing is forgotten either.
        let (table, sensors) = match text {
            Some(text) => learned.catalogue.learn(&text, Dialect::Plain, &keeps, &mut notes),
            None => learned.catalogue.clone().learn(&[], Dialect::Plain, &keeps, &mut notes),
        };
        learned.is_known = !sensors.is_empty();
        learned.is_known.then_some((sensors, table))
    }

    /// Whether a run at the same ticks as another program's is due: the last one began before half of the interval.
    fn is_due_with(&self, other: &Program, runs: &ProgramRuns) -> bool {
        let timing = self.timing();
        let half = timing.interval.map_or(Duration::ZERO, |interval| interval.duration() / 2);
        self.settings.mode == RunMode::Once
            && timing == other.timing()
            && runs.running.is_none()
            && runs.answer.is_none()
            && runs.last_start.is_none_or(|start| start.elapsed() > half)
    }
}

/// Reads the values of one program.
pub(super) struct ExecReader {
    programs: Arc<[Program]>,
    index: usize,
    table: SeriesTable,
}

impl ExecReader {
    /// A reader of the program at `index` with the table of its sensors.
    pub fn new(programs: Arc<[Program]>, index: usize, table: SeriesTable) -> Self {
        let is_stream = programs[index].settings.mode == RunMode::Stream;
        Self { programs, index, table: if is_stream { table.takes_newest() } else { table } }
    }

    /// Starts the other programs that are due at this tick.
    fn start_others(&self) {
        let own = &self.programs[self.index];
        for other in self.programs.iter().filter(|other| !std::ptr::eq(*other, own)) {
            if let Some(mut runs) = other.try_runs()
                && other.is_due_with(own, &runs)
                && let Err(fault) = runs.start(&other.settings)
            {
                other.note(fault);
            }
        }
    }

    /// Runs the program, or takes the run that another reader or the discovery began.
    fn run_once(&mut self, row: &mut Row<'_>) -> Result<Reading, RunFault> {
        let programs = self.programs.clone();
        let program = &programs[self.index];
        let (settings, mut runs) = (&program.settings, lock(&program.runs));
        let is_old = |answer: &ProgramAnswer| answer.began.elapsed() > settings.deadline.duration();
        if runs.answer.as_ref().is_some_and(is_old) {
            runs.answer = None;
        }
        let was_begun = runs.running.is_some() || runs.answer.is_some();
        if !was_begun {
            runs.start(settings)?;
            self.start_others();
        }
        while !runs.look(settings)? {
            if let Some(running) = &runs.running {
                running.wait(if running.is_silent() { END_CHECK_EVERY } else { CHECK_EVERY });
            }
        }
        let Some(ProgramAnswer { mut text, began_ns, .. }) = runs.answer.take() else { return Ok(Reading::COMPLETE) };
        drop(runs);
        if text.last().is_some_and(|byte| *byte != b'\n') {
            // It ended well, so that its last line is complete.
            text.push(b'\n');
        }
        Ok(self.fill(&text, was_begun.then_some(began_ns), row))
    }

    /// Takes what a stream has printed since the last read.
    fn take_stream(&mut self, row: &mut Row<'_>) -> Result<Reading, RunFault> {
        let programs = self.programs.clone();
        let program = &programs[self.index];
        let mut runs = lock(&program.runs);
        runs.start(&program.settings)?;
        let result = runs.look(&program.settings);
        let text = runs.take_lines();
        result?;
        if !text.is_empty() {
            (runs.failures, runs.not_before) = (0, None);
        }
        drop(runs);
        if text.is_empty() {
            return Ok(Reading { unchanged: true, ..Reading::COMPLETE });
        }
        Ok(self.fill(&text, None, row))
    }

    fn fill(&mut self, text: &[u8], began_ns: Option<i64>, row: &mut Row<'_>) -> Reading {
        let read = self.table.read(text, None, row);
        if read.unknown > 0 {
            lock(&self.programs[self.index].learned).text = Some(text.to_vec());
        }
        let problem = match (read.first_bad, read.first_duplicate) {
            (Some(line), _) if read.is_no_integer => Some(ReadProblem::Garbage { what: NO_INTEGER, line }),
            (Some(line), _) => Some(ReadProblem::Garbage { what: "the program's output", line }),
            (None, Some(_)) => Some(ReadProblem::Message { text: "the program printed a name twice, which is a gap" }),
            (None, None) => None,
        };
        Reading { layout_changed: read.unknown > 0, problem, taken_at: read.time.or(began_ns), ..Reading::COMPLETE }
    }
}

impl Reader for ExecReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let result = match self.programs[self.index].settings.mode {
            RunMode::Once => self.run_once(row),
            RunMode::Stream => self.take_stream(row),
        };
        let program = &self.programs[self.index];
        let is_failing = std::mem::replace(&mut lock(&program.learned).is_failing, result.is_err());
        result.unwrap_or_else(|fault| {
            let text = fault.0;
            program.note(fault);
            // A discovery reports the details of the first one.
            Reading { layout_changed: !is_failing, problem: Some(ReadProblem::Message { text }), ..Reading::COMPLETE }
        })
    }
}
