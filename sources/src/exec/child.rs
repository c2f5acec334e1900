//! Starts a program without any of the agent's rights, and ends it with everything that it started.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::config::ProgramSettings;
use crate::confinement;
use crate::trusted::{self, Account, TrustedOwners};

/// Runs programs when the agent is root and no user is configured, if the system has no user `nobody`.
const NOBODY: Account = Account { uid: 65534, gid: 65534 };
/// The environment of a program besides `env`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The largest number of a capability that the kernel's interface can have.
const CAPABILITY_MAX: i32 = 63;
/// The most descriptors that a program may open.
const DESCRIPTORS_MAX: libc::rlim_t = 256;
/// The descriptors that are closed one by one on kernels without `close_range`.
const DESCRIPTORS_CLOSED_MAX: RawFd = 4096;
/// The most bytes of standard error that are kept: its first line.
const STDERR_BYTES_MAX: usize = 200;
/// How long the end of a killed program is waited for: 100 ms. One that the kernel cannot end yet is waited for by the next read.
const END_TIMEOUT: Duration = Duration::from_millis(100);
/// The step in which output is read.
const CHUNK_BYTES: usize = 16 << 10;
/// The most steps at a time: 1 MiB. A program that prints faster than it is read must not keep the agent from looking at its deadline.
const CHUNKS_MAX: usize = 64;
/// The last signal of the kernel's interface.
const SIGNAL_MAX: i32 = 64;

/// A program that runs, with its output.
#[derive(Debug)]
pub(crate) struct RunningProgram {
    child: Child,
    /// What its processes have in their environment.
    mark: String,
    /// The standard input of a program that was started with one.
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// What it printed and nobody has taken.
    pub output: Vec<u8>,
    errors: Vec<u8>,
    pub started: Instant,
    /// When it was started, or printed last.
    pub active: Instant,
}

/// Whether a program runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramState {
    Running,
    /// It ended with status 0.
    Ended,
    /// It ended with another status, negative for a signal.
    Failed(i32),
    /// It printed more than it may.
    TooLong,
}

impl RunningProgram {
    /// Starts a program. The error says what is wrong with its file or why the system refuses.
    pub fn start(settings: &ProgramSettings) -> Result<Self, String> {
        Self::start_with(settings, Stdio::null())
    }

    /// Starts a program that reads requests from its standard input.
    pub fn start_with_input(settings: &ProgramSettings) -> Result<Self, String> {
        let program = Self::start_with(settings, Stdio::piped())?;
        set_nonblocking(program.stdin.as_ref().map_or(-1, AsRawFd::as_raw_fd)).map_err(|error| error.to_string())?;
        Ok(program)
    }

    /// Writes a request without waiting. An error when the program has ended, or when it has not read many earlier requests.
    pub fn request(&mut self, text: &[u8]) -> io::Result<()> {
        self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(text)
    }

    fn start_with(settings: &ProgramSettings, stdin: Stdio) -> Result<Self, String> {
        let account = identity(settings)?;
        let own = account.is_none();
        // A program of the user as whom it runs can do no more than that user.
        let owners = TrustedOwners { more: account.map(|account| account.uid).filter(|_| settings.user.is_some()) };
        let program = trusted::program(&settings.program, owners).map_err(|error| error.to_string())?;
        let mut command = Command::new(&program);
        command.args(&settings.arguments).env_clear().env("PATH", PATH).envs(&settings.env).current_dir("/");
        let mark = confinement::new_mark();
        command.env(confinement::VARIABLE, &mark);
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: `confine` makes system calls only: it neither allocates nor takes a lock.
        unsafe { command.pre_exec(move || confine(account)) };
        let mut child = command.spawn().map_err(|error| {
            let hint = if own || error.raw_os_error() != Some(libc::EPERM) {
                ""
            } else {
                "; only an agent of root can run programs as another user"
            };
            format!("{} cannot be started: {error}{hint}", program.display())
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        for fd in [stdout.as_ref().map(AsRawFd::as_raw_fd), stderr.as_ref().map(AsRawFd::as_raw_fd)] {
            set_nonblocking(fd.unwrap_or(-1)).map_err(|error| error.to_string())?;
        }
        let now = Instant::now();
        let stdin = child.stdin.take();
        Ok(Self {
            child,
            mark,
            stdin,
            stdout,
            stderr,
            output: Vec::new(),
            errors: Vec::new(),
            started: now,
            active: now,
        })
    }

    /// Reads what the program has printed, without waiting. At most `bytes_max` bytes of output are kept.
    pub fn pump(&mut self, bytes_max: usize) -> ProgramState {
        // The end first: what was printed before it is complete then.
        let has_ended = self.has_ended();
        let before = self.output.len();
        if let Some(stderr) = &mut self.stderr
            && !drain(stderr, &mut self.errors, STDERR_BYTES_MAX, false)
        {
            self.stderr = None;
        }
        if let Some(stdout) = &mut self.stdout
            && !drain(stdout, &mut self.output, bytes_max + 1, true)
        {
            self.stdout = None;
        }
        if self.output.len() > before {
            self.active = Instant::now();
        }
        if self.output.len() > bytes_max {
            return ProgramState::TooLong;
        }
        if has_ended { self.reap() } else { ProgramState::Running }
    }

    /// Waits for output or `timeout`, whichever is first.
    pub fn wait(&self, timeout: Duration) {
        let fds = [self.stdout.as_ref().map(AsRawFd::as_raw_fd), self.stderr.as_ref().map(AsRawFd::as_raw_fd)];
        let mut fds = fds.map(|fd| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 });
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1);
        // SAFETY: the array is writable and has the given length; a negative descriptor is skipped.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    }

    /// Whether both outputs are closed, so that only the end of the program can come.
    pub fn is_silent(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }

    /// The first line of standard error.
    pub fn first_error(&self) -> Option<String> {
        let line = self.errors.split(|byte| *byte == b'\n').next().filter(|line| !line.is_empty())?;
        Some(String::from_utf8_lossy(line).chars().filter(|character| !character.is_control()).collect())
    }

    /// Whether its status was taken, so that its number may be another process's.
    fn is_reaped(&self) -> bool {
        // SAFETY: as in `has_ended`.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is writable.
        unsafe { libc::waitid(libc::P_PID, self.child.id(), &mut info, flags) != 0 }
    }

    /// Whether the program has ended and is not reaped, so that its number still names it and its session.
    fn has_ended(&self) -> bool {
        // SAFETY: `siginfo_t` is plain numbers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is writable.
        let result = unsafe { libc::waitid(libc::P_PID, self.child.id(), &mut info, flags) };
        // SAFETY: waitid filled the fields of a child, or left zeros.
        result != 0 || unsafe { info.si_pid() } != 0
    }

    /// Ends what is left of the run, and takes the status.
    fn reap(&mut self) -> ProgramState {
        confinement::end_run(self.child.id(), &self.mark);
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() => ProgramState::Ended,
            Ok(Some(status)) => ProgramState::Failed(status.code().unwrap_or_else(|| {
                use std::os::unix::process::ExitStatusExt;
                -status.signal().unwrap_or(0)
            })),
            Ok(None) => ProgramState::Running,
            Err(_) => ProgramState::Failed(-1),
        }
    }

    /// Ends the program with all processes that it has started. Whether it is gone.
    pub fn kill(&mut self) -> bool {
        if self.is_reaped() {
            return true;
        }
        confinement::end_run(self.child.id(), &self.mark);
        let until = Instant::now() + END_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// As whom a program runs: `None` for the agent's own user.
fn identity(settings: &ProgramSettings) -> Result<Option<Account>, String> {
    // SAFETY: geteuid only returns a number.
    let own = unsafe { libc::geteuid() };
    let account = match &settings.user {
        Some(user) => trusted::account(user).ok_or_else(|| format!("there is no user {user:?} on this machine"))?,
        None if own == 0 => trusted::account("nobody").unwrap_or(NOBODY),
        None => return Ok(None),
    };
    Ok(Some(account).filter(|account| own == 0 || account.uid != own))
}

/// Reads until nothing is there, keeping at most `max` bytes; `stops` ends the reading at that length, else the rest is discarded. `false` at the end.
fn drain(from: &mut impl Read, into: &mut Vec<u8>, max: usize, stops: bool) -> bool {
    let mut chunk = [0; CHUNK_BYTES];
    for _ in 0..CHUNKS_MAX {
        if stops && into.len() >= max {
            return true;
        }
        match from.read(&mut chunk) {
            Ok(0) => return false,
            Ok(count) => into.extend_from_slice(&chunk[..count.min(max.saturating_sub(into.len()))]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the call takes only numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: the call takes only numbers.
    if flags >= 0 && unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// linux/capability.h, version 3 of the interface.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// In the child, before the program: a session of its own, no capabilities, no way to get some, another user, no open files.
/// System calls only.
fn confine(account: Option<Account>) -> io::Result<()> {
    let check = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: all calls take numbers, or pointers to values that live here.
    unsafe {
        check(libc::setsid().into())?;
        // What the agent ignores, its programs would ignore too.
        for signal in 1..=SIGNAL_MAX {
            libc::signal(signal, libc::SIG_DFL);
        }
        confinement::be_ended_before_the_agent();
        for capability in 0..=CAPABILITY_MAX {
            // Without the right to drop it there is none that could be got: `no_new_privs` follows. Unknown numbers are refused.
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
        check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0).into())?;
        if let Some(Account { uid, gid }) = account {
            // The C library's functions would signal the other threads, which the child does not have.
            check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
            check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
            check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
        }
        let (header, none) = (CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 }, [0u32; 6]);
        check(libc::syscall(libc::SYS_capset, &header, none.as_ptr()))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0).into())?;
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let files = libc::rlimit { rlim_cur: DESCRIPTORS_MAX, rlim_max: DESCRIPTORS_MAX };
        // Where a filter of the service manager forbids it, the agent's own limits stay.
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        libc::umask(0o077);
        // The pipe that reports an error of this function has to stay open until the program begins.
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) < 0 {
            // Before Linux 5.11. All descriptors of the agent are closed at exec anyway.
            (3..DESCRIPTORS_CLOSED_MAX).for_each(|fd| {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe whose writer is always faster.
    struct Endless {
        reads: usize,
    }

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            assert!(self.reads <= CHUNKS_MAX, "it reads without end");
            into.fill(b'x');
            Ok(into.len())
        }
    }

    #[test]
    fn output_that_comes_faster_than_it_is_read_is_read_in_parts() {
        let mut kept = Vec::new();
        assert!(drain(&mut Endless { reads: 0 }, &mut kept, STDERR_BYTES_MAX, false));
        assert_eq!(kept.len(), STDERR_BYTES_MAX);
    }
}
