//! Waits for many connections at once: epoll(7).

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollInterest {
    Nothing,
    Read,
    Write,
}

/// The most events of one wait.
const EVENTS_MAX: usize = 64;

#[derive(Debug)]
pub struct Poll {
    epoll: OwnedFd,
    events: [libc::epoll_event; EVENTS_MAX],
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes a flag only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made the descriptor, and nobody else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { epoll, events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    /// Changes the event that a descriptor waits for; `token` is returned with each event.
    pub fn change(&self, fd: &impl AsFd, token: u64, from: PollInterest, to: PollInterest) -> io::Result<()> {
        let operation = match (from, to) {
            (from, to) if from == to => return Ok(()),
            (PollInterest::Nothing, _) => libc::EPOLL_CTL_ADD,
            // Removed altogether: epoll would report a peer that hung up again and again.
            (_, PollInterest::Nothing) => libc::EPOLL_CTL_DEL,
            _ => libc::EPOLL_CTL_MOD,
        };
        let events = if to == PollInterest::Write { libc::EPOLLOUT } else { libc::EPOLLIN };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open, the event outlives the call.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_fd().as_raw_fd(), &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits at most `timeout_ms` (-1: without a limit) and returns the tokens.
    pub fn wait(&mut self, timeout_ms: i32) -> impl Iterator<Item = u64> + '_ {
        // SAFETY: there is room for the given number of events.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), EVENTS_MAX as i32, timeout_ms)
        };
        self.events[..usize::try_from(count).unwrap_or(0)].iter().map(|event| event.u64)
    }
}
