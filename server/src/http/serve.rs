//! Connections of the API: TLS, HTTP/1.1, time limits, orderly shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use crate::admission::{ConnectionAdmission, ConnectionPermit, HandshakeProgress};
use crate::certificates::ReloadableTls;
use crate::lifetime::{ServerLifetime, wait_for_shutdown};
use crate::metrics::Metrics;

/// The time for a request's head, and the idle time before the next request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The largest head of a request, in bytes: 256 patterns of a kilobyte fit.
const HEAD_BYTES_MAX: usize = 320 << 10;
/// How long responses may continue at shutdown. The rest of [`SHUTDOWN_TIME_MAX`](crate::serve::SHUTDOWN_TIME_MAX) is for the store.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// The pause after a failed accept, for instance when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The client's address, in a request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub SocketAddr);

/// The state that all connections of the API share.
#[derive(Clone)]
pub(crate) struct HttpFrontend {
    pub router: Router,
    pub tls: ReloadableTls,
    pub metrics: Arc<Metrics>,
    pub admission: Arc<ConnectionAdmission>,
    /// How long a connection may remain unauthenticated.
    pub time_max: Duration,
}

/// Accepts connections until the server shuts down.
pub(crate) async fn accept(front: HttpFrontend, listener: TcpListener, mut lifetime: ServerLifetime) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = wait_for_shutdown(&mut lifetime.shutdown) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                match HandshakeProgress::of(&stream).and_then(|progress| front.admission.enter(peer.ip(), progress)) {
                    Some(place) => {
                        front.metrics.http_connections.add(1);
                        tokio::spawn(connection(front.clone(), stream, (peer, place), lifetime.clone()));
                    }
                    None => front.metrics.http_rejected.inc(),
                }
            }
            Err(error) => {
                tracing::warn!("https: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    front: HttpFrontend,
    stream: TcpStream,
    (peer, place): (SocketAddr, ConnectionPermit),
    mut lifetime: ServerLifetime,
) {
    let _ = stream.set_nodelay(true);
    let (place, until) = (Arc::new(place), Instant::now() + front.time_max);
    if !place.heard(&stream, until).await {
        front.metrics.http_rejected.inc();
        front.metrics.http_connections.add(-1);
        return;
    }
    let over = place.over(until);
    tokio::pin!(over);
    let handshake = async {
        let stream = front.tls.accept(stream).await?;
        place.advance(HandshakeProgress::Encrypted);
        Ok::<_, std::io::Error>(stream)
    };
    let accepted = tokio::select! {
        accepted = handshake => Some(accepted),
        () = &mut over => None,
    };
    match accepted {
        Some(Ok(stream)) => {
            let shown = place.clone();
            let router = TowerToHyperService::new(front.router.clone());
            let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(PeerAddress(peer));
                request.extensions_mut().insert(shown.clone());
                router.call(request)
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME_MAX).max_buf_size(HEAD_BYTES_MAX);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = &mut over => Ok(()),
                () = wait_for_shutdown(&mut lifetime.shutdown) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::time::timeout(DRAIN_TIME_MAX, connection).await.unwrap_or(Ok(()))
                }
            };
            if let Err(error) = ended {
                tracing::debug!("https {peer}: {error}");
            }
        }
        Some(Err(error)) => {
            front.metrics.http_rejected.inc();
            tracing::debug!("https {peer}: TLS handshake failed: {error}");
        }
        None => front.metrics.http_rejected.inc(),
    }
    front.metrics.http_connections.add(-1);
}
