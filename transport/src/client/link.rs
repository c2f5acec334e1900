//! A nonblocking TCP or TLS connection that can be polled.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::url::Url;
use super::{ADDRESSES_MAX, ClientConfig, ClientError};

/// The size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// A connection whose calls never block.
pub(super) struct Link {
    tcp: TcpStream,
    tls: Option<Box<ClientConnection>>,
    scratch: Vec<u8>,
    pub peer: SocketAddr,
}

/// The result of a nonblocking transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    Bytes,
    WouldBlock,
    End,
}

impl Link {
    /// Connects TCP to the given address or to one of the host's. The TLS handshake begins with the first bytes sent.
    pub fn connect(config: &ClientConfig, url: &Url, deadline: Instant) -> Result<Self, ClientError> {
        let tls = if url.tls { Some(Box::new(start_tls(config, url)?)) } else { None };
        let failed = |problem: String| ClientError::Connect { url: config.url.clone(), problem };
        let addresses = match config.address {
            Some(address) => vec![address],
            None => url.look_up(ADDRESSES_MAX).map_err(failed)?,
        };
        let mut problems = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - index) as u32;
            if left.is_zero() {
                problems.push(format!("{address}: not tried: the connect timeout was reached"));
                continue;
            }
            let prepare = |tcp: TcpStream| {
                tcp.set_nodelay(true)?;
                tcp.set_nonblocking(true)?;
                Ok(tcp)
            };
            match TcpStream::connect_timeout(address, left).and_then(prepare) {
                Ok(tcp) => return Ok(Self { tcp, tls, scratch: vec![0; READ_BYTES], peer: *address }),
                Err(error) => problems.push(format!("{address}: {error}")),
            }
        }
        Err(failed(if problems.is_empty() {
            "the host name resolves to no address".into()
        } else {
            problems.join("; ")
        }))
    }

    /// The socket's file descriptor, for `poll(2)`.
    pub fn fd(&self) -> RawFd {
        self.tcp.as_raw_fd()
    }

    /// Appends the bytes that have arrived to `inbox`, at most [`READ_BYTES`].
    pub fn fill(&mut self, inbox: &mut BytesMut) -> io::Result<Transfer> {
        let Some(tls) = &mut self.tls else {
            let (transfer, count) = to_transfer(retry_interrupted(|| self.tcp.read(&mut self.scratch)))?;
            inbox.extend_from_slice(&self.scratch[..count]);
            return Ok(transfer);
        };
        loop {
            let (transfer, count) = to_transfer(tls.reader().read(&mut self.scratch))?;
            if transfer != Transfer::WouldBlock {
                inbox.extend_from_slice(&self.scratch[..count]);
                return Ok(transfer);
            }
            let (transfer, _) = to_transfer(retry_interrupted(|| tls.read_tls(&mut self.tcp)))?;
            if transfer == Transfer::WouldBlock {
                return Ok(transfer);
            }
            // At the end of the stream the reader reports whether it was closed cleanly.
            if let Err(error) = tls.process_new_packets() {
                // Send the alert with the reason. If it does not arrive, the error is the same.
                let _ = tls.write_tls(&mut self.tcp);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            if transfer == Transfer::End && !tls.wants_read() {
                return Ok(Transfer::End);
            }
        }
    }

    /// Sends as much of `outbox` as the socket accepts. Returns whether any bytes were sent.
    pub fn drain(&mut self, outbox: &mut BytesMut) -> io::Result<bool> {
        let mut progress = false;
        while !outbox.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
            let (transfer, count) = match &mut self.tls {
                None => {
                    let (transfer, count) = to_transfer(retry_interrupted(|| self.tcp.write(outbox)))?;
                    outbox.advance(count);
                    (transfer, count)
                }
                Some(tls) => {
                    // Before the end of the handshake this only buffers, up to the connection's own bound.
                    let accepted = tls.writer().write(outbox)?;
                    outbox.advance(accepted);
                    if !tls.wants_write() {
                        return Ok(progress);
                    }
                    to_transfer(retry_interrupted(|| tls.write_tls(&mut self.tcp)))?
                }
            };
            if transfer != Transfer::Bytes || count == 0 {
                return Ok(progress);
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Whether [`Link::drain`] has to continue when the socket takes bytes again.
    pub fn wants_write(&self, outbox: &BytesMut) -> bool {
        match &self.tls {
            None => !outbox.is_empty(),
            Some(tls) => tls.wants_write() || !outbox.is_empty() && !tls.is_handshaking(),
        }
    }

    /// Closes TLS and TCP without waiting.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut self.tcp);
        }
        let _ = self.tcp.shutdown(std::net::Shutdown::Write);
    }

    /// Waits until the socket is readable (or writable, if `write`), `wake` is readable, or `timeout` has passed. Returns whether `wake` is readable.
    pub fn wait(&self, timeout: Duration, write: bool, wake: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
        let mut fds = [
            libc::pollfd { fd: self.fd(), events, revents: 0 },
            libc::pollfd { fd: wake.map_or(-1, |fd| fd.as_raw_fd()), events: libc::POLLIN, revents: 0 },
        ];
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as libc::c_long,
        };
        // SAFETY: `fds` has the length given, `timeout` outlives the call, and a null signal mask means none.
        let count = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &timeout, std::ptr::null()) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == ErrorKind::Interrupted { Ok(false) } else { Err(error) };
        }
        Ok(fds[1].revents != 0)
    }
}

fn start_tls(config: &ClientConfig, url: &Url) -> Result<ClientConnection, ClientError> {
    let config_error = |problem: String| ClientError::Config { url: config.url.clone(), problem };
    let Some(tls) = &config.tls else {
        return Err(config_error(
            "mqtts:// needs the CA that signed the server's certificate; set `ca`, or use mqtt://".into(),
        ));
    };
    let name = ServerName::try_from(url.host.clone())
        .map_err(|_| config_error(format!("{:?} is neither a host name nor an address", url.host)))?;
    ClientConnection::new(tls.clone(), name).map_err(|error| config_error(format!("TLS: {error}")))
}

fn retry_interrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn to_transfer(result: io::Result<usize>) -> io::Result<(Transfer, usize)> {
    match result {
        Ok(0) => Ok((Transfer::End, 0)),
        Ok(count) => Ok((Transfer::Bytes, count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok((Transfer::WouldBlock, 0)),
        // The server closed TCP without closing TLS. MQTT packets have lengths, so that a truncation is detected.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok((Transfer::End, 0)),
        Err(error) => Err(error),
    }
}
