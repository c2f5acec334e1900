//! Processes by state, from /proc/PID/stat of every process (proc_pid_stat(5)).
//!
//! - In: `[sources.processes]`, and the folders below `roots.proc`.
//! - Out: the group `processes`.
//! - Never: a part of the processes in place of all. Beyond the configured number the read ends and gives gaps.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, SensorDef};

use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::{SensorPlan, Slot};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::scan;
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "processes",
    summary: "processes by state and their threads, from /proc/PID/stat of every process",
    configure,
    jobs: None,
};

/// The name of the source and of its group.
const NAME: &str = SOURCE.name;
/// The interval without settings. Each read opens a file for each process.
const INTERVAL: Interval = Interval::from_s(10);
/// The most processes of a read that the settings accept.
const PROCESSES_MAX: u32 = 1 << 20;
/// Bytes of names of /proc that are read at a time.
const NAMES_BYTES: usize = 16 << 10;
/// The beginning of a stat: the number, the name of at most 16 bytes, the state, and 17 numbers.
const STAT_BYTES: usize = 512;
/// The longest name in /proc of a stat, such as `4194304/stat`, with its end.
const PATH_BYTES: usize = 32;

/// The states of proc_pid_stat(5): letter, name, description.
const STATES: [(u8, &str, &str); 8] = [
    (b'R', "running", "Processes that run or could run."),
    (b'S', "sleeping", "Processes that wait and can be interrupted."),
    (b'D', "waiting", "Processes that wait for a disk and cannot be interrupted."),
    (b'Z', "zombie", "Processes that have ended and are not yet waited for."),
    (b'T', "stopped", "Processes stopped by a signal."),
    (b't', "traced", "Processes stopped by a debugger."),
    (b'I', "idle", "Idle threads of the kernel."),
    (b'P', "parked", "Parked threads of the kernel."),
];

/// The keys of `[sources.processes]` besides those of [`GroupOptions`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProcessesKeys {
    max: u32,
}

impl Default for ProcessesKeys {
    fn default() -> Self {
        Self { max: 32_768 }
    }
}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys): (GroupOptions, ProcessesKeys) = options::read(section)?;
    if keys.max == 0 || keys.max > PROCESSES_MAX {
        return Err(section.error("max", format!("max is {}; expected 1 to {PROCESSES_MAX}", keys.max)));
    }
    Ok(Box::new(ProcessesSource { options, root: context.roots.proc.clone(), max: keys.max }))
}

struct ProcessesSource {
    options: GroupOptions,
    root: PathBuf,
    max: u32,
}

impl Source for ProcessesSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let folder = match File::open(&self.root) {
            Ok(folder) => folder,
            Err(error) => {
                report(format!("{NAME}: {} is left out: {error}", self.root.display()));
                return Vec::new();
            }
        };
        if !has_processes(&self.root) {
            return Vec::new();
        }
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let states = STATES.map(|(_, name, text)| plan.add(SensorDef::gauge(format!("{NAME}/{name}"), "1", text)));
        let total = plan.add(SensorDef::gauge(format!("{NAME}/total"), "1", "All processes."));
        let threads = plan.add(SensorDef::gauge(format!("{NAME}/threads"), "1", "Threads of all processes."));
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let reader = ProcessesReader { folder, max: self.max, states, total, threads, names: [0; NAMES_BYTES] };
        let timing = self.options.timing_or(&NO_OPTIONS, Some(INTERVAL));
        vec![GroupPlan { name: NAME.to_owned(), sensors, reader: Box::new(reader), timing, blocking: true }]
    }
}

/// Whether a folder has one of a process.
fn has_processes(root: &Path) -> bool {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| pid(name.as_encoded_bytes()).is_some())
}

/// The number of a process's folder.
fn pid(name: &[u8]) -> Option<u32> {
    let (number, end) = scan::number_at(name, 0)?;
    u32::try_from(number).ok().filter(|_| end == name.len())
}

/// What a read counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    states: [i64; STATES.len()],
    total: i64,
    threads: i64,
}

impl Counts {
    /// Adds a process; `None` for a stat in another format.
    fn add(&mut self, stat: &[u8]) -> Option<()> {
        let (state, threads) = parse(stat)?;
        if let Some(index) = STATES.iter().position(|(letter, ..)| *letter == state) {
            self.states[index] += 1;
        }
        self.total += 1;
        self.threads += threads;
        Some(())
    }
}

/// The state and the number of threads of a stat. The name may have any characters, also parentheses.
fn parse(stat: &[u8]) -> Option<(u8, i64)> {
    let name_end = memchr::memrchr(b')', stat)?;
    let mut fields = stat.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let [state @ b'A'..=b'z'] = *fields.next()? else { return None };
    let threads = fields.nth(16)?;
    let (threads, end) = scan::int_at(threads, 0)?;
    // A space follows, so that the number is complete.
    fields.next().filter(|_| end > 0)?;
    Some((state, threads))
}

struct ProcessesReader {
    folder: File,
    max: u32,
    states: [Slot; STATES.len()],
    total: Slot,
    threads: Slot,
    names: [u8; NAMES_BYTES],
}

impl Reader for ProcessesReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        match self.count() {
            Ok(counts) => {
                let slots = self.states.iter().zip(counts.states);
                for (slot, value) in slots.chain([(&self.total, counts.total), (&self.threads, counts.threads)]) {
                    if let Some(slot) = slot {
                        row.set_int(*slot as usize, value);
                    }
                }
                Reading::default()
            }
            Err(problem) => Reading { problem: Some(problem), ..Reading::default() },
        }
    }
}

impl ProcessesReader {
    /// Counts all processes. Those that end meanwhile do not count.
    fn count(&mut self) -> Result<Counts, ReadProblem> {
        let os = |errno| ReadProblem::Os { what: NAME, errno };
        let fd = self.folder.as_raw_fd();
        // SAFETY: the descriptor is open.
        if unsafe { libc::lseek(fd, 0, libc::SEEK_SET) } < 0 {
            return Err(os(last_errno()));
        }
        let (mut counts, mut left) = (Counts::default(), self.max);
        let mut stat = [0; STAT_BYTES];
        loop {
            // SAFETY: the descriptor is open, and the buffer is writable for its length.
            let length = unsafe { libc::syscall(libc::SYS_getdents64, fd, self.names.as_mut_ptr(), self.names.len()) };
            let Ok(length) = usize::try_from(length) else { return Err(os(last_errno())) };
            if length == 0 {
                return Ok(counts);
            }
            let mut rest = &self.names[..length.min(NAMES_BYTES)];
            while let Some((name, after)) = entry(rest) {
                rest = after;
                let Some(pid) = pid(name) else { continue };
                left = left.checked_sub(1).ok_or(os(libc::E2BIG))?;
                match read_stat(fd, pid, &mut stat) {
                    Ok(length) => {
                        counts.add(&stat[..length]).ok_or(ReadProblem::Garbage { what: NAME, line: 1 })?;
                    }
                    Err(libc::ENOENT | libc::ESRCH | libc::ENOTDIR) => {}
                    Err(errno) => return Err(os(errno)),
                }
            }
        }
    }
}

/// The name of the first entry of getdents64(2), and the entries after it.
fn entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let length = usize::from(u16::from_ne_bytes(*bytes.get(LENGTH_AT..)?.first_chunk()?));
    let name = bytes.get(NAME_AT..length)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((&name[..end], &bytes[length..]))
}

/// Reads the beginning of a process's stat below the folder; gives its length.
fn read_stat(folder: i32, pid: u32, stat: &mut [u8]) -> Result<usize, i32> {
    let mut path = [0; PATH_BYTES];
    write!(&mut path[..PATH_BYTES - 1], "{pid}/stat").map_err(|_| libc::ENAMETOOLONG)?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` ends in a NUL and outlives the call.
    let fd = unsafe { libc::openat(folder, path.as_ptr().cast(), flags) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    io::Read::read(&mut &file, stat).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests;
