//! A plug-in in a process of its own, as the agent sees it: a thread that starts, watches and ends the process, and readers that ask it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_model::SensorDef;
use wholegrain_plugin::abi::{LAYOUT_CHANGED, UNCHANGED};
use wholegrain_sources::{GroupPlan, ReadProblem, Reader, Reading, Row, Source};

use super::config::PluginConfig;
use super::in_process::fill;
use super::process::{self, PluginProcess};
use super::progress::PluginProgress;
use super::services::{PluginError, PluginServices};
use super::shared_row::{RowAnswer, RowError, SharedRow};
use super::texts::LastingTexts;
use super::trusted;
use super::trusted::TrustedFile;
use super::usage::UsageWatch;
use super::wire::{self, CheckedGroup, ConfigureMessage, PluginAnswer, PluginRequest, printable};
use crate::sync::lock;
use crate::waker::Waker;

/// The pause after the first fault: 1 s. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause: 5 min. A plug-in that ran for so long begins with the shortest again.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How often the use of CPU time and memory is looked at: 1 s.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How long the end of a plug-in may take when it is unloaded: 5 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a thread that waits looks: 1 ms.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The most lines that a plug-in can print into the agent's log in one run. What it prints after them is read once a second, and discarded.
const PRINTED_LINES_MAX: usize = 100;
/// The most reads of what a plug-in has printed at a time: 64 KiB, as much as the pipe has.
const PRINTED_READS_MAX: usize = 16;
/// The stack of the thread: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// The problem of groups whose plug-in does not run.
pub const NOT_RUNNING: &str = "the plug-in does not run";

/// The groups of the last discovery.
#[derive(Default)]
struct Layout {
    generation: u64,
    groups: Vec<CheckedGroup>,
    notes: Vec<String>,
    keeps: Vec<String>,
}

/// The way to a running process. Who holds it is the only one who asks.
struct PluginLink {
    socket: UnixStream,
    row: Arc<SharedRow>,
}

/// What the thread, the source and its readers share.
struct IsolatedPlugin {
    config: PluginConfig,
    services: PluginServices,
    texts: LastingTexts,
    link: Mutex<Option<PluginLink>>,
    /// The row of the link, for the end of a wait: who waits holds the link.
    row: Mutex<Option<Arc<SharedRow>>>,
    layout: Mutex<Arc<Layout>>,
    generation: AtomicU64,
    /// Why the process has to be ended.
    fault: Mutex<Option<String>>,
    wants_stop: AtomicBool,
    wants_discovery: AtomicBool,
    wants_new_readers: AtomicBool,
    /// Not 0: the process has ended. A futex's neighbour, so of its size.
    has_ended: AtomicU32,
    /// Whether a read of this process has succeeded.
    has_answered: AtomicBool,
    /// Whether the first start has succeeded or failed.
    is_tried: AtomicBool,
    waker: Waker,
}

/// Why a start failed.
enum StartError {
    /// Trying again is useless: the settings or the file are wrong.
    Refused(String),
    Failed(String),
}

/// The agent's side of an isolated plug-in.
pub(super) struct IsolatedSource {
    plugin: Arc<IsolatedPlugin>,
    /// The layout that the manager has seen.
    seen: u64,
    unseen: Vec<&'static str>,
    thread: Option<JoinHandle<()>>,
}

impl IsolatedSource {
    /// Starts the thread, which starts the process.
    pub fn start(config: &PluginConfig, file: TrustedFile, services: PluginServices) -> Result<Self, PluginError> {
        let failed = |error: io::Error| PluginError(format!("cannot start plug-in {}: {error}", config.name));
        lock(&services.progress).state = "starting";
        let plugin = Arc::new(IsolatedPlugin {
            config: config.clone(),
            services,
            texts: LastingTexts::default(),
            link: Mutex::default(),
            row: Mutex::default(),
            layout: Mutex::default(),
            generation: AtomicU64::new(0),
            fault: Mutex::default(),
            wants_stop: AtomicBool::new(false),
            wants_discovery: AtomicBool::new(false),
            wants_new_readers: AtomicBool::new(false),
            has_ended: AtomicU32::new(0),
            has_answered: AtomicBool::new(false),
            is_tried: AtomicBool::new(false),
            waker: Waker::new().map_err(failed)?,
        });
        let theirs = plugin.clone();
        let name = format!("p:{}", config.name).chars().take(15).collect();
        let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || theirs.run(file)).map_err(failed)?;
        Ok(Self { plugin, seen: 0, unseen: Vec::new(), thread: Some(thread) })
    }
}

/// The last line that a plug-in has printed, with the last place in its code that a traceback of Python names.
fn last_words(printed: &str) -> String {
    let mut lines = printed.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let Some(last) = lines.next() else { return String::new() };
    let place = lines.find_map(|line| {
        let (file, rest) = line.strip_prefix("File \"")?.split_once("\", line ")?;
        let line = rest.split(',').next()?;
        Some(format!(" ({}:{line})", file.rsplit('/').next()?))
    });
    format!(": {last}{}", place.unwrap_or_default())
}

impl Source for IsolatedSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let plugin = &self.plugin;
        if plugin.services.waker.is_none() {
            plugin.wait_tried();
        }
        let layout = lock(&plugin.layout).clone();
        if layout.generation == self.seen && self.seen > 0 {
            // The next result comes by `has_news`.
            plugin.wants_discovery.store(true, Ordering::Release);
            plugin.waker.wake();
        }
        self.seen = layout.generation;
        let progress = lock(&plugin.services.progress).clone();
        if let Some(fault) = progress.fault.filter(|_| progress.state == "refused" || plugin.services.waker.is_none()) {
            report(fault);
        }
        layout.notes.iter().for_each(|note| report(note.clone()));
        self.unseen = layout.keeps.iter().filter_map(|name| plugin.texts.name(name)).collect();
        let plans = layout.groups.iter().map(|group| GroupPlan {
            name: group.name.clone(),
            sensors: group.sensors.clone(),
            reader: Box::new(IsolatedReader::new(plugin.clone(), group, layout.generation)),
            timing: group.timing,
            blocking: true,
        });
        plans.collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }

    fn has_news(&self) -> bool {
        self.plugin.generation.load(Ordering::Acquire) != self.seen
    }
}

impl Drop for IsolatedSource {
    fn drop(&mut self) {
        self.plugin.wants_stop.store(true, Ordering::Release);
        self.plugin.waker.wake();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        lock(&self.plugin.services.progress).state = "stopped";
    }
}

impl IsolatedPlugin {
    fn is_stopping(&self) -> bool {
        self.wants_stop.load(Ordering::Acquire)
    }

    /// Waits for the first start, at most as long as it may take.
    fn wait_tried(&self) {
        let deadline = Instant::now() + self.config.discover_deadline.duration() * 2 + STOP_TIMEOUT;
        while !self.is_tried.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Whether it runs for `--check` or `--once`, whose report has its faults.
    fn is_trial(&self) -> bool {
        self.services.waker.is_none()
    }

    fn change_progress(&self, change: impl FnOnce(&mut PluginProgress)) {
        change(&mut lock(&self.services.progress));
    }

    /// The thread: starts the process again and again until the source is dropped.
    fn run(&self, file: TrustedFile) {
        let (mut file, mut pause, mut logged) = (Some(file), PAUSE_MIN, None);
        while !self.is_stopping() {
            let begin = Instant::now();
            let fault = match self.start_process(&mut file) {
                Ok((mut process, is_script)) => {
                    let fault = self.watch(&mut process, is_script, &mut logged);
                    self.end(process);
                    fault
                }
                Err(StartError::Failed(fault)) => Some(fault),
                Err(StartError::Refused(reason)) => {
                    if !self.is_trial() {
                        tracing::error!("plug-in {}: {reason}", self.config.name);
                    }
                    self.services.counters.plugin_faults.fetch_add(1, Ordering::Relaxed);
                    self.change_progress(|progress| progress.count_fault("refused", reason));
                    return self.publish_tried();
                }
            };
            let Some(fault) = fault else { return };
            if begin.elapsed() >= PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            if logged.as_ref() != Some(&fault) && !self.is_trial() {
                let name = &self.config.name;
                tracing::warn!(
                    "plug-in {name}: {fault}; its values are gaps; it is started again after pauses of 1 s to 5 min"
                );
            }
            logged = Some(fault.clone());
            self.services.counters.plugin_faults.fetch_add(1, Ordering::Relaxed);
            self.change_progress(|progress| progress.count_fault("failing", fault));
            self.publish_tried();
            self.pause(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            self.change_progress(|progress| progress.restarts += 1);
        }
    }

    fn publish_tried(&self) {
        self.is_tried.store(true, Ordering::Release);
        if let Some(waker) = &self.services.waker {
            waker.wake();
        }
    }

    /// Waits before the next start.
    fn pause(&self, pause: Duration) {
        let deadline = Instant::now() + pause;
        while !self.is_stopping() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.waker.wait(left);
        }
    }

    /// Starts and configures the process, and discovers its groups.
    fn start_process(&self, file: &mut Option<TrustedFile>) -> Result<(PluginProcess, bool), StartError> {
        let file = match file.take() {
            Some(file) => file,
            // The file may have been replaced by a better one.
            None => trusted::open(&self.config.library).map_err(|error| StartError::Failed(error.0))?,
        };
        let started = process::start(&file.file);
        let started = started.map_err(|error| StartError::Failed(format!("cannot start its process: {error}")))?;
        let mut process = started.process;
        let link = PluginLink { socket: started.socket, row: Arc::new(started.row) };
        self.has_ended.store(0, Ordering::Release);
        self.has_answered.store(false, Ordering::Release);
        self.change_progress(|progress| progress.pid = Some(process.pid()));
        let version = self.configure(&link, &file, &mut process)?;
        self.discover(&link, true, &mut process).map_err(StartError::Failed)?;
        *lock(&self.fault) = None;
        *lock(&self.row) = Some(link.row.clone());
        *lock(&self.link) = Some(link);
        self.change_progress(|progress| (progress.state, progress.version) = ("running", version));
        self.publish_tried();
        Ok((process, file.is_script))
    }

    fn configure(
        &self,
        link: &PluginLink,
        file: &TrustedFile,
        process: &mut PluginProcess,
    ) -> Result<String, StartError> {
        let (config, context) = (&self.config, &self.config.context);
        // Its process has another working directory.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = |path: &Path| absolute(path).to_string_lossy().into_owned();
        let message = ConfigureMessage {
            table: config.own.text.clone(),
            file: config.file.clone(),
            path: text(&file.path),
            config_dir: text(&context.config_dir),
            proc: text(&context.roots.proc),
            sys: text(&context.roots.sys),
            cgroup: text(&context.roots.cgroup),
            is_script: file.is_script,
            memory_bytes_max: config.memory_bytes_max.0,
            processes_max: config.processes_max,
            capabilities: config.capabilities,
        };
        match self.ask(link, &PluginRequest::Configure(message), process, "configure") {
            Ok(PluginAnswer::Configured { version }) => Ok(printable(&version).chars().take(64).collect()),
            Ok(PluginAnswer::Refused { line, message }) => {
                Err(StartError::Refused(config.message(line, &printable(&message))))
            }
            Ok(PluginAnswer::Failed { reason }) => {
                let words = last_words(&self.log_printed(process, &mut 0));
                Err(StartError::Failed(printable(&format!("{reason}{words}"))))
            }
            Ok(PluginAnswer::Discovered(_)) => Err(StartError::Failed("its process gave a wrong answer".to_owned())),
            Err(fault) => Err(StartError::Failed(fault)),
        }
    }

    /// Sends a request and waits for the answer. An error says what the process did.
    fn ask(
        &self,
        link: &PluginLink,
        request: &PluginRequest,
        process: &mut PluginProcess,
        what: &str,
    ) -> Result<PluginAnswer, String> {
        let deadline = self.config.discover_deadline;
        let sent =
            link.socket.set_write_timeout(Some(deadline.duration())).and_then(|()| wire::send(&link.socket, request));
        let answer = sent.and_then(|()| wire::receive(&link.socket, Some(deadline.duration())));
        answer.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => format!("it did not {what} within {deadline}"),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                let printed = process.printed();
                let ended = process.wait_ended().unwrap_or_else(|| "its process closed its socket".to_owned());
                let said =
                    printed.lines().last().map(|line| format!(" ({})", printable(line.trim()))).unwrap_or_default();
                format!("{ended} when it should {what}{said}")
            }
            _ => format!("its process gave a wrong answer when it should {what}: {error}"),
        })
    }

    /// Asks for the groups, and makes a new layout if they differ.
    fn discover(&self, link: &PluginLink, reopen: bool, process: &mut PluginProcess) -> Result<(), String> {
        link.row.announce();
        let found = match self.ask(link, &PluginRequest::Discover { reopen }, process, "discover") {
            Ok(PluginAnswer::Discovered(found)) => found,
            Ok(PluginAnswer::Failed { reason }) => return Err(printable(&reason)),
            Ok(_) => return Err("its process gave a wrong answer".to_owned()),
            Err(fault) => return Err(fault),
        };
        let (groups, notes, keeps) = wire::checked(found);
        let mut layout = lock(&self.layout);
        let is_same =
            layout.generation > 0 && layout.groups == groups && layout.keeps == keeps && layout.notes == notes;
        if !is_same {
            let generation = layout.generation + 1;
            *layout = Arc::new(Layout { generation, groups, notes, keeps });
            self.generation.store(generation, Ordering::Release);
            drop(layout);
            if let Some(waker) = &self.services.waker {
                waker.wake();
            }
        }
        Ok(())
    }

    /// Watches a running process. Why it has to be ended; `None` if the source is dropped. Forgets the fault that was logged once a read succeeds:
    /// a plug-in that starts and then fails again does not run again.
    fn watch(&self, process: &mut PluginProcess, is_script: bool, logged: &mut Option<String>) -> Option<String> {
        let (mut usage, mut printed_lines) = (UsageWatch::new(&self.config, is_script), 0);
        let socket = lock(&self.link).as_ref().map_or(-1, |link| link.socket.as_raw_fd());
        let mut next = Instant::now() + WATCH_EVERY;
        loop {
            let is_heard = printed_lines < PRINTED_LINES_MAX;
            let is_closed = self.wait(socket, is_heard.then(|| process.printed_fd()), next);
            if self.is_stopping() {
                return None;
            }
            if is_heard || Instant::now() >= next {
                self.log_printed(process, &mut printed_lines);
            }
            if logged.is_some() && (self.has_answered.load(Ordering::Acquire) || lock(&self.layout).groups.is_empty()) {
                *logged = None;
                tracing::info!("plug-in {}: runs again", self.config.name);
            }
            if let Some(fault) = lock(&self.fault).take() {
                return Some(fault);
            }
            if is_closed {
                // A reader may wait for an answer that does not come any more.
                self.end_reads();
                let ended = process.wait_ended();
                self.log_printed(process, &mut printed_lines);
                return Some(ended.unwrap_or_else(|| "its process closed its socket".to_owned()));
            }
            if Instant::now() >= next {
                next = Instant::now() + WATCH_EVERY;
                if let Some(exceeded) = usage.exceeded(process.pid()) {
                    return Some(exceeded);
                }
            }
            if self.wants_discovery.swap(false, Ordering::AcqRel) {
                let reopen = self.wants_new_readers.swap(false, Ordering::AcqRel);
                let link = lock(&self.link);
                if let Some(link) = &*link
                    && let Err(fault) = self.discover(link, reopen, process)
                {
                    return Some(fault);
                }
            }
        }
    }

    /// Waits for a request, for the end of the process, for something printed, or until `next`. Whether the process has closed its socket.
    fn wait(&self, socket: i32, printed: Option<RawFd>, next: Instant) -> bool {
        let entry = |fd: i32, events: i16| libc::pollfd { fd, events, revents: 0 };
        let mut fds = [
            entry(self.waker.fd().as_raw_fd(), libc::POLLIN),
            entry(socket, libc::POLLRDHUP),
            // A negative descriptor is skipped.
            entry(printed.unwrap_or(-1), libc::POLLIN),
        ];
        let left = next.saturating_duration_since(Instant::now());
        // SAFETY: three entries, which outlive the call.
        unsafe { libc::poll(fds.as_mut_ptr(), 3, left.as_millis() as i32 + 1) };
        self.waker.reset();
        fds[1].revents != 0
    }

    /// Ends the wait of a reader.
    fn end_reads(&self) {
        self.has_ended.store(1, Ordering::Release);
        if let Some(row) = lock(&self.row).as_ref() {
            row.interrupt(&self.has_ended);
        }
    }

    /// Logs what the process has printed, and returns the end of it.
    fn log_printed(&self, process: &mut PluginProcess, lines: &mut usize) -> String {
        let mut last = String::new();
        for _ in 0..PRINTED_READS_MAX {
            let printed = process.printed();
            if printed.is_empty() {
                break;
            }
            for line in printed.lines().filter(|line| !line.trim().is_empty()) {
                *lines = lines.saturating_add(1);
                let line: String = line.chars().filter(|c| !c.is_control()).take(500).collect();
                if *lines <= PRINTED_LINES_MAX {
                    tracing::info!("plug-in {} prints: {line}", self.config.name);
                }
            }
            last = printed;
        }
        last
    }

    fn end(&self, process: PluginProcess) {
        self.end_reads();
        // Kills first: a reader that holds the link waits for this process.
        drop(process);
        (*lock(&self.link), *lock(&self.row)) = (None, None);
        self.change_progress(|progress| progress.pid = None);
    }

    /// Has the process ended, because of a read.
    fn fail(&self, fault: String) {
        if self.is_trial() {
            // The report does not wait for the thread.
            self.change_progress(|progress| progress.fault = Some(fault.clone()));
        }
        *lock(&self.fault) = Some(fault);
        self.waker.wake();
    }
}

/// Reads one group. On the source's own thread: it waits for the process.
struct IsolatedReader {
    plugin: Arc<IsolatedPlugin>,
    name: String,
    sensors: Vec<SensorDef>,
    /// The layout that `index` belongs to.
    generation: u64,
    /// The group's place in the process's list; `None` if the layout has no such group.
    index: Option<usize>,
    values: Box<[u64]>,
    gaps: Box<[u64]>,
}

impl IsolatedReader {
    fn new(plugin: Arc<IsolatedPlugin>, group: &CheckedGroup, generation: u64) -> Self {
        let sensors = group.sensors.len();
        Self {
            plugin,
            name: group.name.clone(),
            sensors: group.sensors.clone(),
            generation,
            index: Some(group.index),
            values: vec![0; sensors].into(),
            gaps: vec![0; sensors.div_ceil(64)].into(),
        }
    }

    /// Finds the group in another layout.
    fn find(&mut self) {
        let layout = lock(&self.plugin.layout).clone();
        let same = layout.groups.iter().find(|group| group.name == self.name && group.sensors == self.sensors);
        (self.index, self.generation) = (same.map(|group| group.index), layout.generation);
    }

    /// Asks the process. An error is the problem of the group.
    fn ask(&mut self) -> Result<RowAnswer, &'static str> {
        let plugin = self.plugin.clone();
        let mut link = lock(&plugin.link);
        let Some(open) = &*link else { return Err(NOT_RUNNING) };
        if self.generation != plugin.generation.load(Ordering::Acquire) {
            self.find();
        }
        let Some(index) = self.index else { return Err("the plug-in does not offer this group any more") };
        let deadline = plugin.config.deadline;
        let answer = open.row.read(index, &mut self.values, &mut self.gaps, deadline.duration(), &plugin.has_ended);
        answer.map_err(|error| {
            // Before the link is closed: the end of the process is only the consequence.
            match error {
                RowError::Deadline => plugin.fail(format!("group {}: a read took longer than {deadline}", self.name)),
                RowError::Noise => plugin.fail("its process wakes the agent without an answer".to_owned()),
                RowError::Ended => {}
            }
            *link = None;
            NOT_RUNNING
        })
    }
}

impl Reader for IsolatedReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        match self.ask() {
            Ok(answer) => {
                self.plugin.has_answered.store(true, Ordering::Release);
                fill(row, &self.values, &self.gaps);
                let layout_changed = answer.flags & LAYOUT_CHANGED != 0;
                if layout_changed {
                    self.plugin.wants_new_readers.store(true, Ordering::Release);
                }
                let text = (!answer.problem.is_empty()).then(|| self.plugin.texts.problem(&answer.problem));
                Reading {
                    layout_changed,
                    problem: text.map(|text| ReadProblem::Message { text }),
                    gone: false,
                    taken_at: answer.taken_at,
                    unchanged: answer.flags & UNCHANGED != 0,
                }
            }
            Err(text) => Reading { problem: Some(ReadProblem::Message { text }), ..Reading::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_program() {
        let traceback = "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\n  File \"/p/pump.py\", line 5\n    \
                         def (\n        ^\nSyntaxError: invalid syntax\n";
        for (printed, expected) in
            [(traceback, ": SyntaxError: invalid syntax (pump.py:5)"), ("a\nb \n\n", ": b"), ("", "")]
        {
            assert_eq!(last_words(printed), expected);
        }
    }
}
