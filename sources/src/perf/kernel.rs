//! The system calls, behind a trait, so that what hardware and permissions do can be specified in tests.
//!
//! Layouts and numbers are those of linux/perf_event.h, as perf_event_open(2) describes them.

use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::descriptors::Descriptor;
use crate::file::Errno;

/// A file descriptor.
pub type Fd = i32;

/// `PERF_TYPE_HARDWARE`.
pub const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_SOFTWARE`.
pub const TYPE_SOFTWARE: u32 = 1;
/// `PERF_TYPE_TRACEPOINT`.
pub const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_TYPE_HW_CACHE`.
pub const TYPE_CACHE: u32 = 3;
/// `PERF_TYPE_RAW`.
pub const TYPE_RAW: u32 = 4;

/// `disabled`: the event waits until it is enabled.
pub const DISABLED: u64 = 1;
/// `exclude_user`.
pub const EXCLUDE_USER: u64 = 1 << 4;
/// `exclude_kernel`.
pub const EXCLUDE_KERNEL: u64 = 1 << 5;
/// `exclude_hv`.
pub const EXCLUDE_HV: u64 = 1 << 6;

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING | ID | GROUP`.
pub const READ_FORMAT: u64 = 1 | 2 | 4 | 8;

/// `PERF_FLAG_PID_CGROUP`.
const FLAG_CGROUP: u64 = 4;
/// `PERF_FLAG_FD_CLOEXEC`.
const FLAG_CLOEXEC: u64 = 8;
/// `PERF_EVENT_IOC_ENABLE`.
const IOC_ENABLE: u64 = 0x2400;
/// `PERF_EVENT_IOC_ID`, for a pointer of 64 bits.
const IOC_ID: u64 = 0x8008_2407;

/// The part of the descriptors that the process may have which counters may take: of 4, so many. The rest is for files, sockets
/// and the log.
const DESCRIPTORS_SHARE: (u64, u64) = (3, 4);

/// `struct perf_event_attr` up to `config2` (`PERF_ATTR_SIZE_VER1`), which every kernel since 2.6.39 takes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    /// `type`: which PMU.
    pub kind: u32,
    /// The structure's size, which is its version.
    pub size: u32,
    /// Which event of the PMU.
    pub config: u64,
    /// 0: it counts and does not sample.
    pub sample_period: u64,
    /// Nothing, as it does not sample.
    pub sample_type: u64,
    /// What a read gives.
    pub read_format: u64,
    /// `disabled`, `exclude_user`, … from the lowest bit.
    pub flags: u64,
    /// 0.
    pub wakeup_events: u32,
    /// 0.
    pub bp_type: u32,
    /// More of `config`.
    pub config1: u64,
    /// More of `config`.
    pub config2: u64,
}

impl Attr {
    /// A counter that is read as a group.
    pub fn new(kind: u32, config: [u64; 3], flags: u64) -> Self {
        let size = size_of::<Self>() as u32;
        let [config, config1, config2] = config;
        Self { kind, size, config, read_format: READ_FORMAT, flags, config1, config2, ..Self::default() }
    }
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Everything on the CPU.
    Everyones,
    /// The processes of a cgroup: its directory's descriptor.
    Cgroup(Fd),
}

/// What this source asks of the kernel.
pub trait Kernel: Send + Sync {
    /// `perf_event_open`: an event on a CPU, in the group of `leader` if there is one.
    fn open(&self, attr: &Attr, whose: Whose, cpu: u32, leader: Option<Fd>) -> Result<Fd, Errno>;
    /// The id that the event has in a group's read.
    fn id(&self, fd: Fd) -> Result<u64, Errno>;
    /// Lets a group begin to count.
    fn enable(&self, leader: Fd) -> Result<(), Errno>;
    /// Reads a group: the number of bytes put into `words`.
    fn read(&self, leader: Fd, words: &mut [u64]) -> Result<usize, Errno>;
    /// Closes an event's or a directory's descriptor.
    fn close(&self, fd: Fd);
    /// A descriptor of a directory.
    fn open_directory(&self, path: &Path) -> Result<Fd, Errno>;
    /// Whose a file is.
    fn owner(&self, path: &CStr) -> Result<u32, Errno>;
    /// Whose the agent is.
    fn uid(&self) -> u32;
    /// A clock that only rises, to some milliseconds, which costs next to nothing to ask, in ms.
    fn coarse_ms(&self) -> u64;
}

/// A descriptor that is closed when it is dropped.
pub struct Owned {
    fd: Fd,
    _descriptor: Option<Descriptor>,
    kernel: Arc<dyn Kernel>,
}

impl Owned {
    /// Takes a descriptor that nobody else closes.
    pub fn new(fd: Fd, kernel: &Arc<dyn Kernel>) -> Self {
        Self { fd, _descriptor: None, kernel: kernel.clone() }
    }

    /// The same, with the place that it takes among those of jobs.
    pub fn holding(mut self, descriptor: Option<Descriptor>) -> Self {
        self._descriptor = descriptor;
        self
    }

    /// Its number.
    pub fn fd(&self) -> Fd {
        self.fd
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kernel.close(self.fd);
    }
}

/// The kernel that this runs on.
pub struct Linux;

/// Descriptors that all sources of this process have open through [`Linux`].
static DESCRIPTORS: AtomicU64 = AtomicU64::new(0);

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// How many descriptors counters may have open.
fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable and of the type that is asked for.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let (part, of) = DESCRIPTORS_SHARE;
    if known { (limit.rlim_cur / of).saturating_mul(part) } else { u64::MAX }
}

impl Linux {
    /// Counts a new descriptor, or says why there may be none.
    fn counted(&self, fd: i64) -> Result<Fd, Errno> {
        if fd < 0 {
            return Err(last_errno());
        }
        DESCRIPTORS.fetch_add(1, Ordering::Relaxed);
        Ok(fd as Fd)
    }
}

impl Kernel for Linux {
    fn open(&self, attr: &Attr, whose: Whose, cpu: u32, leader: Option<Fd>) -> Result<Fd, Errno> {
        if DESCRIPTORS.load(Ordering::Relaxed) >= descriptors_max() {
            return Err(libc::EMFILE);
        }
        let (pid, flags) = match whose {
            Whose::Everyones => (-1, FLAG_CLOEXEC),
            Whose::Cgroup(directory) => (directory, FLAG_CLOEXEC | FLAG_CGROUP),
        };
        let (cpu, leader) = (i64::from(cpu), i64::from(leader.unwrap_or(-1)));
        // SAFETY: `attr` is laid out as the kernel's structure of the size that it names, and outlives the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, std::ptr::from_ref(attr), i64::from(pid), cpu, leader, flags)
        };
        self.counted(fd)
    }

    fn id(&self, fd: Fd) -> Result<u64, Errno> {
        let mut id = 0u64;
        // SAFETY: this request writes 64 bits to the address that it is given.
        let result = unsafe { libc::ioctl(fd, IOC_ID as _, std::ptr::from_mut(&mut id)) };
        if result < 0 { Err(last_errno()) } else { Ok(id) }
    }

    fn enable(&self, leader: Fd) -> Result<(), Errno> {
        // SAFETY: this request takes no address.
        let result = unsafe { libc::ioctl(leader, IOC_ENABLE as _, 0) };
        if result < 0 { Err(last_errno()) } else { Ok(()) }
    }

    #[inline]
    fn read(&self, leader: Fd, words: &mut [u64]) -> Result<usize, Errno> {
        loop {
            // SAFETY: `words` is writable for as many bytes as are asked for.
            let count = unsafe { libc::read(leader, words.as_mut_ptr().cast(), size_of_val(words)) };
            match usize::try_from(count) {
                Ok(count) => return Ok(count),
                Err(_) => match last_errno() {
                    libc::EINTR => {}
                    errno => return Err(errno),
                },
            }
        }
    }

    fn close(&self, fd: Fd) {
        DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the descriptor belongs to an `Owned` that is just dropped. An error leaves it closed all the same.
        unsafe { libc::close(fd) };
    }

    fn open_directory(&self, path: &Path) -> Result<Fd, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::ENOENT)?;
        // SAFETY: `path` ends in a NUL and outlives the call.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        self.counted(i64::from(fd))
    }

    fn owner(&self, path: &CStr) -> Result<u32, Errno> {
        // SAFETY: `stat` is plain numbers, for which zero is a value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `path` ends in a NUL, `stat` is writable.
        let result = unsafe { libc::stat(path.as_ptr(), &mut stat) };
        if result < 0 { Err(last_errno()) } else { Ok(stat.st_uid) }
    }

    fn uid(&self) -> u32 {
        // SAFETY: it only gives a number.
        unsafe { libc::geteuid() }
    }

    fn coarse_ms(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
        time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
    }
}
