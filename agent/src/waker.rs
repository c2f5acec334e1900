//! Wakes a thread that waits in `poll(2)` by a byte in a socket pair, which a signal handler can write too.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// One thread waits, any thread wakes it.
#[derive(Debug)]
pub struct Waker {
    inside: UnixStream,
    outside: UnixStream,
}

impl Waker {
    pub fn new() -> io::Result<Self> {
        let (inside, outside) = UnixStream::pair()?;
        inside.set_nonblocking(true)?;
        outside.set_nonblocking(true)?;
        Ok(Self { inside, outside })
    }

    /// Ends the present wait or the next one. Several calls before the wait count as one.
    pub fn wake(&self) {
        let _ = (&self.outside).write(&[1]);
    }

    /// A file descriptor that a signal handler can write to.
    pub fn wake_fd(&self) -> io::Result<UnixStream> {
        self.outside.try_clone()
    }

    /// For a `poll(2)` with other descriptors: readable after a wake-up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inside.as_fd()
    }

    pub fn reset(&self) {
        let mut bytes = [0; 64];
        while (&self.inside).read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
    }

    /// Waits for a wake-up or the timeout, and clears the wake-up.
    pub fn wait(&self, timeout: Duration) {
        // Rounded up: a wait that ends early would be repeated at once.
        let ms = i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let mut inside = libc::pollfd { fd: self.inside.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which outlives the call.
        if unsafe { libc::poll(&mut inside, 1, ms) } > 0 {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn many_wakes_count_as_one() {
        let waker = Waker::new().unwrap();
        for _ in 0..1000 {
            waker.wake();
        }
        let start = Instant::now();
        waker.wait(Duration::from_secs(3600));
        assert!(start.elapsed() < Duration::from_secs(60));
        let silent = Instant::now();
        waker.wait(Duration::from_millis(2));
        assert!(silent.elapsed() >= Duration::from_millis(2), "reset");
    }
}
