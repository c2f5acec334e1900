//! The system calls, behind a trait, so that tests can simulate hardware and permissions.
//!
//! Layouts and numbers are those of linux/perf_event.h; see perf_event_open(2).

use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::descriptors::Descriptor;
use crate::file::Errno;

/// The number of a file descriptor.
pub type Fd = i32;

/// `PERF_TYPE_HARDWARE` of the kernel's header.
pub const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_SOFTWARE` of the kernel's header.
pub const TYPE_SOFTWARE: u32 = 1;
/// `PERF_TYPE_TRACEPOINT` of the kernel's header.
pub const TYPE_TRACEPOINT: u32 = 2;
/// `PERF_TYPE_HW_CACHE` of the kernel's header.
pub const TYPE_CACHE: u32 = 3;
/// `PERF_TYPE_RAW` of the kernel's header.
pub const TYPE_RAW: u32 = 4;

/// `disabled`: the event waits until it is enabled.
pub const DISABLED: u64 = 1;
/// `exclude_user` of the kernel's header.
pub const EXCLUDE_USER: u64 = 1 << 4;
/// `exclude_kernel` of the kernel's header.
pub const EXCLUDE_KERNEL: u64 = 1 << 5;
/// `exclude_hv` of the kernel's header.
pub const EXCLUDE_HV: u64 = 1 << 6;

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING | ID | GROUP`.
pub const READ_FORMAT: u64 = 1 | 2 | 4 | 8;

/// `PERF_FLAG_PID_CGROUP` of the kernel's header.
const FLAG_CGROUP: u64 = 4;
/// `PERF_FLAG_FD_CLOEXEC` of the kernel's header.
const FLAG_CLOEXEC: u64 = 8;
/// `PERF_EVENT_IOC_ENABLE` of the kernel's header.
const IOC_ENABLE: u64 = 0x2400;
/// `PERF_EVENT_IOC_ID`, for a pointer of 64 bits.
const IOC_ID: u64 = 0x8008_2407;

/// The fraction of the process's descriptors that counters may take, as numerator and denominator. The rest is for files, sockets and the log.
const DESCRIPTORS_SHARE: (u64, u64) = (3, 4);

/// `struct perf_event_attr` up to `config2` (`PERF_ATTR_SIZE_VER1`), which every kernel since 2.6.39 takes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    /// The field `type`: the PMU.
    pub kind: u32,
    /// The size of the structure, which is its version.
    pub size: u32,
    pub config: u64,
    /// 0: the event counts and does not sample.
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    /// `disabled`, `exclude_user`, …, from the lowest bit on.
    pub flags: u64,
    pub wakeup_events: u32,
    pub bp_type: u32,
    pub config1: u64,
    pub config2: u64,
}

impl Attr {
    /// A counter that is read with its group.
    pub fn new(kind: u32, config: [u64; 3], flags: u64) -> Self {
        let size = size_of::<Self>() as u32;
        let [config, config1, config2] = config;
        Self { kind, size, config, read_format: READ_FORMAT, flags, config1, config2, ..Self::default() }
    }
}

/// The programs that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountScope {
    /// All programs on the CPU.
    Node,
    /// The processes of a cgroup: its directory's descriptor.
    Cgroup(Fd),
}

/// The system calls of this source.
pub trait Kernel: Send + Sync {
    /// `perf_event_open`: an event on a CPU, in the group of `leader` if there is one.
    fn open(&self, attr: &Attr, scope: CountScope, cpu: u32, leader: Option<Fd>) -> Result<Fd, Errno>;
    /// The id of the event in a group's read.
    fn id(&self, fd: Fd) -> Result<u64, Errno>;
    /// Lets a group start counting.
    fn enable(&self, leader: Fd) -> Result<(), Errno>;
    /// Reads a group into `words`; gives the number of bytes.
    fn read(&self, leader: Fd, words: &mut [u64]) -> Result<usize, Errno>;
    /// Closes an event's or a directory's descriptor.
    fn close(&self, fd: Fd);
    fn open_directory(&self, path: &Path) -> Result<Fd, Errno>;
    /// The user that owns a file.
    fn owner(&self, path: &CStr) -> Result<u32, Errno>;
    /// The user of the agent.
    fn uid(&self) -> u32;
    /// A monotonic clock in ms, accurate to some milliseconds and very cheap to read.
    fn coarse_ms(&self) -> u64;
}

/// A descriptor of the kernel that closes when it is dropped.
pub struct KernelFd {
    fd: Fd,
    _descriptor: Option<Descriptor>,
    kernel: Arc<dyn Kernel>,
}

impl KernelFd {
    /// Takes ownership of a descriptor.
    pub fn new(fd: Fd, kernel: &Arc<dyn Kernel>) -> Self {
        Self { fd, _descriptor: None, kernel: kernel.clone() }
    }

    /// Holds a descriptor of the quota of jobs as well.
    pub fn holding(mut self, descriptor: Option<Descriptor>) -> Self {
        self._descriptor = descriptor;
        self
    }

    /// The number of the descriptor.
    pub fn fd(&self) -> Fd {
        self.fd
    }
}

impl Drop for KernelFd {
    fn drop(&mut self) {
        self.kernel.close(self.fd);
    }
}

/// The system calls of the running kernel.
pub struct Linux;

/// The number of descriptors that all sources of this process have open through [`Linux`].
static DESCRIPTORS: AtomicU64 = AtomicU64::new(0);

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The most descriptors that counters may have open.
fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable and of the type that is asked for.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let (part, of) = DESCRIPTORS_SHARE;
    if known { (limit.rlim_cur / of).saturating_mul(part) } else { u64::MAX }
}

impl Linux {
    /// Counts a new descriptor, or gives the error of the system call.
    fn counted(&self, fd: i64) -> Result<Fd, Errno> {
        if fd < 0 {
            return Err(last_errno());
        }
        DESCRIPTORS.fetch_add(1, Ordering::Relaxed);
        Ok(fd as Fd)
    }
}

impl Kernel for Linux {
    fn open(&self, attr: &Attr, scope: CountScope, cpu: u32, leader: Option<Fd>) -> Result<Fd, Errno> {
        if DESCRIPTORS.load(Ordering::Relaxed) >= descriptors_max() {
            return Err(libc::EMFILE);
        }
        let (pid, flags) = match scope {
            CountScope::Node => (-1, FLAG_CLOEXEC),
            CountScope::Cgroup(directory) => (directory, FLAG_CLOEXEC | FLAG_CGROUP),
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
        // SAFETY: the descriptor belongs to a `KernelFd` that is dropped now. After an error it is closed as well.
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
        // SAFETY: it only returns a number.
        unsafe { libc::geteuid() }
    }

    fn coarse_ms(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
        time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
    }
}
