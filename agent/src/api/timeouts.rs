//! Streams with a time limit for several reads and writes together, against a peer that sends or takes a byte now and then.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// A connection whose reads and writes have a common time limit.
pub(super) trait TimedConnection: Read + Write {
    /// Sets the time limit, from now.
    fn within(&mut self, time: Duration);
}

/// A stream with a timeout for each read and write, and an end for all of them.
#[derive(Debug)]
pub(super) struct TimedStream<S> {
    stream: S,
    end: Instant,
}

impl<S> TimedStream<S> {
    pub fn new(stream: S, time: Duration) -> Self {
        Self { stream, end: Instant::now() + time }
    }

    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.end { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl<S: Read> Read for TimedStream<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.read(bytes)
    }
}

impl<S: Write> Write for TimedStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Read + Write> TimedConnection for TimedStream<S> {
    fn within(&mut self, time: Duration) {
        self.end = Instant::now() + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_counts_for_all_reads_together() {
        let mut stream = TimedStream::new(io::Cursor::new(vec![0; 100]), Duration::from_secs(3600));
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1);
        stream.within(Duration::ZERO);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(stream.write(&[0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        stream.within(Duration::from_secs(3600));
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1);
    }
}
