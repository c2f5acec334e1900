//! Listening sockets and the limit on open files.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};

/// Connections that wait to be accepted: many agents reconnect at once after a restart.
const BACKLOG: u32 = 4096;

/// Listens on each address that `text` (`host:port`) resolves to, all on one port; port 0 lets the system choose it.
pub(crate) async fn listen(text: &str, setting: &str) -> anyhow::Result<(Vec<TcpListener>, SocketAddr)> {
    let failed = || {
        format!(
            "cannot listen on {text:?} ({setting}); is another server running, or does this host not have the address?"
        )
    };
    let owned = text.to_owned();
    let mut addresses: Vec<SocketAddr> =
        tokio::task::spawn_blocking(move || owned.to_socket_addrs().map(Iterator::collect))
            .await?
            .with_context(failed)?;
    addresses.dedup();
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut first: Option<SocketAddr> = None;
    let mut error = None;
    for mut address in addresses {
        if let Some(first) = first {
            address.set_port(first.port());
        }
        match bind(address) {
            Ok(listener) => {
                first = first.or(listener.local_addr().ok());
                listeners.push(listener);
            }
            // A host without IPv6, or [::] that includes IPv4: the other address is enough.
            Err(e) => error = Some(e),
        }
    }
    match (first, error) {
        (Some(_), Some(error)) if error.kind() == ErrorKind::AddrInUse => Err(error).with_context(failed),
        (Some(first), _) => Ok((listeners, first)),
        (None, error) => Err(error.unwrap_or_else(|| ErrorKind::AddrNotAvailable.into())).with_context(failed),
    }
}

/// The input of a connection that has not been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceivedInput {
    Nothing,
    Bytes,
    /// The peer has closed the connection, and no bytes are left.
    End,
}

/// Looks at received bytes that have not been read. Neither waits nor consumes them.
pub(crate) fn received_input(stream: &TcpStream) -> ReceivedInput {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open while `stream` lives; at most one byte is written, into `byte`.
    match unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) } {
        0 => ReceivedInput::End,
        1.. => ReceivedInput::Bytes,
        _ => match io::Error::last_os_error().kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => ReceivedInput::Nothing,
            _ => ReceivedInput::End,
        },
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match bind_one(address) {
        // "[::]" on a host without IPv6 means every address too.
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() && !has_ipv6() => {
            bind_one(SocketAddr::from(([0, 0, 0, 0], address.port())))
        }
        other => other,
    }
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { tokio::net::TcpSocket::new_v6()? } else { tokio::net::TcpSocket::new_v4()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn has_ipv6() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}

/// Raises the soft limit on open files to the hard limit; returns the limit in force.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls, which only read and write it.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        if limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_addresses_of_a_name_share_one_port() {
        let (listeners, first) = listen("localhost:0", "test").await.unwrap();
        assert!(first.port() != 0 && first.ip().is_loopback());
        for listener in &listeners {
            assert_eq!(listener.local_addr().unwrap().port(), first.port());
        }
        let error = listen(&format!("127.0.0.1:{}", first.port()), "mqtt.listen").await;
        if listeners.iter().any(|l| l.local_addr().unwrap().is_ipv4()) {
            assert!(format!("{:#}", error.unwrap_err()).starts_with("cannot listen on \"127.0.0.1:"));
        }
    }

    #[tokio::test]
    async fn bytes_that_are_here_are_seen_and_not_taken() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        assert_eq!(received_input(&stream), ReceivedInput::Nothing);
        client.write_all(b"x").await.unwrap();
        stream.readable().await.unwrap();
        assert_eq!(received_input(&stream), ReceivedInput::Bytes);
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
        assert_eq!(received_input(&stream), ReceivedInput::Nothing);
        drop(client);
        stream.readable().await.unwrap();
        assert_eq!(received_input(&stream), ReceivedInput::End);
    }
}
