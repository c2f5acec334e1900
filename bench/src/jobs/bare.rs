//! The yardstick for jobs: a loop with the same tick that performs the same reads of cgroup files and perf counters as the agent,
//! with nothing around them. Each second it prints ticks made and missed, and on request the time of each kind of read.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Software events by the names of `perf list`, in the order of their numbers in perf_event_open(2).
pub const EVENTS: [&str; 12] = [
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];
/// Kinds of reads, each with a time of its own.
const KINDS: [&str; 3] = ["memory.stat", "perf", "other"];

#[derive(clap::Args)]
pub struct BareJobsOptions {
    /// Length of a tick, milliseconds.
    #[arg(long, default_value_t = 1)]
    interval_ms: u64,
    /// A file with one read in each line.
    #[arg(long)]
    reads: PathBuf,
    /// Also take the time of each kind of read, which costs a little itself.
    #[arg(long)]
    time: bool,
}

/// A read with one system call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// A file, from its beginning.
    File(PathBuf),
    /// A group of software events of a cgroup on one CPU.
    Perf(PathBuf, usize, Vec<String>),
}

impl std::fmt::Display for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Read::File(path) => write!(f, "file\t{}", path.display()),
            Read::Perf(dir, cpu, events) => write!(f, "perf\t{}\t{cpu}\t{}", dir.display(), events.join(",")),
        }
    }
}

impl Read {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["file", path] => Ok(Read::File(path.into())),
            ["perf", dir, cpu, events] => {
                Ok(Read::Perf(dir.into(), cpu.parse()?, events.split(',').map(str::to_owned).collect()))
            }
            _ => anyhow::bail!("not a read: {line}"),
        }
    }
}

/// The software event that a metric's name stands for; `None` for any other.
pub fn event(metric: &str) -> Option<String> {
    let name = metric.replace('_', "-");
    EVENTS.contains(&name.as_str()).then_some(name)
}

/// An open read and its kind.
pub struct Open {
    /// The others are the rest of a perf group, open and never read themselves.
    descriptors: Vec<OwnedFd>,
    kind: usize,
    perf: bool,
}

pub fn run(options: &BareJobsOptions) -> anyhow::Result<()> {
    let mut open = open_listed(&options.reads)?;
    open.sort_by_key(|read| read.kind);
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    tick_until_killed(&open, options)
}

/// Opens the reads of a list.
pub fn open_listed(list: &Path) -> anyhow::Result<Vec<Open>> {
    let text = std::fs::read_to_string(list).with_context(|| format!("the list of reads {}", list.display()))?;
    crate::load::raise_open_files();
    text.lines().map(|line| open_read(&Read::parse(line)?)).collect()
}

fn tick_until_killed(open: &[Open], options: &BareJobsOptions) -> anyhow::Result<()> {
    let mut buffer = vec![0u8; 64 << 10];
    let interval_ns = i64::try_from(options.interval_ms * 1_000_000).context("the interval")?;
    let mut spent_ns = [0; KINDS.len()];
    let mut next = now();
    let (mut made, mut missed, mut reported) = (0u64, 0, next);
    loop {
        let skipped = (now() - next).max(0) / interval_ns;
        next += interval_ns * (1 + skipped);
        missed += skipped;
        made += 1;
        if next - reported >= 1_000_000_000 {
            reported = next;
            let [memory, perf, other] = spent_ns;
            println!("{made} {missed} {memory} {perf} {other}");
            std::io::stdout().flush()?;
        }
        let deadline = libc::timespec { tv_sec: next / 1_000_000_000, tv_nsec: next % 1_000_000_000 };
        // SAFETY: `deadline` lives through the call; the remaining time is not asked for.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &deadline, std::ptr::null_mut()) };
        if options.time {
            // Reads are sorted by kind, so that the clock is read three times a tick, not at each read.
            for kind in open.chunk_by(|a, b| a.kind == b.kind) {
                let start = now();
                kind.iter().try_for_each(|read| read_one(read, &mut buffer))?;
                spent_ns[kind[0].kind] += now() - start;
            }
        } else {
            open.iter().try_for_each(|read| read_one(read, &mut buffer))?;
        }
    }
}

pub fn read_one(read: &Open, buffer: &mut [u8]) -> anyhow::Result<()> {
    let descriptor = read.descriptors[0].as_raw_fd();
    let (place, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    let count = if read.perf {
        // SAFETY: `length` is the buffer's, and nobody else uses it.
        unsafe { libc::read(descriptor, place, length) }
    } else {
        // SAFETY: as above.
        unsafe { libc::pread(descriptor, place, length, 0) }
    };
    ensure!(count >= 0, "reading: {}", std::io::Error::last_os_error());
    Ok(())
}

pub fn open_read(read: &Read) -> anyhow::Result<Open> {
    match read {
        Read::File(path) => {
            let memory = path.file_name().is_some_and(|name| name == KINDS[0]);
            let kind = if memory { 0 } else { 2 };
            Ok(Open { descriptors: vec![open_path(path, libc::O_RDONLY)?], kind, perf: false })
        }
        Read::Perf(dir, cpu, events) => {
            let cgroup = open_path(dir, libc::O_RDONLY | libc::O_DIRECTORY)?;
            let mut descriptors: Vec<OwnedFd> = Vec::new();
            for name in events {
                let leader = descriptors.first().map_or(-1, AsRawFd::as_raw_fd);
                let event = open_event(name, cgroup.as_raw_fd(), *cpu, leader);
                descriptors.push(event.with_context(|| format!("the event {name} of {}", dir.display()))?);
            }
            ensure!(!descriptors.is_empty(), "no events");
            Ok(Open { descriptors, kind: 1, perf: true })
        }
    }
}

fn open_path(path: &Path, flags: libc::c_int) -> anyhow::Result<OwnedFd> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `text` is a string with its final NUL that outlives the call.
    let descriptor = unsafe { libc::open(text.as_ptr(), flags | libc::O_CLOEXEC) };
    ensure!(descriptor >= 0, "opening {}: {}", path.display(), std::io::Error::last_os_error());
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Opens a software event of a cgroup on a CPU, below a leader or as one; layout of `perf_event_attr` in perf_event_open(2).
fn open_event(name: &str, cgroup: libc::c_int, cpu: usize, leader: libc::c_int) -> anyhow::Result<OwnedFd> {
    const ATTR_BYTES: u32 = 64; // PERF_ATTR_SIZE_VER0
    const TYPE_SOFTWARE: u32 = 1;
    const READ_FORMAT: u64 = 1 | 2 | 8; // time enabled, time running, the whole group
    const PID_IS_CGROUP: libc::c_ulong = 4;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let config = EVENTS.iter().position(|event| *event == name).context("no software event")? as u64;
    let mut attr = [0u8; ATTR_BYTES as usize];
    attr[0..4].copy_from_slice(&TYPE_SOFTWARE.to_le_bytes());
    attr[4..8].copy_from_slice(&ATTR_BYTES.to_le_bytes());
    attr[8..16].copy_from_slice(&config.to_le_bytes());
    attr[32..40].copy_from_slice(&READ_FORMAT.to_le_bytes());
    let cpu = libc::c_int::try_from(cpu)?;
    // SAFETY: `attr` is as long as its own size field says and outlives the call.
    let descriptor = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), cgroup, cpu, leader, PID_IS_CGROUP | CLOSE_ON_EXEC)
    };
    ensure!(descriptor >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::c_int::try_from(descriptor)?) })
}

fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer is to a live variable of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_reads_is_read_as_it_was_written() {
        let reads = [
            Read::File("/a b/memory.stat".into()),
            Read::Perf("/x".into(), 1, vec!["cpu-clock".into(), "dummy".into()]),
        ];
        for read in reads {
            assert_eq!(Read::parse(&read.to_string()).unwrap(), read);
        }
        assert!(Read::parse("fil\t/x").is_err());
        assert_eq!((event("page_faults").as_deref(), event("instructions")), (Some("page-faults"), None));
    }
}
