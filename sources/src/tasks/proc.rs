//! The files of a process in /proc: stat, io, and without taskstats also status and schedstat (Documentation/filesystems/proc.rst,
//! Documentation/scheduler/sched-stats.rst).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::usage::{DELAY_CPU, FAULTS, IO, ProcessGauges, RUN, SWITCHES, Usage};
use crate::scan::{self, Cursor};

/// The longest of these files, in bytes.
const FILE_BYTES_MAX: usize = 4096;
/// The longest path below /proc.
const PATH_BYTES_MAX: usize = 64;
/// The most threads of one process that are read.
const THREADS_MAX: usize = 4096;

/// An open /proc with a buffer for its files.
pub struct Proc {
    directory: Arc<OwnedFd>,
    page_bytes: u64,
    buffer: [u8; FILE_BYTES_MAX],
}

/// The stat of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub start: u64,
    pub parent: u32,
    pub has_ended: bool,
    pub faults: [u64; 2],
    pub threads: u64,
    pub rss_pages: u64,
}

impl Proc {
    /// Another reader of the same tree.
    pub fn sharing(&self) -> Self {
        Self { directory: self.directory.clone(), page_bytes: self.page_bytes, buffer: [0; FILE_BYTES_MAX] }
    }

    /// Opens the tree at `root`.
    pub fn open(root: &Path) -> io::Result<Self> {
        // SAFETY: sysconf only returns a number.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = u64::try_from(page_bytes).unwrap_or(4096);
        Ok(Self { directory: Arc::new(File::open(root)?.into()), page_bytes, buffer: [0; FILE_BYTES_MAX] })
    }

    /// Reads the stat of a process.
    pub fn stat(&mut self, pid: u32) -> io::Result<Stat> {
        parse_stat(self.read(format_args!("{pid}/stat"))?).ok_or_else(garbage)
    }

    /// The gauges in stat. The peak of the memory is not among them.
    pub fn gauges(&self, stat: &Stat) -> ProcessGauges {
        ProcessGauges { threads: stat.threads, rss_bytes: stat.rss_pages * self.page_bytes, peak_rss_bytes: 0 }
    }

    /// Adds the I/O of a process, which includes that of the children for which it has waited.
    pub fn io(&mut self, pid: u32, usage: &mut Usage) -> io::Result<()> {
        parse_io(self.read(format_args!("{pid}/io"))?, usage).ok_or_else(garbage)
    }

    /// Without taskstats: adds time on CPUs, waits for CPUs and switches of the living threads. Gives the peak of the memory, in bytes.
    pub fn threads(&mut self, pid: u32, threads: u64, usage: &mut Usage) -> io::Result<u64> {
        let status = self.read(format_args!("{pid}/status"))?;
        let peak_rss_bytes = key(status, b"VmHWM:").unwrap_or(0).saturating_mul(1024);
        if threads <= 1 {
            add_switches(status, usage);
            add_schedstat(self.read(format_args!("{pid}/schedstat")).unwrap_or_default(), usage);
            return Ok(peak_rss_bytes);
        }
        let mut path = [0; PATH_BYTES_MAX];
        let path = written(&mut path, format_args!("/proc/self/fd/{}/{pid}/task", self.directory.as_raw_fd()))?;
        let path = std::str::from_utf8(path).map_err(|_| garbage())?;
        for entry in std::fs::read_dir(path)?.flatten().take(THREADS_MAX) {
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A thread that has just ended is missing, as are all threads that ended before.
            if let Ok(status) = self.read(format_args!("{pid}/task/{thread}/status")) {
                add_switches(status, usage);
            }
            add_schedstat(self.read(format_args!("{pid}/task/{thread}/schedstat")).unwrap_or_default(), usage);
        }
        Ok(peak_rss_bytes)
    }

    fn read(&mut self, path: std::fmt::Arguments<'_>) -> io::Result<&[u8]> {
        let mut name = [0; PATH_BYTES_MAX];
        // The last byte remains NUL.
        written(&mut name[..PATH_BYTES_MAX - 1], path)?;
        // SAFETY: `name` ends in a NUL and the directory is open.
        let fd =
            unsafe { libc::openat(self.directory.as_raw_fd(), name.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        let length = file.read_at(&mut self.buffer, 0)?;
        Ok(&self.buffer[..length])
    }
}

fn written<'a>(out: &'a mut [u8], text: std::fmt::Arguments<'_>) -> io::Result<&'a [u8]> {
    let mut rest = &mut *out;
    rest.write_fmt(text)?;
    let left = rest.len();
    let length = out.len() - left;
    Ok(&out[..length])
}

fn garbage() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Parses `4242 (a name) S 1 …`. The name may contain spaces and parentheses, so that the fields begin after the last parenthesis.
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let end = memchr::memrchr(b')', bytes)?;
    let mut fields = bytes.get(end + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let mut number = |skipped: usize| {
        let field = fields.nth(skipped)?;
        scan::int_at(field, 0).filter(|&(_, end)| end == field.len()).map(|(value, _)| value as u64)
    };
    let parent = number(0)?;
    let minor = number(5)?;
    let major = number(1)?;
    let threads = number(7)?;
    let start = number(1)?;
    let rss_pages = number(1)?;
    // The field that follows shows that the last number is complete.
    fields.next()?;
    // Dead or zombie.
    let has_ended = matches!(state, b'X' | b'x' | b'Z');
    Some(Stat { start, parent: u32::try_from(parent).ok()?, has_ended, faults: [minor, major], threads, rss_pages })
}

/// Sets the counters of page faults.
pub fn add_faults(stat: &Stat, usage: &mut Usage) {
    usage.0[FAULTS..FAULTS + 2].copy_from_slice(&stat.faults);
}

const IO_KEYS: [&[u8]; 7] =
    [b"rchar:", b"wchar:", b"syscr:", b"syscw:", b"read_bytes:", b"write_bytes:", b"cancelled_write_bytes:"];

fn parse_io(bytes: &[u8], usage: &mut Usage) -> Option<()> {
    for (line, (name, value)) in scan::lines(bytes).zip(IO_KEYS.iter().zip(&mut usage.0[IO..])) {
        let mut cursor = Cursor::new(line);
        cursor.literal(name)?;
        *value = cursor.skip_spaces().int().filter(|_| cursor.is_at_end())? as u64;
    }
    (scan::lines(bytes).count() >= IO_KEYS.len()).then_some(())
}

fn add_switches(status: &[u8], usage: &mut Usage) {
    for (index, name) in [b"voluntary_ctxt_switches:".as_slice(), b"nonvoluntary_ctxt_switches:"].iter().enumerate() {
        usage.0[SWITCHES + index] += key(status, name).unwrap_or(0);
    }
}

/// Adds the fields of schedstat: time on a CPU, time of waits for a CPU, number of time slices.
fn add_schedstat(bytes: &[u8], usage: &mut Usage) {
    let mut cursor = Cursor::new(bytes);
    for counter in [RUN, DELAY_CPU + 1, DELAY_CPU] {
        let Some(value) = cursor.skip_spaces().number() else { return };
        usage.0[counter] += value;
    }
}

/// The number in a line of status, such as `VmHWM: 2048 kB` with a tab after the colon.
fn key(bytes: &[u8], name: &[u8]) -> Option<u64> {
    let line = scan::lines(bytes).find_map(|line| line.strip_prefix(name))?;
    let start = line.iter().position(u8::is_ascii_digit)?;
    scan::number_at(line, start).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &[u8] = b"4242 (a) b (c) S 4200 4242 4242 0 -1 4194304 1234 99 56 7 8 9 1 2 20 0 3 0 777 10000 512 18446744073709551615 1 1 0\n";

    #[test]
    fn stat() {
        let expected =
            Stat { start: 777, parent: 4200, has_ended: false, faults: [1234, 56], threads: 3, rss_pages: 512 };
        assert_eq!(parse_stat(STAT), Some(expected));
        let zombie = String::from_utf8_lossy(STAT).replace(") S ", ") Z ");
        assert!(parse_stat(zombie.as_bytes()).unwrap().has_ended);
        let whole = String::from_utf8_lossy(STAT).find("512 ").unwrap() + 4;
        for end in 0..whole {
            assert_eq!(parse_stat(&STAT[..end]), None, "cut at {end}");
        }
        let mut random = crate::testing::Random::seeded();
        for _ in 0..10_000 {
            std::hint::black_box(parse_stat(&crate::testing::changed(STAT, &mut random)));
        }
    }

    #[test]
    fn io() {
        let text = b"rchar: 10\nwchar: 20\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 1\n";
        let mut usage = Usage::default();
        assert_eq!(parse_io(text, &mut usage), Some(()));
        assert_eq!(usage.0[IO..], [10, 20, 3, 4, 4096, 8192, 1]);
        for end in 0..text.len() - 1 {
            assert_eq!(parse_io(&text[..end], &mut Usage::default()), None, "cut at {end}");
        }
    }

    #[test]
    fn threads() {
        let mut usage = Usage::default();
        let status = b"Name:\tx\nVmHWM:\t    2048 kB\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n";
        add_switches(status, &mut usage);
        add_switches(status, &mut usage);
        add_schedstat(b"1000 200 3\n", &mut usage);
        add_schedstat(b"", &mut usage);
        assert_eq!((usage.0[SWITCHES], usage.0[SWITCHES + 1]), (10, 12));
        assert_eq!((usage.0[RUN], usage.0[DELAY_CPU], usage.0[DELAY_CPU + 1]), (1000, 3, 200));
        assert_eq!((key(status, b"VmHWM:"), key(status, b"VmRSS:")), (Some(2048), None));
    }
}
