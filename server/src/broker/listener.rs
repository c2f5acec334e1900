//! Accepts connections: limits, TLS handshake, and a task for each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use super::wire::PacketStream;
use super::{Broker, connection};
use crate::admission::{ConnectionPermit, HandshakeProgress};
use crate::certificates::ReloadableTls;
use crate::lifetime::{ServerLifetime, wait_for_shutdown};
use crate::{log_limit, pki};

/// The pause after a failed accept, for instance when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Broker {
    /// Accepts connections until the server shuts down.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<ReloadableTls>,
        mut lifetime: ServerLifetime,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = wait_for_shutdown(&mut lifetime.shutdown) => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    match HandshakeProgress::of(&stream).and_then(|progress| self.admission.enter(peer.ip(), progress))
                    {
                        // Counted here and not in the task, so that the limit holds if many connections arrive at once.
                        Some(place) => {
                            self.metrics.connections.add(1);
                            let task = self.clone().connection(stream, (peer, place), tls.clone(), lifetime.clone());
                            tokio::spawn(task);
                        }
                        // The admission logs the refusal.
                        None => self.metrics.connections_refused.inc(),
                    }
                }
                Err(error) => {
                    self.log.warn(format_args!("mqtt: cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    pub(super) async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        (peer, place): (SocketAddr, ConnectionPermit),
        tls: Option<ReloadableTls>,
        lifetime: ServerLifetime,
    ) {
        let (deadline, place) = (Instant::now() + self.limits().connect_time_max, Box::new(place));
        // Acknowledgements are small and must not be delayed.
        let _ = stream.set_nodelay(true);
        let is_heard = Box::pin(place.heard(&stream, deadline)).await;
        match tls {
            _ if !is_heard => {
                self.refused(peer, format_args!("it did not authenticate in time, or made room for others"))
            }
            None => {
                connection::run(self.clone(), PacketStream::new(stream), (peer, place), None, deadline, lifetime).await
            }
            Some(acceptor) => {
                // On the heap and dropped when done, so that ten thousand connections do not keep its memory.
                let handshake = Box::pin(self.handshake(stream, peer, acceptor, (&place, deadline)));
                if let Some((wire, name)) = handshake.await {
                    connection::run(self.clone(), wire, (peer, place), name, deadline, lifetime).await;
                }
            }
        }
        self.metrics.connections.add(-1);
    }

    /// TLS, and the name in the client's certificate; `None` if it failed, which has been logged.
    async fn handshake(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        acceptor: ReloadableTls,
        (place, deadline): (&ConnectionPermit, Instant),
    ) -> Option<(PacketStream<TlsStream<TcpStream>>, Option<String>)> {
        let handshake = async {
            let stream = acceptor.accept(stream).await?;
            place.advance(HandshakeProgress::Encrypted);
            Ok::<_, std::io::Error>(stream)
        };
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = place.over(deadline) => {
                self.refused(peer, format_args!("no TLS handshake in time, or it made room for others"));
                return None;
            }
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                self.refused(peer, format_args!("TLS handshake failed: {error}"));
                return None;
            }
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| pki::peer_certificate(chain.first()?));
        if let Some(pki::PeerCertificate { name, serial }) = &shown
            && self.security.is_revoked(peer, name, serial)
        {
            let name = log_limit::quoted(name);
            self.refused(peer, format_args!("the certificate {serial} of \"{name}\" is revoked"));
            return None;
        }
        Some((PacketStream::new(stream), shown.map(|shown| shown.name)))
    }

    pub(super) fn refused(&self, peer: SocketAddr, why: std::fmt::Arguments<'_>) {
        self.metrics.connections_refused.inc();
        self.log.warn(format_args!("mqtt {peer}: {why}"));
    }
}
