//! The processes of a run: started in groups of their own, heard line by line, ended in good order or else.
//!
//! While a workload runs nothing here wakes up: everything that can happen (a line, an end, a signal to this program) comes over
//! one channel, on which the caller sleeps until its deadline.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The variable that marks every process of a folder's runs, and what those start.
const MARK: &str = "WHOLEGRAIN_EXPERIMENT_MARK";
/// How long a process has between the word to end and the end.
const GRACE: Duration = Duration::from_secs(5);
/// How long what is ending already may take to be gone unsaid.
const SETTLE: Duration = Duration::from_millis(500);
/// How long the end of a process waits for the rest of what it printed, should others hold its output open.
const REST_OF_OUTPUT: Duration = Duration::from_secs(1);
/// Bytes of a line that are taken; a longer one is nothing that was agreed on.
const LINE_BYTES_MAX: usize = 16 << 20;
/// How often is looked whether processes that are no children of ours are gone.
const LOOK: Duration = Duration::from_millis(20);

/// Something happened.
#[derive(Debug)]
pub enum Event {
    /// A child printed a line.
    Line(usize, String),
    /// A child ended, then; all that it printed was given before.
    End(usize, Instant),
    /// This program was told to end.
    Stop(i32),
    /// Nothing, until the deadline.
    Nothing,
}

/// A running child. Dropping it does not end it: dropping [`Children`] does.
struct Child {
    id: usize,
    process: std::process::Child,
    input: Option<ChildStdin>,
    /// Whether the word to end goes to the whole group: a monitor ends its own parts in order, a workload's ranks end together.
    group: bool,
}

impl Child {
    fn pid(&self) -> i32 {
        self.process.id() as i32
    }
}

/// All children of a run.
pub struct Children {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    running: Vec<Child>,
    next: usize,
    mark: String,
    stopped: Option<i32>,
}

impl Children {
    /// From now on signals to end come as events.
    pub fn new(mark: &str) -> anyhow::Result<Self> {
        let (sender, receiver) = channel();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
        let to = sender.clone();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if to.send(Event::Stop(signal)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { sender, receiver, running: Vec::new(), next: 0, mark: mark.to_owned(), stopped: None })
    }

    /// Starts a command; what it prints comes as lines, what it complains of goes to `log`. Its input stays open until it is to end.
    pub fn start(&mut self, command: &[String], group: bool, log: &Path) -> anyhow::Result<usize> {
        let (program, arguments) = command.split_first().context("an empty command")?;
        let mut prepared = Command::new(program);
        let errors = File::options().create(true).append(true).open(log);
        let errors = errors.with_context(|| format!("opening {}", log.display()))?;
        prepared.args(arguments).env(MARK, &self.mark).process_group(0);
        prepared.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let parent = std::process::id();
        // SAFETY: between fork and exec only prctl, getppid and _exit are called, which are safe there.
        unsafe {
            prepared.pre_exec(move || {
                // Should this program be killed, its children are told to end.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                Ok(())
            });
        }
        let mut process = prepared.spawn().with_context(|| format!("starting {program}"))?;
        let id = self.next;
        self.next += 1;
        let input = process.stdin.take();
        let output = process.stdout.take().context("the child's output")?;
        let (to, done) = (self.sender.clone(), channel::<()>());
        std::thread::spawn(move || {
            let _done = done.0;
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while read_line(&mut reader, &mut line) {
                if to.send(Event::Line(id, String::from_utf8_lossy(&line).into_owned())).is_err() {
                    return;
                }
            }
        });
        let (to, pid) = (self.sender.clone(), process.id());
        std::thread::spawn(move || {
            wait_without_reaping(pid);
            let ended = Instant::now();
            // Until the reader has come to the end of the output and dropped its end.
            let _ = done.1.recv_timeout(REST_OF_OUTPUT);
            let _ = to.send(Event::End(id, ended));
        });
        self.running.push(Child { id, process, input, group });
        Ok(id)
    }

    /// Sleeps until something happens or the deadline is there.
    pub fn next(&mut self, deadline: Instant) -> Event {
        if let Some(signal) = self.stopped {
            return Event::Stop(signal);
        }
        match self.receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Stop(signal)) => {
                self.stopped = Some(signal);
                Event::Stop(signal)
            }
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Nothing,
        }
    }

    /// The signal by which this program was told to end, if it was.
    pub fn stopped(&mut self) -> Option<i32> {
        if self.stopped.is_none() && self.running.is_empty() {
            while let Ok(event) = self.receiver.try_recv() {
                if let Event::Stop(signal) = event {
                    self.stopped = Some(signal);
                }
            }
        }
        self.stopped
    }

    /// Sleeps for a while, less when told to end.
    pub fn pause(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline && !matches!(self.next(deadline), Event::Stop(_)) {}
    }

    /// Tells a child to end: by SIGTERM, or by the end of its input, which goes through launchers where signals do not.
    pub fn tell(&mut self, id: usize, by_signal: bool) {
        if let Some(child) = self.running.iter_mut().find(|child| child.id == id) {
            if by_signal {
                signal(child.pid(), libc::SIGTERM);
            } else {
                child.input = None;
            }
        }
    }

    /// Takes the end of a child that an [`Event::End`] told of. The reason it did not end well, if so.
    pub fn reap(&mut self, id: usize) -> Option<String> {
        let at = self.running.iter().position(|child| child.id == id)?;
        let mut child = self.running.swap_remove(at);
        match child.process.wait() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Ends all children and what they left; the names of processes that outlived those who started them.
    pub fn end_all(&mut self) -> Vec<String> {
        for child in &mut self.running {
            child.input = None;
            signal(if child.group { -child.pid() } else { child.pid() }, libc::SIGTERM);
        }
        let deadline = Instant::now() + GRACE;
        for mut child in std::mem::take(&mut self.running) {
            let mut runs = || matches!(child.process.try_wait(), Ok(None)) || signal(-child.pid(), 0);
            while runs() && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
            signal(-child.pid(), libc::SIGKILL);
            let _ = child.process.wait();
        }
        let left = sweep(&self.mark);
        // What the ended ones still said is nobody's any more.
        while let Ok(event) = self.receiver.try_recv() {
            if let Event::Stop(signal) = event {
                self.stopped = Some(signal);
            }
        }
        left
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Ends every process of this machine that carries the mark: ranks and servers whose starters are gone. Their names.
pub fn sweep(mark: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let begun = Instant::now();
    loop {
        let found = marked(mark);
        if !found.is_empty() && begun.elapsed() < SETTLE {
            std::thread::sleep(LOOK);
            continue;
        }
        for (pid, name) in &found {
            if !names.contains(name) {
                names.push(name.clone());
            }
            signal(*pid, if begun.elapsed() < GRACE { libc::SIGTERM } else { libc::SIGKILL });
        }
        // Twice the grace: what SIGKILL does not end waits for a disk, and no waiting here helps.
        if found.is_empty() || begun.elapsed() > 2 * GRACE {
            return names;
        }
        std::thread::sleep(LOOK);
    }
}

/// Processes that carry the mark, by number and name.
fn marked(mark: &str) -> Vec<(i32, String)> {
    let wanted = format!("{MARK}={mark}");
    let of = |pid: i32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let marked = variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes());
        let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
        marked.then(|| (pid, name()))
    };
    let own = std::process::id() as i32;
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != own).filter_map(of).collect()
}

/// Sends a signal to a process, or to a group of them when the number is negative; whether there was one; signal 0 only asks.
fn signal(to: i32, signal: i32) -> bool {
    // SAFETY: kill takes two numbers and touches no memory.
    unsafe { libc::kill(to, signal) == 0 }
}

/// Sleeps until a child has ended and leaves its end to be taken by who started it.
fn wait_without_reaping(pid: u32) {
    loop {
        // SAFETY: all zeros is a valid siginfo_t, which waitid fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live variable of the right type.
        let failed = unsafe { libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT) } != 0;
        if !failed || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// Reads a line without its end; false at the end of the output or when a line is longer than anything agreed on.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    use std::io::Read;
    line.clear();
    match reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', line) {
        Ok(0) | Err(_) => false,
        Ok(read) => {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            read < LINE_BYTES_MAX
        }
    }
}
