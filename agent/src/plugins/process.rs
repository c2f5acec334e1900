//! Starts and ends the process of a plug-in: this program with another argument, and three descriptors.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::process_tree;
use super::shared_row::SharedRow;

/// The argument of this program that makes it the process of a plug-in.
pub const ARGUMENT: &str = "plugin-host";
/// The descriptors of that process: the socket, the shared memory, the plug-in's file.
pub(super) const SOCKET_FD: RawFd = 3;
pub(super) const MEMORY_FD: RawFd = 4;
pub(super) const LIBRARY_FD: RawFd = 5;
/// Descriptors are first moved behind the inherited ones.
const SPARE_FD: RawFd = 16;
/// What the supervisor adds to a signal that ended the plug-in.
pub(super) const SIGNAL_BASE: i32 = 128;
/// How long a process may take to end before it is killed: 2 s.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an ending process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Where a plug-in finds programs: not where the agent's user has some of their own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of what a plug-in prints is read at a time.
const PRINTED_BYTES_MAX: usize = 4096;

/// The process that supervises a plug-in's process; both end with it.
pub(super) struct PluginProcess {
    child: Child,
    /// What the plug-in prints.
    printed: File,
}

/// A started process with its socket and memory.
pub(super) struct StartedProcess {
    pub process: PluginProcess,
    pub socket: UnixStream,
    pub row: SharedRow,
}

/// A pipe whose writer never waits: what nobody reads is lost.
fn pipe() -> io::Result<(File, File)> {
    let mut fds = [0; 2];
    // SAFETY: a place for two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptors were opened here.
    Ok(unsafe { (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1])) })
}

/// Starts the process for an open plug-in.
pub(super) fn start(library: &File) -> io::Result<StartedProcess> {
    let (socket, theirs) = UnixStream::pair()?;
    let (row, memory) = SharedRow::create()?;
    let (printed, print) = pipe()?;
    let mut command = Command::new(super::services::host_program());
    command.arg0("wholegrain-plugin").arg(ARGUMENT).arg(std::process::id().to_string());
    command.env_clear().env("PATH", PATH).envs(std::env::var_os("TZ").map(|zone| ("TZ", zone)));
    command.stdin(Stdio::null()).stdout(print.try_clone()?).stderr(print).current_dir("/").process_group(0);
    let inherited = [theirs.as_raw_fd(), memory.as_raw_fd(), library.as_raw_fd()];
    // SAFETY: only system calls, and no allocation.
    unsafe { command.pre_exec(move || inherit(inherited)) };
    let child = command.spawn()?;
    Ok(StartedProcess { process: PluginProcess { child, printed }, socket, row })
}

/// Gives descriptors their numbers in the new process, and closes all others there.
fn inherit(fds: [RawFd; 3]) -> io::Result<()> {
    let mut spare = [0; 3];
    for (place, fd) in spare.iter_mut().zip(fds) {
        // SAFETY: an open descriptor.
        *place = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, SPARE_FD) };
        if *place < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for (fd, to) in spare.into_iter().zip([SOCKET_FD, MEMORY_FD, LIBRARY_FD]) {
        // SAFETY: an open descriptor; the copy stays open in the new program.
        if unsafe { libc::dup2(fd, to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Also those that a library in the agent has opened without O_CLOEXEC. An old kernel has no such call.
    let (first, flag) = (LIBRARY_FD as u32 + 1, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flag) };
    Ok(())
}

/// How a plug-in ended.
pub(super) fn describe(status: ExitStatus) -> String {
    let signal = status.signal().or(status.code().filter(|code| *code > SIGNAL_BASE).map(|code| code - SIGNAL_BASE));
    let name = match signal {
        Some(libc::SIGSEGV) => "SIGSEGV: a wrong address",
        Some(libc::SIGABRT) => "SIGABRT: it gave up",
        Some(libc::SIGBUS) => "SIGBUS: a wrong address",
        Some(libc::SIGILL) => "SIGILL: a wrong instruction",
        Some(libc::SIGFPE) => "SIGFPE: a wrong calculation",
        Some(libc::SIGKILL) => "SIGKILL: perhaps for want of memory",
        Some(signal) => return format!("its process was ended by signal {signal}"),
        None => return format!("its process ended with code {}", status.code().unwrap_or_default()),
    };
    format!("its process was ended by {name}")
}

impl PluginProcess {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(describe)
    }

    /// Waits a moment for its end after its socket was closed.
    pub fn wait_ended(&mut self) -> Option<String> {
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            match self.ended() {
                None if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
                ended => return ended,
            }
        }
    }

    /// For `poll(2)`: readable when the plug-in has printed.
    pub fn printed_fd(&self) -> RawFd {
        self.printed.as_raw_fd()
    }

    /// What it has printed since the last call, at most 4 KiB.
    pub fn printed(&mut self) -> String {
        let mut bytes = [0; PRINTED_BYTES_MAX];
        let count = self.printed.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    /// Ends all its processes.
    pub fn end(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        if self.wait_ended().is_none() {
            // Its children first: without it they would belong to nobody.
            for pid in process_tree::below(self.child.id()) {
                // SAFETY: numbers only; the process was found below a child of this one just now.
                unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        self.end();
    }
}
