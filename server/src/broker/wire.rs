//! Bytes of one connection in and out, over TCP or TLS. An idle connection has no buffers: bytes are read into one buffer
//! a thread and copied to the connection's own, which is there only while a packet is not whole.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};

/// The most that is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;
/// Room for so many bytes is kept by a connection that has nothing to write.
const OUTPUT_KEPT_BYTES: usize = 256;
/// How long the last words to a client may take.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Bytes of one connection.
pub(super) struct Wire<S> {
    pub read: ReadHalf<S>,
    pub write: WriteHalf<S>,
    pub input: BytesMut,
    pub output: BytesMut,
    /// Whether something was written and not flushed.
    pub unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite> Wire<S> {
    pub fn new(stream: S) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self { read, write, input: BytesMut::new(), output: BytesMut::new(), unflushed: false }
    }

    pub fn wants_write(&self) -> bool {
        !self.output.is_empty() || self.unflushed
    }

    /// Gives back the input buffer when everything in it was taken.
    pub fn tidy(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }
}

/// Reads some; how many bytes, 0 at the end. Loses nothing when cancelled.
pub(super) async fn read_some<S: AsyncRead>(read: &mut ReadHalf<S>, input: &mut BytesMut) -> std::io::Result<usize> {
    poll_fn(|context| {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(&mut *read).poll_read(context, &mut buffer))?;
            input.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    })
    .await
}

/// Writes some of what waits, then flushes; how many bytes. Loses nothing when cancelled.
pub(super) async fn write_some<S: AsyncWrite>(
    write: &mut WriteHalf<S>,
    output: &mut BytesMut,
    unflushed: &mut bool,
) -> std::io::Result<usize> {
    let mut count = 0;
    if !output.is_empty() {
        *unflushed = true;
        count = write.write_buf(output).await?;
    }
    if output.is_empty() {
        write.flush().await?;
        *unflushed = false;
        if output.capacity() > OUTPUT_KEPT_BYTES {
            *output = BytesMut::new();
        }
    }
    Ok(count)
}

/// Writes what waits and closes, within [`FAREWELL_TIME_MAX`]. What the client still sends is read until it closes too: a
/// socket closed over unread bytes is reset, and a reset takes the last words from a client that has not read them yet.
pub(super) async fn farewell<S: AsyncRead + AsyncWrite>(wire: &mut Wire<S>) {
    let last = async {
        while wire.wants_write() {
            write_some(&mut wire.write, &mut wire.output, &mut wire.unflushed).await?;
        }
        wire.write.shutdown().await?;
        loop {
            wire.input.clear();
            if read_some(&mut wire.read, &mut wire.input).await? == 0 {
                return Ok::<(), std::io::Error>(());
            }
        }
    };
    // It is over either way.
    let _ = tokio::time::timeout(FAREWELL_TIME_MAX, last).await;
}
