//! Answers that stream: a blocking producer, a bounded channel, a body. The producer stops when its client has gone.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// A piece of an answer, in bytes: pieces are sent when they are at least so large.
pub const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for the client.
const PIECES_MAX: usize = 4;
/// How long a client may read nothing before its answer is given up.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Where a producer writes. Flushed pieces wait for the client; what is written after the client has gone is an error.
pub(super) struct BodySink {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    piece: BytesMut,
    runtime: Handle,
    bytes: u64,
}

/// A sink and the body that it fills. To be called in the runtime, to be filled on a blocking thread.
pub(super) fn sink() -> (BodySink, Body) {
    let (pieces, receiver) = mpsc::channel(PIECES_MAX);
    let sink =
        BodySink { pieces, piece: BytesMut::with_capacity(PIECE_BYTES * 2), runtime: Handle::current(), bytes: 0 };
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    (sink, Body::from_stream(stream))
}

/// Where an answer is written to.
pub(super) trait ResponseWriter: Write {
    /// Sends what has been written if it is enough for a piece.
    fn relay(&mut self) -> io::Result<()>;
    /// Whether the client has gone.
    fn is_abandoned(&self) -> bool;
}

/// A small answer, held as a whole. Writing more than it may have is an error.
#[derive(Default)]
pub(super) struct BufferedBody {
    bytes: Vec<u8>,
}

/// The most bytes of an answer that is held as a whole.
const WHOLE_BYTES_MAX: usize = 512 << 10;

impl BufferedBody {
    /// What has been written.
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

    /// Whether the client has gone.
    pub fn is_abandoned(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Sends what has been written if it is enough for a piece.
    pub fn relay(&mut self) -> io::Result<()> {
        if self.piece.len() < PIECE_BYTES { Ok(()) } else { self.flush() }
    }

    /// What cuts the answer off.
    pub fn breaker(&self) -> StallBreaker {
        StallBreaker { pieces: self.pieces.clone(), runtime: self.runtime.clone() }
    }

    fn send(&self, piece: io::Result<Bytes>) -> io::Result<()> {
        let sent = self.runtime.block_on(self.pieces.send_timeout(piece, STALL_MAX));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone"))
    }
}

/// Cuts an answer off so that its client sees that it is not whole.
pub(super) struct StallBreaker {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
}

impl StallBreaker {
    /// Whether the client has gone.
    pub fn is_abandoned(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Ends the answer with an error, for which HTTP has no better sign than a broken connection.
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
