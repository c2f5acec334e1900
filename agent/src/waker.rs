//! Wakes a thread that waits for file descriptors: a byte in a socket pair, which a signal handler can write too.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A bell that one thread listens to and any can ring.
#[derive(Debug)]
pub struct Waker {
    inside: UnixStream,
    outside: UnixStream,
}

impl Waker {
    /// A bell.
    pub fn new() -> io::Result<Self> {
        let (inside, outside) = UnixStream::pair()?;
        inside.set_nonblocking(true)?;
        outside.set_nonblocking(true)?;
        Ok(Self { inside, outside })
    }

    /// Ends the wait of the listener, now or when it next begins. A bell that rings already needs no other stroke.
    pub fn wake(&self) {
        let _ = (&self.outside).write(&[1]);
    }

    /// Another end to ring it by, for a signal handler.
    pub fn wake_fd(&self) -> io::Result<UnixStream> {
        self.outside.try_clone()
    }

    /// What to wait for together with other things: readable while it rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inside.as_fd()
    }

    /// Silences it.
    pub fn reset(&self) {
        let mut strokes = [0; 64];
        while (&self.inside).read(&mut strokes).is_ok_and(|count| count == strokes.len()) {}
    }

    /// Waits until it rings or the time is up, and silences it.
    pub fn wait(&self, timeout: Duration) {
        // Rounded up: a wait that ends early would be begun again and again.
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
    fn rings_once_for_many_strokes() {
        let waker = Waker::new().unwrap();
        for _ in 0..1000 {
            waker.wake();
        }
        let start = Instant::now();
        waker.wait(Duration::from_secs(3600));
        assert!(start.elapsed() < Duration::from_secs(60));
        let silent = Instant::now();
        waker.wait(Duration::from_millis(2));
        assert!(silent.elapsed() >= Duration::from_millis(2), "silent again");
    }
}
