//! `epoll`, as far as the generator needs it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The most events taken at once.
const EVENTS: usize = 1024;

/// Waits for many sockets at once.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Poller {
    /// One that waits for nothing yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes a number and gives a new descriptor or -1.
        let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else has it.
        let epoll = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Waits for bytes from `socket` from now on, under the number `token`.
    pub fn add(&self, socket: &impl AsRawFd, token: usize) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), libc::EPOLLIN, token)
    }

    /// Waits for room in `socket` too, or no longer.
    pub fn want_room(&self, socket: &impl AsRawFd, token: usize, room: bool) -> io::Result<()> {
        let events = if room { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        self.control(libc::EPOLL_CTL_MOD, socket.as_raw_fd(), events, token)
    }

    fn control(&self, what: libc::c_int, socket: RawFd, events: libc::c_int, token: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token as u64 };
        // SAFETY: `event` lives through the call, which reads it; both descriptors are open.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, socket, &mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until something happens or the time is over, which is rounded up to ms; puts the tokens into `ready`.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let timeout_ms = timeout.as_nanos().div_ceil(1_000_000).min(60_000) as libc::c_int;
        let room = self.events.len() as libc::c_int;
        // SAFETY: the pointer and the length are those of `events`, which nobody else uses.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), room, timeout_ms) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        ready.extend(self.events[..count as usize].iter().map(|event| event.u64 as usize));
        Ok(())
    }
}
