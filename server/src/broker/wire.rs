//! Input and output bytes of one connection, over TCP or TLS. An idle connection has no buffers: bytes are read into one buffer per thread and
//! copied into the connection's own only while a packet is incomplete.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};

/// The size of one read, in bytes.
const READ_BYTES: usize = 64 << 10;
/// The output capacity that an idle connection keeps.
const OUTPUT_KEPT_BYTES: usize = 256;
/// The time for the last packet to a client.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

pub(super) struct PacketStream<S> {
    pub read: ReadHalf<S>,
    pub write: WriteHalf<S>,
    pub input: BytesMut,
    pub output: BytesMut,
    /// Whether something was written and not flushed.
    pub unflushed: bool,
}

impl<S: AsyncRead + AsyncWrite> PacketStream<S> {
    pub fn new(stream: S) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self { read, write, input: BytesMut::new(), output: BytesMut::new(), unflushed: false }
    }

    pub fn wants_write(&self) -> bool {
        !self.output.is_empty() || self.unflushed
    }

    /// Releases the input buffer when it is empty.
    pub fn tidy(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }
}

/// Reads some bytes; returns how many, 0 at the end. Safe to cancel.
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

/// Writes some waiting bytes, then flushes; returns how many. Safe to cancel.
pub(super) async fn write_some<S: AsyncWrite>(
    write: &mut WriteHalf<S>,
    output: &mut BytesMut,
    unflushed: &mut bool,
) -> std::io::Result<usize> {
    poll_fn(|context| poll_write_some(context, write, output, unflushed)).await
}

/// The same without waiting: `None` if nothing can be written now.
pub(super) async fn write_now<S: AsyncWrite>(
    write: &mut WriteHalf<S>,
    output: &mut BytesMut,
    unflushed: &mut bool,
) -> Option<std::io::Result<usize>> {
    poll_fn(|context| match poll_write_some(context, write, output, unflushed) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn poll_write_some<S: AsyncWrite>(
    context: &mut Context<'_>,
    write: &mut WriteHalf<S>,
    output: &mut BytesMut,
    unflushed: &mut bool,
) -> Poll<std::io::Result<usize>> {
    let mut count = 0;
    if !output.is_empty() {
        *unflushed = true;
        // Not `write_buf`, which takes the slower path through writev.
        count = ready!(Pin::new(&mut *write).poll_write(context, output))?;
        if count == 0 {
            return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
        }
        output.advance(count);
    }
    if output.is_empty() {
        match Pin::new(write).poll_flush(context) {
            Poll::Ready(result) => result?,
            // The next call flushes; the written bytes count now.
            Poll::Pending if count > 0 => return Poll::Ready(Ok(count)),
            Poll::Pending => return Poll::Pending,
        }
        *unflushed = false;
        if output.capacity() > OUTPUT_KEPT_BYTES {
            *output = BytesMut::new();
        }
    }
    Poll::Ready(Ok(count))
}

/// Writes the waiting bytes and closes, within [`FLUSH_TIME_MAX`]. Reads until the client closes too: closing a socket with unread bytes resets
/// it, and a reset discards the last packet if the client has not read it.
pub(super) async fn flush_and_close<S: AsyncRead + AsyncWrite>(wire: &mut PacketStream<S>) {
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
    // The connection is over either way.
    let _ = tokio::time::timeout(FLUSH_TIME_MAX, last).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn messages_without_room_wait_and_are_sent_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(16);
            let mut wire = PacketStream::new(server);
            let sent: Vec<u8> = (0..40).collect();
            wire.output.extend_from_slice(&sent);
            let mut now = async |expected: Option<usize>| {
                let written = write_now(&mut wire.write, &mut wire.output, &mut wire.unflushed).await;
                assert_eq!(written.map(Result::unwrap), expected);
                wire.output.len()
            };
            assert_eq!(now(Some(16)).await, 24);
            assert_eq!(now(None).await, 24);
            let mut heard = vec![0; 40];
            client.read_exact(&mut heard[..16]).await.unwrap();
            assert_eq!(now(Some(16)).await, 8);
            client.read_exact(&mut heard[16..32]).await.unwrap();
            assert_eq!(now(Some(8)).await, 0);
            client.read_exact(&mut heard[32..]).await.unwrap();
            assert_eq!(heard, sent);
            drop(client);
            assert!(!wire.wants_write());
        });
    }
}
