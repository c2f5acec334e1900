//! Streamed responses: a blocking producer, a bounded channel, a body. The producer stops when its client disconnects.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// The least size of a piece of a response, in bytes.
pub const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for the client.
const PIECES_MAX: usize = 4;
/// How long a client may read nothing before its response is abandoned.
const STALL_MAX: Duration = Duration::from_secs(60);

/// The producer's end. Flushed pieces wait for the client; a write after the client has disconnected is an error.
pub(super) struct BodySink {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    piece: BytesMut,
    runtime: Handle,
    bytes: u64,
}

/// A sink and the body that it fills. Call it within the runtime; fill it on a blocking thread.
pub(super) fn sink() -> (BodySink, Body) {
    let (pieces, receiver) = mpsc::channel(PIECES_MAX);
    let sink =
        BodySink { pieces, piece: BytesMut::with_capacity(PIECE_BYTES * 2), runtime: Handle::current(), bytes: 0 };
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    (sink, Body::from_stream(stream))
}

/// The destination of a response.
pub(super) trait ResponseWriter: Write {
    /// Sends the written bytes if they are enough for a piece.
    fn relay(&mut self) -> io::Result<()>;
    fn is_abandoned(&self) -> bool;
}

/// A small response in memory. Exceeding its maximum size is an error.
#[derive(Default)]
pub(super) struct BufferedBody {
    bytes: Vec<u8>,
}

/// The largest response in memory, in bytes.
const WHOLE_BYTES_MAX: usize = 512 << 10;

impl BufferedBody {
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

impl ResponseWriter for BufferedBody {
    fn relay(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn is_abandoned(&self) -> bool {
        false
    }
}

impl Write for BufferedBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > WHOLE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ResponseWriter for BodySink {
    fn relay(&mut self) -> io::Result<()> {
        BodySink::relay(self)
    }

    fn is_abandoned(&self) -> bool {
        BodySink::is_abandoned(self)
    }
}

impl BodySink {
    /// Bytes sent to the client so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_abandoned(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Sends the written bytes if they are enough for a piece.
    pub fn relay(&mut self) -> io::Result<()> {
        if self.piece.len() < PIECE_BYTES { Ok(()) } else { self.flush() }
    }

    pub fn breaker(&self) -> StallBreaker {
        StallBreaker { pieces: self.pieces.clone(), runtime: self.runtime.clone() }
    }

    fn send(&self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sent = self.runtime.block_on(self.pieces.send_timeout(piece, STALL_MAX));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone"))
    }
}

/// Breaks a response off, so that its client sees that it is incomplete.
pub(super) struct StallBreaker {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
}

impl StallBreaker {
    pub fn is_abandoned(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Ends the response with an error. HTTP has no better sign of it than a broken connection.
    pub fn fail(self, error: io::Error) {
        let _ = self.runtime.block_on(self.pieces.send_timeout(Err(error), STALL_MAX));
    }
}

impl Write for BodySink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.put_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = self.piece.split().freeze();
        self.bytes += piece.len() as u64;
        self.piece.reserve(PIECE_BYTES * 2);
        self.send(Ok(piece))
    }
}
