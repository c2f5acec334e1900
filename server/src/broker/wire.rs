//! Bytes of one connection in and out, over TCP or TLS.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// The least and the most that is read at once, in bytes.
const READ_BYTES: (usize, usize) = (4 << 10, 64 << 10);
/// How long the last words to a client may take.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of one connection.
pub(super) struct Wire<S> {
    pub read: ReadHalf<S>,
    pub write: WriteHalf<S>,
    pub input: BytesMut,
    pub output: BytesMut,
    /// Whether something was written and not flushed.
    pub unflushed: bool,
    /// How much is read at once.
    pub read_bytes: usize,
}

impl<S: AsyncRead + AsyncWrite> Wire<S> {
    pub fn new(stream: S) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self {
            read,
            write,
            input: BytesMut::new(),
            output: BytesMut::new(),
            unflushed: false,
            read_bytes: READ_BYTES.0,
        }
    }

    pub fn wants_write(&self) -> bool {
        !self.output.is_empty() || self.unflushed
    }
}

/// Reads some; how many bytes, 0 at the end. Loses nothing when cancelled.
pub(super) async fn read_some<S: AsyncRead>(
    read: &mut ReadHalf<S>,
    input: &mut BytesMut,
    bytes: &mut usize,
) -> std::io::Result<usize> {
    input.reserve(*bytes);
    let count = read.read_buf(input).await?;
    // Large reads for those who send much, small buffers for the many who do not.
    if count >= *bytes {
        *bytes = (*bytes * 2).min(READ_BYTES.1);
    } else if count < *bytes / 8 {
        *bytes = (*bytes / 2).max(READ_BYTES.0);
    }
    Ok(count)
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
    }
    Ok(count)
}

/// Writes what waits and closes, within [`FAREWELL_TIME_MAX`].
pub(super) async fn farewell<S: AsyncRead + AsyncWrite>(wire: &mut Wire<S>) {
    let last = async {
        while wire.wants_write() {
            write_some(&mut wire.write, &mut wire.output, &mut wire.unflushed).await?;
        }
        wire.write.shutdown().await
    };
    // It is over either way.
    let _ = tokio::time::timeout(FAREWELL_TIME_MAX, last).await;
}
