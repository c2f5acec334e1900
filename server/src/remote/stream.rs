//! TCP or TLS to a broker.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wholegrain_transport::tls::{Identity, client_config};

use crate::interop::config::RemoteConfig;

/// A connection with or without TLS.
pub(super) enum RemoteStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects; the error says what to do.
pub(super) async fn connect(config: &RemoteConfig) -> Result<RemoteStream, String> {
    let tcp = TcpStream::connect((config.host.as_str(), config.port)).await;
    let tcp = tcp.map_err(|error| format!("cannot connect: {error}"))?;
    // Acknowledgements are small and must not be delayed.
    let _ = tcp.set_nodelay(true);
    let Some(ca) = config.ca.as_deref().filter(|_| config.tls) else { return Ok(RemoteStream::Plain(tcp)) };
    let identity = config.identity.as_ref().map(|(cert, key)| Identity { cert, key });
    // Read for each connection: certificates change.
    let tls = client_config(ca, identity).map_err(|error| error.to_string())?;
    let name = ServerName::try_from(config.host.clone()).map_err(|error| format!("{:?}: {error}", config.host))?;
    let stream = TlsConnector::from(tls).connect(name, tcp).await;
    stream.map(|stream| RemoteStream::Tls(Box::new(stream))).map_err(|error| format!("TLS: {error}"))
}

impl AsyncRead for RemoteStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RemoteStream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            RemoteStream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for RemoteStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            RemoteStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            RemoteStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RemoteStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            RemoteStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            RemoteStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            RemoteStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
