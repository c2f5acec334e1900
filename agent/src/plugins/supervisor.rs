//! The process of a plug-in. It forks: the first process waits, and ends everything that the second one has started; the second one runs the plug-in.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::process::{LIBRARY_FD, MEMORY_FD, SIGNAL_BASE, SOCKET_FD};
use super::process_tree::children;
use super::program;
use super::shared_row::SharedRow;

/// How long ending all processes may take: 5 s.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the supervisor waits for killed processes before it looks for new ones.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Runs the process of a plug-in, for the agent with this process number.
pub fn run(agent: Option<&str>) -> ExitCode {
    match start(agent) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("wholegrain-agent: the process of a plug-in: {error}");
            ExitCode::FAILURE
        }
    }
}

fn signals(list: &[libc::c_int]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is initialised by the first call.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        list.iter().for_each(|signal| _ = libc::sigaddset(set.as_mut_ptr(), *signal));
        set.assume_init()
    }
}

fn start(agent: Option<&str>) -> io::Result<u8> {
    let agent: libc::pid_t = agent
        .and_then(|pid| pid.parse().ok())
        .ok_or_else(|| io::Error::other("it is started by the agent, not by hand"))?;
    let waited_for = signals(&[libc::SIGCHLD, libc::SIGTERM]);
    // SAFETY: calls with numbers and a set of signals that outlives them; the process has one thread.
    let worker = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        if libc::getppid() != agent {
            return Err(io::Error::other("the agent has ended"));
        }
        libc::sigprocmask(libc::SIG_BLOCK, &waited_for, std::ptr::null_mut());
        libc::fork()
    };
    match worker {
        0 => work(&waited_for),
        worker if worker > 0 => Ok(supervise(worker, &waited_for)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The second process, which runs the plug-in.
fn work(blocked: &libc::sigset_t) -> io::Result<u8> {
    // SAFETY: calls with numbers and a set of signals; the descriptors are those that the agent gave, and nothing else owns them.
    let (socket, memory, library) = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        // A group of its own, which the supervisor ends in one step: processes that make others as fast as they are ended cannot escape.
        libc::setsid();
        libc::sigprocmask(libc::SIG_UNBLOCK, blocked, std::ptr::null_mut());
        // Closed in programs that the plug-in starts: the agent sees the end of this process by its end of the socket.
        for fd in [SOCKET_FD, MEMORY_FD, LIBRARY_FD] {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        (UnixStream::from_raw_fd(SOCKET_FD), File::from_raw_fd(MEMORY_FD), File::from_raw_fd(LIBRARY_FD))
    };
    let row = SharedRow::map(&memory)?;
    drop(memory);
    program::serve(&socket, &row, library)?;
    Ok(0)
}

/// The first process: until the plug-in ends or the agent wants its end.
fn supervise(worker: libc::pid_t, waited_for: &libc::sigset_t) -> u8 {
    for fd in [SOCKET_FD, MEMORY_FD, LIBRARY_FD] {
        // SAFETY: the second process has them.
        unsafe { libc::close(fd) };
    }
    loop {
        let mut signal = 0;
        // SAFETY: a set of signals and a place for the signal.
        unsafe { libc::sigwait(waited_for, &mut signal) };
        if signal == libc::SIGTERM {
            end_all(worker);
            return 0;
        }
        let mut status = 0;
        loop {
            // SAFETY: a place for the status.
            let ended = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if ended <= 0 {
                break;
            }
            if ended == worker {
                end_all(worker);
                return code_of(status);
            }
        }
    }
}

fn code_of(status: libc::c_int) -> u8 {
    if libc::WIFSIGNALED(status) {
        return (SIGNAL_BASE + libc::WTERMSIG(status)) as u8;
    }
    libc::WEXITSTATUS(status) as u8
}

/// Ends all children. The children of an ended one become this process's, so nobody escapes.
fn end_all(worker: libc::pid_t) {
    let deadline = Instant::now() + END_TIMEOUT;
    while Instant::now() < deadline {
        // SAFETY: the number stays that of the group while it has a process, and a group without one is not found. If another process gets the number of
        // the ended worker meanwhile, it is in the group of its parent.
        unsafe { libc::kill(-worker, libc::SIGKILL) };
        for child in children(std::process::id()) {
            // SAFETY: a child that was not waited for.
            unsafe { libc::kill(child as libc::pid_t, libc::SIGKILL) };
        }
        loop {
            // SAFETY: no status is asked for.
            match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
                0 => break,
                ended if ended < 0 => return,
                _ => {}
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
